"""Fifteen things that people do in their first hour, each as the docs alone would have it written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.homes import with_models
from support.running_daemon import running_daemon
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Answer, Call, Turn

DEADLINE_SECONDS = 60.0
RAINS = "It rains in Oslo."
WEATHER: list[Answer] = [Turn(calls=(Call("weather", {"city": "Oslo"}),)), Turn(RAINS)]
MODEL = "openai-compatible/any"


def run(
    folder: Path, *command: str, turns: Sequence[Answer] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command in this folder, which is its home too, before a model that says `turns`."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    with shared_double(turns) as double:
        known = {"HOME": str(with_models(folder)), "CALLBOARD_MODEL": MODEL, "CALLBOARD_BASE_URL": double.base_url()}
        return subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**kept, **known, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )


def callboard(folder: Path, *arguments: str, turns: Sequence[Answer] = (), **environment: str) -> str:
    """What the command line prints."""
    ran = run(folder, "-m", "callboard.actors.cli", *arguments, turns=turns, environment=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


#: By its name: what the model says, the program, and what it prints.
PROGRAMS: dict[str, tuple[Sequence[Answer], str, str]] = {
    "a tool with bounds": (
        [Turn(calls=(Call("roll", {"dice": 9}),)), Turn(calls=(Call("roll", {"dice": 2}),)), Turn("Two sixes.")],
        """
from typing import Annotated

from pydantic import Field

from callboard import Runtime


def roll(dice: Annotated[int, Field(ge=1, le=5, description="How many.")] = 3) -> list[int]:
    "Roll dice."
    return [6] * dice


with Runtime(tools=[roll]) as runtime:
    reply = runtime.ask_sync("Roll nine dice.")
print(reply.text, [failure.code.value for failure in reply.failures])
""",
        "Two sixes. ['invalid_arguments']\n",
    ),
    "cancel a question, and ask again": (
        [Turn(RAINS)] * 2,
        """
import asyncio

from callboard import Conversation, Runtime


async def main():
    conversation = Conversation()
    async with Runtime() as runtime:
        asking = asyncio.create_task(runtime.ask("The weather?", conversation=conversation))
        await asyncio.sleep(0)
        asking.cancel()
        (ended,) = await asyncio.gather(asking, return_exceptions=True)
        reply = await runtime.ask("And now?", conversation=conversation)
        print(type(ended).__name__, runtime.open_requests(), reply.text)


asyncio.run(main())
""",
        f"CancelledError () {RAINS}\n",
    ),
    "stream to a web page": (
        WEATHER,
        """
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from callboard import Runtime, TextDelta, tool


@tool
def weather(city: str) -> str:
    "The weather."
    return "rain"


runtime = Runtime(tools=[weather])


@asynccontextmanager
async def lifespan(app):
    async with runtime:
        yield


async def chat(request):
    async def events():
        async for event in runtime.stream("What is the weather in Oslo?"):
            if isinstance(event, TextDelta):
                yield f"data: {event.text}\\n\\n"

    return StreamingResponse(events(), media_type="text/event-stream")


with TestClient(Starlette(routes=[Route("/chat", chat)], lifespan=lifespan)) as client:
    lines = [line[6:] for line in client.get("/chat").text.split("\\n\\n") if line]
    print(len(lines) > 1, "".join(lines))
""",
        f"True {RAINS}\n",
    ),
    "limit the cost": (
        [Turn(calls=(Call("search", {"words": str(number)}),)) for number in range(9)],
        """
from callboard import Catalog, ModelInfo, Prices, RequestEnded, Runtime, Settings, tool


@tool(risk="read", isolation="thread")
def search(words: str) -> str:
    return "nothing"


prices = Catalog({"openai-compatible/any": ModelInfo(32_000, Prices(input=1e-3, output=4e-3))})
with Runtime(Settings(catalog=prices, max_steps=50, cost_budget=0.2), [search]) as runtime:
    try:
        runtime.ask_sync("What is the answer?")
    except RequestEnded as ended:
        print(ended.reply.outcome.value, ended.reply.cost <= 0.2)
""",
        "cost_limit True\n",
    ),
    "approve an edit": (
        [Turn(calls=(Call("create_file", {"path": "hello.py", "content": "print('hello')\n"}),)), Turn("Proposed.")],
        """
from callboard import Runtime, Settings

with Runtime(Settings(workspace=".")) as runtime:
    print(runtime.ask_sync("Write a program that says hello.").text, *[each.state for each in runtime.proposals()])
""",
        "Proposed. pending\n",
    ),
    "an MCP server": (
        [Turn(calls=(Call("demo_add", {"a": 2, "b": 3}),)), Turn("Five.")],
        """
import sys

from callboard import McpServer, Runtime, Settings

servers = {"demo": McpServer(command=sys.executable, args=("DEMO",), tools={"add": "read"})}
with Runtime(Settings(mcp_servers=servers)) as runtime:
    reply = runtime.ask_sync("What is two and three?")
print(reply.text, [call.name for step in reply.steps for call in step.calls], reply.failures)
""".replace("DEMO", str(Path(__file__).parent / "support/mcp_demo_server.py")),
        "Five. ['demo_add'] ()\n",
    ),
    "a structured answer": (
        [Turn('{"city": "Oslo", "degrees": "warm"}'), Turn('{"city": "Oslo", "degrees": 4.5}')],
        """
from dataclasses import dataclass

from callboard import ask_sync


@dataclass
class Weather:
    city: str
    degrees: float


reply = ask_sync("The weather in Oslo?", output=Weather)
print(reply.output, reply.notes)
""",
        "Weather(city='Oslo', degrees=4.5) ...\n",
    ),
    "a sub-agent": (
        [Turn(calls=(Call("research", {"topic": "rain"}),)), Turn("Rain is water."), Turn("The expert says: water.")],
        """
import asyncio

from callboard import Runtime, tool


@tool(risk="network")
async def research(topic: str) -> str:
    "Ask an expert."
    return (await expert.ask(f"What is {topic}?", instructions="You are an expert.")).text


expert = Runtime()


async def main():
    async with expert, Runtime(tools=[research], approve=lambda question: True) as runtime:
        reply = await runtime.ask("What is rain?")
        print(reply.text, *[message.content for message in reply.messages if hasattr(message, "call_id")])


asyncio.run(main())
""",
        "The expert says: water. Rain is water.\n",
    ),
    "an address of one's own": (
        [Turn("From my server.")],
        """
import os

from callboard import Runtime, Settings

address = os.environ.pop("CALLBOARD_BASE_URL")
del os.environ["CALLBOARD_MODEL"]
with Runtime(Settings(model="openai-compatible/mine", base_url=address)) as runtime:
    reply = runtime.ask_sync("Who are you?")
print(reply.text, reply.model)
""",
        "From my server. openai-compatible/mine\n",
    ),
    "a test without a model": (
        [],
        """
from callboard import Runtime, Settings, tool
from callboard.protocol.testing import check_tool
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn


@tool(risk="read")
def half(cents: int) -> int:
    "Half of it."
    return cents // 2


def test_it():
    script = [ScriptedTurn(calls=(ScriptedCall("half", {"cents": 10}),)), ScriptedTurn("Five.")]
    with Runtime(Settings(model="scripted/model", script=script), [half]) as runtime:
        reply = runtime.ask_sync("Half of ten cents?")
    assert (reply.text, reply.failures) == ("Five.", ())


check_tool(half, examples=20)
test_it()
print("passed")
""",
        "passed\n",
    ),
    "metrics and logs": (
        WEATHER,
        """
import logging

from callboard import Runtime, RequestLogFilter, tool

handler = logging.StreamHandler()
handler.addFilter(RequestLogFilter())
handler.setFormatter(logging.Formatter("%(request_id)s %(message)s"))
logging.basicConfig(level=logging.INFO, handlers=[handler])


@tool(isolation="thread")
def weather(city: str) -> str:
    logging.getLogger("mine").info("looking up %s", city)
    return "rain"


with Runtime(tools=[weather]) as runtime:
    runtime.ask_sync("What is the weather in Oslo?", request_id="r1")
    print(*[line for line in runtime.prometheus().splitlines() if line.startswith("callboard_requests_total")])
""",
        'callboard_requests_total{outcome="answered"} 1...\n',
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str, tmp_path: Path) -> None:
    turns, text, prints = PROGRAMS[name]
    (tmp_path / "program.py").write_text(text)
    ran = run(tmp_path, "program.py", turns=turns)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    begin, _, end = prints.partition("...")
    assert (ran.stdout.startswith(begin) and ran.stdout.endswith(end)) if end else ran.stdout == prints, ran.stdout
    if name == "metrics and logs":
        assert "r1 looking up Oslo\n" in ran.stderr
    if name == "approve an edit":
        assert "hello.py" in callboard(tmp_path, "edits", "list")
        assert "applied" in callboard(tmp_path, "edits", "approve", "--all-pending")
        assert (tmp_path / "hello.py").read_text() == "print('hello')\n"


RESUMING = """
import os
import signal
from pathlib import Path

from callboard import Runtime, Settings, tool


@tool(effect="repeat", isolation="thread")
def weather(city: str) -> str:
    if not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"rain in {city}"


with Runtime(Settings(journal="journal.sqlite"), tools=[weather]) as runtime:
    if not Path("killed").exists():
        runtime.ask_sync("What is the weather in Oslo?", request_id="oslo-1")
    print(runtime.result_sync("oslo-1").text, runtime.open_requests())
"""


def test_a_request_goes_on_after_kill_9(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RESUMING)
    assert run(tmp_path, "program.py", turns=WEATHER[:1]).returncode == -signal.SIGKILL
    ran = run(tmp_path, "program.py", turns=WEATHER[1:])
    assert (ran.returncode, ran.stdout) == (0, f"{RAINS} ()\n"), ran.stderr


def test_a_daemon_behind_a_token(tmp_path: Path) -> None:
    with (
        shared_double([Turn(RAINS)]) as double,
        running_daemon(tmp_path, "--model", MODEL, environment={"CALLBOARD_BASE_URL": double.base_url()}) as daemon,
    ):
        body = {"messages": [{"role": "user", "content": "The weather?"}]}
        refused = daemon.post("/v1/chat/completions", body, headers={"Authorization": "Bearer a-wrong-one-0123456789"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        answer = daemon.post("/v1/chat/completions", body).json()
        assert (answer["choices"][0]["message"]["content"], answer["model"]) == (RAINS, MODEL)


def test_a_repository_is_indexed_and_asked_about(tmp_path: Path) -> None:
    (tmp_path / "retry.py").write_text("def is_retried(error):\n    return error.status >= 500\n")
    assert "2 symbols in 1 file" in callboard(tmp_path, "index")
    offline = {"CALLBOARD_MODEL": "", "CALLBOARD_BASE_URL": ""}
    assert "retry.py:1-2  retry.is_retried" in callboard(tmp_path, "ask", "which error is retried?", **offline)


def test_a_configuration_file_with_profiles(tmp_path: Path) -> None:
    (tmp_path / ".config/callboard").mkdir(parents=True)
    file = tmp_path / ".config/callboard/config.toml"
    file.write_text('[default]\nmodel = "openai/none"\n\n[profiles.local]\nmodel = "openai-compatible/mine"\n')
    said = callboard(tmp_path, "ask", "hello", "--profile", "local", turns=[Turn("Hello.")], CALLBOARD_MODEL="")
    assert said == "Hello.\n"
