"""The same actors in virtual time, one thing at a time, in an order chosen by a schedule or by Hypothesis.

Time advances to the next timer only when nothing is ready. `runs_on="thread"` actors get real threads, but these hand
each other a baton, so that still only one runs, and a blocking ask costs virtual time only.
"""

import heapq
import random
import threading
from bisect import insort
from collections.abc import Callable, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final

from msgspec import Struct

from callboard.actors.kernel.errors import AskOnLoopError, DeadlockError, KernelError
from callboard.actors.kernel.reply import Reply
from callboard.actors.kernel.scheduler import OwnThread, Run, Timer

#: Real seconds a simulated thread may take for one turn: only a handler that hangs for real exceeds it.
BATON_SECONDS: Final = 60.0

#: Given the number of the step and what is ready (two or more, the oldest first): the index of the one to run.
Schedule = Callable[[int, Sequence[Run]], int]


class Deviation(Struct, frozen=True):
    """One choice that FIFO would not have made."""

    step: int
    """Things that had run before, from 0."""
    index: int
    """Which of those that were ready ran: 1 is the second oldest."""
    at_seconds: float = 0.0
    ran: str = ""
    instead_of: str = ""

    def __str__(self) -> str:
        return f"{self.at_seconds:9.3f}    step {self.step}: {self.ran}, ahead of {self.instead_of}"


def fifo(_step: int, _options: Sequence[Run]) -> int:
    """The one that has been ready longest."""
    return 0


def uniform(seed: int) -> Schedule:
    """Each with the same probability."""
    choose = random.Random(seed).randrange
    return lambda _, options: choose(len(options))


def owner(run: Run) -> object:
    """Whose turn this is: the actor's name, or what says best which callback it is. Equal in equal runs."""
    target = getattr(run, "__self__", run)
    return getattr(target, "name", None) or label(run)


def label(run: Run) -> str:
    """One thing that ran, for the trace: never an id or an address, which differ from run to run."""
    describe = getattr(getattr(run, "__self__", run), "describe", None)
    if describe is not None:
        return str(describe())
    return str(getattr(run, "__qualname__", type(run).__name__))


class SimulatedScheduler:
    """A deterministic Scheduler. The same schedule and the same calls give the same trace, byte for byte.

    A number as the schedule is the seed of a uniform one.
    """

    turn_messages = 1

    def __init__(self, schedule: int | Schedule = 0) -> None:
        self._choose: Schedule = schedule if callable(schedule) else uniform(schedule)
        self._now = 0.0
        self._ready: list[Run] = []
        self._timers: list[_Entry] = []
        """A heap of what is not due yet."""
        self._due: list[_Entry] = []
        """Sorted: what was due first, comes first."""
        self._serial = count(1)
        self.steps = 0
        #: Every choice that FIFO would not have made, in order.
        self.deviations: list[Deviation] = []
        self._driver = threading.get_ident()
        self._running = False
        self._threads: list[BatonThread] = []
        self._ran: list[tuple[float, str]] = []
        self.at_rest: Callable[[], object] = int
        """Called when nothing is left to do at this time, before the clock moves."""

    # -- the Scheduler Protocol -------------------------------------------------------------------------------

    @property
    def trace(self) -> list[str]:
        """What ran, one line each: virtual time and who did what."""
        return [f"{at:.6f} {told}" for at, told in self._ran]

    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now

    @property
    def turn_began(self) -> float:
        """The same: a turn takes no virtual time."""
        return self._now

    def call_soon(self, run: Run) -> None:
        """Make it one of the things that may run next."""
        self._ready.append(run)

    def call_at(self, when_seconds: float, run: Run, *, lived: bool = False) -> Timer:
        """Run when virtual time has reached `when_seconds`."""
        timer = SimulatedTimer(run)
        entry = (max(when_seconds, self._now), next(self._serial), timer)
        if entry[0] <= self._now:
            insort(self._due, entry)
        else:
            heapq.heappush(self._timers, entry)
        return timer

    def frozen_since(self, at_seconds: float) -> float:
        """A simulation is never stopped."""
        return 0.0

    def is_current(self) -> bool:
        """Whether the caller is a loop actor (and not the test, nor an actor's thread)."""
        return self._running and threading.get_ident() == self._driver

    def may_mark(self) -> bool:
        """Nothing interrupts a simulated thread."""
        return True

    def own_thread(self, name: str) -> OwnThread:
        """A simulated thread."""
        thread = BatonThread(name, self)
        self._threads.append(thread)
        return thread

    def block_until(self, gate: Reply, timeout_seconds: float | None) -> bool:
        """On an actor's thread: let the others go on until answered. In a test: run the simulation until answered."""
        if self.is_current():
            raise AskOnLoopError("a blocking wait in an actor that runs on the loop; use `await ref.ask_async(...)`")
        until = float("inf") if timeout_seconds is None else self._now + timeout_seconds
        thread = BATON.thread
        if thread is not None:
            return thread.wait(gate, until)
        while not gate.done:
            if not self.step(until):
                self._now = max(self._now, until if until < float("inf") else self._now)
                if not gate.done and timeout_seconds is None:
                    raise DeadlockError("nothing is left to run, and the answer waited for never came")
                return gate.done
        return True

    # -- running ----------------------------------------------------------------------------------------------

    def run_until_idle(self, until_seconds: float | None = None) -> None:
        """Run until nothing is ready and no timer is left, or virtual time would pass `until_seconds`."""
        limit = float("inf") if until_seconds is None else until_seconds
        while self.step(limit):
            pass
        if until_seconds is not None:
            self._now = max(self._now, until_seconds)

    def after_fork(self) -> None:
        """In the child of a fork: its threads are not there."""
        self._ready, self._timers, self._due, self._threads = [], [], [], []

    def close(self) -> None:
        """End the simulated threads, those that wait for an answer too."""
        for thread in self._threads:
            thread.end()

    def lose_all(self) -> None:
        """All that was to run is gone, as when the process dies: in the middle of what its threads do."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.lose()
        self._ready, self._timers, self._due = [], [], []

    def jump(self, seconds: float) -> None:
        """Let time pass without anything having run, as while a laptop is suspended: timers due meanwhile are due now.

        Also from within a handler: then it is the handler that took so long.
        """
        if seconds < 0:
            raise ValueError(f"a clock that never goes back cannot jump by {seconds} s")
        self._advance(self._now + seconds)

    def step(self, until_seconds: float = float("inf")) -> bool:
        """Run one thing; False when there is none until then."""
        if self._due:
            self._due = [entry for entry in self._due if not entry[2].cancelled]
        if not (self._ready or self._due):
            self.at_rest()
            while self._timers and self._timers[0][2].cancelled:
                heapq.heappop(self._timers)
            if not self._timers or self._timers[0][0] > until_seconds:
                return False
            self._advance(self._timers[0][0])
        run = self._take()
        self.steps += 1
        self._running = True
        try:
            run()
        finally:
            self._running = False
        return True

    def _take(self) -> Run:
        ready, due = self._ready, self._due
        if len(ready) + len(due) == 1:
            run = ready.pop() if ready else due.pop()[2].run
            self._ran.append((self._now, label(run)))
            return run
        options = [*ready, *(timer.run for _, _, timer in due)] if due else ready
        index = self._choose(self.steps, options)
        told = label(options[index])
        self._ran.append((self._now, told))
        if index:
            self.deviations.append(Deviation(self.steps, index, self._now, told, label(options[0])))
        return ready.pop(index) if index < len(ready) else due.pop(index - len(ready))[2].run

    def _advance(self, now_seconds: float) -> None:
        self._now = now_seconds
        while self._timers and (self._timers[0][0] <= now_seconds or self._timers[0][2].cancelled):
            entry = heapq.heappop(self._timers)
            if not entry[2].cancelled:
                self._due.append(entry)


class SimulatedTimer:
    """A timer in virtual time."""

    __slots__ = ("cancelled", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        """Do not run it."""
        self.cancelled = True


_Entry = tuple[float, int, SimulatedTimer]
"""When, a serial number that keeps equal times in order, and what."""


class _Baton(threading.local):
    thread: "BatonThread | None" = None


BATON = _Baton()


class SimulationEnded(KernelError):
    """Raised in a simulated thread that still waits when its simulation is closed."""


class BatonThread:
    """A thread that runs only while the simulation waits for it."""

    def __init__(self, name: str, scheduler: SimulatedScheduler) -> None:
        self.name = name
        self._scheduler = scheduler
        self._todo: list[Run] = []
        # The baton, on its way to the thread and back: a queue hands over in two thirds of the time of a semaphore.
        self._mine: SimpleQueue[None] = SimpleQueue()
        self._theirs: SimpleQueue[None] = SimpleQueue()
        self._posted = False
        self._blocked = False
        self._ended = False
        self._thread: threading.Thread | None = None

    # -- on the simulation's side

    def call_soon(self, run: Run) -> None:
        """Run on this thread when it is chosen."""
        self._todo.append(run)
        self._post()

    def is_current(self) -> bool:
        """Whether the caller is on it."""
        return BATON.thread is self

    def close(self) -> None:
        """Nothing more will be given to it."""
        if not self._blocked:
            self.end()

    def end(self) -> None:
        """End the real thread."""
        self._ended = True
        if self._thread is not None and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._mine.put(None)

    def lose(self) -> None:
        """End it where it is: what it waits for raises SimulationEnded."""
        self._ended, thread = True, self._thread
        if thread is not None and thread.is_alive():
            self._mine.put(None)  # for the wait that it is in
            self._mine.put(None)  # for its next turn
            thread.join(BATON_SECONDS)

    def describe(self) -> str:
        """For the trace."""
        if self._blocked:
            return f"{self.name} resumed"
        return label(self._todo[0]) if self._todo else f"{self.name} -"

    def __call__(self) -> None:
        """Hand over the baton, and wait until it comes back."""
        self._posted = False
        if self._ended or not (self._todo or self._blocked):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)
            self._thread.start()
        self._mine.put(None)
        try:
            self._theirs.get(timeout=BATON_SECONDS)
        except Empty:
            raise DeadlockError(f"{self.name} has not come back for {BATON_SECONDS} real seconds") from None
        if self._todo and not self._blocked:
            self._post()

    def _post(self) -> None:
        if not self._posted and not self._blocked:
            self._posted = True
            self._scheduler.call_soon(self)

    # -- on the thread itself

    def wait(self, gate: Reply, until_seconds: float) -> bool:
        """Give the baton away until the answer is there or virtual time is over."""
        if self._ended:
            raise SimulationEnded(f"{self.name} waits in a simulation that was closed")
        resumed = Resume(self)
        gate.on_done(resumed)
        timer = None
        if until_seconds < float("inf"):
            timer = self._scheduler.call_at(until_seconds, resumed)
        if not gate.done:
            self._blocked = True
            self._theirs.put(None)
            self._mine.get()
            self._blocked = False
        resumed.over = True
        if timer is not None:
            timer.cancel()
        if self._ended:
            raise SimulationEnded(f"{self.name} waited for an answer when its simulation was closed")
        return gate.done

    def _main(self) -> None:
        BATON.thread = self
        while True:
            self._mine.get()
            if self._ended:
                return
            run = self._todo.pop(0)
            run()
            self._theirs.put(None)


class Resume:
    """Wakes a waiting thread, once."""

    __slots__ = ("_thread", "over")

    def __init__(self, thread: BatonThread) -> None:
        self._thread = thread
        self.over = False

    def __call__(self) -> None:
        if not self.over:
            self.over = True
            self._thread._scheduler.call_soon(self._thread)

    def describe(self) -> str:
        """For the trace."""
        return f"{self._thread.name} resumes"
