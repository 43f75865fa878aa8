"""What the journal costs: CPU of a request without it, and with it at each durability.

    python benchmarks/journal_cost.py                          # 1, 100 and 1,000 requests at once
    python benchmarks/journal_cost.py --at-once 1000 --rounds 9
    python benchmarks/journal_cost.py --at-once 1000 --profile # where the CPU of the journal's thread and the loop goes

The load is that of sessions.py: one question, one model turn with four parallel calls of a trivial async tool, one
answer in 50 pieces, from the wire double, a server in a process of its own. The ways are run in turn, each in a process
of its own, several rounds, so that what the machine does besides falls on all of them; shown are medians. CPU is that
of the whole process, user and system, all threads; the server does not count. The goal is 1.25 times at 1,000 at once.
With --scripted there is no server, and what HTTP takes is missing on both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sessions import scripts
from sessions_contenders import ANSWER, WORDS

from callboard import Runtime, Settings, tool
from callboard.actors.testing.wire_double import WireDouble
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

WAYS = ("none", "process", "power")
CALLS = 4
#: Between two pieces of an answer: a model's 250 tokens a second.
TICK_SECONDS = 0.004
RUN_SECONDS = 600.0
GOAL = 1.25


@tool(effect="repeat", concurrency=10_000)
async def lookup(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"rain in {city} for {days} days"


@tool(concurrency=10_000, name="lookup")
async def lookup_once(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"rain in {city} for {days} days"


TOOLS: dict[str, Callable[..., object]] = {"repeat": lookup, "once": lookup_once}


def model(request: ModelRequest) -> ScriptedTurn:
    """Four calls, then the answer."""
    if isinstance(request.messages[-1], ToolMessage):
        return ScriptedTurn(ANSWER, chunk_chars=len(WORDS[0]), delay_seconds=TICK_SECONDS)
    calls = tuple(ScriptedCall("lookup", {"city": f"city number {n}", "days": n}, f"call_{n}") for n in range(CALLS))
    return ScriptedTurn(calls=calls)


def measured(way: str, at_once: int, requests: int, effect: str, url: str, profile: bool) -> dict[str, float]:
    """In this process, after a warm-up. `url`: of the server; "" for the scripted model."""
    with tempfile.TemporaryDirectory(prefix="journal-cost-") as folder:
        written = {"journal": str(Path(folder) / "journal.sqlite"), "durability": way} if way != "none" else {}
        asked = {"model": "openai-compatible/m", "base_url": url, "api_key": "k"}
        settings = Settings(**(asked if url else {"model": "scripted/model", "script": model}), **written)
        if profile:
            profile_all_threads()

        async def main() -> dict[str, float]:
            async with Runtime(settings, [TOOLS[effect]]) as runtime:

                async def worker(count: int) -> None:
                    for _ in range(count):
                        reply = await runtime.ask("What is the weather?")
                        assert reply.text == ANSWER, reply.text

                await asyncio.gather(*(worker(1) for _ in range(min(20, at_once))))
                cpu, wall = time.process_time(), time.perf_counter()
                share, rest = divmod(requests, at_once)
                await asyncio.gather(*(worker(share + (number < rest)) for number in range(at_once)))
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            return {"cpu_ms": cpu / requests * 1e3, "per_second": requests / wall}

        return asyncio.run(main())


PROFILES: list[cProfile.Profile] = []


def profile_all_threads() -> None:
    """A profile of the CPU of each thread that is started from now on, printed at the end."""
    run = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        profile = cProfile.Profile(time.thread_time)
        PROFILES.append(profile)
        profile.runcall(run, thread)

    threading.Thread.run = profiled  # type: ignore[method-assign]


def print_profiles() -> None:
    for profile in PROFILES:
        stats = pstats.Stats(profile, stream=sys.stderr)
        if stats.total_tt > 0.3:  # type: ignore[attr-defined]
            stats.sort_stats("tottime").print_stats(45)


def in_a_process(way: str, at_once: int, requests: int, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--way", way, "--at-once", str(at_once), "--requests", str(requests)]
    command += ["--effect", options.effect, *(["--scripted"] if options.scripted else [])]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=RUN_SECONDS, check=True)
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def compare(at_once: int, options: argparse.Namespace) -> None:
    """One group of rows."""
    requests = max(options.requests, at_once)
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            seen[way].append(in_a_process(way, at_once, requests, options))
    plain = statistics.median(each["cpu_ms"] for each in seen["none"])
    for way, figures in seen.items():
        cpu = [each["cpu_ms"] for each in figures]
        speed = statistics.median(each["per_second"] for each in figures)
        print(
            f"{at_once:>8} {way:>10} {statistics.median(cpu):>8.2f} {min(cpu):>8.2f} {max(cpu):>8.2f}"
            f" {statistics.median(cpu) / plain:>7.2f} {speed:>8.0f}",
            flush=True,
        )


def one_way(options: argparse.Namespace) -> None:
    """The one that is named, in this process."""
    at_once = options.at_once[-1]
    requests = max(options.requests, at_once)
    way = options.way or "process"
    with WireDouble() if not options.scripted else nullcontext() as double:
        url = ""
        if double is not None:
            double.play_scripts(*scripts(TICK_SECONDS))
            url = double.base_url()
        print(json.dumps(measured(way, at_once, requests, options.effect, url, options.profile)))
    print_profiles()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 100, 1_000])
    parser.add_argument("--requests", type=int, default=500, help="of each run, and at least as many as at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--effect", choices=list(TOOLS), default="repeat", help="of the tool")
    parser.add_argument("--scripted", action="store_true", help="without a server")
    parser.add_argument("--way", choices=WAYS, help="only this one, in this process")
    parser.add_argument("--profile", action="store_true", help="in this process: of `process`, or of --way")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.way or options.profile:
        one_way(options)
        return
    print(f"{'at once':>8} {'journal':>10} {'CPU ms':>8} {'least':>8} {'most':>8} {'x none':>7} {'per s':>8}")
    for at_once in options.at_once:
        compare(at_once, options)


if __name__ == "__main__":
    main()
