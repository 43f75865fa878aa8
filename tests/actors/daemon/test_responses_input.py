"""Items of the Responses API, as messages."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.responses_input import closed, items_of, messages_of, opened
from callboard.protocol.content import Replay, Text, UserMessage

JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9), lambda inner: st.lists(inner))
KINDS = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "mcp_call", "x"])
NAMES = st.sampled_from(
    ["role", "content", "id", "call_id", "name", "arguments", "output", "summary", "encrypted_content"]
)
ITEMS = st.builds(lambda kind, rest: {"type": kind, **rest}, KINDS, st.dictionaries(NAMES, JSON))


def test_a_text_is_the_users() -> None:
    assert list(messages_of(items_of("hello"))) == [UserMessage((Text("hello"),))]


@given(st.lists(ITEMS, max_size=5))
def test_items_are_read_or_refused_by_name(items: list[dict[str, object]]) -> None:
    with contextlib.suppress(ApiError):
        list(messages_of(items))


@given(st.text(), st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53)))
def test_what_a_provider_needs_comes_back(origin: str, data: dict[str, object]) -> None:
    assert opened(closed(Replay(origin, data))) == Replay(origin, data)


@given(st.text())
def test_what_another_server_has_sealed_is_left_out(content: str) -> None:
    assert opened(content) is None
