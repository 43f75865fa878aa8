"""How many tokens a text has: the real tokenizer, in a child process.

Loading its vocabulary takes 0.4 s of native code that holds the GIL: here, it would stall every thread of the host,
its loop too (measured: imports beside it stood still until it was done). In a child it loads beside them.
A count is one round trip over a pipe, 0.1 ms. Should the child be lost, this process loads the vocabulary after all.
"""

from __future__ import annotations

import atexit
import os
import select
import struct
import subprocess
import sys
import threading
from functools import cache
from typing import Final

import quicktok  # type: ignore[import-untyped]

#: The encoding of current OpenAI models; others differ by under 1% on code.
ENCODING: Final = "o200k_base"
#: For a child on a busy machine to load and answer; then this process counts by itself.
ANSWER_SECONDS: Final = 20.0

_LENGTH: Final = struct.Struct("<Q")
_MAIN: Final = "import sys; sys.path[:] = {path!r}; from callboard.actors.index.token_count import main; main()"


def count_tokens(text: str) -> int:
    """Exact count in o200k."""
    data = text.encode("utf-8", "replace")
    counted = _child().count(data)
    return int(_vocabulary().count(data.decode())) if counted is None else counted


def load_ahead() -> None:
    """Begin to load the vocabulary; returns at once."""
    _child()


class _Child:
    """The counting process. It ends when our end of its pipe closes, however this process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = self._started()

    @staticmethod
    def _started() -> subprocess.Popen[bytes] | None:
        try:
            return subprocess.Popen(
                [sys.executable, "-c", _MAIN.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,  # Ctrl-C in a terminal is for us; the child follows
            )
        except OSError:  # an embedded interpreter without sys.executable, no more processes
            return None

    def count(self, data: bytes) -> int | None:
        """None when the child cannot tell, from then on."""
        with self._lock:
            process = self._process
            if process is None or process.stdin is None or process.stdout is None:
                return None
            try:
                process.stdin.write(_LENGTH.pack(len(data)))
                _write_all(process.stdin.fileno(), data)
                if select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
                    answer = process.stdout.read(_LENGTH.size)
                    if answer is not None and len(answer) == _LENGTH.size:
                        return int(_LENGTH.unpack(answer)[0])
            except OSError:  # it has gone, and with it the pipe
                self._end()
                return None
            self._end()
            return None

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_starting = threading.Lock()
_children: dict[int, _Child] = {}
"""By the process they belong to: a fork of the host must not share its parent's pipe."""


def _child() -> _Child:
    with _starting:
        if (child := _children.get(os.getpid())) is None:
            child = _children[os.getpid()] = _Child()
            atexit.register(child.close)
        return child


@cache
def _vocabulary() -> quicktok.Tokenizer:
    return quicktok.get_encoding(ENCODING)


def main() -> None:
    """The child: a length and so many bytes in, a count out, until its input ends."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    vocabulary = _vocabulary()
    while len(header := incoming.read(_LENGTH.size)) == _LENGTH.size:
        text = incoming.read(_LENGTH.unpack(header)[0]).decode("utf-8", "replace")
        outgoing.write(_LENGTH.pack(vocabulary.count(text)))
        outgoing.flush()
