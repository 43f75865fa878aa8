"""A group of actors: who they are, who looks after whom, and what became of every message."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import reduce
from threading import RLock
from typing import Final, Literal, Never
from weakref import WeakSet

from .accounts import KEPT, ActorInfo, DeadLetter, DeadLetterReason, DeadLetters, Statistics
from .actor import Actor, Message
from .cell import NO_THREAD, Cell, ThreadCell
from .errors import ActorDeadError, AskOnLoopError, AskTimeout, NameTaken, NoSuchActor, OutOfThreads, StartFailed
from .mailbox import CAPACITY, Mailbox
from .ref import Down, Monitor, Ref
from .reply import Reply
from .restart import Restart
from .scheduler import Scheduler

#: How long a shutdown waits for the loop to carry out its kills: only a handler that holds the loop delays them.
KILL_SECONDS: Final = 1.0

RunsOn = Literal["loop", "thread"]


class ActorSystem:
    """Actors on one scheduler. Several systems may live in a process, beside a host's own Pykka actors.

    In the child of a fork its threads are missing: there all its actors are dead, which asks and tells find at once.
    """

    def __init__(self, scheduler: Scheduler, *, dead_letters_kept: int = KEPT) -> None:
        self.scheduler = scheduler
        self.now = scheduler.now
        self.turn_messages = scheduler.turn_messages
        self.dead_letters = DeadLetters(scheduler.now, dead_letters_kept)
        self.lock: AbstractContextManager[object] = RLock()
        self.abandoned = 0
        self._cells: dict[str, Cell] = {}
        self._past = Statistics()
        self._closing = False
        self._awaited_starts: tuple[tuple[Cell, Reply], ...] = ()
        _SYSTEMS.add(self)

    # -- actors -----------------------------------------------------------------------------------------------

    def spawn(
        self, factory: Callable[[], Actor[Message]], name: str, *, capacity: int = CAPACITY, runs_on: RunsOn = "loop"
    ) -> Ref[Message]:
        """Start an actor without a supervisor: after a crash it is dead. Returns at once; messages wait until it runs.

        Raises NameTaken, OutOfThreads, and ActorDeadError when the system is shutting down.
        """
        cell = self.make_cell(factory, name, capacity=capacity, runs_on=runs_on)
        cell.start()
        if cell.start_failure is not None and isinstance(cell.start_failure[1], OutOfThreads):
            raise cell.start_failure[1]
        return cell.ref

    def make_cell(
        self,
        factory: Callable[[], Actor[Never]],
        name: str,
        *,
        capacity: int = CAPACITY,
        runs_on: RunsOn = "loop",
        parent: Cell | None = None,
        restart: Restart = Restart.TEMPORARY,
    ) -> Cell:
        """For supervisors: a place for an actor, with an address that works already; `start` begins its life."""
        mailbox = Mailbox(capacity)
        with self.lock:
            if self._closing:
                raise ActorDeadError(f"{name} was not started: the actor system is shutting down")
            if name in self._cells:
                raise NameTaken(f"an actor named {name!r} is alive; stop it first or choose another name")
            if runs_on == "thread":
                cell: Cell = ThreadCell(self, factory, name, mailbox, NO_THREAD, parent, restart)
            else:
                cell = Cell(self, factory, name, mailbox, self.scheduler, parent, restart)
            self._cells[name] = cell
        return cell

    def ref(self, name: str) -> Ref:
        """The address of a live actor. Raises NoSuchActor."""
        cell = self._cells.get(name)
        if cell is None:
            raise NoSuchActor(f"no live actor is named {name!r}")
        return cell.ref

    def watch(self, ref: Ref[Never], notify: Callable[[Down], object]) -> Monitor:
        """A monitor for code that is not an actor: `notify` is called once, on the thread on which the end happens."""
        return ref._cell.watch(notify)

    def wait_until_started(self, ref: Ref[Never], timeout_seconds: float) -> None:
        """Block until this actor runs and, of the tree below it, every permanent one.

        Raises StartFailed as soon as the first start of one of them has failed (even if its supervisor will start it
        again), when this actor has ended, or when `timeout_seconds` are over; AskOnLoopError on the loop thread.
        """
        cell = cell_of(ref)
        started: Reply = Reply(self.scheduler.block_until)
        with self.lock:
            self._awaited_starts += ((cell, started),)
        self.look_at_starts()
        try:
            started.get(timeout=timeout_seconds)
        except AskTimeout:
            with self.lock:
                late = cell.not_started() or cell
            raise StartFailed(late.name, AskTimeout(f"it has not started within {timeout_seconds} s")) from None
        finally:
            with self.lock:
                self._awaited_starts = tuple(each for each in self._awaited_starts if each[1] is not started)

    # -- what became of the messages --------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Counters of all messages; at rest they satisfy sent = handled + dead_lettered + queued (I9)."""
        with self.lock:
            total = reduce(Statistics.plus, (cell.account() for cell in self._cells.values()), self._past)
            dead = self.dead_letters.counts()
            return total._replace(
                sent=total.sent + dead.get(DeadLetterReason.NOT_ALIVE, 0),
                dead_lettered=sum(dead.values()),
                queued=total.queued + self.abandoned,
                actors=len(self._cells),
            )

    def tree(self) -> tuple[ActorInfo, ...]:
        """All live actors, each with its children below it, in order of their start."""
        now = self.now()
        with self.lock:
            return tuple(cell.info(now) for cell in self._cells.values() if cell.parent is None)

    def incarnation(self, ref: Ref[Never]) -> int:
        """How often it was started again; it goes up with each start."""
        return cell_of(ref).restarts

    def restart_of(self, ref: Ref[Never]) -> Restart:
        """Whether its supervisor starts it again when it ends."""
        return cell_of(ref).restart

    def kill(self, ref: Ref[Never]) -> None:
        """End an actor's incarnation without asking it; its supervisor sees that as a failure. Returns when it is done.

        Not from the loop thread. Raises AskTimeout when a handler holds the loop for KILL_SECONDS.
        """
        if self.scheduler.is_current():
            raise AskOnLoopError("a kill happens on the loop; call this from another thread")
        killed: Reply = Reply(self.scheduler.block_until)
        self.scheduler.call_soon(lambda: self._kill([cell_of(ref)], killed))
        killed.get(timeout=KILL_SECONDS)

    def replay(self, serial: int) -> DeadLetter:
        """Send one kept dead letter again, to the actor that has the recipient's name now.

        Raises KeyError when it is not kept, NoSuchActor (and keeps it) when the recipient is dead, MailboxFull.
        """
        letter = self.dead_letters.take(serial, self.ref)
        self.ref(letter.recipient).tell(letter.message)
        return letter

    # -- the end ----------------------------------------------------------------------------------------------

    def shutdown(self, timeout_seconds: float) -> bool:
        """Stop all actors, those spawned last first, and kill what is left; whether all stopped by themselves.

        Not from the loop thread. The scheduler itself goes on, and is stopped where it was started.
        """
        if self.scheduler.is_current():
            raise AskOnLoopError("shutdown waits for the actors; call it from another thread than theirs")
        until = self.now() + timeout_seconds
        with self.lock:
            self._closing = True
            roots = [cell for cell in self._cells.values() if cell.parent is None]
        orderly = True
        for cell in reversed(roots):
            reply: Reply = Reply(self.scheduler.block_until)
            cell.ask_to_stop(answer=reply.answer)
            orderly &= self.scheduler.block_until(reply, max(0.0, until - self.now()))
        killed: Reply = Reply(self.scheduler.block_until)
        self.scheduler.call_soon(lambda: self._kill(roots, killed))
        self.scheduler.block_until(killed, KILL_SECONDS)
        return orderly

    def _kill(self, cells: list[Cell], done: Reply) -> None:
        for cell in reversed(cells):
            cell.kill()
        done.answer(None)

    def after_fork(self) -> None:
        """In the child of a fork, where the locks may be held by threads that do not exist there."""
        self.lock = RLock()
        self._closing = True
        self.dead_letters.after_fork()
        self.scheduler.after_fork()
        for cell in self._cells.values():
            cell.after_fork()
        self._cells, self._awaited_starts = {}, ()

    # -- for cells --------------------------------------------------------------------------------------------

    def forget(self, name: str, account: Statistics) -> None:
        """An actor has ended for good: keep its account, drop the rest."""
        with self.lock:
            self._cells.pop(name, None)
            self._past = self._past.plus(account)

    def look_at_starts(self) -> None:
        """An actor has started, or has ended: tell those who wait for starts what has become of theirs."""
        if not self._awaited_starts:
            return
        with self.lock:
            for cell, started in self._awaited_starts:
                if cell.start_failure is not None:
                    started.fail(StartFailed(*cell.start_failure))
                elif not cell.ref.is_alive():
                    started.fail(StartFailed(cell.name, ActorDeadError(f"{cell.name} has ended")))
                elif cell.not_started() is None:
                    started.answer(None)


def cell_of(ref: Ref[Never]) -> Cell:
    """The place behind an address, with all that a supervisor does to it; addresses know the part they use."""
    assert isinstance(ref._cell, Cell)
    return ref._cell


_SYSTEMS: WeakSet[ActorSystem] = WeakSet()


def _after_fork() -> None:
    for system in tuple(_SYSTEMS):
        system.after_fork()


os.register_at_fork(after_in_child=_after_fork)
