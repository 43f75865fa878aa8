"""Who runs the actors, and what time it is.

`LoopScheduler` is one asyncio loop on one thread of our own; the host's loop, signal handlers and threads are never
touched. `simulation.SimulatedScheduler` is the same Protocol in virtual time. Nothing else in callboard reads a clock.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from .errors import AskOnLoopError
from .reply import Reply
from .watchdog import Watchdog

new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
with contextlib.suppress(ImportError):  # without the extra `uvloop` asyncio's own loop does the same, slower
    from uvloop import new_event_loop

__all__ = ["TURN_SECONDS", "Executor", "LoopScheduler", "Run", "Scheduler", "Timer", "new_event_loop"]

logger = logging.getLogger("callboard.kernel")

#: A turn of one actor, and of all actors together, before sockets and timers get theirs.
TURN_SECONDS: Final = 0.002
#: Messages in one turn of one actor; at 1 us each far below TURN_SECONDS, so that neighbours need not wait for it.
TURN_MESSAGES: Final = 64
#: The clock is read at every fourth message and turn: it costs 0.08 us, a tenth of what handling a message does.
LOOKS_AT_CLOCK: Final = 4

Run = Callable[[], object]


class Timer(Protocol):
    """Something that will run later."""

    def cancel(self) -> None:
        """Do not run it. Any thread may call it, also when it has run already."""


class Executor(Protocol):
    """Runs what it is given, one after the other."""

    def call_soon(self, run: Run) -> None:
        """Run as soon as possible. Any thread may call it."""


class OwnThread(Executor, Protocol):
    """An executor for one actor whose handlers may block."""

    def is_current(self) -> bool:
        """Whether the caller is on it."""

    def close(self) -> None:
        """End the thread once what it runs has returned. Never waits."""


class Scheduler(Executor, Protocol):
    """Runs actors and keeps the time."""

    #: Messages an actor may handle before the next one has its turn.
    turn_messages: int

    @property
    def turn_began(self) -> float:
        """What `now()` was when the present callback began, or a few short ones before it."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def call_at(self, when_seconds: float, run: Run) -> Timer:
        """Run when `now()` has reached `when_seconds`, never before. Any thread may call it."""

    def is_current(self) -> bool:
        """Whether the caller is on the thread that runs the actors."""

    def own_thread(self, name: str) -> OwnThread:
        """A new thread for one actor."""

    def block_until(self, gate: Reply, timeout_seconds: float | None) -> bool:
        """Wait for an answer; False when time is over first. Raises AskOnLoopError on the actors' thread."""


class LoopTimer:
    """A timer of a LoopScheduler."""

    __slots__ = ("_handle", "_run", "_scheduler", "_when_seconds")

    def __init__(self, scheduler: "LoopScheduler", when_seconds: float, run: Run) -> None:
        self._scheduler = scheduler
        self._when_seconds = when_seconds
        self._run: Run | None = run
        self._handle: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """On the loop thread: ask the loop to call us."""
        if self._run is not None:
            # uvloop counts in whole milliseconds and may be early: then we ask for one more.
            delay_seconds = max(0.001, self._when_seconds - self._scheduler.now())
            self._handle = self._scheduler.loop.call_later(delay_seconds, self._fire)

    def _fire(self) -> None:
        if self._run is not None and self._scheduler.now() < self._when_seconds:
            self.arm()
        elif self._run is not None:
            run, self._run = self._run, None
            self._scheduler.guarded(run)

    def cancel(self) -> None:
        """Do not run it."""
        self._run = None
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if self._scheduler.is_current():
            handle.cancel()
        else:
            self._scheduler.call_soon(handle.cancel)


class DedicatedThread:
    """The thread of one actor that may block."""

    def __init__(self, name: str, guarded: Callable[[Run], None]) -> None:
        self._todo: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._guarded = guarded
        # A daemon, since a handler that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def call_soon(self, run: Run) -> None:
        """Run on this thread."""
        self._todo.put(run)

    def is_current(self) -> bool:
        """Whether the caller is on it."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread after what was given to it so far."""
        self._todo.put(None)

    def _main(self) -> None:
        while (run := self._todo.get()) is not None:
            self._guarded(run)


class LoopScheduler:
    """One asyncio loop on its own thread; uvloop where it is installed.

    What is posted goes into a deque of our own, and the loop is woken once for as many posts as come before it has
    woken up: one write to its self-pipe for a burst, no asyncio handle an actor turn.
    """

    turn_messages = TURN_MESSAGES

    def __init__(self, name: str = "callboard", *, watchdog: Watchdog | None = None) -> None:
        self._name = name
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        #: What runs now, for the watchdog.
        self.running: object = None
        #: What `now()` was when that began, or up to LOOKS_AT_CLOCK turns before.
        self.turn_began = self.now()
        #: Callbacks that let an exception escape. Actors never do; what else is posted may.
        self.escaped = 0
        self._ready: deque[Run] = deque()
        self._pump_posted = False
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=f"{name}-loop", daemon=True)
        self._thread_id: int | None = None
        self._watchdog = watchdog or Watchdog()

    now = staticmethod(time.monotonic)

    def start(self) -> "LoopScheduler":
        """Start the loop thread and the watchdog."""
        self._thread.start()
        self._watchdog.start(self)
        return self

    def stop(self, timeout_seconds: float) -> bool:
        """End the loop thread; False when it was still busy after `timeout_seconds` (it ends later, or never)."""
        if self.is_current():
            raise AskOnLoopError("LoopScheduler.stop() waits for the loop thread; call it from another thread")
        self._watchdog.stop()
        if self._thread.ident is None:  # never started
            self.loop.close()
        if self._stopping or not self._thread.is_alive():
            return not self._thread.is_alive()
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def is_current(self) -> bool:
        """Whether the caller is on the loop thread."""
        return threading.get_ident() == self._thread_id

    def call_soon(self, run: Run) -> None:
        """Run on the loop thread. Ignored once the scheduler has stopped."""
        self._ready.append(run)
        if self._pump_posted:
            return
        self._pump_posted = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self.loop.call_soon_threadsafe(self._pump)

    def call_at(self, when_seconds: float, run: Run) -> Timer:
        """Run on the loop thread when `now()` has reached `when_seconds`."""
        timer = LoopTimer(self, when_seconds, run)
        if self.is_current():
            timer.arm()
        else:
            self.call_soon(timer.arm)
        return timer

    def own_thread(self, name: str) -> OwnThread:
        """A new daemon thread."""
        return DedicatedThread(name, self.guarded)

    def block_until(self, gate: Reply, timeout_seconds: float | None) -> bool:
        """Block the calling thread, never the loop's."""
        if self.is_current():
            raise AskOnLoopError(
                "a blocking wait on the actors' loop thread can never be answered; use `await ref.ask_async(...)`"
            )
        return gate.wait(timeout_seconds)

    def guarded(self, run: Run) -> None:
        """Run one callback; whatever escapes it is logged and counted, and the loop goes on."""
        try:
            run()
        except BaseException:
            self.escaped += 1
            logger.exception("%s: an exception escaped %r", self._name, run)

    def _pump(self) -> None:
        ready, now = self._ready, self.now
        self.turn_began = at = now()
        until = at + TURN_SECONDS
        ran = 0
        while ready:
            self.running = run = ready.popleft()
            try:
                run()
            except BaseException:
                self.escaped += 1
                logger.exception("%s: an exception escaped %r", self._name, run)
            ran += 1
            if ran % LOOKS_AT_CLOCK == 0:
                self.turn_began = at = now()
                if at >= until:
                    break
        self.running = None
        self._pump_posted = False
        if ready and not self._pump_posted:  # cut short, or posted in between
            self._pump_posted = True
            self.loop.call_soon(self._pump)

    def _main(self) -> None:
        self._thread_id = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except BaseException:
                # A task that raises SystemExit or KeyboardInterrupt makes asyncio leave run_forever.
                self.escaped += 1
                logger.exception("%s: an exception left the event loop; it goes on", self._name)
        self._close_loop()

    def _close_loop(self) -> None:
        tasks: set[asyncio.Task[Any]] = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            with contextlib.suppress(TimeoutError):
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
