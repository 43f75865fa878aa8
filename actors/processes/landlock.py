"""Landlock: which files a process and its descendants may touch, by system calls of Linux. It cannot be taken back."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from enum import IntFlag
from stat import S_ISDIR
from typing import Final, NamedTuple

from callboard.actors.processes.linux import checked, libc, no_new_privileges

# linux/landlock.h, asm-generic/unistd.h
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_TCP: Final = 1 << 0 | 1 << 1
_SCOPES: Final = 1 << 0 | 1 << 1
"""Abstract Unix sockets and signals: only those of the domain itself."""


class May(IntFlag):
    """What may be done with a file, or with what is in a folder."""

    RUN = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    LIST = 1 << 3
    REMOVE_FOLDER = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHARACTER_DEVICE = 1 << 6
    MAKE_FOLDER = 1 << 7
    MAKE_FILE = 1 << 8
    MAKE_SOCKET = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK_DEVICE = 1 << 11
    MAKE_LINK = 1 << 12
    MOVE = 1 << 13
    TRUNCATE = 1 << 14
    CONTROL_DEVICE = 1 << 15

    READ = READ_FILE | LIST
    WRITE = (
        WRITE_FILE | REMOVE_FOLDER | REMOVE_FILE | MAKE_FOLDER | MAKE_FILE | MAKE_SOCKET | MAKE_FIFO | MAKE_LINK | MOVE
    ) | TRUNCATE
    USE_DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | CONTROL_DEVICE


# Plain numbers from here on: arithmetic with flags would take a fresh fork 0.3 ms.
_OF_FILES: Final = int(May.RUN | May.WRITE_FILE | May.READ_FILE | May.TRUNCATE | May.CONTROL_DEVICE)
#: The rights that came with a version, and those that every version has.
_SINCE: Final = ((2, int(May.MOVE)), (3, int(May.TRUNCATE)), (5, int(May.CONTROL_DEVICE)))
_FIRST: Final = (1 << 13) - 1
_TCP_SINCE: Final = 4
_SCOPES_SINCE: Final = 6


class PathRule(NamedTuple):
    """What may be done with this file, or below this folder."""

    place: int
    """Its descriptor, opened by `open_place`."""
    may: int
    """Of the rights of `May`."""


def version() -> int:
    """Of Landlock in this kernel; 0 where there is none, or where it is switched off."""
    found = libc().syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return int(found) if found > 0 else 0


def open_place(path: str) -> int | None:
    """For rules about it. None where there is nothing, or where it is out of reach."""
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None


def restrict(rules: Iterable[PathRule], known: int, *, connections: bool) -> None:
    """Allow this process and its descendants only these rules, by the version of Landlock that is known.

    `connections`: leave connections by TCP as they are. Raises OSError.
    """
    handled = _FIRST
    for since, right in _SINCE:
        if known >= since:
            handled |= right
    tcp = _TCP if known >= _TCP_SINCE and not connections else 0
    scopes = _SCOPES if known >= _SCOPES_SINCE else 0
    attributes = struct.pack("3Q", handled, tcp, scopes)
    size = 8 if known < _TCP_SINCE else 16 if known < _SCOPES_SINCE else 24
    made = libc().syscall(_CREATE_RULESET, attributes, size, 0)
    if made < 0:
        raise OSError(ctypes.get_errno(), "Landlock takes no rules")
    try:
        for rule in rules:
            _add(made, rule, handled)
        no_new_privileges()
        checked(libc().syscall(_RESTRICT_SELF, made, 0))
    finally:
        os.close(made)


def _add(ruleset: int, rule: PathRule, handled: int) -> None:
    may = rule.may & handled
    if not S_ISDIR(os.fstat(rule.place).st_mode):
        may &= _OF_FILES
    if not may or libc().syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", may, rule.place), 0) == 0:
        return
    if (error := ctypes.get_errno()) != errno.EBADFD:  # what is in no file system (a pipe, a socket) needs no rule
        raise OSError(error, os.strerror(error))
