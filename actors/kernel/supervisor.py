"""Supervision in OTP's terms: who is started again, in which order, how often, and when to give up.

Starting and stopping of the listed children is sequential: in order, and in reverse order. It is driven by two work
lists, `_to_stop` and `_to_start`; each step ends with a ChildExited or ChildStarted, or with the child's deadline.
Children started later (`start_child`) are independent of each other, and cost a constant amount each.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from .actor import Actor
from .cell import Cell, ChildExited, ChildStarted, State
from .errors import ActorDeadError, IntensityExceeded
from .mailbox import CAPACITY, Overflow
from .ref import ASK_TIMEOUT_SECONDS, Ref
from .reply import Ask
from .restart import DEFAULT_BUDGET, Backoff, Budget, Escalate, History, Restart, decide, wants_restart
from .scheduler import Timer
from .system import RunsOn

__all__ = ["SHUTDOWN_SECONDS", "ChildSpec", "Strategy", "Supervisor", "children_of", "start_child", "stop_child"]

logger = logging.getLogger("callboard.kernel")

#: How long a child may take to stop before it is killed (OTP's default).
SHUTDOWN_SECONDS: Final = 5.0


class Strategy(Enum):
    """Which siblings share a child's fate."""

    ONE_FOR_ONE = "one_for_one"
    """None."""
    REST_FOR_ONE = "rest_for_one"
    """Those listed after it, which are built on it."""
    ONE_FOR_ALL = "one_for_all"
    """All."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to start a child, and what its end means."""

    id: str
    """Unique among its siblings; the actor's name is `supervisor/id`."""
    start: Callable[[], Actor]
    """Makes a new actor for each incarnation. Runs where the actor runs."""
    restart: Restart = Restart.PERMANENT
    shutdown_seconds: float = SHUTDOWN_SECONDS
    """How long it may take to stop; then it is killed."""
    intensity: int | None = None
    """Failures in `period_seconds` this child alone may have; None leaves it to the supervisor's budget."""
    period_seconds: float = DEFAULT_BUDGET.period_seconds
    backoff: Backoff = Backoff()
    capacity: int = CAPACITY
    overflow: Overflow = Overflow.REFUSE
    runs_on: RunsOn = "loop"

    def __post_init__(self) -> None:
        if not self.id or "/" in self.id:
            raise ValueError(f"a child's id is one part of a path, without '/', got {self.id!r}")
        if self.shutdown_seconds < 0:
            raise ValueError(f"{self.id}: shutdown_seconds is {self.shutdown_seconds}: it cannot be negative")
        if self.intensity is not None:
            Budget(self.intensity, self.period_seconds)  # raises what is wrong with them


def start_child(supervisor: Ref, spec: ChildSpec) -> Ref:
    """Add a child while the supervisor runs. Any thread; returns at once with an address that works already.

    Raises NameTaken when a child with this id is alive, ActorDeadError when the supervisor is dead.
    """
    cell = _make_cell(supervisor._cell, spec)
    supervisor.tell_control(Ask(_Adopt(spec, cell), _CloseIfRefused(cell)))
    if not cell.mailbox.is_open and not supervisor.is_alive():
        raise ActorDeadError(f"{cell.name} was not started: its supervisor is dead")
    return cell.ref


def stop_child(supervisor: Ref, child_id: str) -> None:
    """Stop a child for good: asked first, then killed. Returns at once; an unknown id is fine."""
    supervisor.tell_control(_StopChild(child_id))


def children_of(supervisor: Ref, timeout_seconds: float = ASK_TIMEOUT_SECONDS) -> Mapping[str, Ref]:
    """The supervisor's children by id, in order of their start. A blocking ask."""
    found: Mapping[str, Ref] = supervisor.ask(_WhichChildren(), timeout_seconds)
    return found


@dataclass(frozen=True, slots=True)
class _Adopt:
    spec: ChildSpec
    cell: Cell


@dataclass(frozen=True, slots=True)
class _StopChild:
    child_id: str


@dataclass(frozen=True, slots=True)
class _WhichChildren:
    pass


@dataclass(frozen=True, slots=True)
class _Overdue:
    """A child has not stopped within its deadline."""

    child: "_Child"
    restarts: int


@dataclass(frozen=True, slots=True)
class _StartNow:
    """A backoff is over: start this child, or (None) go on with the list."""

    child: "_Child | None"


class _CloseIfRefused:
    """Answers an `_Adopt`: when the supervisor ends before it handled it, the child must not wait for ever."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def answer(self, value: Any) -> None:
        """Adopted."""

    def fail(self, error: BaseException) -> None:
        """Not adopted."""
        self._cell.close()


class _Child:
    """What a supervisor knows of a child."""

    __slots__ = ("cell", "dynamic", "history", "leaving", "overdue", "spec", "timer", "up")

    def __init__(self, spec: ChildSpec, cell: Cell, *, dynamic: bool) -> None:
        self.spec = spec
        self.cell = cell
        self.dynamic = dynamic
        self.history = History()
        self.up = False  # between our start() and its ChildExited
        self.leaving = False  # stopped for good as soon as it has stopped
        self.timer: Timer | None = None  # of its backoff
        self.overdue: Timer | None = None  # of its shutdown


class Supervisor(Actor):
    """Starts its children and keeps them alive within its budget of failures."""

    def __init__(
        self,
        children: Sequence[ChildSpec] = (),
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: int = DEFAULT_BUDGET.intensity,
        period_seconds: float = DEFAULT_BUDGET.period_seconds,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        ids = [spec.id for spec in children]
        if len(set(ids)) < len(ids):
            raise ValueError(f"children of one supervisor need different ids, got {ids}")
        self._specs = tuple(children)
        self._strategy = strategy
        self._budget = Budget(intensity, period_seconds)
        self._history = History()
        self._chance = chance
        self._children: dict[str, _Child] = {}
        self._to_stop: list[_Child] = []
        self._to_start: list[_Child] = []
        self._starting: _Child | None = None
        self._delay_seconds = 0.0
        self._ending = False
        self._failure: IntensityExceeded | None = None

    # -- messages ---------------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Make a place for each listed child, so that all addresses work, then start them one after the other."""
        cell = self._kernel_here()
        wanted = {f"{self.name}/{spec.id}" for spec in self._specs}
        for name, left in tuple((cell.children or {}).items()):
            if name not in wanted:  # started later in an earlier life: nobody remembers how to start it
                left.close()
        for spec in self._specs:
            kept = (cell.children or {}).get(f"{self.name}/{spec.id}")
            self._children[spec.id] = _Child(spec, kept or _make_cell(cell, spec), dynamic=False)
        self._to_start = list(self._children.values())
        self._start_next()

    def on_receive(self, message: Any) -> Any:
        """Children report, and callers ask for changes."""
        match message:
            case ChildExited():
                self._exited(message)
            case ChildStarted():
                if self._starting is not None and self._starting.cell is message.cell:
                    self._starting = None
                    self._start_next()
            case _Adopt():
                self._adopt(message.spec, message.cell)
            case _StopChild():
                self._stop_for_good(message.child_id)
            case _Overdue():
                if message.child.up and message.child.cell.restarts == message.restarts:
                    message.child.cell.kill()
            case _StartNow():
                self._start_now(message.child)
            case _WhichChildren():
                return {child_id: child.cell.ref for child_id, child in self._children.items()}
            case _:
                return super().on_receive(message)
        return None

    def on_stopping(self) -> bool:
        """Stop the children, the last one first; those started later all at once, before the others."""
        self._ending = True
        self._to_start.clear()
        self._starting = None
        for child in self._children.values():
            if child.timer is not None:
                child.timer.cancel()
                child.timer = None
        for child in reversed(tuple(self._children.values())):
            if child.up and child.dynamic:
                self._stop_one(child)
        self._to_stop = [child for child in self._children.values() if child.up and not child.dynamic]
        self._stop_next()
        return not self._anyone_up()

    # -- children that are started later ----------------------------------------------------------------------

    def start_child(self, spec: ChildSpec) -> Ref:
        """Add a child; for subclasses, in their own handlers. Others call the function of this name."""
        cell = _make_cell(self._kernel_here(), spec)
        self._adopt(spec, cell)
        return cell.ref

    def stop_child(self, child_id: str) -> None:
        """Stop a child for good; for subclasses, in their own handlers. Others call the function of this name."""
        self._stop_for_good(child_id)

    def _adopt(self, spec: ChildSpec, cell: Cell) -> None:
        if self._ending:
            cell.close()
            return
        child = self._children[spec.id] = _Child(spec, cell, dynamic=True)
        self._launch(child)

    def _stop_for_good(self, child_id: str) -> None:
        child = self._children.get(child_id)
        if child is None:
            return
        child.leaving = True
        if child.up:
            self._stop_one(child)
        else:
            self._remove(child)

    # -- ends -------------------------------------------------------------------------------------------------

    def _exited(self, message: ChildExited) -> None:
        child = self._children.get(message.cell.name.rpartition("/")[2])
        if child is None or child.cell is not message.cell:
            return
        stopped_by_us = child.overdue is not None
        child.up = False
        if child.overdue is not None:
            child.overdue.cancel()
            child.overdue = None
        if child is self._starting:
            self._starting = None
        if child.leaving or child.cell.state is State.DEAD:
            self._remove(child)
        elif not stopped_by_us and not self._ending:
            self._failed(child, message)
        self._go_on()

    def _failed(self, child: _Child, message: ChildExited) -> None:
        if not wants_restart(child.spec.restart, message.reason):
            self._remove(child)
            return
        now, chance = self.now(), self._chance()
        own = Budget(child.spec.intensity, child.spec.period_seconds) if child.spec.intensity is not None else None
        self._history, verdict = decide(self._history, self._budget, child.spec.backoff, now, chance)
        child.history, own_verdict = decide(child.history, own or self._budget, child.spec.backoff, now, chance)
        if own is not None and isinstance(own_verdict, Escalate):
            verdict = own_verdict
        if isinstance(verdict, Escalate) or isinstance(own_verdict, Escalate):
            self._give_up(child, verdict if isinstance(verdict, Escalate) else own_verdict, message)
        elif self._strategy is Strategy.ONE_FOR_ONE or child.dynamic:
            self._restart_later(child, own_verdict.delay_seconds)
        else:
            self._restart_group(child, own_verdict.delay_seconds)

    def _give_up(self, child: _Child, verdict: Any, message: ChildExited) -> None:
        budget = verdict.budget
        self._failure = IntensityExceeded(
            f"{self.name}: {verdict.failures} failures within {budget.period_seconds} s, allowed are "
            f"{budget.intensity}; the last was {child.spec.id}, {message.reason.value} ({message.error!r})"
        )
        self._failure.__cause__ = message.error
        if self.on_stopping():
            raise self._failure

    def _restart_later(self, child: _Child, delay_seconds: float) -> None:
        if delay_seconds <= 0:
            self._launch(child)
        else:
            child.timer = self.tell_after(delay_seconds, _StartNow(child))

    def _restart_group(self, child: _Child, delay_seconds: float) -> None:
        listed = [each for each in self._children.values() if not each.dynamic]
        first = listed.index(child) if self._strategy is Strategy.REST_FOR_ONE else 0
        group = listed[first:]
        waiting = {id(each) for each in (*group, *self._to_start)}
        if self._starting is not None:
            waiting.add(id(self._starting))
        self._to_stop = [each for each in listed if each.up and (each in group or each in self._to_stop)]
        self._to_start = [each for each in listed if id(each) in waiting]
        self._starting = None
        self._delay_seconds = max(self._delay_seconds, delay_seconds)
        # One that is being stopped already is waited for; otherwise begin with the last.

    # -- the two work lists -----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """After each end: the next step of whatever is under way."""
        if self._to_stop or self._ending:
            self._stop_next()
        elif self._to_start and self._starting is None:
            self._start_after_delay()
        if self._ending and not self._anyone_up():
            if self._failure is not None:
                raise self._failure
            self.stopped()

    def _stop_next(self) -> None:
        while self._to_stop:
            child = self._to_stop[-1]
            if child.up and child.overdue is None:
                self._stop_one(child)
            if child.up:
                return
            self._to_stop.pop()
        if self._to_start and not self._ending:
            self._start_after_delay()

    def _start_after_delay(self) -> None:
        delay_seconds, self._delay_seconds = self._delay_seconds, 0.0
        if delay_seconds > 0:
            self.tell_after(delay_seconds, _StartNow(None))
        else:
            self._start_next()

    def _start_next(self) -> None:
        if self._ending or self._to_stop:
            return
        while self._to_start and self._starting is None:
            child = self._to_start.pop(0)
            if child.spec.restart is not Restart.TEMPORARY:  # a temporary child does not report its start
                self._starting = child
            self._launch(child)

    def _start_now(self, child: _Child | None) -> None:
        if child is None:
            self._start_next()
        elif child.timer is not None:
            child.timer = None
            self._launch(child)

    def _launch(self, child: _Child) -> None:
        child.up = child.cell.start()
        if not child.up:  # somebody stopped it for good while it waited for its restart
            self._remove(child)

    def _stop_one(self, child: _Child) -> None:
        child.overdue = self.tell_after(child.spec.shutdown_seconds, _Overdue(child, child.cell.restarts))
        child.cell.ask_to_stop(keep=not (child.leaving or child.dynamic or self._ending))

    def _remove(self, child: _Child) -> None:
        if child.timer is not None:
            child.timer.cancel()
        if child is self._starting:
            self._starting = None
        self._children.pop(child.spec.id, None)
        child.cell.close()

    def _anyone_up(self) -> bool:
        return any(child.up for child in self._children.values())


def _make_cell(supervisor: Cell, spec: ChildSpec) -> Cell:
    return supervisor.system.make_cell(
        spec.start,
        f"{supervisor.name}/{spec.id}",
        capacity=spec.capacity,
        overflow=spec.overflow,
        runs_on=spec.runs_on,
        parent=supervisor,
        restart=spec.restart,
    )
