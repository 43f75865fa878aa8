"""A database can be opened while another process has just made it and writes to it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from callboard.actors import sqlite_log
from callboard.actors.daemon.response_records import ResponseRecords
from callboard.actors.edits.proposal_store import ProposalStore
from callboard.actors.index.database import Database
from callboard.actors.journal.sqlite_database import SqliteDatabase

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.read()
"""


def proposals(folder: Path) -> Path:
    ProposalStore(folder).close()
    return folder / "edits.sqlite"


def responses(folder: Path) -> Path:
    ResponseRecords(folder / "responses.db")
    return folder / "responses.db"


def index(folder: Path) -> Path:
    Database(folder / "index.db", "CREATE TABLE IF NOT EXISTS a (b)").close()
    return folder / "index.db"


def journal(folder: Path) -> Path:
    (folder / "journal.db").touch()
    SqliteDatabase(folder / "journal.db").close()
    return folder / "journal.db"


@contextmanager
def writing_to(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, since two libraries of SQLite in one do not see each other's locks."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        try:
            yield writer
        finally:
            writer.kill()


@pytest.mark.parametrize("opened", [proposals, responses, index, journal])
def test_one_that_is_written_to_is_waited_for(opened: Callable[[Path], Path], tmp_path: Path) -> None:
    """Without a log a writer keeps SQLite from switching it on, which it says without waiting."""
    (tmp_path / "there").mkdir()
    name = opened(tmp_path / "there").name
    (tmp_path / "here").mkdir()
    path = tmp_path / "here" / name
    path.touch(0o600)
    with ThreadPoolExecutor(1) as threads, writing_to(path) as writer:
        opening = threads.submit(opened, tmp_path / "here")
        with pytest.raises(TimeoutError):
            opening.result(timeout=0.2)
        writer.kill()
        opening.result(timeout=20)
    with sqlite3.connect(path) as reader:
        assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_it_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_log, "BUSY_SECONDS", 0.02)
    writer, other = (sqlite3.connect(tmp_path / "db", isolation_level=None) for _ in range(2))
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite_log.switch_on(other.execute)


def test_another_error_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("no database, and longer than its header of a hundred bytes is" * 2)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        sqlite_log.switch_on(sqlite3.connect(tmp_path / "db").execute)
