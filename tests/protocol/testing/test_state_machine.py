"""The state machine runs clean on the real session, runs long, and notices broken ones."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from callboard.protocol.testing.mutation import Mutation, mutated
from callboard.protocol.testing.planted import RunsHalfCalls, StartedIsRefused, StepNumberIsEnough
from callboard.protocol.testing.reach import Reach
from callboard.protocol.testing.state_machine import SessionMachine

#: An example takes 0.2 s.
EXAMPLES = 30
#: Of so many examples, until all has been met; the mean length of one round alone was from 34 to 53.
LEAST_ROUNDS, MOST_ROUNDS = 8, 20
OPTIONS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=70,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@pytest.mark.timeout(400)  # where it fails, Hypothesis takes its time to make the run smaller
def test_sessions_under_fire_live_long_and_keep_all_rules() -> None:
    class Fixed(SessionMachine):
        lengths: list[int] = []  # noqa: RUF012 - of this run only
        reach = Reach()

    def has_reached_all() -> bool:
        return (
            Fixed.reach.calls["running", "ToolCallCompleted", "completed"] >= 10
            and Fixed.reach.requests["running_tools", "ToolCallCompleted", "calling_model"] >= 10
            and Fixed.reach.calls["requested", "ModelResponded", "outside"] >= 5
        )

    # In 150 examples one of them was met from 1 to 123 times; and a seed draws otherwise when the code has changed.
    for number in range(MOST_ROUNDS):
        run_state_machine_as_test(seed(number)(Fixed), settings=OPTIONS)
        if number + 1 >= LEAST_ROUNDS and has_reached_all():
            break
    assert 30 <= sum(Fixed.lengths) / len(Fixed.lengths) <= 60
    assert has_reached_all()


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
