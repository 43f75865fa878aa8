"""A journal of every format that was released is read: formats/ has one of each, made by the callboard of its time."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.journal_of_format import CHANGES, EARLIER

from callboard.actors.journal.journal_check import verify
from callboard.actors.journal.journal_records import EffectWrite, Write
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.journal.tables import FORMAT

FORMATS = sorted((Path(__file__).parent / "formats").glob("*.sql"), key=lambda path: int(path.stem))


def test_each_format_is_kept() -> None:
    assert [int(path.stem) for path in FORMATS] == list(range(1, FORMAT + 1))


@pytest.mark.parametrize("kept", FORMATS, ids=lambda path: path.stem)
def test_a_journal_of_this_format_is_read(kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    connection = sqlite3.connect(path)
    connection.executescript(kept.read_text(encoding="utf-8"))
    connection.close()
    journal = SqliteJournal(path)
    assert journal.open().notes == ()
    reader = journal.reader()
    by_request = {name: [each for each in CHANGES if isinstance(each, Write) and each.request_id == name]
                  for name in ("first", "second", "third")}  # fmt: skip
    for writes in by_request.values():
        log = reader.request(writes[0].request_id)
        assert log is not None
        assert log.damage == ""
        assert log.begins == writes[0].begins
        assert tuple(each.event for each in log.records) == tuple(event for each in writes for event in each.events)
        assert [each.led_to for each in log.records] == [each.led_to for each in writes if each.events]
        assert log.end == writes[-1].ends
    first, second = (reader.request(by_request[name][0].request_id) for name in ("first", "second"))
    assert first is not None
    assert second is not None
    assert first.messages == tuple((each.message_id, each.message) for each in EARLIER)
    assert second.outcomes == tuple(each for each in CHANGES if isinstance(each, EffectWrite))
    assert second.takings_up == 1
    assert reader.open_requests() == (second.request_id,)
    reader.close()
    journal.close()
    assert verify(path).faults == ()
