"""The journal in PostgreSQL, which several processes share: each writes its own requests, and those of dead ones are
taken over by one of the others.

A process that finds that another has taken over what it had (JournalLost) has lost these requests; opened again it is a
new owner, with a new token, and can begin new ones.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Final, TypeVar

from callboard.actors.journal.encoding import column, from_column
from callboard.actors.journal.journal_database import JournalDatabase, StatementRefused
from callboard.actors.journal.journal_records import Change, OpenReport, RequestEnd, Write
from callboard.actors.journal.journal_store import ChangeRefused, Idle, JournalFailed, JournalLost, JournalUnsure
from callboard.actors.journal.leases import LEASE_SECONDS, OWNERS, OWNERS_TABLE, Lease
from callboard.actors.journal.places import shown_place
from callboard.actors.journal.postgres_calls import END_CALLS_OF_DEAD, CallConnections
from callboard.actors.journal.postgres_database import (
    BEGIN_LAZILY,
    BEGIN_READING,
    BEGIN_WRITING,
    SCHEMA,
    SCHEMA_LOCK,
    TYPES,
    PostgresDatabase,
    ServerFailed,
    check_url,
    is_away,
    who_we_are,
)
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.sql_writer import SqlWriter
from callboard.actors.journal.sqlite_database import Durability
from callboard.actors.journal.tables import EVENTS, FORMAT, META, OPEN, REQUESTS, TAKE, TAKINGS, UPGRADES, schema
from callboard.protocol.errors import CallboardError, UsageError
from callboard.protocol.ids import RequestId

logger = logging.getLogger("callboard")

R = TypeVar("R")

#: A restart of the server or of what is between takes some seconds: until then a batch waits, and only then its
#: requests fail. Shorter than a lease, which is renewed by the same thread.
PATIENCE_SECONDS: Final = 6.0
#: For a lease to be given back at the end; where it is not, it runs out.
LAST_PATIENCE_SECONDS: Final = 1.0
#: Between two attempts: twice as long each time, up to the last.
PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0
#: A runtime that starts waits so long for a server that starts, too: of the 30 s that it has.
START_PATIENCE_SECONDS: Final = 20.0
#: With `durability="process"`, after so long and after so many changes a commit waits for the disk all the same. What
#: came since the last such one is kept in memory, for a crash of the server may forget it.
SYNC_SECONDS: Final = 1.0
MOST_UNSYNCED: Final = 1_000
#: For a search through a large journal.
READER_SECONDS: Final = 60.0
#: Open requests whose owner is none any more, with the number of the last event of each.
_OPEN_OF_DEAD: Final = f"""
SELECT o.request_id, COALESCE((SELECT MAX(e.number) FROM {EVENTS.name} e WHERE e.request_id = o.request_id), 0)
FROM {OPEN} o LEFT JOIN {REQUESTS.name} r ON r.request_id = o.request_id
WHERE o.owner <> ? AND NOT EXISTS (SELECT 1 FROM {OWNERS} w WHERE w.token::text = o.owner)
ORDER BY r.begun_at, o.request_id"""
_OPEN_OF_OURS: Final = f"SELECT request_id FROM {OPEN} WHERE owner = ?"
_LAST_NUMBERS: Final = (
    f"SELECT request_id, MAX(number) FROM {EVENTS.name} WHERE request_id = ANY(?) GROUP BY request_id"
)
_FORGOTTEN: Final = (
    "the database has forgotten event {} of this request and maybe others, which it had confirmed: its server crashed, "
    "or another one without them took its place"
)


class Patience:
    """With a server that is away for some seconds."""

    def __init__(self) -> None:
        self.given_up = threading.Event()
        """Nobody waits any more; set from any thread."""
        self._has_failed = False
        """The last attempt has: then there is one attempt a call, since each has waited long enough before."""

    def __call__(self, attempt: Callable[[], R], seconds: float, at_least: int = 2) -> R:
        """What the attempt returns. It is made `at_least` so often, since the first may find the connection dead, and
        for so many seconds; then JournalFailed is raised."""
        give_up_at = time.monotonic() + seconds
        pause, left, is_unsure = PAUSE_SECONDS, 1 if self._has_failed else at_least, False
        while True:
            try:
                result = attempt()
            except JournalLost:
                raise
            except JournalFailed as error:
                left -= 1
                is_unsure = is_unsure or isinstance(error, JournalUnsure)  # of any attempt
                is_late = self._has_failed or time.monotonic() + pause > give_up_at
                if (is_late and left <= 0) or self.given_up.wait(pause):
                    self._has_failed = True
                    if is_unsure and not isinstance(error, JournalUnsure):
                        raise JournalUnsure(str(error)) from error.__cause__
                    raise
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                self._has_failed = False
                return result


class PostgresJournal:
    """`JournalWriter` says what its methods do."""

    is_shared: Final = True

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "power",
        lease_seconds: float = LEASE_SECONDS,
        wall_clock: Callable[[], float] = time.time,
        start_seconds: float | None = None,
    ) -> None:
        """`start_seconds`: to wait for a server that starts. Raises UsageError for a URL that cannot be read."""
        check_url(url)
        self._database = PostgresDatabase(url, begin=BEGIN_WRITING)
        self._wall_clock = wall_clock
        self._lease = Lease(who_we_are(), lease_seconds)
        self._database.prove = self._prove
        self._database.connected = self._write_again
        self._sql = SqlWriter(self._database, "")
        self._patience = Patience()
        self._start_seconds = start_seconds
        self._is_lazy = durability == "process"
        self._mark: datetime | None = None
        """Of the transaction that was begun last and is not waited for."""
        self._unsynced: list[tuple[datetime, Change]] = []
        """What was committed and may not be on the server's disk, in order, with its marks."""
        self._sync_at = 0.0
        self._last_numbers: dict[RequestId, int] = {}
        """Of the last event that was written here, of each request that has not ended."""
        self._forgotten: dict[RequestId, str] = {}
        """Requests of which the server has forgotten what we do not have either."""
        self._were_idle: frozenset[RequestId] = frozenset()

    @property
    def token(self) -> int:
        """The fencing token of this process; 0 when it has none."""
        return self._lease.token

    def open(self) -> OpenReport:
        seconds = PATIENCE_SECONDS if self._start_seconds is None else self._start_seconds
        give_up_at, is_told, is_there = time.monotonic() + seconds, False, False
        while True:
            try:
                self._open()
            except JournalFailed as error:
                helps = error.is_passing if isinstance(error, ServerFailed) else True  # a commit without an answer
                if helps is None:
                    helps = is_away(self._database.url)
                if not helps and is_there:
                    raise
                is_there = not helps
                if is_there:  # once more: it may have started between the two questions
                    continue
                if time.monotonic() + LONGEST_PAUSE_SECONDS > give_up_at:
                    raise JournalFailed(f"{error} (waited {seconds:g} s for it to start)") from None
                if not is_told:
                    logger.warning("journal: waiting up to %g s for its server: %s", seconds, error)
                is_told = True
                time.sleep(LONGEST_PAUSE_SECONDS / 4)
            else:
                return OpenReport()

    def _open(self) -> None:
        try:
            _make_tables(self._database, self._wall_clock)
            self._lease.begin(self._database.query)
        except BaseException:
            self._database.close()
            raise
        self._sql = SqlWriter(self._database, str(self.token), wall_clock=self._wall_clock)

    def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        return self._patiently(lambda: self._commit(batch))

    def _commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        began = time.monotonic()
        is_lazy = self._is_lazy and began < self._sync_at and len(self._unsynced) < MOST_UNSYNCED
        self._database.begins_by = BEGIN_LAZILY if is_lazy else BEGIN_WRITING
        try:
            refused = self._committed(batch)
        finally:
            self._database.begins_by = BEGIN_WRITING
        written = [change for change, why in zip(batch, refused, strict=True) if why is None]
        if is_lazy:
            assert self._mark is not None
            self._unsynced += [(self._mark, each) for each in written]
        else:
            self._has_synced(began)
        self._note(written)
        return refused

    def _prove(self) -> None:
        if self._database.begins_by == BEGIN_LAZILY:
            self._mark = self._lease.mark(self._database.query)
        else:
            self._lease.prove(self._database.query)

    def _committed(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        """But for requests that have ended since the server has forgotten some of them."""
        whys = [self._forgotten.get(each.request_id) if isinstance(each, Write) else None for each in batch]
        refused = iter(self._sql.commit([each for each, why in zip(batch, whys, strict=True) if why is None]))
        told = [next(refused) if why is None else ChangeRefused(why) for why in whys]
        for each, why in zip(batch, whys, strict=True):
            if isinstance(each, Write) and why is not None:
                self._forgotten.pop(each.request_id, None)  # whoever hears that hands over no more of it
        return told

    def _has_synced(self, began: float) -> None:
        """A commit was waited for, and with it all is on the disk that was committed before."""
        self._unsynced.clear()
        self._sync_at = began + SYNC_SECONDS

    def _note(self, written: Sequence[Change]) -> None:
        for change in written:
            if isinstance(change, Write):
                if change.ends is not None:
                    self._last_numbers.pop(change.request_id, None)
                elif change.events:
                    self._last_numbers[change.request_id] = change.number + len(change.events) - 1

    def _write_again(self) -> None:
        """On a new connection: what a crash of the server has made it forget, and nothing else, since what it had may
        have been deleted meanwhile, also by another process."""
        begins_by, self._database.begins_by = self._database.begins_by, BEGIN_WRITING
        try:
            if self._unsynced:
                there = self._lease.marked(self._database.query)
                # Waits for the disk, so for all that is there, also where nothing is forgotten.
                self._sql.commit([each for mark, each in self._unsynced if mark > there])
                self._unsynced.clear()
            if gaps := self._gaps():
                self._sql.commit(gaps)
        finally:
            self._database.begins_by = begins_by
        if gaps:
            self._note(gaps)
            raise JournalFailed(f"the server at {shown_place(self._database.url)} has forgotten what it had confirmed")

    def _gaps(self) -> list[Write]:
        """Ends for open requests of which events are gone that are not in memory either: nothing may follow there."""
        if not self._last_numbers:
            return []
        there = self._numbers_there(self._last_numbers)
        gaps = []
        for request_id, last in self._last_numbers.items():
            if (number := there[request_id]) < last:
                self._forgotten[request_id] = why = _FORGOTTEN.format(number + 1)
                end = RequestEnd(self._wall_clock(), None, failure=why)
                gaps.append(Write(request_id, number + 1, (), ends=end))
        return gaps

    def _numbers_there(self, request_ids: Collection[RequestId]) -> dict[RequestId, int]:
        """Of the last event of each that the server has; 0 where it has none."""
        ours = {column(each): each for each in request_ids}
        found = self._database.query(_LAST_NUMBERS, (list(ours),)) if ours else ()
        there = {name: number for name, number in found if isinstance(number, int)}
        return {each: there.get(name, 0) for name, each in ours.items()}

    def take_up(self, idle: Idle | None = None) -> tuple[RequestId, ...]:
        return self._patiently(lambda: self._take_up(idle))

    def _take_up(self, idle: Idle | None) -> tuple[RequestId, ...]:
        now, database = self._wall_clock(), self._database
        database.begin()
        try:
            if not self._lease.drop_expired(database.query):
                database.rollback()
                return ()
            found = database.query(_OPEN_OF_DEAD, (str(self.token),))
            taken = {str(request_id): number for request_id, number in found if isinstance(number, int)}
            if taken:
                database.execute_many(TAKE, [(str(self.token), request_id) for request_id in taken])
            were_idle: frozenset[RequestId] = frozenset()
            if idle is not None:
                ours = [str(name) for (name,) in database.query(_OPEN_OF_OURS, (str(self.token),))]
                were_idle = idle([RequestId(from_column(name)) for name in ours if name not in taken])
                # Twice in a row: the end of one that ends this moment waits to be written.
                again = were_idle & self._were_idle
                were_idle -= again
                taken |= {column(each): number for each, number in self._numbers_there(again).items()}
            if taken:
                database.execute_many(TAKINGS.insert, [TAKINGS.row(*each, now) for each in taken.items()])
            database.commit()
        except BaseException:
            database.rollback()
            raise
        self._were_idle = were_idle
        if taken:
            # A tool of a stopped process may have locked rows that the same call needs now. Where this user may not end
            # its transaction, its time does.
            with contextlib.suppress(CallboardError):
                database.query(END_CALLS_OF_DEAD)
        return tuple(RequestId(from_column(request_id)) for request_id in taken)

    def forget_takings(self, request_ids: Sequence[RequestId]) -> None:
        self._patiently(lambda: self._sql.forget_takings(request_ids))

    def renew(self) -> float:
        self._patiently(lambda: self._lease.renew(self._database.query))
        self._has_synced(time.monotonic())
        return self._lease.renew_seconds

    def may_act(self) -> bool:
        return self._lease.is_held()

    def reader(self) -> PostgresReader:
        return PostgresReader(self._database.url)

    # -- cleaning up: see `retention.CleansUp`

    def change(self, run: Callable[[JournalDatabase], R]) -> R:
        changed = self._patiently(lambda: self._sql.change(run))
        self._has_synced(time.monotonic())
        return changed

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
            self._patience(lambda: self._lease.end(self._database.query), LAST_PATIENCE_SECONDS, at_least=1)
        finally:
            self._database.close()

    def _patiently(self, attempt: Callable[[], R]) -> R:
        return self._patience(attempt, PATIENCE_SECONDS)


class PostgresPlace:
    """A database as one start of a runtime uses it: a writer at a time, and calls that commit under its token."""

    def __init__(self, url: str, durability: Durability = "power") -> None:
        """Raises UsageError for a URL that cannot be read."""
        check_url(url)
        self._url, self._durability = url, durability
        self._writer: PostgresJournal | None = None

    def writer(self) -> PostgresJournal:
        """A new one, in place of the one before."""
        start_seconds = START_PATIENCE_SECONDS if self._writer is None else None
        self._writer = PostgresJournal(self._url, durability=self._durability, start_seconds=start_seconds)
        return self._writer

    def calls(self) -> CallConnections:
        """Connections for calls with the effect `transaction`, from any thread."""
        return CallConnections(self._url, lambda: self._writer.token if self._writer is not None else 0)


class PostgresReader(SqlReader):
    """`JournalReader` says what its methods do."""

    def __init__(self, url: str) -> None:
        check_url(url)
        self._patience = Patience()
        self._connection = _PatientReads(url, self._patience)
        super().__init__(self._connection)

    def patiently(self, read: Callable[[], R]) -> R:
        return self._patience(read, PATIENCE_SECONDS)

    def give_up(self) -> None:
        self._patience.given_up.set()
        self._connection.cut()

    def close(self) -> None:
        self._connection.close()


class _PatientReads(PostgresDatabase):
    """Reads again what it could not read, but for what has to be of one moment with what was read before."""

    def __init__(self, url: str, patience: Patience) -> None:
        super().__init__(url, begin=BEGIN_READING, statement_seconds=READER_SECONDS)
        self._patience = patience

    def begin(self) -> None:
        self._patience(super().begin, PATIENCE_SECONDS)

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        if self.is_in_transaction:
            return super().query(sql, parameters)
        read = super().query
        return self._patience(lambda: read(sql, parameters), PATIENCE_SECONDS)


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
