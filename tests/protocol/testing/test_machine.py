"""The state machine runs clean on the real session, and notices broken ones."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from callboard.protocol.testing.machine import SessionMachine
from callboard.protocol.testing.planted import FAULTS, Fault

QUICK = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
#: Those that a wrong prediction or a changed state shows, rather than a whole run.
NOTICED = ("another request's answer is taken", "a refused event is charged")


def test_a_session_under_fire() -> None:
    run_state_machine_as_test(SessionMachine, settings=settings(QUICK, max_examples=settings().max_examples))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in NOTICED], ids=lambda fault: fault.name)
def test_the_machine_notices(fault: Fault) -> None:
    options = settings(QUICK, max_examples=600, database=None, report_multiple_bugs=False, phases=[Phase.generate])
    with fault.plant(), pytest.raises(AssertionError, match=r"taken, but illegal|a refused event changed"):
        run_state_machine_as_test(SessionMachine, settings=options)
