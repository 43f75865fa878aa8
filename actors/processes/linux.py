"""What only Linux can do, by its system calls: who inherits orphans, namespaces, capabilities, who may signal whom."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

IS_LINUX: Final = sys.platform == "linux"

# linux/prctl.h, linux/sched.h, linux/mount.h, linux/capability.h, linux/landlock.h, asm-generic/unistd.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWIPC: Final = 0x08000000
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWPID: Final = 0x20000000
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_NOEXEC: Final = 8
_MS_REC_PRIVATE: Final = 0x4000 | 1 << 18
_MS_BIND_REC: Final = 0x1000 | 0x4000
_MOUNT_SETATTR: Final = 442
_MOUNT_READ_ONLY: Final = 1
_AT_RECURSIVE: Final = 0x8000
_CAP_SYS_ADMIN: Final = 1 << 21
#: Of a root that is confined: other users' files, as far as Landlock and mounts allow (chown, dac_override, fowner,
#: fsetid).
FILE_CAPABILITIES: Final = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_RESTRICT_SELF: Final = 446
_LANDLOCK_SCOPES: Final = 1 << 1
"""Of signals. Files and connections stay as they are."""

#: Of processes and threads, of all tools of a pool together: a backstop for init.py, which looks at each call.
MAX_POOL_PROCESSES: Final = 8_192
#: `kill_all` looks again after this long whether all have ended, and gives up after the other.
LOOK_AGAIN_SECONDS: Final = 0.002
KILL_ALL_SECONDS: Final = 2.0

_CAUGHT: Final = re.compile(rb"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
_PROCESS: Final = re.compile(
    rb"^State:\s*(\w).*?^PPid:\s*(\d+)$.*?^NSpgid:\s*(\d+).*?^NSsid:\s*(\d+)", re.MULTILINE | re.DOTALL
)
_THREAD: Final = re.compile(rb"^Tgid:\s*(\d+)$.*?^PPid:\s*(\d+)$.*?^NSpid:\s*([\d\s]+?)$", re.MULTILINE | re.DOTALL)
#: In kB; since Linux 4.5.
_SHARED: Final = re.compile(rb"^RssShmem:\s*(\d+) kB$", re.MULTILINE)
#: Since then, each PID namespace has a limit of its own; before, this setting was the whole machine's.
_PID_LIMITS_SINCE: Final = (6, 14)
_PID_LIMIT: Final = "/proc/sys/kernel/pid_max"
#: States of a process that has ended and may still have to be reaped.
_ENDED: Final = (b"", b"Z", b"X")
_CAP_NAMES: Final = ("CapInh", "CapPrm", "CapEff")
_EFFECTIVE: Final = 2


def die_with_parent(signal_number: int) -> None:
    """Have this process sent the signal when the thread that forked it ends. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def inherit_orphans() -> None:
    """Make this process the new parent of descendants whose parent dies, in place of init. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> frozenset[int]:
    """Process ids of the direct children of this single-threaded process, zombies too."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as listing:
            return frozenset(map(int, listing.read().split()))
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return frozenset(pid for pid in processes() if _parent_of(pid) == os.getpid())


def children_of(pids: Iterable[int]) -> frozenset[int]:
    """These processes and all below them, as far as the kernel lists children (CONFIG_PROC_CHILDREN)."""
    found, todo = set[int](), list(pids)
    while todo:
        pid = todo.pop()
        if pid in found:
            continue
        found.add(pid)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as listing:
                    todo += map(int, listing.read().split())
    return frozenset(found)


def processes(proc: int | str = "/proc") -> frozenset[int]:
    """The ids of all processes that can be seen there."""
    return frozenset(int(name) for name in os.listdir(proc) if name.isdigit())


class Process(NamedTuple):
    """What is looked at of a process, again and again."""

    parent: int
    group: int
    session: int
    shared_memory_bytes: int
    """Of all kinds, as far as it is in memory."""


def look_at(pid: int, proc: int | None = None) -> Process | None:
    """A process by its id, in this open /proc or in that which is mounted; None when it has ended."""
    status = _status(pid, proc)
    found = _PROCESS.search(status)
    if found is None or found[1] in _ENDED:
        return None
    shared = _SHARED.search(status)
    return Process(int(found[2]), int(found[3]), int(found[4]), int(shared[1]) * 1024 if shared else 0)


class Thread(NamedTuple):
    """Where a thread belongs."""

    process: int
    parent: int
    """Of the process."""
    depth: int
    """PID namespaces that it is in, below that of the /proc in which it is looked at."""


def look_at_thread(thread: int, proc: int | None = None) -> Thread | None:
    """A thread, or the first one of a process, by its id; None when it has ended."""
    found = _THREAD.search(_status(thread, proc))
    return None if found is None else Thread(int(found[1]), int(found[2]), len(found[3].split()) - 1)


def catches(pid: int, number: int, proc: int | None = None) -> bool:
    """Has this process a handler for the signal? False when it has ended."""
    found = _CAUGHT.search(_status(pid, proc))
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def _status(pid: int, proc: int | None) -> bytes:
    """b"" when it has ended."""
    name = f"{pid}/status"
    try:
        status = os.open(f"/proc/{name}", os.O_RDONLY) if proc is None else os.open(name, os.O_RDONLY, dir_fd=proc)
    except (FileNotFoundError, ProcessLookupError):
        return b""
    try:
        return os.read(status, 65_536)
    except ProcessLookupError:
        return b""
    finally:
        os.close(status)


#: Of `oom_score_adj`: what a process that its maker can do without is killed before, at most. A share of all memory in
#: thousandths is added to what it has taken.
_MOST_EXPENDABLE: Final = 1_000


def make_expendable(pid: int | None = None, share: float = 1.0, proc: int | None = None) -> None:
    """Where memory runs out, have the kernel kill this process (None: our own) before those that started it. `share`:
    of the way from its present score to the greatest. It is never lowered."""
    name = f"{'self' if pid is None else pid}/oom_score_adj"
    with contextlib.suppress(OSError, ValueError):  # it has ended, or is another user's
        score = os.open(f"/proc/{name}" if proc is None else name, os.O_RDWR, dir_fd=proc)
        try:
            present = int(os.read(score, 16))
            os.pwrite(score, str(present + round((_MOST_EXPENDABLE - present) * share)).encode(), 0)
        finally:
            os.close(score)


def kills_for_memory() -> int:
    """Processes of our control group (on a machine without: of all) that the kernel has killed since memory ran out."""
    try:
        with open(_counter_of_kills()) as events:
            return next(int(line.split()[1]) for line in events if line.startswith("oom_kill "))
    except (OSError, StopIteration):
        return 0


@cache
def _counter_of_kills() -> str:
    """Of version 2, of version 1, or of the machine."""
    places = []
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as groups:
        for line in groups:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == "memory":
                places.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
            elif not controllers:
                places.append(f"/sys/fs/cgroup{path}/memory.events")
    return next((place for place in places if os.path.exists(place)), "/proc/vmstat")


def kill_each(pids: Iterable[int]) -> set[int]:
    """SIGKILL to each of these processes. Returns those of other users, which we may not signal."""
    foreign = set()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        except PermissionError:
            foreign.add(pid)
    return foreign


def reaped() -> Iterator[tuple[int, int]]:
    """The children of this process that have ended by now, with their wait status: each is taken off the kernel's list.

    Only an end is one: a child that lets itself be traced (PTRACE_TRACEME) has its stops reported here too, asked or
    not, and goes on being a child.
    """
    with contextlib.suppress(ChildProcessError):
        while (waited := os.waitpid(-1, os.WNOHANG))[0]:
            if is_end(waited[1]):
                yield waited


def is_end(status: int) -> bool:
    """Does this wait status say that the process has ended, and not that it has stopped or goes on?"""
    return os.WIFEXITED(status) or os.WIFSIGNALED(status)


def wait_for_end(pid: int) -> int:
    """The wait status with which this child ends."""
    while not is_end(status := os.waitpid(pid, 0)[1]):
        pass
    return status


def kill_all() -> None:
    """Kill and reap the children of this subreaper, and what comes to it from them, for 2 s at most."""
    until = time.monotonic() + KILL_ALL_SECONDS
    while (left := children()) and time.monotonic() < until:
        if kill_each(left) == left:
            return
        for _ in reaped():
            pass
        time.sleep(LOOK_AGAIN_SECONDS)


def _parent_of(pid: int) -> int:
    return _state(pid)[1]


def _state(pid: int) -> tuple[bytes, int]:
    """The letter that says what a process does, and its parent; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            # The name, in brackets, may hold anything; what follows it is numbers: state, parent ...
            state, parent = status.read().rpartition(b")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return b"", 0
    return state, int(parent)


def descendants() -> frozenset[int]:
    """The processes below this one, without those that have ended and only have to be reaped.

    They are looked at one after the other: one whose parent ends meanwhile can be missed, so look twice.
    """
    states = {pid: _state(pid) for pid in processes()}
    found = {os.getpid()}
    while more := {pid for pid, (_, parent) in states.items() if parent in found and pid not in found}:
        found |= more
    return frozenset(pid for pid in found - {os.getpid()} if states[pid][0] not in _ENDED)


# -- namespaces


def leave_for_namespaces() -> str:
    """Put this process's next child into a PID namespace of its own, and this process into new user, mount and IPC
    namespaces, in which each user id stays what it is. Returns their names. Raises OSError where the kernel refuses.

    A root that may not map every id (and would then lose its rights over other users' files) keeps its user namespace.
    """
    read_end, write_end = os.pipe()
    parent = os.getpid()
    helper = os.fork()  # it stays in the present user namespace, from where alone all ids can be mapped
    if helper == 0:
        os.close(write_end)
        os._exit(0 if os.read(read_end, 1) and _map_ids(parent) else 1)
    os.close(read_end)
    try:
        checked(libc().unshare(_CLONE_NEWUSER))
        _prctl(_PR_SET_DUMPABLE, 1)  # else its id maps belong to root
        os.write(write_end, b"x")
    finally:
        os.close(write_end)
        status = wait_for_end(helper)
    if status:
        raise PermissionError("the ids of its user namespace may not be mapped")
    checked(libc().unshare(_CLONE_NEWPID | _CLONE_NEWNS | _CLONE_NEWIPC))
    return "user, pid, mount, ipc"


def _map_ids(pid: int) -> bool:
    """All ids of this namespace as themselves; a user that may not do so maps its own id, which is all it needs."""
    for own, name in ((os.geteuid(), "uid_map"), (os.getegid(), "gid_map")):
        with open(f"/proc/self/{name}") as here:
            extents = [line.split() for line in here]
        everyone = "".join(f"{first} {first} {count}\n" for first, _, count in extents)
        if _written(f"/proc/{pid}/{name}", everyone):
            continue
        if os.geteuid() == 0:
            return False
        if name == "gid_map" and not _written(f"/proc/{pid}/setgroups", "deny"):
            return False
        if not _written(f"/proc/{pid}/{name}", f"{own} {own} 1\n"):
            return False
    return True


def _written(path: str, text: str) -> bool:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        return False
    return True


def mount_own(shared_memory_bytes: int, processes: int) -> int:
    """In the new namespaces: a /proc, a /dev/shm of bounded size, and where the kernel can (6.14) a limit to all their
    processes and threads. Returns an open /proc that shows them all; the one that is mounted shows to each process only
    those that it may trace: a confined one sees its own (Landlock). Raises OSError."""
    _mount("none", "/", "", _MS_REC_PRIVATE, "")
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "")
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    if _version() >= _PID_LIMITS_SINCE:
        with open(_PID_LIMIT) as known:
            limit = min(processes, int(known.read()))
        _written(_PID_LIMIT, str(limit))
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "hidepid=ptraceable")
    if os.path.isdir("/dev/shm"):
        _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={shared_memory_bytes},mode=1777")
    return proc


def _version() -> tuple[int, ...]:
    """Of the kernel."""
    return tuple(int(each) for each in re.findall(r"\d+", os.uname().release)[:2])


def _mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    checked(libc().mount(os.fsencode(source), os.fsencode(target), kind.encode() or None, flags, data.encode() or None))


def enter_mount_namespace() -> None:
    """Have mounts of this process's own. A process without the right to makes a user namespace around them, in which
    its user is the only one. Raises OSError."""
    if capabilities()[_EFFECTIVE] & _CAP_SYS_ADMIN:
        checked(libc().unshare(_CLONE_NEWNS))
    else:
        user, group = os.geteuid(), os.getegid()
        checked(libc().unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
        _prctl(_PR_SET_DUMPABLE, 1)  # else its id maps belong to root
        _written("/proc/self/setgroups", "deny")  # or it is so already
        if not (
            _written("/proc/self/uid_map", f"{user} {user} 1") and _written("/proc/self/gid_map", f"{group} {group} 1")
        ):
            raise PermissionError("the ids of its user namespace may not be mapped")
    _mount("none", "/", "", _MS_REC_PRIVATE, "")


def mount_memory(place: str, size_bytes: int, files: int) -> None:
    """An empty folder in memory, bounded. Raises OSError."""
    _mount("tmpfs", place, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={size_bytes},nr_inodes={files},mode=755")


def bind_mount(source: str, target: str) -> None:
    """Show in the one place what is in the other, with all that is mounted below it. Raises OSError."""
    _mount(source, target, "", _MS_BIND_REC, "")


def set_read_only(place: str, *, below: bool = False, on: bool = True) -> None:
    """Of what is mounted here, and with `below` of all mounts below it. Raises OSError."""
    attributes = struct.pack("4Q", _MOUNT_READ_ONLY if on else 0, 0 if on else _MOUNT_READ_ONLY, 0, 0)
    flags = _AT_RECURSIVE if below else 0
    checked(libc().syscall(_MOUNT_SETATTR, -100, os.fsencode(place), flags, attributes, len(attributes)))


def capabilities() -> tuple[int, ...]:
    """The inheritable, permitted and effective set of this process."""
    with open("/proc/self/status") as status:
        found = dict(line.rstrip().split(":\t", 1) for line in status if line.startswith("Cap"))
    return tuple(int(found[name], 16) for name in _CAP_NAMES)


def keep_capabilities(kept: tuple[int, ...]) -> None:
    """Drop what a new user namespace has given beyond these. Raises OSError."""
    inheritable, permitted, effective = kept
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    low, high = ([each >> shift & 0xFFFFFFFF for each in (effective, permitted, inheritable)] for shift in (0, 32))
    checked(libc().capset(header, struct.pack("6I", *low, *high)))
    _prctl(_PR_SET_DUMPABLE, 1)  # else its own /proc entries are root's


def signal_only_own() -> bool:
    """Let this process and its descendants signal (and trace) only each other from now on. False: the kernel cannot.

    A process without CAP_SYS_ADMIN gives up set-user-id programs with it.
    """
    calls = libc()
    attributes = struct.pack("3Q", 0, 0, _LANDLOCK_SCOPES)
    rules = calls.syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        if calls.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0) == 0:
            return True
        no_new_privileges()
        return bool(calls.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def no_new_privileges() -> None:
    """From now on, no program gives this process more rights than it has: set-user-id has no effect. Raises OSError."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> None:
    checked(libc().prctl(option, value, 0, 0, 0))


@cache
def libc() -> ctypes.CDLL:
    """The C library; the error of its last call is `ctypes.get_errno()`."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    """Raise the OSError that a call of the C library has left, unless its result is 0."""
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
