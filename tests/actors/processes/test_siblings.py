"""What runs beside a tool: it sees none of it, and cannot crowd it out.

No bomb here grows without an end: each starts a fixed number of processes, and waits in them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.conditions import wait_until

from callboard.actors.builtins.run_command import run_command_tool
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.processes import launch
from callboard.actors.processes.init import LOOK_SECONDS
from callboard.actors.processes.linux import MAX_POOL_PROCESSES, processes
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.chaos.beside import MARK, marked_processes
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed

Until = Callable[[Callable[[], bool]], None]
RISKS = ("read", "network", "write", "execute", "undeclared")

MOST = 200
"""That a call may have here: with a thousand, as elsewhere, a bomb slows down all other tests."""
MANY = MOST + 50
"""For a bomb."""
FEW = 20
"""More processes of the pool than before, at most, when no bomb is left."""
TOKEN = "token-of-another-request"

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def mark() -> str:
    return f"siblings-{os.getpid()}"


@pytest.fixture(scope="module")
def stage(mark: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolStage]:
    options = ProcessOptions(environment={MARK: mark}, workspace=tmp_path_factory.mktemp("workspace"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "MAX_CALL_PROCESSES", MOST)
        with ToolStage(options) as stage:
            stage.call(add, a=1, b=2)  # started with it
            yield stage


def at_each_risk(function: Callable[..., object]) -> list[Tool]:
    return [tool(risk=risk, name=f"{function.__name__}_{risk}")(function) for risk in RISKS]


# -- what they change of each other


def wait_in_group(begun: str) -> dict[str, int]:
    """And what it is left with, when it may go on. Beside it a process in a group whose first one has ended."""
    leader = subprocess.Popen(["/bin/sh", "-c", "sleep 100 >&- & echo $!"], stdout=-1, start_new_session=True)
    assert leader.stdout is not None
    left = int(leader.stdout.read())
    leader.wait()
    Path(f"{begun}.new").write_text(json.dumps({"process": os.getpid(), "group": leader.pid}))
    os.rename(f"{begun}.new", begun)
    while not os.path.exists(f"{begun}.end"):
        time.sleep(0.01)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"files": files, "nice": os.getpriority(0, 0), "of group": os.getpriority(0, left),
            "processors": len(os.sched_getaffinity(0)), "policy": os.sched_getscheduler(0)}  # fmt: skip


def number_of_call(name: str) -> int:
    numbers = {"ioprio_set": (251, 30), "sched_setattr": (314, 274), "move_pages": (279, 239)}
    return numbers[name][os.uname().machine == "aarch64"]


def change(process: int, group: int) -> dict[str, str]:
    """All that may be tried on a process; what was not refused with EPERM is told."""
    libc, memory = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(64)

    def call(function: Callable[..., int], *arguments: object) -> None:
        if function(*arguments) < 0:
            raise OSError(ctypes.get_errno(), "")

    part = struct.pack("PN", ctypes.addressof(memory), 8)
    tries: dict[str, Callable[[], object]] = {
        "limits": lambda: resource.prlimit(process, resource.RLIMIT_NOFILE, (5, 5)),
        "processors": lambda: os.sched_setaffinity(process, {0}),
        "processors of the one that it was forked of": lambda: os.sched_setaffinity(os.getppid(), {0}),
        "policy": lambda: os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0)),
        "parameters": lambda: os.sched_setparam(process, os.sched_param(0)),
        "attributes": lambda: call(libc.syscall, number_of_call("sched_setattr"), process, memory, 0),
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, process, 19),
        "priority of the init process": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
        "priority of a group": lambda: os.setpriority(os.PRIO_PGRP, process, 19),
        "priority of a group without its first": lambda: os.setpriority(os.PRIO_PGRP, group, 19),
        "priority of all of the user": lambda: os.setpriority(os.PRIO_USER, 0, 19),
        "turn at the disk": lambda: call(libc.syscall, number_of_call("ioprio_set"), 1, process, 3 << 13),
        "turn of all of the user": lambda: call(libc.syscall, number_of_call("ioprio_set"), 3, os.getuid(), 3 << 13),
        "trace": lambda: call(libc.ptrace, 16, process, 0, 0),
        "memory": lambda: call(libc.process_vm_writev, process, part, 1, part, 1, 0),
        "pages": lambda: call(libc.syscall, number_of_call("move_pages"), process, 0, 0, 0, 0, 0),
    }
    found = {}
    for name, attempt in tries.items():
        try:
            found[name] = f"done: {attempt()}"
        except PermissionError:
            continue
        except OSError as error:
            found[name] = repr(error)
    said = subprocess.run(["renice", "-n", "19", "-p", str(process)], capture_output=True, check=False)
    return found if said.returncode else {**found, "renice": "done"}


def change_own() -> list[str]:
    """Nothing of this is refused to a tool that is not confined."""
    own, more = os.getpid(), threading.Event()
    thread = threading.Thread(target=more.wait)
    thread.start()
    below = subprocess.Popen(["sleep", "100"], start_new_session=True)
    processors = os.sched_getaffinity(0)
    resource.prlimit(own, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
    resource.prlimit(below.pid, resource.RLIMIT_NOFILE, (50, 50))
    for pid in (0, own, thread.native_id, below.pid):
        assert pid is not None
        os.sched_setaffinity(pid, processors)
        os.setpriority(os.PRIO_PROCESS, pid, 5)
    os.setpriority(os.PRIO_PGRP, 0, 6)
    os.setpriority(os.PRIO_PGRP, below.pid, 7)
    found = [str(os.getpriority(os.PRIO_PROCESS, below.pid))]
    below.kill()
    below.wait()
    more.set()
    thread.join()
    with contextlib.suppress(ProcessLookupError):  # as it is said anywhere
        os.sched_setaffinity(below.pid, processors)
        found.append("a process that has ended was changed")
    said = subprocess.check_output(
        ["/bin/sh", "-c", "nice -n 3 nice; sleep 9 & renice -n 9 -p $! >&2; nice"], text=True
    )
    return [*found, *said.split()]


@pytest.mark.parametrize("risk", RISKS)
def test_nothing_of_a_process_of_another_call_can_be_changed(stage: ToolStage, tmp_path: Path, risk: str) -> None:
    begun = tmp_path / "begun"
    call = stage.start(tool(wait_in_group), json.dumps({"begun": str(begun)}), 60)
    wait_until(begun.exists)
    event = stage.call(tool(risk=risk, name=f"change_{risk}")(change), **json.loads(begun.read_text()))
    Path(f"{begun}.end").touch()
    left = call.wait()
    assert isinstance(event, ToolCallCompleted), event
    assert json.loads(event.content) == {}
    assert isinstance(left, ToolCallCompleted), left
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processors = len(os.sched_getaffinity(0))
    assert json.loads(left.content) == {
        "files": files, "nice": 0, "of group": 0, "processors": processors, "policy": os.SCHED_OTHER
    }  # fmt: skip


def test_what_is_its_own_a_tool_may_change_by_number_too(stage: ToolStage) -> None:
    event = stage.call(tool(change_own))
    assert isinstance(event, ToolCallCompleted), event
    assert json.loads(event.content) == ["7", "9", "6"]


def test_a_module_that_is_loaded_cannot_change_the_limits_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_when_loaded.py").write_text(
        "import os\n"
        "try: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)\n"
        "except PermissionError: said = 'refused'\n"
        "except ProcessLookupError: said = 'in the host'\n"
        "else: said = 'done'\n"
        "def tell() -> str: return said\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(os, "setpriority", lambda *_: None)  # here, in the host, it may
    tell = tool(importlib.import_module("hostile_when_loaded").tell)
    with ToolStage(ProcessOptions()) as own:
        event = own.call(tell)
    assert isinstance(event, ToolCallCompleted), event
    assert event.content == "refused"


# -- what they see of each other


def deploy(token: str, begun: str) -> int:
    waiting = 'echo > "$2"; while [ ! -e "$2.end" ]; do sleep 0.01; done'
    return subprocess.run(["/bin/sh", "-c", waiting, "sh", token, begun], check=False).returncode


def spy() -> list[str]:
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            found += [Path(f"/proc/{pid}/{name}").read_bytes().decode() for name in ("cmdline", "comm", "status")]
    return found


def spy_by_numbers() -> list[str]:
    places = [f"/proc/{number}/cmdline" for number in range(1, 500)]
    return [Path(each).read_text() for each in places if os.path.exists(each)]


def spy_by_programs() -> list[str]:
    said = [subprocess.run(each, capture_output=True, check=False).stdout for each in (
        ["/bin/ps", "axww"], ["/bin/sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"],
    )]  # fmt: skip
    return [each.decode(errors="replace") for each in said]


def spy_by_threads() -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        found += [(folder / name).read_text() for name in ("cmdline", "comm", "stat", "children")]
    return found


def spy_by_working_folders() -> list[str]:
    return [os.readlink(each) for each in Path("/proc").glob("[0-9]*/cwd")] + [str(sorted(processes()))]


SPIES = (spy, spy_by_numbers, spy_by_programs, spy_by_threads, spy_by_working_folders)


@pytest.fixture(scope="module")
def running(stage: ToolStage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A call of another request with a secret on its command line: of a tool that runs programs."""
    begun = tmp_path_factory.mktemp("deploy") / "begun"
    deploys = tool(risk="execute", paths=[str(begun.parent)])(deploy)
    call = stage.start(deploys, json.dumps({"token": TOKEN, "begun": str(begun)}), 600)
    wait_until(begun.exists)
    yield
    Path(f"{begun}.end").touch()
    assert isinstance(call.wait(), ToolCallCompleted)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("spies", [each for one in SPIES for each in at_each_risk(one)], ids=lambda each: each.name)
def test_no_command_line_of_another_call_is_seen(stage: ToolStage, spies: Tool) -> None:
    event = stage.call(spies)
    assert isinstance(event, ToolCallCompleted), event
    assert TOKEN not in event.content
    assert "sh -c" not in event.content.replace("sh\0-c\0cat", "")


def count_processes() -> int:
    subprocess.run(["/bin/true"], check=True)
    return len(processes())


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("counts", at_each_risk(count_processes), ids=lambda each: each.name)
def test_a_call_sees_itself_alone(stage: ToolStage, counts: Tool) -> None:
    event = stage.call(counts)
    assert isinstance(event, ToolCallCompleted), event
    assert event.content == "1"


def see_a_child() -> list[str]:
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        while not (line := Path(f"/proc/{child.pid}/cmdline").read_text()):  # it is not yet there
            os.sched_yield()
        child.kill()
    return [line, Path("/proc/meminfo").read_text().split(":")[0]]


@pytest.mark.parametrize("sees", at_each_risk(see_a_child), ids=lambda each: each.name)
def test_what_a_call_has_started_it_sees_and_so_what_the_machine_says_of_itself(stage: ToolStage, sees: Tool) -> None:
    event = stage.call(sees)
    assert isinstance(event, ToolCallCompleted), event
    assert json.loads(event.content) == ["/bin/sleep\0" + "60\0", "MemTotal"]


# -- how many there may be


#: In a shell, whose forks are cheap; $1 is how many. They wait for a line that does not come.
_EACH = "sleep 1000 | { exec 3<&0; n=0; while [ $n -lt $1 ]; do"
_NEXT = "n=$((n + 1)); done"
_CHAIN = "f() { [ $1 = 0 ] && exec sleep 1000 || { f $(($1 - 1)) & wait; }; };"
BOMBS = {
    "beside each other": f"{_EACH} (read _ <&3) & {_NEXT}; wait; }}",
    "deaf to SIGTERM": f"trap '' TERM; {_EACH} (read _ <&3) & {_NEXT}; wait; }}",
    "each the child of the one before": f"{_CHAIN} f 70 & f 70 & f 70 & f 70 & wait; : $1",
    "a tree": "f() { [ $1 = 0 ] && exec sleep 1000 || { f $(($1 - 1)) & f $(($1 - 1)) & wait; }; }; f 7; : $1",
    "orphans": f"{_EACH} ((read _ <&3) &); {_NEXT}; read _ <&3; }}",
    "in sessions of their own": f"{_EACH} setsid sleep 1000 & {_NEXT}; wait; }}",
}


def bomb(line: str) -> None:
    subprocess.run(["/bin/sh", "-c", line, "sh", str(MANY)], check=False)


BOMBS_AT_RISKS = [
    *((each, next(iter(BOMBS.values()))) for each in at_each_risk(bomb)),
    *((at_each_risk(bomb)[0], line) for line in list(BOMBS.values())[1:]),
]


@tool(risk="read")
def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize(
    ("bombs", "line"), BOMBS_AT_RISKS, ids=[*RISKS, *(name for name in BOMBS if name != next(iter(BOMBS)))]
)
def test_a_call_with_too_many_processes_is_ended_with_all_of_them(
    stage: ToolStage, bombs: Tool, line: str, mark: str, until: Until
) -> None:
    before = len(marked_processes(mark))
    event = stage.start(bombs, json.dumps({"line": line}), 100).wait()
    assert isinstance(event, ToolCallFailed), event
    assert event.failure.message == f"the tool's process was killed: it had more than {MOST} processes"
    assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)
    until(lambda: len(marked_processes(mark)) < before + FEW)


def leave_the_call(begun: str) -> None:
    """They become orphans of the init process while the call goes on, in sessions of their own."""
    ctypes.CDLL(None).prctl(36, 0)  # PR_SET_CHILD_SUBREAPER
    told = f"{_NEXT.partition(';')[0]}; [ $n = {MOST // 2} ] && echo > {begun}"
    orphans = BOMBS["orphans"].partition("| ")[2].replace(_NEXT.partition(";")[0], told)
    line = f"sleep 1000 | setsid /bin/sh -c '{orphans}' sh $1"
    bomb(line)


def test_what_has_left_its_call_is_ended_too(stage: ToolStage, mark: str, until: Until, tmp_path: Path) -> None:
    before = len(marked_processes(mark))
    begun = tmp_path / "begun"
    leaves = tool(risk="write", paths=[str(tmp_path)])(leave_the_call)
    call = stage.start(leaves, json.dumps({"begun": str(begun)}), 100)
    until(begun.exists)
    until(lambda: len(marked_processes(mark)) < before + FEW)
    stage.stop(call)
    call.wait()
    assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)


def test_as_many_processes_as_there_may_be_are_no_bomb(stage: ToolStage) -> None:
    event = stage.start(tool(risk="read")(as_many), "{}", 60).wait()
    assert isinstance(event, ToolCallCompleted), event
    assert event.content == str(MOST - 20)


def as_many() -> int:
    """For longer than the init process takes to look."""
    started = [subprocess.Popen(["/bin/sleep", "1000"]) for _ in range(MOST - 20)]
    until = time.monotonic() + 3 * LOOK_SECONDS
    while time.monotonic() < until:
        os.sched_yield()
    for each in started:
        each.kill()
        each.wait()
    return len(started)


def limits() -> int:
    return int(Path("/proc/sys/kernel/pid_max").read_text())


@pytest.mark.skipif(tuple(map(int, os.uname().release.split(".")[:2])) < (6, 14), reason="the limit is the machine's")
def test_all_tools_together_have_a_limit_which_is_not_the_machines(stage: ToolStage) -> None:
    before = Path("/proc/sys/kernel/pid_max").read_text()
    event = stage.call(tool(risk="read")(limits))
    assert isinstance(event, ToolCallCompleted), event
    assert int(event.content) == min(MAX_POOL_PROCESSES, int(before))
    assert Path("/proc/sys/kernel/pid_max").read_text() == before


def test_a_command_sees_its_own_processes_alone(tmp_path: Path) -> None:
    command = run_command_tool(Workspace.at(tmp_path))
    with ToolStage(ProcessOptions(workspace=tmp_path)) as stage:
        event = stage.call(command, command="ls -d /proc/[0-9]* | wc -l; cat /proc/1/cmdline")
        assert isinstance(event, ToolCallCompleted), event
        said = json.loads(event.content)
        assert int(said["output"].split()[0]) <= 5
        assert "No such file" in said["output"]
