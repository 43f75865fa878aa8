"""The filters of system calls, run by an interpreter of the kernel's instructions: for both processors, whatever this
machine has."""

from __future__ import annotations

import errno
import struct

import pytest

from callboard.actors.processes.seccomp import CallsAllowed, Instruction, program, program_for_all, refused_by_name

X86, ARM = 0xC000003E, 0xC00000B7
ALLOWED, KILLED = 0x7FFF0000, 0x80000000
NOTHING = CallsAllowed(connections=False, unfiled_programs=False, metadata=False, shared=False)
NETWORK = CallsAllowed(connections=True, unfiled_programs=False, metadata=True, shared=False)
ALL = CallsAllowed(connections=True, unfiled_programs=True, metadata=True, shared=True)


def verdict(allowed: CallsAllowed, machine: str, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would do with this call of a confined tool."""
    return run(program(allowed, machine), architecture, number, *arguments)


def run(instructions: tuple[Instruction, ...], architecture: int, number: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    at = value = 0
    while True:
        code, yes, no, operand = instructions[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            value = struct.unpack_from("=I", data, operand)[0]
        elif code == 0x54:
            value &= operand
        else:
            holds = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}[code]
            at += yes if holds else no


def refused(error: int) -> int:
    return 0x00050000 | error


#: A call, what is allowed, its number on x86_64 and aarch64, its arguments, and what becomes of it.
CASES = {
    "read": (NOTHING, 0, 63, (), ALLOWED),
    "openat": (NOTHING, 257, 56, (), ALLOWED),
    "execve": (NOTHING, 59, 221, (), ALLOWED),
    "ptrace": (ALL, 101, 117, (), refused(errno.EPERM)),
    "mount": (ALL, 165, 40, (), refused(errno.EPERM)),
    "open_by_handle_at": (ALL, 304, 265, (), refused(errno.EPERM)),
    "io_uring_setup": (ALL, 425, 425, (), refused(errno.EPERM)),
    "clone3": (ALL, 435, 435, (), refused(errno.ENOSYS)),
    "a call that is newer than the table": (ALL, 470, 470, (), refused(errno.ENOSYS)),
    "a watch of a folder": (NETWORK, 254, 27, (), refused(errno.EPERM)),
    "a watch of a folder by a command": (ALL, 254, 27, (), ALLOWED),
    "memory of System V": (NETWORK, 29, 194, (), refused(errno.EPERM)),
    "processors of its own": (NOTHING, 203, 122, (0,), ALLOWED),
    "processors of another": (ALL, 203, 122, (7,), refused(errno.EPERM)),
    "priority of its own": (NOTHING, 141, 140, (0, 0), ALLOWED),
    "priority of all of the user": (ALL, 141, 140, (2, 0), refused(errno.EPERM)),
    "flags of a file": (NOTHING, 16, 29, (3, 0x40086602), refused(errno.EPERM)),
    "flags of a file where mounts see to it": (ALL, 16, 29, (3, 0x40086602), ALLOWED),
    "a fork": (NOTHING, 56, 220, (17,), ALLOWED),
    "a thread": (NOTHING, 56, 220, (0x3D0F00,), ALLOWED),
    "a fork into a user namespace": (ALL, 56, 220, (0x10000011,), refused(errno.EPERM)),
    "a fork into a network namespace": (ALL, 56, 220, (0x40000011,), refused(errno.EPERM)),
    "unshare of descriptors": (NOTHING, 272, 97, (0x400,), ALLOWED),
    "unshare of mounts": (ALL, 272, 97, (0x20000,), refused(errno.EPERM)),
    "a TCP socket without network": (NOTHING, 41, 198, (2, 1), refused(errno.EACCES)),
    "a TCP socket": (NETWORK, 41, 198, (2, 1 | 0o2000000, 6), ALLOWED),
    "a TCP socket of IPv6": (NETWORK, 41, 198, (10, 1), ALLOWED),
    "a UDP socket": (NETWORK, 41, 198, (2, 2), ALLOWED),
    "a raw socket": (ALL, 41, 198, (2, 3), refused(errno.EACCES)),
    "a Unix socket": (ALL, 41, 198, (1, 1), refused(errno.EACCES)),
    "a netlink socket": (ALL, 41, 198, (16, 3), refused(errno.EACCES)),
    "a vsock socket": (ALL, 41, 198, (40, 1), refused(errno.EACCES)),
    "a pair of streams": (NOTHING, 53, 199, (1, 1 | 0o4000), ALLOWED),
    "a pair of packets": (NOTHING, 53, 199, (1, 5), ALLOWED),
    "a pair of datagrams": (ALL, 53, 199, (1, 2), refused(errno.EACCES)),
    "sending on what is connected": (NOTHING, 44, 206, (3, 1, 1, 0, 0), ALLOWED),
    "sending to an address": (NOTHING, 44, 206, (3, 1, 1, 0, 1 << 40), refused(errno.EACCES)),
    "sending to an address with network": (NETWORK, 44, 206, (3, 1, 1, 0, 1 << 40), ALLOWED),
    "connect without network": (NOTHING, 42, 203, (), refused(errno.EACCES)),
    "an ordinary ioctl": (NOTHING, 16, 29, (0, 0x5401), ALLOWED),
    "TIOCSTI": (ALL, 16, 29, (0, 0x5412), refused(errno.EPERM)),
    "TIOCSTI with bits that the kernel ignores": (ALL, 16, 29, (0, 1 << 32 | 0x5412), refused(errno.EPERM)),
    "its own limits": (NOTHING, 302, 261, (0, 7, 1 << 40), ALLOWED),
    "reading another's limits": (NOTHING, 302, 261, (7, 7, 0), ALLOWED),
    "setting another's limits": (ALL, 302, 261, (7, 7, 1 << 40), refused(errno.EPERM)),
    "its own priority": (NOTHING, 141, 140, (0, 0, 5), ALLOWED),
    "another's priority": (ALL, 141, 140, (0, 7, 5), refused(errno.EPERM)),
    "asking its personality": (NOTHING, 135, 92, (0xFFFFFFFF,), ALLOWED),
    "setting its personality": (ALL, 135, 92, (0x40000,), refused(errno.EPERM)),
    "a fifo": (NOTHING, 259, 33, (0, 0, 0o010644), ALLOWED),
    "a device": (ALL, 259, 33, (0, 0, 0o060644), refused(errno.EPERM)),
    "a program of no file": (NETWORK, 319, 279, (), refused(errno.EPERM)),
    "a program of no file, of execute": (ALL, 319, 279, (), ALLOWED),
    "a mode where mounts protect": (NETWORK, 268, 53, (), ALLOWED),
    "a mode where none do": (NOTHING, 268, 53, (), refused(errno.EPERM)),
    "a mode by the newest call": (NOTHING, 452, 452, (), refused(errno.EPERM)),
}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", list(CASES))
def test_what_becomes_of_a_call(name: str, machine: str) -> None:
    allowed, on_x86, on_arm, arguments, expected = CASES[name]
    architecture, number = (X86, on_x86) if machine == "x86_64" else (ARM, on_arm)
    assert verdict(allowed, machine, architecture, number, *arguments) == expected


@pytest.mark.parametrize(
    ("machine", "architecture", "number"),
    [
        pytest.param("x86_64", 0x40000003, 20, id="int 0x80 on x86_64"),
        pytest.param("x86_64", X86, 0x40000000 | 39, id="x32"),
        pytest.param("aarch64", 0x40000028, 20, id="32-bit ARM"),
    ],
)
def test_calls_of_32_bits_end_the_process(machine: str, architecture: int, number: int) -> None:
    assert verdict(ALL, machine, architecture, number) == KILLED


def test_no_call_is_refused_and_looked_at() -> None:
    assert {"ptrace", "mount", "bpf", "setns"} <= set(refused_by_name())
    assert not {"socket", "clone", "ioctl"} & set(refused_by_name())


# -- of the filter for all

ASKED = 0x7FC00000
I386, ARM_32 = 0x40000003, 0x40000028

#: A call, its numbers on x86_64, aarch64, i386 and 32-bit ARM, its arguments, and what becomes of it.
CASES_FOR_ALL = {
    "read": ((0, 63, 3, 3), (1,), ALLOWED),
    "its own limits": ((302, 261, 340, 369), (0, 7, 1 << 40), ALLOWED),
    "reading another's limits": ((302, 261, 340, 369), (7, 7, 0), ALLOWED),
    "another's limits": ((302, 261, 340, 369), (7, 7, 1 << 40), ASKED),
    "its own priority": ((141, 140, 97, 97), (0, 0, 5), ALLOWED),
    "that of its group": ((141, 140, 97, 97), (1, 0, 5), ALLOWED),
    "another's priority": ((141, 140, 97, 97), (0, 7, 5), ASKED),
    "that of another group": ((141, 140, 97, 97), (1, 7, 5), ASKED),
    "that of all of its user": ((141, 140, 97, 97), (2, 0, 5), refused(errno.EPERM)),
    "its own turn at the disk": ((251, 30, 289, 314), (1, 0, 5), ALLOWED),
    "another's turn at the disk": ((251, 30, 289, 314), (1, 7, 5), ASKED),
    "that of all of its user at the disk": ((251, 30, 289, 314), (3, 0, 5), refused(errno.EPERM)),
    "its own processors": ((203, 122, 241, 241), (0, 8, 1), ALLOWED),
    "another's processors": ((203, 122, 241, 241), (7, 8, 1), ASKED),
    "another's processors, with bits that the kernel ignores": ((203, 122, 241, 241), (1 << 32 | 7, 8, 1), ASKED),
    "another's parameters": ((142, 118, 154, 154), (7, 1), ASKED),
    "another's scheduler": ((144, 119, 156, 156), (7, 5, 1), ASKED),
    "another's attributes": ((314, 274, 351, 380), (7, 1), ASKED),
    "being traced": ((101, 117, 26, 26), (0, 0), ALLOWED),
    "tracing another": ((101, 117, 26, 26), (16, 7), ASKED),
    "seizing another": ((101, 117, 26, 26), (0x4206, 7), ASKED),
    "writing another's memory": ((311, 271, 348, 377), (7,), ASKED),
    "moving another's pages": ((279, 239, 317, 344), (7,), ASKED),
    "moving its own pages": ((279, 239, 317, 344), (0,), ALLOWED),
}


@pytest.mark.parametrize(
    ("machine", "architecture", "column"),
    [("x86_64", X86, 0), ("aarch64", ARM, 1), ("x86_64", I386, 2), ("aarch64", ARM_32, 3)],
    ids=["x86_64", "aarch64", "i386", "arm"],
)
@pytest.mark.parametrize("name", list(CASES_FOR_ALL))
def test_who_changes_another_process_is_asked_for(name: str, machine: str, architecture: int, column: int) -> None:
    numbers, arguments, expected = CASES_FOR_ALL[name]
    assert run(program_for_all(machine, ASKED), architecture, numbers[column], *arguments) == expected


def test_where_the_kernel_cannot_ask_limits_of_others_are_refused_and_tracing_is_not() -> None:
    cannot_ask = program_for_all("x86_64", refused(errno.EPERM))
    assert run(cannot_ask, X86, 203, 7) == refused(errno.EPERM)
    assert run(cannot_ask, X86, 101, 16, 7) == ALLOWED
    assert run(cannot_ask, X86, 0x40000000 | 203, 7) == refused(errno.ENOSYS), "by a number of x32"
