"""What one session costs, beside a hand-written loop and a peer, in one run.

    python benchmarks/sessions.py [--sessions 2000] [--concurrency 100 1000] [--peer openai-agents|none]

A session is one user message, one model turn with four parallel calls of trivial async tools whose arguments arrive in
fragments, and one streamed answer of 50 chunks. The model is the wire double, in a process of its own. Each contender
runs in a fresh process; CPU is that process's own (user and system), so the server does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callboard.actors.testing.wire_double import Turn

CALLS = 4
#: A quarter of a call's arguments.
ARGUMENT_CHARS = 9
#: A chunk each, all of one length.
WORDS = [f"word {number} " for number in range(10, 60)]
ANSWER = "".join(WORDS)
#: Between two chunks of one stream: a fast model's 250 tokens a second.
TICK_SECONDS = 0.004

# -- the model server


def script() -> list[Turn]:
    """Four calls, then the answer; each a piece a tick."""
    # Not at the top: the contenders' processes import this file too, and should not load the double.
    from callboard.actors.testing.wire_double import Call, Tokens, Turn  # noqa: PLC0415

    calls = tuple(Call("lookup", {"city": f"city number {n}", "days": n}, f"call_{n}") for n in range(CALLS))
    usage = Tokens(100, 50)
    return [
        Turn(calls=calls, fragment=ARGUMENT_CHARS, pause=TICK_SECONDS, usage=usage),
        Turn(ANSWER, fragment=len(WORDS[0]), pause=TICK_SECONDS, usage=usage),
    ]


# -- contenders: each gives an async function that runs one session

Session = Callable[[], Awaitable[str]]


async def weather(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"rain in {city} for {days} days"


async def run_callboard(url: str, drive: Callable[[Session], Awaitable[None]]) -> None:
    from callboard.actors import Runtime, Settings, tool  # noqa: PLC0415 - a contender's own imports are its own cost

    @tool(name="lookup")
    async def lookup(city: str, days: int = 1) -> str:
        """The weather of a city."""
        return await weather(city, days)

    async with Runtime(Settings(model="openai-compatible/m", base_url=url, api_key="k"), tools=[lookup]) as runtime:

        async def session() -> str:
            return (await runtime.ask("What is the weather in four cities?")).text

        await drive(session)


async def run_bare(url: str, drive: Callable[[Session], Awaitable[None]]) -> None:
    """What one writes by hand: httpx on aiohttp, a loop over lines, gather. No supervision, no deadline, no checks."""
    import httpx  # noqa: PLC0415
    from httpx_aiohttp import AiohttpTransport  # noqa: PLC0415

    # 0, not None: that would leave aiohttp's own limit of 100, behind which sessions would wait for their turn.
    transport = AiohttpTransport(limits=httpx.Limits(max_connections=0))
    definition = {
        "type": "function",
        "function": {
            "name": "lookup",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }

    async with httpx.AsyncClient(transport=transport, timeout=60) as client:

        async def turn(messages: list[Any]) -> tuple[str, list[dict[str, str]]]:
            body = {"model": "m", "messages": messages, "tools": [definition], "stream": True}
            text, calls = "", dict[int, dict[str, str]]()
            async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    for choice in json.loads(line[6:])["choices"]:
                        delta = choice["delta"]
                        text += delta.get("content") or ""
                        for part in delta.get("tool_calls", ()):
                            call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                            call["id"] += part.get("id", "")
                            call["name"] += part["function"].get("name", "")
                            call["arguments"] += part["function"]["arguments"]
            return text, list(calls.values())

        async def session() -> str:
            messages: list[Any] = [{"role": "user", "content": "What is the weather in four cities?"}]
            while True:
                text, calls = await turn(messages)
                if not calls:
                    return text
                asked = [
                    {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                    for c in calls
                ]
                messages.append({"role": "assistant", "content": text or None, "tool_calls": asked})
                results = await asyncio.gather(*(weather(**json.loads(c["arguments"])) for c in calls))
                for call, result in zip(calls, results, strict=True):
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

        await drive(session)


async def run_openai_agents(url: str, drive: Callable[[Session], Awaitable[None]]) -> None:
    import agents  # type: ignore[import-not-found]  # noqa: PLC0415 - pip install openai-agents
    from openai import AsyncOpenAI  # noqa: PLC0415

    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=url, api_key="k", max_retries=0))
    tool = agents.function_tool(weather, name_override="lookup")
    agent = agents.Agent(name="bench", model=model, tools=[tool])

    async def session() -> str:
        run = agents.Runner.run_streamed(agent, "What is the weather in four cities?")
        async for _ in run.stream_events():
            continue
        return str(run.final_output)

    await drive(session)


CONTENDERS = {"callboard": run_callboard, "bare": run_bare, "openai-agents": run_openai_agents}

# -- measuring


async def measure(contender: str, url: str, sessions: int, concurrency: int) -> dict[str, float]:
    figures: dict[str, float] = {}

    async def drive(session: Session) -> None:
        async def worker(count: int) -> None:
            for _ in range(count):
                assert await session() == ANSWER

        await asyncio.gather(*(worker(1) for _ in range(min(20, concurrency))))  # warm up
        cpu, wall = time.process_time(), time.perf_counter()
        share, rest = divmod(sessions, concurrency)
        await asyncio.gather(*(worker(share + (number < rest)) for number in range(concurrency)))
        figures["cpu_ms"] = (time.process_time() - cpu) / sessions * 1e3
        figures["per_second"] = sessions / (time.perf_counter() - wall)

    await CONTENDERS[contender](url, drive)
    figures["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return figures


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """On uvloop where it is installed, for everybody: callboard's own loop does the same."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(Path(__file__)), *arguments], stdout=subprocess.PIPE, text=True)


def run_child(contender: str, sessions: int, concurrency: int) -> dict[str, float]:
    from callboard.actors.testing.wire_double import WireDouble  # noqa: PLC0415

    with WireDouble(script(), by_turn=True) as double:
        url = double.base_url()
        run = child("--run", contender, "--url", url, "--sessions", str(sessions), "--concurrency", str(concurrency))
        output, _ = run.communicate(timeout=600)
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def compare(sessions: int, concurrencies: list[int], peer: str) -> None:
    print(f"{'':>14} {'concurrent':>10} {'CPU ms':>8} {'x bare':>7} {'per s':>7} {'RSS MB':>7}")
    for concurrency in concurrencies:
        base = 0.0
        for contender in ["bare", "callboard", *([peer] if peer != "none" else [])]:
            # A peer that needs 20 times the CPU shall not make the run take 20 times as long.
            count = sessions if contender != peer else max(sessions // 10, concurrency)
            figures = run_child(contender, max(count, concurrency), concurrency)
            base = base or figures["cpu_ms"]
            print(
                f"{contender:>14} {concurrency:>10} {figures['cpu_ms']:>8.2f} {figures['cpu_ms'] / base:>7.2f}"
                f" {figures['per_second']:>7.0f} {figures['rss_mb']:>7.0f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[100, 1000])
    installed = importlib.util.find_spec("agents") is not None
    parser.add_argument("--peer", default="openai-agents" if installed else "none", choices=["openai-agents", "none"])
    parser.add_argument("--run", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(measure(options.run, options.url, options.sessions, options.concurrency[0]))))
    else:
        compare(options.sessions, options.concurrency, options.peer)


if __name__ == "__main__":
    main()
