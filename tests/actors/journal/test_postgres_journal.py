"""The journal on a real PostgreSQL server that several processes share."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from support.postgres_server import PASSWORD, PostgresServer, new_database, shared_server
from support.store_contract import NewStore, StoreContract
from support.tcp_proxy import TcpProxy

from callboard.actors.journal import postgres_database
from callboard.actors.journal.journal_records import Beginning, Write
from callboard.actors.journal.journal_store import JournalFailed, JournalLost
from callboard.actors.journal.postgres_journal import PostgresJournal, PostgresReader
from callboard.actors.journal.tables import OFFERS
from callboard.protocol.errors import UsageError
from callboard.protocol.events import CancelRequested
from callboard.protocol.ids import MessageId, RequestId, Tag

#: A lease that does not end within a test, and one that has ended when the server has answered.
LONG, SHORT = 3_600.0, 0.001

Start = Callable[..., PostgresJournal]


@pytest.fixture
def url() -> Iterator[str]:
    with new_database() as made:
        yield made


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """Opens a writer, as one process has."""
    with ExitStack() as opened:

        def begin(lease_seconds: float = LONG, at: str = url) -> PostgresJournal:
            writer = PostgresJournal(at, lease_seconds=lease_seconds)
            opened.callback(_close, writer)
            writer.open()
            return writer

        yield begin


def _close(writer: PostgresJournal) -> None:
    try:
        writer.close()
    except JournalFailed:
        assert writer.token  # its server is away


def event(request_id: str, number: int) -> CancelRequested:
    return CancelRequested(Tag(RequestId(request_id), MessageId("m")), float(number), f"event {number}")


def begins(request_id: str) -> Write:
    made = Beginning("conversation", None, 1.0, "scripted/x")
    return Write(RequestId(request_id), 1, (event(request_id, 1),), begins=made)


def goes_on(request_id: str, number: int) -> Write:
    return Write(RequestId(request_id), number, (event(request_id, number),))


def numbers(url: str, request_id: str) -> list[int]:
    reader = PostgresReader(url)
    try:
        log = reader.request(RequestId(request_id))
        assert log is not None
        assert not log.damage
        return [record.number for record in log.records]
    finally:
        reader.close()


class TestContract(StoreContract):
    @pytest.fixture
    def new_store(self, url: str) -> NewStore:
        return lambda: PostgresJournal(url, lease_seconds=LONG)


def test_what_is_committed_is_read_by_another_process(url: str, start: Start) -> None:
    writer = start()
    assert writer.commit([begins("r"), goes_on("r", 2), begins("ø 🎭\x00")]) == [None, None, None]
    assert numbers(url, "r") == [1, 2]
    assert numbers(url, "ø 🎭\x00") == [1]


def test_a_second_process_has_its_own_requests_and_leaves_those_of_the_first(start: Start) -> None:
    first, second = start(), start()
    first.commit([begins("r")])
    second.commit([begins("s")])
    assert first.take_up() == second.take_up() == ()


def test_a_stopped_process_leaves_its_requests_at_once(start: Start) -> None:
    first, second = start(), start()
    first.commit([begins("r")])
    first.close()
    assert second.take_up() == ("r",)
    assert second.take_up() == ()


def test_a_dead_process_is_taken_over_once_by_one_of_many(url: str, start: Start) -> None:
    dead = start(SHORT)
    dead.commit([begins(f"r{number}") for number in range(20)])
    others = [start() for _ in range(4)]
    together = threading.Barrier(4, timeout=20)
    taken: list[RequestId] = []

    def look(writer: PostgresJournal) -> None:
        together.wait()
        taken.extend(writer.take_up())

    threads = [threading.Thread(target=look, args=(writer,)) for writer in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    taken.extend(others[0].take_up())  # where one of them asked before the lease was over
    assert sorted(taken) == sorted(f"r{number}" for number in range(20))
    with pytest.raises(JournalLost):
        dead.commit([goes_on("r0", 2)])
    assert not dead.may_act()
    assert numbers(url, "r0") == [1]


def test_who_was_taken_over_goes_on_as_a_new_owner_for_new_requests(url: str, start: Start) -> None:
    woken, other = start(SHORT), start()
    woken.commit([begins("r")])
    assert other.take_up() == ("r",)
    with pytest.raises(JournalLost):
        woken.renew()
    woken.open()
    assert woken.token > other.token
    woken.commit([begins("s")])
    other.commit([goes_on("r", 2)])
    assert (numbers(url, "r"), numbers(url, "s")) == ([1, 2], [1])


def test_takings_up_are_counted_until_a_request_goes_on(url: str, start: Start) -> None:
    def takings() -> int:
        reader = PostgresReader(url)
        try:
            log = reader.request(RequestId("r"))
            assert log is not None
            return log.takings_up
        finally:
            reader.close()

    first = start()
    first.commit([begins("r")])
    for expected in (1, 2):
        first.close()
        first = start()
        assert first.take_up() == ("r",)
        assert takings() == expected
    first.commit([goes_on("r", 2)])
    assert takings() == 0


def test_many_processes_make_the_tables_at_the_same_time(url: str) -> None:
    writers = [PostgresJournal(url, lease_seconds=LONG) for _ in range(4)]
    together = threading.Barrier(4, timeout=20)
    failed: list[Exception] = []

    def open_it(writer: PostgresJournal) -> None:
        together.wait()
        try:
            writer.open()
        except Exception as error:  # noqa: BLE001 - the assertion tells it
            failed.append(error)

    threads = [threading.Thread(target=open_it, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failed == []
    assert len({writer.token for writer in writers}) == 4
    for writer in writers:
        writer.close()


def test_a_schema_of_another_program_is_refused_and_left_alone(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA callboard")
        connection.execute("CREATE TABLE callboard.theirs (x int)")
    with pytest.raises(UsageError, match="schema 'callboard' of another program"):
        PostgresJournal(url).open()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'callboard'").fetchall() == [
            ("theirs",)
        ]


def test_a_journal_of_another_format_is_refused(url: str, start: Start) -> None:
    start()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE callboard.callboard_meta SET value = '99' WHERE name = 'format'")
    with pytest.raises(UsageError, match="format 99, this callboard writes 1"):
        PostgresJournal(url).open()


@pytest.fixture
def limited_url(url: str) -> Iterator[str]:
    """Of a user that may make no schema in the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE limited LOGIN PASSWORD 'limited'")
        yield url.replace(f"callboard:{PASSWORD}@", "limited:limited@")
        connection.execute("DROP OWNED BY limited")
        connection.execute("DROP ROLE limited")


def test_a_user_without_rights_is_told_what_to_grant(limited_url: str) -> None:
    with pytest.raises(UsageError, match="GRANT the journal's user CREATE on the database"):
        PostgresJournal(limited_url).open()


def test_a_user_needs_no_rights_on_the_database_where_the_schema_is_its_own(url: str, limited_url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA callboard AUTHORIZATION limited")
    writer = PostgresJournal(limited_url)
    writer.open()
    writer.commit([begins("r")])
    writer.close()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda url: url.replace(PASSWORD, "wrong"), "password authentication failed"),
        (lambda url: url.rpartition("/")[0] + "/no_such_database", "does not exist"),
        (lambda url: url.replace(f":{shared_server().port}/", ":1/"), "refused"),
    ],
)
def test_a_server_that_cannot_be_used_is_told_without_the_password(
    url: str, wrong: Callable[[str], str], told: str
) -> None:
    with pytest.raises(JournalFailed, match=told) as failed:
        PostgresJournal(wrong(url)).open()
    assert PASSWORD not in str(failed.value)
    assert "postgresql://callboard:***@127.0.0.1" in str(failed.value)


@pytest.mark.parametrize("wrong", ["postgresql:/u:SECRET pw@h", "postgresql://u:SECRET%zz@h/x"])
def test_a_url_that_cannot_be_read_is_refused_without_showing_it(wrong: str) -> None:
    with pytest.raises(UsageError, match="the journal's URL cannot be read") as refused:
        PostgresJournal(wrong)
    assert "SECRET" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_server_that_is_restarted_costs_no_request(url: str) -> None:
    with PostgresServer() as server, server.database() as own:
        writer = PostgresJournal(own, lease_seconds=LONG)
        writer.open()
        writer.commit([begins("r")])
        server.stop()
        starting = threading.Thread(target=server.start)
        starting.start()
        assert writer.commit([goes_on("r", 2)]) == [None]
        starting.join()
        assert numbers(own, "r") == [1, 2]
        writer.close()


def test_a_server_that_is_away_fails_the_writes_and_they_work_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("callboard.actors.journal.postgres_journal.PATIENCE_SECONDS", 0.1)
    with PostgresServer() as server, server.database() as own:
        writer = PostgresJournal(own, lease_seconds=LONG)
        writer.open()
        writer.commit([begins("r")])
        server.stop()
        for _ in range(2):
            with pytest.raises(JournalFailed, match="check the server"):
                writer.commit([goes_on("r", 2)])
        server.start()
        assert writer.commit([goes_on("r", 2)]) == [None]
        assert numbers(own, "r") == [1, 2]
        writer.close()


def test_a_crash_of_the_server_loses_nothing_that_was_committed() -> None:
    with PostgresServer() as server, server.database() as own:
        writer = PostgresJournal(own, lease_seconds=LONG)
        writer.open()
        writer.commit([begins("r")])
        server.stop(signal.SIGQUIT)
        server.start()
        assert numbers(own, "r") == [1]
        writer.close()


def test_a_network_that_loses_everything_fails_within_its_time(
    url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.actors.journal.postgres_journal.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(postgres_database, "ANSWER_SECONDS", postgres_database.STATEMENT_SECONDS + 0.3)
    monkeypatch.setattr(postgres_database, "CONNECT_SECONDS", 2)
    with TcpProxy(shared_server().port) as proxy:
        writer = start(LONG, url.replace(f":{shared_server().port}/", f":{proxy.port}/"))
        monkeypatch.setattr(writer._database._connection, "answer_seconds", 0.3)
        writer.commit([begins("r")])
        proxy.cut()
        with pytest.raises(JournalFailed):
            writer.commit([goes_on("r", 2)])
        proxy.mend()
        writer.commit([goes_on("r", 2)])
        assert numbers(url, "r") == [1, 2]


def test_a_commit_whose_answer_was_lost_is_written_once(
    url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TcpProxy(shared_server().port) as proxy:
        writer = start(LONG, url.replace(f":{shared_server().port}/", f":{proxy.port}/"))
        monkeypatch.setattr(writer._database._connection, "answer_seconds", 0.3)
        proxy.cut_after(b"COMMIT")
        mending = threading.Thread(target=lambda: (proxy.lost.wait(20), proxy.mend()), daemon=True)
        mending.start()
        assert writer.commit([begins("r"), goes_on("r", 2)]) == [None, None]
        assert numbers(url, "r") == [1, 2]
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM callboard.callboard_events").fetchone() == (2,)


def test_two_processes_that_add_the_same_lists_of_tools_do_not_wait_in_a_circle(url: str, start: Start) -> None:
    """Rows with the same keys, given in opposite orders, many times at once."""
    writers = [start(), start()]
    together = threading.Barrier(2, timeout=20)
    failed: list[Exception] = []

    def add(writer: PostgresJournal, step: int) -> None:
        try:
            for turn in range(30):
                rows = [OFFERS.row(f"{turn}-{number}", b"x") for number in range(20)][::step]
                together.wait()
                writer._database.begin()
                writer._database.execute_many(OFFERS.insert, rows)
                writer._database.commit()
        except Exception as error:  # noqa: BLE001 - the assertion tells it
            failed.append(error)
            together.abort()

    threads = [threading.Thread(target=add, args=each) for each in zip(writers, (1, -1), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []


def test_an_unfinished_transaction_of_a_stopped_process_is_ended_by_the_server(url: str, start: Start) -> None:
    stopped, pause = start(), threading.Event()
    stopped._database.begin()
    stopped._database.execute_many(OFFERS.insert, [OFFERS.row(name, b"x") for name in "ab"])
    with postgres_database.connect(url) as watcher:
        while watcher.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        ).fetchone():
            pause.wait(0.05)
    stopped.commit([begins("r")])
    assert numbers(url, "r") == [1]
