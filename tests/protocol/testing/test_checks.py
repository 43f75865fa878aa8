"""`simulate`: a faulty runtime is told as a short story."""

from __future__ import annotations

from dataclasses import replace

import pytest

from callboard.protocol.commands import RunTool
from callboard.protocol.testing import Scenario, Trace, drive, simulate
from callboard.protocol.testing.trace import Verb


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
