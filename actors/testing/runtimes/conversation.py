"""A scenario of the kit, reduced to what any runtime can be asked to do over Chat Completions."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from callboard.protocol.content import is_json_object
from callboard.protocol.testing import generator
from callboard.protocol.testing.observation import AskedCall, AskedTurn, Conversation, Does, Ids, Stream
from callboard.protocol.testing.scenario import (
    STANDARD_TOOLS,
    ModelDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    ToolDoes,
)
from callboard.protocol.tools import Decision, Effect

#: Enough for every case, and short enough that a conversation takes about a second.
MAX_TURNS: Final = 3
MAX_CALLS: Final = 4
#: A second of a scenario becomes so many real ones.
SCALE: Final = 0.02
MAX_WORK_SECONDS: Final = 0.1
#: Early enough to come while something runs.
MAX_CANCEL_SECONDS: Final = 0.3
#: The deadlines of a run: one that is never reached, and one that two hanging calls reach.
LONG_RUN_SECONDS: Final = 8.0
SHORT_RUN_SECONDS: Final = 1.8
#: Scenarios with a deadline below this, in their own seconds, get the short one.
_SHORT_BELOW: Final = 60.0
MAX_STEPS: Final = 10
#: What the conversation beside it needs.
MIN_STEPS: Final = 2

_DOES: Final = {
    ToolDoes.FAIL: Does.RAISES,
    ToolDoes.STOPPED: Does.RAISES,
    ToolDoes.CRASH: Does.EXITS,
    ToolDoes.HANG: Does.HANGS,
    ToolDoes.VANISH: Does.BLOCKS,
}
_STREAMS: Final = {
    ModelDoes.CUT: Stream.CUT,
    ModelDoes.BREAK: Stream.CUT,
    ModelDoes.STALL: Stream.STALLS,
    ModelDoes.VANISH: Stream.STALLS,
    ModelDoes.LOST: Stream.STALLS,
}
#: Which fault a turn keeps: the first of these that it has. The last two are so frequent that they would hide the rest.
_RANK: Final = (
    Does.RAISES,
    Does.EXITS,
    Does.BLOCKS,
    Does.HANGS,
    Does.HALF,
    Does.DENIED,
    Does.UNKNOWN,
    Does.RETURNS,
)


def conversation(seed: int) -> Conversation:
    """The conversation of this seed."""
    return reduced(generator.scenario(seed))


def reduced(scenario: Scenario) -> Conversation:
    """What of a scenario can be asked of any runtime.

    Left out are restarts, events of others, doubled answers, budgets of tokens and money: they cannot be played from
    outside. A late answer is a call that hangs. A turn keeps one kind of fault, so that a breach has one cause.
    """
    offers = (*STANDARD_TOOLS, *scenario.tools)
    kinds = {offer.definition.name: _kind(offer.decision, offer.contract.effect is Effect.REPEAT) for offer in offers}
    turns: list[AskedTurn] = []
    number = 0
    for planned in [turn for turn in scenario.turns if turn.calls][:MAX_TURNS]:
        calls = []
        for call in planned.calls[:MAX_CALLS]:
            number += 1
            calls.append(_call(call, kinds.get(call.tool, ("nowhere", Does.UNKNOWN)), number))
        turns.append(_turn(planned, calls, turns[-1] if turns else None))
    cancel = scenario.cancel_at
    return Conversation(
        tuple(turns),
        SHORT_RUN_SECONDS if scenario.options.timeout_seconds < _SHORT_BELOW else LONG_RUN_SECONDS,
        min(max(scenario.options.max_steps, MIN_STEPS), MAX_STEPS),
        None if cancel is None else min(cancel * SCALE, MAX_CANCEL_SECONDS),
    )


def _kind(decision: Decision, may_repeat: bool) -> tuple[str, Does]:
    if decision is not Decision.ALLOW:
        return "write", Does.DENIED if decision is Decision.DENY else Does.RETURNS
    return "again" if may_repeat else "look", Does.RETURNS


def _call(planned: PlannedCall, kind: tuple[str, Does], number: int) -> AskedCall:
    tool, does = kind
    seconds = min(planned.seconds * SCALE, MAX_WORK_SECONDS)
    call = AskedCall(number, tool, f"call_{number}", does, seconds)
    if does is not Does.RETURNS:
        return call
    if not is_json_object(planned.arguments) and tool != "write":
        cut_off = planned.arguments.startswith("{")
        garbled = call.arguments[: len(call.arguments) // 2] if cut_off else planned.arguments
        return replace(call, does=Does.HALF, garbled=garbled)
    if tool == "write":
        return replace(call, does=Does.RETURNS if planned.person is PersonDoes.GRANT else Does.DENIED)
    does = Does.HANGS if planned.late else _DOES.get(planned.does, Does.RETURNS)
    return replace(call, does=Does.HANGS if does is Does.BLOCKS and tool == "again" else does)


def _turn(planned: PlannedTurn, calls: list[AskedCall], before: AskedTurn | None) -> AskedTurn:
    worst = min(calls, key=lambda call: _RANK.index(call.does), default=None)
    kept = tuple(
        call
        if worst is None or call.does is Does.RETURNS or (call.tool, call.does) == (worst.tool, worst.does)
        else _harmless(call)
        for call in calls
    )
    turn = AskedTurn(kept, planned.text, _STREAMS.get(planned.does, Stream.WHOLE))
    return turn if turn.faults else _with_ids(turn, planned, before)


def _with_ids(turn: AskedTurn, planned: PlannedTurn, before: AskedTurn | None) -> AskedTurn:
    """Repeat an id where the scenario repeats one; elsewhere each call has its own."""
    wished = [call.call_id for call in planned.calls[:MAX_CALLS]]
    if len(set(wished)) < len(wished):
        twins = (turn.calls[0], replace(turn.calls[1], call_id=turn.calls[0].call_id))
        return replace(turn, calls=twins + turn.calls[2:], ids=Ids.TWICE)
    if before is not None and before.calls and wished and wished[0] < "c":
        first = replace(turn.calls[0], call_id=before.calls[0].call_id)
        return replace(turn, calls=(first, *turn.calls[1:]), ids=Ids.EARLIER)
    return turn


def _harmless(call: AskedCall) -> AskedCall:
    tool = "look" if call.tool == "nowhere" else call.tool
    return replace(call, tool=tool, does=Does.RETURNS, garbled=None)
