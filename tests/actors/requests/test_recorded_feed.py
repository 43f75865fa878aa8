"""The feed of a request from its journal, and the one that is shown live: each text once."""

from __future__ import annotations

import asyncio

import pytest

from callboard.actors.journal.journal_records import Beginning, Recorded, RequestLog
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.feed_positions import Position
from callboard.actors.requests.recorded_feed import recorded_items
from callboard.actors.requests.replies import Answer
from callboard.actors.requests.request_feed import RequestFeed
from callboard.protocol.commands import CallModel, NoteKind
from callboard.protocol.content import Text, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import (
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelNoted,
    ModelResponded,
    ModelStreamed,
    NoticeCame,
    RequestStarted,
)
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.limits import MAX_ANSWER_BYTES
from callboard.protocol.machine import Session
from callboard.protocol.model import CallPurpose, Error, ModelRequest, ModelResponse, TextDelta
from callboard.protocol.options import RequestOptions
from callboard.protocol.prompt_tokens import estimate_tokens

TAG = Tag(RequestId("r"), MessageId("m"))
STEP = TAG.at_step(1)
STARTED = RequestStarted(TAG, 0.0, (), UserMessage.of("?"), RequestOptions("sim/m", timeout_seconds=60.0))
RESPONDED = ModelResponded(STEP, 5.0, ModelResponse((Text("all of it"),)))


def streamed(text: str, at: float = 1.0) -> ModelStreamed:
    return ModelStreamed(STEP, at, (TextDelta(text),))


def texts_of_journal(*events: Event) -> list[str]:
    session, written = Session(), list[Event]()
    for event in events:
        written += session.to_journal(event)
        session.apply(event)
    records = tuple(Recorded(number, event) for number, event in enumerate(written, 1))
    log = RequestLog(RequestId("r"), Beginning("c", None, 0.0, "sim/m"), records)
    return [item.text for _, item in recorded_items(log, estimate_tokens, 0.0) if isinstance(item, TextDelta)]


def texts_shown(*seen: Event | CallModel) -> list[str]:
    feed = RequestFeed(Answer(Conversation(), TAG, 60.0), "0123456789ab", has_journal=True, beside=lambda _: None)
    for each in seen:
        feed(each)

    async def read() -> list[str]:
        reader = feed.reader(Position())
        assert reader is not None
        return [item.text for _, item in reader.take() or () if isinstance(item, TextDelta)]

    return asyncio.run(read())


@pytest.mark.parametrize(
    "amidst", [NoticeCame(TAG, 2.0, "look"), ModelNoted(STEP, 2.0, NoteKind.RATE_LIMIT, "it waits", 1)]
)
def test_what_comes_in_the_midst_of_a_turn_leaves_its_text_to_its_end(amidst: Event) -> None:
    assert texts_of_journal(STARTED, streamed("all "), amidst, RESPONDED) == ["all of it"]
    failed = ModelFailed(STEP, 5.0, Error(ErrorKind.SERVER, "no", retryable=False))
    assert texts_of_journal(STARTED, streamed("all "), amidst, streamed("of"), failed) == ["all of"]
    assert texts_of_journal(STARTED, streamed("all "), amidst) == ["all "]


def test_a_deadline_cuts_a_turn_and_a_timer_that_came_too_early_does_not() -> None:
    assert texts_of_journal(STARTED, streamed("all "), DeadlinePassed(TAG, 2.0), RESPONDED) == ["all of it"]
    assert texts_of_journal(STARTED, streamed("all "), DeadlinePassed(TAG, 60.0)) == ["all "]


def test_an_answer_that_is_too_long_is_shown_from_its_beginning() -> None:
    long = "x" * MAX_ANSWER_BYTES
    assert texts_of_journal(STARTED, streamed("all "), streamed(long)) == ["all " + long]


def test_a_timer_that_came_too_early_shows_no_turn_twice_and_no_summary() -> None:
    early = DeadlinePassed(TAG, 2.0)
    assert texts_shown(STARTED, streamed("all of it"), early, RESPONDED) == ["all of it"]
    summary = CallModel(STEP, ModelRequest("sim/m", (STARTED.user,)), 60.0, purpose=CallPurpose.SUMMARY)
    assert texts_shown(STARTED, summary, early, RESPONDED) == []
