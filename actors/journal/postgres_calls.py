"""Connections for calls with the effect `transaction`: what a tool writes is committed together with its outcome.

Each call has a connection of its own, made for it and closed after it, so that nothing that a tool sets on it (a role,
a search path, a lock of the session) reaches another call. Making one takes some 6 ms. The tool does not end the
transaction; we do, after a row for its outcome has entered the table `outcomes`, whose key is the call's: a call that
is run a second time, by a process that was taken for dead and goes on, cannot commit a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, NoReturn

import psycopg
from msgspec import Struct
from psycopg import AsyncConnection

from callboard.actors.journal import postgres_database
from callboard.actors.journal.encoding import outcome_row
from callboard.actors.journal.journal_store import JournalFailed, JournalLost
from callboard.actors.journal.leases import OWNERS
from callboard.actors.journal.postgres_database import (
    ANSWER_SECONDS,
    LOCK_SECONDS,
    SCHEMA,
    STATEMENT_SECONDS,
    in_its_words,
    milliseconds,
    said,
)
from callboard.actors.journal.tables import OUTCOMES
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.protocol.events import ToolCallEnd
from callboard.protocol.ids import Tag

#: Calls of a process at a time, of thread tools and again of task tools; further ones wait, within their deadline.
MAX_CONNECTIONS: Final = 16
#: After its deadline a call has this long to be ended by us, before the server ends its transaction.
GRACE_SECONDS: Final = 2.0
#: The end of a call holds the row of its owner, so that nobody takes over meanwhile. Of a process that is stopped there
#: the server ends the transaction after so long, whatever the tool may take.
END_IDLE_SECONDS: Final = 5.0
#: For a connection to be had while the server is away: as long as the journal's own reads and writes.
CONNECT_PATIENCE_SECONDS: Final = 6.0
CONNECT_PAUSE_SECONDS: Final = 0.2
#: For an answer to whether a commit whose own answer was lost was carried out.
RESOLVE_SECONDS: Final = 10.0
#: Between two attempts to ask for it.
RESOLVE_PAUSE_SECONDS: Final = 0.2

Rows = list[tuple[object, ...]]
#: Statements to run one after the other, each given the rows of the one before: for both kinds of connection.
Script = Generator[tuple[str, Sequence[object]], Rows, None]

#: Where a tool's own names are looked for. A user named like the journal's schema has that schema first ("$user"): the
#: tool would find our tables, and make its own among them.
_SEARCH_PATH: Final = f"""
SELECT set_config('search_path', coalesce(string_agg(quote_ident(name), ', ' ORDER BY place), 'public'), true)
FROM unnest(current_schemas(false)) WITH ORDINALITY AS visible(name, place)
WHERE name <> '{SCHEMA}' HAVING '{SCHEMA}' = ANY (current_schemas(false))"""
_MARKED: Final = "current_setting('callboard.effect_id', true)"
_PROVE: Final = f"SELECT token FROM {SCHEMA}.{OWNERS} WHERE token = ? FOR KEY SHARE"
#: What is to be checked at the commit is checked before: the server does not count how long a commit takes.
_CHECK: Final = "SET CONSTRAINTS ALL IMMEDIATE"
#: Each transaction says whose it is, so that those of dead owners can be found and ended.
_CALLS: Final = 723_900_114
_SAY_WHOSE: Final = f"pg_advisory_xact_lock_shared({_CALLS}, ?)"
END_CALLS_OF_DEAD: Final = f"""
SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.classid = {_CALLS} AND l.objsubid = 2 AND a.datname = current_database()
    AND a.usename = current_user AND NOT EXISTS (SELECT 1 FROM {OWNERS} w WHERE w.token = l.objid::bigint)"""
#: Waits where another transaction is about to insert a row with the same key; leaves ours out where it has.
_INSERT: Final = f"{OUTCOMES.insert.replace(OUTCOMES.name, f'{SCHEMA}.{OUTCOMES.name}')} RETURNING 1"


#: From the tool's last statement on.
_AT_THE_END: Final = {
    "idle_in_transaction_session_timeout": milliseconds(END_IDLE_SECONDS),
    "statement_timeout": milliseconds(STATEMENT_SECONDS),
    "lock_timeout": milliseconds(LOCK_SECONDS),
    # With any durability: an outcome that is told must not be forgotten while its effect is counted on.
    "synchronous_commit": "on",
}


def _set(given: Mapping[str, str]) -> tuple[str, Sequence[object]]:
    """Settings that end with the transaction."""
    return ", ".join("set_config(?, ?, true)" for _ in given), [text for pair in given.items() for text in pair]


class NotCommitted(RuntimeFailure):
    """The call has had no effect: its transaction was rolled back."""


class CommitUnknown(RuntimeFailure):
    """The server has not said, and cannot be asked, whether the transaction was committed."""


def _refuse() -> NoReturn:
    raise UsageError(
        'a tool with effect="transaction" does not end its transaction: it is committed together with the '
        "call's outcome, and rolled back where the tool raises; use connection.transaction() for a part that may fail"
    )


class ThreadConnection(postgres_database.PostgresConnection):
    """What a thread tool is given."""

    answer_seconds: float | None = None  # a statement of the tool's may take as long as the call

    def commit(self) -> None:
        """Refused."""
        _refuse()

    def rollback(self) -> None:
        """Refused."""
        _refuse()

    def close(self) -> None:
        """Refused."""
        _refuse()

    def end(self) -> None:
        """Close it, which rolls back what was not committed."""
        super().close()


class TaskConnection(AsyncConnection[tuple[object, ...]]):
    """What a task tool is given."""

    async def commit(self) -> None:
        """Refused."""
        _refuse()

    async def rollback(self) -> None:
        """Refused."""
        _refuse()

    async def close(self) -> None:
        """Refused."""
        _refuse()

    async def end(self) -> None:
        """Close it, which rolls back what was not committed."""
        await super().close()


class CallTransaction(Struct, frozen=True):
    """What is done at the beginning and at the end of one call's transaction."""

    url: str
    tag: Tag
    effect_id: str
    token: int
    """The fencing token of this process when the call began: a process that was taken over, and has got a new one
    since, does not commit what it had begun before."""
    wall_clock: Callable[[], float] = time.time

    def begin(self, server_version: int, seconds: float) -> Script:
        """Settings that end with the transaction, and with them the sign that it is still the same one."""
        limit = milliseconds(seconds + GRACE_SECONDS)
        given = {
            "callboard.effect_id": self.effect_id,
            "statement_timeout": limit,
            "idle_in_transaction_session_timeout": limit,
        }
        if server_version >= 170_000:
            given["transaction_timeout"] = limit
        settings, values = _set(given)
        yield f"SELECT {_SAY_WHOSE}, {settings}", (self.token, *values)
        yield _SEARCH_PATH, ()

    def finish(self, outcome: ToolCallEnd) -> Script:
        """All but the commit itself. Raises UsageError for a tool that has ended the transaction."""
        settings, values = _set(_AT_THE_END)
        [(marked, *_)] = yield f"SELECT {_MARKED}, {settings}", values
        if marked != self.effect_id:
            raise UsageError(
                "the tool has ended its transaction itself (COMMIT or ROLLBACK): what it committed has no outcome with "
                'it, so it may happen twice; leave that out, or declare the tool with effect="once"'
            )
        yield _CHECK, ()
        if not (yield self._insert(outcome)):
            raise NotCommitted("this call has been committed before, by another process; it is rolled back")
        # Last: what is before may wait for others, and until the commit nobody can take over.
        if not (yield _PROVE, (self.token,)):
            raise JournalLost("another process has taken over this request; what the call wrote is rolled back")

    def resolve(self, outcome: ToolCallEnd, why: Exception) -> None:
        """Find out what became of a commit whose answer was lost: a row with the same key can only be inserted where
        there is none, and waits for a transaction that is still about to insert one. Raises NotCommitted and
        CommitUnknown."""
        statement, values = self._insert(outcome)
        give_up_at = time.monotonic() + RESOLVE_SECONDS
        while True:
            try:
                with postgres_database.connect(self.url) as connection, connection.transaction(force_rollback=True):
                    was_committed = not connection.execute(in_its_words(statement), values).fetchall()
            except (JournalFailed, psycopg.Error) as error:
                if time.monotonic() > give_up_at:
                    raise CommitUnknown(
                        f"the connection was lost while the call was committed ({said(why)}), and it cannot be seen "
                        "whether it was"
                    ) from error
                time.sleep(RESOLVE_PAUSE_SECONDS)
            else:
                if was_committed:
                    return
                raise NotCommitted(f"the call was not committed: {said(why)}")

    def _insert(self, outcome: ToolCallEnd) -> tuple[str, Sequence[object]]:
        return _INSERT, outcome_row(self.tag, outcome, self.wall_clock())


class ThreadCall:
    """The transaction of one call of a thread tool."""

    def __init__(self, rules: CallTransaction, connection: ThreadConnection) -> None:
        self.connection = connection
        """For the tool."""
        self._rules = rules
        # A handle of its own, since the other is closed and its number taken by others when the call ends.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def run(self, script: Script) -> None:
        """Raises NotCommitted where the server refuses a statement."""
        with _told(), contextlib.suppress(StopIteration):
            statement, values = next(script)
            while True:
                cursor = self.connection.execute(in_its_words(statement), values)
                statement, values = script.send(cursor.fetchall() if cursor.description is not None else [])

    def commit(self, outcome: ToolCallEnd) -> None:
        """Raises NotCommitted, CommitUnknown, JournalLost, and UsageError where the tool has ended the transaction."""
        self.connection.answer_seconds = ANSWER_SECONDS
        self.run(self._rules.finish(outcome))
        try:
            self.connection.execute(b"COMMIT")
        except psycopg.Error as error:
            self._rules.resolve(outcome, error)

    def end(self) -> None:
        """Roll back what was not committed."""
        self.connection.end()
        self._socket.close()

    def abandon(self) -> None:
        """From another thread, while the tool's is busy: the server rolls back, and nothing can be committed."""
        with contextlib.suppress(OSError):  # the call has ended
            self._socket.shutdown(socket.SHUT_RDWR)


class TaskCall:
    """The transaction of one call of a task tool."""

    def __init__(self, rules: CallTransaction, connection: TaskConnection) -> None:
        self.connection = connection
        """For the tool."""
        self._rules = rules

    async def run(self, script: Script) -> None:
        """Raises NotCommitted where the server refuses a statement."""
        with _told(), contextlib.suppress(StopIteration):
            statement, values = next(script)
            while True:
                cursor = await self.connection.execute(in_its_words(statement), values)
                statement, values = script.send(await cursor.fetchall() if cursor.description is not None else [])

    async def commit(self, outcome: ToolCallEnd) -> None:
        """As ThreadCall's. Cancelled while the server commits, it first waits for that."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.run(self._rules.finish(outcome))
        except TimeoutError:
            raise NotCommitted(f"the call is rolled back: no answer from its server for {ANSWER_SECONDS:g} s") from None
        committing = asyncio.ensure_future(self._commit(outcome))
        try:
            await asyncio.shield(committing)
        except asyncio.CancelledError:
            await asyncio.wait({committing})
            if not committing.cancelled():
                committing.exception()  # taken, since nothing waits for it any more
            raise

    async def _commit(self, outcome: ToolCallEnd) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.connection.execute(b"COMMIT")
        except (psycopg.Error, TimeoutError) as error:
            await asyncio.to_thread(self._rules.resolve, outcome, error)


class CallConnections:
    """Makes them. `token` gives the fencing token of this process, and 0 while it has none."""

    def __init__(self, url: str, token: Callable[[], int]) -> None:
        self._url, self._token = url, token
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._making = threading.Lock()
        self._free_on: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._free_on = weakref.WeakKeyDictionary()

    @contextmanager
    def of_thread(self, tag: Tag, effect_id: str, seconds: float) -> Iterator[ThreadCall]:
        """A transaction, which the server ends itself some time after `seconds`. Raises NotCommitted where none can be
        had."""
        if not self._free.acquire(timeout=seconds):
            raise NotCommitted(f"all {MAX_CONNECTIONS} connections to the database are taken by other calls")
        try:
            with _told():
                connection = self._connected(_pauses(seconds))
            rules = self._rules(tag, effect_id)
            call = ThreadCall(rules, connection)
            try:
                call.run(rules.begin(connection.info.server_version, seconds))
                yield call
            finally:
                call.end()
        finally:
            self._free.release()

    @asynccontextmanager
    async def of_task(self, tag: Tag, effect_id: str, seconds: float) -> AsyncIterator[TaskCall]:
        """As `of_thread`, and it waits for a free connection until it is cancelled."""
        with self._making:
            free = self._free_on.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_CONNECTIONS))
        async with free:
            with _told():
                connection = await self._connected_async(_pauses(seconds))
            rules = self._rules(tag, effect_id)
            try:
                call = TaskCall(rules, connection)
                await call.run(rules.begin(connection.info.server_version, seconds))
                yield call
            finally:
                await connection.end()

    def _connected(self, pauses: Iterator[float]) -> ThreadConnection:
        while True:
            try:
                return ThreadConnection.connect(postgres_database.with_defaults(self._url))
            except psycopg.Error:
                if (pause := next(pauses, None)) is None:
                    raise
            time.sleep(pause)

    async def _connected_async(self, pauses: Iterator[float]) -> TaskConnection:
        while True:
            try:
                return await TaskConnection.connect(postgres_database.with_defaults(self._url))
            except psycopg.Error:
                if (pause := next(pauses, None)) is None:
                    raise
            await asyncio.sleep(pause)

    def _rules(self, tag: Tag, effect_id: str) -> CallTransaction:
        return CallTransaction(self._url, tag, effect_id, self._token())


def _pauses(seconds: float) -> Iterator[float]:
    """Before each further attempt to connect: nothing has happened yet, and a server is started again in seconds."""
    give_up_at = time.monotonic() + min(seconds, CONNECT_PATIENCE_SECONDS)
    while time.monotonic() < give_up_at:
        yield CONNECT_PAUSE_SECONDS


@contextmanager
def _told() -> Iterator[None]:
    """Around what is done before the commit."""
    try:
        yield
    except psycopg.Error as error:
        raise NotCommitted(f"the call was rolled back: {said(error)}") from None
