"""Who runs the actors, and what time it is; and a watchdog that reports a handler that holds the loop.

`LoopScheduler` is one asyncio loop on one thread of our own; the host's loop, signal handlers, threads and context
variables are never touched. `callboard.actors.testing.simulation` has the same Protocol in virtual time.
"""

import asyncio
import contextlib
import heapq
import os
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import Context
from selectors import BaseSelector, SelectorKey
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVarTuple

from msgspec import Struct, field

from .errors import AskOnLoopError, OutOfThreads, contained, logger, text_of
from .reply import Reply

#: A turn of one actor, and of all actors together, before sockets and timers get theirs.
TURN_SECONDS: Final = 0.002
#: Messages in one turn of one actor; at 1 us each far below TURN_SECONDS, so that neighbours need not wait for it.
TURN_MESSAGES: Final = 64
#: The clock is read at every fourth message and turn: it costs 0.08 us, a tenth of what handling a message does.
LOOKS_AT_CLOCK: Final = 4
#: A handler is expected to take microseconds; at 100 ms people notice that nothing else answers.
LIMIT_SECONDS: Final = 0.1
#: A process that has not run for so long was stopped: by SIGSTOP, `docker pause`, a virtual machine's snapshot. Below
#: that it is a busy machine.
FROZEN_SECONDS: Final = 0.5
#: Kept gaps: a timer that waits longer than for so many has seen enough of them.
MAX_GAPS: Final = 64
#: For what lies ready in sockets, and the few messages that it leads to, before a timer that became due meanwhile.
READ_SECONDS: Final = 0.1
#: What the watchdog tells goes to a mailbox: it hangs only where the machine does.
WATCHDOG_STOP_SECONDS: Final = 1.0

Run = Callable[[], object]
_Arguments = TypeVarTuple("_Arguments")


# -- what the kernel needs of a scheduler ---------------------------------------------------------------------


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

    def call_at(self, when_seconds: float, run: Run, *, lived: bool = False) -> Timer:
        """Run when `now()` has reached `when_seconds`, never before. Any thread may call it.

        `lived`: time in which this process was stopped does not count."""

    def frozen_since(self, at_seconds: float) -> float:
        """Seconds in which this process was stopped since then, as by SIGSTOP."""

    def is_current(self) -> bool:
        """Whether the caller is on the thread that runs the actors."""

    def may_mark(self) -> bool:
        """Whether nothing can interrupt the calling thread between two steps: a mark is followed by its deed."""

    def own_thread(self, name: str) -> OwnThread:
        """A new thread for one actor. Raises OutOfThreads."""

    def block_until(self, gate: Reply, timeout_seconds: float | None) -> bool:
        """Wait for an answer; False when time is over first. Raises AskOnLoopError on the actors' thread."""

    def after_fork(self) -> None:
        """In the child of a fork, where its threads are missing: run nothing and wait for nothing from now on."""


# -- threads --------------------------------------------------------------------------------------------------


def start_thread(run: Run, name: str) -> threading.Thread:
    """Start a daemon thread: a handler that never returns must not keep the process alive. Raises OutOfThreads."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        remedy = "raise its limit (ulimit -u, pids.max) or run fewer"
        raise OutOfThreads(f"no thread for {name}: this host can start no more of them ({error}); {remedy}") from error
    return thread


class DedicatedThread:
    """The thread of one actor that may block."""

    def __init__(self, name: str, guarded: Callable[[Run], object]) -> None:
        self._name = name
        self._todo: deque[Run | None] = deque()
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_over = False
        self._guarded = guarded
        self._thread = start_thread(self._main, name)

    def call_soon(self, run: Run) -> None:
        """Run on this thread."""
        self._todo.append(run)
        self._woken.put(None)

    def is_current(self) -> bool:
        """Whether the caller is on it."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the thread after what was given to it so far."""
        self._todo.append(None)
        self._woken.put(None)

    def _main(self) -> None:
        while not self._is_over:
            try:
                self._serve()
            except BaseException as error:  # noqa: BLE001 - raised from another thread, in no code of ours
                logger.error("an exception of another thread struck %s; it goes on", self._name, exc_info=error)

    def _serve(self) -> None:
        while not self._is_over:
            if not self._todo:
                self._woken.get()
            elif (run := self._todo[0]) is None:
                self._is_over = True
            else:
                self._guarded(run)
                self._todo.popleft()  # behind it: a turn that comes twice finds nothing to do, one that is lost hangs


# -- time in which the process was stopped --------------------------------------------------------------------


class FrozenTime:
    """The gaps in which this process did not run, found by looking often: 20 times a second, the watchdog does it.

    Time in which it had a processor is none of them: code that holds the GIL for a second must not live longer for it.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, processor_seconds: Callable[[], float] = time.process_time
    ) -> None:
        self._now = now
        self._processor_seconds = processor_seconds
        self._lock = threading.Lock()
        self._seen: tuple[float, float] | None = None
        self._gaps: deque[tuple[float, float]] = deque(maxlen=MAX_GAPS)
        """When it went on, and how long it had been stopped."""

    def look(self) -> float:
        """Look at the clock; seconds of a gap that ends now, 0.0 where there is none."""
        with self._lock:
            seen, self._seen = self._seen, (now := self._now(), used := self._processor_seconds())
            gap = 0.0 if seen is None else now - seen[0] - (used - seen[1])
            if gap < FROZEN_SECONDS:
                return 0.0
            self._gaps.append((now, gap))
            return gap

    def forget(self) -> None:
        """Nobody looks for a while: what comes until the next look is no gap."""
        with self._lock:
            self._seen = None

    def since(self, at_seconds: float) -> float:
        """Seconds that the process was stopped since then."""
        if self._seen is None:
            return 0.0
        self.look()
        return sum(min(gap, ended - at_seconds) for ended, gap in tuple(self._gaps) if ended > at_seconds)


# -- the watchdog ---------------------------------------------------------------------------------------------


class Held(Struct, frozen=True):
    """A handler that has held the loop for longer than the limit."""

    actor: str
    message_type: str
    seconds: float


Busy = tuple[str, str, float]
"""Who holds the loop: the actor's name, the type of its message, and since when at least."""


class Watchdog:
    """Calls `report` once for each handler over the limit, counts it, and logs a warning.

    On a thread of its own, since a loop that is held cannot look at itself: 20 wake-ups a second, nothing per message.
    """

    def __init__(self, limit_seconds: float = LIMIT_SECONDS, report: Callable[[Held], object] | None = None) -> None:
        self._limit_seconds = limit_seconds
        self._report = report
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: Busy | None = None
        self.frozen = FrozenTime()
        #: Handlers reported so far.
        self.count = 0

    def start(self, busy_with: Callable[[], Busy | None], now: Callable[[], float]) -> None:
        """Begin to watch, on a daemon thread. Raises OutOfThreads."""

        def main() -> None:
            while not self._ended.wait(self._limit_seconds / 2):
                if not self.frozen.look():  # else nobody has held anything
                    contained(lambda: self.look(busy_with(), now()), "the watchdog")
            self.frozen.forget()

        self._thread = start_thread(main, "callboard-watchdog")

    def stop(self) -> None:
        """End the thread, and wait for it: it is woken, and looks at most once more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(WATCHDOG_STOP_SECONDS)

    def look(self, busy: Busy | None, now_seconds: float) -> None:
        """Look once."""
        if busy is None or busy == self._reported or now_seconds - busy[2] < self._limit_seconds:
            return
        self._reported = busy
        self.count += 1
        name, kind, since_seconds = busy
        seconds = now_seconds - since_seconds
        remedy = "blocking work belongs on runs_on='thread'"
        logger.warning("%s has held the loop for %.0f ms with a %s; %s", name, seconds * 1e3, kind, remedy)
        if self._report is not None:
            self._report(Held(name, kind, seconds))


# -- a loop of asyncio's that loses nothing -------------------------------------------------------------------

#: The loop looks at its selector at least once in this time, as asyncio's does.
_LONGEST_WAIT_SECONDS: Final = 24 * 3_600.0
#: Timers that were cancelled are taken out when there are so many, and they are half of all: as asyncio does.
_MANY_CANCELLED: Final = 100


class SteadyLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, but that an exception which another thread raises in it costs no callback.

    `PyThreadState_SetAsyncExc`, by which libraries end what takes too long in another thread, strikes wherever that
    thread is by then: as often as not in the loop itself, between two callbacks. asyncio has taken the next one off its
    list by then, and whoever waits for it waits for good. Here one is noted before it is taken, and the note is struck
    out before its code begins, with no instruction in between at which CPython looks for such an exception.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int
    _selector: BaseSelector
    _clock_resolution: float
    _debug: bool
    _process_events: Callable[[list[tuple[SelectorKey, int]]], None]
    _taken: asyncio.Handle | None = None
    """Its code has not begun, and it may be on no list."""

    def _run_once(self) -> None:
        if self._debug:  # asyncio's way measures each callback
            super()._run_once()  # type: ignore[misc]
            return
        if self._taken is not None:
            self._put_back(self._taken)
        self._drop_cancelled()
        self._process_events(self._selector.select(self._wait_seconds()))
        self._take_timers()
        ready = self._ready
        for _ in range(len(ready)):
            handle = self._taken = ready[0]
            ready.popleft()
            if handle._cancelled:
                continue
            run, callback, arguments = handle._context.run, handle._callback, handle._args  # type: ignore[attr-defined]
            try:
                self._taken = None
                run(callback, *arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's Handle does
                told = f"an exception escaped the callback {callback!r}"
                self.call_exception_handler({"message": told, "exception": error, "handle": handle})
        self._taken = None

    def _wait_seconds(self) -> float | None:
        if self._ready or self._stopping:  # type: ignore[attr-defined]
            return 0.0
        if not self._scheduled:
            return None
        return min(max(0.0, self._scheduled[0].when() - self.time()), _LONGEST_WAIT_SECONDS)

    def _take_timers(self) -> None:
        """Those that are due."""
        timers, due = self._scheduled, self.time() + self._clock_resolution
        while timers and timers[0].when() < due:
            handle = self._taken = timers[0]
            heapq.heappop(timers)
            handle._scheduled = False  # type: ignore[attr-defined]
            self._ready.append(handle)
            self._taken = None

    def _drop_cancelled(self) -> None:
        timers = self._scheduled
        if self._timer_cancelled_count > max(_MANY_CANCELLED, len(timers) // 2):
            for each in timers:
                each._scheduled = not each._cancelled  # type: ignore[attr-defined]
            kept = [each for each in timers if not each._cancelled]
            heapq.heapify(kept)
            self._scheduled, self._timer_cancelled_count = kept, 0
            return
        while timers and timers[0]._cancelled:
            timers[0]._scheduled = False  # type: ignore[attr-defined]
            heapq.heappop(timers)
            self._timer_cancelled_count -= 1

    def _put_back(self, handle: asyncio.Handle) -> None:
        waiting = (
            *self._ready,
            *self._scheduled,
        )  # in one step: other threads add, and timers that differ may be equal
        if not any(each is handle for each in waiting):
            self._ready.appendleft(handle)
        self._taken = None


EventLoop = SteadyLoop
if not TYPE_CHECKING:
    with contextlib.suppress(ImportError):  # without the extra `uvloop` asyncio's own loop does the same, slower
        from uvloop import Loop as EventLoop


# -- the loop -------------------------------------------------------------------------------------------------


class _LoopWithoutContext(EventLoop):
    """A loop to which other threads do not bring their context variables, as asyncio would have them do."""

    is_of_host = False

    def call_soon_threadsafe(
        self, callback: Callable[[*_Arguments], object], *args: *_Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(callback, *args, context=Context() if context is None else context)


class LoopTimer(Struct, eq=False):
    """A timer of a LoopScheduler."""

    _scheduler: "LoopScheduler"
    _when_seconds: float
    _run: Run | None
    _lived: bool = False
    _since_seconds: float = field(default_factory=time.monotonic)
    _handle: asyncio.TimerHandle | None = None

    __repr__ = object.__repr__

    def arm(self) -> None:
        """On the loop thread: ask the loop to call us."""
        if self._run is not None:
            # uvloop counts in whole milliseconds and may be early: then we ask for one more.
            delay_seconds = max(0.001, self._when_seconds - self._scheduler.now())
            context = self._scheduler.timer_context
            self._handle = self._scheduler.loop.call_later(delay_seconds, self._fire, context=context)

    def _fire(self) -> None:
        if self._run is None:
            return
        if (now := self._scheduler.now()) >= self._when_seconds and (
            gap := self._scheduler.frozen_since(self._since_seconds)
        ):
            # What became ready meanwhile comes first; and to what was stopped with us goes the time that it has lost.
            self._since_seconds = now
            self._when_seconds = max(now + READ_SECONDS, self._when_seconds + gap if self._lived else 0.0)
        if now < self._when_seconds:
            self.arm()
        else:
            context, guarded, run = Context(), self._scheduler.guarded, self._run
            self._run = None  # as in `_pump`
            context.run(guarded, run)

    def cancel(self) -> None:
        """Do not run it."""
        self._run = None
        handle, self._handle = self._handle, None
        if handle is not None and self._scheduler.is_current():
            handle.cancel()
        elif handle is not None:
            self._scheduler.call_soon(handle.cancel)


def _open_standard_descriptors() -> None:
    """Where a host has closed 0, 1 or 2, let them lead nowhere: uvloop aborts when it closes one."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


class LoopScheduler:
    """One asyncio loop on its own thread; uvloop where it is installed.

    What is posted goes into a deque of our own, and the loop is woken once for all posts that come before it wakes up:
    one write to its self-pipe for a burst, no asyncio handle an actor turn. Actors, timers and tasks begin in an empty
    context: that of the code which tells, asks or sets a timer does not reach them.

    An exception may come between any two instructions of a host's thread (a signal handler's, Ctrl-C). There a post is
    one append, then a wake-up that may be repeated, and only then the mark that one is under way. What was appended and
    not followed by a wake-up is found by the watchdog, within half its limit.
    """

    turn_messages = TURN_MESSAGES

    def __init__(self, name: str = "callboard", *, watchdog: Watchdog | None = None) -> None:
        self._name = name
        _open_standard_descriptors()
        loop = _LoopWithoutContext()
        self.loop: asyncio.AbstractEventLoop = loop
        self._wake = super(_LoopWithoutContext, loop).call_soon_threadsafe  # without a detour, on the hot path
        self._post = loop.call_soon
        loop.set_exception_handler(self._struck)
        #: What runs now, for the watchdog.
        self.running: object = None
        #: What `now()` was when that began, or up to LOOKS_AT_CLOCK turns before.
        self.turn_began = self.now()
        #: Callbacks that let an exception escape. Actors never do; what else is posted may.
        self.escaped = 0
        #: What `_pump` runs in, again and again while it stays empty.
        self._context = Context()
        #: What timers wait in: it stays empty, since each runs in a new one. Few timers of those that are set ever do.
        self.timer_context = Context()
        self._ready: deque[Run] = deque()
        #: By the loop thread, which nothing interrupts.
        self._pump_posted = False
        #: The wake-up that another thread has made last; emptied when it has come.
        self._under_way: list[bool] = []
        self._taken: Run | None = None
        """A turn that has not begun, and is in no queue."""
        self._stopping = False
        self._is_forked = False
        self._thread: threading.Thread | None = None
        self._thread_id: int | None = None
        self._watchdog = watchdog or Watchdog()
        self._asked_at: float | None = None
        self._suspect: asyncio.Task[object] | None = None

    now = staticmethod(time.monotonic)

    def start(self) -> "LoopScheduler":
        """Start the loop thread and the watchdog. Raises OutOfThreads, and has started nothing then."""
        self._thread = start_thread(self._main, f"{self._name}-loop")
        try:
            self._watchdog.start(self.busy_with, self.now)
        except OutOfThreads:
            self.stop(timeout_seconds=1.0)
            raise
        return self

    def stop(self, timeout_seconds: float) -> bool:
        """End the loop thread; False when it was still busy after `timeout_seconds` (it ends later, or never)."""
        if self.is_current():
            raise AskOnLoopError("LoopScheduler.stop() waits for the loop thread; call it from another thread")
        self._watchdog.stop()
        thread = self._thread
        if thread is None:  # never started
            self.loop.close()
            return True
        if thread.is_alive() and not self._stopping:
            self._stopping = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join(timeout_seconds)
        return not thread.is_alive()

    def frozen_since(self, at_seconds: float) -> float:
        """Seconds in which this process was stopped since then."""
        return self._watchdog.frozen.since(at_seconds)

    @property
    def held(self) -> int:
        """Handlers that have held the loop for longer than the watchdog's limit."""
        return self._watchdog.count

    def busy_with(self) -> Busy | None:
        """For the watchdog: the cell that runs, or the task that it saw twice while the loop got to no callback."""
        run = getattr(self.running, "func", self.running)  # of a partial
        of_cell = getattr(getattr(run, "__self__", None), "busy_with", None)
        busy: Busy | None = of_cell and of_cell()
        if busy is not None:
            return busy
        task = asyncio.current_task(self.loop)
        if self._asked_at is None:
            self._asked_at = self.now()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._answer)
        elif task is not None and task is self._suspect:
            return task.get_name(), "task", self._asked_at
        self._suspect = task
        return None

    def _answer(self) -> None:
        self._asked_at = self._suspect = None
        if self._ready and not self._pump_posted:
            self._pump()

    def after_fork(self) -> None:
        """In the child of a fork: the loop and its sockets belong to the parent, so that nothing may touch them."""
        self._stopping = self._pump_posted = self._is_forked = True
        self._thread_id = None
        _KEPT_IN_FORKED_CHILDREN.append(self.loop)

    def is_current(self) -> bool:
        """Whether the caller is on the loop thread."""
        return threading.get_ident() == self._thread_id

    may_mark = is_current

    def call_soon(self, run: Run) -> None:
        """Run on the loop thread. Ignored once the scheduler has stopped."""
        self._ready.append(run)
        if self._pump_posted or self._under_way:
            return
        try:
            if threading.get_ident() == self._thread_id:
                # No wake-up is needed, which would be a write to the loop's self-pipe and a read of it.
                self._pump_posted = True
                self._post(self._pump, context=self._context)
            else:
                under_way = [True]
                self._wake(self._woken, under_way, context=self._context)
                self._under_way = under_way
        except RuntimeError:  # the loop is closed: nothing runs any more
            return

    def _woken(self, under_way: list[bool]) -> None:
        under_way.clear()  # before the look: what comes after it needs a wake-up of its own
        if not self._pump_posted:
            self._pump()

    def call_at(self, when_seconds: float, run: Run, *, lived: bool = False) -> Timer:
        """Run on the loop thread when `now()` has reached `when_seconds`."""
        timer = LoopTimer(self, when_seconds, run, lived)
        if self.is_current():
            timer.arm()
        else:
            self.call_soon(timer.arm)
        return timer

    def own_thread(self, name: str) -> OwnThread:
        """A new daemon thread. Raises OutOfThreads."""
        return DedicatedThread(name, self.guarded)

    def block_until(self, gate: Reply, timeout_seconds: float | None) -> bool:
        """Block the calling thread, never the loop's."""
        if self.is_current():
            raise AskOnLoopError("a blocking wait on the loop thread would never end; use `await ref.ask_async(...)`")
        return gate.done if self._is_forked else gate.wait(timeout_seconds)

    def guarded(self, run: Run) -> None:
        """Run one callback; an exception that escapes it is logged and counted, and the loop goes on."""
        if not contained(run, self._name):
            self.escaped += 1
            if self.is_current():
                self._go_on(None)

    def _pump(self) -> None:
        self._pump_posted = True
        context = self._context
        ready, now = self._ready, self.now
        self.turn_began = at = now()
        until = at + TURN_SECONDS
        ran = 0
        while ready:
            self.running = run = self._taken = ready[0]
            ready.popleft()
            try:
                self._taken = None  # from here to its begin there is no instruction at which an exception can strike
                run()
            except BaseException as error:  # noqa: BLE001 - contained here, the next turn is another actor's
                self._escape(run, error)
            ran += 1
            if ran % LOOKS_AT_CLOCK == 0:
                self.turn_began = at = now()
                if at >= until:
                    break
            if context:  # this turn has set a context variable, and the next one must not see it
                self._context = Context()
                break
        self.running = None
        self._pump_posted = False
        if ready:  # cut short, or posted in between
            self._pump_posted = True
            self._post(self._pump, context=self._context)

    def _main(self) -> None:
        self._thread_id = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001
                # A task that raises SystemExit or KeyboardInterrupt makes asyncio leave run_forever.
                self._escape(self.loop, error)
                self._go_on(error)
        self._close_loop()
        self._thread_id = None  # the number of a thread that has ended goes to another

    def _escape(self, what: object, error: BaseException) -> None:
        self.escaped += 1
        logger.error("%s: an exception escaped %s; the loop goes on", self._name, text_of(what), exc_info=error)

    def _struck(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if "handle" in context:  # a callback; of a task that nobody waits for it is told at any time, on any thread
            self.escaped += 1
            self._go_on(context.get("exception"))

    def _go_on(self, error: BaseException | None) -> None:
        """After an exception that another thread has raised in this one (PyThreadState_SetAsyncExc), or that a callback
        of others let escape: what it has struck may have been marked, and not done."""
        if self._taken is not None:
            self._ready.appendleft(self._taken)
            self._taken = None
        for frame, _ in traceback.walk_tb(error.__traceback__ if error is not None else None):
            if isinstance(timer := frame.f_locals.get("self"), LoopTimer):
                timer.arm()  # unless it was cancelled, or has run
        self._asked_at = self._suspect = None
        self._under_way = []
        self._pump_posted = True
        self._post(self._pump, context=self._context)

    def _close_loop(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


#: A loop of the parent process that was collected in the child would close what both share, its epoll set for one.
_KEPT_IN_FORKED_CHILDREN: list[asyncio.AbstractEventLoop] = []
