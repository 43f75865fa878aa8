"""The two ends of an ask: what the actor answers into, and what the asker waits on.

The first answer counts and later ones are dropped, since a killed handler may still return long after its asker was
told that the actor is dead.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from threading import Lock
from typing import Any, Protocol

import pykka

from .errors import ActorCrashed, AskTimeout

__all__ = ["Ask", "AsyncReply", "Reply", "ReplyTo", "Waiter"]

logger = logging.getLogger("callboard.kernel")


class ReplyTo(Protocol):
    """Where an actor answers. Both methods are safe for any thread and never raise."""

    def answer(self, value: Any) -> None:
        """Hand over the result."""

    def fail(self, error: BaseException) -> None:
        """Hand over what went wrong."""


class Ask:
    """A message whose sender waits for an answer."""

    __slots__ = ("message", "reply")

    def __init__(self, message: Any, reply: ReplyTo) -> None:
        self.message = message
        self.reply = reply


class Waiter(Protocol):
    """How a thread waits: really, or in virtual time under a simulation."""

    def block_until(self, gate: "Reply", timeout_seconds: float | None) -> bool:
        """Wait until the gate is open; False when the time is over first."""


class Reply(pykka.Future[Any]):
    """The answer to a blocking ask; usable as a Pykka future (`get`, `map`, `join` ...).

    A held lock is the whole waiting mechanism: 0.1 us to make, against 2 us for the Condition of pykka.ThreadingFuture.
    """

    def __init__(self, waiter: Waiter | None = None) -> None:
        super().__init__()
        self._waiter = waiter
        self._once = Lock()  # taken by the first answer
        self._gate = Lock()
        self._gate.acquire()
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] | None = None

    @property
    def done(self) -> bool:
        """Whether an answer is there."""
        return not self._gate.locked()

    def open(self) -> None:
        """Answer with None: as the gate at which a blocked producer waits."""
        self.answer(None)

    def answer(self, value: Any) -> None:
        """Hand over the result; dropped when there is an answer already."""
        if self._once.acquire(blocking=False):
            self._value = value
            self._finish()

    def fail(self, error: BaseException) -> None:
        """Hand over what went wrong; dropped when there is an answer already."""
        if self._once.acquire(blocking=False):
            self._error = harmless(error)
            self._finish()

    def _finish(self) -> None:
        self._gate.release()
        for callback in self._callbacks or ():
            callback()

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call when answered, at once if it is. A callback may come twice when the answer arrives this very moment."""
        self._callbacks = [*(self._callbacks or ()), callback]
        if self.done:
            callback()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Block this thread, really; False when the time is over first."""
        opened = self._gate.acquire(timeout=-1 if timeout_seconds is None else max(0.0, timeout_seconds))
        if opened:
            self._gate.release()
        return opened

    def result(self) -> Any:
        """The answer, once there; raises what the actor failed with."""
        if self._error is not None:
            raise self._error
        return self._value

    def get(self, *, timeout: float | None = None) -> Any:
        """Wait for the answer (Pykka's interface). Raises AskTimeout after `timeout` seconds."""
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if self._gate.locked():
            waited = self.wait(timeout) if self._waiter is None else self._waiter.block_until(self, timeout)
            if not waited:
                raise AskTimeout(f"no answer within {timeout} seconds")
        return self.result()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait without blocking the loop; Pykka's own futures block it."""
        loop = asyncio.get_running_loop()
        bridge = AsyncReply(loop)
        self.on_done(lambda: bridge.answer(None))
        yield from bridge.future.__await__()
        return self.get()

    def set(self, value: Any | None = None) -> None:
        """Pykka's name for `answer`."""
        self.answer(value)

    def set_exception(self, exc_info: Any = None) -> None:
        """Pykka's name for `fail`; `exc_info` is a triple as from sys.exc_info()."""
        self.fail(exc_info[1] if exc_info and exc_info[1] is not None else ActorCrashed("no exception given"))


class AsyncReply:
    """The answer to an awaited ask, for whichever asyncio loop the asker runs on."""

    __slots__ = ("_loop", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    def answer(self, value: Any) -> None:
        """Hand over the result; dropped when there is an answer already or the asker has gone."""
        self._on_loop(self._set_result, value)

    def fail(self, error: BaseException) -> None:
        """Hand over what went wrong; dropped when there is an answer already or the asker has gone."""
        self._on_loop(self._set_exception, harmless(error))

    def expire(self, what_failed: str) -> None:
        """The asker's time is over. Only on its own loop."""
        self._set_exception(AskTimeout(what_failed))

    def _on_loop(self, run: Callable[[Any], None], value: Any) -> None:
        if asyncio._get_running_loop() is self._loop:
            run(value)
            return
        try:
            self._loop.call_soon_threadsafe(run, value)
        except RuntimeError:  # the asker's loop is closed: it waits no more
            logger.debug("an answer came after its asker's event loop was closed")

    def _set_result(self, value: Any) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def _set_exception(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def harmless(error: BaseException) -> BaseException:
    """What may be raised in the asker: SystemExit and its kin would end, cancel or confuse it, so they are wrapped."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    wrapped = ActorCrashed(f"the actor's handler raised {error!r}")
    wrapped.__cause__ = error
    return wrapped
