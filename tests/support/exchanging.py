"""A program that exchanges names on the disk as fast as it can, each pair in one step of the kernel.

    python exchanging.py A B [A B ...]      until its standard input ends; then it prints how often, and how often not

Run by itself it is a process that edits do not wait for, as a confined job is; `Exchanging` runs it beside a test.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

#: Of an empty loop, between two exchanges: some 0.1 ms.
STEPS = 3_000
_HERE = -100
_EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2(2)."""


def exchange(one: Path | str, other: Path | str) -> bool:
    """False where the kernel refuses."""
    return bool(ctypes.CDLL(None).renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


class Exchanging:
    """The program, while `with` lasts; `count` afterwards."""

    def __init__(self, *pairs: tuple[Path, Path]) -> None:
        self._pairs = pairs
        self.count = 0

    def __enter__(self) -> Self:
        words = [sys.executable, "-S", "-E", __file__, *(str(each) for pair in self._pairs for each in pair)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        told, _ = self._process.communicate()
        done, refused = map(int, told.split())
        self.count = done
        assert done > refused, told


def main(names: list[str]) -> None:
    pairs = list(zip(names[::2], names[1::2], strict=True))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    done = [exchange(*pair) for pair in pairs]
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    is_exchanged = True
    counts = {True: sum(done), False: len(done) - sum(done)}
    chance = random.Random(7)
    while not ended.is_set():
        for pair in pairs:
            counts[exchange(*pair)] += 1
        # Most of the time as it was, so that edits get as far as this comes between all of their steps.
        is_exchanged = not is_exchanged
        for _ in range(chance.randrange(STEPS if is_exchanged else 10 * STEPS)):
            pass
    sys.stdout.write(f"{counts[True]} {counts[False]}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
