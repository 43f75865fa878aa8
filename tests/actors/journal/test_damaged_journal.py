"""A journal file that was damaged: a clear error or a repaired start, and no event that was not written."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from support.damaged_files import REQUESTS, Made, damage, fill
from support.journal_writes import begin, request_id
from support.owners import NOBODY, needs_root

from callboard.actors.journal.journal_check import repair, verify
from callboard.actors.journal.journal_store import JournalFailed, JournalReader
from callboard.actors.journal.salvage import salvage
from callboard.actors.journal.sqlite_database import Durability
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.journal.sqlite_pages import of_file
from callboard.actors.journal.tables import META
from callboard.actors.journal.wal_frames import FRAME_BYTES, FRAME_HEADER_BYTES, PAGE_BYTES, WAL_HEADER_BYTES
from callboard.protocol.errors import UsageError

NEW = request_id("new")
#: A quarter of the profile's: each opens a file twice. With the profile `deep` 2,500.
EXAMPLES = settings.default.max_examples // 4 if settings.default else 25


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Made]]:
    """A journal as a killed process leaves it: a part of it is in the log."""
    folder = tmp_path_factory.mktemp("made")
    journal = SqliteJournal(folder / "live")
    journal.open()
    written = fill(journal)
    for ending in ("", "-wal"):
        shutil.copy(folder / f"live{ending}", folder / f"killed{ending}")
    journal.close()
    shutil.copy(folder / "live", folder / "closed")
    return folder, written


def check(reader: JournalReader, made: Made, *, was_reported: bool, may_be_older: bool) -> None:
    """All that is given out was written, and what is missing is said."""
    for which, events in made.events.items():
        log = reader.request(which)
        if log is None:
            assert was_reported or may_be_older, which
            continue
        given = [each.event for each in log.records]
        assert given == list(events[: len(given)]), which
        if which not in made.ended:
            assert log.end is None, which
        if not log.damage and not may_be_older and log.records:
            assert len(given) == len(events), which
            assert (log.end is not None) == (which in made.ended), which
    for which in reader.open_requests():
        log = reader.request(which)
        assert log is not None, which
        assert which in made.events or which == NEW or log.damage, which


@needs_root
def test_a_journal_that_root_salvages_stays_that_of_its_owner(made: tuple[Path, Made], tmp_path: Path) -> None:
    path = tmp_path / "journal"
    shutil.copy(made[0] / "closed", path)
    os.chown(path, NOBODY, NOBODY)
    assert salvage(path, "a test", 1.0)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY, 0o600)


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32), is_killed=st.booleans(), of_log=st.booleans())
def test_a_damaged_file_is_refused_or_repaired(
    made: tuple[Path, Made], seed: int, is_killed: bool, of_log: bool
) -> None:
    folder, written = made
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name) / "journal"
        shutil.copy(folder / ("killed" if is_killed else "closed"), path)
        log = Path(f"{path}-wal")
        if is_killed:
            shutil.copy(folder / "killed-wal", log)
        hit = log if of_log and is_killed else path
        note(done := damage(hit, seed))
        journal = SqliteJournal(path)
        try:
            report = journal.open()
        except (UsageError, JournalFailed) as error:
            note(str(error))
            assert hit == path, "a damaged log costs its end, not the journal"
            return
        try:
            note(str(report.notes))
            reader = journal.reader()
            # What is cut off the log is not there any more; what is whole before it is as it was at that time.
            check(reader, written, was_reported=bool(report.notes), may_be_older=hit == log)
            if hit == log and " cut " not in done and not report.notes:  # a log that is shorter is an earlier one
                check(reader, written, was_reported=False, may_be_older=False)
            reader.close()
            journal.take_up()
            assert journal.commit([begin(NEW)]) == [None]
        finally:
            journal.close()
        again = SqliteJournal(path)
        assert again.open().notes == ()
        reader = again.reader()
        try:
            assert NEW in reader.open_requests()
            check(reader, written, was_reported=bool(report.notes), may_be_older=hit == log)
        finally:
            reader.close()
            again.close()


@pytest.mark.parametrize("byte", [0x00, 0x5A, 0xFF])
@pytest.mark.parametrize("what", ["head", "salts", "first salt", "second salt", "frame", "block"])
def test_an_end_of_the_log_that_no_turn_has_written_is_reported(
    made: tuple[Path, Made], tmp_path: Path, what: str, byte: int
) -> None:
    """The last commit is lost with it, whose frame does not say any more that it was one. Found by the property. Where
    only the salts are damaged, the frame is proved by its checksum."""
    folder, _ = made
    path = tmp_path / "journal"
    shutil.copy(folder / "killed", path)
    log = bytearray((folder / "killed-wal").read_bytes())
    frame = len(log) - FRAME_BYTES
    block = frame // 4096 * 4096
    at, size = {
        "head": (frame, FRAME_HEADER_BYTES), "salts": (frame + 8, 8), "first salt": (frame + 8, 4),
        "second salt": (frame + 12, 4), "frame": (frame, FRAME_BYTES), "block": (block, 4096),
    }[what]  # fmt: skip
    log[at : at + size] = bytes([byte]) * size
    Path(f"{path}-wal").write_bytes(log)
    journal = SqliteJournal(path)
    (told,) = journal.open().notes
    journal.close()
    assert ("its log is damaged" if "salt" in what else "the end of the log") in told
    (why,) = set_aside(path)
    assert "its log is damaged" in why or why in told
    again = SqliteJournal(path)
    assert again.open().notes == ()
    again.close()


@pytest.mark.parametrize("kind", ["closed", "killed"])
def test_a_sound_file_has_nothing_to_report(made: tuple[Path, Made], tmp_path: Path, kind: str) -> None:
    folder, written = made
    path = tmp_path / "journal"
    shutil.copy(folder / kind, path)
    if kind == "killed":
        shutil.copy(folder / "killed-wal", f"{path}-wal")
    journal = SqliteJournal(path)
    assert journal.open().notes == ()
    reader = journal.reader()
    check(reader, written, was_reported=False, may_be_older=False)
    assert set(reader.open_requests()) == written.events.keys() - written.ended
    reader.close()
    journal.close()
    assert verify(path).faults == ()
    assert repair(path).repaired == ()


# Particular damage


@pytest.fixture
def copy(made: tuple[Path, Made], tmp_path: Path) -> Path:
    return Path(shutil.copy(made[0] / "closed", tmp_path / "journal"))


def replaced(path: Path, old: bytes, new: bytes) -> None:
    """Other bytes in one place of a file."""
    data = path.read_bytes()
    assert data.count(old) >= 1
    path.write_bytes(data.replace(old, new, 1))


def set_aside(path: Path) -> list[str]:
    """Why, of what was set aside."""
    journal = SqliteJournal(path)
    journal.open()
    reader = journal.reader()
    try:
        return [each.why for each in reader.set_aside()]
    finally:
        reader.close()
        journal.close()


def damages(path: Path) -> dict[str, str]:
    """Of the requests that have any."""
    journal = SqliteJournal(path)
    journal.open()
    reader = journal.reader()
    try:
        logs = [reader.request(request_id(f"request-{number:04}")) for number in range(REQUESTS)]
        return {log.request_id: log.damage for log in logs if log is not None and log.damage}
    finally:
        reader.close()
        journal.close()


def test_a_changed_letter_in_a_record_is_found_and_only_its_request_is_damaged(copy: Path) -> None:
    replaced(copy, b'"text":"xxxxxxxxxx"', b'"text":"xxxxxyxxxx"')
    (fault, *_) = verify(copy).faults
    assert "the checksum of a row in callboard_events differs" in fault
    report = repair(copy)
    (which,) = damages(copy)
    assert which in fault
    assert damages(copy)[which].startswith("1 of its records are lost")
    assert [each.why for each in report.set_aside if each.request_id is None] == ["its checksum is wrong"]
    assert list(damages(copy)) == [which]
    assert repair(copy).repaired == ()


def test_a_name_in_the_schema_that_is_no_text_any_more_is_damage(copy: Path) -> None:
    """What SQLite says of it holds the name, so it cannot be read as text. A flipped bit, found by the property."""
    sound = copy.read_bytes()
    names = [found.start() for found in re.finditer(rb"sqlite_autoindex_callboard_usage_1", sound)]
    told: list[object] = []
    for number, at in enumerate(name + letter for name in names for letter in range(17, 34)):
        path = copy.with_name(f"journal{number}")
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x80]) + sound[at + 1 :])
        journal = SqliteJournal(path)
        try:
            told += journal.open().notes
        except (UsageError, JournalFailed) as error:
            told.append(error)
        finally:
            journal.close()
    assert len(told) >= 17, "each is refused, or repaired and reported"


def test_a_destroyed_page_costs_only_the_requests_that_had_records_on_it(copy: Path) -> None:
    data = copy.read_bytes()
    at = data.index(b'"text":"xxxxxxxxxx"') // 4096 * 4096
    copy.write_bytes(data[:at] + b"\xff" * 4096 + data[at + 4096 :])
    journal = SqliteJournal(copy)
    notes = journal.open().notes
    journal.close()
    assert "was damaged" in notes[0]
    found = damages(copy)
    assert 0 < len(found) < REQUESTS // 2
    assert all("of its records are lost" in why for why in found.values())
    (aside,) = copy.parent.glob("journal.damaged-*Z")
    assert aside.read_bytes()[at : at + 4096] == b"\xff" * 4096
    assert stat.S_IMODE(aside.stat().st_mode) == 0o600


@pytest.mark.parametrize("kept", range(1, 10))
def test_a_shorter_log_of_which_all_is_in_the_file_costs_nothing(tmp_path: Path, kept: int) -> None:
    """SQLite would take the older pages that are left of the log for the latest. Found by benchmarks/damages.py."""
    journal = SqliteJournal(tmp_path / "live", durability="process")
    journal.open()
    journal._file().query("PRAGMA wal_autocheckpoint = 0")
    written = fill(journal)
    journal._file().query("PRAGMA wal_checkpoint(PASSIVE)")
    path = tmp_path / "journal"
    for ending in ("", "-wal", "-shm"):
        shutil.copy(tmp_path / f"live{ending}", f"{path}{ending}")
    journal.close()
    log = Path(f"{path}-wal")
    os.truncate(log, log.stat().st_size * kept // 10)
    assert "its log is damaged" in verify(path).faults[0]
    again = SqliteJournal(path)
    assert "was damaged" in again.open().notes[0]
    with closing(again), closing(again.reader()) as reader:
        check(reader, written, was_reported=False, may_be_older=False)
        assert set(reader.open_requests()) == written.events.keys() - written.ended
        assert [each.request_id for each in reader.set_aside() if each.request_id] == []


@pytest.mark.parametrize("pages", [0, 1, 12])
def test_what_a_file_that_was_cut_had_from_the_turn_of_the_log_before_is_saved_from_that(
    tmp_path: Path, pages: int
) -> None:
    """The log of a process that is killed when it has just begun it anew. Found by benchmarks/damages.py."""
    journal = SqliteJournal(tmp_path / "live", durability="process")
    journal.open()
    journal._file().query("PRAGMA wal_autocheckpoint = 0")
    written = fill(journal)
    journal._file().query("PRAGMA wal_checkpoint(RESTART)")
    journal.commit([begin(NEW)])
    path = tmp_path / "journal"
    for ending in ("", "-wal"):
        shutil.copy(tmp_path / f"live{ending}", f"{path}{ending}")
    journal.close()
    os.truncate(path, pages * 4096)
    assert verify(path).faults
    again = SqliteJournal(path)
    assert "was damaged" in again.open().notes[0]
    with closing(again), closing(again.reader()) as reader:
        check(reader, written, was_reported=True, may_be_older=False)
        known = sum(reader.request(each) is not None for each in written.events)
        assert known > REQUESTS * 3 // 4


def test_tables_of_tools_are_saved_too(copy: Path) -> None:
    replaced(copy, b"CREATE TABLE callboard_events", b"CREATE TABLE callboard_evenus")
    journal = SqliteJournal(copy)
    assert len(journal.open().notes) == 1
    journal.close()
    connection = sqlite3.connect(copy)
    names = {name for (name,) in connection.execute("SELECT name FROM orders")}
    connection.close()
    assert names == {f"request-{number:04}" for number in range(REQUESTS) if number % 4 == 1}
    assert damages(copy) == {}


@pytest.mark.parametrize("lost", [range(1), range(3), range(10), range(40), range(2, 5)])
def test_where_pages_are_lost_tables_of_tools_may_be_too_which_is_told(
    made: tuple[Path, Made], tmp_path: Path, lost: range
) -> None:
    """They have no checksums, and what is lost may be the line that says that there was one."""
    path, log = tmp_path / "journal", tmp_path / "journal-wal"
    shutil.copy(made[0] / "killed", path)
    data = bytearray((made[0] / "killed-wal").read_bytes())
    for frame in lost:
        at = WAL_HEADER_BYTES + frame * FRAME_BYTES
        data[at : at + FRAME_BYTES] = bytes(FRAME_BYTES)
    log.write_bytes(data)
    journal = SqliteJournal(path)
    told = journal.open().notes
    journal.close()
    assert any("tables of tools, or rows of them, may be lost" in each for each in told)
    assert any("tables of tools, or rows of them, may be lost" in each for each in set_aside(path))


def test_what_was_once_on_the_pages_of_a_tools_table_is_not_taken_for_its_rows(copy: Path, tmp_path: Path) -> None:
    """Where the latest version of a page is lost, an older one may be of another table, or of SQLite's own."""
    with closing(sqlite3.connect(copy)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'orders'")
        sound = set(connection.execute("SELECT * FROM orders"))
    replaced(copy, b"CREATE TABLE callboard_events", b"CREATE TABLE callboard_evenus")
    data = copy.read_bytes()
    pages = [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
    for number in {*range(1, len(pages), 5), root - 1}:
        path = tmp_path / f"with-{number}"
        path.write_bytes(b"".join([*pages[: root - 1], pages[number], *pages[root:]]))
        journal = SqliteJournal(path)
        journal.open()
        journal.close()
        with closing(sqlite3.connect(path)) as connection:
            is_there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'orders'").fetchone()
            found = set(connection.execute("SELECT * FROM orders")) if is_there else set()
        assert found <= sound, number
        assert bool(found) == (number == root - 1), number


def test_a_tools_table_in_whose_place_is_sqlites_own_is_lost_which_is_told(copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for page in of_file(copy).scan().below(1)[0]:
            connection.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = 'orders'", (page,))
        connection.commit()
    replaced(copy, b"CREATE TABLE callboard_events", b"CREATE TABLE callboard_evenus")
    journal = SqliteJournal(copy)
    assert "the table orders of a tool is lost" in journal.open().notes
    journal.close()
    assert "the table orders of a tool is lost" in set_aside(copy)
    assert damages(copy) == {}


def test_a_process_that_dies_while_it_repairs_leaves_it_to_the_next(copy: Path) -> None:
    """When the new journal is written and the old one not moved aside yet; and when the new one is not in its place."""
    folder = copy.parent
    shutil.copy(copy, folder / "journal.salvaged")
    replaced(copy, b"SQLite format 3", b"SQLite format 4")
    (folder / "journal.salvage").write_bytes(b"half of it")
    for _ in range(2):
        journal = SqliteJournal(copy)
        (told,) = journal.open().notes
        journal.close()
        assert "an earlier process had begun to repair" in told
        assert damages(copy) == {}
        copy.replace(folder / "journal.salvaged")
    assert {each.name for each in folder.iterdir()} >= {"journal.salvaged", "journal.lock"}


def test_a_commit_that_was_cut_off_is_reported_and_costs_no_request(made: tuple[Path, Made], tmp_path: Path) -> None:
    path, log = tmp_path / "journal", tmp_path / "journal-wal"
    shutil.copy(made[0] / "killed", path)
    data = (made[0] / "killed-wal").read_bytes()
    log.write_bytes(data[:-100] + bytes(100))
    journal = SqliteJournal(path)
    (told,) = journal.open().notes
    journal.close()
    assert "the end of the log" in told
    assert "its last commit is not whole: it had not been finished when its process ended, or was damaged since" in told
    assert damages(path) == {}


def test_what_is_behind_a_damaged_frame_is_saved(made: tuple[Path, Made], tmp_path: Path) -> None:
    path, log = tmp_path / "journal", tmp_path / "journal-wal"
    shutil.copy(made[0] / "killed", path)
    data = bytearray((made[0] / "killed-wal").read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    (fault,) = verify(path).faults
    assert "its log is damaged at its frame" in fault
    journal = SqliteJournal(path)
    told = journal.open().notes
    assert fault in told[0]
    reader = journal.reader()
    check(reader, made[1], was_reported=True, may_be_older=False)
    logs = {which: reader.request(which) for which in made[1].events}
    whole = [which for which, found in logs.items() if found is not None and not found.damage]
    assert len(whole) >= REQUESTS - 1, "one page is lost, at the most"
    reader.close()
    journal.close()
    (aside,) = tmp_path.glob("journal.damaged-*Z")
    assert Path(f"{aside}-wal").read_bytes() == data
    of_tools, told = set_aside(path)
    assert aside.name in told
    assert "tables of tools, or rows of them, may be lost" in of_tools


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_request_that_had_waited_before_a_power_cut_goes_on_where_the_log_need_not_be_whole(
    tmp_path: Path, durability: Durability
) -> None:
    """The newest pages of the log reach the disk in any order: some of the last ones are not there, and no index. What
    had been written says the lock file."""
    clock = [1_000.0]
    live = SqliteJournal(tmp_path / "live", durability=durability, wall_clock=lambda: clock[0], clock=lambda: clock[0])
    live.open()
    live.commit([begin("waits", at=1_000.0)])
    for number in range(60):
        clock[0] = 2_000.0 + number
        live.commit([begin(f"works-{number}", at=clock[0])])
    path, log = tmp_path / "journal", tmp_path / "journal-wal"
    for ending in ("", "-wal", ".lock"):
        shutil.copy(tmp_path / f"live{ending}", tmp_path / f"journal{ending}")
    live.close()
    data = bytearray(log.read_bytes())
    last = len(data) // 4096
    for block in range(last - 14, last, 2):
        data[block * 4096 : (block + 1) * 4096] = bytes(4096)
    log.write_bytes(data)
    journal = SqliteJournal(path, durability=durability)
    assert journal.open().set_aside > 0
    reader = journal.reader()
    found = {which: reader.request(which) for which in reader.open_requests()}
    damaged = {which for which, each in found.items() if each is None or each.damage}
    assert (request_id("waits") in damaged) is (durability == "power")
    assert request_id("works-59") in damaged or request_id("works-59") not in found
    reader.close()
    journal.close()


def test_one_bit_of_a_record_in_the_file_is_found_at_start(copy: Path) -> None:
    replaced(copy, b'"text":"xxxxxxxxxx"', b'"text":"xxxxxyxxxx"')
    journal = SqliteJournal(copy)
    report = journal.open()
    journal.close()
    assert "a record in callboard_events is damaged" in report.notes[0]
    assert report.set_aside == 2, "the record, and its request"
    assert len(damages(copy)) == 1


def test_a_journal_copied_without_its_log_is_an_earlier_one(made: tuple[Path, Made], tmp_path: Path) -> None:
    path = tmp_path / "journal"
    shutil.copy(made[0] / "killed", path)
    journal = SqliteJournal(path)
    journal.open()
    reader = journal.reader()
    check(reader, made[1], was_reported=False, may_be_older=True)
    reader.close()
    journal.close()


def test_a_damaged_journal_of_another_format_is_left_as_it_is(copy: Path) -> None:
    *_, crc = META.row("format", "2")
    connection = sqlite3.connect(copy)
    connection.execute("UPDATE callboard_meta SET value = '2', crc = ? WHERE name = 'format'", (crc,))
    connection.commit()
    connection.close()
    replaced(copy, b"CREATE TABLE callboard_events", b"CREATE TABLE callboard_evenus")
    before = copy.read_bytes()
    with pytest.raises(UsageError, match="has the format 2"):
        SqliteJournal(copy).open()
    assert copy.read_bytes() == before


def test_what_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    for look in (verify, repair):
        with pytest.raises(UsageError, match="there is no journal"):
            look(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []
