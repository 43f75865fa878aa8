"""Deferred tools: which they are, how they are searched for, and what is offered once they were found."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from callboard.protocol import events
from callboard.protocol.commands import CallModel, Command, Finish, ReportFailure, RunTool
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    Replay,
    ServerTool,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse, ToolChoice, ToolChoiceMode
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.output import OutputMode, OutputSpec
from callboard.protocol.prompt_tokens import estimate_tokens, tools_tokens
from callboard.protocol.tool_search import MAX_FOUND, deferred_names, ranked
from callboard.protocol.tools import FailureCode, ToolDefinition

TAG = Tag(RequestId("r"), MessageId("m"))


def definition(name: str, about: str = "", *, deferred: bool = True, **arguments: str) -> ToolDefinition:
    properties = {key: {"type": "string", "description": said} for key, said in arguments.items()}
    return ToolDefinition(ToolName(name), about, {"type": "object", "properties": properties}, deferred=deferred)


#: Names and descriptions as MCP servers and the APIs' own guides have them (platform.claude.com and
#: developers.openai.com, "Tool search"): get_weather, github.createPullRequest, list_open_orders ...
TOOLS = (
    definition(
        "get_weather", "Get the weather at a specific location.", location="A city", unit="celsius or fahrenheit"
    ),
    definition("createPullRequest", "Opens a change for review on GitHub.", branch="The branch to merge"),
    definition("list_open_orders", "List open orders for a customer ID.", customer_id="Who has ordered"),
    definition("get_customer_profile", "Fetch a customer profile by customer ID.", customer_id="Who it is"),
    definition("send-mails", "Sends letters.", recipients="E-mail addresses", subject="What it is about"),
    definition("HTTPFetch2", "Liest eine Seite.", url="Größe höchstens 1 MB"),
    definition("日程", "会議の予定を探す", 日付="いつ"),
)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("weather", "get_weather"),
        ("What is the temperature in fahrenheit?", "get_weather"),  # only an argument says so
        ("pull requests", "createPullRequest"),  # the parts of a compound name, without the plural
        ("create_pull_request", "createPullRequest"),
        ("orders of a customer", "list_open_orders"),
        ("customer profile", "get_customer_profile"),
        ("mail", "send-mails"),
        ("send-mails", "send-mails"),
        ("http fetch", "HTTPFetch2"),
        ("größe", "HTTPFetch2"),
        ("予定", "日程"),
        ("repositor github", "createPullRequest"),
        ("fahren", "get_weather"),  # no tool has the word, one has what it begins
    ],
)
def test_a_search_finds_by_names_descriptions_and_arguments(query: str, first: str) -> None:
    assert ranked(query, TOOLS)[0].name == first


@pytest.mark.parametrize("query", ["", "   ", "zzz", "a", "?!", "\N{ROCKET}", "x" * 10_000])
def test_a_search_that_fits_nothing_finds_nothing(query: str) -> None:
    assert ranked(query, (definition("look", "Looks about."),)) == []


def test_equally_good_tools_stay_in_their_order_and_a_name_comes_first() -> None:
    twins = [definition(f"look{number}", "Looks about.") for number in range(9)]
    assert [tool.name for tool in ranked("looks about", twins)] == [tool.name for tool in twins]
    assert ranked("look about, with look7", twins)[0].name == "look7"


def test_what_is_deferred_by_marks_and_by_a_budget() -> None:
    tools = [definition(name, "Looks about here.", deferred=name == "b") for name in "abcd"]
    size = tools_tokens(tools[:1], estimate_tokens)

    def names(budget: int | None, *always: str) -> set[str]:
        return {*deferred_names(tools, budget, estimate_tokens, [*map(ToolName, always), None])}

    assert names(None) == {"b"}
    assert names(0) == {"a", "b", "c", "d"}
    assert names(2 * size) == {"b", "d"}, "in their order, those that fit"
    assert names(2 * size, "d") == {"b", "d"} - {"d"} | set(), "a tool that must be shown is; it counts, but moves none"
    assert names(None, "b") == set()


class Played:
    """A session, and what it asks its model next."""

    def __init__(self, tools: tuple[ToolDefinition, ...], *, history: tuple[Message, ...] = (), **options: Any) -> None:
        self.session, self.said = Session(), tuple[Command, ...]()
        offers = tuple(map(ToolOffer, tools))
        asked = UserMessage.of("go")
        self.events: list[events.Event] = []
        self.apply(events.RequestStarted(TAG, 0.0, history, asked, RequestOptions("sim/m", **options), offers))

    def apply(self, event: events.Event) -> None:
        self.events.append(event)
        self.said = self.session.apply(event)

    def answers(self, *parts: Any, reason: FinishReason = FinishReason.TOOL_CALLS) -> None:
        response = ModelResponse(parts, reason)
        self.apply(events.ModelResponded(self.session.step, 1.0, response, cost=0.0, requests=1))

    def completes(self, call_id: str, content: str = "done") -> None:
        self.apply(events.ToolCallCompleted(self.session.step.at_call(CallId(call_id)), 2.0, content))

    @property
    def request(self) -> ModelRequest:
        return next(command.request for command in reversed(self.said) if isinstance(command, CallModel))

    @property
    def offered(self) -> list[str]:
        return [tool.name for tool in self.request.tools]

    @property
    def result(self) -> dict[str, Any]:
        last = self.request.messages[-1]
        assert isinstance(last, ToolMessage)
        found: dict[str, Any] = orjson.loads(last.content)
        return found


def call(name: str, arguments: str = "{}", call_id: str = "c") -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(name), arguments)


def search(query: str, call_id: str = "s") -> ToolCall:
    return call("tool_search", orjson.dumps({"query": query}).decode(), call_id)


PLAIN = definition("clock", "Tells the time.", deferred=False)


def test_found_tools_are_offered_behind_all_others_in_the_order_found_to_the_end() -> None:
    played = Played((*TOOLS, PLAIN))
    assert played.offered == ["clock", "tool_search"]
    assert not any(tool.deferred for tool in played.request.tools)
    played.answers(search("customer profile", "s1"), search("weather", "s2"))
    read = [orjson.loads(each.content) for each in played.request.messages if isinstance(each, ToolMessage)]
    assert read[1] == {
        "ok": True,
        "tools": [{"name": "get_weather", "description": "Get the weather at a specific location."}],
        "message": "You can call these from your next turn on.",
    }
    first = played.offered
    assert first == ["clock", "tool_search", *(tool["name"] for tool in read[0]["tools"]), "get_weather"]
    played.answers(call("get_weather", '{"location":"Oslo"}'))
    assert [each.name for each in played.said if isinstance(each, RunTool)] == ["get_weather"]
    played.completes("c")
    played.answers(search("mail"))
    assert played.offered == [*first, "send-mails"], "what stood before stands as it did: a cache keeps it"


def test_the_first_tools_and_the_search_tool_are_the_same_in_each_step() -> None:
    played = Played((*TOOLS, PLAIN))
    before = played.request.tools
    played.answers(search("weather"))
    assert played.request.tools[: len(before)] == before
    assert played.request.tool_search is not None
    assert [tool.name for tool in played.request.tool_search.deferred] == [tool.name for tool in TOOLS]
    assert all(tool.deferred for tool in played.request.tool_search.deferred)


def test_a_tool_that_was_not_found_is_not_run_but_offered_then() -> None:
    played = Played((*TOOLS, PLAIN))
    played.answers(call("get_weather", '{"location":"Oslo"}'))
    (failed,) = (each.failure for each in played.said if isinstance(each, ReportFailure))
    assert (failed.code, failed.tool) == (FailureCode.UNKNOWN_TOOL, "get_weather")
    assert "was not run" in failed.message
    assert "call it if it is what you need" in failed.retry_hint
    assert played.offered[-1] == "get_weather"
    played.answers(call("get_weather", '{"location":"Oslo"}'))
    assert [each.name for each in played.said if isinstance(each, RunTool)] == ["get_weather"]


def test_what_is_found_in_a_turn_cannot_be_called_in_the_same_one() -> None:
    played = Played(TOOLS)
    played.answers(search("weather"), call("get_weather"))
    assert not [each for each in played.said if isinstance(each, RunTool)]
    assert played.result["code"] == "unknown_tool"


def test_what_the_provider_has_found_can_be_called_in_the_same_turn() -> None:
    played = Played(TOOLS)
    found = ServerTool("tool_search_tool_result", Replay("anthropic", {}), found=("get_weather", "no_tool_of_ours"))
    played.answers(found, call("get_weather"))
    assert [each.name for each in played.said if isinstance(each, RunTool)] == ["get_weather"]
    played.completes("c")
    assert played.offered == ["tool_search", "get_weather"], "another provider is shown it openly"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("{}", "invalid_arguments"),
        ('{"query":""}', "invalid_arguments"),
        ('{"query":" \\n"}', "invalid_arguments"),
        ('{"query":7}', "invalid_arguments"),
        ('{"query":["weather"]}', "invalid_arguments"),
        ('{"words":"weather"}', "invalid_arguments"),
        ('{"query":"wea', "incomplete_call"),
    ],
)
def test_a_search_that_says_nothing_is_told_what_it_needs(arguments: str, code: str) -> None:
    played = Played(TOOLS)
    asked = replace(call("tool_search", arguments), complete=not arguments.endswith("wea"))
    played.answers(asked)
    assert (played.result["code"], played.result["tool"]) == (code, "tool_search")
    if code == "invalid_arguments":
        assert played.result["field"] == "query"
        assert "a few words" in played.result["message"]


def test_a_search_without_a_result_names_what_there_is() -> None:
    played = Played(tuple(definition(f"tool_{number}", "Looks.") for number in range(60)))
    played.answers(search("zebra"))
    assert played.result["tools"] == []
    assert "tool_39 and 20 more." in played.result["message"]


def test_one_search_finds_a_few() -> None:
    played = Played(tuple(definition(f"look{number}", "Looks.") for number in range(20)))
    played.answers(search("looks"))
    assert len(played.result["tools"]) == MAX_FOUND == len(played.offered) - 1


def test_our_search_tool_gives_way_to_other_names() -> None:
    spec = OutputSpec({"type": "object"}, modes=(OutputMode.TOOL,), tool_name=ToolName("tool_search_2"))
    played = Played((*TOOLS, definition("tool_search", "Mine.", deferred=False)), output=spec)
    assert played.offered == ["tool_search", "tool_search_3", "tool_search_2"]
    assert played.request.tool_search is not None
    assert played.request.tool_search.name == "tool_search_3"


def test_a_tool_that_must_be_called_is_offered_at_once() -> None:
    played = Played(TOOLS, tool_choice=ToolChoice(ToolChoiceMode.NAMED, ToolName("get_weather")))
    assert played.offered == ["get_weather", "tool_search"]
    assert played.request.tool_choice.name == "get_weather"
    (alone,) = Played(TOOLS[:1], tool_choice=ToolChoice(ToolChoiceMode.NAMED, ToolName("get_weather"))).request.tools
    assert (alone.name, alone.deferred) == ("get_weather", False)


HISTORIES: dict[str, tuple[Message, ...]] = {
    "by our search": (
        AssistantMessage((search("weather"),)),
        ToolMessage(CallId("s"), ToolName("tool_search"), '{"ok":true,"tools":[{"name":"get_weather"}]}'),
    ),
    "by the provider's": (
        AssistantMessage((ServerTool("tool_search_output", Replay("x", {}), found=("get_weather",)), Text("So."))),
    ),
    "by a call": (
        AssistantMessage((call("get_weather"),)),
        ToolMessage(CallId("c"), ToolName("get_weather"), "sunny"),
    ),
}


@pytest.mark.parametrize("how", HISTORIES)
def test_what_an_earlier_request_has_found_is_offered(how: str) -> None:
    history = (UserMessage.of("before"), *HISTORIES[how], AssistantMessage((Text("It is sunny."),)))
    assert Played((*TOOLS, PLAIN), history=history).offered == ["clock", "tool_search", "get_weather"]


@pytest.mark.parametrize(
    "result",
    ["[cleared]", "{", "[]", "7", '{"tools":7}', '{"tools":[7]}', '{"tools":[{}]}', '{"tools":[{"name":["x"]}]}'],
)
def test_an_old_result_that_cannot_be_read_finds_nothing(result: str) -> None:
    asked = AssistantMessage((search("weather"),))
    history = (UserMessage.of("before"), asked, ToolMessage(CallId("s"), ToolName("tool_search"), result))
    played = Played(TOOLS, history=(*history, AssistantMessage((Text("So."),))))
    assert played.offered == ["tool_search"]


def test_only_what_is_offered_counts_in_the_prompt() -> None:
    all_shown = Played(tuple(replace(tool, deferred=False) for tool in TOOLS))
    deferred = Played(TOOLS * 1)
    (whole, few) = (
        next(each.prompt_tokens for each in played.said if isinstance(each, CallModel))
        for played in (all_shown, deferred)
    )
    assert few < whole
    before = few
    deferred.answers(search("weather"))
    after = next(each.prompt_tokens for each in deferred.said if isinstance(each, CallModel))
    shown = tools_tokens(deferred.request.tools[-1:], estimate_tokens)
    assert after - before > shown


def test_a_replay_leads_to_the_same_offer() -> None:
    played = Played((*TOOLS, PLAIN))
    played.answers(search("weather"))
    played.answers(call("get_weather"))
    played.completes("c")
    played.answers(Text("Sunny."), reason=FinishReason.STOP)
    assert isinstance(played.said[-1], Finish)
    again = Session()
    said = [again.apply(event) for event in played.events]
    assert next(each.request.tools for each in said[3] if isinstance(each, CallModel))[-1].name == "get_weather"
    assert said[-1] == played.said


def test_a_direct_call_needs_no_search() -> None:
    direct = DirectCall(call("get_weather"))
    offers = tuple(map(ToolOffer, TOOLS))
    said = direct.apply(events.RequestStarted(TAG, 0.0, (), UserMessage.of("x"), RequestOptions("sim/m"), offers))
    assert [each.name for each in said if isinstance(each, RunTool)] == ["get_weather"]
