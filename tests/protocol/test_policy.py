"""Who may run a tool: by risk, failing closed."""

from __future__ import annotations

import pytest

from callboard.protocol.tools import Decision, Policy, Risk, ToolContract


@pytest.mark.parametrize(
    ("risk", "needs_approval", "decision"),
    [
        (Risk.READ, False, Decision.ALLOW),
        (Risk.READ, True, Decision.ASK),
        (Risk.NETWORK, False, Decision.ALLOW),
        (Risk.WRITE, False, Decision.ASK),
        (Risk.EXECUTE, True, Decision.ASK),
    ],
)
def test_the_default_policy(risk: Risk, needs_approval: bool, decision: Decision) -> None:
    assert Policy().decide(ToolContract(risk=risk, needs_approval=needs_approval)) is decision


def test_a_risk_without_a_row_is_denied_and_asking_does_not_soften_it() -> None:
    closed = Policy({Risk.READ: Decision.ALLOW})
    for risk in Risk:
        expected = Decision.ALLOW if risk is Risk.READ else Decision.DENY
        assert closed.decide(ToolContract(risk=risk)) is expected
    assert closed.decide(ToolContract(risk=Risk.WRITE, needs_approval=True)) is Decision.DENY
