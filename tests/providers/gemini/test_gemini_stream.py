"""Gemini: the quirks of what comes back (numbers of docs/wire.md section 2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.sdk_types import Lazy
from support.wire import answer, body, events, sse

from callboard.protocol.content import (
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import Error, FinishReason, ToolCallStart, Usage
from callboard.providers.gemini.gemini_api import Gemini

ADAPTER = Gemini(api_key="secret-key")
USAGE = {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 3, "cachedContentTokenCount": 4}


def chunk(*parts: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"parts": list(parts), "role": "model"}, "index": 0, **candidate}],
        "usageMetadata": USAGE,
        "modelVersion": "gemini-x",
        "responseId": "r1",
    }


def function_call(name: str = "", **more: Any) -> dict[str, Any]:
    return {"functionCall": {**({"name": name} if name else {}), **more}}


def call(call_id: str, name: str = "lookup", arguments: str = "{}", **more: Any) -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(name), arguments, **more)


def result(call_id: str, content: str = "{}", *, is_error: bool = False) -> ToolMessage:
    return ToolMessage(CallId(call_id), ToolName("lookup"), content, is_error)


@pytest.mark.parametrize(
    "candidate",
    [
        {"finishReason": "MAX_TOKENS"},
        {"content": {}, "finishReason": "MAX_TOKENS"},
        {"content": {"role": "model"}, "finishReason": "MAX_TOKENS"},
        {"content": {"parts": [{"text": ""}]}, "finishReason": "MAX_TOKENS"},
    ],
)
def test_quirk_40_candidates_without_content(candidate: dict[str, Any]) -> None:
    turn = answer(ADAPTER, sse([{"candidates": [candidate], "usageMetadata": {}}]))
    assert (turn.finish_reason, turn.parts, turn.error) == (FinishReason.LENGTH, (), None)


def test_quirk_41_a_malformed_call_is_an_error_worth_asking_again() -> None:
    (found,) = events(ADAPTER, sse([chunk(finishReason="MALFORMED_FUNCTION_CALL", finishMessage="Bad: call(")]))
    assert isinstance(found, Error)
    assert (found.kind, found.retryable) == (ErrorKind.MALFORMED_TOOL_CALL, True)
    assert "Bad: call(" in found.message


def test_quirk_41_an_unexpected_tool_call_has_its_calls() -> None:
    turn = answer(ADAPTER, sse([chunk(function_call("lookup", args={}), finishReason="UNEXPECTED_TOOL_CALL")]))
    assert (turn.finish_reason, len(turn.tool_calls)) == (FinishReason.TOOL_CALLS, 1)


def test_quirk_42_calls_without_args_or_id_and_identical_ones() -> None:
    same = function_call("lookup", args={"city": "Rome"})
    turn = answer(ADAPTER, sse([chunk(function_call("now"), same, same, finishReason="STOP")]))
    assert turn.finish_reason is FinishReason.TOOL_CALLS
    assert turn.raw_finish_reason == "STOP"
    assert [c.arguments for c in turn.tool_calls] == ["{}", '{"city":"Rome"}', '{"city":"Rome"}']
    assert len({c.call_id for c in turn.tool_calls}) == 3
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, *(result(c.call_id) for c in turn.tool_calls))
    assert all("id" not in part["functionCall"] for part in sent["contents"][1]["parts"])


def piece(path: str, more: bool = False, **value: Any) -> dict[str, Any]:
    return {"jsonPath": path, **value, **({"willContinue": True} if more else {})}


PARTIAL = [
    chunk(function_call("order", willContinue=True)),
    chunk(function_call(partialArgs=[piece("$.name", True, stringValue="Ro")], willContinue=True)),
    chunk(function_call(partialArgs=[piece("$.name", stringValue="me")], willContinue=True)),
    chunk(function_call(partialArgs=[piece("$.ops[0].kind", stringValue="buy")], willContinue=True)),
    chunk(function_call(partialArgs=[piece("$.ops[1].price", numberValue=1.5)], willContinue=True)),
    chunk(
        function_call(partialArgs=[piece("$.rush", boolValue=True), piece("$.tag", nullValue=None)], willContinue=True)
    ),
]
ORDERED = {"name": "Rome", "ops": [{"kind": "buy"}, {"price": 1.5}], "rush": True, "tag": None}


@pytest.mark.parametrize(
    "ending",
    [
        [chunk(function_call()), chunk(finishReason="STOP")],
        [chunk(finishReason="STOP")],
        [chunk(function_call("now", args={}), finishReason="STOP")],
    ],
    ids=["terminator", "missing terminator", "next call"],
)
def test_quirk_43_streamed_arguments(ending: list[dict[str, Any]]) -> None:
    turn = answer(ADAPTER, sse([*PARTIAL, *ending]))
    assert json.loads(turn.tool_calls[0].arguments) == ORDERED
    assert all(c.complete for c in turn.tool_calls)


def test_quirk_43_streamed_arguments_start_early_and_may_be_cut() -> None:
    found = events(ADAPTER, sse([*PARTIAL, chunk(finishReason="MAX_TOKENS")]))
    assert isinstance(found[0], ToolCallStart)
    turn = answer(ADAPTER, sse([*PARTIAL, chunk(finishReason="MAX_TOKENS")]))
    assert [c.complete for c in turn.tool_calls] == [False]
    assert turn.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "OTHER", "LANGUAGE", "A_REASON_OF_NEXT_YEAR"])
def test_quirk_69_a_streamed_call_that_any_reason_but_stop_broke_off_is_not_run(reason: str) -> None:
    begun = chunk(function_call(name="now", willContinue=True))
    for stream in ([begun], PARTIAL):
        turn = answer(ADAPTER, sse([*stream, chunk(finishReason=reason)]))
        assert [c.complete for c in turn.tool_calls] == [False]
    turn = answer(ADAPTER, sse([begun, chunk(finishReason="STOP")]))
    assert [(c.arguments, c.complete) for c in turn.tool_calls] == [("{}", True)]


#: google-genai's FinishReason, by what they say of a turn: whole, cut at a limit, stopped by a filter, not known.
REASONS = {
    FinishReason.TOOL_CALLS: ["STOP", "UNEXPECTED_TOOL_CALL"],
    FinishReason.LENGTH: ["MAX_TOKENS", "CONTINUATION"],
    FinishReason.CONTENT_FILTER: [
        *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "ESCALATION"),
        *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
    ],
    FinishReason.OTHER: [
        *("OTHER", "LANGUAGE", "FINISH_REASON_UNSPECIFIED", "TOO_MANY_TOOL_CALLS", "NO_IMAGE", "IMAGE_OTHER"),
        *("A_REASON_OF_NEXT_YEAR", "stop"),
    ],
}
NO_ANSWER = {"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "MISSING_THOUGHT_SIGNATURE", "PUP_LIMITED_DISABLED"}


@pytest.mark.parametrize(("finish", "reason"), [(finish, each) for finish, all_ in REASONS.items() for each in all_])
def test_quirk_69_only_a_known_reason_makes_whole_calls_complete(finish: FinishReason, reason: str) -> None:
    """A whole call is complete if nothing but a limit cut its turn; one that is being streamed, if nothing did."""
    same = function_call("look", args={"n": 1})
    stream = [chunk(same), chunk(same), chunk({"text": "."})]
    turn = answer(ADAPTER, sse([*stream, chunk(finishReason=reason)]))
    assert (turn.finish_reason, turn.raw_finish_reason) == (finish, reason)
    is_unbroken = finish in (FinishReason.TOOL_CALLS, FinishReason.LENGTH)
    assert [call.complete for call in turn.tool_calls] == [is_unbroken] * 2
    turn = answer(ADAPTER, sse([chunk(same), *PARTIAL, chunk(finishReason=reason)]))
    is_whole = finish is FinishReason.TOOL_CALLS
    assert [call.complete for call in turn.tool_calls] == [is_unbroken, is_whole]


def test_quirk_69_every_reason_of_the_official_types_is_known_here() -> None:
    ours = {reason for reasons in REASONS.values() for reason in reasons} | NO_ANSWER
    assert {reason.value for reason in Lazy("google.genai.types").FinishReason} <= ours


def test_a_turn_that_could_be_continued_is_noted() -> None:
    turn = answer(ADAPTER, sse([chunk({"text": "A"}, finishReason="CONTINUATION", continuationToken="dG9r")]))
    assert turn.finish_reason is FinishReason.LENGTH
    assert "continuationToken" in " ".join(turn.notes)


def test_quirk_44_signatures_go_back_on_the_very_part() -> None:
    tool_call = {"toolCall": {"id": "s", "toolType": "X"}, "thoughtSignature": "s4"}
    stream = [
        chunk({"text": "Hmm", "thought": True}),
        chunk({"text": "", "thought": True, "thoughtSignature": "s0"}),
        chunk({"text": "A"}),
        chunk({"text": "B", "thoughtSignature": "s1"}),
        chunk({"text": "C"}),
        chunk({**function_call("now", args={}), "thoughtSignature": "s2"}, function_call("now", args={})),
        chunk(tool_call),
        chunk({"text": "", "thoughtSignature": "s3"}, finishReason="STOP"),
    ]
    turn = answer(ADAPTER, sse(stream, newline="\r\n"))
    assert turn.text == "ABC"
    results = [result(c.call_id) for c in turn.tool_calls]
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, *results)["contents"][1]["parts"]
    assert sent == [
        {"text": "", "thought": True, "thoughtSignature": "s0"},
        {"text": "A"},
        {"text": "B", "thoughtSignature": "s1"},
        {"text": "C"},
        {"functionCall": {"name": "now", "args": {}}, "thoughtSignature": "s2"},
        {"functionCall": {"name": "now", "args": {}}},
        tool_call,
        {"text": "", "thoughtSignature": "s3"},
    ]


def test_quirk_45_a_blocked_prompt_is_a_filter() -> None:
    blocked = {"promptFeedback": {"blockReason": "MODEL_ARMOR"}, "usageMetadata": USAGE}
    turn = answer(ADAPTER, sse([blocked]))
    assert (turn.finish_reason, turn.raw_finish_reason, turn.error) == (
        FinishReason.CONTENT_FILTER,
        "MODEL_ARMOR",
        None,
    )


def test_quirk_28_crlf_cut_between_its_bytes() -> None:
    data = sse([chunk({"text": "A"}), chunk({"text": "B"}, finishReason="STOP")], newline="\r\n")
    assert answer(ADAPTER, data, [data.index(b"\r") + 1]).text == "AB"


def test_usage_adds_thoughts_to_the_output() -> None:
    turn = answer(ADAPTER, sse([chunk({"text": "A"}, finishReason="STOP"), {"usageMetadata": {"trafficType": "X"}}]))
    assert turn.usage == Usage(10, 8, cached_tokens=4, reasoning_tokens=3)
    assert turn.raw_usage["trafficType"] == "X"
    assert turn.model == "gemini-x"


@pytest.mark.parametrize("indent", [None, 2])
def test_without_alt_sse_the_stream_is_one_array(indent: int | None) -> None:
    documents = [chunk({"text": 'A "quoted, [x] \\" {'}), chunk({"text": "B"}, finishReason="STOP")]
    data = json.dumps(documents, indent=indent).encode()
    assert answer(ADAPTER, data, [1]).text == 'A "quoted, [x] \\" {B'
    # The first element is told before the second has come.
    decoder = ADAPTER.decoder()
    assert decoder.feed(data[: data.index(b'"B"')])
    assert answer(ADAPTER, data[:-1]).error is not None


def test_an_error_in_the_array() -> None:
    error = {"error": {"code": 429, "message": "Slow", "status": "RESOURCE_EXHAUSTED", "details": []}}
    (found,) = events(ADAPTER, json.dumps([error]).encode())
    assert isinstance(found, Error)
    assert (found.kind, found.retryable) == (ErrorKind.RATE_LIMITED, True)


def test_fuzz_found_an_error_in_a_whole_array_is_its_end() -> None:
    documents = [{"error": "stop"}, chunk(function_call("now"), finishReason="STOP")]
    (found,) = events(ADAPTER, json.dumps(documents).encode(), streaming=False)
    assert isinstance(found, Error)


def test_the_retry_delay_stands_in_the_body() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}]
    error = {"error": {"code": 429, "message": "Slow", "status": "RESOURCE_EXHAUSTED", "details": details}}
    for document in (error, [error]):
        (found,) = events(ADAPTER, json.dumps(document).encode(), status=429)
        assert isinstance(found, Error)
        assert (found.kind, found.retry_after) == (ErrorKind.RATE_LIMITED, 34.0)


def test_the_end_without_a_finish_reason_is_a_cut() -> None:
    turn = answer(ADAPTER, sse([chunk({"text": "A"})]))
    assert turn.error is not None
    assert turn.error.kind is ErrorKind.TRUNCATED


def test_only_the_first_candidate_is_told() -> None:
    second = {"candidates": [{"index": 1, "content": {"parts": [{"text": "no"}]}, "finishReason": "SAFETY"}]}
    turn = answer(ADAPTER, sse([second, chunk({"text": "yes"}, finishReason="STOP")]))
    assert (turn.text, turn.finish_reason) == ("yes", FinishReason.STOP)
    assert turn.notes == ("the answer has several candidates; all but the first were left out",)


def test_fields_that_are_null_are_not_there() -> None:
    names = ("text", "thought", "functionCall", "inlineData", "fileData", "executableCode", "thoughtSignature")
    empty = dict.fromkeys(names)
    parts = (
        {"text": "Hi"},
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "AAECAw=="}},
        function_call("now"),
    )
    found = answer(ADAPTER, sse([chunk(*({**empty, **part} for part in parts), finishReason="STOP")]))
    assert found == answer(ADAPTER, sse([chunk(*parts, finishReason="STOP")]))
    assert len(found.parts) == 4


def test_a_whole_answer() -> None:
    document = chunk({"text": "Hmm", "thought": True}, {"text": "Hi"}, function_call("now"), finishReason="STOP")
    turn = answer(ADAPTER, json.dumps(document).encode(), streaming=False)
    assert (turn.thinking, turn.text, len(turn.tool_calls)) == ("Hmm", "Hi", 1)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("MALFORMED_FUNCTION_CALL", ErrorKind.MALFORMED_TOOL_CALL),
        ("MALFORMED_RESPONSE", ErrorKind.MALFORMED),
        ("MISSING_THOUGHT_SIGNATURE", ErrorKind.INVALID_REQUEST),
        ("PUP_LIMITED_DISABLED", ErrorKind.PERMISSION),
    ],
)
def test_finish_reasons_that_mean_that_there_is_no_answer(reason: str, kind: ErrorKind) -> None:
    (found,) = events(ADAPTER, sse([chunk(finishReason=reason)]))
    assert isinstance(found, Error)
    assert found.kind is kind


def test_an_array_that_is_never_closed_was_cut() -> None:
    whole = b"[" + json.dumps(chunk({"text": "Hi"})).encode() + b","
    (*_, last) = events(ADAPTER, whole)
    assert isinstance(last, Error)
    assert last.kind is ErrorKind.TRUNCATED
