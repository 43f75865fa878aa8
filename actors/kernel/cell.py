"""The place where an actor lives: it keeps the address, the mailbox and the account while incarnations come and go.

    STARTING -> RUNNING -> STOPPING -> (WAITING -> STARTING ...) -> DEAD

WAITING is the time between two incarnations of a supervised actor; messages wait in the mailbox meanwhile.
All of an incarnation's life happens on its executor. Only a kill comes from elsewhere, and only to `ThreadCell`s
(thread_cell.py) can it come in the middle of a handler.
"""

import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Never, NoReturn

from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr

from .actor import Actor
from .dead_letters import DeadLetterReason
from .errors import ActorDeadError, NotSpawned, Rejected
from .mailbox import NOTHING, Mailbox, Put
from .monitors import Down, ExitReason, Monitor
from .ref import Ref
from .reply import Ask, ReplyTo
from .reports import ChildExited, ChildStarted
from .restart import Restart, wants_restart
from .scheduler import LOOKS_AT_CLOCK, TURN_SECONDS, Executor

if TYPE_CHECKING:
    from .system import ActorSystem

__all__ = ["Cell", "State"]

logger = logging.getLogger("callboard.kernel")


class State(Enum):
    """Where in its life an actor is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting"
    DEAD = "dead"


class Signal(Enum):
    """The kernel's own control messages."""

    STOP = "stop"
    HALT = "halt"
    """Stop, but keep the cell: its supervisor will start the next incarnation."""
    FINISH = "finish"
    """End the stop that the actor had put off."""


_PROXY: Final = (ProxyCall, ProxyGetAttr, ProxySetAttr)


class Cell:
    """One actor's place in the system."""

    __slots__ = (
        "_epoch",
        "_factory",
        "_keep",
        "_monitors",
        "_restart",
        "_stop_replies",
        "actor",
        "announces",
        "children",
        "current",
        "executor",
        "handled",
        "mailbox",
        "name",
        "parent",
        "ref",
        "restarts",
        "since_seconds",
        "start_failure",
        "state",
        "system",
    )

    def __init__(
        self,
        system: "ActorSystem",
        factory: Callable[[], Actor[Never]],
        name: str,
        mailbox: Mailbox,
        executor: Executor,
        parent: "Cell | None" = None,
        restart: Restart = Restart.TEMPORARY,
    ) -> None:
        self.system = system
        self.name = name
        self.mailbox = mailbox
        self.executor = executor
        self.parent = parent
        self.ref: Ref = Ref(self)
        self.actor: Actor | None = None
        self.state = State.WAITING
        #: Whether its supervisor waits for its start; children that come and go spare themselves that message.
        self.announces = False
        self.children: dict[str, Cell] | None = None
        self.current: Any = NOTHING
        self.since_seconds = 0.0
        self.handled = 0
        self.restarts = -1
        #: The first start that failed, of this actor or of a permanent one below it: its name and why.
        self.start_failure: tuple[str, BaseException] | None = None
        self._factory = factory
        self._restart = restart
        self._keep = False
        self._epoch = 0  # incarnations ended; tells a late handler that its time is over
        self._monitors: dict[Monitor, None] | None = None  # not a set: its order would differ from run to run
        self._stop_replies: list[ReplyTo] | None = None

    # -- turns ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """One turn: the scheduler calls it whenever there is work."""
        actor = self.actor or self._begin(self._epoch)
        if actor is None:
            return
        system, epoch = self.system, self._epoch
        take, handler_of = self.mailbox.take, actor._kernel_dispatch.get
        left = system.turn_messages
        started = self.since_seconds = system.scheduler.turn_began
        item = take()
        while item is not NOTHING:
            self.current = item
            try:
                handler = handler_of(type(item))
                if handler is not None:
                    handler(actor, item)
                elif type(item) is not Signal:
                    answer(actor, item)
                elif self._obey(item, actor, epoch):
                    return
                else:
                    item = take()
                    continue
                self.handled += 1
            except Rejected as declined:
                self.bury(item, DeadLetterReason.REJECTED, declined)
            except BaseException as error:  # noqa: BLE001 - contained here, and told to whom it concerns
                self._crashed(item, error, epoch)
                return
            self.current = NOTHING
            left -= 1
            if left % LOOKS_AT_CLOCK == 0:
                self.since_seconds = system.now()
                if not left or self.since_seconds - started > TURN_SECONDS:
                    if not self.mailbox.sleep():
                        self.executor.call_soon(self.run)
                    return
            item = take()

    def _begin(self, epoch: int) -> Actor | None:
        """Make and start the next incarnation, if that is due; None when it failed or was given up meanwhile."""
        if self.state is not State.STARTING:
            return None
        try:
            actor = self._factory()
            if not isinstance(actor, Actor):
                raise NotSpawned(f"the factory of {self.name} returned {actor!r}, which is no kernel Actor")
            actor._kernel_enter(self)
            if not self._advance(epoch, actor, State.STARTING):
                return None
            self.since_seconds = self.system.now()
            actor.on_start()
        except BaseException as error:
            logger.warning("%s could not start: %r", self.name, error, exc_info=error)
            self._note_failed_start(error)
            self._end(epoch, ExitReason.CRASHED, error)
            return None
        if not self._advance(epoch, actor, State.RUNNING):
            return None
        self.system.look_at_starts()
        if self.announces and self.parent is not None:
            self.parent.ref.tell_control(ChildStarted(self))
        return actor

    def _note_failed_start(self, error: BaseException) -> None:
        cell: Cell | None = self
        while cell is not None and cell.start_failure is None and self.restarts == 0:
            cell.start_failure = (self.name, error)
            cell = cell.parent if cell._restart is Restart.PERMANENT else None

    def not_started(self) -> "Cell | None":
        """The first of this actor and the permanent ones below it that does not run; None when all do."""
        if self.state is not State.RUNNING:
            return self
        below = (child for child in (self.children or {}).values() if child._restart is Restart.PERMANENT)
        return next((left for child in below if (left := child.not_started()) is not None), None)

    def _advance(self, epoch: int, actor: Actor, state: State) -> bool:
        with self.system.lock:
            if epoch != self._epoch:
                return False
            self.actor, self.state = actor, state
            return True

    def _obey(self, signal: Signal, actor: Actor, epoch: int) -> bool:
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

    def _crashed(self, item: Any, error: BaseException, epoch: int) -> None:
        """An exception escaped a handler: the end of this incarnation, and of nothing else."""
        logger.warning("%s crashed on a %s: %r", self.name, type_name(item), error, exc_info=error)
        self._note_dead(item, DeadLetterReason.CRASHED, error)
        self._end(epoch, ExitReason.CRASHED, error)
        if type(item) is Ask:
            item.reply.fail(error)  # last, so that an asker who looks finds the actor dead

    # -- ends -------------------------------------------------------------------------------------------------

    def _end(self, epoch: int, reason: ExitReason, error: BaseException | None) -> bool:
        """End the incarnation of that epoch, once, and tell everybody who has to know."""
        with self.system.lock:
            if epoch != self._epoch or self.state in (State.WAITING, State.DEAD):
                return False
            self._epoch += 1
            actor, self.actor = self.actor, None
            self.current = NOTHING
            monitors, self._monitors = self._monitors, None
            replies, self._stop_replies = self._stop_replies, None
            incarnation = self.restarts
            kept = self._keep or (self.parent is not None and wants_restart(self._restart, reason))
            self._keep = False
            self.state = State.WAITING
        self.mailbox.hold(drop=Signal)
        if actor is not None:
            actor._kernel_leave(self)
        self._end_children()
        if not kept:
            self.close()
        self.system.look_at_starts()
        down = Down(self.ref, reason, error)
        for monitor in monitors or ():
            monitor.fire(down)
        for reply in replies or ():
            reply.answer(True)
        if self.parent is not None:
            self.parent.ref.tell_control(ChildExited(self, incarnation, reason, error))
        return True

    def _end_children(self) -> None:
        """A supervisor has gone: nobody is left to look after its children. Those who will be restarted keep cells."""
        for child in reversed(tuple((self.children or {}).values())):
            child.kill()

    def close(self) -> None:
        """Die for good: whatever waits becomes a dead letter, and each asker is told at once."""
        with self.system.lock:
            if self.state is State.DEAD:
                return
            self.state = State.DEAD
            # Cell and ref are a cycle and wait for the garbage collector; what the factory holds must not.
            self._factory = _unmakeable
            monitors, self._monitors = self._monitors, None  # set while there was no incarnation
            replies, self._stop_replies = self._stop_replies, None
        for item in self.mailbox.close():
            self.bury(item, DeadLetterReason.STOPPED)
        for child in tuple((self.children or {}).values()):
            child.close()
        self.system.forget(self)
        self.system.look_at_starts()
        for monitor in monitors or ():
            monitor.fire(Down(self.ref, ExitReason.NOT_ALIVE))
        for reply in replies or ():
            reply.answer(True)

    def kill(self) -> None:
        """End the incarnation without asking it; on the loop thread, where none of our handlers can be running."""
        if self.state is State.WAITING:
            if self._restart is Restart.TEMPORARY:
                self.close()
            return
        self._end(self._epoch, ExitReason.KILLED, None)

    def lost(self, item: Any) -> None:
        """Something was sent after the end."""
        self.system.count_late()
        self.bury(item, DeadLetterReason.NOT_ALIVE)

    def bury(self, item: Any, reason: DeadLetterReason, error: BaseException | None = None) -> None:
        """Make a dead letter of something that will not be handled; its asker gets `error` or ActorDeadError."""
        self._note_dead(item, reason, error)
        if type(item) is Ask:
            item.reply.fail(error or ActorDeadError(f"{self.name} ended before it answered ({reason.value})"))

    def _note_dead(self, item: Any, reason: DeadLetterReason, error: BaseException | None) -> None:
        if type(item) is Signal:
            return
        message = item.message if type(item) is Ask else item
        note = "" if error is None else str(error) if type(error) is Rejected else repr(error)
        self.system.dead_letters.add(message, reason, self.name, note)

    # -- what others ask of it --------------------------------------------------------------------------------

    def start(self) -> bool:
        """Begin the next incarnation, soon; False when the cell is dead."""
        with self.system.lock:
            if self.state is not State.WAITING:
                return self.state is not State.DEAD
            self.state = State.STARTING
            self.restarts += 1
        self.executor.call_soon(self.run)
        return True

    def ask_to_stop(self, *, keep: bool = False, reply: ReplyTo | None = None) -> None:
        """Let it stop in its own time. `keep` keeps the cell for the next incarnation."""
        with self.system.lock:
            waiting = self.state is State.WAITING
            dead = self.state is State.DEAD
            if reply is not None and not dead:
                self._stop_replies = [*(self._stop_replies or ()), reply]
        if dead:
            if reply is not None:
                reply.answer(False)
        elif waiting:
            if not keep:
                self.close()
        else:
            self._signal(Signal.HALT if keep else Signal.STOP)

    def finish_stopping(self) -> None:
        """The actor had put off its stop and is ready now."""
        self._signal(Signal.FINISH)

    def _signal(self, signal: Signal) -> None:
        if self.mailbox.put_control(signal, counted=False) is Put.WAKE:
            self.executor.call_soon(self.run)

    def watch(self, notify: Callable[[Down], object], held_by: set[Monitor] | None = None) -> Monitor:
        """Set a monitor; it fires at once when the actor is dead."""
        monitor = Monitor(self, notify, held_by)
        with self.system.lock:
            alive = self.state is not State.DEAD
            if alive:
                if self._monitors is None:
                    self._monitors = {}
                self._monitors[monitor] = None
        if not alive:
            monitor.fire(Down(self.ref, ExitReason.NOT_ALIVE))
        return monitor

    def forget(self, monitor: Monitor) -> None:
        """Take a monitor off."""
        with self.system.lock:
            if self._monitors is not None:
                self._monitors.pop(monitor, None)

    # -- introspection ----------------------------------------------------------------------------------------

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and will not be started again."""
        return self.state is State.DEAD

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


def _unmakeable() -> NoReturn:
    raise NotSpawned("this actor is dead for good")


def answer(actor: Actor, item: Any) -> None:
    """Handle an ask, one of Pykka's proxy messages, or a message of a class that comes for the first time."""
    message = item.message if type(item) is Ask else item
    if isinstance(message, _PROXY):
        value = actor._handle_receive(message)
    else:
        kind = type(message)
        value = (actor._kernel_dispatch.get(kind) or actor._kernel_resolve(kind))(actor, message)
    if type(item) is Ask:
        item.reply.answer(value)


def type_name(item: Any) -> str:
    """The type of a message, for people."""
    if type(item) is Signal:
        return item.name.lower()
    return type(item.message if type(item) is Ask else item).__name__
