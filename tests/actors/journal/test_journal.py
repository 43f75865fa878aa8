"""The Journal actor: writes in groups, says once a batch what is durable, and outlives a store that fails."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.listed_store import ListedStore
from support.probes import Probed

from callboard.actors.journal.journal import MAX_BATCH, MAX_TRIES, RETRY_SECONDS, JournalMessage, OnStore, journal_actor
from callboard.actors.journal.journal_records import Beginning, Change, EffectWrite, RequestEnd, Statement, Write
from callboard.actors.journal.journal_store import ChangeRefused, JournalFailed, JournalLost
from callboard.actors.journal.outbox import (
    AppendWrite,
    CommitEffect,
    EffectCommitted,
    HandedOver,
    NotWritten,
    Outbox,
    Written,
)
from callboard.actors.kernel import ActorSystem, Ref, StartFailed, Supervisor
from callboard.actors.telemetry.notices import JournalCommitted, JournalUnwritten
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.protocol.events import CancelRequested, ToolCallCompleted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag

FULL = "the journal could not be written: the disk is full; make room"


def tag(name: str) -> Tag:
    return Tag(RequestId(name), MessageId("m"))


def write(name: str, number: int, *, begins: bool = False, ends: RequestEnd | None = None) -> Write:
    event = CancelRequested(tag(name), float(number))
    begun = Beginning("c", None, 0.0, "p/m") if begins else None
    return Write(RequestId(name), number, (event,), begins=begun, ends=ends)


def full(batch: tuple[Change, ...]) -> None:
    raise JournalFailed(FULL)


class Scene:
    """The actor below a supervisor, on a simulated thread, with sessions that write down what they hear."""

    def __init__(self, system: ActorSystem, store: ListedStore | None = None, starts: bool = True) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.system, self.scheduler = system, system.scheduler
        self.store = store or ListedStore()
        self.outbox = Outbox("test", wall_clock=lambda: 1_000.0)
        self.telemetry = Probed(system, "telemetry")
        self.sessions: dict[str, Probed] = {}
        spec = journal_actor(self.store.make, self.outbox, lambda: self.telemetry.ref)
        self.root = system.spawn(lambda: Supervisor([spec], intensity=99, chance=lambda: 0.0), "root")
        if starts:
            self.run()

    @property
    def journal(self) -> Ref[JournalMessage]:
        return self.system.ref("root/journal")

    def run(self, seconds: float = 0.0) -> None:
        self.scheduler.run_until_idle(self.scheduler.now() + seconds)

    def session(self, name: str) -> Probed:
        if name not in self.sessions:
            self.sessions[name] = Probed(self.system, name)
        return self.sessions[name]

    def hand(self, *changes: Write | EffectWrite) -> None:
        for change in changes:
            handed: HandedOver
            if isinstance(change, EffectWrite):
                handed = CommitEffect(change, self.session("worker").ref)
            else:
                handed = AppendWrite(change, self.session(change.request_id).ref)
            self.outbox.hand_over(handed)

    def heard(self, name: str) -> list[Any]:
        return self.session(name).heard

    def said(self, kind: type[Any]) -> int:
        return len(self.telemetry.of(kind))


EFFECT = EffectWrite(
    tag("a").at_step(1)._replace(call_id=CallId("c")),
    ToolCallCompleted(tag("a").at_step(1)._replace(call_id=CallId("c")), 1.0, "7"),
    (Statement("INSERT INTO t VALUES (?)", (7,)),),
)


def test_what_gathers_is_one_commit_and_each_session_hears_once_how_far_it_is_durable(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.hand(write("a", 1), write("b", 1), write("a", 2), write("a", 3))
    scene.run()
    assert scene.store.commits == [(write("a", 1), write("b", 1), write("a", 2), write("a", 3))]
    assert scene.heard("a") == [Written(RequestId("a"), 3)]
    assert scene.heard("b") == [Written(RequestId("b"), 1)]
    assert scene.outbox.count == 0
    (committed,) = scene.telemetry.of(JournalCommitted)
    assert committed.writes == 4


def test_writes_that_come_during_a_commit_are_the_next_commit(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    late = [write("a", 2), write("b", 1)]

    def more(batch: tuple[Change, ...]) -> None:
        while late:
            scene.hand(late.pop(0))

    scene.store.on_commit = more
    scene.hand(write("a", 1))
    scene.run()
    assert scene.store.commits == [(write("a", 1),), (write("a", 2), write("b", 1))]
    assert scene.heard("a") == [Written(RequestId("a"), 1), Written(RequestId("a"), 2)]


def test_a_commit_has_a_bound_and_the_rest_follows_at_once(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.hand(*(write("a", number) for number in range(1, MAX_BATCH + 3)))
    scene.run()
    assert [len(batch) for batch in scene.store.commits] == [MAX_BATCH, 2]
    assert scene.heard("a") == [Written(RequestId("a"), MAX_BATCH), Written(RequestId("a"), MAX_BATCH + 2)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=40), st.integers(0, 99))
def test_each_write_is_committed_once_in_order_and_no_session_hears_of_what_is_not_durable(
    steps: list[tuple[str, int]], seed: int
) -> None:
    """Over all orders of handing over and committing: `seed` schedules the actors."""
    scheduler = SimulatedScheduler(seed)
    scene = Scene(ActorSystem(scheduler))
    numbers = dict.fromkeys("abc", 0)
    for name, turns in steps:
        numbers[name] += 1
        scene.hand(write(name, numbers[name]))
        for _ in range(turns):
            scheduler.step(0.0)
        for each, session in scene.sessions.items():
            durable = [change for change in scene.store.changes if isinstance(change, Write)]
            last = max((change.number for change in durable if change.request_id == each), default=0)
            assert all(heard.up_to <= last for heard in session.heard)
    scene.run()
    for name, last in numbers.items():
        there = [c.number for c in scene.store.changes if isinstance(c, Write) and c.request_id == name]
        assert there == list(range(1, last + 1))
        if last:
            assert scene.heard(name)[-1] == Written(RequestId(name), last)
    scheduler.close()


# -- a store that fails


def test_requests_whose_writes_failed_hear_why_and_the_next_write_is_tried_like_any_other(
    simulated: ActorSystem, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(simulated)
    scene.store.on_commit = full
    with caplog.at_level(logging.WARNING):
        scene.hand(write("a", 1, begins=True), write("a", 2), write("b", 1, begins=True))
        scene.run()
        assert scene.heard("a") == [NotWritten(RequestId("a"), FULL)]
        assert scene.heard("b") == [NotWritten(RequestId("b"), FULL)]
        assert scene.outbox.failure == FULL
        scene.store.on_commit = lambda batch: None
        scene.hand(write("c", 1, begins=True))
        scene.run()
    assert scene.heard("c") == [Written(RequestId("c"), 1)]
    assert scene.outbox.failure == ""
    assert [record.getMessage() for record in caplog.records] == [
        f"the journal is not written: {FULL}", "the journal is written again",
    ]  # fmt: skip
    assert scene.said(JournalUnwritten) == 1


def test_that_they_have_ended_is_written_with_the_next_write_that_is_possible(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.hand(write("a", 1, begins=True))
    scene.run()
    scene.store.on_commit = full
    scene.hand(write("a", 2))
    scene.run()
    scene.store.on_commit = lambda batch: None
    scene.hand(write("b", 1, begins=True))
    scene.run()
    ended = Write(RequestId("a"), 2, (), ends=RequestEnd(1_000.0, None, failure=FULL))
    assert scene.store.commits[1:] == [(ended, write("b", 1, begins=True))]


def test_but_not_of_one_that_begins_once_more_under_its_id(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.store.on_commit = full
    scene.hand(write("a", 1, begins=True))
    scene.run()
    scene.store.on_commit = lambda batch: None
    scene.hand(write("a", 1, begins=True))
    scene.run(60.0)
    assert scene.store.commits == [(write("a", 1, begins=True),)]


def test_and_without_a_write_it_is_tried_again_and_ever_more_rarely(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    tried: list[float] = []

    def fails(batch: tuple[Change, ...]) -> None:
        tried.append(scene.scheduler.now())
        full(batch)

    scene.store.on_commit = fails
    scene.hand(write("a", 1, begins=True))
    scene.run(60.0)
    waits = [after - before for before, after in itertools.pairwise(tried)]
    assert waits[: len(RETRY_SECONDS)] == pytest.approx(RETRY_SECONDS)
    assert waits[len(RETRY_SECONDS) :] == pytest.approx([RETRY_SECONDS[-1]] * (len(waits) - len(RETRY_SECONDS)))
    scene.store.on_commit = lambda batch: None
    scene.run(RETRY_SECONDS[-1])
    (ended,) = scene.store.changes
    assert isinstance(ended, Write)
    assert ended.ends is not None
    assert ended.ends.failure == FULL
    assert len(tried) > len(RETRY_SECONDS)
    scene.run(60.0)
    assert len(scene.store.commits) == 1


def test_what_a_failed_request_still_hands_over_is_not_written_since_it_would_leave_a_gap(
    simulated: ActorSystem,
) -> None:
    scene = Scene(simulated)
    scene.store.on_commit = full
    scene.hand(write("a", 1, begins=True))
    scene.run()
    scene.store.on_commit = lambda batch: None
    scene.hand(write("a", 2), write("b", 1))
    scene.run()
    assert [c.number for c in scene.store.changes if isinstance(c, Write) and c.request_id == "a" and c.events] == []
    assert write("b", 1) in scene.store.changes
    # The same id may be asked with once more: nothing of the first was written.
    scene.hand(write("a", 1, begins=True), write("a", 2))
    scene.run()
    assert scene.store.changes[-2:] == [write("a", 1, begins=True), write("a", 2)]


def test_a_change_that_alone_is_refused_ends_its_request_and_no_other(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    why = ChangeRefused("the journal has another request a")
    scene.store.refuses = lambda change: why if isinstance(change, Write) and change.request_id == "a" else None
    scene.hand(write("a", 1, begins=True), write("b", 1, begins=True))
    scene.run(60.0)
    assert scene.heard("a") == [NotWritten(RequestId("a"), str(why))]
    assert scene.heard("b") == [Written(RequestId("b"), 1)]
    assert scene.store.changes == [write("b", 1, begins=True)], "the other request of that name is not marked as ended"


def test_one_change_that_our_code_cannot_write_costs_no_other_request(
    simulated: ActorSystem, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(simulated)

    def stumbles(batch: tuple[Change, ...]) -> None:
        if any(isinstance(change, Write) and change.request_id == "b" and change.events for change in batch):
            raise TypeError("cannot be written")

    scene.store.on_commit = stumbles
    scene.hand(write("a", 1), write("b", 1), write("b", 2), write("c", 1))
    scene.run(60.0)
    assert scene.heard("a") == [Written(RequestId("a"), 1)]
    assert scene.heard("c") == [Written(RequestId("c"), 1)]
    assert scene.heard("b") == [NotWritten(RequestId("b"), "internal_error: TypeError: cannot be written")]
    ends = [c.ends for c in scene.store.changes if isinstance(c, Write) and c.request_id == "b"]
    assert [end.failure for end in ends if end is not None] == ["internal_error: TypeError: cannot be written"]
    assert any(record.exc_info for record in caplog.records), "a fault of ours is logged with its traceback"


# -- a crash of the actor


@pytest.fixture
def crashing(simulated: ActorSystem) -> Iterator[tuple[Scene, list[bool]]]:
    """A scene whose next commits end the actor, as often as the list is long."""
    scene, crashes = Scene(simulated), []

    def crash(batch: tuple[Change, ...]) -> None:
        if crashes:
            crashes.pop()
            raise SystemExit("struck")

    scene.store.on_commit = crash
    return scene, crashes


def test_an_actor_that_crashes_in_a_commit_loses_no_write(crashing: tuple[Scene, list[bool]]) -> None:
    scene, crashes = crashing
    crashes.append(True)
    scene.hand(write("a", 1), write("b", 1))
    scene.run(10.0)
    scene.hand(write("a", 2))
    scene.run(10.0)
    assert scene.store.changes == [write("a", 1), write("b", 1), write("a", 2)]
    assert scene.heard("a") == [Written(RequestId("a"), 1), Written(RequestId("a"), 2)]
    assert (scene.store.opened, scene.store.closed) == (2, 1), "the crashed one closes its writer"


def test_a_batch_that_ends_the_actor_each_time_is_given_up_and_the_rest_goes_on(
    crashing: tuple[Scene, list[bool]],
) -> None:
    scene, crashes = crashing
    crashes += [True] * MAX_TRIES
    scene.hand(write("a", 1))
    scene.run(10.0)
    (told,) = scene.heard("a")
    assert isinstance(told, NotWritten)
    assert f"crashed {MAX_TRIES} times" in told.why
    assert not crashes
    scene.hand(write("b", 1))
    scene.run(10.0)
    assert scene.heard("b") == [Written(RequestId("b"), 1)]


# -- opening


def test_a_journal_that_cannot_be_opened_keeps_the_runtime_from_starting(simulated: ActorSystem) -> None:
    def locked() -> None:
        raise UsageError("another process has it: 42")

    scene = Scene(simulated, ListedStore(on_open=locked), starts=False)
    with pytest.raises(StartFailed) as failed:
        simulated.wait_until_started(scene.root, 1.0)
    assert isinstance(failed.value.cause, UsageError)


def test_but_not_a_restart_while_requests_run(crashing: tuple[Scene, list[bool]]) -> None:
    scene, crashes = crashing

    def gone() -> None:
        raise JournalFailed("the server does not answer")

    scene.store.on_open = gone
    crashes.append(True)
    scene.hand(write("a", 1))
    scene.run(10.0)
    assert scene.heard("a") == [NotWritten(RequestId("a"), "the server does not answer", is_unsure=True)]
    scene.store.on_open = lambda: None
    scene.hand(write("b", 1))
    scene.run()
    assert scene.heard("b") == [Written(RequestId("b"), 1)]


def test_what_opening_has_found_is_told(simulated: ActorSystem, caplog: pytest.LogCaptureFixture) -> None:
    Scene(simulated, ListedStore(notes=("a damaged file was moved aside",)))
    assert "journal: a damaged file was moved aside" in caplog.text


def test_what_waits_when_it_stops_is_written_and_the_store_is_closed(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.outbox.wake = lambda: None  # the stop comes before the actor has looked
    scene.hand(*(write("a", number) for number in range(1, MAX_BATCH + 2)))
    assert simulated.shutdown(5.0)
    assert len(scene.store.changes) == MAX_BATCH + 1
    assert scene.store.closed == 1


# -- leases


def test_a_lease_is_renewed_in_time_and_requests_of_ended_processes_are_handed_on(simulated: ActorSystem) -> None:
    store = ListedStore(on_renew=lambda: 2.0)
    scene = Scene(simulated, store)
    found: list[tuple[RequestId, ...]] = []
    assert store.renewed == 1
    store.taken_up = (RequestId("early"),)
    scene.run(2.0)
    assert (store.renewed, store.taken_up) == (2, (RequestId("early"),)), "they wait until somebody can go on with them"
    scene.outbox.taken_up = found.append
    scene.run(4.0)
    assert store.renewed == 4
    assert found == [(RequestId("early"),)]


@pytest.mark.parametrize("who", ["the lease", "a function"])
def test_what_waits_is_written_before_and_what_comes_meanwhile_is_not_waited_for(
    simulated: ActorSystem, who: str
) -> None:
    """Else a load that never ceases would let nobody have a turn."""
    scene = Scene(simulated, ListedStore(on_renew=lambda: 2.0))
    numbers = iter(range(2, 50))
    seen: list[int] = []

    def one_more(batch: tuple[Change, ...]) -> None:
        if (number := next(numbers, None)) is not None:
            scene.hand(write("a", number))

    def begins() -> frozenset[RequestId]:
        scene.store.on_commit, scene.outbox.here = one_more, frozenset
        scene.hand(write("a", 1))
        return frozenset()

    if who == "the lease":
        scene.outbox.here, scene.store.taken_up = begins, (RequestId("b"),)
        scene.outbox.taken_up = lambda found: seen.append(len(scene.store.commits))
    else:
        begins()
        scene.journal.ask(OnStore(lambda writer: seen.append(len(scene.store.commits))), 1.0)
    scene.run(2.0)
    assert seen[0] in (1, 2)
    assert len(scene.store.changes) == 49


def test_what_was_written_while_the_lease_may_be_over_counts_when_the_lease_is_ours_again(
    simulated: ActorSystem,
) -> None:
    scene = Scene(simulated)
    scene.store.acts = False
    scene.hand(write("a", 1))
    scene.run()
    assert scene.store.acts
    assert scene.heard("a") == [Written(RequestId("a"), 1)]


def lost(*_: object) -> float | None:
    raise JournalLost("another process has taken over the requests of this one")


@pytest.mark.parametrize("when", ["commit", "renew", "act"])
def test_a_process_that_lost_its_lease_ends_all_its_requests_unmarked_and_begins_again_as_another(
    simulated: ActorSystem, when: str
) -> None:
    store = ListedStore(on_renew=lambda: 2.0)
    scene = Scene(simulated, store)
    scene.hand(write("a", 1, begins=True), write("b", 1, begins=True))
    scene.run()
    written = len(store.changes)
    store.on_commit = lost if when == "commit" else store.on_commit
    store.on_renew = lost
    store.acts = False
    if when != "renew":
        scene.hand(write("a", 2), write("c", 1, begins=True))
    scene.run(0.0 if when != "renew" else 2.0)
    names = ("a", "b", "c") if when != "renew" else ("a", "b")
    for name in names:
        assert [type(heard) for heard in scene.heard(name) if not isinstance(heard, Written)] == [NotWritten], name
    store.on_commit, store.on_renew = (lambda batch: None), (lambda: 2.0)
    store.acts = True
    before = list(store.changes)
    scene.hand(write("a", 3), write("d", 1, begins=True))
    scene.run(10.0)
    assert store.changes[len(before) :] == [write("d", 1, begins=True)]
    assert store.opened == 2
    assert len(before) - written == (2 if when == "act" else 0), "written, and not acted on"


# -- maintenance, and the outcomes of transactions


def test_a_function_over_the_store_runs_behind_what_waits_and_its_error_is_its_askers(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.hand(write("a", 1))
    assert scene.journal.ask(OnStore(lambda writer: len(scene.store.changes)), 1.0).result() == 1

    def fails(writer: object) -> int:
        raise UsageError("no such conversation")

    with pytest.raises(UsageError, match="no such conversation"):
        scene.journal.ask(OnStore(fails), 1.0).result()
    assert simulated.statistics().restarts == 0


@pytest.mark.parametrize("how", ["durable", "refused", "failed"])
def test_a_worker_hears_what_became_of_the_outcome_of_its_transaction(simulated: ActorSystem, how: str) -> None:
    scene = Scene(simulated)
    why = ChangeRefused("UNIQUE constraint failed: t.x")
    if how == "refused":
        scene.store.refuses = lambda change: why if isinstance(change, EffectWrite) else None
    elif how == "failed":
        scene.store.on_commit = full
    scene.hand(EFFECT)
    scene.run()
    (told,) = scene.heard("worker")
    assert isinstance(told, EffectCommitted)
    assert told.tag == EFFECT.tag
    assert {"durable": "None", "refused": str(why), "failed": FULL}[how] == str(told.error)
    assert (EFFECT in scene.store.changes) is (how == "durable")


def test_nothing_is_committed_for_a_call_of_a_request_that_has_failed(simulated: ActorSystem) -> None:
    scene = Scene(simulated)
    scene.store.on_commit = full
    scene.hand(write("a", 1, begins=True))
    scene.run()
    scene.store.on_commit = lambda batch: None
    scene.hand(EFFECT)
    scene.run()
    (told,) = scene.heard("worker")
    assert "goes on no more" in str(told.error)
    assert EFFECT not in scene.store.changes


def test_an_outbox_that_is_full_refuses_all_but_the_last_write_of_a_request() -> None:
    outbox = Outbox("test", capacity=1)
    outbox.hand_over(AppendWrite(write("a", 1), None))
    with pytest.raises(RuntimeFailure, match="overloaded: 1 writes wait for the journal"):
        outbox.hand_over(AppendWrite(write("a", 2), None))
    outbox.hand_over(AppendWrite(write("a", 2), None), is_last=True)
    assert outbox.count == 2
