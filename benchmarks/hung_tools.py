"""300 hung calls in a row: is everything gone in time, without a side effect afterwards, and does the host stay flat?

    python benchmarks/hung_tools.py [CALLS]            # all kinds in turn, one call after the other
    python benchmarks/hung_tools.py [CALLS] --each     # so many calls of each kind: is everything flat after each 100?

No tool is withdrawn here, however often it hangs (as with `Settings(tool_failure_budget=None)`): a call of a withdrawn
tool is refused at once, and would say nothing about hung ones.
Every process that a call starts writes its id to a pipe file when it begins and a byte to a log as long as it lives;
with --namespaces, where the ids mean nothing here, only the log tells that it is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import orjson

from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.protocol.events import ToolCallTimedOut
from callboard.protocol.limits import TOOL_GRACE_SECONDS

CALLS = 300
DEADLINE_SECONDS = 0.1
#: Issue 4: gone within deadline + grace + this.
ALLOWED_SECONDS = 0.5
#: With --each: calls under way at the same time, and how often it is looked whether everything is flat.
AT_A_TIME = 10
LOOK_EVERY = 100
#: What cannot be ended ends by itself after this.
ABANDONED_SECONDS = 0.5


def write_for_ever(log: str) -> None:
    with open(log, "ab", 0) as file:
        while True:
            file.write(b".")


def ignore_sigterm(log: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write_for_ever(log)


def shell(log: str, new_session: bool) -> None:
    script = f'echo pid $$; (trap "" TERM; while :; do printf . >> {log}; done) & echo pid $!; wait'
    subprocess.Popen(["sh", "-c", script], start_new_session=new_session).wait()


def daemon(log: str) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(1, b"pid %d\n" % os.getpid())
            ignore_sigterm(log)
        os._exit(0)
    os.wait()
    time.sleep(1000)


HANGS: dict[str, Callable[[str], object]] = {
    "endless Python loop that writes": write_for_ever,
    "time.sleep": lambda _: time.sleep(1000),
    "endless loop in C with the GIL": lambda _: sum(range(10**15)),
    "ignores SIGTERM": ignore_sigterm,
    "child of a child": lambda log: shell(log, new_session=False),
    "child of a child in its own session": lambda log: shell(log, new_session=True),
    "daemon (double fork, own session)": daemon,
}


@tool
def hang(how: str, log: str) -> None:
    os.write(1, b"pid %d\n" % os.getpid())
    HANGS[how](log)


@tool(concurrency=1_000)
async def hang_task(how: str, log: str) -> None:
    if how == "task that awaits":
        await asyncio.sleep(1000)
    until = time.monotonic() + ABANDONED_SECONDS
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


@tool(isolation="thread", concurrency=64)
def hang_thread(how: str, log: str) -> None:
    time.sleep(ABANDONED_SECONDS)


KINDS: dict[str, Tool] = {
    **dict.fromkeys(HANGS, hang),
    "task that awaits": hang_task,
    "task that swallows its cancellation": hang_task,
    "thread (abandoned)": hang_thread,
}


def pids_in(output: str) -> list[int]:
    return [int(line[4:]) for line in output.splitlines() if line.startswith("pid ")]


def footprint() -> tuple[int, int, int]:
    """Threads, descriptors, resident kB."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return threading.active_count(), len(os.listdir("/proc/self/fd")), resident


def main(calls: int, namespaces: bool) -> None:
    late: dict[str, list[float]] = defaultdict(list)
    started = left = early = 0
    with tempfile.TemporaryDirectory() as folder, ToolStage(ProcessOptions(namespaces=namespaces)) as stage:
        log = str(Path(folder) / "log")
        Path(log).touch()
        before = (0, 0, 0)
        for number in range(calls + len(HANGS)):
            if number == len(HANGS):  # one of each has warmed up what is made once
                before = footprint()
            how = tuple(HANGS)[number % len(HANGS)]
            call = stage.start(hang, orjson.dumps({"how": how, "log": log}).decode(), DEADLINE_SECONDS)
            event = call.wait()
            size = os.path.getsize(log)
            pids = pids_in(event.output)
            started += len(pids)
            left += not namespaces and sum(os.path.exists(f"/proc/{pid}") for pid in pids)
            early += not isinstance(event, ToolCallTimedOut)
            late[how].append(call.ended_at - call.started_at - DEADLINE_SECONDS)
            if os.path.getsize(log) != size:
                sys.exit(f"{how}: something was written after the call had ended")
        size = os.path.getsize(log)
        threading.Event().wait(0.5)
        written = os.path.getsize(log) - size
        after = footprint()
    print(f"{'after the deadline, milliseconds':<44}{'calls':>7}{'median':>9}{'max':>9}")
    for how, seconds in late.items():
        print(f"{how:<44}{len(seconds):>7}{statistics.median(seconds) * 1e3:>9.1f}{max(seconds) * 1e3:>9.1f}")
    allowed = (TOOL_GRACE_SECONDS + ALLOWED_SECONDS) * 1e3
    print(f"\nallowed: grace {TOOL_GRACE_SECONDS * 1e3:.0f} ms + {ALLOWED_SECONDS * 1e3:.0f} ms = {allowed:.0f} ms")
    print(f"processes seen: {started}; alive (or zombies) when the outcome was told: {left}; other outcomes: {early}")
    print(f"bytes written in the half second after the last call: {written}")
    for name, first, last in zip(("threads", "descriptors", "resident kB"), before, after, strict=True):
        print(f"{name:<14}before {first:>8}   after {last:>8}")


def each_kind(calls: int, kinds: list[str], namespaces: bool) -> None:
    """So many calls of each kind, several at a time, each kind on a stage of its own."""
    row = "{:<44}{:>7}{:>9}{:>9}{:>9}{:>13}{:>13}"
    print(row.format("kind", "calls", "hung", "max ms", "threads", "descriptors", "resident kB"))
    for how in kinds:
        with tempfile.TemporaryDirectory() as folder, ToolStage(ProcessOptions(namespaces=namespaces)) as stage:
            log = str(Path(folder) / "log")
            Path(log).touch()
            hung, latest = batch(stage, how, log, AT_A_TIME)  # what is made once is made now
            print(row.format(how, AT_A_TIME, hung, f"{latest * 1e3:.0f}", *footprint()), flush=True)
            for done in range(LOOK_EVERY, calls + 1, LOOK_EVERY):
                ends = [batch(stage, how, log, AT_A_TIME) for _ in range(LOOK_EVERY // AT_A_TIME)]
                hung, latest = sum(end[0] for end in ends), max(end[1] for end in ends)
                print(row.format("", done, hung, f"{latest * 1e3:.0f}", *footprint()), flush=True)


def batch(stage: ToolStage, how: str, log: str, calls: int) -> tuple[int, float]:
    """How many of them ended by their deadline, and how long after it the last did, in seconds."""
    arguments = orjson.dumps({"how": how, "log": log}).decode()
    begun = [stage.start(KINDS[how], arguments, DEADLINE_SECONDS) for _ in range(calls)]
    hung = sum(isinstance(call.wait(), ToolCallTimedOut) for call in begun)
    return hung, max(call.ended_at - call.started_at - DEADLINE_SECONDS for call in begun)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("calls", nargs="?", type=int, default=CALLS)
    parser.add_argument("--each", action="store_true", help="so many calls of each kind, and how flat everything stays")
    parser.add_argument("--namespaces", action="store_true", help="where process ids cannot be looked at from here")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--no-namespaces", dest="namespaces", action="store_false", help="as where the kernel has none")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)  # of each abandoned call there is a line
    if asked.each:
        each_kind(asked.calls, asked.kinds, asked.namespaces)
    else:
        main(asked.calls, asked.namespaces)
