"""What a model reads of a failed call, what it costs to tell it of the tools, and the words that are written down."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.commands import Outcome
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.events import ToolCallFailed
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import FinishReason, ToolChoiceMode
from callboard.protocol.options import ToolFallback
from callboard.protocol.policy import TABLES, Policy, Trust
from callboard.protocol.prompt_tokens import tools_tokens
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.testing.strategies import contracts
from callboard.protocol.tools import (
    HINTS_AFTER_EFFECT,
    RETRY_HINTS,
    Decision,
    Effect,
    FailureCode,
    Isolation,
    Latency,
    Origin,
    Risk,
    ToolContract,
    ToolDefinition,
    ToolFailure,
    after_effect,
)

WRITTEN: tuple[type[StrEnum], ...] = (
    CallState, Decision, ErrorKind, FailureCode, FinishReason, Isolation, Latency, Origin, Outcome, RequestState, Risk,
    ToolChoiceMode, ToolFallback,
)  # fmt: skip
TAG = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
OTHER_WORDS = {FinishReason.PAUSE: "pause_turn", ErrorKind.INTERNAL: "internal_error"}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_word_that_is_written_down_is_its_name(kind: type[StrEnum]) -> None:
    """Journals, histories and settings of an older version are read by a newer one."""
    for member in kind:
        assert member.value == OTHER_WORDS.get(member, member.name.lower())


@pytest.mark.parametrize("code", FailureCode)
@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("risk", Risk)
def test_the_hint_after_an_effect_that_stays(code: FailureCode, effect: Effect, risk: Risk) -> None:
    """A call that reads may be sent again, one that may be repeated, and one of which nothing was kept."""
    failed, contract = ToolFailure(ToolName("pay"), code, "it failed"), ToolContract(risk=risk, effect=effect)
    stays = risk is not Risk.READ and effect is Effect.ONCE and code in HINTS_AFTER_EFFECT
    assert after_effect(failed, contract).retry_hint == (HINTS_AFTER_EFFECT if stays else RETRY_HINTS)[code]
    assert after_effect(failed, None) is failed, "nothing is known of the tool"
    advised = ToolFailure(ToolName("pay"), code, "it failed", retry_hint="Ask the user.")
    assert after_effect(advised, contract) is advised


def test_what_a_model_reads_of_a_failure() -> None:
    tool, code = ToolName("look"), FailureCode.CRASHED
    bare = {"ok": False, "tool": "look", "code": "crashed", "message": "it died"}
    nothing = dict.fromkeys(("field", "expected", "received"))
    assert ToolFailure(tool, code, "it died").to_wire() == bare | nothing | {"retry_hint": RETRY_HINTS[code]}
    told = ToolFailure(tool, code, "it died", "days", "an integer", "'x'", "send a number").to_wire()
    assert told == bare | {"field": "days", "expected": "an integer", "received": "'x'", "retry_hint": "send a number"}


@given(st.sampled_from(FailureCode), st.text(max_size=20), st.text(max_size=8) | st.just(" \n"))
def test_every_failure_says_what_to_do_next(code: FailureCode, message: str, hint: str) -> None:
    failure = ToolFailure(ToolName("look"), code, message, retry_hint=hint)
    told = failure.to_wire()["retry_hint"]
    assert told == failure.retry_hint == (hint if hint.strip() else RETRY_HINTS[code])
    later = decode_event(encode_event(ToolCallFailed(TAG, 0.0, failure)))
    assert isinstance(later, ToolCallFailed)
    assert later.failure.retry_hint == json_safe(told)


def json_safe(text: object) -> str:
    """A text as it comes back from a journal: UTF-8 holds no lone surrogates."""
    return str(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_every_code_has_a_hint_of_its_own() -> None:
    assert set(RETRY_HINTS) == set(FailureCode)
    assert len(set(RETRY_HINTS.values())) == len(FailureCode)
    assert all(len(hint.split()) > 4 for hint in RETRY_HINTS.values())


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


def test_a_tool_is_undeclared_and_from_elsewhere_unless_something_says_otherwise() -> None:
    contract = ToolContract()
    assert (contract.risk, contract.origin) == (Risk.UNDECLARED, Origin.ELSEWHERE)


@given(contracts())
def test_the_default_policy_looks_at_the_origin_of_an_undeclared_tool_alone(contract: ToolContract) -> None:
    asked = {Risk.WRITE, Risk.EXECUTE} | ({Risk.UNDECLARED} if contract.origin is Origin.ELSEWHERE else set())
    expected = Decision.ASK if contract.needs_approval or contract.risk in asked else Decision.ALLOW
    assert Policy().decide(contract) is expected


@given(contracts(), st.dictionaries(st.sampled_from(Origin), st.sampled_from(Decision)))
def test_a_row_by_origin_denies_the_origins_it_leaves_out(contract: ToolContract, row: dict[Origin, Decision]) -> None:
    expected = row.get(contract.origin, Decision.DENY)
    if expected is Decision.ALLOW and contract.needs_approval:
        expected = Decision.ASK
    assert Policy({contract.risk: row}).decide(contract) is expected
    by_value: Any = {contract.risk.value: {origin.value: decision.value for origin, decision in row.items()}}
    assert Policy(by_value) == Policy({contract.risk: row})


@pytest.mark.parametrize(
    ("decision", "origin"), [(decision, origin) for decision in Decision for origin in Origin], ids=str
)
def test_an_owner_can_treat_undeclared_tools_apart(decision: Decision, origin: Origin) -> None:
    policy = Policy({**TABLES[Trust.BALANCED], Risk.UNDECLARED: decision})
    assert policy.decide(ToolContract(origin=origin)) is decision
    assert policy.decide(ToolContract(risk=Risk.READ, origin=origin)) is Decision.ALLOW


def test_risks_and_decisions_may_be_given_by_their_values() -> None:
    rows: Any = {"network": "ask", Risk.READ: "allow"}
    policy = Policy(rows)
    assert policy.decisions == {Risk.NETWORK: Decision.ASK, Risk.READ: Decision.ALLOW}
    assert policy.decide(ToolContract(risk=Risk.NETWORK)) is Decision.ASK


@pytest.mark.parametrize(
    "rows",
    [
        {"netwrok": "ask"},
        {"network": "perhaps"},
        {"network": None},
        {"network": {"owner": "perhaps"}},
        {"network": {"nowhere": "ask"}},
        {"network": {"owner": {"owner": "ask"}}},
        ["network"],
        frozenset({"network"}),
        3,
    ],
)
def test_what_is_no_policy_is_refused_with_what_there_is(rows: Any) -> None:
    with pytest.raises(
        UsageError, match=r"read, write, execute, network, undeclared.* allow, ask, deny.* owner and elsewhere"
    ):
        Policy(rows)
