"""The address of an actor. It stays valid when a supervisor restarts the actor, and may be used from any thread."""

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, overload

import pykka
from pykka.messages import ProxyGetAttr

from .errors import MailboxFull
from .handlers import Answer, Asks, M
from .mailbox import Overflow, Put
from .reply import Ask, AsyncReply, Reply

if TYPE_CHECKING:
    from .actor import Actor
    from .cell import Cell

__all__ = ["ASK_TIMEOUT_SECONDS", "Ref"]

#: For askers that name none, Pykka's proxies among them: no wait without an end.
ASK_TIMEOUT_SECONDS: Final = 30.0

QUEUED, WAKE, FULL = Put.QUEUED, Put.WAKE, Put.FULL


class Ref(pykka.ActorRef[Any], Generic[M]):
    """Tell, ask and stop an actor that takes the messages M. Also a Pykka ref: `proxy()` works."""

    __slots__ = ("_cell",)

    def __init__(self, cell: "Cell") -> None:
        self._cell = cell

    def tell(self, message: M) -> None:
        """Send and go on. To a dead actor it becomes a dead letter.

        Raises MailboxFull when the mailbox is full; where its rule is Overflow.BLOCK only after the producer has
        waited for `block_seconds`, and never waits on the loop thread.
        """
        cell = self._cell
        outcome = cell.mailbox.put(message)
        if outcome is WAKE:
            cell.executor.call_soon(cell.run)
        elif outcome is not QUEUED:
            self._put_again(message, outcome)

    def tell_control(self, message: M) -> None:
        """Send on the control lane: never refused because of user traffic, and served before it."""
        cell = self._cell
        outcome = cell.mailbox.put_control(message)
        if outcome is WAKE:
            cell.executor.call_soon(cell.run)
        elif outcome is not QUEUED:
            cell.lost(message)

    @overload
    def ask(
        self, message: M, timeout_seconds: float = ..., *, block: Literal[False], timeout: float | None = ...
    ) -> Reply: ...
    @overload
    def ask(
        self,
        message: Asks[Answer],
        timeout_seconds: float = ...,
        *,
        block: Literal[True] = ...,
        timeout: float | None = ...,
    ) -> Answer: ...
    @overload
    def ask(
        self, message: M, timeout_seconds: float = ..., *, block: Literal[True] = ..., timeout: float | None = ...
    ) -> object: ...
    @overload
    def ask(
        self, message: M, timeout_seconds: float = ..., *, block: bool = ..., timeout: float | None = ...
    ) -> object: ...

    def ask(
        self,
        message: object,
        timeout_seconds: float = ASK_TIMEOUT_SECONDS,
        *,
        block: bool = True,
        timeout: float | None = None,
    ) -> object:
        """Send and wait for what the handler returns; raises what it raised. The answer to an `Asks[X]` is an X.

        Raises ActorDeadError when the actor is dead or ends first, AskTimeout, AskOnLoopError on the loop thread,
        DeadlockError when the actor waits for the asker, MailboxFull. `block=False` returns a Pykka future instead.
        """
        system = self._cell.system
        reply = Reply(system.scheduler)
        if block:
            timeout_seconds = timeout_seconds if timeout is None else timeout
            return system.wait(self._cell, lambda: self._send(message, reply), reply, timeout_seconds)
        self._send(message, reply)
        return reply

    @overload
    async def ask_async(self, message: Asks[Answer], timeout_seconds: float = ...) -> Answer: ...
    @overload
    async def ask_async(self, message: M, timeout_seconds: float = ...) -> object: ...

    async def ask_async(self, message: object, timeout_seconds: float = ASK_TIMEOUT_SECONDS) -> object:
        """Like `ask`, for asyncio code on any loop, which it does not block."""
        loop = asyncio.get_running_loop()
        reply = AsyncReply(loop)
        item = Ask(message, reply)
        cell = self._cell
        outcome = cell.mailbox.put(item)  # never waits, whatever the overflow rule: this is somebody's loop
        if outcome is WAKE:
            cell.executor.call_soon(cell.run)
        elif outcome is FULL:
            self._refuse()
        elif outcome is not QUEUED:
            cell.lost(item)
        timer = loop.call_later(timeout_seconds, reply.expire, f"{cell.name} did not answer within {timeout_seconds} s")
        try:
            return await reply.future
        finally:
            timer.cancel()

    def stop(self, *, block: bool = False, timeout: float | None = None) -> Any:
        """Ask it to stop after its present message. What still waits becomes dead letters.

        Returns a Pykka future of whether it was alive; `block=True` waits for it. A supervisor starts a permanent
        child again; to end one use `stop_child`.
        """
        reply = Reply(self._cell.system.scheduler)
        self._cell.ask_to_stop(reply=reply)
        return reply.get(timeout=ASK_TIMEOUT_SECONDS if timeout is None else timeout) if block else reply

    async def stop_async(self, timeout_seconds: float = ASK_TIMEOUT_SECONDS) -> bool:
        """Like `stop`, and wait until it has: whether it was alive. Raises AskTimeout."""
        loop = asyncio.get_running_loop()
        reply = AsyncReply(loop)
        self._cell.ask_to_stop(reply=reply)
        timer = loop.call_later(
            timeout_seconds, reply.expire, f"{self.name} has not stopped within {timeout_seconds} s"
        )
        try:
            return bool(await reply.future)
        finally:
            timer.cancel()

    def is_alive(self) -> bool:
        """Whether messages are taken: also while a supervisor is about to restart it."""
        return self._cell.mailbox.is_open

    def proxy(self) -> pykka.ActorProxy[Any]:
        """A Pykka proxy. It looks at the actor's attributes, so that it waits until the actor has started."""
        if self._cell.actor is None:
            reply = Reply(self._cell.system.scheduler)
            self._send(ProxyGetAttr(attr_path=("actor_urn",)), reply)
            reply.get(timeout=ASK_TIMEOUT_SECONDS)
        return super().proxy()

    @property
    def name(self) -> str:
        """Its name in the system."""
        return self._cell.name

    def __repr__(self) -> str:
        return f"<Ref {self._cell.name}>"

    def __str__(self) -> str:
        return self._cell.name

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is an address within this process; send the name instead")

    # -- Pykka reads these of a ref ---------------------------------------------------------------------------

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # a plain attribute there
        """Our names are what URNs are to Pykka."""
        return self._cell.name

    @property
    def actor_class(self) -> type[Any]:  # type: ignore[override]  # a plain attribute there
        """The class of the present incarnation."""
        return type(self._actor_weakref())

    def _actor_weakref(self) -> "Actor | None":  # type: ignore[override]  # an attribute there; proxies call it
        return self._cell.actor

    # -- when the mailbox does not simply take it -------------------------------------------------------------

    def _send(self, message: object, reply: Reply) -> None:
        cell, item = self._cell, Ask(message, reply)
        outcome = cell.mailbox.put(item)
        if outcome is WAKE:
            cell.executor.call_soon(cell.run)
        elif outcome is not QUEUED:
            self._put_again(item, outcome)

    def _put_again(self, item: Any, outcome: Put) -> None:
        cell = self._cell
        if outcome is FULL and cell.mailbox.overflow is Overflow.BLOCK and not cell.system.scheduler.is_current():
            outcome = self._wait_for_room(item)
        if outcome is FULL:
            self._refuse()
        elif outcome is WAKE:
            cell.executor.call_soon(cell.run)
        elif outcome is not QUEUED:
            cell.lost(item)

    def _wait_for_room(self, item: Any) -> Put:
        cell = self._cell
        scheduler = cell.system.scheduler
        until = scheduler.now() + cell.system.block_seconds
        while True:
            gate = Reply(scheduler)
            outcome = cell.mailbox.put_or_wait(item, gate)
            if outcome is not FULL:
                return outcome
            left = until - scheduler.now()
            if left <= 0 or not scheduler.block_until(gate, left):
                cell.mailbox.give_up(gate)
                return FULL

    def _refuse(self) -> NoReturn:
        mailbox = self._cell.mailbox
        mailbox.count_refused()
        raise MailboxFull(f"{self._cell.name} is overloaded: {len(mailbox)} messages wait, it takes {mailbox.capacity}")
