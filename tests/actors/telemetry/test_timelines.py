"""What each request has done, as a runtime writes it down where that is wanted."""

from __future__ import annotations

from contextvars import copy_context

import pytest
from msgspec.structs import replace
from support.conditions import wait_until

from callboard import Runtime, Settings, UsageError, tool
from callboard.actors.telemetry.timelines import (
    ASKED_BY,
    ENDED_KEPT,
    MAX_ASKED_CHARS,
    MAX_MARKS,
    MarkKind,
    RequestTimelines,
)
from callboard.protocol.commands import NoteKind
from callboard.protocol.errors import ErrorKind
from callboard.providers.http_errors import make_error
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn


@tool(isolation="thread")
def weather(city: str) -> str:
    """The weather of a city."""
    if city == "Atlantis":
        raise LookupError("it has sunk")
    return "rain"


@tool(isolation="thread", risk="write")
def book(city: str) -> str:
    """Books a flight."""
    return "booked"


def asked(*turns: ScriptedTurn, times: int = 1) -> RequestTimelines:
    settings = Settings(model="scripted/model", script=turns * times)
    runtime = Runtime(settings, tools=[weather, book], approve=lambda _: False)
    timelines = runtime.record_timelines()
    with runtime:
        for number in range(times):
            runtime.ask_sync("What is the weather?", request_id=f"request-{number}")
        wait_until(lambda: not timelines.running())
    return timelines


def test_each_piece_of_work_with_its_end() -> None:
    cities = ("Oslo", "Atlantis")
    calls = (*(ScriptedCall("weather", {"city": city}) for city in cities), ScriptedCall("book", {"city": "Oslo"}))
    (line,) = asked(ScriptedTurn(calls=calls), ScriptedTurn("Rain.")).ended()
    assert (line.request_id, line.outcome, line.dropped) == ("request-0", "answered", 0)
    found = [(mark.kind, mark.name, mark.step, mark.ending) for mark in line.marks if mark.kind is not MarkKind.NOTE]
    assert found == [
        (MarkKind.MODEL, "scripted/model", 1, "ok"),
        (MarkKind.TOOL, "weather", 1, "ok"),
        (MarkKind.TOOL, "weather", 1, "tool_error"),
        (MarkKind.APPROVAL, "book", 1, "denied"),
        (MarkKind.MODEL, "scripted/model", 2, "ok"),
    ]
    for mark in line.marks:
        assert mark.ended_at is not None
        assert line.ended_at is not None
        assert line.begun_at <= mark.begun_at <= mark.ended_at <= line.ended_at


def test_a_model_call_that_waits_says_until_when() -> None:
    error = replace(make_error(ErrorKind.RATE_LIMITED, "slow down"), retry_after=0.05)
    (line,) = asked(ScriptedTurn(error=error), ScriptedTurn("Rain.")).ended()
    (model,) = (mark for mark in line.marks if mark.kind is MarkKind.MODEL)
    assert model.wait is not None
    assert model.wait.kind is NoteKind.RETRY
    assert "asked again" in model.wait.why
    assert model.ended_at is not None
    assert model.begun_at <= model.wait.since < model.wait.until <= model.ended_at
    assert model.deadline_at is not None
    assert model.deadline_at > model.ended_at


def test_it_says_who_asked_and_how_the_question_begins() -> None:
    runtime = Runtime(Settings(model="scripted/model", script=[ScriptedTurn("Rain.")] * 2))
    timelines = runtime.record_timelines()
    with runtime:
        runtime.ask_sync("How is Oslo? " * 1_000, metadata={"user": "ada"})
        named = copy_context()
        named.run(ASKED_BY.set, "a robot")
        named.run(runtime.ask_sync, "And Rome?")
        wait_until(lambda: len(timelines.ended()) == 2)
    rome, oslo = timelines.ended()
    assert (rome.asked, rome.asked_by, rome.metadata) == ("And Rome?", "a robot", {})
    assert (len(oslo.asked), oslo.asked_by, oslo.metadata) == (MAX_ASKED_CHARS, "", {"user": "ada"})
    assert oslo.asked.startswith("How is Oslo? How")


def test_it_is_bounded() -> None:
    calls = tuple(ScriptedCall("weather", {"city": f"city {number}"}, id=f"c{number}") for number in range(MAX_MARKS))
    (line,) = asked(ScriptedTurn(calls=calls), ScriptedTurn("Rain.")).ended()
    assert len(line.marks) <= MAX_MARKS
    assert line.dropped > 0
    assert line.marks[-1].kind is MarkKind.MODEL
    many = asked(ScriptedTurn("Rain."), times=ENDED_KEPT + 5)
    assert len(many.ended()) == ENDED_KEPT
    assert many.ended()[0].request_id == f"request-{ENDED_KEPT + 4}"
    assert sum(each.requests for each in many.usage()) == ENDED_KEPT + 5


def test_it_must_be_wanted_before_the_start() -> None:
    with Runtime(Settings(model="scripted/model")) as runtime, pytest.raises(UsageError, match="before it is started"):
        runtime.record_timelines()
