"""Simulated runs: scenarios of `callboard.protocol.testing`, played side by side under the real actors in virtual time.

    run = SimulatedRun([scenario, another], faults, schedule=7)
    traces = run.play()
    assert not run.problems()

Session, dispatcher, LLM manager, tool pools and supervisors are the real ones. Model, people, workers and conversation
store are played, and fail as scenarios and `Faults` say. The same scenarios, faults and schedule give the same traces.
Where the faults say so, there is a journal, the process dies, and the next one goes on by the code of a real start.

`check(token)` plays the run that a token names, and reports a failure with the fewest deviations from FIFO that show
it. `python -m callboard.actors.testing.simulated_run TOKEN` plays one again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.journal.journal_records import RequestLog, without_keys
from callboard.actors.journal.recovery import rebuilt
from callboard.actors.kernel import Actor, ActorSystem, ChildSpec, MailboxFull, NoSuchActor, Ref, Restart, start_child
from callboard.actors.models.llm_manager import LlmManager, Route, Routes
from callboard.actors.requests.output_checks import Told
from callboard.actors.requests.replies import Answer as RequestAnswer
from callboard.actors.requests.replies import Question
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.requests.session_messages import GoOn, Peers, Record, TakenUp
from callboard.actors.requests.tool_selection import ToolSelection
from callboard.actors.requests.write_ahead import WriteAhead
from callboard.actors.running import StartedRequest
from callboard.actors.telemetry.telemetry import Telemetry
from callboard.actors.testing.answered_calls import next_request, taken_wrongly
from callboard.actors.testing.direct_plays import DirectPlay
from callboard.actors.testing.faults import COMMITTED, Faults, PeopleFaults, is_small, seeded_faults
from callboard.actors.testing.played_runtime import PlayedRuntime
from callboard.actors.testing.replay_token import Chosen, RunToken
from callboard.actors.testing.schedules import smallest
from callboard.actors.testing.simulated_request import RecordedSession, SimulatedRequest
from callboard.actors.testing.simulated_store import SimulatedReader, SimulatedWriter
from callboard.actors.testing.simulated_workers import Later
from callboard.actors.testing.simulated_world import (
    PlannedCrash,
    PlannedFailure,
    PlannedPolicy,
    PlayedModel,
    PlayedPerson,
    SimulatedStore,
    World,
    simulated_tool,
)
from callboard.actors.testing.simulation import Deviation, Schedule, SimulatedScheduler
from callboard.actors.testing.watched_models import RoutedProvider
from callboard.actors.testing.whole_run import problems_of_the_whole
from callboard.actors.testing.written_ahead import WrittenAhead, rebuilt_wrongly
from callboard.actors.topology import SESSION_CAPACITY, JournalPlan, Plan, build
from callboard.actors.wiring import Asked, KnownModel
from callboard.protocol.commands import CancelTool, Finish, StopModel
from callboard.protocol.errors import UsageError
from callboard.protocol.events import CancelRequested, NoticeCame, RequestStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import Usage
from callboard.protocol.options import ToolOffer
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.protocol.testing import drawing, generator, long_conversations
from callboard.protocol.testing.outside import check_answer, cost_of
from callboard.protocol.testing.scenario import ModelDoes, PlannedCall, Scenario, Store, ToolDoes
from callboard.protocol.testing.trace import Trace
from callboard.protocol.tools import Effect, Isolation, Latency
from callboard.providers.rate_limit import RateLimiter
from callboard.providers.retry import RetryPolicy

Kind = TypeVar("Kind", bound=Actor)


class PlannedCheck:
    """Checks simulated answers, as all that plays them does."""

    def check(self, texts: tuple[str, ...], tell: Told) -> None:
        """Tell at once; the session hears of it as a message of its own."""
        tell(tuple(map(check_answer, texts)))


#: A run that takes more steps than this does not end: ten times the longest of 10,000 seeded conversations.
MAX_STEPS: Final = 100_000
#: Requests side by side in a seeded run.
_SIDE_BY_SIDE: Final = (1, 1, 2, 3, 4)


class SimulatedRun:
    """Several requests on one actor system, from its start until nothing is left to do.

    Raises UsageError when two scenarios have the same request id, or disagree about the tools: one dispatcher has them.
    """

    def __init__(
        self, scenarios: Sequence[Scenario], faults: Faults | None = None, schedule: int | Schedule = 0
    ) -> None:
        if len({scenario.request_id for scenario in scenarios}) < len(scenarios):
            raise UsageError("the scenarios of a run need different request ids")
        if any(scenario.tools != scenarios[0].tools for scenario in scenarios):
            raise UsageError("the scenarios of a run share one dispatcher, so they need the same tools")
        self.faults = faults or Faults()
        self.scheduler = SimulatedScheduler(schedule)
        self.requests = {scenario.request_id: SimulatedRequest(_with_own_model(scenario)) for scenario in scenarios}
        self.world = World([request.scenario for request in self.requests.values()], self.faults, self.scheduler)
        self.scheduler.at_rest = self.world.at_rest
        self.world.traces = {request_id: request.trace for request_id, request in self.requests.items()}
        self._tools: tuple[ToolOffer, ...] = scenarios[0].tools if scenarios else ()
        self.answering: dict[RequestId, SimulatedRequest] = {}
        """Requests that go on from calls which others have handed out."""
        self.direct_calls: list[DirectPlay] = []
        self._taken_wrongly: list[str] = []

    @property
    def system(self) -> ActorSystem:
        """Of the process that runs, or ran last."""
        return self.world.system

    @property
    def traces(self) -> list[Trace]:
        """One for each request."""
        return [request.trace for request in self.requests.values()]

    def play(self) -> list[Trace]:
        """Run to the end. Raises what escapes the code under test, and AssertionError for a run that does not end."""
        build(self.system, self._plan())
        self._run_until(0.0)
        for number, request in enumerate(self.requests.values()):
            self._begin(request, is_read_along=number % 4 != 3)
        self._arrange()
        while self._run_until(float("inf"), may_die=True):
            self._die()
        if not self.world.why_ended:
            self._answer_calls()
        for request in (*self.requests.values(), *self.answering.values()):
            request.close(self.world)
        self.world.process_ends()
        self.scheduler.close()  # the journal's thread
        return self.traces

    def reached(self) -> Counter[tuple[str, str]]:
        """What happened in it how often, for run_reach.py."""
        ends = (("end", each.finish.outcome if each.finish is not None else "lost") for each in self.requests.values())
        return Counter(self.world.all_reached()) + Counter(ends)

    def problems(self) -> list[str]:
        """Every rule that this run has broken, one sentence each, with the request's id in front."""
        requests = {**self.requests, **self.answering}
        found = [f"{request_id} {problem}" for request_id, each in requests.items() for problem in each.problems()]
        if self.world.ahead is not None:
            found += self.world.ahead.problems({name: each.finish for name, each in requests.items()})
        found += self.world.problems
        for call in self.direct_calls:
            found += [f"{call.scenario.request_id} direct: {told}" for told in call.problems()]
        return [*self._taken_wrongly, *found, *problems_of_the_whole(self.world, self.requests, self._tools)]

    def _run_until(self, seconds: float, *, may_die: bool = False) -> bool:
        """False: nothing is left to do until then; True: the process is to die now."""
        scheduler, world = self.scheduler, self.world
        may_die = may_die and world.ahead is not None
        while not (may_die and world.must_die):
            if not scheduler.step(seconds):
                return False
            if scheduler.steps > MAX_STEPS:
                raise AssertionError(f"the run does not end: {MAX_STEPS} steps, at {self.scheduler.now():g} s")
        return True

    def _answer_calls(self) -> None:
        """The askers answer the calls that were handed out, and the model goes on."""
        for request_id, request in self.requests.items():
            talk = request.answer.conversation if request.answer is not None else None
            if talk is None or talk.open_turn is None:
                continue
            self._taken_wrongly += [f"{request_id} {problem}" for problem in taken_wrongly(talk)]
            answering = SimulatedRequest(_with_own_model(next_request(request.scenario, talk)))
            self.answering[answering.scenario.request_id] = answering
            self.world.add(answering.scenario, answering.trace)
            self._begin(answering, is_read_along=True)
        self._run_until(float("inf"))

    # -- the tree

    def _plan(self) -> Plan:
        models = self.faults.models
        limiter = RateLimiter(self.scheduler.now, models.requests_per_minute, chance=lambda: 0.5)

        def routes(model: str) -> tuple[Route, ...]:
            """Of one model: the first under its own name, the fallbacks with one of theirs and without limits."""
            name = model.partition("/")[2]
            fallbacks = (
                Route(RoutedProvider(n), name, listed_as=f"sim{n + 1}/{name}") for n in range(1, models.routes)
            )
            return (Route(RoutedProvider(0), name, limiter, listed_as=model), *fallbacks)

        return Plan(
            telemetry=self._telemetry,
            llm_manager=partial(self._manager, routes, limiter),
            workers=self.world.kind,
            dispatcher=self._dispatcher,
            tools=[simulated_tool(offer) for offer in self._tools],
            approver=PlayedPerson(self.world),
            policy=PlannedPolicy(self._tools),
            max_queued_calls=self.faults.max_queued_calls,
            chance=lambda: 0.5,
            journal=self._journal(),
            gives_up=self.world.gives_up,
        )

    def _telemetry(self) -> Telemetry:
        return CrashableTelemetry(reads=self.world.telemetry_reads)

    def _manager(self, routes: Routes, limiter: RateLimiter) -> LlmManager:
        played = PlayedModel(self.world, limiter)
        self.world.models.manager_starts()
        retry = RetryPolicy(chance=lambda: 0.5)
        return CrashableManager(routes, played.start, retry, self._cost, reads=self.world.models.read)

    def _dispatcher(self, *given: Any) -> ToolDispatcher:
        self.world.calls.dispatcher_starts()
        self.world.questions.dispatcher_starts()
        return CrashableDispatcher(*given, reads=self.world.dispatcher_reads)

    def _journal(self) -> JournalPlan | None:
        ahead = self.world.ahead
        return None if ahead is None else JournalPlan(lambda: SimulatedWriter(ahead.disk), ahead.outbox)

    def _cost(self, name: str, usage: Usage | None, _: object, __: str) -> float | None:
        return cost_of(usage, self.world.scenarios[RequestId(name.partition("/")[2])].options)

    def _begin(self, request: SimulatedRequest, *, is_read_along: bool) -> None:
        plan = request.scenario
        store = SimulatedStore(self.world, plan.history)
        store.take(plan.request_id)
        request.world = self.world
        answer = RequestAnswer(store, plan.tag, plan.options.timeout_seconds)
        request.answered_by(answer, reads_along=is_read_along)
        self.world.heard.pop(plan.request_id, None)
        question = self._question(request, is_read_along=is_read_along)
        ahead = None if self.world.ahead is None else self.world.ahead.begin(request.trace, question, store)
        self._start(request, question, store.record, ahead)

    def _question(self, request: SimulatedRequest, *, is_read_along: bool) -> Question:
        plan = request.scenario
        checker = PlannedCheck() if plan.options.output is not None else None
        return Question(
            plan.tag,
            plan.history,
            plan.user,
            plan.options,
            self.scheduler.now(),
            Context(),
            is_read_along,
            tools=ToolSelection(own_offers=plan.askers_tools),
            compacted=plan.compacted,
            checker=checker,
        )

    def _start(
        self,
        request: SimulatedRequest,
        question: Question,
        record: Record,
        ahead: WriteAhead | None,
        taken_up: TakenUp | None = None,
    ) -> None:
        peers = Peers(*(self.system.ref(f"root/{name}") for name in ("llm_manager", "dispatcher", "telemetry")))
        make = partial(RecordedSession, request, self.world)
        start = partial(RequestSession, question, peers, request.see, record, make, ahead=ahead, taken_up=taken_up)
        capacity = self.faults.session_capacity if self.faults.floods else SESSION_CAPACITY
        spec = ChildSpec(str(question.tag.request_id), start, restart=Restart.TEMPORARY, capacity=capacity)
        request.ref = start_child(self.system.ref("root/sessions"), spec)
        if taken_up is not None:
            request.ref.tell_control(GoOn())
        request.ahead = ahead
        self.system.watch(request.ref, request.ended)
        waits = None if ahead is None else lambda: ahead.waits
        self.world.sessions.begins(question.tag.request_id, request.ref, waits)

    def _die(self) -> None:
        """The process dies, and the next one goes on with what the journal has."""
        died_at, ahead = self.scheduler.now(), self.world.ahead
        assert ahead is not None
        for request in self.requests.values():
            for what in request.open_now():
                self.world.reach("open at a death", what)
            if not request.outlived:
                request.why_stopped = self.world.why_ended
        down_seconds = self.world.die()
        build(self.system, self._plan())
        self._run_until(self.scheduler.now())
        reader = SimulatedReader(ahead.disk)
        unknown: list[SimulatedRequest] = []
        for request_id, request in self.requests.items():
            log = reader.request(request_id)
            if request.is_over and (log is None or log.end is not None):
                request.outlived = True
                continue
            request.process_dies(ahead.applied[request_id], len(log.records) if log is not None else 0)
            if log is None:
                unknown.append(request)
            elif log.end is not None:
                found = rebuilt(log, estimate_tokens, self.scheduler.now(), ahead.disk.wall_clock())
                request.ended_before(cast(Session, found.taken_up.session), found.conversation.messages)
        self._take_up(ahead, reader)
        for request in unknown:  # its asker hears of the end of the process, and asks once more
            self._begin(request, is_read_along=self._is_read_along(request))
        self._arrange(died_at + down_seconds)

    def _is_read_along(self, request: SimulatedRequest) -> bool:
        return list(self.requests.values()).index(request) % 4 != 3

    def _take_up(self, ahead: WrittenAhead, reader: SimulatedReader) -> None:
        """Go on with what is open, by the code that a runtime has for that."""
        left = set(reader.open_requests())
        outputs = (each.scenario.options.output for each in self.requests.values())

        def begin(opened: StartedRequest[object]) -> None:
            left.remove(request_id := opened.question.tag.request_id)
            self._go_on(ahead, opened, reader.request(request_id))

        runtime = PlayedRuntime(self.system, ahead.outbox, begin)
        tools = map(simulated_tool, self._tools)
        runtime.taking_up(tools, self._asked, filter(None, outputs)).at_start()
        self.world.problems += [f"{request_id} taken up: it does not go on" for request_id in sorted(left)]

    def _asked(self, started: RequestStarted, counter: str, is_direct: bool) -> Asked:
        model = KnownModel((), started.options, estimate_tokens, counter)
        return Asked(started.user, started.at, model, started.options, ())

    def _go_on(self, ahead: WrittenAhead, opened: StartedRequest[object], log: RequestLog | None) -> None:
        question, found, answer = opened.question, opened.rebuilt, cast("RequestAnswer[str]", opened.answer)
        answer.checker = None  # answers are checked as planned
        request = self.requests[question.tag.request_id]
        assert found is not None and log is not None  # noqa: PT018 - of one that was taken up
        wrong = rebuilt_wrongly(ahead.disk, log, found)
        self.world.problems += [f"{log.request_id} taken up: {told}" for told in wrong]
        request.answered_by(answer, reads_along=(is_read_along := self._is_read_along(request)))
        self.world.heard.pop(log.request_id, None)
        checker = None if question.checker is None else PlannedCheck()
        question = replace(question, is_read_along=is_read_along, checker=checker)
        session = RecordedSession(request, self.world, cast(Session, found.taken_up.session))
        taken_up = replace(found.taken_up, session=session)
        self._start(request, question, found.conversation.record, ahead.go_on(question, found), taken_up)

    # -- what happens to it

    def _arrange(self, since: float = 0.0) -> None:
        """What is planned from then on."""
        at, world = partial(self._at, since), self.world
        for request in self.requests.values():
            self._arrange_scenario(request, since)
        for crash in self.faults.crashes:
            for name in crash.actors if crash.moment is None else ():
                at(crash.at, f"crash of {name}", partial(world.crash, name))
        for when, pool in self.faults.workers.deaths:
            at(when, f"death in {pool}", partial(world.lose_worker, pool))
        for when, seconds in self.faults.jumps:
            at(when, "jump", partial(world.jump, seconds))
        for number, (when, plan) in enumerate(self.faults.direct_calls):
            at(when, "direct call", partial(self._call_directly, number, plan))
        for when in self.faults.floods:
            at(when, "flood", self._flood)

    def _at(self, since: float, when: float, what: str, run: Callable[[], object]) -> None:
        if when >= since:
            self.scheduler.call_at(when, Later(what, run))

    def _arrange_scenario(self, request: SimulatedRequest, since: float) -> None:
        plan, at = request.scenario, partial(self._at, since)
        now = self.scheduler.now  # a clock that has jumped is ahead of what was planned

        def cancel() -> None:
            request.tell(CancelRequested(plan.tag, now(), "the user left"))

        def notice(text: str) -> None:
            request.tell(NoticeCame(plan.tag, now(), text))

        if plan.cancel_at is not None:
            at(plan.cancel_at, f"cancel of {plan.request_id}", cancel)
        for number, when in enumerate(plan.notices_at):
            at(when, f"notice {number} for {plan.request_id}", partial(notice, f"notice {number}"))
        for when in plan.tools_lost_at:
            at(when, "crash of root/dispatcher", partial(self.world.crash, "root/dispatcher"))
        for when, number in plan.foreign:
            at(when, f"foreign event for {plan.request_id}", partial(request.hears_of_another, number))

    def _call_directly(self, number: int, plan: PlannedCall) -> None:
        self.world.reach("world", "direct call")
        play = DirectPlay(number, plan, self.world)
        self.direct_calls.append(play)
        self.world.add(play.scenario, Trace(play.scenario))
        play.begin(self.system)

    def _flood(self) -> None:
        """Messages of a stranger at every session, and at those who serve all: more than a mailbox takes in one go."""
        self.world.reach("world", "flood")
        now, count = self.scheduler.now(), self.faults.session_capacity
        for request in self.requests.values():
            stranger = Tag(RequestId("stranger"), request.scenario.tag.parent_id)
            self._fill(request.ref, CancelRequested(stranger, now, "flood"), count)
        stranger = Tag(RequestId("stranger"), MessageId("m"), 1, CallId("c"))
        for name, message in (("dispatcher", CancelTool(stranger)), ("llm_manager", StopModel(stranger))):
            with contextlib.suppress(NoSuchActor):
                self._fill(self.system.ref(f"root/{name}"), message, count)

    @staticmethod
    def _fill(ref: Ref | None, message: object, count: int) -> None:
        assert ref is not None
        for _ in range(count):
            with contextlib.suppress(MailboxFull):
                ref.tell(message)


def crashable(kind: type[Kind]) -> Callable[..., Kind]:
    """The same actor, which does not survive a PlannedCrash; `reads` hears of each message before it is handled."""

    class Crashable(kind):  # type: ignore[valid-type, misc]  # the class is an argument
        def __init__(self, *given: object, reads: Callable[[object], object]) -> None:
            super().__init__(*given)
            self.reads = reads

        def on_receive(self, message: object) -> object:
            if isinstance(message, PlannedCrash):
                message.happens()
                raise PlannedFailure
            self.reads(message)
            return super().on_receive(message)

    return Crashable


CrashableTelemetry, CrashableManager = crashable(Telemetry), crashable(LlmManager)
CrashableDispatcher = crashable(ToolDispatcher)


def _with_own_model(scenario: Scenario) -> Scenario:
    """With a model named after the request, by which the played model knows whose call it is."""
    options = replace(scenario.options, model=f"sim/{scenario.request_id}")
    if options.compaction is not None and options.compaction.model:
        other = f"summaries/{scenario.request_id}"
        options = replace(options, compaction=dataclasses.replace(options.compaction, model=other))
    return replace(scenario, options=options)


def play(scenario: Scenario, seed: int = 0, faults: Faults | None = None) -> Trace:
    """One scenario under the real actors, in an order drawn from `seed`: a runtime for `testing.simulate`."""
    (trace,) = SimulatedRun([scenario], faults, seed).play()
    trace.seed = seed
    return trace


# -- runs from a token


def seeded_scenarios(seed: int, fault_seed: int | None) -> list[Scenario]:
    """One short request, or one to four side by side. They share the tools, which run in different ways and few at a
    time."""
    rng = random.Random(f"run {seed} {fault_seed}")
    faults = Faults() if fault_seed is None else seeded_faults(fault_seed)
    planned = (*(crash.moment for crash in faults.crashes), *(death.moment for death in faults.deaths))
    moments = [moment.what for moment in planned if moment is not None]
    wanted = next((_NEEDED[what] for what in moments if what in _NEEDED), None)
    if wanted is None and faults.people != PeopleFaults():
        wanted = _asking
    if is_small(seed):
        return [_spiced(rng, _short(seed, rng, fault_seed), wanted)]
    seeds = range(seed * max(_SIDE_BY_SIDE), seed * max(_SIDE_BY_SIDE) + rng.choice(_SIDE_BY_SIDE))
    scenarios = [_spiced(rng, _playable(generator.scenario(each)), wanted) for each in seeds]
    tools = tuple(_somewhere(rng, offer) for offer in scenarios[0].tools) if fault_seed is not None else None
    return [
        replace(scenario, request_id=RequestId(f"r{number}"), tools=tools or scenarios[0].tools)
        for number, scenario in enumerate(scenarios)
    ]


def _playable(scenario: Scenario) -> Scenario:
    """Without what only the bare driver can do, without what the faults do here, and without keys: a request that had
    them is not taken up after a death."""
    options = without_keys(scenario.options)
    return replace(scenario, options=options, restart_at=(), strays=(), jumps=(), store=Store())


def _short(seed: int, rng: random.Random, fault_seed: int | None) -> Scenario:
    choices = drawing.SeededChoices(seed)
    drawn = generator.draw_scenario(
        choices, max_turns=rng.choice((2, 3, 3, 5)), max_calls=rng.choice((1, 2, 3)), restarts=False
    )
    tools = tuple(_somewhere(rng, offer) for offer in drawn.tools) if fault_seed is not None else drawn.tools
    return _playable(replace(drawn, tools=tools, tools_lost_at=(), request_id=RequestId("r0")))


def _spiced(rng: random.Random, scenario: Scenario, wanted: Spice | None) -> Scenario:
    """In half of them, more of what needs several actors than a scenario of one session has by itself; always what a
    fault waits for."""
    return (wanted or rng.choice((_deferring, _asking, _compacting, _as_it_is, _as_it_is, _as_it_is)))(rng, scenario)


def _as_it_is(_rng: random.Random, scenario: Scenario) -> Scenario:
    return scenario


def _with_calls(scenario: Scenario, change: Callable[[PlannedCall], PlannedCall]) -> Scenario:
    turns = (replace(turn, calls=tuple(map(change, turn.calls))) for turn in scenario.turns)
    return replace(scenario, turns=tuple(turns))


def _deferring(rng: random.Random, scenario: Scenario) -> Scenario:
    """Every other call leaves its result to someone outside."""
    return _with_calls(scenario, lambda call: replace(call, does=ToolDoes.DEFER) if rng.random() < 0.5 else call)


def _asking(rng: random.Random, scenario: Scenario) -> Scenario:
    """Most calls need a yes, and many of them ask the same: in one turn, and from turn to turn."""
    asked = ToolName("write")
    arguments = ('{"x":1}', '{ "x": 1 }', '{"x":2}')
    return _with_calls(
        scenario,
        lambda call: replace(call, tool=asked, arguments=rng.choice(arguments)) if rng.random() < 0.7 else call,
    )


def _compacting(rng: random.Random, scenario: Scenario) -> Scenario:
    """A long history that is summarised on the way."""
    if scenario.options.compaction is not None or not scenario.user.parts:  # the latter goes on from its history
        return scenario
    return long_conversations.draw_compaction(drawing.SeededChoices(rng.randrange(1 << 20)), scenario)


def _cancelled(rng: random.Random, scenario: Scenario) -> Scenario:
    """Calls take long, and the user leaves while they run."""
    slow = _with_calls(scenario, lambda call: replace(call, seconds=4.0))
    return replace(slow, cancel_at=rng.choice((1.5, 2.5, 4.0, 6.0)))


def _committing(_rng: random.Random, scenario: Scenario) -> Scenario:
    """What each tool writes is committed with its outcome."""
    done = _with_calls(scenario, lambda call: replace(call, does=ToolDoes.COMPLETE, late=False))
    offers = [replace(offer, contract=replace(offer.contract, effect=Effect.TRANSACTION)) for offer in done.tools]
    return replace(done, tools=tuple(offers))


def _retrying(_rng: random.Random, scenario: Scenario) -> Scenario:
    """Each model call takes several requests, and the last turn fails."""
    turns = [replace(turn, requests=3) for turn in scenario.turns]
    return replace(scenario, turns=(*turns[:-1], *(replace(turn, does=ModelDoes.BREAK) for turn in turns[-1:])))


Spice = Callable[[random.Random, Scenario], Scenario]
#: What makes a moment likely (faults.MOMENTS).
_NEEDED: Final[Mapping[str, Spice]] = {
    "AsksForSummary": _compacting,
    "RecordCompaction": _compacting,
    "ToolCallDeferred": _deferring,
    "AskApproval": _asking,
    "ApprovalGranted": _asking,
    "CancelTool": _cancelled,
    COMMITTED: _committing,
    "ModelNoted": _retrying,
    "ModelFailed": _retrying,
}


def _somewhere(rng: random.Random, offer: ToolOffer) -> ToolOffer:
    effect = rng.choice((Effect.TRANSACTION, *(offer.contract.effect,) * 5))
    contract = replace(
        offer.contract,
        isolation=rng.choice(list(Isolation)),
        latency=rng.choice(list(Latency)),
        concurrency=rng.choice((1, 2, 8)),
        effect=effect,
    )
    return replace(offer, contract=contract)


def run_of(token: RunToken) -> SimulatedRun:
    """The run that a token names, not played yet."""
    faults = None if token.fault_seed is None else seeded_faults(token.fault_seed)
    run = SimulatedRun(seeded_scenarios(token.seed, token.fault_seed), faults, token.make_schedule())
    for trace in run.traces:
        trace.seed = token.seed
    return run


def token_of(seed: int) -> RunToken:
    """The run of this seed: every other one is scheduled by PCT."""
    return RunToken(seed, seed, "pct" if seed % 2 else "uniform")


def attempt(token: RunToken, make: Callable[[RunToken], SimulatedRun] = run_of) -> tuple[SimulatedRun, list[str]]:
    """Play a run, and say what is wrong with it; an exception that escapes the code under test is a problem too."""
    run = make(token)
    try:
        run.play()
        return run, run.problems()
    except Exception as error:  # noqa: BLE001 - any exception of the code under test is a failure
        return run, [f"{type(error).__name__}: {error}"]


def check(token: RunToken, make: Callable[[RunToken], SimulatedRun] = run_of) -> SimulatedRun:
    """Play the run of a token. Raises AssertionError with a report of a failure and the line that plays it again."""
    run, problems = attempt(token, make)
    if problems:
        raise AssertionError(report(shrunk(token, run, problems, make), make))
    return run


def shrunk(
    token: RunToken, run: SimulatedRun, problems: list[str], make: Callable[[RunToken], SimulatedRun]
) -> RunToken:
    """The same failure with the fewest deviations from FIFO; the token as it is where a replay does not show it."""
    kinds = _kinds(problems)

    def still_fails(chosen: Sequence[tuple[int, int]]) -> bool:
        return bool(kinds & _kinds(attempt(replace(token, schedule=tuple(chosen)), make)[1]))

    chosen: Chosen = tuple((deviation.step, deviation.index) for deviation in run.scheduler.deviations)
    if not still_fails(chosen):
        return token
    fewest, _ = smallest(chosen, still_fails)
    return replace(token, schedule=tuple(fewest))


def _kinds(problems: list[str]) -> set[str]:
    """What is wrong, without the details: the words before the colon, without the request's id."""
    return {problem.partition(":")[0].split(" ", 1)[-1] for problem in problems}


def report(token: RunToken, make: Callable[[RunToken], SimulatedRun] = run_of) -> str:
    """What went wrong in this run, the story of it, and how to play it again."""
    run, problems = attempt(token, make)
    concerned = [request for name, request in run.requests.items() if any(p.startswith(f"{name} ") for p in problems)]
    stories = [f"-- {each.scenario.request_id}: {each.trace.story()}" for each in concerned or run.requests.values()]
    happened = [f"{at:9.3f} ** {what}" for at, what in run.world.happened]
    return "\n".join(
        [
            *(problems or ["nothing is wrong with this run"]),
            f"seed {token.seed}, faults {token.fault_seed}, {len(run.requests)} requests side by side, "
            f"{run.scheduler.steps} steps, {len(run.scheduler.deviations)} deviations from FIFO",
            *_deviations(token, run.scheduler.deviations),
            *happened,
            *stories,
            f"play it again: python -m callboard.actors.testing.simulated_run '{token}'",
        ]
    )


def _deviations(token: RunToken, deviations: Sequence[Deviation]) -> list[str]:
    """Those that explain a failure; a seeded schedule has hundreds, and they explain nothing."""
    return [] if isinstance(token.schedule, str) else [str(deviation) for deviation in deviations]


def main(arguments: Sequence[str]) -> int:
    """Play the run of one token and print its story: 0 if nothing is wrong, 1 if something is, 2 for a bad token."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m callboard.actors.testing.simulated_run TOKEN\n")
        return 2
    try:
        token = RunToken.parse(arguments[0])
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logger = logging.getLogger("callboard")
    before = logger.level
    logger.setLevel(logging.CRITICAL)  # planned crashes are in the story
    try:
        sys.stdout.write(report(token) + "\n")
        return 1 if attempt(token)[1] else 0
    finally:
        logger.setLevel(before)


def outcomes(runs: Sequence[SimulatedRun]) -> Counter[str]:
    """How the requests of these runs ended, by outcome; "lost" where the session was."""
    counts: Counter[str] = Counter()
    for request in (request for run in runs for request in run.requests.values()):
        finish = next((e.value for e in request.trace.entries if isinstance(e.value, Finish)), None)
        counts[finish.outcome if finish is not None else "lost"] += 1
    return counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
