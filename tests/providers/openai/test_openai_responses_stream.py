"""OpenAI Responses: the quirks of what comes back (numbers of docs/wire.md section 2)."""

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
    UserMessage,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Error, FinishReason, ServerToolEvent, TextDelta, ToolCallDelta, Usage
from callboard.providers.openai.responses_api import OpenAIResponses

ADAPTER = OpenAIResponses(api_key="secret-key")
CREATED = {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-x", "status": "in_progress"}}
ROME = '{"city": "Rome"}'


def completed(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "model": "gpt-x", "status": "completed", "output": list(output), **more}
    return {"type": f"response.{response['status']}", "response": response}


def added(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(what: str, index: int, piece: str, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{what}.delta", "output_index": index, "delta": piece, **more}


def text(piece: str, index: int = 0, content_index: int = 0) -> dict[str, Any]:
    return delta("output_text", index, piece, content_index=content_index)


def function_call(arguments: str = "", **more: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "lookup",
        "arguments": arguments,
        **more,
    }


def message(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": words}], **more}


def test_quirk_12_rotating_item_ids() -> None:
    stream: list[dict[str, Any]] = [
        CREATED,
        added(0, **{**function_call(), "id": "a"}),
        delta("function_call_arguments", 0, '{"city": ', item_id="b"),
        delta("function_call_arguments", 0, '"Rome"}', item_id="c"),
        {"type": "response.function_call_arguments.done", "output_index": 0, "item_id": "d", "arguments": ROME},
        done(0, **{**function_call(ROME), "id": "e"}),
        added(1, **{**function_call(), "id": "f", "call_id": "call_2"}),
        done(1, **{**function_call("{}"), "id": "g", "call_id": "call_2"}),
        completed({**function_call(ROME), "id": "h"}, {**function_call("{}"), "id": "i", "call_id": "call_2"}),
    ]
    turn = answer(ADAPTER, sse(stream))
    assert [(c.call_id, c.arguments, c.complete) for c in turn.tool_calls] == [
        ("call_1", ROME, True),
        ("call_2", "{}", True),
    ]
    assert turn.finish_reason is FinishReason.TOOL_CALLS


def test_quirk_13_done_without_deltas() -> None:
    stream = [
        CREATED,
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hi"},
        added(1, **function_call()),
        {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": ROME},
        completed(),
    ]
    found = events(ADAPTER, sse(stream))
    assert [e.text for e in found if isinstance(e, TextDelta)] == ["Hi"]
    assert [e.args_delta for e in found if isinstance(e, ToolCallDelta)] == [ROME]


def test_quirk_13_done_brings_what_the_deltas_left_out() -> None:
    stream = [
        text("Hel"),
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hello"},
    ]
    assert answer(ADAPTER, sse([CREATED, *stream, completed()])).text == "Hello"


def test_quirk_14_what_is_told_four_times_is_emitted_once() -> None:
    stream = [
        CREATED,
        added(0, type="message", content=[]),
        text("Hi"),
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": "Hi"},
        done(0, **message("Hi")),
        added(1, **function_call()),
        delta("function_call_arguments", 1, ROME),
        {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": ROME},
        done(1, **function_call(ROME)),
        completed(message("Hi"), function_call(ROME)),
    ]
    turn = answer(ADAPTER, sse(stream))
    assert (turn.text, [c.arguments for c in turn.tool_calls]) == ("Hi", [ROME])


def test_quirk_15_sparse_indexes_and_a_call_without_id() -> None:
    part = {
        "type": "response.content_part.added",
        "output_index": 0,
        "content_index": 1,
        "part": {"type": "output_text"},
    }
    turn = answer(ADAPTER, sse([CREATED, part, text("Hi", content_index=1), completed()]))
    assert turn.text == "Hi"
    item = {key: value for key, value in function_call(ROME).items() if key != "id"}
    whole = completed(item)["response"]
    assert answer(ADAPTER, json.dumps(whole).encode(), streaming=False).tool_calls[0].call_id == "call_1"


@pytest.mark.parametrize(
    "error",
    [
        {"type": "error", "code": "rate_limit_exceeded", "message": "Slow", "param": None, "sequence_number": 3},
        {"type": "error", "error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "Slow"}},
    ],
    ids=["flat", "nested"],
)
def test_quirk_16_error_and_then_failed_is_one_error(error: dict[str, Any]) -> None:
    failed = completed(status="failed", error={"code": "rate_limit_exceeded", "message": "Slow"})
    (found,) = events(ADAPTER, sse([CREATED, error, failed]))
    assert isinstance(found, Error)
    assert (found.kind, found.retryable, found.message) == (ErrorKind.RATE_LIMITED, True, "Slow")


def test_quirk_16_failed_alone() -> None:
    failed = completed(status="failed", error={"code": "server_error", "message": "Oops"})
    (found,) = events(ADAPTER, sse([CREATED, failed]))
    assert isinstance(found, Error)
    assert found.kind is ErrorKind.SERVER


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_quirk_16_a_call_that_was_cut_is_incomplete(status: str) -> None:
    stream = [CREATED, added(0, **function_call()), delta("function_call_arguments", 0, '{"city": "Ro')]
    if status == "incomplete":
        stream.append(done(0, **function_call('{"city": "Ro', status="incomplete")))
    end = completed(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    turn = answer(ADAPTER, sse([*stream, end]))
    assert [(c.arguments, c.complete) for c in turn.tool_calls] == [('{"city": "Ro', False)]
    assert (turn.finish_reason, turn.raw_finish_reason) == (FinishReason.LENGTH, "max_output_tokens")


@pytest.mark.parametrize("whole", [False, True])
def test_quirk_16_a_call_without_arguments_that_the_limit_may_have_cut_is_not_run(whole: bool) -> None:
    """llama.cpp calls an item completed that the limit has cut."""
    first, last = function_call("", status="completed"), function_call("", id="fc_2", call_id="call_2")
    cut = completed(first, last, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    stream = [added(0, **first), done(0, **first), added(1, **last), done(1, **last), cut]
    response = (
        answer(ADAPTER, json.dumps(cut["response"]).encode(), streaming=False)
        if whole
        else answer(ADAPTER, sse(stream))
    )
    assert [(call.call_id, call.complete) for call in response.tool_calls] == [("call_1", True), ("call_2", False)]
    assert response.finish_reason is FinishReason.LENGTH
    ended = completed(first, last)
    response = answer(ADAPTER, sse([*stream[:-1], ended]))
    assert [(call.arguments, call.complete) for call in response.tool_calls] == [("{}", True), ("{}", True)]


def test_quirk_56_the_first_event_need_not_be_created() -> None:
    stream = [text("Hi"), {"type": "response.queued", "response": {"id": "r", "status": "queued"}}, completed()]
    assert answer(ADAPTER, sse(stream)).text == "Hi"


def test_quirk_27_comments_and_done_of_other_servers() -> None:
    data = b": OPENROUTER PROCESSING\n\n" + sse([CREATED, text("Hi"), completed()], done=True)
    assert answer(ADAPTER, data).text == "Hi"


def test_reasoning_is_told_part_by_part_and_replayed_as_one_item() -> None:
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "One"}, {"type": "summary_text", "text": "Two"}],
        "encrypted_content": "ZW5j",
    }
    stream = [
        CREATED,
        added(0, type="reasoning", id="rs_1", summary=[]),
        delta("reasoning_summary_text", 0, "One", summary_index=0),
        delta("reasoning_summary_text", 0, "Two", summary_index=1),
        done(0, **item, status="completed"),
        text("Hi", 1),
        done(1, **message("Hi", phase="final_answer")),
        completed(),
    ]
    turn = answer(ADAPTER, sse(stream))
    assert [part.text for part in turn.parts] == ["One", "Two", "Hi"]  # type: ignore[union-attr]
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, UserMessage.of("More"), model="gpt-5")
    assert sent["input"][1:3] == [
        item,
        {"type": "message", "role": "assistant", "content": "Hi", "phase": "final_answer"},
    ]


def test_raw_reasoning_text() -> None:
    stream = [CREATED, delta("reasoning_text", 0, "Hmm", content_index=0), text("Hi", 1), completed()]
    turn = answer(ADAPTER, sse(stream))
    assert (turn.thinking, turn.text) == ("Hmm", "Hi")


def test_a_refusal_is_text_and_its_own_reason() -> None:
    stream = [CREATED, delta("refusal", 0, "I can", content_index=0)]
    stream.append({"type": "response.refusal.done", "output_index": 0, "content_index": 0, "refusal": "I cannot"})
    turn = answer(ADAPTER, sse([*stream, completed()]))
    assert (turn.text, turn.finish_reason) == ("I cannot", FinishReason.REFUSAL)


def test_server_tools_are_shown_and_their_own_stream_is_not_ours() -> None:
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
    stream = [
        CREATED,
        added(0, type="web_search_call", id="ws_1"),
        {"type": "response.web_search_call.searching", "output_index": 0},
        delta("mcp_call_arguments", 1, "{}"),
        done(0, **item),
        text("Hi", 2),
        completed(item, message("Hi")),
    ]
    found = events(ADAPTER, sse(stream))
    shown = ServerToolEvent("web_search_call", Replay("openai-responses", item), "web_search", text="x")
    assert [e for e in found if isinstance(e, ServerToolEvent)] == [shown]
    # The item says all by itself, so the server need not remember it.
    turn = AssistantMessage((ServerTool("web_search_call", Replay("openai-responses", item)), Text("Hi")))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn, UserMessage.of("More"))
    assert sent["input"][1] == item


def test_usage_includes_what_it_includes() -> None:
    usage = {
        "input_tokens": 50,
        "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 5},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 12},
    }
    turn = answer(ADAPTER, sse([CREATED, completed(usage=usage)]))
    assert turn.usage == Usage(50, 30, cached_tokens=20, cache_write_tokens=5, reasoning_tokens=12)
    assert (dict(turn.raw_usage), turn.model) == (usage, "gpt-x")


@pytest.mark.parametrize(
    ("status", "expected"),
    [("completed", FinishReason.STOP), ("complete", FinishReason.STOP), ("incomplete", FinishReason.LENGTH)],
)
def test_whole_answers(status: str, expected: FinishReason) -> None:
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    whole = {"id": "r", "status": status, "error": None, "output": [message("Hi")], "incomplete_details": details}
    turn = answer(ADAPTER, json.dumps(whole).encode(), streaming=False)
    assert (turn.text, turn.finish_reason) == ("Hi", expected)


def test_a_background_answer_is_not_taken_for_a_whole_one() -> None:
    whole = json.dumps({"id": "r", "status": "queued", "output": []}).encode()
    assert answer(ADAPTER, whole, streaming=False).error is not None


def test_the_end_of_the_body_before_the_end_of_the_response_is_a_cut() -> None:
    for data in (sse([CREATED, text("Hi")]), sse([CREATED, text("Hi")], done=True)):
        turn = answer(ADAPTER, data)
        assert turn.error is not None
        assert (turn.error.kind, turn.text) == (ErrorKind.TRUNCATED, "Hi")


def test_a_call_whose_end_was_left_out_is_complete_when_the_response_is() -> None:
    stream = [CREATED, added(0, **function_call()), delta("function_call_arguments", 0, ROME), completed()]
    turn = answer(ADAPTER, sse(stream))
    assert [(call.arguments, call.complete) for call in turn.tool_calls] == [(ROME, True)]
    assert turn.finish_reason is FinishReason.TOOL_CALLS


def test_the_response_tells_the_rest_of_a_call_whose_end_was_left_out() -> None:
    stream = [CREATED, added(0, **function_call()), delta("function_call_arguments", 0, ROME[:5])]
    turn = answer(ADAPTER, sse([*stream, completed(function_call(ROME))]))
    assert [(call.arguments, call.complete) for call in turn.tool_calls] == [(ROME, True)]


def test_calls_of_a_whole_answer_that_have_no_item_id_are_told_apart() -> None:
    first, second = ({**function_call(ROME, call_id=name), "id": None} for name in ("a", "b"))
    turn = answer(ADAPTER, json.dumps(completed(first, second)["response"]).encode(), streaming=False)
    assert [(call.call_id, call.arguments) for call in turn.tool_calls] == [("a", ROME), ("b", ROME)]


def test_a_response_that_was_cancelled_at_the_server_is_an_error_of_that_kind() -> None:
    turn = answer(ADAPTER, sse([CREATED, text("Hi"), completed(status="cancelled")]))
    assert turn.error is not None
    assert (turn.error.kind, turn.text) == (ErrorKind.CANCELLED, "Hi")


def test_statuses() -> None:
    document = {"error": {"message": "Bad key secret-key", "type": "invalid_request_error", "code": "invalid_api_key"}}
    (found,) = events(ADAPTER, json.dumps(document).encode(), status=401)
    assert isinstance(found, Error)
    assert (found.kind, found.status, found.code) == (ErrorKind.AUTHENTICATION, 401, "invalid_api_key")
    assert "secret-key" not in found.message + found.raw


def test_two_items_with_one_call_id_are_two_calls() -> None:
    stream = [CREATED]
    for index in range(2):
        stream += [added(index, **function_call()), delta("function_call_arguments", index, json.dumps({"n": index}))]
        stream.append(done(index, **function_call(json.dumps({"n": index}))))
    turn = answer(ADAPTER, sse([*stream, completed()]))
    assert [json.loads(c.arguments) for c in turn.tool_calls] == [{"n": 0}, {"n": 1}]
