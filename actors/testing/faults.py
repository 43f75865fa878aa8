"""What is done to the actors, their workers, their clock and the conversation store in a simulated run: plain data.

What model, tools and people do is in the scenario (`callboard.protocol.testing.scenario`). Times are virtual seconds.
"""

from __future__ import annotations

import random
import zlib
from enum import StrEnum
from itertools import product
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.ids import Tag
from callboard.protocol.tools import Isolation, Latency

#: The name of each pool of the tree, as messages.pool_name gives it.
POOLS: Final = tuple(f"{isolation}-{latency}" for isolation, latency in product(Isolation, Latency))
#: The actors that a fault may crash: all that a supervisor starts again, and the supervisor of the pools itself.
CRASHABLE: Final = (
    "root/dispatcher",
    "root/llm_manager",
    "root/telemetry",
    "root/tools",
    *(f"root/tools/{pool}" for pool in POOLS),
)
#: Crashes in one seeded run, at most.
MAX_CRASHES: Final = 3
#: Deaths of the process in one seeded run, at most: a request that is taken up more often without getting on is ended.
MAX_DEATHS: Final = 3
#: Until the next process runs: at once, as a supervisor of processes starts it, or by hand.
DOWN_SECONDS: Final = (0.0, 0.0, 1.0, 60.0)
#: How long the clock jumps in seeded runs: a paused virtual machine, a short and a long sleep of a laptop.
JUMP_SECONDS: Final = (1.0, 60.0, 3_600.0)


class WorkerFate(StrEnum):
    """What becomes of the worker that is given a call."""

    FINE = "fine"
    DIES_BEFORE = "dies_before"
    """It dies before the order reaches it: the tool's code does not run."""
    DIES_DURING = "dies_during"
    """It dies half way through the call."""
    DIES_AFTER = "dies_after"
    """It has told the result, then it dies."""
    REPORTS_TWICE = "reports_twice"
    IGNORES_INTERRUPT = "ignores_interrupt"
    SLOW_TO_DIE = "slow_to_die"
    """It ignores the interrupt, and ends only a while after it was killed."""
    GIVES_BACK = "gives_back"
    """It cannot begin the call, which goes to another worker; that one cannot either."""
    NOT_SHIPPED = "not_shipped"
    """The call cannot be started: its tool cannot be pickled."""
    NOT_STARTED = "not_started"
    """The call cannot be started: there are no descriptors or processes."""


class Crash(Struct, frozen=True):
    """These actors crash at the same instant."""

    at: float
    actors: tuple[str, ...]


class Death(Struct, frozen=True):
    """The whole process dies, and another one starts with its journal. Without a journal there is none."""

    after_steps: int
    """Of the simulation, from its beginning on; a run that has fewer is over before."""
    down_seconds: float = 0.0
    """Until the next process runs."""


class StoreFaults(Struct, frozen=True):
    """What becomes of recording a step in a conversation."""

    slow: tuple[tuple[float, float, float], ...] = ()
    """From, until, and how many seconds each recording takes; the loop does nothing else meanwhile."""
    refuses: tuple[tuple[float, float], ...] = ()
    """From, until: each recording raises OSError, as on a full disk."""


class Remains(StrEnum):
    """What is found of a commit that was not confirmed: the process died, or the journal's actor crashed."""

    NOTHING = "nothing"
    ALL = "all"
    PREFIX = "prefix"
    """Its first writes."""
    TORN = "torn"
    """Its first writes; the next one is torn, and cut off."""
    SCATTERED = "scattered"
    """Some writes of each request, from the first of that request on."""


class JournalFaults(Struct, frozen=True):
    """What becomes of the journal. Windows are from and until, in seconds since the run began."""

    commit_seconds: float = 0.0
    """That a commit takes: half of it before it is durable, half after."""
    full: tuple[tuple[float, float], ...] = ()
    """Commits fail, as on a full disk; nothing is written."""
    read_only: tuple[tuple[float, float], ...] = ()
    """Commits fail, as on a disk that cannot be written; nothing is written."""
    sync_fails: tuple[tuple[float, float], ...] = ()
    """Commits fail, as when fsync says EIO: what they wrote is there all the same."""
    crashes_before: tuple[int, ...] = ()
    """The commits, counted from 1, before whose end the journal's actor crashes."""
    crashes_after: tuple[int, ...] = ()
    """Those at whose end it crashes, when they are durable and not confirmed."""
    remains: Remains = Remains.NOTHING
    seed: int = 0
    """Chooses what remains."""


class WorkerFaults(Struct, frozen=True):
    """How the simulated workers of every pool behave."""

    workers: int = 8
    """Workers of one pool; of a pool of tasks: calls on one loop."""
    start_seconds: float = 0.0
    """Before a new worker, or one that replaces another, takes a call."""
    fates: tuple[WorkerFate, ...] = (WorkerFate.FINE,)
    """Each call has one of these by its tag, so that it keeps it under another schedule."""
    deaths: tuple[tuple[float, str], ...] = ()
    """When, and in which pool (a name of `POOLS`), a worker dies: one with a call, else an idle one."""

    def fate_of(self, tag: Tag) -> WorkerFate:
        """What becomes of the worker that gets this call."""
        return self.fates[zlib.crc32(repr(tag).encode()) % len(self.fates)]


class Faults(Struct, frozen=True):
    """Everything that is done to one run from outside its scenarios."""

    crashes: tuple[Crash, ...] = ()
    """One that would be more than a supervisor bears is left out."""
    floods: tuple[float, ...] = ()
    """Every session's mailbox is filled with messages of another request."""
    jumps: tuple[tuple[float, float], ...] = ()
    """When the clock jumps forward without anything having run, and by how many seconds."""
    store: StoreFaults = StoreFaults()
    journal: JournalFaults | None = None
    """None: there is no journal."""
    deaths: tuple[Death, ...] = ()
    workers: WorkerFaults = WorkerFaults()
    session_capacity: int = 8
    """Messages a session's mailbox holds, where there are floods."""
    max_queued_calls: int = 10_000
    """Calls that may wait at the dispatcher for their turn with one tool."""


def seeded_faults(seed: int) -> Faults:
    """The faults of this seed: up to three crashes, and each other kind of fault in some of the runs."""
    rng = random.Random(f"faults {seed}")
    crashes = tuple(_crash(rng) for _ in range(rng.choice((0, 0, 1, 2, MAX_CRASHES))))
    is_contended = rng.random() < 0.5
    deaths = rng.sample(range(1, 200), rng.choice((0, 0, 1, 2, MAX_DEATHS)))
    return Faults(
        crashes,
        floods=(_moment(rng, 20),) if rng.random() < 0.2 else (),
        jumps=((_moment(rng, 20), rng.choice(JUMP_SECONDS)),) if rng.random() < 0.15 else (),
        store=_store(rng),
        workers=WorkerFaults(
            workers=rng.choice((1, 2, 3)) if is_contended else 8,
            start_seconds=rng.choice((0.0, 0.0, 0.25, 1.0)),
            fates=tuple(WorkerFate) + (WorkerFate.FINE,) * 40 if rng.random() < 0.6 else (WorkerFate.FINE,),
            deaths=tuple((_moment(rng, 20), rng.choice(POOLS)) for _ in range(rng.choice((0, 0, 1, 3)))),
        ),
        max_queued_calls=rng.choice((0, 1, 2, 4)) if is_contended else 10_000,
        journal=_journal(rng),
        deaths=tuple(Death(steps, rng.choice(DOWN_SECONDS)) for steps in sorted(deaths)),
    )


def _journal(rng: random.Random) -> JournalFaults | None:
    """In half of the runs there is a journal; in half of these, something is wrong with it."""
    if rng.random() < 0.5:
        return None
    slow = rng.choice((0.0, 0.0, 0.125, 0.5))
    faults = JournalFaults(slow, remains=rng.choice(list(Remains)), seed=rng.randrange(1 << 20))
    since = _moment(rng, 15)
    window = ((since, since + rng.choice((0.5, 5.0, 30.0))),)
    commits = tuple(sorted(rng.sample(range(1, 30), rng.choice((1, 2)))))
    return rng.choice(
        (
            faults,
            faults,
            faults,
            faults,
            replace(faults, full=window),
            replace(faults, read_only=window),
            replace(faults, sync_fails=window),
            replace(faults, crashes_before=commits),
            replace(faults, crashes_after=commits),
        )
    )


def _crash(rng: random.Random) -> Crash:
    return Crash(_moment(rng, 20), tuple(rng.sample(CRASHABLE, rng.choice((1, 1, 1, 2)))))


def _store(rng: random.Random) -> StoreFaults:
    since = _moment(rng, 15)
    until = since + rng.choice((1.0, 5.0, 30.0))
    kind = rng.random()
    if kind < 0.1:
        return StoreFaults(slow=((since, until, rng.choice((0.125, 1.0, 10.0))),))
    return StoreFaults(refuses=((since, until),)) if kind < 0.2 else StoreFaults()


def _moment(rng: random.Random, latest: int) -> float:
    """An eighth of a second, as most times of a scenario are, so that things coincide."""
    return rng.randint(1, latest * 8) / 8
