"""What one call changes in its process never reaches the next: each way a call can change it, and how the next looks.

A call of the default kind has a process of its own. With `reuse=True` some of it is put back, the rest is not.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.changes import NEEDS_ROOT, WAYS, change, change_and_look, look

from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.protocol.events import ToolCallCompleted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")


@pytest.fixture(scope="module", params=[True, False], ids=["namespaces", "plain"])
def stage(request: pytest.FixtureRequest) -> Iterator[ToolStage]:
    """One child at a time: the next call would get the same one, if there were a same one."""
    with ToolStage(ProcessOptions(max_children=1, namespaces=request.param)) as stage:
        yield stage


def told(stage: ToolStage, what: object, way: str) -> str:
    event = stage.start(what, json.dumps({"way": way}), 30).wait()  # type: ignore[arg-type]
    assert isinstance(event, ToolCallCompleted), event
    return event.content


@pytest.mark.parametrize("way", WAYS)
def test_what_a_call_changes_does_not_reach_the_next(stage: ToolStage, way: str) -> None:
    if way in NEEDS_ROOT and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    before = told(stage, look, way)
    if way not in ("event loop", "locale"):  # these are not seen in this way
        assert told(stage, change_and_look, way) != before, "the change can be seen"
    told(stage, change, way)
    assert told(stage, look, way) == before


@tool
def rolls() -> list[float]:
    return [random.random(), float(os.urandom(1)[0])]


def test_no_two_calls_have_the_same_random_numbers(stage: ToolStage) -> None:
    found = {event.content for event in (stage.call(rolls) for _ in range(5)) if isinstance(event, ToolCallCompleted)}
    assert len(found) == 5


def test_no_two_calls_have_the_same_random_numbers_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "rolls_numpy.py").write_text(
        "import numpy\nfrom callboard.actors.tools import tool\n"
        "@tool\ndef roll() -> float:\n    return float(numpy.random.random())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from rolls_numpy import roll  # type: ignore[import-not-found]  # noqa: PLC0415 - it has just been written

    with ToolStage() as stage:
        events = [stage.start(roll, "{}", 30).wait() for _ in range(4)]
    assert len({event.content for event in events if isinstance(event, ToolCallCompleted)}) == 4


@tool
def leave_a_thread_that_acts(path: str) -> None:
    def act() -> None:
        while True:
            with open(path, "ab", 0) as file:
                file.write(b".")
            time.sleep(0.001)

    threading.Thread(target=act, daemon=True).start()


def test_a_thread_that_a_call_has_left_does_nothing_once_the_result_is_told(stage: ToolStage, tmp_path: Path) -> None:
    log = tmp_path / "log"
    event = stage.call(leave_a_thread_that_acts, path=str(log))
    assert isinstance(event, ToolCallCompleted)
    size = log.stat().st_size if log.exists() else 0
    assert isinstance(stage.call(rolls), ToolCallCompleted)
    assert (log.stat().st_size if log.exists() else 0) == size
