"""A ModelResponse is a collected stream."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.content import Audio, Citation, Document, Image, Replay, ServerTool, Text, Thinking, ToolCall
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    CitationDelta,
    Done,
    Error,
    FinishReason,
    MediaDelta,
    Restarted,
    ServerToolEvent,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from callboard.protocol.testing.strategies import stream_events
from callboard.providers.json_values import canonical_arguments
from callboard.providers.response_builder import ResponseBuilder, build_response

A, B, F = CallId("a"), CallId("b"), ToolName("f")
DONE = Done(FinishReason.STOP)


def test_deltas_of_one_block_are_one_part_and_order_is_kept() -> None:
    response = build_response(
        [
            TextDelta("He"),
            TextDelta("y"),
            ToolCallStart(A, F),
            TextDelta("!"),
            TextDelta("?", 1),
            ToolCallComplete(A),
            DONE,
        ]
    )
    assert response.parts == (Text("Hey"), ToolCall(A, F, "{}"), Text("!"), Text("?"))


def test_thinking_blocks_stay_apart_and_the_last_replay_wins() -> None:
    signed = Replay("anthropic", {"signature": "s"})
    response = build_response(
        [ThinkingDelta("a", 0), ThinkingDelta("", 0, signed), ThinkingDelta("b", 1), ThinkingDelta("", 2, signed), DONE]
    )
    assert response.parts == (Thinking("a", signed), Thinking("b"), Thinking("", signed))


def test_empty_deltas_make_no_part() -> None:
    assert build_response([TextDelta(""), ThinkingDelta(""), DONE]).parts == ()


def test_a_call_without_its_complete_is_not_run() -> None:
    response = build_response([ToolCallStart(A, F), ToolCallDelta(A, "{}"), DONE])
    assert response.tool_calls == (ToolCall(A, F, "{}", complete=False),)


def test_ids_are_unique_in_a_response() -> None:
    events: list[StreamEvent] = []
    for text in ('{"n":1}', '{"n":2}', '{"n":3}'):
        events += [ToolCallStart(A, F), ToolCallDelta(A, text), ToolCallComplete(A)]
    response = build_response([*events, DONE])
    assert [(call.call_id, call.arguments) for call in response.tool_calls] == [
        ("a", '{"n":1}'),
        ("a_2", '{"n":2}'),
        ("a_3", '{"n":3}'),
    ]


def test_an_id_that_looks_like_an_invented_one_is_unique_too() -> None:
    events: list[StreamEvent] = [ToolCallStart(CallId(sent), F) for sent in ("a", "a", "a_2")]
    assert [call.call_id for call in build_response(events).tool_calls] == ["a", "a_2", "a_2_2"]


def test_a_restart_voids_what_came_before() -> None:
    response = build_response([TextDelta("x"), ToolCallStart(A, F), Restarted("again"), TextDelta("y"), DONE])
    assert response.parts == (Text("y"),)


def test_server_tools_stand_where_they_came() -> None:
    replay = Replay("anthropic", {"type": "server_tool_use"})
    response = build_response([TextDelta("a"), ServerToolEvent("web_search", replay), TextDelta("b"), DONE])
    assert response.parts == (Text("a"), ServerTool("web_search", replay), Text("b"))


def test_citations_belong_to_the_text_of_their_block_whenever_they_come() -> None:
    early, late, other = Citation("https://a"), Citation("https://b"), Citation("https://c")
    events = (
        CitationDelta((early,), 1),
        TextDelta("a", 1),
        CitationDelta((late,), 1),
        TextDelta("b", 1),
        TextDelta("c", 2),
        CitationDelta((other,), 2),
    )
    assert build_response(events).parts == (Text("ab", None, (early, late)), Text("c", None, (other,)))
    assert build_response(events[:1]).parts == ()


def test_pieces_of_a_sound_are_one_part_and_pictures_stay_apart() -> None:
    replay = Replay("x", {"id": "a1"})
    events = (
        MediaDelta(Audio("audio/wav", "aA=="), 0),
        MediaDelta(Audio(data_base64="aQ==", replay=replay), 0),
        MediaDelta(Image("image/png", "aWcK"), 1),
        MediaDelta(Image("image/png", "aWcL"), 2),
        MediaDelta(Image(url="https://x/y.png"), 3),
    )
    assert build_response(events).parts == (
        Audio("audio/wav", "aGk=", replay=replay),
        Image("image/png", "aWcK"),
        Image("image/png", "aWcL"),
        Image(url="https://x/y.png"),
    )


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=5))
def test_a_sound_is_the_same_however_it_was_cut(pieces: list[bytes]) -> None:
    [sound] = build_response(MediaDelta(Audio("audio/pcm", b64encode(piece).decode())) for piece in pieces).parts
    assert isinstance(sound, Audio)
    assert b64decode(sound.data_base64) == b"".join(pieces)


def test_the_end_carries_reason_usage_and_model() -> None:
    done = Done(FinishReason.LENGTH, "max_tokens", Usage(1, 2), {"x": 1}, "m-1")
    response = build_response([TextDelta("a"), done, TextDelta("late")])
    assert (response.text, response.finish_reason, response.raw_finish_reason) == (
        "a",
        FinishReason.LENGTH,
        "max_tokens",
    )
    assert (response.usage, response.raw_usage, response.model) == (Usage(1, 2), {"x": 1}, "m-1")


def test_an_error_keeps_what_came_before_it() -> None:
    error = Error(ErrorKind.OVERLOADED, "busy", retryable=True)
    response = build_response([TextDelta("a"), error, DONE])
    assert (response.text, response.error, response.finish_reason) == ("a", error, FinishReason.ERROR)


def test_a_stream_without_an_end_is_truncated() -> None:
    builder = ResponseBuilder()
    builder.feed([TextDelta("a")])
    error = builder.response().error
    assert error is not None
    assert (error.kind, error.retryable) == (ErrorKind.TRUNCATED, True)
    builder.feed([DONE])
    assert builder.response().error is None


@pytest.mark.parametrize(
    ("raw", "canonical", "complete"),
    [
        ("", "{}", True),
        (" \n", "{}", True),
        ("null", "{}", True),
        ('{"a": 1}', '{"a": 1}', True),
        ('"{\\"a\\":1}"', '{"a":1}', True),
        ('{"a": 1', '{"a": 1', False),
        ("{}{}", "{}{}", False),
        ("12", "12", False),
        ("[]", "[]", False),
        ('"text"', '"text"', False),
        ("[" * 100_000, "[" * 100_000, False),
        ('{"a":' * 50_000, '{"a":' * 50_000, False),
        ('{"n": 123456789012345678901234567890}', '{"n": 123456789012345678901234567890}', True),
        # Control characters as they are (quirk 86): in texts and names, beside JSON's own white space, encoded twice.
        ('{"text":"one\ntwo"}', '{"text":"one\\ntwo"}', True),
        ('{\n\t"a\tb": "x\r\n\ty"\n}', '{\n\t"a\\tb": "x\\r\\n\\ty"\n}', True),
        ('{"a":"\x00\x1b[0m"}', '{"a":"\\u0000\\u001b[0m"}', True),
        ('{"a":"say \\"hi\\"\n\\\\"}', '{"a":"say \\"hi\\"\\n\\\\"}', True),
        (json.dumps('{"a":"x\ny"}'), '{"a":"x\\ny"}', True),
        ('"{\\"a\\":\n1}"', '{"a":\n1}', True),
        # Not sound but for them: half a text, a bad escape, a number that is none, a comma too many.
        ('{"a":"x\n', '{"a":"x\n', False),
        ('{"a":"x\\\n"}', '{"a":"x\\\n"}', False),
        ('{"a":"\n","n":NaN}', '{"a":"\n","n":NaN}', False),
        ('{"a":"\n",}', '{"a":"\n",}', False),
        ('["\n"]', '["\n"]', False),
    ],
)
def test_arguments_are_made_canonical(raw: str, canonical: str, complete: bool) -> None:
    assert canonical_arguments(raw) == (canonical, complete)


def test_places_count_in_their_part_where_other_parts_came_between() -> None:
    places = [(0, 2), (2, 4), (1, 3), (4, 9), (5, 9), (None, None)]
    cited = [Citation(str(number), start=start, end=end) for number, (start, end) in enumerate(places)]
    told = [TextDelta("é🙂"), ThinkingDelta("hm"), TextDelta("ab"), CitationDelta(tuple(cited)), ToolCallStart(A, F),
            TextDelta("c")]  # fmt: skip
    for end in ([], [DONE]):
        parts = build_response([*told, *end]).parts
        texts = [part for part in parts if isinstance(part, Text)]
        assert [text.text for text in texts] == ["é🙂", "ab", "c"]
        found = [[(each.url, each.start, each.end) for each in text.citations] for text in texts]
        assert found == [
            [("0", 0, 2), ("2", 1, 2)],
            [("1", 0, 2), ("5", None, None)],
            [("3", 0, 1), ("4", None, None)],
        ]


@given(stream_events())
def test_all_that_a_stream_says_is_in_its_turn(events: list[StreamEvent]) -> None:
    turn = build_response(events)
    assert turn.text == "".join(each.text for each in events if isinstance(each, TextDelta))
    assert turn.thinking == "".join(each.text for each in events if isinstance(each, ThinkingDelta))
    shown = [each.media for each in events if isinstance(each, MediaDelta)]
    media = [part for part in turn.parts if isinstance(part, Image | Audio | Document)]
    assert b"".join(b64decode(part.data_base64) for part in media) == b"".join(
        b64decode(each.data_base64) for each in shown
    )
    texts = [part for part in turn.parts if isinstance(part, Text)]
    blocks = {each.block for each in events if isinstance(each, TextDelta) and each.text}
    cited = [each.citations for each in events if isinstance(each, CitationDelta) and each.block in blocks]
    assert sorted(each.raw["at"] for text in texts for each in text.citations) == sorted(
        each.raw["at"] for citations in cited for each in citations
    )
