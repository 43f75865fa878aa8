"""The runtime's ends of the processes below it: starting the init process, and what comes from it and the fork servers.

Nothing is decided here. Readers and threads post what they read, to an actor or, in a test, to a list.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from callboard.actors.kernel import OutOfThreads, start_thread
from callboard.actors.processes.control import Kind, Message, hear, packed, pair, send, waiting
from callboard.actors.processes.init import MAX_CALL_PROCESSES, main
from callboard.actors.processes.keeper import NO_FOLDER, REFUSED, SHORT, SHORTAGES, enter
from callboard.actors.processes.spawning import PIPE_BYTES, interpreter, why_no_folder, why_not_started

#: All that children get of our environment: where things are and which language and time zone. Keys stay with us.
ENVIRONMENT: Final = frozenset(
    """PATH LD_LIBRARY_PATH VIRTUAL_ENV HOME USER LOGNAME SHELL TMPDIR
    LANG LANGUAGE TZ SSL_CERT_FILE SSL_CERT_DIR""".split()  # noqa: SIM905 - to be read as a list
)
#: Languages; and what a program frozen into one file tells its second process, which else would unpack it again.
PREFIXES: Final = ("LC_", "_PYI_")
#: From the order to end until they are killed: the init process gives itself 2 s, and kinds.py the source 3 s.
CLOSE_SECONDS: Final = 2.5
#: Where something is missing on this machine, calls are told so for this long, then one tries again; twice as long
#: after each time, up to the most.
MISSING_SECONDS: Final = 1.0
MOST_MISSING_SECONDS: Final = 30.0
#: Between two looks whether the loop that is to have a started process is closed.
LOOK_SECONDS: Final = 0.1
#: Between two reads of stderr: at most 6 MB/s of what a module prints while it is loaded.
PAUSE_SECONDS: Final = 0.01
#: What is kept of it, for the log, should the init process fail.
COMPLAINT_BYTES: Final = 8_192


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The allowed part of our environment, and `extra`."""
    allowed = {name: value for name, value in os.environ.items() if name in ENVIRONMENT or name.startswith(PREFIXES)}
    return {**allowed, **extra}


class Heard(Struct, frozen=True):
    """What the init process or the fork server of this number says. None at last: it has ended."""

    number: int
    message: Message | None


class Missing:
    """What is missing on this machine, so that no process can be started for tools: that is told at once, and nothing
    is tried for a while, which is twice as long each time."""

    def __init__(self) -> None:
        self._why = ""
        self._until = 0.0
        self._seconds = MISSING_SECONDS

    def note(self, why: str, now: float) -> None:
        """It has just been found out."""
        self._why, self._until = why, now + self._seconds
        self._seconds = min(2 * self._seconds, MOST_MISSING_SECONDS)

    def why(self, now: float) -> str:
        """What it is, and what to do; "" when it is time to try again, or nothing is."""
        return self._why if now < self._until else ""


class KeeperEnded(Struct, frozen=True):
    """The keeper, and so everything below it, has ended."""

    number: int
    """Of its init process."""
    refused: bool
    """The kernel does not give it namespaces."""
    why: str
    is_missing_something: bool = False
    """It was never ready, for want of something on this machine: it will not be until `why` is mended."""


class ChildSocket:
    """Our end of a control socket; what is read of it is posted as `Heard`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int, post: Callable[[Heard], None]) -> None:
        """Raises OSError: out of descriptors."""
        self._loop = loop
        self._number = number
        self._post = post
        self._ours, self.theirs = pair()
        self._ours.setblocking(False)
        loop.add_reader(self._ours.fileno(), self._readable)

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
        """False when it cannot be sent: the other side has ended, or has not read for 200 messages."""
        try:
            send(self._ours, message, descriptors)
        except OSError:
            return False
        return True

    def hand_over(self) -> socket.socket:
        """The other end, for who starts its process: it is theirs to close, also where this one is closed meanwhile."""
        return waiting(socket.socket(fileno=self.theirs.detach()))

    def close(self) -> None:
        """Nothing more is posted. Again: nothing."""
        if self._ours.fileno() >= 0:
            self._loop.remove_reader(self._ours.fileno())
        self._ours.close()
        self.theirs.close()

    def read_left(self) -> None:
        """Post what has come, of a process that has ended."""
        with contextlib.suppress(BlockingIOError):
            while self._ours.fileno() >= 0 and (message := hear(self._ours)) is not None:
                self._post(Heard(self._number, message))

    def _readable(self) -> None:
        try:
            message = hear(self._ours)
        except BlockingIOError:
            return
        if message is None:
            self._loop.remove_reader(self._ours.fileno())
        self._post(Heard(self._number, message))


class InitProcess:
    """The keeper and the init process, from their start until `KeeperEnded` is posted."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        number: int,
        memory_bytes: int,
        environment: Mapping[str, str],
        namespaces: bool,
        post: Callable[[Heard | KeeperEnded], None],
    ) -> None:
        """Raises OSError: out of descriptors or threads."""
        self._loop = loop
        self._post = post
        self.number = number
        self._connection = ChildSocket(loop, number, self._heard)
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._killed = False
        self._has_begun = self._is_ready = False
        self._complaint = b""
        self._pause: asyncio.TimerHandle | None = None
        control = self._connection.theirs.fileno()
        scratch = f"{_folder()}/callboard-{secrets.token_hex(8)}"
        # The shared memory of all tools of a pool is bounded as the memory of one process is.
        code = (
            f"import os\nos.write({control}, {packed(Message(Kind.STARTED, 0))!r})\n"
            f"from {enter.__module__} import enter\n"
            f"names, proc = enter({control}, {os.getpid()}, {namespaces}, {memory_bytes}, {scratch!r})\n"
            f"from {main.__module__} import main\n"
            f"main({control}, names, proc, {memory_bytes}, {scratch!r}, {MAX_CALL_PROCESSES})\n"
        )
        # On a thread of its own: starting a process waits for its exec, 1 ms at rest and 100 on a busy machine. What is
        # sent to it until then waits in the socket.
        theirs, told = self._connection.hand_over(), child_environment(environment)
        try:
            start_thread(lambda: self._launch(theirs, code, told), "callboard-launch")
        except OutOfThreads as error:
            theirs.close()
            self._connection.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def _heard(self, heard: Heard) -> None:
        if heard.message is not None:
            self._has_begun |= heard.message.kind is Kind.STARTED
            self._is_ready |= heard.message.kind is Kind.CONTAINED
        self._post(heard)

    @property
    def is_started(self) -> bool:
        """Is there a process? Starting one waits for its exec, on a thread of its own."""
        return self._process is not None

    def expect_python(self) -> None:
        """So much time has passed that Python would have begun: what has not is another program, and is ended."""
        if not self._has_begun and self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
        """False when it does not listen."""
        return self._connection.send(message, descriptors)

    def close(self) -> None:
        """Let it kill everything and end. Again: nothing."""
        self.send(Message(Kind.END, 0))  # not only by closing: a fork of ours may hold the socket open
        self._connection.close()
        self._loop.call_later(CLOSE_SECONDS, self.kill)

    def kill(self) -> None:
        """End it now, and everything below it."""
        self._killed = True
        if self._process is not None:
            # To the keeper, which kills the init process. They do nothing once it has been reaped.
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)

    def _launch(self, control: socket.socket, code: str, environment: Mapping[str, str]) -> None:
        process: subprocess.Popen[bytes] | OSError
        with control:
            try:
                process = subprocess.Popen(
                    interpreter(code),
                    pass_fds=(control.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                process = error
        taken = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._launched, process, taken)
        while not taken.wait(LOOK_SECONDS):
            if self._loop.is_closed() and not taken.is_set():
                if isinstance(process, subprocess.Popen):
                    with process:
                        pass  # it sees our end closed and ends; nobody else would wait for it
                return

    def _launched(self, process: subprocess.Popen[bytes] | OSError, taken: threading.Event) -> None:
        taken.set()
        if isinstance(process, OSError):
            self._connection.close()
            short = process.errno in SHORTAGES
            why = process.strerror or str(process) if short else why_not_started(process, False, "")
            self._post(KeeperEnded(self.number, refused=False, why=why, is_missing_something=not short))
            return
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._gone)
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        self._listen(process.stderr.fileno())
        if self._killed:
            self.kill()

    def _listen(self, stderr: int) -> None:
        """Read what is written to stderr as it comes, or the pipe fills and its writers never go on: ours, and what
        modules of tools print while they are loaded."""
        self._pause = None
        self._loop.add_reader(stderr, self._complained, stderr)

    def _complained(self, stderr: int) -> None:
        self._loop.remove_reader(stderr)
        if self._read_complaint(stderr):
            self._pause = self._loop.call_later(PAUSE_SECONDS, self._listen, stderr)

    def _read_complaint(self, stderr: int) -> bool:
        """Keep the end of it. False when nothing more can come."""
        try:
            data = os.read(stderr, PIPE_BYTES)
        except BlockingIOError:
            return True
        self._complaint = (self._complaint + data)[-COMPLAINT_BYTES:]
        return bool(data)

    def _gone(self) -> None:
        process = self._process
        assert process is not None
        assert process.stderr is not None
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._connection.read_left()
        self._connection.close()
        if self._pause is not None:
            self._pause.cancel()
        status = process.wait()
        with process.stderr as stderr:
            self._loop.remove_reader(stderr.fileno())
            self._read_complaint(stderr.fileno())
        words = self._complaint.decode(errors="replace").strip()
        # Killed while it loads callboard, itself or init, whose status the keeper hands on: the kernel lacks memory.
        is_short = status == SHORT or (self._has_begun and status & 0xFF == -signal.SIGKILL & 0xFF)
        is_missing_something = not (self._is_ready or self._killed or status == REFUSED or is_short)
        if not is_missing_something:
            why = words if status in (REFUSED, SHORT) else f"status {status}; {words}"
        elif status == NO_FOLDER:
            why = why_no_folder(words)
        else:
            why = why_not_started(status, self._has_begun, words)
        self._post(KeeperEnded(self.number, status == REFUSED, why, is_missing_something))


def _folder() -> str:
    """For temporary files. Raises OSError where there is none, and where there is no descriptor to look for one."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC))  # tempfile takes a lack of descriptors for that of a folder
        raise FileNotFoundError(errno.ENOENT, why_no_folder(error.strerror or str(error))) from error
