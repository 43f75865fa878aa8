"""300 hung calls in a row: is everything gone in time, without a side effect afterwards, and does the host stay flat?

    python benchmarks/hung_tools.py [CALLS]

Every process that a call starts writes its id to a pipe file when it begins and a byte to a log as long as it lives.
"""

from __future__ import annotations

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

from callboard.actors.tools import tool
from callboard.actors.testing.tool_stage import ToolStage
from callboard.protocol.events import ToolCallTimedOut
from callboard.protocol.limits import TOOL_GRACE_SECONDS

CALLS = 300
DEADLINE_SECONDS = 0.1
#: Issue 4: gone within deadline + grace + this.
ALLOWED_SECONDS = 0.5


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


def pids_in(output: str) -> list[int]:
    return [int(line[4:]) for line in output.splitlines() if line.startswith("pid ")]


def footprint() -> tuple[int, int, int]:
    """Threads, descriptors, resident kB."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return threading.active_count(), len(os.listdir("/proc/self/fd")), resident


def main(calls: int) -> None:
    late: dict[str, list[float]] = defaultdict(list)
    started = left = early = 0
    with tempfile.TemporaryDirectory() as folder, ToolStage() as stage:
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
            left += sum(os.path.exists(f"/proc/{pid}") for pid in pids)
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


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS)
