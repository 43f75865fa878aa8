"""Each observed rule on a conversation that keeps it and on one that breaks it, made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.protocol.testing.invariants import INVARIANTS
from callboard.protocol.testing.observation import (
    CALL_SECONDS,
    HANG_SECONDS,
    AskedCall,
    AskedTurn,
    Conversation,
    Does,
    Ids,
    Played,
    Seen,
    Stream,
    What,
)
from callboard.protocol.testing.observed import NOT_OBSERVED, OBSERVED, judge

Message = Mapping[str, Any]
Events = list[Seen]
Change = Callable[[Events], Events]

LOOK = AskedCall(1, "look", "a")
AGAIN = AskedCall(2, "again", "b")
WRITE = AskedCall(3, "write", "c")
HALF = replace(AGAIN, does=Does.HALF, garbled='{"call":2,"do')
USER: Message = {"role": "user", "content": "go"}


def asks(*calls: AskedCall) -> Message:
    functions = [{"name": call.tool, "arguments": call.arguments} for call in calls]
    asked = [{"id": call.call_id, "function": function} for call, function in zip(calls, functions, strict=True)]
    return {"role": "assistant", "content": None, "tool_calls": asked}


def result(call: AskedCall, text: str = "") -> Message:
    return {"role": "tool", "tool_call_id": call.call_id, "content": text or f"did {call.number}"}


def repaired(call: AskedCall) -> AskedCall:
    """As a runtime should keep it: a half call stands in the history as {}."""
    return replace(call, garbled="{}") if call.does is Does.HALF else call


def plays(turn: AskedTurn) -> Events:
    """A conversation of one turn in which all is as it should be."""
    ran = [call for call in turn.calls if call.does not in (Does.HALF, Does.UNKNOWN, Does.DENIED)]
    late = any(call.does in (Does.HANGS, Does.BLOCKS) for call in ran)
    told = [USER, asks(*map(repaired, turn.calls))]
    told += [result(call, "" if call.does is Does.RETURNS else "it failed") for call in turn.calls]
    after = 0.3 + (CALL_SECONDS if late else 0.0)
    events = [
        Seen(0.0, What.QUESTION, 1),
        Seen(0.0, What.PING, 1),
        Seen(0.1, What.ASKED, 1, 0, str(turn.stream), (USER,)),
        Seen(0.1, What.PONG, 1, detail="done"),
        Seen(0.1, What.SERVED, 1, 0),
        *(Seen(0.2, What.STARTED, call.number, detail=call.arguments) for call in ran),
        *(Seen(after - 0.1, What.STOPPED, call.number) for call in ran),
        Seen(after, What.ASKED, 1, 1, str(Stream.WHOLE), tuple(told)),
        Seen(after, What.REPLY, 1, detail="done"),
        Seen(after + 0.1, What.QUESTION, 2),
        Seen(after + 0.2, What.ASKED, 2, 0, str(Stream.WHOLE), (*told, USER)),
        Seen(after + 0.3, What.REPLY, 2, detail="done"),
    ]
    return sorted(events, key=lambda each: each.at)


def cancelled(turn: AskedTurn) -> Events:
    """The same, and the caller gives up while its calls run, or its stream stalls."""
    told = (USER, asks(*turn.calls), *(result(call, "cancelled") for call in turn.calls), USER)
    events = [each for each in plays(turn) if each.at <= 0.2 and each.what is not What.SERVED]
    if turn.stream is Stream.STALLS:
        events = [each for each in events if each.what is not What.STARTED]
        events.append(Seen(0.31, What.LEFT, 1, 0))
        told = (USER, USER)
    return [
        *events,
        Seen(0.3, What.CANCEL),
        Seen(0.32, What.REPLY, 1, detail="cancelled"),
        Seen(0.4, What.QUESTION, 2),
        Seen(0.5, What.ASKED, 2, 0, str(Stream.WHOLE), told),
        Seen(0.6, What.REPLY, 2, detail="done"),
    ]


# What goes wrong.


def without(what: What, number: int | None = None) -> Change:
    return lambda events: [each for each in events if each.what is not what or number not in (None, each.number)]


def also(*added: Seen) -> Change:
    return lambda events: sorted([*events, *added], key=lambda each: each.at)


def later(what: What, seconds: float, number: int | None = None) -> Change:
    def change(events: Events) -> Events:
        moved = [
            replace(each, at=each.at + seconds) if each.what is what and number in (None, each.number) else each
            for each in events
        ]
        return sorted(moved, key=lambda each: each.at)

    return change


def with_history(*messages: Message) -> Change:
    """What the model is shown in its second request."""
    return lambda events: [
        replace(each, messages=messages) if each.what is What.ASKED and len(each.messages) > 1 else each
        for each in events
    ]


def no_next_request(events: Events) -> Events:
    """The run fails instead of going on."""
    left = [each for each in events if each.what is not What.ASKED or (each.number, each.step) != (1, 1)]
    return [replace(each, detail="KeyError: 1") if each.what is What.REPLY else each for each in left]


def turn_of(*calls: AskedCall, stream: Stream = Stream.WHOLE, ids: Ids = Ids.UNIQUE) -> AskedTurn:
    return AskedTurn(calls, stream=stream, ids=ids)


def one(call: AskedCall, does: Does) -> AskedTurn:
    return turn_of(replace(call, does=does))


LATE_EFFECT = also(Seen(0.2 + HANG_SECONDS, What.EFFECT, 1), Seen(0.2 + HANG_SECONDS, What.EFFECT, 2))
TWINS = turn_of(LOOK, replace(AGAIN, call_id="a"), ids=Ids.TWICE)
TWO = turn_of(LOOK, AGAIN)
HUNG, HUNG_PLAIN, BLOCKED = one(LOOK, Does.HANGS), one(AGAIN, Does.HANGS), one(LOOK, Does.BLOCKS)

#: The rule, the turn, how it is played, and what breaks the rule.
Case = tuple[str, AskedTurn, Callable[[AskedTurn], Events], Change]
CASES: list[Case] = [
    (
        "I1 terminal once: one result a call, run once",
        TWO,
        plays,
        with_history(USER, asks(LOOK, AGAIN), result(LOOK), result(LOOK), result(AGAIN)),
    ),
    ("I1 terminal once: one result a call, run once", TWO, plays, also(Seen(0.21, What.STARTED, 1, detail="{}"))),
    ("I1 terminal once: calls that return are answered", TWO, plays, no_next_request),
    ("I1 terminal once: calls that return are answered", TWO, plays, without(What.STARTED, 2)),
    (
        "I1 terminal once: calls with the same id in a turn are answered",
        TWINS,
        plays,
        with_history(USER, asks(*TWINS.calls), result(LOOK)),
    ),
    (
        "I1 terminal once: calls that repeat an earlier id are answered",
        turn_of(LOOK, ids=Ids.EARLIER),
        plays,
        no_next_request,
    ),
    (
        "I1 terminal once: a call of an unknown tool is one failed result",
        one(replace(LOOK, tool="nowhere"), Does.UNKNOWN),
        plays,
        no_next_request,
    ),
    ("I2 valid history: calls and results", TWO, plays, with_history(USER, asks(LOOK, AGAIN), USER, result(LOOK))),
    ("I2 valid history: calls and results", TWO, plays, with_history(USER, {"role": "assistant", "content": ""}, USER)),
    ("I2 valid history: the conversation can go on", TWO, plays, without(What.REPLY, 2)),
    ("I2 valid history: the conversation can go on", TWO, plays, with_history(USER, asks(LOOK, AGAIN), USER)),
    (
        "I2 valid history: arguments are JSON objects",
        turn_of(HALF),
        plays,
        with_history(USER, asks(HALF), result(HALF)),
    ),
    (
        "I3 order: results in the order of the calls",
        TWO,
        plays,
        with_history(USER, asks(LOOK, AGAIN), result(AGAIN), result(LOOK)),
    ),
    (
        "I3 order: results in the order of the calls",
        TWO,
        plays,
        with_history(USER, asks(LOOK, AGAIN), result(LOOK, "did 2"), result(AGAIN, "did 1")),
    ),
    ("I4 no early step: the model waits for the tools", TWO, plays, later(What.STOPPED, 0.5, 2)),
    ("I5 bounded: a run ends by its deadline", TWO, plays, later(What.REPLY, 10.0, 1)),
    ("I5 bounded: a run ends by its deadline", TWO, plays, also(Seen(9.0, What.OVERDUE, 1))),
    ("I5 bounded: an async tool that hangs is one failed result", HUNG, plays, later(What.ASKED, 2.0, 1)),
    ("I5 bounded: an async tool that hangs ends at its deadline", HUNG, plays, LATE_EFFECT),
    ("I5 bounded: a plain tool that hangs is one failed result", HUNG_PLAIN, plays, no_next_request),
    ("I5 bounded: a plain tool that hangs ends at its deadline", HUNG_PLAIN, plays, LATE_EFFECT),
    ("I5 bounded: an async tool that blocks is one failed result", BLOCKED, plays, later(What.ASKED, 2.0, 1)),
    ("I5 bounded: an async tool that blocks ends at its deadline", BLOCKED, plays, LATE_EFFECT),
    ("I7 cancel: ends the run and its stream", TWO, cancelled, later(What.REPLY, 2.0, 1)),
    ("I7 cancel: ends the run and its stream", TWO, cancelled, also(Seen(2.0, What.STARTED, 2, detail="{}"))),
    ("I7 cancel: ends the run and its stream", turn_of(LOOK, stream=Stream.STALLS), cancelled, without(What.LEFT)),
    ("I7 cancel: ends async tools", HUNG, cancelled, LATE_EFFECT),
    ("I7 cancel: ends plain tools", HUNG_PLAIN, cancelled, LATE_EFFECT),
    ("I7 cancel: the conversation can go on", TWO, cancelled, with_history(USER, asks(LOOK, AGAIN), USER)),
    ("I7 cancel: the conversation can go on", TWO, cancelled, without(What.REPLY, 2)),
    (
        "I10 blast radius: an async tool that raises is one failed result",
        one(LOOK, Does.RAISES),
        plays,
        no_next_request,
    ),
    (
        "I10 blast radius: a plain tool that raises is one failed result",
        one(AGAIN, Does.RAISES),
        plays,
        no_next_request,
    ),
    ("I10 blast radius: an async tool that exits is one failed result", one(LOOK, Does.EXITS), plays, no_next_request),
    ("I10 blast radius: a plain tool that exits is one failed result", one(AGAIN, Does.EXITS), plays, no_next_request),
    ("I10 blast radius: the conversation beside any other", TWO, plays, later(What.PONG, 2.0)),
    (
        "I10 blast radius: the conversation beside any other",
        TWO,
        plays,
        lambda events: [*without(What.PONG)(events), DEATH],
    ),
    (
        "I10 blast radius: the conversation beside a tool that exits",
        one(LOOK, Does.EXITS),
        plays,
        lambda events: [*without(What.PONG)(events), DEATH],
    ),
    (
        "I10 blast radius: the conversation beside a tool that exits",
        one(LOOK, Does.EXITS),
        plays,
        lambda events: [*events, DEATH],
    ),
    ("I10 blast radius: the conversation beside a tool that blocks", BLOCKED, plays, later(What.PONG, 2.0)),
    ("I12 no half calls: a half call is not run", turn_of(HALF), plays, also(Seen(0.2, What.STARTED, 2, detail="{}"))),
    (
        "I12 no half calls: a half call of an async tool is one failed result",
        turn_of(replace(HALF, tool="look")),
        plays,
        no_next_request,
    ),
    ("I12 no half calls: a half call of a plain tool is one failed result", turn_of(HALF), plays, no_next_request),
    (
        "I13 leave to run: a denied call is not run",
        one(WRITE, Does.DENIED),
        plays,
        also(Seen(0.2, What.STARTED, 3, detail=WRITE.arguments)),
    ),
    ("I13 leave to run: a denied call is one failed result", one(WRITE, Does.DENIED), plays, no_next_request),
]
DEATH = Seen(3.0, What.DIED, detail="exit status 3")
#: The one rule that needs more turns than steps; it has a test of its own.
STEPS = "I6 budgets hold: no step beyond the limit"


@pytest.mark.parametrize(
    ("rule", "turn", "play", "breaking"), CASES, ids=[f"{n} {case[0]}" for n, case in enumerate(CASES)]
)
def test_a_rule_holds_and_can_be_broken(
    rule: str, turn: AskedTurn, play: Callable[..., Events], breaking: Change
) -> None:
    events = play(turn)
    kept = judge(Played(Conversation((turn,)), tuple(events)))
    assert kept[rule] == []
    assert {name: breaches for name, breaches in kept.items() if breaches} == {}
    assert judge(Played(Conversation((turn,)), tuple(breaking(events))))[rule] != []


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in OBSERVED} == {case[0] for case in CASES} | {STEPS}


def test_steps_beyond_the_limit_are_seen_and_a_step_asked_again_is_not() -> None:
    turns = (turn_of(LOOK), turn_of(AGAIN), turn_of(WRITE))
    events = [
        Seen(0.0, What.QUESTION, 1),
        *(Seen(step / 10, What.ASKED, 1, step, str(Stream.WHOLE), (USER,)) for step in (0, 1, 1)),
    ]
    assert judge(Played(Conversation(turns, max_steps=2), tuple(events)))[STEPS] == []
    events.append(Seen(0.4, What.ASKED, 1, 2, str(Stream.WHOLE), (USER,)))
    assert judge(Played(Conversation(turns, max_steps=2), tuple(events)))[STEPS] == ["3 steps, allowed were 2"]


def test_a_rule_is_seen_or_it_is_said_why_not() -> None:
    seen = {rule.invariant for rule in OBSERVED}
    assert set(INVARIANTS) <= seen | set(NOT_OBSERVED)
    assert seen & set(NOT_OBSERVED) == set()


def test_a_turn_with_two_kinds_of_fault_blames_neither() -> None:
    turn = turn_of(replace(LOOK, does=Does.RAISES), replace(AGAIN, does=Does.EXITS))
    found = judge(Played(Conversation((turn,)), tuple(no_next_request(plays(turn)))))
    assert not any("one failed result" in rule for rule in found)


@given(
    st.lists(
        st.builds(Seen, st.floats(0, 9), st.sampled_from(What), st.integers(0, 3), st.integers(0, 2), st.just("{}"))
    )
)
def test_whatever_is_seen_is_judged(events: list[Seen]) -> None:
    played = Played(Conversation((TWO, HUNG, turn_of(HALF))), tuple(sorted(events, key=lambda each: each.at)))
    assert set(judge(played)) <= {rule.name for rule in OBSERVED}
