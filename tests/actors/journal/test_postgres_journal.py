"""The journal on a real PostgreSQL server that several processes share."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from support.postgres_server import PASSWORD, PostgresServer, new_database, shared_server
from support.store_contract import NewStore, StoreContract
from support.tcp_proxy import TcpProxy

from callboard.actors.journal import postgres_database
from callboard.actors.journal.journal_database import JournalDatabase
from callboard.actors.journal.journal_records import Beginning, NewMessage, RequestEnd, Write
from callboard.actors.journal.journal_store import JournalFailed, JournalLost
from callboard.actors.journal.postgres_journal import PostgresJournal, PostgresReader
from callboard.actors.journal.saved_conversations import Filter, conversations, search
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.tables import ENDS, EVENTS, OFFERS, OPEN, REQUESTS
from callboard.actors.journal.usage_report import UsageFilter, usage_report
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.events import CancelRequested, RequestStarted
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.tools import ToolDefinition

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
        PostgresJournal(wrong(url), start_seconds=0.0).open()
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


# -- a server that ends connections, is away, or forgets


def end_all_connections(url: str) -> None:
    """As a restart, an administrator and a pooler do."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


READS: dict[str, Callable[[SqlReader], object]] = {
    "request": lambda reader: getattr(reader.request(RequestId("r")), "request_id", None),
    "open requests": lambda reader: reader.open_requests(),
    "set aside": lambda reader: list(reader.set_aside()),
    "conversations": lambda reader: conversations(reader, Filter(None, None, "", {}), 9, None),
    "search": lambda reader: search(reader, "nothing", Filter(None, None, "", {}), 9),
    "usage": lambda reader: reader.patiently(lambda: usage_report(reader, ("day",), UsageFilter(None, None))),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_is_read_on_a_connection_that_has_ended_is_read_again(
    url: str, start: Start, read: Callable[[SqlReader], object]
) -> None:
    start().commit([begins("r")])
    with closing(PostgresReader(url)) as reader:
        before = read(reader)
        end_all_connections(url)
        assert read(reader) == before


def test_a_connection_that_ends_in_the_middle_of_a_moment_has_all_of_it_read_again(
    url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start().commit([begins("r"), goes_on("r", 2)])
    read_events, cuts = SqlReader._read_events, [1]

    def cut_first(self: SqlReader, *given: Any) -> str:
        if cuts:
            cuts.pop()
            end_all_connections(url)
        return read_events(self, *given)

    monkeypatch.setattr(SqlReader, "_read_events", cut_first)
    assert numbers(url, "r") == [1, 2]


def test_a_connection_that_was_forgotten_on_the_way_is_found_so_before_it_is_used(
    url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "IDLE_UNASKED_SECONDS", 0.0)
    monkeypatch.setattr(postgres_database, "PROMPT_SECONDS", 0.2)
    start().commit([begins("r")])
    with TcpProxy(shared_server().port) as proxy:
        reader = PostgresReader(url.replace(f":{shared_server().port}/", f":{proxy.port}/"))
        with closing(reader):
            assert reader.open_requests() == ("r",)
            proxy.cut()
            mending = threading.Thread(target=lambda: (proxy.lost.wait(20), proxy.mend()))
            mending.start()
            assert reader.open_requests() == ("r",)
            mending.join(20)


def test_who_reads_waits_no_longer_when_it_is_given_up() -> None:
    reader = PostgresReader("postgresql://callboard@127.0.0.1:1/none")
    ended: list[Exception] = []

    def read() -> None:
        try:
            reader._patience(reader.open_requests, LONG)
        except JournalFailed as error:
            ended.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    reader.give_up()
    reading.join(20)
    assert len(ended) == 1


class NotYet:
    """A server that answers everyone as PostgreSQL does while it starts, in another language."""

    def __enter__(self) -> NotYet:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        fields = b"SFATAL\0VFATAL\0C57P03\0Mdas Datenbanksystem startet\0\0"
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection, contextlib.suppress(OSError):
                    while (asked := connection.recv(1024)) and len(asked) == 8:  # for TLS, or GSSAPI
                        connection.sendall(b"N")
                    connection.sendall(b"E" + struct.pack(">I", len(fields) + 4) + fields)


@contextlib.contextmanager
def when_waiting(ready: Callable[[], object]) -> Iterator[list[str]]:
    """Do this as soon as it is said that the server is waited for; what is said."""
    told: list[str] = []

    def hear(record: logging.LogRecord) -> None:
        if "waiting up to" in record.getMessage():
            told.append(record.getMessage())
            ready()

    handler = logging.Handler()
    handler.emit = hear  # type: ignore[method-assign]
    logging.getLogger("callboard").addHandler(handler)
    try:
        yield told
    finally:
        logging.getLogger("callboard").removeHandler(handler)


def test_a_start_waits_for_a_server_that_starts_and_says_so_once(url: str) -> None:
    with NotYet() as not_yet:
        writer = PostgresJournal(url.replace(f":{shared_server().port}/", f":{not_yet.port}/"), start_seconds=60.0)
        with when_waiting(lambda: setattr(writer._database, "url", url)) as told:
            writer.open()
        writer.close()
    assert len(told) == 1
    assert "waiting up to 60 s for its server" in told[0]
    assert "das Datenbanksystem startet" in told[0]


def test_a_server_that_has_started_between_the_two_questions_is_no_reason_not_to_start(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NotYet() as not_yet:
        writer = PostgresJournal(url.replace(f":{shared_server().port}/", f":{not_yet.port}/"), start_seconds=60.0)

        def is_away(_: str) -> bool:
            writer._database.url = url
            return postgres_database.is_away(url)

        monkeypatch.setattr("callboard.actors.journal.postgres_journal.is_away", is_away)
        writer.open()
        writer.close()


def test_a_start_waits_for_a_standby_that_becomes_the_primary(url: str) -> None:
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        connection.execute("SET default_transaction_read_only = off")
        promote = f"ALTER DATABASE {name} RESET default_transaction_read_only".encode()
        writer = PostgresJournal(url, start_seconds=60.0)
        with when_waiting(lambda: connection.execute(promote)) as told:
            writer.open()
    assert len(told) == 1
    assert writer.token
    writer.close()


def test_a_start_that_has_waited_says_for_how_long(url: str) -> None:
    away = url.replace(f":{shared_server().port}/", ":1/")
    with pytest.raises(JournalFailed, match=r"refused.*\(waited 0 s for it to start\)"):
        PostgresJournal(away, start_seconds=0.0).open()


def everything_is_idle(open_ones: Collection[RequestId]) -> frozenset[RequestId]:
    return frozenset(open_ones)


def test_what_is_ours_and_does_not_run_here_is_found_at_the_second_look(url: str, start: Start) -> None:
    """Such as what was taken over in a commit whose answer was lost."""
    dead, writer = start(), start()
    dead.commit([begins("r"), begins("s")])
    dead.close()
    writer.commit([begins("here")])
    assert writer.take_up() == ("r", "s")
    assert writer.take_up(everything_is_idle) == ()

    def idle(open_ones: Collection[RequestId]) -> frozenset[RequestId]:
        return frozenset(open_ones) - {"here"}

    assert set(writer.take_up(idle)) == {"r", "s"}
    assert writer.take_up(idle) == (), "a look later again"
    with closing(PostgresReader(url)) as reader:
        log = reader.request(RequestId("r"))
    assert log is not None
    assert log.takings_up == 2


@pytest.fixture(scope="module")
def forgetful() -> Iterator[PostgresServer]:
    """A server that writes nothing to its disk for ten seconds but what is waited for."""
    with PostgresServer("wal_writer_delay = 10s", "checkpoint_timeout = 1h") as server:
        yield server


def test_what_a_crash_of_the_server_forgets_is_written_again_in_order(
    forgetful: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.actors.journal.postgres_journal.SYNC_SECONDS", LONG)
    message = NewMessage(MessageId("m1"), None, UserMessage.of("r"))
    offer = ToolOffer(ToolDefinition(ToolName("pay"), "pay"))
    asked = RequestStarted(
        Tag(RequestId("r"), MessageId("m")), 1.0, (), UserMessage.of("r"), RequestOptions("scripted/x"), (offer,)
    )
    begun = Beginning("conversation", None, 1.0, "scripted/x")
    with forgetful.database() as own:
        writer = PostgresJournal(own, durability="process", lease_seconds=LONG)
        writer.open()
        writer.commit([begins("synced")])
        forgotten = [
            Write(RequestId("r"), 1, (asked,), messages=(message,), begins=begun, conversation_id="conversation"),
            Write(RequestId("synced"), 2, (), ends=RequestEnd(2.0, None, failure="ended")),
            begins("ended at once"),
            Write(RequestId("ended at once"), 2, (), ends=RequestEnd(2.0, None, failure="ended")),
        ]
        assert writer.commit(forgotten) == [None] * 4
        assert writer.commit([goes_on("r", 2)]) == [None]
        token = writer.token
        forgetful.stop(signal.SIGQUIT)
        forgetful.start()
        with psycopg.connect(own) as connection:
            there = connection.execute("SELECT request_id FROM callboard.callboard_requests").fetchall()
        assert there == [("synced",)], "the test has lost nothing"
        assert writer.commit([goes_on("r", 3)]) == [None]
        assert writer.token == token
        with closing(PostgresReader(own)) as reader:
            assert reader.open_requests() == ("r",)
            log, ended = reader.request(RequestId("r")), reader.request(RequestId("ended at once"))
        assert log is not None
        assert log.damage == ""
        assert [each.number for each in log.records] == [1, 2, 3]
        assert log.messages == ((MessageId("m1"), UserMessage.of("r")),)
        assert isinstance(log.records[0].event, RequestStarted)
        assert log.records[0].event.tools == (offer,)
        assert ended is not None
        assert ended.end is not None
        writer.close()


def test_what_is_deleted_does_not_come_back_after_a_crash(
    forgetful: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.actors.journal.postgres_journal.SYNC_SECONDS", LONG)
    with forgetful.database() as own:
        writer = PostgresJournal(own, durability="process", lease_seconds=LONG)
        writer.open()
        writer.commit([begins("synced")])
        writer.commit([begins("r"), Write(RequestId("r"), 2, (), ends=RequestEnd(2.0, None, failure="ended"))])
        writer.change(delete_requests)
        forgetful.stop(signal.SIGQUIT)
        forgetful.start()
        writer.commit([goes_on("synced", 2)])
        with closing(PostgresReader(own)) as reader:
            assert reader.request(RequestId("r")) is None
        writer.close()


def test_what_another_process_has_deleted_does_not_come_back_after_a_lost_connection(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.actors.journal.postgres_journal.SYNC_SECONDS", LONG)
    with closing(PostgresJournal(url, durability="process", lease_seconds=LONG)) as writer:
        writer.open()
        writer.commit([begins("synced")])
        writer.commit([begins("r"), Write(RequestId("r"), 2, (), ends=RequestEnd(2.0, None, failure="ended"))])
        with closing(PostgresJournal(url, lease_seconds=LONG)) as other:
            other.open()
            other.change(delete_requests)
        end_all_connections(url)
        writer.commit([goes_on("synced", 2)])
        with closing(PostgresReader(url)) as reader:
            assert reader.request(RequestId("r")) is None
        assert numbers(url, "synced") == [1, 2]


def delete_requests(database: JournalDatabase) -> None:
    for table in (EVENTS.name, ENDS.name, OPEN, REQUESTS.name):
        database.execute(f"DELETE FROM {table} WHERE request_id = ?", ("r",))


def test_a_request_of_which_something_is_forgotten_for_good_ends_and_has_no_gap(url: str, start: Start) -> None:
    """As after a failover to a server that had not been told everything."""
    writer = start()
    writer.commit([begins("r"), goes_on("r", 2), goes_on("r", 3), begins("sound")])
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM callboard.callboard_events WHERE request_id = 'r' AND number > 1")
    end_all_connections(url)
    refused, sound = writer.commit([goes_on("r", 4), goes_on("sound", 2)])
    assert "the database has forgotten event 2 of this request" in str(refused)
    assert sound is None
    assert numbers(url, "sound") == [1, 2]
    with closing(PostgresReader(url)) as reader:
        log = reader.request(RequestId("r"))
        assert reader.open_requests() == ("sound",)
    assert log is not None
    assert [record.number for record in log.records] == [1]
    assert log.end is not None
    assert "has forgotten event 2" in log.end.failure
