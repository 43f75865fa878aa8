"""Deferred tools in a real runtime: over real HTTP, at providers that search and at those that do not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard import (
    ClientTool,
    Conversation,
    Deferred,
    McpServer,
    Runtime,
    Settings,
    ToolCallDeferred,
    UsageError,
    tool,
)
from callboard.actors.testing.wire_double import Api, Call, RawAnswer, Turn, WireDouble
from callboard.protocol.content import ToolMessage
from callboard.protocol.tools import Risk
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import ANTHROPIC_MESSAGES
from callboard.providers.local.scripted import Scripted, ScriptedCall, ScriptedTurn
from callboard.providers.transport import HttpProvider

SEARCH = Call("tool_search", {"query": "weather in a city"})
WEATHER = Call("get_weather", {"city": "Oslo"})


@tool(deferred=True, risk="read")
async def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"sunny in {city}"


@tool(deferred=True, risk="read")
async def send_mail(to: str) -> str:
    """Send a letter."""
    return f"sent to {to}"


@tool(risk="read")
async def clock() -> str:
    """Tell the time."""
    return "noon"


TOOLS = (clock, get_weather, send_mail)
APIS = {
    "openai-compatible/m": Api.CHAT,
    "openai/gpt-6.1-sol": Api.RESPONSES,
    "anthropic/claude-opus-5": Api.ANTHROPIC,
    "gemini/m": Api.GEMINI,
}


def names(body: Any) -> list[str]:
    tools = body["tools"]
    if "functionDeclarations" in tools[0]:
        return [each["name"] for each in tools[0]["functionDeclarations"]]
    return [(each.get("function") or each)["name"] for each in tools]


def settings_for(model: str, server: WireDouble, **more: Any) -> Settings:
    return Settings(
        model=model,
        base_url=server.base_url(APIS[model]),
        api_key="k",
        context_tokens=16_000,
        prompt_cache="off",
        **more,
    )


@pytest.mark.parametrize("model", APIS)
async def test_a_model_searches_finds_and_calls(model: str) -> None:
    turns = [Turn(calls=(SEARCH,)), Turn(calls=(WEATHER,)), Turn("It is sunny.")]
    with shared_double(turns) as server:
        async with Runtime(settings_for(model, server), tools=TOOLS) as runtime:
            reply = await runtime.ask("How is the weather in Oslo?")
        offered = [names(each.body) for each in server.requests()]
    assert reply.text == "It is sunny."
    assert offered == [["clock", "tool_search"], *[["clock", "tool_search", "get_weather"]] * 2]
    searched, ran = (message for message in reply.messages if isinstance(message, ToolMessage))
    assert [each["name"] for each in json.loads(searched.content)["tools"]] == ["get_weather"]
    assert (ran.content, searched.is_trusted) == ("sunny in Oslo", True)


async def test_what_was_found_is_offered_to_the_next_question_and_to_another_model() -> None:
    turns = [Turn(calls=(SEARCH,)), Turn("There is a tool."), Turn(calls=(WEATHER,)), Turn("Sunny.")]
    talk = Conversation()
    with shared_double(turns) as server:
        async with Runtime(settings_for("openai-compatible/m", server), tools=TOOLS) as runtime:
            await runtime.ask("Is there a tool for the weather?", conversation=talk)
            reply = await runtime.ask("Use it for Oslo.", conversation=talk)
        assert names(server.requests()[2].body) == ["clock", "tool_search", "get_weather"]
    assert reply.text == "Sunny."


def scripted(*turns: ScriptedTurn) -> Scripted:
    return Scripted([*turns, ScriptedTurn("Done.")])


def mine(**more: Any) -> Settings:
    return Settings(model="mine/m", context_tokens=16_000, **more)


async def offered_first(settings: Settings, **asked: Any) -> list[str]:
    provider = scripted()
    async with Runtime(settings, tools=TOOLS, providers={"mine": provider}) as runtime:
        await runtime.ask("go", **asked)
    return [each.name for each in provider.requests[0].tools]


async def test_a_budget_defers_what_does_not_fit() -> None:
    assert await offered_first(mine()) == ["clock", "tool_search"]
    assert await offered_first(mine(tools_budget_tokens=0)) == ["tool_search"]
    assert await offered_first(mine(tools_budget_tokens=10_000)) == ["clock", "tool_search"]
    assert await offered_first(mine(), tools_budget_tokens=0) == ["tool_search"]
    assert await offered_first(mine(tools_budget_tokens=0), tools_budget_tokens=10_000) == ["clock", "tool_search"]
    assert await offered_first(mine(tools_budget_tokens=0), tools=["clock"], tool_choice="clock") == ["clock"]


@pytest.mark.parametrize("wrong", [-1, 1.5, "9", True])
async def test_a_budget_that_is_none_is_refused(wrong: Any) -> None:
    async with Runtime(mine(), tools=TOOLS, providers={"mine": scripted()}) as runtime:
        with pytest.raises(UsageError, match="tools_budget_tokens"):
            await runtime.ask("go", tools_budget_tokens=wrong)


def test_marks_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="tool look: deferred='yes' is neither True nor False"):

        @tool(deferred="yes")  # type: ignore[call-overload]
        def look() -> str:
            return ""

    with pytest.raises(UsageError, match=r"tool look: .*deferred"):
        ClientTool("look", deferred="yes")  # type: ignore[arg-type]


async def test_a_tool_of_the_asker_is_found_and_handed_out() -> None:
    calls = (ScriptedCall("tool_search", {"query": "calendar"}),)
    provider = scripted(ScriptedTurn(calls=calls), ScriptedTurn(calls=(ScriptedCall("calendar", {}),)))
    asked = [ClientTool("calendar", "Read the calendar.", deferred=True)]
    async with Runtime(mine(), providers={"mine": provider}) as runtime:
        reply = await runtime.ask("What is on?", tools=asked, conversation=Conversation())
    assert [call.name for call in reply.outside_calls] == ["calendar"]


async def test_the_tools_of_an_mcp_server_are_found_and_called() -> None:
    script = str(Path(__file__).parents[1] / "support" / "mcp_demo_server.py")
    server = McpServer(command=sys.executable, args=(script,), tools={"*": Risk.READ}, deferred=True)
    provider = scripted(ScriptedTurn(calls=(ScriptedCall("tool_search", {"query": "demo"}),)))
    async with Runtime(mine(mcp_servers={"demo": server}), providers={"mine": provider}) as runtime:
        await runtime.ask("go")
    first, then = ([each.name for each in asked.tools] for asked in provider.requests)
    assert first == ["tool_search"]
    assert len(then) > 1
    assert all(name.startswith("demo_") for name in then[1:])


async def test_a_denied_tool_is_not_found() -> None:
    provider = scripted(ScriptedTurn(calls=(ScriptedCall("tool_search", {"query": "rm file"}),)))

    @tool(deferred=True, risk="execute")
    async def rm(path: str) -> str:
        """Remove a file."""
        return path

    async with Runtime(mine(mode="ask"), tools=[*TOOLS, rm], providers={"mine": provider}) as runtime:
        await runtime.ask("go")
    assert "rm" not in str(provider.requests[1].tools)


async def test_a_direct_call_needs_no_search() -> None:
    async with Runtime(mine(), tools=TOOLS, providers={"mine": scripted()}) as runtime:
        assert (await runtime.call_tool("get_weather", {"city": "Oslo"})).content == "sunny in Oslo"


@tool(deferred=True, risk="read")
async def order_report(topic: str) -> str | Deferred:
    """Order a report."""
    return Deferred(600.0, note=topic)


async def test_a_request_that_is_taken_up_again_has_found_the_same(tmp_path: Path) -> None:
    searches = ScriptedTurn(calls=(ScriptedCall("tool_search", {"query": "report"}),))
    orders = ScriptedTurn(calls=(ScriptedCall("order_report", {"topic": "snow"}, "c"),))
    settings, tools = mine(journal=tmp_path / "j.sqlite"), [*TOOLS, order_report]
    async with Runtime(settings, tools=tools, providers={"mine": Scripted([searches, orders])}) as runtime:
        request_id = await runtime.start_request("Order a report.")
        async for followed in runtime.follow(request_id):
            if isinstance(followed.item, ToolCallDeferred):
                break
    again = Scripted([ScriptedTurn("It came.")])
    async with Runtime(settings, tools=tools, providers={"mine": again}) as runtime:
        assert runtime.complete_call(request_id, 2, "c", "Snow fell.")
        reply = await runtime.result(request_id)
    assert reply.text == "It came."
    assert [each.name for each in again.requests[0].tools] == ["clock", "tool_search", "order_report"]


#: What servers say that do not know the search, at the models that search elsewhere.
REFUSALS = {
    "nano": "Tool 'tool_search' is not supported with gpt-5.4-nano.",  # Oaklight/llm-rosetta #394
    "an older API": "tools.0.custom.defer_loading: Extra inputs are not permitted",
    "an older model": "'claude-opus-5' does not support tool types: tool_search_tool_bm25_20251119",
    "a proxy": "Invalid Value: 'tools.defer_loading'. Deferred tools require tools.tool_search.",  # sub2api #5942
    "a reference": "messages.1.content.2: Tool reference 'get_weather' has no corresponding tool definition "
    "(tool_reference)",
}


@pytest.mark.parametrize("why", REFUSALS)
async def test_a_provider_that_refuses_to_search_is_asked_again_with_our_search(why: str) -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": REFUSALS[why]}}
    answers = [RawAnswer(error, 400), Turn(calls=(SEARCH,)), Turn(calls=(WEATHER,)), Turn("Sunny."), Turn("Again.")]
    with shared_double(answers) as server:
        adapter = Anthropic(base_url=server.base_url(Api.ANTHROPIC), api_key="k", dialect=ANTHROPIC_MESSAGES)
        settings = Settings(model="mine/claude-opus-5", context_tokens=16_000)
        async with Runtime(settings, tools=TOOLS, providers={"mine": HttpProvider(adapter)}) as runtime:
            reply = await runtime.ask("How is the weather?")
            await runtime.ask("And now?")
        offered = [names(each.body) for each in server.requests()]
    assert reply.text == "Sunny."
    assert offered[0] == ["clock", "get_weather", "send_mail", "tool_search_tool_bm25"]
    assert offered[1:] == [
        ["clock", "tool_search"],
        *[["clock", "tool_search", "get_weather"]] * 2,
        ["clock", "tool_search"],
    ], "and it is remembered"
    assert any("is asked again" in note for note in reply.notes)
