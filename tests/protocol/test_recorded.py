"""A recorded request: its lines are read back as they were, and a replay says where the code goes another way."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.protocol.codec import CodecError
from callboard.protocol.command_lines import led_to
from callboard.protocol.content import Text, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.events import ModelResponded, RequestStarted
from callboard.protocol.ids import RequestId
from callboard.protocol.machine import Session
from callboard.protocol.model import ModelResponse
from callboard.protocol.recorded import RecordedLine, RecordedRequest, read_recorded, recorded_lines, replay_log
from callboard.protocol.testing import assert_replays, drive, replay_recorded
from callboard.protocol.testing.generator import scenario
from callboard.protocol.testing.scenario import Store

SEEDS = st.integers(0, 400)


@cache
def recorded(seed: int) -> RecordedRequest:
    """What a journal holds of a seeded conversation in which nothing restarts."""
    plan = replace(scenario(seed), restart_at=(), store=Store())
    live, lines = Session(), []
    for event in drive(plan, seed).applied:
        written = live.to_journal(event)
        given = led_to(live.apply(event))
        for place, each in enumerate(written, 1):
            lines.append(RecordedLine(len(lines) + 1, each, given if place == len(written) else ()))
    return RecordedRequest(plan.request_id, tuple(lines))


@given(SEEDS)
def test_a_recorded_request_leads_to_what_it_led_to(seed: int) -> None:
    assert replay_recorded(recorded(seed)) == []


@given(SEEDS)
def test_its_lines_are_read_back_as_they_were(seed: int) -> None:
    lines = list(recorded_lines(recorded(seed)))
    assert not [line for line in lines if "\n" in line]
    again = read_recorded(lines)
    assert (again.request_id, again.counter) == (recorded(seed).request_id, "")
    assert list(recorded_lines(again)) == lines
    assert replay_recorded(again) == []


@given(SEEDS, st.data())
def test_a_line_that_says_something_else_is_told_with_its_event(seed: int, data: st.DataObject) -> None:
    log = recorded(seed)
    place = data.draw(st.integers(0, len(log.records) - 1))
    record = log.records[place]
    other = RecordedLine(record.number, record.event, (*record.led_to, "1 RunTool look 00000000 effect e"))
    changed = replace(log, records=(*log.records[:place], other, *log.records[place + 1 :]))
    (told,) = replay_recorded(changed)
    assert told.startswith(f"event {place + 1} ({type(record.event).__name__}")
    assert "RunTool look" in told
    assert "now leads to nothing" in told


def runs_calls_of(record: RecordedLine, event: ModelResponded) -> bool:
    """Its own: further words to search by let the calls of the turn before begin."""
    return any(line.startswith(f"{event.tag.step}/") and "RunTool" in line for line in record.led_to)


@given(SEEDS)
def test_a_turn_without_its_calls_leads_another_way(seed: int) -> None:
    log = recorded(seed)
    for place, record in enumerate(log.records):
        event = record.event
        if isinstance(event, ModelResponded) and runs_calls_of(record, event):
            other = RecordedLine(place + 1, replace(event, response=ModelResponse(), checked=()), record.led_to)
            found = replay_recorded(replace(log, records=(*log.records[:place], other, *log.records[place + 1 :])))
            assert found[0].startswith(f"event {place + 1} (ModelResponded")
            return


def test_an_event_that_this_code_refuses_ends_the_replay() -> None:
    log = recorded(1)
    twice = replace(log, records=(log.records[0], RecordedLine(2, log.records[0].event), *log.records[1:]))
    *_, last = replay_log(twice)
    assert last.record.number == 2
    assert "this code refuses it" in replay_recorded(twice)[-1]


def test_a_gap_ends_the_replay() -> None:
    log = recorded(3)
    (told,) = replay_recorded(replace(log, records=log.records[1:]))
    assert "event 1 is missing before it" in told


def test_a_file_is_a_regression_test(tmp_path: Path) -> None:
    path = tmp_path / "request.jsonl"
    path.write_text("\n".join(recorded_lines(recorded(3))) + "\n")
    assert_replays(path)
    assert_replays(str(path))
    assert_replays(path.read_text().splitlines())


def test_a_line_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    log = recorded(3)
    first = log.records[0].event
    assert isinstance(first, RequestStarted)
    asked = replace(log.records[0], event=replace(first, user=UserMessage((Text("a\u2028b\x85c"),))))
    other = replace(log, records=(asked, *log.records[1:]))
    path = tmp_path / "request.jsonl"
    path.write_text("".join(f"{line}\n" for line in recorded_lines(other)), encoding="utf-8")
    assert replay_recorded(path) == replay_recorded(other), "the same, which is of other token counts alone"


def test_a_test_that_fails_says_where() -> None:
    log = recorded(3)
    other = RecordedLine(1, log.records[0].event, ("0 SetTimer SetTimer",))
    with pytest.raises(AssertionError, match=r"event 1 \(RequestStarted"):
        assert_replays(replace(log, records=(other, *log.records[1:])))


def test_a_request_without_events_is_refused() -> None:
    with pytest.raises(UsageError, match="request r has no events to replay"):
        replay_recorded(RecordedRequest(RequestId("r"), ()))


def test_another_counter_than_the_one_that_counted_is_refused() -> None:
    log = replace(recorded(3), counter="o200k_base")
    assert read_recorded(recorded_lines(log)).counter == "o200k_base"
    with pytest.raises(UsageError, match="were counted by o200k_base: give count_tokens="):
        replay_recorded(log)


LINES = list(recorded_lines(recorded(1)))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "an empty text"),
        (["{"], "line 1: not JSON"),
        (["[]"], "line 1: expected an object"),
        (['{"format":"other"}'], '"format" must be "callboard request"'),
        ([LINES[0].replace('"version":1', '"version":7')], "recorded in version 7"),
        ([LINES[0].replace('"counter":""', '"counter":1')], "must be texts"),
        ([LINES[0], LINES[2]], "line 2: expected event 1, found 2"),
        ([LINES[0], LINES[1][:-2]], "line 2: not JSON"),
        ([LINES[0], '{"number":1}'], "line 2: "),
        ([LINES[0], orjson.dumps({**orjson.loads(LINES[1]), "led_to": "x"}).decode()], "must be a list of texts"),
        ([LINES[0], orjson.dumps({**orjson.loads(LINES[1]), "record": {"v": 9, "event": {}}}).decode()], "format 9"),
    ],
    ids=range(11),
)
def test_what_is_no_recorded_request_is_refused_with_its_place(lines: list[str], told: str) -> None:
    with pytest.raises(CodecError, match=told.replace("(", r"\(")):
        read_recorded(lines)
