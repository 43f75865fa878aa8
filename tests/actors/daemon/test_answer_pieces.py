"""From events of a request to what a client sees of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.daemon.answer_pieces import AnswerStream, CallPiece, TextPiece, ThinkingPiece, pieces_of
from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.client_question import outside_call_id, request_of_call
from callboard.protocol.content import AssistantMessage, Audio, Image, Media, Text, Thinking, ToolCall
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import Done, FinishReason, MediaDelta, Restarted, TextDelta, ThinkingDelta

CALL = ToolCall(CallId("upstream_7"), ToolName("f"), "{}")


def shown(stream: AnswerStream, *events: object) -> str:
    pieces = [piece for event in events for piece in stream.feed(event)]
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece | ThinkingPiece))


@given(st.lists(st.text(min_size=1)), st.lists(st.text(min_size=1)), st.integers(0, 20))
def test_what_comes_again_is_shown_once(first: list[str], again: list[str], cut: int) -> None:
    """The second try says what the first has said, and more, in other pieces."""
    said = "".join((*first, *again))
    stream = AnswerStream("r")
    whole = shown(stream, *map(TextDelta, first), Restarted("cut"))
    whole += shown(stream, *(TextDelta(said[at : at + cut + 1]) for at in range(0, len(said), cut + 1)))
    assert whole == said


def test_an_answer_that_began_again_otherwise_is_an_error() -> None:
    stream = AnswerStream("r")
    assert shown(stream, TextDelta("one"), Restarted("cut")) == "one"
    with pytest.raises(ApiError, match="began again"):
        shown(stream, TextDelta("other"))


def test_a_second_try_that_says_less_is_an_error() -> None:
    stream = AnswerStream("r")
    shown(stream, TextDelta("one"), Restarted("cut"), TextDelta("o"))
    with pytest.raises(ApiError, match="began again"):
        shown(stream, Done(FinishReason.STOP))


def test_thinking_is_not_shown_twice() -> None:
    stream = AnswerStream("r")
    assert shown(stream, ThinkingDelta("hm"), Restarted("cut"), ThinkingDelta("so"), TextDelta("a")) == "hma"


@pytest.mark.parametrize("media", [Image("image/png", "aGk="), Audio("audio/wav", "aGk=")], ids=["picture", "sound"])
def test_what_is_no_text_is_not_handed_on(media: Media) -> None:
    stream = AnswerStream("r")
    assert shown(stream, TextDelta("a"), MediaDelta(media), TextDelta("b")) == "ab"
    assert [*stream.feed(MediaDelta(media))] == []


def test_text_that_must_have_a_form_comes_at_the_end() -> None:
    stream = AnswerStream("r", holds_text=True)
    assert shown(stream, TextDelta("{")) == ""
    assert list(stream.end((), '{"a":1}')) == [TextPiece('{"a":1}', 0)]


def test_each_call_is_shown_once_under_our_own_id() -> None:
    stream = AnswerStream("r")
    (first,) = stream.call(CALL)
    assert isinstance(first, CallPiece)
    assert first.call.call_id == outside_call_id("r", 0)
    (second,) = stream.end((CALL, CALL), None)
    assert isinstance(second, CallPiece)
    assert second.call.call_id == outside_call_id("r", 1)


def test_a_whole_answer_has_the_pieces_of_the_stream() -> None:
    turns = (AssistantMessage((Thinking("hm"), Text("a"))), AssistantMessage((Text("b"),)))
    found = pieces_of(turns, "r", (CALL,), None)
    assert [type(each) for each in found] == [ThinkingPiece, TextPiece, TextPiece, CallPiece]
    assert [each.turn for each in found] == [0, 0, 1, 1]


@given(st.from_regex(r"[0-9a-f]{32}", fullmatch=True), st.integers(0, 999))
def test_ids_of_calls_name_their_request(request_id: str, number: int) -> None:
    assert request_of_call(outside_call_id(request_id, number)) == request_id


@given(st.text())
def test_other_ids_name_none_or_something_without_harm(call_id: str) -> None:
    assert len(request_of_call(call_id)) <= len(call_id)
