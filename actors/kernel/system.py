"""A group of actors: who they are, who looks after whom, and what became of every message."""

import logging
from collections.abc import Callable
from threading import RLock
from typing import Any, Final, Literal, Never

from .actor import Actor
from .cell import Cell
from .dead_letters import KEPT, DeadLetter, DeadLetters
from .errors import ActorDeadError, AskOnLoopError, AskTimeout, NameTaken, NoSuchActor, StartFailed
from .handlers import Message
from .introspection import ActorInfo, Statistics, describe
from .mailbox import CAPACITY, NOTHING, Mailbox, Overflow
from .monitors import Down, Monitor
from .ref import Ref
from .reply import Reply
from .restart import Restart
from .scheduler import Scheduler
from .thread_cell import ThreadCell, asking

__all__ = ["BLOCK_SECONDS", "ActorSystem", "RunsOn"]

logger = logging.getLogger("callboard.kernel")

#: How long a producer waits at a full mailbox whose rule is Overflow.BLOCK.
BLOCK_SECONDS: Final = 5.0

#: How long a shutdown waits for the loop to carry out its kills: only a handler that holds the loop delays them.
KILL_SECONDS: Final = 1.0

RunsOn = Literal["loop", "thread"]


class ActorSystem:
    """Actors on one scheduler. Several systems may live in a process, beside a host's own Pykka actors."""

    def __init__(
        self, scheduler: Scheduler, *, dead_letters_kept: int = KEPT, block_seconds: float = BLOCK_SECONDS
    ) -> None:
        self.scheduler = scheduler
        self.now = scheduler.now
        self.turn_messages = scheduler.turn_messages
        self.block_seconds = block_seconds
        self.dead_letters = DeadLetters(scheduler.now, dead_letters_kept)
        #: Guards what several threads change: cell states, monitors, the register. Held for microseconds; taken before
        #: a mailbox's lock, never after it.
        self.lock = RLock()
        #: Messages whose handlers were killed and have not returned.
        self.abandoned = 0
        self._cells: dict[str, Cell] = {}
        self._past = Statistics()
        self._late = 0
        self._closing = False
        self._awaited_starts: tuple[tuple[Cell, Reply], ...] = ()

    # -- actors -----------------------------------------------------------------------------------------------

    def spawn(
        self,
        factory: Callable[[], Actor[Message]],
        name: str,
        *,
        capacity: int = CAPACITY,
        overflow: Overflow = Overflow.REFUSE,
        runs_on: RunsOn = "loop",
    ) -> Ref[Message]:
        """Start an actor nobody supervises: after a crash it is dead. Returns at once; messages wait until it runs.

        Raises NameTaken, and ActorDeadError when the system is shutting down.
        """
        cell = self.make_cell(factory, name, capacity=capacity, overflow=overflow, runs_on=runs_on)
        cell.start()
        return cell.ref

    def make_cell(
        self,
        factory: Callable[[], Actor[Never]],
        name: str,
        *,
        capacity: int = CAPACITY,
        overflow: Overflow = Overflow.REFUSE,
        runs_on: RunsOn = "loop",
        parent: Cell | None = None,
        restart: Restart = Restart.TEMPORARY,
    ) -> Cell:
        """For supervisors: a place for an actor, with an address that works already; `start` begins its life."""
        mailbox = Mailbox(capacity, overflow)
        with self.lock:
            if self._closing:
                raise ActorDeadError(f"{name} was not started: the actor system is shutting down")
            if name in self._cells:
                raise NameTaken(f"an actor named {name!r} is alive; stop it first or choose another name")
            if runs_on == "thread":
                cell: Cell = ThreadCell(self, factory, name, mailbox, self.scheduler.own_thread(name), parent, restart)
            else:
                cell = Cell(self, factory, name, mailbox, self.scheduler, parent, restart)
            self._cells[name] = cell
            if parent is not None:
                if parent.children is None:
                    parent.children = {}
                parent.children[name] = cell
        return cell

    def ref(self, name: str) -> Ref:
        """The address of a live actor. Raises NoSuchActor."""
        cell = self._cells.get(name)
        if cell is None:
            raise NoSuchActor(f"no live actor is named {name!r}")
        return cell.ref

    def wait_until_started(self, ref: Ref[Never], timeout_seconds: float) -> None:
        """Block until this actor runs and, of the tree below it, every permanent one.

        Raises StartFailed as soon as the first start of one of them has failed (even if its supervisor will start it
        again), when this actor has ended, or when `timeout_seconds` are over; AskOnLoopError on the loop thread.
        """
        cell, started = ref._cell, Reply(self.scheduler)
        with self.lock:
            self._awaited_starts += ((cell, started),)
        self.look_at_starts()
        try:
            started.get(timeout=timeout_seconds)
        except AskTimeout:
            late = cell.not_started() or cell
            raise StartFailed(late.name, AskTimeout(f"it has not started within {timeout_seconds} s")) from None
        finally:
            with self.lock:
                self._awaited_starts = tuple(each for each in self._awaited_starts if each[1] is not started)

    def watch(self, ref: Ref[Never], notify: Callable[[Down], object]) -> Monitor:
        """A monitor for code that is no actor: `notify` is called once, on whatever thread the end happens."""
        return ref._cell.watch(notify)

    # -- what became of the messages --------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Counters of all messages; at rest they satisfy sent = handled + dead_lettered + queued (I9)."""
        with self.lock:
            accounts = [self._past, *map(account, self._cells.values())]
            return Statistics(
                sent=sum(each.sent for each in accounts) + self._late,
                handled=sum(each.handled for each in accounts),
                dead_lettered=self.dead_letters.total,
                queued=sum(each.queued for each in accounts) + self.abandoned,
                refused=sum(each.refused for each in accounts),
                restarts=sum(each.restarts for each in accounts),
                actors=len(self._cells),
            )

    def tree(self) -> tuple[ActorInfo, ...]:
        """All live actors, each with its children below it, in order of their start."""
        now = self.now()
        with self.lock:
            return tuple(describe(cell, now) for cell in self._cells.values() if cell.parent is None)

    def replay(self, serial: int) -> DeadLetter:
        """Send one kept dead letter again, to whoever bears the recipient's name now.

        Raises KeyError when it is not kept, NoSuchActor (and keeps it) when the recipient is dead, MailboxFull.
        """
        letter = next((letter for letter in self.dead_letters.list() if letter.serial == serial), None)
        if letter is not None:
            self.ref(letter.recipient)  # raises before the letter is taken out
        letter = self.dead_letters.take(serial)
        self.ref(letter.recipient).tell(letter.message)
        return letter

    # -- the end ----------------------------------------------------------------------------------------------

    def shutdown(self, timeout_seconds: float) -> bool:
        """Stop all actors, those spawned last first, and kill what is left; whether all stopped by themselves.

        Not from the loop thread. The scheduler itself goes on: whoever started it stops it.
        """
        if self.scheduler.is_current():
            raise AskOnLoopError("shutdown waits for the actors; call it from another thread than theirs")
        until = self.now() + timeout_seconds
        with self.lock:
            self._closing = True
            roots = [cell for cell in self._cells.values() if cell.parent is None]
        orderly = True
        for cell in reversed(roots):
            reply = Reply(self.scheduler)
            cell.ask_to_stop(reply=reply)
            orderly &= self.scheduler.block_until(reply, max(0.0, until - self.now()))
        killed = Reply(self.scheduler)
        self.scheduler.call_soon(lambda: self._kill(roots, killed))
        self.scheduler.block_until(killed, KILL_SECONDS)
        return orderly

    def _kill(self, cells: list[Cell], done: Reply) -> None:
        for cell in reversed(cells):
            cell.kill()
        done.open()

    # -- for cells and refs -----------------------------------------------------------------------------------

    def forget(self, cell: Cell) -> None:
        """A cell has died: keep its account, drop the rest."""
        with self.lock:
            self._cells.pop(cell.name, None)
            mine, past = account(cell), self._past
            self._past = Statistics(
                sent=past.sent + mine.sent,
                handled=past.handled + mine.handled,
                refused=past.refused + mine.refused,
                restarts=past.restarts + mine.restarts,
            )
            if cell.parent is not None and cell.parent.children is not None:
                cell.parent.children.pop(cell.name, None)

    def look_at_starts(self) -> None:
        """An actor has started, or has ended: tell those who wait for starts what has become of theirs."""
        if not self._awaited_starts:
            return
        with self.lock:
            for cell, started in self._awaited_starts:
                if cell.start_failure is not None:
                    started.fail(StartFailed(*cell.start_failure))
                elif cell.is_dead:
                    started.fail(StartFailed(cell.name, ActorDeadError(f"{cell.name} has ended")))
                elif cell.not_started() is None:
                    started.answer(None)

    def count_late(self) -> None:
        """A message was sent to a dead actor."""
        with self.lock:
            self._late += 1

    def wait(self, target: Cell, send: Callable[[], object], reply: Reply, timeout_seconds: float) -> Any:
        """A blocking ask: refuse where it would never end, send, wait."""
        if self.scheduler.is_current():
            raise AskOnLoopError(
                f"a blocking ask to {target.name} on the actors' own thread; use `await ref.ask_async(...)`"
            )
        asker = asking(target)
        try:
            send()
            return reply.get(timeout=timeout_seconds)
        except AskTimeout:
            raise AskTimeout(f"{target.name} did not answer within {timeout_seconds} s") from None
        finally:
            if asker is not None:
                asker.asks = None


def account(cell: Cell) -> Statistics:
    """The counters of one cell."""
    mailbox = cell.mailbox
    queued = len(mailbox) + (cell.current is not NOTHING)
    return Statistics(
        sent=mailbox.accepted,
        handled=cell.handled,
        queued=queued,
        refused=mailbox.refused,
        restarts=max(0, cell.restarts),
    )
