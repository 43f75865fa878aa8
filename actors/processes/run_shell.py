"""A command line run by a shell, and the end of all that it has started. Used in a child process of its own.

The child is a subreaper: what the command leaves behind, also in sessions of its own, falls to it and can be found.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from callboard.actors.processes.linux import LOOK_AGAIN_SECONDS, descendants, kill_each

#: The first that there is. Commands are judged by bash's grammar, which has all of sh's.
SHELLS: Final = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh")
#: From SIGTERM to SIGKILL, for a command whose time is up.
GRACE_SECONDS: Final = 2.0
#: The same, for a command whose call is ended.
HURRIED_SECONDS: Final = 0.5
#: When the shell has ended, what is in the pipe is read so long; a process that it has left behind may hold it open.
DRAIN_SECONDS: Final = 0.2
#: How often the processes of a command are counted.
LOOK_SECONDS: Final = 0.05
#: A look that comes so late shows that we were stopped, and the command with us: that time is not the command's.
FROZEN_SECONDS: Final = 0.5
#: More are a fork bomb, not a build. (RLIMIT_NPROC does not hold for root, and counts all processes of a user.)
MAX_PROCESSES: Final = 512
#: Of a command, so that what watches it has its turn when there are hundreds of its processes.
NICENESS: Final = 5
#: One read of the output.
READ_BYTES: Final = 65_536
#: What `waitid` tells of a process that has ended.
_ENDS: Final = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
#: So often is looked for processes that are left, and those that are found are killed.
MAX_SWEEPS: Final = 200


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command has ended. Neither code nor signal: it was ended before it could be waited for."""

    exit_code: int | None
    signal: str
    """The name of the signal that ended the shell (`SIGSEGV`), or nothing."""
    timed_out: bool
    too_many_processes: bool
    left_running: int
    """Processes that the command had left behind, and that were ended."""
    seconds: float


def shell() -> str:
    """Where the shell is. Raises FileNotFoundError."""
    for path in SHELLS:
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError("there is no shell on this machine")


def run(
    line: str, cwd: Path, environment: Mapping[str, str], seconds: float, output: Callable[[bytes], None]
) -> CommandEnd:
    """Run a line, for so many seconds at most; `output` is given what it prints, on both its outputs, in order.

    All processes that it has started have ended when this returns or raises. Raises OSError where it cannot be started.
    """
    began = time.monotonic()
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    try:
        try:
            process = subprocess.Popen(
                [shell(), "-c", line],
                cwd=cwd,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        with _Watched(process, read_end, output) as watched:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            in_time = watched.wait(began + seconds)
            if not in_time:
                watched.end_politely()
            watched.drain()
            left = watched.end_all()
        code = process.returncode
        return CommandEnd(
            code if code is not None and code >= 0 else None,
            _signal_name(-code) if code is not None and code < 0 else "",
            not in_time and not watched.is_too_many,
            watched.is_too_many,
            left if in_time else 0,
            round(time.monotonic() - began, 3),
        )
    finally:
        os.close(read_end)


class _Watched:
    """A command that runs: its shell, its output, its processes."""

    def __init__(self, process: subprocess.Popen[bytes], read_end: int, output: Callable[[bytes], None]) -> None:
        self._process = process
        self._read_end = read_end
        self._output = output
        self._is_open = True
        self.is_too_many = False
        self._pidfd = os.pidfd_open(process.pid)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # the call is ended from outside
            self.end_politely(HURRIED_SECONDS)
        self.end_all()
        os.close(self._pidfd)

    def wait(self, until: float) -> bool:
        """Whether the shell ends by then, without starting too many processes."""
        look_at, now = 0.0, time.monotonic()
        while not self._has_ended():
            before, now = now, time.monotonic()
            if now - before > LOOK_SECONDS + FROZEN_SECONDS:
                until += now - before
            if now >= until:
                return False
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                if len(descendants()) > MAX_PROCESSES:
                    self.is_too_many = True
                    return False
            self._read(min(look_at, until) - now)
        return True

    def _has_ended(self) -> bool:
        """Has the shell? What Popen.poll takes for an end may be a stop, of a shell that lets itself be traced."""
        ready = select.poll()
        ready.register(self._pidfd, select.POLLIN)
        return bool(ready.poll(0)) and self._process.poll() is not None

    def _read(self, seconds: float) -> bool:
        """Hand on what is printed within this time, or return at the end of the shell. False: nothing was printed."""
        ready = select.poll()
        ready.register(self._pidfd, select.POLLIN)
        if self._is_open:
            ready.register(self._read_end, select.POLLIN)
        if self._read_end not in {descriptor for descriptor, _ in ready.poll(max(0.0, seconds) * 1e3)}:
            return False
        try:
            data = os.read(self._read_end, READ_BYTES)
        except BlockingIOError:
            return False
        self._is_open = bool(data)
        self._output(data)
        return bool(data)

    def end_politely(self, seconds: float = GRACE_SECONDS) -> None:
        """SIGTERM to the shell's group, and time to end. Of too many processes none is asked."""
        if self.is_too_many:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        until = time.monotonic() + seconds
        while not self._has_ended() and (now := time.monotonic()) < until:
            self._read(until - now)

    def drain(self) -> None:
        """Read what is left in the pipe: as long as there is something in it, for DRAIN_SECONDS at most."""
        until = time.monotonic() + DRAIN_SECONDS
        while self._is_open and self._read(0) and time.monotonic() < until:
            pass

    def end_all(self) -> int:
        """End all processes that the command has started. Returns how many there were besides its shell.

        A signal to a group reaches all of it at once, and none of them forks any more: that ends a fork bomb, whose
        processes come faster than they could be looked for.
        """
        if self.is_too_many:
            _kill_group(self._process.pid)
        found: set[int] = set()
        looks_without = 0
        for _ in range(MAX_SWEEPS):
            self._reap()
            left = descendants()
            if not left:
                looks_without += 1
                if looks_without == 2:
                    break
                continue
            looks_without = 0
            found |= left
            for group in {group for pid in left if (group := _group_of(pid)) != os.getpgrp()}:
                _kill_group(group)
            kill_each(left)
            time.sleep(LOOK_AGAIN_SECONDS)
        return len(found - {self._process.pid})

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_code not in _ENDS:  # of one that lets itself be traced: a stop, which is told once
                    os.waitid(os.P_PID, found.si_pid, os.WSTOPPED | os.WNOHANG)
                elif found.si_pid == self._process.pid and self._process.returncode is None:
                    self._process.poll()  # who takes the status of the shell keeps it
                else:
                    os.waitpid(found.si_pid, 0)


def _group_of(pid: int) -> int:
    """Of the process; our own where it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return os.getpgrp()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
