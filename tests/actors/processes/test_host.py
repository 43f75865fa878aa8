"""Hosts that are short of resources, have closed their standard descriptors, or fork."""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from callboard.actors.processes.control import Kind, above_standard, pair, pipe
from callboard.actors.processes.keeper import containment
from callboard.actors.processes.spawning import interpreter
from callboard.actors.testing.tool_stage import StagedCall, ToolStage
from callboard.actors.tools import tool
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed
from callboard.protocol.tools import FailureCode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")


@tool
def add(a: int, b: int) -> int:
    return a + b


def started(stage: ToolStage) -> StagedCall:
    call = stage.start(add, '{"a": 1, "b": 2}', 30)
    call.wait()
    return call


def test_without_descriptors_left_a_call_is_overloaded_and_later_ones_run() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ToolStage() as stage:
        assert isinstance(started(stage).wait(), ToolCallCompleted)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        held = fill_descriptors()
        try:
            calls = [started(stage) for _ in range(5)]
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        refused = [call for call in calls if isinstance(call.wait(), ToolCallFailed)]
        assert refused
        for call in refused:
            event = call.wait()
            assert isinstance(event, ToolCallFailed)
            assert event.failure.code is FailureCode.OVERLOADED
            assert os.strerror(errno.EMFILE) in event.failure.message
            assert len(call.events) == 1, "it has not begun"
        assert isinstance(started(stage).wait(), ToolCallCompleted)


def test_without_threads_left_calls_are_overloaded_and_later_ones_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """More calls than the supervisor of the processes allows failures: none of them may count as one."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ToolStage() as stage:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            for _ in range(10):
                event = started(stage).wait()
                assert isinstance(event, ToolCallFailed)
                assert event.failure.code is FailureCode.OVERLOADED
                assert "this host can start no more" in event.failure.message
        assert isinstance(started(stage).wait(), ToolCallCompleted)


def fill_descriptors() -> list[int]:
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        return held


def test_a_fork_server_that_cannot_fork_says_so_and_goes_on() -> None:
    code = (
        "import errno, os, socket\n"
        "from callboard.actors.processes.control import Kind, Message, hear, pair, send\n"
        "from callboard.actors.processes.fork_server import CONTROL, ForkServer, Limits, take_place\n"
        "os.open(os.devnull, os.O_RDONLY)  # as 3, the place of the control socket\n"
        "ours, theirs = pair()\n"
        "registry, _kept = pair()\n"
        "take_place(theirs.detach(), CONTROL)\n"
        "def fork():\n    raise OSError(errno.EAGAIN, 'no process left')\n"
        "os.fork = fork\n"
        "for number in (5, 6):\n    send(ours, Message(Kind.FORK, number), (0, 1))\n"
        "ours.shutdown(socket.SHUT_WR)\n"
        "ForkServer(registry.detach(), Limits(1 << 30, namespaces=False)).run()\n"
        "for _ in range(3):\n    print(*hear(ours)[:3])\n"
    )
    said = subprocess.check_output(interpreter(code), text=True, timeout=50).splitlines()
    assert said == [f"{int(Kind.READY)} 0 0", *(f"{int(Kind.NOT_FORKED)} {n} {errno.EAGAIN}" for n in (5, 6))]


#: A host in a user namespace in which no further one may be made.
WITHOUT_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'


def can_refuse_namespaces() -> bool:
    """Is there the program, and a user namespace to be had?"""
    command = ["unshare", "-U", "-r", "sh", "-c", WITHOUT_NAMESPACES, "sh", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


def test_where_the_kernel_refuses_namespaces_tools_run_without(tmp_path: Path) -> None:
    if not can_refuse_namespaces():
        pytest.skip("no user namespace can be made here that refuses others")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    host = [sys.executable, __file__, "refused", str(tmp_path / "results")]
    command = ["unshare", "-U", "-r", "sh", "-c", WITHOUT_NAMESPACES, "sh", *host]
    subprocess.run(command, env=environment, timeout=50, check=True)
    assert (tmp_path / "results").read_text().startswith("3; tools run in no namespaces of their own (")


def be_a_host_without_namespaces(path: str) -> None:
    with ToolStage() as stage:
        event = stage.call(add, a=1, b=2)
    Path(path).write_text(f"{getattr(event, 'content', event)}; {containment()}")


def run_as_host(what: str, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, __file__, what, *arguments], env=environment, timeout=50, check=True)


def test_standard_descriptors_that_are_closed_do_not_matter(tmp_path: Path) -> None:
    run_as_host("closed", str(tmp_path / "results"))
    assert (tmp_path / "results").read_text() == "3 3 3"


def be_a_host_without_standard_descriptors(path: str) -> None:
    os.closerange(0, 3)
    with ToolStage() as stage:
        events = [stage.call(add, a=1, b=2) for _ in range(3)]
    Path(path).write_text(" ".join(getattr(event, "content", repr(event)) for event in events))


def test_a_fork_of_the_host_neither_hangs_nor_keeps_anything_alive(tmp_path: Path) -> None:
    run_as_host("forks", str(tmp_path / "results"))
    assert (tmp_path / "results").read_text() == "fork: 3; 3; ended: True"


def be_a_host_that_forks(path: str) -> None:
    """A copy of it holds copies of all descriptors; what it was copied of still ends its processes."""
    held, into = os.pipe()
    with ToolStage() as stage:
        copy = os.fork()  # at once, while the init process is being started
        if copy == 0:
            os.write(into, b"%d" % add(1, 2))
            select.select([], [], [])
        said = os.read(held, 10).decode()
        event = stage.call(add, a=1, b=2)
        keepers = [pid for pid in children_of(os.getpid()) if pid != copy]
    ended = bool(keepers) and not any(Path(f"/proc/{pid}").exists() for pid in keepers)
    os.kill(copy, signal.SIGKILL)
    os.waitpid(copy, 0)
    Path(path).write_text(f"fork: {said}; {getattr(event, 'content', event)}; ended: {ended}")


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def test_no_end_of_a_socket_or_pipe_is_a_standard_descriptor() -> None:
    assert above_standard(7) == 7
    low = os.dup(1)
    os.close(1)
    try:
        one, other = pair()
        read_end, write_end = pipe()
    finally:
        os.dup2(low, 1)
        os.close(low)
    with one, other:
        assert min(one.fileno(), other.fileno(), read_end, write_end) > 2
    os.close(read_end)
    os.close(write_end)


if __name__ == "__main__":
    hosts = {
        "closed": be_a_host_without_standard_descriptors,
        "forks": be_a_host_that_forks,
        "refused": be_a_host_without_namespaces,
    }
    hosts[sys.argv[1]](sys.argv[2])
