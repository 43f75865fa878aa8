"""todo: a checked list, whose progress the stream shows."""

from __future__ import annotations

import orjson
import pytest

from callboard.actors.builtins.todo_list import MAX_ITEMS, todo_tool
from callboard.actors.testing.tool_stage import ToolStage
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed
from callboard.protocol.tools import FailureCode

ITEMS = [
    {"id": "1", "text": "look", "state": "completed"},
    {"id": "2", "text": "write", "state": "in_progress"},
    {"id": "3", "text": "test"},
]


def test_the_list_is_counted_and_its_progress_shown() -> None:
    with ToolStage() as stage:
        call = stage.start(todo_tool(), orjson.dumps({"items": ITEMS}).decode())
        outcome = call.wait()
    assert isinstance(outcome, ToolCallCompleted)
    assert orjson.loads(outcome.content) == {"version": 1, "pending": 1, "in_progress": 1, "completed": 1}
    assert [(each.message, each.fraction) for each in call.progress] == [("1 of 3 done: write", 1 / 3)]


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([*ITEMS, {"id": "1", "text": "again"}], "items.3.id"),
        ([{"id": "1", "text": "x", "state": "done"}], "items.0.state"),
        ([{"id": "1", "text": ""}], "items.0.text"),
        ([{"id": "1", "text": "x", "more": 1}], "items.0.more"),
        ([{"id": str(number), "text": "x"} for number in range(MAX_ITEMS + 1)], "items"),
    ],
)
def test_a_list_that_is_wrong_is_refused(items: list[dict[str, object]], field: str) -> None:
    with ToolStage() as stage:
        outcome = stage.call(todo_tool(), items=items)
    assert isinstance(outcome, ToolCallFailed)
    assert (outcome.failure.code, outcome.failure.field) == (FailureCode.INVALID_ARGUMENTS, field)
