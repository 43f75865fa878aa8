"""The policy before the approver: what decides, what asks, and what a look that never returns costs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextvars import Context
from pathlib import Path

import pytest

from callboard import Runtime, Settings
from callboard.actors.calls.approvals import Decide, NobodyToAsk, Verdict
from callboard.actors.policy.judge import JUDGE_SECONDS, MAX_ALL_THREADS, CallJudge, JudgingApprover
from callboard.actors.processes.confinement import Confine
from callboard.actors.processes.keeper import masks_secrets
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.actors.tools import Tool
from callboard.actors.tools.decorator import tool
from callboard.protocol.commands import AskApproval
from callboard.protocol.content import ToolMessage
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import ModelRequest
from callboard.protocol.policy import Access, AccessKind, Judgement, Policy, Rule
from callboard.protocol.tools import Decision, Risk, ToolContract
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

PATIENCE_SECONDS = 20.0


@tool(risk="write", isolation="thread", accesses={"path": "write"})
def write(path: str) -> str:
    """Write."""
    return f"wrote {path}"


@tool(risk="write", isolation="thread")
def plain(much: bool = False) -> str:
    """Write something."""
    return "done"


@tool(risk="read", isolation="thread")
def look() -> str:
    """Look."""
    return "seen"


def question(name: str = "write", arguments: str = '{"path": "x"}', call_id: str = "c") -> AskApproval:
    tag = Tag(RequestId("r"), MessageId("m"), 1, CallId(call_id))
    return AskApproval(tag, ToolName(name), arguments, Risk.WRITE)


class Behind:
    """An approver that notes what it is asked, and allows it."""

    def __init__(self) -> None:
        self.asked: list[AskApproval] = []
        self.withdrawn: list[Tag] = []
        self.is_closed = False

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        self.asked.append(question)
        decide(Verdict(question.tag, True, "behind", rule=question.rule))

    def withdraw(self, tag: Tag) -> None:
        self.withdrawn.append(tag)

    def close(self) -> None:
        self.is_closed = True


class Desk:
    """A JudgingApprover, and the verdicts it gives."""

    def __init__(self, judge: CallJudge) -> None:
        self.clock = SimulatedScheduler()
        self.behind = Behind()
        self.approver = JudgingApprover(judge, self.behind, self.clock)
        self.verdicts: list[Verdict] = []
        self._came = threading.Condition()

    def ask(self, asked: AskApproval, tool: Tool | None) -> None:
        self.approver.ask(asked, self._decide, None, tool)

    def wait_for(self, count: int) -> list[Verdict]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.verdicts) >= count, PATIENCE_SECONDS)
        return self.verdicts

    def _decide(self, verdict: Verdict) -> None:
        with self._came:
            self.verdicts.append(verdict)
            self._came.notify_all()


def rules(*rules: Rule) -> Policy:
    return Policy(rules=rules)


@pytest.mark.parametrize(
    ("policy", "granted", "by", "rule"),
    [
        (rules(Rule("write", path="x", decision="allow")), True, "policy", "rule 1 (write x) allows write"),
        (rules(Rule("*", path="x", decision="deny")), False, "policy", "rule 1 (* x) denies write"),
        (Policy({Risk.WRITE: Decision.ALLOW}), True, "policy", "write makes changes, which the policy allows"),
        (Policy(), True, "behind", "write makes changes; you are asked each time"),
        (Policy({Risk.READ: Decision.ALLOW}), False, "policy", "write makes changes, which the policy does not allow"),
    ],
)
def test_the_policy_decides_or_has_the_approver_asked(
    tmp_path: Path, policy: Policy, granted: bool, by: str, rule: str
) -> None:
    desk = Desk(CallJudge(policy, tmp_path))
    desk.ask(question(), write.owned)
    (verdict,) = desk.wait_for(1)
    assert (verdict.granted, verdict.by, verdict.rule) == (granted, by, rule)
    assert [each.rule for each in desk.behind.asked] == ([rule] if by == "behind" else [])
    if not granted:
        assert rule in verdict.reason, "the model reads it"
    desk.approver.close()
    assert desk.behind.is_closed


def test_a_tool_that_names_no_paths_is_judged_at_once(tmp_path: Path) -> None:
    desk = Desk(CallJudge(rules(Rule("plain", decision="allow")), tmp_path))
    before = set(threading.enumerate())  # of tests before this one, which may end meanwhile
    desk.ask(question("plain", "{}"), plain.owned)
    assert [verdict.granted for verdict in desk.verdicts] == [True]
    assert set(threading.enumerate()) <= before


def test_what_fails_asks(tmp_path: Path) -> None:
    class Broken(Policy):
        def decide(self, contract: ToolContract) -> Decision:
            raise LookupError("no such user")

    def accesses(arguments: Mapping[str, object]) -> Iterable[Access]:
        raise KeyError("path")

    @tool(risk="read", isolation="thread", accesses=accesses)
    def odd() -> None: ...

    for judge, asked in ((CallJudge(Broken(), tmp_path), write), (CallJudge(Policy(), tmp_path), odd)):
        desk = Desk(judge)
        desk.ask(question(), asked.owned)
        desk.wait_for(1)
        assert ["could not be judged" in each.rule for each in desk.behind.asked] == [True]


def test_an_unknown_tool_is_asked_about(tmp_path: Path) -> None:
    desk = Desk(CallJudge(Policy(), tmp_path))
    desk.ask(question(), None)
    assert [each.rule for each in desk.behind.asked] == ["callboard does not know the tool write"]


def test_what_was_answered_for_always_comes_before_the_table_and_after_a_denial(tmp_path: Path) -> None:
    def saved(name: ToolName, arguments: str, accesses: Iterable[Access]) -> Judgement | None:
        return Judgement(Decision.ALLOW, f"saved rule: {name}")

    for policy, granted in ((Policy(), True), (rules(Rule(path="x", decision="deny")), False)):
        desk = Desk(CallJudge(policy, tmp_path, saved=saved))
        desk.ask(question(), write.owned)
        assert [verdict.granted for verdict in desk.wait_for(1)] == [granted]


def test_a_look_that_never_returns_holds_no_other_call_and_asks_when_its_time_is_over(tmp_path: Path) -> None:
    let_go = threading.Event()

    def accesses(arguments: Mapping[str, object]) -> Iterable[Access]:
        if arguments["path"] == "dead":
            let_go.wait(PATIENCE_SECONDS)
        return [Access(AccessKind.WRITE, str(arguments["path"]))]

    @tool(risk="write", isolation="thread", accesses=accesses)
    def slow(path: str) -> None: ...

    desk = Desk(CallJudge(rules(Rule("slow", path="x", decision="allow")), tmp_path))
    stuck = 20
    for number in range(stuck):
        desk.ask(question("slow", '{"path": "dead"}', f"dead {number}"), slow.owned)
    desk.ask(question("slow", '{"path": "x"}', "late"), slow.owned)
    desk.clock.run_until_idle(JUDGE_SECONDS)
    verdicts = {verdict.tag.call_id: verdict for verdict in desk.wait_for(stuck + 1)}
    assert len(desk.behind.asked) >= stuck
    assert all("no decision within" in verdicts[CallId(f"dead {number}")].rule for number in range(stuck))
    desk.ask(question("slow", '{"path": "x"}', "after"), slow.owned)
    assert desk.wait_for(stuck + 2)[-1].rule == "rule 1 (slow x) allows slow"
    let_go.set()
    desk.approver.close()
    assert len(desk.verdicts) == stuck + 2, "a judgement that comes late is not heard"
    assert stuck < MAX_ALL_THREADS


def test_a_question_that_is_withdrawn_while_it_is_judged_is_not_asked(tmp_path: Path) -> None:
    let_go, began = threading.Event(), threading.Event()

    def accesses(arguments: Mapping[str, object]) -> Iterable[Access]:
        began.set()
        let_go.wait(PATIENCE_SECONDS)
        return []

    @tool(risk="write", isolation="thread", accesses=accesses)
    def slow() -> None: ...

    desk = Desk(CallJudge(Policy(), tmp_path))
    desk.ask(question("slow", "{}"), slow.owned)
    assert began.wait(PATIENCE_SECONDS)
    desk.approver.withdraw(question().tag)
    let_go.set()
    desk.ask(question("slow", "{}", "next"), slow.owned)
    assert [verdict.tag.call_id for verdict in desk.wait_for(1)] == ["next"]
    assert desk.behind.withdrawn == []
    desk.approver.withdraw(question(call_id="next").tag)
    assert len(desk.behind.withdrawn) == 1


def test_without_anyone_to_ask_the_answer_is_no(tmp_path: Path) -> None:
    told: list[Verdict] = []
    approver = JudgingApprover(CallJudge(Policy()), NobodyToAsk(), SimulatedScheduler())
    approver.ask(question("plain", "{}"), told.append, None, plain.owned)
    assert [(verdict.granted, verdict.by, verdict.rule) for verdict in told] == [
        (False, "policy", "plain makes changes; you are asked each time")
    ]


# -- in a runtime


def reports(policy: Policy, *called: ScriptedCall) -> list[str]:
    """What became of each call, by which rule."""

    def script(request: ModelRequest) -> ScriptedTurn:
        is_first = not any(isinstance(message, ToolMessage) for message in request.messages)
        return ScriptedTurn(calls=called) if is_first else ScriptedTurn("done")

    settings = Settings(model="scripted/one", script=script, policy=policy)
    with Runtime(settings, tools=[write, plain, look]) as runtime:
        reply = runtime.ask_sync("go")
    return [f"{call.code or 'ran'}: {call.rule}" for step in reply.steps for call in step.calls]


def test_every_call_reports_the_rule_that_decided() -> None:
    of_owner = (
        Rule("write", path="/no/such/*", decision="allow"),
        Rule("plain", arguments='{"much":true}', decision="deny"),
        Rule("pla*", arguments="{}", decision="allow"),
    )
    called = (
        ScriptedCall("write", {"path": "/no/such/x"}),
        ScriptedCall("write", {"path": "/no/such/folder/x"}),
        ScriptedCall("plain", {}),
        ScriptedCall("plain", {"much": True}),
        ScriptedCall("look", {}),
    )
    assert reports(Policy(rules=of_owner), *called) == [
        "ran: rule 1 (write /no/such/*) allows write",
        "denied: write makes changes outside of the workspace; you are asked each time",
        "ran: rule 3 (pla* these arguments) allows plain",
        "denied: rule 2 (plain these arguments) denies plain",
        "ran: look only reads, which trust balanced allows",
    ]


def test_a_model_reads_the_rule_by_which_its_tool_is_denied() -> None:
    found = reports(Policy(rules=(Rule("plain", decision="deny"),)), ScriptedCall("plain", {}))
    assert found == ["denied: rule 1 (plain) denies plain"]


@pytest.mark.parametrize("confine", ["off", "auto"])
def test_a_runtime_asks_about_commands_where_nothing_covers_secret_files(tmp_path: Path, confine: str) -> None:
    (tmp_path / "file").touch()

    def script(request: ModelRequest) -> ScriptedTurn:
        is_first = not any(isinstance(message, ToolMessage) for message in request.messages)
        called = ScriptedCall("run_command", {"command": "cat file"})
        return ScriptedTurn(calls=(called,)) if is_first else ScriptedTurn("done")

    settings = Settings(model="scripted/one", script=script, workspace=tmp_path, confine=confine)
    with Runtime(settings) as runtime:
        reply = runtime.ask_sync("go")
    is_masked = masks_secrets(Confine(confine))
    why = "secret files are not covered for commands on this machine"
    asked = f"run_command only reads ({why}); you are asked each time"
    rule = "run_command only reads, which trust balanced allows" if is_masked else asked
    assert [each.rule for step in reply.steps for each in step.calls] == [rule]
    assert not is_masked or confine == "auto"
