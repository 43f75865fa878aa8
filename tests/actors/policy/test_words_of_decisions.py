"""Whatever decides about a call says so in one sentence with the tool's name, and every surface shows that sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from callboard import Approval, Policy, Rule, Runtime, Settings, tool
from callboard.actors.calls.approvals import ApprovalKind, about_call
from callboard.actors.calls.registry import offer_of
from callboard.actors.cli.approval_prompt import _parts
from callboard.actors.daemon.approval_desk import OpenApproval
from callboard.actors.daemon.board_rows import approval
from callboard.actors.daemon.native_answers import ApprovalShown
from callboard.actors.mcp.tool_server import _told
from callboard.actors.policy.judge import CallJudge
from callboard.actors.policy.saved_rules import SavedRules
from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.policy import Access, AccessKind, Location, Mode, Touch, Trust
from callboard.protocol.tools import Decision, Hold, Origin, Risk, ToolContract
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

NAME = ToolName("delete_notes")
#: Words of our tables, and the names by which the code knows its parts.
OURS = re.compile(
    r"table:|\bundeclared\b|\b(inside|outside) at\b|\bat (careful|balanced|manual)\b|\bapprover: |\b(rule|mode) \w+:"
    r"|not understood: |saved rule:|Risk\.|Decision\.|\b(read|write|execute|network) (inside|outside)\b"
)
LINES = Path(__file__).parent


def faults(sentence: str, name: str = NAME) -> list[str]:
    """What is wrong with it."""
    found = []
    if not re.search(rf"\b{re.escape(name)}\b", sentence):
        found.append("the tool is not named")
    if OURS.search(sentence):
        found.append("a coordinate of ours")
    if "\n" in sentence or re.search(r"[.!?]\s|[.]$|^\s|\s$|  ", sentence) or len(sentence.split()) < 4:
        found.append("not one sentence")
    return [f"{sentence!r}: {each}" for each in found]


def touches() -> Iterator[Touch]:
    reasons = ("destroys", "unclear", "guarded", "refused", "exposes")
    for place, risk in product(Location, (None, *Risk)):
        yield Touch(AccessKind.WRITE, place, risk, ("x",))
        for reason in reasons:
            yield Touch(AccessKind.COMMAND, place, risk, ("x",), **{reason: "it says why"})
    yield Touch(AccessKind.COMMAND, risk=Risk.EXECUTE, forms=("x",), touches=(Touch(AccessKind.WRITE, forms=("y",)),))


def contracts() -> Iterator[ToolContract]:
    for risk, origin, needs in product(Risk, Origin, (False, True)):
        yield ToolContract(risk=risk, origin=origin, needs_approval=needs)
    yield ToolContract(risk=Risk.READ, asks_because="it has changed")


class Own(Policy):
    def decide(self, contract: ToolContract) -> Decision:
        return Decision.ASK


def policies() -> Iterator[Policy]:
    yield from (Policy(trust=trust, mode=mode) for trust, mode in product(Trust, Mode))
    yield from (Policy(dict.fromkeys(Risk, decision)) for decision in Decision)
    yield Policy({})
    yield Own()
    given = ({}, {"command": "x"}, {"path": "x"}, {"address": "x"}, {"arguments": "{}"}, {"risk": "write"})
    for decision, more in product(Decision, given):
        yield Policy(rules=(Rule("delete_*", decision=decision, **more),))


def test_every_cell_of_the_tables_and_every_rule_says_so_in_a_sentence() -> None:
    found = set()
    for policy, contract in product(policies(), contracts()):
        found.add(policy.offer(NAME, contract).rule)
        found.add(policy.offer(NAME, contract, has_accesses=True).rule)
        for place, untrusted in product(Location, (False, True)):
            touch = Touch(AccessKind.READ, place, forms=("x",))
            found.add(policy.judge(NAME, contract, [touch], "{}", after_untrusted=untrusted).rule)
    for policy, risk, touch in product(policies(), Risk, touches()):
        found.add(policy.judge(NAME, ToolContract(risk=risk), [touch], "{}").rule)
    mixed = [Touch(AccessKind.COMMAND, risk=Risk.READ, hold=hold) for hold in (Hold.READING_BELOW, Hold.NONE)]
    found.add(Policy().judge(NAME, ToolContract(risk=Risk.EXECUTE), mixed).rule)
    assert [fault for sentence in sorted(found) for fault in faults(sentence)] == []
    assert len(found) > 60


def test_the_sentences_of_the_first_hour() -> None:
    undeclared = ToolContract(risk=Risk.UNDECLARED)
    assert Policy().judge(NAME, undeclared).rule == "delete_notes does not say what it changes; you are asked each time"
    needs = ToolContract(risk=Risk.UNDECLARED, origin=Origin.OWNER, needs_approval=True)
    assert Policy().judge(NAME, needs).rule == (
        "delete_notes needs approval (needs_approval=True) and does not say what it changes; you are asked each time"
    )


@tool(risk="execute", accesses={"command": "command"})
def run_line(command: str) -> str:
    """Runs a line."""
    return command


@tool(risk="write", accesses={"path": "write"})
def write_it(path: str) -> str:
    """Writes."""
    return path


@tool(risk="network", accesses={"url": "address"})
def fetch(url: str) -> str:
    """Fetches."""
    return url


@tool(risk="write", accesses=lambda arguments: 1 / 0)
def fails_to_say(path: str) -> str:
    """Writes."""
    return path


ADDRESSES = (
    "http://127.0.0.1/", "http://169.254.1.1", "ftp://x", "http://u:p@x", "http://[::", "a b", "http://10.0.0.1",
    "http://224.0.0.1", "http://%", "http://[fe80::1]/",
)  # fmt: skip
PATHS = ("a", ".env", "../x", "/etc/passwd", ".git/hooks/x", ".vscode/tasks.json", "a\0b")


def test_commands_paths_and_addresses_say_so_in_a_sentence(tmp_path: Path) -> None:
    judge = CallJudge(Policy(), tmp_path)
    lines = [
        line for file in sorted(LINES.glob("*.txt")) for line in file.read_text().splitlines()[::40] if line.strip()
    ]
    calls = [(run_line, {"command": line}) for line in lines]
    calls += [(write_it, {"path": path}) for path in PATHS] + [(fetch, {"url": each}) for each in ADDRESSES]
    calls += [(fails_to_say, {"path": "a"})]
    wrong, sentences = [], set()
    for called, arguments in calls:
        sentence = judge.judge(called.owned, json.dumps(arguments)).rule
        sentences.add(sentence)
        wrong += faults(sentence, called.name)
    assert wrong == []
    assert len(sentences) > 40


def test_saved_answers_and_what_fails_say_so_in_a_sentence(tmp_path: Path) -> None:
    class Broken(Policy):
        def offer(self, *args: object, **more: object) -> object:  # type: ignore[override]
            raise LookupError

    sentences = [offer_of(write_it.owned, Broken()).rule, offer_of(write_it.owned, Policy(), lambda name: True).rule]
    sentences += [offer_of(write_it.owned, Policy({"write": "allow"}), lambda name: True).rule]
    saved = SavedRules(tmp_path / "config", tmp_path / "work")
    accesses = (Access(AccessKind.WRITE, "a"),)
    asked = AskApproval(TAG, write_it.name, '{"path":"a"}', Risk.WRITE, accesses=accesses)
    for granted in (True, False):
        saved.remember(asked, granted)
        judged = saved.judge(write_it.name, '{"path":"a"}', accesses)
        assert judged is not None
        sentences.append(judged.rule)
    assert [fault for each in sentences for fault in faults(each, write_it.name)] == []


TAG = Tag(RequestId("r"), MessageId("m"), 1)


def shown(question: AskApproval) -> dict[str, str]:
    """Of every surface, the text in which a person reads why they are asked."""
    opened = OpenApproval((question.tag.request_id, 1, "c"), question, 0.0, None)  # type: ignore[arg-type]
    return {
        "editors (ACP)": about_call(question),
        "MCP elicitation": _told(question),
        "terminal": "\n".join(f"{part.title}: {part.text}" for part in _parts(question)),
        "board": str(approval(opened)["why"]),
        "/api/approvals": ApprovalShown.of(opened, 1.0).why,
    }


def test_every_surface_shows_the_sentence_and_no_word_of_ours() -> None:
    for contract in contracts():
        sentence = Policy(trust="manual").judge(NAME, contract).rule
        for surface, text in shown(AskApproval(TAG, NAME, "{}", contract.risk, rule=sentence)).items():
            assert sentence in text, surface
            assert [fault for fault in faults(sentence) if "coordinate" in fault] == []
            assert "table:" not in text, surface


@pytest.mark.parametrize("kind", ApprovalKind)
def test_what_a_person_has_answered_is_a_sentence_too(
    kind: ApprovalKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", str(tmp_path))
    asked: list[str] = []

    @tool(isolation="thread", needs_approval=True)
    def delete_notes() -> str:
        return "deleted"

    def approve(question: AskApproval) -> Approval:
        asked.append(question.rule)
        return Approval(kind)

    script = [ScriptedTurn(calls=(ScriptedCall(NAME, {}),)), ScriptedTurn("done")]
    with Runtime(Settings(model="scripted/m", script=script), tools=[delete_notes], approve=approve) as runtime:
        reply = runtime.ask_sync("go")
    (call,) = reply.steps[0].calls
    assert [fault for each in (*asked, call.rule) for fault in faults(each)] == []
    assert asked == [
        "delete_notes needs approval (needs_approval=True) and does not say what it changes; you are asked each time"
    ]
