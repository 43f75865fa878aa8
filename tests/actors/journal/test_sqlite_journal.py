"""The journal in a SQLite file: what every store does, whose the file is, and statements of tools."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.damaged_files import ORDERS
from support.journal_writes import ANSWER, an_effect, begin, finished, request_id
from support.store_contract import NewStore, StoreContract

from callboard.actors.journal import file_lock
from callboard.actors.journal.journal_check import repair, verify
from callboard.actors.journal.journal_handle import JournalHandle
from callboard.actors.journal.journal_records import OpenReport, Statement, Write
from callboard.actors.journal.journal_store import ChangeRefused, JournalFailed
from callboard.actors.journal.sqlite_database import SqliteDatabase
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.journal.tables import META
from callboard.protocol.errors import UsageError

#: Opens a journal, writes a request to it, says so, and waits to be killed.
HOLDER = """
import sys
sys.path.insert(0, sys.argv[2])
from support.journal_writes import begin
from callboard.actors.journal.sqlite_journal import SqliteJournal
journal = SqliteJournal(sys.argv[1])
journal.open()
journal.take_up()
journal.commit([begin("theirs")])
print(journal.path, flush=True)
sys.stdin.read()
"""
TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[SqliteJournal]:
    journal = SqliteJournal(path)
    journal.open()
    yield journal
    journal.close()


class Holder:
    """Another process that has a journal open."""

    def __init__(self, given: Path) -> None:
        command = [sys.executable, "-c", HOLDER, str(given), str(TESTS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.path = Path(self.process.stdout.readline().strip())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)


@pytest.fixture
def holder(path: Path) -> Iterator[Holder]:
    holder = Holder(path)
    yield holder
    holder.kill()


def opened(path: Path) -> tuple[SqliteJournal, OpenReport]:
    journal = SqliteJournal(path)
    return journal, journal.open()


class TestContract(StoreContract):
    @pytest.fixture
    def new_store(self, path: Path) -> NewStore:
        return lambda: SqliteJournal(path)


class TestContractWithoutFullSync(StoreContract):
    @pytest.fixture
    def new_store(self, path: Path) -> NewStore:
        return lambda: SqliteJournal(path, durability="process")


# Whose the file is


def test_a_second_opener_in_another_process_is_told_who_has_it(holder: Holder) -> None:
    with pytest.raises(UsageError, match=f"in use by process {holder.process.pid}: "):
        SqliteJournal(holder.path).open()
    assert verify(holder.path).open_requests == 1
    with pytest.raises(UsageError, match="in use by process"):
        repair(holder.path)


def test_a_second_opener_is_refused_also_where_the_lock_file_is_gone(holder: Holder, tmp_path: Path) -> None:
    path, elsewhere = holder.path, tmp_path / "elsewhere"
    os.kill(holder.process.pid, signal.SIGSTOP)  # it would end by itself within a second
    file_lock.lock_path(path).unlink()
    for _ in range(2):
        with pytest.raises(UsageError, match="in use by another process"):
            SqliteJournal(path).open()
    with pytest.raises(UsageError, match="in use by another process"):
        repair(path)
    path.rename(elsewhere)
    with pytest.raises(UsageError, match="in use by another process"):
        SqliteJournal(elsewhere).open()
    with pytest.raises(UsageError, match="in use by another process"):  # a new file, with the log of the other
        SqliteJournal(path).open()
    elsewhere.rename(path)
    holder.kill()
    journal, _ = opened(path)
    assert journal.take_up() == (request_id("theirs"),)
    journal.close()


def test_what_a_killed_process_has_written_is_there_and_its_lock_is_not(holder: Holder) -> None:
    holder.kill()
    journal, report = opened(holder.path)
    assert report.notes == ()
    assert journal.take_up() == (request_id("theirs"),)
    journal.close()


def test_a_second_opener_in_this_process_is_told_so_also_under_another_name(
    journal: SqliteJournal, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(path)
    for name in (path, tmp_path / "link", tmp_path / "." / path.name):
        with pytest.raises(UsageError, match="in use by this very process"):
            SqliteJournal(name).open()
    assert journal.commit([begin("a")]) == [None]


def test_a_file_with_two_names_is_refused(journal: SqliteJournal, path: Path, tmp_path: Path) -> None:
    journal.close()
    os.link(path, tmp_path / "second")
    with pytest.raises(UsageError, match="has 2 names"):
        SqliteJournal(path).open()


def test_a_forked_child_does_not_hold_the_lock(journal: SqliteJournal, path: Path) -> None:
    waits, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(waits, 1)
        os._exit(0)
    os.close(waits)
    try:
        journal.close()
        opened(path)[0].close()
    finally:
        os.close(go)
        os.waitpid(child, 0)


def test_a_closed_journal_is_free_while_a_child_still_has_its_descriptor(journal: SqliteJournal, path: Path) -> None:
    """As between the fork and the exec of a new process."""
    (lock,) = (each for each in file_lock._HELD if each.path == path)
    kept = os.dup(lock._descriptor)
    try:
        journal.close()
        opened(path)[0].close()
    finally:
        os.close(kept)


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal, _ = opened(tmp_path / "made" / "journal")
        journal.commit([begin("a")])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "made").iterdir()}
    assert modes == dict.fromkeys(("journal", "journal-wal", "journal-shm", "journal.lock"), 0o600)
    journal.close()
    (tmp_path / "made" / "journal").chmod(0o644)
    journal, _ = opened(tmp_path / "made" / "journal")
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    journal.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("absent/deeper/journal", "there is no folder"),
        ("folder", "not a regular file"),
        ("file/journal", "there is no folder"),
        ("nul\0", "cannot be used"),
        ("loop", "cannot be used"),
        ("pipe", "not a regular file"),
    ],
)
def test_a_path_that_cannot_be_a_journal_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=why):
        SqliteJournal(f"{tmp_path}/{name}").open()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="choose a path in a folder that can be written"):
        SqliteJournal(tmp_path / "journal").open()


def test_files_of_others_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    connection = sqlite3.connect(theirs)
    connection.execute("CREATE TABLE orders (name TEXT, price REAL, amount INTEGER)")
    connection.executemany("INSERT INTO orders VALUES (?, 1.5, 2)", [(f"{number}",) for number in range(3_000)])
    connection.commit()
    connection.close()
    texts = tmp_path / "text"
    texts.write_text("no database " * 10_000)
    short = tmp_path / "short"
    short.write_bytes(b"x")
    for path, why in ((theirs, "a database of another program"), (texts, "not a journal"), (short, "not a journal")):
        path.chmod(0o644)
        before = path.read_bytes()
        for read in (SqliteJournal(path).open, JournalHandle.open(path).conversations):
            with pytest.raises(UsageError, match=why):
                read()
        for look in (verify, repair):
            with pytest.raises(UsageError, match=why):
                look(path)
        assert path.read_bytes() == before
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "text", "short"}


def test_a_lock_file_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    theirs = tmp_path / "uv.lock"
    theirs.write_text("version = 1\n")
    with pytest.raises(UsageError, match="is a file of another program"):
        SqliteJournal(tmp_path / "uv").open()
    assert theirs.read_text() == "version = 1\n"
    assert list(tmp_path.iterdir()) == [theirs]


def test_an_empty_file_and_a_damaged_header_are_not_taken_for_another_program(
    journal: SqliteJournal, path: Path
) -> None:
    empty = path.with_name("empty")
    empty.touch()
    with pytest.raises(UsageError, match="not a journal"):
        JournalHandle.open(empty).conversations()
    journal.close()
    data = path.read_bytes()
    path.write_bytes(data[:68] + bytes(4) + data[72:])
    with pytest.raises(JournalFailed, match=r"\(its header is damaged\).*`callboard journal repair`, saves"):
        JournalHandle.open(path).conversations()
    (fault,) = verify(path).faults
    assert "its header is damaged" in fault
    assert repair(path).is_sound


def test_a_journal_of_another_format_is_refused_and_stays_as_it_is(journal: SqliteJournal, path: Path) -> None:
    journal.close()
    *_, crc = META.row("format", "99")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE callboard_meta SET value = ?, crc = ? WHERE name = ?", ("99", crc, "format"))
    connection.commit()
    connection.close()
    with pytest.raises(UsageError, match="has the format 99, this callboard reads 1"):
        SqliteJournal(path).open()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT value FROM callboard_meta WHERE name = 'format'").fetchall() == [("99",)]
    connection.close()


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.touch(0o600)
    journal, report = opened(path)
    assert report.notes == ()
    assert journal.commit([begin("a")]) == [None]
    journal.close()


def test_a_closed_journal_is_one_file_and_refuses_writes(journal: SqliteJournal, path: Path) -> None:
    journal.commit([begin("a")])
    journal.close()
    assert {each.name for each in path.parent.iterdir()} == {path.name, f"{path.name}.lock"}
    with pytest.raises(JournalFailed, match="is not open"):
        journal.commit([begin("b")])


# A file for each process


def test_what_dead_processes_have_left_is_taken_over_once(tmp_path: Path) -> None:
    given = tmp_path / "journal-{pid}.sqlite"
    dead, alive = Holder(given), Holder(given)
    try:
        dead.kill()
        journal, report = opened(given)
        assert journal.path == tmp_path / f"journal-{os.getpid()}.sqlite"
        assert [str(dead.path) in note for note in report.notes] == [True]
        assert journal.take_up() == (request_id("theirs"),)
        assert not [each.name for each in tmp_path.iterdir() if each.name.startswith(dead.path.name)]
        assert alive.path.exists()
        journal.close()
        again, report = opened(given)
        assert report.notes == ()
        assert again.take_up() == (request_id("theirs"),)
        again.close()
    finally:
        alive.kill()


def test_a_process_that_dies_between_copying_and_removing_changes_nothing(tmp_path: Path) -> None:
    """The file is there a second time, as if it had not been removed: by now its request has gone on elsewhere."""
    given = tmp_path / "journal-{pid}"
    left = tmp_path / "journal-1"
    journal, _ = opened(left)
    journal.commit([begin("a"), begin("b")])
    journal.close()
    copy = left.read_bytes()
    journal, _ = opened(given)
    journal.commit([finished("a", 2)])
    journal.close()
    left.write_bytes(copy)
    journal, report = opened(given)
    assert report.notes == ()
    assert not left.exists()
    assert journal.take_up() == (request_id("b"),)
    journal.close()


def test_a_file_of_a_dead_process_that_is_not_a_journal_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "journal-1").write_text("not a journal, " * 1_000)
    journal, report = opened(tmp_path / "journal-{pid}")
    assert ["cannot be taken over" in note for note in report.notes] == [True]
    assert (tmp_path / "journal-1").exists()
    journal.close()


def test_rows_of_tools_in_files_of_dead_processes_are_taken_over_too(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        journal, _ = opened(tmp_path / f"journal-{name}")
        statements = (Statement(ORDERS), Statement("INSERT INTO orders VALUES (?, 1.5, 1)", (f"of {name}",)))
        journal.commit([begin(name), an_effect(name, *statements)])
        journal.close()
    copy = (tmp_path / "journal-1").read_bytes()
    for _ in range(2):  # the second time as if it had not been removed
        (tmp_path / "journal-1").write_bytes(copy)
        journal, _ = opened(tmp_path / "journal-{pid}")
        with closing(sqlite3.connect(journal.path)) as database:
            assert sorted(database.execute("SELECT name FROM orders")) == [("of 1",), ("of 2",), ("of 3",)]
        journal.close()
    assert not any((tmp_path / f"journal-{name}").exists() for name in ("1", "2", "3"))
    assert not list(tmp_path.glob("*.merged"))


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (ORDERS, "CREATE TABLE orders (other)"),
        ("CREATE TABLE n (id INTEGER PRIMARY KEY); INSERT INTO n VALUES (1)",) * 2,
        (ORDERS, f"{ORDERS}; CREATE TRIGGER t AFTER INSERT ON orders BEGIN DELETE FROM orders; END"),
    ],
    ids=["made in another way", "same keys", "a trigger"],
)
def test_tables_of_tools_that_cannot_be_taken_over_are_kept(tmp_path: Path, here: str, there: str) -> None:
    for name, made in (("1", here), ("2", there)):
        opened(tmp_path / f"journal-{name}")[0].close()
        with closing(sqlite3.connect(tmp_path / f"journal-{name}")) as database:
            database.executescript(made)
    journal, report = opened(tmp_path / "journal-{pid}")
    assert [each.name for each in tmp_path.glob("*.merged")] == ["journal-2.merged"]
    assert "tables of tools" in report.notes[-1]
    with closing(sqlite3.connect(tmp_path / "journal-2.merged")) as database:
        assert database.execute("SELECT name FROM sqlite_master WHERE name IN ('orders', 'n')").fetchall()
    journal.close()


def test_what_was_kept_of_an_earlier_process_with_the_same_id_stays(tmp_path: Path) -> None:
    for _ in range(2):
        for name, made in (("1", ORDERS), ("2", "CREATE TABLE orders (other)")):
            opened(tmp_path / f"journal-{name}")[0].close()
            with closing(sqlite3.connect(tmp_path / f"journal-{name}")) as database:
                database.executescript(made)
        journal, _ = opened(tmp_path / "journal-{pid}")
        said = journal.forget()
        journal.close()
    kept = [tmp_path / "journal-2.merged", tmp_path / "journal-2.merged-1"]
    assert sorted(tmp_path.glob("*.merged*")) == kept
    assert all(str(each) in said for each in kept)


def test_the_mark_is_for_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"write \{pid\} in the name of the file"):
        SqliteJournal(tmp_path / "{pid}" / "journal").open()


# Statements of tools


def orders(path: Path) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT name, amount FROM orders").fetchall()
    finally:
        connection.close()


def test_the_effect_of_a_tool_is_committed_with_its_outcome(journal: SqliteJournal, path: Path) -> None:
    make = Statement("CREATE TABLE orders (name TEXT UNIQUE, amount INTEGER)")
    order = Statement("INSERT INTO orders VALUES (?, ?)", ("tea", 2))
    effect = an_effect("a", make, order)
    assert journal.commit([begin("a"), effect]) == [None, None]
    once_more = replace(effect, outcome=replace(effect.outcome, at=99.0))
    refused = journal.commit([once_more, an_effect("a", order, call="again"), begin("b")])
    assert [None if each is None else str(each) for each in refused] == [
        "call 'call' has an outcome already: its effect is there once",
        "the database refuses the statement: UNIQUE constraint failed: orders.name",
        None,
    ]
    assert orders(path) == [("tea", 2)]
    reader = journal.reader()
    log = reader.request(request_id("a"))
    assert log is not None
    assert [each.tag.call_id for each in log.outcomes] == ["call"]
    reader.close()


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT mine",
        "PRAGMA synchronous = OFF",
        "ATTACH DATABASE ':memory:' AS other",
        "DELETE FROM callboard_events",
        "INSERT INTO Callboard_Meta VALUES ('x', 'y', 0)",
        "SELECT * FROM callboard_messages",
        "CREATE TRIGGER mine AFTER INSERT ON callboard_events BEGIN SELECT 1; END",
        "ALTER TABLE callboard_events ADD COLUMN mine",
        "DROP TABLE callboard_ends",
        "INSERT INTO orders VALUES ('half', 1); COMMIT",
        "INSERT OR ROLLBACK INTO orders VALUES ('there', 1)",
        "nonsense",
        "INSERT INTO orders VALUES (?, ?)",
    ],
)
def test_a_statement_that_may_not_be_changes_nothing_and_the_rest_is_written(
    journal: SqliteJournal, path: Path, sql: str
) -> None:
    journal.commit(
        [begin("a"), an_effect("a", Statement("CREATE TABLE orders (name TEXT UNIQUE, amount INTEGER)"),
                               Statement("INSERT INTO orders VALUES ('there', 0)"))]
    )  # fmt: skip
    insert = Statement("INSERT INTO orders VALUES (?, 1.5, 1)", ("half",))
    good = an_effect("a", Statement("INSERT INTO orders VALUES ('good', 1)"), call="good")
    refused = journal.commit(
        [good, Write(request_id("a"), 2, (ANSWER,)), an_effect("a", insert, Statement(sql), call="bad"), begin("b")]
    )
    assert [each is None for each in refused] == [True, True, False, True]
    assert isinstance(refused[2], ChangeRefused)
    assert orders(path) == [("there", 0), ("good", 1)]
    reader = journal.reader()
    assert reader.open_requests() == (request_id("a"), request_id("b"))
    log = reader.request(request_id("a"))
    assert log is not None
    assert len(log.records) == 2
    assert {each.tag.call_id for each in log.outcomes} == {"call", "good"}
    reader.close()
    assert verify(path).faults == ()


def test_what_cannot_be_bound_is_refused(journal: SqliteJournal) -> None:
    (refused,) = journal.commit([an_effect("a", Statement("SELECT ?", (object(),)))])
    assert "the database refuses the statement" in str(refused)


# Size


def test_the_log_stays_small(journal: SqliteJournal, path: Path) -> None:
    for number in range(16):
        journal.commit([begin(f"r{number}", metadata={"note": "x" * 4_000_000})])
    assert path.with_name(f"{path.name}-wal").stat().st_size < 25 * 1024 * 1024


def test_what_is_deleted_is_not_in_the_file(journal: SqliteJournal, path: Path) -> None:
    first = begin("a", metadata={"user": "Ada-Lovelace-1815"})
    journal.commit([first])
    journal.close()
    assert b"Ada-Lovelace-1815" in path.read_bytes()
    database = SqliteDatabase(path)
    database.execute("DELETE FROM callboard_requests")
    database.checkpoint()
    database.close()
    assert b"Ada-Lovelace-1815" not in path.read_bytes()


@pytest.mark.parametrize("kept", ["-wal", "-journal"])
def test_a_process_that_was_killed_while_it_made_the_journal_is_no_other_program(tmp_path: Path, kept: str) -> None:
    """Of what it had begun the file has one page, and the rest is beside it."""
    made = tmp_path / "made"
    with closing(sqlite3.connect(made, isolation_level=None)) as making:
        making.execute("PRAGMA auto_vacuum = INCREMENTAL")
        making.execute("PRAGMA journal_mode = " + ("WAL" if kept == "-wal" else "DELETE"))
        making.execute("PRAGMA cache_size = 1")
        making.execute("BEGIN")
        making.execute("PRAGMA user_version = 1" if kept == "-wal" else "PRAGMA user_version = 7")
        if kept == "-wal":
            making.execute("COMMIT")
        else:
            making.execute("CREATE TABLE large (data)")
            making.executemany("INSERT INTO large VALUES (zeroblob(?))", [(4_000,)] * 50)
        path = tmp_path / "journal"
        path.write_bytes(made.read_bytes()[:4_096])
        (tmp_path / f"journal{kept}").write_bytes((tmp_path / f"made{kept}").read_bytes())
    journal, _ = opened(path)
    try:
        assert journal.commit([begin("a")]) == [None]
    finally:
        journal.close()
