"""Any legal stream, cut into any chunks, gives the same turn; cut off anywhere, it gives an error and no whole turn."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import Stream, anthropic_streams, gemini_streams, responses_streams
from support.wire import answer, events, sse

from callboard.protocol.content import Thinking
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Done, Error
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.responses_api import OpenAIResponses

ADAPTERS: dict[str, Adapter] = {"anthropic": Anthropic(), "responses": OpenAIResponses(), "gemini": Gemini()}
STREAMS = {"anthropic": anthropic_streams(), "responses": responses_streams(), "gemini": gemini_streams()}
EXAMPLES = int(os.environ.get("CALLBOARD_DEEP_EXAMPLES", "60"))
chunk_sizes = st.lists(st.integers(1, 400), min_size=1, max_size=8)


def canonical(arguments: str) -> object:
    return json.loads(arguments)


@pytest.mark.parametrize("api", STREAMS)
def test_any_chunking_tells_the_same_turn(api: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(STREAMS[api], chunk_sizes)
    def check(stream: Stream, sizes: list[int]) -> None:
        whole = answer(ADAPTERS[api], stream.body)
        assert answer(ADAPTERS[api], stream.body, sizes) == whole
        assert answer(ADAPTERS[api], stream.body, [1]) == whole

    check()


@pytest.mark.parametrize("api", STREAMS)
def test_the_turn_is_what_was_told(api: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(STREAMS[api])
    def check(stream: Stream) -> None:
        turn, told = answer(ADAPTERS[api], stream.body), stream.told
        assert turn.error is None
        assert turn.finish_reason is told.finish
        assert turn.text == "".join(told.texts)
        assert turn.thinking == "".join(told.thinking)
        if api != "gemini":
            # Blocks stay apart: each is replayed by itself. (Gemini's bear no number; there a signature parts them.)
            assert [part.text for part in turn.parts if isinstance(part, Thinking)] == list(told.thinking)
        assert all(call.complete for call in turn.tool_calls)
        assert [(c.call_id, c.name, canonical(c.arguments)) for c in turn.tool_calls] == [
            (call_id, name, canonical(arguments)) for call_id, name, arguments in told.calls
        ]

    check()


@pytest.mark.parametrize("api", STREAMS)
def test_a_stream_cut_off_anywhere_is_an_error(api: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(STREAMS[api], st.data())
    def check(stream: Stream, data: st.DataObject) -> None:
        body = stream.body.rstrip().removesuffix(b"data: [DONE]").rstrip()
        end = data.draw(st.integers(0, len(body) - 1))
        last = events(ADAPTERS[api], body[:end])[-1]
        if api == "gemini" and isinstance(last, Done):
            # Nothing is missing but bytes behind the finish reason's own object.
            assert b"finishReason" in body[:end]
            return
        assert isinstance(last, Error)
        assert last.kind in (ErrorKind.TRUNCATED, ErrorKind.MALFORMED)

    check()


WORDS = "a\u2028b\u2029c\x85d\x0be\x0cf \U0001f3ad"


@pytest.mark.parametrize(
    ("api", "documents"),
    [
        (
            "anthropic",
            [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": WORDS}}],
        ),
        ("responses", [{"type": "response.output_text.delta", "output_index": 0, "delta": WORDS}]),
        ("gemini", [{"candidates": [{"content": {"parts": [{"text": WORDS}]}}]}]),
    ],
)
def test_quirk_29_and_30_only_newlines_end_lines_and_characters_may_be_split(api: str, documents: list[object]) -> None:
    for size in (1, 2, 3, 1000):
        assert answer(ADAPTERS[api], sse(documents), [size]).text == WORDS


@pytest.mark.parametrize("api", STREAMS)
def test_usage_is_normalised(api: str) -> None:
    totals = {"anthropic": (15, 42, 5, 0), "responses": (20, 9, 4, 3), "gemini": (7, 5, 0, 2)}

    @settings(max_examples=5, deadline=None)
    @given(STREAMS[api])
    def check(stream: Stream) -> None:
        turn = answer(ADAPTERS[api], stream.body)
        usage = turn.usage
        found = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens)
        assert found == totals[api]
        assert turn.raw_usage
        assert turn.model

    check()
