"""Tools in namespaces of their own: the host is out of their sight, and all they leave ends with the runtime."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callboard.actors.processes.keeper import containment
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.chaos.beside import MARK, marked_processes
from callboard.actors.testing.chaos.infrastructure import processes_below
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed, ToolCallTimedOut

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's"),
    pytest.mark.usefixtures("namespaces"),
]
MEMORY_BYTES = 256 << 20

Until = Callable[[Callable[[], bool]], None]


@pytest.fixture(scope="module")
def stage() -> Iterator[ToolStage]:
    with ToolStage(ProcessOptions(memory_bytes=MEMORY_BYTES)) as stage:
        yield stage


def result(stage: ToolStage, what: object, **arguments: object) -> object:
    event = stage.start(what, json.dumps(arguments), 30).wait()  # type: ignore[arg-type]
    assert isinstance(event, ToolCallCompleted), event
    try:
        return json.loads(event.content)
    except json.JSONDecodeError:
        return event.content  # a text is no JSON


@tool
def look_around(host: int) -> list[bool]:
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return [host in others, os.path.exists(f"/proc/{host}/environ"), max(others) < host]


def test_the_host_is_out_of_sight(stage: ToolStage) -> None:
    host = max(os.getpid(), 10_000)  # a number that no process of the new namespace has come to yet
    assert result(stage, look_around, host=host) == [False, False, True]


@tool
def identity(path: str) -> list[object]:
    Path(path).write_text("written")
    return [os.getuid(), os.getgid(), os.geteuid()]


def test_ids_and_files_are_what_they_were(stage: ToolStage, tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert result(stage, identity, path=str(path)) == [os.getuid(), os.getgid(), os.geteuid()]
    assert (path.stat().st_uid, path.read_text()) == (os.getuid(), "written")


@tool
def read(path: str) -> str:
    return Path(path).read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can own files of another user")
def test_a_root_may_still_read_what_others_own(stage: ToolStage, tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_text("private")
    os.chown(path, 65534, 65534)
    path.chmod(0o600)
    assert result(stage, read, path=str(path)) == "private"


@tool
def kill_everything() -> str:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)
    return "survived"


@tool
def stay_until(path: str) -> str:
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return "went on"


def test_a_tool_that_signals_everything_reaches_no_other_call(stage: ToolStage, tmp_path: Path, until: Until) -> None:
    if not containment().signals:
        pytest.skip("this kernel cannot keep a process from signalling others")
    neighbour = stage.start(stay_until, json.dumps({"path": str(tmp_path / "go")}), 60)
    until((tmp_path / "go.begun").exists)
    assert result(stage, kill_everything) == "survived"
    (tmp_path / "go").touch()
    assert isinstance(neighbour.wait(), ToolCallCompleted)


@tool
def share_memory(name: str, size: int) -> str:
    with open(f"/dev/shm/{name}", "wb") as file:
        try:
            for _ in range(size >> 20):
                file.write(b"x" * (1 << 20))
        except OSError as error:
            return os.strerror(error.errno or 0)
    return "written"


def test_shared_memory_is_bounded_and_not_the_hosts(stage: ToolStage) -> None:
    name = f"callboard-test-{os.getpid()}"
    assert result(stage, share_memory, name=name, size=2 * MEMORY_BYTES) == os.strerror(28)
    assert not os.path.exists(f"/dev/shm/{name}")


@tool
def map_shared(size: int, in_child: bool) -> str:
    """Holds shared memory that has no name, until its process is killed: it, or a child of it."""
    if in_child and (pid := os.fork()):
        return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    with mmap.mmap(-1, size) as memory:
        for start in range(0, size, 1 << 20):
            memory[start : start + (1 << 20)] = b"x" * (1 << 20)
        if size > MEMORY_BYTES:
            signal.pause()
    return "held"


@pytest.mark.parametrize("namespaces", [True, False])
def test_shared_memory_without_a_name_counts_too(namespaces: bool) -> None:
    with ToolStage(ProcessOptions(memory_bytes=MEMORY_BYTES, namespaces=namespaces)) as stage:
        assert result(stage, map_shared, size=MEMORY_BYTES // 2, in_child=False) == "held"
        event = stage.start(map_shared, json.dumps({"size": MEMORY_BYTES + (1 << 20), "in_child": False}), 30).wait()
        assert isinstance(event, ToolCallFailed), event
        assert event.failure.message == (
            f"the tool's process was killed: it took more than {MEMORY_BYTES:,} bytes of shared memory"
        )


def test_shared_memory_of_what_a_tool_has_started_counts_too(stage: ToolStage) -> None:
    assert result(stage, map_shared, size=MEMORY_BYTES + (1 << 20), in_child=True) == -signal.SIGKILL


def test_a_keeper_that_was_stopped_ends_with_its_runtime() -> None:
    mark = f"keeper-{os.getpid()}"
    with ToolStage(ProcessOptions(environment={MARK: mark})) as stage:
        assert result(stage, add, a=1, b=2) == 3
        (keeper,) = (pid for pid in marked_processes(mark) if processes_below(os.getpid()).get(pid) == os.getpid())
        os.kill(keeper, signal.SIGSTOP)
    assert marked_processes(mark) == []


@tool
def add(a: int, b: int) -> int:
    return a + b


@tool
def leave_a_daemon(path: str, and_hang: bool) -> None:
    """A process in a session of its own, deaf to SIGTERM, which holds a lock as long as it lives."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            file = open(path, "a")  # noqa: SIM115 - held until it is killed
            fcntl.flock(file, fcntl.LOCK_EX)
            Path(f"{path}.held").touch()
            select.select([], [], [])
        os._exit(0)
    os.wait()
    while not Path(f"{path}.held").exists():
        time.sleep(0.001)
    if and_hang:
        select.select([], [], [])


def is_free(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("and_hang", [True, False])
def test_what_a_tool_leaves_is_gone_when_its_outcome_is_told(stage: ToolStage, tmp_path: Path, and_hang: bool) -> None:
    lock = tmp_path / "lock"
    call = stage.start(leave_a_daemon, json.dumps({"path": str(lock), "and_hang": and_hang}), 3)
    assert isinstance(call.wait(), ToolCallTimedOut if and_hang else ToolCallCompleted)
    assert (tmp_path / "lock.held").exists()
    assert is_free(lock)


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_kill_9_of_the_host_leaves_nothing(tmp_path: Path, until: Until, harm: signal.Signals) -> None:
    """Also when the init process does not react: the keeper ends it."""
    lock = tmp_path / "lock"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    host = subprocess.Popen([sys.executable, __file__, str(lock), str(int(harm))], env=environment)
    try:
        until((tmp_path / "lock.held").exists)
        if harm is signal.SIGSTOP:
            keeper = next(pid for pid in children_of(host.pid))
            os.kill(next(pid for pid in children_of(keeper)), signal.SIGSTOP)
    finally:
        host.kill()
        host.wait(10)
    until(lambda: is_free(lock))


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def be_a_host(lock: str) -> None:
    with ToolStage() as stage:
        stage.start(leave_a_daemon, json.dumps({"path": lock, "and_hang": True}), 60).wait()


if __name__ == "__main__":
    be_a_host(sys.argv[1])
