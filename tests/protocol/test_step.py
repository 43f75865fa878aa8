"""Loop detection, and the failures that a session reports."""

from __future__ import annotations

import pytest

from callboard.protocol.content import (
    ToolCall,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.step import Repeats, cancelled, failed_result


def test_a_lone_surrogate_in_a_failure_is_escaped() -> None:
    call = ToolCall(CallId("a"), ToolName("look"), "{}")
    assert "\\ud800" in failed_result(call, cancelled(ToolName("look"), "\ud800")).content


def test_repeats_are_counted_in_steps() -> None:
    a, b = (ToolName("look"), "a"), (ToolName("look"), "b")
    repeats = Repeats(3)
    assert repeats.next_step([a, a, b]) == [1, 1, 1], "asked twice in a step, it is not a repetition"
    assert repeats.next_step([a]) == [2]
    assert repeats.next_step([b, a]) == [1, 3]
    assert repeats.next_step([a]) == [4]


@pytest.mark.parametrize(("limit", "told_at", "ends_at"), [(3, 3, 4), (2, 2, 3), (1, 2, 3), (0, None, None)])
def test_a_repetition_is_told_at_the_limit_and_ends_the_run_after_it(
    limit: int, told_at: int | None, ends_at: int | None
) -> None:
    repeats = Repeats(limit)
    counts = range(1, 9)
    assert next((count for count in counts if repeats.is_repeated(count)), None) == told_at
    assert next((count for count in counts if repeats.ends_run([1, count])), None) == ends_at
    assert not repeats.ends_run([])
