"""Tools that reach for what is not theirs: the runtime's sockets, its processes, the host."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

from callboard.actors.testing.ways.case import Blast, Way, in_process

#: How a tool says that it does not dare: on this machine it would harm what is not ours.
SKIP: Final = "skip: "
#: The variables by which tools are told who the host is, what it keeps secret, and in which PID namespace it is.
HOST_PID: Final = "CALLBOARD_CHAOS_HOST"
HOST_NAMESPACE: Final = "CALLBOARD_CHAOS_NAMESPACE"
#: In the host's environment alone.
SECRET_NAME: Final = "CALLBOARD_CHAOS_SECRET"
SECRET: Final = "the host's own secret"
_PTRACE_ATTACH: Final = 16
_PTRACE_DETACH: Final = 17
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_NOBODY: Final = 65_534


def pid_namespace() -> str:
    """Of this process, as the kernel names it; "" where it cannot be read."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def is_apart() -> bool:
    """Is this process in another PID namespace than the host? Only then may it signal what it does not know."""
    here, host = pid_namespace(), os.environ.get(HOST_NAMESPACE, "")
    return bool(here and host) and here != host


def is_root() -> str:
    """Why not, in one sentence."""
    return "" if os.geteuid() == 0 else "it needs root"


def fork_and_return() -> int:
    """Both return."""
    os.fork()
    return 1


def fork_and_raise() -> int:
    """The copy raises."""
    if os.fork() == 0:
        raise ValueError("of the copy")
    return 1


def fork_and_exit() -> int:
    """The copy calls sys.exit."""
    if os.fork() == 0:
        sys.exit(3)
    return 1


def fork_and_swap() -> int:
    """The copy returns, the original is killed."""
    original = os.getpid()
    if os.fork() == 0:
        os.kill(original, signal.SIGKILL)
        return 2
    time.sleep(30)
    return 1


def garbage_on_socket() -> int:
    """Descriptor 3, which is ours."""
    os.write(3, b"\xff" * 64)
    return 1


def frame_without_end() -> int:
    """It announces 4 GB."""
    os.write(3, b"\xff\xff\xff\xff")
    return 1


def write_everywhere() -> int:
    """To each descriptor that it has."""
    for number in range(3, 64):
        try:
            os.write(number, b"mine")
        except OSError:
            continue
    return 1


def close_all() -> int:
    """Each descriptor."""
    os.closerange(0, 1024)
    return 1


def cover_socket() -> int:
    """Something else takes the place of descriptor 3."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 3)
    return 1


def cover_with_own_socket() -> int:
    """A socket of its own takes the place of descriptor 3."""
    ours, theirs = socket.socketpair()
    os.dup2(theirs.fileno(), 3)
    os.write(ours.fileno(), b"\0" * 64)
    return 1


def read_socket() -> bytes:
    """Waits for the next order."""
    return os.read(3, 65_536)


def close_output() -> int:
    """stdout and stderr."""
    os.close(1)
    os.close(2)
    return 1


def replace_stdout() -> int:
    """By nothing."""
    sys.stdout = None
    sys.stderr = None
    return 1


def _own_parent() -> int:
    """Raises LookupError where the parent is init of the machine: then it is none of ours."""
    parent = os.getppid()
    if parent <= 1 and not is_apart():
        raise LookupError("the parent is init")
    return parent


def signal_parent(number: signal.Signals) -> str:
    """The process of ours that forked this one."""
    try:
        os.kill(_own_parent(), number)
    except (PermissionError, ProcessLookupError, LookupError):
        return "refused"
    return "sent"


def kill_parent() -> str:
    """SIGKILL."""
    told = signal_parent(signal.SIGKILL)
    time.sleep(0.05)
    return told


def stop_parent() -> str:
    """SIGSTOP."""
    return signal_parent(signal.SIGSTOP)


def terminate_parent() -> str:
    """SIGTERM."""
    return signal_parent(signal.SIGTERM)


def trace_parent() -> str:
    """Attach to it as a debugger does, and let go."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    if parent <= 1:
        return "refused"
    if libc.ptrace(_PTRACE_ATTACH, parent, 0, 0) != 0:
        return "refused"
    os.waitpid(parent, 0)
    libc.ptrace(_PTRACE_DETACH, parent, 0, 0)
    return "attached"


def signal_host() -> str:
    """With signal 0, which only asks whether one may. Raises nothing where the host is out of reach."""
    try:
        os.kill(int(os.environ[HOST_PID]), 0)
    except (PermissionError, ProcessLookupError):
        return "out of reach"
    if not is_apart():
        return f"{SKIP}the tool's process is in the host's PID namespace"
    return "out of reach"  # that number is a process of its own namespace


def read_host_environment() -> str:
    """The keys of the host, where /proc shows them."""
    try:
        text = Path("/proc", os.environ[HOST_PID], "environ").read_bytes()
    except OSError:
        return "out of reach"
    if SECRET.encode() not in text:
        return "out of reach"
    return f"{SKIP}the tool's process sees the host's /proc"


def read_parent_environment() -> str:
    """It was started with a clean one."""
    try:
        text = Path("/proc", str(os.getppid()), "environ").read_bytes()
    except OSError:
        return "out of reach"
    if SECRET.encode() in text:
        raise PermissionError("the host's secret is in the parent's environment")
    return "out of reach"


def read_own_environment() -> str:
    """It has what it was given, and no more."""
    if SECRET_NAME in os.environ or SECRET.encode() in Path("/proc/self/environ").read_bytes():
        raise PermissionError("the host's secret is in the tool's environment")
    return "out of reach"


def kill_everybody() -> str:
    """kill(-1, SIGKILL): all that it may signal. Only in a namespace of its own, where that is only its own kind."""
    if not is_apart():
        return f"{SKIP}the tool's process is in the host's PID namespace"
    os.kill(-1, signal.SIGKILL)
    return "sent"


def leave_session() -> int:
    """Into a session of its own."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        time.sleep(30)
        os._exit(0)
    return 1


def survive_parent() -> int:
    """Takes back that it dies with its parent, and adopts orphans."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return leave_session()


def become_nobody() -> None:
    """Under another identity, which does not want to end."""
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(30)


def lower_priority() -> int:
    """nice 19."""
    os.nice(19)
    return 1


def remove_own_folder() -> int:
    """Works in a folder that is gone."""
    folder = f"/tmp/callboard-chaos-{os.getpid()}"
    os.mkdir(folder)
    os.chdir(folder)
    os.rmdir(folder)
    return 1


def forge_module() -> int:
    """Breaks the modules by which its own result is written."""
    for name in [name for name in sys.modules if name.startswith(("callboard.", "pydantic"))]:
        sys.modules[name] = None  # type: ignore[assignment]
    return 1


def forge_socket_class() -> int:
    """Our socket is one of these."""

    def refuses(*_: object) -> None:
        raise OSError("not any more")

    socket.socket.sendall = refuses  # type: ignore[method-assign]
    return 1


_ENDED: Final = in_process("crashed timed_out")
_NOTHING: Final = in_process("ok")

ESCAPE: Final = (
    Way("fork-return", "forks, and both return", fork_and_return, in_process("ok")),
    Way("fork-raise", "forks, and the copy raises", fork_and_raise, in_process("ok")),
    Way("fork-exit", "forks, and the copy calls sys.exit", fork_and_exit, in_process("ok")),
    Way("fork-swap", "forks, and the copy kills the original", fork_and_swap, in_process("crashed"), seconds=0.3),
    Way("garbage", "writes to the runtime's socket", garbage_on_socket, in_process("crashed")),
    Way("endless-frame", "announces 4 GB on the runtime's socket", frame_without_end, _ENDED, timeout=1.0, seconds=1.3),
    Way("write-all", "writes to every descriptor", write_everywhere, in_process("crashed"), alone=True),
    Way("close-all", "closes all descriptors", close_all, in_process("crashed")),
    Way("dup2-null", "puts /dev/null in place of the socket", cover_socket, _ENDED, timeout=1.0, seconds=1.3),
    Way("dup2-own", "puts a socket of its own there", cover_with_own_socket, _ENDED, timeout=1.0, seconds=1.3),
    Way("read-socket", "reads from the runtime's socket", read_socket, _ENDED, timeout=0.4, seconds=0.8),
    Way("close-output", "closes stdout and stderr", close_output, _NOTHING),
    Way("replace-output", "replaces sys.stdout by None", replace_stdout, _NOTHING),
    Way("kill-parent", "kills its parent", kill_parent, in_process("ok crashed"), seconds=0.5, alone=True),
    Way("stop-parent", "stops its parent with SIGSTOP", stop_parent, in_process("ok crashed"), seconds=0.5, alone=True),
    Way("term-parent", "sends its parent SIGTERM", terminate_parent, in_process("ok crashed"), seconds=0.5, alone=True),
    Way("trace-parent", "attaches to its parent as a debugger", trace_parent, in_process("ok crashed"), alone=True),
    Way("signal-host", "signals the host", signal_host, _NOTHING),
    Way("read-host", "reads /proc/HOST/environ", read_host_environment, _NOTHING),
    Way("read-parent", "reads /proc/PPID/environ", read_parent_environment, _NOTHING),
    Way("read-own", "looks for the host's keys in its own environment", read_own_environment, _NOTHING),
    Way(
        "kill-all",
        "kill(-1, SIGKILL)",
        kill_everybody,
        in_process("crashed ok"),
        blast=Blast.RUNNING_CALLS,
        seconds=0.5,
        alone=True,
    ),
    Way("session", "leaves a process in a session of its own", leave_session, _NOTHING),
    Way("survive", "takes back that it dies with its parent", survive_parent, _NOTHING),
    Way(
        "nobody",
        "becomes another user and hangs",
        become_nobody,
        in_process("timed_out"),
        timeout=0.4,
        seconds=0.8,
        why_not=is_root,
    ),
    Way("nice", "lowers its priority", lower_priority, _NOTHING),
    Way("folder", "works in a folder that it has removed", remove_own_folder, _NOTHING),
    Way("modules", "empties sys.modules of ours", forge_module, in_process("ok crashed tool_error invalid_result")),
    Way("socket-class", "breaks the class of our socket", forge_socket_class, in_process("crashed ok")),
)
