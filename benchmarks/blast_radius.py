"""One tool dies while 49 other requests run: what becomes of them? (I10)

    python benchmarks/blast_radius.py [--requests 50]

For each way of dying, 50 requests run at once in one Runtime, each with three healthy calls (a process, a task and a
thread tool); one of them also calls the tool that dies. The other 49 must end byte for byte as in a run where nothing
dies: the texts of their replies and all messages they recorded. Nothing of the dead tool may be left running.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import Tool, tool
from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: Seconds after which a hanging or stubborn tool is ended.
TIMEOUT_SECONDS = 2.0
PATIENCE_SECONDS = 20.0
MEMORY_BYTES = 512 * 1024**2
MARKER = "callboard_blast_radius"


@tool
def in_process(x: int) -> int:
    return x * 2


@tool(concurrency=64)
async def in_task(x: int) -> int:
    await asyncio.sleep(0.01)
    return x * 3


@tool(isolation="thread", concurrency=16)
def in_thread(x: int) -> int:
    return x * 5


HEALTHY = (in_process, in_task, in_thread)


# -- the ways to die; each is the function of a tool called `dies`


def exception() -> None:
    raise ValueError("no")


def sys_exit() -> None:
    sys.exit(3)


def os_exit() -> None:
    os._exit(3)


def segfault() -> None:
    ctypes.string_at(0)


def memory_limit() -> int:
    return len(bytearray(4 * 1024**3))


def all_memory_by_and_by() -> int:
    held: list[Any] = []
    while True:
        held.append(bytearray(16 * 1024**2))


def cancelled_error() -> None:
    raise asyncio.CancelledError


def keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def unpicklable() -> Any:
    return threading.Lock()


def hundred_megabytes() -> str:
    return "x" * 100_000_000


def fifty_grandchildren() -> None:
    for _ in range(50):
        # In a session of its own and deaf to SIGTERM: what a careless tool leaves behind.
        subprocess.Popen(
            [sys.executable, "-S", "-c", "import signal;signal.signal(15,1);signal.pause()", MARKER],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    os._exit(1)


def endless_loop() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        continue


async def task_exception() -> None:
    raise ValueError("no")


async def task_cancelled_error() -> None:
    raise asyncio.CancelledError


async def task_sys_exit() -> None:
    sys.exit(3)


async def task_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


async def task_endless_loop() -> None:
    until = time.monotonic() + TIMEOUT_SECONDS * 2  # it cannot be killed; the bench must not burn on for ever
    while time.monotonic() < until:
        continue


def thread_hang() -> None:
    threading.Event().wait(TIMEOUT_SECONDS * 3)


@dataclass(frozen=True)
class Death:
    name: str
    function: Callable[..., Any]
    isolation: str
    codes: tuple[str, ...]
    """The failures that the model may be told of."""


PROCESS_DEATHS = (
    Death("exception", exception, "process", ("tool_error",)),
    Death("sys.exit", sys_exit, "process", ("crashed", "tool_error")),
    Death("os._exit", os_exit, "process", ("crashed",)),
    Death("SIGSEGV", segfault, "process", ("crashed",)),
    Death("memory limit, at once", memory_limit, "process", ("crashed", "tool_error")),
    Death("memory limit, by and by", all_memory_by_and_by, "process", ("crashed", "tool_error")),
    Death("CancelledError", cancelled_error, "process", ("crashed", "tool_error")),
    Death("KeyboardInterrupt", keyboard_interrupt, "process", ("crashed", "tool_error")),
    Death("unpicklable result", unpicklable, "process", ("invalid_result",)),
    Death("100 MB result", hundred_megabytes, "process", ("result_too_large",)),
    Death("50 grandchildren", fifty_grandchildren, "process", ("crashed", "timed_out")),
    Death("endless, deaf to SIGTERM", endless_loop, "process", ("timed_out",)),
)
TASK_DEATHS = (
    Death("exception", task_exception, "task", ("tool_error",)),
    Death("CancelledError", task_cancelled_error, "task", ("crashed", "tool_error")),
    Death("sys.exit", task_sys_exit, "task", ("crashed", "tool_error")),
    Death("KeyboardInterrupt", task_keyboard_interrupt, "task", ("crashed", "tool_error")),
    Death("blocks the tool loop", task_endless_loop, "task", ("timed_out", "crashed")),
)
CALLER_DEATHS = (
    Death("exception", task_exception, "caller", ("tool_error",)),
    Death("CancelledError", task_cancelled_error, "caller", ("crashed", "tool_error")),
    Death("sys.exit", task_sys_exit, "caller", ("crashed", "tool_error")),
    Death("KeyboardInterrupt", task_keyboard_interrupt, "caller", ("crashed", "tool_error")),
)
THREAD_DEATHS = (
    Death("exception", exception, "thread", ("tool_error",)),
    Death("CancelledError", cancelled_error, "thread", ("crashed", "tool_error")),
    Death("sys.exit", sys_exit, "thread", ("crashed", "tool_error")),
    Death("KeyboardInterrupt", keyboard_interrupt, "thread", ("crashed", "tool_error")),
    Death("100 MB result", hundred_megabytes, "thread", ("result_too_large", "timed_out")),
    Death("hangs", thread_hang, "thread", ("timed_out",)),
)
DEATHS = (*PROCESS_DEATHS, *TASK_DEATHS, *CALLER_DEATHS, *THREAD_DEATHS)


def script(request: ModelRequest) -> ScriptedTurn:
    """Three healthy calls (and the deadly one, where the question says so), then an answer made of the results."""
    question = next(m.text for m in reversed(request.messages) if isinstance(m, UserMessage))
    last = max(i for i, m in enumerate(request.messages) if isinstance(m, UserMessage))
    results = [m for m in request.messages[last:] if isinstance(m, ToolMessage)]
    if results:
        healthy = [m.content for m in results if m.name != "dies"]
        return ScriptedTurn(f"{question}: {', '.join(healthy)}", chunk_chars=7)
    number = int(question.split()[-1])
    calls = [ScriptedCall(each.name, {"x": number}) for each in HEALTHY]
    if question.startswith("die"):
        calls.insert(1, ScriptedCall("dies"))
    return ScriptedTurn(calls=tuple(calls), chunk_chars=5)


@dataclass(frozen=True)
class Seen:
    texts: dict[int, str]
    messages: dict[int, bytes]
    victim: list[ToolMessage]
    seconds: float
    unaccounted: int
    """Messages, at rest (I9)."""


async def run(death: Death, requests: int, dying: bool) -> Seen:
    """All requests at once; request 0 meets the tool that dies, if `dying`."""
    # One that dies at once has time to begin in: a busy machine may take seconds to load a tool.
    seconds = TIMEOUT_SECONDS if "timed_out" in death.codes else PATIENCE_SECONDS
    dies = tool(name="dies", isolation=death.isolation, timeout=seconds)(death.function)
    tools: list[Tool[..., Any]] = [*HEALTHY, dies]
    settings = Settings(model="scripted/model", script=script, worker_memory_bytes=MEMORY_BYTES)
    async with Runtime(settings, tools=tools) as runtime:
        began = time.perf_counter()
        words = ["die 0" if dying else "live 0", *(f"live {number}" for number in range(1, requests))]
        replies = await asyncio.gather(*(runtime.ask(text) for text in words))
        seconds = time.perf_counter() - began
        statistics = await at_rest(runtime)
    return Seen(
        {number: reply.text for number, reply in enumerate(replies)},
        {number: repr(reply.messages).encode() for number, reply in enumerate(replies)},
        [m for m in replies[0].messages if isinstance(m, ToolMessage) and m.name == "dies"],
        seconds,
        statistics,
    )


async def at_rest(runtime: Runtime) -> int:
    """Messages unaccounted for once nothing is on its way any more (I9)."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        statistics = runtime.statistics()
        if statistics.queued == 0 and statistics.unaccounted == 0:
            return 0
        await asyncio.sleep(0.005)
    return runtime.statistics().unaccounted


def left_behind() -> list[int]:
    """Processes of the tool that leaves 50 grandchildren, still alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if MARKER.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has just ended
                continue
    return found


def judge(death: Death, plain: Seen, seen: Seen) -> list[str]:
    """What is wrong with a run, beside the run without a death."""
    faults = []
    others = [number for number in plain.texts if number != 0]
    changed = [n for n in others if seen.texts[n] != plain.texts[n] or seen.messages[n] != plain.messages[n]]
    if changed:
        faults.append(f"{len(changed)} other requests changed, the first is {changed[0]}")
    if len(seen.victim) != 1:
        faults.append(f"the dead call has {len(seen.victim)} results")
    elif not any(f'"code":"{code}"' in seen.victim[0].content for code in death.codes):
        faults.append(f"the model was told {seen.victim[0].content[:120]}")
    if seen.unaccounted:
        faults.append(f"{seen.unaccounted} messages are unaccounted for")
    deadline = time.monotonic() + 2.0
    while (left := left_behind()) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:
        faults.append(f"{len(left)} grandchildren are alive")
    return faults


def main(requests: int) -> int:
    """The table; 1 if any request changed."""
    logging.disable(logging.CRITICAL)
    bad = 0
    row = "{:<10} {:<26} {:>9} {:>10} {:>10}  {}"
    print(row.format("isolation", "dies by", "unchanged", "plain s", "death s", "verdict"))
    plain = asyncio.run(run(DEATHS[0], requests, dying=False))
    for death in DEATHS:
        seen = asyncio.run(run(death, requests, dying=True))
        faults = judge(death, plain, seen)
        same_count = sum(seen.messages[n] == plain.messages[n] for n in plain.messages if n)
        verdict = "; ".join(faults) or "ok"
        bad += bool(faults)
        unchanged = f"{same_count}/{requests - 1}"
        print(
            row.format(death.isolation, death.name, unchanged, f"{plain.seconds:.2f}", f"{seen.seconds:.2f}", verdict)
        )
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    threads = threading.active_count()
    print(f"{len(DEATHS)} deaths among {requests} requests each; {threads} threads left, {peak_mb:.0f} MB peak")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=50)
    sys.exit(main(parser.parse_args().requests))
