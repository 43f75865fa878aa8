"""Plays a scenario against a session in virtual time: the pure stand-in for LLM manager, dispatcher, people and timers.

Its journal is written ahead: commands are carried out once the event they follow from is written.

Which of several messages due at the same time comes first, and how long each waits, is drawn from the seed: the same
scenario and seed give the same trace, byte for byte.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol, Self

from msgspec.structs import replace

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import CancelRequested, DeadlinePassed, Event, ModelLost, RequestStarted, ToolsLost
from callboard.protocol.ids import Tag
from callboard.protocol.machine import Session
from callboard.protocol.states import RequestState
from callboard.protocol.testing.journal import Journal
from callboard.protocol.testing.outside import (
    Answer,
    Make,
    Moment,
    Plans,
    beginning,
    cancelled,
    foreign_event,
    model_answers,
    notice,
    person_answers,
    stray_event,
    tool_answers,
)
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.trace import Trace, Verb

#: A run that sends more messages than this does not end: two requests' worth of the largest scenario.
MAX_MESSAGES: Final = 5_000


class SessionLike(Protocol):
    """What the driver needs of a session: the real one, or a user's own."""

    def apply(self, event: Event) -> tuple[Command, ...]: ...
    def to_journal(self, event: Event) -> tuple[Event, ...]: ...
    @classmethod
    def replay(cls, journal: Iterable[Event]) -> Self: ...
    def resume_commands(self) -> tuple[Command, ...]: ...
    def loss_event(self, at: float) -> Event | None: ...
    @property
    def state(self) -> RequestState: ...
    @property
    def step(self) -> Tag: ...


class _Post:
    """One message on its way; `live` is false once whoever would have sent it was stopped."""

    __slots__ = ("live", "make")

    def __init__(self, make: Make) -> None:
        self.make = make
        self.live = True


class Driver:
    """One scenario, one seed, one run."""

    def __init__(self, scenario: Scenario, seed: int = 0, session: type[SessionLike] = Session) -> None:
        self.trace = Trace(scenario, seed)
        self.now = 0.0
        self._scenario = scenario
        self._type = session
        self._session: SessionLike = session()
        self._random = random.Random(seed)
        self._heap: list[tuple[float, float, int, _Post | Callable[[], None]]] = []
        self._owned: dict[tuple[str, Tag], list[_Post]] = defaultdict(list)
        self._plans = Plans(scenario)
        self._journal = Journal(scenario.store)
        self._count = 0

    def run(self) -> Trace:
        """Play to the end: until the session has finished and every message has arrived.

        An exception of the code under test ends the run; the trace says which, in `broken`.
        """
        try:
            self._arrange()
            self._play()
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is the finding
            self.trace.broken = f"{type(error).__name__}: {error}"
        self.trace.ended_at = self.now
        self.trace.queued = sum(isinstance(item, _Post) and item.live for *_, item in self._heap)
        self.trace.sent += self.trace.queued
        self.trace.session = self._session
        return self.trace

    def _play(self) -> None:
        while self._heap:
            if self._count >= MAX_MESSAGES:
                raise RuntimeError(f"more than {MAX_MESSAGES} messages: this request does not end")
            self.now, _, _, item = heapq.heappop(self._heap)
            if not isinstance(item, _Post):
                item()
            elif item.live:
                self.deliver(item.make(self.now))

    def deliver(self, event: Event) -> None:
        """One message reaches the session: it is applied, or it is a dead letter. Commands wait for the journal."""
        self.trace.sent += 1
        before = self._session.state
        lines = [encode_event(line) for line in self._session.to_journal(event)]
        try:
            commands = self._session.apply(event)
        except ProtocolError as error:
            self.trace.add(self.now, Verb.REFUSED, event, str(error))
            return
        row = f"{before}: {type(event).__name__} -> {self._session.state}"
        self.trace.add(self.now, Verb.APPLIED, event, row)
        self._give(commands)
        written_at = self._journal.write(lines, len(self.trace.entries), self.now)
        if written_at <= self.now:
            self.carry_out(commands)
        else:
            self._post_write(written_at, commands)

    def _post_write(self, written_at: float, commands: Iterable[Command]) -> None:
        incarnation, given_at = self._session, self.now

        def written() -> None:
            self.trace.lag_seconds = max(self.trace.lag_seconds, self.now - given_at)
            if self._session is incarnation:
                self.carry_out(commands)

        self._schedule(written_at, written, before_others=True)

    def _give(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self.trace.add(self.now, Verb.GAVE, command)

    def carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            handler = _CARRY.get(type(command))
            if handler is not None:
                handler(self, command)

    # What the scenario has in store from outside.

    def _arrange(self) -> None:
        plan = self._scenario
        tag = plan.tag
        start = beginning(plan)
        self._post(0.0, ("outside", tag), lambda at: start)
        for when, number in plan.strays:
            self._schedule(when, partial(self._stray, start, number))
        if plan.cancel_at is not None:
            self._post(plan.cancel_at, ("outside", tag), lambda at: CancelRequested(tag, at, "the user left"))
        for when, seconds in plan.jumps:
            self._schedule(when, partial(self._jump, seconds))
        for when in plan.restart_at:
            self._schedule(when, self._restart)
        for when in plan.tools_lost_at:
            self._schedule(when, self._lose_tools)
        for when, number in plan.foreign:
            self._schedule(when, partial(self._foreign, start, number))
        for number, when in enumerate(plan.notices_at):
            self._post(when, ("outside", tag), notice(tag, number))

    def _restart(self) -> None:
        """The process dies with all it holds, and comes back from what its journal has written by now."""
        if self._session.state is RequestState.NEW:
            return
        for owner in [owner for owner in self._owned if owner[0] != "outside"]:
            self._stop(owner)
        lines, entries = self._journal.crash(self.now)
        self._lose_unwritten(entries)
        self._session = self._type.replay([decode_event(line) for line in lines])
        self.trace.add(self.now, Verb.RESUMED, None)
        resumed = self._session.resume_commands()
        self._give(resumed)
        self._journal.mark(len(self.trace.entries), self.now)
        self.carry_out(resumed)
        loss = self._session.loss_event(self.now)
        if loss is not None:
            self.deliver(loss)

    def _lose_unwritten(self, entries: int) -> None:
        """What was applied and never written did not happen: its commands were never carried out."""
        gone = [entry for entry in self.trace.entries[entries:] if entry.verb is not Verb.GAVE]
        del self.trace.entries[entries:]
        for entry in gone:
            if entry.verb in (Verb.APPLIED, Verb.REFUSED):
                entry = replace(entry, verb=Verb.LOST, note="the process died before it was written")
            self.trace.entries.append(entry)

    def _jump(self, seconds: float) -> None:
        """The clock jumps: what was due in between is due at once, each sender's messages in their order."""
        until = self.now + seconds
        due = sorted(entry for entry in self._heap if entry[0] < until)
        self._heap = [entry for entry in self._heap if entry[0] >= until]
        places = sorted(self._random.random() for _ in due)
        self._heap += [(until, place, entry[2], entry[3]) for place, entry in zip(places, due, strict=True)]
        heapq.heapify(self._heap)

    def _lose_tools(self) -> None:
        for owner in [owner for owner in self._owned if owner[0] in ("tool", "person")]:
            self._stop(owner)
        if self._session.state is RequestState.RUNNING_TOOLS:
            self.deliver(ToolsLost(self._session.step, self.now))

    def _foreign(self, start: RequestStarted, number: int) -> None:
        """Something is said of another request."""
        self.deliver(foreign_event(number, start, self._step(start), list(self._plans.of_call), self.now))

    def _stray(self, start: RequestStarted, number: int) -> None:
        """An event of this request that is not due."""
        step = self._step(start)
        waiting = {tag for kind, tag in self._owned if kind == "person"}
        is_asking = self._session.state is RequestState.CALLING_MODEL
        asked, askers = list(self._plans.of_call), self._plans.askers_calls(step)
        self.deliver(stray_event(number, Moment(start, step, self.now, is_asking, asked, waiting, askers)))

    def _step(self, start: RequestStarted) -> Tag:
        """The step that is open; before the request has begun, the first one that there will be."""
        return start.tag.at_step(1) if self._session.state is RequestState.NEW else self._session.step

    # Carrying out commands.

    def _call_model(self, command: CallModel) -> None:
        """Begin the model call, no sooner than it says; it may be stopped, or lost in a crash, before that."""
        if command.not_before_at <= self.now:
            self._begin_model(command)
            return
        waiting = _Post(partial(ModelLost, command.tag))
        self._owned["model", command.tag].append(waiting)
        self._schedule(command.not_before_at, lambda: self._begin_model(command) if waiting.live else None)

    def _begin_model(self, command: CallModel) -> None:
        self.trace.add(self.now, Verb.ASKED, command)
        turn = self._plans.next_turn(command)
        for answer in model_answers(turn, command, self._scenario.options, self.now):
            self._say(("model", command.tag), answer)

    def _run_tool(self, command: RunTool) -> None:
        self.trace.add(self.now, Verb.RAN, command)
        for answer in tool_answers(self._plans.of(command), command, self.now):
            self._say(("tool", command.tag), answer)

    def _ask_approval(self, command: AskApproval) -> None:
        self.trace.add(self.now, Verb.ASKED, command)
        for answer in person_answers(self._plans.of(command), command, self.now):
            self._say(("person", command.tag), answer)

    def _stop_model(self, command: StopModel) -> None:
        self._stop(("model", command.tag))

    def _cancel_tool(self, command: CancelTool) -> None:
        self._stop(("tool", command.tag))
        self._say(("outside", command.tag), cancelled(command.tag, self.now))

    def _withdraw(self, command: WithdrawApproval) -> None:
        self._stop(("person", command.tag))

    def _set_timer(self, command: SetTimer) -> None:
        self._stop(("timer", command.tag))
        tag = command.tag
        self._post(max(command.at, self.now), ("timer", tag), lambda at: DeadlinePassed(tag, at))

    def _clear_timer(self, command: ClearTimer) -> None:
        self._stop(("timer", command.tag))

    # The post.

    def _say(self, owner: tuple[str, Tag], answer: Answer) -> None:
        self._post(answer.at, ("outside", owner[1]) if answer.unstoppable else owner, answer.make)

    def _post(self, at: float, owner: tuple[str, Tag], make: Make) -> None:
        post = _Post(make)
        self._owned[owner].append(post)
        self._schedule(at + self._random.random() * self._scenario.latency_seconds, post)

    def _schedule(self, at: float, item: _Post | Callable[[], None], *, before_others: bool = False) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, -1.0 if before_others else self._random.random(), self._count, item))

    def _stop(self, owner: tuple[str, Tag]) -> None:
        for post in self._owned.pop(owner, ()):
            post.live = False


_CARRY: Final[dict[type[Any], Callable[[Driver, Any], None]]] = {
    CallModel: Driver._call_model,
    RunTool: Driver._run_tool,
    AskApproval: Driver._ask_approval,
    StopModel: Driver._stop_model,
    CancelTool: Driver._cancel_tool,
    WithdrawApproval: Driver._withdraw,
    SetTimer: Driver._set_timer,
    ClearTimer: Driver._clear_timer,
}


def drive(scenario: Scenario, seed: int = 0, session: type[SessionLike] = Session) -> Trace:
    """Play one scenario with one seed; the trace holds everything that happened."""
    return Driver(scenario, seed, session).run()
