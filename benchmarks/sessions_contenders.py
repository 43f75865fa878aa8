"""The contenders of sessions.py: the same session in each.

It runs in a contender's own environment, which has no more than it needs; so its top imports the standard library only.

    python benchmarks/sessions_contenders.py NAME URL --sessions 100 --concurrency 10

A session is one user message, one model turn with four parallel calls of a trivial async tool, and one answer in 50
pieces. Each contender is written as its own documentation would have it, with streaming on and without tracing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

#: What the server answers.
WORDS = [f"word {number} " for number in range(10, 60)]
ANSWER = "".join(WORDS)
NUMBERS = itertools.count()
#: After its deadline, a session that has not ended counts as hung.
GRACE_SECONDS = 10.0


async def weather(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"rain in {city} for {days} days"


def question() -> str:
    """One of its own for each session, so that the server sees which of its requests were sent again."""
    return f"What is the weather in four cities? ({next(NUMBERS)})"


Session = Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class Limits:
    """What a contender is told, as far as it can be told: how long a session may take, and a read without any byte."""

    deadline_seconds: float = 600.0
    idle_seconds: float = 60.0


Contender = Callable[[str, Limits], AbstractAsyncContextManager[Session]]
CONTENDERS: dict[str, Contender] = {}


def contender(name: str) -> Callable[[Callable[[str, Limits], AsyncIterator[Session]]], None]:
    """Enter it under its name."""

    def enter(run: Callable[[str, Limits], AsyncIterator[Session]]) -> None:
        CONTENDERS[name] = asynccontextmanager(run)

    return enter


# -- callboard, in several ways


def callboard_as(way: str) -> Callable[[str, Limits], AsyncIterator[Session]]:
    """The plain run; with a reader; with structured output; with spans; with a journal that survives a power cut."""

    async def run(url: str, limits: Limits) -> AsyncIterator[Session]:
        from callboard import Reply, Runtime, Settings, tool  # noqa: PLC0415 - a contender's own imports are its own cost

        lookup = tool(name="lookup")(weather)
        settings = Settings(
            model="openai-compatible/m",
            base_url=url,
            api_key="k",
            request_timeout_seconds=limits.deadline_seconds,
            stream_idle_timeout_seconds=limits.idle_seconds,
        )
        if way == "spans":
            record_spans()

        async def plain() -> str:
            return (await runtime.ask(question())).text

        async def read_along() -> str:
            async for event in runtime.stream(question()):
                if isinstance(event, Reply):
                    return event.text
            raise AssertionError("a stream ends with its Reply, or raises")

        async def structured() -> str:
            return str((await runtime.ask(question(), output=Forecast)).output["text"])

        with tempfile.TemporaryDirectory(prefix="callboard-journal-") as folder:
            if way == "journal":
                settings = settings.model_copy(update={"journal": Path(folder) / "journal.db"})
            async with Runtime(settings, tools=[lookup]) as runtime:
                yield {"streaming": read_along, "output": structured}.get(way, plain)

    return run


def record_spans() -> None:
    """With the SDK's own batch processor; the exporter throws them away."""
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: PLC0415

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            assert all(isinstance(span, ReadableSpan) for span in spans)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)


class Forecast(TypedDict):
    """What a structured answer holds."""

    text: str


for each in ("", "streaming", "output", "spans", "journal"):
    contender(f"callboard {each}".strip())(callboard_as(each))


# -- by hand


@contender("bare")
async def bare(url: str, limits: Limits) -> AsyncIterator[Session]:
    """What one writes by hand: httpx on aiohttp, a loop over lines, gather. No supervision, no retries, no checks."""
    import httpx  # noqa: PLC0415
    from httpx_aiohttp import AiohttpTransport  # noqa: PLC0415

    # 0, not None: that would leave aiohttp's own limit of 100, behind which sessions would wait for their turn.
    transport = AiohttpTransport(limits=httpx.Limits(max_connections=0))
    async with httpx.AsyncClient(transport=transport, timeout=limits.idle_seconds) as client:

        async def turn(messages: list[Any]) -> tuple[str, list[dict[str, str]]]:
            body = {"model": "m", "messages": messages, "tools": [DEFINITION], "stream": True}
            text, calls = "", dict[int, dict[str, str]]()
            async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
                response.raise_for_status()
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

        yield lambda: hand_written(turn)


async def hand_written(turn: Callable[[list[Any]], Awaitable[tuple[str, list[dict[str, str]]]]]) -> str:
    """The loop of turns and calls."""
    messages: list[Any] = [{"role": "user", "content": question()}]
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


DEFINITION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}


@contender("openai")
async def openai_loop(url: str, limits: Limits) -> AsyncIterator[Session]:
    """The loop by hand, with the openai SDK as the client; its own retries (two)."""
    from openai import AsyncOpenAI  # noqa: PLC0415

    async with AsyncOpenAI(base_url=url, api_key="k", timeout=limits.idle_seconds) as client:

        async def turn(messages: list[Any]) -> tuple[str, list[dict[str, str]]]:
            text, calls = "", dict[int, dict[str, str]]()
            tools: Any = [DEFINITION]
            stream = await client.chat.completions.create(model="m", messages=messages, tools=tools, stream=True)
            async for chunk in stream:
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    for part in choice.delta.tool_calls or ():
                        call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                        call["id"] += part.id or ""
                        if part.function is not None:
                            call["name"] += part.function.name or ""
                            call["arguments"] += part.function.arguments or ""
            return text, list(calls.values())

        yield lambda: hand_written(turn)


# -- frameworks


@contender("pydantic-ai")
async def pydantic_ai(url: str, limits: Limits) -> AsyncIterator[Session]:
    from openai import AsyncOpenAI  # noqa: PLC0415
    from pydantic_ai import Agent, Tool  # noqa: PLC0415
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    client = AsyncOpenAI(base_url=url, api_key="k", timeout=limits.idle_seconds)
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, tools=[Tool(weather, name="lookup")])

    async def session() -> str:
        async with agent.run_stream(question()) as result:
            return str(await result.get_output())

    yield session
    await client.close()


@contender("openai-agents")
async def openai_agents(url: str, limits: Limits) -> AsyncIterator[Session]:
    import agents  # noqa: PLC0415
    from openai import AsyncOpenAI  # noqa: PLC0415

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="k", timeout=limits.idle_seconds)
    tool = agents.function_tool(weather, name_override="lookup")
    agent = agents.Agent(name="bench", model=agents.OpenAIChatCompletionsModel("m", client), tools=[tool])

    async def session() -> str:
        run = agents.Runner.run_streamed(agent, question())
        async for _ in run.stream_events():
            continue
        return str(run.final_output)

    yield session
    await client.close()


@contender("langgraph")
async def langgraph(url: str, limits: Limits) -> AsyncIterator[Session]:
    from langchain.agents import create_agent  # noqa: PLC0415
    from langchain_core.tools import tool  # noqa: PLC0415
    from langchain_openai import ChatOpenAI  # noqa: PLC0415

    model: Any = ChatOpenAI(model="m", base_url=url, api_key="k", timeout=limits.idle_seconds, streaming=True)  # type: ignore[arg-type]
    agent = create_agent(model, [tool("lookup")(weather)])

    async def session() -> str:
        result = await agent.ainvoke({"messages": [("user", question())]})
        return str(result["messages"][-1].text)

    yield session


@contender("autogen")
async def autogen(url: str, limits: Limits) -> AsyncIterator[Session]:
    from autogen_agentchat.agents import AssistantAgent  # noqa: PLC0415
    from autogen_core.models import ModelInfo  # noqa: PLC0415
    from autogen_core.tools import FunctionTool  # noqa: PLC0415
    from autogen_ext.models.openai import OpenAIChatCompletionClient  # noqa: PLC0415

    info = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)
    client = OpenAIChatCompletionClient(
        model="m", base_url=url, api_key="k", model_info=info, timeout=limits.idle_seconds
    )
    tool: Any = FunctionTool(weather, description="The weather of a city.", name="lookup")

    async def session() -> str:
        agent = AssistantAgent(
            "bench", client, tools=[tool], model_client_stream=True, max_tool_iterations=5, system_message=None
        )
        result = await agent.run(task=question())
        return str(getattr(result.messages[-1], "content", ""))

    yield session
    await client.close()


@contender("agent-framework")
async def agent_framework(url: str, limits: Limits) -> AsyncIterator[Session]:
    """Microsoft's successor of autogen."""
    from agent_framework import Agent, tool  # noqa: PLC0415
    from agent_framework.openai import OpenAIChatCompletionClient  # noqa: PLC0415
    from openai import AsyncOpenAI  # noqa: PLC0415

    client = AsyncOpenAI(base_url=url, api_key="k", timeout=limits.idle_seconds)
    chat = OpenAIChatCompletionClient("m", async_client=client)
    agent: Any = Agent(chat, name="bench", tools=[tool(weather, name="lookup")])

    async def session() -> str:
        stream = agent.run(question(), stream=True)
        async for _ in stream:
            continue
        return str((await stream.get_final_response()).text)

    yield session
    await client.close()


@contender("llm")
async def llm_library(url: str, limits: Limits) -> AsyncIterator[Session]:
    from llm import Tool  # noqa: PLC0415
    from llm.default_plugins.openai_models import AsyncChat  # noqa: PLC0415

    model = AsyncChat("m", key="k", model_name="m", api_base=url, supports_tools=True)
    tool = Tool.function(weather, name="lookup")

    async def session() -> str:
        chain = model.conversation().chain(question(), tools=[tool])
        pieces = [piece async for piece in chain]
        return "".join(pieces)

    yield session


# -- measuring


async def measure(name: str, url: str, sessions: int, concurrency: int) -> dict[str, Any]:
    """All must answer right. CPU is that of this process, user and system."""
    async with CONTENDERS[name](url, Limits()) as session:

        async def worker(count: int) -> None:
            for _ in range(count):
                said = await session()
                assert said == ANSWER, f"{name} answered {said!r}"

        await asyncio.gather(*(worker(1) for _ in range(min(20, concurrency))))  # warm up
        cpu, wall = time.process_time(), time.perf_counter()
        share, rest = divmod(sessions, concurrency)
        await asyncio.gather(*(worker(share + (number < rest)) for number in range(concurrency)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_ms": cpu / sessions * 1e3, "per_second": sessions / wall, "rss_mb": rss_mb()}


async def count_ends(
    name: str, url: str, sessions: int, concurrency: int, limits: Limits, right: str = ANSWER
) -> dict[str, Any]:
    """How sessions end, one by one: right, with a wrong answer, with an error, or not within their deadline."""
    ends, errors, seconds = Counter[str](), Counter[str](), [0.0]
    hung_after = limits.deadline_seconds + GRACE_SECONDS
    async with CONTENDERS[name](url, limits) as session:

        async def one() -> str:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(hung_after):
                    end = "right" if await session() == right else "wrong"
            except Exception as error:  # noqa: BLE001 - an error of any kind is an end
                was_hung = isinstance(error, TimeoutError) and time.perf_counter() - began >= hung_after
                errors[f"{type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"] += 1
                end = "hung" if was_hung else "error"
            seconds.append(time.perf_counter() - began)
            return end

        async def worker(count: int) -> None:
            for _ in range(count):
                ends[await one()] += 1

        share, rest = divmod(sessions, concurrency)
        await asyncio.gather(*(worker(share + (number < rest)) for number in range(concurrency)))
    return {"ends": ends, "errors": dict(errors.most_common(5)), "longest_s": max(seconds), "rss_mb": rss_mb()}


def rss_mb() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_on_uvloop(main: Any) -> Any:
    """Where it is installed, for each contender: callboard's own loop does the same."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=list(CONTENDERS))
    parser.add_argument("url")
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--ends", action="store_true", help="count how sessions end, instead of measuring")
    parser.add_argument("--deadline", type=float, default=Limits.deadline_seconds)
    parser.add_argument("--idle", type=float, default=Limits.idle_seconds)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asked = (options.name, options.url, options.sessions, options.concurrency)
    if options.ends:
        figures = run_on_uvloop(count_ends(*asked, Limits(options.deadline, options.idle)))
    else:
        figures = run_on_uvloop(measure(*asked))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
