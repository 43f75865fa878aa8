"""What dispatcher, registry and ledger promise of tool calls, as a model that follows a play turn by turn.

Each turn of a dispatcher or worker is told to the model as it begins, and the model says what must come of it: what
each session and worker hears, and what comes to the dispatcher next. Who is next is for the scheduler to say; the
messages of one actor come in the order in which they were sent.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from callboard.actors.calls.dispatcher import DispatchCall
from callboard.actors.calls.ledger import Ending, LastEvent, Outcome
from callboard.actors.calls.registry import GIVEN, ToolKey, ToolRestored, ToolWithdrawn
from callboard.actors.kernel import ExitReason
from callboard.actors.telemetry.notices import ToolPrinted, ToolStopped
from callboard.actors.testing.calls_books import (
    Call,
    Death,
    Entry,
    Health,
    Lane,
    Places,
    Pool,
    Session,
    Worker,
    after_run,
    kind_of,
    named,
    was_judged,
)  # fmt: skip
from callboard.actors.testing.watched_calls import (
    FAILURE_WINDOW_SECONDS,
    TOLERATED_SHARE,
    WITHDRAWN_SECONDS,
)
from callboard.actors.tools import Tool
from callboard.actors.workers.messages import WorkerLost
from callboard.protocol import events
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.policy import Mode, Policy
from callboard.protocol.tools import (
    Decision,
    Deferred,
    Effect,
    FailureCode,
    Isolation,
    ToolContract,
    ToolFailure,
)  # fmt: skip

MAX_WITHDRAWN_SECONDS: Final = 600.0
GRACE_SECONDS: Final = 0.25
ABANDON_SECONDS: Final = 1.5
COMMIT_SECONDS: Final = 20.0
MAX_GIVEN: Final = 5
NOT_RUN: Final = "It had no effect. Send it again later."
#: What was not run, or is not known to have failed for its tool, says nothing of the tool; what raised, works.
_BROKEN: Final = (FailureCode.CRASHED, FailureCode.OUTCOME_UNKNOWN)
_SAYS_NOTHING: Final = (FailureCode.INTERNAL_ERROR, FailureCode.OVERLOADED)


class Model:
    """See the module. `due`: by who hears it, what is due since it was last compared."""

    def __init__(
        self, budget: int | None, most_held: int | None, most_waiting: int, policy: Policy, places: Places, *,
        has_effects: bool, starts_ahead: bool,
    ) -> None:  # fmt: skip
        self.budget, self.most_held, self.most_waiting = budget, most_held, most_waiting
        self.policy, self.places = policy, places
        self.has_effects, self.starts_ahead = has_effects, starts_ahead
        self.now, self.is_up = 0.0, False
        self.entries: dict[ToolKey, Entry] = {}
        self.sources: dict[str, tuple[Tool, ...]] = {}
        self.asked_about: set[ToolName] = set()
        """Those that a saved rule may deny."""
        self.lanes: dict[ToolKey, Lane] = {}
        self.pools: dict[str, Pool] = {}
        self.pools_ended: defaultdict[str, int] = defaultdict(int)
        self.workers: dict[str, Worker] = {}
        self.sessions: dict[str, Session] = {}
        self.brought: dict[Session, list[Tool]] = {}
        self.monitored: set[str] = set()
        self.kept: set[str] = set()
        """Sessions of whose end the dispatcher wants to hear."""
        self.calls: dict[Tag, Call] = {}
        self.by_number: list[Call] = []
        self.news: deque[tuple[Call, LastEvent]] = deque()
        self.inbox: deque[Any] = deque()
        self.is_full = False
        """The journal takes nothing."""
        self.is_on_server = False
        """The journal is on a server: a process has no part in its transactions."""
        self.fault = ""
        """Where the next transaction meets a fault of our own: as it is admitted, or as it is given."""
        self.due: defaultdict[tuple[object, ...], list[Any]] = defaultdict(list)

    def tell(self, session: Session, tag: Tag, event: Any) -> None:
        """A session hears this."""
        if session.is_alive:
            self.due[session.name, tag].append(event)

    def observe(self, seen: object) -> None:
        """Telemetry hears this."""
        self.due["observer",].append(seen)

    # -- the dispatcher's life

    def starts(self) -> None:
        """One begins, with a registry of its own, and takes over what is there."""
        self.is_up = True
        sources, self.sources, self.entries = self.sources, {}, {}
        for source, tools in sources.items():
            self.put(source, tools)
        self._start_ahead()
        self.monitored.clear()
        self.kept.clear()
        for worker in self.workers.values():
            self.watch(worker)
            worker.told_holds = ()
        for worker in self.workers.values():
            self.hold(worker, worker.holds)
        for session, brought in self.brought.items():
            self.keep(session)
            for tool in brought:
                self.entries.setdefault(tool, Entry(tool, Health()))
        for key in tuple(self.lanes):
            if key in self.entries:
                self.lane(key)
        for call in self.calls.values():
            if call.handed is not None:
                self.due["outbox",].append((call.tag, *call.handed))
        self.go_on(*self.pools.values())

    def crashes(self) -> None:
        """It ends."""
        self.is_up = False
        self.monitored.clear()

    def watch(self, who: Worker | Session) -> None:
        """The dispatcher hears of its end."""
        if not who.is_alive:
            self.inbox.append(("down", who, (ExitReason.NOT_ALIVE, who.death[1])))
        self.monitored.add(who.name)

    def keep(self, session: Session) -> None:
        """Something is kept for a session until it ends."""
        if session.name not in self.kept:
            self.kept.add(session.name)
            self.watch(session)

    def ends(self, who: Worker | Session, death: Death) -> None:
        """A worker or session has ended."""
        who.is_alive, who.death = False, death
        if who.name in self.monitored:
            self.monitored.discard(who.name)
            self.inbox.append(("down", who, death))

    # -- tools

    def put(self, source: str, tools: Iterable[Tool]) -> list[Tool]:
        """These are the tools of a source from now on. Those that are gone or replaced."""
        before = self.sources.get(source, ())
        names = {tool.name for tool in before}
        now = {tool.name: tool for tool in tools if tool.name in names or tool.name not in self.entries}
        for name, tool in now.items():
            kept = self.entries.get(name)
            is_mended = kept is None or (source == GIVEN and kept.tool is not tool)
            self.entries[name] = Entry(tool, Health() if kept is None or is_mended else kept.health)
        for name in names - set(now):
            del self.entries[name]
        self.sources[source] = tuple(now.values())
        return [tool for tool in before if now.get(tool.name) is not tool]

    def replace(self, source: str, tools: Sequence[Tool]) -> None:
        """The dispatcher reads that these are the tools."""
        left = self.put(source, tools)
        for tool in left:
            lane = self.lanes.get(tool.name)
            if lane is not None and tool.name in self.entries:
                self.lane(tool.name)
            elif lane is not None:
                for call in tuple(lane.waiting):
                    self.end_here(call, ToolFailure(tool.name, FailureCode.WITHDRAWN, "~taken away"))
                self.forget_lane(lane)
        for tool in tools:
            if tool.name in self.lanes and tool.name in self.entries:
                self.lane(tool.name)
        self._start_ahead()
        self.end_unwanted()
        for tool in left:
            pool = self.pools.get(kind_of(tool.contract))
            if pool is not None and pool.is_started and self._is_ahead(tool.contract):
                self.due["source", pool.name].append(tool)
        self.go_on(*self.pools.values())

    def _is_ahead(self, contract: ToolContract) -> bool:
        return self.starts_ahead and contract.isolation is Isolation.PROCESS

    def _start_ahead(self) -> None:
        for entry in self.entries.values():
            if self._is_ahead(entry.tool.contract):
                self.pool(entry.tool.contract).is_started = True

    def end_unwanted(self) -> None:
        """Pools that no tool needs, and no call is in, end."""
        wanted = {kind_of(entry.tool.contract) for entry in self.entries.values()}
        busy = {worker.pool.name for worker in self.workers.values() if worker.calls or worker.holds}
        busy |= {call.lane.pool.name for call in self.calls.values() if call.state == "queued"}
        for kind, pool in tuple(self.pools.items()):
            pool.is_wanted = kind in wanted
            if not pool.is_wanted and pool.name not in busy:
                del self.pools[kind]
                self.pools_ended[kind] += 1

    def pool(self, contract: ToolContract) -> Pool:
        """Where its calls run."""
        kind, (room, most) = kind_of(contract), self.places[contract.isolation]
        if kind not in self.pools:
            ended = self.pools_ended[kind]
            self.pools[kind] = Pool(f"{kind}-{ended + 1}" if ended else kind, room, most)
        self.pools[kind].is_wanted = True
        return self.pools[kind]

    def lane(self, key: ToolKey) -> Lane:
        """Where calls of the tool wait, by its contract of now."""
        contract, lane = self.entries[key].tool.contract, self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key, self.pool(contract), contract)
        elif lane.contract is not contract or lane.pool is not self.pools.get(kind_of(contract)):
            pool = self.pool(contract)
            lane.home, lane.pool, lane.contract = lane.home if pool is lane.pool else None, pool, contract
        return lane

    def forget_lane(self, lane: Lane) -> None:
        """Where its tool is gone, and nothing of it runs or waits."""
        if lane.key not in self.entries and not lane.running and not lane.waiting:
            self.lanes.pop(lane.key, None)

    def offers(self, mode: Mode | None) -> list[tuple[ToolName, Decision, ToolContract]]:
        """What a request may use."""
        policy = self.policy.in_mode(mode)

        def decided(name: ToolName, contract: ToolContract) -> Decision:
            try:
                said = policy.offer(name, contract).decision
            except LookupError:  # as the play has it: a policy that fails denies
                said = Decision.DENY
            said = Decision.ASK if said is Decision.ALLOW and name in self.asked_about else said
            return Decision.ALLOW if said is Decision.ASK and contract.stages else said

        def shown(contract: ToolContract) -> bool:
            other = self.entries.get(ToolName(contract.only_with))
            if other is None:
                return not contract.only_with
            return decided(ToolName(contract.only_with), other.tool.contract) is not Decision.DENY

        there = [
            (name, each.tool.contract)
            for name, each in self.entries.items()
            if not isinstance(name, Tool) and self.is_healthy(name)
        ]
        return [
            (named(name), decided(named(name), contract) if shown(contract) else Decision.DENY, contract)
            for name, contract in there
        ]

    # -- health

    def held(self, key: ToolKey) -> int:
        """Threads that its ended calls hold."""
        return sum(worker.told_holds.count(key) for worker in self.workers.values())

    def is_healthy(self, key: ToolKey) -> bool:
        """May it be called?"""
        until = self.entries[key].health.until
        is_held = self.most_held is not None and self.held(key) >= self.most_held
        return not is_held and (until is None or self.now >= until)

    def hold(self, worker: Worker, holds: tuple[ToolKey, ...]) -> None:
        """The dispatcher hears that the worker is held by these."""
        keys = [key for key in dict.fromkeys((*holds, *worker.told_holds)) if key in self.entries]
        before = {key: self.is_healthy(key) for key in keys}
        worker.told_holds = holds
        for key in keys:
            if before[key] and not self.is_healthy(key):
                self.withdrawn(key)
            elif not before[key] and self.is_healthy(key):
                self.observe(ToolRestored(named(key), self.now))

    def withdrawn(self, key: ToolKey) -> None:
        """What waits is refused."""
        self.observe(ToolWithdrawn(named(key), self.now, key))
        lane = self.lanes.get(key)
        for call in tuple(lane.waiting) if lane is not None else ():
            self.end_here(call, self.withdrawal(key))

    def withdrawal(self, key: ToolKey) -> ToolFailure:
        """How calls of a withdrawn tool end: with what is left of its pause."""
        until, hint = self.entries[key].health.until, ""
        if until is not None and until > self.now:
            hint = f"again in {math.ceil(until - self.now)} s."
        return ToolFailure(named(key), FailureCode.WITHDRAWN, "~withdrawn", retry_hint=f"~{hint}" if hint else "")

    def judge(self, key: ToolKey, *, worked: bool) -> None:
        """A call of it has run."""
        if key not in self.entries:
            return
        health, now = self.entries[key].health, self.now
        health.calls += 1
        if worked and health.until is not None and now >= health.until:
            health.until, health.pause, health.breaks = None, WITHDRAWN_SECONDS, []
            self.observe(ToolRestored(named(key), now))
        if worked or self.budget is None or not self.is_healthy(key):
            return
        if health.until is not None:
            health.pause = min(2 * health.pause, MAX_WITHDRAWN_SECONDS)
        else:
            health.breaks.append((now, health.calls))
            recent = [each for each in health.breaks if each[0] > now - FAILURE_WINDOW_SECONDS][-self.budget - 1 :]
            calls = health.calls - recent[0][1] + 1
            if len(recent) <= self.budget or len(recent) <= TOLERATED_SHARE * calls:
                return
        health.until, health.breaks = now + health.pause, []
        self.withdrawn(key)

    # -- a call is given, and what the dispatcher reads of it

    def dispatch(self, message: DispatchCall, session: Session) -> None:
        """The dispatcher reads it."""
        run, tag, now = message.run, message.run.tag, self.now
        known = self.calls.get(tag)
        if known is not None and known.session is session:
            return
        if known is not None:
            self.refuse(message, session, ToolFailure(run.name, FailureCode.OVERLOADED, "~an earlier request"))
            return
        if (ended := session.ended.get(tag)) is not None:
            self.tell(session, tag, ended)
            return
        key: ToolKey = run.name
        if message.tool is not None:
            key = message.tool
            tools = self.brought.get(session)
            if tools is None:
                tools = self.brought[session] = []
                self.keep(session)
            if key not in tools:
                tools.append(key)
            self.entries.setdefault(key, Entry(key, Health()))
        if (refusal := self.refusal(message, key)) is not None:
            self.refuse(message, session, refusal)
            return
        lane = self.lane(key)
        call = Call(len(self.by_number), message, session, lane, lane.contract, run.deadline_at)
        call.is_transaction = self.has_effects and lane.contract.effect is Effect.TRANSACTION
        self.by_number.append(call)
        self.calls[tag] = call
        lane.waiting.append(call)
        if call.is_transaction and self.fault == "admit":
            self.fails(call)
            self.go_on()
            return
        if run.deadline_at <= now:
            self.end_here(call, Ending.TIMED_OUT)
        self.go_on(lane.pool)
        if call.state == "queued" and len(lane.waiting) > self.most_waiting:
            self.end_here(call, ToolFailure(run.name, FailureCode.OVERLOADED, "~waiting already"))
            self.go_on()

    def refuse(self, message: DispatchCall, session: Session, failure: ToolFailure) -> None:
        """It is not taken, nor when it is sent again."""
        refused = events.ToolCallFailed(message.run.tag, self.now, failure)
        session.remember(refused)
        self.tell(session, message.run.tag, refused)

    def refusal(self, message: DispatchCall, key: ToolKey) -> ToolFailure | None:
        """Why it may not run now."""
        entry, run, offered = self.entries.get(key), message.run, message.offered
        if entry is None:
            return ToolFailure(run.name, FailureCode.UNKNOWN_TOOL, "~there is no tool")
        tool, contract = entry.tool, entry.tool.contract
        if offered is not None and (was_judged(offered, tool.contract) or offered.definition != tool.definition):
            return ToolFailure(run.name, FailureCode.WITHDRAWN, "~has changed since this request began")
        if not self.is_healthy(key):
            return self.withdrawal(key)
        if run.hold and offered is not None and offered.contract.can_be_held and not contract.can_be_held:
            return ToolFailure(run.name, FailureCode.WITHDRAWN, "~cannot hold it to reading")
        cannot = not self.has_effects or (self.is_on_server and contract.isolation is Isolation.PROCESS)
        if contract.effect is Effect.TRANSACTION and cannot:
            return ToolFailure(run.name, FailureCode.WITHDRAWN, "~it was not run: ")
        return None

    def cancel(self, tag: Tag) -> None:
        """The dispatcher reads that it is not needed."""
        if (call := self.calls.get(tag)) is not None:
            self.end_running(call, Ending.CANCELLED)
            self.go_on()

    def timer(self, number: int) -> None:
        """The dispatcher reads that the time of a call has come."""
        call = self.by_number[number]
        if call.state == "ended" or self.now < call.due:
            return
        if call.worker is None or call.state == "running":
            self.end_running(call, Ending.TIMED_OUT)
        elif call.state == "ending":
            call.state, call.due = "killed", self.now + ABANDON_SECONDS
            self.tell_worker(call.worker, ("KillCall", call.tag))
        else:
            call.worker.take(0)
            self.end_here(call, Ending.TIMED_OUT)
        self.go_on()

    def end_running(self, call: Call, why: Ending) -> None:
        """Its worker is to end it."""
        if call.worker is None:
            self.end_here(call, why)
        elif call.state == "running" and call.handed is None:
            call.state, call.why, call.is_stopped = "ending", why, True
            call.due = self.now + GRACE_SECONDS
            self.tell_worker(call.worker, ("StopCall", call.tag))
        elif call.handed is not None:
            call.commit_by = self.now + COMMIT_SECONDS if call.commit_by is None else call.commit_by
            if self.now < call.commit_by:
                call.due = call.commit_by
            else:
                self.end_here(call, ToolFailure(call.name, FailureCode.OUTCOME_UNKNOWN, "~there was no answer"))

    def committed(self, tag: Tag, error: FailureCode | None) -> None:
        """The dispatcher reads that the journal has answered."""
        call = self.calls.get(tag)
        if call is not None and call.handed is not None:
            result, printed = call.handed
            self.end_here(call, result if error is None else ToolFailure(call.name, error, "~"), printed)
            self.go_on()

    def tell_worker(self, worker: Worker, what: tuple[object, ...]) -> None:
        """A worker hears this."""
        if worker.is_alive:
            self.due["worker", worker.name].append(what)

    # -- who is next

    def go_on(self, *pools: Pool) -> None:
        """Look at what has ended, then fill the room there is."""
        left = list(pools)
        while self.news or left:
            if self.news:
                call, event = self.news.popleft()
                left += [call.lane.pool, *([call.pool] if call.pool is not None else [])]
                self.settle(call, event)
            elif (following := self.next_of(left[-1])) is not None:
                self.give(following)
            else:
                left.pop()

    def next_of(self, pool: Pool) -> Call | None:
        """Of the tools that have room, the call that has waited longest."""
        if not pool.free and pool.workers >= pool.most:
            return None
        lanes = [lane for lane in self.lanes_of(pool) if lane.waiting and lane.running < lane.contract.concurrency]
        return min((lane.waiting[0] for lane in lanes), key=lambda call: call.number, default=None)

    def lanes_of(self, pool: Pool) -> list[Lane]:
        """Those that wait for it, also where their tool is gone."""
        waiting = {id(call.lane): call.lane for call in self.calls.values() if call.state == "queued"}
        return [lane for lane in waiting.values() if lane.pool is pool]

    def give(self, call: Call) -> None:
        """To a worker."""
        lane = call.lane
        pool = lane.pool
        if (refusal := self.refusal(call.given, lane.key)) is not None:
            self.end_here(call, refusal)
            return
        tool, run, offered = self.entries[lane.key].tool, call.given.run, call.given.offered
        call.contract = tool.contract
        if offered is not None and offered.contract is not tool.contract:
            due = self.now + tool.contract.timeout_seconds
            if due < run.deadline_at:
                call.due, run = due, replace(run, deadline_at=due)
        others = [each for each in pool.free if each is not call.left or pool.workers >= pool.most]
        if lane.home is not None and lane.home in pool.free:
            worker = lane.home
        else:
            worker = others[-1] if others else self.new_worker(pool)
        if call.is_transaction and self.fault == "give":
            self.fails(call)
            return
        lane.waiting.remove(call)
        lane.running += 1
        call.state, call.worker, call.pool = "running", worker, pool
        call.workers += 1
        worker.calls.append(call)
        worker.take()
        self.tell_worker(worker, ("RunCall", run, tool, call.given.is_read_along, call.given.user_text))

    def fails(self, call: Call) -> None:
        """A fault of our own costs this call, and nothing else."""
        self.fault = ""
        self.end_here(call, ToolFailure(call.name, FailureCode.INTERNAL_ERROR, "~callboard failed to run"))

    def new_worker(self, pool: Pool) -> Worker:
        """One more."""
        pool.made += 1
        worker = Worker(f"{pool.name}#{pool.made}", pool, pool.room)
        pool.workers, pool.is_started = pool.workers + 1, True
        pool.free.append(worker)
        self.workers[worker.name] = worker
        self.monitored.add(worker.name)
        return worker

    def settle(self, call: Call, event: LastEvent) -> None:
        """What the end of a call says of its tool."""
        if call.frames:
            self.observe(ToolStopped(call.tag, call.name, call.frames))
        if call.printed_bytes:
            self.observe(ToolPrinted(call.tag, call.name, event.output, call.printed_bytes, call.given.asker))
        code = event.failure.code if isinstance(event, events.ToolCallFailed) else None
        says_nothing = isinstance(event, events.ToolCallCancelled) or code in _SAYS_NOTHING
        if call.begun and not says_nothing:
            has_broken = isinstance(event, events.ToolCallTimedOut) or code in _BROKEN
            self.judge(call.lane.key, worked=not has_broken)
        self.forget_lane(call.lane)
        if call.pool is not None and not call.pool.is_wanted:
            self.end_unwanted()

    # -- what workers do

    def begin(self, worker: Worker, call: Call) -> bool:
        """A worker begins it: may it?"""
        if call.state != "running" or call.begun:
            self.report(worker, call, Ending.CANCELLED)
            return False
        call.begun = True
        if not call.was_told:
            call.was_told = True
            self.tell(call.session, call.tag, events.ToolCallStarted(call.tag, self.now))
        return True

    def code_begins(self, call: Call) -> None:
        """On a loop where its tool may leave something open."""
        lane, worker = call.lane, call.worker
        home = lane.home
        if worker is not None and worker.pool is lane.pool and (home is None or home.is_lost or not home.room):
            lane.home = worker

    def report(self, worker: Worker, call: Call, outcome: Outcome, printed: str = "", how: str = "ended") -> None:
        """A worker says how it ended."""
        if call.is_transaction and how == "ended" and not isinstance(outcome, Ending):
            finished = self.finished(call, outcome, printed)
            if finished is None:
                return
            outcome = finished
        is_awaited = bool(self.news)
        event = self.end(call, outcome, printed, how)
        if event is not None:
            self.tell(call.session, call.tag, event)
        if event is None or not is_awaited:
            self.inbox.append(("state", worker))

    def finished(self, call: Call, outcome: Outcome, printed: str) -> Outcome | None:
        """Of a transaction: None where its result is to be committed."""
        if isinstance(outcome, ToolFailure):
            return outcome
        if isinstance(outcome, Deferred):
            return ToolFailure(call.name, FailureCode.INVALID_RESULT, "~Nothing was written")
        if call.handed is not None:
            return None
        if call.is_stopped:
            return outcome
        if self.is_full:
            return ToolFailure(call.name, FailureCode.OVERLOADED, "~nothing was written")
        call.handed = str(outcome), printed
        self.due["outbox",].append((call.tag, *call.handed))
        return None

    def state(self, worker: Worker, room: int, holds: tuple[ToolKey, ...]) -> None:
        """A worker says what it has room for, and what holds its threads."""
        worker.holds = holds
        worker.take(room)
        self.inbox.append(("state", worker))

    def heard_state(self, worker: Worker) -> None:
        """The dispatcher reads that something of a worker has changed."""
        if worker.name in self.workers:
            self.hold(worker, worker.holds)
            self.go_on(worker.pool)
            if not worker.pool.is_wanted:
                self.end_unwanted()

    def heard_down(self, who: Worker | Session, death: Death) -> None:
        """The dispatcher reads of an end."""
        if isinstance(who, Session):
            left = self.brought.pop(who, []) if who.name in self.kept else []
            self.kept.discard(who.name)
            for tool in left:
                if not any(tool in tools for tools in self.brought.values()):
                    self.lanes.pop(tool, None)
                    self.entries.pop(tool, None)
            return
        if who.name not in self.workers:
            return
        reason, error = death
        self.hold(who, ())
        del self.workers[who.name]
        who.pool.workers -= 1
        who.is_lost = True
        who.take()
        printed = error.printed if isinstance(error, WorkerLost) else ""
        for call in tuple(who.calls):
            if isinstance(error, WorkerLost):
                fate = error.failure
            elif not call.has_run:
                fate = ToolFailure(call.name, FailureCode.INTERNAL_ERROR, "~was not run")
            elif reason is ExitReason.CRASHED:
                fate = ToolFailure(call.name, FailureCode.INTERNAL_ERROR, "~is not known")
            else:
                fate = ToolFailure(call.name, FailureCode.OUTCOME_UNKNOWN, "~is not known")
            self.end_here(call, fate, printed, "lost")
        self.go_on(who.pool)

    # -- ends

    def end_here(self, call: Call, outcome: Outcome, printed: str = "", how: str = "ended") -> None:
        """The dispatcher ends it."""
        if (event := self.end(call, outcome, printed, how)) is not None:
            self.tell(call.session, call.tag, event)

    def end(self, call: Call, outcome: Outcome, printed: str, how: str) -> LastEvent | None:
        """The event of its end, unless it goes on, or had ended."""
        if call.state == "ended":
            return None
        may_go_on = call.state == "running" and call.workers < MAX_GIVEN
        goes_on = may_go_on and (how == "returned" or (how == "lost" and not call.has_run))
        if how == "lost" and call.state == "running" and not goes_on and call.handed is not None:
            return None  # its worker has nothing more to do for it
        if call.state == "queued":
            call.lane.waiting.remove(call)
        else:
            call.lane.running -= 1
        worker, call.worker = call.worker, None
        if worker is not None:
            worker.calls.remove(call)
            worker.take()
        call.begun = call.begun and how != "returned" and not goes_on
        if goes_on:
            call.state = "queued"
            call.lane.waiting.append(call)
            call.lane.waiting.sort(key=lambda each: each.number)
            return None
        if call.why is not None and isinstance(outcome, ToolFailure):
            call.frames = outcome.frames
        call.state = "ended"
        event = self.event(call, outcome, printed)
        call.begun = call.has_run
        del self.calls[call.tag]
        call.session.remember(event)
        self.news.append((call, event))
        return event

    def event(self, call: Call, outcome: Outcome, printed: str) -> LastEvent:
        """What its session hears."""
        tag, now, name, why = call.tag, self.now, call.name, call.why or outcome
        if why is Ending.TIMED_OUT and call.begun and not call.has_run:
            failure = ToolFailure(name, FailureCode.TIMED_OUT, "~before the journal", retry_hint=NOT_RUN)
            return events.ToolCallFailed(tag, now, failure, printed)
        if why is Ending.TIMED_OUT and isinstance(outcome, ToolFailure) and outcome.code is FailureCode.TIMED_OUT:
            return events.ToolCallFailed(tag, now, outcome, printed)
        if why is Ending.TIMED_OUT:
            failure = after_run(ToolFailure(name, FailureCode.TIMED_OUT, "~the deadline passed"), call.contract)
            return events.ToolCallTimedOut(tag, now, printed, failure)
        if isinstance(why, Ending):
            return events.ToolCallCancelled(tag, now, printed, ToolFailure(name, FailureCode.CANCELLED, "~was stopped"))
        if isinstance(why, ToolFailure):
            return events.ToolCallFailed(tag, now, after_run(why, call.contract) if call.has_run else why, printed)
        if isinstance(why, Deferred):
            return events.ToolCallDeferred(tag, now, why.timeout_seconds, why.note, printed)
        return events.ToolCallCompleted(tag, now, why, printed)

    # -- at rest

    def wrong(self) -> Iterable[str]:
        """What the dispatcher owes when nothing is left to do at this time."""
        if not self.is_up:
            return
        yield from (f"the dispatcher has not read {each!r:.200}" for each in self.inbox)
        for call in self.calls.values():
            if call.due <= self.now:
                yield f"call {call.tag.call_id} is {call.state}, and its time was over at {call.due}"
