"""Anthropic Messages: what is sent, and the quirks of what comes back (numbers of wire.md section 2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.validators import anthropic as violations
from support.wire import answer, body, events, header, sse

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, ModelRequest, Sampling, ToolChoice, ToolChoiceMode, Usage
from callboard.protocol.stream import Done, Error, Restarted, ServerToolEvent, TextDelta, ToolCallComplete
from callboard.protocol.tools import ToolDefinition
from callboard.providers.anthropic import Anthropic

ADAPTER = Anthropic(api_key="secret-key")
LOOKUP = ToolDefinition(ToolName("lookup"), "Looks up.", {"type": "object", "properties": {"city": {"type": "string"}}})
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


def call(call_id: str, name: str = "lookup", arguments: str = "{}", **more: Any) -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(name), arguments, **more)


def result(call_id: str, content: str = "{}", *, is_error: bool = False) -> ToolMessage:
    return ToolMessage(CallId(call_id), ToolName("lookup"), content, is_error)


# Requests


def test_the_address_and_the_headers() -> None:
    wire = ADAPTER.encode(ModelRequest("claude-x", (UserMessage.of("Hi"),)))
    assert (wire.method, wire.url) == ("POST", "https://api.anthropic.com/v1/messages")
    assert header(wire.headers, "x-api-key") == "secret-key"
    assert header(wire.headers, "anthropic-version") == "2023-06-01"
    assert "secret-key" not in repr(wire)


def test_an_oauth_token_goes_as_bearer_and_betas_are_listed() -> None:
    wire = Anthropic(api_key="t", bearer=True, betas=("a", "b")).encode(ModelRequest("c", (UserMessage.of("Hi"),)))
    assert header(wire.headers, "authorization") == "Bearer t"
    assert header(wire.headers, "x-api-key") is None
    assert header(wire.headers, "anthropic-beta") == "a,b"


def test_a_whole_tool_turn() -> None:
    sent = body(
        ADAPTER,
        SystemMessage("Be brief."),
        UserMessage((Text("Look"), Image("image/png", "aWcK"), Image(url="https://example.org/a.png"))),
        AssistantMessage(
            (
                Thinking("Hmm", Replay("anthropic", {"signature": "c2ln"})),
                Thinking("", Replay("anthropic", {"data": "cmVk"})),
                Text("Looking."),
                call("toolu_1", arguments='{"city": "Rome"}'),
                call("toolu_2"),
            )
        ),
        result("toolu_1", '{"ok": true}'),
        result("toolu_2", '{"ok": false}', is_error=True),
        SystemMessage("Careful now."),
        tools=(LOOKUP,),
    )
    assert violations(sent) == []
    assert sent["system"] == "Be brief."
    assert sent["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aWcK"}},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hmm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "cmVk"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "toolu_2", "name": "lookup", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"ok": true}'},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": '{"ok": false}', "is_error": True},
                {"type": "text", "text": "<system>\nCareful now.\n</system>"},
            ],
        },
    ]


def test_foreign_signatures_are_left_out_and_unsigned_thinking_too() -> None:
    turn = AssistantMessage(
        (
            Thinking("g", Replay("gemini", {"thoughtSignature": "x"})),
            Thinking("cut off"),
            Text("Yes", Replay("gemini", {"thoughtSignature": "y"})),
        )
    )
    sent = body(ADAPTER, UserMessage.of("Hi"), turn, UserMessage.of("And?"))
    assert sent["messages"][1]["content"] == [{"type": "text", "text": "Yes"}]


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (ToolChoice(), None, {"type": "auto"}),
        (ToolChoice(), False, {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice(ToolChoiceMode.REQUIRED), True, {"type": "any", "disable_parallel_tool_use": False}),
        (ToolChoice(ToolChoiceMode.NONE), False, {"type": "none"}),
        (ToolChoice(ToolChoiceMode.NAMED, ToolName("lookup")), None, {"type": "tool", "name": "lookup"}),
    ],
)
def test_tool_choice(choice: ToolChoice, parallel: bool | None, expected: dict[str, Any]) -> None:
    assert body(ADAPTER, tools=(LOOKUP,), tool_choice=choice, parallel_tool_calls=parallel)["tool_choice"] == expected


def test_sampling_and_options() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_output_tokens=99, stop=("END",))
    sent = body(ADAPTER, sampling=sampling, stream=False, options={"metadata": {"user_id": "u"}})
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (0.5, 0.9, 99)
    assert sent["stop_sequences"] == ["END"]
    assert sent["metadata"] == {"user_id": "u"}
    assert "stream" not in sent


def test_a_model_that_takes_no_sampling_gets_none_and_that_is_noted() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9)
    for model in ("claude-opus-4-7", "claude-opus-4.8", "claude-sonnet-5-5", "claude-fable-5"):
        wire = ADAPTER.encode(ModelRequest(model, (UserMessage.of("Hi"),), sampling=sampling))
        assert len(wire.notes) == 2
        assert not {"temperature", "top_p"} & set(json.loads(wire.body))
    for model in ("claude-opus-4-20250514", "claude-sonnet-4-5", "claude-sonnet-4-6", "claude-3-5-haiku-20241022"):
        assert body(ADAPTER, model=model, sampling=sampling)["top_p"] == 0.9


def test_effort_is_a_budget_or_adaptive_by_model() -> None:
    effort = Sampling(reasoning_effort="medium")
    budget = body(ADAPTER, model="claude-sonnet-4-5-20250929", sampling=effort)
    assert budget["thinking"] == {"type": "enabled", "budget_tokens": 8192}
    assert budget["max_tokens"] > 8192
    assert body(ADAPTER, model="claude-opus-4-20250514", sampling=effort)["thinking"]["type"] == "enabled"
    adaptive = body(ADAPTER, model="claude-opus-4-6", sampling=effort)
    assert adaptive["thinking"] == {"type": "adaptive"}
    assert adaptive["output_config"] == {"effort": "medium"}


def test_effort_and_an_answer_schema_share_output_config() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    wire = ADAPTER.encode(
        ModelRequest(
            "claude-opus-4-6",
            (UserMessage.of("Hi"),),
            response_schema=schema,
            sampling=Sampling(reasoning_effort="low"),
        )
    )
    config = json.loads(wire.body)["output_config"]
    assert config["effort"] == "low"
    assert config["format"]["schema"]["additionalProperties"] is False
    assert wire.notes == ("response_schema: /properties/n: minimum: anthropic structured output has no such keyword",)


def test_thinking_is_left_out_of_a_tool_loop_that_another_model_began() -> None:
    history = (UserMessage.of("Hi"), AssistantMessage((call("c1"),)), result("c1"))
    wire = ADAPTER.encode(ModelRequest("claude-sonnet-4-5", history, sampling=Sampling(reasoning_effort="low")))
    assert "thinking" not in json.loads(wire.body)
    assert wire.notes[0].startswith("reasoning_effort: left out")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling": Sampling(reasoning_effort="low", temperature=0.3)}, "temperature"),
        ({"sampling": Sampling(reasoning_effort="low", max_output_tokens=500)}, "max_output_tokens"),
        ({"sampling": Sampling(reasoning_effort="enormous")}, "reasoning_effort"),
        ({"sampling": Sampling(reasoning_effort="low"), "tool_choice": ToolChoice(ToolChoiceMode.REQUIRED)}, "forced"),
    ],
)
def test_what_the_api_cannot_do_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        body(ADAPTER, tools=(LOOKUP,), model="claude-sonnet-4-5", **fields)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(UsageError, match="JSON"):
        body(ADAPTER, UserMessage.of("\ud800"))


def test_a_trimmed_history_begins_with_the_user_all_the_same() -> None:
    sent = body(ADAPTER, AssistantMessage((call("c1"),)), result("c1"))
    assert violations(sent) == []


def test_long_integers_keep_their_digits() -> None:
    big = '{"n": 123456789012345678901234567890}'
    wire = ADAPTER.encode(
        ModelRequest("c", (UserMessage.of("Hi"), AssistantMessage((call("c1", arguments=big),)), result("c1")))
    )
    assert b"123456789012345678901234567890" in wire.body


def test_quirk_48_ids_that_repeat_or_are_illegal_are_rewritten_in_call_and_result() -> None:
    turn = AssistantMessage((call("list_dir:0"),))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn, result("list_dir:0"), turn, result("list_dir:0"))
    assert violations(sent) == []
    ids = [b["id"] for m in sent["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert len(set(ids)) == 2


# Answers


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
