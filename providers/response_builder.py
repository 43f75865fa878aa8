"""Events to one finished turn: a ModelResponse is a collected stream, never a second path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

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


@dataclass(slots=True)
class _Prose:
    """A text or thinking part that is being written."""

    kind: type[TextDelta] | type[ThinkingDelta]
    block: int
    pieces: list[str]
    replay: Replay | None

    def part(self) -> AssistantPart:
        text = "".join(self.pieces)
        return Text(text, self.replay) if self.kind is TextDelta else Thinking(text, self.replay)


@dataclass(slots=True)
class _Call:
    id: CallId
    name: ToolName
    replay: Replay | None
    pieces: list[str] = field(default_factory=list)
    completed: bool = False

    def part(self) -> AssistantPart:
        raw = "".join(self.pieces)
        arguments, parsed = canonical_arguments(raw)
        if self.completed and parsed:
            return ToolCall(self.id, self.name, arguments, True, self.replay)
        return ToolCall(self.id, self.name, raw, False, self.replay)


@dataclass(frozen=True, slots=True)
class _Server:
    event: ServerToolEvent

    def part(self) -> AssistantPart:
        return ServerTool(self.event.kind, self.event.replay)


class ResponseBuilder:
    """Collects the events of one stream. `response()` may be asked at any time, for the turn as far as it has come."""

    def __init__(self) -> None:
        self._parts: list[_Prose | _Call | _Server] = []
        self._calls: dict[CallId, _Call] = {}
        self._end: Done | Error | None = None

    def feed(self, events: Iterable[StreamEvent]) -> None:
        """Take events in. Those after the Done or Error are void."""
        for event in events:
            if self._end is None:
                _ON[event.__class__](self, event)

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
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _Prose) and last.kind is event.__class__ and last.block == event.block:
            last.pieces.append(event.text)
            last.replay = event.replay or last.replay
        elif event.text or event.replay is not None:
            self._parts.append(_Prose(event.__class__, event.block, [event.text], event.replay))

    def _start(self, event: ToolCallStart) -> None:
        call = _Call(self._unique(event.id), event.name, event.replay)
        self._parts.append(call)
        # The provider's id, repeated or not, names the newest call that bears it.
        self._calls[event.id] = call

    def _unique(self, call_id: CallId) -> CallId:
        taken = {part.id for part in self._parts if isinstance(part, _Call)} if call_id in self._calls else set()
        if call_id not in taken:
            return call_id
        return next(CallId(f"{call_id}_{n}") for n in count(2) if f"{call_id}_{n}" not in taken)

    def _delta(self, event: ToolCallDelta) -> None:
        if (call := self._calls.get(event.id)) is not None:
            call.pieces.append(event.args_delta)

    def _complete(self, event: ToolCallComplete) -> None:
        if (call := self._calls.get(event.id)) is not None:
            call.completed = True

    def _server(self, event: ServerToolEvent) -> None:
        self._parts.append(_Server(event))

    def _restart(self, _: Restarted) -> None:
        self._parts.clear()
        self._calls.clear()

    def _finish(self, event: Done | Error) -> None:
        self._end = event


#: Functions, not bound methods in each builder: those would keep every builder alive until the garbage collector runs.
_ON: Final[dict[type[Any], Callable[[ResponseBuilder, Any], None]]] = {
    TextDelta: ResponseBuilder._prose,
    ThinkingDelta: ResponseBuilder._prose,
    ToolCallStart: ResponseBuilder._start,
    ToolCallDelta: ResponseBuilder._delta,
    ToolCallComplete: ResponseBuilder._complete,
    ServerToolEvent: ResponseBuilder._server,
    Restarted: ResponseBuilder._restart,
    Done: ResponseBuilder._finish,
    Error: ResponseBuilder._finish,
}


def build_response(events: Iterable[StreamEvent]) -> ModelResponse:
    """The turn that these events tell."""
    builder = ResponseBuilder()
    builder.feed(events)
    return builder.response()
