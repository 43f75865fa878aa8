"""Dispatcher, registry and ledger with workers, sessions and approver that do what chance says, beside a model.

    python -m callboard.actors.testing plays calls --seeds 1000

The model (calls_model.py) follows each turn of the dispatcher and of the workers, in whatever order they come, and
says what is due; what was heard is compared whenever nothing is left to do at that time. No model and no request is
played, so that a tool breaks, waits and comes back a thousand times as often as in a simulated run. `play(seed)` says
what is not as promised, one sentence each; the same for the same seed.
"""

from __future__ import annotations

import errno
import random
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
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
from callboard.actors.calls.ledger import CallReports, EndedCalls, Ending, Ledger, Outcome, WorkerState
from callboard.actors.calls.registry import GIVEN, Registry
from callboard.actors.journal.journal_store import ChangeRefused
from callboard.actors.journal.outbox import CommitEffect, EffectCommitted, Outbox
from callboard.actors.journal.transactions import Effects
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
from callboard.actors.kernel.system import cell_of
from callboard.actors.testing import played_answers
from callboard.actors.testing.calls_model import Call, Model, Session, offered, same
from callboard.actors.testing.simulation import SimulatedScheduler, fifo, uniform
from callboard.actors.testing.watched_questions import WatchedQuestions
from callboard.actors.testing.whole_run import left_open
from callboard.actors.tools import Tool, tool
from callboard.actors.tools.progress import CallProgress, ProgressMade
from callboard.actors.workers.call_stacks import ReadStack
from callboard.actors.workers.messages import BeginCode, KillCall, RunCall, StopCall, WorkerKind, WorkerLost
from callboard.protocol.commands import AskApproval, CancelTool, RunTool, WithdrawApproval
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.events import ApprovalDenied, ApprovalGranted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Mode, Policy
from callboard.protocol.tools import (
    Decision,
    Deferred,
    Effect,
    FailureCode,
    Hold,
    Isolation,
    Latency,
    Risk,
    ToolContract,
    ToolFailure,
)

#: Of a call, by chance: what its worker does as it is given it.
PLANS: Final = (*("begin",) * 6, *("ok",) * 3, "wait", "wait", "back", "crash", "lost", "hang", "hold", "hold")
BREAKS: Final = (*("crash",) * 3, *("lost",) * 2, *("hang",) * 2, *("hold",) * 4, "ok", "back")
DEEDS: Final = (
    *("dispatch",) * 10, *("storm",) * 2, *("cancel",) * 3, *("begins",) * 3, *("finish",) * 7, "give_it_back", "dies",
    *("abandons",) * 3, *("thread_returns",) * 3, "no_resources", "leaves", *("go_ahead",) * 2, "crash", "end_session",
    *("replace",) * 2, *("offers",) * 2, "confirm", *("seek",) * 3, *("answer",) * 3, "withdraw", *("commit",) * 2,
    "stack", "progress", "home", "again", *("wait",) * 5,
)  # fmt: skip
#: Which are equal is not for the text to say.
ARGUMENTS: Final = ('{"a":1,"b":2}', '{"b": 2, "a": 1}', '{"a":1}', "{nothing")
NAMES: Final = ("look", "write", "slow", "find", "keep")
SOURCES: Final = (GIVEN, "server")


class Crash(Struct, frozen=True):
    """A message that the dispatcher does not survive."""


class Do(Struct, frozen=True):
    """A worker does this in a turn of its own."""

    run: Callable[[Hand], object]


def _never_run() -> str:
    raise AssertionError("a play does not run its tools")


@cache
def _tools() -> dict[str, tuple[Tool, ...]]:
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

    play: Play

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

    def __init__(self, play: Play, reports: CallReports) -> None:
        self.play, self.reports = play, reports
        self.given: dict[int, RunCall] = {}

    def on_start(self) -> None:
        self.worker = self.play.model.workers[self.name]
        self.play.hands[self.name] = self
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

    def __init__(self, play: Play) -> None:
        self._play = play

    def on_receive(self, message: Any) -> None:
        self._play.log["source", self.name.split("/")[2]].append(message)


class Box(Outbox):
    """What is to be committed is written down, and answered later."""

    def __init__(self, play: Play) -> None:
        super().__init__(wall_clock=lambda: 0.0)
        self._play = play

    def hand_over(self, what: Any, *, is_last: bool = False) -> None:
        if self._play.model.is_full and not is_last:
            raise RuntimeFailure("told to")
        assert isinstance(what, CommitEffect)
        outcome: Any = what.change.outcome
        self._play.log["outbox",].append((what.change.tag, outcome.content, outcome.output))


class Play:
    """One play. `problems`: what is not as promised."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"calls {seed}")
        self.simulation = SimulatedScheduler(fifo if rng.random() < 0.5 else uniform(seed))
        self.system = ActorSystem(self.simulation)
        self.problems: list[str] = []
        self.deeds: list[str] = []
        self.log: defaultdict[tuple[object, ...], list[Any]] = defaultdict(list)
        self.policy = Policy({Risk.READ: Decision.ALLOW, Risk.WRITE: Decision.ASK, Risk.EXECUTE: Decision.DENY})
        self.has_effects, self.starts_ahead = rng.random() < 0.8, rng.random() < 0.5
        places = {
            Isolation.PROCESS: (1, 2), Isolation.THREAD: (1, rng.choice((1, 3, 12))), Isolation.TASK: (3, 2),
            Isolation.CALLER: (4, 1),
        }  # fmt: skip
        self.model = Model(
            rng.choice((5, 5, 5, 2, None)), rng.choice((8, 8, 2, 3, None)), rng.choice((2, 3, 100)), self.policy, places,
            has_effects=self.has_effects, starts_ahead=self.starts_ahead,
        )  # fmt: skip
        self.model.asked_about = {ToolName(rng.choice(NAMES))} if rng.random() < 0.3 else set()
        self.current = {source: self._some_tools() for source in SOURCES}
        self.breaks = rng.choice((None, *NAMES))
        self.brought = rng.choice(_tools()["find"]), rng.choice(_tools()["look"])
        self.ledger = Ledger()
        self.hands: dict[str, Hand] = {}
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
        self.serial = self.unmade = self.start_failures = 0
        self.simulation.at_rest = self.at_rest
        self.questions = WatchedQuestions(self.system, self.problems)
        self.box = Box(self)
        self.kinds = {isolation: self._kind(isolation) for isolation in Isolation}
        seconds = rng.choice((0.0, 0.3, 1.0))
        children = [
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

    def _some_tools(self) -> tuple[Tool, ...]:
        chosen = self.rng.sample(NAMES, self.rng.choice((1, 2, 3)))
        return tuple(self.rng.choice(_tools()[name]) for name in chosen)

    def _kind(self, isolation: Isolation) -> WorkerKind:
        is_ahead = self.starts_ahead and isolation is Isolation.PROCESS
        source = (ChildSpec[Never]("source", partial(Source, self)),) if is_ahead else ()
        replaced = (lambda tool: tool) if is_ahead else None
        return WorkerKind(self._hand, *self.model.places[isolation], source, replaced, starts_ahead=is_ahead)

    def _hand(self, reports: CallReports, _pool: str) -> Hand:
        if self.unmade:
            self.unmade -= 1
            error = LookupError("told to")
            name = reports.seat.worker.name
            self.model.due["worker", name].clear()
            self.model.ends(self.model.workers[name], (ExitReason.CRASHED, error))
            raise error
        return Hand(self, reports)

    def _make(self) -> ToolDispatcher:
        if self.start_failures:
            self.start_failures -= 1
            raise OSError("told to")
        self.model.sources = dict(self.current)
        registry = Registry(
            self.current[GIVEN], self.policy, self.model.budget, self.model.most_held,
            self.model.asked_about.__contains__,
        )
        for source in SOURCES[1:]:
            registry.replace(source, self.current[source])
        workers = Workers(self.system.ref("root/tools"), lambda contract: self.kinds[contract.isolation], lambda: 0.0)
        effects = Effects(self.box) if self.has_effects else None
        made = Watched(
            registry, self.ledger, workers, self, self.observer,
            max_queued_calls=self.model.most_waiting, effects=effects,
        )  # fmt: skip
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
        due = model.inbox.popleft() if model.inbox else None
        if not self._is_due(message, due):
            self.wrong(f"the dispatcher reads {message!r:.150}, due was {due!r:.150}")
        elif isinstance(message, WorkerState):
            model.heard_state(due[1])
        elif isinstance(message, Down):
            model.heard_down(due[1], due[2])
        elif isinstance(message, DispatchCall):
            model.dispatch(message, self.by_ref[message.reply_to])
        elif isinstance(message, CancelTool):
            model.cancel(message.tag)
        elif isinstance(message, ConfirmStops):
            for stop in message.stops:
                if isinstance(stop, CancelTool):
                    model.cancel(stop.tag)
            model.tell(self.by_ref[message.reply_to], message.tag, StopsTold(message.tag))
        elif isinstance(message, OfferTools):
            model.offer_tools(self.by_ref[message.reply_to], message.tag, message.mode)
        elif isinstance(message, ReplaceTools):
            model.replace(message.source, message.tools)
        elif isinstance(message, EffectCommitted):
            model.committed(message.tag, code_of(message.error))
        elif isinstance(message, ReadStack):
            self._reads_stack(message)
        elif isinstance(message, Verdict) and is_open and message.is_for_request:
            model.keep(next(each for each in model.sessions.values() if each.name[1:] == message.tag.request_id[1:]))
        elif isinstance(message, Crash):
            model.crashes()

    def _is_due(self, message: Any, due: Any) -> bool:
        if isinstance(message, WorkerState):
            return isinstance(due, tuple) and due[0] == "state" and due[1].name == message.seat.worker.name
        if isinstance(message, Down):
            named = isinstance(due, tuple) and due[0] == "down" and due[1].name == message.ref.name
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
        key = "worker", hand.name
        self.log[key], self.model.due[key] = [], []
        self.model.ends(hand.worker, hand.worker.death)

    def hears(self, hand: Hand, message: Any) -> None:
        """A worker takes this message."""
        kind, log = type(message).__name__, self.log["worker", hand.name]
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

    # -- deeds

    def _at_hand(self, *states: str, begun: bool | None = None) -> tuple[Hand, Call] | None:
        found = [
            (self.hands[call.worker.name], call)
            for call in self.model.calls.values()
            if call.worker is not None and call.worker.is_alive and call.worker.name in self.hands
            if call.number in self.hands[call.worker.name].given
            if (not states or call.state in states) and begun in (None, call.begun)
        ]
        return self.rng.choice(found) if found else None

    def _do(self, what: Callable[[Hand, Call], object], *states: str, begun: bool | None = None) -> None:
        """Have a worker do something about a call of its own, if it still has it by then."""
        if (found := self._at_hand(*states, begun=begun)) is None:
            return
        hand, call = found

        def run(hand: Hand) -> None:
            if call.worker is hand.worker and (not states or call.state in states) and begun in (None, call.begun):
                what(hand, call)

        hand.ref.tell_control(Do(run))

    def say(self, message: Any) -> None:
        """To the dispatcher."""
        self.model.inbox.append(message)
        self.dispatcher.tell_control(message)

    def dispatch(self, name: str | None = None, seconds: float | None = None, plan: str | None = None) -> None:
        """A session sends a call."""
        rng, session = self.rng, self.session()
        self.serial += 1
        step = 1 + self.serial // 12
        tag = Tag(RequestId(f"r{session.name[1:]}"), MessageId("m"), step, CallId(f"c{self.serial}"))
        known = [entry.tool for key, entry in self.model.entries.items() if not isinstance(key, Tool)]
        made = rng.choice(self.brought) if name is None and rng.random() < 0.15 else None
        chosen = made or next((each for each in known if each.name == name), None) or rng.choice((*known, *self.brought))
        contract = chosen.contract
        if seconds is None:
            seconds = rng.choice((contract.timeout_seconds, contract.timeout_seconds, 0.3, 20.0, 0.0, -0.1))
        seen = None
        if rng.random() < 0.3:
            shown = rng.choice((chosen, *_tools()[chosen.name]))
            seen = ToolOffer(shown.definition, shown.contract)
        ahead = None
        if contract.effect is not Effect.REPEAT and rng.random() < 0.4:
            ahead = GoAhead()
            ahead.is_given = rng.random() < 0.3
        run = RunTool(
            tag, chosen.name if made is not None or rng.random() < 0.97 else ToolName("none"), "{}", self.simulation.now() + seconds,
            f"effect {self.serial}", hold=rng.choice((Hold.NONE, Hold.NONE, Hold.READING)),
        )  # fmt: skip
        message = DispatchCall(
            run, f"words {self.serial}", session.ref, Context() if rng.random() < 0.5 else None, rng.random() < 0.5,
            self.ended[session.name], made, seen, ahead,
        )  # fmt: skip
        if plan is not None:
            self.plans[tag] = plan
        self.sent.append((message, session))
        self.say(message)

    def act(self) -> None:
        """One random deed."""
        what = self.rng.choice(DEEDS)
        self.deeds.append(what)
        getattr(self, "dispatch" if what == "dispatch" else f"_{what}")()

    def _storm(self) -> None:
        """Many calls of one tool, most of which break it."""
        name = self.breaks or self.rng.choice(NAMES)
        plan = self.rng.choice((None, "crash", "lost", "hang", "hold"))
        for _ in range(self.rng.choice((2, 4, 8))):
            self.dispatch(name, self.rng.choice((0.3, 0.3, 5.0)), plan)

    def _again(self) -> None:
        """A call is sent once more, by its session or by another one."""
        if self.sent:
            message, session = self.rng.choice(self.sent[-6:])
            if self.rng.random() < 0.2:
                session = self.session()
                message = replace(message, reply_to=session.ref, ended=self.ended[session.name])
            self.say(message)

    def _tag(self) -> Tag:
        """Of a call, most often an open one."""
        tags = list(self.model.calls) if self.rng.random() < 0.8 else []
        tags = tags or [message.run.tag for message, _ in self.sent[-9:]]
        return self.rng.choice(tags or [Tag(RequestId("r0"), MessageId("m"), 1, CallId("none"))])

    def _cancel(self) -> None:
        self.say(CancelTool(self._tag()))

    def _confirm(self) -> None:
        session = self.session()
        stops: list[CancelTool | WithdrawApproval] = [CancelTool(self._tag())]
        stops += [self._withdrawn(tag) for tag in tuple(self.sought)[:1]]
        self.rng.shuffle(stops)
        tag = Tag(RequestId(session.name), MessageId("m"), 0, CallId(""))
        self.say(ConfirmStops(tag, session.ref, tuple(stops)))

    def _withdrawn(self, tag: Tag) -> WithdrawApproval:
        self.sought.pop(tag, None)
        return WithdrawApproval(tag)

    def _begin_later(self, hand: Hand, call: Call) -> None:
        self._begin(hand, call)

    def _begins(self) -> None:
        self._do(self._begin_later, begun=False)

    def _finish(self) -> None:
        code = self.rng.choice(tuple(FailureCode))
        hint = self.rng.choice(("", "", "ask me"))
        outcome: Outcome = self.rng.choice(("well", "well", Deferred(5.0, "later"), Ending.CANCELLED))
        is_twice = self.rng.random() < 0.1

        def end(hand: Hand, call: Call) -> None:
            failed = ToolFailure(call.name, code, "told to", retry_hint=hint)
            for _ in range(1 + is_twice):
                self._end(hand, call, failed if self.fails else outcome, self.rng.choice(("", "it printed")))

        self.fails = self.rng.random() < 0.5
        self._do(end, begun=None if self.rng.random() < 0.1 else True)

    def _give_it_back(self) -> None:
        self._do(self.rng.choice((self._give_back, self._give_back, self._not_run)))

    def _dies(self) -> None:
        if self.rng.random() < 0.2:
            self.unmade = self.rng.choice((1, 1, 6))
        self._do(self._die)

    def _abandons(self) -> None:
        self._do(self._abandon, "ending", "killed", begun=True)

    def _one(self, what: Callable[[Hand], object]) -> None:
        """A worker does this, with or without calls."""
        if alive := [each for each in self.hands.values() if each.worker.is_alive]:
            self.rng.choice(alive).ref.tell_control(Do(what))

    def _thread_returns(self) -> None:
        held = [each for each in self.hands.values() if each.worker.is_alive and each.worker.holds]
        if held:
            hand = self.rng.choice(held)
            hand.ref.tell_control(Do(lambda hand: self._returns(hand) if hand.worker.holds else None))

    def _no_resources(self) -> None:
        self._one(self._no_worker)

    def _leaves(self) -> None:
        """It is killed, or stops as if it were done."""
        alive = [each for each in self.hands.values() if each.worker.is_alive]
        if not alive:
            return
        hand = self.rng.choice(alive)
        cell = cell_of(hand.ref)

        def kill() -> None:
            if hand.worker.is_alive:
                hand.worker.death = ExitReason.KILLED, None
                cell.kill()

        if self.rng.random() < 0.5:
            cell.executor.call_soon(kill)
        else:
            hand.ref.tell_control(Do(lambda hand: hand.stop()))

    def _go_ahead(self) -> None:
        found = [call.given.go_ahead for call in self.model.calls.values() if call.given.go_ahead is not None]
        if waiting := [each for each in found if not each.is_given]:
            ahead = self.rng.choice(waiting)
            if (hand := self.waits.get(ahead)) is not None:
                tag = next(tag for tag, call in self.model.calls.items() if call.given.go_ahead is ahead)
                self.model.tell_worker(hand.worker, ("BeginCode", tag))
            ahead.give()

    def _crash(self) -> None:
        self.start_failures = self.rng.choice((0, 0, 0, 1, 2))
        self.say(Crash())

    def _end_session(self) -> None:
        """With its calls cancelled, in time or not; another one comes in its place."""
        session = self.session()
        for tag in [tag for tag, seek in self.sought.items() if seek.reply_to is session.ref]:
            self.say(self._withdrawn(tag))
        for call in [call for call in self.model.calls.values() if call.session is session]:
            if self.rng.random() < 0.8:
                self.say(CancelTool(call.tag))
        self.leaving.add(session.name)
        session.ref.stop()
        self._new_session(len(self.model.sessions))

    def _replace(self) -> None:
        source = self.rng.choice(SOURCES)
        tools = self._some_tools()
        if self.rng.random() < 0.3:
            tools = self.current[source][1:]
        elif self.rng.random() < 0.5:
            tools = (*self.current[source][1:], *tools)
        unique = {each.name: each for each in tools}
        self.current[source] = tuple(unique.values())
        self.say(ReplaceTools(source, self.current[source]))

    def _offers(self) -> None:
        session = self.session()
        tag = Tag(RequestId(session.name), MessageId("m"), 0, CallId("offers"))
        self.say(OfferTools(tag, session.ref, self.rng.choice((None, *Mode))))

    def _commit(self) -> None:
        handed = [call.tag for call in self.model.calls.values() if call.handed is not None]
        if handed:
            error = self.rng.choice((None, None, ChangeRefused("told to"), RuntimeFailure("told to")))
            self.say(EffectCommitted(self.rng.choice(handed), error))
        self.model.is_full = self.rng.random() < 0.2

    def _stack(self) -> None:
        message = ReadStack(self._tag(), Future())
        self.stacks.append(message)
        self.say(message)

    def _progress(self) -> None:
        def report(hand: Hand, call: Call) -> None:
            if call.session.is_alive:
                for said in ("one", "two"):
                    call.progress = CallProgress(said, None)
                    hand.given[call.number].record.report(call.progress)

        self._do(report, begun=True)

    def _home(self) -> None:
        """Its tool has something open where it runs."""

        def begins(hand: Hand, call: Call) -> None:
            self.model.code_begins(call)
            hand.given[call.number].record.code_begins()

        self._do(begins, begun=True)

    def _wait(self) -> None:
        """Until something is due, or a while."""
        rng, model, now = self.rng, self.model, self.simulation.now()
        due = [call.due for call in model.calls.values()]
        due += [entry.health.until for entry in model.entries.values() if entry.health.until is not None]
        due = [each for each in due if each > now]
        kinds = (0.01, 0.2, min(due, default=now) - now, rng.uniform(0, 3), rng.choice((15.0, 61.0)))
        self.go_on(now + rng.choice(kinds))

    def go_on(self, until: float) -> None:
        """Until this time."""
        self.simulation.run_until_idle(until)

    # -- the approver

    def seek_again(self) -> None:
        """A session sends its questions to the next dispatcher."""
        for seek in self.sought.values():
            self.say(seek)

    def _seek(self) -> None:
        session, rng = self.session(), self.rng
        self.serial += 1
        tag = Tag(RequestId(f"r{session.name[1:]}"), MessageId("m"), 1, CallId(f"q{self.serial}"))
        arguments = rng.choice(ARGUMENTS)
        question = AskApproval(tag, ToolName(rng.choice(NAMES[:2])), arguments, Risk.WRITE, rule=f"rule {self.serial}")
        made = rng.choice(self.brought) if rng.random() < 0.2 else None
        seek = self.sought[tag] = SeekApproval(question, session.ref, Context(), made)
        self.say(seek)

    def _answer(self) -> None:
        if not self.asked:
            return
        rng = self.rng
        tag = rng.choice(list(self.asked))
        decide = self.asked.pop(tag)
        self.questions.moot(tag)
        granted, is_all = rng.random() < 0.6, rng.random() < 0.3
        arguments = '{"c":1}' if granted and not is_all and rng.random() < 0.3 else ""
        hold = rng.choice((Hold.NONE, Hold.READING)) if granted else Hold.NONE
        reason = "" if granted else f"since {self.serial}"
        verdict = Verdict(tag, granted, f"by {self.serial}", reason, f"rule {self.serial}", arguments, False, hold, is_all)
        self.model.inbox.append(verdict)
        decide(verdict)

    def _withdraw(self) -> None:
        if self.sought:
            self.say(self._withdrawn(self.rng.choice(list(self.sought))))

    def ask(self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None) -> None:
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

    # -- at rest

    def at_rest(self) -> None:
        """The clock is about to move."""
        model = self.model
        model.now = self.simulation.now()
        if self.problems:
            return
        for told in model.wrong():
            self.wrong(told)
        for key in {**self.log, **model.due}:
            found, due = self.log[key], model.due[key]
            if len(found) != len(due) or not all(map(same, found, due)):
                self.wrong(f"{'/'.join(map(str, key))!s:.60} heard {found!r:.600}, due was {due!r:.600}")
        self.log.clear()
        model.due.clear()
        self.questions.at_rest()
        self._compare_pools()
        self._compare_stacks()

    def _compare_pools(self) -> None:
        if not self.model.is_up:
            return
        there = {name for name in self.system._cells if name.startswith("root/tools/")}
        due = {f"root/tools/{pool.name}" for pool in self.model.pools.values() if pool.is_started}
        due |= {f"{name}/source" for name in due if self.starts_ahead and name.startswith("root/tools/process")}
        due |= {worker.name for worker in self.model.workers.values()}
        if there != due:
            self.wrong(f"of pools and workers there are {sorted(there - due)} too many, and {sorted(due - there)} missing")

    def _compare_stacks(self) -> None:
        for message in [each for each in self.stacks if self.model.is_up]:
            self.stacks.remove(message)
            if not message.answer.done():
                call = self.model.calls.get(message.tag)
                self.wrong(f"nobody has said where {message.tag.call_id} is ({call and call.state})")

    def end(self) -> None:
        """All comes to its end, and nothing is left."""
        for tag in tuple(self.sought):
            self.say(self._withdrawn(tag))
        for session in self.model.sessions.values():
            if session.is_alive:
                session.ref.stop()
        for tag in tuple(self.model.calls):
            self.say(CancelTool(tag))
        self.go_on(self.simulation.now() + 60.0)
        if self.problems:
            return
        left = [*left_open(self.ledger)]
        left += [f"the tools of {each}" for each in self.ledger.brought]
        left += [f"the lane of {each}" for each in self.ledger.lanes if each not in self.model.lanes]
        self.problems += (f"in the end there is still: {each}" for each in left)


def code_of(error: RuntimeFailure | None) -> FailureCode | None:
    """How a call ends whose commit had this answer."""
    if error is None:
        return None
    return FailureCode.TOOL_ERROR if isinstance(error, ChangeRefused) else FailureCode.OUTCOME_UNKNOWN


def play_calls(seed: int) -> list[str]:
    """Dispatcher, registry and ledger."""
    made = Play(seed)
    for _ in range(45):
        made.act()
        if made.rng.random() < 0.6:
            made.go_on(made.simulation.now() + made.rng.choice((0.0, 0.0, 0.02)))
        if made.problems:
            return made.problems[:1]
    made.end()
    return made.problems[:1]


def play(seed: int) -> list[str]:
    """What is not as promised, in a play of the calls and in one of the approver."""
    return [*play_calls(seed), *played_answers.play(seed)]
