"""Gemini: answers, as SSE, as one long JSON array, or whole. Facts: docs/wire.md 1.4, quirks 40-45."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from callboard.protocol.content import Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import MAX_ARGUMENT_BYTES, MAX_RESPONSE_BYTES
from callboard.protocol.model import Done, FinishReason, ServerToolEvent, StreamEvent, TextDelta, ThinkingDelta, Usage
from callboard.providers.base_decoder import BaseDecoder
from callboard.providers.http_errors import make_error
from callboard.providers.json_values import count_of, dumps_text, text_of
from callboard.providers.tool_tracker import ToolCallTracker

_OUTSIDE_STRING: Final = re.compile(rb'["{}\[\],]')
_INSIDE_STRING: Final = re.compile(rb'["\\]')
_QUOTE, _BACKSLASH, _COMMA = b'"', b"\\", b","


class JsonArraySplitter:
    """Cuts, and parses nothing: an element that is no JSON is found out by whoever reads it.

    Cost is linear in the bytes for any chunking; memory is bounded by one element.
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


_STEP: Final = re.compile(r"""\.([^.\[\]'"]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
#: The steps of a path, the place in a list, the pieces of a call: models stay far below, broken servers may not.
_MAX_STEPS: Final = 64
_MAX_INDEX: Final = 10_000
_MAX_PIECES: Final = 100_000
_VALUES: Final = ("numberValue", "boolValue", "nullValue")

_Path = tuple[str | int, ...]


class PartialArguments:
    """The pieces of one call. Linear in their bytes: strings are joined once, at the end."""

    def __init__(self) -> None:
        self._strings: dict[str, list[str]] = {}
        self._values: dict[str, Any] = {}
        self._size = 0

    def add(self, piece: Mapping[str, Any]) -> None:
        """One entry of `partialArgs`. Raises ValueError past the limits."""
        path = piece["jsonPath"]
        text = piece.get("stringValue")
        self._size += len(path) + len(text or "")
        if self._size > MAX_ARGUMENT_BYTES or len(self._values) >= _MAX_PIECES:
            raise ValueError(f"the streamed arguments are longer than {MAX_ARGUMENT_BYTES} characters")
        if isinstance(text, str):
            # Text at a path that had some goes on with it.
            self._strings.setdefault(path, []).append(text)
            self._values[path] = None
        for kind in _VALUES:
            if kind in piece:
                self._values[path] = None if kind == "nullValue" else piece[kind]

    def value(self) -> dict[str, Any]:
        """The object so far. Raises ValueError where two pieces contradict each other."""
        root: dict[str, Any] = {}
        for path, value in self._values.items():
            strings = self._strings.get(path)
            _put(root, _steps(path), value if strings is None else "".join(strings))
        return root


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


def _put(root: dict[str, Any], steps: _Path, value: Any) -> None:
    node: Any = root
    for step, following in pairwise(steps):
        fresh: Any = [] if isinstance(following, int) else {}
        node = _child(node, step, fresh)
    _child(node, steps[-1], value, replace=True)


def _child(node: Any, step: str | int, value: Any, *, replace: bool = False) -> Any:
    """What stands at `step` of `node`; `value` is put there first if nothing does, or always with `replace`."""
    if isinstance(step, int):
        if not isinstance(node, list) or step > _MAX_INDEX:
            raise ValueError(f"no list with a place {step}")
        node.extend([None] * (step + 1 - len(node)))
        if replace or node[step] is None:
            node[step] = value
        return node[step]
    if not isinstance(node, dict):
        raise ValueError(f"no object with a field {step!r}")
    if replace or node.get(step) is None:
        node[step] = value
    return node[step]


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
_Out = list[StreamEvent]


@dataclass(slots=True)
class _Partial:
    """A call whose arguments are being streamed."""

    index: int
    arguments: PartialArguments = field(default_factory=PartialArguments)


class GeminiDecoder(BaseDecoder):
    """Events of generateContent. The end of the body is the end; a finishReason before it makes the turn whole."""

    def __init__(
        self,
        family: str = ORIGIN,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        streaming: bool = True,
        secret: str | None = None,
    ) -> None:
        super().__init__(family, status, headers, streaming, secret)
        self._tracker = ToolCallTracker()
        self._array: JsonArraySplitter | None = None
        self._may_be_array = streaming and status < 400
        self._partial: _Partial | None = None
        self._block = 0
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._finish_reason = ""
        self._finish_message = ""
        self._block_reason = ""

    def on_json(self, event: str, document: dict[str, Any], out: _Out) -> None:
        if document.get("error"):
            self.fail_payload(out, document)
            return
        if not self._tracker.seed:
            self._tracker.seed = text_of(document.get("responseId"))
        usage = {key: value for key, value in (document.get("usageMetadata") or {}).items() if value is not None}
        # Cumulative: the last counts, as a whole. Vertex sends some without any count, which add to it (quirk 67).
        counted = any(key.endswith("TokenCount") for key in usage)
        self._usage = usage if counted else {**self._usage, **usage}
        self._model = text_of(document.get("modelVersion")) or self._model
        if feedback := document.get("promptFeedback"):
            self._blocked(feedback)
        for candidate in document.get("candidates") or ():
            if not candidate.get("index"):
                self._candidate(candidate, out)

    def on_body(self, document: Any, out: _Out) -> None:
        for chunk in document if isinstance(document, list) else [document]:
            self.on_json("", chunk, out)
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
        elif reason in _FAILURES or (reason == "UNEXPECTED_TOOL_CALL" and not self._tracker.count):
            kind = _FAILURES.get(reason, ErrorKind.MALFORMED_TOOL_CALL)
            detail = f": {self._finish_message}" if self._finish_message else ""
            self.fail(out, make_error(kind, f"The model's turn ended with {reason}{detail}", code=reason))
        else:
            if finish is not FinishReason.LENGTH:
                # The piece that closes a streamed call may be missing before the finish reason (quirk 43).
                self._close_partial(out)
            if finish is FinishReason.STOP and self._tracker.count:
                finish = FinishReason.TOOL_CALLS
            self._done(finish, reason, out)

    def _done(self, finish: FinishReason, reason: str, out: _Out) -> None:
        self.end(out, Done(finish, reason, _usage(self._usage), dict(self._usage), self._model))

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

    def _blocked(self, feedback: dict[str, Any]) -> None:
        # No candidate will come: the filter took the prompt (quirk 45).
        self._block_reason = text_of(feedback.get("blockReason")) or self._block_reason

    def _candidate(self, candidate: dict[str, Any], out: _Out) -> None:
        content = candidate.get("content") or {}
        for part in content.get("parts") or ():
            self._part(part, out)
        if reason := candidate.get("finishReason"):
            self._finish_reason = text_of(reason)
            self._finish_message = text_of(candidate.get("finishMessage"))

    def _part(self, part: dict[str, Any], out: _Out) -> None:
        signature = part.get("thoughtSignature")
        if "functionCall" in part:
            self._call(part["functionCall"], signature, out)
        elif "text" in part or part.keys() <= _SIGNATURE_ONLY:
            self._prose(ThinkingDelta if part.get("thought") else TextDelta, part.get("text"), signature, out)
        else:
            kind = next(key for key in part if key not in _SIGNATURE_ONLY)
            out.append(ServerToolEvent(kind, Replay(ORIGIN, part)))

    def _prose(self, kind: type[TextDelta | ThinkingDelta], text: Any, signature: Any, out: _Out) -> None:
        if signature:
            # A signed part is one of its own: it goes back exactly as it came (quirk 44).
            replay = Replay(ORIGIN, {"thoughtSignature": text_of(signature)})
            out.append(kind(text_of(text), self._block + 1, replay))
            self._block += 2
        elif text:
            out.append(kind(text_of(text), self._block))

    def _call(self, call: dict[str, Any], signature: Any, out: _Out) -> None:
        if call.get("partialArgs") or call.get("willContinue") or (self._partial is not None and not call.get("name")):
            self._partial_call(call, signature, out)
            return
        self._close_partial(out)
        arguments = dumps_text(call.get("args") or {})
        name, call_id = text_of(call.get("name")), text_of(call.get("id"))
        self._tracker.whole(out, id=call_id, name=name, arguments=arguments, replay=_replay(call_id, signature))

    def _partial_call(self, call: dict[str, Any], signature: Any, out: _Out) -> None:
        if self._partial is None or call.get("name"):
            self._close_partial(out)
            self._partial = _Partial(self._tracker.count)
            name, call_id = text_of(call.get("name")), text_of(call.get("id"))
            replay = _replay(call_id, signature)
            self._tracker.delta(out, index=self._partial.index, id=call_id, name=name, replay=replay)
        for piece in call.get("partialArgs") or ():
            self._partial.arguments.add(piece)
        if not call.get("willContinue"):
            self._close_partial(out)

    def _close_partial(self, out: _Out) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            arguments = dumps_text(partial.arguments.value())
            self._tracker.delta(out, index=partial.index, arguments=arguments)
            self._tracker.complete(out, index=partial.index)


_SIGNATURE_ONLY: Final = frozenset({"thoughtSignature", "thought"})


def _replay(call_id: str, signature: Any) -> Replay | None:
    """What must go back on the very part: the API's own id, if it gave one, and the signature."""
    data = {"id": call_id, "thoughtSignature": text_of(signature)}
    kept = {key: value for key, value in data.items() if value}
    return Replay(ORIGIN, kept) if kept else None


def _usage(raw: dict[str, Any]) -> Usage:
    """candidatesTokenCount leaves the thoughts out, promptTokenCount the results of the provider's own tools."""
    thoughts = count_of(raw.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=count_of(raw.get("promptTokenCount")) + count_of(raw.get("toolUsePromptTokenCount")),
        output_tokens=count_of(raw.get("candidatesTokenCount")) + thoughts,
        cached_tokens=count_of(raw.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
    )
