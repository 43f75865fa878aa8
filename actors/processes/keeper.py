"""The keeper: makes the namespaces, starts the init process in them, and ends it when the runtime has ended.

It waits for the runtime's end, also by kill -9, and then kills the init process, which may be stopped or hang.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Final, NoReturn

from callboard.actors.processes.linux import (
    capabilities,
    die_with_parent,
    inherit_orphans,
    keep_capabilities,
    kill_all,
    leave_for_namespaces,
    mount_own,
    signal_only_own,
)
from callboard.actors.processes.spawning import interpreter, why_not

#: Exit status where the kernel refuses namespaces; stderr says why. The runtime starts another without.
REFUSED: Final = 77
#: For the trial of `containment`.
TRY_SECONDS: Final = 10.0


def enter(runtime: int, runtime_pid: int, namespaces: bool, shared_memory_bytes: int) -> str:
    """Become the keeper. Returns in the init process only: the names of its namespaces, none where there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a host that ignores it hands that on, and we wait for ours
    try:
        host = os.pidfd_open(runtime_pid)
    except ProcessLookupError:
        sys.exit(0)
    own = capabilities()
    try:
        entered = leave_for_namespaces() if namespaces else ""
        inherit_orphans()
        pid = os.fork()
    except OSError as error:
        _refuse(error)
    if pid:
        os.close(runtime)
        _keep(pid, host)
    os.close(host)
    if namespaces:
        die_with_parent(signal.SIGKILL)
        try:
            mount_own(shared_memory_bytes)
            keep_capabilities(own)
        except OSError as error:
            _refuse(error)
    else:
        # Only a hint to look whether the parent has changed: there is something left to do then.
        die_with_parent(signal.SIGTERM)
        inherit_orphans()
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # only to wake its poll
    return entered


def _refuse(error: OSError) -> NoReturn:
    sys.stderr.write(f"{error}\n")
    sys.stderr.flush()
    os._exit(REFUSED)


def _keep(init: int, host: int) -> NoReturn:
    # An order of the runtime, for an init process that does not listen any more.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(init, signal.SIGKILL))
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(os.pidfd_open(init), select.POLLIN)
    poll.poll()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(init, signal.SIGKILL)  # all in its namespace end with it; without one, what it leaves falls to us
    _, status = os.waitpid(init, 0)
    kill_all()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


@dataclass(frozen=True, slots=True)
class Containment:
    """How well tools in processes are contained on this machine."""

    namespaces: str
    """Their names; empty where the kernel refuses them."""
    signals: bool
    """Whether a tool can be kept from signalling other processes than its own."""
    why_not: str = ""

    def __str__(self) -> str:
        if not self.namespaces:
            return f"tools run in no namespaces of their own ({self.why_not}); what they start is ended with their call"
        signals = "only their own" if self.signals else "other tools', the kernel cannot prevent it"
        limits = "memory by process, shared too, and /dev/shm in all; cgroup limits: no"
        return f"tools run in namespaces of their own: {self.namespaces}; they can signal {signals}; limits: {limits}"


def containment() -> Containment:
    """Found out by trying it, in a process of its own. Takes a fraction of a second."""
    if reason := why_not():
        return Containment("", signals=False, why_not=reason)
    tried = subprocess.run(
        interpreter(f"from {_try.__module__} import {_try.__name__}\n{_try.__name__}()"),
        capture_output=True,
        text=True,
        timeout=TRY_SECONDS,
        check=False,
    )
    names, _, signals = tried.stdout.strip().partition(";")
    complaint = tried.stderr.strip().rpartition("\n")[2]
    return Containment(names, signals=signals == "True", why_not=complaint)


def _try() -> None:
    own = capabilities()
    names = leave_for_namespaces()
    pid = os.fork()
    if pid == 0:
        mount_own(1 << 20)
        keep_capabilities(own)
        sys.stdout.write(f"{names};{signal_only_own()}\n")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
