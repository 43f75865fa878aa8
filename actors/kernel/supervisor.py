"""Supervision in OTP's terms: who is started again, in which order, how often, and when to give up.

Starting and stopping of the listed children is sequential: in order, and in reverse order. It is driven by two work
lists, `_to_stop` and `_to_start`; each step ends with a ChildExited or ChildStarted, or with the child's deadline.
Children started later (`start_child`) are independent of each other, and cost a constant amount each.
"""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never

from .actor import Actor
from .cell import Cell, State
from .child_spec import ChildSpec, Strategy
from .errors import ActorDeadError, IntensityExceeded
from .handlers import Asks, Message
from .ref import ASK_TIMEOUT_SECONDS, Ref
from .reply import Ask
from .reports import ChildExited, ChildStarted
from .restart import DEFAULT_BUDGET, Budget, Escalate, History, Restart, decide
from .scheduler import Timer

__all__ = ["Supervisor", "children_of", "start_child", "stop_child"]

logger = logging.getLogger("callboard.kernel")


def start_child(supervisor: Ref, spec: ChildSpec[Message]) -> Ref[Message]:
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
    return supervisor.ask(_WhichChildren(), timeout_seconds)


@dataclass(frozen=True, slots=True)
class _Adopt:
    spec: ChildSpec[Never]
    cell: Cell


@dataclass(frozen=True, slots=True)
class _StopChild:
    child_id: str


@dataclass(frozen=True, slots=True)
class _WhichChildren(Asks[Mapping[str, Ref]]):
    pass


@dataclass(frozen=True, slots=True)
class _Overdue:
    """A child has not stopped within its deadline."""

    child: "_Child"


@dataclass(frozen=True, slots=True)
class _StartNow:
    """A backoff is over: start this child, or (None) go on with the list."""

    by: "Supervisor"
    child: "_Child | None" = None


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

    __slots__ = ("backoff", "cell", "dynamic", "history", "leaving", "overdue", "running", "spec")

    def __init__(self, spec: ChildSpec[Never], cell: Cell, *, dynamic: bool) -> None:
        self.spec = spec
        self.cell = cell
        self.dynamic = dynamic
        self.history = History()
        #: The incarnation we have started and not yet heard the end of.
        self.running: int | None = None
        #: To be removed when it has stopped.
        self.leaving = False
        self.backoff: Timer | None = None
        #: Its deadline, while it is stopping because we told it to.
        self.overdue: Timer | None = None

    @property
    def keeps_its_place(self) -> bool:
        """Whether its address outlives a stop that we order."""
        return not (self.leaving or self.dynamic or self.spec.restart is Restart.TEMPORARY)


class Supervisor(Actor):
    """Starts its children and keeps them alive within its budget of failures."""

    def __init__(
        self,
        children: Sequence[ChildSpec[Never]] = (),
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
        #: The longest backoff among those that failed together, and the timer when it is running.
        self._delay_seconds = 0.0
        self._pause: Timer | None = None
        self._ending = False
        self._failure: IntensityExceeded | None = None

    # -- messages ---------------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Make a place for each listed child, so that all addresses work, then start them one after the other."""
        cell = self._kernel_here()
        wanted = {f"{self.name}/{spec.id}" for spec in self._specs}
        for name, left in tuple((cell.children or {}).items()):
            if name not in wanted and left.restarts >= 0:
                left.close()  # added in an earlier life: nobody remembers how to start it again
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
                if self._children.get(message.child.spec.id) is message.child and message.child.overdue is not None:
                    message.child.cell.kill()
            case _StartNow():
                if message.by is self:
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
        for child in reversed(tuple(self._children.values())):
            if child.backoff is not None:
                child.backoff.cancel()
                child.backoff = None
            if child.running is not None and child.dynamic:
                self._stop_one(child)
        self._to_stop = [child for child in self._listed() if child.running is not None]
        self._stop_next()
        return not self._anyone_up()

    # -- children that are started later ----------------------------------------------------------------------

    def _adopt(self, spec: ChildSpec[Never], cell: Cell) -> None:
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
        if child.running is not None:
            self._stop_one(child)
        else:
            self._remove(child)
            self._go_on()

    # -- ends -------------------------------------------------------------------------------------------------

    def _exited(self, message: ChildExited) -> None:
        child = self._children.get(message.cell.name.rpartition("/")[2])
        if child is None or child.cell is not message.cell or child.running != message.incarnation:
            return  # of a child or an incarnation that we have given up
        child.running = None
        deadline, child.overdue = child.overdue, None
        if deadline is not None:
            deadline.cancel()
        if child.leaving or child.cell.state is State.DEAD:
            self._remove(child)
        elif deadline is None and not self._ending:
            self._failed(child, message)
        self._go_on()

    def _failed(self, child: _Child, message: ChildExited) -> None:
        own = child.spec.intensity
        budget = self._budget if own is None else Budget(own, child.spec.period_seconds)
        now, chance = self.now(), self._chance()
        child.history, verdict = decide(child.history, budget, child.spec.backoff, now, chance)
        delay_seconds = 0.0 if isinstance(verdict, Escalate) else verdict.delay_seconds
        if own is None:
            self._history, verdict = decide(self._history, budget, child.spec.backoff, now, chance)
        if isinstance(verdict, Escalate):
            self._give_up(child, verdict, message)
        elif self._strategy is Strategy.ONE_FOR_ONE or child.dynamic:
            self._restart_later(child, delay_seconds)
        else:
            self._restart_group(child, delay_seconds)

    def _give_up(self, child: _Child, verdict: Escalate, message: ChildExited) -> None:
        budget = verdict.budget
        self._failure = IntensityExceeded(
            f"{self.name}: {verdict.failures} failures within {budget.period_seconds} s, allowed are "
            f"{budget.intensity}; the last was {child.spec.id}, {message.reason.value} ({message.error!r})"
        )
        self._failure.__cause__ = message.error
        if self.on_stopping():
            raise self._failure

    def _restart_later(self, child: _Child, delay_seconds: float) -> None:
        if delay_seconds > 0:
            child.backoff = self.tell_after(delay_seconds, _StartNow(self, child))
        else:
            self._launch(child)

    def _restart_group(self, child: _Child, delay_seconds: float) -> None:
        """Stop all who share the child's fate, then start them again, with whoever was still to be started."""
        listed = self._listed()
        first = listed.index(child) if self._strategy is Strategy.REST_FOR_ONE else 0
        down = {each.spec.id for each in (*self._to_start, *self._to_stop)}
        if self._starting is not None:
            down.add(self._starting.spec.id)
        group = [each for at, each in enumerate(listed) if at >= first or each.spec.id in down]
        self._to_stop = [each for each in group if each.running is not None]
        self._to_start = [each for each in group if each.spec.restart is not Restart.TEMPORARY]
        self._starting = None
        self._delay_seconds = max(self._delay_seconds, delay_seconds)

    def _listed(self) -> list[_Child]:
        return [child for child in self._children.values() if not child.dynamic]

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
            if child.running is not None:
                self._stop_one(child)
                return
            self._to_stop.pop()
        if self._to_start:
            self._start_after_delay()

    def _start_after_delay(self) -> None:
        delay_seconds, self._delay_seconds = self._delay_seconds, 0.0
        if delay_seconds > 0:
            if self._pause is not None:
                self._pause.cancel()
            self._pause = self.tell_after(delay_seconds, _StartNow(self))
        else:
            self._start_next()

    def _start_next(self) -> None:
        while self._to_start and not (self._starting or self._pause or self._to_stop or self._ending):
            child = self._to_start.pop(0)
            self._starting = child
            self._launch(child)

    def _start_now(self, child: _Child | None) -> None:
        if child is None:
            self._pause = None
            self._start_next()
        elif child.backoff is not None:
            child.backoff = None
            self._launch(child)

    def _launch(self, child: _Child) -> None:
        child.cell.announces = not child.dynamic
        if child.cell.start():
            child.running = child.cell.restarts
        else:  # somebody stopped it for good while it waited for its restart
            self._remove(child)

    def _stop_one(self, child: _Child) -> None:
        if child.overdue is None:
            child.overdue = self.tell_after(child.spec.shutdown_seconds, _Overdue(child))
            child.cell.ask_to_stop(keep=child.keeps_its_place)

    def _remove(self, child: _Child) -> None:
        if child.backoff is not None:
            child.backoff.cancel()
        if child is self._starting:
            self._starting = None
        if child in self._to_start:
            self._to_start.remove(child)
        self._children.pop(child.spec.id, None)
        child.cell.close()

    def _anyone_up(self) -> bool:
        return any(child.running is not None for child in self._children.values())


def _make_cell(supervisor: Cell, spec: ChildSpec[Never]) -> Cell:
    return supervisor.system.make_cell(
        spec.start,
        f"{supervisor.name}/{spec.id}",
        capacity=spec.capacity,
        overflow=spec.overflow,
        runs_on=spec.runs_on,
        parent=supervisor,
        restart=spec.restart,
    )
