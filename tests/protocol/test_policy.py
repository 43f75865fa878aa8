"""The policy as data: its tables, modes and rules."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.patterns import literal, matches
from callboard.protocol.policy import (
    TABLES,
    AccessKind,
    Judgement,
    Location,
    Mode,
    Policy,
    Rule,
    Touch,
    Trust,
    strictest,
)
from callboard.protocol.tools import Decision, Origin, Risk, ToolContract

ALLOW, ASK, DENY = Decision.ALLOW, Decision.ASK, Decision.DENY
STRICTNESS = [ALLOW, ASK, DENY]
NAME = ToolName("edit_file")


def decided(policy: Policy, contract: ToolContract, *touches: Touch, name: str = NAME, arguments: str = "") -> Decision:
    return policy.judge(ToolName(name), contract, touches, arguments).decision


def read(*forms: str, place: Location = Location.INSIDE, **more: Any) -> Touch:
    return Touch(AccessKind.READ, place, Risk.READ, forms, **more)


def write(*forms: str, place: Location = Location.INSIDE, **more: Any) -> Touch:
    return Touch(AccessKind.WRITE, place, Risk.WRITE, forms, **more)


WRITER = ToolContract(risk=Risk.WRITE, origin=Origin.OWNER)


def test_there_is_a_decision_for_every_risk_trust_and_place() -> None:
    for trust, risk, origin, place in product(Trust, Risk, Origin, Location):
        contract = ToolContract(risk=risk, origin=origin)
        assert set(TABLES[trust]) == set(Risk)
        assert decided(Policy(trust=trust), contract, Touch(AccessKind.READ, place)) in STRICTNESS


def test_manual_asks_for_all_but_reading_in_the_workspace() -> None:
    for risk, origin, place in product(Risk, Origin, Location):
        contract = ToolContract(risk=risk, origin=origin)
        is_free = (risk, place) == (Risk.READ, Location.INSIDE)
        found = decided(Policy(trust="manual"), contract, Touch(AccessKind.READ, place))
        assert found is (ALLOW if is_free else ASK)


def test_what_leads_out_is_never_freer_than_what_stays_inside_and_careful_never_freer_than_balanced() -> None:
    for risk, origin in product(Risk, Origin):
        contract = ToolContract(risk=risk, origin=origin)
        strict = {
            (trust, place): STRICTNESS.index(decided(Policy(trust=trust), contract, Touch(AccessKind.READ, place)))
            for trust, place in product(Trust, Location)
        }
        for trust in Trust:
            assert strict[trust, Location.INSIDE] <= strict[trust, Location.OUTSIDE]
        for place in Location:
            assert strict[Trust.CAREFUL, place] >= strict[Trust.BALANCED, place]


@given(
    st.sampled_from(Trust),
    st.sampled_from(Mode),
    st.builds(ToolContract, risk=st.sampled_from(Risk), origin=st.sampled_from(Origin), needs_approval=st.booleans()),
    st.builds(
        Touch,
        st.sampled_from(AccessKind),
        st.sampled_from(Location),
        st.none() | st.sampled_from(Risk),
        destroys=st.just("it is gone"),
        unclear=st.sampled_from(["", "a riddle"]),
    ),
    st.booleans(),
)
def test_nothing_that_destroys_is_allowed_but_by_a_rule(
    trust: Trust, mode: Mode, contract: ToolContract, touch: Touch, of_owner: bool
) -> None:
    table: Any = dict.fromkeys(Risk, ALLOW) if of_owner else None
    policy = Policy(table, trust=trust, mode=mode)
    assert decided(policy, contract, touch) is not ALLOW
    by_rule = Policy(table, trust=trust, mode=mode, rules=(Rule(NAME, decision="allow"),))
    if mode is Mode.BUILD:
        assert decided(by_rule, contract, touch) is ALLOW


RULES = st.builds(
    Rule,
    st.sampled_from(["*", NAME, "edit_*", "other"]),
    decision=st.sampled_from(Decision),
    path=st.sampled_from(["", "a", "a/**", "*", "**"]),
)
TOUCHES = st.builds(
    lambda write_it, path, outside: (write if write_it else read)(path, place=outside),
    st.booleans(),
    st.sampled_from(["a", "a/b", "c"]),
    st.sampled_from(Location),
)


@given(st.lists(RULES, max_size=4), st.lists(TOUCHES, max_size=3), st.sampled_from(Trust), st.sampled_from(Risk))
def test_deny_wins_over_all_and_the_strictest_part_of_a_call_decides(
    rules: list[Rule], touches: list[Touch], trust: Trust, risk: Risk
) -> None:
    contract, policy = ToolContract(risk=risk, origin=Origin.OWNER), Policy(trust=trust, rules=rules)
    whole = decided(policy, contract, *touches)
    parts = [decided(policy, contract, each) for each in touches] or [decided(policy, contract)]
    assert whole is max(parts, key=STRICTNESS.index)
    about = [each for each in rules if each.tool in ("*", NAME, "edit_*")]
    if any(each.decision is DENY and not each.path for each in about):
        assert whole is DENY
    denied = Policy(trust=trust, rules=(*rules, Rule(decision="deny")))
    assert decided(denied, contract, *touches) is DENY


@given(st.lists(RULES, max_size=4), st.lists(TOUCHES, max_size=3), st.sampled_from(Trust), st.sampled_from(Risk))
def test_what_is_said_of_a_tool_before_the_call_holds_for_every_call(
    rules: list[Rule], touches: list[Touch], trust: Trust, risk: Risk
) -> None:
    contract, policy = ToolContract(risk=risk, origin=Origin.OWNER), Policy(trust=trust, rules=rules)
    without = policy.offer(NAME, contract)
    assert without == policy.judge(NAME, contract)
    offered = policy.offer(NAME, contract, has_accesses=True).decision
    assert offered is not ALLOW, "it may touch what is secret"
    if offered is DENY:
        assert decided(policy, contract, *touches) is DENY


def test_what_is_refused_or_not_understood() -> None:
    every, narrow = Rule(NAME, decision="allow"), Rule(NAME, path="a", decision="allow")
    allows = dict.fromkeys(Risk, ALLOW)
    assert decided(Policy(allows, rules=(every,)), WRITER, write("a", refused="a secret")) is DENY
    assert decided(Policy(allows), WRITER, write("a", unclear="a riddle")) is ASK
    assert decided(Policy(allows, rules=(narrow,)), WRITER, write("a", unclear="a riddle")) is ASK
    assert decided(Policy(rules=(every,)), WRITER, write("a", unclear="a riddle")) is ALLOW
    assert decided(Policy({}), WRITER, write("a", unclear="a riddle")) is DENY
    exact = Rule(NAME, arguments='{"a":1}', decision="allow")
    assert decided(Policy(rules=(exact,)), WRITER, write("a", unclear="a riddle"), arguments='{"a":1}') is ALLOW
    assert decided(Policy(rules=(exact,)), WRITER, write("a"), arguments='{"a":2}') is ASK


def test_a_rule_that_allows_a_command_allows_its_paths_but_not_what_another_rule_denies() -> None:
    runs = ToolContract(risk=Risk.EXECUTE, origin=Origin.OWNER)
    command = Touch(
        AccessKind.COMMAND, risk=Risk.EXECUTE, forms=("cat x",), touches=(read("/x", place=Location.OUTSIDE),)
    )
    allow = Rule("run", "cat *", "allow")
    assert decided(Policy(), runs, command, name="run") is ASK
    assert decided(Policy(rules=(allow,)), runs, command, name="run") is ALLOW
    denies = Rule(path="/x", decision="deny")
    assert decided(Policy(rules=(allow, denies)), runs, command, name="run") is DENY


def test_after_untrusted_text_only_reading_and_what_a_rule_allows_run_unasked() -> None:
    policy = Policy(dict.fromkeys(Risk, ALLOW))
    for risk in Risk:
        contract = ToolContract(risk=risk, origin=Origin.OWNER)
        found = policy.judge(NAME, contract, after_untrusted=True)
        assert found.decision is (ALLOW if risk is Risk.READ else ASK)
        ruled = Policy(rules=(Rule(NAME, decision="allow"),)).judge(NAME, contract, after_untrusted=True)
        assert ruled.decision is ALLOW


@pytest.mark.parametrize("mode", Mode)
def test_modes(mode: Mode) -> None:
    free = Policy(dict.fromkeys(Risk, ALLOW), mode=mode)
    found = {risk: decided(free, ToolContract(risk=risk, origin=Origin.OWNER)) for risk in Risk}
    expected = {
        Mode.ASK: {**dict.fromkeys(Risk, DENY), Risk.READ: ALLOW},
        Mode.PLAN: {**dict.fromkeys(Risk, DENY), Risk.READ: ALLOW, Risk.NETWORK: ALLOW, Risk.UNDECLARED: ASK},
        Mode.BUILD: dict.fromkeys(Risk, ALLOW),
    }
    assert found == expected[mode]


@pytest.mark.parametrize("mode", [Mode.ASK, Mode.PLAN])
def test_an_edit_that_is_only_proposed_is_asked_about_in_each_mode(mode: Mode) -> None:
    stager = replace(WRITER, stages=True)
    free = Policy(dict.fromkeys(Risk, ALLOW), mode=mode, rules=(Rule(NAME, decision="allow"),))
    assert decided(free, stager, write("a")) is ASK
    assert free.offer(NAME, stager, has_accesses=True).decision is ASK
    assert decided(free, WRITER, write("a")) is DENY
    assert free.offer(NAME, WRITER, has_accesses=True).decision is DENY
    assert decided(Policy(mode=mode, rules=(Rule(path="a", decision="deny"),)), stager, write("a")) is DENY


def test_a_policy_in_another_mode_is_the_same_but_for_that() -> None:
    class Strict(Policy):
        def __init__(self) -> None:  # made with nothing, whatever its base is made with
            super().__init__(trust="careful")

    own = Strict()
    found = own.in_mode(Mode.PLAN)
    assert (type(found), found.mode, found.trust, own.mode) == (Strict, Mode.PLAN, "careful", Mode.BUILD)
    assert own.in_mode(None) is own.in_mode(Mode.BUILD) is own
    assert [[one.is_within(other) for other in Mode] for one in Mode] == [
        [True, True, True],
        [False, True, True],
        [False, False, True],
    ]


def test_a_judgement_names_the_rule_and_no_argument() -> None:
    policy = Policy(rules=(Rule("x*", "y", "ask"), Rule(NAME, path="docs/**", decision="allow")), mode="plan")
    said = policy.judge(NAME, WRITER, [write("docs/secret")])
    assert said.rule == "edit_file makes changes, which mode plan does not allow"
    open_policy = Policy(rules=policy.rules)
    assert open_policy.judge(NAME, WRITER, [write("docs/secret")]).rule == "rule 2 (edit_file docs/**) allows edit_file"
    assert open_policy.judge(NAME, WRITER, [write("secret")]).rule == "edit_file makes changes; you are asked each time"
    assert strictest(()).decision is ASK


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tool": "x"}, "a rule needs a decision, one of allow, ask, deny"),
        ({"tool": "x", "decision": "perhaps"}, "needs a decision.*got 'perhaps'"),
        ({"tool": "", "decision": "deny"}, "names a tool"),
        ({"risk": "high", "decision": "deny"}, "risk is one of read, write"),
        ({"tool": 3, "decision": "deny"}, "tool must be a text, got 3"),
        ({"command": "a", "path": "b", "decision": "deny"}, "has one of command, path, address, arguments"),
        ({"path": "[z-a]", "decision": "deny"}, "is no pattern"),
    ],
)
def test_what_is_no_rule_is_refused_in_one_sentence(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Rule(**wrong)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"trust": "much"}, "trust is one of careful, balanced, manual; got 'much'"),
        ({"mode": "go"}, "mode is one of ask, plan, build; got 'go'"),
        ({"rules": "deny"}, "rules must be a list of Rule"),
        ({"rules": [("a", "b")]}, "rules must be a list of Rule"),
        ({"table": {"write": {"near": "ask"}}}, "inside and outside"),
    ],
)
def test_what_is_no_policy_is_refused_in_one_sentence(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Policy(**wrong)


def test_a_table_of_ones_own_may_tell_places_apart() -> None:
    policy = Policy({Risk.WRITE: {Location.INSIDE: ALLOW, Location.OUTSIDE: DENY}})
    assert decided(policy, WRITER, write("a")) is ALLOW
    assert decided(policy, WRITER, write("/a", place=Location.OUTSIDE)) is DENY
    half = Policy({Risk.WRITE: {Location.INSIDE: ALLOW}})
    assert decided(half, WRITER, write("/a", place=Location.OUTSIDE)) is DENY


# -- patterns

PATHS = {
    "a": "a",
    "*": "a .b a.py",
    "*.py": "a.py .py",
    "a/*": "a/b",
    "a/**": "a a/b a/b/c",
    "**": "a a/b a/b/c /a",
    "**/c": "c a/c a/b/c",
    "a/**/c": "a/c a/b/c",
    "[ab]": "a b",
    "[!ab]": "c",
    "[a-c]x": "ax cx",
    "[]": "[]",
    "[[]": "[",
    "?": "a b",
}
NOT = {
    "a": "b aa A a/b",
    "*": "a/b",
    "*.py": "a/b.py",
    "a/*": "a a/b/c",
    "a/**": "ab b/a",
    "**/c": "ac",
    "a/**/c": "ac a/bc",
    "[ab]": "c ab",
    "[!ab]": "a /",
    "?": "aa /",
}


def test_patterns_of_paths() -> None:
    for pattern, texts in PATHS.items():
        assert [text for text in texts.split() if not matches(pattern, text, is_path=True)] == [], pattern
    for pattern, texts in NOT.items():
        assert [text for text in texts.split() if matches(pattern, text, is_path=True)] == [], pattern
    assert matches("A*", "aB/c", is_path=False, ignore_case=True)
    assert not matches("A*", "aB", is_path=True)
    assert matches("caf\u00e9", "cafe\u0301", is_path=True)


@given(st.text(max_size=20), st.text(max_size=20), st.booleans())
def test_a_literal_pattern_matches_its_text_alone(text: str, other: str, is_path: bool) -> None:
    assert matches(literal(text), text, is_path=is_path)
    if other != text and other.isascii() and text.isascii():
        assert not matches(literal(text), other, is_path=is_path)


def test_a_tool_that_is_not_the_one_that_was_allowed_is_asked_about_and_a_denial_stays() -> None:
    changed = ToolContract(risk=Risk.READ, asks_because="it has changed")
    for policy in (Policy(), Policy(rules=[Rule("read_it", decision="allow")])):
        told = "you are asked about read_it each time, since it has changed"
        assert policy.offer(ToolName("read_it"), changed) == Judgement(Decision.ASK, told)
    denied = Policy(rules=[Rule("read_it", decision="deny")]).offer(ToolName("read_it"), changed)
    assert denied.decision is Decision.DENY
