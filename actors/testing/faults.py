"""What is done to the actors, their workers, their clock and the conversation store in a simulated run: plain data.

What model, tools and people do is in the scenario (`callboard.protocol.testing.scenario`). Times are virtual seconds.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import product
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.calls.approvals import ApprovalKind
from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import Tag
from callboard.protocol.testing.drawing import SeededChoices, draw_call
from callboard.protocol.testing.scenario import PlannedCall
from callboard.protocol.tools import Isolation, Latency

#: The name of each pool of the tree, as messages.pool_name gives it.
POOLS: Final = tuple(f"{isolation}-{latency}" for isolation, latency in product(Isolation, Latency))
#: The actors that a fault may crash: all that a supervisor starts again, and the supervisor of the pools itself.
CRASHABLE: Final = (
    "root/dispatcher",
    "root/llm_manager",
    "root/telemetry",
    "root/sessions",
    "root/tools",
    *(f"root/tools/{pool}" for pool in POOLS),
)
#: Events that a session applies and commands that it gives: where a crash or a death may have to find something open.
MOMENTS: Final = (
    "RequestStarted",
    "CallModel",
    "AsksForSummary",
    "ModelStreamed",
    "ModelNoted",
    "ModelResponded",
    "ModelFailed",
    "AskApproval",
    "ApprovalGranted",
    "RunTool",
    "ToolCallStarted",
    "ToolCallDeferred",
    "ToolCallCompleted",
    "CancelTool",
    "RecordStep",
    "RecordCompaction",
    "Finish",
)
#: Where a death has to find the outcome of a call in the journal, committed with what its tool wrote, and no event yet.
COMMITTED: Final = "EffectCommitted"
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
    VANISHES = "vanishes"
    """It says nothing more of the call, and does not die when it is killed."""
    GIVES_BACK = "gives_back"
    """It cannot begin the call, which goes to another worker; that one cannot either."""
    NOT_SHIPPED = "not_shipped"
    """The call cannot be started: its tool cannot be pickled."""
    NOT_STARTED = "not_started"
    """The call cannot be started: there are no descriptors or processes."""


class Moment(Struct, frozen=True):
    """The time at which something happens in the run, whenever that is."""

    what: str
    """One of `MOMENTS`, or COMMITTED."""
    number: int = 1
    """The first time, or a later one; those of all requests are counted together."""


class Crash(Struct, frozen=True):
    """These actors crash at the same instant."""

    at: float
    actors: tuple[str, ...]
    moment: Moment | None = None
    """From which `at` counts; None: from the beginning of the run."""


class Death(Struct, frozen=True):
    """The whole process dies, and another one starts with its journal. Without a journal there is none."""

    after_steps: int
    """Of the simulation, from its beginning on; a run that has fewer is over before."""
    down_seconds: float = 0.0
    """Until the next process runs."""
    moment: Moment | None = None
    """From which the steps count."""


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


class RequestFate(StrEnum):
    """What becomes of a request to a model that does not answer."""

    SERVER = "server"
    OVERLOADED = "overloaded"
    RATE_LIMITED = "rate_limited"
    """It is to be tried again after a while, which holds for all requests of the credential."""
    CUT = "cut"
    """Its stream breaks off behind some text, which was paid for."""
    BILLING = "billing"
    """It is not to be tried again; another route may answer."""
    NOT_FOUND = "not_found"
    """Likewise."""


class ModelFaults(Struct, frozen=True):
    """How models and the ways to them behave, besides what the turns of a scenario say."""

    routes: int = 1
    """To each model, the fallbacks included."""
    fates: tuple[RequestFate, ...] = (RequestFate.SERVER,)
    """Each request that is to fail has one of these, by its call and number."""
    more: tuple[int, ...] = (0,)
    """Each model call has one of these by its tag: so many requests more fail before one answers."""
    requests_per_minute: float | None = None
    """That the credential of the first route allows."""

    def fate_of(self, tag: Tag, number: int) -> RequestFate:
        """What becomes of this request of a model call."""
        return self.fates[zlib.crc32(repr((tag, number)).encode()) % len(self.fates)]

    def more_of(self, tag: Tag) -> int:
        """Requests of this model call that fail besides those of its turn."""
        return self.more[zlib.crc32(repr(tag).encode()) % len(self.more)]


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


class PeopleFaults(Struct, frozen=True):
    """How far the answers of those reach who are asked for approval."""

    reaches: tuple[ApprovalKind, ...] = (ApprovalKind.ONCE,)
    """Each answer has one of these by its question, as far as it fits: a yes to one call, to equal ones, a no."""

    def reach_of(self, question: AskApproval, *, grants: bool, is_changed: bool) -> ApprovalKind:
        """For which calls the answer to this question counts."""
        kind = self.reaches[zlib.crc32(repr(question.tag).encode()) % len(self.reaches)]
        if is_changed:
            return ApprovalKind.ONCE
        return kind if kind.grants is grants else (ApprovalKind.ONCE if grants else ApprovalKind.DENY)


class Faults(Struct, frozen=True):
    """Everything that is done to one run from outside its scenarios."""

    crashes: tuple[Crash, ...] = ()
    """One that would be more than a supervisor bears is left out, unless the run `escalates`."""
    escalates: bool = False
    """Supervisors give up: in the end the root, and the tree with it."""
    floods: tuple[float, ...] = ()
    """Every session's mailbox is filled with messages of another request."""
    jumps: tuple[tuple[float, float], ...] = ()
    """When the clock jumps forward without anything having run, and by how many seconds."""
    store: StoreFaults = StoreFaults()
    journal: JournalFaults | None = None
    """None: there is no journal."""
    deaths: tuple[Death, ...] = ()
    workers: WorkerFaults = WorkerFaults()
    direct_calls: tuple[tuple[float, PlannedCall], ...] = ()
    """Of tools, without a model, beside the requests: when, and what becomes of each."""
    models: ModelFaults = ModelFaults()
    people: PeopleFaults = PeopleFaults()
    session_capacity: int = 8
    """Messages a session's mailbox holds, where there are floods."""
    max_queued_calls: int = 10_000
    """Calls that may wait at the dispatcher for their turn with one tool."""


def is_small(seed: int) -> bool:
    """Has the run of this seed one short request, and at most one kind of fault? Both schedules have such runs."""
    return seed % 8 < 6


def seeded_faults(seed: int) -> Faults:
    """The faults of this seed: of a small run one kind, or none; else each kind in some of the runs."""
    rng = random.Random(f"faults {seed}")
    faults = replace(Faults(), journal=_journal(rng) if rng.random() < 0.5 else None)
    if is_small(seed):
        kind = rng.choice((None, *(_crash_at_a_moment, _death_at_a_moment) * 3, _odd_workers, *_KINDS))
        return faults if kind is None else kind(rng, faults, 4)
    for kind, share in _KINDS.items():
        if rng.random() < share:
            faults = kind(rng, faults, 20)
    return faults


def _crashes(rng: random.Random, faults: Faults, latest: int) -> Faults:
    """Of whichever actors, at whichever times."""
    crashes = (
        Crash(_moment(rng, latest), tuple(rng.sample(CRASHABLE, rng.choice((1, 1, 1, 2)))))
        for _ in range(rng.randint(1, MAX_CRASHES))
    )
    return replace(faults, crashes=(*faults.crashes, *crashes))


def _crash_at_a_moment(rng: random.Random, faults: Faults, _latest: int) -> Faults:
    """While what has just happened waits for the journal, or reaches the others."""
    moment = _any_moment(rng)
    crash = Crash(rng.choice((0.0, 0.0, 0.125)), (rng.choice(CRASHABLE),), moment)
    slow = rng.choice((0.0, 0.25))
    journal = None if faults.journal is None else replace(faults.journal, commit_seconds=slow)
    return replace(faults, crashes=(*faults.crashes, crash), journal=journal)


def _crash_waves(rng: random.Random, faults: Faults, latest: int) -> Faults:
    """As many crashes as the root bears, or one wave more; or of pools, more than their supervisor bears."""
    at, waves = _moment(rng, latest), rng.choice((3, 4, 4))
    actors: tuple[str, ...] = ("root/dispatcher", "root/llm_manager", "root/telemetry")
    if rng.random() < 0.4:
        actors, waves = tuple(f"root/tools/{pool}" for pool in POOLS), 4
    crashes = tuple(Crash(at + wait, actors) for wait in (0.0, 0.25, 0.75, 1.5)[:waves])
    return replace(faults, crashes=(*faults.crashes, *crashes), escalates=waves == 4)


def _any_moment(rng: random.Random) -> Moment:
    return Moment(rng.choice(MOMENTS), rng.choice((1, 1, 1, 2)))


def _deaths(rng: random.Random, faults: Faults, latest: int) -> Faults:
    """Of the process, at any steps."""
    steps = sorted(rng.sample(range(1, latest * 10), rng.randint(1, MAX_DEATHS)))
    deaths = tuple(Death(after, rng.choice(DOWN_SECONDS)) for after in steps)
    return replace(faults, journal=faults.journal or _sound_journal(rng), deaths=(*faults.deaths, *deaths))


def _death_at_a_moment(rng: random.Random, faults: Faults, _latest: int) -> Faults:
    """Of the process, just behind something that happens."""
    death = Death(rng.randint(0, 12), rng.choice(DOWN_SECONDS), _any_moment(rng))
    if random.Random(repr(death)).random() < 0.2:
        death = replace(death, moment=Moment(COMMITTED))
    return replace(faults, journal=faults.journal or _sound_journal(rng), deaths=(*faults.deaths, death))


def _contention(rng: random.Random, faults: Faults, _latest: int) -> Faults:
    """Few workers, which may start slowly, and short queues."""
    few = replace(faults.workers, workers=rng.choice((1, 2, 3)), start_seconds=rng.choice((0.0, 0.0, 0.25, 1.0)))
    return replace(faults, workers=few, max_queued_calls=rng.choice((0, 1, 2, 4)))


def _odd_workers(rng: random.Random, faults: Faults, latest: int) -> Faults:
    """In a small run most calls meet one; in a rich one few do, or no request would get far."""
    fine = (WorkerFate.FINE,) * (40 if latest > 4 else 3)
    fates = (*WorkerFate, *fine) if latest > 4 else (*rng.sample(list(WorkerFate), 6), *fine)
    return replace(faults, workers=replace(faults.workers, fates=fates))


def _workers_die(rng: random.Random, faults: Faults, latest: int) -> Faults:
    deaths = tuple((_moment(rng, latest), rng.choice(POOLS)) for _ in range(rng.choice((1, 3))))
    return replace(faults, workers=replace(faults.workers, deaths=deaths))


def _odd_models(rng: random.Random, faults: Faults, _latest: int) -> Faults:
    """Requests that fail in any way, with and without another route."""
    fates = tuple(rng.sample(list(RequestFate), rng.choice((1, 3, len(RequestFate)))))
    more = rng.choice(((0, 1, 2), (0, 0, 1, 9), (1,)))
    return replace(faults, models=replace(faults.models, routes=rng.choice((1, 2, 2, 3)), fates=fates, more=more))


def _limited_models(rng: random.Random, faults: Faults, _latest: int) -> Faults:
    """All requests share a limit, which lets them wait."""
    return replace(faults, models=replace(faults.models, requests_per_minute=rng.choice((2.0, 6.0, 30.0))))


def _direct_calls(rng: random.Random, faults: Faults, latest: int) -> Faults:
    """Not where the process dies: none of the tests' callers asks again."""
    choices = SeededChoices(rng.randrange(1 << 20))
    calls = tuple((_moment(rng, latest), draw_call(choices)) for _ in range(rng.choice((1, 2, 4))))
    return replace(faults, direct_calls=calls if not faults.deaths and not faults.escalates else ())


def _far_reaching_answers(_rng: random.Random, faults: Faults, _latest: int) -> Faults:
    return replace(faults, people=PeopleFaults((*ApprovalKind, ApprovalKind.DENY_ALWAYS)))


def _floods(rng: random.Random, faults: Faults, latest: int) -> Faults:
    return replace(faults, floods=(_moment(rng, latest),), session_capacity=rng.choice((8, 17, 40, 300)))


def _jumps(rng: random.Random, faults: Faults, latest: int) -> Faults:
    return replace(faults, jumps=((_moment(rng, latest), rng.choice(JUMP_SECONDS)),))


def _store(rng: random.Random, faults: Faults, latest: int) -> Faults:
    """The store of conversations is slow, or refuses."""
    since = _moment(rng, latest)
    until = since + rng.choice((1.0, 5.0, 30.0))
    slow = StoreFaults(slow=((since, until, rng.choice((0.125, 1.0, 10.0))),))
    return replace(faults, store=rng.choice((slow, StoreFaults(refuses=((since, until),)))))


#: Each kind of fault, and the share of the rich runs that has it.
_KINDS: Final[Mapping[Callable[[random.Random, Faults, int], Faults], float]] = MappingProxyType(
    {
        _crashes: 0.5,
        _crash_at_a_moment: 0.3,
        _crash_waves: 0.08,
        _deaths: 0.3,
        _death_at_a_moment: 0.2,
        _contention: 0.5,
        _odd_workers: 0.6,
        _workers_die: 0.4,
        _odd_models: 0.4,
        _limited_models: 0.15,
        _far_reaching_answers: 0.3,
        _direct_calls: 0.3,
        _floods: 0.2,
        _jumps: 0.15,
        _store: 0.2,
    }
)


def _sound_journal(rng: random.Random) -> JournalFaults:
    slow = rng.choice((0.0, 0.0, 0.125, 0.5))
    return JournalFaults(slow, remains=rng.choice(list(Remains)), seed=rng.randrange(1 << 20))


def _journal(rng: random.Random) -> JournalFaults:
    """In half of the runs that have one, something is wrong with it."""
    faults = _sound_journal(rng)
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


def _moment(rng: random.Random, latest: int) -> float:
    """An eighth of a second, as most times of a scenario are, so that things coincide."""
    return rng.randint(1, latest * 8) / 8
