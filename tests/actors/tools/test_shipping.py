"""What arrives in a child process is what was sent. By value here: a child cannot import a test module."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field

import pytest

from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.protocol.errors import UsageError
from callboard.protocol.events import ToolCallCompleted


@dataclass
class Place:
    name: str
    tags: list[str] = field(default_factory=list)


@dataclass
class Forecast:
    place: Place
    _: KW_ONLY
    days: int
    rain: list[float] = field(default_factory=list)


@tool
def forecast(place: Place, days: int = 2) -> Forecast:
    return Forecast(place, days=days)


@pytest.fixture
def stage() -> Iterator[ToolStage]:
    with ToolStage() as stage:
        yield stage


def test_a_dataclass_sent_by_value_keeps_its_defaults(stage: ToolStage) -> None:
    """The child took the copy of `dataclasses.MISSING` for a default: "cannot specify both default and
    default_factory"."""
    event = stage.call(forecast, place={"name": "Bern"})
    assert isinstance(event, ToolCallCompleted), event
    assert event.content == '{"place":{"name":"Bern","tags":[]},"days":2,"rain":[]}'


class Counter:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def count(self, up_to: int) -> int:
        return up_to


def test_a_method_whose_object_cannot_be_shipped_names_the_object() -> None:
    with pytest.raises(UsageError, match=r"its variable 'self' \(Counter\) cannot be pickled"):
        tool(Counter().count).check()
