"""A history is written as each Chat Completions server takes it; a message is read alike, streamed and whole."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.histories import histories
from support.validators import VALIDATORS
from support.wire import answer, body, sse

from callboard.protocol.content import Image, Message, Text, UserMessage
from callboard.protocol.model import FinishReason
from callboard.providers.copilot.copilot_api import DIALECT as COPILOT
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import SERVERS, ChatDialect
from callboard.providers.openrouter import DIALECT as OPENROUTER

ROWS: dict[str, ChatDialect] = {**SERVERS, "openrouter": OPENROUTER, "copilot": COPILOT}
EXAMPLES = examples(20)


def as_bytes(message: Message) -> Message:
    """The message with pictures that every server with eyes takes, none for those without."""
    if not isinstance(message, UserMessage):
        return message
    return UserMessage(tuple(Image("image/png", "aGk=") if isinstance(p, Image) else p for p in message.parts))


def without_pictures(message: Message) -> Message:
    if not isinstance(message, UserMessage):
        return message
    return UserMessage(tuple(Text("a picture") if isinstance(part, Image) else part for part in message.parts))


def faults(row: ChatDialect, messages: list[dict[str, Any]]) -> list[str]:
    """What this server would refuse."""
    roles = [message["role"] for message in messages]
    found = []
    if "system" in roles[1:]:
        found.append("a system message that is not the first")
    if next((role for role in roles if role != "system"), "") != "user":
        found.append("the conversation does not begin with the user")
    for before, after in pairwise(roles):
        if before == after == "user":
            found.append("two messages of the user's")
        if (before, after) == ("tool", "user") and row.name == "mistral":
            found.append("a user's message directly after a result")
    for message in messages:
        said = message.get("content")
        if not said and not message.get("tool_calls"):
            found.append(f"an empty message: {message}")
        if isinstance(said, list) and not row.text_parts and all(part["type"] == "text" for part in said):
            found.append("a list of nothing but texts")
    return found


ADAPTERS = {
    name: OpenAIChat(base_url="http://localhost:1", dialect=row) for name, row in ROWS.items() if name != "openai-chat"
}


@settings(max_examples=EXAMPLES, deadline=None)
@given(histories())
def test_any_history_is_in_the_order_that_a_server_takes(messages: tuple[Message, ...]) -> None:
    for name, adapter in ADAPTERS.items():  # to draw a history takes longer than to encode it for all of them
        shown = as_bytes if Image in ROWS[name].parts else without_pictures
        sent = body(adapter, *map(shown, messages))
        assert faults(ROWS[name], sent["messages"]) == [], name
        # Mistral's own ids and words are not OpenAI's.
        assert list(VALIDATORS["chat"](sent)) == [], name


_words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
_urls = st.sampled_from(["https://a.example", "https://b.example/1", "https://c.example/2"])
_annotations = st.builds(
    lambda url, start, length: {
        "type": "url_citation",
        "url_citation": {"url": url, "title": "T", "start_index": start, "end_index": start + length},
    },
    _urls,
    st.integers(0, 5),
    st.integers(0, 5),
)
_images = st.builds(lambda data: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}, _urls)
_calls = st.builds(
    lambda name, value: {"type": "function", "function": {"name": name, "arguments": json.dumps({"x": value})}},
    st.sampled_from(["f", "look_up"]),
    _words,
)
messages = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": st.one_of(st.none(), _words),
        "reasoning_content": _words,
        "annotations": st.lists(_annotations, max_size=3),
        "images": st.lists(_images, max_size=3),
        "tool_calls": st.lists(_calls, max_size=3),
        "reasoning_opaque": _words,
        "audio": st.fixed_dictionaries(
            {"id": _words, "transcript": _words}, optional={"data": st.just("aGVsbG8sIHdvcmxk")}
        ),
    },
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "citations": st.lists(_urls, max_size=3),
        "search_results": st.lists(st.fixed_dictionaries({"url": _urls, "title": _words}), max_size=3),
        "usage": st.fixed_dictionaries(
            {"prompt_tokens": st.integers(0, 9), "completion_tokens": st.integers(0, 9)},
            optional={"total_tokens": st.integers(0, 30), "cached_tokens": st.integers(0, 12)},
        ),
        "service_tier": st.sampled_from(["default", "flex"]),
    },
)
#: The fields of a message in the order in which servers stream them, by chunks: words that are written and spoken come
#: together, or nothing says that they are the same.
_STREAMED = (
    ("role",), ("reasoning_content",), ("reasoning_opaque",), ("content", "images", "audio"), ("annotations",),
    ("tool_calls",),
)  # fmt: skip


@settings(max_examples=EXAMPLES * 5, deadline=None)
@given(messages, documents, st.sampled_from(["stop", "length", "abort"]), st.lists(st.integers(1, 90), min_size=1))
def test_a_message_is_read_alike_streamed_and_whole(
    message: dict[str, Any], document: dict[str, Any], finish: str, sizes: list[int]
) -> None:
    for number, call in enumerate(message.get("tool_calls", [])):
        call |= {"index": number, "id": f"id{number}"}
    adapter = OpenAIChat()
    head = {"id": "c-1", "model": "m"}
    deltas = [{name: message[name] for name in names if name in message} for names in _STREAMED]
    chunks: list[dict[str, Any]] = [{**head, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    last = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], **document}
    streamed = answer(adapter, sse([*chunks, last], done=True), sizes)
    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = answer(adapter, orjson.dumps({**head, "choices": [choice], **document}), streaming=False)
    assert streamed == whole
    assert streamed.error is None
    if finish == "abort":
        assert streamed.finish_reason is FinishReason.OTHER
        assert not any(call.complete for call in streamed.tool_calls)
    if (usage := streamed.usage) is not None:
        assert usage.cached_tokens <= usage.input_tokens
