"""What it costs a tool in a process to be confined: a child, a call, an open, a template; off and auto in one run.

    python benchmarks/confinement.py [calls]

Children are forked ahead of their calls, so a call that comes after a pause does not wait for the confinement of its
child; one that comes at once does. The two kinds take turns, so that what else the machine does meets both.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from callboard.actors.processes.confinement import Confine, kernel_support
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.protocol.events import ToolCallCompleted

CALLS = 1_000
OPENS = 20_000
#: Longer than it takes to fork a successor.
PAUSE_SECONDS = 0.01
MODES = (Confine.OFF, Confine.AUTO)


@tool(risk="read")
def add(a: int, b: int) -> int:
    return a + b


@tool(risk="read", reuse=True, timeout=60)
def open_often(path: str, times: int) -> float:
    """Microseconds of an open and a close."""
    began = time.perf_counter()
    for _ in range(times):
        os.close(os.open(path, os.O_RDONLY))
    return (time.perf_counter() - began) / times * 1e6


def result(stage: ToolStage, what: Tool, **arguments: object) -> str:
    event = stage.call(what, **arguments)
    assert isinstance(event, ToolCallCompleted), event
    return event.content


def milliseconds(stage: ToolStage, pause: float) -> float:
    time.sleep(pause)
    began = time.perf_counter()
    result(stage, add, a=1, b=2)
    return (time.perf_counter() - began) * 1e3


def row(name: str, found: dict[Confine, list[float]], unit: str) -> None:
    off, auto = (statistics.median(found[mode]) for mode in MODES)
    late = [sorted(found[mode])[int(len(found[mode]) * 0.99)] for mode in MODES]
    print(f"{name:<46}{off:>9.2f}{auto:>9.2f}{auto - off:>+9.2f} {unit}   p99 {late[0]:.2f} and {late[1]:.2f}")


def main(calls: int) -> None:
    print(f"{kernel_support()}\n{'medians':<46}{'off':>9}{'auto':>9}{'more':>9}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as entered:
        workspace = Path(folder)
        (workspace / "file").touch()
        options = {mode: ProcessOptions(confine=mode, workspace=workspace) for mode in MODES}
        first = {mode: [first_answer(options[mode]) for _ in range(5)] for mode in MODES}
        stages = {mode: entered.enter_context(ToolStage(options[mode])) for mode in MODES}
        for pause, name in ((0.0, "a call, one after the other"), (PAUSE_SECONDS, "a call, every 10 ms")):
            found: dict[Confine, list[float]] = {mode: [] for mode in MODES}
            for _ in range(calls):
                for mode in MODES:
                    found[mode].append(milliseconds(stages[mode], pause))
            row(name, found, "ms")
        opens: dict[Confine, list[float]] = {mode: [] for mode in MODES}
        for _ in range(10):
            for mode in MODES:
                path = str(workspace / "file")
                opens[mode].append(float(result(stages[mode], open_often, path=path, times=OPENS // 10)))
        row("an open and a close", opens, "us")
        row("the first answer of a new pool", first, "ms")


def first_answer(options: ProcessOptions) -> float:
    with ToolStage(options) as stage:
        return milliseconds(stage, 0.0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS)
