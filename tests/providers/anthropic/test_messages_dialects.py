"""Messages as other servers speak them: whose thinking goes back, what they take, and the ways of proxies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.wire import answer, body, events, header, sse

from callboard.protocol.content import (
    AssistantMessage,
    Document,
    Image,
    Media,
    Replay,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    Error,
    FinishReason,
    ModelRequest,
    Sampling,
    TextDelta,
    ToolCallComplete,
    Usage,
)
from callboard.protocol.server_tools import WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import MESSAGES_SERVERS
from callboard.providers.catalog import Catalog
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.provider_registry import KEY_VARIABLES, adapter_for

CLAUDE = Anthropic(api_key="k")
DEEPSEEK = Anthropic(api_key="k", dialect=MESSAGES_SERVERS["deepseek-anthropic"])
OTHERS = [name for name, row in MESSAGES_SERVERS.items() if row.unsigned_thinking]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = ToolDefinition(ToolName("f"), "F.", SCHEMA, strict=True)
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"n": 1}}


def whole(*blocks: dict[str, Any], reason: str = "tool_use") -> bytes:
    document = {"type": "message", "id": "m", "model": "x", "content": list(blocks), "stop_reason": reason}
    return json.dumps(document).encode()


def loop(adapter: Anthropic, *blocks: dict[str, Any], model: str = "deepseek-v4") -> tuple[list[Any], tuple[str, ...]]:
    """What an answer with a call becomes when its result is sent: (blocks of its turn, notes)."""
    turn = answer(adapter, whole(*blocks), streaming=False)
    result = ToolMessage(CallId("toolu_1"), ToolName("f"), "1")
    wire = adapter.encode(ModelRequest(model, (UserMessage.of("Hi"), turn.message, result), tools=(TOOL,)))
    return json.loads(wire.body)["messages"][1]["content"], wire.notes


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("signature", [{}, {"signature": ""}], ids=["none", "an empty one"])
def test_quirk_73_unsigned_thinking_goes_back_where_it_came_from(name: str, signature: dict[str, str]) -> None:
    """400 there: "The `content[].thinking` in the thinking mode must be passed back to the API."."""
    blocks, _ = loop(adapter_for(name, api_key="k"), {"type": "thinking", "thinking": "Hm", **signature}, CALL)  # type: ignore[arg-type]
    assert blocks == [{"type": "thinking", "thinking": "Hm", "signature": ""}, CALL]


def test_quirk_73_a_signature_of_its_own_goes_back_to_that_server_and_to_no_other() -> None:
    """DeepSeek signs with the answer's id, which Anthropic refuses as it refuses any foreign signature."""
    thinking = {"type": "thinking", "thinking": "Hm", "signature": "91cfbb94-554b-4136-8e21-fa02280d56ed"}
    assert loop(DEEPSEEK, thinking, CALL)[0] == [thinking, CALL]
    turn = answer(DEEPSEEK, whole(thinking, CALL), streaming=False)
    result = ToolMessage(CallId("toolu_1"), ToolName("f"), "1")
    sent = body(CLAUDE, UserMessage.of("Hi"), turn.message, result)
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["tool_use"]


def test_quirk_73_claude_takes_no_unsigned_thinking_and_that_is_noted() -> None:
    blocks, notes = loop(CLAUDE, {"type": "thinking", "thinking": "Hm"}, CALL, model="claude-x")
    assert blocks == [CALL]
    assert [note for note in notes if note.startswith("thinking without a signature")]


def test_quirk_73_thinking_without_an_origin_goes_to_those_that_sign_nothing() -> None:
    turn = AssistantMessage((Thinking("Hm"), Text("Yes")))
    sent = body(DEEPSEEK, UserMessage.of("Hi"), turn, UserMessage.of("And?"))
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["thinking", "text"]
    foreign = AssistantMessage((Thinking("Hm", Replay("gemini", {"thoughtSignature": "x"})), Text("Yes")))
    sent = body(DEEPSEEK, UserMessage.of("Hi"), foreign, UserMessage.of("And?"))
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["text"]


@pytest.mark.parametrize(
    ("base_url", "model", "goes_back"),
    [
        ("https://api.deepseek.com/anthropic", "claude-opus-4-6", True),  # DeepSeek's alias for a model of its own
        ("http://localhost:8080", "qwen3-8b", True),
        ("http://localhost:4000", "claude-sonnet-4-5", False),  # a proxy of Claude's
        ("https://api.anthropic.com", "claude-sonnet-4-5", False),
        (None, "claude-sonnet-4-5", False),
    ],
)
def test_quirk_73_by_its_address_alone(base_url: str | None, model: str, goes_back: bool) -> None:
    adapter = Anthropic(base_url=base_url, api_key="k")
    assert adapter.name == "anthropic"
    blocks, notes = loop(adapter, {"type": "thinking", "thinking": "Hm"}, CALL, model=model)
    assert [block["type"] for block in blocks] == (["thinking", "tool_use"] if goes_back else ["tool_use"])
    assert any(note.startswith("thinking") for note in notes) is not goes_back


def test_others_are_told_when_they_are_not_to_think() -> None:
    off = Sampling(reasoning_effort="none")
    assert body(DEEPSEEK, sampling=off)["thinking"] == {"type": "disabled"}
    assert "thinking" not in body(CLAUDE, model="claude-sonnet-4-5", sampling=off)


# What they are sent.


@pytest.mark.parametrize(
    ("name", "url", "variable", "key_header"),
    [
        ("anthropic", "https://api.anthropic.com/v1/messages", "ANTHROPIC_API_KEY", "x-api-key"),
        ("deepseek-anthropic", "https://api.deepseek.com/anthropic/v1/messages", "DEEPSEEK_API_KEY", "x-api-key"),
        ("moonshot-anthropic", "https://api.moonshot.ai/anthropic/v1/messages", "MOONSHOT_API_KEY", "x-api-key"),
        ("zai-anthropic", "https://api.z.ai/api/anthropic/v1/messages", "ZAI_API_KEY", "x-api-key"),
        ("minimax-anthropic", "https://api.minimax.io/anthropic/v1/messages", "MINIMAX_API_KEY", "x-api-key"),
        ("openrouter-anthropic", "https://openrouter.ai/api/v1/messages", "OPENROUTER_API_KEY", "authorization"),
        ("llamacpp-anthropic", "http://localhost:8080/v1/messages", None, "x-api-key"),
        ("lmstudio-anthropic", "http://localhost:1234/v1/messages", None, "x-api-key"),
    ],
)
def test_where_each_server_is_asked(name: str, url: str, variable: str | None, key_header: str) -> None:
    adapter = adapter_for(name, api_key="secret-key")
    wire = adapter.encode(ModelRequest("m", (UserMessage.of("Hi"),)))
    assert (adapter.name, wire.url) == (name, url)
    assert "secret-key" in (header(wire.headers, key_header) or "")
    assert KEY_VARIABLES.get(name) == variable


@pytest.mark.parametrize(
    ("name", "part", "is_taken"),
    [
        ("deepseek-anthropic", Image("image/png", "aWcK"), False),
        ("moonshot-anthropic", Image("image/png", "aWcK"), True),
        ("moonshot-anthropic", Image(file_id="file_1"), False),
        ("moonshot-anthropic", Document(text="A page"), True),
        ("moonshot-anthropic", Document("application/pdf", "aWcK"), False),
        ("openrouter-anthropic", Document(text="A page"), True),
    ],
    ids=[
        "deepseek picture",
        "moonshot picture",
        "moonshot file",
        "moonshot text",
        "moonshot document",
        "openrouter text",
    ],
)
def test_what_each_server_takes(name: str, part: Media, is_taken: bool) -> None:
    adapter, message = adapter_for(name, api_key="k"), UserMessage((part,))  # type: ignore[arg-type]
    if is_taken:
        assert body(adapter, message)["messages"]
    else:
        with pytest.raises(UsageError, match=rf"m takes no {type(part).__name__}"):
            body(adapter, message)


def test_what_a_server_lacks_is_noted_or_refused() -> None:
    request = ModelRequest("m", (UserMessage.of("Hi"),), tools=(TOOL,), response_schema=SCHEMA)
    wire = DEEPSEEK.encode(request)
    sent = json.loads(wire.body)
    assert "strict" not in sent["tools"][0]
    assert "output_config" not in sent
    assert [note.split(":")[0] for note in wire.notes] == ["strict", "response_schema"]
    with pytest.raises(UsageError, match="m has no WebSearch of its own on this API; it has: none"):
        body(DEEPSEEK, server_tools=(WebSearch(),))


def test_copilot_takes_pictures_and_marks_but_no_files_and_runs_no_tools_of_its_own() -> None:
    copilot = Copilot(api_key="k", route="messages")
    sent = body(copilot, UserMessage((Image("image/png", "aWcK"),)), model="claude-sonnet-4.5")
    assert "cache_control" in sent["messages"][0]["content"][0]
    with pytest.raises(UsageError, match="no Image"):
        body(copilot, UserMessage((Image(file_id="file_1"),)))
    with pytest.raises(UsageError, match="no WebSearch"):
        body(copilot, server_tools=(WebSearch(),))


def test_a_model_of_ones_own_is_free_over_messages_too() -> None:
    assert Catalog().cost("llamacpp-anthropic", "qwen3-8b", Usage(10, 10)) == 0.0
    assert Catalog().cost("openrouter-anthropic", "x/y:free", Usage(10, 10)) == 0.0
    listed = Catalog().cost("deepseek", "deepseek-chat", Usage(1_000, 10))
    assert Catalog().cost("deepseek-anthropic", "deepseek-chat", Usage(1_000, 10)) == listed is not None


# The ways of proxies and of other servers.

START = {"type": "message_start", "message": {"id": "m", "model": "x"}}
STOP = {"type": "message_stop"}


def end(reason: str = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage or None}


def begin(kind: str, index: int | None, **start: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_start", **place, "content_block": {"type": kind, **start}}


def piece(index: int | None, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", **({} if index is None else {"index": index}), "delta": delta}


def text(index: int | None, said: str) -> dict[str, Any]:
    return piece(index, type="text_delta", text=said)


def of_input(index: int | None, said: str) -> dict[str, Any]:
    return piece(index, type="input_json_delta", partial_json=said)


def shut(index: int | None) -> dict[str, Any]:
    return {"type": "content_block_stop", **({} if index is None else {"index": index})}


def lookup(index: int | None, name: str = "f") -> dict[str, Any]:
    return begin("tool_use", index, id=f"toolu_{name}", name=name, input={})


def told(documents: list[dict[str, Any]], **how: Any) -> tuple[str, str, list[tuple[str, str, bool]]]:
    turn = answer(CLAUDE, sse(documents, **how))
    assert turn.error is None
    return turn.text, turn.thinking, [(call.name, call.arguments, call.complete) for call in turn.tool_calls]


def test_blocks_that_a_proxy_never_ends() -> None:
    stream = [START, begin("text", 0, text=""), text(0, "Hi"), lookup(1), of_input(1, '{"n": 1}'), end("tool_use")]
    assert told([*stream, STOP]) == ("Hi", "", [("f", '{"n": 1}', True)])
    assert told([*stream], done=True) == ("Hi", "", [("f", '{"n": 1}', True)])
    # Two calls side by side, and one index for both.
    both = [START, lookup(0), lookup(1, "g"), of_input(0, '{"n": 1}'), of_input(1, '{"n": 2}'), end("tool_use"), STOP]
    assert told(both)[2] == [("f", '{"n": 1}', True), ("g", '{"n": 2}', True)]
    same = [START, lookup(0), of_input(0, '{"n": 1}'), lookup(0, "g"), of_input(0, '{"n": 2}'), end("tool_use"), STOP]
    assert told(same)[2] == [("f", '{"n": 1}', True), ("g", '{"n": 2}', True)]


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "network_error"])
def test_a_call_that_never_ended_in_a_turn_that_was_cut_is_not_run(reason: str) -> None:
    stream = [START, lookup(0), of_input(0, '{"n": 1}'), end(reason), STOP]
    assert told(stream)[2] == [("f", '{"n": 1}', False)]


def test_indexes_that_are_missing() -> None:
    for place in (None, 0):
        stream = [START, begin("text", place, text=""), text(None, "Hi"), shut(None)]
        stream += [lookup(place), of_input(None, '{"n":'), of_input(None, " 1}"), shut(None), end("tool_use"), STOP]
        assert told(stream) == ("Hi", "", [("f", '{"n": 1}', True)]), place
    only_later = [START, lookup(None), of_input(3, '{"n": 1}'), shut(3), end("tool_use"), STOP]
    assert told(only_later)[2] == [("f", '{"n": 1}', True)], "arguments are never lost for an index"


def test_deltas_without_a_block() -> None:
    thinking = piece(0, type="thinking_delta", thinking="Hm")
    stream = [START, thinking, text(1, "H"), text(1, "i"), of_input(2, '{"n": 1}'), end(), STOP]
    assert told(stream) == ("Hi", "Hm", [])
    assert len(answer(CLAUDE, sse(stream)).parts) == 2


def test_text_that_comes_in_the_block_of_a_call() -> None:
    stream = [START, lookup(0), of_input(0, '{"n":'), text(0, "Hi"), of_input(0, " 1}"), shut(0), end("tool_use"), STOP]
    assert told(stream) == ("Hi", "", [("f", '{"n": 1}', True)])


def test_a_stream_without_message_start() -> None:
    assert told([begin("text", 0, text=""), text(0, "Hi"), shut(0), end(), STOP])[0] == "Hi"


def test_a_stream_without_types_has_event_names_and_the_other_way_round() -> None:
    documents = [START, begin("text", 0, text=""), text(0, "Hi"), shut(0), end(), STOP]
    named = "".join(
        f"event: {document['type']}\ndata: {json.dumps({k: v for k, v in document.items() if k != 'type'})}\n\n"
        for document in documents
    )
    assert answer(CLAUDE, named.encode()).text == "Hi"
    assert told(documents)[0] == "Hi"


@pytest.mark.parametrize("closing", [[], [{"type": "ping"}]], ids=["nothing", "a ping"])
def test_pings_alone_are_no_answer(closing: list[dict[str, Any]]) -> None:
    (last,) = events(CLAUDE, sse([{"type": "ping"}, *closing]))
    assert isinstance(last, Error)
    assert (last.kind, last.retryable) == (ErrorKind.TRUNCATED, True)


def test_an_error_event_ends_the_stream_though_the_body_ends_behind_it() -> None:
    error = {"type": "error", "error": {"type": "api_error", "message": "Internal server error"}}
    *said, last = events(CLAUDE, sse([START, begin("text", 0, text="Hi"), error], named=True))
    assert said == [TextDelta("Hi", 0)]
    assert isinstance(last, Error)
    assert (last.kind, last.message) == (ErrorKind.SERVER, "Internal server error")


def test_quirk_68_blocks_of_the_first_message_and_more_behind_them() -> None:
    first = {"type": "message_start", "message": {"id": "m", "content": [{"type": "text", "text": "Hi. "}, CALL]}}
    stream = [first, begin("text", 2, text=""), text(2, "Yes."), shut(2), end("tool_use"), STOP]
    turn = answer(CLAUDE, sse(stream))
    assert [type(part) for part in turn.parts] == [Text, ToolCall, Text]
    assert turn.tool_calls[0].complete
    cut = answer(CLAUDE, sse([first, end("max_tokens"), STOP]))
    assert not cut.tool_calls[0].complete


REASONS = {"tool_use": True, "end_turn": True, "stop_sequence": True, "pause_turn": True} | dict.fromkeys(
    ("max_tokens", "refusal", "model_context_window_exceeded", "insufficient_system_resource", "sensitive", "abort"),
    False,
)


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("arguments", ['{"n": 1}', ""], ids=["an object", "nothing"])
def test_quirk_69_the_last_call_is_whole_only_if_the_turn_ended_well(reason: str, arguments: str) -> None:
    """Also where its arguments look whole, and in a whole answer as in a stream."""
    stream = [START, lookup(0), of_input(0, '{"n": 0}'), shut(0), lookup(1, "g"), of_input(1, arguments), shut(1)]
    found = told([*stream, end(reason), STOP])[2]
    assert [complete for *_, complete in found] == [True, REASONS[reason]]
    blocks = [CALL, {**CALL, "id": "toolu_2", "input": json.loads(arguments or "{}")}]
    turn = answer(CLAUDE, whole(*blocks, reason=reason), streaming=False)
    assert [call.complete for call in turn.tool_calls] == [True, REASONS[reason]]
    events_of = events(CLAUDE, sse([*stream, end(reason), STOP]))
    assert sum(isinstance(event, ToolCallComplete) for event in events_of) == 1 + REASONS[reason]


@pytest.mark.parametrize(
    ("start", "delta", "usage"),
    [
        (None, None, None),
        ({}, {}, None),
        ({"input_tokens": 0, "output_tokens": 0}, None, None),
        ({"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 0, "output_tokens": 0}, None),
        # The count at the start is of the first token alone.
        ({"input_tokens": 43, "output_tokens": 1}, None, None),
        ({"input_tokens": 43, "output_tokens": 1}, {"output_tokens": 7}, Usage(43, 7)),
        ({"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 43, "output_tokens": 7}, Usage(43, 7)),
        ({"input_tokens": 43}, {"input_tokens": 0, "output_tokens": 7}, Usage(43, 7)),
        (None, {"output_tokens": 7}, Usage(0, 7)),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 40},
            {"cache_read_input_tokens": None, "output_tokens": 7},
            Usage(43, 7, cached_tokens=40),
        ),
        ({"input_tokens": 43}, {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 9}}, None),
        ({"input_tokens": 43}, {"output_tokens": "many"}, Usage(43, 0)),
    ],
)
def test_quirk_80_usage_is_what_was_said_or_not_known(
    start: dict[str, Any] | None, delta: dict[str, Any] | None, usage: Usage | None
) -> None:
    first = {"type": "message_start", "message": {"id": "m", "usage": start}}
    last = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": delta}
    turn = answer(CLAUDE, sse([first, begin("text", 0, text="Hi"), shut(0), last, STOP]))
    assert (turn.usage, turn.finish_reason) == (usage, FinishReason.STOP)
