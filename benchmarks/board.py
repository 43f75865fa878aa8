"""The board with 1,000 live requests: how long the page is busy at a time, and what the daemon pays for it.

    python benchmarks/board.py [--requests 1000] [--seconds 60]

A real daemon with a scripted model, a real Chromium that looks at its board. The requests begin and end in turns, so
that the rows change all the time. Prints the page's tasks of 50 ms and more, from its first moment on, as the page's
own PerformanceObserver counts them; the longest tasks of Chromium's trace, which begins when the page shows its rows,
since tracing itself makes the loading of a page several times slower; and the CPU of the daemon with and without
someone who looks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.board_page import blank_page, board_daemon, browser, opened_board
from support.running_daemon import RunningDaemon

#: Ended and begun again each second, so that lanes change.
TURNED_OVER = 20
TICKS = 100.0
#: Runs in the page before anything else.
OBSERVER = """
window.longTasks = [];
new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((each) => each.duration)))
  .observe({ type: "longtask", buffered: true });
"""


def cpu_seconds(pid: int) -> float:
    """Of a process, user and system (proc(5): fields 14 and 15, in hundredths of a second)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def turn_over(daemon: RunningDaemon, stop: threading.Event) -> None:
    """Short requests beside those that stay."""
    while not stop.wait(1.0):
        daemon.post("/test/start", {"prompt": "hello", "count": TURNED_OVER})


def measure(requests: int, seconds: float) -> dict[str, object]:
    """One run."""
    with tempfile.TemporaryDirectory() as folder, board_daemon(Path(folder)) as daemon, browser() as chromium:
        daemon.post("/test/start", {"prompt": "think", "count": requests})
        while len(daemon.get("/api/board").json()["sections"]["requests"]) < requests:
            time.sleep(0.2)
        stop = threading.Event()
        load = threading.Thread(target=turn_over, args=(daemon, stop))
        load.start()
        alone, pid = cpu_seconds(daemon.process.pid), daemon.process.pid
        time.sleep(min(10.0, seconds))
        alone = (cpu_seconds(pid) - alone) / min(10.0, seconds)
        with blank_page(chromium, OBSERVER) as page, opened_board(page, daemon):
            began, before = time.monotonic(), cpu_seconds(pid)
            page.wait_for_selector(".request")
            chromium.start_tracing(categories=["toplevel"])
            while time.monotonic() - began < seconds:
                page.mouse.wheel(0, 600)
                page.wait_for_timeout(1_000)
            long_tasks = page.evaluate("window.longTasks")
            heap = page.evaluate("performance.memory.usedJSHeapSize")
            rows = page.locator("#request-rows > li").count()
            looked = (cpu_seconds(pid) - before) / (time.monotonic() - began)
        trace = json.loads(chromium.stop_tracing())
        stop.set()
        load.join(timeout=60)
    return {
        "requests": requests,
        "seconds": seconds,
        "longest_tasks_ms": longest_tasks(trace["traceEvents"]),
        "long_tasks_ms": [round(each) for each in long_tasks],
        "rows_in_page": rows,
        "heap_mb": round(heap / 1e6, 1),
        "daemon_cpu_alone": round(alone, 2),
        "daemon_cpu_looked_at": round(looked, 2),
    }


def longest_tasks(events: list[dict[str, object]]) -> list[dict[str, float]]:
    """The five longest of the pages' main threads: when each began, its time by the clock, and on a processor."""
    main = {(each["pid"], each["tid"]) for each in events if _is_main(each)}
    tasks = [
        each
        for each in events
        if str(each.get("name")).endswith("RunTask") and "dur" in each and (each["pid"], each["tid"]) in main
    ]
    began = min((_number(each, "ts") for each in tasks), default=0.0)
    longest = sorted(tasks, key=lambda each: -_number(each, "dur"))[:5]
    return [
        {
            "at_seconds": round((_number(each, "ts") - began) / 1e6, 1),
            "ms": round(_number(each, "dur") / 1_000, 1),
            "cpu_ms": round(_number(each, "tdur") / 1_000, 1),
        }
        for each in longest
    ]


def _number(event: dict[str, object], name: str) -> float:
    return float(str(event.get(name, 0)))


def _is_main(event: dict[str, object]) -> bool:
    found = event.get("args")
    return event.get("name") == "thread_name" and isinstance(found, dict) and found.get("name") == "CrRendererMain"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    print(json.dumps(measure(given.requests, given.seconds), indent=2))
