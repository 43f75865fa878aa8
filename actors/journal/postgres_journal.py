"""The journal in PostgreSQL, which several processes share: each writes its own requests, and those of dead ones are
taken over by one of the others.

A process that finds that another has taken over what it had (JournalLost) has lost these requests; opened again it is a
new owner, with a new token, and can begin new ones.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from callboard.actors.journal.encoding import from_column
from callboard.actors.journal.journal_database import JournalDatabase, StatementRefused
from callboard.actors.journal.journal_records import Change, OpenReport
from callboard.actors.journal.journal_store import ChangeRefused, JournalFailed, JournalLost, JournalUnsure
from callboard.actors.journal.leases import LEASE_SECONDS, OWNERS, OWNERS_TABLE, Lease
from callboard.actors.journal.places import shown_place
from callboard.actors.journal.postgres_calls import CallConnections
from callboard.actors.journal.postgres_database import (
    BEGIN_READING,
    BEGIN_WRITING,
    SCHEMA,
    SCHEMA_LOCK,
    TYPES,
    PostgresDatabase,
    check_url,
    who_we_are,
)
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.sql_writer import SqlWriter
from callboard.actors.journal.sqlite_database import Durability
from callboard.actors.journal.tables import EVENTS, FORMAT, META, OPEN, REQUESTS, TAKE, TAKINGS, UPGRADES, schema
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import RequestId

R = TypeVar("R")

#: A restart of the server or of what is between takes some seconds: until then a batch waits, and only then its
#: requests fail. Shorter than a lease, which is renewed by the same thread.
PATIENCE_SECONDS: Final = 6.0
#: For a lease to be given back at the end; where it is not, it runs out.
LAST_PATIENCE_SECONDS: Final = 1.0
#: Between two attempts: twice as long each time, up to the last.
PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0
#: For a search through a large journal.
READER_SECONDS: Final = 60.0
#: Open requests whose owner is none any more, with the number of the last event of each.
_OPEN_OF_DEAD: Final = f"""
SELECT o.request_id, COALESCE((SELECT MAX(e.number) FROM {EVENTS.name} e WHERE e.request_id = o.request_id), 0)
FROM {OPEN} o LEFT JOIN {REQUESTS.name} r ON r.request_id = o.request_id
WHERE o.owner <> ? AND NOT EXISTS (SELECT 1 FROM {OWNERS} w WHERE w.token::text = o.owner)
ORDER BY r.begun_at, o.request_id"""


class PostgresJournal:
    """`JournalWriter` says what its methods do."""

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "power",
        lease_seconds: float = LEASE_SECONDS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises UsageError for a URL that cannot be read."""
        check_url(url)
        self._database = PostgresDatabase(url, begin=BEGIN_WRITING, durability=durability)
        self._wall_clock = wall_clock
        self._lease = Lease(who_we_are(), lease_seconds)
        self._database.prove = lambda: self._lease.prove(self._database.query)
        self._sql = SqlWriter(self._database, "")
        self._has_failed = False
        """The last attempt has: then there is one attempt a call, since each has waited long enough before."""

    @property
    def token(self) -> int:
        """The fencing token of this process; 0 when it has none."""
        return self._lease.token

    def open(self) -> OpenReport:
        try:
            _make_tables(self._database, self._wall_clock)
            self._lease.begin(self._database.query)
        except BaseException:
            self._database.close()
            raise
        self._sql = SqlWriter(self._database, str(self.token), wall_clock=self._wall_clock)
        return OpenReport()

    def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        return self._patiently(lambda: self._sql.commit(batch))

    def take_up(self) -> tuple[RequestId, ...]:
        return self._patiently(self._take_up)

    def _take_up(self) -> tuple[RequestId, ...]:
        now, database = self._wall_clock(), self._database
        database.begin()
        try:
            if not self._lease.drop_expired(database.query):
                database.rollback()
                return ()
            found = database.query(_OPEN_OF_DEAD, (str(self.token),))
            taken = [(str(request_id), number) for request_id, number in found if isinstance(number, int)]
            if taken:
                database.execute_many(TAKE, [(str(self.token), request_id) for request_id, _ in taken])
                database.execute_many(TAKINGS.insert, [TAKINGS.row(*each, now) for each in taken])
            database.commit()
        except BaseException:
            database.rollback()
            raise
        return tuple(RequestId(from_column(request_id)) for request_id, _ in taken)

    def forget_takings(self, request_ids: Sequence[RequestId]) -> None:
        self._patiently(lambda: self._sql.forget_takings(request_ids))

    def renew(self) -> float:
        self._patiently(lambda: self._lease.renew(self._database.query))
        return self._lease.renew_seconds

    def may_act(self) -> bool:
        return self._lease.is_held()

    def reader(self) -> PostgresReader:
        return PostgresReader(self._database.url)

    # -- cleaning up: see `retention.CleansUp`

    def change(self, run: Callable[[JournalDatabase], R]) -> R:
        return self._patiently(lambda: self._sql.change(run))

    def give_back(self) -> None:
        """The server's autovacuum does it."""

    def vacuum(self) -> None:
        raise UsageError(
            "PostgreSQL's autovacuum frees what was deleted; to give it back to the disk, run VACUUM FULL on the "
            f"tables of the schema {SCHEMA!r} while nothing writes to them"
        )

    def forget(self) -> str:
        return (
            "the server keeps what was deleted in its files until its VACUUM has run and the space is used again, and "
            "in its WAL and backups"
        )

    def size_bytes(self) -> int:
        """With what is deleted and not yet vacuumed, so it says nothing of what a clean-up has achieved."""
        raise UsageError("journal_max_bytes is for journals in a file; for PostgreSQL use journal_keep_days")

    def close(self) -> None:
        try:
            self._patiently(lambda: self._lease.end(self._database.query), LAST_PATIENCE_SECONDS)
        finally:
            self._database.close()

    def _patiently(self, attempt: Callable[[], R], seconds: float | None = None) -> R:
        seconds = PATIENCE_SECONDS if seconds is None else seconds
        give_up_at = time.monotonic() + (0.0 if self._has_failed else seconds)
        pause = PAUSE_SECONDS
        is_unsure = False
        while True:
            try:
                result = attempt()
            except JournalLost:
                raise
            except JournalFailed as error:
                is_unsure = is_unsure or isinstance(error, JournalUnsure)  # of any attempt
                self._has_failed = time.monotonic() + pause > give_up_at
                if self._has_failed and is_unsure and not isinstance(error, JournalUnsure):
                    raise JournalUnsure(str(error)) from error.__cause__
                if self._has_failed:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                self._has_failed = False
                return result


class PostgresPlace:
    """A database as one start of a runtime uses it: a writer at a time, and calls that commit under its token."""

    def __init__(self, url: str, durability: Durability = "power") -> None:
        """Raises UsageError for a URL that cannot be read."""
        check_url(url)
        self._url, self._durability = url, durability
        self._writer: PostgresJournal | None = None

    def writer(self) -> PostgresJournal:
        """A new one, in place of the one before."""
        self._writer = PostgresJournal(self._url, durability=self._durability)
        return self._writer

    def calls(self) -> CallConnections:
        """Connections for calls with the effect `transaction`, from any thread."""
        return CallConnections(self._url, lambda: self._writer.token if self._writer is not None else 0)


class PostgresReader(SqlReader):
    """`JournalReader` says what its methods do."""

    def __init__(self, url: str) -> None:
        check_url(url)
        self._connection = PostgresDatabase(url, begin=BEGIN_READING, statement_seconds=READER_SECONDS)
        super().__init__(self._connection)

    def close(self) -> None:
        self._connection.close()


def _make_tables(database: PostgresDatabase, wall_clock: Callable[[], float]) -> None:
    """Make what is missing, or see whether what is there is a journal of ours. Raises UsageError."""
    proving, database.prove = database.prove, lambda: None
    try:
        database.begin()
        database.query(SCHEMA_LOCK)
        [(has_schema, has_journal, has_others)] = database.query(_WHAT_IS_THERE, (META.name,))
        if has_journal:
            _check_format(database)
        elif has_others:
            raise UsageError(
                f"the database {shown_place(database.url)} has a schema {SCHEMA!r} of another program: "
                "name another database in the journal's URL"
            )
        else:
            if not has_schema:
                database.execute(f"CREATE SCHEMA {SCHEMA}")
            for statement in (*schema(TYPES), OWNERS_TABLE):
                database.execute(statement)
            told = {"format": str(FORMAT), "made_at": repr(wall_clock()), "journal": uuid.uuid4().hex}
            database.execute_many(META.insert, [META.row(*each) for each in told.items()])
        database.commit()
    except StatementRefused as error:
        database.rollback()
        raise UsageError(f"the journal's tables cannot be made in {shown_place(database.url)}: {error}") from error
    except BaseException:
        database.rollback()
        raise
    finally:
        database.prove = proving


_WHAT_IS_THERE: Final = f"""
SELECT to_regnamespace('{SCHEMA}') IS NOT NULL, bool_or(tablename = ?), bool_or(true)
FROM pg_tables WHERE schemaname = '{SCHEMA}'"""


def _check_format(database: PostgresDatabase) -> None:
    """Bring an older one to our format. Raises UsageError for one that we do not know."""
    [(found,)] = database.query(f"SELECT value FROM {META.name} WHERE name = 'format'") or [("none",)]
    while found != str(FORMAT):
        number = int(found) if isinstance(found, str) and found.isdecimal() else 0
        if number not in UPGRADES:
            raise UsageError(
                f"the journal in {shown_place(database.url)} has format {found}, this callboard writes {FORMAT}: "
                "use the callboard that made it, or name another database"
            )
        for statement in UPGRADES[number]:
            database.execute(statement)
        found = str(number + 1)
        database.execute(f"DELETE FROM {META.name} WHERE name = 'format'")
        database.execute_many(META.insert, [META.row("format", found)])
