"""The keeper: makes the namespaces, starts the init process in them, and ends it when the runtime has ended.

It waits for the runtime's end, also by kill -9, and then kills the init process, which may be stopped or hang.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
from functools import cache
from typing import Final, NoReturn

from msgspec import Struct

from callboard.actors.processes.confinement import Confine, kernel_support, what_is_missing
from callboard.actors.processes.linux import (
    MAX_POOL_PROCESSES,
    capabilities,
    die_with_parent,
    enter_mount_namespace,
    inherit_orphans,
    keep_capabilities,
    kill_all,
    kills_for_memory,
    leave_for_namespaces,
    mount_own,
    set_read_only,
    signal_only_own,
    wait_for_end,
)
from callboard.actors.processes.spawning import interpreter, why_not
from callboard.protocol.errors import UsageError

#: Exit status where the kernel refuses namespaces; stderr says why. The runtime starts another without.
REFUSED: Final = 77
#: The same where the host has no process or memory left: the runtime tries again.
SHORT: Final = 79
#: What the host may have again in a moment.
SHORTAGES: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS})
#: Exit status where its folder could not be made; stderr says why.
NO_FOLDER: Final = 78
#: For the trial of `containment`.
TRY_SECONDS: Final = 10.0


def enter(
    runtime: int, runtime_pid: int, namespaces: bool, shared_memory_bytes: int, scratch: str
) -> tuple[str, int | None]:
    """Become the keeper. Returns in the init process only: the names of its namespaces, and a /proc that shows all that
    is in them, open; "" and None where there are none.

    `scratch` is where to make a folder for the scratch folders of tools, which goes when all have ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a host that ignores it hands that on, and we wait for ours
    try:
        host = os.pidfd_open(runtime_pid)
    except ProcessLookupError:
        sys.exit(0)
    own = capabilities()
    kills_for_memory()  # finds its file by way of /proc/self: of the init process's own, tools would get to see a trace
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # an order to end comes before the folder, or after fork
    try:
        entered = leave_for_namespaces() if namespaces else ""
        inherit_orphans()
    except OSError as error:
        _refuse(error)
    try:
        os.mkdir(scratch, 0o700)
    except OSError as error:
        _refuse(error, NO_FOLDER)
    try:
        pid = os.fork()
    except OSError as error:
        _refuse(error)
    if pid:
        os.close(runtime)
        _keep(pid, host, scratch)
    os.close(host)
    proc = None
    if namespaces:
        die_with_parent(signal.SIGKILL)
        try:
            proc = mount_own(shared_memory_bytes, MAX_POOL_PROCESSES)
            keep_capabilities(own)
        except OSError as error:
            _refuse(error)
    else:
        # Only a hint to look whether the parent has changed: there is something left to do then.
        die_with_parent(signal.SIGTERM)
        inherit_orphans()
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # only to wake its poll
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return entered, proc


def _refuse(error: OSError, status: int = REFUSED) -> NoReturn:
    if error.errno in SHORTAGES:
        status = SHORT  # else tools would do without namespaces for a moment's lack of processes
    sys.stderr.write(f"{error}\n")
    sys.stderr.flush()
    os._exit(status)


def _keep(init: int, host: int, scratch: str) -> NoReturn:
    # An order of the runtime, for an init process that does not listen any more.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(init, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(os.pidfd_open(init), select.POLLIN)
    poll.poll()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(init, signal.SIGKILL)  # all in its namespace end with it; without one, what it leaves falls to us
    status = wait_for_end(init)
    kill_all()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


class Containment(Struct, frozen=True):
    """How well tools in processes are contained on this machine."""

    namespaces: str
    """Their names; empty where the kernel refuses them."""
    signals: bool
    """Whether a tool can be kept from signalling other processes than its own."""
    why_not: str = ""
    mounts: bool = False
    """Whether a tool can be given a view of the files of its own: read-only, and with secret files covered."""

    def __str__(self) -> str:
        if not self.namespaces:
            return f"tools run in no namespaces of their own ({self.why_not}); what they start is ended with their call"
        signals = "only their own" if self.signals else "other tools', the kernel cannot prevent it"
        limits = "memory by process, shared too, and /dev/shm in all; cgroup limits: no"
        return f"tools run in namespaces of their own: {self.namespaces}; they can signal {signals}; limits: {limits}"


@cache
def containment() -> Containment:
    """Found out by trying it, in a process of its own. Takes a fraction of a second the first time."""
    if reason := why_not():
        return Containment("", signals=False, why_not=reason)
    try:
        tried = subprocess.run(
            interpreter(f"from {_try.__module__} import {_try.__name__}\n{_try.__name__}()"),
            capture_output=True,
            text=True,
            timeout=TRY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Containment("", signals=False, why_not=f"a trial in a process of its own failed: {error}")
    names, signals, mounts = (*tried.stdout.strip().split(";"), "", "")[:3]
    complaint = tried.stderr.strip().rpartition("\n")[2]
    return Containment(names, signals=signals == "True", why_not=complaint, mounts=mounts == "True")


def masks_secrets(mode: Confine = Confine.AUTO) -> bool:
    """Are secret files covered for confined tools here, those that run commands included? Takes 0.2 s the first time:
    not for the control loop."""
    return mode is not Confine.OFF and not kernel_support().lacks and containment().mounts


def check_confinement(mode: Confine) -> None:
    """Raise UsageError where confinement is required and this machine cannot. Takes 0.2 s where it is required."""
    if mode is not Confine.REQUIRED:
        return
    found = containment()
    if lacks := what_is_missing(kernel_support(), found.mounts, found.why_not):
        raise UsageError(
            f"confine='required', but this machine has not {lacks}; `callboard doctor` says what it has, and "
            "confine='auto' confines tools as far as that goes"
        )


def about_confinement(mode: Confine) -> str:
    """What this machine has for it and what is done with it, for people. Takes 0.2 s the first time."""
    kernel, mounts = kernel_support(), containment().mounts
    has = f"this kernel has {kernel}, {'mounts' if mounts else 'no mounts'} of a tool's own"
    is_masked = masks_secrets(mode)
    secret = "secret files are covered" if is_masked else "secret files are NOT covered, commands are asked about"
    if mode is Confine.OFF:
        return f"tools are not confined: confine is off; {secret}; {has}"
    if kernel.lacks:
        return f"tools are not confined; {secret}; {has}"
    lacks = what_is_missing(kernel, mounts, "")
    ready = f"confine='required' would not start: it needs {lacks}" if lacks else "confine='required' would start"
    hosts = "hosts=[...] of a tool is NOT enforced"
    return f"tools in processes that declare a risk are confined to it ({has}); {secret}; {hosts}; {ready}"


def _try() -> None:
    own = capabilities()
    names = leave_for_namespaces()
    pid = os.fork()
    if pid == 0:
        mount_own(1 << 20, MAX_POOL_PROCESSES)
        keep_capabilities(own)
        sys.stdout.write(f"{names};{signal_only_own()};")
        sys.stdout.flush()
        enter_mount_namespace()
        set_read_only("/", below=True)
        sys.stdout.write("True\n")
        sys.stdout.flush()
        os._exit(0)
    wait_for_end(pid)
