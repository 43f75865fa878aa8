"""Gemini: answers, as SSE, as one long JSON array, or whole. Facts: docs/wire.md 1.4, quirks 40-45."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from callboard.protocol.content import Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Done, FinishReason, ServerToolEvent, StreamEvent, TextDelta, ThinkingDelta, Usage
from callboard.providers.base_decoder import BaseDecoder
from callboard.providers.errors import make_error
from callboard.providers.gemini_partial_args import PartialArguments
from callboard.providers.json_array import JsonArraySplitter
from callboard.providers.json_text import dumps_text
from callboard.providers.shapes import count_of, text_of
from callboard.providers.tool_tracker import ToolCallTracker

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
