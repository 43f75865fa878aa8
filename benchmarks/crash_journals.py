"""The journals of crashes.py: made empty, and read when no process has them open."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from crash_load import TABLE

from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.journal.journal_store import JournalReader
from callboard.actors.journal.leases import LEASE_SECONDS
from callboard.actors.journal.postgres_database import SCHEMA
from callboard.actors.journal.postgres_journal import PostgresJournal as PostgresStore
from callboard.actors.journal.sqlite_journal import SqliteReader
from callboard.protocol.ids import RequestId


class SqliteJournal:
    """A file in the folder of the round."""

    #: After a kill, until the next process may go on.
    takes_over_after = 0.0

    def make(self, folder: Path) -> str:
        return str(folder / "journal.sqlite")

    def rows(self, folder: Path) -> Counter[str]:
        """The effects of `transaction`."""
        file = folder / "journal.sqlite"
        if not file.exists():
            return Counter()
        with closing(sqlite3.connect(file)) as connection:  # SQLite may have to complete what was killed
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'booked'").fetchone():
                return Counter()
            return Counter(row[0] for row in connection.execute("SELECT call_key FROM booked"))

    def logs(self, folder: Path, ids: Iterable[str]) -> dict[str, RequestLog]:
        return logs_of(SqliteReader(folder / "journal.sqlite"), ids)

    def doubts_tools(self, folder: Path) -> bool:
        """Does it say that rows of tools' tables may be lost?"""
        with closing(SqliteReader(folder / "journal.sqlite")) as reader:
            return any(each.what == "a table of a tool" for each in reader.set_aside())


class PostgresJournal:
    """A database, which is emptied before each round. A lease has to pass before the next process may go on."""

    takes_over_after = LEASE_SECONDS

    def __init__(self, url: str) -> None:
        self._url = url

    def make(self, folder: Path) -> str:
        import psycopg  # noqa: PLC0415 - the extra `postgres`

        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
            connection.execute("DROP TABLE IF EXISTS booked")
            connection.execute(TABLE)
        return self._url

    def rows(self, folder: Path) -> Counter[str]:
        import psycopg  # noqa: PLC0415

        with psycopg.connect(self._url, autocommit=True) as connection:
            return Counter(row[0] for row in connection.execute("SELECT call_key FROM booked"))

    def logs(self, folder: Path, ids: Iterable[str]) -> dict[str, RequestLog]:
        return logs_of(PostgresStore(self._url).reader(), ids)


def logs_of(reader: JournalReader, ids: Iterable[str]) -> dict[str, RequestLog]:
    with closing(reader):
        found = {each: reader.request(RequestId(each)) for each in ids}
    return {each: log for each, log in found.items() if log is not None}
