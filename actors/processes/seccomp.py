"""Filters of system calls: one for confined tools, of what Landlock does not govern and a tool never needs, and one for
all processes below the init process.

Of that for all: no tool may change the limits, the processors, the priority or the memory of another call's processes.
What it does to itself (0) is allowed at once; where it names a process by its number, the init process is asked, which
knows whose that is. To confined tools, and on kernels where it cannot be asked, a number is refused.

Of that for confined tools: most of what a tool may not do is refused by name, with an error that it can handle; what an
attack alone would use (32-bit system calls, which have numbers of their own) ends the process. Calls newer than the
tables below do not exist for a confined tool: the C library then uses older ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from callboard.actors.processes.linux import checked, libc, no_new_privileges

# linux/seccomp.h, linux/filter.h, linux/audit.h
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
_SET_FILTER: Final = 1
_NEW_LISTENER: Final = 1 << 3
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_ASK: Final = 0x7FC00000
_KILL_PROCESS: Final = 0x80000000
_LOAD: Final = 0x20
"""A word of the call's data: its number at 0, the architecture at 4, the arguments from 16 on, low half first."""
_AND: Final = 0x54
_IF_EQUAL: Final = 0x15
_IF_GREATER: Final = 0x25
_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_MAX_INSTRUCTIONS: Final = 4_096

#: By `platform.machine()`: the audit architecture, and the column of the table below.
_MACHINES: Final[Mapping[str, tuple[int, int]]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
#: The same of their 32-bit programs, in the columns of `_OF_OTHERS`; and the number of `seccomp` itself.
_MACHINES_OF_32_BITS: Final[Mapping[str, tuple[int, int]]] = {"x86_64": (0x40000003, 2), "aarch64": (0x40000028, 3)}
_SECCOMP: Final[Mapping[str, int]] = {"x86_64": 317, "aarch64": 277}
#: x32's numbers have this bit; the numbers above the last that is known (file_setattr, Linux 6.17) are newer calls.
_X32_BIT: Final = 0x40000000
_LAST_KNOWN: Final = 469


def _numbers(table: str) -> dict[str, tuple[int, int]]:
    """Name, number on x86_64 and on aarch64; -1 where there is none."""
    words = table.split()
    return {name: (int(one), int(two)) for name, one, two in zip(words[::3], words[1::3], words[2::3], strict=True)}


#: From the kernel's syscall_64.tbl and asm-generic/unistd.h. What no tool may do, with the reason of each line.
#: Other processes: their memory, their descriptors, their limits.
_OTHERS: Final = """
    ptrace 101 117  process_vm_readv 310 270  process_vm_writev 311 271  process_madvise 440 440  kcmp 312 272
    pidfd_getfd 438 438  process_mrelease 448 448  migrate_pages 256 238  move_pages 279 239
"""
#: Ways around this filter, and around Landlock.
_AROUND: Final = """
    io_uring_setup 425 425  io_uring_enter 426 426  io_uring_register 427 427
    open_by_handle_at 304 265  name_to_handle_at 303 264  userfaultfd 323 282  bpf 321 280  perf_event_open 298 241
    add_key 248 217  request_key 249 218  keyctl 250 219  fanotify_init 300 262  memfd_secret 447 447
"""
#: Another view of the files.
_MOUNTS: Final = """
    mount 165 40  umount2 166 39  pivot_root 155 41  chroot 161 51  setns 308 268  move_mount 429 429  open_tree 428 428
    open_tree_attr 467 467  fsopen 430 430  fsconfig 431 431  fsmount 432 432  fspick 433 433  mount_setattr 442 442
    file_setattr 469 469
"""
#: The machine itself.
_MACHINE: Final = """
    kexec_load 246 104  kexec_file_load 320 294  init_module 175 105  finit_module 313 273  delete_module 176 106
    swapon 167 224  swapoff 168 225  reboot 169 142  acct 163 89  quotactl 179 60  quotactl_fd 443 443  syslog 103 116
    settimeofday 164 170  clock_settime 227 112  adjtimex 159 171  clock_adjtime 305 266  iopl 172 -1  ioperm 173 -1
    modify_ldt 154 -1  sethostname 170 161  setdomainname 171 162  vhangup 153 58  lookup_dcookie 212 18  uselib 134 -1
    sysfs 139 -1  nfsservctl 180 42  _sysctl 156 -1
"""
#: Modes, owners, times and attributes: Landlock does not govern them. Refused where no read-only mounts protect files.
_METADATA: Final = """
    chmod 90 -1  fchmod 91 52  fchmodat 268 53  fchmodat2 452 452  chown 92 -1  lchown 94 -1  fchown 93 55
    fchownat 260 54  utime 132 -1  utimes 235 -1  futimesat 261 -1  utimensat 280 88  setxattr 188 5  lsetxattr 189 6
    fsetxattr 190 7  setxattrat 463 463  removexattr 197 14  lremovexattr 198 15  fremovexattr 199 16
    removexattrat 466 466
"""
#: Programs that are in no file, which Landlock does not see.
_UNFILED_PROGRAMS: Final = "memfd_create 319 279  execveat 322 281 "
#: Connections, of a tool that may have none: what it inherits or pairs may be used, and nothing else.
_CONNECTIONS: Final = "socket 41 198  connect 42 203  bind 49 200  listen 50 201  accept 43 202  accept4 288 242 "
#: What System V shares by number, and queues by name, with all processes of a namespace; and watches of folders, which
#: tell the names of files in folders that may not be listed. Landlock governs neither.
_SHARED: Final = """
    shmget 29 194  shmat 30 196  shmctl 31 195  semget 64 190  semop 65 193  semctl 66 191  semtimedop 220 192
    msgget 68 186  msgsnd 69 189  msgrcv 70 188  msgctl 71 187  mq_open 240 180  mq_unlink 241 181
    inotify_add_watch 254 27
"""
#: What is looked at closer, by its arguments.
_ARGUMENTS: Final = """
    socket 41 198  socketpair 53 199  sendto 44 206  clone 56 220  unshare 272 97  clone3 435 435  ioctl 16 29
    personality 135 92  mknod 133 -1  mknodat 259 33
"""
#: By name: which argument is a process, and the number on x86_64, aarch64, and for their 32-bit programs (i386, ARM).
_OF_OTHERS: Final[Mapping[str, tuple[int, tuple[int, int, int, int]]]] = {
    "prlimit64": (0, (302, 261, 340, 369)),
    "setpriority": (1, (141, 140, 97, 97)),
    "ioprio_set": (1, (251, 30, 289, 314)),
    "sched_setaffinity": (0, (203, 122, 241, 241)),
    "sched_setparam": (0, (142, 118, 154, 154)),
    "sched_setscheduler": (0, (144, 119, 156, 156)),
    "sched_setattr": (0, (314, 274, 351, 380)),

    "ptrace": (1, (101, 117, 26, 26)),
    "process_vm_readv": (0, (310, 270, 347, 376)),
    "process_vm_writev": (0, (311, 271, 348, 377)),
    "migrate_pages": (0, (256, 238, 294, 400)),
    "move_pages": (0, (279, 239, 317, 344)),
}  # fmt: skip
_NUMBERS: Final = {name: (numbers[0], numbers[1]) for name, (_, numbers) in _OF_OTHERS.items()} | _numbers(
    _OTHERS + _AROUND + _MOUNTS + _MACHINE + _METADATA + _UNFILED_PROGRAMS + _CONNECTIONS + _SHARED + _ARGUMENTS
)

# linux/sched.h: new mount, cgroup, uts, ipc, user, pid and net namespaces; and time (of unshare and clone3 alone).
_NEW_NAMESPACES: Final = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_NEW_TIME: Final = 0x00000080
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_STREAM, _DATAGRAM, _PACKETS = 1, 2, 5
_TYPE_MASK: Final = 0xF
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
#: linux/fs.h: FS_IOC_SETFLAGS, FS_IOC32_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION, FS_IOC32_SETVERSION; a file
#: that is only read takes them.
_SET_FLAGS: Final = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40047602)
#: The first argument, where the second is a process and where it is a process group. Else: all of a user.
_PROCESS_AND_GROUP: Final[Mapping[str, tuple[int, int]]] = {"setpriority": (0, 1), "ioprio_set": (1, 2)}
#: Of ptrace: what makes another process one's own. What comes after it needs it.
_ATTACH, _SEIZE = 16, 0x4206
#: What the init process is asked, and what it answers: id, thread, flags, then the call as a filter sees it (number,
#: architecture, place, arguments); id, result, error, flags.
_QUESTION: Final = struct.Struct("=QIIiIQ6Q")
_ANSWER: Final = struct.Struct("=QqiI")
_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_GO_ON: Final = 1
_LOW: Final = 0xFFFFFFFF
_DEVICES: Final = (0x2000, 0x6000)
_FILE_KIND: Final = 0xF000
_ASK_PERSONALITY: Final = 0xFFFFFFFF

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""
_INSTRUCTION: Final = struct.Struct("=HBBI")


class CallsAllowed(Struct, frozen=True):
    """What a filter leaves to a tool."""

    connections: bool
    """Sockets of the internet's families."""
    unfiled_programs: bool
    """Programs that are in no file (memfd_create, execveat)."""
    metadata: bool
    """Modes, owners, times and attributes of files; mounts or the owner see to where."""
    shared: bool
    """System V's memory, semaphores and queues, and watches of folders."""


def is_known_machine() -> bool:
    """Is there a filter for this processor?"""
    return platform.machine() in _MACHINES


def install(allowed: CallsAllowed) -> None:
    """Set the filter for this process and all its descendants. Raises OSError; it cannot be taken back."""
    code, header = _for_kernel(assembled(allowed))
    no_new_privileges()
    checked(libc().prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header), 0, 0))
    del code  # it was read until here


def _for_kernel(filled: bytes) -> tuple[object, bytes]:
    """What holds the instructions, and what points to them."""
    code = ctypes.create_string_buffer(filled)
    return code, struct.pack("HxxxxxxP", len(filled) // _INSTRUCTION.size, ctypes.addressof(code))


def fence_others() -> int:
    """Set the filter for all, for this process and all its descendants. Returns the descriptor on which those that name
    a process by its number ask whether they may (`asked`); -1 where the kernel cannot ask: they may not then.

    A process without CAP_SYS_ADMIN gives up set-user-id programs with it. Raises OSError.
    """
    for action in (_ASK, _refuse(errno.EPERM)):
        listener = _set_for_all(action)
        if listener < 0 and ctypes.get_errno() == errno.EACCES:
            no_new_privileges()
            listener = _set_for_all(action)
        if listener >= 0:
            return listener if action == _ASK else -1
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _set_for_all(action: int) -> int:
    machine = platform.machine()
    code, header = _for_kernel(_assemble(program_for_all(machine, action)))
    flags = _NEW_LISTENER if action == _ASK else 0
    result: int = libc().syscall(_SECCOMP[machine], _SET_FILTER, flags, ctypes.c_char_p(header))
    del code  # it was read until here
    return result


class ChangeAsked(Struct, frozen=True):
    """A thread below waits in a system call until it hears whether it may do this to another process."""

    number: int
    thread: int
    process: int
    is_group: bool
    """All of the process group with this number."""


def asked(listener: int) -> ChangeAsked | None:
    """The next question; None where who asked has ended. Not to be called before the descriptor is readable."""
    data = bytearray(_QUESTION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, data)
    except (FileNotFoundError, InterruptedError):
        return None
    number, thread, _, call, architecture, _, *arguments = _QUESTION.unpack(data)
    name = _names(platform.machine())[architecture, call]
    kind, process = arguments[0] & _LOW, arguments[_OF_OTHERS[name][0]] & _LOW
    return ChangeAsked(number, thread, process, is_group=kind == _PROCESS_AND_GROUP.get(name, (0, -1))[1])


def answer(listener: int, question: ChangeAsked, *, may: bool) -> None:
    """Let the system call go on, or fail with EPERM."""
    data = _ANSWER.pack(question.number, 0, 0 if may else -errno.EPERM, _GO_ON if may else 0)
    with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
        fcntl.ioctl(listener, _SEND, data)


@cache
def _names(machine: str) -> Mapping[tuple[int, int], str]:
    """By architecture and number of the call."""
    columns = (_MACHINES[machine], _MACHINES_OF_32_BITS[machine])
    return {(of, numbers[column]): name for of, column in columns for name, (_, numbers) in _OF_OTHERS.items()}


def program_for_all(machine: str, action: int) -> tuple[Instruction, ...]:
    """The filter for all: what becomes of a call that names another process is `action`."""
    found: list[Instruction] = [(_LOAD, 0, 0, 4)]
    for architecture, column in (_MACHINES[machine], _MACHINES_OF_32_BITS[machine]):
        body: list[Instruction] = [(_LOAD, 0, 0, 0)]
        if machine == "x86_64":
            body += [(_IF_ANY_BIT, 0, 1, _X32_BIT), _end(_refuse(errno.ENOSYS))]
        for name, rule in (
            *_limits_of_others(action, has_groups=True),
            *(_memory_of_others(action) if action == _ASK else ()),
        ):
            body += [(_IF_EQUAL, 0, len(rule), _OF_OTHERS[name][1][column]), *rule]
        body.append(_end(_ALLOW))
        found += [(_IF_EQUAL, 0, len(body), architecture), *body]
    return (*found, _end(_refuse(errno.ENOSYS)))


def _limits_of_others(action: int, *, has_groups: bool) -> Iterable[tuple[str, list[Instruction]]]:
    # Those of another process may be read: there is nothing new in them.
    own: list[Instruction] = [(_LOAD, 0, 0, 16), (_IF_EQUAL, 0, 1, 0), _end(_ALLOW)]
    yield "prlimit64", [*own, *_only_if_zero(2, action)]
    for name, (process, group) in _PROCESS_AND_GROUP.items():
        kinds = _is_among((process, group) if has_groups else (process,))
        yield name, [*_argument(0), *kinds, _end(_refuse(errno.EPERM)), *_only_if_zero(1, action)]
    for name in ("sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr"):
        yield name, _only_if_zero(0, action)


def _memory_of_others(action: int) -> Iterable[tuple[str, list[Instruction]]]:
    yield "ptrace", [*_argument(0), *_is_among((_ATTACH, _SEIZE)), _end(_ALLOW), _end(action)]
    for name in ("process_vm_readv", "process_vm_writev"):
        yield name, [_end(action)]
    for name in ("migrate_pages", "move_pages"):
        yield name, _only_if_zero(0, action)


@cache
def assembled(allowed: CallsAllowed) -> bytes:
    """The filter for this machine, as the kernel takes it. Made once a process and its forks: it takes 1 ms."""
    return _assemble(program(allowed, platform.machine()))


def _assemble(instructions: Iterable[Instruction]) -> bytes:
    return b"".join(_INSTRUCTION.pack(*each) for each in instructions)


def program(allowed: CallsAllowed, machine: str) -> tuple[Instruction, ...]:
    """The filter for a machine: a check of the architecture, then each rule in turn, and at last leave."""
    architecture, column = _MACHINES[machine]
    refused = _refused(allowed)
    blocks: list[list[Instruction]] = [
        [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, architecture), _end(_KILL_PROCESS), (_LOAD, 0, 0, 0)],
    ]
    if machine == "x86_64":
        blocks.append([(_IF_ANY_BIT, 0, 1, _X32_BIT), _end(_KILL_PROCESS)])
    blocks.append([(_IF_GREATER, 0, 1, _LAST_KNOWN), _end(_ERRNO | errno.ENOSYS)])
    for name, error in refused.items():
        if (number := _NUMBERS[name][column]) >= 0:
            blocks.append([(_IF_EQUAL, 0, 1, number), _end(_ERRNO | error)])
    for name, body in _looked_at(allowed):
        if name not in refused and (number := _NUMBERS[name][column]) >= 0:
            blocks.append([(_IF_EQUAL, 0, len(body), number), *body])
    found = tuple(each for block in blocks for each in (*block,))
    assert len(found) < _MAX_INSTRUCTIONS
    return (*found, _end(_ALLOW))


def _refused(allowed: CallsAllowed) -> dict[str, int]:
    """By name, with the error that the tool gets."""
    found = dict.fromkeys(_numbers(_OTHERS + _AROUND + _MOUNTS + _MACHINE), errno.EPERM)
    found["clone3"] = errno.ENOSYS  # its flags are in memory, where a filter cannot look; the C library uses clone then
    if not allowed.connections:
        found |= dict.fromkeys(_numbers(_CONNECTIONS), errno.EACCES)
    if not allowed.unfiled_programs:
        found |= dict.fromkeys(_numbers(_UNFILED_PROGRAMS), errno.EPERM)
    if not allowed.shared:
        found |= dict.fromkeys(_numbers(_SHARED), errno.EPERM)
    if not allowed.metadata:
        found |= dict.fromkeys(_numbers(_METADATA), errno.EPERM)
    return found


def _looked_at(allowed: CallsAllowed) -> Iterable[tuple[str, list[Instruction]]]:
    """What is decided by arguments. Each body ends the filter on every way."""
    # Internet sockets of the usual types: a raw one reads what is not its own, a Unix one reaches other programs (a
    # container engine's lets it do everything).
    yield "socket", _all_of((0, None, (_AF_INET, _AF_INET6)), (1, _TYPE_MASK, (_STREAM, _DATAGRAM)), errno.EACCES)
    # One of a pair of datagram sockets could be sent to any address; those of the other types cannot.
    yield "socketpair", _all_of((0, None, (_AF_UNIX,)), (1, _TYPE_MASK, (_STREAM, _PACKETS)), errno.EACCES)
    if not allowed.connections:
        yield "sendto", _only_if_zero(4, _refuse(errno.EACCES))
    yield "clone", _no_bits(0, _NEW_NAMESPACES)
    yield "unshare", _no_bits(0, _NEW_NAMESPACES | _NEW_TIME)
    yield "ioctl", _none_of(1, None, (_TIOCSTI, _TIOCLINUX, *(() if allowed.metadata else _SET_FLAGS)))
    yield from _limits_of_others(_refuse(errno.EPERM), has_groups=False)
    yield "personality", _one_of(0, None, (0, _ASK_PERSONALITY), errno.EPERM)
    yield "mknod", _none_of(1, _FILE_KIND, _DEVICES)
    yield "mknodat", _none_of(2, _FILE_KIND, _DEVICES)


def _end(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _argument(number: int, mask: int | None = None) -> list[Instruction]:
    """Load the low half of an argument, where the kernel itself looks at no more of it."""
    loaded: list[Instruction] = [(_LOAD, 0, 0, 16 + 8 * number)]
    return loaded if mask is None else [*loaded, (_AND, 0, 0, mask)]


def _is_among(values: Iterable[int]) -> list[Instruction]:
    """Go on after the next instruction if it is one of these, else with the next."""
    values = tuple(values)
    return [(_IF_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]


def _one_of(number: int, mask: int | None, values: Iterable[int], error: int) -> list[Instruction]:
    return [*_argument(number, mask), *_is_among(values), _end(_ERRNO | error), _end(_ALLOW)]


def _none_of(number: int, mask: int | None, values: Iterable[int]) -> list[Instruction]:
    return [*_argument(number, mask), *_is_among(values), _end(_ALLOW), _end(_ERRNO | errno.EPERM)]


def _all_of(
    one: tuple[int, int | None, tuple[int, ...]], other: tuple[int, int | None, tuple[int, ...]], error: int
) -> list[Instruction]:
    first = [*_argument(*one[:2]), *_is_among(one[2]), _end(_ERRNO | error)]
    return [*first, *_one_of(*other, error)]


def _no_bits(number: int, bits: int) -> list[Instruction]:
    return [*_argument(number), (_IF_ANY_BIT, 1, 0, bits), _end(_ALLOW), _end(_ERRNO | errno.EPERM)]


def _only_if_zero(number: int, action: int) -> list[Instruction]:
    """Both halves of it; else `action`."""
    low, high = 16 + 8 * number, 20 + 8 * number
    return [(_LOAD, 0, 0, low), (_IF_EQUAL, 1, 0, 0), _end(action), (_LOAD, 0, 0, high), (_IF_EQUAL, 1, 0, 0),
            _end(action), _end(_ALLOW)]  # fmt: skip


def _refuse(error: int) -> int:
    return _ERRNO | error


def refused_by_name() -> tuple[str, ...]:
    """The system calls that no confined tool may make, whatever their arguments."""
    return tuple(_refused(CallsAllowed(connections=True, unfiled_programs=True, metadata=True, shared=True)))


def is_supported() -> bool:
    """Does the kernel take filters, and is there one for this processor?"""
    return is_known_machine() and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")
