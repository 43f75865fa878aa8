"""The few things that only Linux can do for us, by its system calls: who dies with whom, and who inherits orphans."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

IS_LINUX: Final = sys.platform == "linux"

# linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


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
        return frozenset(pid for pid in _everybody() if _parent_of(pid) == os.getpid())


def marked(mark: str) -> frozenset[int]:
    """Process ids of all but this one that began with `NAME=VALUE` in their environment, as heirs of it do."""
    return frozenset(pid for pid in _everybody() if pid != os.getpid() and _has(pid, mark))


def _everybody() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            # The name, in brackets, may hold anything; what follows it is numbers: state, parent ...
            return int(status.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _has(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return mark.encode() in environment.read().split(b"\0")
    except OSError:  # it has just ended, or belongs to somebody else
        return False


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
