"""The rule about tools of the one who asks: their calls are handed out together, and end the request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import orjson

from callboard.protocol.commands import AskApproval, CallOutside, Finish, OpenTurn, Outcome, RunTool
from callboard.protocol.content import AssistantMessage, ToolMessage, is_json_object
from callboard.protocol.events import CancelRequested, DeadlinePassed, Event, ToolsLost
from callboard.protocol.states import CallState
from callboard.protocol.testing.expected import ExpectedTurn, expected_turns
from callboard.protocol.testing.story import Reaction, Story
from callboard.protocol.tools import FailureCode

_AT_THE_END: Final = frozenset({CallOutside, Finish})


def handed_out(story: Story) -> Iterator[str]:
    """I31: calls of the asker's tools are not run here; they end the request, handed out once, after all others.

    All of a step together, in the turn's order, under their own ids. The open turn has the turn and the results of its
    other calls, and is not recorded; the question is. Where the request ends in another way, each is a failed result.
    """
    for command in (*story.given(RunTool), *story.given(AskApproval)):
        offer = story.offers.get(command.name)
        if offer is not None and offer.contract.is_outside:
            yield f"call {command.tag} of the asker's tool {command.name} was begun here"
    for reaction in story.reactions:
        if reaction.event is None:
            continue
        if _AT_THE_END.isdisjoint(reaction.by_kind):
            continue
        finishes, work = reaction.given(Finish), reaction.left
        outcome = finishes[0].outcome if finishes else None
        if reaction.given(CallOutside) and outcome is not Outcome.CALLS_OUTSIDE:
            yield f"calls were handed out, and the request ended as {outcome}, or went on"
        if outcome is Outcome.CALLS_OUTSIDE and work.calls:
            yield f"calls were handed out while {len(work.calls)} others are open"
        if finishes:
            yield from _wrong_end(story, reaction, finishes[0])


def _wrong_end(story: Story, reaction: Reaction, finish: Finish) -> Iterator[str]:
    opened, turns = finish.open_turn, expected_turns(story)
    if (opened is not None) is not (finish.outcome is Outcome.CALLS_OUTSIDE):
        yield f"it ended as {finish.outcome}, {'without' if opened is None else 'with'} an open turn"
    elif opened is not None and (not turns or not turns[-1].outside):
        yield "calls were handed out, and its last turn has none for the asker"
    elif opened is not None:
        yield from _wrong_hand_out(story, turns[-1], reaction.given(CallOutside), opened)
    elif turns and turns[-1].outside:
        yield from _wrong_results(turns[-1], reaction.event)


def _wrong_hand_out(story: Story, turn: ExpectedTurn, given: Sequence[CallOutside], opened: OpenTurn) -> Iterator[str]:
    tag = turn.model.command.tag
    told = [(command.call.name, command.call.arguments) for command in given]
    expected = [(one.call.name, one.call.arguments) for one in turn.outside]
    if told != expected:
        yield f"step {tag.step} handed out {told}, the turn asks for {expected}"
    ids = [command.call.call_id for command in given]
    if [command.tag for command in given] != [tag._replace(call_id=call_id) for call_id in ids]:
        yield f"step {tag.step} handed calls out under other tags than theirs"
    if [command.call for command in given] != [call for call in opened.message.tool_calls if call.call_id in ids]:
        yield f"step {tag.step} handed out other calls than those of its open turn"
    if not all(is_json_object(call.arguments) for call in opened.message.tool_calls):
        yield f"step {tag.step}: its open turn has arguments that are no JSON object"
    names = {call.call_id: call.name for call in opened.message.tool_calls}
    if wrong := [result.call_id for result in opened.results if result.name != names.get(result.call_id)]:
        yield f"step {tag.step}: its open turn has results of {wrong} under other names than their calls'"
    if [call.call_id for call in opened.outside] != ids:
        yield f"step {tag.step} handed out {ids}, its open turn waits for {[call.call_id for call in opened.outside]}"
    ended = [call.call_id for call in opened.message.tool_calls if call.call_id not in ids]
    if (results := [result.call_id for result in opened.results]) != ended:
        yield f"step {tag.step}: its open turn has the results of {results}, ended have {ended}"
    if not story.records:
        yield "calls were handed out, and the question is not recorded"
    for record in story.records:
        if record.tag == tag and any(isinstance(each, AssistantMessage | ToolMessage) for each in record.messages):
            yield f"step {tag.step} is recorded, and waits for results"


def _wrong_results(turn: ExpectedTurn, event: Event | None) -> Iterator[str]:
    """The request was cancelled, or its time is over; or the turn held the answer, and no one is asked."""
    results = [message for message in turn.model.recorded if isinstance(message, ToolMessage)]
    if len(results) != len(turn.calls):
        return  # I2 says so
    code = (
        FailureCode.TIMED_OUT if _ends_request(event) and isinstance(event, DeadlinePassed) else FailureCode.CANCELLED
    )
    for call, result in zip(turn.calls, results, strict=True):
        if call in turn.outside and (not result.is_error or orjson.loads(result.content).get("code") != code):
            yield f"call {result.call_id} was not handed out, its result should say {code}: {result.content!r}"


def _ends_request(event: Event | None) -> bool:
    """Whether it ends all that is open, and not one step's call alone."""
    return isinstance(event, CancelRequested | DeadlinePassed) and not event.tag.step


# What was reached, for `reach`.

_ENDS: Final[Mapping[type, CallState]] = {CancelRequested: CallState.CANCELLED, DeadlinePassed: CallState.TIMED_OUT}


def rows_outside(story: Story) -> Iterator[tuple[str, str, str]]:
    """State, event and next state of each call that is the asker's, from the turn that asks for it to its end."""
    turns = expected_turns(story)
    if not turns or not turns[-1].outside or turns[-1].model.end is None:
        return
    outside, count = str(CallState.OUTSIDE), len(turns[-1].outside)
    yield from [(str(CallState.REQUESTED), "ModelResponded", outside)] * count
    begun = story.reactions.index(turns[-1].model.end)
    for reaction in story.reactions[begun:]:
        event, after = reaction.event, None
        if reaction.given(CallOutside):
            after = CallState.HANDED_OUT
        elif isinstance(event, ToolsLost):
            after = CallState.OUTSIDE
        elif _ends_request(event) and reaction.given(Finish):
            after = _ENDS[type(event)]
        if after is not None:
            yield from [(outside, type(event).__name__, str(after))] * count
