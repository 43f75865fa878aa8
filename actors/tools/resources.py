"""What tools keep open between their calls, by `@tool(resource=open_pool)`: one on each loop or thread, or in each
child process, in which they run.

It is opened by the first call that needs it. Tools with the same function share it. Where it does not open, the call
fails and the next one tries again. It is closed where it was opened: when that loop, thread or process ends, and when
no tool has its function any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context
from types import FunctionType
from typing import Any, Final, TypeVar, cast

from msgspec import Struct, field

from callboard.actors.kernel import logger_of
from callboard.actors.tools.invoke import ResourceFailed
from callboard.protocol.annotation_reading import signature_of

logger = logger_of("callboard.tools")

Factory = Callable[[], object]
"""Yields the resource once, or returns a context manager of it; either may be async where the tool is."""
R = TypeVar("R")
MakeTask = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

#: How a function has to be written that opens a resource.
_REMEDY: Final = "yield it from a generator, with what closes it behind the `yield`, or return a context manager of it"


def name_of(factory: object) -> str:
    """As its author wrote it."""
    return str(getattr(factory, "__qualname__", "") or type(factory).__qualname__)


def check(factory: object, *, is_async: bool) -> None:
    """Raises ValueError, with the remedy, for what cannot open a resource for such a tool, as far as can be seen."""
    if not callable(factory):
        raise ValueError(f"resource={factory!r:.100} is no function; {_REMEDY}")
    name, plain = name_of(factory), inspect.unwrap(factory)
    if inspect.iscoroutinefunction(factory):
        raise ValueError(f"resource={name} is a coroutine function, so nothing would close what it opens; {_REMEDY}")
    if needed := _needed(factory):
        raise ValueError(f"resource={name} takes {', '.join(needed)}, but it is called without arguments: use a lambda")
    opens_async = inspect.isasyncgenfunction(plain) or (
        isinstance(plain, type) and hasattr(plain, "__aenter__") and not hasattr(plain, "__enter__")
    )
    if opens_async and not is_async:
        raise ValueError(f"resource={name} is async, and the tool is a plain `def`: make both of one kind")


def _needed(factory: Callable[..., object]) -> list[str]:
    """Its parameters without a default."""
    try:
        parameters = signature_of(factory).parameters.values()
    except (ValueError, TypeError):  # of some built-in classes it is not known
        return []
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in any_number]


def _made_by(factory: Factory) -> object:
    """The context manager. Raises what the function raises, and TypeError for anything else than one."""
    made = (_copy(factory) if inspect.isfunction(factory) else factory)()
    if inspect.isasyncgen(made):  # also of a lambda, or of what only behaves like a function
        return contextlib.asynccontextmanager(lambda: made)()
    if inspect.isgenerator(made):
        return contextlib.contextmanager(lambda: made)()
    if not hasattr(made, "__enter__") and not hasattr(made, "__aenter__"):
        if inspect.iscoroutine(made):
            made.close()
        raise TypeError(f"{name_of(factory)} returned {type(made).__name__}, which is no context manager; {_REMEDY}")
    return made


def _copy(function: FunctionType) -> Callable[[], object]:
    """A generator holds its function as long as it is open: not the one whose end tells that no tool has it."""
    copied = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


class _Kept(Struct, eq=False):
    """One that is open, or is being opened or closed."""

    factory: Callable[[], object | None]
    """A weak reference: a tool that a question has brought with it is not kept for what it has opened."""
    value: object = None
    stack: contextlib.ExitStack | None = None
    context: Context = field(default_factory=Context)
    """Of its own: what the code of a call has set is not seen here."""


def _weak(factory: object, gone: Callable[[object], object] | None = None) -> Callable[[], object | None]:
    try:  # of a method that which it is bound to, since each look-up of it makes another one
        return weakref.WeakMethod(factory, gone) if inspect.ismethod(factory) else weakref.ref(factory, gone)
    except TypeError:  # such as an object with slots
        return lambda: factory


class Resources:
    """Those of one thread, or of a child process: for tools that are a plain `def`."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self.threads: set[threading.Thread] = set()
        """That opening them has started."""

    def get(self, factory: Factory) -> object:
        """The resource, opened where it is not. Raises ResourceFailed."""
        for kept in tuple(self._kept):
            if kept.factory() is None:
                self._close(kept)
            elif kept.factory() == factory:
                return kept.value
        before = set(threading.enumerate())
        stack = contextlib.ExitStack()
        kept = _Kept(_weak(factory), stack=stack)
        try:
            kept.value = kept.context.run(_enter, stack, factory)
        except BaseException as error:
            raise ResourceFailed(name_of(factory)) from error
        self.threads.update(set(threading.enumerate()) - before)
        self._kept.append(kept)
        return kept.value

    def close(self) -> None:
        """Close them, the last opened first. What goes wrong is logged."""
        for kept in reversed(self._kept):
            self._close(kept)

    def _close(self, kept: _Kept) -> None:
        self._kept = [each for each in self._kept if each is not kept]
        try:
            if kept.stack is not None:
                kept.context.run(kept.stack.close)
        except BaseException:
            logger.warning("a resource of a tool could not be closed", exc_info=True)


def _enter(stack: contextlib.ExitStack, factory: Factory) -> object:
    made = _made_by(factory)
    if not hasattr(made, "__enter__"):
        raise TypeError(f"{name_of(factory)} returned an async context manager, and the tool is a plain `def`")
    return stack.enter_context(cast("contextlib.AbstractContextManager[object]", made))


def opened_for(function: Callable[..., R], factory: Factory, *, is_async: bool) -> Callable[..., R]:
    """The function with what it needs, opened for each call and closed behind it."""

    def call(*args: object, **kwargs: object) -> R:
        kept = Resources()
        try:
            return function(*args, **kwargs, resource=kept.get(factory))
        finally:
            kept.close()

    async def call_async(*args: object, **kwargs: object) -> object:
        loop = asyncio.get_running_loop()
        kept = LoopResources(loop, loop.create_task)
        try:
            awaitable: Any = function(*args, **kwargs, resource=await kept.get(factory))
            return await awaitable
        finally:
            await kept.close()

    return cast("Callable[..., R]", call_async) if is_async else call


class _KeptOnLoop(_Kept, eq=False):
    waiting: int = 0
    """Calls that wait for it to be open."""
    is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    """It is open, or `error` says why it is not."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    """It is to be closed."""
    error: BaseException | None = None
    task: asyncio.Task[None] | None = None


class LoopResources:
    """Those of one event loop, on which all of this runs: for async tools.

    Each has a task that opens it, waits and closes it, since what is entered in one task must be left in it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, make_task: MakeTask) -> None:
        self._loop = loop
        self._make_task = make_task
        self._kept: list[_KeptOnLoop] = []

    @property
    def are_open(self) -> bool:
        """Is there any to be closed?"""
        return bool(self._kept)

    async def get(self, factory: Factory) -> object:
        """The resource, opened where it is not: once, however many calls wait for it. Raises ResourceFailed."""
        kept = next((each for each in self._kept if each.factory() == factory and not each.is_over.is_set()), None)
        if kept is None:
            kept = self._begin(factory)
        kept.waiting += 1
        try:
            await kept.is_settled.wait()
        finally:
            kept.waiting -= 1
            if not kept.waiting and not kept.is_settled.is_set():
                self._end(kept)  # all who wanted it are gone: the next one opens it anew
        if kept.error is not None:
            raise ResourceFailed(name_of(factory)) from kept.error
        return kept.value

    def _begin(self, factory: Factory) -> _KeptOnLoop:
        kept: _KeptOnLoop

        def gone(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(kept.is_over.set)

        kept = _KeptOnLoop(_weak(factory, gone))
        self._kept.append(kept)
        kept.task = self._make_task(self._keep(kept, [factory]))
        return kept

    def _end(self, kept: _KeptOnLoop) -> None:
        kept.is_over.set()
        if kept.task is not None:  # in a context that is no call's: calls may cancel only their own tasks
            self._loop.call_soon(kept.task.cancel, context=Context())

    async def _keep(self, kept: _KeptOnLoop, factory: list[Factory]) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                made = _made_by(factory.pop())
                if hasattr(made, "__aenter__"):
                    kept.value = await stack.enter_async_context(
                        cast("contextlib.AbstractAsyncContextManager[object]", made)
                    )
                else:
                    kept.value = stack.enter_context(cast("contextlib.AbstractContextManager[object]", made))
                del made
                kept.is_settled.set()
                await kept.is_over.wait()
                kept.value = None
        except asyncio.CancelledError as error:
            kept.error = error
            raise
        except BaseException as error:  # SystemExit of a user's code too: it must not end the loop
            kept.error = error
            if kept.is_settled.is_set():
                logger.warning("a resource of a tool could not be closed", exc_info=error)
        finally:
            kept.is_over.set()
            kept.is_settled.set()
            self._kept.remove(kept)

    async def close(self) -> None:
        """Close them, and wait for that."""
        for kept in self._kept:
            kept.is_over.set()
            if not kept.is_settled.is_set():
                self._end(kept)
        if tasks := [kept.task for kept in self._kept if kept.task is not None]:
            await asyncio.wait(tasks)
