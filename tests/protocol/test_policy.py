"""Who may run a tool: by risk, failing closed."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.protocol.errors import UsageError
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


def test_risks_and_decisions_may_be_given_by_their_values() -> None:
    rows: Any = {"network": "ask", Risk.READ: "allow"}
    policy = Policy(rows)
    assert policy.decisions == {Risk.NETWORK: Decision.ASK, Risk.READ: Decision.ALLOW}
    assert policy.decide(ToolContract(risk=Risk.NETWORK)) is Decision.ASK


@pytest.mark.parametrize("rows", [{"netwrok": "ask"}, {"network": "perhaps"}, ["network"], frozenset({"network"}), 3])
def test_what_is_no_policy_is_refused_with_what_there_is(rows: Any) -> None:
    with pytest.raises(UsageError, match=r"read, write, execute, network, .* allow, ask, deny"):
        Policy(rows)
