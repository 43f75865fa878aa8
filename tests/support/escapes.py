"""Attempts of a process to get at what is not its own: each returns something true when it has succeeded.

`attempt` is run by confined tools, where all must be refused, and `at_large` runs them in plain processes, where they
succeed: that shows that a refusal is the work of the confinement.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Final

Scene = dict[str, str]
"""`inside`: a folder that the tool declares, with files; `outside`: one that it does not; `port` and `unix`: where a
server of the host listens."""
Escape = Callable[[Scene], object]

ESCAPES: Final[dict[str, Escape]] = {}
ROOT_ONLY: Final[set[str]] = set()
"""Only a root can do these."""
HELD_ANYWAY: Final[set[str]] = set()
"""Which this machine may not have, or which have no meaning outside of a tool: not shown to succeed at large."""
NAMESPACES: Final[set[str]] = set()
"""Refused only where the kernel gives tools namespaces of their own."""
WITH_MOUNTS: Final[set[str]] = set()
"""Refused only where the kernel gives a tool mounts of its own."""

_NUMBERS: Final = {
    "x86_64": dict(ptrace=101, vm_read=310, vm_write=311, pidfd_getfd=438, kcmp=312, userfaultfd=323, bpf=321, perf=298,
                   keyctl=250, unshare=272, clone=56, setns=308, chroot=161, mount=165, umount=166, fanotify=300,
                   handle=303, by_handle=304, personality=135, modules=175, kexec=246, reboot=169, swapon=167,
                   sethostname=170, syslog=103, clock=227, acct=163, pivot=155, ioprio=251, sigqueue=129,
                   shmget=29, shmctl=31, renameat2=316),
    "aarch64": dict(ptrace=117, vm_read=270, vm_write=271, pidfd_getfd=438, kcmp=272, userfaultfd=282, bpf=280,
                    perf=241, keyctl=219, unshare=97, clone=220, setns=268, chroot=51, mount=40, umount=39,
                    fanotify=262, handle=264, by_handle=265, personality=92, modules=105, kexec=104, reboot=142,
                    swapon=224, sethostname=161, syslog=116, clock=112, acct=89, pivot=41,
                    ioprio=30, sigqueue=138, shmget=194, shmctl=195,
                    renameat2=276),
}[platform.machine()]  # fmt: skip
_REFUSALS: Final = (errno.EPERM, errno.EACCES, errno.ENOSYS)


def escape(*marks: set[str]) -> Callable[[Escape], Escape]:
    def add(function: Escape) -> Escape:
        ESCAPES[function.__name__] = function
        for mark in marks:
            mark.add(function.__name__)
        return function

    return add


def system_call(what: str | int, *arguments: object) -> int:
    number = _NUMBERS[what] if isinstance(what, str) else what
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(number), *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def is_reached(what: str | int, *arguments: object) -> bool:
    """Does the kernel look at the arguments, which are wrong? For calls whose success would harm this machine."""
    try:
        system_call(what, *arguments)
    except OSError as error:
        if error.errno in _REFUSALS:
            raise
    return True


# -- files


@escape()
def write_outside(scene: Scene) -> object:
    return Path(scene["outside"], "new").write_text("x")


@escape()
def append_inside(scene: Scene) -> object:
    with open(Path(scene["inside"], "file"), "a") as file:
        return file.write("x")


@escape()
def create_inside(scene: Scene) -> object:
    return Path(scene["inside"], "new").write_text("x")


@escape()
def open_inside_for_both(scene: Scene) -> object:
    return os.open(Path(scene["inside"], "file"), os.O_RDWR)


@escape()
def open_inside_without_a_name(scene: Scene) -> object:
    return os.open(scene["inside"], os.O_TMPFILE | os.O_WRONLY)


@escape()
def read_outside(scene: Scene) -> object:
    return Path(scene["outside"], "file").read_text()


@escape()
def read_outside_from_a_folder(scene: Scene) -> object:
    folder = os.open(scene["inside"], os.O_PATH)
    return os.read(os.open("../outside/file", os.O_RDONLY, dir_fd=folder), 10)


@escape()
def read_outside_by_openat2(scene: Scene) -> object:
    how = struct.pack("3Q", os.O_RDONLY, 0, 0)
    return os.read(system_call(437, -100, os.fsencode(f"{scene['outside']}/file"), how, len(how)), 10)


@escape()
def read_outside_from_its_folder(scene: Scene) -> object:
    os.chdir(scene["outside"])
    return Path("file").read_text()


@escape()
def read_outside_by_a_descriptor_of_the_path(scene: Scene) -> object:
    place = os.open(Path(scene["outside"], "file"), os.O_PATH)
    return Path(f"/proc/self/fd/{place}").read_text()


@escape()
def read_outside_by_proc_self_root(scene: Scene) -> object:
    return Path(f"/proc/self/root{scene['outside']}/file").read_text()


@escape()
def read_outside_by_the_root_of_the_first_process(scene: Scene) -> object:
    return Path(f"/proc/{os.getppid()}/root{scene['outside']}/file").read_text()


@escape()
def read_outside_by_proc_self_cwd(scene: Scene) -> object:
    os.chdir(scene["outside"])
    return Path("/proc/self/cwd/file").read_text()


@escape()
def read_outside_by_a_symbolic_link(scene: Scene) -> object:
    link = Path(os.environ["TMPDIR"], "link")
    link.symlink_to(Path(scene["outside"], "file"))
    return link.read_text()


@escape()
def read_outside_by_a_link_inside(scene: Scene) -> object:
    return Path(scene["inside"], "link_out").read_text()


@escape()
def read_outside_by_a_hard_link(scene: Scene) -> object:
    link = Path(scene["outside"]).parent / "linked"
    os.link(Path(scene["outside"], "file"), link)
    return link.read_text()


@escape()
def read_outside_by_another_program(scene: Scene) -> object:
    return subprocess.run(["/bin/cat", f"{scene['outside']}/file"], capture_output=True, check=True).stdout


@escape()
def list_outside(scene: Scene) -> object:
    return os.listdir(scene["outside"])


@escape(ROOT_ONLY)
def read_the_passwords_of_the_system(_: Scene) -> object:
    return Path("/etc/shadow").read_text()


@escape()
def list_the_home_of_the_owner(scene: Scene) -> object:
    return os.listdir(scene["home"])


@escape(WITH_MOUNTS)
def read_a_secret_file(scene: Scene) -> object:
    return Path(scene["inside"], ".env").read_text()


@escape(WITH_MOUNTS)
def read_in_a_secret_folder(scene: Scene) -> object:
    return Path(scene["inside"], ".ssh", "config").read_text()


@escape(WITH_MOUNTS)
def read_a_secret_file_from_its_folder(scene: Scene) -> object:
    os.chdir(scene["inside"])
    return Path(".env").read_text()


@escape()
def truncate_inside(scene: Scene) -> object:
    os.truncate(Path(scene["inside"], "file"), 1)
    return True


@escape()
def truncate_inside_while_opening(scene: Scene) -> object:
    return os.open(Path(scene["inside"], "file"), os.O_RDONLY | os.O_TRUNC)


@escape()
def rename_inside(scene: Scene) -> object:
    os.rename(Path(scene["inside"], "file"), Path(scene["inside"], "renamed"))
    return True


@escape()
def move_out_of_the_inside(scene: Scene) -> object:
    os.rename(Path(scene["inside"], "file"), Path(scene["outside"], "moved"))
    return True


@escape()
def link_inside(scene: Scene) -> object:
    os.link(Path(scene["inside"], "file"), Path(scene["inside"], "hard"))
    return True


@escape()
def symbolic_link_inside(scene: Scene) -> object:
    os.symlink("/", Path(scene["inside"], "soft"))
    return True


@escape()
def remove_inside(scene: Scene) -> object:
    Path(scene["inside"], "file").unlink()
    return True


@escape()
def remove_a_folder_inside(scene: Scene) -> object:
    Path(scene["inside"], "empty").rmdir()
    return True


@escape()
def make_a_folder_inside(scene: Scene) -> object:
    Path(scene["inside"], "folder").mkdir()
    return True


@escape()
def make_a_fifo_inside(scene: Scene) -> object:
    os.mkfifo(Path(scene["inside"], "fifo"))
    return True


@escape(ROOT_ONLY)
def make_a_device(_: Scene) -> object:
    os.mknod(Path(os.environ["TMPDIR"], "disk"), stat.S_IFBLK, os.makedev(254, 0))
    return True


@escape()
def change_a_mode(scene: Scene) -> object:
    os.chmod(Path(scene["inside"], "file"), 0o777)
    return True


@escape()
def change_a_mode_by_descriptor(scene: Scene) -> object:
    os.fchmod(os.open(Path(scene["inside"], "file"), os.O_RDONLY), 0o777)
    return True


@escape()
def change_a_mode_outside(scene: Scene) -> object:
    os.chmod(scene["outside"], 0o777)
    return True


@escape()
def change_an_owner(scene: Scene) -> object:
    os.chown(Path(scene["inside"], "file"), os.getuid(), os.getgid())
    return True


@escape()
def change_a_time(scene: Scene) -> object:
    os.utime(Path(scene["inside"], "file"), (1, 1))
    return True


@escape(HELD_ANYWAY)
def set_an_attribute(scene: Scene) -> object:
    os.setxattr(Path(scene["inside"], "file"), "user.mark", b"x")
    return True


@escape()
def write_its_own_code(_: Scene) -> object:
    with open(__file__, "a"):
        return True


@escape()
def write_shared_memory(_: Scene) -> object:
    with open(f"/dev/shm/callboard-escape-{os.getpid()}", "w") as file:
        os.unlink(file.name)
        return True


@escape()
def write_to_the_folder_of_temporary_files(_: Scene) -> object:
    with open(f"/var/tmp/callboard-escape-{os.getpid()}", "w") as file:
        os.unlink(file.name)
        return True


@escape(ROOT_ONLY)
def open_by_handle(scene: Scene) -> object:
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    system_call("handle", -100, os.fsencode(f"{scene['outside']}/file"), handle, ctypes.byref(mount), 0)
    return system_call("by_handle", os.open(scene["inside"], os.O_RDONLY), handle, os.O_RDONLY)


@escape(ROOT_ONLY)
def watch_all_files(_: Scene) -> object:
    return system_call("fanotify", 0, 0)


# -- other processes, and /proc


@escape()
def read_the_environment_of_the_parent(_: Scene) -> object:
    return Path(f"/proc/{os.getppid()}/environ").read_bytes()


@escape()
def read_the_memory_of_the_parent(_: Scene) -> object:
    with open(f"/proc/{os.getppid()}/mem", "rb") as memory:
        memory.seek(ctypes.addressof(_BUFFER))
        return memory.read(4)


@escape()
def take_a_descriptor_of_the_parent_by_proc(_: Scene) -> object:
    return os.readlink(f"/proc/{os.getppid()}/fd/1")


@escape(HELD_ANYWAY)
def read_the_environment_of_the_first_process(_: Scene) -> object:
    return Path("/proc/1/environ").read_bytes()


@escape(NAMESPACES)
def read_the_command_line_of_the_parent(_: Scene) -> object:
    return Path(f"/proc/{os.getppid()}/cmdline").read_bytes()


@escape(NAMESPACES)
def read_what_the_parent_is_doing(_: Scene) -> object:
    return Path(f"/proc/{os.getppid()}/status").read_text()


@escape(NAMESPACES)
def read_the_name_of_the_parent_by_its_thread(_: Scene) -> object:
    return Path(f"/proc/{os.getppid()}/task/{os.getppid()}/comm").read_text()


@escape(NAMESPACES)
def list_processes_that_are_not_its_own(_: Scene) -> object:
    return {name for name in os.listdir("/proc") if name.isdigit()} - {str(os.getpid())}


@escape(NAMESPACES)
def find_others_by_trying_every_number(_: Scene) -> object:
    """Also those that a listing leaves out."""
    return [number for number in range(1, 9_000) if number != os.getpid() and os.path.isdir(f"/proc/{number}")]


@escape(NAMESPACES)
def read_the_command_lines_of_others_by_a_program(_: Scene) -> object:
    each = "case $file in /proc/$$/*|/proc/$PPID/*) ;; *) cat $file;; esac"
    line = f"for file in /proc/[0-9]*/cmdline; do {each}; done"
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False).stdout


@escape(NAMESPACES)
def read_the_command_lines_of_others_below_its_own_folder(_: Scene) -> object:
    return Path(f"/proc/self/../{os.getppid()}/cmdline").read_bytes()


@escape(NAMESPACES)
def read_the_command_lines_of_others_by_the_link_of_the_root(_: Scene) -> object:
    return Path(f"/proc/self/root/proc/{os.getppid()}/cmdline").read_bytes()


@escape()
def write_its_own_memory_by_proc(_: Scene) -> object:
    with open("/proc/self/mem", "r+b"):
        return True


@escape()
def change_how_the_kernel_kills(_: Scene) -> object:
    return Path("/proc/self/oom_score_adj").write_text("1000")


@escape(ROOT_ONLY)
def set_a_kernel_setting(_: Scene) -> object:
    setting = Path("/proc/sys/kernel/core_pattern")
    return setting.write_text(setting.read_text())


@escape(ROOT_ONLY, HELD_ANYWAY)
def give_the_kernel_orders_by_proc(_: Scene) -> object:
    return os.open("/proc/sysrq-trigger", os.O_WRONLY)


_BUFFER: Final = ctypes.create_string_buffer(b"here", 4)


def _vector(local: ctypes.Array[ctypes.c_char]) -> bytes:
    return struct.pack("PN", ctypes.addressof(local), 4)


@escape()
def read_memory_by_process_vm_readv(_: Scene) -> object:
    into = ctypes.create_string_buffer(4)
    return system_call("vm_read", os.getppid(), _vector(into), 1, _vector(_BUFFER), 1, 0)


@escape()
def write_memory_by_process_vm_writev(_: Scene) -> object:
    return system_call("vm_write", os.getppid(), _vector(_BUFFER), 1, _vector(_BUFFER), 1, 0)


@escape()
def trace_the_parent(_: Scene) -> object:
    system_call("ptrace", 0x4206, os.getppid(), 0, 0)  # PTRACE_SEIZE, which does not stop it
    return True


@escape()
def take_a_descriptor_by_pidfd(_: Scene) -> object:
    return system_call("pidfd_getfd", os.pidfd_open(os.getppid()), 0, 0)


@escape(HELD_ANYWAY)
def compare_with_the_parent(_: Scene) -> object:
    return system_call("kcmp", os.getpid(), os.getppid(), 1, 0, 0) >= 0


@escape()
def signal_the_parent(_: Scene) -> object:
    os.kill(os.getppid(), signal.SIGCONT)
    return True


@escape()
def signal_the_parent_by_pidfd(_: Scene) -> object:
    signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGCONT)
    return True


@escape()
def signal_the_first_process(scene: Scene) -> object:
    os.kill(1 if os.geteuid() == 0 else int(scene["host"]), 0)
    return True


@escape()
def limit_the_parent(_: Scene) -> object:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE))
    return True


@escape()
def slow_down_the_parent(_: Scene) -> object:
    os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))
    return True


@escape(HELD_ANYWAY)
def use_an_inherited_descriptor(_: Scene) -> object:
    """Besides its output, /dev/null, the socket of its call, and the pipe that its own stack is written to on demand,
    which cannot be read."""
    found = {number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)}
    return {number for number in found - {0, 1, 2, 3} if not _is_write_only_pipe(number)}


def _is_write_only_pipe(number: int) -> bool:
    is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
    return is_pipe and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@escape(HELD_ANYWAY)
def write_to_the_scratch_folder_of_the_template(_: Scene) -> object:
    return Path(os.environ["HOME"], "..", "template", "x").write_text("x")


@escape(HELD_ANYWAY)
def write_beside_its_scratch_folder(_: Scene) -> object:
    return Path(os.environ["HOME"], "..", "beside").write_text("x")


@escape()
def bind_the_parent_to_a_processor(_: Scene) -> object:
    os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid()))
    return True


@escape()
def slow_down_a_whole_group(_: Scene) -> object:
    """One of its own: with PRIO_USER, a plain process that may do it changes every process of the user."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PROCESS, 0))
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise PermissionError("the group's priority may not be set")
    return True


@escape()
def run_the_parent_only_when_idle(_: Scene) -> object:
    os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0))
    return True


@escape()
def delay_the_files_of_the_parent(_: Scene) -> object:
    return system_call("ioprio", 1, os.getppid(), 2 << 13 | 4) == 0


@escape()
def queue_a_signal_for_the_parent(_: Scene) -> object:
    about = struct.pack("iii", signal.SIGCONT, 0, -1) + bytes(116)
    return system_call("sigqueue", os.getppid(), int(signal.SIGCONT), about) == 0


@escape()
def signal_the_group_of_the_parent(_: Scene) -> object:
    os.killpg(os.getpgid(os.getppid()), signal.SIGCONT)
    return True


@escape()
def watch_what_happens_outside(scene: Scene) -> object:
    """The names of files that come and go in a folder that may not be listed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.inotify_add_watch(libc.inotify_init1(0), os.fsencode(scene["outside"]), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


@escape()
def share_memory_by_a_key(_: Scene) -> object:
    made = system_call("shmget", 0, 4_096, 0o1600)
    return system_call("shmctl", made, 0, 0) == 0  # it is removed again


@escape()
def change_a_flag_of_a_file(scene: Scene) -> object:
    file = os.open(Path(scene["inside"], "file"), os.O_RDONLY)
    flags = bytearray(8)
    fcntl.ioctl(file, 0x80086601, flags)  # FS_IOC_GETFLAGS
    fcntl.ioctl(file, 0x40086602, bytes([flags[0] ^ 0x40]) + bytes(flags[1:]))  # FS_IOC_SETFLAGS: not to be dumped
    return True


@escape(HELD_ANYWAY)
def write_by_a_mapping_of_a_file(scene: Scene) -> object:
    with open(Path(scene["inside"], "file"), "rb") as file:
        mmap.mmap(file.fileno(), 4, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)[0] = 0
    return True


@escape()
def write_by_a_descriptor_that_is_opened_again(scene: Scene) -> object:
    file = os.open(Path(scene["inside"], "file"), os.O_RDONLY)
    with open(f"/proc/self/fd/{file}", "r+b") as again:
        return again.write(b"x")


@escape()
def exchange_two_names_inside(scene: Scene) -> object:
    one, other = (os.fsencode(f"{scene['inside']}/{name}") for name in ("file", "empty"))
    return system_call("renameat2", -100, one, -100, other, 2) == 0


# -- sockets


@escape()
def connect_by_tcp(scene: Scene) -> object:
    return socket.create_connection(("127.0.0.1", int(scene["port"])), 5)


@escape()
def send_by_udp(_: Scene) -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))


@escape()
def listen_to_tcp(_: Scene) -> object:
    return socket.create_server(("127.0.0.1", 0))


@escape(HELD_ANYWAY)
def open_a_socket_of_ipv6(_: Scene) -> object:
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM)


@escape()
def connect_to_a_unix_socket(scene: Scene) -> object:
    return socket.socket(socket.AF_UNIX).connect(scene["unix"]) is None


@escape()
def connect_to_an_abstract_socket(scene: Scene) -> object:
    return socket.socket(socket.AF_UNIX).connect(f"\0{scene['abstract']}") is None


@escape()
def send_from_a_pair_to_a_unix_socket(scene: Scene) -> object:
    one, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return one.sendto(b"x", scene["unix_datagrams"])


@escape()
def make_a_unix_socket(_: Scene) -> object:
    return socket.socket(socket.AF_UNIX).bind(f"{os.environ['TMPDIR']}/socket") is None


@escape(HELD_ANYWAY)
def talk_to_the_kernel_by_netlink(_: Scene) -> object:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


@escape(ROOT_ONLY, HELD_ANYWAY)
def read_all_packets(_: Scene) -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


@escape(ROOT_ONLY)
def open_a_raw_socket(_: Scene) -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


@escape(HELD_ANYWAY)
def open_a_socket_of_vsock(_: Scene) -> object:
    return socket.socket(40, socket.SOCK_STREAM)


@escape(HELD_ANYWAY)
def open_a_socket_of_the_kernels_ciphers(_: Scene) -> object:
    return socket.socket(38, socket.SOCK_SEQPACKET)


@escape(HELD_ANYWAY)
def open_a_socket_of_any_other_family(_: Scene) -> object:
    opened = []
    for family in range(46):
        for kind in (1, 2, 3, 5):
            try:
                opened.append(socket.socket(family, kind).family)
            except OSError:
                continue
    return opened


@escape()
def set_up_io_uring(_: Scene) -> object:
    return system_call(425, 4, ctypes.create_string_buffer(120))


# -- the kernel


@escape(HELD_ANYWAY)
def handle_page_faults(_: Scene) -> object:
    return system_call("userfaultfd", 1)


@escape(ROOT_ONLY)
def load_a_program_into_the_kernel(_: Scene) -> object:
    return is_reached("bpf", 9_999, 0, 0)


@escape(HELD_ANYWAY)
def count_events(_: Scene) -> object:
    return is_reached("perf", 0, 0, -1, -1, 0)


@escape()
def open_a_keyring(_: Scene) -> object:
    return system_call("keyctl", 0, -3, 1)


@escape(HELD_ANYWAY)
def make_a_user_namespace(_: Scene) -> object:
    return system_call("unshare", 0x10000000) == 0


@escape(HELD_ANYWAY)
def make_a_time_namespace(_: Scene) -> object:
    return system_call("unshare", 0x00000080) == 0


@escape(ROOT_ONLY)
def make_a_mount_namespace(_: Scene) -> object:
    return system_call("unshare", 0x00020000) == 0


@escape(HELD_ANYWAY)
def fork_into_a_namespace(_: Scene) -> object:
    pid = system_call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


@escape()
def fork_by_the_call_whose_flags_are_hidden(_: Scene) -> object:
    return is_reached(435, 0, 0)


@escape(ROOT_ONLY)
def enter_a_namespace(_: Scene) -> object:
    return system_call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0) == 0


@escape(ROOT_ONLY)
def change_the_root(scene: Scene) -> object:
    return system_call("chroot", os.fsencode(scene["inside"])) == 0


@escape(ROOT_ONLY)
def mount_something(scene: Scene) -> object:
    place = os.fsencode(scene["inside"])
    return system_call("mount", b"tmpfs", place, b"tmpfs", 0, 0) == 0


@escape(ROOT_ONLY)
def unmount_something(_: Scene) -> object:
    return is_reached("umount", b"/proc/self", 0)


@escape(ROOT_ONLY)
def put_another_root_in_place(_: Scene) -> object:
    return is_reached("pivot", b"/proc/self", b"/proc/self")


@escape(ROOT_ONLY)
def open_a_tree_of_mounts(_: Scene) -> object:
    return system_call(428, -100, b"/", 1)


@escape(ROOT_ONLY)
def open_a_file_system(_: Scene) -> object:
    return system_call(430, b"tmpfs", 0)


@escape(ROOT_ONLY)
def make_mounts_writable(_: Scene) -> object:
    attributes = struct.pack("4Q", 0, 1, 0, 0)
    return system_call(442, -100, b"/", 0, attributes, len(attributes)) == 0


@escape()
def run_a_program_of_no_file(_: Scene) -> object:
    program = os.memfd_create("program")
    os.write(program, Path("/bin/true").read_bytes())
    if (pid := os.fork()) == 0:
        try:
            os.execve(program, ["true"], {})
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@escape()
def run_a_program_of_its_own(_: Scene) -> object:
    program = Path(os.environ["TMPDIR"], "program")
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o700)
    return subprocess.run([str(program)], check=True).returncode == 0


@escape()
def switch_off_random_addresses(_: Scene) -> object:
    return system_call("personality", 0x0040000) >= 0


@escape(HELD_ANYWAY)
def type_into_a_terminal(_: Scene) -> object:
    _main, terminal = os.openpty()
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    fcntl.ioctl(terminal, termios.TIOCSTI, b"x")
    return True


@escape(HELD_ANYWAY)
def make_a_system_call_of_32_bits(_: Scene) -> object:
    if platform.machine() != "x86_64":
        return False
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


@escape(HELD_ANYWAY)
def make_a_system_call_of_x32(_: Scene) -> object:
    return system_call(0x40000000 | 39)


@escape(HELD_ANYWAY)
def make_a_system_call_that_is_not_known(_: Scene) -> object:
    return is_reached(499)


@escape(HELD_ANYWAY)
def gain_privileges_by_a_program(_: Scene) -> object:
    return "NoNewPrivs:\t1" not in Path("/proc/self/status").read_text()


@escape(ROOT_ONLY)
def use_the_rights_of_root(_: Scene) -> object:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return int(line.split()[1], 16) & (1 << 21 | 1 << 19 | 1 << 2)  # sys_admin, sys_ptrace, dac_read_search


@escape(ROOT_ONLY, HELD_ANYWAY)
def leave_its_memory_in_a_file(_: Scene) -> object:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
    return True


@escape(ROOT_ONLY)
def rename_the_machine(_: Scene) -> object:
    return system_call("sethostname", socket.gethostname().encode(), len(socket.gethostname())) == 0


@escape(ROOT_ONLY, HELD_ANYWAY)
def load_a_module(_: Scene) -> object:
    return is_reached("modules", 0, 0, 0)


@escape(ROOT_ONLY, HELD_ANYWAY)
def boot_another_kernel(_: Scene) -> object:
    return is_reached("kexec", 0, 99, 0, 99)


@escape(ROOT_ONLY)
def stop_the_machine(_: Scene) -> object:
    return is_reached("reboot", 0, 0, 0, 0)


@escape(ROOT_ONLY)
def set_the_clock(_: Scene) -> object:
    return is_reached("clock", 99, 0)


@escape(ROOT_ONLY)
def swap_to_a_file(_: Scene) -> object:
    return is_reached("swapon", 0, 0)


@escape(ROOT_ONLY)
def read_the_log_of_the_kernel(_: Scene) -> object:
    return system_call("syslog", 10, 0, 0) >= 0


# -- running them


def attempt(name: str, scene: Scene) -> str:
    """ "succeeded", or why not."""
    try:
        found = ESCAPES[name](scene)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        return f"refused: {error}"
    return "succeeded" if found else "nothing came of it"


def at_large(name: str, scene: Scene) -> str:
    """`attempt` in a process of its own, where a root has mounts and a host name of its own."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            if os.geteuid() == 0:
                system_call("unshare", 0x00020000 | 0x04000000)
                system_call("mount", b"none", b"/", 0, 0x4000 | 1 << 18, 0)
            os.write(writing, attempt(name, scene).encode()[:1_000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as said:
        answer = said.read()
    os.waitpid(pid, 0)
    return answer


def main() -> None:
    """At large, for each scene on stdin: name and scene as a line of JSON."""
    os.environ["TMPDIR"] = sys.argv[1]
    for line in sys.stdin:
        name, scene = json.loads(line)
        sys.stdout.write(json.dumps([name, at_large(name, scene)]) + "\n")


if __name__ == "__main__":
    main()
