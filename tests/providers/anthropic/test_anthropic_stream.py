"""Anthropic Messages: the quirks of what comes back (numbers of docs/wire.md section 2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.wire import answer, body, events, sse

from callboard.protocol.content import (
    AssistantMessage,
    Replay,
    ServerTool,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    Done,
    Error,
    FinishReason,
    Restarted,
    ServerToolEvent,
    TextDelta,
    ToolCallComplete,
    Usage,
)
from callboard.providers.anthropic.messages_api import Anthropic

ADAPTER = Anthropic(api_key="secret-key")
START = {
    "type": "message_start",
    "message": {"id": "msg_1", "model": "claude-x", "usage": {"input_tokens": 43, "output_tokens": 1}},
}
STOP = {"type": "message_stop"}


def end(reason: str, **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def block(index: int, kind: str, *deltas: dict[str, Any], **start: Any) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": {"type": kind, **start}},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(piece: str) -> dict[str, Any]:
    return {"type": "text_delta", "text": piece}


def part_of_input(piece: str) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": piece}


def test_quirk_06_the_first_tool_has_index_1() -> None:
    stream = [START, *block(1, "tool_use", part_of_input('{"city": "Rome"}'), id="t", name="lookup", input={})]
    turn = answer(ADAPTER, sse([*stream, end("tool_use"), STOP]))
    assert [(c.call_id, c.arguments, c.complete) for c in turn.tool_calls] == [("t", '{"city": "Rome"}', True)]


def test_quirk_09_and_32_a_call_without_arguments_is_an_empty_object() -> None:
    stream = [START, *block(0, "tool_use", part_of_input(""), id="t", name="now", input={}), end("tool_use"), STOP]
    (found,) = answer(ADAPTER, sse(stream)).tool_calls
    assert (found.arguments, found.complete) == ("{}", True)


def test_quirk_32_a_start_with_input_and_no_deltas() -> None:
    stream = [START, *block(0, "tool_use", id="t", name="lookup", input={"city": "Rome"}), end("tool_use"), STOP]
    (found,) = answer(ADAPTER, sse(stream)).tool_calls
    assert json.loads(found.arguments) == {"city": "Rome"}
    assert found.complete


def test_quirk_11_arguments_that_parse_are_not_yet_whole() -> None:
    started = block(0, "tool_use", part_of_input("{}"), id="t", name="lookup", input={})[:-1]
    decoder = ADAPTER.decoder()
    assert not any(isinstance(event, ToolCallComplete) for event in decoder.feed(sse([START, *started])))
    (found,) = answer(ADAPTER, sse([START, *started])).tool_calls
    assert not found.complete


def test_quirk_31_the_last_event_without_a_blank_line() -> None:
    stream = sse([START, *block(0, "text", text("Hi"), text=""), end("end_turn"), STOP])
    turn = answer(ADAPTER, stream.rstrip(b"\n"))
    assert (turn.text, turn.finish_reason) == ("Hi", FinishReason.STOP)


def test_quirk_33_pings_and_unknown_kinds_are_ignored() -> None:
    ping = {"type": "ping"}
    stream = [
        ping,
        START,
        {"type": "brand_new_event"},
        *block(0, "fallback"),
        ping,
        *block(
            1, "text", text("Hi"), {"type": "new_delta", "x": 1}, {"type": "citations_delta", "citation": {}}, text=""
        ),
        end("end_turn"),
        STOP,
    ]
    turn = answer(ADAPTER, sse(stream))
    assert turn.text == "Hi"
    assert len(turn.parts) == 1


def test_a_compaction_goes_back_with_what_its_start_and_its_deltas_have_told() -> None:
    delta = {"type": "compaction_delta", "content": "what was said"}
    found = events(ADAPTER, sse([START, *block(0, "compaction", delta, key="k"), end("compaction"), STOP]))
    (shown,) = (event for event in found if isinstance(event, ServerToolEvent))
    assert shown.replay.data == {"type": "compaction", "key": "k", "content": "what was said"}


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_quirk_34_a_server_tool_is_no_call_of_ours(kind: str) -> None:
    stream = [
        START,
        *block(0, kind, part_of_input('{"query"'), part_of_input(': "x"}'), id="s", name="web_search", input={}),
        *block(1, "web_search_tool_result", tool_use_id="s", content=[]),
        end("end_turn"),
        STOP,
    ]
    found = events(ADAPTER, sse(stream))
    shown = [event for event in found if isinstance(event, ServerToolEvent)]
    assert [event.kind for event in shown] == [kind, "web_search_tool_result"]
    assert shown[0].replay.data["input"] == {"query": "x"}
    turn = answer(ADAPTER, sse(stream))
    assert turn.tool_calls == ()
    # And both go back as they were.
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, UserMessage.of("More"))
    assert [b["type"] for b in sent["messages"][1]["content"]] == [kind, "web_search_tool_result"]


def test_quirk_35_thinking_blocks_stay_apart_each_with_its_signature() -> None:
    def thinking(index: int, words: str, signature: str) -> list[dict[str, Any]]:
        deltas = [{"type": "thinking_delta", "thinking": words}] if words else []
        return block(index, "thinking", *deltas, {"type": "signature_delta", "signature": signature}, thinking="")

    stream = [
        START,
        *thinking(0, "One", "s1"),
        *thinking(1, "Two", "s2"),
        *block(2, "redacted_thinking", data="cmVk"),
        *thinking(3, "", "s3"),
        *block(4, "text", text("Hi"), text=""),
        end("end_turn"),
        STOP,
    ]
    turn = answer(ADAPTER, sse(stream))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, UserMessage.of("More"))
    assert sent["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "One", "signature": "s1"},
        {"type": "thinking", "thinking": "Two", "signature": "s2"},
        {"type": "redacted_thinking", "data": "cmVk"},
        {"type": "thinking", "thinking": "", "signature": "s3"},
        {"type": "text", "text": "Hi"},
    ]


def test_quirk_36_usage_is_restated_and_the_last_number_wins() -> None:
    stream = [START, *block(0, "text", text("Hi"), text="")]
    stream += [end("end_turn", input_tokens=61, output_tokens=7, cache_read_input_tokens=None), STOP]
    assert answer(ADAPTER, sse(stream)).usage == Usage(input_tokens=61, output_tokens=7)


def test_usage_adds_the_cache_to_the_input() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
    start = {"type": "message_start", "message": {"usage": usage}}
    stream = [start, end("end_turn", output_tokens=9, output_tokens_details={"thinking_tokens": 4}), STOP]
    turn = answer(ADAPTER, sse(stream))
    assert turn.usage == Usage(125, 9, cached_tokens=100, cache_write_tokens=20, reasoning_tokens=4)
    assert turn.raw_usage["input_tokens"] == 5


def test_quirk_37_a_second_message_start_voids_what_came_before() -> None:
    stream = [
        START,
        *block(0, "text", text("Old"), text=""),
        block(1, "tool_use", id="t", name="lookup", input={})[0],
        START,
        {"type": "content_block_delta", "index": 1, "delta": part_of_input('{"a": 1}')},
        {"type": "content_block_stop", "index": 1},
        *block(0, "text", text("New"), text=""),
        end("end_turn"),
        STOP,
    ]
    found = events(ADAPTER, sse(stream))
    assert sum(isinstance(event, Restarted) for event in found) == 1
    assert not any(isinstance(event, ToolCallComplete) for event in found)
    turn = answer(ADAPTER, sse(stream))
    assert (turn.text, turn.tool_calls, turn.finish_reason) == ("New", (), FinishReason.STOP)


def test_quirk_38_overloaded_inside_a_200_stream() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    (found,) = events(ADAPTER, sse([error], named=True))
    assert isinstance(found, Error)
    assert (found.kind, found.retryable, found.message) == (ErrorKind.OVERLOADED, True, "Overloaded")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("refusal", FinishReason.REFUSAL),
        ("pause_turn", FinishReason.PAUSE),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("stop_sequence", FinishReason.STOP),
        ("compaction", FinishReason.OTHER),
    ],
)
def test_quirk_39_every_reason_has_its_own(reason: str, expected: FinishReason) -> None:
    turn = answer(ADAPTER, sse([START, end(reason), STOP]))
    assert (turn.finish_reason, turn.raw_finish_reason, turn.parts) == (expected, reason, ())
    whole = json.dumps({"type": "message", "content": [], "stop_reason": reason}).encode()
    assert answer(ADAPTER, whole, streaming=False).finish_reason is expected


def test_quirk_69_an_unknown_reason_is_no_turn_of_calls() -> None:
    stream = [START, *block(0, "tool_use", part_of_input("{}"), id="t", name="lookup", input={})]
    turn = answer(ADAPTER, sse([*stream, end("a_reason_of_next_year"), STOP]))
    assert (turn.finish_reason, [call.complete for call in turn.tool_calls]) == (FinishReason.OTHER, [False])


@pytest.mark.parametrize("cut_off", ['{"city": "Ro', ""])
def test_quirk_57_a_call_that_the_length_limit_cut_is_not_run(cut_off: str) -> None:
    stream = [START, *block(0, "tool_use", part_of_input(cut_off), id="t", name="lookup", input={})]
    turn = answer(ADAPTER, sse([*stream, end("max_tokens"), STOP]))
    assert [(c.arguments, c.complete) for c in turn.tool_calls] == [(cut_off, False)]
    whole = {
        "type": "message",
        "content": [{"type": "tool_use", "id": "t", "name": "lookup", "input": {"city": "Ro"}}],
        "stop_reason": "max_tokens",
    }
    assert not answer(ADAPTER, json.dumps(whole).encode(), streaming=False).tool_calls[0].complete


@pytest.mark.parametrize("reason", ["refusal", "model_context_window_exceeded", "overloaded"])
def test_quirk_69_a_call_without_arguments_that_any_other_reason_broke_off_is_not_run(reason: str) -> None:
    stream = [START, *block(0, "tool_use", part_of_input(""), id="toolu_1", name="f"), end(reason), STOP]
    assert [call.complete for call in answer(ADAPTER, sse(stream)).tool_calls] == [False]
    for unbroken in ("tool_use", "end_turn", "pause_turn"):
        stream[-2] = end(unbroken)
        assert [(call.arguments, call.complete) for call in answer(ADAPTER, sse(stream)).tool_calls] == [("{}", True)]


def test_quirk_51_html_with_status_200() -> None:
    turn = answer(ADAPTER, b"<html><body>Bad gateway</body></html>")
    assert turn.error is not None
    assert (turn.error.kind, "Bad gateway" in turn.error.raw) == (ErrorKind.MALFORMED, True)


def test_a_whole_answer_is_read_like_a_stream() -> None:
    content = [
        {"type": "thinking", "thinking": "Hmm", "signature": "s"},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "t", "name": "lookup", "input": {"city": "Rome"}},
    ]
    document = {"type": "message", "id": "m", "model": "claude-x", "content": content, "stop_reason": "tool_use"}
    turn = answer(ADAPTER, json.dumps({**document, "usage": {"input_tokens": 1}}).encode(), streaming=False)
    assert [type(part) for part in turn.parts] == [Thinking, Text, ToolCall]
    assert turn.parts[0] == Thinking("Hmm", Replay("anthropic", {"signature": "s"}))
    assert (turn.finish_reason, turn.model, turn.tool_calls[0].complete) == (FinishReason.TOOL_CALLS, "claude-x", True)


def test_the_end_of_the_body_before_message_stop_is_a_cut() -> None:
    turn = answer(ADAPTER, sse([START, *block(0, "text", text("Hi"), text=""), end("end_turn")]))
    assert turn.error is not None
    assert (turn.error.kind, turn.error.retryable, turn.text) == (ErrorKind.TRUNCATED, True, "Hi")


def test_a_done_in_place_of_message_stop_ends_only_a_turn_that_told_why_it_stopped() -> None:
    said = [START, *block(0, "text", text("Hi"), text="")]
    assert answer(ADAPTER, sse([*said, end("end_turn")], done=True)).finish_reason is FinishReason.STOP
    (*_, last) = events(ADAPTER, sse(said, done=True))
    assert isinstance(last, Error)
    assert last.kind is ErrorKind.TRUNCATED


def test_a_call_of_the_providers_own_code_goes_back_with_its_caller() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    call = block(0, "tool_use", part_of_input("{}"), id="t", name="lookup", input={}, caller=caller)
    turn = answer(ADAPTER, sse([START, *call, end("tool_use"), STOP]))
    result = ToolMessage(CallId("t"), ToolName("lookup"), "{}")
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, result)
    assert sent["messages"][1]["content"][0]["caller"] == caller


def test_two_blocks_with_one_id_are_two_calls() -> None:
    stream = [START]
    for index in range(2):
        stream += block(index, "tool_use", part_of_input(json.dumps({"n": index})), id="same", name="lookup", input={})
    turn = answer(ADAPTER, sse([*stream, end("tool_use"), STOP]))
    assert [c.arguments for c in turn.tool_calls] == ['{"n": 0}', '{"n": 1}']
    assert len({c.call_id for c in turn.tool_calls}) == 2


@pytest.mark.parametrize(
    ("status", "kind_sent", "kind", "retryable"),
    [
        (400, "invalid_request_error", ErrorKind.INVALID_REQUEST, False),
        (401, "authentication_error", ErrorKind.AUTHENTICATION, False),
        (402, "billing_error", ErrorKind.BILLING, False),
        (403, "permission_error", ErrorKind.PERMISSION, False),
        (404, "not_found_error", ErrorKind.NOT_FOUND, False),
        (413, "request_too_large", ErrorKind.REQUEST_TOO_LARGE, False),
        (429, "rate_limit_error", ErrorKind.RATE_LIMITED, True),
        (500, "api_error", ErrorKind.SERVER, True),
        (504, "timeout_error", ErrorKind.TIMEOUT, True),
        (529, "overloaded_error", ErrorKind.OVERLOADED, True),
    ],
)
def test_statuses(status: int, kind_sent: str, kind: ErrorKind, retryable: bool) -> None:
    document = {"type": "error", "error": {"type": kind_sent, "message": "No: secret-key"}, "request_id": "r"}
    (found,) = events(ADAPTER, json.dumps(document).encode(), status=status, headers={"Retry-After": "7"})
    assert isinstance(found, Error)
    assert (found.kind, found.retryable, found.retry_after, found.status) == (kind, retryable, 7.0, status)
    assert "secret-key" not in found.message + found.raw


def test_a_server_tool_of_another_provider_is_left_out() -> None:
    turn = AssistantMessage((ServerTool("executableCode", Replay("gemini", {"executableCode": {}})), Text("4")))
    sent = body(ADAPTER, UserMessage.of("2+2"), turn, UserMessage.of("Sure?"))
    assert sent["messages"][1]["content"] == [{"type": "text", "text": "4"}]


def test_one_feed_gives_what_it_completes() -> None:
    decoder = ADAPTER.decoder()
    assert decoder.feed(sse([START])) == []
    found = decoder.feed(sse(block(0, "text", text("Hi"), text="")))
    assert found == [TextDelta("Hi", 0)]
    assert isinstance(decoder.feed(sse([end("end_turn"), STOP]))[0], Done)


@pytest.mark.parametrize(("signature", "kept"), [("", {}), ("c2ln", {"signature": "c2ln"})])
def test_quirk_84_a_thought_signed_behind_the_text_that_follows_it(signature: str, kept: dict[str, str]) -> None:
    """As llama.cpp streams it, with "" for a signature."""
    documents = [
        {"type": "message_start", "message": {"id": "m", "model": "tiny", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hum"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "W"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": signature}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    turn = answer(Anthropic(), sse(documents, named=True), [7])
    assert turn.parts == (Thinking("Hum", Replay("anthropic", kept)), Text("W"))
