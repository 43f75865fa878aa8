"""What must become of a family: OTP's rules for supervisors in a small model with a clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct, field

from callboard.actors.kernel import Backoff, ExitReason, Restart, Strategy

#: What the supervisors are given for chance.
CHANCE: Final = 0.37
NORMAL, CRASHED, KILLED = ExitReason.NORMAL, ExitReason.CRASHED, ExitReason.KILLED
#: When, what and who.
Log = list[tuple[float, str, str]]


class Kind(Struct, eq=False):
    """What a child is like: for the real thing and for the model."""

    id: str
    restart: Restart
    backoff: Backoff
    shutdown_seconds: float
    intensity: int | None
    period_seconds: float
    takes_seconds: float | None
    """To stop; 0.0 at once, None never."""
    runs_on: Any = "loop"
    fails: int = 0
    """Starts that fail, the first ones."""
    family: Kin | None = None
    """Of a child that is a supervisor itself."""


class Kin(Struct, eq=False):
    """What a family is like."""

    name: str
    strategy: Strategy
    intensity: int
    period_seconds: float
    children: list[Kind] = field(default_factory=list)


class Member(Struct, eq=False):
    """A child, in the model."""

    kind: Kind
    dynamic: bool
    up: bool = False
    restarts: int = -1
    failures: list[float] = field(default_factory=list)
    streak: int = 0
    failed_at: float | None = None
    due: float | None = None
    """When it is started again, alone."""
    model: Model | None = None
    leaving: bool = False
    again: bool = False
    stopping: bool = False


class Clock:
    """The model's time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = 0

    def at(self, when: float, run: Callable[[], object]) -> None:
        """Run it then."""
        self._serial += 1
        heapq.heappush(self._later, (when, self._serial, run))

    def advance(self, until: float) -> None:
        """Let all happen until then."""
        while self._later and self._later[0][0] <= until:
            self.now, _, run = heapq.heappop(self._later)
            run()
        self.now = max(self.now, until if until < float("inf") else self.now)


class Model:
    """What must become of one family. `told(what, who)` is its log."""

    def __init__(self, kin: Kin, clock: Clock, log: Log, over: Callable[[ExitReason], object]):
        self.kin, self.clock, self.log, self.over = kin, clock, log, over
        self.members = {kind.id: Member(kind, dynamic=False) for kind in kin.children}
        self.failures: list[float] = []
        self.queue: list[Member] = []
        """Listed ones to be started, in order."""
        self.starting: Member | None = None
        self.delay_seconds = 0.0
        self.pause_until: float | None = None
        self.to_stop: list[Member] = []
        self.ending: ExitReason | None = None
        self.is_over = False

    # -- starts

    def start(self, again: dict[str, int]) -> None:
        """The supervisor begins: its children one after the other. `again`: starts of their addresses so far."""
        for member in self.members.values():
            member.restarts = again.get(member.kind.id, -1)
        self.queue = list(self.members.values())
        self._start_next()

    def _tell(self, what: str, member: Member) -> None:
        self.log.append((round(self.clock.now, 6), what, f"{self.kin.name}/{member.kind.id}"))

    def _start_next(self) -> None:
        if self.queue and self.delay_seconds and not (self.to_stop or self.ending):
            until, self.delay_seconds = self.clock.now + self.delay_seconds, 0.0
            if until > (self.pause_until or 0.0):
                self.pause_until = until
                self.clock.at(until, lambda: self._pause_over(until))
        while self.queue and not (self.starting or self.pause_until or self.to_stop or self.ending or self.is_over):
            self.starting = self.queue.pop(0)  # it holds up those after it, until it runs
            self._start(self.starting)

    def _start(self, member: Member) -> None:
        kind = member.kind
        member.due = None
        member.restarts += 1
        if kind.fails:
            kind.fails -= 1
            self._tell("cannot start", member)
            if kept(kind.restart, CRASHED):
                self._failed(member)
            else:
                self.forget(member)
            self._go_on()
            return
        member.up = True
        if self.starting is member:
            self.starting = None
        self._tell("start", member)
        if kind.family is not None:
            again = {} if member.model is None else {each.kind.id: each.restarts for each in member.model.known()}
            member.model = Model(kind.family, self.clock, self.log, lambda reason: self.ended(member, reason))
            member.model.start(again)

    def known(self) -> list[Member]:
        """Those whose addresses stay."""
        return [member for member in self.members.values() if not member.dynamic]

    # -- ends

    def ended(self, member: Member, reason: ExitReason) -> None:
        """A child has ended."""
        member.up = False
        self._tell(reason.value, member)
        told, member.stopping = member.stopping, False
        lives = kept(member.kind.restart, reason)
        if member.leaving or not (lives or (told and not member.leaving and self._keeps(member))):
            self.forget(member)
        elif member.again and self.ending is None:
            member.again = False
            self._start(member)
        elif not told and self.ending is None:
            self._failed(member)
        self._go_on()

    def _keeps(self, member: Member) -> bool:
        return member.kind.restart is not Restart.TEMPORARY and not (member.dynamic and not member.again)

    def forget(self, member: Member) -> None:
        """It is none of the family any more."""
        member.due = None
        self.queue = [each for each in self.queue if each is not member]
        if self.starting is member:
            self.starting = None
        if self.members.get(member.kind.id) is member:
            del self.members[member.kind.id]

    def _failed(self, member: Member) -> None:
        kind, now = member.kind, self.clock.now
        own = kind.intensity is not None
        intensity = kind.intensity if kind.intensity is not None else self.kin.intensity
        period = kind.period_seconds if own else self.kin.period_seconds
        since = float("inf") if member.failed_at is None else now - member.failed_at
        member.streak = 1 if since >= kind.backoff.reset_after_seconds else member.streak + 1
        member.failed_at = now
        failures = member.failures if own else self.failures
        failures.append(now)
        if sum(now - at < period for at in failures) > intensity:
            if own and member.dynamic:
                self.forget(member)
            else:
                self.stop(CRASHED)
            return
        delay = 0.0
        if member.streak > 1:
            delay = min(kind.backoff.maximum_seconds, kind.backoff.initial_seconds * 2 ** (member.streak - 2))
            delay *= 1 - kind.backoff.jitter * CHANCE
        if self.kin.strategy is Strategy.ONE_FOR_ONE or member.dynamic:
            if delay == 0:
                self._start_alone(member)
            else:
                member.due = due = now + delay
                self.clock.at(due, lambda: self._start_alone(member) if member.due == due else None)
            return
        self._restart_group(member, delay)

    def _start_alone(self, member: Member) -> None:
        self._start(member)
        self._start_next()

    def _restart_group(self, member: Member, delay_seconds: float) -> None:
        listed = self.known()
        first = listed.index(member) if self.kin.strategy is Strategy.REST_FOR_ONE else 0
        down = [*self.queue, *self.to_stop, self.starting]
        group = [each for at, each in enumerate(listed) if at >= first or each in down]
        self.to_stop = [each for each in group if each.up]
        self.queue = [each for each in group if each.kind.restart is not Restart.TEMPORARY or each in self.queue]
        self.starting = None
        self.delay_seconds = max(self.delay_seconds, delay_seconds)

    def _pause_over(self, until: float) -> None:
        if self.pause_until == until and not self.is_over:
            self.pause_until = None
            self._start_next()

    # -- stops

    def _stop_one(self, member: Member) -> None:
        """It is told to; it ends at once, in its time, or killed."""
        if member.stopping:
            return
        member.stopping = True
        kind, now = member.kind, self.clock.now
        if member.model is not None:
            deadline, model = now + kind.shutdown_seconds, member.model
            model.stop(NORMAL)
            if not model.is_over:
                self.clock.at(deadline, lambda: model.kill() if member.stopping else None)
            return
        takes = float("inf") if kind.takes_seconds is None else kind.takes_seconds
        how, when = (NORMAL, now + takes) if takes < kind.shutdown_seconds else (KILLED, now + kind.shutdown_seconds)
        life = member.restarts
        if when == now:
            self.ended(member, how)
        else:
            self.clock.at(when, lambda: self.ended(member, how) if member.up and member.restarts == life else None)

    def stop(self, how: ExitReason) -> None:
        """The family ends: those that came later first, all at once; then the listed ones, last one first."""
        if self.ending is not None:
            return
        self.ending = how
        self.queue.clear()
        self.starting = self.pause_until = None
        if how is CRASHED:
            self.log.append((round(self.clock.now, 6), "gives up", f"{self.kin.name}/-"))
        for member in [each for each in self.members.values() if each.dynamic]:
            member.due = None
            if member.up:
                self._stop_one(member)
        for member in self.known():
            member.due = None
        self.to_stop = [each for each in self.known() if each.up]
        self._go_on()

    def _go_on(self) -> None:
        if self.is_over:
            return
        if self.ending is not None and any(each.dynamic and each.up for each in self.members.values()):
            return
        while self.to_stop:
            last = self.to_stop[-1]
            if last.up and last.stopping:
                return
            if last.up:
                self._stop_one(last)
                return
            self.to_stop.pop()
        if self.ending is not None:
            if not self.is_over and not any(each.up for each in self.members.values()):
                self.is_over = True
                self.over(self.ending)
            return
        self._start_next()

    def kill(self) -> None:
        """It is killed, and all below it."""
        if not self.is_over:
            self._end_below()
            self.over(KILLED)

    def crash(self) -> None:
        """It crashes by itself, and takes all below it with it."""
        if not self.is_over:
            self._end_below()
            self.over(CRASHED)

    def _end_below(self) -> None:
        self.is_over, self.ending = True, KILLED
        for member in reversed(list(self.members.values())):
            member.due = None
            if member.up and member.model is not None:
                member.model._end_below()
            if member.up:
                member.up = False
                self._tell(KILLED.value, member)
            if member.kind.restart is Restart.TEMPORARY:
                self.forget(member)

    # -- deeds

    def fail(self, member: Member) -> None:
        """A child crashes."""
        if member.model is not None:
            member.model.crash()
        else:
            self.ended(member, CRASHED)

    def leave(self, member: Member) -> None:
        """A child stops by itself, or is asked by somebody who is not its supervisor."""
        self.ended(member, NORMAL)

    def killed(self, member: Member) -> None:
        """A child is killed by somebody else."""
        if member.model is not None:
            member.model.kill()
        else:
            self.ended(member, KILLED)

    def stop_child(self, member: Member) -> None:
        """For good."""
        member.leaving = True
        if member.up:
            self._stop_one(member)
        else:
            self.forget(member)
            self._go_on()

    def restart_child(self, member: Member) -> None:
        """By hand."""
        if member.up:
            member.again = True
            self._stop_one(member)
        elif member.due is not None:
            self._start_alone(member)

    def add(self, kind: Kind) -> None:
        """One that comes later."""
        member = self.members[kind.id] = Member(kind, dynamic=True)
        self._start(member)

    def is_calm(self) -> bool:
        """Whether nobody is stopping, here and below."""
        members = self.members.values()
        return (
            self.ending is None
            and not self.to_stop
            and not any(member.stopping for member in members)
            and all(member.model is None or not member.up or member.model.is_calm() for member in members)
        )


def kept(restart: Restart, reason: ExitReason) -> bool:
    """Whether a child that ends so has a next life."""
    return restart is Restart.PERMANENT or (restart is Restart.TRANSIENT and reason is not NORMAL)
