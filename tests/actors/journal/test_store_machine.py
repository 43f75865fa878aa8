"""Each store against a plain model of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from support.postgres_server import new_database
from support.store_machine import StoreMachine

from callboard.actors.journal.journal_store import JournalWriter
from callboard.actors.journal.postgres_journal import PostgresJournal
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.testing.simulated_store import SimulatedDisk, SimulatedWriter

EXAMPLES = settings().max_examples


class SimulatedStoreMachine(StoreMachine):
    def fresh(self) -> Callable[[], JournalWriter]:
        disk = SimulatedDisk()
        return lambda: SimulatedWriter(disk)


class SqliteMachine(StoreMachine):
    def fresh(self) -> Callable[[], JournalWriter]:
        self.folder = Path(tempfile.mkdtemp())
        return lambda: SqliteJournal(self.folder / "journal.sqlite", durability="process")

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgresMachine(StoreMachine):
    def fresh(self) -> Callable[[], JournalWriter]:
        self.database = new_database()
        url = self.database.__enter__()
        return lambda: PostgresJournal(url)

    def teardown(self) -> None:
        super().teardown()
        self.database.__exit__(None, None, None)


TestSimulatedStore = SimulatedStoreMachine.TestCase
TestSimulatedStore.settings = settings(deadline=None, max_examples=EXAMPLES, stateful_step_count=30)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(
    deadline=None,
    max_examples=max(EXAMPLES // 4, 5),
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPostgres = PostgresMachine.TestCase
TestPostgres.settings = settings(
    deadline=None,
    max_examples=max(EXAMPLES // 10, 3),
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow],
)
