"""Questions for approval on a real terminal: what a person sees, types and gets, and what happens without one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.own_terminal import QUESTION_PROMPT, OwnTerminal
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Call, Turn, WireDouble

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
