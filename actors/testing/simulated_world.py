"""What surrounds the real actors in a simulated run: model, people, tools and conversation store, played by plan."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from functools import cache, partial
from typing import Final

import orjson
from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.calls.approvals import ApprovalKind, Decide, Verdict
from callboard.actors.kernel import ActorSystem, IntensityExceeded, MailboxFull, NoSuchActor, Timer
from callboard.actors.kernel.reply import Reply
from callboard.actors.models.llm_manager import Attempt, Emit, End
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.outside import ResolveCall
from callboard.actors.telemetry.telemetry import Observed
from callboard.actors.testing.faults import COMMITTED, Faults, JournalFaults, Moment, RequestFate
from callboard.actors.testing.simulated_store import REFUSED_STATEMENT, SimulatedDisk
from callboard.actors.testing.simulated_workers import Die, Later, SimulatedWorker, simulated_kind
from callboard.actors.testing.simulation import BATON, SimulatedScheduler
from callboard.actors.testing.watched_calls import WatchedCalls
from callboard.actors.testing.watched_crashes import WatchedCrashes
from callboard.actors.testing.watched_models import RoutedProvider, WatchedModels
from callboard.actors.testing.watched_questions import WatchedQuestions
from callboard.actors.testing.watched_sessions import WatchedSessions
from callboard.actors.testing.written_ahead import WrittenAhead
from callboard.actors.tools import Tool
from callboard.actors.tools.schema import Signature, read_signature
from callboard.actors.topology import ROOT_INTENSITY, ROOT_PERIOD_SECONDS
from callboard.actors.workers.messages import WorkerKind
from callboard.protocol.commands import AskApproval, CallModel, RunTool
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message, Text
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
)
from callboard.protocol.ids import RequestId, Tag, ToolName
from callboard.protocol.model import Error, ModelRequest, ModelResponse, TextDelta, Usage
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Policy
from callboard.protocol.states import CallState
from callboard.protocol.testing.outside import (
    RETRY_AFTER_SECONDS,
    Answer,
    Plans,
    cost_of,
    input_tokens,
    model_answers,
    outside_answers,
    outside_failure,
    person_answers,
    requests_of,
)
from callboard.protocol.testing.scenario import OutsideDoes, PlannedCall, PlannedTurn, Scenario
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import Decision, Effect, Hold, ToolContract
from callboard.providers.adapter import Provider
from callboard.providers.rate_limit import RateLimiter

#: What a supervisor bears, with the time by which its backoff may bring crashes nearer to each other.
_BORNE = {"root": (ROOT_INTENSITY, ROOT_PERIOD_SECONDS + 5.0), "root/tools": (3, 6.0)}

#: What a disk tells (simulated_store.py), and what of it is counted.
_OF_JOURNAL: Final = (
    ("recovery:", "recovery"),
    ("the journal's actor crashes before", "crash before a commit"),
    ("the journal's actor crashes after", "crash after a commit"),
    ("a sync of the journal fails", "sync fails"),
    ("the journal cannot be written: No space", "full"),
    ("the journal cannot be written: Read-only", "read-only"),
)
_KILLED: Final = ("root/tools", "root/sessions")  # supervisors, which read no message of ours
DEAD_LETTERS_KEPT: Final = 100_000
#: The wall clock shows this when a run begins in which the process does not end before it is over.
WALL_CLOCK_AHEAD: Final = 2.0**20
#: A request that fails on the way to a planned turn takes this long.
FAILS_AFTER_SECONDS: Final = 0.125


class PlannedCrash(Struct, frozen=True):
    """A message that no actor survives."""

    happens: Callable[[], object]
    """Called when it is read: an actor that is down reads it once it has been started again."""


class PlannedFailure(Exception):
    """What an actor crashes with by plan."""


class World:
    """What the parts of one run share: time, the plans of each request, and what was done to whom."""

    def __init__(self, scenarios: Sequence[Scenario], faults: Faults, scheduler: SimulatedScheduler) -> None:
        self.scheduler = scheduler
        self.system = ActorSystem(scheduler, dead_letters_kept=DEAD_LETTERS_KEPT)
        self.earlier: list[ActorSystem] = []
        """Those of the processes that have died."""
        self._said: set[Tag] = set()
        """Calls that were given a result from outside."""
        self._from_outside: list[tuple[float, ResolveCall]] = []
        self.faults = faults
        self.scenarios = {scenario.request_id: scenario for scenario in scenarios}
        self.plans = {scenario.request_id: Plans(scenario) for scenario in scenarios}
        self._effects = {offer.definition.name: offer.contract.effect for each in scenarios for offer in each.tools}
        self.model_calls: dict[RequestId, list[CallModel]] = {}
        """Those of each request that the model was not asked yet."""
        self.traces: dict[RequestId, Trace] = {}
        """Where what is carried out is written down; filled by the run."""
        self.runs: Counter[Tag] = Counter()
        """How often the code of each call's tool ran."""
        self.happened: list[tuple[float, str]] = []
        """The faults that were carried out, for the report."""
        self.has_lost_sessions = False
        """Their supervisor has crashed, and they with it."""
        self.why_ended = ""
        """Why the tree of the present process has ended by itself."""
        self.jumps: list[tuple[float, float]] = []
        self.verdicts: dict[Tag, Verdict] = {}
        """What those who were asked have answered, by the question that was put to them."""
        self.tries: list[ModelTry] = []
        """All requests to models."""
        self.reached: Counter[tuple[str, str]] = Counter()
        """What has happened how often: a kind, and which one of it (run_reach.py)."""
        self._deaths = [(death.after_steps, death) for death in faults.deaths if death.moment is None]
        """Those that are to come, by the step."""
        self.ahead = None if faults.journal is None else WrittenAhead(self._disk(faults.journal), scheduler.now)
        """Where there is a journal."""
        self._crashes: dict[str, list[float]] = {name: [] for name in _BORNE}
        self._workers: list[SimulatedWorker] = []
        self._offers = tuple({offer.definition.name: offer for each in scenarios for offer in each.tools}.values())
        self.problems: list[str] = []
        """What was wrong with the actors while they ran."""
        self.heard: dict[RequestId, list[object]] = {}
        """What telemetry was told of each request, by the process of now."""
        self._watch()

    def _watch(self) -> None:
        """Follow the actors of a process that begins."""
        self.calls = WatchedCalls(self.system, self.faults, self._offers, self.problems)
        self.questions = WatchedQuestions(self.system, self.problems)
        self.models = WatchedModels(self.system, self.faults.models, self.problems, self._cost_of)
        watched = self.calls, self.questions, self.models
        self.sessions = WatchedSessions(self.system.now, *watched, self.problems)
        self.crashes = WatchedCrashes(self.system, self.problems, has_journal=self.ahead is not None)

    def _cost_of(self, tag: Tag, usage: Usage | None) -> float | None:
        return cost_of(usage, self.scenarios[tag.request_id].options)

    def at_rest(self) -> None:
        """The clock is about to move."""
        self.calls.at_rest()
        self.questions.at_rest()
        self.models.at_rest()
        self.sessions.at_rest()
        self._unheard()
        if not self.faults.escalates:  # who gives up is started again when all below it has ended, or not at all
            self.crashes.at_rest()

    def _unheard(self) -> None:
        """What has come from outside of a call that waits for it is heard, and so is that a request goes on."""
        self.problems += self.ahead.at_rest(self.sessions.has_done_all) if self.ahead is not None else ()
        for tag in sorted(self._said):
            session = self.traces[tag.request_id].session
            if self.sessions.has_done_all(tag.request_id) and session is not None:
                self._said.discard(tag)
                if session.calls.get(tag) is CallState.DEFERRED:
                    self.problems.append(f"{tag.request_id} from outside: the result of {tag} has come, and it waits")

    def tells(self, event: Event) -> None:
        """A session hears this."""
        self.calls.tells(event)
        self.questions.tells(event)
        self.models.tells(event)

    def telemetry_reads(self, message: object) -> None:
        """Telemetry takes this message."""
        if isinstance(message, Observed):
            self.heard.setdefault(message.question.tag.request_id, []).extend(message.happened)

    def dispatcher_reads(self, message: object) -> None:
        """The dispatcher takes this message."""
        self.calls.read(message)
        self.questions.read(message)

    def process_ends(self) -> None:
        """What is asked of a process when it is over."""
        self.problems += self.calls.in_order()
        self.problems += self.crashes.at_end()

    def _disk(self, faults: JournalFaults) -> SimulatedDisk:
        def wait(seconds: float) -> None:
            if BATON.thread is not None:
                self.scheduler.block_until(Reply(), seconds)

        # A request that goes on has its times back from the wall clock. Of most times the sum with another clock's is
        # not exact, and what is compared here must be: so the two are one where the process dies, or may end by itself.
        ahead = 0.0 if self.faults.deaths or self.faults.escalates else WALL_CLOCK_AHEAD
        passes = partial(self.passes, COMMITTED)
        return SimulatedDisk(lambda: self.scheduler.now() + ahead, wait, faults, commits_effect=passes)

    def add(self, scenario: Scenario, trace: Trace) -> None:
        """One more request, which begins later than the others."""
        self.scenarios[scenario.request_id], self.traces[scenario.request_id] = scenario, trace
        self.plans[scenario.request_id] = Plans(scenario)

    # -- what workers need (simulated_workers.World)

    def plan_of(self, run: RunTool | AskApproval) -> PlannedCall:
        """What the scenario of the call's request holds for it."""
        return self.plans[run.tag.request_id].of(run)

    def result_of(self, tag: Tag, plan: PlannedCall) -> str:
        """A result that names its call and its request, so that one in a wrong place shows, unless it is steady."""
        of = "any call" if plan.steady else f"{tag.request_id}/{tag.step}/{tag.call_id}"
        return orjson.dumps({"ok": True, "of": of}).decode()

    def began(self, run: RunTool) -> None:
        """Count a run of the tool's code, and write it down."""
        if self.ahead is not None and self._effects.get(run.name, Effect.ONCE) is not Effect.REPEAT:
            self.ahead.begins(run, self.scheduler.now())
        self.runs[run.tag] += 1
        self.calls.runs(run.tag)
        self.write(Verb.RAN, run)

    def is_transaction(self, tag: Tag) -> bool:
        """Is what this call writes committed with its outcome? Not where it is the asker's, or of no known tool."""
        plan = self.plans[tag.request_id].of_call.get(tag)
        return plan is not None and self.ahead is not None and self._effects.get(plan.tool) is Effect.TRANSACTION

    def statement_of(self, run: RunTool, plan: PlannedCall) -> str:
        """What a call writes; the database refuses it where what happens to the call is odd in other ways too."""
        what = REFUSED_STATEMENT if plan.late else f"insert {run.tag.request_id}/{run.tag.step}/{run.tag.call_id}"
        self.reach("transaction", "refused" if what == REFUSED_STATEMENT else "written")
        return what

    def deferred(self, run: RunTool, plan: PlannedCall) -> None:
        """Someone outside has the call now, and says what it comes to, once or more, or not at all."""
        self.reach("outside", plan.outside)
        of_plan = outside_failure(plan) if plan.outside is OutsideDoes.FAIL else self.result_of(run.tag, plan)
        for answer in outside_answers(plan, run.tag, self.scheduler.now()):
            self._from_outside.append((answer.at, ResolveCall(run.tag, of_plan)))
            self._arrange_from_outside(*self._from_outside[-1])

    def _arrange_from_outside(self, when: float, message: ResolveCall) -> None:
        say = partial(self._say_from_outside, message)
        self.scheduler.call_at(when, Later(f"outside of {message.tag.request_id}", say))

    def _say_from_outside(self, message: ResolveCall) -> None:
        with contextlib.suppress(NoSuchActor):  # the request has ended
            self.system.ref(f"root/sessions/{message.tag.request_id}").tell_control(message)
            self._said.add(message.tag)

    def write(self, verb: Verb, command: RunTool | CallModel | AskApproval) -> None:
        """Write down in its request's trace that a command was carried out."""
        if self.ahead is not None:
            self.ahead.acts(verb, command, self.scheduler.now())
        trace = self.traces.get(command.tag.request_id)
        if trace is not None:  # a pool that is played alone has none
            trace.add(self.scheduler.now(), verb, command)

    def arrives(self, worker: SimulatedWorker) -> None:
        """A worker is there."""
        self._workers.append(worker)
        self.calls.arrives(worker)

    def leaves(self, worker: SimulatedWorker) -> None:
        """It is gone."""
        self._workers.remove(worker)
        self.calls.leaves(worker)

    def kind(self, contract: ToolContract) -> WorkerKind:
        """The simulated workers of such a tool."""
        return simulated_kind(self, self.faults.workers, contract.isolation)

    # -- faults

    def reach(self, kind: str, what: str) -> None:
        """Count it."""
        self.reached[kind, what] += 1

    def all_reached(self) -> Counter[tuple[str, str]]:
        """With what has become of the journal."""
        happened = self.ahead.disk.happened if self.ahead is not None else []
        failures = (name for _, told in happened for start, name in _OF_JOURNAL if told.startswith(start))
        return self.reached + Counter(("journal", name) for name in failures)

    def passes(self, what: str) -> None:
        """One of the moments at which something may be planned."""
        self.reach("moment", what)
        number = self.reached["moment", what]
        for crash in self.faults.crashes:
            if crash.moment == Moment(what, number):
                for name in crash.actors:
                    run = Later(f"crash of {name}", partial(self._crash_at, what, name))
                    self.scheduler.call_at(self.scheduler.now() + crash.at, run)
        for death in self.faults.deaths:
            if death.moment == Moment(what, number):
                self._deaths.append((self.scheduler.steps + death.after_steps, death))
                self._deaths.sort(key=lambda each: each[0])

    def _crash_at(self, moment: str, name: str) -> None:
        self.reach("crash at", moment)
        self.crash(name)

    @property
    def must_die(self) -> bool:
        """Is it time for the process to die? Where there is no journal to go on from, it never is."""
        if self.ahead is None:
            return False
        if self.why_ended:
            return "root" not in self.system._cells
        return bool(self._deaths) and self._deaths[0][0] <= self.scheduler.steps

    def crash(self, name: str) -> None:
        """Make an actor crash, unless it is not there or its supervisor would give up; supervisors are killed."""
        now, parent = self.scheduler.now(), name.rpartition("/")[0]
        most, period = _BORNE[parent]
        recent = [at for at in self._crashes[parent] if now - at < period]
        try:
            ref = self.system.ref(name)
        except NoSuchActor:
            return
        if parent == "root" and (journal := self.faults.journal) is not None:
            most -= len(journal.crashes_before) + len(journal.crashes_after)  # it may crash at any time
        if len(recent) >= most and not self.faults.escalates:
            return
        self._crashes[parent] = [*recent, now]
        if name.startswith(_KILLED):
            self._has_crashed(name)
            ref._cell.kill()
        else:
            ref.tell_control(PlannedCrash(partial(self._has_crashed, name)))

    def gives_up(self, failure: IntensityExceeded) -> None:
        """The root has seen too many failures: the tree ends, and the process with it where there is a journal."""
        self.why_ended = f"this runtime has ended by itself, since its actors failed too often ({failure})"
        self.happened.append((self.scheduler.now(), "the root gives up"))
        self.reach("world", "the root gives up")
        self.crashes.gives_up()

    def _has_crashed(self, name: str) -> None:
        self.reach("crash", name)
        self.happened.append((self.scheduler.now(), f"{name} crashes"))
        self.has_lost_sessions |= name == "root/sessions"
        self.calls.has_lost_pools |= name.startswith("root/tools")
        self.crashes.crashes(name, over_message=not name.startswith(_KILLED))

    def lose_worker(self, pool: str) -> None:
        """A worker of this pool dies, one with a call if there is one."""
        workers = [worker for worker in self._workers if worker.pool == f"root/tools/{pool}"]
        worker = next((worker for worker in workers if worker.is_busy), next(iter(workers), None))
        if worker is not None:
            self.reach("world", "worker dies")
            self.happened.append((self.scheduler.now(), f"a worker of {pool} dies"))
            worker.ref.tell_control(Die())

    def die(self) -> float:
        """The process dies with all it holds, and the next one begins. Those outside try again until it answers.

        Returns the seconds until that runs.
        """
        assert self.ahead is not None
        down_seconds = 0.0
        if self.why_ended:  # its host starts the next one
            self.why_ended = ""
        else:
            death = self._deaths.pop(0)[1]
            down_seconds = death.down_seconds
            self.reach("death at", death.moment.what if death.moment is not None else "a step")
        died_at = self.scheduler.now()
        self.ahead.disk.process_dies()
        self.scheduler.lose_all()
        self.jump(down_seconds, "the process dies, and the next one starts later")
        self.ahead.process_starts()
        self.earlier.append(self.system)
        self.process_ends()
        self.system = ActorSystem(self.scheduler, dead_letters_kept=DEAD_LETTERS_KEPT)
        self._watch()
        self._said.clear()
        self.model_calls.clear()
        self._workers.clear()
        self._crashes = {name: [] for name in _BORNE}
        for when, message in self._from_outside:
            if when >= died_at:
                self._arrange_from_outside(when, message)
        return down_seconds

    def jump(self, seconds: float, why: str = "the clock jumps") -> None:
        """Time passes, and nothing runs meanwhile."""
        at = self.scheduler.now()
        self.reach("world", "jump")
        self.happened.append((at, f"{why} by {seconds:g} s"))
        self.jumps.append((at, seconds))
        self.crashes.clock_jumps()
        self.scheduler.jump(seconds)


class SimulatedStore(Conversation):
    """A conversation whose store is slow, or refuses, when the faults say so."""

    __slots__ = ("_world",)

    def __init__(self, world: World, messages: tuple[Message, ...]) -> None:
        super().__init__(messages)
        self._world = world

    def record(self, recorded: tuple[Message, ...] | Compacted, request_id: RequestId) -> None:
        """Record, after a while or not at all. Raises OSError where the store is full."""
        world, now = self._world, self._world.scheduler.now()
        for since, until, seconds in world.faults.store.slow:
            if since <= now < until:
                world.reach("world", "store is slow")
                world.jump(seconds, "the store holds the loop")
        if any(since <= now < until for since, until in world.faults.store.refuses):
            world.reach("world", "store refuses")
            world.happened.append((now, "the store refuses"))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().record(recorded, request_id)


class Playing:
    """Answers on their way, in their order also where the clock jumps over several. Cancelling stops those that can
    still be stopped."""

    def __init__(
        self,
        scheduler: SimulatedScheduler,
        who: str,
        answers: Iterable[Answer],
        say: Callable[[Event], object],
        cancelled: Callable[[], object] = bool,
    ) -> None:
        """`cancelled` is called when it is."""
        self._scheduler, self._who, self._say, self._cancelled = scheduler, who, say, cancelled
        self._left = sorted(answers, key=lambda answer: answer.at)[::-1]
        self._next: tuple[Answer, Timer] | None = None
        self._go_on()

    def _go_on(self) -> None:
        self._next = None
        if self._left:
            answer = self._left.pop()
            self._next = answer, self._scheduler.call_at(answer.at, Later(self._who, partial(self._tell, answer)))

    def _tell(self, answer: Answer) -> None:
        self._go_on()
        self._say(answer.make(self._scheduler.now()))

    def cancel(self) -> None:
        """Stop them."""
        self._cancelled()
        self._left = [answer for answer in self._left if answer.unstoppable]
        if self._next is not None and not self._next[0].unstoppable:
            self._next[1].cancel()
            self._go_on()


class ModelTry(Struct, frozen=True):
    """One request to a model, as it was played."""

    tag: Tag
    number: int
    """Of this model call, from 1 on."""
    sent_at: float
    fate: RequestFate | None
    """None: it came to what the turn of its scenario says."""
    usage: Usage | None = None
    """What was charged for one that was cut."""


class _Asked(Struct, eq=False):
    """A model call, and the requests that it has taken."""

    command: CallModel
    turn: PlannedTurn
    failing: int
    """The requests before the one that comes to what the turn says."""
    sent: int = 0


class PlayedModel:
    """The stream driver under the real LLM manager. Each request has a model named after it."""

    def __init__(self, world: World, limiter: RateLimiter) -> None:
        """`limiter`: that of the first route, which hears what a provider says of its limits."""
        self._world = world
        self._limiter = limiter
        self._asked: dict[RequestId, _Asked] = {}

    def start(self, provider: Provider, request: ModelRequest, emit: Emit, end: End, asker: Context | None) -> Attempt:
        """Play the next request of a model call: one that fails on the way, or what the turn comes to."""
        assert isinstance(provider, RoutedProvider)
        world, now = self._world, self._world.scheduler.now()
        asked = self._asked_for(provider, request)
        asked.sent += 1
        tag, number = asked.command.tag, asked.sent
        attempt = world.models.begins(tag, request, provider.route)
        options = world.scenarios[tag.request_id].options
        if number <= asked.failing:
            fate = world.faults.models.fate_of(tag, number)
            answers: Iterable[Answer] = self._failing(asked, fate, now)
        else:
            fate = None
            # The manager has its own way to retry; what is planned is what comes of that.
            planned = model_answers(replace(asked.turn, requests=1), asked.command, options, now)
            answers = planned if request.is_last_try else map(_for_good, planned)
        usage = Usage(input_tokens(asked.command.request), 1) if fate is RequestFate.CUT else None
        world.tries.append(ModelTry(tag, number, now, fate, usage))
        world.reach("request to a model", fate or "as its turn says")

        def say(event: Event) -> None:
            match event:
                case ModelStreamed():
                    if attempt.first_event_at is None and attempt.runs:
                        attempt.first_event_at = world.scheduler.now()
                    with contextlib.suppress(MailboxFull):  # the response says it all once more
                        emit(list(event.events))
                        world.models.streams(tag, attempt, event.events)
                case ModelResponded():
                    world.models.ends(attempt, event.response)
                    end(event.response)
                case ModelFailed():
                    response = ModelResponse(error=event.error)
                    world.models.ends(attempt, response)
                    end(response)
                case ModelLost():
                    world.crash("root/llm_manager")

        def cancelled() -> None:
            attempt.is_cancelled = True

        return Playing(world.scheduler, f"model of {tag.request_id}", answers, say, cancelled)

    def _asked_for(self, provider: Provider, request: ModelRequest) -> _Asked:
        """The model call that this request is of."""
        world, request_id = self._world, RequestId(request.model)
        given = world.model_calls.get(request_id, [])
        # A call that was lost, and the later one in its place, ask the same: the one that the manager has open.
        now, opened, asked = world.scheduler.now(), world.models.open_of(request_id), self._asked.get(request_id)
        due = [each for each in given if each.not_before_at <= now and each.request.messages == request.messages]
        command = next((each for each in due if each.tag == opened), None)
        if command is None and due and (asked is None or asked.command.tag != opened):
            command = due[-1]
        if command is not None:
            given.remove(command)
            world.write(Verb.ASKED, command)
            turn = world.plans[request_id].next_turn(command)
            failing = requests_of(turn, command) - 1 + world.faults.models.more_of(command.tag)
            self._asked[request_id] = _Asked(command, turn, failing)
        asked = self._asked.get(request_id)
        if asked is None or asked.command.request.messages != request.messages:
            raise AssertionError(f"{provider.name} was asked for {request_id} what its session had not asked for")
        return asked

    def _failing(self, asked: _Asked, fate: RequestFate, now: float) -> Iterator[Answer]:
        tag, at = asked.command.tag, now + FAILS_AFTER_SECONDS
        error = Error(_KINDS[fate], "planned", retryable=_KINDS[fate] in RETRYABLE_KINDS)
        if fate is RequestFate.RATE_LIMITED:
            error = replace(error, status=429, retry_after=RETRY_AFTER_SECONDS)
            self._limiter.on_headers(429, {"retry-after": str(RETRY_AFTER_SECONDS)})
        if fate is not RequestFate.CUT:
            yield Answer(at, lambda at: ModelFailed(tag, at, error))
            return
        usage = Usage(input_tokens(asked.command.request), 1)
        response = ModelResponse((Text("cut "),), error=error, usage=usage)
        yield Answer(now + FAILS_AFTER_SECONDS / 2, lambda at: ModelStreamed(tag, at, (TextDelta("cut "),)))
        yield Answer(at, lambda at: ModelResponded(tag, at, response))


_KINDS: Final[Mapping[RequestFate, ErrorKind]] = {
    RequestFate.SERVER: ErrorKind.SERVER,
    RequestFate.OVERLOADED: ErrorKind.OVERLOADED,
    RequestFate.RATE_LIMITED: ErrorKind.RATE_LIMITED,
    RequestFate.CUT: ErrorKind.TRUNCATED,
    RequestFate.BILLING: ErrorKind.BILLING,
    RequestFate.NOT_FOUND: ErrorKind.NOT_FOUND,
}


def _for_good(answer: Answer) -> Answer:
    """The same answer; an error in it is one that the manager does not try again."""

    def make(at: float) -> Event:
        event = answer.make(at)
        if isinstance(event, ModelFailed):
            return replace(event, error=replace(event.error, retryable=False))
        if isinstance(event, ModelResponded) and event.response.error is not None:
            error = replace(event.response.error, retryable=False)
            return replace(event, response=replace(event.response, error=error))
        return event

    return replace(answer, make=make)


#: What is recorded of an answer.
_SAYS: Final = {
    ApprovalKind.ONCE: "allowed once",
    ApprovalKind.REQUEST: "allowed for this request",
    ApprovalKind.ALWAYS: "allowed for always",
    ApprovalKind.DENY: "denied",
    ApprovalKind.DENY_ALWAYS: "denied for always",
}


class PlayedPerson:
    """The approver."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._playing: dict[Tag, Playing] = {}

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        """Answer as planned. A restarted dispatcher asks again, and has the address of the one before."""
        if question.tag in self._playing:
            return

        def say(event: Event) -> None:
            if isinstance(event, ApprovalGranted | ApprovalDenied):
                self._playing.pop(event.tag, None)
                self._world.questions.moot(event.tag)
                granted = isinstance(event, ApprovalGranted)
                changed = event.arguments if isinstance(event, ApprovalGranted) else ""
                hold = event.hold if isinstance(event, ApprovalGranted) else Hold.NONE
                kind = people.reach_of(question, grants=granted, is_changed=bool(changed))
                is_all = kind not in (ApprovalKind.ONCE, ApprovalKind.DENY)
                world.reach("answer", kind)
                verdict = Verdict(
                    event.tag, granted, event.by, "planned", _SAYS[kind], changed, hold=hold, is_for_request=is_all
                )
                world.verdicts.setdefault(event.tag, verdict)
                decide(verdict)

        world, people = self._world, self._world.faults.people
        world.questions.put(question)
        world.write(Verb.ASKED, question)
        world.reach("person", world.plan_of(question).person)
        scheduler = self._world.scheduler
        answers = person_answers(self._world.plan_of(question), question, scheduler.now())
        who = f"person asked by {question.tag.request_id}"
        self._playing[question.tag] = Playing(scheduler, who, answers, say)

    def withdraw(self, tag: Tag) -> None:
        """The question is not to be answered any more."""
        self._world.questions.moot(tag)
        if playing := self._playing.pop(tag, None):
            playing.cancel()

    def close(self) -> None:
        """Simulated people hold nothing."""


class PlannedPolicy(Policy):
    """Decides as the scenario's offers say."""

    def __init__(self, offers: Iterable[ToolOffer]) -> None:
        super().__init__()
        # By identity: two tools may have equal contracts and different decisions.
        object.__setattr__(self, "_planned", {id(offer.contract): offer.decision for offer in offers})

    def decide(self, contract: ToolContract) -> Decision:
        """What the offer with this contract says."""
        planned: dict[int, Decision] = object.__getattribute__(self, "_planned")
        return planned.get(id(contract), Decision.DENY)


def simulated_tool(offer: ToolOffer) -> Tool:
    """A tool of which only definition and contract are used."""
    return Tool(_never_run, offer.definition, offer.contract, _signature(offer.definition.name))


def _never_run() -> str:
    raise AssertionError("a simulated run plays its tools, it does not run them")


@cache
def _signature(name: ToolName) -> Signature:
    return read_signature(_never_run, name, {})
