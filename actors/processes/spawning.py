"""Child processes of our own code: how their interpreter is started, and helpers that answer over their pipes.

Plain pipes instead of multiprocessing: a child whose parent was killed reads end-of-file and ends; nothing imports the
host's `__main__` again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from callboard.actors.processes.control import LENGTH
from callboard.actors.processes.linux import IS_LINUX, make_expendable

#: One read or write of a pipe; its default capacity.
PIPE_BYTES: Final = 65_536


#: The first argument of a frozen program that is started as a child process; the code to run comes behind it.
CHILD: Final = "--callboard-child"
_CALLED: Final = threading.Event()
"""Set once freeze_support() was called."""


def freeze_support() -> None:
    """For a program frozen by PyInstaller or cx_Freeze: call it first in the main module, before anything is started.

    Such a program has no interpreter to start, so its child processes are the program once more. In them, this call
    runs callboard's part and ends the process. Anywhere else it does nothing.
    """
    _CALLED.set()
    if is_frozen() and sys.argv[1:2] == [CHILD]:
        code = sys.argv[2]
        del sys.argv[1:]
        exec(code, {"__name__": "__main__"})
        sys.exit()


def is_frozen() -> bool:
    """Is this a program without an interpreter? Freezers set this mark, as multiprocessing expects it too."""
    return bool(getattr(sys, "frozen", False))


def interpreter(code: str) -> list[str]:
    """A command that runs this code with our import path, set before the first import: an editable install works.

    -P, because Python 3.13.0 looks for the current folder while it imports, and fails where that has been removed.
    Raises OSError where the command would start this program itself, again and again.
    """
    with_path = f"import sys\nsys.path[:] = {sys.path!r}\n{code}"
    if not is_frozen():
        return [sys.executable, "-P", "-c", with_path]
    if not _CALLED.is_set():
        raise OSError(errno.ENOEXEC, _NOT_SUPPORTED)
    return [sys.executable, CHILD, with_path]


_NOT_SUPPORTED: Final = (
    "child processes of a frozen program need `callboard.freeze_support()` as the first statement of its main module"
)


_REMEDY: Final = "give the tool isolation='thread', or make it an `async def`"
_MEND: Final = f"set it to the Python that callboard is installed in; or {_REMEDY}"


def why_not_started(status: int | OSError, has_begun: bool, words: str) -> str:
    """What is missing where the processes of tools have ended before they were ready, and what to do. `status`: how
    that ended, or why it was not started; `has_begun`: it was Python and ran our code; `words`: of its stderr."""
    if isinstance(status, OSError):
        return f"sys.executable ({sys.executable}) could not be started: {status.strerror or status}; {_MEND}"
    said = f"; it wrote: {words[-_WORDS:]}" if words else ""
    if not has_begun:
        return f"sys.executable ({sys.executable}) does not start Python (status {status}){said}; {_MEND}"
    last = words.rpartition("\n")[2] or f"status {status}"
    return (
        f"a new Python ({sys.executable}) cannot load callboard: {last[-_WORDS:]}; mend the installation, and after an "
        f"upgrade start this program again; or {_REMEDY}"
    )


def why_no_folder(words: str) -> str:
    """The same where there is no folder for temporary files."""
    return (
        f"no folder for temporary files: {words}; make it again, with room and writable, or start with another TMPDIR"
    )


#: Of what a process that does not start has written, in an error.
_WORDS: Final = 300


def why_not() -> str:
    """Why there can be no process isolation here, and what to do; empty where there can."""
    remedy = _REMEDY
    if not IS_LINUX:
        return f"process isolation needs Linux, this is {sys.platform}: {remedy}"
    if not sys.executable:
        return f"process isolation needs sys.executable, which is empty in this embedded interpreter: {remedy}"
    if shutil.which(sys.executable) is None:
        return f"process isolation starts sys.executable, and there is no program {sys.executable}: {_MEND}"
    if is_frozen() and not _CALLED.is_set():
        return f"{_NOT_SUPPORTED}; or {remedy}"
    return ""


class Helper:
    """A process of ours, which sends and receives frames. Not for several threads at once."""

    def __init__(self, main: Callable[[], None], *, quiet: bool = False) -> None:
        """Start `main`, a function of a module, in a new interpreter. Raises OSError: there is none to be had."""
        self._process = subprocess.Popen(
            interpreter(
                f"from {make_expendable.__module__} import make_expendable\nmake_expendable()\n"
                f"from {main.__module__} import {main.__name__}\n{main.__name__}()"
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            bufsize=0,
            process_group=0,  # Ctrl-C in a terminal is for the caller, who ends its helpers
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        # One that is dropped, as by an actor that was killed, leaves no process behind.
        self._end = weakref.finalize(self, _end, self._process)

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Tell, and hear the answer. Raises TimeoutError, or EOFError when it has ended; either way it is lost."""
        until = time.monotonic() + seconds
        self._write(LENGTH.pack(len(question)) + question, until)
        return self._frame(until)

    def tell(self, data: bytes, seconds: float) -> None:
        """Send one frame. Raises as `ask` does."""
        self._write(LENGTH.pack(len(data)) + data, time.monotonic() + seconds)

    def hear(self, seconds: float) -> bytes:
        """The next frame. Raises as `ask` does."""
        return self._frame(time.monotonic() + seconds)

    def be_nice(self, niceness: int) -> None:
        """Lower the priority of the thread that `main` runs on, unless it has ended."""
        if self._process.poll() is None:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness)

    def kill(self) -> None:
        """From any thread, without waiting: who asks it hears that it has ended."""
        self._process.kill()

    def close(self) -> int:
        """Kill it. Its exit status; again the same."""
        self._end()
        return self._process.wait()

    def leave(self, seconds: float) -> int:
        """Close its input and let it end by itself. Its exit status. Raises subprocess.TimeoutExpired."""
        self._stdin.close()
        return self._process.wait(seconds)

    def _write(self, data: bytes, until: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._stdin.fileno(), select.POLLOUT, until)
            try:
                view = view[os.write(self._stdin.fileno(), view[:PIPE_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise EOFError("the helper process has ended") from None

    def _frame(self, until: float) -> bytes:
        (length,) = LENGTH.unpack(self._read(LENGTH.size, until))
        return self._read(length, until)

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


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # does nothing in a fork of the process that started it, whose child it is not
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    process.wait()


class Caller:
    """In a helper: the process that started it. What is printed goes to stderr; Ctrl-C is for the caller to handle."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._incoming, self._outgoing = sys.stdin.buffer, sys.stdout.buffer
        sys.stdout = sys.stderr

    def hear(self) -> bytes:
        """The next frame. Raises EOFError when the caller has ended."""
        head = self._incoming.read(LENGTH.size)
        if len(head) < LENGTH.size:
            raise EOFError("the caller has ended")
        (length,) = LENGTH.unpack(head)
        return self._incoming.read(length)

    def tell(self, data: bytes) -> None:
        """Send one frame. Ends this process when the caller has ended."""
        try:
            self._outgoing.write(LENGTH.pack(len(data)) + data)
            self._outgoing.flush()
        except BrokenPipeError:
            os._exit(1)

    def serve(self, answer: Callable[[bytes], bytes]) -> None:
        """Answer each frame with one, until the caller has ended."""
        with contextlib.suppress(EOFError):
            while True:
                self.tell(answer(self.hear()))

    def wait_for_end(self) -> None:
        """Return when the caller, which sends nothing more, has ended."""
        os.read(self._incoming.fileno(), 1)
