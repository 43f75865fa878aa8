"""Questions for approval on a real terminal: what a person sees, types and gets, and what happens without one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.own_terminal import QUESTION_PROMPT, OwnTerminal
from support.shared_double import shared_double

from callboard import Approval, AskApproval
from callboard.actors.cli import chat_input, screen
from callboard.actors.cli.approval_prompt import TerminalApprover
from callboard.actors.cli.chat_input import TerminalInput
from callboard.actors.cli.screen import Screen
from callboard.actors.testing.wire_double import Call, Turn, WireDouble
from callboard.protocol.commands import Note
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import Risk

MODEL = "openai-compatible/any"
TOOLS = '''
from pathlib import Path

from callboard import tool


@tool(risk="write", accesses={"path": "write"})
def note(path: str, text: str = "") -> str:
    """Write a note."""
    Path("ran.txt").open("a").write(f"{path}={text};")
    return f"wrote {path}"
'''


@contextmanager
def asked(callboard: Any, *turns: Turn, extra: tuple[str, ...] = ()) -> Iterator[tuple[OwnTerminal, WireDouble]]:
    (callboard.workspace / "my_tools.py").write_text(TOOLS)
    with shared_double(turns) as server:
        where = ("--model", MODEL, "--base-url", server.base_url(), "--tools", "my_tools.py", *extra)
        terminal = OwnTerminal(callboard, "ask", "x", *where)
        try:
            yield terminal, server
        finally:
            if terminal.process.poll() is None:
                terminal.process.kill()
                terminal.process.wait(30)


def calls(*arguments: dict[str, object], name: str = "note") -> Turn:
    return Turn("", tuple(Call(name, each, f"call_{number}") for number, each in enumerate(arguments)))


def ran(callboard: Any) -> str:
    file = callboard.workspace / "ran.txt"
    return file.read_text() if file.exists() else ""


def read_by_the_model(server: WireDouble) -> str:
    return json.dumps(server.requests()[-1].body["messages"])


EVIL = "\x1b[2K\x1b[1Aharmless\x9b1m\u202etxt.a\x07\b\r\u200b"
LONG = "\n".join(f"line {number}" for number in range(300)) + "\n" + "x" * 2_000 + "END"


def test_what_a_person_sees_and_types(callboard: Any) -> None:
    """One run for all of it: each takes seconds."""
    turns = (
        calls({"path": "early.txt"}),
        calls({"path": "yes.txt", "text": "one\ntwo"}),
        calls({"path": "no.txt"}),
        calls({"path": "evil.txt", "text": EVIL}),
        calls({"path": "long.txt", "text": LONG}),
        calls({"path": "edit.txt", "text": "theirs"}),
        calls({"path": "unfit.txt"}),
        calls({"path": "end.txt"}),
    )
    with asked(callboard, *turns, Turn("Done.")) as (terminal, server):
        # What was typed before the question does not answer it; a word that is no answer shows the help.
        terminal.type("y")
        terminal.type("y")
        terminal.next_question("early.txt")
        assert ran(callboard) == "", "nothing runs before it is approved"
        terminal.type("yep")
        assert "show all of it" in terminal.next_prompt()
        terminal.type("y because")
        assert "only a no takes a reason" in terminal.next_prompt()
        terminal.type("Y")

        question = terminal.next_question("yes.txt")
        assert "? note asks to run (write)\n" in question
        assert "  path: yes.txt\n  text:\n    one\n    two\n  touches: write yes.txt\n" in question
        terminal.type("y")

        terminal.next_question("no.txt")
        terminal.type("n not on a Friday")

        # Nothing that a model writes acts on the terminal, and nothing of it is hidden.
        question = terminal.next_question("evil.txt")
        assert "not on a Friday" in read_by_the_model(server)
        assert r"text: \x1b[2K\x1b[1Aharmless\x9b1m\u202etxt.a\x07\x08\r\u200b" in question
        assert not any(each in question[question.index("? note") :] for each in EVIL if not each.isprintable())
        terminal.type("n")

        # What is too long says so, and is shown whole on demand.
        question = terminal.next_question("long.txt")
        assert "271 more lines are not shown: v shows them" in question
        assert "line 299" not in question
        terminal.type("v")
        question = terminal.next_prompt()
        assert "line 299\n" in question
        assert "x" * 2_000 + "END" in question
        terminal.type("n")

        terminal.next_question("edit.txt")
        terminal.type("e [1]")
        assert "not a JSON object" in terminal.next_prompt()
        terminal.type('e {"path": "mine.txt", "text": "mine"}')

        terminal.next_question("unfit.txt")
        assert "which a person has changed" in read_by_the_model(server)
        terminal.type('e {"path": 7}')

        terminal.next_question("end.txt")
        assert "what the tool does not take: path" in read_by_the_model(server)
        terminal.press(b"\x04")
        assert terminal.finish() == 0
        assert "no answer was given" in read_by_the_model(server)
    assert "Done." in terminal.shown
    assert ran(callboard) == "early.txt=;yes.txt=one\ntwo;mine.txt=mine;"


def test_a_question_of_the_model_is_answered_by_a_number_or_in_words(callboard: Any) -> None:
    choices = {"question": f"Which one?{EVIL}", "choices": ["the first", "the second"]}
    turns = (
        calls(choices, name="ask_user"),
        calls(choices, name="ask_user"),
        calls({"question": "Why?"}, name="ask_user"),
    )
    with asked(callboard, *turns, Turn("Done.")) as (terminal, server):
        question = terminal.next_prompt("for none] ")
        assert r"? Which one?\x1b[2K" in question
        assert "  1  the first\n  2  the second\n[a number, or another answer; an empty line" in question
        terminal.type("2")
        terminal.next_prompt("for none] ")
        assert "the second" in str(server.requests()[-1].body["messages"][-1])
        terminal.type("neither of them")
        assert "[your answer; an empty line" in terminal.next_prompt("for none] ")
        assert "neither of them" in str(server.requests()[-1].body["messages"][-1])
        terminal.type("")
        assert terminal.finish() == 0
        assert "null" in str(server.requests()[-1].body["messages"][-1])


def test_an_answer_for_the_request_is_not_asked_for_again_and_is_not_kept(callboard: Any) -> None:
    same = {"path": "a.txt", "text": "x"}
    with asked(callboard, calls(same, same, {"path": "b.txt"}), calls(same), Turn("Done.")) as (terminal, _):
        for _ in range(2):  # which of the two is asked first is open: each is judged on a thread
            shown = terminal.next_prompt()
            assert shown.count("? note") == 1
            terminal.type("r" if "  path: a.txt\n" in shown else "n")
        assert terminal.finish() == 0
        assert terminal.shown.count(QUESTION_PROMPT) == 2
    assert ran(callboard) == "a.txt=x;" * 3
    assert not list(callboard.home.rglob("saved_rules.json"))


def test_always_saves_an_exact_rule_that_is_listed_and_removed(callboard: Any, here: Any) -> None:
    with asked(callboard, calls({"path": "a.txt", "text": "1"}), Turn("Done.")) as (terminal, _):
        terminal.next_prompt()
        terminal.type("a")
        assert terminal.finish() == 0
    place = callboard.workspace / "a.txt"
    listed = here("rules")
    assert listed.out.startswith(f"1  allow note: write {place}  (")
    [rule] = json.loads(here("rules", "--json").out)
    assert (rule["number"], rule["tool"], rule["decision"]) == (1, "note", "allow")
    assert here("rules", "--remove", "1").out == f"removed: allow note: write {place}\n"
    assert here("rules").out == "no rules are saved for this workspace\n"
    assert here("rules", "--remove", "1").status == 2


def test_ctrl_c_at_a_question_runs_nothing_and_ends_cleanly(callboard: Any, here: Any) -> None:
    with asked(callboard, calls({"path": "a.txt"}), Turn("Done.")) as (terminal, _):
        terminal.next_prompt()
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.finish() == 130
    assert terminal.shown.endswith("callboard: interrupted\n")
    assert "Traceback" not in terminal.shown
    assert ran(callboard) == ""
    assert callboard.processes() == []


def test_without_a_terminal_it_is_denied_and_said_to_person_and_model(callboard: Any) -> None:
    (callboard.workspace / "my_tools.py").write_text(TOOLS)
    turns = [calls({"path": "a.txt"}), Turn("Then not.")]
    with shared_double(turns) as server:
        where = ("--model", MODEL, "--base-url", server.base_url(), "--tools", "my_tools.py")
        result = callboard.run("ask", "x", *where)
        assert "there is no terminal to ask at" in read_by_the_model(server)
    assert "? note was denied: it needs approval, and there is no terminal to ask at" in result.err
    assert result.status == 0
    assert ran(callboard) == ""


# -- when it is asked, and how it is left


QUESTION = AskApproval(Tag(RequestId("r"), MessageId("m"), 1, CallId("c")), ToolName("note"), "{}", Risk.WRITE)


async def test_a_question_waits_for_what_its_own_request_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for nothing of another one, such as one that a tool asks, which nobody is shown."""
    monkeypatch.setattr(screen, "ORDER_SECONDS", 3_600)
    shown = Screen(quiet=True)
    other = QUESTION.tag._replace(request_id=RequestId("other"))
    with shown.answering():
        early = asyncio.create_task(shown.until_shown(other))
        waiting = asyncio.create_task(shown.until_shown(QUESTION.tag))
        await asyncio.sleep(0)
        shown.show(Note(QUESTION.tag.at_step(1), "it is looked at"))
        await asyncio.wait_for(early, 30)
        await asyncio.wait_for(shown.until_shown(other), 30)
        assert not waiting.done()
        shown.show(QUESTION)
        await asyncio.wait_for(waiting, 30)
        late = asyncio.create_task(shown.until_shown(QUESTION.tag.at_step(2)))
        await asyncio.sleep(0)
    await asyncio.wait_for(late, 30)


async def test_ctrl_c_before_the_next_line_leaves_a_question_and_not_the_conversation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That of an edit whose answer has ended."""
    on_interrupt: list[Callable[[], object]] = []

    @contextmanager
    def interruptible(run: Callable[[], object]) -> Iterator[None]:
        on_interrupt.append(run)
        yield

    monkeypatch.setattr(chat_input, "on_interrupt", interruptible)
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        approver = TerminalApprover(Screen(quiet=True), coloured=False)
        reader = TerminalInput(Screen(quiet=True), tmp_path / "history", approver)
        monkeypatch.setattr(reader, "_session", SimpleNamespace(prompt_async=lambda _: asyncio.sleep(0, "hello")))
        approver.leave()  # no question was asked yet
        for _ in range(2):
            asked_about = asyncio.Event()
            told = SimpleNamespace(flush=str, isatty=bool, write=lambda _, seen=asked_about: seen.set())
            monkeypatch.setattr(sys, "stderr", told)
            asking = asyncio.create_task(approver(QUESTION))
            await asyncio.wait_for(asked_about.wait(), 30)
            reading = asyncio.create_task(reader.next())
            await asyncio.sleep(0)
            on_interrupt.pop()()
            answer = await asyncio.wait_for(asking, 30)
            assert answer == Approval.DENY.because("no answer was given")
            assert await asyncio.wait_for(reading, 30) == "hello"
