"""The checks that users call: each finds what it is for, and says so in one readable sentence."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import pytest
from hypothesis import given
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter

from callboard.actors.tools import ToolContext, tool
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import ErrorKind, ToolError, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, ModelRequest
from callboard.protocol.stream import (
    Done,
    Error,
    StreamEvent,
    TextDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
)
from callboard.protocol.testing import Scenario, Trace, check_provider_adapter, check_tool, drive, simulate
from callboard.protocol.testing.checks import definition_of
from callboard.protocol.testing.schema_values import schema_values
from callboard.protocol.testing.strategies import chunkings
from callboard.protocol.testing.trace import Verb
from callboard.protocol.tools import ToolDefinition

EXAMPLE = Path(__file__).parents[3] / "examples" / "test_my_tool.py"


class Unit(StrEnum):
    KM = "km"
    MILES = "miles"


class Place(BaseModel):
    city: str = Field(min_length=1, max_length=5)
    near: list[Place] = Field(default=[], max_length=2)


def drive_to(
    place: Place,
    unit: Unit,
    mode: Literal["car", "bike"],
    days: Annotated[int, Field(gt=0, le=7)],
    share: Annotated[float, Field(ge=0, lt=1)],
    even: Annotated[int, Field(multiple_of=2)] = 0,
    note: str | None = None,
    code: Annotated[str, Field(pattern="^[a-z]{3}$")] = "abc",
) -> dict[str, float]:
    """How far it is."""
    assert place.city
    assert 0 < days <= 7
    assert 0 <= share < 1
    assert even % 2 == 0
    return {"share": share / days}


async def wait_for(seconds: Annotated[int, Field(ge=0, le=3)]) -> str:
    """Wait."""
    if seconds > 2:
        raise ToolError("too long")
    return "x" * seconds


def picky(day: Annotated[str, AfterValidator(lambda day: date.fromisoformat(day).isoformat())]) -> str:
    """A tool whose validator is stricter than its schema: what it refuses is told to the model, and no fault."""
    return day


@pytest.mark.parametrize("tool", [drive_to, wait_for, picky])
def test_a_sound_tool_passes(tool: Any) -> None:
    check_tool(tool, examples=40)


def forgets_zero(people: int) -> float:
    """Share."""
    return 100 / people


def leaves(how: bool) -> str:
    """Leave."""
    raise SystemExit(3)


def no_json(name: str) -> Any:
    """A thing."""
    return object()


def far_too_much(times: Annotated[int, Field(ge=1, le=2)]) -> str:
    """Much."""
    return "x" * 1_100_000


def undocumented(x: int) -> int:
    return x


def breaks_its_word(x: int) -> int:
    """A number."""
    return "many"  # type: ignore[return-value]


@tool
def asks_the_runtime(x: int, context: ToolContext) -> float:
    """Was never run: its context is no argument of the schema, and the kit took that for a refusal."""
    return context.remaining_seconds / x


class SaysOtherwise:
    """A tool whose definition is of another function."""

    definition = ToolDefinition(ToolName("says"), "x", {"type": "object", "properties": {}})

    @staticmethod
    def function(y: int) -> int:
        return y

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (forgets_zero, r'forgets_zero\(\{"people":0\}\) raised ZeroDivisionError'),
        (leaves, r"leaves\(.*\) raised SystemExit: 3"),
        (no_json, "which is no JSON"),
        (far_too_much, "at most 1000000 are sent"),
        (undocumented, "has no description"),
        (breaks_its_word, "which is not what it declares"),
        (asks_the_runtime, r'asks_the_runtime\(\{"x":0\}\) raised ZeroDivisionError'),
        (SaysOtherwise(), "Missing required argument"),
    ],
)
def test_a_faulty_tool_is_found(tool: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_tool(tool, examples=40)


def test_a_tool_may_bring_its_definition() -> None:
    @dataclass
    class Bare:
        definition: ToolDefinition

        def __call__(self, **arguments: Any) -> Any:
            return arguments

    bad_name = Bare(ToolDefinition(ToolName("no spaces please"), "x"))
    assert definition_of(bad_name) is bad_name.definition
    with pytest.raises(AssertionError, match="no name that all providers take"):
        check_tool(bad_name)


def test_schemas_are_followed() -> None:
    schema = {"type": ["integer", "null"], "minimum": 3, "exclusiveMaximum": 5}

    @given(schema_values(schema))
    def holds(value: Any) -> None:
        assert value in (3, 4, None)

    holds()

    @given(schema_values({"type": "object", "additionalProperties": {"type": "string", "format": "date"}}))
    def dates(value: Any) -> None:
        TypeAdapter(dict[str, str]).validate_python(value)

    dates()
    with pytest.raises(UsageError, match="is not JSON Schema"):
        schema_values({"type": "integr"})

    @given(schema_values({"$ref": "#/$defs/Nowhere"}))
    def nowhere(value: Any) -> None:
        raise AssertionError(value)

    with pytest.raises(UsageError, match="which it does not define"):
        nowhere()


# An adapter in ten lines: one JSON object a line; "done" ends it.


class LineDecoder:
    def __init__(self, fault: str) -> None:
        self.fault, self.rest, self.ended = fault, b"", False

    def feed(self, data: bytes, /) -> list[StreamEvent]:
        if self.fault == "cut":
            return self._line(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        return [event for line in lines for event in self._line(line)]

    def _line(self, line: bytes) -> list[StreamEvent]:
        call = CallId("c")
        if self.ended:
            return []
        if line == b"done":
            self.ended = True
            return [Done(FinishReason.STOP)]
        if line == b"call":
            begun: list[StreamEvent] = [ToolCallStart(call, ToolName("look")), ToolCallDelta(call, "{")]
            return [*begun, ToolCallComplete(call)] if self.fault == "half" else begun
        if line == b"end call":
            return [ToolCallDelta(call, "}"), ToolCallComplete(call)]
        return [TextDelta(line.decode(errors="replace"))]

    def finish(self) -> list[StreamEvent]:
        if self.ended or self.fault == "endless":
            return []
        return [Error(ErrorKind.TRUNCATED, "cut", True)]


class LineAdapter:
    def __init__(self, fault: str = "") -> None:
        self.fault, self.count = fault, 0

    def encode(self, request: ModelRequest, /) -> bytes:
        self.count += self.fault == "moody" and len(request.messages) < 5
        return orjson.dumps([len(request.messages), self.count])

    def decoder(
        self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True
    ) -> LineDecoder:
        return LineDecoder(self.fault)


ANSWERS = (b"hello\nw\xc3\xb6rld\ndone\n", b"call\nend call\ndone\n")


def test_a_sound_adapter_passes() -> None:
    check_provider_adapter(LineAdapter(), ANSWERS)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("moody", "different bytes"),
        ("endless", "gave 0 ends"),
        ("cut", "reads differently|gave 0 ends|gave [02] ends"),
        ("half", "was completed with"),
    ],
)
def test_a_faulty_adapter_is_found(fault: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_provider_adapter(LineAdapter(fault), ANSWERS)


@given(chunkings(b"some bytes"))
def test_chunkings_are_the_same_bytes(pieces: list[bytes]) -> None:
    assert b"".join(pieces) == b"some bytes"


def test_a_faulty_runtime_is_told_as_a_short_story() -> None:
    def sloppy(scenario: Scenario, seed: int) -> Trace:
        """Runs every tool for longer than the session allowed."""
        trace = drive(scenario, seed)
        for index, entry in enumerate(trace.entries):
            if isinstance(entry.value, RunTool) and entry.verb is Verb.GAVE:
                late = replace(entry.value, deadline_at=entry.value.deadline_at + 100)
                trace.entries[index] = replace(entry, value=late)
        return trace

    with pytest.raises(AssertionError) as caught:
        simulate(sloppy)
    story = str(caught.value)
    assert "was given more than its tool's 5.0 s" in story
    assert "play it again with Scenario(" in story
    assert len([line for line in story.splitlines() if "->" in line and "[" in line]) <= 10


def test_a_runtime_of_moods_is_found() -> None:
    moods = iter(range(1_000))

    def moody(scenario: Scenario, seed: int) -> Trace:
        return drive(replace(scenario, latency_seconds=0.5), next(moods))

    with pytest.raises(AssertionError, match="another trace when played again"):
        simulate(moody)


def test_the_example_finds_its_planted_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("test_my_tool", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "test_my_tool", module)
    spec.loader.exec_module(module)
    module.main()
    assert capsys.readouterr().out.splitlines() == [
        'found: split_bill({"total_cents":0,"people":0}) raised ZeroDivisionError: integer division or modulo by zero',
        "split_bill_fairly: nothing found",
    ]
