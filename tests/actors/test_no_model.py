"""Where no model is named: each door of a program says how to name one, the command line alone has an answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard import Runtime, Settings, UsageError, ask_sync, stream_sync, tool
from callboard.actors.cli.model_choice import with_model
from callboard.actors.settings import OFFLINE_MODEL
from callboard.actors.testing.wire_double import Turn
from callboard.providers.local.scripted import echo

#: All that it says: each way to name one.
WAYS = (r"^no model is named: set CALLBOARD_MODEL, or give Settings\(model=\"[a-z]+/[^\"]+\"\), or model= with the "
        f'question; "{OFFLINE_MODEL}" answers from the code index alone, without a model$')  # fmt: skip


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("CALLBOARD_")]:
        monkeypatch.delenv(name)


@tool(timeout=30, risk="network")
def asks(question: str) -> str:
    """Ask a model, in the child process of this tool.

    Args:
        question: What.
    """
    return ask_sync(question).text


@tool(isolation="thread", risk="network")
def asks_here(question: str) -> str:
    """Ask a model, in this process.

    Args:
        question: What.
    """
    return ask_sync(question).text


@pytest.fixture(scope="module")
def nameless() -> Iterator[Runtime]:
    kept = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("CALLBOARD_")}
    with Runtime(tools=[asks, asks_here]) as runtime:
        yield runtime
    os.environ.update(kept)


async def streamed(runtime: Runtime, **options: Any) -> None:
    async for _ in runtime.stream("hi", **options):
        pass


#: Ways to ask a runtime.
ASKS: dict[str, Callable[..., object]] = {
    "ask": lambda runtime, **options: asyncio.run(runtime.ask("hi", **options)),
    "ask_sync": lambda runtime, **options: runtime.ask_sync("hi", **options),
    "stream": lambda runtime, **options: asyncio.run(streamed(runtime, **options)),
    "stream_sync": lambda runtime, **options: list(runtime.stream_sync("hi", **options)),
    "start_request": lambda runtime, **options: runtime.start_request_sync("hi", **options),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=list(ASKS))
def test_a_runtime_says_how_to_name_one(nameless: Runtime, ask: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match=WAYS):
        ask(nameless)
    with pytest.raises(UsageError, match=WAYS):
        ask(nameless, tools=[], timeout=3.0, output=int)
    assert nameless.open_requests() == ()
    ask(nameless, model="scripted/x")


@pytest.mark.parametrize("ask", [ask_sync, lambda prompt, **options: list(stream_sync(prompt, **options))])
def test_a_script_is_told_so_too(ask: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match=WAYS):
        ask("What is the weather in Oslo?")
    with pytest.raises(UsageError, match=WAYS):
        ask("What?", settings=Settings(fallback_models=("scripted/x",)))


def test_the_answer_of_the_code_index_is_there_by_name(nameless: Runtime) -> None:
    assert "There is no code to search" in nameless.ask_sync("hi", model=OFFLINE_MODEL).text
    assert "There is no code to search" in ask_sync("hi", settings=Settings(model=OFFLINE_MODEL)).text


def test_what_needs_no_model_is_not_asked_for_one(nameless: Runtime, tmp_path: Path) -> None:
    result = asyncio.run(nameless.call_tool("asks_here", {"question": "hi"}))
    assert result.failure is not None
    assert "UsageError: no model is named: set CALLBOARD_MODEL" in result.content
    settings = Settings(journal=tmp_path / "j.db", max_steps=2, cost_budget=1.0, parallel_tool_calls=True)
    with Runtime(settings, tools=[tool(isolation="thread")(twice)]) as runtime:
        assert asyncio.run(runtime.call_tool("twice", {"number": 2}, request_id="kept")).content == "4"
        assert [each.definition.name for each in runtime.tools()] == ["twice"]
    with Runtime(settings) as later:
        assert later.result_sync("kept").request_id == "kept"


def twice(number: int) -> int:
    """Twice a number."""
    return 2 * number


def test_a_tools_child_says_that_there_is_none(nameless: Runtime) -> None:
    result = asyncio.run(nameless.call_tool("asks", {"question": "hi"}))
    assert result.failure is not None
    assert "UsageError: no model is named: set CALLBOARD_MODEL" in result.content


def test_a_tools_child_knows_the_model_of_its_runtime() -> None:
    with shared_double([Turn("said by the double")]) as double:
        settings = Settings(model="openai-compatible/any", base_url=f"{double.url}/gate/v1")
        with Runtime(settings, tools=[asks]) as runtime:
            result = asyncio.run(runtime.call_tool("asks", {"question": "hi"}))
        assert result.content == "said by the double"
        (asked,) = double.traffic().requests
    assert (asked.path, asked.body["model"]) == ("/gate/v1/chat/completions", "any")


def test_a_script_and_a_provider_of_ones_own_stay_in_their_process() -> None:
    assert "CALLBOARD_MODEL" not in Settings(model="scripted/x", script=echo).environment_for_tools
    assert "CALLBOARD_MODEL" not in Settings(model="mine/x").environment_for_tools
    assert Settings(model="scripted/x").environment_for_tools["CALLBOARD_MODEL"] == "scripted/x"


@pytest.mark.parametrize(
    ("given", "model"),
    [({}, OFFLINE_MODEL), ({"model": "scripted/x"}, "scripted/x"), ({"model": OFFLINE_MODEL}, OFFLINE_MODEL)],
)
async def test_the_command_line_alone_has_an_answer_without_one(given: dict[str, Any], model: str) -> None:
    """`ask`, `chat`, `acp` and `doctor` make their settings so."""
    assert (await with_model(Settings(**given))).model == model
