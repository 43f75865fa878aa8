"""Supervision in OTP's terms: who is started again, in which order, how often, and when to give up.

The listed children are started one after the other and stopped in reverse order, by two work lists, `_to_stop` and
`_to_start`; each step ends with a ChildExited or ChildStarted, or with the child's deadline. Children started later
(`start_child`) are independent of each other, and cost a constant amount each.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, Generic, Never

from msgspec import Struct

from .actor import Actor, Message, handles
from .cell import Cell, ChildExited, ChildStarted, State
from .errors import ActorDeadError, IntensityExceeded, contained, logger, text_of
from .mailbox import CAPACITY
from .ref import ASK_TIMEOUT_SECONDS, M, Ref
from .reply import Ask, Asks, ReplyTo
from .restart import DEFAULT_BUDGET, Backoff, Budget, History, Restart
from .scheduler import Timer
from .system import ActorSystem, RunsOn, cell_of

#: How long a child may take to stop before it is killed (OTP's default).
SHUTDOWN_SECONDS: Final = 5.0


class Strategy(Enum):
    """Which siblings restart with a child: none, those listed after it (which are built on it), or all."""

    ONE_FOR_ONE = "one_for_one"
    REST_FOR_ONE = "rest_for_one"
    ONE_FOR_ALL = "one_for_all"


class ChildSpec(Struct, Generic[M], frozen=True):
    """How to start a child, and what its end means."""

    id: str
    """Unique among its siblings; the actor's name is `supervisor/id`."""
    start: Callable[[], Actor[M]]
    """Makes a new actor for each incarnation. Runs where the actor runs."""
    restart: Restart = Restart.PERMANENT
    shutdown_seconds: float = SHUTDOWN_SECONDS
    """How long it may take to stop; then it is killed."""
    intensity: int | None = None
    """A budget of its own, in `period_seconds`; None means the one it shares with its siblings."""
    period_seconds: float = DEFAULT_BUDGET.period_seconds
    backoff: Backoff = Backoff()
    capacity: int = CAPACITY
    runs_on: RunsOn = "loop"

    def __post_init__(self) -> None:
        if not self.id or "/" in self.id:
            raise ValueError(f"a child's id is one part of a path, without '/', got {self.id!r}")
        if self.shutdown_seconds < 0:
            raise ValueError(f"{self.id}: shutdown_seconds is {self.shutdown_seconds}: it cannot be negative")
        if self.intensity is not None:
            Budget(self.intensity, self.period_seconds)  # raises what is wrong with them


class _Adopt(ReplyTo, Struct, frozen=True):
    """Takes its own answer: a supervisor that fails before it has the child leaves nothing that waits for a start."""

    spec: ChildSpec[Never]
    cell: Cell

    def _end(self, value: object, error: BaseException | None) -> None:
        if error is not None:
            self.cell.close()


class _StopChild(Struct, frozen=True):
    child_id: str


class _RestartChild(Struct, frozen=True):
    child_id: str


class _WhichChildren(Asks[Mapping[str, Ref]], Struct, frozen=True):
    pass


class _Overdue(Struct, frozen=True):
    """A child has not stopped within its deadline."""

    child: "_Child"


class _StartNow(Struct, frozen=True):
    """A backoff is over: start this child, or (None) go on with the list."""

    by: "Supervisor"
    child: "_Child | None" = None


class _Child(Struct, eq=False):
    """What a supervisor knows of a child."""

    spec: ChildSpec[Never]
    cell: Cell
    dynamic: bool
    history: History = History()
    running: int | None = None
    """The incarnation we have started and not yet heard the end of."""
    leaving: bool = False
    """To be removed when it has stopped."""
    again: bool = False
    """To be started again when it has stopped, as somebody has asked for it: that is no failure."""
    backoff: Timer | None = None
    overdue: Timer | None = None
    """Its deadline, while it is stopping because we told it to."""

    __repr__ = object.__repr__


SupervisorMessage = (
    ChildExited | ChildStarted | _Adopt | _StopChild | _RestartChild | _WhichChildren | _Overdue | _StartNow
)
"""What a supervisor takes: from its children, from `start_child`, `stop_child` and `children_of`, from its timers."""


def start_child(supervisor: Ref[SupervisorMessage], spec: ChildSpec[Message]) -> Ref[Message]:
    """Add a child while the supervisor runs. Any thread; returns at once with an address that works already.

    Raises NameTaken when a child with this id is alive, ActorDeadError when the supervisor is dead.
    """
    cell = _make_cell(cell_of(supervisor), spec)
    address: Ref = supervisor
    address.tell_control(Ask(adopt := _Adopt(spec, cell), adopt))
    if not supervisor.is_alive():
        cell.close()
        raise ActorDeadError(f"{cell.name} was not started: its supervisor is dead")
    return cell.ref


def stop_child(supervisor: Ref[SupervisorMessage], child_id: str) -> None:
    """Stop a child for good: asked first, then killed. Returns at once; an unknown id is fine."""
    supervisor.tell_control(_StopChild(child_id))


def restart_child(supervisor: Ref[SupervisorMessage], child_id: str) -> None:
    """Stop a child, killed where it does not stop in its time, and start it again. It counts as no failure, and no
    other child restarts with it. One that waits for its restart is started at once. Returns at once."""
    supervisor.tell_control(_RestartChild(child_id))


def children_of(supervisor: Ref[SupervisorMessage], timeout_seconds: float = ASK_TIMEOUT_SECONDS) -> Mapping[str, Ref]:
    """The supervisor's children by id, in order of their start. A blocking ask; a handler uses `Actor.children`."""
    return supervisor.ask(_WhichChildren(), timeout_seconds)


class Supervisor(Actor[SupervisorMessage]):
    """Starts its children and keeps them alive within its budget of failures."""

    def __init__(
        self,
        children: Sequence[ChildSpec[Never]] = (),
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: int = DEFAULT_BUDGET.intensity,
        period_seconds: float = DEFAULT_BUDGET.period_seconds,
        *,
        chance: Callable[[], float] = random.random,
        gives_up: Callable[[IntensityExceeded], object] | None = None,
    ) -> None:
        """`gives_up` is called when the budget is spent, before the children are stopped: that may take some seconds,
        and monitors hear of this supervisor's end only behind it."""
        ids = [spec.id for spec in children]
        if len(set(ids)) < len(ids):
            raise ValueError(f"children of one supervisor need different ids, got {ids}")
        self._specs = tuple(children)
        self._strategy = strategy
        self._budget = Budget(intensity, period_seconds)
        self._history = History()
        self._chance = chance
        self._gives_up = gives_up
        self._children: dict[str, _Child] = {}
        self._to_stop: list[_Child] = []
        self._to_start: list[_Child] = []
        self._starting: _Child | None = None
        #: The longest backoff among those that failed together, and the timer when it is running.
        self._delay_seconds = 0.0
        self._pause: Timer | None = None
        self._paused_until = 0.0
        self._ending = False
        self._failure: IntensityExceeded | None = None

    # -- messages ---------------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Make a place for each listed child, so that all addresses work, then start them one after the other."""
        cell = cell_of(self.ref)
        wanted = {f"{self.name}/{spec.id}" for spec in self._specs}
        for name, left in tuple(cell.children.items()):
            if name not in wanted and left.restarts >= 0:
                left.close()  # added in an earlier life, of which no spec is left to start it again by
        for spec in self._specs:
            kept = cell.children.get(f"{self.name}/{spec.id}")
            self._children[spec.id] = _Child(spec, kept or _make_cell(cell, spec), dynamic=False)
        self._to_start = list(self._children.values())
        self._start_next()

    @handles(ChildStarted)
    def _child_started(self, message: ChildStarted) -> None:
        if self._starting is not None and self._starting.cell is message.cell:
            self._starting = None
            self._start_next()

    @handles(_WhichChildren)
    def _which_children(self, _message: _WhichChildren) -> Mapping[str, Ref]:
        return {child_id: child.cell.ref for child_id, child in self._children.items()}

    def on_stopping(self) -> bool:
        """Stop the children: those started later all at once, and when they have stopped the others, last one first."""
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

    @handles(_Adopt)
    def _adopt(self, message: _Adopt) -> None:
        if self._ending:
            message.cell.close()
            return
        child = self._children[message.spec.id] = _Child(message.spec, message.cell, dynamic=True)
        self._launch(child)

    @handles(_StopChild)
    def _stop_for_good(self, message: _StopChild) -> None:
        child = self._children.get(message.child_id)
        if child is None:
            return
        child.leaving = True
        if child.running is not None:
            self._stop_one(child)
        else:
            self._remove(child)
            self._go_on()

    @handles(_RestartChild)
    def _restart_one(self, message: _RestartChild) -> None:
        child = self._children.get(message.child_id)
        if child is None or child.leaving or self._ending:
            return
        if child.running is not None:
            child.again = True
            self._stop_one(child)
        elif child.backoff is not None:
            child.backoff.cancel()
            child.backoff = None
            self._launch(child)

    # -- ends -------------------------------------------------------------------------------------------------

    @handles(_Overdue)
    def _kill(self, message: _Overdue) -> None:
        child = message.child
        if self._children.get(child.spec.id) is child and child.overdue is not None:
            child.cell.kill()

    @handles(ChildExited)
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
        elif child.again and not self._ending:
            child.again = False
            self._launch(child)
        elif deadline is None and not self._ending:
            self._failed(child, message)
        self._go_on()

    def _failed(self, child: _Child, message: ChildExited) -> None:
        spec, now = child.spec, self.now()
        budget = self._budget if spec.intensity is None else Budget(spec.intensity, spec.period_seconds)
        counted = child.history = child.history.after(now, budget, spec.backoff)
        if spec.intensity is None:  # the failures of its siblings count too
            counted = self._history = self._history.after(now, budget, spec.backoff)
        if len(counted.failures) > budget.intensity:
            self._give_up(child, counted, budget, message)
            return
        delay_seconds = spec.backoff.delay_seconds(child.history.streak, self._chance())
        after = f" after {delay_seconds:.2g} s" if delay_seconds else ""
        logger.info("%s (%s) is started again%s", child.cell.name, message.reason.value, after)
        if self._strategy is not Strategy.ONE_FOR_ONE and not child.dynamic:
            self._restart_group(child, delay_seconds)
        elif delay_seconds > 0:
            child.backoff = self.tell_after(delay_seconds, _StartNow(self, child))
        else:
            self._launch(child)

    def _give_up(self, child: _Child, counted: History, budget: Budget, message: ChildExited) -> None:
        failure = IntensityExceeded(
            f"{self.name}: {len(counted.failures)} failures within {budget.period_seconds} s, allowed are "
            f"{budget.intensity}; the last was {child.spec.id}, {message.reason.value} ({text_of(message.error)})"
        )
        if child.dynamic and child.spec.intensity is not None:
            logger.error("%s: that child alone is given up", failure)
            self._remove(child)
            return
        failure.__cause__ = message.error
        self._failure = failure
        if (gives_up := self._gives_up) is not None:
            contained(lambda: gives_up(failure), f"what {self.name} tells that it gives up")
        if self.on_stopping():
            raise failure

    def _restart_group(self, child: _Child, delay_seconds: float) -> None:
        """Stop all that restart together with the child, then start them, and those that were still to be started."""
        listed = self._listed()
        first = listed.index(child) if self._strategy is Strategy.REST_FOR_ONE else 0
        down = (*self._to_start, *self._to_stop, self._starting)
        group = [each for at, each in enumerate(listed) if at >= first or each in down]
        self._to_stop = [each for each in group if each.running is not None]
        # A temporary one that has run is not started again; one that has not yet had its turn still gets it.
        self._to_start = [
            each for each in group if each.spec.restart is not Restart.TEMPORARY or each in self._to_start
        ]
        self._starting = None
        self._delay_seconds = max(self._delay_seconds, delay_seconds)

    def _listed(self) -> list[_Child]:
        return [child for child in self._children.values() if not child.dynamic]

    # -- the two work lists -----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """After each end: the next step of the stop, start or restart under way."""
        self._stop_next()
        if self._ending and not self._anyone_up():
            if self._failure is not None:
                raise self._failure
            self.stopped()

    def _stop_next(self) -> None:
        if self._ending and any(child.dynamic and child.running is not None for child in self._children.values()):
            return
        while self._to_stop:
            child = self._to_stop[-1]
            if child.running is not None:
                self._stop_one(child)
                return
            self._to_stop.pop()
        self._start_next()

    def _start_next(self) -> None:
        if self._to_start and self._delay_seconds > 0 and not self._to_stop:
            until, self._delay_seconds = self.now() + self._delay_seconds, 0.0
            if self._pause is None or until > self._paused_until:
                if self._pause is not None:
                    self._pause.cancel()
                self._pause, self._paused_until = self.tell_at(until, _StartNow(self)), until
        while self._to_start and not (self._starting or self._pause or self._to_stop or self._ending):
            self._starting = self._to_start.pop(0)
            self._launch(self._starting)

    @handles(_StartNow)
    def _start_now(self, message: _StartNow) -> None:
        child = message.child
        if message.by is not self:
            return  # set by an earlier incarnation
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
        else:  # it was stopped for good while it waited for its restart
            self._remove(child)
            self._start_next()  # it may have held up those after it

    def _stop_one(self, child: _Child) -> None:
        if child.overdue is None:
            child.overdue = self.tell_after(child.spec.shutdown_seconds, _Overdue(child))
            gone = child.leaving or (child.dynamic and not child.again) or child.spec.restart is Restart.TEMPORARY
            child.cell.ask_to_stop(keep=not gone)  # kept: its address stays valid for its next incarnation

    def _remove(self, child: _Child) -> None:
        if child.backoff is not None:
            child.backoff.cancel()
        if child is self._starting:
            self._starting = None
        self._to_start = [each for each in self._to_start if each is not child]
        if self._children.get(child.spec.id) is child:  # another one may have its id by now
            del self._children[child.spec.id]
        child.cell.close()

    def _anyone_up(self) -> bool:
        return any(child.running is not None for child in self._children.values())


def _make_cell(supervisor: Cell, spec: ChildSpec[Never]) -> Cell:
    system = supervisor.system
    assert isinstance(system, ActorSystem)
    name = f"{supervisor.name}/{spec.id}"
    return system.make_cell(
        spec.start, name, capacity=spec.capacity, runs_on=spec.runs_on, parent=supervisor, restart=spec.restart
    )
