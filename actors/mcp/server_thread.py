"""The thread on which one connection to an MCP server lives, from its start to its end, with an event loop of its own.

The SDK cancels the tasks in which its scopes were entered, and ends with exception groups. All of that stays on this
thread: what others give it to do ends with a result or with one of the errors below, and its end is told once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextvars import Context, ContextVar
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from callboard.actors.kernel import logger_of

logger = logger_of("callboard.mcp")

T = TypeVar("T")

#: One message of a server. A result has 1 MB at most (MAX_RESULT_BYTES); a picture or a long list of tools some more.
MAX_FRAME_BYTES: Final = 8 * 1024 * 1024


class RemoteError(Exception):
    """What a server was asked for failed."""


class NotSent(RemoteError):
    """It never reached the server, so it may be sent again."""


class ConnectionLost(RemoteError):
    """The connection ended after it was sent: whether it had its effect is not known."""


class ServerRefused(RemoteError):
    """The server answered with an error."""


class BadAnswer(RemoteError):
    """The server's answer is not what the protocol, or the tool's own schema, says."""


class AnyErrand(Struct, eq=False):
    """One thing that the connection is asked to do."""

    is_sent: bool = False
    """Has a byte of it been written, or may it have been?"""
    about: object = None
    """What it is for, in the words of who asks: the server may ask something back about it."""
    task: asyncio.Task[None] | None = None
    failure: RemoteError | None = None
    """What became of it where the transport itself has noticed: no code of an error can say so, since a server's own
    errors may have any."""

    def fail(self, error: BaseException) -> None:
        """It ended so."""
        raise NotImplementedError


class Errand(AnyErrand, Generic[T], eq=False, kw_only=True):
    """One whose result is of this type."""

    run: Callable[[], Awaitable[T]]
    """Called on the thread."""
    result: Future[T] = field(default_factory=Future)

    def settle(self, value: T) -> None:
        """This is what it came to."""
        with contextlib.suppress(InvalidStateError):  # its asker has cancelled it
            self.result.set_result(value)

    def fail(self, error: BaseException) -> None:
        """As above."""
        with contextlib.suppress(InvalidStateError):
            self.result.set_exception(error)


#: Whose code runs: what writes to the server marks it as sent.
errand_of_context: ContextVar[AnyErrand | None] = ContextVar("callboard_mcp_errand", default=None)


def mark_sent() -> None:
    """What is being asked for leaves this process from here on."""
    if (errand := errand_of_context.get()) is not None:
        errand.is_sent = True


def mark_failed(failure: RemoteError | None) -> None:
    """The transport knows that no answer comes; None: it may come after all."""
    if (errand := errand_of_context.get()) is not None:
        errand.failure = failure
        if isinstance(failure, NotSent):
            errand.is_sent = False


class ServerThread:
    """Runs `main` on a loop of its own until it ends; `ended` is called once, with the reason or None."""

    def __init__(
        self, name: str, main: Callable[[ServerThread], Awaitable[None]], ended: Callable[[Exception | None], object]
    ) -> None:
        self._main = main
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._errands: set[AnyErrand] = set()
        self._is_over = False
        self.stopping = asyncio.Event()
        """Set, on the thread, when the connection is to be closed."""
        self.kill_server: Callable[[], object] | None = None
        """Ends the server's process at once; from any thread."""
        self._thread = threading.Thread(target=self._run, name=f"callboard-mcp-{name}", daemon=True)
        self._thread.start()

    def do(self, run: Callable[[], Awaitable[T]], about: object = None) -> Errand[T]:
        """Run this on the thread. Raises NotSent when it has ended. Cancelling the result cancels what runs."""
        errand: Errand[T] = Errand(run=run, about=about)
        with self._lock:
            if self._is_over or self._loop is None:
                raise NotSent("the connection has ended")
            self._errands.add(errand)
            loop = self._loop
            loop.call_soon_threadsafe(self._begin, errand, context=Context())
        errand.result.add_done_callback(lambda result: self._cancel(errand) if result.cancelled() else None)
        return errand

    def only_errand(self) -> AnyErrand | None:
        """That which is under way, where there is no other."""
        with self._lock:
            return next(iter(self._errands)) if len(self._errands) == 1 else None

    def stop(self) -> None:
        """Close the connection; its end comes later."""
        with self._lock:
            if self._loop is not None and not self._is_over:
                self._loop.call_soon_threadsafe(self.stopping.set)

    def kill(self) -> None:
        """End it now: the process first, the thread as soon as its code lets it."""
        if self.kill_server is not None:
            self.kill_server()
        self.stop()

    def _begin(self, errand: Errand[T]) -> None:
        errand.task = asyncio.get_running_loop().create_task(self._carry_out(errand))

    def _cancel(self, errand: Errand[T]) -> None:
        with self._lock:
            if self._loop is None or self._is_over:
                return
            self._loop.call_soon_threadsafe(lambda: errand.task.cancel() if errand.task is not None else None)

    async def _carry_out(self, errand: Errand[T]) -> None:
        errand_of_context.set(errand)
        try:
            if not errand.result.cancelled():
                errand.settle(await errand.run())
        except asyncio.CancelledError:
            errand.fail(_lost(errand))
        except RemoteError as error:
            errand.fail(error)
        except BaseException as error:  # it must not reach the loop, nor the asker as it is
            logger.warning("what an MCP server was asked for failed: %s", type(error).__name__, exc_info=error)
            errand.fail(BadAnswer(f"{type(error).__name__}: {error}"))
        finally:
            with self._lock:
                self._errands.discard(errand)

    def _run(self) -> None:
        error: Exception | None = None
        try:
            asyncio.run(self._live())
        except Exception as raised:  # noqa: BLE001 - its end is told, whatever it was
            error = raised
        except BaseException as raised:  # noqa: BLE001 - likewise; nothing above us on this thread could use it
            error = ConnectionLost(f"{type(raised).__name__}: {raised}")
        with self._lock:
            left = list(self._errands)
            self._errands.clear()
        for errand in left:
            errand.fail(_lost(errand))
        if self.kill_server is not None:
            self.kill_server()
        self._ended(error)

    async def _live(self) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            await self._main(self)
        finally:
            with self._lock:  # while the loop is still open: a closed one takes no call, and raises RuntimeError
                self._is_over = True


def _lost(errand: AnyErrand) -> RemoteError:
    if errand.is_sent:
        return ConnectionLost("the connection ended before the answer came")
    return NotSent("the connection ended before it was sent")


def first_cause(error: BaseException) -> BaseException:
    """What was first raised in a group of exceptions, which the SDK's task groups make of everything."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
