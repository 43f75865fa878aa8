"""The place where an actor lives: it keeps the address, the mailbox and the account while incarnations come and go.

    STARTING -> RUNNING -> STOPPING -> (WAITING -> STARTING ...) -> DEAD

WAITING is the time between two incarnations of a supervised actor; messages wait in the mailbox meanwhile. All of an
incarnation's life happens on its executor; a kill comes from elsewhere, and to a `ThreadCell` also during a handler.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, Never

from msgspec import Struct

from . import errors
from .accounts import ActorInfo, DeadLetterReason, Statistics
from .actor import Actor, Handler
from .errors import DependencyLost, Rejected, logger, text_of
from .mailbox import LATE, NOTHING, WAKE, Mailbox, Signal
from .ref import Down, Monitor, Ref, System
from .reply import Ask, Reply
from .restart import ExitReason, Restart, wants_restart
from .scheduler import LOOKS_AT_CLOCK, TURN_SECONDS, Executor, OwnThread, Run


class State(Enum):
    """Where in its life an actor is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    DEAD = "dead"


class ChildStarted(Struct, frozen=True):
    """To a supervisor: the child's on_start has returned."""

    cell: "Cell"


class ChildExited(Struct, frozen=True):
    """To a supervisor: the child's incarnation has ended."""

    cell: "Cell"
    incarnation: int
    reason: ExitReason
    error: BaseException | None


#: Shared by all cells without children (an idle actor is cheaper for it): replaced by an own one, never added to.
_NO_CHILDREN: Final[dict[str, "Cell"]] = {}


@dataclass(slots=True, eq=False, repr=False)
class Cell:
    """One actor's place in the system."""

    system: System
    _factory: Callable[[], object]
    name: str
    mailbox: Mailbox
    executor: Executor
    parent: "Cell | None" = None
    restart: Restart = Restart.TEMPORARY
    ref: Ref = field(init=False)
    actor: Actor[Never] | None = None
    state: State = State.WAITING
    announces: bool = False
    """Whether its supervisor waits for its start; children that come and go spare themselves that message."""
    asks: "Cell | None" = None
    """Whose answer its handler waits for; only one on a thread may."""
    current: object = NOTHING
    since_seconds: float = 0.0
    handled: int = 0
    restarts: int = -1
    start_failure: tuple[str, BaseException] | None = None
    """The first start that failed, of this actor or of a permanent one below it: its name and why."""
    children: dict[str, "Cell"] = field(default_factory=lambda: _NO_CHILDREN)
    """By name, in order of their start. Read it under `system.lock`."""
    _handler_of: Callable[[type], Handler | None] = field(init=False)
    _under_way: Sequence[bool] = ()
    """The turn that another thread than the actors' has scheduled; empty once it has begun."""
    _keep: bool = False
    _epoch: int = 0
    """Incarnations ended; tells a late handler that its time is over."""
    _monitors: dict[Monitor, None] | None = None
    """Not a set: its order would differ from run to run."""
    _error: BaseException | None = None
    """What its last incarnation crashed with, for who begins to watch it when it has ended."""

    def __post_init__(self) -> None:
        self.ref = Ref(self)
        if self.parent is not None:
            self.parent.children = self.parent.children or {}
            self.parent.children[self.name] = self

    # -- turns ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Schedule a turn. On the actors' own thread that is marked before; what interrupts another one between mark
        and deed would leave the mark alone, and no turn would ever come. There it is marked behind, on an object of
        this turn: it may have begun by then."""
        if self.system.scheduler.may_mark():
            self.mailbox.awake = True
            self.executor.call_soon(self.run)
        elif not self._under_way:
            under_way = [True]
            self.executor.call_soon(partial(self._woken, under_way))
            self._under_way = under_way

    def _woken(self, under_way: list[bool]) -> None:
        under_way.clear()
        self.run()

    def run(self) -> None:
        """One turn: the scheduler calls it whenever there is work."""
        actor = self.actor or self._begin(self._epoch)
        if actor is None:
            return
        self.mailbox.awake = True
        system, epoch = self.system, self._epoch
        take, handler_of = self.mailbox.take, self._handler_of
        left = system.turn_messages
        started = self.since_seconds = system.scheduler.turn_began
        while (item := take()) is not NOTHING:
            self.current = item
            try:
                handler = handler_of(type(item))
                if handler is not None:
                    handler(actor, item)
                elif type(item) is not Signal:
                    dispatch(actor, item)
                elif self._obey(item, actor, epoch):
                    return
                else:
                    continue
                self.handled += 1
            except BaseException as error:  # noqa: BLE001 - contained here, and reported to those it concerns
                if not self._declined(item, error, epoch):
                    return
            self.current = NOTHING
            left -= 1
            if left % LOOKS_AT_CLOCK == 0:
                self.since_seconds = system.now()
                if not left or self.since_seconds - started > TURN_SECONDS:
                    if not self.mailbox.sleep():
                        self.executor.call_soon(self.run)
                    return

    def _begin(self, epoch: int) -> Actor[Never] | None:
        """Make and start the next incarnation, if that is due; None when it failed or was given up meanwhile."""
        if self.state is not State.STARTING:
            return None
        try:
            actor = self._factory()
            if not isinstance(actor, Actor):
                found = text_of(actor)
                raise errors.NotSpawned(f"the factory of {self.name} returned {found}, which is not a kernel Actor")
            actor._kernel_enter(self)
            if not self._advance(epoch, actor, State.STARTING):
                return None
            self.since_seconds = self.system.now()
            actor.on_start()
        except BaseException as error:  # noqa: BLE001 - as in run()
            self._start_failed(epoch, error)
            return None
        if not self._advance(epoch, actor, State.RUNNING):
            return None
        self.system.look_at_starts()
        if self.announces and self.parent is not None:
            self.parent.ref.tell_control(ChildStarted(self))
        return actor

    def _advance(self, epoch: int, actor: Actor[Never], state: State) -> bool:
        with self.system.lock:
            if epoch != self._epoch:
                return False
            self.actor, self.state = actor, state
            self._handler_of = actor._kernel_dispatch.get
            return True

    def _start_failed(self, epoch: int, error: BaseException) -> None:
        logger.warning("%s could not start: %s", self.name, text_of(error), exc_info=error)
        if self.restarts == 0:
            cell: Cell | None = self
            while cell is not None and cell.start_failure is None:
                cell.start_failure = (self.name, error)
                cell = cell.parent if cell.restart is Restart.PERMANENT else None
        self._end(epoch, ExitReason.CRASHED, error)

    def not_started(self) -> "Cell | None":
        """The first of this actor and the permanent ones below it that does not run; None when all do."""
        if self.state is not State.RUNNING:
            return self
        below = (child for child in self.children.values() if child.restart is Restart.PERMANENT)
        return next((left for child in below if (left := child.not_started()) is not None), None)

    def _obey(self, signal: object, actor: Actor[Never], epoch: int) -> bool:
        """Carry out a signal; True when the incarnation has ended with it."""
        self.current = NOTHING
        if signal is not Signal.FINISH:
            self._keep = signal is Signal.HALT
            if self.state is State.STOPPING:
                return False
            self.state = State.STOPPING
            if not actor.on_stopping():
                return False
        elif self.state is not State.STOPPING:
            return False
        actor.on_stop()
        self._end(epoch, ExitReason.NORMAL, None)
        return True

    def _declined(self, item: object, error: BaseException, epoch: int) -> bool:
        """What a handler has raised: True when it only declined its message, else its incarnation has ended."""
        if isinstance(error, Rejected) and type(item) is not Signal:
            self.bury(item, DeadLetterReason.REJECTED, error)
            return True
        crash, ids = (None, error.ids) if isinstance(error, DependencyLost) else (error, None)
        told = "%s crashed on a %s: %s"
        logger.warning(told, self.name, type_name(item), text_of(error), exc_info=crash, extra=ids)
        self._note_dead(item, DeadLetterReason.CRASHED, error)
        self._end(epoch, ExitReason.CRASHED, error)
        if type(item) is Ask:
            item.reply.fail(error)  # last, so that an asker who looks finds the actor dead
        return False

    # -- ends -------------------------------------------------------------------------------------------------

    def _end(self, epoch: int, reason: ExitReason, error: BaseException | None) -> None:
        """End the incarnation of that epoch, once, and report it to all that depend on it."""
        with self.system.lock:
            if epoch != self._epoch or self.state in (State.WAITING, State.DEAD):
                return
            self._epoch += 1
            actor, self.actor = self.actor, None
            self.current = NOTHING
            monitors, self._monitors = self._monitors, None
            incarnation = self.restarts
            kept = self._keep or (self.parent is not None and wants_restart(self.restart, reason))
            self._keep = False
            self._error = None if kept else error
            self.state = State.WAITING
        self.mailbox.hold()
        if actor is not None:
            actor._kernel_leave(self)
        # Without their supervisor nothing looks after its children. Those that will be started again keep their cells.
        for child in reversed(tuple(self.children.values())):
            child.kill()
        if not kept:
            self.close()
        self._report(monitors, reason, error)
        if self.parent is not None:
            self.parent.ref.tell_control(ChildExited(self, incarnation, reason, error))

    def close(self, reason: ExitReason = ExitReason.NOT_ALIVE) -> None:
        """End for good: what waits becomes dead letters, and each asker gets its answer at once."""
        with self.system.lock:
            if self.state is State.DEAD:
                return
            self.state = State.DEAD
            # Cell and ref are a cycle and wait for the garbage collector; what the factory holds must not.
            self._factory = object
            monitors, self._monitors = self._monitors, None  # set while there was no incarnation
        for item in self.mailbox.close():
            self.bury(item, DeadLetterReason.STOPPED)
        for child in tuple(self.children.values()):
            child.close()
        with self.system.lock:
            if self.parent is not None:
                self.parent.children.pop(self.name, None)
            self.system.forget(self.name, self.account())
        self._report(monitors, reason, self._error)

    def _report(self, monitors: dict[Monitor, None] | None, reason: ExitReason, error: BaseException | None) -> None:
        self.system.look_at_starts()
        if monitors:
            down = Down(self.ref, reason, error)
            for monitor in monitors:
                monitor.fire(down)

    def kill(self) -> None:
        """End the incarnation without asking it; on the loop thread, where none of our handlers can be running."""
        if self.state is State.WAITING and self.restart is Restart.TEMPORARY:
            self.close(ExitReason.KILLED)
        self._end(self._epoch, ExitReason.KILLED, None)

    def lost(self, item: object) -> None:
        """Something was sent after the end."""
        self.bury(item, DeadLetterReason.NOT_ALIVE)

    def sweep(self) -> None:
        """Something has come in the moment of the end."""
        for item in self.mailbox.close():
            self.lost(item)

    def bury(self, item: object, reason: DeadLetterReason, error: BaseException | None = None) -> None:
        """Make a dead letter of something that will not be handled; its asker gets `error` or ActorDeadError."""
        self._note_dead(item, reason, error)
        if type(item) is Ask:
            item.reply.fail(error or errors.ActorDeadError(f"{self.name} ended before it answered ({reason.value})"))

    def _note_dead(self, item: object, reason: DeadLetterReason, error: BaseException | None) -> None:
        if type(item) is Signal:
            return
        message = item.message if type(item) is Ask else item
        note = "" if error is None else text_of(error, str if type(error) is Rejected else repr)
        self.system.dead_letters.add(message, reason, self.name, note)

    def after_fork(self) -> None:
        """In the child of a fork: nothing runs there that could handle a message."""
        self.state, self.actor = State.DEAD, None
        self.mailbox.close()

    # -- what others ask of it --------------------------------------------------------------------------------

    def start(self) -> bool:
        """Begin the next incarnation, soon; False when the cell is dead."""
        with self.system.lock:
            if self.state is not State.WAITING:
                return self.state is not State.DEAD
            self.state = State.STARTING
            self.restarts += 1
        self._launch()
        return True

    def _launch(self) -> None:
        self._under_way = ()  # of a thread that was given up
        self.executor.call_soon(self.run)

    def ask_to_stop(self, *, keep: bool = False, answer: Callable[[bool], object] | None = None) -> None:
        """Let it stop in its own time; the answer, whether it was alive, comes then. `keep`: for a next incarnation."""
        state = self.state
        if answer is not None:
            self.watch(lambda _: answer(state is not State.DEAD))
        if state is State.WAITING and not keep:
            self.close()
        elif state not in (State.WAITING, State.DEAD):
            self._signal(Signal.HALT if keep else Signal.STOP)

    def finish_stopping(self) -> None:
        """The actor had put off its stop and is ready now."""
        self._signal(Signal.FINISH)

    def _signal(self, signal: Signal) -> None:
        outcome = self.mailbox.put_control(signal)
        if outcome is WAKE:
            self.wake()
        elif outcome is LATE:
            self.sweep()

    def watch(self, notify: Callable[[Down], object], held_by: set[Monitor] | None = None) -> Monitor:
        """Set a monitor; it fires at once when the actor is dead."""
        monitor = Monitor(self, notify, held_by)
        with self.system.lock:
            alive = self.state is not State.DEAD
            if alive:
                self._monitors = self._monitors or {}
                self._monitors[monitor] = None
        if not alive:
            monitor.fire(Down(self.ref, ExitReason.NOT_ALIVE, self._error))
        return monitor

    def forget(self, monitor: Monitor) -> None:
        """Take a monitor off."""
        with self.system.lock:
            if self._monitors is not None:
                self._monitors.pop(monitor, None)

    def ask(self, message: object, timeout_seconds: float) -> object:
        """Send a message and wait for the answer; refused where that would never end."""
        scheduler = self.system.scheduler
        if scheduler.is_current():
            raise errors.AskOnLoopError(f"blocking ask to {self.name} on the loop thread; use `await ref.ask_async()`")
        asker = _asking(self)
        reply: Reply = Reply(scheduler.block_until)
        try:
            self.ref.tell(Ask(message, reply))
            return reply.get(timeout=timeout_seconds)
        except errors.AskTimeout:
            if reply.done:
                raise  # the handler's own, of an ask that it made
            raise errors.AskTimeout(f"{self.name} did not answer within {timeout_seconds} s") from None
        finally:
            if asker is not None and asker.executor.is_current():
                asker.asks = None  # unless it was killed meanwhile: what its next incarnation waits for stays

    # -- introspection ----------------------------------------------------------------------------------------

    def busy_with(self) -> tuple[str, str, float] | None:
        """Name, message type and since when, while a handler runs."""
        item = self.current
        return None if item is NOTHING else (self.name, type_name(item), self.since_seconds)

    def describe(self) -> str:
        """For traces: what the next turn will do."""
        if self.state is State.STARTING:
            return f"{self.name} start"
        item = self.mailbox.peek()
        return f"{self.name} {'-' if item is NOTHING else type_name(item)}"

    def account(self) -> Statistics:
        """Its counters."""
        return Statistics(
            sent=self.mailbox.accepted,
            handled=self.handled,
            queued=len(self.mailbox) + (self.current is not NOTHING),
            refused=self.mailbox.refused,
            restarts=max(0, self.restarts),
        )

    def info(self, now_seconds: float) -> ActorInfo:
        """The picture of it and what is below it."""
        _, handling, since_seconds = self.busy_with() or ("", None, now_seconds)
        return ActorInfo(
            name=self.name,
            state=self.state.value,
            mailbox_depth=len(self.mailbox),
            restarts=max(0, self.restarts),
            handled=self.handled,
            handling=handling,
            handling_seconds=now_seconds - since_seconds,
            children=tuple(child.info(now_seconds) for child in tuple(self.children.values())),
        )


def dispatch(actor: Actor[Never], item: object) -> None:
    """Handle an ask, or a message of a class that comes for the first time."""
    if type(item) is Ask:
        item.reply.answer(actor._kernel_handler(type(item.message))(actor, item.message))
    else:
        actor._kernel_handler(type(item))(actor, item)


def type_name(item: object) -> str:
    """The type of a message, for people."""
    if isinstance(item, Signal):
        return item.name.lower()
    return type(item.message if type(item) is Ask else item).__name__


# -- actors on threads ----------------------------------------------------------------------------------------


class _NoThread:
    """The executor of an actor that has no thread at present: the next start looks into the mailbox."""

    def call_soon(self, _run: Run) -> None: ...

    def is_current(self) -> bool:
        return False

    def close(self) -> None: ...


NO_THREAD: Final = _NoThread()


class _Here(threading.local):
    cell: "ThreadCell | None" = None


_here = _Here()


class ThreadCell(Cell):
    """The place of an actor with `runs_on="thread"`, whose handlers may block: otherwise the same rules.

    Its handlers cannot be interrupted, so a kill abandons the thread: the asker is answered, the next incarnation gets
    a new thread, and what the old handler still does is no longer the actor's.
    """

    __slots__ = ()

    executor: OwnThread
    """NO_THREAD before its first start and after a kill."""

    def _launch(self) -> None:
        if self.executor is NO_THREAD:
            try:
                thread = self.system.scheduler.own_thread(self.name)
            except errors.OutOfThreads as error:
                self._start_failed(self._epoch, error)
                return
            with self.system.lock:
                self.executor = thread
                if self.state is State.DEAD:  # killed meanwhile
                    thread.close()
        super()._launch()

    def run(self) -> None:
        """One turn, on our own thread."""
        with self.system.lock:
            if not self.executor.is_current():
                return  # posted to a thread that has been abandoned since
            epoch, actor = self._epoch, self.actor
        _here.cell = self
        actor = actor or self._begin(epoch)
        if actor is not None:
            self.mailbox.awake = True
        left = self.system.turn_messages
        while actor is not None and left:
            item = self._next(epoch)
            if item is NOTHING or not self._handle(item, actor, epoch):
                return
            left -= 1
        if actor is not None and not self.mailbox.sleep():
            self.executor.call_soon(self.run)

    def _handle(self, item: object, actor: Actor[Never], epoch: int) -> bool:
        """Handle one item; False when the incarnation is over."""
        try:
            if type(item) is Signal:
                return not self._obey(item, actor, epoch)
            dispatch(actor, item)
        except BaseException as error:  # noqa: BLE001 - as in Cell.run
            return self._done(epoch, item, actor, handled=False) and self._declined(item, error, epoch)
        return self._done(epoch, item, actor, handled=True)

    def _next(self, epoch: int) -> object:
        with self.system.lock:  # a kill may come from the loop at any time
            if epoch != self._epoch:
                return NOTHING
            item = self.mailbox.take()
            self.since_seconds = self.system.now()
            self.current = item
            return item

    def _done(self, epoch: int, item: object, actor: Actor[Never], *, handled: bool) -> bool:
        """Account for a handler that has returned; False when it was given up meanwhile."""
        with self.system.lock:
            if epoch == self._epoch:
                self.current = NOTHING
                self.handled += handled
                return True
            if type(item) is not Signal:
                self.system.abandoned -= 1
                self.bury(item, DeadLetterReason.KILLED)
        errors.contained(actor.on_abandoned, f"{self.name}, which was killed,")
        return False

    def kill(self) -> None:
        """End the incarnation; a handler that runs is abandoned with its thread."""
        with self.system.lock:  # one step: its handler must not return in the middle
            item, old = self.current, self.executor
            if self.state is not State.WAITING:
                self.executor, self.asks = NO_THREAD, None
            busy = item is not NOTHING and type(item) is not Signal
            self.system.abandoned += busy
            super().kill()
        if old is not self.executor:
            old.close()
        if busy:
            logger.warning("%s was killed in the handler of a %s; its thread is abandoned", self.name, type_name(item))
            if type(item) is Ask:
                item.reply.fail(errors.ActorDeadError(f"{self.name} was killed before it answered"))

    def close(self, reason: ExitReason = ExitReason.NOT_ALIVE) -> None:
        """End for good, and let the thread end."""
        super().close(reason)
        self.executor.close()


def _asking(target: Cell) -> ThreadCell | None:
    """Note that the actor on this thread, if any, waits for `target`. Raises DeadlockError if that closes a circle."""
    asker = _here.cell
    if asker is None or not asker.executor.is_current():  # an abandoned thread waits for itself alone
        return None
    asker.asks = target
    circle: list[Cell] = [asker]
    link: Cell | None = target
    while link is not None and link not in circle:
        circle.append(link)
        link = link.asks
    if link is asker:
        asker.asks = None
        raise errors.DeadlockError(" asks ".join(cell.name for cell in [*circle, asker]))
    return asker
