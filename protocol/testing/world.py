"""The world around a session, for a runtime that is tried out: model, tools, people, clock and journal of one scenario.

Which of several things due at the same time comes first, and how long each message waits, is drawn from the seed: the
same scenario and seed, and a runtime that does the same, give the same trace, byte for byte.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

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
from callboard.protocol.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    RequestStarted,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.testing.journal import Journal
from callboard.protocol.testing.outside import (
    Answer,
    Make,
    Moment,
    Plans,
    beginning,
    cancelled,
    foreign_event,
    is_beginning,
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


class Crashed(Struct, frozen=True):
    """The process died, with all that it held and all that was on its way from model, tools, people and timers. It
    comes back now: rebuild the session from `lines`, and tell `World.resumed`. Nothing was begun where there are none.
    """

    lines: tuple[bytes, ...]
    """What `World.write` was given, as far as it was durable."""


class ToolsDied(Struct, frozen=True):
    """Whoever ran the tools and held the questions died, and with it all that ran and all that was asked: a session
    that waits for calls must hear ToolsLost."""


Happening = Event | Crashed | ToolsDied
"""What comes to a runtime: a message for its session, or one of two accidents."""


class _Post:
    """One message on its way; `live` is false once whoever would have sent it was stopped."""

    __slots__ = ("live", "make")

    def __init__(self, make: Make) -> None:
        self.make = make
        self.live = True


class _Step(NamedTuple):
    """What a session has told of where it is."""

    tag: Tag
    is_asking: bool = False


_ENDS_MODEL_CALL: Final = frozenset({ModelResponded, ModelFailed, ModelLost, StopModel})
_Later = Callable[[], Iterable[Happening]]


class World:
    """One scenario, one seed, one run. Iterate over what happens, in the order of its times; meanwhile say what your
    runtime does, and return `trace` at the end:

        world = World(scenario, seed)
        for happening in world:
            ...  # a Crashed, a ToolsDied, or an event: apply it, and tell `took` or `refused`
        return world.trace
    """

    def __init__(self, scenario: Scenario, seed: int = 0) -> None:
        self.now = 0.0
        """Virtual seconds."""
        self._trace = Trace(scenario, seed, in_world=True)
        self._scenario = scenario
        self._random = random.Random(seed)
        self._heap: list[tuple[float, float, int, _Post | _Later]] = []
        self._owned: dict[tuple[str, Tag], list[_Post]] = defaultdict(list)
        self._plans = Plans(scenario)
        self._journal = Journal(scenario.store)
        self._count = 0
        self._delivered = 0
        self._heard: Event | None = None
        self._owed: list[Command] = []
        """Given, and not yet carried out."""
        self._lives = 0
        self._start = beginning(scenario)
        self._step = _Step(scenario.tag.at_step(1))

    def __iter__(self) -> Iterator[Happening]:
        """What happens. Raises RuntimeError where it does not come to an end."""
        self._arrange()
        while self._heap:
            if self._count >= MAX_MESSAGES:
                raise RuntimeError(f"more than {MAX_MESSAGES} messages: this request does not end")
            self.now, _, _, item = heapq.heappop(self._heap)
            if not isinstance(item, _Post):
                yield from item()
            elif item.live:
                yield self._message(item.make(self.now))

    @property
    def trace(self) -> Trace:
        """What has happened so far."""
        trace = self._trace
        trace.ended_at = self.now
        trace.queued = sum(isinstance(item, _Post) and item.live for *_, item in self._heap)
        trace.sent = self._delivered + trace.queued
        trace.undone = tuple(self._owed)
        return trace

    # What a runtime says.

    def took(self, event: Event, commands: Iterable[Command] = (), row: str = "") -> None:
        """The session took this event, and gave these commands. `row`: how it went on, for the story."""
        self._count_own(event)
        self._trace.add(self.now, Verb.APPLIED, event, row)
        self._follow(event)
        self._gave(commands)

    def refused(self, event: Event, why: str) -> None:
        """The session refused this event: nothing has happened."""
        self._count_own(event)
        self._trace.add(self.now, Verb.REFUSED, event, why)

    def resumed(self, commands: Iterable[Command]) -> None:
        """The session was rebuilt after a Crashed, and gave these commands first."""
        self._trace.add(self.now, Verb.RESUMED, None)
        self._gave(commands)
        self._journal.mark(len(self._trace.entries), self.now)

    def write(self, lines: Sequence[bytes], then: Callable[[], None]) -> None:
        """Write what the event that was taken last comes to in the journal. `then` is called when it is durable: at
        once, later (a slow or full store), or never (a crash). Carry out no command before that."""
        at, life = self.now, self._lives
        written_at = self._journal.write(list(lines), len(self._trace.entries), at)

        if written_at <= at:
            then()
            return

        def written() -> Iterable[Happening]:
            self._trace.lag_seconds = max(self._trace.lag_seconds, self.now - at)
            if self._lives == life:
                then()
            return ()

        self._schedule(written_at, written, before_others=True)

    def carry_out(self, command: Command) -> None:
        """Do it: ask the model or the person, begin the tool, stop one of them, set or clear the timer. What it leads
        to comes as an event. Commands that ask nothing of the world (reports, the end) do nothing here."""
        handler = _CARRY.get(type(command))
        if handler is not None:
            self._owed = [owed for owed in self._owed if owed is not command]
            handler(self, command)

    def _count_own(self, event: Event) -> None:
        """A message that the runtime itself had for its session was sent too: that something was lost."""
        if event is not self._heard:
            self._delivered += 1
            if not isinstance(event, ModelLost | ToolsLost):
                self._trace.made_up += (event,)
        self._heard = None

    def _gave(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self._trace.add(self.now, Verb.GAVE, command)
            if type(command) in _CARRY:
                self._owed.append(command)
                self._follow(command)

    def _follow(self, told: Event | Command) -> None:
        """Where is the session after this?"""
        kind = type(told)
        if kind is CallModel:
            self._step = _Step(told.tag, True)
        elif kind is RequestStarted or (kind in _ENDS_MODEL_CALL and told.tag == self._step.tag):
            self._step = _Step(told.tag)

    # What the scenario has in store from outside.

    def _arrange(self) -> None:
        plan, tag = self._scenario, self._scenario.tag
        self._post(0.0, ("outside", tag), lambda at: self._start)
        for when, number in plan.strays:
            self._schedule(when, partial(self._stray, number))
        if plan.cancel_at is not None:
            self._post(plan.cancel_at, ("outside", tag), lambda at: CancelRequested(tag, at, "the user left"))
        for when, seconds in plan.jumps:
            self._schedule(when, partial(self._jump, seconds))
        for when in plan.restart_at:
            self._schedule(when, self._crash)
        for when in plan.tools_lost_at:
            self._schedule(when, self._lose_tools)
        for when, number in plan.foreign:
            self._schedule(when, partial(self._foreign, number))
        for number, when in enumerate(plan.notices_at):
            self._post(when, ("outside", tag), notice(tag, number))

    def _message(self, event: Event) -> Event:
        self._delivered += 1
        self._heard = event
        return event

    def _crash(self) -> Iterator[Happening]:
        if not self._has_begun:
            return
        for owner in [owner for owner in self._owned if owner[0] != "outside"]:
            self._stop(owner)
        self._lives += 1
        self._owed.clear()
        lines, entries = self._journal.crash(self.now)
        self._lose_unwritten(entries)
        yield Crashed(tuple(lines))

    @property
    def _has_begun(self) -> bool:
        return any(entry.verb is Verb.APPLIED for entry in self._trace.entries)

    def _lose_unwritten(self, entries: int) -> None:
        """What was applied and never written did not happen: its commands were never carried out."""
        told = self._trace.entries
        gone = [entry for entry in told[entries:] if entry.verb is not Verb.GAVE]
        del told[entries:]
        for entry in gone:
            if entry.verb in (Verb.APPLIED, Verb.REFUSED):
                entry = replace(entry, verb=Verb.LOST, note="the process died before it was written")
            told.append(entry)
        self._step = _Step(self._scenario.tag.at_step(1))
        for entry in told[:entries]:
            if entry.verb in (Verb.APPLIED, Verb.GAVE) and entry.value is not None:
                self._follow(entry.value)

    def _jump(self, seconds: float) -> Iterable[Happening]:
        """The clock jumps: what was due in between is due at once, each sender's messages in their order."""
        until = self.now + seconds
        due = sorted(entry for entry in self._heap if entry[0] < until)
        self._heap = [entry for entry in self._heap if entry[0] >= until]
        places = sorted(self._random.random() for _ in due)
        self._heap += [(until, place, entry[2], entry[3]) for place, entry in zip(places, due, strict=True)]
        heapq.heapify(self._heap)
        return ()

    def _lose_tools(self) -> Iterator[Happening]:
        for owner in [owner for owner in self._owned if owner[0] in ("tool", "person")]:
            self._stop(owner)
        yield ToolsDied()

    def _foreign(self, number: int) -> Iterator[Happening]:
        """Something is said of another request; but a new session takes the first one that begins."""
        if not self._has_begun and is_beginning(number):
            return
        yield self._message(foreign_event(number, self._start, self._step.tag, list(self._plans.of_call), self.now))

    def _stray(self, number: int) -> Iterator[Happening]:
        """An event of this request that is not due."""
        step, is_asking = self._step
        waiting = {tag for kind, tag in self._owned if kind == "person"}
        asked, askers = list(self._plans.of_call), self._plans.askers_calls(step)
        moment = Moment(self._start, step, self.now, is_asking, not self._has_begun, asked, waiting, askers)
        yield self._message(stray_event(number, moment))

    # Carrying out commands.

    def _call_model(self, command: CallModel) -> None:
        """Begin the model call, no sooner than it says; it may be stopped, or lost in a crash, before that."""
        if command.not_before_at <= self.now:
            self._begin_model(command)
            return
        waiting = _Post(partial(ModelLost, command.tag))
        self._owned["model", command.tag].append(waiting)

        def begin() -> Iterable[Happening]:
            if waiting.live:
                self._begin_model(command)
            return ()

        self._schedule(command.not_before_at, begin)

    def _begin_model(self, command: CallModel) -> None:
        self._trace.add(self.now, Verb.ASKED, command)
        turn = self._plans.next_turn(command)
        for answer in model_answers(turn, command, self._scenario.options, self.now):
            self._say(("model", command.tag), answer)

    def _run_tool(self, command: RunTool) -> None:
        self._trace.add(self.now, Verb.RAN, command)
        for answer in tool_answers(self._plans.of(command), command, self.now):
            self._say(("tool", command.tag), answer)

    def _ask_approval(self, command: AskApproval) -> None:
        self._trace.add(self.now, Verb.ASKED, command)
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
        # An answer whose deadline has passed in a jump comes at once.
        self._schedule(max(at, self.now) + self._random.random() * self._scenario.latency_seconds, post)

    def _schedule(self, at: float, item: _Post | _Later, *, before_others: bool = False) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, -1.0 if before_others else self._random.random(), self._count, item))

    def _stop(self, owner: tuple[str, Tag]) -> None:
        for post in self._owned.pop(owner, ()):
            post.live = False


_CARRY: Final[dict[type[Any], Callable[[World, Any], None]]] = {
    CallModel: World._call_model,
    RunTool: World._run_tool,
    AskApproval: World._ask_approval,
    StopModel: World._stop_model,
    CancelTool: World._cancel_tool,
    WithdrawApproval: World._withdraw,
    SetTimer: World._set_timer,
    ClearTimer: World._clear_timer,
}
