"""Tools that hang. What runs on a thread of the host ends by itself after `AT_MOST` seconds: nothing else ends it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, Final

from pydantic import AfterValidator

from callboard.actors.testing.ways.case import Way, at, everywhere
from callboard.protocol.tools import Deferred

#: The deadline of a tool that hangs, and how long the case takes with the grace period.
DEADLINE: Final = 0.4
SECONDS: Final = 0.8
#: For what cannot be ended from outside.
AT_MOST: Final = 1.2
#: On the command line of programs that tools leave behind, by which they are looked for afterwards.
MARKER: Final = "callboard_chaos"
_DEAF: Final = "import signal,time;signal.signal(15,1);time.sleep(30)"


def loop() -> None:
    """In Python."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        continue


def bounded_loop() -> None:
    """The same, on a thread of the host."""
    until = time.monotonic() + AT_MOST
    while time.monotonic() < until:
        continue


def sleep() -> None:
    """In a system call."""
    time.sleep(30)


def bounded_sleep() -> None:
    """The same, on a thread of the host."""
    time.sleep(AT_MOST)


def hold_the_gil() -> int:
    """In C: no handler of Python's runs meanwhile."""
    return sum(range(10**12))


def backtrack() -> object:
    """In C: a regular expression that takes longer than the universe has been there."""
    return re.match(r"(a+)+$", "a" * 64 + "b")


def ignore_sigterm() -> None:
    """As a careful program does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    loop()


def block_signals() -> None:
    """All that can be blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    loop()


def swallow_interrupt() -> None:
    """Goes on when it is asked to end."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            time.sleep(30)
        except BaseException:  # noqa: BLE001 - this tool is the worst there is
            continue


def hang_in_finally() -> None:
    """Asked to end, it begins to clean up, and does not end with that."""
    try:
        time.sleep(30)
    finally:
        time.sleep(30)


def stop_itself() -> None:
    """SIGSTOP."""
    os.kill(os.getpid(), signal.SIGSTOP)


def deadlock() -> None:
    """Waits for itself."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=30)


def read_a_pipe() -> bytes:
    """Of which it has the other end itself."""
    reading, _writing = os.pipe()
    return os.read(reading, 1)


def wait_for_child() -> None:
    """For a process that does not end."""
    subprocess.Popen([sys.executable, "-S", "-c", _DEAF, MARKER]).wait()


def wait_for_child_elsewhere() -> None:
    """In a session of its own."""
    subprocess.Popen([sys.executable, "-S", "-c", _DEAF, MARKER], start_new_session=True).wait()


def leave_daemon() -> None:
    """A daemon, by two forks, and then hang."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-S", "-c", _DEAF, MARKER])
        os._exit(0)
    os.wait()
    time.sleep(30)


def leave_daemon_and_return() -> int:
    """The same, with a result."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-S", "-c", _DEAF, MARKER])
        os._exit(0)
    os.wait()
    return 1


def leave_children() -> int:
    """Fifty of them, each in a session of its own and deaf to SIGTERM."""
    for _ in range(50):
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(30)
            os._exit(0)
    return 1


def leave_thread() -> int:
    """One that goes on after the result."""
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    return 1


def leave_stubborn_thread() -> int:
    """One for which Python would wait at its end."""
    threading.Thread(target=time.sleep, args=(30,)).start()
    return 1


def hang_in_thread_and_main() -> None:
    """A thread holds what the tool waits for."""
    thread = threading.Thread(target=time.sleep, args=(30,))
    thread.start()
    thread.join()


def read_stdin() -> str:
    """There is nobody to type."""
    return sys.stdin.readline() if sys.stdin is not None else ""


class _HangsAtEnd:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __del__(self) -> None:
        time.sleep(self.seconds)


def hang_in_del() -> int:
    """As its frame goes."""
    held = _HangsAtEnd(30)
    return 1 if held.seconds else 0


class _HangsInText(Exception):
    def __str__(self) -> str:
        time.sleep(30)
        return "late"


def hang_in_text() -> None:
    """Its exception takes its time to say what it is."""
    raise _HangsInText


class _HangsInDict(dict[str, int]):
    def items(self) -> object:  # type: ignore[override]
        time.sleep(30)
        return super().items()

    __iter__ = items  # type: ignore[assignment]
    keys = items  # type: ignore[assignment]


def hang_in_result() -> dict[str, int]:
    """Its result takes its time to be written."""
    return _HangsInDict(a=1)


def _slow(value: int) -> int:
    time.sleep(30)
    return value


def hang_in_validator(x: Annotated[int, AfterValidator(_slow)]) -> int:
    """Before its first line."""
    return x


class _LoadsForever:
    def __reduce__(self) -> tuple[Callable[[float], None], tuple[float]]:
        return time.sleep, (30.0,)


def hanging_load() -> Callable[..., object]:
    """A tool that does not end to load in the child."""
    luggage = _LoadsForever()

    def loads_forever() -> str:
        return str(luggage)

    return loads_forever


def pause() -> None:
    """Until a signal comes."""
    signal.pause()


# -- on the tools' loop


async def await_sleep() -> None:
    """As it should: it can be cancelled."""
    await asyncio.sleep(30)


async def await_nothing() -> None:
    """A future that nobody settles."""
    await asyncio.get_running_loop().create_future()


async def block_the_loop() -> None:
    """Every other task of the loop waits."""
    bounded_sleep()


async def compute_on_the_loop() -> None:
    """The same, with the CPU."""
    bounded_loop()


async def swallow_cancel() -> int:
    """Goes on when it is cancelled."""
    until = time.monotonic() + AT_MOST
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return 1


async def cancel_all() -> int:
    """Every task of the loop, itself too."""
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(0)
    return 1


async def cancel_others() -> int:
    """Every other task of the loop."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.01)
    return 1


async def stop_the_loop() -> int:
    """loop.stop()."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    return 1


async def close_the_loop() -> int:
    """loop.close() raises while it runs."""
    asyncio.get_running_loop().close()
    return 1


async def nest_a_loop() -> int:
    """asyncio.run within a loop raises."""
    later = asyncio.sleep(0)
    try:
        asyncio.run(later)
    finally:
        later.close()
    return 1


async def hijack_handler() -> int:
    """Other calls' errors go to a handler that raises."""

    def handler(_loop: object, _context: object) -> None:
        raise SystemExit(4)

    asyncio.get_running_loop().set_exception_handler(handler)
    await asyncio.sleep(0)
    return 1


async def hijack_tasks() -> int:
    """The loop makes no task any more."""

    def refuses(*_: object, **__: object) -> asyncio.Future[object]:
        raise RuntimeError("this loop makes no tasks")

    asyncio.get_running_loop().set_task_factory(refuses)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return 1


async def hijack_executor() -> int:
    """The loop's executor is shut down."""
    await asyncio.get_running_loop().shutdown_default_executor()
    return 1


async def leave_task() -> int:
    """One that goes on after the result."""
    task = asyncio.create_task(asyncio.sleep(AT_MOST))
    task.add_done_callback(lambda _: None)
    return 1


async def flood_of_tasks() -> int:
    """Ten thousand at once."""
    await asyncio.gather(*(asyncio.sleep(0) for _ in range(10_000)))
    return 1


def _hangs(
    name: str,
    what: str,
    function: Callable[..., object],
    process: str = "timed_out",
    *,
    task: str = "-",
    thread: str = "-",
    in_task: Callable[..., object] | None = None,
    in_thread: Callable[..., object] | None = None,
    arguments: dict[str, object] | str = "{}",
) -> Way:
    tell = at(process=process, task=task, thread=thread)
    if process == "ok":
        return Way(name, what, function, tell)
    return Way(name, what, function, tell, in_task, in_thread, arguments, DEADLINE, seconds=SECONDS)


def defers_in_vain() -> Deferred:
    """For half a second."""
    return Deferred(0.5)


def _on_loop(name: str, what: str, function: Callable[..., object], task: str) -> Way:
    """These reach for the loop itself, and so for all that runs there."""
    timeout = 2.0 if task.startswith("ok") else DEADLINE
    return Way(name, what, function, at(task=task), function, timeout=timeout, seconds=SECONDS, alone=True)


_LATE: Final = "timed_out crashed"

HANG: Final = (
    Way("deferred", "leaves its result to someone who never says it", defers_in_vain, everywhere("timed_out")),
    _hangs(
        "loop",
        "an endless loop",
        loop,
        task=_LATE,
        thread="timed_out",
        in_task=compute_on_the_loop,
        in_thread=bounded_loop,
    ),
    _hangs(
        "sleep", "sleeps", sleep, task="timed_out", thread="timed_out", in_task=await_sleep, in_thread=bounded_sleep
    ),
    _hangs("gil", "an endless loop in C that holds the GIL", hold_the_gil),
    _hangs("regex", "a regular expression that backtracks without end", backtrack),
    _hangs("ignores-sigterm", "ignores SIGTERM", ignore_sigterm),
    _hangs("blocks-signals", "blocks all signals", block_signals),
    _hangs("swallows", "swallows the interrupt and goes on", swallow_interrupt, task=_LATE, in_task=swallow_cancel),
    _hangs("finally", "hangs in its finally", hang_in_finally),
    _hangs("sigstop", "stops itself with SIGSTOP", stop_itself),
    _hangs("pause", "waits for a signal", pause),
    _hangs("deadlock", "waits for a lock that it holds", deadlock),
    _hangs("pipe", "reads from a pipe that is never written", read_a_pipe),
    _hangs("stdin", "reads from stdin", read_stdin, "ok timed_out"),
    _hangs("child", "waits for a process that does not end", wait_for_child),
    _hangs("child-session", "waits for a process in a session of its own", wait_for_child_elsewhere),
    _hangs("daemon", "leaves a daemon (two forks) and hangs", leave_daemon),
    _hangs("thread-join", "waits for a thread of its own", hang_in_thread_and_main),
    _hangs("del", "hangs in a __del__ as it returns", hang_in_del),
    _hangs("text", "hangs in the __str__ of its exception", hang_in_text),
    _hangs("result", "hangs while its result is written", hang_in_result, "timed_out ok"),
    _hangs("validator", "hangs in a validator of its argument", hang_in_validator, arguments={"x": 1}),
    _hangs("load", "hangs while it is loaded in the child", hanging_load(), task="", thread=""),
    _hangs("daemon-left", "returns and leaves a daemon", leave_daemon_and_return, "ok"),
    _hangs("children-left", "returns and leaves 50 processes", leave_children, "ok"),
    _hangs("thread-left", "returns and leaves a thread", leave_thread, "ok"),
    _hangs("stubborn-thread", "returns and leaves a thread that Python waits for", leave_stubborn_thread, "ok"),
    _on_loop("await", "awaits a future that is never settled", await_nothing, "timed_out"),
    _on_loop("blocking", "blocks the loop with a system call", block_the_loop, _LATE),
    _on_loop("cancel-all", "cancels all tasks of the loop, its own too", cancel_all, "ok crashed tool_error"),
    _on_loop("cancel-others", "cancels all other tasks of the loop", cancel_others, "ok"),
    _on_loop("stop-loop", "stops the loop", stop_the_loop, f"ok {_LATE}"),
    _on_loop("close-loop", "closes the loop", close_the_loop, "tool_error"),
    _on_loop("nested-loop", "runs a loop within the loop", nest_a_loop, "tool_error"),
    _on_loop("handler", "sets an exception handler that exits", hijack_handler, "ok"),
    _on_loop("task-factory", "sets a task factory that raises", hijack_tasks, "ok"),
    _on_loop("executor", "shuts the loop's executor down", hijack_executor, "ok"),
    _on_loop("task-left", "returns and leaves a task", leave_task, "ok"),
    _on_loop("many-tasks", "starts 10,000 tasks", flood_of_tasks, "ok timed_out"),
)
