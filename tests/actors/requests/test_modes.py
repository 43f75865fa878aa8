"""The mode of one question: what is offered in it, what runs, and that an edit is only proposed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from callboard import AskApproval, Mode, ProposalState, Reply, Runtime, Settings, UsageError, tool
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.protocol.policy import Policy, Rule
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: What a question makes the model call: the name of a tool, and its arguments as JSON.
CALLS = {
    "read": ("read_file", {"path": "a.py"}),
    "command": ("run_command", {"command": "cat a.py"}),
    "remove": ("run_command", {"command": "rm a.py"}),
    "job": ("start_job", {"command": "rm a.py"}),
    "connect": ("connects", {}),
    "own": ("writes", {}),
    "unknown": ("does_something", {}),
    "edit": ("apply_code_edit", {"edits": [{"file": "a.py", "old_text": "1", "new_text": "2"}]}),
    "patch": ("apply_patch", {"patch": "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one = 1\n+one = 2\n"}),
    "create": ("create_file", {"path": "new.py", "content": "x"}),
    "delete": ("delete_file", {"path": "a.py"}),
    "rename": ("rename_file", {"path": "a.py", "new_path": "b.py"}),
    "kept": ("create_file", {"path": "kept/new.py", "content": "x"}),
}


def script(request: ModelRequest) -> ScriptedTurn:
    last = request.messages[-1]
    if isinstance(last, ToolMessage):
        return ScriptedTurn(" ".join(each.name for each in request.tools))
    name, arguments = CALLS[last.text]
    return ScriptedTurn(calls=(ScriptedCall(name, arguments),))


@tool(risk="network")
def connects() -> str:
    """Connect."""
    return "connected"


@tool(risk="write", isolation="thread")
def writes() -> str:
    """Write."""
    return "written"


@tool(isolation="thread")
def does_something() -> str:
    """Do something."""
    return "done"


class Case:
    """A runtime that would apply each edit, and asks a person who says yes to everything."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "work"
        self.root.mkdir()
        (self.root / "a.py").write_text("one = 1\n")
        self.questions: list[str] = []
        settings = Settings(
            model="scripted/x",
            script=script,
            workspace=self.root,
            state_dir=folder / "state",
            auto_confirm_edits=True,
            policy=Policy(rules=(Rule(path="kept/**", decision="deny"), Rule("apply_patch", decision="allow"))),
            warm_workers=0,
        )
        self.runtime = Runtime(settings, [connects, writes, does_something], approve=self._approve)

    def _approve(self, question: AskApproval) -> bool:
        self.questions.append(question.name)
        return True

    def ask(self, what: str, **options: object) -> tuple[Reply, dict[str, object]]:
        self.questions.clear()
        reply = self.runtime.ask_sync(what, **options)  # type: ignore[call-overload]
        (result,) = [each.content for each in reply.messages if isinstance(each, ToolMessage)]
        found = orjson.loads(result) if result.startswith("{") else {"text": result}
        assert isinstance(reply, Reply)
        return reply, found


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = Case(tmp_path_factory.mktemp("modes"))
    with made.runtime:
        yield made


EDITS = ("edit", "patch", "create", "delete", "rename")


@pytest.mark.parametrize("mode", ["ask", "plan"])
@pytest.mark.parametrize("what", EDITS)
def test_an_edit_is_proposed_and_applied_by_its_owner_alone(case: Case, mode: str, what: str) -> None:
    """Though edits are confirmed, a rule allows this one, and the person who is asked says yes to all."""
    reply, result = case.ask(what, mode=mode)
    assert (result["staged"], result["applied"], result["state"]) == (True, False, "pending")
    assert result["notes"] == [f"in mode {mode} an edit is only proposed: it is applied if its owner approves it later"]
    assert case.questions == []
    assert [each.name for each in case.root.glob("*.py")] == ["a.py"]
    assert (case.root / "a.py").read_text() == "one = 1\n"
    (proposal,) = [each for each in case.runtime.proposals() if each.id == result["proposal"]]
    assert proposal.state is ProposalState.PENDING
    case.runtime.deny_edits_sync([proposal.id])
    assert set(CALLS[each][0] for each in EDITS) <= set(reply.text.split())


def test_what_the_policy_denies_is_not_proposed(case: Case) -> None:
    _, result = case.ask("kept", mode="plan")
    assert result["state"] == "denied"
    assert "kept/**" in str(result["notes"])


def test_an_approved_proposal_of_such_a_mode_is_applied(tmp_path: Path) -> None:
    case = Case(tmp_path)
    with case.runtime:
        _, result = case.ask("edit", mode="plan")
        (done,) = case.runtime.approve_edits_sync([str(result["proposal"])])
        assert done.state is ProposalState.APPLIED
        assert (case.root / "a.py").read_text() == "one = 2\n"
        _, result = case.ask("create", mode="build")
        assert result["auto_confirmed"] is True


@pytest.mark.parametrize(
    ("what", "in_ask", "in_plan"),
    [
        ("read", "runs", "runs"),
        ("command", "runs", "runs"),
        ("remove", "denied", "denied"),
        ("job", "denied", "denied"),
        ("connect", "denied", "runs"),
        ("own", "denied", "denied"),
        ("unknown", "denied", "asked"),
    ],
)
def test_what_runs_in_a_mode(case: Case, what: str, in_ask: str, in_plan: str) -> None:
    for mode, becomes in ((Mode.ASK, in_ask), (Mode.PLAN, in_plan)):
        _, result = case.ask(what, mode=mode)
        found = result.get("code") or ("asked" if case.questions else "runs")
        assert (mode, found) == (mode, becomes)
    assert (case.root / "a.py").exists()


def test_questions_side_by_side_have_modes_of_their_own(case: Case) -> None:
    async def ask_all() -> list[Reply]:
        modes = [Mode.ASK, Mode.PLAN, Mode.BUILD, None] * 3
        asked = (case.runtime.ask("read", **({"mode": mode} if mode else {})) for mode in modes)  # type: ignore[misc]
        return await asyncio.gather(*asked)

    offered = [set(reply.text.split()) for reply in asyncio.run(ask_all())]
    for at in range(0, len(offered), 4):
        in_ask, in_plan, in_build, by_settings = offered[at : at + 4]
        assert in_plan - in_ask == {"connects", "does_something"}
        assert in_build - in_plan == {"writes"}
        assert by_settings == in_build


def test_the_mode_of_the_settings_is_that_of_questions_without_one(tmp_path: Path) -> None:
    case = Case(tmp_path)
    settings = case.runtime.settings.model_copy(update={"policy": Policy(mode="ask")})
    with Runtime(settings, [connects]) as runtime:
        assert "connects" not in runtime.ask_sync("read").text.split()
        assert "connects" in runtime.ask_sync("read", mode="plan").text.split()


@pytest.mark.parametrize("wrong", ["Plan", "", 3, None])
def test_what_is_no_mode_is_refused_in_one_sentence(case: Case, wrong: object) -> None:
    with pytest.raises(UsageError, match="mode must be one of 'ask', 'plan', 'build', not"):
        case.ask("read", mode=wrong)
