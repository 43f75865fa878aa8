"""A world in which one thread waits: its locks, its clock and its asyncio loop let time pass at once, and what others
do meanwhile is done then, each deed at its time."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from callboard.actors.kernel import reply
from callboard.actors.requests import backstop, replies

#: The moment at which each play begins.
BEGINS_AT: Final = 1_000.0
#: The thread that reads, and the one that collects its garbage at times.
READERS_THREAD: Final = 1
OTHER_THREAD: Final = 2
#: A play that does more than this never comes to an end.
MOST_DEEDS: Final = 5_000


class WaitsForEver(Exception):
    """Nothing is left to happen that could end this waiting."""


class World:
    """What others do, and when."""

    def __init__(self) -> None:
        self.now = BEGINS_AT
        self.thread = READERS_THREAD
        self.is_over = False
        """The loop of callboard has ended."""
        self._deeds: list[tuple[float, int, Callable[[], object]]] = []
        self._number = count()
        self._steps = 0
        self.after_deed: Callable[[], object] = lambda: None

    def at(self, when: float, deed: Callable[[], object]) -> None:
        """Do it then."""
        heapq.heappush(self._deeds, (max(when, self.now), next(self._number), deed))

    def post(self, deed: Callable[[], object]) -> None:
        """As the scheduler of a runtime takes it."""
        if self.is_over:
            raise RuntimeError("Event loop is closed")
        self.at(self.now, deed)

    def step(self, until: float | None = None) -> bool:
        """Wait for the next deed; False where none comes before that time, which has come then."""
        self._steps += 1
        if self._steps > MOST_DEEDS or (until is None and not self._deeds):
            raise WaitsForEver(f"at {self.now - BEGINS_AT:g} s")
        if not self._deeds or (until is not None and self._deeds[0][0] > until):
            assert until is not None
            self.now = max(self.now, until)
            return False
        self.now, _, deed = heapq.heappop(self._deeds)
        deed()
        self.after_deed()
        return True

    def sleep(self, seconds: float) -> None:
        """The thread does something else for so long."""
        until = self.now + seconds
        while self.step(until):
            pass

    def run(self) -> None:
        """All that is left to happen."""
        while self._deeds:
            self.step()

    def monotonic(self) -> float:
        """As of the module `time`."""
        return self.now

    def get_ident(self) -> int:
        """As of the module `threading`."""
        return self.thread

    def lock(self) -> Any:
        """As `threading.Lock()`."""
        return _Lock(self)


class _Lock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Meanwhile others do what they do."""
        until = None if timeout < 0 else self._world.now + timeout
        while self._is_held:
            if not blocking or not self._world.step(until):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        """Raises RuntimeError where it is open."""
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False


class _Selector(selectors.SelectSelector):
    world: World

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.world.step(None if timeout is None else self.world.now + timeout)
        return []


class WorldLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose thread waits in this world."""

    def __init__(self, world: World) -> None:
        selector = _Selector()
        self.world = selector.world = world
        self.wake_ups = 0
        """Calls from other threads."""
        super().__init__(selector)

    def time(self) -> float:
        return self.world.now

    def _write_to_self(self) -> None:
        """A system call each; what waits here is woken anyway."""
        self.wake_ups += 1

    def interrupt(self) -> None:
        """A signal handler raises in the first thing that the loop was told to do, and ends that."""
        ready: Any = getattr(self, "_ready")  # noqa: B009 - as asyncio has it, and its types have not
        if ready:
            ready.popleft()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Here, at once."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            done.set_exception(error)
        return done


@contextmanager
def replaced(module: Any, **values: object) -> Iterator[None]:
    """These names of a module, for a while."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextmanager
def waiting_in(world: World, **limits: int) -> Iterator[None]:
    """What asks and reads waits in this world. `limits`: of the module `replies`, smaller ones."""
    with (
        replaced(backstop, time=world),
        replaced(reply, time=world, Lock=world.lock),
        replaced(replies, Lock=world.lock, get_ident=world.get_ident, **limits),
    ):
        yield
