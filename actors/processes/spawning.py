"""Child processes of our own code: how their interpreter is started, and one that answers questions over its pipes.

Plain pipes instead of multiprocessing: a child whose parent was killed reads end-of-file and ends; nothing imports the
host's `__main__` again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from callboard.actors.processes.control import LENGTH

#: One read or write of a pipe; its default capacity.
PIPE_BYTES: Final = 65_536


def entry(main: Callable[..., object], *arguments: object) -> str:
    """Code that imports and calls this function. The arguments are written as literals."""
    return f"from {main.__module__} import {main.__name__}\n{main.__name__}(*{arguments!r})\n"


def interpreter(code: str) -> list[str]:
    """A command that runs this code with our import path, set before the first import: as it is found here."""
    return [sys.executable, "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{code}"]


class Helper:
    """A process of ours that answers questions one by one: `main` calls `answer_questions`. Not for several threads."""

    def __init__(self, main: Callable[[], None]) -> None:
        """Start it. Raises OSError: there is no `sys.executable` here, or no process to be had."""
        self._process = subprocess.Popen(
            interpreter(entry(main)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # Ctrl-C in a terminal is for the caller, who ends its helpers
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Its answer. Raises TimeoutError, or EOFError when it has ended; then it is of no further use: close it."""
        until = time.monotonic() + seconds
        try:
            self._write(LENGTH.pack(len(question)) + question, until)
            (length,) = LENGTH.unpack(self._read(LENGTH.size, until))
            return self._read(length, until)
        except BrokenPipeError as error:
            raise EOFError("the helper process has ended") from error

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _write(self, data: bytes, until: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._stdin.fileno(), select.POLLOUT, until)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._stdin.fileno(), view[:PIPE_BYTES]) :]

    def _read(self, size: int, until: float) -> bytes:
        read = bytearray()
        while len(read) < size:
            self._wait(self._stdout.fileno(), select.POLLIN, until)
            data = os.read(self._stdout.fileno(), min(size - len(read), PIPE_BYTES))
            if not data:
                raise EOFError("the helper process has ended")
            read += data
        return bytes(read)

    @staticmethod
    def _wait(descriptor: int, event: int, until: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1e3):
            raise TimeoutError("the helper process did not answer in time")


def answer_questions(answer: Callable[[bytes], bytes]) -> None:
    """In a helper: answer until its input ends, or nobody reads any more. What is printed goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    with contextlib.suppress(BrokenPipeError):
        while len(head := incoming.read(LENGTH.size)) == LENGTH.size:
            written = answer(incoming.read(LENGTH.unpack(head)[0]))
            outgoing.write(LENGTH.pack(len(written)) + written)
            outgoing.flush()
        return
    os._exit(1)
