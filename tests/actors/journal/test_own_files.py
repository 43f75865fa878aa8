"""A journal whose files something else changes while they are open: it is noticed, nothing is lost, nothing of others
is touched."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from support.journal_writes import begin, finished

from callboard import Runtime, Settings
from callboard.actors.journal import sqlite_database, sqlite_journal
from callboard.actors.journal.file_lock import last_written
from callboard.actors.journal.journal_check import verify
from callboard.actors.journal.journal_store import JournalFailed, JournalGone
from callboard.actors.journal.sqlite_journal import LOOK_SECONDS, SqliteJournal
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.ids import RequestId
from callboard.providers.local.scripted import ScriptedTurn

COUNT = "SELECT count(*) FROM callboard_requests"
LAST_LOOK = 1_800_000_000.0
#: As the error names it.
LAST_LOOK_TOLD = "2027-01-15 08:00:00 UTC"


class Changed:
    """A journal with three requests, which something is about to happen to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "f"
        self.folder.mkdir()
        self.path = self.folder / "j"
        self.now = 0.0
        self.journal = SqliteJournal(self.path, clock=lambda: self.now, wall_clock=lambda: LAST_LOOK)
        self.journal.open()
        for number in range(3):
            self.journal.commit([begin(f"r{number}")])

    def beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def other(self) -> Path:
        """Another journal, which has been closed, with two requests."""
        other = SqliteJournal(self.folder / "other")
        other.open()
        other.commit([begin("x"), begin("y")])
        other.close()
        return other.path

    def write(self) -> None:
        """After a pause."""
        self.now += LOOK_SECONDS
        self.journal.commit([begin("late")])

    def asides(self) -> list[Path]:
        return sorted(
            each for each in self.folder.glob("j.damaged-*") if each.suffix != ".x" and "-wal" not in each.name
        )


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Changed]:
    changed = Changed(tmp_path)
    yield changed
    with suppress(JournalFailed):  # of a test that has changed it
        changed.journal.close()


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        ((count,),) = database.execute(COUNT)
    return int(count)


def content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if "damaged" not in each.name}


def copied_over(it: Changed) -> None:
    shutil.copyfile(it.other(), it.path)


def replaced_with_all(it: Changed) -> None:
    """By a journal with a log of its own."""
    it.other()
    with closing(sqlite3.connect(it.folder / "other")) as database:
        database.execute("CREATE TABLE theirs (x)")
        for ending in ("", "-wal", "-shm"):
            shutil.copyfile(it.folder / f"other{ending}", it.folder / f"new{ending}")
    for ending in ("", "-wal", "-shm"):
        (it.folder / f"new{ending}").replace(it.beside(ending))


def removed_whole(it: Changed) -> None:
    for ending in ("", "-wal", "-shm", ".lock"):
        it.beside(ending).unlink()


def folder_in_its_place(it: Changed) -> None:
    it.path.unlink()
    it.path.mkdir()


def link_in_its_place(it: Changed) -> None:
    it.path.unlink()
    it.path.symlink_to(it.other())


NOT_THE_FILE: dict[str, tuple[Callable[[Changed], object], str]] = {
    "removed": (lambda it: it.path.unlink(), "was removed, or given another name"),
    "renamed": (lambda it: it.path.rename(it.folder / "k"), "was removed, or given another name"),
    "all removed": (removed_whole, "was removed, or given another name"),
    "replaced": (lambda it: it.other().replace(it.path), "was replaced by another file"),
    "replaced with its log": (replaced_with_all, "was replaced by another file"),
    "a folder in its place": (folder_in_its_place, "was replaced by another file"),
    "a link in its place": (link_in_its_place, "was replaced by another file"),
}
OVERWRITTEN: dict[str, tuple[Callable[[Changed], object], str]] = {
    "copied over": (copied_over, "was overwritten by another program"),
    "text": (lambda it: it.path.write_text("hello" * 100_000), "was overwritten by another program"),
    "truncated": (lambda it: os.truncate(it.path, 8_192), "was truncated by another program"),
    "emptied": (lambda it: os.truncate(it.path, 0), "was truncated by another program"),
}
ITS_LOG: dict[str, tuple[Callable[[Changed], object], str]] = {
    "log removed": (lambda it: it.beside("-wal").unlink(), "j-wal was removed"),
    "log replaced": (lambda it: it.other().replace(it.beside("-wal")), "j-wal was replaced by another file"),
    "index removed": (lambda it: it.beside("-shm").unlink(), "j-shm was removed"),
}
WHOLE: dict[str, tuple[Callable[[Changed], object], str]] = {
    "lock removed": (lambda it: it.beside(".lock").unlink(), "j.lock was removed"),
    "lock replaced": (lambda it: it.other().replace(it.beside(".lock")), "j.lock was replaced"),
    "second name": (lambda it: os.link(it.path, it.folder / "k"), r"was given 2 names \(hard links\)"),
}


@pytest.mark.parametrize("case", NOT_THE_FILE)
def test_a_file_that_is_not_ours_any_more_stays_as_it_is_and_what_we_had_is_kept(it: Changed, case: str) -> None:
    change, what = NOT_THE_FILE[case]
    change(it)
    theirs = content(it.folder) if case not in ("a folder in its place",) else {}
    with pytest.raises(JournalGone, match=what) as raised:
        it.write()
    (aside,) = it.asides()
    assert str(it.path) in str(raised.value)
    assert f"since {LAST_LOOK_TOLD}" in str(raised.value)
    assert str(aside) in str(raised.value)
    assert rows(aside) == 4, "the last one too, which was not said to be durable"
    with pytest.raises(JournalGone, match=what):
        it.journal.commit([begin("later")])
    it.journal.close()
    ours = {"j.lock", *(("j-wal", "j-shm") if case != "replaced with its log" else ())}
    for name, was in theirs.items():
        if name not in ours:
            assert (it.folder / name).read_bytes() == was, name
    if case != "replaced with its log":
        assert not it.beside("-wal").exists(), "the next one would read it as a log of theirs"


@pytest.mark.parametrize("case", OVERWRITTEN)
def test_a_file_that_was_overwritten_is_not_written_to_and_our_log_is_kept(it: Changed, case: str) -> None:
    change, what = OVERWRITTEN[case]
    change(it)
    there = it.path.read_bytes()
    with pytest.raises(JournalGone, match=what):
        it.write()
    it.journal.close()
    assert it.path.read_bytes() == there
    (aside,) = it.asides()
    assert aside.read_bytes() == there
    assert b"late" in aside.with_name(f"{aside.name}-wal").read_bytes()
    assert not it.beside("-wal").exists()


@pytest.mark.parametrize("case", ITS_LOG)
def test_a_log_without_a_name_is_written_into_the_file(it: Changed, case: str) -> None:
    change, what = ITS_LOG[case]
    change(it)
    theirs = it.beside("-wal").read_bytes() if case == "log replaced" else b""
    with pytest.raises(JournalGone, match=f"{what}.*nothing of it is lost"):
        it.write()
    it.journal.close()
    if theirs:
        assert it.beside("-wal").read_bytes() == theirs, "it is another's"
        it.beside("-wal").unlink()
    assert rows(it.path) == 4


@pytest.mark.parametrize("case", WHOLE)
def test_a_journal_that_may_be_opened_by_another_is_closed_and_whole(it: Changed, case: str) -> None:
    change, what = WHOLE[case]
    change(it)
    with pytest.raises(JournalGone, match=f"{what}.*nothing of it is lost"):
        it.write()
    assert rows(it.path) == 4


@pytest.mark.parametrize("left", [0, 50, 20_000])
def test_a_log_that_was_cut_is_not_written_on(it: Changed, left: int) -> None:
    os.truncate(it.beside("-wal"), left)
    with pytest.raises(JournalGone, match="has lost a part of its log"):
        it.journal.commit([begin("late")])  # also without a pause
    (aside,) = it.asides()
    assert aside.with_name(f"{aside.name}-wal").stat().st_size == left
    assert rows(it.path) == 0, "the file is as it was"


def test_a_folder_that_was_moved_is_left_as_it_is(it: Changed) -> None:
    it.folder.rename(it.folder.with_name("g"))
    with pytest.raises(JournalGone, match=r"was removed or moved with its folder .*put the folder back"):
        it.write()
    assert rows(it.folder.with_name("g") / "j") == 4


def test_what_happens_just_before_it_is_closed_is_told_too(it: Changed) -> None:
    it.path.unlink()
    with pytest.raises(JournalGone, match="was removed"):
        it.journal.close()
    assert rows(it.asides()[0]) == 3


@pytest.mark.parametrize("statement", ["CREATE TABLE t (x)", "PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM"])
def test_another_connection_of_sqlite_is_no_alarm(it: Changed, statement: str) -> None:
    with closing(sqlite3.connect(it.path)) as database:
        database.execute(statement)
        it.write()
    it.write()
    assert rows(it.path) == 4


def test_what_we_do_ourselves_is_no_alarm(it: Changed, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(it.path)
    it.write()
    it.journal.forget()
    it.write()
    for number in range(300):
        it.journal.commit([begin(f"more{number}", metadata={"note": "x" * 20_000})])
    it.journal.change(lambda database: database.execute("DELETE FROM callboard_requests"))
    it.journal.give_back()
    it.write()
    it.journal.vacuum()
    it.write()


def test_room_that_is_given_back_long_after_it_was_free_is_no_alarm(it: Changed) -> None:
    for number in range(100):
        it.journal.commit([begin(f"more{number}", metadata={"note": "x" * 20_000})])
    it.journal.forget()
    it.journal.change(lambda database: database.execute("DELETE FROM callboard_requests"))
    it.journal.give_back()
    size = it.path.stat().st_size
    it.write()  # it looks, and nothing has changed yet
    with closing(sqlite3.connect(it.path)) as database:
        database.execute("PRAGMA wal_checkpoint")
    assert it.path.stat().st_size < size
    it.write()


@pytest.mark.parametrize(
    "write",
    [
        lambda journal: journal.change(lambda database: database.execute("DELETE FROM callboard_requests")),
        lambda journal: journal.take_up(),
        lambda journal: journal.forget_takings([RequestId("r0")]),
    ],
)
def test_a_log_that_our_own_write_makes_shorter_is_no_alarm(
    it: Changed, monkeypatch: pytest.MonkeyPatch, write: Callable[[SqliteJournal], object]
) -> None:
    it.journal.close()
    monkeypatch.setattr(sqlite_database, "_WAL_LIMIT_BYTES", 100_000)
    it.journal.open()
    it.journal.take_up()
    it.journal.commit([begin("long", metadata={"note": "x" * 200_000})])
    with closing(sqlite3.connect(it.path)) as database:
        database.execute("PRAGMA wal_checkpoint")
        database.execute("UPDATE callboard_open SET owner = 'another'")
        database.commit()
        database.execute("PRAGMA wal_checkpoint")
    write(it.journal)
    it.write()


def test_a_look_by_this_very_process_leaves_the_locks_of_its_journal(it: Changed) -> None:
    def locks() -> list[str]:
        inode = f":{it.path.stat().st_ino} "
        found = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        return [line.partition(":")[2] for line in found if inode in line and "POSIX" in line]

    before = locks()
    assert verify(it.path).is_sound
    assert before
    assert locks() == before


def test_it_looks_once_a_second_and_no_more(it: Changed) -> None:
    it.write()
    it.path.unlink()
    it.now += LOOK_SECONDS / 2
    it.journal.commit([begin("a")])  # the docs say so
    it.now += LOOK_SECONDS / 2
    with pytest.raises(JournalGone):
        it.journal.commit([begin("b")])


def test_a_runtime_ends_by_itself_with_the_reason_also_while_it_idles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_journal, "LOOK_SECONDS", 0.02)
    path = tmp_path / "journal"
    runtime = Runtime(Settings(model="scripted/m", script=lambda _: ScriptedTurn("done"), journal=str(path)))
    with runtime:
        runtime.ask_sync("go", request_id="r1")
        path.unlink()
        why = runtime.failed.result(timeout=20)
        assert why is not None
        assert f"the journal {path} was removed" in str(why)
        with pytest.raises(RuntimeFailure, match="was removed"):
            runtime.ask_sync("go", request_id="r2")
    (aside,) = (each for each in tmp_path.glob("journal.damaged-*") if not each.name.endswith("-wal"))
    aside.with_name(f"{aside.name}-wal").rename(tmp_path / "journal-wal")
    aside.rename(path)
    with runtime:
        assert runtime.result_sync("r1").text == "done"


def test_what_was_written_last_is_noted_at_each_commit(it: Changed) -> None:
    def noted() -> tuple[str, int] | None:
        note = last_written(it.path)
        return None if note is None or not note.request_id else (note.request_id, note.number)

    assert noted() == ("r2", 1)
    it.journal.commit([begin("a"), finished("a", 2)])
    assert noted() == ("a", 2)
    assert it.journal.commit([begin("b"), finished("a", 1)])[1] is not None
    assert noted() == ("b", 1), "the other was refused"
    it.journal.change(lambda database: database.execute("DELETE FROM callboard_events"))
    assert noted() is None
    it.journal.close()
    assert it.beside(".lock").read_text() == str(os.getpid())


# What the process before has left


def left_by_a_kill(it: Changed) -> Path:
    """Its files as they are, in another folder: what a process that is killed now leaves."""
    left = it.folder.with_name("left")
    shutil.copytree(it.folder, left)
    return left / "j"


def opened(path: Path) -> tuple[tuple[str, ...], list[str]]:
    """Its notes, and what is set aside."""
    journal = SqliteJournal(path)
    report = journal.open()
    try:
        with closing(journal.reader()) as reader:
            return report.notes, [each.what for each in reader.set_aside()]
    finally:
        journal.close()


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def shell(path: Path) -> None:
    """Somebody looks into it with SQLite, which takes the log in."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(COUNT)


def a_backup(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, closing(sqlite3.connect(path.with_name("backup"))) as copy:
        database.backup(copy)
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    path.with_name("backup").rename(path)


def last_commit_cut(path: Path) -> None:
    os.truncate(log_of(path), log_of(path).stat().st_size - 4_120 * 5)


LOSES_ITS_END: dict[str, Callable[[Path], object]] = {
    "log removed": lambda path: log_of(path).unlink(),
    "log emptied": lambda path: os.truncate(log_of(path), 0),
    "log cut": lambda path: os.truncate(log_of(path), 32 + 4_120 * 2),
    "last commit cut": last_commit_cut,
    "log of another": lambda path: log_of(path).write_bytes(b"\0" * 100_000),
}
LOSES_NOTHING: dict[str, Callable[[Path], object]] = {
    "as it is": lambda path: None,
    "looked into": shell,
    "backup put in its place": a_backup,
}


@pytest.mark.parametrize("case", LOSES_ITS_END)
def test_a_log_that_is_missing_or_shorter_than_it_was_is_told(it: Changed, case: str) -> None:
    path = left_by_a_kill(it)
    LOSES_ITS_END[case](path)
    path.with_name(f"{path.name}-shm").unlink()
    told = "its log is missing, or shorter than it was: event 1 of request r2"
    assert any(told in each for each in verify(path).faults)
    notes, set_aside = opened(path)
    assert any("its log is missing, or shorter" in each for each in notes)
    assert "the end of the journal's log" in set_aside
    assert opened(path)[0] == (), "once"
    assert not any(each.startswith("its log is missing") for each in verify(path).faults)


@pytest.mark.parametrize("case", LOSES_ITS_END)
def test_a_log_that_is_missing_or_shorter_than_its_index_says_is_told(it: Changed, case: str) -> None:
    path = left_by_a_kill(it)
    LOSES_ITS_END[case](path)
    assert not verify(path).is_sound
    notes, set_aside = opened(path)
    assert "was damaged (its log is " in notes[0]
    assert not any("its log is missing, or shorter" in each for each in notes), "it is said once"
    assert set_aside
    assert opened(path)[0] == (), "once"


@pytest.mark.parametrize("case", ["log emptied", "log cut", "last commit cut"])
def test_after_a_power_cut_an_index_that_is_newer_than_its_log_is_no_damage(it: Changed, case: str) -> None:
    path = left_by_a_kill(it)
    LOSES_ITS_END[case](path)
    lock = path.with_name(f"{path.name}.lock")
    left = last_written(path)
    assert left is not None
    note = msgspec.json.encode(structs.replace(left, durability="process", boot="the boot before"))
    lock.write_bytes(b"1\n" + note + b"\n")
    assert verify(path).is_sound
    notes, set_aside = opened(path)
    assert set_aside == []
    assert not any("damaged" in each for each in notes)


@pytest.mark.parametrize("case", LOSES_NOTHING)
def test_nothing_is_told_where_nothing_is_missing(it: Changed, case: str) -> None:
    path = left_by_a_kill(it)
    LOSES_NOTHING[case](path)
    assert verify(path).is_sound
    assert opened(path) == ((), [])
