"""A runtime in its host's process: an event loop where one is needed, and what becomes of a runtime that is dropped."""

from __future__ import annotations

import _thread
import asyncio
import os
import queue
import threading
import warnings
from collections.abc import Callable
from contextvars import copy_context
from functools import partial, wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from callboard.actors.kernel.reply import Reply
from callboard.protocol.errors import UsageError

if TYPE_CHECKING:
    from callboard.actors.running import StartedRuntime

R = TypeVar("R")
P = ParamSpec("P")


#: A thread begins within milliseconds.
BEGINS_SECONDS: Final = 0.5
#: Libraries of green threads that replace parts of the standard library: how to keep those that callboard needs.
GREEN_THREADS: Final = {
    "gevent": "monkey.patch_all(thread=False, queue=False)",
    "eventlet": "eventlet.monkey_patch(thread=False, os=False)",
}


def end_dropped(running: StartedRuntime) -> None:
    """Its runtime was collected, or the process ends, without stop()."""
    if running.process_id != os.getpid():
        return  # the exit of a fork, which has none of the threads
    try:
        if not running.is_stopping:
            dropped = "a Runtime was dropped without stop(); use it as `with Runtime(...) as runtime:`"
            warnings.warn(dropped, ResourceWarning, stacklevel=2)
    finally:
        if threading.main_thread().is_alive():
            # Not here: garbage is collected on any thread, also on the one that close() waits for.
            threading.Thread(target=running.close, name="callboard-close").start()
        else:
            running.close()


def start_apart(run: Callable[[], object]) -> Callable[[], None]:
    """Begin it on a new thread of callboard's own. Where the host can start no more threads it is done here.

    One step for this thread, which Thread.start() is not: interrupted, it could keep a lock of `threading`. It begins
    a thread that begins the other, since one that is no Thread stays among `threading.enumerate()` for good.

    To be called after BEGINS_SECONDS, what is returned begins it again where it has not begun. What
    PyThreadState_SetAsyncExc raises in a thread may come in one that it has just started, and end that before its first
    instruction (CPython 3.11): until it has its own number it has that of the first.
    """
    unbegun = [run]
    look = partial(_start_unbegun, unbegun)
    look()
    return look


def _start_unbegun(unbegun: list[Callable[[], object]]) -> None:
    if unbegun:
        try:
            _thread.start_new_thread(_start_thread, (partial(_run, unbegun),))
        except RuntimeError:
            _run(unbegun)


def _start_thread(run: Callable[[], object]) -> None:
    try:
        threading.Thread(target=run, name="callboard-apart", daemon=True).start()
    except RuntimeError:  # no more threads to be had
        run()


def _run(unbegun: list[Callable[[], object]]) -> None:
    try:
        run = unbegun.pop()
    except IndexError:  # it has begun on another thread
        return
    run()


def apart(run: Callable[[], R]) -> R:
    """Its result, of a thread of callboard's own.

    An exception that comes here, out of a signal handler, ends the waiting alone: what `run` marks and holds, it also
    undoes and lets go of.
    """
    reply = Reply[R]()
    look = start_apart(partial(_answer, reply, partial(copy_context().run, run)))
    while not reply.wait(BEGINS_SECONDS):
        look()
    return reply.result()


def _answer(reply: Reply[R], run: Callable[[], R]) -> None:
    try:
        reply.answer(run())
    except BaseException as error:  # noqa: BLE001 - the waiting thread gets it
        reply.fail(error)


def from_host(call: Callable[P, R]) -> Callable[P, R]:
    """For what a host calls and waits for: it is done `apart`. Not where an event loop runs, which must not wait."""

    @wraps(call)
    def called(*args: P.args, **options: P.kwargs) -> R:
        run = partial(call, *args, **options)
        return apart(run) if asyncio._get_running_loop() is None else run()

    return called


def check_for_asyncio(what: str) -> None:
    """Raises UsageError where no event loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            f"{what} needs a running asyncio event loop; without one use ask_sync() or stream_sync() in "
            "`with Runtime(...)`, "
            "in another async library on a thread: `await trio.to_thread.run_sync(runtime.ask_sync, text)`"
        ) from None


def check_may_wait(what: str, instead: str) -> None:
    """Raises UsageError on an event loop of callboard's own, where `what` would wait for what it keeps from running."""
    if not getattr(asyncio._get_running_loop(), "is_of_host", True):
        raise UsageError(
            f"{what} waits, and holds the event loop of callboard's own on which this code runs: use {instead}, or run "
            "it on a thread: `await asyncio.to_thread(...)`"
        )


def check_for_threads() -> None:
    """Raises UsageError where a library of green threads has replaced what callboard's own threads are made of.

    Of all that gevent and eventlet replace, this is harmful: our loop never gets a turn, a thread of a pool never hears
    of its work, or a read waits that must not; and all of it hangs without a word.
    """
    for each in (threading.Lock, _thread.start_new_thread, queue.SimpleQueue, os.read):
        library = getattr(each, "__module__", "").partition(".")[0]
        if library in GREEN_THREADS:
            raise UsageError(
                f"{library} has replaced the threads of this process, and callboard, which has threads of its own, "
                "would hang: use workers of threads or processes (gunicorn's gthread, celery's threads or prefork), "
                f"say {GREEN_THREADS[library]} before all other imports, or ask `callboard serve` over HTTP"
            )
