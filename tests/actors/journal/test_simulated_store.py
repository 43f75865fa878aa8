"""The journal store of the simulation: what every store must do, and what is left of what was not confirmed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.journal_writes import ANSWER, begin, finished, message, request_id
from support.store_contract import NewStore, StoreContract, committed, events_of

from callboard.actors.journal.journal_records import NewMessage, Write
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.testing.faults import JournalFaults, Remains
from callboard.actors.testing.simulated_store import PlannedCommitCrash, ProcessDied, SimulatedDisk, SimulatedWriter
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import MessageId


class TestContract(StoreContract):
    @pytest.fixture
    def new_store(self) -> NewStore:
        disk = SimulatedDisk()
        return lambda: SimulatedWriter(disk)


def opened(disk: SimulatedDisk) -> SimulatedWriter:
    writer = SimulatedWriter(disk)
    writer.open()
    return writer


BATCH = (begin("a"), begin("b"), Write(request_id("a"), 2, (ANSWER,)), finished("b", 2))


@given(st.sampled_from(Remains), st.integers(0, 1 << 20))
def test_what_was_under_way_is_there_whole_or_from_its_beginning_on(remains: Remains, seed: int) -> None:
    disk = SimulatedDisk(faults=JournalFaults(crashes_before=(2,), remains=remains, seed=seed))
    writer = opened(disk)
    committed(writer, begin("first"))
    with pytest.raises(PlannedCommitCrash):
        committed(writer, *BATCH)
    writer.close()
    again = opened(disk)
    assert disk.written(request_id("first")) == 1
    left = {name: disk.written(request_id(name)) for name in ("a", "b")}
    if remains is Remains.NOTHING:
        assert left == {"a": 0, "b": 0}
    if remains is Remains.ALL:
        assert left == {"a": 2, "b": 2}
    if remains is Remains.TORN:
        assert left != {"a": 2, "b": 2}
    if remains in (Remains.PREFIX, Remains.TORN):
        assert (left["a"], left["b"]) in ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2))
    assert list(committed(again, *BATCH)) == [None] * 4
    assert events_of(again.reader(), request_id("a")) == (*BATCH[0].events, ANSWER)
    assert disk.wrong == []


def test_a_crash_after_the_commit_loses_nothing() -> None:
    disk = SimulatedDisk(faults=JournalFaults(crashes_after=(1,)))
    with pytest.raises(PlannedCommitCrash):
        committed(opened(disk), *BATCH)
    assert (disk.written(request_id("a")), disk.written(request_id("b"))) == (2, 2)


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (JournalFaults(full=((0.0, 5.0),)), "No space left on device"),
        (JournalFaults(read_only=((0.0, 5.0),)), "Read-only file system"),
    ],
    ids=["full", "read only"],
)
def test_a_commit_that_fails_writes_nothing_and_a_later_one_all(faults: JournalFaults, why: str) -> None:
    now = [0.0]
    disk = SimulatedDisk(lambda: now[0], faults=faults)
    writer = opened(disk)
    with pytest.raises(JournalFailed, match=why):
        committed(writer, *BATCH)
    assert not disk.requests
    now[0] = 5.0
    assert list(committed(writer, *BATCH)) == [None] * 4


@given(st.integers(0, 1 << 20))
def test_after_a_sync_that_failed_it_is_there_or_not_and_writing_it_again_helps(seed: int) -> None:
    now = [0.0]
    disk = SimulatedDisk(lambda: now[0], faults=JournalFaults(sync_fails=((0.0, 5.0),), seed=seed))
    writer = opened(disk)
    with pytest.raises(JournalFailed, match="Input/output error"):
        committed(writer, *BATCH)
    assert disk.written(request_id("a")) in (0, 2)
    now[0] = 5.0
    assert list(committed(writer, *BATCH)) == [None] * 4
    assert disk.written(request_id("a")) == 2


def test_only_one_has_it_open_and_a_dead_process_writes_nothing() -> None:
    disk = SimulatedDisk()
    dead = opened(disk)
    with pytest.raises(UsageError, match="open in writer 1"):
        opened(disk)
    disk.process_dies()
    with pytest.raises(ProcessDied):
        committed(dead, *BATCH)
    with pytest.raises(ProcessDied):
        opened(disk)
    disk.process_starts()
    assert list(committed(opened(disk), *BATCH)) == [None] * 4
    with pytest.raises(ProcessDied):
        committed(dead, begin("late"))


STRAY = NewMessage(MessageId("m"), MessageId("n"), message("x"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (Write(request_id("a"), 4, (ANSWER,)), "event 4 is written, 2 are there"),
        (Write(request_id("b"), 3, (ANSWER,)), "after its end"),
        (
            Write(request_id("a"), 3, (ANSWER,), conversation_id="talk", messages=(STRAY,)),
            "m follows a message that is not there",
        ),
        (Write(request_id("a"), 3, (ANSWER,), messages=(STRAY,)), "written, and not of which"),
    ],
    ids=["gap", "end", "parent", "conversation"],
)
def test_what_no_journal_should_be_given_is_told(change: Write, told: str) -> None:
    disk = SimulatedDisk()
    writer = opened(disk)
    committed(writer, *BATCH)
    with pytest.raises(AssertionError, match=told):
        committed(writer, change)
    assert len(disk.wrong) == 1
    assert told in disk.wrong[0]


def test_a_record_that_is_damaged_ends_what_can_be_read() -> None:
    disk = SimulatedDisk()
    writer = opened(disk)
    committed(writer, *BATCH)
    disk.damage(request_id("a"), 2)
    reader = writer.reader()
    log = reader.request(request_id("a"))
    assert log is not None
    assert [each.number for each in log.records] == [1]
    assert "record 2 of request a: its checksum" in log.damage
    (apart,) = reader.set_aside()
    assert apart.request_id == "a"
