"""What a person is shown before they say yes, by every surface, is exactly what runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.shown_texts import HOSTILE_TEXTS, LONG_TEXTS, unescaped

from callboard import Approval, AskApproval, Runtime, Settings, UserQuestion, tool
from callboard.actors.cli.acp_updates import SessionUpdates
from callboard.actors.cli.approval_prompt import _CHOICES, SHOWN_LINES, TerminalApprover
from callboard.actors.cli.screen import Screen
from callboard.actors.daemon.approval_desk import OpenApproval
from callboard.actors.daemon.board_rows import approvals
from callboard.actors.daemon.native_answers import ApprovalShown
from callboard.actors.mcp.tool_server import _told
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.policy import Access, AccessKind
from callboard.protocol.tools import Risk

TAG = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))


class Typist:
    """A terminal of its own as stdin; what is written to stderr is kept, and each prompt is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ours, self._theirs = os.openpty()
        settings = termios.tcgetattr(self._theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(self._theirs, termios.TCSANOW, settings)
        self._answers: list[str] = []
        self._written: list[str] = []
        stdin = os.fdopen(self._theirs, "r", closefd=False)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stderr", self)
        self.approver = TerminalApprover(Screen(quiet=True), coloured=False)

    def close(self) -> None:
        os.close(self._ours)
        os.close(self._theirs)

    def write(self, text: str) -> int:
        self._written.append(text)
        if text.endswith(("[?] ", "for none] ")):
            os.write(self._ours, f"{self._answers.pop(0)}\n".encode())
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False

    async def shown(self, question: AskApproval, *answers: str) -> tuple[list[str], Approval]:
        """What was written before each answer, and the approval."""
        self._answers, self._written = list(answers), []
        approval = await self.approver(question)
        return [each for each in self._written if each != _CHOICES], approval

    async def question(self, question: UserQuestion) -> str:
        self._answers, self._written = [""], []
        await self.approver.answer(question)
        return "".join(self._written)


@contextmanager
def at_a_terminal() -> Iterator[Typist]:
    """Not a fixture: pytest puts a stderr of its own in place when the test begins."""
    with pytest.MonkeyPatch.context() as patch:
        typist = Typist(patch)
        try:
            yield typist
        finally:
            typist.close()


# -- how a person reads it back


def parts_of(shown: str) -> dict[str, str]:
    """The parts of a question at the terminal, by their titles; a title is at two blanks, a line of a text at four."""
    found: dict[str, list[str]] = {}
    lines = shown.removesuffix("\n").split("\n")
    assert lines[0].startswith("? ")
    for line in lines[1:]:
        if line.startswith("    "):
            found[title].append(line[4:])  # noqa: F821 - a title is first
            continue
        assert line.startswith("  "), line
        title, _, text = _title_and_text(line[2:])
        assert title not in found
        found[title] = [] if not text and line.endswith(":") else [text]
    return {title: "\n".join(lines) for title, lines in found.items()}


def _title_and_text(line: str) -> tuple[str, str, str]:
    end = len(re.match(r'"(?:[^"\\]|\\.)*"', line)[0]) if line.startswith('"') else line.index(":")  # type: ignore[index]
    assert line[end] == ":"
    return line[:end], ":", line[end + 2 :]


def name_of(title: str) -> str:
    return str(json.loads(title)) if title.startswith('"') else title


def arguments_at_terminal(shown: str) -> dict[str, str]:
    parts = parts_of(shown)
    ours = {"why", "careful", "touches", "confined", "changes"}
    return {name_of(title): text for title, text in parts.items() if title not in ours}


def read_back(text: str, value: object) -> object:
    """A text by our escapes, anything else as JSON."""
    return unescaped(text, "r") if isinstance(value, str) else json.loads(text)


# -- what is asked

VALUES = st.one_of(
    LONG_TEXTS,
    st.integers(-(10**30), 10**30),
    st.booleans(),
    st.none(),
    st.lists(HOSTILE_TEXTS, max_size=3),
    st.dictionaries(HOSTILE_TEXTS, HOSTILE_TEXTS, max_size=2),
)
#: Half of a surrogate pair is no JSON: a call with it is refused.
RUNNABLE = HOSTILE_TEXTS.map(lambda text: text.replace("\ud800", ""))
ARGUMENTS = st.dictionaries(
    st.one_of(st.sampled_from(["path", "touches", "command"]), HOSTILE_TEXTS), VALUES, max_size=4
)


@st.composite
def questions(draw: st.DrawFn) -> AskApproval:
    arguments = json.dumps(draw(ARGUMENTS), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 3])))
    accesses = tuple(Access(AccessKind.WRITE, draw(HOSTILE_TEXTS)) for _ in range(draw(st.integers(0, 2))))
    diff = "".join(f"+{line}\n" for line in draw(HOSTILE_TEXTS).split("\n"))
    rule, confinement = draw(HOSTILE_TEXTS), draw(HOSTILE_TEXTS)
    preview = f"--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n{diff}" if draw(st.booleans()) else ""
    name = ToolName(draw(HOSTILE_TEXTS))
    return AskApproval(TAG, name, arguments, Risk.WRITE, draw(st.booleans()), rule, accesses, preview, confinement)


def check_terminal(typist: Typist, question: AskApproval) -> None:
    (first, viewed), approval = asyncio.run(typist.shown(question, "v", "y"))
    assert approval == Approval.ONCE
    runs = json.loads(question.arguments)
    shown = arguments_at_terminal(viewed)
    assert {name: read_back(shown[name], value) for name, value in runs.items()} == runs
    assert len(shown) == len(runs)
    parts = parts_of(viewed)
    assert [unescaped(line) for line in parts.get("touches", "").split("\n") if line] == [
        f"write {each.value}" for each in question.accesses
    ]
    assert unescaped(parts.get("changes", ""), "r") == question.preview
    assert unescaped(parts.get("why", "")) == question.rule
    # What is left out at first is said.
    assert first == viewed or re.search("is not shown: v shows it|are not shown: v shows them", first)


def check_api(question: AskApproval) -> None:
    """A program reads it: the very text, in JSON."""
    opened = OpenApproval(("r", 1, "c"), question, 0.0, None)  # type: ignore[arg-type]
    shown = ApprovalShown.of(opened, 60.0)
    assert (shown.arguments, shown.diff, shown.why) == (question.arguments, question.preview, question.rule)
    assert shown.touches == [f"write {each.value}" for each in question.accesses]


def check_board(question: AskApproval) -> None:
    desk = SimpleNamespace(open=(OpenApproval(("r", 1, "c"), question, 0.0, None),))  # type: ignore[arg-type]
    (row,) = approvals(SimpleNamespace(desk=desk), {}).values()  # type: ignore[arg-type]
    assert json.loads(str(row["arguments"])) == json.loads(question.arguments)
    assert unescaped(str(row["diff"]), "r") == question.preview
    assert [unescaped(each) for each in row["touches"]] == [f"write {each.value}" for each in question.accesses]  # type: ignore[attr-defined]
    orjson.dumps(row)
    given = json.loads(question.arguments)
    if len(given) == 1 and isinstance(text := next(iter(given.values())), str) and len(text) < 100:
        # Escaped it may be longer than a line: then it is cut, and not approved by its line alone.
        is_cut = str(row["line"]).endswith("…") and not row["says_all"]
        assert is_cut or unescaped(str(row["line"])) == text
    if row["says_all"]:  # it is approved by its line alone
        assert not question.preview
        assert not question.is_after_untrusted
        assert all(each.value in str(row["line"]) for each in question.accesses)


def check_acp(question: AskApproval) -> None:
    update = SessionUpdates(Path("/w"), lambda _: Risk.WRITE).question(question)
    assert update.content
    check_text(update.content[0].content.text, question)  # type: ignore[union-attr]
    assert unescaped(str(update.title)) == question.name
    assert not update.raw_input or update.raw_input.keys() == json.loads(question.arguments).keys()  # type: ignore[attr-defined]


def check_elicitation(question: AskApproval) -> None:
    head, _, rest = _told(question).partition("\n")
    assert unescaped(head) == f"May {question.name} (write) run?"
    body, _, diff = rest.partition("\nchanges:\n") if question.preview else (rest, "", "")
    check_text(body, question)
    assert unescaped(diff, "r") == question.preview


def check_text(text: str, question: AskApproval) -> None:
    lines = text.split("\n")
    at = lines.index("arguments:") + 1
    end = at + next(count for count in range(1, len(lines) - at + 1) if _is_json("\n".join(lines[at : at + count])))
    assert json.loads("\n".join(lines[at:end])) == json.loads(question.arguments)
    touched = [unescaped(line) for line in lines[end:] if line.startswith("touches: ")]
    assert touched == [f"touches: write {each.value}" for each in question.accesses]
    assert len(lines) - end == len(touched) + bool(question.confinement)
    assert at - 1 == bool(question.rule) + question.is_after_untrusted


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


CHECKS: Mapping[str, Callable[[AskApproval], None]] = {
    "/api/approvals": check_api,
    "board": check_board,
    "ACP": check_acp,
    "elicitation": check_elicitation,
}


@pytest.mark.timeout(300)
@settings(max_examples=examples(2_000))
@given(question=questions())
@example(AskApproval(TAG, ToolName("note"), json.dumps({"text": "line\n" * SHOWN_LINES}), Risk.WRITE))
@example(AskApproval(TAG, ToolName("note"), json.dumps({"text": " " * 80}), Risk.WRITE))
def test_what_is_shown_is_exactly_what_runs(question: AskApproval) -> None:
    with at_a_terminal() as typist:
        check_terminal(typist, question)
    for check in CHECKS.values():
        check(question)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("note\n? evil_file asks to run (read)\n  path", "README.md"),
        ("confined", "nothing leaves this machine"),
        ("touches", "read README.md"),
        ("path\u3164", "other"),
        ("command", "echo machine h login a password ;touch${IFS}pwned"),
        ("command", "deploy --token Zq9Lm3Xc7A;./pwned.sh"),
        ("command", "x=sk-Zq9Lm3Xc7A12Zq9Lm3Xc7A12;./pwned.sh"),
        ("command", "cat <<E\n-----BEGIN RSA PRIVATE KEY-----\nE\n/tmp/pwned\n: -----END RSA PRIVATE KEY-----"),
        ("command", 'password = "Zq9Lm3Xc7A";pwned'),
        ("command", "curl https://u:Zq9Lm3Xc7A;pwned@h/"),
        ("path", "a\nread README.md"),
        ("count", 18446744073709551617),
        ("command", "ls\u00a0\u202e\u200b#\x1b[2K\r"),
    ],
)
def test_what_hid_before_is_shown_by_every_surface(name: str, value: object) -> None:
    arguments = json.dumps({name: value, "path": "a.txt"} if name != "path" else {name: value})
    accesses = (Access(AccessKind.WRITE, str(value)),)
    question = AskApproval(TAG, ToolName("note"), arguments, Risk.WRITE, accesses=accesses, preview=f"+{value}\n")
    with at_a_terminal() as typist:
        check_terminal(typist, question)
    for check in CHECKS.values():
        check(question)


@given(question=HOSTILE_TEXTS, choices=st.lists(HOSTILE_TEXTS, max_size=3))
def test_a_question_of_the_model_is_shown_whole_and_a_choice_draws_no_other(question: str, choices: list[str]) -> None:
    with at_a_terminal() as typist:
        shown = asyncio.run(typist.question(UserQuestion(TAG, question, tuple(choices))))
    lines = shown.rpartition("\n")[0].split("\n")
    count = question.count("\n") + 1
    assert unescaped("\n".join(line.removeprefix("? ") for line in lines[:count]), "r") == question
    assert all(line.startswith("? ") for line in lines[:count])
    assert [unescaped(line.partition(f"  {number}  ")[2]) for number, line in enumerate(lines[count:], 1)] == choices


def test_what_was_shown_is_what_the_tool_gets(tmp_path: Path) -> None:
    """Through a runtime, with its policy: the tool's own arguments against the last view of them."""
    ran: list[tuple[str, dict[str, str]]] = []
    views: list[str] = []

    @tool(risk="write", isolation="task")
    async def note(text: str, more: dict[str, str]) -> str:
        """Write a note."""
        ran.append((text, more))
        return "noted"

    async def approve(question: AskApproval) -> Approval:
        (_, viewed), approval = await typist.shown(question, "v", "y")
        views.append(viewed)
        return approval

    @settings(max_examples=examples(200))
    @given(text=RUNNABLE, more=st.dictionaries(RUNNABLE, RUNNABLE, max_size=3))
    def check(text: str, more: dict[str, str]) -> None:
        ran.clear()
        views.clear()
        result = asyncio.run(runtime.call_tool("note", {"text": text, "more": more}))
        assert result.ok is bool(views), "what holds a mask is not even asked about"
        if not views:
            return
        shown = arguments_at_terminal(views[-1])
        assert [(unescaped(shown["text"], "r"), json.loads(shown["more"]))] == ran

    made = Runtime(Settings(workspace=tmp_path, state_dir=tmp_path / "state"), [note], approve=approve)
    with at_a_terminal() as typist, made as runtime:
        check()
