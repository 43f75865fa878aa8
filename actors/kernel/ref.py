"""The address of an actor, what it needs of the place behind it, and monitors, which tell when that actor has ended."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, Literal, Never, NoReturn, Protocol, cast, overload

import pykka
import typing_extensions
from msgspec import Struct

from .accounts import DeadLetters, Statistics
from .errors import MailboxFull, contained
from .mailbox import FULL, LATE, QUEUED, WAKE, Mailbox
from .reply import Answer, Ask, Asks, AsyncReply, Reply
from .restart import ExitReason
from .scheduler import Executor, Scheduler

#: The messages that an actor takes: a class, or a union of classes. An address that takes more messages may be used
#: where one that takes fewer is wanted, hence contravariant.
M = typing_extensions.TypeVar("M", contravariant=True, default=Any)

#: For askers that name none: no wait without an end.
ASK_TIMEOUT_SECONDS: Final = 30.0


class System(Protocol):
    """What actors and their places use of the ActorSystem they live in (system.py)."""

    scheduler: Scheduler
    now: Callable[[], float]
    turn_messages: int
    dead_letters: DeadLetters
    #: Guards what several threads change: cell states, monitors, the register. Held for microseconds; taken before
    #: a mailbox's lock, never after it.
    lock: AbstractContextManager[object]
    #: Messages whose handlers were killed and have not returned.
    abandoned: int

    def ref(self, name: str) -> "Ref": ...
    def watch(self, ref: "Ref[Never]", notify: "Callable[[Down], object]") -> "Monitor": ...
    def look_at_starts(self) -> None: ...
    def forget(self, name: str, account: Statistics) -> None: ...


class Place(Protocol):
    """Where an actor lives, as its address and the actor itself see it (cell.py)."""

    name: str
    mailbox: Mailbox

    @property
    def system(self) -> System: ...
    @property
    def ref(self) -> "Ref": ...
    @property
    def executor(self) -> Executor: ...
    @property
    def actor(self) -> object: ...
    @property
    def children(self) -> "Mapping[str, Place]": ...

    def run(self) -> None: ...
    def wake(self) -> None: ...
    def lost(self, item: object) -> None: ...
    def sweep(self) -> None: ...
    def ask(self, message: object, timeout_seconds: float) -> object: ...
    def ask_to_stop(self, *, keep: bool = False, answer: Callable[[bool], object] | None = None) -> None: ...
    def finish_stopping(self) -> None: ...
    def kill(self) -> None: ...
    def watch(self, notify: "Callable[[Down], object]", held_by: "set[Monitor] | None" = None) -> "Monitor": ...
    def forget(self, monitor: "Monitor") -> None: ...


class Ref(pykka.ActorRef[Any], Generic[M]):
    """Tell, ask and stop an actor that takes the messages M. It stays valid when a supervisor restarts the actor.

    Any thread may use it. It is also a Pykka ref, for a host's own Pykka actors: `tell`, `ask(block=..., timeout=...)`,
    `stop` and `is_alive` mean the same. It has no proxy, since that goes past the typed messages.
    """

    __slots__ = ("_cell",)

    def __init__(self, cell: Place) -> None:
        self._cell = cell

    def tell(self, message: M) -> None:
        """Send and return at once. To a dead actor it becomes a dead letter. Raises MailboxFull."""
        cell = self._cell
        outcome = cell.mailbox.put(message)
        if outcome is WAKE:
            cell.wake()
        elif outcome is FULL:
            waiting, most = len(cell.mailbox), cell.mailbox.capacity
            raise MailboxFull(f"{cell.name} is overloaded: {waiting} messages wait, it takes {most}")
        elif outcome is LATE:
            cell.sweep()
        elif outcome is not QUEUED:
            cell.lost(message)

    def tell_control(self, message: M) -> None:
        """Send on the control lane: never refused because of user traffic, and served before it."""
        cell = self._cell
        outcome = cell.mailbox.put_control(message)
        if outcome is WAKE:
            cell.wake()
        elif outcome is LATE:
            cell.sweep()
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
        DeadlockError when the actor waits for the asker, MailboxFull. `block=False` returns a future at once instead,
        for Pykka's functions or for `await`.
        """
        if block:
            return self._cell.ask(message, timeout_seconds if timeout is None else timeout)
        reply: Reply = Reply(self._cell.system.scheduler.block_until)
        cast(Ref, self).tell(Ask(message, reply))
        return reply

    @overload
    async def ask_async(self, message: Asks[Answer], timeout_seconds: float = ...) -> Answer: ...
    @overload
    async def ask_async(self, message: M, timeout_seconds: float = ...) -> object: ...

    async def ask_async(self, message: object, timeout_seconds: float = ASK_TIMEOUT_SECONDS) -> object:
        """Like `ask`, for asyncio code on any loop, which it does not block."""
        loop = asyncio.get_running_loop()
        reply = AsyncReply(loop)
        cast(Ref, self).tell(Ask(message, reply))
        timer = loop.call_later(timeout_seconds, reply.expire, self._cell.name, timeout_seconds)
        try:
            return await reply.future
        finally:
            timer.cancel()

    @overload
    def stop(self, *, block: Literal[True], timeout: float | None = ...) -> bool: ...
    @overload
    def stop(self, *, block: Literal[False] = ..., timeout: float | None = ...) -> Reply[bool]: ...
    @overload
    def stop(self, *, block: bool = ..., timeout: float | None = ...) -> bool | Reply[bool]: ...

    def stop(self, *, block: bool = False, timeout: float | None = None) -> bool | Reply[bool]:
        """Ask it to stop after its present message. What still waits becomes dead letters.

        Returns a future of whether it was alive; `block=True` waits for it, 30 s at most unless `timeout` says
        otherwise. A supervisor starts a permanent child again; to end one use `stop_child`.
        """
        reply: Reply[bool] = Reply(self._cell.system.scheduler.block_until)
        self._cell.ask_to_stop(answer=reply.answer)
        return reply.get(timeout=ASK_TIMEOUT_SECONDS if timeout is None else timeout) if block else reply

    def is_alive(self) -> bool:
        """Whether messages are taken: also while a supervisor is about to restart it."""
        return self._cell.mailbox.is_open

    def proxy(self) -> NoReturn:
        """Refused: a proxy reads and calls what an actor keeps to itself, past the messages it takes."""
        raise TypeError(f"{self!r} has no proxy; tell or ask it one of its messages")

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

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # a plain attribute there
        """Our names are what URNs are to Pykka, which reads this of a ref."""
        return self._cell.name


# -- monitors -------------------------------------------------------------------------------------------------


class Down(Struct, frozen=True):
    """The monitored actor's incarnation has ended. Comes on the control lane."""

    ref: Ref
    reason: ExitReason
    error: BaseException | None = None
    """What escaped, when it crashed, also if that was before the monitor was set."""


class Monitor(Struct, eq=False):
    """One watch over one actor. Fires once or is cancelled, never both."""

    _target: Place
    _notify: Callable[[Down], object]
    _held_by: "set[Monitor] | None" = None
    _is_over: bool = False

    __repr__ = object.__repr__

    def __post_init__(self) -> None:
        if self._held_by is not None:
            self._held_by.add(self)

    def fire(self, down: Down) -> None:
        """Deliver; the kernel calls it, once, after taking the monitor off its target."""
        if self._is_over:
            return  # cancelled by one that fired before it, or by the end of a watcher that watches itself
        self._release()
        contained(lambda: self._notify(down), f"a monitor of {down.ref.name}")

    def cancel(self) -> None:
        """Stop watching. Nothing happens when it has fired already."""
        self._release()
        self._target.forget(self)

    def _release(self) -> None:
        self._is_over = True
        if self._held_by is not None:
            self._held_by.discard(self)


def ask_pykka(actor: pykka.ActorRef[Any], message: object) -> Reply:
    """Ask a host's Pykka actor without blocking this thread, for handlers and for asyncio code.

    What Pykka's own `ask(block=False)` returns can only be waited for, which would hold all actors on the loop. `await`
    this one on any loop, or hand it to `Actor.tell_answer`; with a timeout either way, since Pykka leaves an ask
    unanswered that comes while its actor ends. Raises pykka.ActorDeadError when the actor is dead.
    """
    if not actor.is_alive():
        raise pykka.ActorDeadError(f"{actor} is dead")
    reply: Reply = Reply()
    from pykka._envelope import Envelope  # noqa: PLC0415 - its private name, where it is needed and nowhere else

    actor.actor_inbox.put(Envelope(message, reply_to=reply))
    return reply
