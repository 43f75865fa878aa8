"""An actor whose handlers may block: a thread of its own, otherwise the same rules.

Its handlers cannot be interrupted. A kill therefore abandons the thread: the asker is answered, the next incarnation
gets a new thread, and what the old handler still does is no longer the actor's.
"""

import logging
import threading
from typing import Any

from .actor import Actor
from .cell import Cell, Signal, State, answer, type_name
from .dead_letters import DeadLetterReason
from .errors import ActorDeadError, DeadlockError, Rejected
from .mailbox import NOTHING
from .reply import Ask
from .scheduler import OwnThread

__all__ = ["ThreadCell", "asking"]

logger = logging.getLogger("callboard.kernel")


class _Here(threading.local):
    cell: "ThreadCell | None" = None


_here = _Here()


class ThreadCell(Cell):
    """The place of an actor with `runs_on="thread"`."""

    __slots__ = ("asks",)

    executor: OwnThread

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Whose answer its handler waits for.
        self.asks: Cell | None = None

    def run(self) -> None:
        """One turn, on our own thread."""
        with self.system.lock:
            if not self.executor.is_current():
                return  # posted to a thread that has been abandoned since
            epoch, actor = self._epoch, self.actor
        _here.cell = self
        actor = actor or self._begin(epoch)
        left = self.system.turn_messages
        while actor is not None and left:
            item = self._next(epoch)
            if item is NOTHING or not self._handle(item, actor, epoch):
                return
            left -= 1
        if actor is not None and not self.mailbox.sleep():
            self.executor.call_soon(self.run)

    def _handle(self, item: Any, actor: Actor, epoch: int) -> bool:
        """Handle one item; False when the incarnation is over."""
        try:
            if type(item) is Signal:
                return not self._obey(item, actor, epoch)
            answer(actor, item)
        except BaseException as error:  # noqa: BLE001 - contained here, and told to whom it concerns
            return self._declined(epoch, item, error)
        return self._done(epoch, item, handled=True)

    def _next(self, epoch: int) -> Any:
        with self.system.lock:  # a kill may come from the loop at any time
            if epoch != self._epoch:
                return NOTHING
            item = self.mailbox.take()
            self.since_seconds = self.system.now()
            self.current = item
            return item

    def _declined(self, epoch: int, item: Any, error: BaseException) -> bool:
        """Account for a handler that has raised; True when the actor goes on, having only rejected its message."""
        if not self._done(epoch, item, handled=False):
            return False
        if type(error) is Rejected:
            self.bury(item, DeadLetterReason.REJECTED, error)
            return True
        self._crashed(item, error, epoch)
        return False

    def _done(self, epoch: int, item: Any, *, handled: bool) -> bool:
        """Account for a handler that has returned; False when it was given up meanwhile."""
        with self.system.lock:
            if epoch == self._epoch:
                self.current = NOTHING
                self.handled += handled
                return True
            if type(item) is Signal:
                return False
            self.system.abandoned -= 1
            self.bury(item, DeadLetterReason.KILLED)
            return False

    def kill(self) -> None:
        """End the incarnation; a handler that runs is abandoned with its thread."""
        with self.system.lock:  # one step: its handler must not return in the middle
            item, old = self.current, self.executor
            if self.state is not State.WAITING:
                self.executor = self.system.scheduler.own_thread(self.name)
            busy = item is not NOTHING and type(item) is not Signal
            self.system.abandoned += busy
            super().kill()
        if old is not self.executor:
            old.close()
        if busy:
            logger.warning("%s was killed while it handled a %s; its thread is abandoned", self.name, type_name(item))
            if type(item) is Ask:
                item.reply.fail(ActorDeadError(f"{self.name} was killed before it answered"))

    def close(self) -> None:
        """Die for good, and let the thread end."""
        super().close()
        self.executor.close()


def asking(target: Cell) -> ThreadCell | None:
    """Note that the actor on this thread, if any, waits for `target`. Raises DeadlockError if that closes a circle."""
    asker = _here.cell
    if asker is None:
        return None
    asker.asks = target
    circle: list[Cell] = [asker]
    link: Cell | None = target
    while isinstance(link, ThreadCell) and link not in circle:
        circle.append(link)
        link = link.asks
    if link is asker:
        asker.asks = None
        raise DeadlockError(" asks ".join(cell.name for cell in [*circle, asker]))
    return asker
