"""`callboard chat` at a terminal and in a pipe: what a person sees, types and gets."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.conditions import wait_until
from support.own_terminal import QUESTION_PROMPT, OwnTerminal
from support.scripted_daemon import scripted_daemon
from support.shared_double import shared_double, stall

from callboard.actors.testing.wire_double import Call, Turn, WireDouble

TOOLS = '''
from callboard import ToolContext, tool


@tool(risk="read")
def look(context: ToolContext, place: str) -> str:
    """Look at a place."""
    context.progress("halfway", 0.5)
    return "nothing there"
'''
#: Sets the title, clears a line, changes the colour by an 8-bit control.
EVIL = "\x1b]0;owned\x07\x1b[2Khello\x9b1m there"
#: "> " as prompt_toolkit writes it: the sign, and the cursor behind a blank.
LINE_PROMPT = ">\x08\x1b[2C"


@contextmanager
def chatting(callboard: Any, turns: Sequence[Turn], *extra: str) -> Iterator[tuple[OwnTerminal, WireDouble]]:
    (callboard.workspace / "my_tools.py").write_text(TOOLS)
    callboard.environment |= {"PROMPT_TOOLKIT_NO_CPR": "1"}  # this terminal does not say where its cursor is
    with shared_double(turns) as server:
        where = ("--model", "openai-compatible/any", "--base-url", server.base_url(), "--tools", "my_tools.py")
        terminal = OwnTerminal(callboard, "chat", *where, *extra)
        try:
            yield terminal, server
        finally:
            if terminal.process.poll() is None:
                terminal.process.kill()
                terminal.process.wait(30)


def enter(terminal: OwnTerminal, line: str) -> None:
    """Enter is a carriage return: the terminal is raw while a line is edited."""
    terminal.press(f"{line}\r".encode())


def asked_in(server: WireDouble) -> str:
    return str(server.requests()[-1].body["messages"][-1])


def test_a_conversation_at_a_terminal(callboard: Any) -> None:
    """One process for all of it: each takes seconds."""
    edit = Call("create_file", {"path": "new.py", "content": "answer = 42\n"}, "call_1")
    turns = (
        Turn(EVIL),
        Turn("", (Call("look", {"place": "here"}, "call_0"),)),
        Turn("I looked."),
        Turn("", (edit,)),
        Turn("Proposed."),
        stall("It begins"),
        Turn("Still here."),
    )
    with chatting(callboard, turns) as (terminal, server):
        terminal.next_prompt("Ctrl-D leaves")
        terminal.next_prompt(LINE_PROMPT)
        enter(terminal, "hello")
        shown = terminal.next_prompt("hello there")
        assert "\x1b]0;" not in terminal.shown
        assert "\x1b[2Khello" not in shown

        terminal.next_prompt(LINE_PROMPT)
        enter(terminal, "look around")
        shown = terminal.next_prompt("I looked.")
        assert '> look {"place":"here"}' in shown
        assert "look: 50% halfway" in shown
        assert "< look (" in shown

        # An edit is decided on with its diff, above its details. What is said meanwhile waits for the decision, and the
        # next line for both.
        terminal.next_prompt(LINE_PROMPT)
        enter(terminal, "write it")
        question = terminal.next_prompt(QUESTION_PROMPT)
        assert "? create_file asks to run (write)" in question
        assert question.index("+answer = 42") < question.index("  why: ") < question.index("  path: new.py")
        terminal.type("y")
        terminal.next_prompt("Proposed.")
        terminal.next_prompt(LINE_PROMPT)
        wait_until((callboard.workspace / "new.py").exists)

        # Ctrl-C ends an answer, and the conversation goes on.
        enter(terminal, "and then?")
        terminal.next_prompt("It begins")
        os.killpg(terminal.process.pid, signal.SIGINT)  # as a terminal sends it: this one is no session's own
        terminal.next_prompt("cancelled")
        terminal.next_prompt(LINE_PROMPT)
        enter(terminal, "are you there?")
        terminal.next_prompt("Still here.")
        assert "are you there?" in asked_in(server)

        # A mistake is said, and costs nothing.
        terminal.next_prompt(LINE_PROMPT)
        enter(terminal, "/hepl")
        assert "did you mean '/help'?" in terminal.next_prompt("/help lists them")
        terminal.next_prompt(LINE_PROMPT)
        terminal.press(b"\x03")
        terminal.next_prompt("leaves")
        terminal.next_prompt(LINE_PROMPT)
        terminal.press(b"\x03")
        assert terminal.finish() == 0
    assert "Traceback" not in terminal.shown
    wait_until(lambda: callboard.processes() == [])
    (history,) = callboard.home.rglob("chat-history")
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+look around" in history.read_text()


def test_ctrl_c_at_a_question_ends_its_request_and_not_the_chat(callboard: Any, tmp_path: Path) -> None:
    with scripted_daemon(tmp_path) as daemon:
        callboard.environment |= {"PROMPT_TOOLKIT_NO_CPR": "1", "CALLBOARD_TOKEN": daemon.token}
        terminal = OwnTerminal(callboard, "chat", "--url", daemon.url)
        try:
            terminal.next_prompt(LINE_PROMPT)
            enter(terminal, 'call dangerous {"what": "it"}')
            terminal.next_prompt(QUESTION_PROMPT)
            os.killpg(terminal.process.pid, signal.SIGINT)
            assert "(the question is withdrawn)" in terminal.next_prompt("cancelled")
            terminal.next_prompt(LINE_PROMPT)
            # The question ends on the thread of the approver, a moment behind the request.
            wait_until(lambda: daemon.get("/api/approvals").json()["approvals"] == [])
            enter(terminal, 'call dangerous {"what": "it"}')
            terminal.next_prompt(QUESTION_PROMPT)
            terminal.type("y")
            terminal.next_prompt("the tool said did it")
            terminal.next_prompt(LINE_PROMPT)
            terminal.press(b"\x04")
            assert terminal.finish() == 0
        finally:
            if terminal.process.poll() is None:
                terminal.process.kill()
                terminal.process.wait(30)
    assert "Traceback" not in terminal.shown


def test_going_on_with_the_latest_conversation(callboard: Any, tmp_path: Path) -> None:
    journal = ("--journal", str(tmp_path / "chat.sqlite"))
    for extra, question in (((), "my name is Ada"), (("--continue",), "who am I?")):
        with chatting(callboard, (Turn("Yes."),), *journal, *extra) as (terminal, server):
            terminal.next_prompt("Ctrl-D leaves")
            terminal.next_prompt(LINE_PROMPT)
            enter(terminal, question)
            terminal.next_prompt("Yes.")
            terminal.next_prompt(LINE_PROMPT)
            terminal.press(b"\x04")
            assert terminal.finish() == 0
            told = str(server.requests()[-1].body["messages"])
    assert "my name is Ada" in told
    assert "who am I?" in told


def test_a_pipe_asks_line_by_line(callboard: Any) -> None:
    with shared_double((Turn("One."), Turn("Two."))) as server:
        where = ("--model", "openai-compatible/any", "--base-url", server.base_url())
        process = callboard.start("chat", *where, stdin=subprocess.PIPE)
        out, err = process.communicate(b"first\n/usage\nsecond\n/usage\n/nope\nnever asked\n", timeout=50)
    assert out.decode().startswith("One.\n1 answer, ")
    assert "\nTwo.\n2 answers, " in out.decode()
    assert b"there is no command '/nope'" in err
    assert process.returncode == 2
    assert len(server.requests()) == 2


def test_the_mode_of_the_next_questions(callboard: Any) -> None:
    makes = Call("create_file", {"path": "new.py", "content": "x"})
    with shared_double((Turn("", (makes,)), Turn("Planned."))) as server:
        where = ("--model", "openai-compatible/any", "--base-url", server.base_url(), "--workspace", ".")
        process = callboard.start("chat", *where, stdin=subprocess.PIPE)
        lines = b"/mode\n/mode plan\nmake it\n/edits\n/mode all\n"
        out, err = process.communicate(lines, timeout=50)
    shown = out.decode()
    assert shown.startswith("mode: build\nmode: plan\nPlanned.\n")
    assert "pending" in shown.partition("Planned.")[2]
    assert b"'all' is no mode; write one of ask, plan, build" in err
    assert not (callboard.workspace / "new.py").exists()
