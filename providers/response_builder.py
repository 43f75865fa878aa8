"""Events to one finished turn: a ModelResponse is a collected stream, never a second path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from itertools import count
from typing import Final

from callboard.protocol.content import AssistantPart, Replay, ServerTool, Text, Thinking, ToolCall
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    Done,
    Error,
    FinishReason,
    ModelResponse,
    Restarted,
    ServerToolEvent,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
)
from callboard.providers.json_values import canonical_arguments

_PROSE: Final = (TextDelta, ThinkingDelta)


@dataclass(slots=True)
class _BuiltProse:
    """A text or thinking part that is being written."""

    kind: type[TextDelta | ThinkingDelta]
    block: int
    replay: Replay | None
    pieces: StringIO = field(default_factory=StringIO)

    def part(self) -> AssistantPart:
        text = self.pieces.getvalue()
        return Text(text, self.replay) if self.kind is TextDelta else Thinking(text, self.replay)


@dataclass(slots=True)
class _BuiltCall:
    id: CallId
    name: ToolName
    replay: Replay | None
    pieces: StringIO = field(default_factory=StringIO)
    completed: bool = False

    def part(self) -> AssistantPart:
        raw = self.pieces.getvalue()
        arguments, parsed = canonical_arguments(raw)
        if self.completed and parsed:
            return ToolCall(self.id, self.name, arguments, True, self.replay)
        return ToolCall(self.id, self.name, raw, False, self.replay)


@dataclass(frozen=True, slots=True)
class _BuiltServerTool:
    event: ServerToolEvent

    def part(self) -> AssistantPart:
        return ServerTool(self.event.kind, self.event.replay)


class ResponseBuilder:
    """Collects the events of one stream. `response()` may be asked at any time, for the turn as far as it has come."""

    def __init__(self) -> None:
        self._parts: list[_BuiltProse | _BuiltCall | _BuiltServerTool] = []
        self._calls: dict[CallId, _BuiltCall] = {}
        self._writing: _BuiltProse | None = None
        """The last part, where it is prose."""
        self._end: Done | Error | None = None
        self.text_bytes = 0
        """Of all that was written and thought so far, and of the arguments."""

    def feed(self, events: Iterable[StreamEvent]) -> None:
        """Take events in. Those after the Done or Error are void. Raises TypeError for what is no event."""
        for event in events:
            if self._end is not None:
                return
            if isinstance(event, _PROSE):
                self._prose(event)
            elif isinstance(event, ToolCallDelta):
                self.text_bytes += len(event.args_delta)
                if (call := self._calls.get(event.id)) is not None:
                    call.pieces.write(event.args_delta)
            elif isinstance(event, Done | Error):
                self._end = event
            else:
                self._mark(event)

    def response(self) -> ModelResponse:
        """The turn. Without Done or Error it is cut off: its `error` says TRUNCATED."""
        parts = tuple(part.part() for part in self._parts)
        end = self._end
        if isinstance(end, Done):
            return ModelResponse(
                parts, end.finish_reason, end.raw_finish_reason, end.usage, end.raw_usage, model=end.model
            )
        kind = ErrorKind.TRUNCATED
        error = end or Error(kind, "The stream ended before the turn did.", retryable=kind in RETRYABLE_KINDS)
        return ModelResponse(parts, FinishReason.ERROR, error=error)

    def _prose(self, event: TextDelta | ThinkingDelta) -> None:
        last, text = self._writing, event.text
        if last is None or last.kind is not event.__class__ or last.block != event.block:
            if not text and event.replay is None:
                return
            last = self._writing = _BuiltProse(event.__class__, event.block, event.replay)
            self._parts.append(last)
        elif event.replay is not None:
            last.replay = event.replay
        last.pieces.write(text)
        self.text_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))

    def _mark(self, event: ToolCallStart | ToolCallComplete | ServerToolEvent | Restarted) -> None:
        if isinstance(event, ToolCallComplete):
            if event.id in self._calls:
                self._calls[event.id].completed = True
            return
        self._writing = None
        if isinstance(event, ToolCallStart):
            call = _BuiltCall(self._unique(event.id), event.name, event.replay)
            self._parts.append(call)
            # The provider's id, repeated or not, names the newest call that bears it.
            self._calls[event.id] = call
        elif isinstance(event, ServerToolEvent):
            self._parts.append(_BuiltServerTool(event))
        elif isinstance(event, Restarted):
            self._parts.clear()
            self._calls.clear()
        else:
            raise TypeError(f"it yielded a {type(event).__name__} among its events")

    def _unique(self, call_id: CallId) -> CallId:
        taken = {part.id for part in self._parts if isinstance(part, _BuiltCall)} if call_id in self._calls else set()
        if call_id not in taken:
            return call_id
        return next(CallId(f"{call_id}_{n}") for n in count(2) if f"{call_id}_{n}" not in taken)


def build_response(events: Iterable[StreamEvent]) -> ModelResponse:
    """The turn that these events tell."""
    builder = ResponseBuilder()
    builder.feed(events)
    return builder.response()
