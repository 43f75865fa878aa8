"""The reader of SQLite's log: what it gives out was written, and what it does not give out it names."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.journal.wal_frames import FRAME_BYTES, PAGE_BYTES, WAL_HEADER_BYTES, Log, read_log

COMMITS = 40


class Written:
    """A log as a killed process leaves it, behind an older turn, and the beginning of its index."""

    def __init__(self, folder: Path) -> None:
        path = folder / "live"
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute("CREATE TABLE t (a TEXT PRIMARY KEY, b BLOB)")
        for number in range(2 * COMMITS):
            if number == COMMITS:
                database.execute("PRAGMA wal_checkpoint(RESTART)")
            size = (number % 7) * 1_000 * (2 if number < COMMITS else 1)
            database.execute("INSERT INTO t VALUES (?, ?)", (f"{number * 37 % 91:03}", b"x" * size))
        self.data = Path(f"{path}-wal").read_bytes()
        self.index = Path(f"{path}-shm").read_bytes()[:100]
        database.close()
        self.sound = read_log(self.data, self.index)
        self.count = len(self.sound.frames)

    def frame(self, place: int) -> slice:
        at = WAL_HEADER_BYTES + place * FRAME_BYTES
        return slice(at, at + FRAME_BYTES)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("log"))


def check(written: Written, log: Log) -> None:
    """Nothing is made up, and each page of which the latest version is not there is named, or may be any."""
    sound = written.sound.frames
    assert all(sound[place] == frame for place, frame in log.frames.items())
    missing = sound.keys() - log.frames.keys()
    assert not missing or log.fault
    assert missing <= log.lost.keys()


def test_a_sound_log_is_read_as_sqlite_reads_it(written: Written) -> None:
    assert (written.sound.fault, written.sound.tail, written.sound.lost) == ("", "", {})
    assert written.count >= COMMITS
    assert written.sound.earlier, "of the turn before"
    assert read_log(written.data).frames == written.sound.frames


def test_one_bit_of_the_header_costs_nothing(written: Written) -> None:
    """The lowest bit of the fourth byte says the other order of bytes."""
    for at in range(WAL_HEADER_BYTES):
        data = bytearray(written.data)
        data[at] ^= 1
        log = read_log(bytes(data), written.index)
        check(written, log)
        assert log.fault.startswith("its log is damaged at "), at
        assert not log.lost, at


@given(at=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_one_bit_costs_one_page(written: Written, at: int, bit: int) -> None:
    data = bytearray(written.data)
    at %= written.frame(written.count - 1).stop
    data[at] ^= 1 << bit
    log = read_log(bytes(data), written.index)
    check(written, log)
    assert log.fault.startswith("its log is damaged at ")
    assert len(log.lost) <= 1
    for place, lost in log.lost.items():
        assert written.sound.frames[place].page in lost.pages


@given(places=st.lists(st.integers(0, 10**9), min_size=1, max_size=5), fill=st.binary(min_size=1, max_size=3))
def test_blocks_that_are_written_over_cost_what_is_on_them(written: Written, places: list[int], fill: bytes) -> None:
    data = bytearray(written.data)
    hit = set()
    for place in places:
        at = place % (written.count * FRAME_BYTES) // PAGE_BYTES * PAGE_BYTES
        data[at : at + PAGE_BYTES] = (fill * PAGE_BYTES)[:PAGE_BYTES]
        first, last = ((each - WAL_HEADER_BYTES) // FRAME_BYTES for each in (at, at + PAGE_BYTES - 1))
        hit |= set(range(first, last + 1))
    log = read_log(bytes(data), written.index)
    check(written, log)
    assert log.lost.keys() <= hit | {place + 1 for place in hit}


@given(one=st.integers(0, 10**9), other=st.integers(0, 10**9))
def test_exchanged_frames_are_put_in_their_places(written: Written, one: int, other: int) -> None:
    data = bytearray(written.data)
    first, second = (written.frame(each % written.count) for each in (one, other))
    data[first], data[second] = data[second], data[first]
    log = read_log(bytes(data), written.index)
    check(written, log)
    assert log.frames == written.sound.frames


@given(end=st.integers(0, 10**9))
def test_a_log_that_was_cut_is_missed(written: Written, end: int) -> None:
    end %= written.frame(written.count - 1).stop
    log = read_log(written.data[:end], written.index)
    check(written, log)
    assert log.fault


@pytest.mark.parametrize("at", [0, 4, 8, 12, 16, 20, 24, 28])
def test_a_damaged_header_costs_nothing(written: Written, at: int) -> None:
    data = bytearray(written.data)
    data[at : at + 4] = b"\xa5\x5a\x00\xff"
    log = read_log(bytes(data), written.index)
    assert log.fault.startswith("its log is damaged at its beginning")
    assert (log.frames, log.lost) == (written.sound.frames, {})


@pytest.mark.parametrize("part", [slice(8, 16), slice(16, 24)], ids=["salts", "checksum"])
def test_a_frame_of_which_only_salts_or_checksum_are_damaged_is_proved(written: Written, part: slice) -> None:
    for place in range(written.count - 1):
        data = bytearray(written.data)
        start = written.frame(place).start
        data[start + part.start : start + part.stop] = bytes(8)
        log = read_log(bytes(data), written.index)
        assert log.fault
        assert (log.frames, log.lost) == (written.sound.frames, {})


def test_a_commit_that_was_not_finished_is_no_damage(written: Written) -> None:
    """All that a killed process can leave: the commit ends at any byte. Its index says that it was not finished."""
    last = max(place for place, frame in written.sound.frames.items() if frame.pages and place < written.count - 1)
    index = bytearray(written.index)
    for end in range(written.frame(last).stop, written.frame(written.count - 1).stop, 97):
        log = read_log(written.data[:end])
        assert (log.fault, log.lost) == ("", {})
        assert len(log.frames) == last + 1
        assert not log.torn or log.tail.startswith("its last commit is not whole")
    index[16] ^= 1  # is not believed: it has a checksum
    assert read_log(written.data, bytes(index)).fault == ""


def test_a_log_that_is_gone_is_missed_unless_all_of_it_is_in_the_file(written: Written) -> None:
    assert read_log(b"", written.index).fault.startswith("its log is gone")
    frames = written.index[16:20]
    assert read_log(b"", written.index[:96] + frames).fault == ""
    assert read_log(b"").fault == ""


@given(end=st.integers(0, 10**9), copied=st.integers(0, 10**9))
def test_what_had_been_copied_into_the_file_is_neither_lost_nor_hidden(written: Written, end: int, copied: int) -> None:
    """Of a page of which the latest frame is lost, the file has a later version than the frames that are left."""
    end = WAL_HEADER_BYTES + end % (written.frame(written.count - 1).stop - WAL_HEADER_BYTES)
    copied %= written.count + 1
    log = read_log(written.data[:end], written.index[:96] + copied.to_bytes(4, sys.byteorder))
    assert bool(log.fault) == (end >= written.frame(0).start + 24 or copied < written.count)
    assert min((*log.frames, *log.lost), default=copied) >= copied
    assert log.frames.keys() | log.lost.keys() == set(range(copied, written.count))
