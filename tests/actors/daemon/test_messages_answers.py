"""Answers of the Messages API: our own adapter reads them as what they were written from."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
from hypothesis import given
from hypothesis import strategies as st
from support.answer_samples import ABOUT, pieces, reasons, told, usages
from support.client_wires import read_by

from callboard.actors.daemon.answer_pieces import Piece, TextPiece, ThinkingPiece
from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.messages_answers import MessageStream, whole_message
from callboard.protocol.content import Replay
from callboard.protocol.model import Done, Error, FinishReason, ThinkingDelta, Usage
from callboard.providers.anthropic.messages_api import Anthropic

ADAPTER = Anthropic(api_key="k")


@given(pieces(), reasons(), usages())
def test_a_stream_is_read_as_it_was_written(found: list[Piece], reason: FinishReason, usage: Usage) -> None:
    writer = MessageStream("r1", "m")
    data = b"".join((writer.begin(), *map(writer.write, found), writer.end(reason, usage, ABOUT)))
    events = read_by(ADAPTER, data, streaming=True)
    assert told(events) == told(found)
    done = events[-1]
    assert isinstance(done, Done)
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (usage.input_tokens, usage.output_tokens)


@given(pieces(), reasons(), st.none() | usages())
def test_a_whole_answer_says_what_the_stream_says(
    found: list[Piece], reason: FinishReason, usage: Usage | None
) -> None:
    document = whole_message("r1", "m", found, reason, usage, ABOUT)
    assert told(read_by(ADAPTER, orjson.dumps(document), streaming=False)) == told(found)
    assert document["callboard"] == ABOUT


#: Fields of a whole answer that are null in the API itself, and may be so for each client.
NULL_IN_THE_API = {"stop_sequence", "stop_details", "container", "usage.inference_geo"}


@given(pieces(), reasons(), st.none() | usages())
def test_nothing_is_null_that_clients_refuse_as_null(
    found: list[Piece], reason: FinishReason, usage: Usage | None
) -> None:
    """The Vercel AI SDK refused each answer with `citations: null`."""
    document = whole_message("r1", "m", found, reason, usage, {})
    assert set(nulls(document)) == NULL_IN_THE_API


def nulls(value: object, path: str = "") -> Iterator[str]:
    """The paths of what is null; not in the arguments of calls, which are the model's."""
    if value is None:
        yield path
    elif isinstance(value, dict) and not path.endswith("input"):
        for name, each in value.items():
            yield from nulls(each, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from nulls(each, path)


def test_signatures_are_read_as_they_were() -> None:
    writer = MessageStream("r1", "m")
    found = [
        ThinkingPiece("hm"),
        ThinkingPiece("", "abc"),
        ThinkingPiece("", redacted="xyz", block=1),
        TextPiece("a"),
    ]
    data = b"".join((writer.begin(), *map(writer.write, found), writer.end(FinishReason.STOP, Usage(1, 1), ABOUT)))
    replays = [each.replay for each in read_by(ADAPTER, data, streaming=True) if isinstance(each, ThinkingDelta)]
    assert replays == [None, Replay("anthropic", {"signature": "abc"}), Replay("anthropic", {"data": "xyz"})]


def test_every_block_ends_before_the_next_begins() -> None:
    writer = MessageStream("r1", "m")
    found = [TextPiece("a"), TextPiece("b", turn=1), ThinkingPiece("c", turn=1, block=1)]
    data = b"".join((writer.begin(), *map(writer.write, found), writer.end(FinishReason.STOP, None, ABOUT)))
    names = [line.removeprefix(b"event: ").decode() for line in data.split(b"\n") if line.startswith(b"event: ")]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert names == ["message_start", "ping", *block * 3, "message_delta", "message_stop"]


def test_an_error_in_a_stream_is_read_as_one() -> None:
    writer = MessageStream("r1", "m")
    data = writer.begin() + writer.fail(ApiError(529, "overloaded", "busy"))
    assert isinstance(read_by(ADAPTER, data, streaming=True)[-1], Error)
