"""Where memory runs out, what is killed is a tool's, and its call says so."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.conditions import wait_until

from callboard.actors.processes.linux import make_expendable
from callboard.actors.processes.spawning import Helper
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.protocol.events import ToolCallCompleted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the scores are Linux's")

OWN = int(Path("/proc/self/oom_score_adj").read_text()) if sys.platform == "linux" else 0
LIMIT = 300 << 20
"""Of the control group. Half of it is the host's."""


@tool
def scores() -> list[int]:
    """Of the child, of what it starts, of its template, and of the processes above."""
    started = subprocess.check_output(["cat", "/proc/self/oom_score_adj"], text=True)
    found = [int(Path("/proc/self/oom_score_adj").read_text()), int(started)]
    pid = os.getppid()
    while pid > 1 and pid != HOST:
        status = Path(f"/proc/{pid}/status").read_text()
        found.append(int(Path(f"/proc/{pid}/oom_score_adj").read_text()))
        parent = re.search(r"PPid:\s*(\d+)", status)
        assert parent is not None
        pid = int(parent[1])
    return found


HOST = os.getpid()


def test_children_are_killed_first_then_templates_and_then_as_before() -> None:
    with ToolStage(ProcessOptions(namespaces=False, environment={"HOST": str(HOST)})) as stage:
        event = stage.call(scores)
    assert isinstance(event, ToolCallCompleted), event
    child, started, template, *above = json.loads(event.content)
    assert (child, started) == (1000, 1000)
    assert template == OWN + round((1000 - OWN) / 2)
    assert set(above[:3]) == {OWN}, "the fork server, the init process and the keeper"


@pytest.mark.parametrize("risk", ["read", "execute"])
def test_a_confined_child_is_killed_first_too(risk: str) -> None:
    def score() -> str:
        return Path("/proc/self/oom_score_adj").read_text().strip()

    with ToolStage() as stage:
        event = stage.call(tool(risk=risk)(score))
    assert isinstance(event, ToolCallCompleted), event
    assert event.content == "1000"


def test_a_helper_process_is_killed_before_the_host() -> None:
    helper = Helper(signal.pause)
    try:
        score = Path(f"/proc/{helper._process.pid}/oom_score_adj")
        wait_until(lambda: score.read_text() == "1000\n")
    finally:
        helper.close()


def test_a_score_is_never_lowered() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        score = Path(f"/proc/{process.pid}/oom_score_adj")
        make_expendable(process.pid)
        make_expendable(process.pid, 0.5)
        assert score.read_text() == "1000\n"
        process.kill()
    make_expendable(process.pid)  # it has ended


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory."""
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    above, limits = (
        (Path(f"/sys/fs/cgroup/memory{groups['memory']}"), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"))
        if "memory" in groups
        else (Path(f"/sys/fs/cgroup{groups.get('', '')}"), ("memory.max", "memory.swap.max"))
    )
    place = above / f"callboard-{os.getpid()}"
    try:
        place.mkdir()
        (place / limits[0]).write_text(str(LIMIT))
    except OSError as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    with contextlib.suppress(OSError):
        (place / limits[1]).write_text(str(LIMIT) if "memory" in groups else "0")
    yield place
    for _ in range(1_000):
        with contextlib.suppress(OSError):
            place.rmdir()
            return
        time.sleep(0.01)


HOST_PROGRAM = """
import json, os, sys
from pathlib import Path
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool

@tool
def eat() -> int:
    held = []
    while True:
        held.append(b"x" * (1 << 20))

@tool
def add(a: int, b: int) -> int:
    return a + b

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
mine = b"x" * (150 << 20)
with ToolStage() as stage:
    stage.call(add, a=1, b=2)
    eaters = [stage.start(eat, "{}", 60) for _ in range(2)]
    told = [getattr(call.wait(), "failure").message for call in eaters]
    print(json.dumps([*told, getattr(stage.call(add, a=1, b=2), "content", "")]))
"""


def test_of_a_host_and_two_tools_that_eat_memory_the_tools_are_killed(group: Path) -> None:
    host = subprocess.run([sys.executable, "-c", HOST_PROGRAM, str(group)], stdout=-1, timeout=100, check=False)
    assert host.returncode == 0
    *told, added = json.loads(host.stdout)
    assert added == "3"
    assert all("run out of memory" in each for each in told), told
