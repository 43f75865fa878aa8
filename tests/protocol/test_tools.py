"""What a model reads of a failed call, what it costs to tell it of the tools, and the words that are written down."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest

from callboard.protocol.commands import Outcome
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import FinishReason, ToolChoiceMode
from callboard.protocol.options import ToolFallback
from callboard.protocol.prompt import tools_tokens
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.tools import (
    Decision,
    FailureCode,
    Isolation,
    Latency,
    Policy,
    Risk,
    ToolContract,
    ToolDefinition,
    ToolFailure,
)

WRITTEN: tuple[type[StrEnum], ...] = (
    CallState, Decision, ErrorKind, FailureCode, FinishReason, Isolation, Latency, Outcome, RequestState, Risk,
    ToolChoiceMode, ToolFallback,
)  # fmt: skip
OTHER_WORDS = {FinishReason.PAUSE: "pause_turn", ErrorKind.INTERNAL: "internal_error"}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_word_that_is_written_down_is_its_name(kind: type[StrEnum]) -> None:
    """Journals, histories and settings of an older version are read by a newer one."""
    for member in kind:
        assert member.value == OTHER_WORDS.get(member, member.name.lower())


def test_what_a_model_reads_of_a_failure() -> None:
    tool, code = ToolName("look"), FailureCode.CRASHED
    bare = {"ok": False, "tool": "look", "code": "crashed", "message": "it died"}
    nothing = dict.fromkeys(("field", "expected", "received", "retry_hint"))
    assert ToolFailure(tool, code, "it died").to_wire() == bare | nothing
    told = ToolFailure(tool, code, "it died", "days", "an integer", "'x'", "send a number").to_wire()
    assert told == bare | {"field": "days", "expected": "an integer", "received": "'x'", "retry_hint": "send a number"}


def test_the_tokens_of_a_tool_are_those_of_its_name_description_and_schema() -> None:
    schema = {"type": "object"}
    plain = ToolDefinition(ToolName("look"), "Looks.", schema)
    assert tools_tokens([plain, plain], len) == 2 * (len("look") + len("Looks.") + len('{"type":"object"}'))
    read_only = ToolDefinition(ToolName("look"), "Looks.", {"type": "object", "properties": MappingProxyType({})})
    assert tools_tokens([read_only], len) > tools_tokens([plain], len)


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
