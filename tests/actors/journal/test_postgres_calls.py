"""Calls with the effect `transaction` on a real server: their effect is there exactly where their outcome is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
import pytest
from support.postgres_server import new_database, shared_server
from support.tcp_proxy import TcpProxy

from callboard.actors.journal import postgres_calls, postgres_database
from callboard.actors.journal.journal_records import Beginning, Write
from callboard.actors.journal.journal_store import JournalLost
from callboard.actors.journal.postgres_calls import CallConnections, CommitUnknown, NotCommitted, ThreadCall
from callboard.actors.journal.postgres_journal import PostgresJournal
from callboard.protocol.errors import UsageError
from callboard.protocol.events import CancelRequested, ToolCallCompleted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag

TAG = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
DONE = ToolCallCompleted(TAG, 0.0, "done")
KEY = "r/1/c"
SECONDS = 30.0
ROW_OF = "INSERT INTO public.effects VALUES (%s)"


@dataclass
class Place:
    """A database with a journal, and with a table of a tool's."""

    url: str
    writer: PostgresJournal

    def connections(self, url: str = "") -> CallConnections:
        return CallConnections(url or self.url, lambda: self.writer.token)

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> Sequence[tuple[object, ...]]:
        with postgres_database.connect(self.url) as connection:
            cursor = connection.execute(sql.replace("?", "%s").encode(), parameters)
            return cursor.fetchall() if cursor.description is not None else ()

    def counts(self) -> tuple[object, object]:
        """How many effects and outcomes there are."""
        [(effects, outcomes)] = self.rows(
            "SELECT (SELECT count(*) FROM public.effects), (SELECT count(*) FROM callboard_outcomes)"
        )
        return effects, outcomes


@pytest.fixture
def place() -> Iterator[Place]:
    with new_database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE effects (what text)")
        writer = PostgresJournal(url, lease_seconds=3_600.0)
        writer.open()
        yield Place(url, writer)
        writer.close()


def begins(request_id: str) -> Write:
    event = CancelRequested(Tag(RequestId(request_id), MessageId("m")), 1.0, "why")
    return Write(RequestId(request_id), 1, (event,), begins=Beginning("conversation", None, 1.0, "scripted/x"))


def run_call(calls: CallConnections) -> None:
    with calls.of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        call.commit(DONE)


def test_effect_and_outcome_of_a_thread_tool_are_committed_together(place: Place) -> None:
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        assert place.counts() == (0, 0)
        call.commit(DONE)
        assert place.counts() == (1, 1)
    assert call.connection.closed
    assert place.counts() == (1, 1)


def test_effect_and_outcome_of_a_task_tool_are_committed_together(place: Place) -> None:
    async def run() -> None:
        async with place.connections().of_task(TAG, KEY, SECONDS) as call:
            await call.connection.execute(ROW_OF, ("x",))
            assert place.counts() == (0, 0)
            await call.commit(DONE)
            assert place.counts() == (1, 1)

    asyncio.run(run())


def test_a_tool_that_raises_leaves_nothing(place: Place) -> None:
    calls = place.connections()

    def run() -> None:
        with calls.of_thread(TAG, KEY, SECONDS) as call:
            call.connection.execute(ROW_OF, ("x",))
            raise ValueError("of the tool")

    async def run_async() -> None:
        async with calls.of_task(TAG, KEY, SECONDS) as call:
            await call.connection.execute(ROW_OF, ("x",))
            raise ValueError("of the tool")

    with pytest.raises(ValueError, match="of the tool"):
        run()
    with pytest.raises(ValueError, match="of the tool"):
        asyncio.run(run_async())
    assert place.counts() == (0, 0)


def test_a_call_that_is_run_twice_is_committed_once(place: Place) -> None:
    calls = place.connections()
    run_call(calls)
    with pytest.raises(NotCommitted, match="committed before"):
        run_call(calls)
    assert place.counts() == (1, 1)


def test_two_runs_of_a_call_at_the_same_time_commit_once(place: Place) -> None:
    calls, both_wrote = place.connections(), threading.Barrier(2, timeout=20)
    outcomes: list[str] = []

    def run() -> None:
        try:
            with calls.of_thread(TAG, KEY, SECONDS) as call:
                call.connection.execute(ROW_OF, ("x",))
                both_wrote.wait()
                call.commit(DONE)
                outcomes.append("committed")
        except NotCommitted:
            outcomes.append("refused")

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["committed", "refused"]
    assert place.counts() == (1, 1)


def test_who_was_taken_over_commits_nothing(place: Place) -> None:
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        place.rows("DELETE FROM callboard_owners")
        with pytest.raises(JournalLost):
            call.commit(DONE)
    assert place.counts() == (0, 0)


def test_who_was_taken_over_and_is_a_new_owner_commits_nothing_that_it_had_begun(place: Place) -> None:
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        place.rows("DELETE FROM callboard_owners")
        place.writer.open()
        with pytest.raises(JournalLost):
            call.commit(DONE)
    assert place.counts() == (0, 0)


def test_a_tool_may_not_end_the_transaction(place: Place) -> None:
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        for end in (call.connection.commit, call.connection.rollback, call.connection.close):
            with pytest.raises(UsageError, match="does not end its transaction"):
                end()
        with pytest.raises(UsageError, match="does not end its transaction"), call.connection:
            pass

    async def run() -> None:
        async with place.connections().of_task(TAG, KEY, SECONDS) as call:
            for end in (call.connection.commit, call.connection.rollback, call.connection.close):
                with pytest.raises(UsageError, match="does not end its transaction"):
                    await end()

    asyncio.run(run())


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN"])
def test_a_tool_that_ends_the_transaction_by_sql_is_found(place: Place, end: str) -> None:
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        call.connection.execute(end.encode())
        with pytest.raises(UsageError, match="ended its transaction itself"):
            call.commit(DONE)
    assert place.rows("SELECT * FROM callboard_outcomes") == []


def test_a_tool_may_undo_a_part_and_keep_the_rest(place: Place) -> None:
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("kept",))
        with pytest.raises(psycopg.errors.DivisionByZero), call.connection.transaction():
            call.connection.execute(
                "WITH undone AS (INSERT INTO public.effects VALUES ('undone') RETURNING 1) SELECT 1 / 0 FROM undone"
            )
        call.commit(DONE)
    assert place.rows("SELECT what FROM public.effects") == [("kept",)]


def test_a_tool_that_goes_on_after_a_failed_statement_commits_nothing(place: Place) -> None:
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        with pytest.raises(psycopg.errors.UndefinedTable):
            call.connection.execute("SELECT * FROM no_such_table")
        with pytest.raises(NotCommitted, match="current transaction is aborted"):
            call.commit(DONE)
    assert place.counts() == (0, 0)


def test_a_constraint_that_is_checked_at_the_commit_fails_the_call(place: Place) -> None:
    place.rows("ALTER TABLE public.effects ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        for _ in range(2):
            call.connection.execute(ROW_OF, ("x",))
        with pytest.raises(NotCommitted, match="duplicate key"):
            call.commit(DONE)
    assert place.counts() == (0, 0)


def test_an_abandoned_call_cannot_commit_and_lets_go_of_its_thread(place: Place) -> None:
    calls = place.connections()
    running: list[ThreadCall] = []
    ended = threading.Event()

    def run() -> None:
        with calls.of_thread(TAG, KEY, SECONDS) as call:
            call.connection.execute(ROW_OF, ("x",))
            running.append(call)
            with pytest.raises(psycopg.OperationalError):
                call.connection.execute("SELECT pg_sleep(60)")
            with pytest.raises(NotCommitted):
                call.commit(DONE)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    sleeping = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    while not place.rows(sleeping):
        assert not ended.is_set()
    running[0].abandon()
    assert ended.wait(20)
    running[0].abandon()
    assert place.counts() == (0, 0)


def test_a_cancelled_task_commits_nothing(place: Place) -> None:
    async def run() -> None:
        wrote = asyncio.Event()

        async def tool() -> None:
            async with place.connections().of_task(TAG, KEY, SECONDS) as call:
                await call.connection.execute(ROW_OF, ("x",))
                wrote.set()
                await call.connection.execute("SELECT pg_sleep(60)")

        task = asyncio.create_task(tool())
        await wrote.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert place.counts() == (0, 0)


def test_the_server_ends_a_transaction_of_a_process_that_was_stopped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_calls, "GRACE_SECONDS", 0.05)
    with place.connections().of_thread(TAG, KEY, 0.05) as call:
        call.connection.execute(ROW_OF, ("x",))
        with postgres_database.connect(place.url) as watcher:
            while watcher.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
            ).fetchone():
                assert not call.connection.closed
        with pytest.raises(NotCommitted):
            call.commit(DONE)
    assert place.counts() == (0, 0)


def begin_to_end(place: Place, running: ExitStack) -> ThreadCall:
    """A call of a tool that may take an hour, whose process is stopped between its outcome and its commit."""
    call = running.enter_context(place.connections().of_thread(TAG, KEY, 3_600.0))
    call.connection.execute(ROW_OF, ("x",))
    call.run(call._rules.finish(DONE))
    return call


def test_a_process_that_is_stopped_at_the_end_of_a_call_is_taken_over_within_seconds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres_calls._AT_THE_END, "idle_in_transaction_session_timeout", "300ms")
    other = PostgresJournal(place.url, lease_seconds=3_600.0)
    other.open()
    with ExitStack() as running:
        call = begin_to_end(place, running)
        place.rows("UPDATE callboard_owners SET lease_until = '-infinity', lease = '0 s' WHERE token = ?",
                   (place.writer.token,))  # fmt: skip
        owners = "SELECT token FROM callboard_owners"
        give_up_at = time.monotonic() + 30
        while (place.writer.token,) in place.rows(owners):
            assert time.monotonic() < give_up_at
            other.take_up()
        with pytest.raises(NotCommitted):
            call._rules.resolve(DONE, RuntimeError("the process was stopped"))
    assert place.counts() == (0, 0)
    other.close()


def test_what_a_tool_of_a_dead_process_has_locked_is_free_when_it_is_taken_over(place: Place) -> None:
    """Its host is gone without a word, and its calls may take an hour."""
    place.rows("INSERT INTO public.effects VALUES ('theirs')")
    place.writer.commit([begins("r")])
    other = PostgresJournal(place.url, lease_seconds=3_600.0)
    other.open()
    with place.connections().of_thread(TAG, KEY, 3_600.0) as call:
        call.connection.execute("UPDATE public.effects SET what = 'x'")
        place.rows("DELETE FROM callboard_owners WHERE token = ?", (place.writer.token,))
        assert other.take_up() == ("r",)
        place.rows("UPDATE public.effects SET what = 'ours'")
        with pytest.raises(NotCommitted):
            call.commit(DONE)
    assert place.rows("SELECT what FROM public.effects") == [("ours",)]
    other.close()


def test_calls_of_living_processes_go_on_when_another_is_taken_over(place: Place) -> None:
    dead, other = (PostgresJournal(place.url, lease_seconds=3_600.0) for _ in range(2))
    dead.open()
    other.open()
    dead.commit([begins("r")])
    dead.close()
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        assert other.take_up() == ("r",)
        call.commit(DONE)
    assert place.counts() == (1, 1)
    other.close()


def test_what_a_commit_would_have_to_check_is_checked_before_the_owner_is_held(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not count how long a commit takes."""
    monkeypatch.setitem(postgres_calls._AT_THE_END, "statement_timeout", "100ms")
    place.rows(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(3600); RETURN NULL; END $$"
    )
    place.rows(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON public.effects DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.slow()"
    )
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        with pytest.raises(NotCommitted, match="statement timeout"):
            call.commit(DONE)
    assert place.counts() == (0, 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_waits_for_a_server_that_takes_no_connections_for_a_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    name = place.url.rpartition("/")[2].encode()

    def allow(said: bytes) -> None:
        with psycopg.connect(shared_server().url(), autocommit=True) as connection:
            connection.execute(b"ALTER DATABASE " + name + b" ALLOW_CONNECTIONS " + said)

    def pauses(seconds: float) -> Iterator[float]:
        allow(b"true")
        yield 0.0

    async def run_async() -> None:
        async with place.connections().of_task(TAG, KEY, SECONDS) as call:
            await call.connection.execute(ROW_OF, ("x",))
            await call.commit(DONE)

    monkeypatch.setattr(postgres_calls, "_pauses", pauses)
    allow(b"false")
    if is_async:
        asyncio.run(run_async())
    else:
        run_call(place.connections())
    assert place.counts() == (1, 1)


def test_an_effect_is_on_the_disk_when_it_is_told_whatever_the_database_is_set_to(place: Place) -> None:
    name = place.url.rpartition("/")[2]
    place.rows(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with place.connections().of_thread(TAG, KEY, SECONDS) as call:
        assert call.connection.execute("SHOW synchronous_commit").fetchall() == [("off",)]
        call.run(call._rules.finish(DONE))
        assert call.connection.execute("SHOW synchronous_commit").fetchall() == [("on",)]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    monkeypatch.setattr(postgres_calls, "ANSWER_SECONDS", 0.3)
    with TcpProxy(shared_server().port) as made:
        yield made


def through(proxy: TcpProxy, url: str) -> str:
    return url.replace(f":{shared_server().port}/", f":{proxy.port}/")


def test_a_commit_whose_answer_is_lost_counts_once_it_is_seen(
    place: Place, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended = threading.Thread(target=lambda: (proxy.lost.wait(20), proxy.mend()), daemon=True)
    monkeypatch.setattr(postgres_database, "CONNECT_SECONDS", 2)
    with place.connections(through(proxy, place.url)).of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        proxy.cut_after(b"COMMIT")
        mended.start()
        call.commit(DONE)
    assert place.counts() == (1, 1)


def test_a_commit_that_never_arrived_is_told_as_none(place: Place, proxy: TcpProxy) -> None:
    async def run() -> None:
        async with place.connections(through(proxy, place.url)).of_task(TAG, KEY, SECONDS) as call:
            await call.connection.execute(ROW_OF, ("x",))
            proxy.cut_after(b"INSERT INTO callboard.callboard_outcomes")
            with pytest.raises(NotCommitted):
                await call.commit(DONE)

    monkey = threading.Thread(target=lambda: (proxy.lost.wait(20), proxy.mend()), daemon=True)
    monkey.start()
    asyncio.run(run())
    assert place.counts() == (0, 0)


def test_where_the_server_cannot_be_asked_the_commit_is_unknown(
    place: Place, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_calls, "RESOLVE_SECONDS", 0.0)
    monkeypatch.setattr(postgres_database, "CONNECT_SECONDS", 2)
    with place.connections(through(proxy, place.url)).of_thread(TAG, KEY, SECONDS) as call:
        call.connection.execute(ROW_OF, ("x",))
        proxy.cut_after(b"COMMIT")
        with pytest.raises(CommitUnknown, match="cannot be seen whether it was"):
            call.commit(DONE)
    assert place.counts() == (1, 1)
