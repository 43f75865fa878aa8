"""Calls of tools in a simulated run, followed from outside: what dispatcher, ledger and pools owe each of them.

It hears what the dispatcher reads, what the played workers are told and do, and what the sessions are told. The clock
of a simulation moves when nothing is left to do, so `at_rest` asks then: what could have been done and was not?
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.calls.dispatcher import ABANDON_SECONDS, ConfirmStops, DispatchCall
from callboard.actors.calls.ledger import MAX_GIVEN, Ending, Outcome
from callboard.actors.journal.outbox import EffectCommitted
from callboard.actors.kernel import Down, Ref
from callboard.actors.kernel.cell import State
from callboard.actors.kernel.system import ActorSystem
from callboard.actors.testing.faults import Faults
from callboard.protocol import events
from callboard.protocol.commands import CancelTool, RunTool
from callboard.protocol.events import Event
from callboard.protocol.ids import RequestId, Tag, ToolName
from callboard.protocol.limits import COMMIT_SECONDS, MAX_CALL_SENDS, TOOL_GRACE_SECONDS
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import Deferred, Effect, FailureCode, Isolation, ToolContract, ToolFailure

#: Float sums of virtual times, in seconds.
EPSILON: Final = 1e-6
#: Threads and loops of a pool, those that are held included.
MAX_WORKERS: Final = 64
#: A tool that breaks more often within the window is withdrawn, unless that is a small share of its calls.
FAILURE_BUDGET: Final = 5
FAILURE_WINDOW_SECONDS: Final = 60.0
TOLERATED_SHARE: Final = 0.1
WITHDRAWN_SECONDS: Final = 30.0
#: Threads that ended calls of a tool may hold before it is withdrawn.
MAX_HELD_THREADS: Final = 8
#: Calls that were given and had not ended when others broke.
MAX_AT_ONCE: Final = 16
_LOOPS: Final = (Isolation.TASK, Isolation.CALLER)
_ENDS: Final = (
    events.ToolCallCompleted,
    events.ToolCallFailed,
    events.ToolCallTimedOut,
    events.ToolCallCancelled,
    events.ToolCallDeferred,
)


class PlayedWorker(Protocol):
    """What is looked at of a worker."""

    pool: str

    @property
    def room_left(self) -> int:
        """Calls that it takes now."""


class Life(Struct, eq=False):
    """One call, from when the dispatcher first reads it."""

    run: RunTool
    given: DispatchCall
    """As the dispatcher read it first."""
    number: int
    """In the order in which the dispatcher read them."""
    was_full: bool
    """As many calls as may wait for their turn with its tool were waiting already."""
    given_at: float
    contract: ToolContract
    deaths_before: int
    """Workers of its pool of whose end the dispatcher had heard by then."""
    worker: PlayedWorker | None = None
    workers: int = 0
    """That had it so far."""
    first_worker_at: float | None = None
    begun: bool = False
    """A worker has said that it begins."""
    was_begun: bool = False
    """One of its workers has."""
    ran: bool = False
    """The tool's code began."""
    was_told_begun: bool = False
    cancelled_at: float | None = None
    taken_at: float = 0.0
    """When its worker was given it."""
    stopped_at: float | None = None
    killed_at: float | None = None
    reported: tuple[Outcome, str] | None = None
    """What its worker said last: how it ended, and what the tool printed."""
    commits: bool = False
    """Its outcome is committed together with what it wrote: it keeps its place until that is done."""
    late_since: float | None = None
    """When it was first seen that its commit waits beyond its deadline."""
    lost: str = ""
    """How its last worker was lost with it."""
    last_words: str | None = None
    """What its tool had printed when its worker died with it."""
    told: Event | None = None
    """The end that its session heard."""
    is_given_up: bool = False
    """Its session waits for it no longer, as too many dispatchers were lost."""

    @property
    def is_open(self) -> bool:
        """It has not ended, as far as can be seen."""
        return self.told is None and self.reported is None


class WatchedCalls:
    """Of one process. `problems`: what was wrong, one sentence each, with the request's id in front."""

    def __init__(
        self, system: ActorSystem, faults: Faults, offers: Iterable[ToolOffer], problems: list[str] | None = None
    ) -> None:
        self._system = system
        self._faults = faults
        self._contracts: Mapping[ToolName, ToolContract] = {
            offer.definition.name: offer.contract for offer in offers if not offer.contract.is_outside
        }
        self.problems = [] if problems is None else problems
        self.lives: dict[Tag, Life] = {}
        self._read: set[Tag] = set()
        """Those that a dispatcher has read."""
        self._open: dict[Tag, Life] = {}
        """Those that may owe something."""
        self._workers: dict[str, dict[PlayedWorker, None]] = {}
        """Alive, by pool."""
        self._bad_ends: Counter[ToolName] = Counter()
        """Crashes and hangs of each tool, by any of which it may be withdrawn."""
        self._breaks: dict[ToolName, list[tuple[float, int]]] = {}
        """When code that had begun crashed or hung, and how many calls had been given by then."""
        self._withdrawn_at: dict[ToolName, float] = {}
        self.deaths: Counter[str] = Counter()
        """Workers that have ended, by pool: a call may have been on its way to each."""
        self._heard_of: defaultdict[str, set[Ref]] = defaultdict(set)
        """Those of whose end a dispatcher has heard."""
        self._freed_at: dict[str, float] = {}
        """When a call last ended, by pool and by tool."""
        self.has_lost_pools = False
        """A supervisor of workers has crashed: calls may have been on their way to workers that never were."""
        self._unseen_until = 0.0
        """Until then calls may have places that are not seen: their sessions are gone."""
        self.dispatchers = 0
        """Incarnations that have begun."""

    def _wrong(self, life: Life, rule: str, told: str) -> None:
        tag = life.run.tag
        call = f"call {tag.step}/{tag.call_id} of {life.run.name}"
        self.problems.append(f"{tag.request_id} {rule}: {call}, at {self._system.now():g}: {told}")

    # -- what the dispatcher reads

    def read(self, message: object) -> None:
        """The dispatcher takes this message."""
        if isinstance(message, DispatchCall):
            self._read.add(message.run.tag)
            self._given(message)
        elif isinstance(message, CancelTool):
            life = self.lives.get(message.tag)
            if life is not None and life.cancelled_at is None:
                life.cancelled_at = self._system.now()
        elif isinstance(message, ConfirmStops):
            for stop in message.stops:
                self.read(stop)
        elif isinstance(message, Down):
            self._heard_of[message.ref.name.rpartition("/")[0]].add(message.ref)
        elif isinstance(message, EffectCommitted):
            life = self.lives.get(message.tag)
            if life is not None and life.commits:
                self._unseated(life)

    def _given(self, message: DispatchCall) -> None:
        tag, run = message.run.tag, message.run
        contract = self._contracts.get(run.name)
        if contract is None or tag in self.lives:
            return
        waiting = sum(1 for each in self._open.values() if each.run.name == run.name and each.worker is None)
        is_full = waiting >= self._faults.max_queued_calls
        pool = _pool_name(contract)
        ended = min(len(self._heard_of[pool]), self.deaths[pool])
        life = Life(run, message, len(self.lives), is_full, self._system.now(), contract, ended)
        self.lives[tag] = self._open[tag] = life

    # -- what workers are told and do

    def arrives(self, worker: PlayedWorker) -> None:
        """A worker is there."""
        workers = self._workers.setdefault(worker.pool, {})
        workers[worker] = None
        pool = self._pool_of(worker.pool)
        if pool is not None and len(workers) > pool[1]:
            self.problems.append(f"pool: {worker.pool} has {len(workers)} workers, {pool[1]} are the most")

    def dies(self, worker: PlayedWorker, printed: str) -> None:
        """It is about to crash, and says so."""
        for life in self._open.values():
            if life.worker is worker and life.reported is None:
                life.last_words = printed

    def leaves(self, worker: PlayedWorker) -> None:
        """It is gone, with the calls that it has."""
        self._workers.get(worker.pool, {}).pop(worker, None)
        self._freed_at[worker.pool] = self._system.now()
        self.deaths[worker.pool] += 1
        for life in self._open.values():
            if life.worker is worker and life.reported is None:
                life.lost = "it ran" if life.ran else "it began" if life.begun else "not begun"
                self._unseated(life)

    def _unseated(self, life: Life) -> None:
        now = self._system.now()
        if life.worker is not None:
            self._freed_at[life.worker.pool] = self._freed_at[life.run.name] = now
        life.worker, life.begun = None, False
        life.stopped_at = life.killed_at = None if life.lost == "not begun" else life.stopped_at

    def taken(self, worker: PlayedWorker, run: RunTool) -> None:
        """A worker is given a call."""
        life = self.lives.get(run.tag)
        if life is None:
            self.problems.append(f"{run.tag.request_id} given: a worker has a call that was not given: {run.tag}")
            return
        now = self._system.now()
        life.worker, life.lost, life.last_words = worker, "", None
        life.workers += 1
        life.taken_at = now
        if life.first_worker_at is None:
            life.first_worker_at = now
        self._true_order(life, run)
        if self._is_withdrawn(life):
            self._wrong(life, "withdrawn", f"its tool has broken too often by {self._withdrawn_at[run.name]:g}")
        of_tool = self._running(run.name) - self._late_commits(run.name)
        if of_tool > life.contract.concurrency and life.is_open:
            self._wrong(life, "concurrency", f"{of_tool} calls of its tool run, {life.contract.concurrency} may")
        if life.workers > MAX_GIVEN:
            self._wrong(life, "given", f"it is at worker number {life.workers}, {MAX_GIVEN} are the most")
        if life.told is not None:
            self._wrong(life, "given", f"it has ended as {type(life.told).__name__}, and a worker is given it")

    def _true_order(self, life: Life, run: RunTool) -> None:
        """A worker has what the session has said, but for a deadline that comes sooner."""
        asked = life.run
        if run.deadline_at > asked.deadline_at or replace(run, deadline_at=asked.deadline_at) != asked:
            self._wrong(life, "order", f"its worker is told {run}, its session said {asked}")

    def held(self, worker: PlayedWorker, tag: Tag, *, kill: bool = False) -> None:
        """A worker is told to stop a call, or to kill it."""
        life, now = self.lives.get(tag), self._system.now()
        if life is None or life.worker is not worker:
            return
        is_due = life.cancelled_at is not None or now >= life.run.deadline_at - EPSILON
        if not is_due:
            self._wrong(life, "stop", f"it is stopped, and was to run until {life.run.deadline_at:g}")
        if not kill:
            if life.stopped_at is not None:
                self._wrong(life, "stop", f"it is told to stop a second time, after {life.stopped_at:g}")
            life.stopped_at = now
            return
        # From when it was due: a loop that is held up may let a worker read both at one moment.
        due = life.run.deadline_at if life.cancelled_at is None else min(life.cancelled_at, life.run.deadline_at)
        too_soon = life.stopped_at is None or now < due + TOOL_GRACE_SECONDS - EPSILON
        if too_soon and life.taken_at < now:  # else all of it has waited for the worker to be there
            self._wrong(life, "grace", f"it is killed, and was told to stop at {life.stopped_at}")
        life.killed_at = now

    def begins(self, tag: Tag, *, may: bool) -> None:
        """A worker says that a call begins, and is told whether it may."""
        life = self.lives[tag]
        if may:
            life.begun = life.was_begun = True
            return
        life.reported = life.reported or (Ending.CANCELLED, "")
        self._unseated(life)
        if life.told is None and life.cancelled_at is None and self._system.now() < life.run.deadline_at:
            self._wrong(life, "given", "its worker may not begin it")

    def runs(self, tag: Tag) -> None:
        """The tool's code begins."""
        if (life := self.lives.get(tag)) is not None:
            life.ran = True

    def gives_back(self, tag: Tag) -> None:
        """Its worker cannot begin it."""
        life = self.lives[tag]
        life.lost = "not begun"
        self._unseated(life)

    def ends(self, tag: Tag, outcome: Outcome, printed: str) -> None:
        """Its worker says how it ended."""
        life = self.lives.get(tag)
        if life is None or life.reported is not None:
            return
        life.reported = outcome, printed
        life.commits = self._is_transaction(life) and isinstance(outcome, str) and life.stopped_at is None
        if not life.commits:
            self._unseated(life)

    def _is_transaction(self, life: Life) -> bool:
        return life.contract.effect is Effect.TRANSACTION and self._faults.journal is not None

    # -- what the session is told

    def tells(self, event: Event) -> None:
        """Its session hears an event of a call."""
        life = self.lives.get(event.tag)
        if life is None:
            return
        if isinstance(event, events.ToolCallStarted):
            if not life.was_begun:
                self._wrong(life, "started", "its session hears that it began, and no worker has begun it")
            life.was_told_begun = True
        elif isinstance(event, _ENDS):
            self._told_end(life, event)

    def _told_end(self, life: Life, event: Event) -> None:
        if self._gives_up(life, event):
            life.is_given_up = True
            return
        first = life.told
        if isinstance(first, events.ToolCallDeferred) or first is event or first == event:
            return  # what comes from outside counts then; or it is told again
        if first is not None:
            if not life.is_given_up:
                self._wrong(life, "end", f"it ended as {first}, and then as {event}")
            return
        why = _CAUSES[type(event)](self, life, event)
        if why:
            self._wrong(life, "end", f"its session hears {_shown(event)}, {why}")
        life.told = event
        if life.commits:
            self._unseated(life)
        self._judge(life, event)
        self._freed_at[life.run.name] = self._system.now()

    def _judge(self, life: Life, event: Event) -> None:
        """Does it speak against its tool, which is withdrawn for a while when it breaks too often?"""
        name, now = life.run.name, self._system.now()
        code = event.failure.code if isinstance(event, events.ToolCallFailed) else None
        if not isinstance(event, events.ToolCallTimedOut) and code not in _BREAKS:
            return
        self._bad_ends[name] += 1
        if life.ran:
            surely = self._breaks.setdefault(name, [])
            surely.append((now, len(self.lives)))
            recent = [given for at, given in surely if at > now - FAILURE_WINDOW_SECONDS]
            calls = len(self.lives) - recent[0] + MAX_AT_ONCE
            if len(recent) > FAILURE_BUDGET and len(recent) > TOLERATED_SHARE * calls:
                self._withdrawn_at.setdefault(name, now)

    def _is_withdrawn(self, life: Life) -> bool:
        """Surely: since an earlier moment, and for no longer than a tool is at the least."""
        since = self._withdrawn_at.get(life.run.name)
        return since is not None and since < self._system.now() < since + WITHDRAWN_SECONDS

    def dispatcher_starts(self) -> None:
        """It knows nothing of how tools have fared."""
        self.dispatchers += 1
        self._bad_ends.clear()
        self._breaks.clear()
        self._withdrawn_at.clear()

    def _completed(self, life: Life, event: events.ToolCallCompleted) -> str:
        if life.reported is None:
            return "and no worker has ended it"
        outcome, printed = life.reported
        if outcome != event.content or printed != event.output:
            return f"and its worker said {outcome!r}, with {printed!r} printed"
        return ""

    def _deferred(self, life: Life, event: events.ToolCallDeferred) -> str:
        outcome = life.reported[0] if life.reported is not None else None
        if not isinstance(outcome, Deferred) or outcome.timeout_seconds != event.timeout_seconds:
            return f"and its worker said {outcome!r}"
        return ""

    def _timed_out(self, life: Life, event: events.ToolCallTimedOut) -> str:
        if event.failure is None or event.failure.code is not FailureCode.TIMED_OUT:
            return f"with the failure {event.failure}"
        if life.reported is not None and life.reported[1] != event.output:
            return f"and its tool printed {life.reported[1]!r}"
        return "" if event.at >= life.run.deadline_at - EPSILON else f"and it had until {life.run.deadline_at:g}"

    def _cancelled(self, life: Life, event: events.ToolCallCancelled) -> str:
        outcome = life.reported[0] if life.reported is not None else None
        if event.failure is None or event.failure.code is not FailureCode.CANCELLED:
            return f"with the failure {event.failure}"
        if life.cancelled_at is None and outcome is not Ending.CANCELLED:
            return "and nobody has cancelled it"
        return ""

    def _failed(self, life: Life, event: events.ToolCallFailed) -> str:
        failure = event.failure
        outcome = life.reported[0] if life.reported is not None else None
        if isinstance(outcome, ToolFailure):
            same = (outcome.code, outcome.message) == (failure.code, failure.message)
            return "" if same else f"and its worker said {outcome}"
        if isinstance(outcome, str | Deferred) and self._is_transaction(life):
            fits = isinstance(outcome, Deferred) is (failure.code is FailureCode.INVALID_RESULT)
            return "" if fits and failure.code in _UNCOMMITTED else f"and its worker said {outcome}"
        if failure.code is FailureCode.CRASHED and life.last_words is not None and event.output != life.last_words:
            return f"and its tool had printed {life.last_words!r}, which is told as {event.output!r}"
        allowed = _MAY_FAIL.get(failure.code)
        return "" if allowed is not None and allowed(self, life) else "for which nothing has happened"

    def _gives_up(self, life: Life, event: Event) -> bool:
        """Its session has said so itself, when each of its dispatchers was lost."""
        if not isinstance(event, events.ToolCallFailed) or event.failure.code not in _GIVEN_UP:
            return False
        own = f"each of {MAX_CALL_SENDS} dispatchers that {life.run.name} was sent to was lost"
        return event.failure.message == own and self.dispatchers >= MAX_CALL_SENDS

    # -- when the clock is about to move

    def at_rest(self) -> None:
        """Nothing is left to do at this time: what of it was not done?"""
        if not self._open or not self._is_up("root/dispatcher"):
            return
        now = self._system.now()
        waiting: dict[ToolName, int] = {}
        for tag, life in tuple(self._open.items()):
            if self._is_done(life, now):
                del self._open[tag]
            elif life.worker is None:
                waiting[life.run.name] = waiting.get(life.run.name, 0) + 1
                self._must_wait(life, now)
        for name, count in waiting.items():
            if count > self._faults.max_queued_calls and self._pool_is_up(self._contracts[name]):
                self.problems.append(f"queue: {count} calls of {name} wait, {self._faults.max_queued_calls} may")

    def _is_done(self, life: Life, now: float) -> bool:
        """It owes nothing more."""
        session_lives = life.given.reply_to.is_alive() and not life.is_given_up
        if life.begun and not life.was_told_begun and session_lives:
            self._wrong(life, "started", "it has begun, and its session has not heard so")
        if life.told is not None:
            return life.worker is None or self._is_stuck(life, now)
        if life.commits:
            return self._is_committed(life, now, session_lives=session_lives)
        if life.reported is not None:
            if session_lives:
                self._wrong(life, "end", f"it has ended as {life.reported[0]!r:.80}, and its session has not heard so")
            return True
        if life.worker is not None:
            return self._runs_on(life, now, session_lives=session_lives)
        if life.cancelled_at is not None and self._pool_is_up(life.contract):
            if session_lives:
                self._wrong(life, "cancel", "it was cancelled before it ran, and its session has not heard so")
            return True
        return False

    def _is_committed(self, life: Life, now: float, *, session_lives: bool) -> bool:
        """A commit that has no answer is waited for, and then it is not known whether it was done."""
        if not session_lives:  # that it has its place no more is not seen then
            self._unseen_until = max(self._unseen_until, max(now, life.run.deadline_at) + COMMIT_SECONDS)
            return True
        if now >= life.run.deadline_at and life.late_since is None:
            life.late_since = now  # later than its deadline where the clock has jumped
        latest = now if life.late_since is None else life.late_since + COMMIT_SECONDS
        if life.cancelled_at is None and now > latest + EPSILON:
            self._wrong(life, "end", f"its commit was to be answered by {latest:g}, and its session waits for its end")
        return False

    def _is_stuck(self, life: Life, now: float) -> bool:
        """Its session has heard its end: its worker has it no more, or does not let go of it."""
        return life.killed_at is not None and now >= life.killed_at + ABANDON_SECONDS - EPSILON

    def _runs_on(self, life: Life, now: float, *, session_lives: bool) -> bool:
        """It is at a worker. True: it was given up there."""
        due = [life.run.deadline_at] if now >= life.run.deadline_at else []
        due += [life.cancelled_at] if life.cancelled_at is not None else []
        if due and life.stopped_at is None:
            self._wrong(life, "stop", f"it was to be stopped at {min(due):g}, and its worker was not told so")
        elif life.stopped_at is not None and life.killed_at is None:
            if now >= life.stopped_at + TOOL_GRACE_SECONDS + EPSILON:
                self._wrong(life, "grace", f"it was told to stop at {life.stopped_at:g}, and was not killed")
        elif self._is_stuck(life, now) and life.killed_at is not None:
            if now > life.killed_at + ABANDON_SECONDS + EPSILON and session_lives:
                self._wrong(life, "grace", f"it was killed at {life.killed_at:g}, and its session waits for its end")
            return True
        return False

    def _must_wait(self, life: Life, now: float) -> None:
        """It has no worker: its tool or its pool has no room."""
        name = life.run.name
        if not self._pool_is_up(life.contract):
            return
        if now >= life.run.deadline_at:
            self._wrong(life, "late", f"its deadline was {life.run.deadline_at:g}, and it still waits for its turn")
            return
        running = self._running(name)
        if now >= self._unseen_until and running < life.contract.concurrency and self._has_room(life.contract):
            self._wrong(life, "idle", f"it waits, and of {life.contract.concurrency} calls that may run {running} do")

    # -- pools

    def _running(self, name: ToolName) -> int:
        """Calls of a tool that are at workers, but for those that no worker lets go of."""
        now = self._system.now()
        return sum(
            each.worker is not None and each.told is None and not self._is_stuck(each, now)
            for each in self._open.values()
            if each.run.name == name
        )

    def _late_commits(self, name: ToolName) -> int:
        """Those that are waited for no longer, which is heard when their next one has begun."""
        latest = self._system.now() - COMMIT_SECONDS
        return sum(
            each.commits and each.worker is not None and each.run.deadline_at <= latest
            for each in self._open.values()
            if each.run.name == name and each.told is None
        )

    def _is_up(self, name: str) -> bool:
        cell = self._system._cells.get(name)
        return cell is not None and cell.state is State.RUNNING

    def _pool_is_up(self, contract: ToolContract) -> bool:
        """Its supervisors run, or are made when they are needed."""
        if not self._is_up("root/tools"):
            return False
        cell = self._system._cells.get(_pool_name(contract))
        return cell is None or cell.state is State.RUNNING

    def _pool_of(self, name: str) -> tuple[int, int] | None:
        """The room of one of its workers, and how many there are at the most."""
        isolation = name.rpartition("/")[2].partition("-")[0]
        if isolation not in set(Isolation):
            return None
        is_loop, workers = isolation in _LOOPS, self._faults.workers.workers
        return (workers, MAX_WORKERS) if is_loop else (1, workers)

    def _has_room(self, contract: ToolContract) -> bool:
        name = _pool_name(contract)
        pool, workers = self._pool_of(name), self._workers.get(name, {})
        # What is committed has its place still, of which its worker knows nothing.
        taken = Counter(life.worker for life in self._open.values() if life.commits and life.told is None)
        has_left = any(worker.room_left > taken[worker] for worker in workers)
        return pool is not None and (len(workers) < pool[1] or has_left)

    def opened(self, request_id: RequestId, running: Set[Tag]) -> set[Tag] | None:
        """The calls of a request that the dispatcher has, of those that `running` names also those it has had; None
        while there is no dispatcher."""
        if not self._is_up("root/dispatcher"):
            return None
        own = (life for tag, life in self._open.items() if tag.request_id == request_id)
        left = {life.run.tag for life in own if life.is_open and life.cancelled_at is None and not life.is_given_up}
        return left | (self._read & running)

    # -- at the end of the process

    def in_order(self) -> Iterator[str]:
        """Calls of one tool have their first workers in the order in which they were given."""
        latest: dict[ToolName, Life] = {}
        for life in self.lives.values():  # in that order
            at, before = life.first_worker_at, latest.get(life.run.name)
            if at is None:
                continue
            if before is not None and before.first_worker_at is not None and at < before.first_worker_at:
                told = f"{before.run.tag} was given before {life.run.tag}, which had a worker at {at:g}"
                yield f"{life.run.tag.request_id} in order: {told}, {before.first_worker_at - at:g} s sooner"
            else:
                latest[life.run.name] = life


def _pool_name(contract: ToolContract) -> str:
    return f"root/tools/{contract.isolation.value}-{contract.latency.value}"


def _shown(event: Event) -> str:
    return f"{type(event).__name__} {getattr(event, 'failure', None) or getattr(event, 'content', '')!r:.120}"


#: Why a call that has a result fails where that is committed with what it wrote: it cannot be deferred, the database
#: refused it, too much is to be written, or there was no answer.
_UNCOMMITTED: Final = (
    FailureCode.INVALID_RESULT, FailureCode.TOOL_ERROR, FailureCode.OVERLOADED, FailureCode.OUTCOME_UNKNOWN
)  # fmt: skip
#: Of a tool that crashed or hung.
_BREAKS: Final = (FailureCode.CRASHED, FailureCode.OUTCOME_UNKNOWN)


def _overloaded(calls: WatchedCalls, life: Life) -> bool:
    """The queue was full, or too many workers gave it back."""
    return life.was_full or _had_many_workers(calls, life)


def _had_many_workers(calls: WatchedCalls, life: Life) -> bool:
    had = life.workers + calls.deaths[_pool_name(life.contract)] - life.deaths_before
    return had >= MAX_GIVEN or (calls.has_lost_pools and had > 0)


def _withdrawn(calls: WatchedCalls, life: Life) -> bool:
    """Without a journal nothing can be committed; or it may have broken too often: what a session that has ended would
    have heard is not known."""
    if life.contract.effect is Effect.TRANSACTION:
        return True
    unheard = sum(each.told is None for each in calls.lives.values() if each.run.name == life.run.name)
    held = sum(each.killed_at is not None for each in calls.lives.values() if each.run.name == life.run.name)
    return calls._bad_ends[life.run.name] + unheard > FAILURE_BUDGET or held >= MAX_HELD_THREADS


def _lost_begun(calls: WatchedCalls, life: Life) -> bool:
    return life.lost in ("it ran", "it began")


def _held_too_long(calls: WatchedCalls, life: Life) -> bool:
    """Its code waited for the journal until its deadline."""
    return calls._system.now() >= life.run.deadline_at - EPSILON and not life.ran


_GIVEN_UP: Final = (FailureCode.INTERNAL_ERROR, FailureCode.OUTCOME_UNKNOWN)
_MAY_FAIL: Final[Mapping[FailureCode, Callable[[WatchedCalls, Life], bool]]] = {
    FailureCode.OVERLOADED: _overloaded,
    FailureCode.WITHDRAWN: _withdrawn,
    FailureCode.CRASHED: lambda calls, life: bool(life.lost),
    FailureCode.OUTCOME_UNKNOWN: _lost_begun,
    FailureCode.INTERNAL_ERROR: _had_many_workers,
    FailureCode.TIMED_OUT: _held_too_long,
}
_CAUSES: Final[Mapping[type[Event], Callable[..., str]]] = {
    events.ToolCallCompleted: WatchedCalls._completed,
    events.ToolCallFailed: WatchedCalls._failed,
    events.ToolCallTimedOut: WatchedCalls._timed_out,
    events.ToolCallCancelled: WatchedCalls._cancelled,
    events.ToolCallDeferred: WatchedCalls._deferred,
}
