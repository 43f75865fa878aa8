"""Staged edits in a running runtime: the model stages, the owner decides, the model reads what became of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from callboard import (
    AskApproval,
    Conversation,
    McpServer,
    Policy,
    ProposalState,
    Risk,
    Runtime,
    Settings,
    UsageError,
    tool,
)
from callboard.protocol.content import SystemMessage, ToolMessage, history_faults
from callboard.protocol.model import ModelRequest
from callboard.protocol.policy import Rule
from callboard.protocol.tools import Decision
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

PATIENCE_SECONDS = 20.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    return folder


@pytest.fixture
def settings(root: Path, tmp_path: Path) -> Callable[..., Settings]:
    def made(*turns: ScriptedTurn | Callable[[ModelRequest], ScriptedTurn], **more: object) -> Settings:
        left: Iterator[ScriptedTurn | Callable[[ModelRequest], ScriptedTurn]] = iter(turns)

        def script(request: ModelRequest) -> ScriptedTurn:
            turn = next(left)
            return turn if isinstance(turn, ScriptedTurn) else turn(request)

        given = {"model": "scripted/x", "script": script, "workspace": root, "state_dir": tmp_path / "state"}
        given |= {"warm_workers": 0, **more}
        return Settings.model_validate(given)

    return made


def call(name: str, **arguments: object) -> ScriptedTurn:
    return ScriptedTurn(calls=(ScriptedCall(name, arguments),))


EDIT = {"edits": [{"file": "a.py", "old_text": "return 1", "new_text": "return 11"}]}


def result_of(conversation: Conversation) -> dict[str, object]:
    (message,) = [each for each in conversation.messages if isinstance(each, ToolMessage)]
    found = orjson.loads(message.content)
    assert isinstance(found, dict)
    return found


def told(conversation: Conversation) -> list[str]:
    return [each.text for each in conversation.messages if isinstance(each, SystemMessage)]


def test_a_staged_edit_waits_for_its_owner_who_is_not_there(settings: Callable[..., Settings], root: Path) -> None:
    conversation = Conversation()
    given = settings(call("apply_code_edit", **EDIT), ScriptedTurn("staged"), ScriptedTurn("I see"))
    with Runtime(given) as runtime:
        runtime.ask_sync("edit", conversation=conversation)
        result = result_of(conversation)
        assert (result["staged"], result["applied"], result["auto_confirmed"]) == (True, False, False)
        assert "+    return 11" in str(result["preview"])
        assert "return 1\n" in (root / "a.py").read_text()
        (proposal,) = runtime.proposals()
        assert (proposal.state, proposal.tool) == (ProposalState.PENDING, "apply_code_edit")
        (done,) = runtime.approve_edits_sync([proposal.id])
        assert done.state is ProposalState.APPLIED
        assert "return 11" in (root / "a.py").read_text()
        runtime.ask_sync("and now?", conversation=conversation)
        assert told(conversation) == [f"The edit {proposal.id} ({root / 'a.py'}) was applied."]
        assert not list(history_faults(conversation.messages))
        runtime_again = runtime.proposals()
        assert [each.state for each in runtime_again] == [ProposalState.APPLIED]


def test_a_decision_after_a_restart_is_told_to_the_conversation_that_asked(
    settings: Callable[..., Settings], root: Path
) -> None:
    conversation = Conversation()
    with Runtime(settings(call("apply_code_edit", **EDIT), ScriptedTurn("staged"))) as runtime:
        runtime.ask_sync("edit", conversation=conversation)
        (known,) = (each.id for each in runtime.proposals())
    saved = conversation.to_json()
    with Runtime(settings(ScriptedTurn("a"), ScriptedTurn("b"))) as runtime:
        (done,) = runtime.deny_edits_sync(reason="use a constant")
        assert (done.id, done.state) == (known, ProposalState.DENIED)
        other, again = Conversation(), Conversation.from_json(saved)
        runtime.ask_sync("something else", conversation=other)
        runtime.ask_sync("and now?", conversation=again)
        assert told(other) == []
        assert len(told(again)) == 1
        assert told(again)[0].endswith("was not allowed and not applied: use a constant")
        assert Conversation.from_json(again.to_json()) == again


def test_a_person_is_asked_with_the_diff_as_soon_as_it_is_staged(settings: Callable[..., Settings], root: Path) -> None:
    asked: list[AskApproval] = []

    async def approve(question: AskApproval) -> bool:
        asked.append(question)
        return True

    conversation = Conversation()
    with Runtime(
        settings(call("create_file", path="new/b.py", content="b = 1\n"), ScriptedTurn("ok")), approve=approve
    ) as runtime:
        runtime.ask_sync("create", conversation=conversation)
    assert len(asked) == 1
    assert (asked[0].name, asked[0].risk) == ("create_file", Risk.WRITE)
    assert "+b = 1" in asked[0].preview
    assert [each.value for each in asked[0].accesses] == [str(root / "new/b.py")]
    result = result_of(conversation)
    assert (result["applied"], result["auto_confirmed"], result["state"]) == (True, False, "applied")
    assert (root / "new/b.py").read_text() == "b = 1\n"


async def test_a_call_does_not_wait_for_a_person(
    settings: Callable[..., Settings], root: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    answer = asyncio.Event()
    host = asyncio.get_running_loop()

    async def approve(question: AskApproval) -> bool:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer.wait(), host))
        return True

    conversation = Conversation()
    given = settings(call("apply_code_edit", **EDIT), ScriptedTurn("staged"), ScriptedTurn("I see"))
    async with Runtime(given, approve=approve) as runtime:
        await runtime.ask("edit", conversation=conversation)
        assert result_of(conversation)["state"] == "pending"
        answer.set()
        await asyncio.to_thread(until, lambda: runtime.proposals()[0].state is ProposalState.APPLIED)
        await runtime.ask("and now?", conversation=conversation)
    assert len(told(conversation)) == 1
    assert "was applied" in told(conversation)[0]


async def test_the_model_of_a_running_request_reads_it_at_its_next_step(
    settings: Callable[..., Settings], root: Path
) -> None:
    seen: list[list[str]] = []

    @tool
    async def decide() -> str:
        (done,) = await runtime.deny_edits(reason="not so")
        return done.state

    def last(request: ModelRequest) -> ScriptedTurn:
        seen.append([each.text for each in request.messages if isinstance(each, SystemMessage)])
        assert isinstance(request.messages[-1], SystemMessage)  # behind the results
        return ScriptedTurn("I see")

    conversation = Conversation()
    given = settings(call("apply_code_edit", **EDIT), call("decide"), last, ScriptedTurn("later"))
    async with Runtime(given, tools=[decide]) as runtime:
        await runtime.ask("edit", conversation=conversation)
        (proposal,) = await asyncio.to_thread(runtime.proposals)
        outcome = f"The edit {proposal.id} ({root / 'a.py'}) was not allowed and not applied: not so"
        assert seen[0][-1] == outcome
        await runtime.ask("and now?", conversation=conversation)
    assert told(conversation) == [outcome]
    assert not list(history_faults(conversation.messages))


async def test_the_owner_decides_before_the_approver_and_the_question_is_withdrawn(
    settings: Callable[..., Settings], root: Path
) -> None:
    withdrawn = asyncio.Event()
    host = asyncio.get_running_loop()

    async def approve(question: AskApproval) -> bool:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            host.call_soon_threadsafe(withdrawn.set)
            raise
        return False

    async with Runtime(settings(call("delete_file", path="a.py"), ScriptedTurn("ok")), approve=approve) as runtime:
        await runtime.ask("delete")
        (done,) = await runtime.approve_edits()
        assert done.state is ProposalState.APPLIED
        assert not (root / "a.py").exists()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await withdrawn.wait()


def test_edits_are_applied_at_once_where_the_settings_say_so(settings: Callable[..., Settings], root: Path) -> None:
    conversation = Conversation()
    given = settings(call("apply_code_edit", **EDIT), ScriptedTurn("done"), auto_confirm_edits=True)
    with Runtime(given) as runtime:
        runtime.ask_sync("edit", conversation=conversation)
        assert runtime.proposals()[0].by == "auto_confirm_edits"
    result = result_of(conversation)
    assert (result["staged"], result["applied"], result["auto_confirmed"]) == (True, True, True)
    assert "return 11" in (root / "a.py").read_text()
    assert told(conversation) == []


PATCH = """--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
 def one():
-    return 1
+    return 11
--- /dev/null
+++ b/.github/workflows/ci.yml
@@ -0,0 +1 @@
+on: push
"""
#: Calls that change what an editor, a shell or CI runs: made, edited, removed, moved there and away, in a patch, by a
#: link, in other letters.
GUARDED_CALLS = {
    "made": ("create_file", {"path": ".vscode/tasks.json", "content": "{}"}),
    "edited": ("apply_code_edit", {"edits": [{"file": ".husky/hook", "old_text": "old", "new_text": "new"}]}),
    "removed": ("delete_file", {"path": ".husky/hook"}),
    "moved there": ("rename_file", {"path": "a.py", "new_path": ".devcontainer/a.py"}),
    "moved away": ("rename_file", {"path": ".husky/hook", "new_path": "hook"}),
    "in a patch": ("apply_patch", {"patch": PATCH}),
    "by a link": ("create_file", {"path": "linked/pre-push", "content": "x"}),
    "behind a link": ("create_file", {"path": "code/settings.json", "content": "{}"}),
    "in other letters": ("create_file", {"path": ".GitHub/Workflows/x.yml", "content": "x"}),
    "with dots": ("create_file", {"path": "x/../.mcp.json", "content": "{}"}),
    "below": ("create_file", {"path": "sub/.claude/settings.json", "content": "{}"}),
}


@pytest.fixture
def guarded_root(root: Path) -> Path:
    for name in (".husky", "code", "x"):
        (root / name).mkdir()
    (root / ".husky" / "hook").write_text("old\n")
    (root / "linked").symlink_to(".husky")
    (root / ".cursor").symlink_to("code")
    return root


def snapshot(root: Path) -> dict[str, str]:
    """Without the index, which callboard keeps there."""
    found = [each for each in root.rglob("*") if each.is_file() and ".callboard" not in str(each)]
    return {str(each.relative_to(root)): each.read_text() for each in found}


@pytest.mark.parametrize("what", GUARDED_CALLS)
def test_places_that_are_run_when_they_are_read_wait_for_their_owner(
    settings: Callable[..., Settings], guarded_root: Path, what: str
) -> None:
    name, arguments = GUARDED_CALLS[what]
    before = snapshot(guarded_root)
    given = settings(call(name, **arguments), ScriptedTurn("done"), auto_confirm_edits=True)
    with Runtime(given) as runtime:
        runtime.ask_sync("edit")
        (proposal,) = runtime.proposals()
        assert (proposal.state, snapshot(guarded_root)) == (ProposalState.PENDING, before)
        (done,) = runtime.approve_edits_sync()
        assert done.state is ProposalState.APPLIED
    assert snapshot(guarded_root) != before


SERVED_CALLS: dict[str, tuple[str, dict[str, object]]] = {
    "edited": ("apply_code_edit", {"edits": [{"file": "server.py", "old_text": "old", "new_text": "new"}]}),
    "removed": ("delete_file", {"path": "server.py"}),
    "moved away": ("rename_file", {"path": "server.py", "new_path": "other.py"}),
    "by a link": ("apply_code_edit", {"edits": [{"file": "leads.py", "old_text": "old", "new_text": "new"}]}),
    "new in its package": ("create_file", {"path": "package/new.py", "content": "x"}),
    "its settings": ("apply_code_edit", {"edits": [{"file": "conf/x.toml", "old_text": "old", "new_text": "new"}]}),
    "its settings are removed": ("delete_file", {"path": "conf/x.toml"}),
}


@pytest.mark.parametrize("what", SERVED_CALLS)
def test_what_an_mcp_server_runs_waits_for_its_owner(settings: Callable[..., Settings], root: Path, what: str) -> None:
    for name in ("server.py", "package/__init__.py", "conf/x.toml"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("old\n")
    (root / "leads.py").symlink_to("server.py")
    name, arguments = SERVED_CALLS[what]
    before = snapshot(root)
    words = ("-c", "", str(root / "server.py"), "--config=conf/x.toml", "-m", "package")
    servers = {"s": McpServer(command=sys.executable, args=words, cwd=root)}
    given = settings(call(name, **arguments), ScriptedTurn("done"), auto_confirm_edits=True, mcp_servers=servers)
    with Runtime(given) as runtime:
        runtime.ask_sync("edit")
        (proposal,) = runtime.proposals()
        assert (proposal.state, snapshot(root)) == (ProposalState.PENDING, before)


def test_a_person_is_asked_about_guarded_places_and_no_others(
    settings: Callable[..., Settings], guarded_root: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    asked: list[tuple[str, str]] = []

    async def approve(question: AskApproval) -> bool:
        asked.append((Path(question.accesses[0].value).name, question.rule))
        return True

    given = settings(
        call("create_file", path="b.py", content="b = 1\n"),
        call("create_file", path="vscode/x", content="x"),
        call("create_file", path=".github/workflows/x.yml", content="x"),
        ScriptedTurn("done"),
        auto_confirm_edits=True,
    )
    with Runtime(given, approve=approve) as runtime:
        runtime.ask_sync("edit")
        until(lambda: all(each.state is ProposalState.APPLIED for each in runtime.proposals()))
        assert {each.by for each in runtime.proposals()} >= {"auto_confirm_edits"}
    reason = "an editor, a shell or CI runs what it says"
    assert asked == [("x.yml", f"create_file makes changes ({reason}); you are asked each time")]


def test_a_rule_confirms_edits_of_guarded_places(settings: Callable[..., Settings], guarded_root: Path) -> None:
    policy = Policy(rules=(Rule("create_file", path=".github/workflows/**", decision="allow"),))
    made = call("create_file", path=".github/workflows/x.yml", content="x")
    with Runtime(settings(made, ScriptedTurn("done"), auto_confirm_edits=True, policy=policy)) as runtime:
        runtime.ask_sync("edit")
        assert [each.state for each in runtime.proposals()] == [ProposalState.APPLIED]


def test_what_a_rule_denies_is_not_applied_and_the_model_reads_which_one(
    settings: Callable[..., Settings], root: Path
) -> None:
    policy = Policy(rules=(Rule("*", path="a.py", decision="deny"), Rule("create_file", path="b.py", decision="allow")))
    edit = {"edits": [{"canonical_path": "a.one", "new_text": "x = 1"}]}
    for more in ({}, {"auto_confirm_edits": True}):
        conversation = Conversation()
        with Runtime(settings(call("apply_code_edit", **edit), ScriptedTurn("ok"), policy=policy, **more)) as runtime:
            runtime.ask_sync("edit", conversation=conversation)
        result = result_of(conversation)
        assert (result["applied"], result["state"]) == (False, "denied")
        assert "rule 1 (* a.py) denies apply_code_edit" in str(result["notes"])
    assert "return 1\n" in (root / "a.py").read_text()
    conversation = Conversation()
    create = call("create_file", path="b.py", content="b = 1\n")
    with Runtime(settings(create, ScriptedTurn("ok"), policy=policy)) as runtime:
        runtime.ask_sync("create", conversation=conversation)
        assert runtime.proposals()[-1].by.startswith("rule 2")
    result = result_of(conversation)
    assert (result["applied"], result["auto_confirmed"]) == (True, False)


def test_an_item_is_edited_by_its_canonical_path_and_found_again_after_it(
    settings: Callable[..., Settings], root: Path
) -> None:
    first = {"canonical_path": "a.two", "kind": "function", "new_text": "def two():\n    return 22"}
    second = {"canonical_path": "a.two", "new_text": "def two():\n    return 222\n"}
    first_one = {"canonical_path": "a.one", "new_text": "def one():\n    return 11\n"}  # adds no line
    given = settings(
        call("apply_code_edit", edits=[first]),
        call("apply_code_edit", edits=[second, first_one]),
        ScriptedTurn("done"),
        auto_confirm_edits=True,
    )
    with Runtime(given) as runtime:
        runtime.ask_sync("edit")
        assert [each.state for each in runtime.proposals()] == [ProposalState.APPLIED] * 2
    assert (root / "a.py").read_text() == "def one():\n    return 11\n\n\ndef two():\n    return 222\n"


def test_an_ambiguous_path_is_answered_with_its_candidates(settings: Callable[..., Settings], root: Path) -> None:
    (root / "b.py").write_text("def one():\n    return 1\n")
    conversation = Conversation()
    edit = {"canonical_path": "one", "new_text": "x"}
    with Runtime(settings(call("apply_code_edit", edits=[edit]), ScriptedTurn("ok"))) as runtime:
        runtime.ask_sync("edit", conversation=conversation)
        assert runtime.proposals() == ()
    failure = result_of(conversation)
    assert (failure["code"], failure["field"]) == ("invalid_arguments", "edits.0.canonical_path")
    assert f"in {root / 'a.py'} lines 1-2" in str(failure["expected"])
    assert f"in {root / 'b.py'} lines 1-2" in str(failure["expected"])


def test_a_policy_that_denies_writing_offers_no_editing_tool(settings: Callable[..., Settings]) -> None:
    denies = Policy(rules=(Rule(risk=Risk.WRITE, decision=Decision.DENY),))
    with Runtime(settings(policy=denies)) as runtime:
        offered = {each.definition.name: each.decision for each in runtime.tools()}
    assert offered["apply_patch"] is Decision.DENY
    with Runtime(settings()) as runtime:
        offered = {each.definition.name: each.decision for each in runtime.tools()}
    assert offered["apply_patch"] is Decision.ALLOW  # to stage; what is staged is asked about


def test_without_a_workspace_there_are_no_edits() -> None:
    with Runtime(Settings(script=[])) as runtime, pytest.raises(UsageError, match="no workspace"):
        runtime.proposals()
