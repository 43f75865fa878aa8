"""ToolStage: run tools for real, without a model or a session. For tests of one's own tools, and for benchmarks.

with ToolStage() as stage:
    event = stage.call(lookup, city="Bern")
    assert event.content == "rain"
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import Context
from types import TracebackType
from typing import Final, Self, get_args

import orjson
from msgspec.structs import replace

from callboard.actors.calls.approvals import NobodyToAsk
from callboard.actors.calls.dispatcher import DispatchCall, ToolDispatcher, Workers
from callboard.actors.calls.ledger import CallEvent, LastEvent, Ledger
from callboard.actors.calls.registry import Registry, ToolRestored, ToolWithdrawn, name_of
from callboard.actors.kernel import Actor, ActorSystem, LoopScheduler, Ref, Supervisor, handles
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.telemetry.notices import ToolPrinted, ToolStopped
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.progress import CallProgress, ProgressMade
from callboard.actors.workers.kinds import kinds
from callboard.actors.workers.messages import KindOf
from callboard.protocol.commands import CancelTool, RunTool
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.events import ToolCallStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS
from callboard.protocol.tools import Hold

#: Calls of one tool at a time: more than any pool takes.
ANY_NUMBER: Final = 1_000_000
#: For the loop, the fork servers and the tool loops to end.
STOP_SECONDS: Final = 5.0


class StagedCall:
    """A call under way; its events come in on the loop thread."""

    def __init__(self, tag: Tag, deadline_at: float) -> None:
        self.tag = tag
        self.events: list[CallEvent] = []
        self.progress: list[CallProgress] = []
        self.started_at = time.monotonic()
        self.ended_at = 0.0
        self._deadline_at = deadline_at
        self._ended = threading.Event()

    def wait(self) -> LastEvent:
        """The last event: how the call ended, or that it was deferred.

        Raises RuntimeFailure when none comes within the session's own backstop.
        """
        until = self._deadline_at + CALL_BACKSTOP_SECONDS
        if not self._ended.wait(max(0.0, until - time.monotonic())):
            raise RuntimeFailure(f"call {self.tag.call_id} has no outcome {CALL_BACKSTOP_SECONDS} s after its deadline")
        event = self.events[-1]
        assert not isinstance(event, ToolCallStarted | ProgressMade)
        return event

    def add(self, event: CallEvent) -> None:
        """Take an event."""
        if isinstance(event, ProgressMade):
            while (progress := event.relay.take()) is not None:
                self.progress.append(progress)
            return
        self.events.append(event)
        if not isinstance(event, ToolCallStarted):
            self.ended_at = time.monotonic()
            self._ended.set()


class _Audience(Actor[CallEvent]):
    """Hands each event to its call."""

    def __init__(self, calls: dict[Tag, StagedCall]) -> None:
        self._calls = calls

    @handles(*get_args(CallEvent))
    def _add(self, event: CallEvent) -> None:
        self._calls[event.relay.tag if isinstance(event, ProgressMade) else event.tag].add(event)


_Observed = ToolWithdrawn | ToolRestored | ToolPrinted | ToolStopped


class _Observer(Actor[_Observed]):
    """Nothing acts on a tool's health here, or logs what it prints: that is in the events of its calls."""

    @handles(*get_args(_Observed))
    def _see(self, seen: _Observed) -> None:
        """The dispatcher has logged it."""


class ToolStage:
    """A dispatcher and its pools, from `with` to its end. No tool is withdrawn, and only pools limit what runs."""

    def __init__(self, options: ProcessOptions | None = None, kind: KindOf | None = None) -> None:
        """`kind`: other workers than those of a runtime."""
        self.scheduler = LoopScheduler("callboard-stage").start()
        self.system = ActorSystem(self.scheduler)
        self._calls: dict[Tag, StagedCall] = {}
        self._ledger = Ledger()
        self._registry = Registry(failure_budget=None, max_held_threads=None)
        self._audience: Ref[CallEvent] = self.system.spawn(lambda: _Audience(self._calls), "audience")
        self._dispatcher = self.system.spawn(self._make(kind or kinds(options or ProcessOptions())), "dispatcher")
        self._numbers = itertools.count(1)

    def _make(self, kind: KindOf) -> Callable[[], ToolDispatcher]:
        observer = self.system.spawn(_Observer, "observer")
        workers = Workers(self.system.spawn(Supervisor, "tools"), kind)
        return lambda: ToolDispatcher(self._registry, self._ledger, workers, NobodyToAsk(), observer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.system.shutdown(STOP_SECONDS)
        self.scheduler.stop(STOP_SECONDS)

    @property
    def held_threads(self) -> Mapping[ToolName, int]:
        """By tool: threads that calls which have ended still hold."""
        return {name_of(key): entry.health.held_threads for key, entry in self._registry.entries.items()}

    def start(
        self,
        tool: Tool,
        arguments: str,
        timeout_seconds: float = 10.0,
        asker: Context | None = None,
        hold: Hold = Hold.NONE,
    ) -> StagedCall:
        """Begin a call with arguments as a model sends them: JSON text. The tool's own timeout is not used."""
        call_id = CallId(str(next(self._numbers)))
        tag = Tag(RequestId("stage"), MessageId("stage"), 1, call_id)
        deadline_at = time.monotonic() + timeout_seconds
        call = self._calls[tag] = StagedCall(tag, deadline_at)
        run = RunTool(tag, tool.name, arguments, deadline_at, f"effect-{call_id}", hold=hold)
        known = self._registry.entries.get(tool.name)
        if known is None or known.tool.function is not tool.function:
            self._registry.entries.pop(tool.name, None)
            self._ledger.lanes.pop(tool.name, None)
            self._registry.add(dataclasses.replace(tool, contract=replace(tool.contract, concurrency=ANY_NUMBER)))
        self._dispatcher.tell_control(DispatchCall(run, "the user's words", self._audience, asker, is_read_along=True))
        return call

    def stop(self, call: StagedCall) -> None:
        """Cancel a call."""
        self._dispatcher.tell_control(CancelTool(call.tag))

    def call(self, tool: Tool, /, **arguments: object) -> LastEvent:
        """Run a call to its end."""
        return self.start(tool, orjson.dumps(arguments).decode()).wait()
