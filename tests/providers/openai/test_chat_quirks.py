"""The quirks of docs/wire.md section 2 that the Chat Completions family shows, each by its number."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from support.wire import answer, body, sse

from callboard.protocol.content import AssistantMessage, Replay, Text, ToolCall, ToolMessage, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, ModelResponse
from callboard.providers.adapter import Adapter
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.openrouter import OpenRouter
from callboard.providers.provider_registry import adapter_for
from callboard.providers.request_encoding import MISTRAL_IDS

COMPATIBLE = OpenAIChat(dialect=SERVERS["vllm"])
#: The stream byte by byte, in odd pieces and whole: each test runs all three, and all must agree.
CHUNKINGS = ((1,), (7, 2, 64), (65536,))


def chunk(delta: dict[str, Any] | None = None, finish: Any = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields}


def call(index: int | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk with one tool call delta; `name` and `arguments` go into its function."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    place = {} if index is None else {"index": index}
    return chunk({"tool_calls": [{**place, **fields, "function": function}]})


def streamed(*documents: Any, adapter: Adapter = COMPATIBLE, done: bool = True) -> ModelResponse:
    return read(sse(documents, done=done), adapter)


def read(data: bytes, adapter: Adapter = COMPATIBLE) -> ModelResponse:
    responses = [answer(adapter, data, sizes) for sizes in CHUNKINGS]
    assert responses[0] == responses[1] == responses[2]
    return responses[0]


def whole(message: dict[str, Any], finish: str | None = "stop", adapter: Adapter = COMPATIBLE) -> ModelResponse:
    document = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return answer(adapter, orjson.dumps(document), streaming=False)


def calls(response: ModelResponse) -> list[tuple[str, str, str]]:
    assert response.error is None
    assert all(call.complete for call in response.tool_calls)
    return [(call.call_id, call.name, call.arguments) for call in response.tool_calls]


FINISH = chunk(finish="tool_calls")


def test_quirk_01_continuation_without_id_goes_by_index() -> None:
    response = streamed(
        call(0, id="a", name="f", arguments="{"), call(1, id="b", name="g", arguments="{"), call(0, arguments="}"),
        call(1, arguments="}"), FINISH,
    )  # fmt: skip
    assert calls(response) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_quirk_02_first_delta_without_id_gets_a_stable_one() -> None:
    response = streamed(call(0, name="f", arguments='{"x":'), call(0, arguments="1}"), FINISH)
    [(call_id, name, arguments)] = calls(response)
    assert (name, arguments) == ("f", '{"x":1}')
    assert call_id.startswith("call_")


def test_quirk_03_an_empty_id_is_no_id() -> None:
    response = streamed(call(0, id="a", name="f", arguments='{"x"'), call(0, id="", name="", arguments=":1}"), FINISH)
    assert calls(response) == [("a", "f", '{"x":1}')]


def test_quirk_04_no_index_at_all() -> None:
    response = streamed(
        call(id="a", name="f", arguments='{"x"'), call(arguments=":1}"), call(id="b", name="f", arguments="{}"), FINISH
    )
    assert calls(response) == [("a", "f", '{"x":1}'), ("b", "f", "{}")]


@pytest.mark.parametrize("ids", [("a", "b"), ("", "")])
def test_quirk_04_several_calls_in_one_piece_without_an_index_go_by_their_place(ids: tuple[str, str]) -> None:
    def together(*pieces: dict[str, Any]) -> dict[str, Any]:
        return chunk({"tool_calls": list(pieces)})

    def piece(arguments: str, **fields: str) -> dict[str, Any]:
        name = {"name": fields.pop("name")} if "name" in fields else {}
        return {**fields, "function": {"arguments": arguments, **name}}

    response = streamed(
        together(piece("", id=ids[0], name="f"), piece("", id=ids[1], name="g")),
        together(piece('{"x"'), piece('{"y"')),
        together(piece(":1}"), piece(":2}")),
        # More of them, at the same places.
        together(piece('{"z":', id="c", name="f"), piece("{}", id="d", name="g")),
        together(piece("3}"), piece("")),
        FINISH,
    )
    found = [(name, arguments) for _, name, arguments in calls(response)]
    assert found == [("f", '{"x":1}'), ("g", '{"y":2}'), ("f", '{"z":3}'), ("g", "{}")]
    assert [each for each, *_ in calls(response)][2:] == ["c", "d"]


def test_quirk_05_every_parallel_call_at_index_0() -> None:
    response = streamed(
        call(0, id="a", name="f", arguments='{"n":1}'), call(0, id="b", name="f", arguments='{"n":'),
        call(0, arguments="2}"), FINISH,
    )  # fmt: skip
    assert calls(response) == [("a", "f", '{"n":1}'), ("b", "f", '{"n":2}')]


def test_quirk_06_the_first_tool_at_index_1() -> None:
    assert calls(streamed(call(1, id="a", name="f", arguments="{}"), FINISH)) == [("a", "f", "{}")]


def test_quirk_07_id_and_name_in_every_delta() -> None:
    response = streamed(
        call(0, id="0", type="function", name="llm_version", arguments=""),
        call(0, id="0", type="function", name="llm_version", arguments="{}"),
        FINISH,
    )
    assert calls(response) == [("0", "llm_version", "{}")]


def test_quirk_08_function_without_or_with_null_arguments() -> None:
    response = streamed(call(0, id="a", name="f"), call(0, arguments=None), call(0, arguments="{}"), FINISH)
    assert calls(response) == [("a", "f", "{}")]
    assert calls(streamed(call(0, id="a", name="f", arguments='{"whole":1}'), FINISH)) == [("a", "f", '{"whole":1}')]


def test_quirk_09_no_arguments_are_an_empty_object_and_go_back_as_one() -> None:
    assert calls(streamed(call(0, id="a", name="f", arguments=""), FINISH)) == [("a", "f", "{}")]
    without = whole({"content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]})
    assert calls(without) == [("a", "f", "{}")]
    history = (UserMessage.of("?"), without.message, ToolMessage(CallId("a"), ToolName("f"), "ok"))
    assert body(COMPATIBLE, *history)["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_quirk_10_arguments_as_an_object_or_encoded_twice() -> None:
    assert calls(streamed(call(0, id="a", name="f", arguments={"x": 1}), FINISH)) == [("a", "f", '{"x":1}')]
    assert calls(streamed(call(0, id="a", name="f", arguments='"{\\"x\\":1}"'), FINISH)) == [("a", "f", '{"x":1}')]


@pytest.mark.parametrize("pieces", [("{}", ' and "more"'), ("1", "2"), ('{"a":1}', '{"b":2}')])
def test_quirk_11_what_parses_so_far_is_not_complete(pieces: tuple[str, str]) -> None:
    response = streamed(call(0, id="a", name="f", arguments=pieces[0]), call(0, arguments=pieces[1]), FINISH)
    assert response.tool_calls == (ToolCall(CallId("a"), ToolName("f"), "".join(pieces), complete=False),)


def test_quirk_17_chunks_without_choices() -> None:
    first = {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    response = streamed(
        first, chunk({"content": "hi"}), chunk(finish="stop"), chunk() | {"choices": [], "usage": usage}
    )
    assert (response.text, response.model) == ("hi", "m")
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.cached_tokens) == (5, 2, 3)
    assert response.raw_usage == usage


def test_quirk_18_usage_on_every_chunk_is_a_running_total() -> None:
    totals = [{"prompt_tokens": 5, "completion_tokens": n} for n in (1, 2)]
    response = streamed(
        chunk({"content": "a"}, usage=totals[0]),
        chunk({"content": "b"}, usage=totals[1]),
        chunk(finish="stop", usage=None),
    )
    assert response.usage.output_tokens == 2
    groq = streamed(chunk({"content": "a"}), chunk(finish="stop", x_groq={"id": "r", "usage": totals[1]}))
    assert groq.usage.output_tokens == 2


def test_quirk_19_the_finish_chunk_twice() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.5}
    response = streamed(
        chunk({"content": "a"}), chunk(finish="stop"), chunk(finish="stop", usage=usage), adapter=OpenRouter()
    )
    assert (response.finish_reason, response.raw_usage["cost"]) == (FinishReason.STOP, 0.5)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", FinishReason.STOP), (None, FinishReason.STOP), ("eos", FinishReason.STOP), ("length", FinishReason.LENGTH),
        ("model_length", FinishReason.LENGTH), ("content_filter", FinishReason.CONTENT_FILTER),
        ("brand_new", FinishReason.OTHER), ("tool_calls", FinishReason.STOP),
    ],
)  # fmt: skip
def test_quirk_20_finish_reasons(raw: str | None, reason: FinishReason) -> None:
    response = streamed(chunk({"content": "a"}, finish=raw))
    assert (response.finish_reason, response.raw_finish_reason) == (reason, raw or "")


def test_quirk_21_calls_decide_not_the_reason() -> None:
    named = streamed(call(0, id="a", name="f", arguments="{}"), chunk(finish="stop"))
    assert (named.finish_reason, calls(named)) == (FinishReason.TOOL_CALLS, [("a", "f", "{}")])
    cut = streamed(call(0, id="a", name="f", arguments='{"x": "unfin'), FINISH)
    assert [call.complete for call in cut.tool_calls] == [False]


def test_quirk_21_a_call_cut_by_the_limit_is_not_run_even_if_it_parses() -> None:
    response = streamed(
        call(0, id="a", name="f", arguments="{}"), call(1, id="b", name="f", arguments="{}"), chunk(finish="length")
    )
    assert [call.complete for call in response.tool_calls] == [True, False]
    assert response.finish_reason is FinishReason.LENGTH


def test_quirk_22_finish_reason_beside_the_last_delta() -> None:
    last = call(0, id="a", name="f", arguments="{}")
    last["choices"][0]["finish_reason"] = "tool_calls"
    assert calls(streamed(chunk({"content": "x"}), last)) == [("a", "f", "{}")]


def test_quirk_23_the_end_without_finish_reason_or_mark() -> None:
    cut = streamed(chunk({"content": "a"}), done=False)
    assert cut.error is not None
    assert (cut.error.kind, cut.error.retryable, cut.text) == (ErrorKind.TRUNCATED, True, "a")
    assert streamed(chunk({"content": "a"}), chunk(finish="stop"), done=False).finish_reason is FinishReason.STOP
    assert streamed(chunk({"content": "a"}), done=True).finish_reason is FinishReason.STOP
    copilot = streamed(call(0, id="a", name="f", arguments="{}"), adapter=Copilot(), done=False)
    assert (copilot.finish_reason, calls(copilot)) == (FinishReason.TOOL_CALLS, [("a", "f", "{}")])
    half = streamed(call(0, id="a", name="f", arguments='{"x'), adapter=Copilot(), done=False)
    assert half.error is not None
    assert half.error.kind is ErrorKind.TRUNCATED
    nothing = streamed(adapter=Copilot(), done=False)
    assert nothing.error is not None


#: The first event of two interleaved calls, as GitHub Copilot sends them, up to the byte where the connection ended.
CUT_BEFORE_THE_ARGUMENTS = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4.1","choices":[{"index":0,'
    b'"delta":{"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"look","arguments":""}}]},'
    b'"finish_reason":null}]}\n\n'
)


def test_quirk_23_a_call_whose_arguments_had_not_begun_when_the_stream_ended_is_half() -> None:
    cut = read(CUT_BEFORE_THE_ARGUMENTS[:244], Copilot())
    assert cut.error is not None
    assert (cut.error.kind, cut.error.retryable) == (ErrorKind.TRUNCATED, True)
    assert [call.complete for call in cut.tool_calls] == [False]


@pytest.mark.parametrize("arguments", ["", None, " "])
def test_quirk_23_a_call_without_arguments_is_whole_where_the_server_says_so(arguments: str | None) -> None:
    sent = call(0, id="a", name="f", arguments=arguments)
    for ending, done in ((chunk(finish="tool_calls"), False), (chunk(finish="stop"), False), (chunk(), True)):
        assert calls(streamed(sent, ending, adapter=Copilot(), done=done)) == [("a", "f", "{}")]
    for adapter in (Copilot(), COMPATIBLE):
        cut = streamed(sent, chunk(), adapter=adapter, done=False)
        assert cut.error is not None
        assert [call.complete for call in cut.tool_calls] == [False]


def test_quirk_23_a_finish_reason_speaks_for_the_calls_of_its_own_choice_that_came_before_it() -> None:
    other = call(0, id="b", name="g", arguments="")
    other["choices"][0]["index"] = 1
    first = call(0, id="a", name="f", arguments="{}")
    cut = streamed(first, other, FINISH, adapter=Copilot(), done=False)
    assert cut.error is not None
    assert cut.error.kind is ErrorKind.TRUNCATED
    late = streamed(FINISH, call(0, id="a", name="f", arguments=""), done=False)
    assert late.error is not None
    ended = chunk(finish="tool_calls")
    ended["choices"][0]["index"] = 1
    whole = streamed(first, other, ended, FINISH, adapter=Copilot(), done=False)
    assert calls(whole) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_quirk_69_a_refusal_breaks_off_the_call_that_was_being_written() -> None:
    response = streamed(call(0, id="a", name="f", arguments=""), chunk(finish="refusal"))
    assert [call.complete for call in response.tool_calls] == [False]
    assert response.finish_reason is FinishReason.REFUSAL


def test_quirk_24_groq_error_event_in_a_200_stream() -> None:
    error = {"message": "Failed to call a function.", "type": "invalid_request_error", "code": "tool_use_failed",
             "failed_generation": "<function=f>{", "status_code": 400}  # fmt: skip
    data = sse([chunk({"content": ""})]) + b"event: error\n" + sse([{"error": error}])
    found = read(data, adapter_for("groq")).error
    assert found is not None
    assert (found.kind, found.code, found.status) == (ErrorKind.MALFORMED_TOOL_CALL, "tool_use_failed", 400)
    assert "<function=f>{" in found.raw


def test_quirk_25_openrouter_error_in_a_chunk_after_the_finish() -> None:
    bad = chunk(finish=None, error={"code": 400, "message": "Token limit reached"})
    response = streamed(chunk({"content": "a"}), chunk(finish="length"), bad, adapter=OpenRouter())
    assert response.error is not None
    assert (response.error.kind, response.error.message) == (ErrorKind.INVALID_REQUEST, "Token limit reached")


def test_quirk_25_finish_reason_error_without_words() -> None:
    response = streamed(chunk({"content": "a"}), chunk(finish="error"), adapter=OpenRouter())
    assert response.error is not None
    assert response.error.kind is ErrorKind.SERVER


@pytest.mark.parametrize("streaming", [True, False])
def test_quirk_26_a_200_that_is_an_error(streaming: bool) -> None:
    azure = orjson.dumps({"error": {"message": "no", "status": 400}})
    error = answer(COMPATIBLE, azure, streaming=streaming).error
    assert error is not None
    assert (error.kind, error.status, error.message) == (ErrorKind.INVALID_REQUEST, 400, "no")
    empty = answer(COMPATIBLE, orjson.dumps({"id": "x", "choices": None}), streaming=streaming).error
    assert empty is not None
    assert empty.kind is ErrorKind.MALFORMED


def test_quirk_27_comments_between_events() -> None:
    data = b": OPENROUTER PROCESSING\n\n" + sse([chunk({"content": "a"})]) + b": ping - 2026-06-08\n\n"
    assert read(data + sse([chunk(finish="stop")], done=True)).text == "a"


def test_quirk_28_crlf_framing() -> None:
    assert read(sse([chunk({"content": "a"}), chunk(finish="stop")], newline="\r\n", done=True)).text == "a"


def test_quirk_29_only_cr_and_lf_end_lines() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf"
    raw = b'data: {"choices":[{"index":0,"delta":{"content":"' + "a\u2028b\u2029c\x85d".encode() + b'"}}]}\n\n'
    assert read(raw + sse([chunk(finish="stop")])).text == "a\u2028b\u2029c\x85d"
    assert streamed(chunk({"content": text}), chunk(finish="stop")).text == text


def test_quirk_30_characters_split_between_reads() -> None:
    assert streamed(chunk({"content": "naïve 🎭"}), chunk(finish="stop")).text == "naïve 🎭"


def test_quirk_30_a_pair_of_escapes_split_between_tokens_is_no_error() -> None:
    data = b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83c"}}]}\n\n' + sse([chunk(finish="stop")])
    assert read(data).text == "a\ufffd"


def test_quirk_31_the_last_event_without_its_blank_line() -> None:
    data = sse([chunk({"content": "a"}), chunk(finish="stop")])
    assert read(data.rstrip(b"\n")).finish_reason is FinishReason.STOP
    padded = b"\xef\xbb\xbf\n" + data.replace(b"data: ", b"data:")
    assert read(padded).text == "a"
    indented = b' data: {"choices":[]}\n\n' + data
    assert read(indented).text == "a"


def test_quirk_46_content_as_a_list_of_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"},
             {"type": "reference", "reference_ids": [1]}]  # fmt: skip
    response = streamed(chunk({"content": parts}), chunk({"content": "!"}), chunk(finish="stop"))
    assert (response.thinking, response.text) == ("hm", "yes!")
    assert whole({"content": parts}).thinking == "hm"


def test_quirk_47_reasoning_once_under_two_names() -> None:
    details = [{"type": "reasoning.text", "text": "hm", "index": 0, "format": "x"}]
    response = streamed(
        chunk({"content": "", "reasoning": "hm", "reasoning_details": details}), chunk({"content": "a"}),
        chunk(finish="stop"), adapter=OpenRouter(),
    )  # fmt: skip
    assert (response.thinking, response.text) == ("hm", "a")
    unnamed = streamed(
        chunk({"reasoning_details": details}), chunk({"content": "a"}, finish="stop"), adapter=OpenRouter()
    )
    assert (unnamed.thinking, unnamed.text) == ("hm", "a")
    deepseek = streamed(chunk({"content": None, "reasoning_content": "hm"}), chunk({"content": "a"}, finish="stop"))
    assert (deepseek.thinking, deepseek.text) == ("hm", "a")


def test_quirk_48_ids_repeat_from_turn_to_turn() -> None:
    turn = AssistantMessage((ToolCall(CallId("list_dir:0"), ToolName("list_dir"), "{}"),))
    result = ToolMessage(CallId("list_dir:0"), ToolName("list_dir"), "[]")
    sent = body(COMPATIBLE, UserMessage.of("?"), turn, result, turn, result)["messages"]
    assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == ["list_dir:0", "list_dir:0"]
    mistral = body(adapter_for("mistral"), UserMessage.of("?"), turn, result, turn, result)["messages"]
    ids = [m["tool_call_id"] for m in mistral if m["role"] == "tool"]
    assert len(set(ids)) == 2
    assert all(MISTRAL_IDS.pattern.fullmatch(call_id) for call_id in ids)
    assert ids == [m["tool_calls"][0]["id"] for m in mistral if m["role"] == "assistant"]


@pytest.mark.parametrize("extra", [{"tool_calls": None}, {"tool_calls": []}, {"function_call": None}, {}])
def test_quirk_49_a_whole_message_without_calls(extra: dict[str, Any]) -> None:
    response = whole({"content": "a", **extra})
    assert (response.text, response.tool_calls, response.finish_reason) == ("a", (), FinishReason.STOP)


def test_quirk_49_calls_without_type_or_id() -> None:
    response = whole({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}] * 2})
    assert [(name, arguments) for _, name, arguments in calls(response)] == [("f", "{}"), ("f", "{}")]
    assert len({call_id for call_id, _, _ in calls(response)}) == 2
    legacy = whole({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, "function_call")
    assert [name for _, name, _ in calls(legacy)] == ["f"]
    assert legacy.finish_reason is FinishReason.TOOL_CALLS


def test_quirk_50_google_signatures_come_back_where_they_were() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    response = streamed(call(0, id="a", name="f", arguments="{}", extra_content=extra), FINISH)
    assert response.tool_calls[0].replay == Replay("vllm", {"extra_content": extra})
    history = (UserMessage.of("?"), response.message, ToolMessage(CallId("a"), ToolName("f"), "ok"))
    assert body(COMPATIBLE, *history)["messages"][1]["tool_calls"][0]["extra_content"] == extra
    foreign = body(adapter_for("groq"), *history)["messages"][1]["tool_calls"][0]
    assert "extra_content" not in foreign
    text = whole({"content": "hi", "extra_content": extra})
    assert body(COMPATIBLE, UserMessage.of("?"), text.message)["messages"][1]["extra_content"] == extra


@pytest.mark.parametrize(
    "page", [b"<html><body>Bad gateway</body></html>", b"Service is starting", b"{half", b"[1, 2]"]
)
@pytest.mark.parametrize("streaming", [True, False])
def test_quirk_51_a_200_of_something_else(page: bytes, streaming: bool) -> None:
    error = answer(COMPATIBLE, page, (3,), streaming=streaming, headers={"content-type": "text/html"}).error
    assert error is not None
    assert error.kind is ErrorKind.MALFORMED
    assert error.raw == page.decode()


def test_quirk_52_other_choices_are_left_out() -> None:
    other = chunk({"content": "no"})
    other["choices"][0]["index"] = 1
    response = streamed(chunk({"content": "yes"}), other, other, chunk(finish="stop"))
    assert response.parts == (Text("yes"),)
    assert response.notes == ("the answer has several choices; all but the first were left out",)
    choices = [
        {"index": n, "message": {"content": text}, "finish_reason": "stop"} for n, text in enumerate(("yes", "no"))
    ]
    body = answer(COMPATIBLE, orjson.dumps({"id": "chatcmpl-1", "model": "m", "choices": choices}), streaming=False)
    assert body == response
    assert streamed(chunk({"content": "yes"}), chunk(finish="stop")).notes == ()


def test_quirk_52_copilot_merges_its_choices() -> None:
    second = call(0, id="a", name="f", arguments="{}")
    second["choices"][0] |= {"index": 1, "finish_reason": "tool_calls"}
    response = streamed(
        {"choices": [], "prompt_filter_results": []}, chunk({"content": "So:"}), second, adapter=Copilot()
    )
    assert (response.text, calls(response)) == ("So:", [("a", "f", "{}")])
    choices = [
        {"message": {"content": "So:"}, "finish_reason": "tool_calls"},
        {
            "message": {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
            "finish_reason": "tool_calls",
        },
    ]
    merged = answer(Copilot(), orjson.dumps({"choices": choices}), streaming=False)
    assert (merged.text, calls(merged)) == ("So:", [("a", "f", "{}")])


def test_quirk_53_annotations_after_the_finish() -> None:
    late = {"id": "", "model": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]}
    response = streamed(chunk({"content": "a"}), chunk(finish="length"), late)
    assert (response.finish_reason, response.model) == (FinishReason.LENGTH, "m")


def test_quirk_54_perplexity_says_everything_twice() -> None:
    first, second = chunk({"content": "a"}), chunk({"content": "b"}, finish="stop")
    first["choices"][0]["message"] = {"content": "a"}
    second["choices"][0]["message"] = {"content": "ab"}
    assert streamed(first, second).text == "ab"
    choice = {"index": 0, "message": {"content": "ab"}, "delta": {"content": ""}, "finish_reason": "stop"}
    assert answer(COMPATIBLE, orjson.dumps({"choices": [choice]}), streaming=False).text == "ab"


def test_quirk_55_arguments_before_id_and_name() -> None:
    response = streamed(call(0, arguments='{"x"'), call(0, id="a", name="f", arguments=":1}"), FINISH)
    assert calls(response) == [("a", "f", '{"x":1}')]


def test_quirk_58_mistral_writes_null_as_a_word() -> None:
    response = streamed(call(id="a", name="f", arguments='{"x"'), call(id="null", name="", arguments=":1}"), FINISH)
    assert calls(response) == [("a", "f", '{"x":1}')]


def test_quirk_59_xai_counts_reasoning_beside_the_answer() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 314}}
    beside = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 327, **details}
    within = {"prompt_tokens": 12, "completion_tokens": 315, "total_tokens": 327, **details}
    for usage in (beside, within):
        response = streamed(chunk({"content": "a"}, finish="stop"), {"choices": [], "usage": usage})
        assert (response.usage.output_tokens, response.usage.total_tokens) == (315, 327)
        assert response.raw_usage == usage


def test_quirk_60_an_error_without_the_word_error() -> None:
    failed = {"object": "error", "message": "context is 4096", "type": "BadRequestError", "param": None, "code": 400}
    error = streamed(chunk({"content": "a"}), failed).error
    assert error is not None
    assert (error.kind, error.message, error.status) == (ErrorKind.INVALID_REQUEST, "context is 4096", 400)


def test_quirk_61_a_stream_without_a_choice_is_no_answer() -> None:
    error = streamed({"text": "NETWORK ERROR", "error_code": 50001}).error
    assert error is not None
    assert error.kind is ErrorKind.MALFORMED


def test_quirk_62_a_stream_that_nobody_asked_for() -> None:
    data = sse([chunk({"content": "a"}), chunk(finish="stop")], done=True)
    assert answer(COMPATIBLE, data, (3,), streaming=False).text == "a"


def test_quirk_62_white_space_keeps_the_connection_open() -> None:
    document = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
    assert read(b"\n         " * 300 + orjson.dumps(document)).text == "a"
