"""What Chat Completions answers have beside text and calls, streamed and whole: they tell the same turn."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from support.wire import answer, body, events, sse

from callboard.protocol.content import (
    Audio,
    Citation,
    Image,
    Replay,
    ServerTool,
    Text,
    Thinking,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import (
    FinishReason,
    MediaDelta,
    ModelRequest,
    ModelResponse,
    TextDelta,
    TokenLogprob,
    ToolCallComplete,
    Usage,
)
from callboard.providers.adapter import Adapter
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.chat_extras import normal_usage
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.openrouter import OpenRouter

OPENAI = OpenAIChat()
COMPATIBLE = OpenAIChat(base_url="http://localhost:1", dialect=SERVERS["openai-compatible"])
#: The stream byte by byte, in odd pieces, and whole.
CHUNKINGS = ((1,), (7, 2, 64), (65536,))


def chunk(delta: Any = None, finish: Any = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c-1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


def streamed(*documents: dict[str, Any], adapter: Adapter = OPENAI, **how: Any) -> ModelResponse:
    turns = [answer(adapter, sse(documents, done=True), sizes, **how) for sizes in CHUNKINGS]
    assert turns[0] == turns[1] == turns[2]
    return turns[0]


def whole(
    message: dict[str, Any] | None, finish: Any = "stop", adapter: Adapter = OPENAI, **fields: Any
) -> ModelResponse:
    choice = {"index": 0, "finish_reason": finish} | ({} if message is None else {"message": message})
    document = {"id": "c-1", "model": "m", "choices": [choice | fields.pop("choice", {})], **fields}
    return answer(adapter, orjson.dumps(document), streaming=False)


def both(message: dict[str, Any], adapter: Adapter = OPENAI, finish: str = "stop", **fields: Any) -> ModelResponse:
    """The turn of a message, which is the same as one delta and as a whole answer."""
    turn = streamed(chunk(message), chunk({}, finish, **fields), adapter=adapter)
    assert turn == whole(message, finish, adapter, **fields)
    return turn


# How a turn ends (69).

CALLS = [
    {"index": n, "id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(3)
]


@pytest.mark.parametrize(
    ("reason", "finish", "complete"),
    [
        ("stop", FinishReason.TOOL_CALLS, [True, True, True]),
        ("tool_calls", FinishReason.TOOL_CALLS, [True, True, True]),
        ("TOOL_USE", FinishReason.TOOL_CALLS, [True, True, True]),
        ("length", FinishReason.LENGTH, [True, True, False]),
        ("model_context_window_exceeded", FinishReason.LENGTH, [True, True, False]),
        ("MAX_TOKENS", FinishReason.LENGTH, [True, True, False]),
        ("content_filter", FinishReason.CONTENT_FILTER, [False] * 3),
        ("sensitive", FinishReason.CONTENT_FILTER, [False] * 3),
        ("SAFETY", FinishReason.CONTENT_FILTER, [False] * 3),
        ("refusal", FinishReason.REFUSAL, [False] * 3),
        ("insufficient_system_resource", FinishReason.OTHER, [False] * 3),
        ("network_error", FinishReason.OTHER, [False] * 3),
        ("abort", FinishReason.OTHER, [False] * 3),
        ("a_word_of_next_year", FinishReason.OTHER, [False] * 3),
    ],
)
def test_quirk_69_which_calls_a_finish_reason_leaves_whole(
    reason: str, finish: FinishReason, complete: list[bool]
) -> None:
    turn = both({"role": "assistant", "content": None, "tool_calls": CALLS}, finish=reason)
    assert (turn.finish_reason, turn.raw_finish_reason) == (finish, reason)
    assert [call.complete for call in turn.tool_calls] == complete
    stream = sse([chunk({"tool_calls": CALLS}), chunk({}, reason)])
    completed = [event for event in events(OPENAI, stream) if isinstance(event, ToolCallComplete)]
    assert len(completed) == complete.count(True)


def test_quirk_69_an_unknown_reason_that_is_taken_back() -> None:
    turn = streamed(chunk({"tool_calls": CALLS}), chunk({}, "abort"), chunk({}, "tool_calls"))
    assert all(call.complete for call in turn.tool_calls)
    turn = streamed(chunk({"tool_calls": CALLS}), chunk({}, "tool_calls"), chunk({}, "abort"))
    assert not any(call.complete for call in turn.tool_calls)


# What is empty, missing or wrapped.


@pytest.mark.parametrize("empty", [{"name": "", "arguments": ""}, {"name": None, "arguments": None}, {}, None])
def test_quirk_65_an_empty_function_call_is_none(empty: Any) -> None:
    assert both({"content": "Hi", "function_call": empty, "tool_calls": None}).parts == (Text("Hi"),)


def test_quirk_66_a_choice_without_a_message() -> None:
    turn = whole(None, "content_filter", usage={"prompt_tokens": 8, "completion_tokens": 0})
    assert (turn.finish_reason, turn.usage, turn.parts) == (FinishReason.CONTENT_FILTER, Usage(8, 0), ())
    assert streamed({"choices": [{"index": 0, "finish_reason": "content_filter"}]}).parts == ()


def test_null_in_every_place() -> None:
    turn = streamed(
        {"id": None, "model": None, "choices": None, "usage": None, "error": None, "x_groq": None, "citations": None},
        {"choices": [{"index": None, "delta": None, "finish_reason": None, "logprobs": None}]},
        chunk({"role": None, "content": None, "tool_calls": None, "audio": None, "images": None, "annotations": None}),
        chunk({"content": "a", "reasoning": None, "reasoning_details": None, "refusal": None}),
        chunk(None, "stop"),
    )
    assert (turn.error, turn.parts, turn.response_id) == (None, (Text("a"),), "c-1")


@pytest.mark.parametrize(
    "said",
    [
        "ab",
        ["a", "b"],
        {"type": "text", "text": "ab"},
        [{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}],
    ],
    ids=["text", "texts", "object", "parts"],
)
def test_content_in_every_form(said: Any) -> None:
    assert both({"content": said}).text == "ab"


def test_parts_that_are_not_text_are_kept() -> None:
    parts = [
        {"type": "text", "text": "See "},
        {"type": "reference", "reference_ids": [1]},
        {"type": "image_url", "image_url": "https://x.example/a.png"},
        {"type": "tool_reference", "tool": "web_search", "url": "https://x.example"},
    ]
    turn = both({"content": parts})
    assert turn.parts == (
        Text("See ", citations=(Citation(raw=parts[1]),)),
        Image(url="https://x.example/a.png"),
        ServerTool("tool_reference", Replay("openai-chat", parts[3])),
    )
    noted = OPENAI.encode(ModelRequest("m", (UserMessage.of("?"), turn.message))).notes
    assert [note.partition(" ")[0] for note in noted] == ["Image", "tool_reference"]


def test_quirk_70_groqs_error_in_a_whole_answer_too() -> None:
    for error in ({"message": "over capacity", "code": "x"}, "over capacity"):
        turn = whole({"content": "Hi"}, x_groq={"error": error})
        assert turn.error is not None
        assert "over capacity" in turn.error.message
        turn = streamed(chunk({"content": "Hi"}, "stop", x_groq={"error": error}))
        assert turn.error is not None
        assert "over capacity" in turn.error.message


def test_an_error_within_a_choice() -> None:
    bad = {"code": 429, "message": "Upstream is busy"}
    document = chunk({}, "error")
    document["choices"][0]["error"] = bad
    for turn in (
        streamed(chunk({"content": "a"}), document, adapter=OpenRouter()),
        whole({"content": "a"}, "error", OpenRouter(), choice={"error": bad}),
    ):
        assert turn.error is not None
        assert (turn.error.kind, turn.error.message) == (ErrorKind.RATE_LIMITED, "Upstream is busy")


# Usage (71, 80).


def counts(asked: int, answered: int, **more: Any) -> dict[str, Any]:
    """Usage as servers send it; `cached` and `reasoned` go into their details."""
    details = {
        "prompt_tokens_details": ("cached_tokens", "cached"),
        "completion_tokens_details": ("reasoning_tokens", "reasoned"),
    }
    told = {field: {name: more.pop(word)} for field, (name, word) in details.items() if word in more}
    return {"prompt_tokens": asked, "completion_tokens": answered, **told, **more}


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        # Azure's Grok: cached beside the prompt, with a total or without.
        (counts(10, 2, cached=30), Usage(40, 2, 30)),
        (counts(10, 2, cached=30, total_tokens=42), Usage(40, 2, 30)),
        # Fewer cached than prompt tokens, but the total tells that they are beside them.
        (counts(10, 2, cached_tokens=5, total_tokens=17), Usage(15, 2, 5)),
        (counts(10, 2, cached_tokens=5, total_tokens=12), Usage(10, 2, 5)),
        # Cached and reasoning, both beside.
        (counts(10, 2, cached=30, reasoned=100, total_tokens=142), Usage(40, 102, 30, reasoning_tokens=100)),
        # Perplexity: more reasoning than answer, which its total leaves out.
        (
            counts(33, 71, total_tokens=104, reasoning_tokens=739, num_search_queries=28),
            Usage(33, 810, reasoning_tokens=739, web_searches=28),
        ),
        # Kimi K3: more reasoning than output (vercel/ai#19311).
        (counts(951, 6000, cached=60, reasoned=6001, total_tokens=6952), Usage(951, 6001, 60, reasoning_tokens=6001)),
        # Google's own endpoint: thinking only in the total (mozilla-ai/any-llm#1290).
        (counts(20, 198, total_tokens=623), Usage(20, 603)),
        # A total that cannot be: the parts count.
        (counts(20, 8, total_tokens=0), Usage(20, 8)),
        (counts(20, 8, total_tokens="28"), Usage(20, 8)),
        # Written to the cache beside what was asked, as Anthropic counts.
        (counts(4, 1, cache_read_input_tokens=50, cache_creation_input_tokens=7), Usage(61, 1, 50, 7)),
        ({"input_tokens": 5, "output_tokens": 2}, Usage(5, 2)),
        (
            {
                "prompt_tokens": 50,
                "completion_tokens": 40,
                "prompt_tokens_details": {"audio_tokens": 20},
                "completion_tokens_details": {"audio_tokens": 30, "image_tokens": 0},
                "server_tool_use": {"web_search_requests": 3},
            },
            Usage(50, 40, input_audio_tokens=20, output_audio_tokens=30, web_searches=3),
        ),
        ({"prompt_tokens": 8}, Usage(8, 0)),
        ({"total_tokens": 12}, None),
        ({"prompt_tokens": "8", "completion_tokens": None}, None),
        ({"prompt_tokens": -1, "completion_tokens": True}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_quirk_71_usage_satisfies_its_own_definition(raw: dict[str, Any], usage: Usage | None) -> None:
    found = streamed(chunk({"content": "a"}, "stop"), {"choices": [], "usage": raw}).usage
    assert found == whole({"content": "a"}, usage=raw).usage == normal_usage(raw) == usage
    if usage is not None:
        assert usage.cached_tokens + usage.cache_write_tokens <= usage.input_tokens
        assert usage.reasoning_tokens <= usage.output_tokens


def test_usage_may_come_in_the_choice_that_ends() -> None:
    ends = chunk({"content": "a"}, "stop")
    ends["choices"][0]["usage"] = {"prompt_tokens": 12, "completion_tokens": 5}
    assert streamed(ends).usage == Usage(12, 5)
    assert streamed(ends, {"choices": [], "usage": {"prompt_tokens": 13, "completion_tokens": 6}}).usage == Usage(13, 6)


@pytest.mark.parametrize("usage", [None, {}, "12", [], 5])
def test_quirk_80_usage_that_does_not_come_is_unknown(usage: Any) -> None:
    assert streamed(chunk({"content": "a"}, "stop", usage=usage)).usage is None
    assert whole({"content": "a"}, usage=usage).usage is None
    assert streamed(chunk({"content": "a"}, "stop")).usage is None


def test_usage_in_groqs_own_field() -> None:
    groq = {"id": "r", "usage": counts(5, 2)}
    assert streamed(chunk({"content": "a"}, "stop", x_groq=groq)).usage == Usage(5, 2)


# Reasoning under all its names.


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_text", "thinking"])
def test_reasoning_under_every_name(name: str) -> None:
    marked = Thinking("hm", Replay("openai-chat", {}))  # whose it is: it goes to no other model as its own
    assert both({name: "hm", "content": "a"}).parts == (marked, Text("a"))


def test_litellms_blocks_are_read_once_and_go_back() -> None:
    block = {"type": "thinking", "thinking": "hm so", "signature": "c2ln"}
    hidden = {"type": "redacted_thinking", "data": "ZW5j"}
    pieces = [
        {**block, "thinking": text, "signature": mark} for text, mark in (("hm", ""), (" so", None), ("", "c2ln"))
    ]
    turn = streamed(
        chunk({"reasoning_content": "hm", "thinking_blocks": pieces[:1]}),
        chunk({"reasoning_content": " so", "thinking_blocks": pieces[1:2]}),
        chunk({"thinking_blocks": pieces[2:]}),
        chunk({"thinking_blocks": [hidden]}),
        chunk({"content": "a"}, "stop"),
        adapter=COMPATIBLE,
    )
    assert turn.thinking == "hm so"
    assert turn == whole(
        {"reasoning_content": "hm so", "thinking_blocks": [block, hidden], "content": "a"}, adapter=COMPATIBLE
    )
    message = body(COMPATIBLE, UserMessage.of("?"), turn.message)["messages"][1]
    assert message == {"role": "assistant", "content": "a", "thinking_blocks": [block, hidden]}


def test_copilots_opaque_reasoning_goes_back() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = streamed(
        chunk({"reasoning_text": "hm"}),
        chunk({"reasoning_opaque": "T1A="}),
        chunk({"tool_calls": [call]}),
        chunk({}, "tool_calls"),
        adapter=Copilot(),
    )
    assert turn.parts[0] == Thinking("hm", Replay("copilot", {"reasoning_opaque": "T1A="}))
    assert [part.name for part in turn.tool_calls] == ["f"]


# Sources.

NEWS = {"url": "https://a.example/1", "title": "A", "start_index": 2, "end_index": 6}


def test_annotations_go_onto_their_text() -> None:
    nested, flat = {"type": "url_citation", "url_citation": NEWS}, {"type": "url_citation", **NEWS}
    for raw in (nested, flat):
        (text,) = both({"content": "It is so.", "annotations": [raw]}).parts
        assert text == Text("It is so.", citations=(Citation("https://a.example/1", "A", "", 2, 6, raw=raw),))
    early = streamed(chunk({"annotations": [nested]}), chunk({"content": "It is so."}, "stop"))
    assert early.parts == (Text("It is so.", citations=(Citation("https://a.example/1", "A", "", 2, 6, raw=nested),)),)
    unplaced = {"type": "url_citation", "url_citation": {**NEWS, "start_index": 0, "end_index": 0}}
    (text,) = both({"content": "a", "annotations": [unplaced, "nonsense", None]}).parts
    assert isinstance(text, Text)
    assert [(each.start, each.end) for each in text.citations] == [(None, None)]


def test_perplexitys_sources_stand_once_in_the_order_of_their_marks() -> None:
    urls = ["https://b.example", "https://a.example"]
    results = [
        {"title": "A", "url": "https://a.example", "date": "2026-01-01", "snippet": "as we said"},
        {"title": "B", "url": "https://b.example", "date": None},
    ]
    expected = (
        Citation("https://b.example", "B", raw=results[1]),
        Citation("https://a.example", "A", "as we said", raw=results[0]),
    )
    turn = streamed(
        chunk({"content": "a[1]"}, citations=urls, search_results=results),
        chunk({"content": "b[2]"}, citations=urls, search_results=results),
        chunk({}, "stop", citations=urls, search_results=results),
    )
    assert turn.parts == (Text("a[1]b[2]", citations=expected),)
    assert whole({"content": "a[1]b[2]"}, citations=urls, search_results=results).parts == turn.parts
    assert both({"content": "a"}, citations=["https://x.example"]).parts == (
        Text("a", citations=(Citation("https://x.example", raw={"url": "https://x.example"}),)),
    )


def test_zais_search_results() -> None:
    found = [{"title": "A", "link": "https://a.example", "content": "words", "refer": "ref_1"}]
    (text,) = both({"content": "a"}, web_search=found).parts
    assert text == Text("a", citations=(Citation("https://a.example", "A", "words", raw=found[0]),))


def test_files_that_openrouter_read_go_back_with_their_annotation() -> None:
    parsed = {"type": "file", "file": {"hash": "h", "name": "a.pdf", "content": [{"type": "text", "text": "x"}]}}
    turn = both({"content": "a", "annotations": [parsed]}, OpenRouter())
    assert body(OpenRouter(), UserMessage.of("?"), turn.message)["messages"][1]["annotations"] == [parsed]
    assert "annotations" not in body(OPENAI, UserMessage.of("?"), turn.message)["messages"][1]


def test_tools_that_groq_ran_are_shown_with_their_sources() -> None:
    called = {"index": 0, "type": "search", "arguments": '{"query": "news"}'}
    result = {"title": "A", "url": "https://a.example", "content": "words", "score": 0.9}
    ended = {**called, "output": "Title: A", "search_results": {"results": [result]}}
    turn = streamed(
        chunk({"executed_tools": [called]}), chunk({"executed_tools": [ended]}), chunk({"content": "a"}, "stop")
    )
    replay = Replay("openai-chat", {"executed_tools": [ended]})
    assert turn.parts == (
        Text("a", citations=(Citation("https://a.example", "A", "words", raw=result),)),
        ServerTool("executed_tools", replay, "search", "", '{"query": "news"}'),
    )
    assert turn == whole({"content": "a", "executed_tools": [ended]})


# Pictures and sound.


def test_pictures_of_an_answer() -> None:
    def image(url: str, index: int) -> dict[str, Any]:
        return {"type": "image_url", "index": index, "image_url": {"url": url}}

    pictures = [image("data:image/png;base64,aGk=", 0), image("data:image/png;base64,eW8=", 1)]
    turn = both({"content": "Here:", "images": pictures}, OpenRouter())
    assert turn.parts == (Text("Here:"), Image("image/png", "aGk="), Image("image/png", "eW8="))
    only = streamed(chunk({"images": [image("https://x.example/a.png", 0)]}, "stop"), adapter=OpenRouter())
    assert only.parts == (Image(url="https://x.example/a.png"),)


SAMPLES = b"RIFF....WAVEfmt and so on, many samples long"


@pytest.mark.parametrize("piece", [3, 4, 7, 1000])
def test_a_spoken_answer(piece: int) -> None:
    data = base64.b64encode(SAMPLES).decode()
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    turn = streamed(
        chunk({"role": "assistant", "content": None, "audio": {"id": "audio_1"}}),
        *(
            chunk({"audio": {"data": part, **({"transcript": said} if said else {})}})
            for part, said in zip(pieces, ["Hel", "lo."] + [""] * len(pieces), strict=False)
        ),
        *([chunk({"audio": {"transcript": "lo."}})] if len(pieces) == 1 else []),
        chunk({"audio": {"expires_at": 1_800_000_000}}, "stop"),
    )
    replay = Replay("openai-chat", {"audio": {"id": "audio_1"}})
    assert turn.parts == (Audio("audio/wav", data, replay=replay), Text("Hello.", replay))
    audio = {"id": "audio_1", "data": data, "transcript": "Hello.", "expires_at": 1}
    assert whole({"content": None, "audio": audio}) == turn
    assert body(OPENAI, UserMessage.of("?"), turn.message)["messages"][1] == {
        "role": "assistant",
        "audio": {"id": "audio_1"},
    }


def test_a_spoken_answer_that_is_written_too_has_its_text_once() -> None:
    data = base64.b64encode(SAMPLES).decode()
    said: dict[str, Any] = {"content": "Hello.", "audio": {"id": "a", "data": data, "transcript": "Hello."}}
    turn = streamed(
        chunk({"content": "Hel", "audio": {"id": "a", "transcript": "Hel"}}),
        chunk({"content": "lo.", "audio": {"transcript": "lo.", "data": data}}, "stop"),
    )
    assert turn.text == "Hello."
    assert [part.data_base64 for part in turn.parts if isinstance(part, Audio)] == [data]
    assert whole(said).text == "Hello."


def test_sound_comes_piece_by_piece_and_each_piece_can_be_decoded() -> None:
    data = base64.b64encode(bytes(range(250))).decode()
    stream = sse([chunk({"audio": {"id": "a", "data": data[at : at + 5]}}) for at in range(0, len(data), 5)], done=True)
    sounds = [event.media.data_base64 for event in events(OPENAI, stream) if isinstance(event, MediaDelta)]
    assert len(sounds) > 10
    assert b"".join(map(base64.b64decode, sounds)) == bytes(range(250))


@pytest.mark.parametrize(
    "nonsense", [5, "x", [], [5], {"data": 5}, {"data": "a"}, [{"image_url": 5}], [{"image_url": {}}]]
)
@pytest.mark.parametrize("name", ["audio", "images", "annotations", "executed_tools"])
def test_an_answer_is_not_lost_over_what_is_beside_it(name: str, nonsense: Any) -> None:
    turn = both({"content": "a", name: nonsense})
    assert (turn.error, turn.text) == (None, "a")


# What is known of the answer.


def test_log_probabilities() -> None:
    def token(word: str, number: float, *others: tuple[str, float]) -> dict[str, Any]:
        top = [{"token": each, "logprob": value, "bytes": None} for each, value in others]
        return {"token": word, "logprob": number, "bytes": [97], "top_logprobs": top}

    first, second = token("a", -0.5, ("a", -0.5), ("b", -2)), token("b", -1)
    documents = [chunk({"content": "a"}), chunk({"content": "b"}, "stop")]
    documents[0]["choices"][0]["logprobs"] = {"content": [first], "refusal": None}
    documents[1]["choices"][0]["logprobs"] = {"content": [second, {"token": 5}, "x"]}
    turn = streamed(*documents)
    assert turn.logprobs == (TokenLogprob("a", -0.5, (("a", -0.5), ("b", -2.0))), TokenLogprob("b", -1.0))
    assert whole({"content": "ab"}, choice={"logprobs": {"content": [first, second]}}).logprobs == turn.logprobs
    together = {"tokens": ["a", "b"], "token_logprobs": [-0.5, None], "token_ids": [1, 2]}
    assert whole({"content": "ab"}, choice={"logprobs": together}).logprobs == (TokenLogprob("a", -0.5),)
    for nonsense in ("x", 5, [1], {"content": 5}, {"tokens": "ab", "token_logprobs": [1]}):
        assert whole({"content": "ab"}, choice={"logprobs": nonsense}).logprobs == ()


def test_ids_tier_and_model_of_the_answer() -> None:
    headers = {"X-Request-Id": "req_9"}
    last = {"choices": [], "service_tier": "priority", "usage": counts(1, 1)}
    stream = streamed(chunk({"content": "a"}, service_tier=None), chunk({}, "stop"), last, headers=headers)
    document = {"id": "c-1", "model": "m", "service_tier": "priority", "choices": [{"message": {"content": "a"}}]}
    for turn in (stream, answer(OPENAI, orjson.dumps(document), streaming=False, headers=headers)):
        assert (turn.response_id, turn.model, turn.service_tier) == ("c-1", "m", "priority")
        assert turn.provider_request_id == "req_9"


def test_a_long_text_is_one_event_each() -> None:
    """Nothing that is new costs the ordinary chunk: one piece of text is one event."""
    stream = sse([chunk({"content": "a"}) for _ in range(50)] + [chunk({}, "stop")], done=True)
    found = events(OPENAI, stream)
    assert [event for event in found if isinstance(event, TextDelta)] == [TextDelta("a")] * 50
    assert len(found) == 51


def in_message(message: dict[str, Any], finish: Any = None) -> dict[str, Any]:
    return {"id": "c-1", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def test_quirk_63_a_message_at_the_end_of_its_stream_repeats_nothing() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    told = {"reasoning_content": "Hmm", "content": "Hello", "tool_calls": [call]}
    deltas = [chunk({"reasoning_content": "Hmm"}), chunk({"content": "Hel"}), chunk({"content": "lo"})]
    everything = streamed(*deltas, chunk({"tool_calls": [{"index": 0, **call}]}), in_message(told, "tool_calls"))
    assert (everything.thinking, everything.text, len(everything.tool_calls)) == ("Hmm", "Hello", 1)
    for before in range(4):
        completed = streamed(*deltas[:before], in_message(told, "tool_calls"))
        assert (completed.thinking, completed.text, len(completed.tool_calls)) == ("Hmm", "Hello", 1)


def test_quirk_63_messages_that_tell_all_so_far() -> None:
    turn = streamed(*(in_message({"content": "Hello"[:end]}, "stop" if end == 5 else None) for end in (1, 2, 2, 5)))
    assert turn.text == "Hello"
    assert turn.parts == (Text("Hello"),)


def test_a_picture_that_is_written_as_it_is() -> None:
    turn = whole({"images": [{"image_url": {"url": "data:image/svg+xml;charset=utf-8,%3Csvg/%3E"}}]})
    assert turn.parts == (Image("image/svg+xml", base64.b64encode(b"<svg/>").decode()),)


def test_places_in_a_text_that_reasoning_interrupts_are_places_in_its_parts() -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "u", "start_index": 5, "end_index": 9}}
    turn = streamed(
        chunk({"content": "Zür. "}),
        chunk({"reasoning_content": "Hmm"}),
        chunk({"content": "🙂Ja.", "annotations": [cited]}, "stop"),
    )
    [first, _, second] = turn.parts
    assert isinstance(first, Text)
    assert isinstance(second, Text)
    assert first.citations == ()
    [found] = second.citations
    assert second.text[found.start : found.end] == "🙂Ja."


def test_zeros_behind_a_count_are_no_usage() -> None:
    counted = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    zeros = {**dict.fromkeys(counted, 0), "prompt_tokens_details": {"cached_tokens": 0}}
    turn = streamed(chunk({"content": "Hi"}, usage=counted), chunk({}, "stop", usage=zeros))
    assert turn.usage == Usage(5, 2)


@pytest.mark.parametrize("reason", [1, 2.5, True, ["stop"]])
def test_a_reason_that_is_no_word_is_not_known(reason: Any) -> None:
    turn = whole({"content": "Hi"}, reason)
    assert (turn.text, turn.finish_reason) == ("Hi", FinishReason.OTHER)
    assert streamed(chunk({"content": "Hi"}), chunk({}, reason)) == turn


def test_words_that_are_written_and_spoken_are_one_text() -> None:
    apart = [{"content": "He"}, {"audio": {"id": "a", "transcript": "Hel"}}, {"content": "llo"}]
    turn = streamed(*map(chunk, apart), chunk({"audio": {"transcript": "lo"}}), chunk({}, "stop"))
    assert turn.text == "Hello"
    assert whole({"content": "Hello", "audio": {"id": "a", "transcript": "Hello"}}).parts == turn.parts
