"""`callboard journal replay`: the way of a request as it is in the journal, and where the code goes another way."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from callboard.actors.cli.arguments import parser
from callboard.actors.cli.journal_replay import RecordDiffers, replay
from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.testing.faults import Faults, JournalFaults
from callboard.actors.testing.simulated_run import SimulatedRun
from callboard.actors.testing.simulated_store import SimulatedReader
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import RequestId, ToolName
from callboard.protocol.testing import STANDARD_TOOLS, PlannedCall, PlannedTurn, Scenario, assert_replays

ID = RequestId("r")


@cache
def played() -> SimulatedRun:
    """A request with a call, whose journal was written by the real session."""
    turns = (PlannedTurn(calls=(PlannedCall(ToolName("look")),)), PlannedTurn("it is there"))
    run = SimulatedRun([Scenario(turns, tools=STANDARD_TOOLS)], Faults(journal=JournalFaults()))
    run.play()
    assert run.problems() == []
    return run


class Reader(SimulatedReader):
    """Of that run; `log` in place of what the journal has."""

    def __init__(self, log: RequestLog | None = None) -> None:
        ahead = played().world.ahead
        assert ahead is not None
        super().__init__(ahead.disk)
        self._log = log

    def request(self, request_id: RequestId) -> RequestLog | None:
        return self._log or super().request(request_id)


def log() -> RequestLog:
    found = Reader().request(ID)
    assert found is not None
    return found


def options(*typed: str) -> argparse.Namespace:
    return parser().parse_args(["journal", "replay", ID, *typed])


def test_the_way_of_a_request_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    replay(options(), Reader())
    told = capsys.readouterr().out
    lines = told.splitlines()
    assert "RequestStarted" in lines[0]
    assert "1970-01-13" in lines[0], "the wall clock of a simulation begins in January 1970"
    assert any("<- 1/c RunTool look" in line for line in lines)
    assert any("1/c ToolCallCompleted" in line for line in lines)
    assert "!!" not in told
    assert lines[-1].endswith("it ended: answered")
    assert "it is there" not in told, "what was said is not shown"


def test_a_difference_is_shown_at_its_event_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    first = replace(log().records[0], led_to=("0 SetTimer", "1 CallModel turn other/model: 1 messages"))
    differs = replace(log(), records=(first, *log().records[1:]))
    with pytest.raises(RecordDiffers, match="request r goes another way under this version of callboard: in 1 place"):
        replay(options(), Reader(differs))
    lines = capsys.readouterr().out.splitlines()
    (marked,) = [place for place, line in enumerate(lines) if "!!" in line]
    assert "event 1 (RequestStarted" in lines[marked]
    assert "other/model" in lines[marked]
    assert marked == 3, "behind the event and its two commands"


def test_json_says_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    replay(options("--json"), Reader())
    told = json.loads(capsys.readouterr().out)
    assert told["request_id"] == "r"
    assert not told["is_open"]
    assert [each["number"] for each in told["events"]] == list(range(1, len(log().records) + 1))
    assert all(each["led_to"] == each["leads_to"] and not each["differences"] for each in told["events"])


def test_what_is_saved_is_a_regression_test(tmp_path: Path) -> None:
    path = tmp_path / "request.jsonl"
    replay(options("--save", str(path)), Reader())
    assert_replays(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent/x\.jsonl cannot be written: No such file or directory"):
        replay(options("--save", str(tmp_path / "absent" / "x.jsonl")), Reader())


def test_a_damaged_record_fails(capsys: pytest.CaptureFixture[str]) -> None:
    damaged = replace(log(), records=log().records[:2], damage="record 3: its checksum does not fit")
    with pytest.raises(RecordDiffers, match="a record of request r is damaged: record 3"):
        replay(options(), Reader(damaged))
    assert capsys.readouterr().out.count("<-") > 0, "what is sound is shown"


def test_an_open_request_is_shown_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    replay(options(), Reader(replace(log(), end=None)))
    assert capsys.readouterr().out.endswith("it is still open\n")


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(UsageError, match="its events were compacted away"):
        replay(options(), Reader(replace(log(), records=())))
    absent = argparse.Namespace(request="absent", save=None, json=False)
    with pytest.raises(UsageError, match="no request 'absent'; `callboard journal requests` shows them"):
        replay(absent, Reader())
