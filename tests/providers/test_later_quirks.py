"""Quirks 63 and on: what the shipped answers of the testing kit found in our own decoders and encoders."""

from __future__ import annotations

import json

import pytest
from support.event_frames import stream
from support.wire import answer, body, events, sse

from callboard.protocol.content import AssistantMessage, Replay, ServerTool, Text, Thinking, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import FinishReason, ModelRequest, Restarted, TextDelta, ToolCallComplete, Usage
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.bedrock.converse_api import Bedrock
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.http_errors import error_kind
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.response_builder import UNCLEAR_CALLS

CHAT, RESPONSES, BEDROCK = OpenAIChat(), OpenAIResponses(), Bedrock(api_key="k")


def chat(*deltas: dict[str, object], reason: str = "stop", **more: object) -> bytes:
    choices = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return sse([*choices, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}], done=True)


def anthropic(start: dict[str, object], *documents: dict[str, object]) -> bytes:
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    return sse([{"type": "message_start", "message": start}, *documents, end, {"type": "message_stop"}], named=True)


def test_quirk_63_an_absent_content_index_is_0() -> None:
    item = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hi"}]}
    turn = answer(
        RESPONSES,
        sse(
            [
                {"type": "response.output_item.added", "item": {**item, "content": []}},
                {"type": "response.output_text.delta", "item_id": "m", "delta": "Hi"},
                {"type": "response.output_text.done", "item_id": "m", "text": "Hi"},
                {"type": "response.output_item.done", "item": item},
                {"type": "response.completed", "response": {"status": "completed", "output": [item]}},
            ]
        ),
    )
    assert turn.text == "Hi"


def test_quirk_64_the_empty_or_cut_input_of_a_server_tool() -> None:
    for piece in ("", '{"query": "we'):
        block = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
        turn = answer(
            Anthropic(),
            anthropic(
                {},
                {"type": "content_block_start", "index": 0, "content_block": block},
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "input_json_delta", "partial_json": piece},
                },
                {"type": "content_block_stop", "index": 0},
            ),
        )
        assert turn.error is None
        # Half an input is none; the block is shown, and does not go back.
        kept = {key: value for key, value in block.items() if key != "input" or not piece}
        assert turn.parts == (ServerTool("server_tool_use", Replay("anthropic", kept), "web_search", "s", piece),)


def test_quirk_65_an_empty_function_call_is_none() -> None:
    empty = {"name": "", "arguments": ""}
    assert answer(CHAT, chat({"content": "Hi", "function_call": empty})).parts == (Text("Hi"),)
    whole = {"choices": [{"message": {"content": "Hi", "function_call": empty}, "finish_reason": "stop"}]}
    assert answer(CHAT, json.dumps(whole).encode(), streaming=False).parts == (Text("Hi"),)


def test_quirk_66_a_filtered_choice_without_a_message() -> None:
    whole = {"choices": [{"finish_reason": "content_filter", "index": 0}], "usage": {"prompt_tokens": 8}}
    turn = answer(CHAT, json.dumps(whole).encode(), streaming=False)
    assert (turn.finish_reason, turn.usage) == (FinishReason.CONTENT_FILTER, Usage(8, 0))
    without = {"choices": [{"index": 0}]}
    error = answer(CHAT, json.dumps(without).encode(), streaming=False).error
    assert error is not None
    assert error.kind is ErrorKind.MALFORMED


def test_quirk_67_the_last_usage_counts_as_a_whole() -> None:
    def usage(**counts: object) -> dict[str, object]:
        return {"candidates": [{"content": {"parts": [{"text": "a"}]}}], "usageMetadata": counts}

    finish = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"trafficType": "ON_DEMAND"}}
    first = usage(promptTokenCount=5, candidatesTokenCount=2)
    last = usage(promptTokenCount=5, toolUsePromptTokenCount=7)
    turn = answer(Gemini(), sse([first, last, finish]))
    assert turn.usage == Usage(12, 0)
    assert turn.raw_usage["trafficType"] == "ON_DEMAND"


def test_quirk_68_a_first_message_that_holds_blocks() -> None:
    assert answer(Anthropic(), anthropic({"content": [{"type": "text", "text": "Hi"}]})).text == "Hi"


def test_quirk_69_after_an_unknown_reason_no_call_is_whole() -> None:
    calls = [{"index": n, "id": f"c{n}", "function": {"name": "look", "arguments": "{}"}} for n in range(2)]
    turn = answer(CHAT, chat({"tool_calls": calls}, reason="insufficient_system_resource"))
    assert [call.complete for call in turn.tool_calls] == [False, False]
    assert turn.finish_reason is FinishReason.OTHER


def test_quirk_70_groqs_error_in_an_answer_that_looks_whole() -> None:
    error = answer(CHAT, chat({"content": "Hi"}, x_groq={"error": "over capacity"})).error
    assert error is not None
    assert error.message == "over capacity"


def test_quirk_71_cached_tokens_beside_the_prompts() -> None:
    counts = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 30}}
    assert answer(CHAT, chat({"content": "Hi"}, usage=counts)).usage == Usage(40, 2, cached_tokens=30)


def test_quirk_72_encrypted_reasoning_goes_back_whatever_the_deployment_is_called() -> None:
    item = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "ENC"}
    turn = AssistantMessage((Thinking("", Replay("openai-responses", item)), Text("Yes")))
    for model, goes_back in (("my-deployment", True), ("o3", True), ("gpt-4o", False), ("gpt-5-chat-latest", False)):
        sent = body(RESPONSES, UserMessage.of("Hi"), turn, model=model)
        assert (item in sent["input"]) is goes_back, model


def test_quirk_73_a_server_tool_item_that_cannot_go_back_is_noted() -> None:
    search = ServerTool("web_search_call", Replay("openai-responses", {"type": "web_search_call", "id": "ws"}))
    history = (UserMessage.of("Hi"), AssistantMessage((search, Text("Yes"))))
    assert any("web_search_call" in note for note in RESPONSES.encode(ModelRequest("o3", history)).notes)


def test_quirk_77_llama_cpps_code_for_a_full_context() -> None:
    assert error_kind("llamacpp", 400, ("exceed_context_size_error",)) is ErrorKind.CONTEXT_LENGTH


def test_quirk_81_two_texts_stay_two_parts() -> None:
    two = UserMessage((Text("one"), Text("two")))
    assert [part["text"] for part in body(CHAT, two)["messages"][0]["content"]] == ["one", "two"]
    assert [part["text"] for part in body(RESPONSES, two)["input"][0]["content"]] == ["one", "two"]
    assert body(CHAT, UserMessage.of("one"))["messages"][0]["content"] == "one"


def test_quirk_21_a_half_call_in_a_turn_that_is_said_to_be_whole() -> None:
    """llama.cpp's Responses call a turn completed that the length limit has cut; so do vLLM's Chat Completions."""
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": "{", "status": "completed"}
    whole = {"status": "completed", "output": [call]}
    told = events(RESPONSES, json.dumps(whole).encode(), streaming=False)
    assert not any(isinstance(event, ToolCallComplete) for event in told)
    half = [{"index": 0, "id": "c", "function": {"name": "look", "arguments": "{"}}]
    told = events(CHAT, chat({"tool_calls": half}, reason="tool_calls"))
    assert not any(isinstance(event, ToolCallComplete) for event in told)


F, G = ("f", '{"x":1}'), ("g", '{"y":2}')


def piece(index: int, id: str = "", name: str = "", arguments: object = "") -> dict[str, object]:
    head = {"id": id, "type": "function"} if id else {}
    return {"tool_calls": [{"index": index, **head, "function": {"name": name, "arguments": arguments}}]}


def block(index: int, name: str) -> dict[str, object]:
    tool = {"type": "tool_use", "id": f"id{name}", "name": name, "input": {}}
    return {"type": "content_block_start", "index": index, "content_block": tool}


def input_delta(index: int, text: object) -> dict[str, object]:
    return {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": "input_json_delta", "partial_json": text},
    }


def item_added(index: int, name: str) -> dict[str, object]:
    item = {"type": "function_call", "id": f"fc{name}", "call_id": f"id{name}", "name": name, "arguments": ""}
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def arguments_delta(index: int, text: object, item_id: str = "") -> dict[str, object]:
    more = {"item_id": item_id} if item_id else {}
    return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": text, **more}


def item_done(index: int, name: str, arguments: str) -> dict[str, object]:
    document = item_added(index, name)
    return {
        "type": "response.output_item.done",
        "output_index": index,
        "item": {**dict(document["item"]), "arguments": arguments},  # type: ignore[call-overload]
    }


def responses(*documents: dict[str, object]) -> bytes:
    end = {"type": "response.completed", "response": {"status": "completed", "output": []}}
    return sse([*documents, end])


def gemini(*calls: dict[str, object]) -> bytes:
    chunks = [{"candidates": [{"content": {"parts": [{"functionCall": call}]}}]} for call in calls]
    return sse([*chunks, {"candidates": [{"finishReason": "STOP"}]}])


def bedrock(*blocks: tuple[str, int, dict[str, object]]) -> bytes:
    documents = [(f"contentBlock{what}", {"contentBlockIndex": index, **told}) for what, index, told in blocks]
    return stream([*documents, ("messageStop", {"stopReason": "tool_use"}), ("metadata", {})])


def bedrock_input(index: int, text: str) -> tuple[str, int, dict[str, object]]:
    return "Delta", index, {"delta": {"toolUse": {"input": text}}}


def partial(name: str = "", path: str = "", value: int = 0, *, more: bool = False) -> dict[str, object]:
    head: dict[str, object] = {"name": name} if name else {}
    pieces = {"partialArgs": [{"jsonPath": path, "numberValue": value}]} if path else {}
    return {**head, **pieces, **({"willContinue": True} if more else {})}


STOP_0, STOP_1 = ({"type": "content_block_stop", "index": index} for index in (0, 1))


@pytest.mark.parametrize(
    ("adapter", "data", "calls"),
    [
        # Chat Completions: agno issue 8880, dirac pull 215 (Nebius, Cerebras).
        (
            CHAT,
            chat(piece(0, "a", *F), piece(0, "b", "g"), piece(1, arguments='{"y"'), piece(2, arguments=":2}")),
            [F, G],
        ),
        (CHAT, chat(piece(0, "a", "f"), piece(1, arguments='{"x"'), piece(2, arguments=":1}")), [F]),
        (CHAT, chat(piece(1, "a", "f"), piece(0, arguments='{"x":1}')), [F]),
        # Anthropic: the arguments one index on, before or behind the end of their block (proxies that renumber).
        (Anthropic(), anthropic({}, block(0, "f"), input_delta(1, F[1]), STOP_0), [F]),
        (Anthropic(), anthropic({}, block(0, "f"), STOP_0, input_delta(1, '{"x"'), input_delta(1, ":1}")), [F]),
        (
            Anthropic(),
            anthropic({}, block(0, "f"), input_delta(1, F[1]), STOP_0, block(1, "g"), input_delta(2, G[1])),
            [F, G],
        ),
        # Responses: an output_index of no item, with an id of its own in each event (Copilot), or none.
        (RESPONSES, responses(item_added(0, "f"), arguments_delta(1, F[1]), item_done(0, "f", "")), [F]),
        (RESPONSES, responses(item_added(0, "f"), arguments_delta(1, F[1], "x"), item_done(0, *F)), [F]),
        (RESPONSES, responses(item_added(0, "f"), arguments_delta(1, F[1], "fcf"), item_done(0, *F)), [F]),
        (RESPONSES, responses(item_added(0, "f"), arguments_delta(1, '{"x"'), arguments_delta(2, ":1}")), [F]),
        # Bedrock: contentBlockIndex.
        (
            BEDROCK,
            bedrock(("Start", 0, {"start": {"toolUse": {"toolUseId": "a", "name": "f"}}}), bedrock_input(1, F[1])),
            [F],
        ),
        # Gemini: pieces without a name behind the one that said that no other follows, or behind a whole call.
        (Gemini(), gemini(partial("f"), partial(path="$.x", value=1)), [F]),
        (Gemini(), gemini(partial("f", "$.x", 1), partial(path="$.z", value=3)), [("f", '{"x":1,"z":3}')]),
        (Gemini(), gemini({"name": "f"}, {"args": {"x": 1}}), [F]),
    ],
)
def test_quirk_85_arguments_under_an_index_of_no_call(
    adapter: Adapter, data: bytes, calls: list[tuple[str, str]]
) -> None:
    turn = answer(adapter, data)
    assert [(call.name, call.arguments, call.complete) for call in turn.tool_calls] == [(*call, True) for call in calls]
    assert (turn.error, turn.notes) == (None, ())
    assert answer(adapter, data, [1]) == turn


@pytest.mark.parametrize(
    ("adapter", "data"),
    [
        (CHAT, chat(piece(0, "a", "f"), piece(1, "b", "g"), piece(2, arguments=F[1]))),
        (Anthropic(), anthropic({}, block(0, "f"), block(1, "g"), input_delta(2, F[1]), STOP_0, STOP_1)),
        (RESPONSES, responses(item_added(0, "f"), item_added(1, "g"), arguments_delta(2, F[1]))),
        (Gemini(), gemini({"name": "f"}, {"name": "g"}, {"args": {"x": 1}})),
    ],
)
def test_quirk_85_no_call_is_run_where_it_is_not_clear_whose_they_are(adapter: Adapter, data: bytes) -> None:
    turn = answer(adapter, data)
    assert [(call.name, call.complete) for call in turn.tool_calls] == [("f", False), ("g", False)]
    assert turn.notes == (UNCLEAR_CALLS,)
    assert answer(adapter, data, [1]) == turn


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"city": "Oslo", "days": [1, 2]}, '{"city":"Oslo","days":[1,2]}'),
        ({"type": "dog", "name": "Rex"}, '{"type":"dog","name":"Rex"}'),
        ({"text": 5, "type": None}, '{"text":5,"type":null}'),
        ({"answer": {"type": "text", "text": "Hi"}}, '{"answer":{"type":"text","text":"Hi"}}'),
        ([{"city": "Oslo"}, {"city": "Bergen"}], '[{"city":"Oslo"},{"city":"Bergen"}]'),
        ([{"type": 1}], '[{"type":1}]'),
        ({}, "{}"),
        ([1, 2], "[1,2]"),
        ([[1], None], "[[1],null]"),
        # A digit or a word that a server took for a value (cloudflare/ai issue 651, mastra issue 18289).
        (5, "5"),
        (0, "0"),
        (0.5, "0.5"),
        (True, "true"),
        (False, "false"),
        ([{"type": "text", "text": 5}, 0, "!"], "50!"),
        # Parts, as ever: Mistral's lists (46), and one of them alone.
        ({"type": "text", "text": "Hi"}, "Hi"),
        ([{"type": "text", "text": "Hi"}, {"text": "!"}], "Hi!"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}, {"type": "text", "text": "Hi"}], "Hi"),
    ],
)
def test_quirk_90_a_content_that_is_the_json_that_was_asked_for(content: object, text: str) -> None:
    """Cloudflare's Workers AI ("JSON Mode": `response` is the object)."""
    whole = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    assert answer(CHAT, json.dumps(whole).encode(), streaming=False).text == text
    assert answer(CHAT, chat({"content": content})).text == text
    # A stream's last word repeats it.
    again = {"choices": [{"index": 0, "message": {"content": content}, "finish_reason": "stop"}]}
    assert answer(CHAT, sse([again], done=True)).text == text


@pytest.mark.parametrize(
    ("deltas", "text"),
    [
        (["price $0.", 5, " ok"], "price $0.5 ok"),
        ([" [", "^", 1, "]."], " [^1]."),
        (["$", 0, ".", 0, 5], "$0.05"),
        ([True, " is ", False], "true is false"),
        (["a", None, "", [], "b"], "ab"),
        (["x = ", 155724, [{"type": "text", "text": 3}], None], "x = 1557243"),
    ],
)
def test_quirk_90_digits_that_come_as_numbers_are_text(deltas: list[object], text: str) -> None:
    turn = answer(CHAT, chat(*({"content": delta} for delta in deltas)))
    assert (turn.text, turn.error) == (text, None)
    for field in ("reasoning_content", "reasoning"):
        turn = answer(CHAT, chat(*({field: delta, "content": ""} for delta in deltas if not isinstance(delta, list))))
        said = "".join(text_of(delta) for delta in deltas if not isinstance(delta, list))
        assert (turn.thinking, turn.error) == (said, None)


def text_of(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def deltas_of(api: str, *words: object) -> bytes:
    """An answer that says these words, by API."""
    if api == "anthropic":
        start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": words[0]}}
        said = [{"type": "text_delta", "text": word} for word in words[1:]]
        return anthropic({}, start, *({"type": "content_block_delta", "index": 0, "delta": each} for each in said))
    if api == "gemini":
        parts = [{"candidates": [{"content": {"parts": [{"text": word}]}}]} for word in words]
        return sse([*parts, {"candidates": [{"finishReason": "STOP"}]}])
    if api == "bedrock":
        said = [("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": word}}) for word in words]
        return stream([*said, ("messageStop", {"stopReason": "end_turn"}), ("metadata", {})])
    told = [{"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": w} for w in words]
    return sse([*told, {"type": "response.completed", "response": {"status": "completed", "output": []}}])


@pytest.mark.parametrize(
    ("api", "adapter"),
    [("anthropic", Anthropic()), ("gemini", Gemini()), ("bedrock", BEDROCK), ("responses", RESPONSES)],
)
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("$", 0, ".", 5), "$0.5"),
        ((5, " ok"), "5 ok"),
        (("a ", True), "a true"),
        (("", {"a": 1}), '{"a":1}'),
        (("a", None, "b", False), "abfalse"),
    ],
)
def test_quirk_90_in_the_other_apis(api: str, adapter: Adapter, words: tuple[object, ...], text: str) -> None:
    turn = answer(adapter, deltas_of(api, *words))
    assert (turn.text, turn.error) == (text, None)


def test_quirk_90_in_the_arguments_of_calls() -> None:
    expected = [("f", '{"x":10}', True)]
    pieces = [piece(0, "a", "f", '{"x":'), *(piece(0, arguments=each) for each in (1, 0, "}"))]
    old = [{"function_call": {"name": "f", "arguments": '{"x":1'}}, {"function_call": {"arguments": 0}}]
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "f"}}
    inputs = [input_delta(0, each) for each in ('{"x":', 1, 0, "}")]
    for adapter, data in (
        (CHAT, chat(*pieces, reason="tool_calls")),
        (CHAT, chat(*old, {"function_call": {"arguments": "}"}}, reason="function_call")),
        (Anthropic(), anthropic({}, start, *inputs, {"type": "content_block_stop", "index": 0})),
        (RESPONSES, responses(item_added(0, "f"), *(arguments_delta(0, each) for each in ('{"x":', 1, 0, "}")))),
    ):
        turn = answer(adapter, data)
        assert [(call.name, call.arguments, call.complete) for call in turn.tool_calls] == expected


def numbered(finish: object, **more: object) -> bytes:
    candidate = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": finish, **more}
    details = [{"modality": 4, "tokenCount": 7}, {"modality": 1, "tokenCount": 3}]
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12, "promptTokensDetails": details}
    return json.dumps({"candidates": [candidate], "usageMetadata": usage}).encode()


VERTEX = Gemini(project="p", location="global")


@pytest.mark.parametrize(
    ("adapter", "number", "reason", "raw"),
    [
        (Gemini(), 1, FinishReason.STOP, "STOP"),
        (Gemini(), 2, FinishReason.LENGTH, "MAX_TOKENS"),
        (Gemini(), 3, FinishReason.CONTENT_FILTER, "SAFETY"),
        (Gemini(), 6, FinishReason.OTHER, "LANGUAGE"),
        (VERTEX, 6, FinishReason.CONTENT_FILTER, "BLOCKLIST"),
        (Gemini(), 10, FinishReason.ERROR, ""),  # MALFORMED_FUNCTION_CALL there,
        (VERTEX, 10, FinishReason.CONTENT_FILTER, "MODEL_ARMOR"),  # and another here
        (Gemini(), 12, FinishReason.ERROR, ""),  # UNEXPECTED_TOOL_CALL, and there is none
        (Gemini(), 17, FinishReason.CONTENT_FILTER, "IMAGE_RECITATION"),
        (Gemini(), 99, FinishReason.OTHER, "99"),
        (VERTEX, 17, FinishReason.OTHER, "17"),
    ],
)
def test_quirk_91_enums_by_their_numbers(adapter: Adapter, number: int, reason: FinishReason, raw: str) -> None:
    turn = answer(adapter, numbered(number), streaming=False)
    assert (turn.text, turn.finish_reason, turn.raw_finish_reason) == ("Hi", reason, raw)
    if turn.error is None:
        assert turn.usage == Usage(10, 2, input_audio_tokens=7)
    elif number == 10:
        assert (turn.error.kind, turn.error.code) == (ErrorKind.MALFORMED_TOOL_CALL, "MALFORMED_FUNCTION_CALL")


def test_quirk_91_a_blocked_prompt_and_a_tools_outcome_by_their_numbers() -> None:
    blocked = {"promptFeedback": {"blockReason": 4}}
    turn = answer(Gemini(), json.dumps(blocked).encode(), streaming=False)
    assert (turn.finish_reason, turn.raw_finish_reason) == (FinishReason.CONTENT_FILTER, "PROHIBITED_CONTENT")
    unknown = answer(Gemini(), json.dumps({"promptFeedback": {"blockReason": 44}}).encode(), streaming=False)
    assert (unknown.finish_reason, unknown.raw_finish_reason) == (FinishReason.CONTENT_FILTER, "44")
    ran = {"content": {"parts": [{"codeExecutionResult": {"outcome": 2, "output": "no"}}]}, "finishReason": 1}
    [tool] = answer(Gemini(), json.dumps({"candidates": [ran]}).encode(), streaming=False).parts
    assert isinstance(tool, ServerTool)
    assert tool.text == "OUTCOME_FAILED: no"
    # 0 is the value that says nothing.
    open_turn = sse([{"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": 0}]}])
    assert answer(Gemini(), open_turn).error is not None


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        # A live turn of Voxtral; the example of Mistral's docs ("Audio & transcription"); one that counts sound in.
        (
            {"prompt_audio_seconds": 0, "prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 383}
            | {"prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 375}},
            Usage(381, 2, input_audio_tokens=375),
        ),
        (
            {"prompt_audio_seconds": 203, "prompt_tokens": 4, "completion_tokens": 635, "total_tokens": 3264},
            Usage(2629, 635, input_audio_tokens=2625),
        ),
        (
            {"prompt_audio_seconds": 10, "prompt_tokens": 24, "completion_tokens": 27, "total_tokens": 51},
            Usage(24, 27),
        ),
        # Without a total; without sound; OpenAI's, which the prompt includes; placeholders.
        (
            {"prompt_tokens": 6, "completion_tokens": 2, "prompt_tokens_details": {"audio_tokens": 375}},
            Usage(381, 2, input_audio_tokens=375),
        ),
        ({"prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 8, "prompt_audio_seconds": None}, Usage(6, 2)),
        (
            {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
            | {"prompt_tokens_details": {"audio_tokens": 30}},
            Usage(40, 2, input_audio_tokens=30),
        ),
        ({"prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 8, "prompt_audio_seconds": {}}, Usage(6, 2)),
        # What a total has beyond all counts is thinking, but for sound.
        ({"prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 20}, Usage(6, 14)),
    ],
)
def test_quirk_92_mistral_counts_sound_beside_the_prompt(usage: dict[str, object], told: Usage) -> None:
    assert answer(CHAT, chat({"content": "Hi"}, usage=usage)).usage == told


def message_item(name: str, text: str, phase: str = "", **more: object) -> dict[str, object]:
    content = [{"type": "output_text", "text": text, **more}]
    return {
        "type": "message",
        "id": name,
        "role": "assistant",
        "content": content,
        **({"phase": phase} if phase else {}),
    }


SAID = message_item("m1", "Let me look.", "commentary")
ANSWERED = message_item("m2", "It rains.", "final_answer")
CALLED = {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}


def told_items(*items: dict[str, object], phase_from: str = "added") -> bytes:
    documents: list[dict[str, object]] = []
    for index, item in enumerate(items):
        bare = {
            key: value
            for key, value in item.items()
            if key not in ("content", *(("phase",) if phase_from != "added" else ()))
        }
        added = bare | ({"content": []} if "content" in item else {})
        documents.append({"type": "response.output_item.added", "output_index": index, "item": added})
        for part in item.get("content", []):  # type: ignore[attr-defined]
            for piece in (part["text"][:3], part["text"][3:]):
                documents.append(
                    {"type": "response.output_text.delta", "output_index": index, "content_index": 0, "delta": piece}
                )
        done = {key: value for key, value in item.items() if key != "phase" or phase_from != "end"}
        documents.append({"type": "response.output_item.done", "output_index": index, "item": done})
    response = {"status": "completed", "output": list(items)}
    return sse([*documents, {"type": "response.completed", "response": response}])


@pytest.mark.parametrize("phase_from", ["added", "done", "end"])
@pytest.mark.parametrize(
    ("items", "text"),
    [
        ((SAID, ANSWERED), "Let me look.\n\nIt rains."),
        ((SAID, CALLED, ANSWERED), "Let me look.\n\nIt rains."),
        ((SAID, message_item("m3", "And there.", "commentary"), ANSWERED), "Let me look.\n\nAnd there.\n\nIt rains."),
        ((ANSWERED,), "It rains."),
        ((CALLED, ANSWERED), "It rains."),
        # Without phases nothing says that they are not one text.
        ((message_item("m1", "It "), message_item("m2", "rains.")), "It rains."),
    ],
)
def test_quirk_93_commentary_and_answer_are_not_glued(
    items: tuple[dict[str, object], ...], text: str, phase_from: str
) -> None:
    data = told_items(*items, phase_from=phase_from)
    turn = answer(RESPONSES, data)
    assert turn.text == text
    assert answer(RESPONSES, data, [1]) == turn
    whole = json.dumps({"status": "completed", "output": list(items)}).encode()
    assert answer(RESPONSES, whole, streaming=False).parts == turn.parts
    streamed = ""
    for event in events(RESPONSES, data):
        streamed = (
            "" if isinstance(event, Restarted) else streamed + (event.text if isinstance(event, TextDelta) else "")
        )
    assert streamed == text
    # It goes back as its model wrote it.
    sent = body(RESPONSES, UserMessage.of("Hi"), AssistantMessage(turn.parts))["input"]
    back = [item["content"] for item in sent if item.get("role") == "assistant"]
    assert "".join(back) == "".join(str(part["text"]) for item in items for part in item.get("content", []))  # type: ignore[attr-defined]


def test_quirk_93_citations_keep_their_places_behind_a_break() -> None:
    cited = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 3, "end_index": 8}
    items = (SAID, message_item("m2", "It rains.", "final_answer", annotations=[cited]))
    turn = answer(RESPONSES, told_items(*items))
    [citation] = [each for part in turn.parts if isinstance(part, Text) for each in part.citations]
    assert citation.start is not None
    assert turn.parts[-1].text[citation.start : citation.end] == "rains"  # type: ignore[union-attr]
