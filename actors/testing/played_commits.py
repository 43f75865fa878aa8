"""Commits in the play of recovery: what is written or not, who hears of it, and the model of what the journal has."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.journal import journal
from callboard.actors.journal.journal import CRASHED, MAX_TRIES, Journal
from callboard.actors.journal.journal_records import Change, EffectWrite, Needs, Write
from callboard.actors.journal.journal_store import (
    ChangeRefused,
    Idle,
    JournalFailed,
    JournalLost,
    JournalUnsure,
)
from callboard.actors.journal.outbox import EffectCommitted, NotWritten, Outbox, Written
from callboard.actors.journal.records_of_runtime import JournalRecords
from callboard.actors.kernel import ActorSystem, Backoff, ChildSpec, Supervisor
from callboard.actors.requests.conversation import Conversation
from callboard.actors.testing.simulated_store import (
    REFUSED_STATEMENT,
    PlannedCommitCrash,
    SimulatedDisk,
    SimulatedReader,
    SimulatedWriter,
)
from callboard.actors.testing.simulation import SimulatedScheduler, fifo
from callboard.actors.testing.written_ahead import chain_of
from callboard.actors.testing.written_request import Address, Talk, Wanted
from callboard.protocol.compaction import Compacted
from callboard.protocol.events import CancelRequested
from callboard.protocol.ids import RequestId
from callboard.protocol.options import ToolOffer

#: By how much the wall clock is ahead of that of a process: powers of two, so that most sums are exact.
CLOCKS: Final = (0.0, 0.0, 1024.0, 4096.0)
#: Writes that may wait in an outbox that is small.
FEW: Final = 6
#: Between two renewals of a lease.
LEASE_SECONDS: Final = 5.0
#: Until a journal that has failed or crashed is written again.
UNTIL_WRITTEN_SECONDS: Final = 60.0


class Effect(Struct, eq=False):
    """What a transaction has handed over."""

    talk: Talk
    change: EffectWrite
    address: Address

    @property
    def is_refused(self) -> bool:
        """By the database, or since its call has another outcome."""
        known = [each for each in self.talk.due.outcomes if each.tag == self.change.tag]
        is_other = bool(known) and known != [self.change.outcome]
        is_there = bool(known) and not is_other
        return not is_there and (is_other or any(each.sql == REFUSED_STATEMENT for each in self.change.statements))


class PlayedWriter(SimulatedWriter):
    """Its commits fail as the play says."""

    def __init__(self, world: Commits) -> None:
        super().__init__(world.disk, is_shared=world.is_shared)
        self._world = world

    def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        """One of the world's."""
        return self._world.commits(batch, super().commit)

    def renew(self) -> float | None:
        """See JournalWriter."""
        return self._world.renews()

    def may_act(self) -> bool:
        """See JournalWriter."""
        return self._world.may_act

    def take_up(self, idle: Idle | None = None) -> tuple[RequestId, ...]:
        """See JournalWriter."""
        if idle is None:
            return super().take_up()
        self._world.looks_for_idle(idle)
        return ()

    # A store with tables, as far as reports of damage go.

    def change(self, run: Callable[[Any], object]) -> object:
        """See CleansUp."""
        return run(self)

    def query(self, _sql: str, _parameters: object) -> list[object]:
        """There is none yet."""
        return []

    def execute(self, _sql: str, row: tuple[object, ...]) -> None:
        """Something is reported."""
        self._world.apart.append(row)

    give_back = vacuum = forget = size_bytes = change


@contextmanager
def batches_of(most: int) -> Iterator[None]:
    """Of so many changes."""
    settings, before = journal.__dict__, journal.MAX_BATCH
    settings["MAX_BATCH"] = most
    try:
        yield
    finally:
        settings["MAX_BATCH"] = before


def _raise(errors: list[PlannedCommitCrash]) -> None:
    if errors:
        raise errors.pop()


class Commits:
    """Processes one after the other, their journal, and the model of it."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"recovery {seed}")
        self.seed = seed
        self.scheduler = SimulatedScheduler(fifo)
        self.ahead = rng.choice(CLOCKS)
        self.disk = SimulatedDisk(self.wall)
        self.talks: list[Talk] = []
        self.queue: list[Wanted | Effect] = []
        self.marks: list[Wanted] = []
        """That requests have ended which were not written: to be written as soon as that is possible."""
        self.problems: list[str] = []
        self.deed = ""
        self.failures: list[Callable[[Sequence[Change]], None]] = []
        """Of the next commits."""
        self.after: list[BaseException] = []
        """With which the next ones end that are durable."""
        self.numbers = 0
        self.capacity = rng.choice((FEW, 1_000, 1_000, 1_000))
        self.is_set_back = False
        """The wall clock was, between two processes."""
        self.is_shared = rng.random() < 0.3
        """Other processes write to the journal, too: there is a lease."""
        self.renewed_at = 0.0
        self.loses: JournalLost | None = None
        """What the next renewal of the lease finds."""
        self.may_act = True
        """The lease is surely ours."""
        self.summaries: dict[str, Compacted] = {}
        """What is left out of the prompts of each conversation, by the journal."""
        self.known: set[str] = set()
        """The conversations that have been written by this process, and need not be once more."""
        self.tools: tuple[ToolOffer, ...] = ()
        self.asks_people = rng.random() < 0.3
        self.apart: list[tuple[object, ...]] = []
        """Rows of what was set aside."""
        self.conversations: list[Conversation] = []
        self._process_starts()

    def now(self) -> float:
        """By the clock of the process."""
        return self.scheduler.now()

    def wall(self) -> float:
        """As time.time()."""
        return self.scheduler.now() + self.ahead

    def wrong(self, what: str) -> None:
        """Something is not as promised."""
        if len(self.problems) < 3:
            self.problems.append(f"{self.deed}: {what}")

    @property
    def has_room(self) -> bool:
        """One more write may wait."""
        return len(self.queue) < self.capacity

    def _process_starts(self) -> None:
        self.disk.process_starts()
        self.known.clear()
        self.renewed_at, self.may_act = self.now(), True
        self.here: dict[RequestId, object] = {}
        """What this process has in hand, as TakingUp is told."""
        self.failed: set[RequestId] = set()
        """Of whose writes one has failed."""
        self.sessions: set[RequestId] = set()
        """Those that hear it where all is lost: written, and not ended."""
        self.outbox = Outbox("played", capacity=self.capacity, wall_clock=self.wall)
        self.system = ActorSystem(self.scheduler)
        make = lambda: Journal(lambda: PlayedWriter(self), self.outbox)  # noqa: E731 - two lines for one
        spec = ChildSpec("journal", make, backoff=Backoff(0.125, 1.0, jitter=0.0))
        self.system.spawn(lambda: Supervisor([spec], intensity=1_000_000), "root")
        self.scheduler.run_until_idle(self.now())

    def commits(
        self, batch: Sequence[Change], commit: Callable[[Sequence[Change]], Sequence[ChangeRefused | None]]
    ) -> Sequence[ChangeRefused | None]:
        """The journal's actor commits."""
        if self.failures:
            self.failures[0](batch)
        for change in batch if self.outbox.tries == 1 else ():
            rows = self.disk.conversations.get(change.conversation_id, {}) if isinstance(change, Write) else {}
            if isinstance(change, Write) and change.begins is not None and change.conversation_id in self.known:
                again = [each.message_id for each in change.messages if each.message_id in rows]
                if again:
                    self.wrong(f"{change.request_id}: {again} are written once more")
        done = commit(batch)
        if self.after:
            raise self.after.pop(0)
        return done

    def renews(self) -> float | None:
        """It proves that it lives, or hears that another process has all it had."""
        lost, self.loses = self.loses, None
        if lost is not None:
            raise lost
        self.renewed_at, self.may_act = self.now(), True
        return LEASE_SECONDS if self.is_shared else None

    def looks_for_idle(self, idle: Idle) -> None:
        """It asks which open requests nothing here goes on with."""
        open_ones = SimulatedReader(self.disk).open_requests()
        failed = {each for each in open_ones if self.outbox.is_failed(each)}
        due = set(open_ones) - failed - self.outbox.here()
        if idle(open_ones) != due:
            self.wrong(f"of {open_ones} idle are said to be {sorted(idle(open_ones))}, not {sorted(due)}")

    def _step(self, talk: Talk) -> None:
        wanted = talk.step()
        if wanted is not None:
            self.queue.append(wanted)

    def commit(self) -> None:
        """All that waits is written, in one commit or in several."""
        is_small = not self.marks and self.rng.random() < 0.2
        with batches_of(2 if is_small else journal.MAX_BATCH):
            self.scheduler.run_until_idle(self.now())
        self._written(list(self.queue), is_small=is_small)

    def read(self) -> None:
        """Somebody reads a request with all that waits of it."""
        known = [talk for talk in self.talks if talk.due.has_begun and not talk.is_over]
        if known:
            talk = self.rng.choice(known)
            is_small = not self.marks
            with batches_of(2 if is_small else journal.MAX_BATCH):
                log = JournalRecords(self.system.ref("root/journal")).written_request(talk.request_id)
            self._written(list(self.queue), is_small=is_small)
            for told in talk.compare(log):
                talk.wrong(f"it is read: {told}")

    def _written(self, batch: Sequence[Wanted | Effect], *, is_small: bool = False) -> None:
        """All of this was written, in this order, with what had still to be said."""
        if batch or self._are_marked():
            self._mark()
            if self.outbox.failure or self.outbox.error is not None:
                self.wrong(f"it is written again, and the journal says {self.outbox.failure!r}")
        up_to: dict[str, tuple[Talk, int]] = {}
        for each in batch:
            if isinstance(each, Effect):
                self._committed(each)
                continue
            each.apply()
            if each.is_heard:
                up_to[each.talk.request_id] = each.talk, each.last
                self.sessions.add(each.talk.request_id)
            if each.end is not None:
                self.sessions.discard(each.talk.request_id)
        self.queue.clear()
        for talk in self.talks:
            due = [Written(talk.request_id, up_to[talk.request_id][1])] if talk.request_id in up_to else []
            if is_small:  # one for each of several
                del talk.address.heard[:-1]
            if talk.address.heard != due:
                self.wrong(f"{talk.request_id}: its session hears {talk.address.heard}, where {due} was due")
            talk.address.heard.clear()
            if due and not talk.is_over:
                talk.durable(due[0].up_to)
        self.compare()

    def _committed(self, effect: Effect) -> None:
        (heard,) = effect.address.heard or (None,)
        why = heard.error if isinstance(heard, EffectCommitted) and heard.tag == effect.change.tag else heard
        if not isinstance(why, ChangeRefused if effect.is_refused else type(None)) or heard is None:
            effect.talk.wrong(f"its transaction hears {heard}")
        if not effect.is_refused and effect.change.outcome not in effect.talk.due.outcomes:
            effect.talk.due.outcomes.append(effect.change.outcome)

    def full(self) -> None:
        """Nothing of a batch is written, or perhaps something."""
        is_unsure, crashes = self.rng.random() < 0.3, [PlannedCommitCrash("first")] * self.rng.choice((0, 0, 1))
        error = (JournalUnsure if is_unsure else JournalFailed)("no room on the disk")

        def fails(batch: Sequence[Change]) -> None:
            if crashes:
                raise crashes.pop()
            raise error

        batch = list(self.queue)
        if not (batch or self.marks):
            return
        self.failures = [fails]
        is_unsure |= bool(crashes)  # the first time it may have been written
        self.scheduler.run_until_idle(self.now() + (0.25 if crashes else 0.0))
        self._not_written(batch, "no room on the disk", is_unsure=is_unsure)
        if batch and (self.outbox.failure != "no room on the disk" or self.outbox.error is not error):
            self.wrong(f"the journal cannot be written, and says {self.outbox.failure!r}, {self.outbox.error!r}")
        if self.rng.random() < 0.5:
            self.scheduler.run_until_idle(self.now() + UNTIL_WRITTEN_SECONDS / 4)  # it tries again, in vain
        self.compare()
        self.failures = []
        if self.rng.random() < 0.7:
            if self.marks and self.rng.random() < 0.3:
                crashes.append(PlannedCommitCrash("over what has still to be said"))
                self.failures = [lambda _: _raise(crashes)]
            self.scheduler.run_until_idle(self.now() + UNTIL_WRITTEN_SECONDS)
            self.failures = []
            self._marked()
        elif self.rng.random() < 0.5:
            self.refused()

    def _are_marked(self) -> bool:
        """It was tried again meanwhile: that their requests have ended is written."""
        kept = [self.disk.requests.get(each.talk.request_id) for each in self.marks]
        return any(each is not None and each.end is not None for each in kept)

    def _mark(self) -> None:
        for mark in self.marks:
            mark.apply()
        self.marks.clear()

    def _marked(self) -> None:
        """That requests have ended is written in time, where the journal knows them."""
        has_marks = bool(self.marks)
        self._mark()
        if self.outbox.marks(1):
            self.wrong(f"{self.outbox.marks(1)} was said, and is to be said again")
        if has_marks and self.outbox.failure:
            self.wrong(f"it can be written again, and the journal says {self.outbox.failure!r}")
        self.compare()

    def _not_written(self, batch: Sequence[Wanted | Effect], why: str, *, is_unsure: bool) -> None:
        failed: dict[str, Wanted] = {}
        for each in batch:
            if isinstance(each, Effect):
                (heard,) = each.address.heard or (None,)
                if not isinstance(heard, EffectCommitted) or heard.error is None:
                    self.wrong(f"{each.talk.request_id}: its transaction was not written, and hears {heard}")
                continue
            own = each.end if each.end is not None and not each.is_heard else None
            end = own or replace(each.talk._end(None, why), notes=(), failures=(), error=None)
            failed[each.talk.request_id] = Wanted(each.talk, each.number, (), end=end)
        heard_by = {each.talk.request_id for each in batch if isinstance(each, Wanted) and each.is_heard}
        for talk in self.talks:
            told = talk.address.heard
            if talk.request_id not in heard_by and told:
                self.wrong(f"{talk.request_id}: nothing of it was in what failed, and its session hears {told}")
            elif talk.request_id in heard_by and (
                len(told) != 1 or not isinstance(told[0], NotWritten) or told[0].request_id != talk.request_id
                or why not in told[0].why or told[0].is_unsure != is_unsure
            ):  # fmt: skip
                self.wrong(f"{talk.request_id}: {why}, and its session hears {told}")
            talk.address.heard.clear()
            if talk.request_id in failed:
                self.sessions.discard(talk.request_id)
                self.failed.add(talk.request_id)
                self._fails(talk)
        known = {talk.request_id for talk in self.talks if talk.due.events}
        self.marks = [each for each in self.marks if each.talk.request_id not in failed]
        self.marks += [each for name, each in failed.items() if name in known]
        self.queue.clear()

    def _fails(self, talk: Talk) -> None:
        """It ends in this process; what it hands over until it hears that is not written."""
        late = talk.has_more and self.rng.random() < 0.3
        room, self.capacity = self.capacity, 1 << 30
        if late and self.outbox.count < room:
            talk.step()
            talk.address.heard.clear()
        self.capacity = room
        talk.failed()
        self.here.pop(talk.request_id, None)

    def lease(self) -> None:
        """It is over, perhaps, when something is written: that counts when it is surely ours."""
        if not self.is_shared or not self.queue:
            return
        self.may_act = False
        self.commit()
        if not self.may_act:
            self.wrong("it is acted on what was written when the lease was over")

    def refused(self) -> None:
        """A request begins under the name of one that the journal has: it alone is refused."""
        ended = [talk for talk in self.talks if talk.due.end is not None and talk.is_over and talk.due.events]
        if not ended or not self.has_room:
            return
        old = self.rng.choice(ended)
        others = [talk for talk in self.talks if talk.has_more]
        for talk in self.rng.sample(others, min(2, len(others))):
            self._step(talk)
        if not self.has_room:
            return
        started = replace(old.started, at=old.started.at + 1.0, user=type(old.started.user).of("another"))
        cancelled = CancelRequested(started.tag, started.at + 1.0, "the user left")
        twin = Talk(self, [started, cancelled], Conversation(), Needs(), {})
        twin.session = type(twin.session)()
        self.talks.append(twin)
        wanted = twin.step()
        if wanted is None:
            self.talks.remove(twin)
            return
        self.queue.append(wanted)
        for talk in self.rng.sample(others, min(1, len(others))):
            if talk.has_more:
                self._step(talk)
        batch = [each for each in self.queue if each is not wanted]
        self.scheduler.run_until_idle(self.now())
        (heard,) = twin.address.heard or (None,)
        if not isinstance(heard, NotWritten) or heard.is_unsure or "number that is taken" not in heard.why:
            self.wrong(f"{old.request_id} begins once more, and its session hears {heard}")
        twin.address.heard.clear()
        self.queue.clear()
        if self.outbox.count < self.capacity and twin.step() is not None:
            self.scheduler.run_until_idle(self.now())
        if twin.address.heard:
            self.wrong(f"{old.request_id} was refused, and its session hears {twin.address.heard}")
        twin.failed()
        self.failed.add(old.request_id)
        self.talks.remove(twin)
        self._mark()
        self._written(batch)

    def crash(self) -> None:
        """The journal's actor crashes over a batch, before it is durable or behind; too often, and it is given up."""
        batch = list(self.queue)
        if not batch:
            return
        times = self.rng.choice((1, MAX_TRIES - 1, MAX_TRIES))
        is_durable = self.rng.random() < 0.5
        left = [times]

        def crashes(_: Sequence[Change]) -> None:
            if left[0]:
                left[0] -= 1
                raise PlannedCommitCrash("before")

        if is_durable:
            self.after = [PlannedCommitCrash("behind") for _ in range(times)]
        else:
            self.failures = [crashes]
        self.scheduler.run_until_idle(self.now() + UNTIL_WRITTEN_SECONDS)
        self.failures, self.after = [], []
        if times < MAX_TRIES:
            self._written(batch)
            return
        if is_durable:
            self._mark()
            for each in batch:
                if isinstance(each, Wanted):
                    each.apply()
                elif not each.is_refused and each.change.outcome not in each.talk.due.outcomes:
                    each.talk.due.outcomes.append(each.change.outcome)
        self._not_written(batch, CRASHED, is_unsure=True)
        self._marked()

    def poison(self) -> None:
        """Of one request the store cannot write a change: the others are written."""
        mine = {each.talk.request_id for each in self.queue if isinstance(each, Wanted)}
        if not mine:
            return
        bad = self.rng.choice(sorted(mine))

        def fails(batch: Sequence[Change]) -> None:
            if any(not isinstance(each, EffectWrite) and each.request_id == bad and each.events for each in batch):
                raise ValueError("cannot be written")

        batch = list(self.queue)
        is_bad = [isinstance(each, Wanted) and each.talk.request_id == bad for each in batch]
        if not any(isinstance(each, Wanted) and each.events for each, mine in zip(batch, is_bad, strict=True) if mine):
            return
        if any(isinstance(each, Effect) and each.talk.request_id == bad for each in batch):
            return
        if any(isinstance(each, Wanted) and not each.events for each, mine in zip(batch, is_bad, strict=True) if mine):
            return
        self.failures = [fails]
        self.scheduler.run_until_idle(self.now())
        self.failures = []
        first = next(each for each, mine in zip(batch, is_bad, strict=True) if mine)
        heard = {each.talk.request_id: list(each.talk.address.heard) for each in batch}
        first.talk.address.heard.clear()
        good = [each for each, mine in zip(batch, is_bad, strict=True) if not mine]
        told: dict[RequestId, list[object]] = {}
        for each in good:
            if isinstance(each, Wanted) and each.is_heard:
                told.setdefault(each.talk.request_id, []).append(Written(each.talk.request_id, each.last))
        for name, due in told.items():
            if heard[name] != due:  # each was tried alone
                self.wrong(f"{name}: its session hears {heard[name]}, where {due} was due")
        for talk in self.talks:  # the last says it all
            del talk.address.heard[:-1]
        self._written_but(good, first, heard[bad])
        self.scheduler.run_until_idle(self.now() + UNTIL_WRITTEN_SECONDS)
        self._marked()

    def _written_but(self, good: Sequence[Wanted | Effect], bad: Wanted | Effect, heard: list[Any]) -> None:
        self._mark()
        failure = self.outbox.failure
        self.sessions.discard(bad.talk.request_id)
        self.failed.add(bad.talk.request_id)
        self.outbox.failure, self.outbox.error = "", None
        self._written(good)
        self.outbox.failure = failure
        bad.talk.address.heard += heard
        self._not_written([bad], "internal_error: ValueError: cannot be written", is_unsure=False)

    def compare(self) -> None:
        """The journal with the model."""
        reader = SimulatedReader(self.disk)
        for talk in self.talks:
            log = reader.request(talk.request_id)
            for told in talk.compare(log):
                talk.wrong(told)
            if log is None:
                continue
            ids = [*talk.history_ids, *(own for own, _ in talk.due.messages)]
            if not log.damage and (found := chain_of(self.disk, log)) != ids:
                talk.wrong(f"the messages follow each other as {found}, not as {ids}")
        for wrong in self.disk.wrong:
            self.wrong(wrong)
        open_ones = set(reader.open_requests())
        if (failed := {each for each in open_ones if self.outbox.is_failed(each)}) != self.failed & open_ones:
            self.wrong(f"failed are {sorted(failed)}, not {sorted(self.failed & open_ones)}")
        if set(self.outbox.sessions) != self.sessions:
            self.wrong(f"who would hear of a loss: {sorted(self.outbox.sessions)}, not {sorted(self.sessions)}")
        if self.disk.compacted != self.summaries:
            self.wrong(f"the summaries are {self.disk.compacted!r:.300}, not {self.summaries!r:.300}")
