"""Tools that die, and tools that raise where one does not look for it."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Final, NoReturn

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from callboard.actors.testing.ways.case import Way, at, everywhere, in_process
from callboard.protocol.errors import ToolError

#: More than a message may have of it.
HUGE_CHARS: Final = 10_000_000
SIGNAL_SECONDS: Final = 0.02


class OwnBase(BaseException):
    """Of no family that anybody catches."""


class UnprintableError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("this exception has no text")


class FatalTextError(Exception):
    """Its text ends the program."""

    def __str__(self) -> str:
        raise SystemExit("a text that exits")

    __repr__ = __str__


class NotTextError(Exception):
    """Its text is none."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class _Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("this class has no name")


class NamelessError(Exception, metaclass=_Nameless):
    """The name of its class cannot be had."""


class Unprintable:
    """An object whose text cannot be had."""

    def __repr__(self) -> str:
        raise ValueError("this object has no text")


def raising(error: Callable[[], BaseException]) -> Callable[[], None]:
    """A tool that raises a new one of these."""

    def raises() -> None:
        raise error()

    return raises


def _chained() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _invalid() -> BaseException:
    try:
        TypeAdapter(int).validate_python("x")
    except ValidationError as error:
        return error
    raise AssertionError("pydantic takes x for a number")


def recursion() -> int:
    """Until Python stops it."""
    return recursion() + 1


def signal_self(number: signal.Signals) -> Callable[[], None]:
    """A tool that sends itself this signal."""

    def signals() -> None:
        if signal.getsignal(number) is signal.SIG_IGN:  # as the host's nohup has left it
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        threading.Event().wait(30)

    return signals


def kill_group() -> None:
    """Only where it leads a group of its own: else that is the group of whoever runs this."""
    if os.getpgid(0) != os.getpid():
        raise RuntimeError("this process does not lead its group; the group is not killed")
    os.killpg(0, signal.SIGKILL)


def overflow_the_stack() -> str:
    """Of C: the recursion of `repr` is counted by a limit that is out of the way."""
    nested: list[object] = []
    for _ in range(1_000_000):
        nested = [nested]
    sys.setrecursionlimit(2**31 - 1)
    return repr(nested)


def exec_true() -> None:
    """Become another program."""
    os.execv("/bin/sh", ["sh", "-c", "exit 0"])


def exec_and_stay() -> None:
    """Become a program that does not end."""
    os.execv("/bin/sh", ["sh", "-c", "exec sleep 30"])


def alarm() -> None:
    """The default of SIGALRM ends the process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, SIGNAL_SECONDS)
    threading.Event().wait(30)


def raise_in_handler() -> None:
    """A handler that raises, in the middle of a loop."""

    def handler(*_: object) -> NoReturn:
        raise ValueError("of a handler")

    signal.signal(signal.SIGUSR1, handler)
    os.kill(os.getpid(), signal.SIGUSR1)
    threading.Event().wait(30)


def segfault() -> None:
    """Reads address 0."""
    ctypes.string_at(0)


DIE: Final = (
    Way("exception", "raises ValueError", raising(lambda: ValueError("no")), everywhere("tool_error")),
    Way("tool-error", "raises ToolError", raising(lambda: ToolError("no")), everywhere("tool_error")),
    Way("sys.exit", "calls sys.exit(3)", raising(lambda: SystemExit(3)), everywhere("crashed tool_error")),
    Way(
        "sys.exit-unprintable",
        "calls sys.exit() with an object whose repr raises",
        raising(lambda: SystemExit(Unprintable())),
        everywhere("crashed tool_error"),
    ),
    Way(
        "keyboard-interrupt",
        "raises KeyboardInterrupt",
        raising(lambda: KeyboardInterrupt()),
        everywhere("crashed tool_error"),
    ),
    Way("generator-exit", "raises GeneratorExit", raising(lambda: GeneratorExit()), everywhere("crashed tool_error")),
    Way("stop-iteration", "raises StopIteration", raising(lambda: StopIteration(1)), everywhere("tool_error")),
    Way("stop-async", "raises StopAsyncIteration", raising(lambda: StopAsyncIteration()), everywhere("tool_error")),
    Way(
        "cancelled",
        "raises asyncio.CancelledError",
        raising(lambda: asyncio.CancelledError()),
        everywhere("crashed tool_error"),
    ),
    Way(
        "timeout-error",
        "raises TimeoutError of its own",
        raising(lambda: TimeoutError("own")),
        everywhere("tool_error"),
    ),
    Way("validation-error", "raises a ValidationError of its own", raising(_invalid), everywhere("tool_error")),
    Way("base-exception", "raises a BaseException", raising(lambda: OwnBase("x")), everywhere("crashed tool_error")),
    Way(
        "unprintable",
        "raises an exception whose __str__ raises",
        raising(UnprintableError),
        everywhere("tool_error"),
    ),
    Way(
        "fatal-text",
        "raises an exception whose __str__ exits",
        raising(FatalTextError),
        everywhere("tool_error crashed"),
    ),
    Way("not-text", "raises an exception whose __str__ returns 5", raising(NotTextError), everywhere("tool_error")),
    Way(
        "nameless",
        "raises an exception whose class has no name",
        raising(NamelessError),
        everywhere("tool_error crashed"),
    ),
    Way(
        "group",
        "raises an ExceptionGroup",
        raising(lambda: ExceptionGroup("many", [ValueError("a"), KeyError("b")])),
        everywhere("tool_error"),
    ),
    Way(
        "base-group",
        "raises a BaseExceptionGroup of SystemExit",
        raising(lambda: BaseExceptionGroup("many", [SystemExit(1)])),
        everywhere("crashed tool_error"),
    ),
    Way("chained", "raises an exception whose cause is a circle", raising(_chained), everywhere("tool_error")),
    Way(
        "huge-message",
        "raises an exception with 10 MB of text",
        raising(lambda: ValueError("x" * HUGE_CHARS)),
        everywhere("tool_error"),
    ),
    Way(
        "surrogate-message",
        "raises an exception whose text is not Unicode",
        raising(lambda: ValueError("\ud800")),
        everywhere("tool_error"),
    ),
    Way("memory-error", "raises MemoryError", raising(lambda: MemoryError()), everywhere("crashed tool_error")),
    Way("recursion", "recurses until RecursionError", recursion, everywhere("tool_error")),
    Way("os._exit-0", "calls os._exit(0)", lambda: os._exit(0), in_process("crashed")),
    Way("os._exit-3", "calls os._exit(3)", lambda: os._exit(3), in_process("crashed")),
    Way("abort", "calls os.abort()", os.abort, in_process("crashed")),
    Way("sigsegv", "reads address 0 (SIGSEGV)", segfault, in_process("crashed")),
    Way("sigkill", "kills itself with SIGKILL", signal_self(signal.SIGKILL), in_process("crashed")),
    Way("sigterm", "sends itself SIGTERM", signal_self(signal.SIGTERM), in_process("crashed tool_error")),
    Way("sigint", "sends itself SIGINT", signal_self(signal.SIGINT), in_process("crashed tool_error")),
    Way("sighup", "sends itself SIGHUP", signal_self(signal.SIGHUP), in_process("crashed")),
    Way("kill-group", "kills its process group", kill_group, in_process("crashed")),
    Way("sigalrm", "is ended by an alarm of its own", alarm, in_process("crashed")),
    Way("c-stack", "overflows the C stack", overflow_the_stack, in_process("crashed tool_error")),
    Way("exec", "becomes another program, which ends", exec_true, in_process("crashed")),
    Way(
        "exec-stays",
        "becomes another program, which stays",
        exec_and_stay,
        in_process("crashed timed_out"),
        timeout=0.4,
        seconds=0.7,
    ),
)


# -- exceptions in odd places


class _RaisesAtEnd:
    def __del__(self) -> None:
        raise ValueError("of a __del__")


def raise_in_del() -> int:
    """Python only writes a line to stderr."""
    _RaisesAtEnd()
    return 1


def raise_at_exit() -> int:
    """After the call; a child may end then or later."""
    atexit.register(raising(lambda: ValueError("at exit")))
    return 1


def raise_in_thread() -> int:
    """A thread of the tool's own dies."""
    thread = threading.Thread(target=raising(lambda: ValueError("of a thread")))
    thread.start()
    thread.join()
    return 1


def raise_in_weakref() -> int:
    """The callback of a weak reference raises."""
    gone = UnprintableError()
    weakref.finalize(gone, raising(lambda: ValueError("of a finalizer")))
    del gone
    return 1


def raise_in_gc() -> int:
    """The callback of a garbage collection raises."""
    callback = raising(lambda: ValueError("of the collector"))

    def called(*_: object) -> None:
        callback()

    gc.callbacks.append(called)
    gc.collect()
    gc.callbacks.remove(called)
    return 1


def raise_in_finally() -> int:
    """The second exception hides the first."""
    try:
        raise ValueError("first")
    finally:
        raise KeyError("second")


@contextmanager
def _bad_exit() -> Iterator[None]:
    yield
    raise ValueError("of __exit__")


def raise_at_context_end() -> int:
    """After the work was done."""
    with _bad_exit():
        return 1


def _broken(value: int) -> int:
    raise ZeroDivisionError("of a validator")


def _exits(value: int) -> int:
    raise SystemExit(4)


def _refuses(value: int) -> int:
    raise ValueError("not this one")


def _no_default() -> int:
    raise ZeroDivisionError("of a default factory")


class Options(BaseModel):
    """Has a field whose default cannot be made."""

    size: int = Field(default_factory=_no_default)


def validator_breaks(x: Annotated[int, AfterValidator(_broken)]) -> int:
    """Its argument's validator raises what no validator should."""
    return x


def validator_exits(x: Annotated[int, AfterValidator(_exits)]) -> int:
    """Its argument's validator calls sys.exit."""
    return x


def validator_refuses(x: Annotated[int, AfterValidator(_refuses)]) -> int:
    """As validators do."""
    return x


def factory_breaks(options: Options) -> int:
    """Never reached."""
    return options.size


class _LoadsWithError:
    """Travels to a child as a call that raises there."""

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return _explode, ()


def _explode() -> NoReturn:
    raise ValueError("of loading the tool")


def unloadable() -> Callable[..., object]:
    """A tool that cannot be loaded in the child."""
    luggage = _LoadsWithError()

    def cannot_load() -> str:
        return str(luggage)

    return cannot_load


async def raise_in_callback() -> int:
    """A callback on the tools' loop raises."""
    asyncio.get_running_loop().call_soon(raising(lambda: ValueError("of a callback")))
    await asyncio.sleep(0.01)
    return 1


async def raise_in_left_task() -> int:
    """A task that is never awaited raises."""

    async def left() -> None:
        raise ValueError("of a task left behind")

    task = asyncio.create_task(left())
    await asyncio.sleep(0.01)
    return 1 if task.done() else 0


@asynccontextmanager
async def _bad_aexit() -> AsyncIterator[None]:
    yield
    raise ValueError("of __aexit__")


async def raise_at_async_end() -> int:
    """After the work was done."""
    async with _bad_aexit():
        return 1


async def exit_in_callback() -> int:
    """asyncio lets SystemExit of a callback end the whole loop."""
    asyncio.get_running_loop().call_soon(raising(lambda: SystemExit(3)))
    await asyncio.sleep(0.05)
    return 1


RAISE: Final = (
    Way("del", "an object's __del__ raises", raise_in_del, in_process("ok")),
    Way("atexit", "what it registered with atexit raises", raise_at_exit, in_process("ok")),
    Way("thread", "a thread that it started raises", raise_in_thread, in_process("ok")),
    Way("weakref", "a finalizer raises", raise_in_weakref, in_process("ok")),
    Way("gc", "a callback of the garbage collector raises", raise_in_gc, in_process("ok")),
    Way("finally", "its finally raises another exception", raise_in_finally, everywhere("tool_error")),
    Way("context-end", "the end of a `with` raises", raise_at_context_end, everywhere("tool_error")),
    Way("signal-handler", "its signal handler raises", raise_in_handler, in_process("tool_error")),
    Way(
        "validator-refuses",
        "its argument's validator refuses",
        validator_refuses,
        everywhere("invalid_arguments"),
        arguments={"x": 1},
    ),
    Way(
        "validator-breaks",
        "its argument's validator raises ZeroDivisionError",
        validator_breaks,
        everywhere("tool_error"),
        arguments={"x": 1},
    ),
    Way(
        "validator-exits",
        "its argument's validator calls sys.exit",
        validator_exits,
        everywhere("crashed tool_error"),
        arguments={"x": 1},
    ),
    Way(
        "default-factory",
        "the default factory of an argument raises",
        factory_breaks,
        everywhere("tool_error invalid_arguments"),
        arguments={"options": {}},
    ),
    Way("import", "it cannot be loaded in the child", unloadable(), at(process="crashed tool_error")),
    Way("callback", "a callback on its loop raises", raise_in_callback, at(task="ok"), in_task=raise_in_callback),
    Way("left-task", "a task that it left raises", raise_in_left_task, at(task="ok"), in_task=raise_in_left_task),
    Way(
        "async-end", "the end of an `async with` raises", raise_at_async_end, at(task="tool_error"), raise_at_async_end
    ),
    Way(
        "exit-in-callback",
        "a callback on its loop calls sys.exit",
        exit_in_callback,
        at(task="ok crashed tool_error timed_out"),
        in_task=exit_in_callback,
        timeout=1.0,
        seconds=1.4,
    ),
)
