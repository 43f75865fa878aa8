"""What the chaos suite calls a fault: it must see one where there is one."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from callboard.actors.requests.replies import Reply, RequestEnded
from callboard.actors.testing import chaos
from callboard.actors.testing.chaos.beside import Ended, Seen
from callboard.actors.testing.chaos.judging import (
    Report,
    Result,
    Status,
    code_of,
    judged,
    kind_of,
    neighbour_faults,
    result_faults,
    why_skipped,
)
from callboard.actors.testing.chaos.provider_cases import request_faults
from callboard.actors.testing.ways.case import Blast, Case, Group, Level, Way, at, cases_of
from callboard.protocol.commands import Outcome
from callboard.protocol.ids import RequestId
from callboard.protocol.model import Usage

CASE = Case("die/x/process", Group.DIE, Level.PROCESS, "dies", ("crashed",), None)
FAILED = '{"ok":false,"code":"timed_out","message":"late"}'


def answered(text: str) -> Ended:
    return Ended(Reply(text, Usage(), RequestId("r"), Outcome.ANSWERED, (), 0.0, (), text))


def test_the_code_of_a_result_is_that_of_its_failure() -> None:
    assert code_of(FAILED) == "timed_out"
    assert [code_of(each) for each in ("5", '"text"', "not json", '{"ok":true}', "[1]")] == ["ok"] * 5


def test_another_code_than_expected_is_a_fault() -> None:
    assert "was told 'timed_out' and not crashed" in result_faults(CASE, [FAILED])[0]
    assert result_faults(replace(CASE, expected=("crashed", "timed_out")), [FAILED]) == []


@pytest.mark.parametrize("contents", [[], [FAILED, FAILED]])
def test_a_call_has_exactly_one_result(contents: list[str]) -> None:
    assert result_faults(CASE, contents) == [f"its call has {len(contents)} results"]


def test_a_failure_that_does_not_name_its_cause_is_a_fault() -> None:
    wanted = replace(CASE, expected=("timed_out",))
    assert result_faults(wanted, [FAILED], "late") == []
    assert "was not told of 'NaN'" in result_faults(wanted, [FAILED], "NaN")[0]


def test_a_neighbour_that_ends_in_another_way_is_a_fault() -> None:
    seen = Seen([answered("same"), answered("other")], {})
    assert neighbour_faults(CASE, seen, []) == []
    assert neighbour_faults(CASE, seen, [1]) == ["1 other requests ended in another way than alone: other"]


def test_running_calls_may_be_lost_where_the_case_says_so_and_requests_never() -> None:
    wide = replace(CASE, blast=Blast.RUNNING_CALLS)
    assert neighbour_faults(wide, Seen([answered("other")], {}), [0]) == []
    failed = Seen([Ended(None, TimeoutError("late"))], {})
    assert neighbour_faults(wide, failed, [0]) == ["1 other requests failed, the first with TimeoutError: late"]


def test_a_request_that_does_not_end_is_a_fault_whatever_is_expected() -> None:
    late = Ended(None, TimeoutError("late"), in_time=False)
    assert request_faults(CASE, late) == ["its request did not end by its deadline"]


def test_a_request_ends_as_expected_or_not() -> None:
    reply = answered("so").reply
    assert reply is not None
    ended = Ended(None, RequestEnded(replace(reply, reason="over a limit")))
    assert kind_of(RequestEnded(reply)) == "RequestEnded"
    assert request_faults(replace(CASE, expected=("RequestEnded",)), ended) == []
    assert request_faults(CASE, ended) == ["its request ended with RequestEnded and not crashed: over a limit"]


def test_a_tool_says_itself_that_it_does_not_dare() -> None:
    assert why_skipped(["skip: the host is in reach"]) == "the host is in reach"
    assert why_skipped(["sent", FAILED]) == ""


def test_a_report_counts_and_names_what_fell_short() -> None:
    results = [judged(CASE, [], 0.1), judged(replace(CASE, name="die/y/process"), ["it did not"], 0.2)]
    report = Report.of(results, 1.0)
    assert [result.case.name for result in report.fell_short] == ["die/y/process"]
    assert "FELL SHORT  die/y/process: it did not" in report.text()
    assert report.text().endswith("2 cases in 1 s: 1 held, 1 fell short")
    assert json.loads(report.to_json())["results"][1]["faults"] == ["it did not"]


def raises() -> None:
    raise ValueError("no")


def harms_itself_only() -> int:
    return 1


def test_a_way_that_is_not_contained_as_said_falls_short_on_a_real_runtime() -> None:
    """One expectation is right and one is wrong: the suite must see that."""
    ways = (
        Way("right", "raises", raises, at(process="tool_error", thread="tool_error")),
        Way("wrong", "returns", harms_itself_only, at(process="crashed")),
    )
    told: list[Result] = []
    report = chaos.run(cases_of(Group.DIE, ways), neighbours=3, told=told.append)
    assert [result.status for result in report.results] == [Status.HELD, Status.HELD, Status.FELL_SHORT]
    assert "was told 'ok' and not crashed" in report.fell_short[0].faults[0]
    assert told == list(report.results)
