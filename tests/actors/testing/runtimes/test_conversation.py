"""Scenarios reduced to conversations: always playable, one kind of fault a turn, and every case comes up."""

from __future__ import annotations

from collections import Counter

from callboard.actors.testing.runtimes.conversation import (
    LONG_RUN_SECONDS,
    MAX_CALLS,
    MAX_CANCEL_SECONDS,
    MAX_TURNS,
    MIN_STEPS,
    SHORT_RUN_SECONDS,
    conversation,
    reduced,
)
from callboard.protocol.content import is_json_object
from callboard.protocol.ids import ToolName
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.observation import Does, Ids, Stream
from callboard.protocol.testing.scenario import (
    STANDARD_TOOLS,
    ModelDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    ToolDoes,
)

SEEDS = range(300)


def test_a_conversation_can_be_played() -> None:
    for planned in map(conversation, SEEDS):
        calls = [call for turn in planned.turns for call in turn.calls]
        assert [call.number for call in calls] == list(range(1, len(calls) + 1))
        assert len(planned.turns) <= MAX_TURNS
        assert all(len(turn.calls) <= MAX_CALLS for turn in planned.turns)
        assert planned.max_steps >= MIN_STEPS
        assert planned.run_seconds in (SHORT_RUN_SECONDS, LONG_RUN_SECONDS)
        assert planned.cancel_after_seconds is None or 0 < planned.cancel_after_seconds <= MAX_CANCEL_SECONDS
        assert all(is_json_object(call.arguments) is not (call.does is Does.HALF) for call in calls)


def test_a_turn_has_one_kind_of_fault_and_repeats_ids_only_without_one() -> None:
    for turn in (turn for seed in SEEDS for turn in conversation(seed).turns):
        assert len(turn.faults) <= 1
        ids = [call.call_id for call in turn.calls]
        assert (len(set(ids)) < len(ids)) is (turn.ids is Ids.TWICE)
        assert turn.ids is Ids.UNIQUE or not turn.faults


def test_the_same_seed_gives_the_same_conversation() -> None:
    assert [conversation(seed) for seed in SEEDS] == [conversation(seed) for seed in SEEDS]


def test_every_case_comes_up() -> None:
    turns = [turn for seed in SEEDS for turn in conversation(seed).turns]
    does = Counter(call.does for turn in turns for call in turn.calls)
    assert set(does) == set(Does)
    assert {turn.ids for turn in turns} == set(Ids)
    assert {turn.stream for turn in turns} == set(Stream)


def test_what_a_planned_call_becomes() -> None:
    look, again, write, never = (offer.definition.name for offer in STANDARD_TOOLS[:4])
    wanted = [
        (PlannedCall(look, does=ToolDoes.FAIL), "look", Does.RAISES),
        (PlannedCall(look, does=ToolDoes.CRASH), "look", Does.EXITS),
        (PlannedCall(look, does=ToolDoes.HANG), "look", Does.HANGS),
        (PlannedCall(look, does=ToolDoes.VANISH), "look", Does.BLOCKS),
        (PlannedCall(look, does=ToolDoes.STOPPED), "look", Does.RAISES),
        (PlannedCall(again, does=ToolDoes.VANISH), "again", Does.HANGS),
        (PlannedCall(again, arguments='{"x":'), "again", Does.HALF),
        (PlannedCall(look, arguments="[1]"), "look", Does.HALF),
        (PlannedCall(write), "write", Does.RETURNS),
        (PlannedCall(write, person=PersonDoes.DENY), "write", Does.DENIED),
        (PlannedCall(write, person=PersonDoes.IGNORE), "write", Does.DENIED),
        (PlannedCall(never), "write", Does.DENIED),
        (PlannedCall(ToolName("elsewhere")), "nowhere", Does.UNKNOWN),
    ]
    for planned, tool, does in wanted:
        scenario = Scenario((PlannedTurn(calls=(planned,)),), tools=STANDARD_TOOLS)
        (call,) = reduced(scenario).turns[0].calls
        assert (call.tool, call.does) == (tool, does), planned


def test_streams_deadlines_steps_and_cancels_are_kept() -> None:
    calls = (PlannedCall(STANDARD_TOOLS[0].definition.name),)
    fates = (ModelDoes.CUT, ModelDoes.STALL, ModelDoes.ANSWER)
    turns = (PlannedTurn("no calls"), *(PlannedTurn(calls=calls, does=does) for does in fates))
    options = RequestOptions("sim/model", timeout_seconds=20.0, max_steps=3)
    planned = reduced(Scenario(turns, options=options, tools=STANDARD_TOOLS, cancel_at=2.0))
    assert [turn.stream for turn in planned.turns] == [Stream.CUT, Stream.STALLS, Stream.WHOLE]
    assert (planned.run_seconds, planned.max_steps, planned.cancel_after_seconds) == (SHORT_RUN_SECONDS, 3, 0.04)
