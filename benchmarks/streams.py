"""What reading an answer along costs: CPU of a session that is streamed, beside one that is only awaited, in one run.

    python benchmarks/streams.py [--sessions 200] [--concurrency 100] [--pause 0.1] [--rounds 3]

A session is that of sessions.py: four parallel calls of trivial async tools, then an answer of 50 pieces, here one each
`--pause` seconds, so that every piece comes alone. The rows take turns, each in a fresh process; the server is in
another one.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from sessions import ANSWER, run, script, weather

from callboard.actors import Reply, Runtime, Settings, tool
from callboard.actors.testing.wire_double import WireDouble


@tool(name="lookup")
async def lookup(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return await weather(city, days)


QUESTION = "What is the weather in four cities?"


async def awaited(runtime: Runtime) -> str:
    """Ask, and wait for the answer."""
    return (await runtime.ask(QUESTION)).text


async def read_along(runtime: Runtime) -> str:
    """Ask, and take every event as it comes."""
    text = ""
    async for item in runtime.stream(QUESTION):
        if isinstance(item, Reply):
            text = item.text
    return text


ROWS = {"awaited": awaited, "read along": read_along}


async def measure(row: str, url: str, sessions: int, concurrency: int) -> float:
    """Milliseconds of CPU a session."""
    session, waiting = ROWS[row], iter(range(sessions))
    async with Runtime(Settings(model="openai-compatible/m", base_url=url, api_key="k"), tools=[lookup]) as runtime:

        async def worker() -> None:
            for _ in waiting:
                assert await session(runtime) == ANSWER

        await session(runtime)  # warm up
        began = time.process_time()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return (time.process_time() - began) / sessions * 1e3


def run_child(row: str, options: argparse.Namespace) -> float:
    """One row, in a process of its own."""
    first, second = script()
    paced = dataclasses.replace(second, pause=options.pause)
    with WireDouble([first, paced], by_turn=True) as double:
        numbers = ["--sessions", str(options.sessions), "--concurrency", str(options.concurrency)]
        command = [sys.executable, str(Path(__file__)), "--run", row, "--url", double.base_url(), *numbers]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600).stdout
    return float(json.loads(output.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two pieces of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", choices=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(measure(options.run, options.url, options.sessions, options.concurrency))))
        return
    found: dict[str, list[float]] = {row: [] for row in ROWS}
    for _ in range(options.rounds):
        for row, milliseconds in found.items():
            milliseconds.append(run_child(row, options))
    base = statistics.median(found["awaited"])
    for row, milliseconds in found.items():
        middle = statistics.median(milliseconds)
        all_of_them = " ".join(f"{each:.2f}" for each in milliseconds)
        print(f"{row:>12} {middle:6.2f} ms of CPU a session {middle / base:6.2f} x   ({all_of_them})")


if __name__ == "__main__":
    main()
