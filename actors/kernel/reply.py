"""The two ends of an ask: what the actor answers into, and what the asker waits on."""

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable, Generator
from threading import Lock
from types import TracebackType
from typing import Any, Final, Generic, TypeVar, cast

import pykka
import typing_extensions
from msgspec import Struct

from .errors import ActorCrashed, AskTimeout, contained

#: So late at most a signal handler runs in a thread that waits: one wake-up a second costs nothing.
HANDLED_WITHIN_SECONDS: Final = 1.0

Answer = TypeVar("Answer")
_Answer_co = TypeVar("_Answer_co", covariant=True)
_Result = typing_extensions.TypeVar("_Result", default=object)
_ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


class Asks(Generic[_Answer_co]):
    """Base of a message whose answer has a type: `ref.ask(Read())` is a float where it is `class Read(Asks[float])`."""

    __slots__ = ()


class ReplyTo:
    """Where an actor answers, from any thread.

    The first answer counts and later ones are dropped: a killed handler may return long after its asker had an error.
    """

    __slots__ = ()

    def answer(self, value: object) -> None:
        """Hand over the result."""
        self._end(value, None)

    def fail(self, error: BaseException) -> None:
        """Hand over what went wrong."""
        self._end(None, harmless(error))

    def _end(self, value: object, error: BaseException | None) -> None:
        raise NotImplementedError


class Ask(Struct, eq=False):
    """A message whose sender waits for an answer."""

    message: object
    reply: ReplyTo


class Reply(ReplyTo, pykka.Future[_Result]):
    """The answer to a blocking ask; usable as a Pykka future (`get`, `map`, `join` ...), and awaited on any loop.

    Each waiter has a lock that the answer opens: 0.1 us to make, against 2 us for the Condition of
    pykka.ThreadingFuture, and what interrupts one waiter takes nothing from the others.
    """

    _get_hook: Any = None

    def __init__(self, block_until: "Callable[[Reply[Any], float | None], bool] | None" = None) -> None:
        """`block_until` waits as `wait` does, but under a simulation in virtual time."""
        self._block_until = block_until or Reply.wait
        self._once = Lock()  # taken by the first answer
        self.done = False
        """Whether an answer is there."""
        self._callbacks: list[Callable[[], object]] = []

    def _end(self, value: object, error: BaseException | None) -> None:
        if self._once.acquire(blocking=False):
            self._value, self._error = value, error
            self.done = True
            while self._callbacks:
                with contextlib.suppress(IndexError):  # a thread that has added one has taken it back
                    contained(self._callbacks.pop(0), "an answered ask")

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call once when answered, at once if it is. Any thread may add a callback."""
        self._callbacks.append(callback)
        if self.done and self._take_back(callback):  # its own alone: another's would be lost with this thread
            contained(callback, "an answered ask")

    def _take_back(self, callback: Callable[[], object]) -> bool:
        """False where the thread that answers has it."""
        try:
            self._callbacks.remove(callback)
        except ValueError:
            return False
        return True

    def wait(self, timeout_seconds: float | None) -> bool:
        """Block this thread, really; False when the time is over first."""
        if self.done:
            return True
        gate = Lock()
        gate.acquire()
        opens = gate.release
        self.on_done(opens)
        if not acquired(gate, timeout_seconds):
            self._take_back(opens)
        return self.done

    def result(self) -> _Result:
        """The answer, once there; raises what the actor failed with."""
        if self._error is not None:
            raise self._error
        return cast(_Result, self._value)

    def get(self, *, timeout: float | None = None) -> _Result:
        """Wait for the answer (Pykka's interface). Raises AskTimeout after `timeout` seconds."""
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self.done and not self._block_until(self, timeout):
            raise AskTimeout(f"no answer within {timeout} seconds")
        return self.result()

    def __await__(self) -> Generator[None, None, _Result]:
        """Wait without blocking the loop; Pykka's own futures block it."""
        if self._get_hook is not None:
            raise TypeError("what map, join, filter and reduce make has only get(); await the replies themselves")
        bridge = AsyncReply(asyncio.get_running_loop())
        self.on_done(lambda: bridge.answer(None))
        yield from bridge.future.__await__()
        return self.get()

    def set(self, value: object = None) -> None:
        """Pykka's name for `answer`."""
        self.answer(value)

    def set_exception(self, exc_info: _ExcInfo | None = None) -> None:
        """Pykka's name for `fail`: with a triple as from sys.exc_info(), or without for the exception being handled."""
        error = (exc_info or sys.exc_info())[1]
        self.fail(ActorCrashed("no exception given") if error is None else error)


for _name, _value in vars(pykka.Future[Any]()).items():
    # What Pykka's __init__ would set, whatever its names are: calling it doubles the cost of a reply.
    setattr(Reply, _name, _value)


class AsyncReply(ReplyTo):
    """The answer to an awaited ask, for whichever asyncio loop the asker runs on."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[object] = loop.create_future()

    def expire(self, asked: str, timeout_seconds: float) -> None:
        """The asker's time is over."""
        self._end(None, AskTimeout(f"{asked} did not answer within {timeout_seconds} s"))

    def _end(self, value: object, error: BaseException | None) -> None:
        if asyncio._get_running_loop() is not self._loop:
            with contextlib.suppress(RuntimeError):  # the asker's loop is closed: it no longer waits
                self._loop.call_soon_threadsafe(self._end, value, error)
        elif self.future.done():
            return
        elif error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


def acquired(lock: Lock, timeout_seconds: float | None) -> bool:
    """Wait for a lock; False when the time is over first. A signal that comes in the moment in which a wait begins does
    not end it (CPython 3.11), and its handler would run when the wait is over: so each is a short one."""
    until = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
    while not lock.acquire(timeout=max(0.0, min(HANDLED_WITHIN_SECONDS, until - time.monotonic()))):
        if time.monotonic() >= until:
            return False
    return True


def harmless(error: BaseException) -> BaseException:
    """What may be raised in the asker: SystemExit and other exceptions that would end or cancel it are wrapped."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    wrapped = ActorCrashed(f"the actor's handler raised {error!r}")
    wrapped.__cause__ = error
    return wrapped
