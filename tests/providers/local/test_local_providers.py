"""Providers without a network: offline and scripted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from callboard.protocol.code_fences import render_fence
from callboard.protocol.content import AssistantMessage, Message, Text, Thinking, ToolMessage, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import (
    Done,
    Error,
    FinishReason,
    ModelRequest,
    ModelResponse,
    StreamEvent,
    ToolChoice,
    ToolChoiceMode,
    Usage,
)
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Provider
from callboard.providers.http_errors import make_error
from callboard.providers.local.offline import CONTEXT_TOOL, MAX_LINES, TOKEN_BUDGET, Offline
from callboard.providers.local.scripted import MAX_REQUESTS, Scripted, ScriptedCall, ScriptedTurn, TimedBatch
from callboard.providers.response_builder import build_response

QUESTION = UserMessage.of("Where is retry?")
TOOL = ToolDefinition(CONTEXT_TOOL, "Finds code.")


def ask(provider: Provider, *messages: Message, **fields: Any) -> ModelResponse:
    async def run() -> list[list[StreamEvent]]:
        batches = [batch async for batch in provider.stream(ModelRequest("m", messages, **fields))]
        await provider.aclose()
        return batches

    batches = asyncio.run(run())
    events = [event for batch in batches for event in batch]
    assert all(batches)
    assert [event for event in events if isinstance(event, Done | Error)] == events[-1:]
    return build_response(events)


def after(content: Any, is_error: bool = False) -> str:
    """What offline says when the search has answered `content`."""
    turn = ask(Offline(), QUESTION, tools=(TOOL,)).message
    text = content if isinstance(content, str) else json.dumps(content)
    result = ToolMessage(turn.tool_calls[0].call_id, CONTEXT_TOOL, text, is_error)
    response = ask(Offline("/work"), QUESTION, turn, result, tools=(TOOL,))
    assert (response.finish_reason, response.tool_calls) == (FinishReason.STOP, ())
    assert response.text.count("No model was asked") == 1
    assert "--model provider/model" in response.text
    return response.text


def found(file: str, code: str, lines: str = "12-48", words: tuple[str, ...] = ("retry", "wait")) -> dict[str, Any]:
    snippet = render_fence(file, 0, len(code.encode()), code)
    return {"lines": lines, "symbols": ["pkg.Client.retry"], "words": list(words), "snippet": snippet}


def test_offline_asks_for_context_with_the_question() -> None:
    response = ask(Offline(), UserMessage.of("old"), AssistantMessage((Text("x"),)), QUESTION, tools=(TOOL,))
    [call] = response.tool_calls
    assert response.finish_reason is FinishReason.TOOL_CALLS
    assert (call.name, json.loads(call.arguments)) == (
        CONTEXT_TOOL,
        {"queries": [QUESTION.text], "token_budget": TOKEN_BUDGET},
    )


def test_offline_shows_the_best_place_whole_and_the_others_in_a_line() -> None:
    long = "\n".join(f"line {n}" for n in range(200))
    places = [found("/work/pkg/mod.py", "def retry():\n\treturn 1"), found("/elsewhere/x.py", long, "1-30", ())]
    text = after({"ok": True, "queries": ["retry"], "fit": "good", "context": places * 4})
    assert text.startswith("'retry' is most likely answered here:\n")
    assert "pkg/mod.py:12-48  pkg.Client.retry  (retry, wait)\n    def retry():\n        return 1\n" in text
    assert text.count("/elsewhere/x.py:1-30  pkg.Client.retry  (by its meaning)\n") == 2
    assert "line 0" not in text
    assert "<code=" not in text
    long_first = after({"ok": True, "queries": ["retry"], "fit": "unsure", "context": places[1:]})
    assert f"line {MAX_LINES - 1}\n    ... {200 - MAX_LINES} more lines" in long_first
    assert long_first.startswith("It is not certain that this answers 'retry'")


def test_offline_quotes_prose() -> None:
    places = [found("/work/README.md", "# Retries\n\nSet `retries`.", "1-3")]
    text = after({"ok": True, "queries": ["how do I retry?"], "fit": "good", "context": places})
    assert "> # Retries\n>\n> Set `retries`.\n" in text


def test_offline_says_that_nothing_fits_and_shows_no_code_for_it() -> None:
    places = [found("/work/pkg/mod.py", "def retry():\n\treturn 1")]
    text = after({"ok": True, "queries": ["bake a cake"], "fit": "nothing", "context": places})
    assert text.startswith("Nothing in this workspace seems to fit 'bake a cake'.")
    assert "pkg/mod.py:12-48" in text
    assert "def retry" not in text


@pytest.mark.parametrize(
    ("content", "is_error", "says"),
    [
        ({"ok": True, "queries": ["zzz"], "context": []}, False, "Nothing was found for 'zzz'"),
        ({"ok": False, "code": "timed_out", "message": "It took 30 s."}, True, "failed: It took 30 s."),
        ({"ok": False, "code": "crashed"}, True, "failed: crashed."),
        ({"ok": False}, False, "did not say why"),
        ("half {", False, "cannot be read"),
        ("[]", False, "cannot be read"),
        ({"ok": True, "queries": ["q"], "context": ["odd", {}]}, False, "Nothing was found for 'q'"),
    ],
)
def test_offline_is_honest_about_what_it_did_not_find(content: Any, is_error: bool, says: str) -> None:
    assert says in after(content, is_error)


def test_offline_without_a_workspace_says_so() -> None:
    assert "no workspace" in ask(Offline(), QUESTION).text
    never = ask(Offline(), QUESTION, tools=(TOOL,), tool_choice=ToolChoice(ToolChoiceMode.NONE))
    assert "no workspace" in never.text


def test_a_script_of_turns() -> None:
    provider = Scripted(
        [
            ScriptedTurn(calls=(ScriptedCall("f", {"x": 1}), ScriptedCall("g", '{"cut', id="own")), thinking="hm"),
            ScriptedTurn("Done.", usage=Usage(3, 4)),
            "plain",
        ]
    )
    first = ask(provider, QUESTION)
    assert first.parts[0] == Thinking("hm")
    assert [(c.call_id, c.name, c.arguments, c.complete) for c in first.tool_calls] == [
        ("call_0", "f", '{"x":1}', True),
        ("own", "g", '{"cut', False),
    ]
    second = ask(provider, QUESTION)
    assert (second.text, second.usage, second.finish_reason) == ("Done.", Usage(3, 4), FinishReason.STOP)
    assert ask(provider, QUESTION).text == "plain"
    beyond = ask(provider, QUESTION).error
    assert beyond is not None
    assert "no turn for request 4" in beyond.message
    assert len(provider.requests) == 4


def test_a_script_may_be_a_function_and_the_default_is_an_echo() -> None:
    counting = Scripted(lambda request: f"{len(request.messages)} messages")
    assert ask(counting, QUESTION).text == "1 messages"
    assert ask(Scripted(), QUESTION).text == QUESTION.text


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (ScriptedTurn("a", error=make_error(ErrorKind.OVERLOADED, "busy")), ErrorKind.OVERLOADED),
        (ScriptedTurn("a", cut=True), ErrorKind.TRUNCATED),
        (ScriptedTurn("a", stall=True), ErrorKind.TIMEOUT),
    ],
)
def test_scripted_turns_that_end_badly(turn: ScriptedTurn, kind: ErrorKind) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    response = ask(Scripted([turn], sleep=sleep, idle_timeout_seconds=9), QUESTION)
    assert response.error is not None
    assert (response.error.kind, response.text) == (kind, "a")
    assert slept == ([9] if turn.stall else [])


def test_a_call_cut_by_the_length_limit_stays_incomplete() -> None:
    calls = (ScriptedCall("f"), ScriptedCall("f"))
    response = ask(Scripted([ScriptedTurn(calls=calls, finish_reason=FinishReason.LENGTH)]), QUESTION)
    assert [call.complete for call in response.tool_calls] == [True, False]


def test_a_turn_is_plain_data_with_its_times() -> None:
    turn = ScriptedTurn(
        "abc",
        (ScriptedCall("f", "{}"), ScriptedCall("g", "{}")),
        chunk_chars=1,
        first_delay_seconds=2,
        delay_seconds=0.5,
    )
    batches = turn.batches()
    assert [batch.delay_seconds for batch in batches] == [2] + [0.5] * (len(batches) - 1)
    assert len(batches) == 3 + 2 + 4 + 1
    assert all(isinstance(batch, TimedBatch) and batch.events for batch in batches)
    events = [event for batch in batches for event in batch.events]
    assert build_response(events).text == "abc"
    whole = ScriptedTurn("abc", turn.calls, first_delay_seconds=2, delay_seconds=0.5).batches()
    assert [batch.delay_seconds for batch in whole] == [2]
    assert build_response(whole[0].events) == build_response(events)
    assert Scripted([turn]).turn_for(ModelRequest("m", (QUESTION,))) is turn


def test_a_scripted_stream_sleeps_on_the_clock_it_was_given() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    ask(Scripted([ScriptedTurn("ab", chunk_chars=1, first_delay_seconds=3, delay_seconds=1)], sleep=sleep), QUESTION)
    assert slept == [3, 1, 1]


def test_a_script_that_goes_on_for_months_keeps_its_newest_requests() -> None:
    said = Scripted(["once"])
    for number in range(MAX_REQUESTS + 5):
        last = said.turn_for(ModelRequest(str(number), (QUESTION,)))
    assert [said.requests[0].model, said.requests[-1].model] == ["5", str(MAX_REQUESTS + 4)]
    assert len(said.requests) == MAX_REQUESTS
    assert last.error is not None
    assert f"request {MAX_REQUESTS + 5};" in last.error.message
