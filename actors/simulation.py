"""The real tree in virtual time: real session, dispatcher, LLM manager and supervisors; scripted model and tools.

    house = SimulatedHouse(script, behaviours, seed=7)
    answer = house.ask("What is the weather?")
    house.run()
    answer.future.result(timeout=0)

Same seed, same trace. What is simulated is only what lies outside the tree: the provider's bytes and the tools' code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from callboard.actors.approvals import Approver, NobodyToAsk
from callboard.actors.conversation import Conversation
from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    ChildSpec,
    Ref,
    Restart,
    SimulatedScheduler,
    Timer,
    start_child,
)
from callboard.actors.llm_manager import Attempt, Emit, End, LlmManager, Route
from callboard.actors.session import Question, RequestSession, Seen, Staff
from callboard.actors.spans import NoSpans
from callboard.actors.subscription import Answer
from callboard.actors.telemetry import Telemetry
from callboard.actors.tools import Tool
from callboard.actors.topology import Plan, build
from callboard.actors.worker import StartCall, StopCall
from callboard.protocol.commands import RunTool
from callboard.protocol.content import UserMessage
from callboard.protocol.events import (
    CancelRequested,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.model import ModelRequest
from callboard.protocol.options import RequestOptions
from callboard.protocol.policy import Policy
from callboard.protocol.tools import FailureCode, Isolation, Latency, ToolFailure
from callboard.providers.adapter import Provider
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.retry import RetryPolicy
from callboard.providers.scripted import Script, Scripted, ScriptedTurn, TimedBatch

#: Longer than any request: a tool that hangs.
FOREVER_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a simulated tool does with one call."""

    result: str = '"done"'
    """JSON text."""
    seconds: float = 0.0
    """From start to outcome; FOREVER_SECONDS hangs until the deadline."""
    start_seconds: float = 0.0
    """From StartCall to ToolCallStarted."""
    failure: FailureCode | None = None
    deaf: bool = False
    """Does not hear its deadline or a cancel: the pool never tells how it ended."""
    doubled: bool = False
    """The outcome is told twice."""
    kills_pool: bool = False
    """The pool crashes with it."""


Behaviours = Callable[[RunTool], Behaviour]


class SimulatedDriver:
    """Plays the provider's turns on the scheduler."""

    def __init__(self, scheduler: SimulatedScheduler) -> None:
        self._scheduler = scheduler

    def start(self, provider: Provider, request: ModelRequest, emit: Emit, end: End) -> Attempt:
        if not isinstance(provider, Scripted):
            raise TypeError(f"a simulation plays scripted providers, not {provider.name}")
        return _Playing(self._scheduler, provider.turn_for(request), emit, end)


class _Playing:
    """One turn being played, batch by batch."""

    def __init__(self, scheduler: SimulatedScheduler, turn: ScriptedTurn, emit: Emit, end: End) -> None:
        self._scheduler = scheduler
        self._batches = list(turn.batches())
        self._emit = emit
        self._end = end
        self._builder = ResponseBuilder()
        self._timer: Timer | None = None
        self._next()

    def cancel(self) -> None:
        self._batches.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        batch = self._batches.pop(0)
        self._timer = self._scheduler.call_at(self._scheduler.now() + batch.delay_seconds, partial(self._play, batch))

    def _play(self, batch: TimedBatch) -> None:
        events = list(batch.events)
        self._builder.feed(events)
        self._emit(events)
        if self._batches:
            self._next()
        else:
            self._end(self._builder.response())


@dataclass(frozen=True, slots=True)
class _Step:
    """The next thing a simulated call does, unless it has ended."""

    message: StartCall
    event: object


class SimulatedPool(Actor):
    """Stands in a ToolPool's place, and lets each call go as its behaviour says."""

    def __init__(self, behaviours: Behaviours) -> None:
        self._behaviours = behaviours
        self._open: dict[Tag, tuple[StartCall, Behaviour]] = {}

    def on_receive(self, message: Any) -> None:
        if isinstance(message, StartCall):
            self._start(message)
        elif isinstance(message, StopCall):
            self._end_call(message.tag, ToolCallCancelled(message.tag, self.now()))
        elif isinstance(message, _Step):
            self._take(message)

    def _start(self, message: StartCall) -> None:
        run = message.run
        behaviour = self._behaviours(run)
        self._open[run.tag] = message, behaviour
        started = self.now() + behaviour.start_seconds
        self.tell_at(started, _Step(message, ToolCallStarted(run.tag, started)))
        at = started + behaviour.seconds
        if at < run.deadline_at:
            self.tell_at(at, _Step(message, _outcome(run, behaviour, at)))
        else:
            self.tell_at(run.deadline_at, _Step(message, ToolCallTimedOut(run.tag, run.deadline_at)))

    def _take(self, step: _Step) -> None:
        tag = step.message.run.tag
        if tag not in self._open:
            return
        if isinstance(step.event, ToolCallStarted):
            step.message.reply_to.tell_control(step.event)
        else:
            self._end_call(tag, step.event)

    def _end_call(self, tag: Tag, event: object) -> None:
        message, behaviour = self._open.get(tag, (None, None))
        if message is None or behaviour is None:
            return
        if behaviour.deaf and isinstance(event, ToolCallTimedOut | ToolCallCancelled):
            return
        del self._open[tag]
        if behaviour.kills_pool:
            raise RuntimeError(f"the pool was told to crash with {message.run.name}")
        for _ in range(2 if behaviour.doubled else 1):
            message.reply_to.tell_control(event)


def _outcome(run: RunTool, behaviour: Behaviour, at: float) -> ToolCallCompleted | ToolCallFailed:
    if behaviour.failure is None:
        return ToolCallCompleted(run.tag, at, behaviour.result)
    return ToolCallFailed(run.tag, at, ToolFailure(run.name, behaviour.failure, "the simulation says so"))


@dataclass
class SimulatedHouse:
    """A tree in virtual time."""

    script: Script
    behaviours: Behaviours = lambda _: Behaviour()
    tools: Iterable[Tool[..., Any]] = ()
    seed: int | Callable[[int], int] = 0
    approver: Approver = field(default_factory=NobodyToAsk)
    policy: Policy = field(default_factory=Policy)
    options: RequestOptions = field(default_factory=lambda: RequestOptions("scripted/model"))
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(chance=lambda: 0.0))

    def __post_init__(self) -> None:
        self.scheduler = SimulatedScheduler(self.seed)
        self.system = ActorSystem(self.scheduler)
        self.provider = Scripted(self.script)
        self._requests = 0
        build(self.system, self._plan())
        self.scheduler.run_until_idle()
        self.sessions = self.system.ref("root/sessions")
        self.staff = Staff(*(self.system.ref(f"root/{name}") for name in ("llm_manager", "dispatcher", "telemetry")))

    def ask(
        self,
        text: str,
        *,
        conversation: Conversation | None = None,
        subscriber: Callable[[Seen], object] | None = None,
        options: RequestOptions | None = None,
    ) -> SimulatedRequest:
        """Start a request; `run` lets it happen."""
        self._requests += 1
        request_id = RequestId(f"r{self._requests}")
        tag = Tag(request_id, MessageId(f"{request_id}/user"))
        answer = Answer(conversation or Conversation())
        answer.conversation.take()
        seen: list[Seen] = []

        def hear(what: Seen) -> None:
            seen.append(what)
            answer(what)
            if subscriber is not None:
                subscriber(what)

        question = Question(tag, answer.conversation.messages, UserMessage.of(text), options or self.options)
        start = partial(RequestSession, question, self.staff, hear, answer.record)
        ref = start_child(self.sessions, ChildSpec(str(request_id), start, restart=Restart.TEMPORARY))
        self.system.watch(ref, answer.session_ended)
        return SimulatedRequest(tag, answer, ref, seen)

    def run(self, until_seconds: float | None = None) -> None:
        """Let everything happen, until nothing more can, or until then."""
        self.scheduler.run_until_idle(until_seconds)

    def cancel(self, request: SimulatedRequest) -> None:
        """As Runtime.cancel does."""
        request.ref.tell_control(CancelRequested(request.tag, self.scheduler.now(), "cancelled by the simulation"))

    def _plan(self) -> Plan:
        driver = SimulatedDriver(self.scheduler)
        route = (Route(self.provider, "model"),)
        return Plan(
            telemetry=lambda: Telemetry(NoSpans()),
            llm_manager=lambda: LlmManager(lambda _: route, driver, self.retry, lambda _model, _response: 0.0),
            pool=self._pool,
            tools=tuple(self.tools),
            approver=self.approver,
            policy=self.policy,
        )

    def _pool(self, isolation: Isolation, latency: Latency) -> Actor:
        return SimulatedPool(self.behaviours)


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A request of a simulation: its tag, its answer, its session and what its subscriber has seen."""

    tag: Tag
    answer: Answer
    ref: Ref
    seen: list[Seen]
