"""Quirks 63 and on: what the shipped answers of the testing kit found in our own decoders and encoders."""

from __future__ import annotations

import json

import pytest
from support.event_frames import stream
from support.wire import answer, body, events, sse

from callboard.protocol.content import AssistantMessage, Replay, ServerTool, Text, Thinking, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import FinishReason, ModelRequest, ToolCallComplete, Usage
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


def piece(index: int, id: str = "", name: str = "", arguments: str = "") -> dict[str, object]:
    head = {"id": id, "type": "function"} if id else {}
    return {"tool_calls": [{"index": index, **head, "function": {"name": name, "arguments": arguments}}]}


def block(index: int, name: str) -> dict[str, object]:
    tool = {"type": "tool_use", "id": f"id{name}", "name": name, "input": {}}
    return {"type": "content_block_start", "index": index, "content_block": tool}


def input_delta(index: int, text: str) -> dict[str, object]:
    return {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": "input_json_delta", "partial_json": text},
    }


def item_added(index: int, name: str) -> dict[str, object]:
    item = {"type": "function_call", "id": f"fc{name}", "call_id": f"id{name}", "name": name, "arguments": ""}
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def arguments_delta(index: int, text: str, item_id: str = "") -> dict[str, object]:
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
