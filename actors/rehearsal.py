"""Rehearsals: the scenarios of `callboard.protocol.testing`, played under the real actors in virtual time.

    trace = rehearse(scenario, seed=7)
    assert not violations(trace)

The same plain-data scenarios run against the bare session (`testing.drive`); here session, dispatcher, LLM manager and
supervisors are the real ones, and only model, tools and people are played. Same seed, same trace. Restarting the whole
process from a journal is left to the bare driver: these actors have no journal to come back from.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from callboard.actors.approvals import Decide, Verdict
from callboard.actors.conversation import Conversation
from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    ChildSpec,
    MailboxFull,
    Ref,
    Restart,
    SimulatedScheduler,
    Timer,
    start_child,
)
from callboard.actors.llm_manager import LlmManager, Route
from callboard.actors.model_stream import Attempt, Emit, End
from callboard.actors.session import Question, RequestSession, Staff
from callboard.actors.spans import NoSpans
from callboard.actors.telemetry import Telemetry
from callboard.actors.tools import Tool
from callboard.actors.tools.schema import read_signature
from callboard.actors.topology import SESSION_CAPACITY, Plan, build
from callboard.actors.worker.pool import StartCall, StopCall
from callboard.protocol.commands import AskApproval, CallModel, Command
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
    ToolCallStarted,
)
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.model import ModelRequest, ModelResponse
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Decision, Policy
from callboard.protocol.session import Session
from callboard.protocol.testing.outside import (
    Answer,
    Plans,
    cancelled,
    foreign_events,
    model_answers,
    person_answers,
    tool_answers,
)
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import Isolation, Latency, ToolContract
from callboard.providers.adapter import Provider
from callboard.providers.retry import RetryPolicy
from callboard.providers.scripted import Scripted

#: Whom a fault may strike: those whom a supervisor starts again.
MORTALS = ("root/dispatcher", "root/llm_manager", "root/telemetry", "root/tools/process-short")


@dataclass(frozen=True, slots=True)
class Faults:
    """What is done to the actors themselves, at virtual times; the scenario holds what is done by model and tools."""

    strikes: tuple[tuple[float, str], ...] = ()
    """An actor of `MORTALS` crashes. More than three within five seconds are what its supervisor gives up at."""
    floods: tuple[float, ...] = ()
    """The session's mailbox is filled to the brim."""
    session_capacity: int = 8


def seeded_faults(seed: int) -> Faults:
    """Up to three strikes and a flood, or none: the faults that go with `testing.seeded.scenario(seed)`."""
    rng = random.Random(f"faults {seed}")
    strikes = tuple((rng.randrange(240) / 8, rng.choice(MORTALS)) for _ in range(rng.randrange(4)))
    return Faults(strikes, (rng.randrange(80) / 4,) if rng.random() < 0.3 else ())


class Rehearsal:
    """One scenario on one stage."""

    def __init__(self, scenario: Scenario, seed: int | Callable[[int], int] = 0, faults: Faults | None = None) -> None:
        self.scenario = scenario
        self._faults = faults or Faults()
        self.scheduler = SimulatedScheduler(seed)
        self.system = ActorSystem(self.scheduler)
        self.trace = Trace(scenario, seed if isinstance(seed, int) else 0)
        self.conversation = Conversation(scenario.history)
        self.model_call: CallModel | None = None
        self.runs: Counter[Tag] = Counter()
        """How often a pool began each call."""
        self.plans = Plans(scenario)

    def play(self) -> Trace:
        """From the curtain to the end; afterwards nothing is open and no message is on its way."""
        build(self.system, self._cast())
        self.scheduler.run_until_idle()
        session = self._start_session()
        self._arrange(session)
        self.scheduler.run_until_idle()
        self.trace.ended_at = self.scheduler.now()
        return self.trace

    def _cast(self) -> Plan:
        return Plan(
            telemetry=lambda: MortalTelemetry(NoSpans()),
            llm_manager=lambda: LlmManager(
                lambda _: (Route(Scripted(), "model"),), PlayedModel(self), RetryPolicy(max_attempts=1), self._cost
            ),
            pool=lambda isolation, latency: self._pool(isolation, latency),
            tools=[_tool(offer) for offer in self.scenario.tools],
            approver=PlayedPerson(self),
            policy=PlannedPolicy(self.scenario.tools),
            chance=lambda: 0.5,
        )

    def _pool(self, _isolation: Isolation, _latency: Latency) -> Actor:
        return PlayedPool(self)

    def _cost(self, _model: str, response: ModelResponse) -> float:
        options, usage = self.scenario.options, response.usage
        return usage.input_tokens * (options.input_price or 0) + usage.output_tokens * (options.output_price or 0)

    def _start_session(self) -> Ref:
        plan = self.scenario
        staff = Staff(*(self.system.ref(f"root/{name}") for name in ("llm_manager", "dispatcher", "telemetry")))
        question = Question(plan.tag, plan.history, plan.user, plan.options, is_read_along=self.trace.seed % 4 != 0)
        start = partial(RequestSession, question, staff, lambda _: None, self.conversation.record, self._recorded)
        capacity = self._faults.session_capacity if self._faults.floods else SESSION_CAPACITY
        spec = ChildSpec(str(plan.request_id), start, restart=Restart.TEMPORARY, capacity=capacity)
        return start_child(self.system.ref("root/sessions"), spec)

    def _recorded(self) -> Recorded:
        self.trace.session = session = Session()
        return Recorded(self, session)

    def _arrange(self, session: Ref) -> None:
        plan, at = self.scenario, self.scheduler.call_at
        if plan.cancel_at is not None:
            when = plan.cancel_at
            at(when, lambda: session.tell_control(CancelRequested(plan.tag, when, "the user left")))
        for when in plan.tools_lost_at:
            at(when, lambda: self.strike("root/dispatcher"))
        for when in plan.foreign_at:
            at(when, lambda: self._foreign(session))
        for when, name in self._faults.strikes:
            at(when, partial(self.strike, name))
        for when in self._faults.floods:
            at(when, lambda: self._flood(session))

    def strike(self, name: str) -> None:
        """Make an actor crash: it gets a message that nobody understands."""
        self.system.ref(name).tell_control(_Lightning())

    def _foreign(self, session: Ref) -> None:
        """Whatever this session has open, said of another request."""
        step = self.trace.session.step if self.trace.session is not None else self.scenario.tag
        other = Tag(RequestId(step.request_id + "-other"), step.parent_id, step.step)
        for event in foreign_events(other, list(self.plans.of_call), self.scheduler.now()):
            with contextlib.suppress(MailboxFull):
                session.tell(event)

    def _flood(self, session: Ref) -> None:
        stranger = Tag(RequestId("stranger"), self.scenario.tag.parent_id)
        for _ in range(self._faults.session_capacity):
            with contextlib.suppress(MailboxFull):
                session.tell(CancelRequested(stranger, self.scheduler.now(), "flood"))


class _Lightning:
    """No actor outlives it."""


class MortalTelemetry(Telemetry):
    """The real one takes no notice of what it does not know."""

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, _Lightning):
            raise RuntimeError("struck")
        return super().on_receive(message)


class Recorded:
    """A session, and a scribe who writes down what goes in and what comes out."""

    def __init__(self, rehearsal: Rehearsal, session: Session) -> None:
        self._rehearsal = rehearsal
        self._session = session

    @property
    def step(self) -> Tag:
        return self._session.step

    def apply(self, event: Event) -> tuple[Command, ...]:
        trace, now, before = self._rehearsal.trace, self._rehearsal.scheduler.now(), self._session.state
        trace.sent += 1
        try:
            commands = self._session.apply(event)
        except ProtocolError as error:
            trace.add(now, Verb.REFUSED, event, str(error))
            raise
        trace.add(now, Verb.APPLIED, event, f"{before}: {type(event).__name__} -> {self._session.state}")
        for command in commands:
            trace.add(now, Verb.GAVE, command)
            if isinstance(command, CallModel):
                self._rehearsal.model_call = command
        return commands


class Playing:
    """Answers on their way. Cancelling stops those that can still be stopped."""

    def __init__(
        self, scheduler: SimulatedScheduler, answers: Iterable[Answer], say: Callable[[Event], object]
    ) -> None:
        self._timers: list[Timer] = []
        for answer in answers:
            timer = scheduler.call_at(answer.at, partial(_say, scheduler, answer, say))
            if not answer.unstoppable:
                self._timers.append(timer)

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()


def _say(scheduler: SimulatedScheduler, answer: Answer, say: Callable[[Event], object]) -> None:
    say(answer.make(scheduler.now()))


class PlayedModel:
    """The driver under the LLM manager."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal

    def start(self, provider: Provider, request: ModelRequest, emit: Emit, end: End) -> Attempt:
        stage, command = self._rehearsal, self._rehearsal.model_call
        if command is None:
            raise AssertionError(f"{provider.name} was asked before the session had asked for it")
        turn = stage.plans.next_turn(command.tag.step)
        answers = model_answers(turn, command, stage.scenario.options, stage.scheduler.now())

        def say(event: Event) -> None:
            match event:
                case ModelStreamed():
                    with contextlib.suppress(MailboxFull):  # the response says it all once more
                        emit(list(event.events))
                case ModelResponded():
                    end(event.response)
                case ModelFailed():
                    end(ModelResponse(error=event.error))
                case ModelLost():
                    stage.strike("root/llm_manager")

        return Playing(stage.scheduler, answers, say)


class PlayedPool(Actor):
    """Stands in a ToolPool's place."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._stage = rehearsal
        self._playing: dict[Tag, tuple[Ref, Playing]] = {}

    def on_receive(self, message: Any) -> None:
        stage, now = self._stage, self.now()
        if isinstance(message, StartCall):
            self._start(message)
        elif isinstance(message, StopCall) and message.tag in self._playing:
            reply_to, playing = self._playing.pop(message.tag)
            playing.cancel()
            Playing(stage.scheduler, [cancelled(message.tag, now)], reply_to.tell_control)
        elif isinstance(message, _Lightning):
            raise RuntimeError("struck")

    def _start(self, message: StartCall) -> None:
        stage, run = self._stage, message.run
        if run.tag in self._playing:
            return  # sent twice, as around a dispatcher's restart; the real pool takes no notice either
        stage.runs[run.tag] += 1

        def say(event: Event) -> None:
            if not isinstance(event, ToolCallStarted):
                self._playing.pop(run.tag, None)
            message.reply_to.tell_control(event)

        answers = tool_answers(stage.plans.of(run), run, self.now())
        self._playing[run.tag] = message.reply_to, Playing(stage.scheduler, answers, say)


class PlayedPerson:
    """The approver."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._stage = rehearsal
        self._playing: dict[Tag, Playing] = {}

    def ask(self, question: AskApproval, decide: Decide) -> None:
        def say(event: Event) -> None:
            if isinstance(event, ApprovalGranted | ApprovalDenied):
                decide(Verdict(event.tag, isinstance(event, ApprovalGranted), event.by, "planned"))

        stage = self._stage
        answers = person_answers(stage.plans.of(question), question, stage.scheduler.now())
        self._playing[question.tag] = Playing(stage.scheduler, answers, say)

    def withdraw(self, tag: Tag) -> None:
        if playing := self._playing.pop(tag, None):
            playing.cancel()

    def close(self) -> None:
        """Virtual people hold nothing."""


class PlannedPolicy(Policy):
    """Decides as the scenario's offers say."""

    def __init__(self, offers: Iterable[ToolOffer]) -> None:
        super().__init__()
        # By identity: two tools may have equal contracts and different decisions.
        object.__setattr__(self, "_planned", {id(offer.contract): offer.decision for offer in offers})

    def decide(self, contract: ToolContract) -> Decision:
        planned: dict[int, Decision] = object.__getattribute__(self, "_planned")
        return planned.get(id(contract), Decision.DENY)


def _tool(offer: ToolOffer) -> Tool:
    def never_run() -> str:
        raise AssertionError("a rehearsal plays its tools, it does not run them")

    return Tool(never_run, offer.definition, offer.contract, read_signature(never_run, offer.definition.name, {}))


def rehearse(scenario: Scenario, seed: int | Callable[[int], int] = 0, faults: Faults | None = None) -> Trace:
    """Play one scenario under the real actors; the trace holds what its session was told and did."""
    return Rehearsal(scenario, seed, faults).play()
