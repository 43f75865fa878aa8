"""Telemetry: counts, times, logs and spans. It listens and never steers; when it fails, nothing else does.

It hears the protocol's own events and commands, so what it says of a request is what happened to it. Content (what
people, models and tools said) stays out unless asked for; keys never come near it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from callboard.actors.calls.registry import ToolRestored, ToolWithdrawn
from callboard.actors.kernel import Actor
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.telemetry.spans import Spans
from callboard.protocol.commands import CallModel, Finish, Outcome, RunTool
from callboard.protocol.events import (
    ModelFailed,
    ModelLost,
    ModelResponded,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallTimedOut,
)
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.tools import FailureCode

logger = logging.getLogger("callboard")


class ReadMetrics:
    """Ask for a snapshot of the metrics."""


@dataclass(frozen=True, slots=True)
class CommandIssued:
    """A session gave this command at that time; commands, unlike events, do not say when they came about."""

    command: CallModel | RunTool | Finish
    at: float


@dataclass(frozen=True, slots=True)
class RequestLost:
    """The request's session ended before the request did: no Finish will come."""

    tag: Tag


class Telemetry(Actor):
    """See the module."""

    def __init__(self, spans: Spans, log_content: bool = False, metrics: Metrics | None = None) -> None:
        """`metrics` is what was counted so far: given by whoever starts one incarnation after the other."""
        self._spans = spans
        self._log_content = log_content
        self._metrics = Metrics() if metrics is None else metrics
        self._open: dict[RequestId, dict[Tag, tuple[str, float]]] = {}
        """What runs now, by request: its name and since when."""

    def on_receive(self, message: Any) -> Any:
        if type(message) is ReadMetrics:
            return self._metrics.copy()
        if listener := _LISTENERS.get(type(message)):
            try:
                listener(self, message)
            except Exception:  # noqa: BLE001 - a log handler's or span processor's fault, and the host owns those:
                # it is counted, for a log record might fail again. Crashing here often enough would end the tree.
                self._metrics.counters["telemetry.failed"] += 1
        return None

    def _begin(self, tag: Tag, name: str, at: float) -> None:
        self._open.setdefault(tag.request_id, {})[tag] = (name, at)
        self._spans.begin(tag, name, at)

    def _end(self, tag: Tag, at: float, ending: str, *, ok: bool) -> None:
        """`ending` is the last part of the counter: "ok", or what went wrong."""
        opened = self._open.get(tag.request_id, {}).pop(tag, None)
        if opened is None:
            return
        name, since = opened
        self._metrics.observe(name, at - since)
        self._metrics.counters[f"{name}.{ending}"] += 1
        self._spans.end(tag, at, ending, ok=ok)
        level = logging.INFO if ok else logging.WARNING
        if logger.isEnabledFor(level):
            logger.log(level, "%s %s after %.3f s", name, ending, at - since, extra=tag._asdict())

    def _request_started(self, event: RequestStarted) -> None:
        self._begin(event.tag, "request", event.at)
        if self._log_content:
            logger.info("asked: %s", event.user.text, extra=event.tag._asdict())

    def _gave(self, message: CommandIssued) -> None:
        command, at = message.command, message.at
        match command:
            case CallModel():
                self._begin(command.tag, f"model.{command.request.model}", at)
            case RunTool():
                self._begin(command.tag, f"tool.{command.name}", at)
            case Finish():
                self._finished(command, at)

    def _finished(self, command: Finish, at: float) -> None:
        self._close(command.tag, at, command.outcome.value, ok=command.outcome is Outcome.ANSWERED)
        self._metrics.counters["tokens.input"] += command.usage.input_tokens
        self._metrics.counters["tokens.output"] += command.usage.output_tokens
        self._metrics.cost += command.cost

    def _request_lost(self, message: RequestLost) -> None:
        self._close(message.tag, self.now(), "lost", ok=False)

    def _close(self, request: Tag, at: float, ending: str, *, ok: bool) -> None:
        """End the request, and whatever it leaves open."""
        for tag in list(self._open.get(request.request_id, ())):
            if tag != request:
                self._end(tag, at, FailureCode.CANCELLED.value, ok=False)
        self._end(request, at, ending, ok=ok)
        self._open.pop(request.request_id, None)

    def _model_responded(self, event: ModelResponded) -> None:
        self._end(event.tag, event.at, "ok", ok=True)

    def _model_failed(self, event: ModelFailed) -> None:
        self._end(event.tag, event.at, event.error.kind.value, ok=False)

    def _model_lost(self, event: ModelLost) -> None:
        self._end(event.tag, event.at, "lost", ok=False)

    def _tool_completed(self, event: ToolCallCompleted) -> None:
        self._end(event.tag, event.at, "ok", ok=True)

    def _tool_failed(self, event: ToolCallFailed) -> None:
        self._end(event.tag, event.at, event.failure.code.value, ok=False)

    def _tool_timed_out(self, event: ToolCallTimedOut) -> None:
        self._end(event.tag, event.at, FailureCode.TIMED_OUT.value, ok=False)

    def _tool_cancelled(self, event: ToolCallCancelled) -> None:
        self._end(event.tag, event.at, FailureCode.CANCELLED.value, ok=False)

    def _withdrawn(self, event: ToolWithdrawn) -> None:
        self._metrics.counters["tools.withdrawn"] += 1
        self._metrics.counters[f"tool.{event.name}.withdrawn"] += 1

    def _restored(self, event: ToolRestored) -> None:
        self._metrics.counters["tools.restored"] += 1
        self._metrics.counters[f"tool.{event.name}.restored"] += 1


_LISTENERS: Mapping[type, Callable[[Telemetry, Any], None]] = {
    RequestStarted: Telemetry._request_started,
    ModelResponded: Telemetry._model_responded,
    ModelFailed: Telemetry._model_failed,
    ModelLost: Telemetry._model_lost,
    ToolCallCompleted: Telemetry._tool_completed,
    ToolCallFailed: Telemetry._tool_failed,
    ToolCallTimedOut: Telemetry._tool_timed_out,
    ToolCallCancelled: Telemetry._tool_cancelled,
    CommandIssued: Telemetry._gave,
    RequestLost: Telemetry._request_lost,
    ToolWithdrawn: Telemetry._withdrawn,
    ToolRestored: Telemetry._restored,
}
