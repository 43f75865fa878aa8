"""Where the plays of calls happen: the real dispatcher with workers, sessions and an approver that do as they are told.

What each of them hears is told to the model (calls_model.py) as it hears it: see played_calls.py.
"""

from __future__ import annotations

import errno
import random
from collections import defaultdict
from collections.abc import Callable
from contextvars import Context
from functools import cache, partial
from typing import Any, Final, Never

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.calls.approvals import Decide, SeekApproval, Verdict
from callboard.actors.calls.dispatcher import (
    ConfirmStops,
    DispatchCall,
    OfferTools,
    ReplaceTools,
    StopsTold,
    ToolDispatcher,
    ToolsOffered,
    Workers,
)
from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import CallReports, EndedCalls, Ending, Ledger, Outcome, Pool, Seat, WorkerState
from callboard.actors.calls.registry import GIVEN, Registry
from callboard.actors.journal.journal_store import ChangeRefused
from callboard.actors.journal.outbox import CommitEffect, EffectCommitted, Outbox
from callboard.actors.journal.transactions import CallEffect, Effects
from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    Backoff,
    ChildSpec,
    Down,
    ExitReason,
    Ref,
    Supervisor,
)
from callboard.actors.testing.calls_books import Call, Session, Worker, offered
from callboard.actors.testing.calls_model import Model
from callboard.actors.testing.simulation import SimulatedScheduler, fifo, uniform
from callboard.actors.testing.watched_questions import WatchedQuestions
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.actors.tools.progress import ProgressMade
from callboard.actors.workers.call_stacks import ReadStack
from callboard.actors.workers.messages import BeginCode, KillCall, RunCall, StopCall, WorkerKind, WorkerLost
from callboard.protocol.commands import AskApproval, CancelTool, RunTool, WithdrawApproval
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.events import ApprovalDenied, ApprovalGranted
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.policy import Policy
from callboard.protocol.tools import (
    Decision,
    Effect,
    FailureCode,
    Isolation,
    Latency,
    Risk,
    ToolContract,
    ToolFailure,
)

#: Of a call, by chance: what its worker does as it is given it.
PLANS: Final = (*("begin",) * 6, *("ok",) * 3, "wait", "wait", "back", "crash", "lost", "hang", "hold", "hold")
BREAKS: Final = (*("crash",) * 3, *("lost",) * 2, *("hang",) * 2, *("hold",) * 4, "ok", "back")
NAMES: Final = ("look", "write", "slow", "find", "keep")
#: With this time, the policy fails to decide about a tool.
FAILS_AT_SECONDS: Final = 2.0
SOURCES: Final = (GIVEN, "server")


class Crash(Struct, frozen=True):
    """A message that the dispatcher does not survive."""


class Do(Struct, frozen=True):
    """A worker does this in a turn of its own."""

    run: Callable[[Hand], object]


def _never_run() -> str:
    raise AssertionError("a play does not run its tools")


@cache
def some_tools() -> dict[str, tuple[Tool, ...]]:
    """Of each name, those that may be there, one after the other."""
    rng = random.Random("tools")
    return {name: tuple(_tool(name, rng) for _ in range(8)) for name in NAMES}


def _tool(name: str, rng: random.Random) -> Tool:
    made: Tool = tool(name=name, description="A tool.", isolation="thread")(_never_run)
    isolation = rng.choice((Isolation.THREAD, Isolation.THREAD, Isolation.PROCESS, Isolation.TASK, Isolation.CALLER))
    contract = ToolContract(
        risk=rng.choice((Risk.READ, Risk.WRITE, Risk.WRITE, Risk.EXECUTE)),
        timeout_seconds=rng.choice((0.5, 2.0, 8.0)),
        isolation=isolation,
        concurrency=rng.choice((1, 2, 4)),
        latency=rng.choice((Latency.SHORT, Latency.SHORT, Latency.LONG)),
        effect=rng.choice((Effect.ONCE, Effect.ONCE, Effect.REPEAT, Effect.TRANSACTION)),
        reuse=isolation is Isolation.PROCESS and rng.random() < 0.3,
        can_be_held=rng.random() < 0.5,
        stages=rng.random() < 0.2,
        only_with=rng.choice(("", "", "", "", rng.choice(NAMES))),
    )
    definition = made.definition
    if rng.random() < 0.15:
        definition = replace(definition, description="Another tool.")
    return Tool(_never_run, definition, contract, made.signature)


class Watched(ToolDispatcher):
    """The dispatcher, of which the play sees each turn."""

    play: Stage

    def on_start(self) -> None:
        self.play.starts()
        super().on_start()
        self.play.seek_again()

    def on_receive(self, message: Any) -> object:
        self.play.reads(message)
        if isinstance(message, Crash):
            raise ValueError("told to")
        return super().on_receive(message)


class Hand(Actor[Any]):
    """A worker that does what it is told to."""

    def __init__(self, play: Stage, reports: CallReports) -> None:
        self.play, self.reports = play, reports
        self.given: dict[int, RunCall] = {}

    def on_start(self) -> None:
        self.worker = self.play.named[self.name]
        self.play.hands[self.worker.name] = self
        self.at_end(lambda: self.play.hand_ends(self))

    def on_receive(self, message: Any) -> None:
        self.play.model.now = self.now()
        if isinstance(message, Do):
            message.run(self)
        else:
            self.play.hears(self, message)


class Ear(Actor[Any]):
    """A session, or telemetry."""

    def __init__(self, hear: Callable[[Any], object], end: Callable[[], object]) -> None:
        self._hear, self._end = hear, end

    def on_start(self) -> None:
        self.at_end(self._end)

    def on_receive(self, message: Any) -> None:
        self._hear(message)


class Source(Actor[Any]):
    """A fixed child of a pool."""

    def __init__(self, play: Stage) -> None:
        self._play = play

    def on_receive(self, message: Any) -> None:
        self._play.log["source", self.name.split("/")[2]].append(message)


class Box(Outbox):
    """What is to be committed is written down, and answered later."""

    def __init__(self, play: Stage) -> None:
        super().__init__(wall_clock=lambda: 0.0)
        self._play = play

    def hand_over(self, what: Any, *, is_last: bool = False) -> None:
        if self._play.model.is_full and not is_last:
            raise RuntimeFailure("told to")
        assert isinstance(what, CommitEffect)
        outcome: Any = what.change.outcome
        self._play.log["outbox",].append((what.change.tag, outcome.content, outcome.output))


class Book(Ledger):
    """The ledger, of which the play sees which worker is which: those of a pool have the same order in the model."""

    def __init__(self, play: Stage) -> None:
        super().__init__()
        self._play = play
        self._made: defaultdict[str, int] = defaultdict(int)

    def add_worker(self, pool: Pool, worker: Ref) -> Seat:
        """A worker that takes calls."""
        self._made[pool.name] += 1
        self._play.named[worker.name] = self._play.model.workers[f"{pool.name}#{self._made[pool.name]}"]
        return super().add_worker(pool, worker)


class Faulty(CallEffect):
    """Of a transaction, which may meet a fault of our own."""

    play: Stage

    def for_tool(self, context: ToolContext) -> ToolContext:
        """What the tool is given."""
        if self.play.fault == "give":
            self.play.fault = ""
            raise LookupError("told to")
        return super().for_tool(context)


class Own(Policy):
    """An owner's own, which decides by itself, and fails for some tools."""

    def decide(self, contract: ToolContract) -> Decision:
        """What the table says."""
        if contract.timeout_seconds == FAILS_AT_SECONDS:
            raise LookupError("told to")
        return super().decide(contract)


class Stage:
    """Of one play. `problems`: what is not as promised."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"calls {seed}")
        self.simulation = SimulatedScheduler(fifo if rng.random() < 0.5 else uniform(seed))
        self.system = ActorSystem(self.simulation)
        self.problems: list[str] = []
        self.deeds: list[str] = []
        self.log: defaultdict[tuple[object, ...], list[Any]] = defaultdict(list)
        self.policy = rng.choice((Policy, Policy, Own))(
            {Risk.READ: Decision.ALLOW, Risk.WRITE: Decision.ASK, Risk.EXECUTE: Decision.DENY}
        )
        self.has_effects, self.starts_ahead = rng.random() < 0.8, rng.random() < 0.5
        places = {
            Isolation.PROCESS: (1, 2), Isolation.THREAD: (1, rng.choice((1, 3, 12))), Isolation.TASK: (3, 2),
            Isolation.CALLER: (4, 1),
        }  # fmt: skip
        self.model = Model(
            rng.choice((5, 5, 5, 2, None)), rng.choice((8, 8, 2, 3, None)), rng.choice((2, 3, 100)),
            self.policy, places, has_effects=self.has_effects, starts_ahead=self.starts_ahead,
        )  # fmt: skip
        self.model.asked_about = {ToolName(rng.choice(NAMES))} if rng.random() < 0.3 else set()
        self.model.is_on_server = rng.random() < 0.5
        self.current = {source: self.some_of_them() for source in SOURCES}
        self.breaks = rng.choice((None, *NAMES))
        self.brought = rng.choice(some_tools()["find"]), rng.choice(some_tools()["look"])
        self.ledger = Book(self)
        self.hands: dict[str, Hand] = {}
        self.named: dict[str, Worker] = {}
        """By the names of their actors."""
        self.plans: dict[Tag, str] = {}
        self.waits: dict[GoAhead, Hand] = {}
        self.sent: list[tuple[DispatchCall, Session]] = []
        self.by_ref: dict[Ref, Session] = {}
        self.ended: dict[str, EndedCalls] = {}
        self.sought: dict[Tag, SeekApproval] = {}
        self.asked: dict[Tag, Decide] = {}
        self.stacks: list[ReadStack] = []
        self.fails = False
        self.leaving: set[str] = set()
        self.fault = ""
        self.serial = self.unmade = self.start_failures = 0
        self.questions = WatchedQuestions(self.system, self.problems)
        self.box = Box(self)
        self.kinds = {isolation: self._kind(isolation) for isolation in Isolation}
        seconds = rng.choice((0.0, 0.3, 1.0))
        children: list[ChildSpec[Never]] = [
            ChildSpec("tools", lambda: Supervisor(chance=lambda: 0.0), shutdown_seconds=1.0),
            ChildSpec("dispatcher", self._make, backoff=Backoff(seconds, 2 * seconds)),
        ]
        self.observer = self.system.spawn(lambda: Ear(lambda seen: self.log["observer",].append(seen), int), "observer")
        self.system.spawn(lambda: Supervisor(children, intensity=1000), "root")
        for number in range(3):
            self._new_session(number)
        self.simulation.run_until_idle(0.0)
        self.dispatcher = self.system.ref("root/dispatcher")

    def wrong(self, told: str) -> None:
        """Note it."""
        last = ", ".join(self.deeds[-3:])
        self.problems.append(f"at {self.simulation.now():g}, after {last} (deed {len(self.deeds)}): {told}")

    # -- what there is

    def some_of_them(self) -> tuple[Tool, ...]:
        chosen = self.rng.sample(NAMES, self.rng.choice((1, 2, 3)))
        return tuple(self.rng.choice(some_tools()[name]) for name in chosen)

    def _kind(self, isolation: Isolation) -> WorkerKind:
        is_ahead = self.starts_ahead and isolation is Isolation.PROCESS
        source = (ChildSpec[Never]("source", partial(Source, self)),) if is_ahead else ()
        replaced = (lambda tool: tool) if is_ahead else None
        return WorkerKind(self._hand, *self.model.places[isolation], source, replaced, starts_ahead=is_ahead)

    def _hand(self, reports: CallReports, _pool: str) -> Hand:
        if self.unmade:
            self.unmade -= 1
            error = LookupError("told to")
            worker = self.named[reports.seat.worker.name]
            self.model.due["worker", worker.name].clear()
            self.model.ends(worker, (ExitReason.CRASHED, error))
            raise error
        return Hand(self, reports)

    def _make(self) -> ToolDispatcher:
        if self.start_failures:
            self.start_failures -= 1
            raise OSError("told to")
        self.model.sources = dict(self.current)
        registry = Registry(
            self.current[GIVEN],
            self.policy,
            self.model.budget,
            self.model.most_held,
            self.model.asked_about.__contains__,
        )
        for source in SOURCES[1:]:
            registry.replace(source, self.current[source])
        workers = Workers(self.system.ref("root/tools"), lambda contract: self.kinds[contract.isolation], lambda: 0.0)
        on_server = self._effect if self.model.is_on_server else None
        effects = Effects(self.box, on_server) if self.has_effects else None
        made = Watched(
            registry, self.ledger, workers, self, self.observer,
            max_queued_calls=self.model.most_waiting, effects=effects,
        )  # fmt: skip
        made.play = self
        return made

    def _effect(self, run: RunTool, outbox: Outbox) -> CallEffect:
        if self.fault == "admit":
            self.fault = ""
            raise LookupError("told to")
        made = Faulty(run, outbox)
        made.play = self
        return made

    def _new_session(self, number: int) -> None:
        session = Session(f"s{number}")
        ear = partial(Ear, partial(self._session_hears, session), partial(self._session_ends, session))
        session.ref = self.system.spawn(ear, session.name)
        self.model.sessions[session.name] = session
        self.by_ref[session.ref] = session
        self.ended[session.name] = EndedCalls()

    def session(self) -> Session:
        """One that lives."""
        return self.rng.choice([each for each in self.model.sessions.values() if each.name not in self.leaving])

    # -- what is heard

    def starts(self) -> None:
        """A dispatcher begins."""
        self.model.now = self.simulation.now()
        self.questions.dispatcher_starts()
        self.model.starts()

    def reads(self, message: Any) -> None:
        """The dispatcher takes this message."""
        model = self.model
        model.now = self.simulation.now()
        is_open = isinstance(message, Verdict) and message.tag in self.questions._open
        self.questions.read(message)
        if type(message).__name__ == "_Due":
            model.timer(message.call.sequence)
            return
        due: Any = model.inbox.popleft() if model.inbox else None
        if not self._is_due(message, due):
            self.wrong(f"the dispatcher reads {message!r:.150}, due was {due!r:.150}")
        elif isinstance(message, WorkerState):
            model.heard_state(due[1])
        elif isinstance(message, Down):
            model.heard_down(due[1], due[2])
        elif isinstance(message, Verdict):
            if is_open and message.is_for_request:
                model.keep(self._asker_of(message.tag))
        elif hasattr(message, "reply_to"):
            self._reads_of_session(message, self.by_ref[message.reply_to])
        else:
            self._reads_other(message)

    def _asker_of(self, tag: Tag) -> Session:
        return self.model.sessions[f"s{tag.request_id[1:]}"]

    def _reads_of_session(self, message: Any, session: Session) -> None:
        model = self.model
        if isinstance(message, DispatchCall):
            model.dispatch(message, session)
        elif isinstance(message, OfferTools):
            model.tell(session, message.tag, model.offers(message.mode))
        elif isinstance(message, ConfirmStops):
            for stop in message.stops:
                if isinstance(stop, CancelTool):
                    model.cancel(stop.tag)
            model.tell(session, message.tag, StopsTold(message.tag))

    def _reads_other(self, message: Any) -> None:
        model = self.model
        if isinstance(message, CancelTool):
            model.cancel(message.tag)
        elif isinstance(message, ReplaceTools):
            model.replace(message.source, message.tools)
        elif isinstance(message, EffectCommitted):
            model.committed(message.tag, code_of(message.error))
        elif isinstance(message, ReadStack):
            self._reads_stack(message)
        elif isinstance(message, Crash):
            model.crashes()

    def _is_due(self, message: Any, due: Any) -> bool:
        if isinstance(message, WorkerState):
            return isinstance(due, tuple) and due[0] == "state" and due[1] is self.named[message.seat.worker.name]
        if isinstance(message, Down):
            who = self.named.get(message.ref.name) or self.by_ref.get(message.ref)
            named = isinstance(due, tuple) and due[0] == "down" and due[1] is who
            return named and message.reason is due[2][0]
        if isinstance(message, Verdict) and isinstance(due, tuple):
            return bool(due == ("cannot ask", message.tag)) and not message.granted
        return message is due

    def _reads_stack(self, message: ReadStack) -> None:
        call = self.model.calls.get(message.tag)
        if call is not None and call.worker is not None:
            self.model.tell_worker(call.worker, ("ReadStack", message.tag))
            self.stacks.remove(message)  # a worker may end meanwhile

    def _session_hears(self, session: Session, message: Any) -> None:
        if isinstance(message, ApprovalGranted | ApprovalDenied):
            self.questions.tells(message)
            self.sought.pop(message.tag, None)
            if any(isinstance(each, SeekApproval) and each.question.tag == message.tag for each in self.model.inbox):
                self.say(WithdrawApproval(message.tag))  # it was sent again, to a dispatcher that has not read it yet
        elif isinstance(message, ProgressMade):
            call = self.model.calls.get(message.relay.tag)
            found, due = message.relay.take(), call.progress if call is not None else None
            if call is not None and found != due:
                self.wrong(f"the progress of {call.tag.call_id} is {found}, due is {due}")
            if call is not None:
                call.progress = None
        elif isinstance(message, ToolsOffered):
            self.log[session.name, message.tag].append(offered(message))
        else:
            self.log[session.name, message.tag].append(message)

    def _session_ends(self, session: Session) -> None:
        self.model.ends(session, session.death)
        for key in [key for key in (*self.log, *self.model.due) if key[0] == session.name]:
            self.log[key] = self.model.due[key] = []

    def hand_ends(self, hand: Hand) -> None:
        """A worker has ended, and reads nothing any more."""
        key = "worker", hand.worker.name
        self.log[key], self.model.due[key] = [], []
        self.model.ends(hand.worker, hand.worker.death)

    def hears(self, hand: Hand, message: Any) -> None:
        """A worker takes this message."""
        kind, log = type(message).__name__, self.log["worker", hand.worker.name]
        if isinstance(message, RunCall):
            context = message.context
            log.append((kind, message.run, message.tool, context.is_read_along, context.user_text))
            call = self.model.by_number[message.record.sequence]
            hand.given[call.number] = message
            self._plan(hand, call)
            return
        log.append((kind, message.tag))
        if isinstance(message, ReadStack):
            message.tell("here")
        elif isinstance(message, StopCall | KillCall):
            self._stop(hand, message)

    def _plan(self, hand: Hand, call: Call) -> None:
        plan = self.plans.setdefault(call.tag, self.rng.choice(BREAKS if call.name == self.breaks else PLANS))
        if plan == "back":
            self._give_back(hand, call)
        elif plan != "wait" and self._begin(hand, call):
            if hand.reports.seat.pool.name.startswith("task"):  # its tool has something open where it runs
                self.model.code_begins(call)
                hand.given[call.number].record.code_begins()
            if plan == "ok":
                self._end(hand, call, "well", "printed")
            elif plan == "crash":
                self._end(hand, call, ToolFailure(call.name, FailureCode.CRASHED, "told to"))
            elif plan == "lost":
                self._die(hand, call)

    def _stop(self, hand: Hand, message: StopCall | KillCall) -> None:
        """By its plan: at once with or without where it was, or late, or never."""
        call = self.model.calls.get(message.tag)
        if call is None or call.worker is not hand.worker:
            return
        plan, frames = self.plans.get(call.tag), self.rng.choice(("", "in f"))
        if plan == "hold" and call.begun:
            self._abandon(hand, call)
        elif plan == "hang" and isinstance(message, StopCall):
            return
        elif self.rng.random() < 0.6:
            code = FailureCode.TIMED_OUT if self.rng.random() < 0.2 else FailureCode.TOOL_ERROR
            stopped = ToolFailure(call.name, code, "stopped", frames=frames)
            self._end(hand, call, self.rng.choice((Ending.CANCELLED, stopped, stopped)))

    # -- what a worker does, in a turn of its own

    def _begin(self, hand: Hand, call: Call) -> bool:
        given = hand.given[call.number]
        due, ahead = self.model.begin(hand.worker, call), call.given.go_ahead
        if hand.reports.begin(given.record) is not due:
            self.wrong(f"a worker may begin {call.tag.call_id}: {not due}")
        tag = call.tag
        if due and given.record.must_wait(partial(hand.ref.tell_control, BeginCode(tag))) is not (ahead is not None):
            self.wrong(f"the code of {call.tag.call_id} has to wait: {ahead is None}")
        if due and ahead is not None:
            if ahead.is_given:
                self.model.tell_worker(hand.worker, ("BeginCode", tag))
            else:
                self.waits[ahead] = hand
        return due

    def _end(self, hand: Hand, call: Call, outcome: Outcome, printed: str = "") -> None:
        record, is_process = hand.given[call.number].record, hand.reports.seat.pool.name.startswith("process")
        call.printed_bytes = record.printed_bytes = len(printed) if is_process else 0
        self.model.report(hand.worker, call, outcome, printed)
        hand.reports.end(record, outcome, printed)

    def _give_back(self, hand: Hand, call: Call) -> None:
        self._left(hand, call)
        why = ToolFailure(call.name, FailureCode.OVERLOADED, "~no worker could begin")
        self.model.report(hand.worker, call, why, how="returned")
        hand.reports.give_back(hand.given[call.number].record, "told to")

    def _left(self, hand: Hand, call: Call) -> None:
        if self.rng.random() < 0.3:
            call.left, hand.given[call.number].record.left = hand.worker, hand.reports.seat

    def _not_run(self, hand: Hand, call: Call) -> None:
        hint = "It had no effect. Send it again later."
        why = ToolFailure(call.name, FailureCode.TIMED_OUT, "~was not run: told to", retry_hint=hint)
        self.model.report(hand.worker, call, why, how="returned")
        hand.reports.not_run(hand.given[call.number].record, "told to")

    def _die(self, hand: Hand, call: Call) -> None:
        code = self.rng.choice((FailureCode.CRASHED, FailureCode.CRASHED, FailureCode.TOOL_ERROR))
        error: Exception = WorkerLost(ToolFailure(call.name, code, "it died"), "its last words", call.tag)
        if self.rng.random() < 0.3:
            error = ValueError("a fault of ours")
        hand.worker.death = ExitReason.CRASHED, error
        raise error

    def _abandon(self, hand: Hand, call: Call) -> None:
        key, seat = call.lane.key, hand.reports.seat
        room = 0 if self.rng.random() < 0.8 else seat.room
        holds = (*seat.holds, key)
        self.model.state(hand.worker, room, holds)
        hand.reports.state(room, holds)
        self._end(hand, call, Ending.CANCELLED)

    def _returns(self, hand: Hand) -> None:
        holds = hand.reports.seat.holds[1:]
        room = 0 if holds else hand.worker.pool.room
        self.model.state(hand.worker, room, holds)
        hand.reports.state(room, holds)

    def _no_worker(self, hand: Hand) -> None:
        hand.worker.take(0)
        error = OSError(errno.EAGAIN, "told to")
        for call in tuple(hand.worker.calls):
            failure = ToolFailure(call.name, FailureCode.OVERLOADED, "~no worker could be started")
            self.model.report(hand.worker, call, failure)
        hand.reports.no_worker(error)
        hand.stop()

    # -- the dispatcher hears, and the approver

    def say(self, message: Any) -> None:
        """To the dispatcher."""
        self.model.inbox.append(message)
        self.dispatcher.tell_control(message)

    def seek_again(self) -> None:
        """A session sends its questions to the next dispatcher."""
        for seek in [each for tag, each in self.sought.items() if tag not in self.questions._due]:
            self.say(seek)

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        """As an approver: a question is put to it, which it may have."""
        tag = question.tag
        if tag in self.asked:
            return
        seek, known = self.sought.get(tag), self.model.entries.get(question.name)
        due = seek.tool if seek is not None and seek.tool is not None else known.tool if known is not None else None
        if seek is not None and (asker is not seek.asker or tool is not due):
            self.wrong(f"the approver is asked about {tool} for {asker}, due was {due} for {seek.asker}")
        if self.rng.random() < 0.05:
            self.model.inbox.append(("cannot ask", tag))
            self.questions.put(question)
            self.questions.moot(tag)
            raise OSError("told to")
        self.asked[tag] = decide
        self.questions.put(question)

    def withdraw(self, tag: Tag) -> None:
        """As an approver: it need not answer."""
        self.asked.pop(tag, None)
        self.questions.moot(tag)
        if self.rng.random() < 0.1:
            raise OSError("told to")

    def close(self) -> None:
        """It holds nothing."""


def code_of(error: RuntimeFailure | None) -> FailureCode | None:
    """How a call ends whose commit had this answer."""
    if error is None:
        return None
    return FailureCode.TOOL_ERROR if isinstance(error, ChangeRefused) else FailureCode.OUTCOME_UNKNOWN
