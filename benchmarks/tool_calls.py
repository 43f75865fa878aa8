"""What a tool call costs by isolation, beside a direct call and the standard library's executors, in one run.

    python benchmarks/tool_calls.py

Latency is measured from a foreign thread, both hops to the loop included: a session on the loop sees less.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.protocol.events import ToolCallCompleted
from callboard.protocol.limits import TOOL_GRACE_SECONDS

CALLS = 5_000
BATCH = 100
KILLS = 50
PACED_CALLS = 1_000
#: Models ask for tools at this pace at most; a successor of a child is ready by then.
PAUSE_SECONDS = 0.01


def plain(a: int, b: int) -> int:
    return a + b


@tool(name="add")
def in_process(a: int, b: int) -> int:
    return a + b


@tool(name="add")
async def in_task(a: int, b: int) -> int:
    return a + b


@tool(name="add", isolation="thread")
def in_thread(a: int, b: int) -> int:
    return a + b


@tool(name="add", reuse=True)
def in_kept_process(a: int, b: int) -> int:
    return a + b


@tool
def leave() -> None:
    os._exit(1)


@tool
def refuse_to_end() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def latencies(call: Callable[[], object], count: int = CALLS) -> list[float]:
    """Microseconds, sorted."""
    for _ in range(count // 10):
        call()
    found = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e6)
    return sorted(found)


def paced(stage: ToolStage, tool: Tool) -> tuple[list[float], float]:
    """Microseconds of calls with a pause between them, sorted; and CPU of all our processes together, a call."""
    found = []
    before = cpu_of_all()
    for _ in range(PACED_CALLS):
        time.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        stage.call(tool, a=1, b=2)
        found.append((time.perf_counter() - began) * 1e6)
    return sorted(found), (cpu_of_all() - before) / PACED_CALLS * 1e6


def cpu_of_all() -> float:
    """Seconds of CPU of this process and of all below it, those that have ended included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def cpu_a_call(stage: ToolStage, tool: Tool) -> float:
    """Microseconds of this process's CPU, with BATCH calls under way at a time."""
    began = time.process_time()
    for _ in range(CALLS // BATCH):
        calls = [stage.start(tool, '{"a": 1, "b": 2}') for _ in range(BATCH)]
        for call in calls:
            assert isinstance(call.wait(), ToolCallCompleted)
    return (time.process_time() - began) / CALLS * 1e6


def print_row(name: str, found: list[float], direct: float, cpu: str = "") -> None:
    middle, late = statistics.median(found), found[int(len(found) * 0.99)]
    print(f"{name:<44}{middle:>10.1f}{late:>10.1f}{middle - direct:>12.1f}{cpu:>12}")


def compare_calls() -> None:
    print(f"{'one call, microseconds':<44}{'median':>10}{'p99':>10}{'over direct':>12}{'cpu a call':>12}")
    direct = latencies(lambda: plain(1, 2))
    middle = statistics.median(direct)
    print_row("direct call", direct, middle)
    with ToolStage() as stage:
        for name, each in (
            ("task", in_task),
            ("thread", in_thread),
            ("process, reuse=True", in_kept_process),
            ("process", in_process),
        ):
            found = latencies(lambda each=each: stage.call(each, a=1, b=2))  # type: ignore[misc]
            print_row(f"callboard, isolation={name}", found, middle, f"{cpu_a_call(stage, each):.1f}")
        for name, each in (("process, reuse=True", in_kept_process), ("process", in_process)):
            stage.call(each, a=1, b=2)
            found, cpu = paced(stage, each)
            print_row(f"{name}, every {PAUSE_SECONDS * 1e3:.0f} ms", found, middle, f"{cpu:.0f} (all)")
    with ThreadPoolExecutor(4) as threads:
        print_row("ThreadPoolExecutor", latencies(lambda: threads.submit(plain, 1, 2).result()), middle)
    with ProcessPoolExecutor(4, mp_context=get_context("forkserver")) as processes:
        print_row(
            "ProcessPoolExecutor (cannot kill)", latencies(lambda: processes.submit(plain, 1, 2).result()), middle
        )


def compare_ends() -> None:
    """How long it takes to kill, and until a successor answers."""
    print(f"\n{'ends, milliseconds':<44}{'median':>10}{'max':>10}")
    with ToolStage(ProcessOptions(max_children=1, warm=0)) as stage:
        stage.call(in_process, a=1, b=2)
        kills, replaced = [], []
        for _ in range(KILLS):
            call = stage.start(refuse_to_end, "{}", timeout_seconds=0.05)
            call.wait()
            kills.append((call.ended_at - call.started_at - 0.05 - TOOL_GRACE_SECONDS) * 1e3)
        for _ in range(KILLS):
            stage.call(leave)
            began = time.perf_counter()
            stage.call(in_process, a=1, b=2)
            replaced.append((time.perf_counter() - began) * 1e3)
    print(f"{'from the end of grace to gone and told':<44}{statistics.median(kills):>10.1f}{max(kills):>10.1f}")
    print(f"{'a crash, then the answer of a new child':<44}{statistics.median(replaced):>10.1f}{max(replaced):>10.1f}")
    began = time.perf_counter()
    with ToolStage() as stage:
        stage.call(in_process, a=1, b=2)
        print(f"{'first answer of a new pool (new interpreter)':<44}{(time.perf_counter() - began) * 1e3:>10.1f}")


if __name__ == "__main__":
    compare_calls()
    compare_ends()
