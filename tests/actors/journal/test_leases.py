"""Owners of a shared journal, on a real server: who may write, who may take over, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from support.postgres_server import new_database

from callboard.actors.journal import postgres_database
from callboard.actors.journal.journal_store import JournalLost
from callboard.actors.journal.leases import OWNERS_TABLE, Lease

Rows = Sequence[tuple[object, ...]]
HOUR = 3_600.0


@dataclass
class Process:
    """What one process has: a connection and a lease."""

    connection: postgres_database.PostgresConnection
    lease: Lease = field(default_factory=lambda: Lease("test", HOUR))

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> Rows:
        cursor = self.connection.execute(sql.replace("?", "%s").encode(), parameters)
        return cursor.fetchall() if cursor.description is not None else ()

    def look_for_dead(self) -> bool:
        with self.connection.transaction():
            return self.lease.drop_expired(self.execute)


@pytest.fixture
def new_process() -> Iterator[Callable[[], Process]]:
    with new_database() as url, ExitStack() as open_ones:

        def start() -> Process:
            process = Process(open_ones.enter_context(postgres_database.connect(url)))
            process.execute("SET search_path TO public")
            process.execute(OWNERS_TABLE)
            return process

        yield start


def begun(process: Process, seconds: float = HOUR) -> Process:
    process.lease = Lease("test", seconds)
    process.lease.begin(process.execute)
    return process


def expired(process: Process) -> Process:
    """As if it had not renewed for longer than its lease, and the server had run for longer than that."""
    begun(process, 0.001)
    process.execute("SELECT pg_sleep(0.002)")
    return process


def owners(process: Process) -> list[object]:
    return [token for (token,) in process.execute("SELECT token FROM callboard_owners ORDER BY token")]


def test_each_owner_has_a_larger_token_than_all_before(new_process: Callable[[], Process]) -> None:
    first, second = begun(new_process()), begun(new_process())
    first.lease.end(first.execute)
    third = begun(new_process())
    assert 0 < second.lease.token < third.lease.token
    assert owners(third) == [second.lease.token, third.lease.token]


def test_an_owner_that_was_taken_over_may_neither_write_nor_renew(new_process: Callable[[], Process]) -> None:
    dead, alive = expired(new_process()), begun(new_process())
    assert alive.look_for_dead()
    assert owners(alive) == [alive.lease.token]
    for use in (dead.lease.prove, dead.lease.renew):
        with pytest.raises(JournalLost, match="another process has taken over"):
            use(dead.execute)
    assert not dead.lease.is_held()


def test_an_owner_that_is_late_renews_as_long_as_it_was_not_taken_over(new_process: Callable[[], Process]) -> None:
    late = expired(new_process())
    assert not late.lease.is_held()
    late.execute("UPDATE callboard_owners SET lease = '1 hour'")
    late.lease.renew(late.execute)
    other = begun(new_process())
    assert other.look_for_dead()
    late.lease.prove(late.execute)


def test_an_owner_that_is_writing_is_not_taken_over_before_its_commit(new_process: Callable[[], Process]) -> None:
    writing, other = expired(new_process()), begun(new_process())
    with writing.connection.transaction():
        writing.lease.prove(writing.execute)
        assert other.look_for_dead()
        assert writing.lease.token in owners(other)
    assert other.look_for_dead()
    assert owners(other) == [other.lease.token]


def test_a_renewal_does_not_wait_for_a_transaction_that_writes(new_process: Callable[[], Process]) -> None:
    owner, second = begun(new_process()), new_process()
    with owner.connection.transaction():
        owner.lease.prove(owner.execute)
        owner.lease.renew(second.execute)


def test_who_writes_waits_for_a_take_over_and_then_may_not(new_process: Callable[[], Process]) -> None:
    dead, other = expired(new_process()), begun(new_process())
    outcome: list[Exception] = []

    def write() -> None:
        try:
            dead.lease.prove(dead.execute)
        except JournalLost as lost:
            outcome.append(lost)

    with other.connection.transaction():
        assert other.lease.drop_expired(other.execute)
        writer = threading.Thread(target=write)
        writer.start()
        watcher = new_process()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        while watcher.execute(waiting) == [(0,)]:
            assert writer.is_alive()
    writer.join(10)
    assert len(outcome) == 1


def test_one_process_at_a_time_looks_for_dead_ones(new_process: Callable[[], Process]) -> None:
    first, second = begun(new_process()), begun(new_process())
    with first.connection.transaction():
        assert first.lease.drop_expired(first.execute)
        assert not second.look_for_dead()
    assert second.look_for_dead()


def test_after_a_start_of_the_server_each_owner_has_a_whole_lease_to_come_back(
    new_process: Callable[[], Process],
) -> None:
    away, other = begun(new_process(), HOUR), begun(new_process())
    away.execute("UPDATE callboard_owners SET lease_until = clock_timestamp() - interval '1 minute' WHERE token = ?",
                 (away.lease.token,))  # fmt: skip
    assert other.look_for_dead()
    assert away.lease.token in owners(other), "the server of the tests has not run for an hour"


def test_who_was_taken_over_does_not_take_over_others(new_process: Callable[[], Process]) -> None:
    woken, third, alive = expired(new_process()), expired(new_process()), begun(new_process())
    woken_token, woken_lease = woken.lease.token, woken.lease
    third.execute("UPDATE callboard_owners SET lease = '1 hour', lease_until = now() + lease WHERE token = ?",
                  (third.lease.token,))  # fmt: skip
    assert alive.look_for_dead()
    assert woken_token not in owners(alive)
    with pytest.raises(JournalLost):
        woken.look_for_dead()
    assert woken_lease.token == 0
    third.lease.prove(third.execute)


def test_the_process_counts_its_lease_shorter_than_the_server() -> None:
    now = 100.0
    lease = Lease("test", 15.0, lambda: now)

    def slow(sql: str, parameters: Sequence[object] = ()) -> Rows:
        nonlocal now
        now += 4.0  # the answer takes so long; the server counts from some moment in between
        return [(7,)]

    lease.begin(slow)
    now = 114.9
    assert lease.is_held()
    now = 115.0
    assert not lease.is_held()
    lease.renew(slow)
    assert now == 119.0
    now = 129.9
    assert lease.is_held()
    now = 130.0
    assert not lease.is_held()
    assert lease.renew_seconds == 5.0
