"""Turns whose calls were handed out: the client's short form of them, and what the runtime has."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.actors.daemon.client_question import outside_call_id
from callboard.actors.daemon.recorded_turns import (
    MAX_TURNS,
    RecordedTurn,
    RecordedTurns,
    requests_in,
    with_recorded_turns,
)
from callboard.actors.runtime import Runtime
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.testing.strategies import histories

HERE = ToolCall(CallId("u2"), ToolName("weather"), "{}")
ASKED = UserMessage.of("what is planned?")


def turn_with(calls: int) -> RecordedTurn:
    """One with so many calls for the client, and one that ran here, in the middle of them."""
    outside = tuple(ToolCall(CallId(f"o{n}"), ToolName("calendar"), f'{{"day": {n}}}') for n in range(calls))
    whole = (Thinking("hm"), Text("One moment."), *outside[:1], HERE, *outside[1:])
    result = ToolMessage(HERE.call_id, HERE.name, "rain")
    before = (AssistantMessage((HERE,)), result)
    return RecordedTurn(
        before, AssistantMessage(whole), (result,), ("a note",), tuple(call.call_id for call in outside)
    )


def told_by_client(recorded: RecordedTurn, request_id: str = "r") -> list[Message]:
    """The turn as the client has it, with its results."""
    own = [call for call in recorded.turn.tool_calls if call.call_id in recorded.outside]
    calls = [replace(call, call_id=outside_call_id(request_id, number)) for number, call in enumerate(own)]
    results = [ToolMessage(call.call_id, call.name, f"free {number}") for number, call in enumerate(calls)]
    return [AssistantMessage((Text("One moment."), *calls)), *results]


@given(histories(), st.integers(1, 4))
def test_a_recorded_turn_takes_the_place_of_the_clients(history: tuple[Message, ...], calls: int) -> None:
    recorded = turn_with(calls)
    messages = (*history, ASKED, *told_by_client(recorded))
    found = with_recorded_turns(messages, {"r": recorded})
    assert found[: len(history) + 1] == (*history, ASKED)
    before, rest = found[len(history) + 1 : len(history) + 3], found[len(history) + 3 :]
    assert before == recorded.before
    assert rest[0] == recorded.turn
    results = [each.content for each in rest if isinstance(each, ToolMessage)]
    assert results == ["free 0", "rain", *(f"free {number}" for number in range(1, calls))]
    assert rest[-1] == SystemMessage("a note")
    assert history_faults(found) == []


@given(histories())
def test_what_is_not_known_stays_as_it_is(history: tuple[Message, ...]) -> None:
    messages = (*history, ASKED, *told_by_client(turn_with(2)))
    assert with_recorded_turns(messages, {}) == messages
    assert requests_in(messages) == {"r"}


def test_a_turn_that_the_client_has_changed_counts_as_the_client_says_it() -> None:
    recorded = turn_with(2)
    turn, *results = told_by_client(recorded)
    assert isinstance(turn, AssistantMessage)
    changed = AssistantMessage(
        tuple(replace(part, arguments='{"day":9}') if isinstance(part, ToolCall) else part for part in turn.parts)
    )
    for history in ([ASKED, changed, *results], [ASKED, AssistantMessage(turn.parts[:2]), results[0]]):
        assert with_recorded_turns(history, {"r": recorded}) == tuple(history)


def test_the_latest_turns_are_kept() -> None:
    turns = RecordedTurns()
    for number in range(MAX_TURNS + 1):
        turns.keep(str(number), turn_with(1))

    async def find(request_id: str) -> RecordedTurn | None:
        return await turns.find(Runtime(), request_id)

    assert asyncio.run(find("0")) is None
    assert asyncio.run(find(str(MAX_TURNS))) is not None


@pytest.mark.parametrize("call_id", ["call_", "call_x", "call_x_", "x_1", "call_x_y"])
def test_other_ids_are_of_no_request(call_id: str) -> None:
    call = ToolCall(CallId(call_id), ToolName("f"), "{}")
    assert requests_in([AssistantMessage((call,))]) == set()
