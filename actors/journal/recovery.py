"""Going on with requests that were open when their process ended: from what the journal has of one to its session.

What a request needs besides is looked up in the runtime as it is now. Where that is missing or has changed, the request
cannot go on, and ends with an error that names it: going on without it would be another request than was asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import orjson
from msgspec import Struct

from callboard.actors.journal.journal_records import EffectWrite, Needs, RequestLog, unwritten
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.json_schema import raw_output
from callboard.actors.requests.outputs import OutputType
from callboard.actors.requests.session_messages import ReplayedSession, TakenUp
from callboard.actors.tools import Tool
from callboard.protocol.commands import Command, Finish, Note, RecordCompaction, ReportFailure
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import ToolCall
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import RuntimeFailure, said
from callboard.protocol.events import (
    CALL_FAILS,
    Event,
    ModelFailed,
    ModelStreamed,
    RequestStarted,
    ToolCallEnd,
    shifted,
)
from callboard.protocol.ids import RequestId, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.output import OutputSpec
from callboard.protocol.prompt_tokens import TokenCounter
from callboard.protocol.tools import Origin, ToolDefinition

#: A request that was taken up so often without one new event ends: what is in it may be what ends the processes. Three
#: were too few: processes that are killed from outside in quick succession, during their start, get nowhere either.
MAX_TAKINGS_UP: Final = 10


class CannotGoOn(RuntimeFailure):
    """The request cannot go on, in this runtime or in any that is like it. The message says what is in the way."""


class Available(Struct, frozen=True):
    """What a runtime has for the requests that it takes up."""

    tools: Mapping[ToolName, Tool]
    outputs: Mapping[str, OutputType[object]]
    """Types of answers, by the titles of their forms."""
    has_approver: bool


class Rebuilt(Struct, frozen=True):
    """A request as it was when its process ended, by the clock of this one."""

    taken_up: TakenUp
    conversation: Conversation
    written: int
    """How many events the journal has of it."""
    recorded: int
    """How many messages it has added to its conversation."""
    told: tuple[Event | Command, ...]
    """What its asker and the record of its end should know of, in the order in which it happened."""
    finish: Finish | None = None
    """It had ended, and only that was not written."""


# -- what a request needs


def digest(definition: ToolDefinition) -> str:
    """The same for two tools that a model sees alike."""
    seen = (definition.name, definition.description, definition.parameters, definition.strict)
    return hashlib.sha256(orjson.dumps(seen, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def check_needs(started: RequestStarted, needs: Needs, has: Available) -> OutputType[object] | None:
    """The type of its answer, where it has one. Raises CannotGoOn for what is missing or has changed."""
    for offer in started.tools:
        # What a server of others offers comes and goes, as in a request that runs: calls of it fail one by one.
        if offer.is_shown and offer.contract.origin is Origin.OWNER:
            _check_tool(offer, has.tools.get(offer.definition.name), is_own=offer.definition.name in needs.own_tools)
    if needs.has_approver and not has.has_approver:
        raise CannotGoOn("its calls may need approval, and this runtime has no approver: start it with approve=")
    if needs.headers:
        raise CannotGoOn(
            f"its question had extra_headers ({', '.join(needs.headers)}), which are not written to the journal: ask "
            "again, or put headers that all requests have into Settings(headers=...)"
        )
    spec = started.options.output
    return None if spec is None else _output_of(spec, has.outputs)


def _check_tool(offer: ToolOffer, tool: Tool | None, *, is_own: bool) -> None:
    name = offer.definition.name
    if tool is None:
        whose = "the tool {!r}, which only its question had," if is_own else "the tool {!r}"
        raise CannotGoOn(f"it needs {whose.format(str(name))} and this runtime has none: start it with tools=[...]")
    is_same = digest(tool.definition) == digest(offer.definition)  # what JSON cannot tell apart is the same
    if changed := offer.changes_to(offer.definition if is_same else tool.definition, tool.contract):
        raise CannotGoOn(f"the tool {str(name)!r} has changed since the request began: {', '.join(changed)}")


def _output_of(spec: OutputSpec, outputs: Mapping[str, OutputType[object]]) -> OutputType[object]:
    if spec.is_raw:
        return raw_output(spec)
    form = outputs.get(spec.title)
    if form is None:
        raise CannotGoOn(
            f"its answer is to be a {spec.title}, and this runtime does not know that type: start it with "
            f"Runtime(outputs=[{spec.title}])"
        )
    if _canonical(form.spec.schema) != _canonical(spec.schema):
        raise CannotGoOn(f"the type of its answer, {spec.title}, has changed since the request began")
    return form


def _canonical(schema: Mapping[str, object]) -> bytes:
    return orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)


def needs_of(
    options: RequestOptions,
    own: Mapping[ToolName, Tool],
    counter: str,
    *,
    has_approver: bool,
    direct: ToolCall | None,
) -> Needs:
    """What a question that begins now will need."""
    return Needs(
        {str(name): digest(tool.definition) for name, tool in own.items()},
        options.output.title if options.output is not None else "",
        counter,
        has_approver,
        direct,
        unwritten(options),
    )


# -- what it was


def started_of(log: RequestLog) -> RequestStarted:
    """Its first event. Raises CannotGoOn where its record is not whole, or was taken up in vain too often."""
    if log.damage:
        raise CannotGoOn(f"its record in the journal is damaged: {log.damage}")
    if not log.records or not isinstance(started := log.records[0].event, RequestStarted):
        raise CannotGoOn("its record in the journal is damaged: it does not have its first event")
    if log.takings_up > MAX_TAKINGS_UP:
        raise CannotGoOn(
            f"it was taken up {MAX_TAKINGS_UP} times and nothing came of it: each time the process ended first, "
            "perhaps over this request"
        )
    return started


def rebuilt(log: RequestLog, count_tokens: TokenCounter, now: float, wall_now: float) -> Rebuilt:
    """The request as it was, replayed. `now` is the runtime's clock, `wall_now` that of the wall.

    Raises CannotGoOn where this code does not make of its events what was made of them.
    """
    # A wall clock that was set back must not move what has happened into the future.
    ahead = now - max(wall_now, *(record.event.at for record in log.records))
    session: Session | DirectCall = (
        DirectCall(log.begins.needs.direct) if log.begins.needs.direct else Session(count_tokens=count_tokens)
    )
    told: list[Event | Command] = []
    compacted: Compacted | None = None
    finish: Finish | None = None
    started: RequestStarted | None = None
    for record in log.records:
        event = shifted(record.event, ahead)
        try:
            given = session.apply(event)
        except Exception as error:
            what = f"event {record.number} ({type(event).__name__})"
            raise CannotGoOn(f"its record cannot be replayed by this callboard: {what}: {said(error)}") from error
        if isinstance(event, RequestStarted):
            started = event
        elif isinstance(event, (ModelFailed, *CALL_FAILS)):
            told.append(event)
        for command in given:
            if isinstance(command, Note | ReportFailure):
                told.append(command)
            elif isinstance(command, RecordCompaction):
                compacted = command.compacted
            elif isinstance(command, Finish):
                finish = command
    assert started is not None
    _check_messages(session, started, log)
    outcomes = tuple(map(partial(_outcome, ahead), log.outcomes))
    own = tuple(message for _, message in log.messages)
    conversation = Conversation.of_record(
        log.begins.conversation_id,
        (*started.history, *own),
        (*log.history_ids, *(each for each, _ in log.messages)),
        compacted or started.compacted,
    )
    acted_on = sum(not isinstance(record.event, ModelStreamed) for record in log.records)
    taken_up = TakenUp(session, started, outcomes, acted_on)
    return Rebuilt(taken_up, conversation, len(log.records), len(own), tuple(told), finish)


def _outcome(ahead: float, effect: EffectWrite) -> ToolCallEnd:
    found = shifted(effect.outcome, ahead)
    assert isinstance(found, ToolCallEnd)
    return found


def _check_messages(session: ReplayedSession, started: RequestStarted, log: RequestLog) -> None:
    """What the replay records must be what was recorded: the conversation has it."""
    recorded = session.recorded
    asked = (started.user,) if started.user.parts and session.has_recorded else ()
    expected = (*asked, *recorded)
    if tuple(message for _, message in log.messages) != expected:
        raise CannotGoOn(
            f"its replay records {len(expected)} messages that are not the {len(log.messages)} of its conversation: "
            "it was written by another callboard, or the journal was changed"
        )


def in_turn(found: Sequence[RequestId], takings_up: Callable[[RequestId], int]) -> Sequence[RequestId]:
    """In which order to take them up: from the oldest to the newest, or back where that came to nothing last time.

    Where one of them ends the process, those before it have got on by then. So two or three starts are enough for all
    but that one, and it alone reaches MAX_TAKINGS_UP. Those that have not got on are at one end.
    """
    ends = (found[0], found[-1]) if found else ()
    is_forward = max(map(takings_up, ends), default=1) % 2 == 1
    return found if is_forward else tuple(reversed(found))
