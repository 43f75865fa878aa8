"""Answers of the Converse API: whole, streamed, cut anywhere, and broken; beside botocore's own readers."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.aws_model import read_stream, read_whole
from support.event_frames import METADATA, USAGE, converse_events, delta, event, exception, frame, stop, stream
from support.examples import examples
from support.wire import answer, body, events

from callboard.protocol.content import Citation, Image, Replay, ServerTool, Text, Thinking, ToolCall, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Done, Error, FinishReason, ModelResponse, Usage
from callboard.providers.bedrock.converse_api import Bedrock

ADAPTER = Bedrock(api_key="bedrock-api-key-1234567890")
HEADERS = {"content-type": "application/vnd.amazon.eventstream", "x-amzn-requestid": "11111111-2222"}


def streamed(*told: tuple[str, Any], sizes: tuple[int, ...] = (65536,)) -> ModelResponse:
    return answer(ADAPTER, stream([("messageStart", {"role": "assistant"}), *told]), sizes, headers=HEADERS)


def whole(content: list[Any], reason: str = "end_turn", **more: Any) -> ModelResponse:
    document = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": reason}
    data = json.dumps({**document, "usage": USAGE, "metrics": {"latencyMs": 300}, **more}).encode()
    return answer(ADAPTER, data, headers={"x-amzn-requestid": "11111111-2222"}, streaming=False)


# A streamed answer and its whole twin.

_words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
_base64 = st.binary(min_size=1, max_size=12).map(lambda data: b64encode(data).decode())
_inputs = st.dictionaries(st.text(max_size=4), st.one_of(st.integers(-9, 9), st.text(max_size=4)), max_size=3)
_citations = st.lists(
    st.builds(
        lambda title, cited, place: {
            "title": title,
            "sourceContent": [{"text": cited}],
            "location": {"documentChar": {"documentIndex": place, "start": 1, "end": 2}},
        },
        _words,
        _words,
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=2,
)
_reasoning = st.builds(
    lambda text, signature: {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}},
    _words,
    _words,
)
_blocks = st.lists(
    st.one_of(
        st.builds(lambda text: {"text": text}, _words),
        _reasoning,
        st.builds(lambda data: {"reasoningContent": {"redactedContent": data}}, _base64),
        st.builds(
            lambda name, given: {"toolUse": {"name": name, "input": given}}, st.sampled_from(["a", "b"]), _inputs
        ),
        st.builds(
            lambda given: {"toolUse": {"name": "nova_grounding", "input": given, "type": "server_tool_use"}}, _inputs
        ),
        st.builds(lambda text: {"toolResult": {"content": [{"text": text}], "type": "nova_grounding_result"}}, _words),
        st.builds(
            lambda text, cited: {"citationsContent": {"content": [{"text": text}], "citations": cited}},
            _words,
            _citations,
        ),
        st.builds(lambda data: {"image": {"format": "png", "source": {"bytes": data}}}, _base64),
    ),
    max_size=5,
)


def _identified(blocks: list[Any]) -> list[Any]:
    """With ids: a result has that of the provider's own call before it, if there is one."""
    identified, own = [], "none"
    for place, block in enumerate(blocks):
        ((kind, value),) = block.items()
        if kind == "toolUse":
            value = {**value, "toolUseId": f"tooluse_{place}"}
            own = value["toolUseId"] if "type" in value else own
        elif kind == "toolResult":
            value = {**value, "toolUseId": own}
        identified.append({kind: value})
    return identified


def _unpaired(blocks: list[Any]) -> set[str]:
    """Ids of the provider's own calls and results whose other half is missing."""
    ids = {kind: {block[kind]["toolUseId"] for block in blocks if kind in block} for kind in ("toolUse", "toolResult")}
    return ids["toolUse"] ^ ids["toolResult"]


@settings(max_examples=examples(200), deadline=None)
@given(
    _blocks.map(_identified),
    st.sampled_from(["end_turn", "tool_use", "max_tokens", "guardrail_intervened", "something_new"]),
    st.integers(1, 9),
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
)
def test_a_streamed_answer_is_its_whole_twin(blocks: list[Any], reason: str, size: int, cuts: list[int]) -> None:
    data = stream(converse_events(blocks, reason, size))
    live = answer(ADAPTER, data, cuts, headers=HEADERS)
    assert live == answer(ADAPTER, data, headers=HEADERS)
    twin = whole(blocks, reason)
    assert _compared(live) == _compared(twin)
    if not twin.tool_calls:  # (calls need results before they can go back)
        _goes_back(blocks, twin)


def _compared(response: ModelResponse) -> ModelResponse:
    """Arguments as values: a stream keeps the very text that its model wrote."""
    parts = [
        replace(part, arguments=json.dumps(json.loads(part.arguments))) if isinstance(part, ToolCall) else part
        for part in response.parts
    ]
    return replace(response, parts=tuple(parts))


def _goes_back(blocks: list[Any], response: ModelResponse) -> None:
    """What came is what is sent with the next question."""
    if not response.parts:
        return
    sent = body(ADAPTER, UserMessage.of("Hi"), response.message, UserMessage.of("Go on"), model="us.amazon.nova-2-lite")
    turn = next((message["content"] for message in sent["messages"] if message["role"] == "assistant"), [])
    lost = _unpaired(blocks)
    expected = [
        block
        for block in blocks
        if not ("text" in block and not block["text"].strip())
        and block.get("toolUse", block.get("toolResult", {})).get("toolUseId") not in lost
    ]
    assert turn == expected


@settings(max_examples=examples(60), deadline=None)
@given(_blocks.map(_identified), st.integers(1, 9))
def test_text_and_calls_are_those_that_botocore_reads(blocks: list[Any], size: int) -> None:
    data = stream(converse_events(blocks, "end_turn", size))
    read = read_stream(data)
    pieces = [each["contentBlockDelta"]["delta"] for each in read if "contentBlockDelta" in each]
    live = answer(ADAPTER, data, headers=HEADERS)
    assert live.text == "".join(piece.get("text", "") for piece in pieces)
    assert live.thinking == "".join(piece.get("reasoningContent", {}).get("text", "") for piece in pieces)
    usage = next(each["metadata"]["usage"] for each in read if "metadata" in each)
    searches = sum(block.get("toolUse", {}).get("name") == "nova_grounding" for block in blocks)
    assert live.usage == Usage(usage["inputTokens"], usage["outputTokens"], web_searches=searches)
    document = {"output": {"message": {"role": "assistant", "content": blocks}}, "stopReason": "end_turn"}
    theirs = read_whole(json.dumps({**document, "usage": USAGE, "metrics": {"latencyMs": 1}}).encode())
    uses = [block["toolUse"] for block in theirs["output"]["message"]["content"] if "toolUse" in block]
    ours = [(call.call_id, call.name, json.loads(call.arguments)) for call in whole(blocks).tool_calls]
    assert ours == [(use["toolUseId"], use["name"], use["input"]) for use in uses if "type" not in use]


# The end of a turn.


def call_events(text: str = '{"city": "Rome"}', index: int = 0) -> list[tuple[str, Any]]:
    start = {"toolUse": {"toolUseId": f"tooluse_{index}", "name": "lookup"}}
    return [
        ("contentBlockStart", {"contentBlockIndex": index, "start": start}),
        delta(index, toolUse={"input": text}),
        ("contentBlockStop", {"contentBlockIndex": index}),
    ]


@pytest.mark.parametrize(
    ("reason", "finish", "complete"),
    [
        ("tool_use", FinishReason.TOOL_CALLS, [True, True]),
        ("end_turn", FinishReason.TOOL_CALLS, [True, True]),
        ("stop_sequence", FinishReason.TOOL_CALLS, [True, True]),
        ("max_tokens", FinishReason.LENGTH, [True, False]),
        ("model_context_window_exceeded", FinishReason.LENGTH, [True, False]),
        ("guardrail_intervened", FinishReason.CONTENT_FILTER, [False, False]),
        ("content_filtered", FinishReason.CONTENT_FILTER, [False, False]),
        ("a_reason_of_next_year", FinishReason.OTHER, [False, False]),
    ],
)
def test_quirk_69_an_unknown_reason_completes_no_call_and_the_length_limit_not_the_last(
    reason: str, finish: FinishReason, complete: list[bool]
) -> None:
    live = streamed(*call_events(), *call_events(index=1), stop(reason), METADATA)
    use = {"name": "lookup", "input": {"city": "Rome"}}
    twin = whole([{"toolUse": {**use, "toolUseId": f"tooluse_{n}"}} for n in range(2)], reason)
    for response in (live, twin):
        assert [call.complete for call in response.tool_calls] == complete
        assert (response.finish_reason, response.raw_finish_reason) == (finish, reason)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("malformed_tool_use", ErrorKind.MALFORMED_TOOL_CALL), ("malformed_model_output", ErrorKind.MALFORMED)],
)
def test_a_turn_that_is_no_answer_is_an_error(reason: str, kind: ErrorKind) -> None:
    for response in (streamed(delta(0, text="x"), stop(reason), METADATA), whole([{"text": "x"}], reason)):
        assert response.error is not None
        assert (response.error.kind, response.error.code) == (kind, reason)


def test_a_call_without_arguments_has_none_and_one_with_half_of_them_is_never_run() -> None:
    assert streamed(*call_events(""), stop("tool_use"), METADATA).tool_calls[0].arguments == "{}"
    (half,) = streamed(*call_events('{"city": "Ro'), stop("tool_use"), METADATA).tool_calls
    assert (half.complete, half.arguments) == (False, '{"city": "Ro')


def test_the_stream_is_cut_at_every_byte() -> None:
    data = stream([("messageStart", {"role": "assistant"}), delta(0, text="Hi"), stop("end_turn"), METADATA])
    end = len(data) - len(event(*METADATA))
    for length in range(1, len(data)):
        found = answer(ADAPTER, data[:length], headers=HEADERS)
        if length == end:  # whole but for its bill
            assert (found.error, found.text, found.usage) == (None, "Hi", None)
        else:
            assert found.error is not None, length
            assert found.error.kind in (ErrorKind.TRUNCATED, ErrorKind.MALFORMED)
            assert found.error.kind is ErrorKind.TRUNCATED or length < len(event("messageStart", {"role": "assistant"}))


def test_usage_counts_the_cache_into_the_input() -> None:
    usage = {
        **USAGE,
        "cacheReadInputTokens": 100,
        "cacheWriteInputTokens": 30,
        "cacheDetails": [{"ttl": "1h", "inputTokens": 20}, {"ttl": "5m", "inputTokens": 10}],
    }
    expected = Usage(142, 7, cached_tokens=100, cache_write_tokens=30, cache_write_1h_tokens=20)
    told = ("metadata", {"usage": usage, "metrics": {"latencyMs": 1}})
    for response in (streamed(delta(0, text="x"), stop("end_turn"), told), whole([{"text": "x"}], usage=usage)):
        assert response.usage == expected
        assert response.raw_usage == usage
    assert whole([{"text": "x"}], usage={}).usage is None
    assert whole([{"text": "x"}], usage={"inputTokens": -1, "outputTokens": "7"}).usage is None


def test_what_else_an_answer_tells() -> None:
    more = {
        "serviceTier": {"type": "flex"},
        "trace": {
            "promptRouter": {"invokedModelId": "arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-lite-v1:0"}
        },
    }
    told = ("metadata", {**METADATA[1], **more})
    for response in (streamed(delta(0, text="x"), stop("end_turn"), told), whole([{"text": "x"}], **more)):
        assert response.service_tier == "flex"
        assert response.model.endswith("amazon.nova-lite-v1:0")
        assert response.provider_request_id == "11111111-2222"


def test_citations_and_novas_own_tools_are_shown() -> None:
    cited = {
        "title": "T",
        "sourceContent": [{"text": "cited"}],
        "location": {"web": {"url": "https://example.org/a", "domain": "example.org"}},
    }
    use = {"toolUseId": "t1", "name": "nova_grounding", "type": "server_tool_use", "input": {"query": "Rome"}}
    result = {"toolUseId": "t1", "type": "nova_grounding_result", "content": [{"text": "found"}], "status": "success"}
    response = whole(
        [
            {"toolUse": use},
            {"toolResult": result},
            {"citationsContent": {"content": [{"text": "Yes."}], "citations": [cited]}},
        ]
    )
    assert response.parts == (
        ServerTool("toolUse", Replay("bedrock", {"toolUse": use}), "web_search", "t1", '{"query":"Rome"}'),
        ServerTool("toolResult", Replay("bedrock", {"toolResult": result}), "web_search", "t1", "found"),
        Text(
            "Yes.",
            Replay("bedrock", {"citations": [cited]}),
            (Citation("https://example.org/a", "T", "cited", raw=cited),),
        ),
    )


def test_reasoning_that_was_cut_off_does_not_go_back_as_if_it_were_signed() -> None:
    response = streamed(
        delta(0, reasoningContent={"text": "Hm"}), delta(0, reasoningContent={"signature": "c2"}), stop("max_tokens")
    )
    assert response.parts == (Thinking("Hm"),)


def test_a_picture_comes_in_pieces() -> None:
    response = streamed(
        ("contentBlockStart", {"contentBlockIndex": 0, "start": {"image": {"format": "jpeg"}}}),
        delta(0, image={"source": {"bytes": b64encode(b"ab").decode()}}),
        delta(0, image={"source": {"bytes": b64encode(b"cde").decode()}}),
        stop("end_turn"),
    )
    assert response.parts == (Image("image/jpeg", b64encode(b"abcde").decode(), replay=Replay("bedrock", {})),)


# Errors.


@pytest.mark.parametrize(
    ("kind", "expected", "retryable"),
    [
        ("throttlingException", ErrorKind.RATE_LIMITED, True),
        ("serviceUnavailableException", ErrorKind.OVERLOADED, True),
        ("internalServerException", ErrorKind.SERVER, True),
        ("modelStreamErrorException", ErrorKind.SERVER, True),
        ("modelTimeoutException", ErrorKind.TIMEOUT, True),
        ("validationException", ErrorKind.INVALID_REQUEST, False),
    ],
)
def test_an_exception_in_the_stream_is_the_error(kind: str, expected: ErrorKind, retryable: bool) -> None:
    data = stream([("messageStart", {"role": "assistant"}), delta(0, text="Hi")]) + exception(kind, "it went wrong")
    for sizes in ([1], [len(data)]):
        found = events(ADAPTER, data, sizes, headers=HEADERS)[-1]
        assert isinstance(found, Error)
        assert (found.kind, found.retryable, found.code) == (expected, retryable, kind)
        assert "it went wrong" in found.message


def test_a_call_that_the_model_got_wrong_is_named_in_the_stream_and_asked_again() -> None:
    """strands-agents/harness-sdk#649, langchain-aws#567: Nova."""
    words = (
        "Model produced invalid sequence as part of ToolUse. Please refer to the model tool use troubleshooting guide."
    )
    data = stream([("messageStart", {"role": "assistant"})]) + exception("modelStreamErrorException", words)
    found = events(ADAPTER, data, [len(data)], headers=HEADERS)[-1]
    assert isinstance(found, Error)
    assert (found.kind, found.retryable, found.message) == (ErrorKind.MALFORMED_TOOL_CALL, True, words)


def test_an_unmodelled_error_in_the_stream() -> None:
    headers = {":message-type": "error", ":error-code": "InternalFailure", ":error-message": "oh"}
    found = events(ADAPTER, frame(headers, b""), headers=HEADERS)[-1]
    assert isinstance(found, Error)
    assert (found.kind, found.message, found.code) == (ErrorKind.SERVER, "oh", "InternalFailure")


@pytest.mark.parametrize(
    ("status", "code", "message", "expected"),
    [
        (429, "ThrottlingException", "Too many tokens, please wait before trying again.", ErrorKind.RATE_LIMITED),
        (400, "ValidationException", "Malformed input request", ErrorKind.INVALID_REQUEST),
        (429, "ModelNotReadyException", "The model is not ready for inference.", ErrorKind.OVERLOADED),
        (
            403,
            "AccessDeniedException",
            "You don't have access to the model with the specified model ID.",
            ErrorKind.PERMISSION,
        ),
        (
            403,
            "ExpiredTokenException",
            "The security token included in the request is expired",
            ErrorKind.AUTHENTICATION,
        ),
        (
            403,
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
            ErrorKind.AUTHENTICATION,
        ),
        (403, "InvalidSignatureException", "Signature expired", ErrorKind.AUTHENTICATION),
        (404, "ResourceNotFoundException", "Could not resolve the foundation model", ErrorKind.NOT_FOUND),
        (408, "ModelTimeoutException", "timed out", ErrorKind.TIMEOUT),
        (424, "ModelErrorException", "the model failed", ErrorKind.SERVER),
        (402, "ServiceQuotaExceededException", "quota", ErrorKind.BILLING),
        (503, "ServiceUnavailableException", "busy", ErrorKind.OVERLOADED),
        (500, "InternalServerException", "oh", ErrorKind.SERVER),
    ],
)
def test_http_errors_by_their_name_in_the_header(status: int, code: str, message: str, expected: ErrorKind) -> None:
    headers = {"x-amzn-errortype": f"{code}:http://internal.amazon.com/coral/com.amazon.bedrock/"}
    data = json.dumps({"message": message}).encode()
    (found,) = events(ADAPTER, data, status=status, headers=headers)
    assert isinstance(found, Error)
    assert (found.kind, found.code, found.status) == (expected, code, status)
    assert message in found.message
    told = {"__type": f"com.amazon.coral.service#{code}", "Message": message}
    (found,) = events(ADAPTER, json.dumps(told).encode(), status=status)
    assert isinstance(found, Error)
    assert (found.kind, found.code) == (expected, code)


@pytest.mark.parametrize(
    "message",
    [
        "Input is too long for requested model.",
        "The model returned the following errors: Input is too long for requested model.",
        "The model returned the following errors: prompt is too long: 903884 tokens > 200000 maximum",
        "The model returned the following errors: input length and `max_tokens` exceed context limit: 9 + 2 > 10",
        "This model's maximum context length is 202752 tokens. However, you requested 65536 output tokens",
    ],
)
def test_a_context_that_is_too_long_is_one_kind_of_error(message: str) -> None:
    headers = {"x-amzn-errortype": "ValidationException"}
    (found,) = events(ADAPTER, json.dumps({"message": message}).encode(), status=400, headers=headers)
    assert isinstance(found, Error)
    assert found.kind is ErrorKind.CONTEXT_LENGTH
    in_stream = events(ADAPTER, exception("validationException", message), headers=HEADERS)[-1]
    assert isinstance(in_stream, Error)
    assert in_stream.kind is ErrorKind.CONTEXT_LENGTH


@pytest.mark.parametrize("data", [b"<html>Bad gateway</html>", b'{"message":', b"data: {}\n\n", b"", b"\x00" * 40])
def test_a_server_that_answers_nonsense_is_one_error(data: bytes) -> None:
    for sizes in ([1], [64]):
        (found,) = events(ADAPTER, data, sizes, headers=HEADERS)
        assert isinstance(found, Error)
        assert found.kind in (ErrorKind.MALFORMED, ErrorKind.TRUNCATED)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_no_bytes_make_the_decoder_raise(data: st.DataObject) -> None:
    told = bytearray(
        stream(
            converse_events(
                [{"text": "Hello"}, {"toolUse": {"name": "a", "input": {}, "toolUseId": "t"}}], "tool_use", 2
            )
        )
    )
    for _ in range(data.draw(st.integers(0, 3))):
        told[data.draw(st.integers(0, len(told) - 1))] = data.draw(st.integers(0, 255))
    found = events(ADAPTER, bytes(told), [data.draw(st.integers(1, 60))], headers=HEADERS)
    assert isinstance(found[-1], Done | Error)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(["contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata", "x"]),
    st.recursive(
        st.one_of(st.none(), st.integers(-2, 3), st.text(max_size=3), st.sampled_from(["toolUse", "text"])),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    ["delta", "start", "toolUse", "text", "contentBlockIndex", "reasoningContent", "citation", "image",
                     "toolResult", "redactedContent", "signature", "name", "input", "usage", "stopReason", "location"]
                ),
                inner,
                max_size=3,
            ),
        ),
        max_leaves=6,
    ),
)  # fmt: skip
def test_documents_of_any_shape_are_read_or_refused(kind: str, document: Any) -> None:
    told = [("messageStart", {"role": "assistant"}), (kind, document), stop("end_turn"), METADATA]
    found = events(ADAPTER, stream(told), headers=HEADERS)
    assert isinstance(found[-1], Done | Error)
