"""Gemini: one answer, told whole, as SSE, as an array, in any pieces and any chunks of bytes, is the same turn."""

from __future__ import annotations

import dataclasses
import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.validators import gemini as violations
from support.wire import answer, body, events, sse

from callboard.protocol.content import Text, ToolMessage, UserMessage
from callboard.protocol.model import Done, Error
from callboard.providers.gemini.gemini_api import Gemini

ADAPTER = Gemini()
EXAMPLES = examples(200)
texts = st.one_of(st.sampled_from(["a", "Rome is öld. ", "\u2028🎭", '{"x']), st.text(min_size=1, max_size=12))
media_types = st.sampled_from(["audio/L16;codec=pcm;rate=24000", "audio/ogg"])
#: Parts that always come whole, each of its own kind.
WHOLE: list[dict[str, Any]] = [
    {"inlineData": {"mimeType": "image/png", "data": "AAECAw=="}},
    {"inlineData": {"mimeType": "image/png", "data": "AAECAw=="}, "thought": True},
    {"inlineData": {"mimeType": "application/pdf", "data": "AAECAw==", "displayName": "a"}},
    {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a.png"}},
    {"executableCode": {"language": "PYTHON", "code": "print('é')", "id": "e"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}},
    {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "id": "t", "args": {"queries": ["x"]}}},
    {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "id": "t", "response": {"a": 1}}},
    {"functionCall": {"name": "look", "args": {"n": 1}}},
    {"functionCall": {"name": "look", "id": "c1"}},
    {"aPartOfNextYear": {"x": [1]}},
]
SOURCES = [{"web": {"uri": f"https://{name}.example", "title": name}} for name in "abc"]


@dataclass(frozen=True)
class Told:
    """One answer: its parts in pieces, and what comes beside them in each piece of the stream."""

    parts: list[list[dict[str, Any]]]
    sources: list[dict[str, Any]]
    """The groundingMetadata of the stream, one after the other; the last one is the whole."""
    beside: dict[str, Any]
    usage: dict[str, Any]
    reason: str

    def stream(self) -> list[dict[str, Any]]:
        documents = [self._document([piece]) for pieces in self.parts for piece in pieces]
        documents += [self._document([], groundingMetadata=each) for each in self.sources]
        return [*documents, self._document([{"text": ""}], **self.beside, finishReason=self.reason)]

    def whole(self) -> dict[str, Any]:
        parts = [_joined(pieces) for pieces in self.parts]
        grounding = {"groundingMetadata": self.sources[-1]} if self.sources else {}
        return self._document(parts, **grounding, **self.beside, finishReason=self.reason)

    def _document(self, parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        content = {"content": {"parts": parts, "role": "model"}} if parts else {}
        return {
            "candidates": [{**content, "index": 0, **more}],
            "usageMetadata": self.usage,
            "modelVersion": "gemini-3-pro",
            "responseId": "r",
        }


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    first = pieces[0]
    if "text" in first:
        return {**first, "text": "".join(piece["text"] for piece in pieces)}
    if "bytes" in first:
        return _sound(first["type"], b"".join(piece["bytes"] for piece in pieces))
    return first


def _sound(media_type: str, data: bytes) -> dict[str, Any]:
    return {"inlineData": {"mimeType": media_type, "data": b64encode(data).decode()}}


@st.composite
def told(draw: st.DrawFn) -> Told:
    parts: list[list[dict[str, Any]]] = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["text", "thought", "sound", "signed", "whole"]))
        if kind in ("text", "thought"):
            thought = {"thought": True} if kind == "thought" else {}
            pieces = [{"text": text, **thought} for text in draw(st.lists(texts, min_size=1, max_size=4))]
        elif kind == "sound":
            media_type = draw(media_types)
            given_pieces = draw(st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=4))
            pieces = [{"type": media_type, "bytes": data} for data in given_pieces]
        elif kind == "signed":
            part = draw(st.sampled_from([{"text": "A"}, {"text": ""}, {"text": "B", "thought": True}, *WHOLE]))
            pieces = [{**part, "thoughtSignature": "c2ln"}]
        else:
            pieces = [draw(st.sampled_from(WHOLE))]
        if not parts or not _goes_on(parts[-1][-1], pieces[0]):
            parts.append(pieces)
    return Told(
        parts,
        draw(st.sampled_from([[], [_grounding(parts, 3)], [_grounding(parts, 1), _grounding(parts, 3)]])),
        draw(st.sampled_from([{}, {"citationMetadata": {"citationSources": [{"endIndex": 1, "uri": "u"}]}}])),
        {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 12},
        draw(st.sampled_from(["STOP", "MAX_TOKENS", "SAFETY", "OTHER", "A_REASON_OF_NEXT_YEAR"])),
    )


def _goes_on(last: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Would the piece be part of the one before?"""
    if "thoughtSignature" in last or "thoughtSignature" in piece:
        return False
    is_text = "text" in last and "text" in piece and last.get("thought") == piece.get("thought")
    return is_text or ("bytes" in last and "bytes" in piece and last["type"] == piece["type"])


def _grounding(parts: list[list[dict[str, Any]]], sources: int) -> dict[str, Any]:
    """Each text is supported by one source, which names its part and its bytes."""
    supports = []
    for index, pieces in enumerate(parts):
        if "text" in pieces[0] and "thought" not in pieces[0] and (text := _joined(pieces)["text"]):
            place = {"partIndex": index, "endIndex": len(text.encode("utf-8", "replace")), "text": text}
            supports.append({"segment": place, "groundingChunkIndices": [index % sources]})
    return {"groundingChunks": SOURCES[:sources], "groundingSupports": supports, "webSearchQueries": ["x"]}


def _wire(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, with sound as it is sent."""
    for document in stream:
        content = document["candidates"][0].get("content", {"parts": []})
        content["parts"] = [_sound(p["type"], p["bytes"]) if "bytes" in p else p for p in content["parts"]]
    return stream


@settings(max_examples=EXAMPLES, deadline=None)
@given(told(), st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_a_streamed_answer_is_its_whole_twin(told: Told, newline: str, sizes: list[int]) -> None:
    twin = answer(ADAPTER, json.dumps(told.whole()).encode(), streaming=False)
    stream = _wire(told.stream())
    for data in (sse(stream, newline=newline), json.dumps(stream, indent=2, ensure_ascii=False).encode()):
        assert answer(ADAPTER, data) == twin
        assert answer(ADAPTER, data, sizes) == twin
        assert answer(ADAPTER, data, [1]) == twin
    assert twin.error is None


@settings(max_examples=EXAMPLES, deadline=None)
@given(told())
def test_what_came_goes_back(told: Told) -> None:
    """All parts as they came, but for thoughts without a signature, which the API has no use for."""
    turn = answer(ADAPTER, sse(_wire(dataclasses.replace(told, reason="STOP").stream())))
    results = [ToolMessage(call.call_id, call.name, "{}") for call in turn.tool_calls]
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, *results, UserMessage.of("And?"))
    came = [_joined(pieces) for pieces in told.parts]
    kept = [part for part in came if not _is_left_out(part)]
    if not kept:
        return
    assert [_normal(part) for part in sent["contents"][1]["parts"]] == [_normal(part) for part in kept]
    if not any("aPartOfNextYear" in part for part in kept):
        assert violations(sent) == []


def _is_left_out(part: dict[str, Any]) -> bool:
    if "text" not in part or "thoughtSignature" in part:
        return False
    return "thought" in part or not part["text"].strip()


def _normal(part: dict[str, Any]) -> dict[str, Any]:
    """Without the marker on calls of a turn without signatures; arguments that were left out are none."""
    if "functionCall" not in part:
        return part
    call = {"args": {}, **part["functionCall"]}
    signature = {
        name: text for name, text in part.items() if name == "thoughtSignature" and not text.startswith("skip_")
    }
    return {"functionCall": call, **signature}


@settings(max_examples=EXAMPLES, deadline=None)
@given(told(), st.data())
def test_an_answer_that_is_cut_off_is_never_whole(told: Told, data: st.DataObject) -> None:
    """A cut before the finish reason is an error; what came until then is still told."""
    documents = _wire(told.stream())
    for whole in (sse(documents), json.dumps(documents).encode()):
        end = data.draw(st.integers(0, whole.index(b'"finishReason"')))
        found = events(ADAPTER, whole[:end])
        assert isinstance(found[-1], Error)


@settings(max_examples=EXAMPLES, deadline=None)
@given(told())
def test_citations_name_the_words_that_they_support(told: Told) -> None:
    turn = answer(ADAPTER, sse(_wire(told.stream())))
    for part in turn.parts:
        if isinstance(part, Text) and told.sources and part.text:
            grounded = [each for each in part.citations if each.end is not None and each.url.startswith("https")]
            assert [(each.start, each.end) for each in grounded] in ([(0, len(part.text))], [])
    places = [each for part in turn.parts if isinstance(part, Text) for each in part.citations]
    supports = told.sources[-1]["groundingSupports"] if told.sources else []
    assert len([each for each in places if each.raw.get("groundingSupport")]) == len(supports)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    told(),
    st.sampled_from(["candidates", "groundingMetadata", "usageMetadata", "parts", "citationMetadata"]),
    st.data(),
)
def test_any_value_in_any_place_ends_in_one_end(told: Told, name: str, data: st.DataObject) -> None:
    """A server that writes nonsense into a field: one Done or one Error, never an exception."""
    text = json.dumps(_wire(told.stream()))
    junk = data.draw(st.sampled_from(["7", "null", '"x"', "[]", "[7]", "{}", '[{"text": 7}]', "true", "1e999"]))
    mutated = text.replace(f'"{name}": ', f'"{name}": {junk}, "other": ', data.draw(st.integers(1, 3)))
    last = events(ADAPTER, mutated.encode())[-1]
    assert isinstance(last, Done | Error)
