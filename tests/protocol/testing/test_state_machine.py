"""The state machine runs clean on the real session, runs long, and notices broken ones."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from callboard.protocol.testing.mutation import Mutation, mutated
from callboard.protocol.testing.planted import RunsHalfCalls, StartedIsRefused, StepNumberIsEnough
from callboard.protocol.testing.reach import Reach
from callboard.protocol.testing.state_machine import SessionMachine

#: An example takes 0.3 s.
EXAMPLES = 150 if os.environ.get("CALLBOARD_DEEP") else 30
#: Of so many examples, until all has been met.
MOST_ROUNDS = 20
OPTIONS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=70,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@pytest.mark.repeats
@pytest.mark.timeout(400)  # where it fails, Hypothesis takes its time to make the run smaller
def test_sessions_under_fire_live_long_and_keep_all_rules() -> None:
    class Fixed(SessionMachine):
        lengths: list[int] = []  # noqa: RUF012 - of this run only
        reach = Reach()

    def least() -> int:
        return min(
            Fixed.reach.calls["running", "ToolCallCompleted", "completed"],
            Fixed.reach.requests["running_tools", "ToolCallCompleted", "calling_model"],
            Fixed.reach.calls["requested", "ModelResponded", "outside"],
        )

    # In 150 examples one of them was met from 1 to 123 times.
    for _ in range(MOST_ROUNDS):
        run_state_machine_as_test(Fixed, settings=OPTIONS)
        if least() >= 5:
            break
    assert least() >= 5
    assert 20 <= sum(Fixed.lengths) / len(Fixed.lengths) <= 65


@pytest.mark.timeout(400)
@pytest.mark.hypothesis
def test_sessions_under_other_fire_each_time() -> None:
    run_state_machine_as_test(SessionMachine, settings=settings(OPTIONS, max_examples=30))


@pytest.mark.parametrize("mutation", [StepNumberIsEnough, StartedIsRefused, RunsHalfCalls])
def test_the_machine_notices(mutation: type[Mutation]) -> None:
    class Broken(SessionMachine):
        session_type = mutated(mutation)

    options = settings(OPTIONS, max_examples=600, report_multiple_bugs=False, phases=[Phase.generate], derandomize=True)
    # Half a call of a tool that is not offered is not run either way: what is recorded of it shows the fault.
    noticed = r"taken, but not due|refused, but due|I12 no half calls|I17 recorded truly|should say incomplete_call"
    with pytest.raises(AssertionError, match=noticed):
        run_state_machine_as_test(Broken, settings=options)
