"""ToolStage: run tools for real, without a model or a session. For tests of one's own tools, and for benchmarks.

with ToolStage() as stage:
    event = stage.call(lookup, city="Bern")
    assert event.content == '"rain"'
"""

from __future__ import annotations

import itertools
import threading
import time
from types import TracebackType
from typing import Any, Final, Self

import orjson

from callboard.actors.kernel import Actor, ActorSystem, LoopScheduler, Ref
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.decorator import Tool
from callboard.actors.workers.pool import StartCall, StopCall, ThreadsHeld, ToolPool
from callboard.actors.workers.process import ProcessOptions
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.events import ToolCallEnd, ToolCallStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS
from callboard.protocol.tools import Isolation

#: For the loop, the fork servers and the tool loops to end.
STOP_SECONDS: Final = 5.0


class StagedCall:
    """A call under way; its events come in on the loop thread."""

    def __init__(self, tag: Tag, deadline_at: float) -> None:
        self.tag = tag
        self.events: list[ToolCallStarted | ToolCallEnd] = []
        self.started_at = time.monotonic()
        self.ended_at = 0.0
        self._deadline_at = deadline_at
        self._ended = threading.Event()

    def wait(self) -> ToolCallEnd:
        """The terminal event. Raises RuntimeFailure when none comes within the session's own backstop."""
        until = self._deadline_at + CALL_BACKSTOP_SECONDS
        if not self._ended.wait(max(0.0, until - time.monotonic())):
            raise RuntimeFailure(f"call {self.tag.call_id} has no outcome {CALL_BACKSTOP_SECONDS} s after its deadline")
        event = self.events[-1]
        assert not isinstance(event, ToolCallStarted)
        return event

    def add(self, event: ToolCallStarted | ToolCallEnd) -> None:
        """Take an event."""
        self.events.append(event)
        if not isinstance(event, ToolCallStarted):
            self.ended_at = time.monotonic()
            self._ended.set()


class _Audience(Actor):
    """Hands each event to its call."""

    def __init__(self, calls: dict[Tag, StagedCall], held_threads: dict[ToolName, int]) -> None:
        self._calls = calls
        self._held_threads = held_threads

    def on_receive(self, message: Any) -> None:
        if isinstance(message, ThreadsHeld):
            self._held_threads[message.name] = message.count
        else:
            self._calls[message.tag].add(message)


class ToolStage:
    """A loop and a pool for each isolation, from `with` to its end."""

    def __init__(self, options: ProcessOptions | None = None) -> None:
        self.scheduler = LoopScheduler("callboard-stage").start()
        self.system = ActorSystem(self.scheduler)
        self._options = options
        self._calls: dict[Tag, StagedCall] = {}
        self.held_threads: dict[ToolName, int] = {}
        """By tool: threads that calls which have ended still hold."""
        self._audience = self.system.spawn(lambda: _Audience(self._calls, self.held_threads), "audience")
        self._pools: dict[Isolation, Ref] = {}
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.system.shutdown(STOP_SECONDS)
        self.scheduler.stop(STOP_SECONDS)

    def pool(self, isolation: Isolation) -> Ref:
        """The pool for this isolation, started when it is first asked for."""
        if isolation not in self._pools:
            self._pools[isolation] = self.system.spawn(lambda: ToolPool(isolation, self._options), isolation.value)
        return self._pools[isolation]

    def start(self, tool: Tool, arguments: str, timeout_seconds: float = 10.0) -> StagedCall:
        """Begin a call with arguments as a model sends them: JSON text. The tool's own timeout is not used."""
        call_id = CallId(str(next(self._numbers)))
        tag = Tag(RequestId("stage"), MessageId("stage"), 1, call_id)
        deadline_at = time.monotonic() + timeout_seconds
        call = self._calls[tag] = StagedCall(tag, deadline_at)
        run = RunTool(tag, tool.name, arguments, deadline_at, f"effect-{call_id}")
        context = ToolContext(tag, run.effect_id, deadline_at, "the user's words")
        self.pool(tool.contract.isolation).tell(StartCall(run, tool, context, self._audience))
        return call

    def stop(self, call: StagedCall) -> None:
        """Cancel a call."""
        for pool in self._pools.values():
            pool.tell_control(StopCall(call.tag))

    def call(self, tool: Tool, /, **arguments: Any) -> ToolCallEnd:
        """Run a call to its end."""
        return self.start(tool, orjson.dumps(arguments).decode()).wait()
