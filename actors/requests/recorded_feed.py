"""The feed of a request from what the journal has of it: the same durable items in the same places as it showed live.

A turn comes in one piece for each of its parts. What is not in a journal is left out: pieces of text as they were
streamed, and the progress of tools.
"""

from __future__ import annotations

from collections.abc import Iterator

from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.requests.feed_positions import IN_TURN, SHOWN, Position
from callboard.actors.requests.replies import Shown, StreamItem
from callboard.actors.requests.request_feed import recorded_turn
from callboard.actors.requests.session_messages import ReplayedSession
from callboard.protocol.commands import CallModel, Finish
from callboard.protocol.content import AssistantMessage
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import RuntimeFailure, said
from callboard.protocol.events import ModelFailed, ModelLost, ModelResponded, ModelStreamed, shifted
from callboard.protocol.machine import Session
from callboard.protocol.model import CallPurpose, Restarted, TextDelta
from callboard.protocol.prompt_tokens import TokenCounter

Item = tuple[Position, StreamItem[object]]


def recorded_items(log: RequestLog, count_tokens: TokenCounter, ahead: float) -> Iterator[Item]:
    """All but the Reply. `ahead`: so many seconds is the runtime's clock ahead of the wall's.

    Raises RuntimeFailure where this code does not make of its events what was made of them.
    """
    if not log.records:  # its numbers are of messages, for one who reads it from its start
        yield from _of_messages(log)
        return
    direct = log.begins.needs.direct
    session: ReplayedSession = DirectCall(direct) if direct else Session(count_tokens=count_tokens)
    number = index = 0
    is_aside = False
    cut = ""
    for record in log.records:
        event = shifted(record.event, ahead)
        try:
            given = session.apply(event)
        except Exception as error:
            raise RuntimeFailure(f"event {record.number} of the request cannot be replayed: {said(error)}") from error
        if isinstance(event, ModelStreamed):
            cut = _streamed(cut, event)
        else:
            number, index = number + 1, 0
            if isinstance(event, ModelResponded | ModelLost):
                cut = ""
            if isinstance(event, ModelResponded) and not is_aside:
                yield from recorded_turn(event.response.parts, event.response, number)
            # What comes in the midst of a turn leaves its text to its end.
            elif cut and (isinstance(event, ModelFailed) or any(isinstance(each, Finish) for each in given)):
                yield Position(number, IN_TURN, 1), TextDelta(cut)
                cut = ""
        for seen in (event, *given):
            if isinstance(seen, CallModel):
                is_aside = seen.purpose is not CallPurpose.TURN
            elif isinstance(seen, Shown):
                index += 1
                yield Position(number, SHOWN, index), seen
    if cut:
        yield Position(number + 1, IN_TURN, 1), TextDelta(cut)


def _streamed(before: str, event: ModelStreamed) -> str:
    """The text of the turn that is open, once this of it has come."""
    for piece in event.events:
        if isinstance(piece, Restarted):
            before = ""
        elif isinstance(piece, TextDelta):
            before += piece.text
    return before


def _of_messages(log: RequestLog) -> Iterator[Item]:
    """Of a request whose events are no longer kept: what it has said."""
    for number, (_, message) in enumerate(log.messages, 1):
        if isinstance(message, AssistantMessage):
            yield from recorded_turn(message.parts, None, number)
