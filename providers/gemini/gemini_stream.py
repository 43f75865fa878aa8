"""Gemini: answers, as SSE, as one long JSON array, or whole. Facts: docs/wire.md 1.4, quirks 40-45."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from typing import Final, TypeAlias

from callboard.protocol.content import Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import MAX_ARGUMENT_BYTES, MAX_RESPONSE_BYTES
from callboard.protocol.model import Done, FinishReason, ServerToolEvent, StreamEvent, TextDelta, ThinkingDelta, Usage
from callboard.providers.base_decoder import (
    AnswerHead,
    BaseDecoder,
    count_at,
    fields_at,
    object_at,
    object_of,
    objects_at,
    text_at,
    text_of,
)
from callboard.providers.http_errors import make_error
from callboard.providers.json_values import Json, JsonObject

ORIGIN: Final = "gemini"

_FINISH_REASONS: Final = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "UNEXPECTED_TOOL_CALL": FinishReason.TOOL_CALLS,
}
_FILTERS: Final = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"}
    | {"IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"}
)
#: Reasons that mean that there is no answer.
_FAILURES: Final = {
    "MALFORMED_FUNCTION_CALL": ErrorKind.MALFORMED_TOOL_CALL,
    "MALFORMED_RESPONSE": ErrorKind.MALFORMED,
    "MISSING_THOUGHT_SIGNATURE": ErrorKind.INVALID_REQUEST,
}
_STEP: Final = re.compile(r"""\.([^.\[\]'"]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
#: The steps of a path; the pieces of a call and the places of its lists. Models stay far below, broken servers may not.
_MAX_STEPS: Final = 64
_MAX_PIECES: Final = 100_000
_MAX_PLACES: Final = 10_000
_VALUES: Final = ("numberValue", "boolValue", "nullValue")
_OUTSIDE_STRING: Final = re.compile(rb'["{}\[\],]')
_INSIDE_STRING: Final = re.compile(rb'["\\]')
_QUOTE, _BACKSLASH, _COMMA = b'"', b"\\", b","

_Out = list[StreamEvent]
_Path: TypeAlias = tuple[str | int, ...]


class PartialArguments:
    """The arguments of one call, streamed as (JSONPath, value) pieces, put together to their object (quirk 43).

    Linear in their bytes: strings are joined once, at the end.
    """

    def __init__(self) -> None:
        self._strings: dict[str, StringIO] = {}
        self._values: JsonObject = {}
        self._size = 0
        self._padded = 0

    def add(self, piece: JsonObject) -> None:
        """One entry of `partialArgs`. Raises ValueError past the limits."""
        path, text = text_of(piece["jsonPath"]), text_at(piece, "stringValue")
        self._size += len(path) + len(text)
        if self._size > MAX_ARGUMENT_BYTES or len(self._values) >= _MAX_PIECES:
            raise ValueError(f"the streamed arguments are longer than {MAX_ARGUMENT_BYTES} characters")
        if isinstance(piece.get("stringValue"), str):
            # Text at a path that had some goes on with it.
            self._strings.setdefault(path, StringIO()).write(text)
            self._values[path] = None
        for kind in _VALUES:
            if kind in piece:
                self._values[path] = None if kind == "nullValue" else piece[kind]

    def value(self) -> JsonObject:
        """The object so far. Raises ValueError where two pieces contradict each other."""
        root: JsonObject = {}
        self._padded = 0
        for path, value in self._values.items():
            steps, pieces = _steps(path), self._strings.get(path)
            inner: Json = root
            for step, following in pairwise(steps):
                inner = self._child(inner, step, [] if isinstance(following, int) else {})
            self._child(inner, steps[-1], value if pieces is None else pieces.getvalue(), replace=True)
        return root

    def _child(self, node: Json, step: str | int, value: Json, *, replace: bool = False) -> Json:
        """What is at `step` of `node`; `value` is put there first if nothing is, or always with `replace`."""
        if isinstance(step, int):
            if not isinstance(node, list):
                raise ValueError(f"no list with a place {step}")
            missing = max(0, step + 1 - len(node))
            self._padded += missing
            if self._padded > _MAX_PLACES:
                raise ValueError(f"lists of more than {_MAX_PLACES} places")
            node.extend([None] * missing)
            if replace or node[step] is None:
                node[step] = value
            return node[step]
        if not isinstance(node, dict):
            raise ValueError(f"no object with a field {step!r}")
        if replace or node.get(step) is None:
            node[step] = value
        return node[step]


def _steps(path: str) -> _Path:
    if not path.startswith("$"):
        raise ValueError(f"a JSONPath starts with $, not {path[:40]!r}")
    steps: list[str | int] = []
    end = 1
    while end < len(path):
        match = _STEP.match(path, end)
        if match is None or len(steps) >= _MAX_STEPS:
            raise ValueError(f"not a JSONPath to one value: {path[:80]!r}")
        name, index, single, double = match.groups()
        if index is not None:
            steps.append(int(index[:6]))
        else:
            quoted = single if single is not None else double
            steps.append(name if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        end = match.end()
    if not steps or isinstance(steps[0], int):
        raise ValueError(f"the arguments are an object, so {path[:40]!r} is no place in them")
    return tuple(steps)


class JsonArraySplitter:
    """Hands out the elements of one long JSON array as soon as each is whole (Gemini's stream without alt=sse).

    Cuts, and parses nothing: an element that is no JSON is found out by the parser. Cost is linear in the bytes for any
    chunking; memory is bounded by one element.
    """

    def __init__(self, max_element_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._max_element_bytes = max_element_bytes
        self._element = bytearray()
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.closed = False
        """The array's own bracket was closed: all that follows is ignored."""

    def feed(self, data: bytes) -> list[bytes]:
        """The elements that `data` completes. Raises ValueError for an element without end."""
        elements: list[bytes] = []
        start = position = 0
        while position < len(data) and not self.closed:
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            match = (_INSIDE_STRING if self._in_string else _OUTSIDE_STRING).search(data, position)
            if match is None:
                break
            position = match.end()
            if self._in_string:
                self._escaped = match.group() == _BACKSLASH
                self._in_string = self._escaped
            elif self._structure(match.group()):
                self._element += data[start : position - 1]
                self._cut(elements)
                start = position
        if not self.closed:
            self._element += data[start:]
            if len(self._element) > self._max_element_bytes:
                raise ValueError(f"an element of more than {self._max_element_bytes} bytes")
        return elements

    def _structure(self, mark: bytes) -> bool:
        """Does `mark`, outside a string, border an element?"""
        if mark == _QUOTE:
            self._in_string = True
        elif mark in b"{[":
            self._depth += 1
            return self._depth == 1
        elif mark in b"}]":
            self._depth -= 1
            self.closed = self._depth <= 0
            return self.closed
        else:
            return self._depth == 1
        return False

    def _cut(self, elements: list[bytes]) -> None:
        element = bytes(self._element).strip()
        self._element.clear()
        if element and self._depth <= 1 and element != b"\xef\xbb\xbf":
            elements.append(element)


@dataclass(slots=True)
class _Partial:
    """A call whose arguments are being streamed."""

    index: int
    arguments: PartialArguments = field(default_factory=PartialArguments)


class GeminiDecoder(BaseDecoder):
    """Events of generateContent. The end of the body is the end; a finishReason before it makes the turn whole."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._array: JsonArraySplitter | None = None
        self._may_be_array = head.streaming and head.status < 400
        self._partial: _Partial | None = None
        self._block_number = 0
        self._finish_reason = ""
        self._finish_message = ""
        self._block_reason = ""

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        if document.get("error"):
            self.fail_payload(document, out)
            return
        if not self.calls.seed:
            self.calls.seed = text_at(document, "responseId")
        if "usageMetadata" in document:
            self._note_usage(fields_at(document, "usageMetadata"))
        self.model = text_at(document, "modelVersion") or self.model
        # No candidate will come where the filter took the prompt (quirk 45).
        if "promptFeedback" in document:
            self._block_reason = text_at(object_at(document, "promptFeedback"), "blockReason") or self._block_reason
        for candidate in objects_at(document, "candidates"):
            if not candidate.get("index"):
                self._candidate(candidate, out)

    def _note_usage(self, given: JsonObject) -> None:
        """Cumulative: the last counts, as a whole. Vertex sends some without any count, which add to it (quirk 67)."""
        if given.get("promptTokenCount") or any(given[key] is not None for key in given if key.endswith("TokenCount")):
            self.usage = given
        else:
            self.usage = {**self.usage, **{key: value for key, value in given.items() if value is not None}}

    def on_body(self, document: Json, out: _Out) -> None:
        for chunk in document if isinstance(document, list) else [document]:
            self.on_json("", object_of(chunk), out)
            if self.ended:
                return
        self.on_end(out, False)

    def on_end(self, out: _Out, marked: bool) -> None:
        reason = self._finish_reason
        otherwise = FinishReason.CONTENT_FILTER if reason in _FILTERS else FinishReason.OTHER
        finish = _FINISH_REASONS.get(reason, otherwise)
        if not reason and self._block_reason:
            self._done(FinishReason.CONTENT_FILTER, self._block_reason, out)
        elif not reason:
            self.fail_truncated(out)
        elif reason in _FAILURES or (reason == "UNEXPECTED_TOOL_CALL" and not self.calls.count):
            kind = _FAILURES.get(reason, ErrorKind.MALFORMED_TOOL_CALL)
            detail = f": {self._finish_message}" if self._finish_message else ""
            self.fail(out, make_error(kind, f"The model's turn ended with {reason}{detail}", code=reason))
        else:
            if finish is not FinishReason.LENGTH:
                # The piece that closes a streamed call may be missing before the finish reason (quirk 43).
                self._close_partial(out)
            if finish is FinishReason.STOP and self.calls.count:
                finish = FinishReason.TOOL_CALLS
            self._done(finish, reason, out)

    def _done(self, finish: FinishReason, reason: str, out: _Out) -> None:
        usage: JsonObject = {key: value for key, value in self.usage.items() if value is not None}
        self.end(out, Done(finish, reason, _usage(usage), usage, self.model))

    # A stream without alt=sse is one JSON array.

    def _take_body(self, data: bytes, out: _Out) -> None:
        if self._may_be_array and data.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"["):
            self._array = JsonArraySplitter()
        self._may_be_array = False
        if self._array is None:
            super()._take_body(data, out)
            return
        for element in self._array.feed(data):
            self._take_event("", element, out)
            if self.ended:
                return

    def _read_body(self, body: bytes, out: _Out) -> None:
        if self._array is None:
            super()._read_body(body, out)
        elif self._array.closed:
            self.on_end(out, False)
        else:
            self.fail_truncated(out)

    # How.

    def _candidate(self, candidate: JsonObject, out: _Out) -> None:
        for part in objects_at(object_at(candidate, "content"), "parts"):
            self._part(part, out)
        if candidate.get("finishReason"):
            self._finish_reason = text_at(candidate, "finishReason")
            self._finish_message = text_at(candidate, "finishMessage")

    def _part(self, part: JsonObject, out: _Out) -> None:
        signature = text_at(part, "thoughtSignature") if "thoughtSignature" in part else ""
        if "functionCall" in part:
            self._call(object_of(part["functionCall"]), signature, out)
        elif "text" in part or part.keys() <= _SIGNATURE_ONLY:
            self._prose(ThinkingDelta if part.get("thought") else TextDelta, text_at(part, "text"), signature, out)
        else:
            kind = next(key for key in part if key not in _SIGNATURE_ONLY)
            out.append(ServerToolEvent(kind, Replay(ORIGIN, part)))

    def _prose(self, kind: type[TextDelta | ThinkingDelta], text: str, signature: str, out: _Out) -> None:
        if signature:
            # A signed part is one of its own: it goes back exactly as it came (quirk 44).
            out.append(kind(text, self._block_number + 1, Replay(ORIGIN, {"thoughtSignature": signature})))
            self._block_number += 2
        elif text:
            out.append(kind(text, self._block_number))

    def _call(self, call: JsonObject, signature: str, out: _Out) -> None:
        name, call_id = text_at(call, "name"), text_at(call, "id")
        replay = _replay(call_id, signature)
        if call.get("partialArgs") or call.get("willContinue") or (self._partial is not None and not name):
            self._partial_call(call, name, call_id, replay, out)
            return
        self._close_partial(out)
        arguments = call.get("args") or {}
        self.calls.whole(out, id=call_id, name=name, arguments=arguments, replay=replay)

    def _partial_call(self, call: JsonObject, name: str, call_id: str, replay: Replay | None, out: _Out) -> None:
        if self._partial is None or name:
            self._close_partial(out)
            self._partial = _Partial(self.calls.count)
            self.calls.delta(out, index=self._partial.index, id=call_id, name=name, replay=replay)
        for piece in objects_at(call, "partialArgs"):
            self._partial.arguments.add(piece)
        if not call.get("willContinue"):
            self._close_partial(out)

    def _close_partial(self, out: _Out) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            self.calls.delta(out, index=partial.index, arguments=partial.arguments.value())
            self.calls.complete(out, index=partial.index)


_SIGNATURE_ONLY: Final = frozenset({"thoughtSignature", "thought"})


def _replay(call_id: str, signature: str) -> Replay | None:
    """What must go back on the very part: the API's own id, if it gave one, and the signature."""
    kept = {key: value for key, value in (("id", call_id), ("thoughtSignature", signature)) if value}
    return Replay(ORIGIN, kept) if kept else None


def _usage(raw: JsonObject) -> Usage:
    """candidatesTokenCount leaves the thoughts out, promptTokenCount the results of the provider's own tools."""
    thoughts = count_at(raw, "thoughtsTokenCount")
    return Usage(
        input_tokens=count_at(raw, "promptTokenCount") + count_at(raw, "toolUsePromptTokenCount"),
        output_tokens=count_at(raw, "candidatesTokenCount") + thoughts,
        cached_tokens=count_at(raw, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
    )
