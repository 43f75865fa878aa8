"""`todo`: the model's own list of what is to be done. A call gives the whole list; the stream shows how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.errors import ToolError

MAX_ITEMS: Final = 50
MAX_ITEM_CHARS: Final = 300


class TodoState(StrEnum):
    """Of one item."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class TodoItem:
    """One thing to do."""

    id: Annotated[str, Field(min_length=1, max_length=40)]
    text: Annotated[str, Field(min_length=1, max_length=MAX_ITEM_CHARS)]
    state: TodoState = TodoState.PENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class TodoCounts(BriefResult):
    """How many items of the list are in which state. The list itself is in the call."""

    version: Literal[1] = 1
    pending: int
    in_progress: int
    completed: int


def todo_tool() -> Tool:
    """`todo`, as the model sees it."""

    @tool(risk="read", timeout=5, concurrency=100, effect="repeat", trusted=True)
    async def todo(items: Annotated[list[TodoItem], Field(max_length=MAX_ITEMS)], context: ToolContext) -> TodoCounts:
        """Keep a list of what is to be done in a task of several steps. Give the whole list whenever it changes."""
        _check_ids(items)
        counts = Counter(item.state for item in items)
        done = counts[TodoState.COMPLETED]
        now = next((item.text for item in items if item.state is TodoState.IN_PROGRESS), "")
        told = f"{done} of {len(items)} done" + (f": {now}" if now else "")
        context.progress(told, done / len(items) if items else None)
        return TodoCounts(pending=counts[TodoState.PENDING], in_progress=counts[TodoState.IN_PROGRESS], completed=done)

    return todo


def _check_ids(items: Sequence[TodoItem]) -> None:
    """Raise ToolError for an id that two items have."""
    seen: set[str] = set()
    for at, item in enumerate(items):
        if item.id in seen:
            message = f"two items have the id {item.id!r}; give each its own"
            raise ToolError(message, field=f"items.{at}.id", expected="an id of its own", received=item.id)
        seen.add(item.id)
