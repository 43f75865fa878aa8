"""Any legal Chat Completions stream, in any server's manner and cut into any chunks, tells the same turn; and bad input
of any size is an Error, in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.wire import answer, events, sse

from callboard.protocol.content import ToolCall
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_CALLS_PER_STEP, MAX_RESPONSE_BYTES
from callboard.protocol.model import Done, Error, FinishReason
from callboard.protocol.testing import check_provider_adapter
from callboard.providers.adapter import Adapter
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import ChatDialect
from callboard.providers.openrouter import OpenRouter
from callboard.providers.provider_registry import adapter_for

ADAPTERS: dict[str, Adapter] = {
    "openai": OpenAIChat(),
    "openrouter": OpenRouter(),
    "copilot": Copilot(),
    "mistral": adapter_for("mistral"),
    "deepseek": adapter_for("deepseek"),
}
EXAMPLES = examples(200)


@dataclass(frozen=True)
class Told:
    """A turn, and the manner in which a server streams it."""

    text: list[str]
    thoughts: list[str]
    calls: list[tuple[str, dict[str, Any]]]
    fragment: int
    index: bool
    repeats: bool
    """Id and name stand in every delta (quirk 7)."""
    null_ids: bool
    finish_beside: bool
    crlf: bool
    done: bool
    comments: bool

    def body(self) -> bytes:
        documents = [_chunk({"reasoning_content": piece}) for piece in self.thoughts]
        documents += [_chunk({"role": "assistant", "content": piece}) for piece in self.text]
        for number, (name, arguments) in enumerate(self.calls):
            documents += self._call(number, name, json.dumps(arguments, ensure_ascii=False))
        finish = "tool_calls" if self.calls else "stop"
        if self.finish_beside and documents:
            documents[-1]["choices"][0]["finish_reason"] = finish
        else:
            documents.append(_chunk({}, finish))
        documents.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
        body = sse(documents, newline="\r\n" if self.crlf else "\n", done=self.done)
        return body.replace(b"data: ", b": keep-alive\n\ndata:") if self.comments else body

    def _call(self, number: int, name: str, arguments: str) -> list[dict[str, Any]]:
        pieces = [arguments[at : at + self.fragment] for at in range(0, len(arguments), self.fragment)]
        documents = []
        for turn, piece in enumerate(pieces):
            call: dict[str, Any] = {"index": number} if self.index else {}
            function = {"arguments": piece}
            if turn == 0 or self.repeats:
                call["id"], function["name"] = f"id{number}", name
            elif self.null_ids:
                call["id"] = ""
            documents.append(_chunk({"tool_calls": [call | {"function": function}]}))
        return documents


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-9", "model": "m", "choices": [choice]}


_words = st.text(min_size=1, max_size=6)
_objects = st.dictionaries(
    st.text(max_size=3), st.one_of(st.integers(), _words, st.none(), st.lists(_words)), max_size=3
)
told = st.builds(
    Told,
    text=st.lists(_words, max_size=4),
    thoughts=st.lists(_words, max_size=3),
    calls=st.lists(st.tuples(st.sampled_from(["f", "look_up"]), _objects), max_size=4),
    fragment=st.integers(1, 9),
    index=st.booleans(),
    repeats=st.booleans(),
    null_ids=st.booleans(),
    finish_beside=st.booleans(),
    crlf=st.booleans(),
    done=st.booleans(),
    comments=st.booleans(),
)
sizes = st.lists(st.integers(1, 200), min_size=1, max_size=6)


@settings(max_examples=EXAMPLES, deadline=None)
@given(told, st.sampled_from(sorted(ADAPTERS)), sizes)
@example(Told(["a"], [], [], 1, True, False, False, True, True, True, False), "openai", [1])
def test_any_manner_and_any_chunks_tell_the_turn(turn: Told, name: str, chunk_sizes: list[int]) -> None:
    body = turn.body()
    whole = answer(ADAPTERS[name], body)
    assert answer(ADAPTERS[name], body, chunk_sizes) == whole
    assert answer(ADAPTERS[name], body, [1]) == whole
    assert (whole.text, whole.thinking, whole.error) == ("".join(turn.text), "".join(turn.thoughts), None)
    assert [(call.name, json.loads(call.arguments)) for call in whole.tool_calls] == turn.calls
    assert whole.finish_reason is (FinishReason.TOOL_CALLS if turn.calls else FinishReason.STOP)
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (3, 4)


@settings(max_examples=EXAMPLES, deadline=None)
@given(told, st.data())
def test_a_cut_stream_never_completes_a_call(turn: Told, data: st.DataObject) -> None:
    """Cut before the finish reason: an error, and no call to run."""
    body = turn.body()
    finish = body.index(b'"finish_reason": "')
    cut_at = data.draw(st.integers(0, body.rindex(b"data:", 0, finish)))
    response = answer(ADAPTERS["openai"], body[:cut_at])
    assert response.error is not None
    assert response.error.kind is ErrorKind.TRUNCATED
    assert not any(call.complete for call in response.tool_calls)
    assert "".join(turn.text).startswith(response.text)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_the_kit_for_writers_of_adapters_agrees(name: str) -> None:
    calls = [("f", {"city": "Zürich"}), ("look_up", {})]
    plain = Told(["Hel", "lo"], ["hm"], calls, 3, True, False, False, True, True, True, True)
    check_provider_adapter(ADAPTERS[name], [plain.body(), replace(plain, crlf=False, repeats=True).body()], examples=20)


def test_the_kit_knows_that_not_every_model_takes_pictures() -> None:
    plain = Told(["Hel", "lo"], ["hm"], [], 3, True, False, False, True, True, True, True)
    blind = OpenAIChat(base_url="http://localhost:1", dialect=ChatDialect("blind", parts={}))
    check_provider_adapter(blind, [plain.body()], examples=20)


def one_error(data: list[bytes], **how: Any) -> Error:
    """The error that ends a stream of these chunks, and nothing but events before it."""
    decoder = ADAPTERS["openai"].decoder(**how)
    found = [event for chunk in data for event in decoder.feed(chunk)] + decoder.finish()
    ends = [event for event in found if isinstance(event, Done | Error)]
    assert found[-1:] == ends
    assert isinstance(ends[0], Error)
    assert len(ends[0].raw) <= ERROR_SNIPPET_CHARS
    return ends[0]


@pytest.mark.parametrize("start", [b"data: ", b"x", b"{"])
def test_an_endless_line(start: bytes) -> None:
    piece = b"x" * (4 * 1024 * 1024)
    error = one_error([start] + [piece] * (MAX_RESPONSE_BYTES // len(piece) + 1))
    assert error.kind is ErrorKind.MALFORMED


def test_an_endless_error_page_is_not_kept() -> None:
    tracemalloc.start()
    error = one_error([b"<html>" + b"x" * 100_000] * 500, status=502)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.kind is ErrorKind.SERVER
    assert peak < 2_000_000


def test_ten_thousand_calls_in_one_turn() -> None:
    deltas = [{"index": n, "id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(10_000)]
    streamed = sse([_chunk({"tool_calls": [delta]}) for delta in deltas] + [_chunk({}, "tool_calls")])
    error = one_error([streamed])
    assert (error.kind, str(MAX_CALLS_PER_STEP) in error.message) == (ErrorKind.MALFORMED, True)
    document = {"choices": [{"message": {"tool_calls": deltas}, "finish_reason": "tool_calls"}]}
    assert one_error([json.dumps(document).encode()], streaming=False).kind is ErrorKind.MALFORMED


@pytest.mark.parametrize("arguments", ['{"a":' * 20_000, "[" * 20_000, '{"a":' * 2_000 + "1" + "}" * 2_000])
def test_deeply_nested_arguments_are_an_incomplete_call(arguments: str) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}
    response = answer(ADAPTERS["openai"], sse([_chunk({"tool_calls": [call]}), _chunk({}, "tool_calls")]))
    assert response.error is None
    assert response.tool_calls == (ToolCall(CallId("a"), ToolName("f"), arguments, complete=False),)


def test_deeply_nested_documents() -> None:
    assert one_error([b'data: {"choices":' + b"[" * 100_000 + b"\n\n"]).kind is ErrorKind.MALFORMED
    assert one_error([b"[" * 100_000]).kind is ErrorKind.MALFORMED
    assert one_error([b'{"error":' * 5_000], status=500).kind is ErrorKind.SERVER


@pytest.mark.parametrize(
    "document",
    [
        {"choices": 5}, {"choices": [5]}, {"choices": [None]}, {"choices": {"a": 1}}, {"choices": [{"delta": "text"}]},
        {"choices": [{"delta": {"content": 5}}]}, {"choices": [{"delta": {"content": [5]}}]},
        {"choices": [{"delta": {"tool_calls": 5}}]}, {"choices": [{"delta": {"tool_calls": ["x"]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "f"}]}}]},
        {"choices": [{"delta": {"reasoning_details": [1]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": [], "function": {"name": "f"}}]}}]},
        {"choices": [{"message": []}]}, {"usage": 5, "choices": []}, [1], "text", 5,
    ],
)  # fmt: skip
def test_json_of_the_wrong_shape(document: Any) -> None:
    """An error, never an exception."""
    for data, streaming in ((sse([document]), True), (json.dumps(document).encode(), False)):
        found = events(ADAPTERS["openai"], data, streaming=streaming)
        assert isinstance(found[-1], Error)
        assert found[-1].kind in (ErrorKind.MALFORMED, ErrorKind.TRUNCATED)
