"""benchmarks/crashes.py: 30 kills of it (CALLBOARD_DEEP: 300), and its checker finds what it is there to find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.postgres_server import NoPostgres, binaries

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "crashes.py"

from crash_checks import Told, Verdict, judged_with_journal, outcome_of  # noqa: E402 - benchmarks/ is on the path from here on
from crash_load import ANSWER, KINDS, STEPS, key, keys  # noqa: E402

from callboard.actors.journal.journal_records import Beginning, EffectWrite, Recorded, RequestEnd, RequestLog  # noqa: E402
from callboard.protocol import events  # noqa: E402
from callboard.protocol.commands import Finish  # noqa: E402
from callboard.protocol.content import Text, ToolCall, UserMessage  # noqa: E402
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName  # noqa: E402
from callboard.protocol.machine import Session  # noqa: E402
from callboard.protocol.model import FinishReason, ModelResponse  # noqa: E402
from callboard.protocol.options import RequestOptions, ToolOffer  # noqa: E402
from callboard.protocol.tools import ToolDefinition  # noqa: E402

TIMES = 10 if os.environ.get("CALLBOARD_DEEP") else 1
TAG = Tag(RequestId("r0000"), MessageId("m"))


@pytest.mark.timeout(120 * TIMES)
@pytest.mark.deep
def test_after_30_kills_every_request_has_ended_and_no_promise_is_broken() -> None:
    """20 at random moments and 10 at points of the journal, with ten requests at once."""
    sizes = ("--requests", "10", "--kills", str(20 * TIMES), "--points", str(10 * TIMES), "--durability", "process")
    command = [sys.executable, str(SCRIPT), *sizes, "--kills-a-round", "10"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100 * TIMES, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = re.findall(r"^ *callboard, ([a-z ]+?) +(\d[\d ]+)$", ran.stdout, re.M)
    figures = {name: [int(each) for each in numbers.split()] for name, numbers in rows}
    requests, kills, never, repeat, once, transaction, blocking, missing = figures["random moments"]
    assert requests >= 10
    assert kills >= 20 * TIMES
    assert (never, once, transaction, blocking, missing) == (0, 0, 0, 0, 0)
    assert repeat >= 0  # what its author has allowed
    assert figures["points"][1] > 0


@pytest.mark.timeout(180 * TIMES)
@pytest.mark.deep
def test_two_hosts_on_postgres_lose_and_double_nothing_while_all_around_them_is_disturbed() -> None:
    """A few of the disturbances (CALLBOARD_DEEP: each of them), with a lease that a test can wait for."""
    try:
        binaries()
    except NoPostgres as missing:
        if os.environ.get("CALLBOARD_WITHOUT_POSTGRES"):
            pytest.skip(str(missing))
        raise
    script = str(SCRIPT.with_name("postgres_hosts.py"))
    command = [sys.executable, script, "--minutes", str(0.25 * TIMES), "--lease-seconds", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=170 * TIMES, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (row,) = re.findall(r"^ *two hosts +(\d[\d ]+)$", ran.stdout, re.M)
    requests, _, never, _, once, transaction, blocking, missing_effects = (int(each) for each in row.split())
    assert requests > 0
    assert (never, once, transaction, blocking, missing_effects) == (0, 0, 0, 0, 0)


# -- the checker


def log() -> RequestLog:
    """What the journal has of an undisturbed request."""
    offers = tuple(ToolOffer(ToolDefinition(ToolName(kind), kind)) for kind in KINDS)
    happened: list[events.Event] = [
        events.RequestStarted(TAG, 1.0, (), UserMessage.of("r0000"), RequestOptions("m/m"), offers)
    ]
    for step in range(1, STEPS + 1):
        tag = TAG.at_step(step)
        calls = tuple(ToolCall(CallId(f"{step}-{kind}"), ToolName(kind), "{}") for kind in KINDS)
        happened.append(events.ModelResponded(tag, 2.0, ModelResponse(calls, FinishReason.TOOL_CALLS)))
        for call in calls:
            happened.append(events.ToolCallStarted(tag._replace(call_id=call.call_id), 3.0))
        for call in calls:
            happened.append(events.ToolCallCompleted(tag._replace(call_id=call.call_id), 4.0, "done"))
    happened.append(events.ModelResponded(TAG.at_step(STEPS + 1), 5.0, ModelResponse((Text(ANSWER),))))
    session = Session()
    finish = next(each for event in happened for each in session.apply(event) if isinstance(each, Finish))
    records = tuple(Recorded(number, event) for number, event in enumerate(happened, 1))
    return RequestLog(TAG.request_id, Beginning("c", None, 1.0, "m/m"), records, end=RequestEnd(5.0, finish))


def told() -> Told:
    found = Told(has_all=True)
    found.ended["r0000"].add(ANSWER)
    found.shown["r0000", "ToolCallCompleted", 1, "1-once"] += 1
    found.shown["r0000", "RunTool", 1, "1-once"] += 1
    return found


def verdict(of: RequestLog | None = None, said: Told | None = None, effects: Counter[str] | None = None) -> Verdict:
    found = of or log()
    effects = Counter(keys("r0000")) if effects is None else effects
    return judged_with_journal(["r0000"], said or told(), effects, {"r0000": found})


def test_an_undisturbed_request_has_no_fault() -> None:
    assert verdict().faults == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_effect_is_found_unless_its_author_has_allowed_it(kind: str) -> None:
    found = verdict(effects=Counter([*keys("r0000"), key("r0000", 2, kind)]))
    assert found.doubled[kind] == 1
    assert [kind in fault for fault in found.faults] == ([] if kind == "repeat" else [True])


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_is_told_as_done_without_an_effect_is_found(kind: str) -> None:
    found = verdict(effects=Counter(set(keys("r0000")) - {key("r0000", 1, kind)}))
    assert [kind in fault for fault in found.faults] == [True]


def cut_off(call_id: str, end: RequestEnd | None) -> RequestLog:
    """The journal has the outcome of the call, which was committed with its effect, and none of its event."""
    of = log()
    place = next(each for each, it in enumerate(of.records) if is_end_of(it.event, call_id))
    done = of.records[place].event
    assert isinstance(done, events.ToolCallCompleted)
    return replace(of, records=of.records[:place], outcomes=(EffectWrite(done.tag, done, ()),), end=end)


def is_end_of(event: events.Event, call_id: str) -> bool:
    return isinstance(event, events.ToolCallCompleted) and event.tag.call_id == call_id


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (RequestEnd(5.0, None, failure="the journal was not written"), "done"),
        (log().end, "open"),
        (None, "open"),
    ],
    ids=["its events could not be written", "it ended with an answer", "it has not ended"],
)
def test_an_outcome_that_was_committed_counts_where_its_event_could_not_be_written(
    end: RequestEnd | None, outcome: str
) -> None:
    call = f"{STEPS}-transaction"
    assert outcome_of(cut_off(call, end), call) == outcome
    without = replace(cut_off(call, end), outcomes=())
    assert outcome_of(without, call) == "open"


LOG_FAULTS: list[tuple[str, Callable[[RequestLog], RequestLog], str]] = [
    ("no end", lambda it: replace(it, end=None), "no end"),
    ("damage", lambda it: replace(it, damage="a bit"), "damaged"),
    ("a gap", lambda it: replace(it, records=it.records[:2] + it.records[3:]), "numbered"),
    ("shown, not there", lambda it: replace(it, records=it.records[:6]), "was shown ToolCallCompleted"),
    ("ended twice", lambda it: replace(it, records=(*it.records[:7], it.records[6], *it.records[7:])), "numbered"),
    ("refused", lambda it: replace(it, records=(*it.records[:7], *it.records[6:])), "I8 replay"),
]


@pytest.mark.parametrize(("change", "fault"), [each[1:] for each in LOG_FAULTS], ids=[each[0] for each in LOG_FAULTS])
def test_what_is_wrong_with_a_journal_is_found(change: Callable[[RequestLog], RequestLog], fault: str) -> None:
    assert any(fault in each for each in verdict(change(log())).faults)


def test_a_request_that_never_ended_and_one_with_two_ends_are_found() -> None:
    never, twice = Told(has_all=False), told()
    twice.failed["r0000"].add("an error")
    assert verdict(said=never).faults[:2] == ["the last process did not end", "r0000 never ended"]
    assert any("in different ways" in fault for fault in verdict(said=twice).faults)
