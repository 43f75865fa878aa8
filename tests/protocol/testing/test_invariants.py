"""I1 to I12 over drawn scenarios, each under its own name; and that each fails when its rule is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.protocol.ids import RequestId, ToolName
from callboard.protocol.testing import INVARIANTS, Scenario, drive, simulate, violations
from callboard.protocol.testing.driver import Driver
from callboard.protocol.testing.planted import FAULTS, Fault, find
from callboard.protocol.testing.scenario import STANDARD_TOOLS, ModelDoes, PlannedCall, PlannedTurn, ToolDoes
from callboard.protocol.testing.seeded import scenario as seeded_scenario
from callboard.protocol.testing.story import Story
from callboard.protocol.testing.strategies import scenarios

LOOK = ToolName("look")


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios(), st.integers(0, 2**32))
def test_all_rules_hold_over_all_interleavings(scenario: Scenario, seed: int) -> None:
    trace = drive(scenario, seed)
    assert not violations(trace), f"{violations(trace)}\n{trace.story()}"


def test_all_rules_hold_over_seeded_conversations_which_play_again_byte_for_byte() -> None:
    simulate(conversations=400)


def test_each_rule_has_a_planted_fault() -> None:
    assert {fault.invariant for fault in FAULTS} == set(INVARIANTS)
    assert len(FAULTS) >= 15


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_and_shrunk(fault: Fault) -> None:
    found = find(fault, max_scenarios=1_000)
    assert found is not None, "not found"
    assert found.trace.steps <= 10, found.trace.story()
    scenario = found.trace.scenario
    story = Story.of(drive(scenario))
    assert not list(INVARIANTS[fault.invariant](story)), "and without the fault the same scenario breaks nothing"


#: What Hypothesis or the seeds once found, kept as it was.
ONCE_FOUND = {
    "the backstop timer died with the process": Scenario(
        (PlannedTurn(calls=(PlannedCall(LOOK, does=ToolDoes.VANISH),)),), tools=STANDARD_TOOLS, restart_at=(2.0,)
    ),
    "what was streamed before a cancel was not in the journal": Scenario(
        (PlannedTurn("let me look"),), cancel_at=0.75, restart_at=(0.75,)
    ),
    "deltas not yet written when the process died": Scenario(
        (PlannedTurn("let me look", does=ModelDoes.STALL),), restart_at=(0.75,)
    ),
}


@pytest.mark.parametrize("name", ONCE_FOUND)
def test_what_was_once_found(name: str) -> None:
    for seed in range(4):
        assert not violations(drive(ONCE_FOUND[name], seed))


def test_a_process_that_was_down_at_the_deadline_finishes_when_it_is_back() -> None:
    assert not violations(drive(seeded_scenario(33_261), 33_261))


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    slow = replace(seeded_scenario(3), latency_seconds=0.5)
    assert drive(slow, 7).to_bytes() == drive(slow, 7).to_bytes()
    assert drive(slow, 7).to_bytes() != drive(slow, 8).to_bytes()


def test_a_dying_request_changes_no_other_one() -> None:
    """I10 and I11 between two requests in one process: whatever A does, B is byte for byte the same."""
    calm = Scenario((PlannedTurn(calls=(PlannedCall(LOOK), PlannedCall(LOOK, '{"x":1}', "d"))),), tools=STANDARD_TOOLS)
    alone = drive(calm).to_bytes()
    for seed in range(30):
        wild = Driver(replace(seeded_scenario(seed), request_id=RequestId("wild")), seed)
        beside = Driver(calm)
        for driver in (wild, beside) if seed % 2 else (beside, wild):
            driver.run()
        assert beside.trace.to_bytes() == alone


def test_a_story_reads_in_short_lines_with_the_row_that_was_hit() -> None:
    trace = drive(Scenario((PlannedTurn("hi"),)), 5)
    assert trace.story().splitlines()[:2] == [
        "seed 5, 3 steps",
        "    0.000 -> RequestStarted r 0 messages, tools []   [new: RequestStarted -> calling_model]",
    ]
    assert max(map(len, trace.story().splitlines())) < 160
