"""PostgreSQL for the journal: one connection that is made again when it is lost, and what the server's errors mean.

Every wait for the server has an end. All tables of the journal are in a schema of their own, `callboard`, beside what
the database otherwise holds.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final, TypeVar

import psycopg
from psycopg import abc, conninfo, pq, sql

from callboard.actors.journal.journal_database import StatementRefused
from callboard.actors.journal.journal_store import JournalFailed, JournalUnsure
from callboard.actors.journal.places import shown_place
from callboard.actors.journal.tables import TABLES, Row, Table
from callboard.protocol.errors import UsageError

R = TypeVar("R")

#: Its words for the types of `tables`.
TYPES: Final = {"TEXT": "text", "INTEGER": "bigint", "REAL": "double precision", "BLOB": "bytea"}
#: The oldest that PostgreSQL's developers still mend at the time of writing (postgresql.org, "Versioning Policy").
OLDEST_SERVER: Final = 14
#: The schema of all tables of the journal.
SCHEMA: Final = "callboard"
#: For a connection to be made, all of its addresses together; `connect_timeout` in the URL says otherwise.
CONNECT_SECONDS: Final = 5
#: For one statement. A commit that takes longer is on a machine that does not answer.
STATEMENT_SECONDS: Final = 8.0
#: For a lock that another process holds.
LOCK_SECONDS: Final = 4.0
#: A transaction of ours that sends nothing for so long is of a process that was stopped: the server ends it, so that
#: what it has locked is free.
IDLE_SECONDS: Final = 2.0
#: For an answer of the server, where the network loses what is sent: statement_timeout is the server's own and does
#: not help there.
ANSWER_SECONDS: Final = 10.0
#: For an answer to what is no work at all, such as BEGIN.
PROMPT_SECONDS: Final = 3.0
#: A connection that was idle for longer is asked first whether it is still there: what is between may have forgotten it
#: (NAT, a pooler, a firewall), or the server is a new one.
IDLE_UNASKED_SECONDS: Final = 1.0
#: What was sent and not received for so long is lost, by TCP's own count (Linux), and silence is looked into.
_TCP: Final = {"keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3}
_UNRECEIVED_SECONDS: Final = 5.0
#: Two processes that make the tables at the same time make them one after the other.
SCHEMA_LOCK: Final = "SELECT pg_advisory_xact_lock(7239001146001)"

#: What to do, by the SQLSTATE of an error or the first two characters of it (postgresql.org, "Error Codes"). Of a
#: connection that was refused psycopg knows no SQLSTATE.
_REMEDIES: Final = {
    "53100": "make space on the server's disk; callboard tries again with the next request",
    "53300": "raise the server's max_connections or run fewer processes",
    "25006": "name a server in the URL that takes writes: this one is a standby or read-only",
    "42501": f"GRANT the journal's user CREATE on the database, and all on its schema {SCHEMA!r}",
    "42P01": "the journal's tables are not there any more: start again to make a new journal",
}
_REMEDY: Final = (
    "check the server, and the user, password and database in the URL; callboard tries again with the next request"
)
#: Who starts callboard has to change something: waiting does not help.
_SETUP: Final = frozenset({"42501"})
#: Of a server that starts, stops or is no primary yet, and of one that has no connection left: the classes "Connection
#: Exception" and "Operator Intervention" but for a statement that took too long.
_PASSING: Final = ("08", "57P", "25006", "53300")
#: The statement is not to be carried out as it is; all other errors are the server's or the network's.
_REFUSALS: Final = (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.NotSupportedError)
_KNOWN: Final = frozenset({pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR})
BEGIN_WRITING: Final = "BEGIN"
#: Its commit is not waited for until it is on the disk: a crash of the server or its machine forgets the last of them,
#: and never a half of one (postgresql.org, "Asynchronous Commit").
BEGIN_LAZILY: Final = "BEGIN; SET LOCAL synchronous_commit TO off"
#: All that a reader sees is of one moment.
BEGIN_READING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class ServerFailed(JournalFailed):
    """The server, or what is between, does not do its part."""

    is_passing: bool | None = None
    """Was the connection lost, or does the server end, start or take no writes yet, so that waiting helps? None: no
    connection was made, and `is_away` asks why."""


class PostgresConnection(psycopg.Connection[tuple[object, ...]]):
    """A connection whose waits for the server end, also where the network loses what is sent."""

    answer_seconds: float | None = ANSWER_SECONDS

    def wait(self, gen: abc.PQGen[R], interval: float = 0.1, timeout: float | None = None) -> R:
        """As psycopg's, which without a timeout has none."""
        return super().wait(gen, interval, self.answer_seconds if timeout is None else timeout)

    def ask(self, statement: bytes) -> None:
        """For one that is no work for the server, and no reason to wait for others."""
        kept, self.answer_seconds = self.answer_seconds, PROMPT_SECONDS
        try:
            self.execute(statement)
        finally:
            self.answer_seconds = kept


def check_url(url: str) -> None:
    """Raises UsageError for what libpq does not understand; without the URL itself, which may hold a password."""
    try:
        conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise UsageError(
            "the journal's URL cannot be read: write postgresql://user:password@host:port/database, with special "
            "characters of the password as %xx"
        ) from None


def who_we_are() -> str:
    """For people who look into the table of owners."""
    return f"{platform.node() or socket.gethostname()}:{os.getpid()}"


def connect(url: str, *, statement_seconds: float = STATEMENT_SECONDS) -> PostgresConnection:
    """A connection that commits each statement, in the schema of the journal. Raises UsageError, JournalFailed."""
    with told(url):
        try:
            unreceived = int(_UNRECEIVED_SECONDS * 1000)
            connection = PostgresConnection.connect(with_defaults(url, tcp_user_timeout=unreceived), autocommit=True)
        except psycopg.Error as error:
            raise ServerFailed(_failed(url, error)) from None
    try:
        with told(url):
            _set_up(connection, statement_seconds)
    except BaseException:
        connection.close()
        raise
    return connection


def is_away(url: str) -> bool:
    """Why no connection was made: is the server not there yet, rather than that it does not take us?

    psycopg knows no SQLSTATE of that, and the server's words are of its language; libpq asks without a password.
    """
    if conninfo.conninfo_to_dict(url).get("target_session_attrs") is not None:
        return True
    return pq.PGconn.ping(with_defaults(url).encode()) in {pq.Ping.REJECT, pq.Ping.NO_RESPONSE}


def with_defaults(url: str, **more: int) -> str:
    """With what neither the URL nor libpq's variables (PGCONNECT_TIMEOUT ...) say."""
    given = conninfo.conninfo_to_dict(url).keys()
    by_variable = {option.keyword.decode() for option in pq.Conninfo.get_defaults() if option.val is not None}
    defaults: dict[str, str | int] = {
        "connect_timeout": CONNECT_SECONDS, "application_name": "callboard", **_TCP, **more
    }  # fmt: skip
    return conninfo.make_conninfo(url, **{k: v for k, v in defaults.items() if k not in given | by_variable})


def _set_up(connection: PostgresConnection, statement_seconds: float) -> None:
    connection.answer_seconds = statement_seconds + ANSWER_SECONDS - STATEMENT_SECONDS
    version = connection.info.server_version // 10_000
    if version < OLDEST_SERVER:
        raise UsageError(f"the journal needs PostgreSQL {OLDEST_SERVER} or later, the server is {version}")
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise UsageError("the journal needs a database with the encoding UTF8: CREATE DATABASE ... ENCODING 'UTF8'")
    options = {
        "search_path": SCHEMA,
        "statement_timeout": milliseconds(statement_seconds),
        "lock_timeout": milliseconds(LOCK_SECONDS),
        # A reader locks nothing that others wait for, and what it has read may be taken slowly.
        "idle_in_transaction_session_timeout": milliseconds(
            IDLE_SECONDS if statement_seconds <= STATEMENT_SECONDS else statement_seconds
        ),
        "synchronous_commit": "on",
        "timezone": "UTC",
    }
    names = sql.SQL(", ").join(
        sql.SQL("set_config({}, {}, false)").format(name, value) for name, value in options.items()
    )
    connection.execute(sql.SQL("SELECT ") + names)


def milliseconds(seconds: float) -> str:
    """As PostgreSQL's settings of time are written."""
    return f"{max(1, int(seconds * 1000))}ms"


class PostgresDatabase:
    """One connection, made when it is first used and again when it was lost. `Database` says what its methods do."""

    def __init__(self, url: str, *, begin: str, statement_seconds: float = STATEMENT_SECONDS) -> None:
        self.url = url
        self.begins_by = begin
        """BEGIN_WRITING, BEGIN_LAZILY or BEGIN_READING."""
        self.prove: Callable[[], object] = lambda: None
        """Called first in each transaction: raises JournalLost for a writer that may write no more."""
        self.connected: Callable[[], object] = lambda: None
        """Called when a connection was made, before it is used for anything else."""
        self._statement_seconds = statement_seconds
        self._connection: PostgresConnection | None = None
        self._used_at = 0.0

    @property
    def is_in_transaction(self) -> bool:
        """Has what was read before to be of the same moment as what comes?"""
        connection = self._connection
        return connection is not None and connection.info.transaction_status != pq.TransactionStatus.IDLE

    def begin(self) -> None:
        begins_by = self.begins_by.encode()
        with self._told() as connection:
            connection.ask(begins_by)
        try:
            self.prove()
        except BaseException:
            self.rollback()
            raise

    def commit(self) -> None:
        try:
            with self._told() as connection:
                told = connection.execute(b"COMMIT").statusmessage
        except JournalFailed as error:
            if self._connection is None:  # no answer came: the server may have done it
                raise JournalUnsure(str(error)) from error.__cause__
            raise
        if told != "COMMIT":  # of a transaction that has failed, COMMIT is a ROLLBACK
            raise JournalFailed(
                f"the journal at {shown_place(self.url)} failed: the server answered a COMMIT by {told}"
            )

    def rollback(self) -> None:
        connection = self._connection
        if connection is None or connection.closed:
            return
        try:
            if connection.info.transaction_status != pq.TransactionStatus.IDLE:
                connection.execute(b"ROLLBACK")
        except psycopg.Error:
            self.close()

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> int:
        with self._told() as connection:
            return connection.execute(in_its_words(sql), parameters).rowcount

    def execute_many(self, sql: str, rows: Sequence[Row]) -> int:
        # By key: two processes that add the same rows, such as a list of tools that both offer, wait for each other in
        # one order and not in a circle.
        in_order = sorted(rows, key=lambda row: str(row[0]))
        if (bulk := _BULK.get(sql)) is not None:
            with self._told() as connection:
                return connection.execute(bulk, [list(column) for column in zip(*in_order, strict=True)]).rowcount
        with self._told() as connection, connection.cursor() as cursor:
            cursor.executemany(in_its_words(sql), in_order)
            # psycopg sends them as a pipeline, and after one the server does not count how long the transaction is
            # idle (seen with PostgreSQL 15 and 18): it would keep the locks of a process that was stopped here.
            connection.execute(b"SELECT 1")
            return cursor.rowcount

    def execute_for_tool(self, sql: str, parameters: Sequence[object], until: float) -> None:
        raise StatementRefused(
            "on PostgreSQL a tool is given no statements to collect: ToolContext.transaction is a connection of psycopg"
        )

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._told() as connection:
            return connection.execute(in_its_words(sql), parameters).fetchall()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def cut(self) -> None:
        """From any thread: who waits for an answer is told that there is none."""
        connection = self._connection
        with contextlib.suppress(OSError, psycopg.Error):  # it has ended meanwhile
            if connection is not None:
                with socket.socket(fileno=os.dup(connection.fileno())) as its:
                    its.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _told(self) -> Iterator[PostgresConnection]:
        connection = self._answering() or self._connect()
        try:
            with told(self.url):
                yield connection
        except ServerFailed as error:
            # Whether the transaction goes on is not known where the answer did not come; and one that takes no writes
            # any more is a standby, or was one: another may answer at the same address.
            if error.is_passing or connection.info.transaction_status not in _KNOWN:
                self.close()
            raise
        finally:
            self._used_at = time.monotonic()

    def _answering(self) -> PostgresConnection | None:
        """The connection from before, where it is still there."""
        connection = self._connection
        if connection is None or connection.closed:
            return None
        if time.monotonic() - self._used_at > IDLE_UNASKED_SECONDS and not self.is_in_transaction:
            try:
                connection.ask(b"SELECT 1")
            except psycopg.Error:
                self.close()
                return None
        return connection

    def _connect(self) -> PostgresConnection:
        connection = self._connection = connect(self.url, statement_seconds=self._statement_seconds)
        self._used_at = time.monotonic()
        try:
            self.connected()
        except BaseException:
            self.close()
            raise
        return connection


def _in_bulk(table: Table) -> bytes:
    """Adds rows as `Table.insert` does, all by one statement that is given the columns: half of the server's work."""
    given = {**table.columns, "crc": "INTEGER"}
    columns = ", ".join(f"%b::{TYPES[kind.partition(' ')[0]]}[]" for kind in given.values())
    return (
        f"INSERT INTO {table.name} ({', '.join(given)}) SELECT * FROM unnest({columns}) ON CONFLICT DO NOTHING".encode()
    )


_BULK: Final = {table.insert: _in_bulk(table) for table in TABLES}


@cache
def in_its_words(statement: str) -> bytes:
    """psycopg's marks for parameters in place of SQLite's."""
    return statement.replace("%", "%%").replace("?", "%s").encode()


@contextmanager
def told(url: str) -> Iterator[None]:
    """psycopg's errors as those of `Database`."""
    try:
        yield
    except UnicodeError as error:
        raise StatementRefused(f"the server takes no such text: {error}") from None
    except psycopg.Error as error:
        state = error.sqlstate or ""
        remedy = _REMEDIES.get(state)
        # Not `from error`: an error of psycopg's holds the connection's parameters, its password among them.
        if remedy is None and isinstance(error, _REFUSALS):
            raise StatementRefused(f"the server refuses the statement: {said(error)}") from None
        if state in _SETUP:
            raise UsageError(_failed(url, error)) from None
        failed = ServerFailed(_failed(url, error))
        failed.is_passing = not state or state.startswith(_PASSING)
        raise failed from None


def _failed(url: str, error: psycopg.Error) -> str:
    remedy = _REMEDIES.get(error.sqlstate or "", _REMEDY)
    return f"the journal at {shown_place(url)} failed: {said(error)}; {remedy}"


def said(error: Exception) -> str:
    """The server's own words, without its hints and places."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return (primary or str(error) or type(error).__name__).splitlines()[0].rstrip(".")
