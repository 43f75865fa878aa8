"""What fits a terminal of 80 and of 40 columns: lists, answers, notes, help; and whose usage a mistake names."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.conditions import wait_until
from support.model_server import model_server
from support.own_terminal import QUESTION_PROMPT, OwnTerminal
from support.shared_double import shared_double, stall

from callboard import Conversation, Runtime, Settings
from callboard.actors.cli.arguments import WrongArguments, parser, with_all_below
from callboard.actors.cli.columns import width
from callboard.actors.policy.workspace_trust import TOOLS
from callboard.actors.testing.wire_double import Call, Turn
from callboard.protocol.model import FinishReason
from callboard.providers.local.scripted import ScriptedTurn

#: "> " as prompt_toolkit writes it: the sign, and the cursor behind a blank.
LINE_PROMPT = ">\x08\x1b[2C"
#: All lists, in one process.
LISTS = """
import os, sys
from callboard.actors.cli.__main__ import main
for line in sys.stdin.readline().strip().split(";"):
    print("##", line, flush=True)
    os.environ["OPENAI_API_KEY"] = "sk-1234567890"
    main(line.split())
print("## the end", flush=True)
"""
LISTED = {
    "tools": "TOOL",
    "models": "MODEL",
    "models --providers": "PROVIDER",
    "journal list": "ID",
    "journal requests": "ID",
    "journal usage": "DAY",
    "journal usage --by conversation --by model": "MODEL",
    "tokens list": "ID",
}
TEXTS = ("tools read_file", "models openai/gpt-6.1-sol", "journal search umbrella", "journal usage --by tool", "rules")
LONG = "Whether the umbrella that was left on the train is the blue one or the green one is what nobody can say, " * 2
CODE = "def umbrella(colour):  # a line of code that is longer than the terminal is wide and stays as it is, all of it"
ANSWER = f"{LONG}\n\n```python\n{CODE}\n```\n| {'a cell ' * 15}|\n\n{'这把雨伞是蓝色的。' * 12}\n"


def journal_of(folder: Path) -> str:
    """Two questions in a conversation; its id."""
    conversation = Conversation()
    turns = [ScriptedTurn("The blue one."), ScriptedTurn(ANSWER)]
    with Runtime(Settings(model="scripted/x", script=turns, journal=folder / "journal.sqlite")) as runtime:
        for question in ("Which umbrella?", LONG):
            runtime.ask_sync(question, conversation=conversation)
    return conversation.id


def fits(line: str, columns: int) -> bool:
    """A word that no line has room for, such as an address, has one of its own."""
    return width(line) <= columns or (len(line.split()) == 1 and width(line.strip()) > columns - 4)


@pytest.mark.parametrize("columns", [80, 40])
def test_lists_fit_the_terminal(callboard: Any, columns: int) -> None:
    journal_of(callboard.workspace)
    callboard.environment |= {"CALLBOARD_JOURNAL": "journal.sqlite"}
    with model_server({"data": [{"id": "org/a-model-with-a-long-name:latest"}]}) as url:
        callboard.environment |= {"OLLAMA_HOST": url.removesuffix("/v1")}
        terminal = OwnTerminal(callboard, program=("-c", LISTS), columns=columns)
        terminal.type(";".join(["tokens make", *LISTED, *TEXTS]))
        assert terminal.finish() == 0
    parts = {name: lines.rstrip("\n").split("\n") for name, _, lines in
             (part.partition("\n") for part in terminal.shown.split("## ")[1:])}  # fmt: skip
    assert len(parts) == len(LISTED) + len(TEXTS) + 2
    for name, lines in parts.items():
        assert [line for line in lines if not fits(line, columns)] == [], name
    for name, heading in LISTED.items() if columns == 80 else ():
        assert parts[name][0].startswith(f"{heading} "), "a row each"
    assert "ollama/org/a-model" in "\n".join(parts["models"])
    assert "openai/gpt-6.1-sol" in "\n".join(parts["models"])


def test_a_pipe_gets_lists_and_answers_whole(here: Any, callboard: Any) -> None:
    own = journal_of(callboard.workspace)
    rows = here("tools").out.splitlines()
    assert max(map(len, rows)) > 100
    assert not any(row.endswith("...") for row in rows)
    shown = here("journal", "show", own, "--journal", "journal.sqlite").out
    assert LONG in shown
    assert CODE in shown


def test_a_conversation_wraps_at_words_and_asks_behind_what_was_said(callboard: Any) -> None:
    """One process for all of it: each takes seconds."""
    callboard.environment |= {"PROMPT_TOOLKIT_NO_CPR": "1", "CALLBOARD_JOURNAL": "chat.sqlite"}
    edit = Call("create_file", {"path": "new.py", "content": "answer = 42\n"}, "call_1")
    turns = (Turn(ANSWER), Turn(ANSWER), Turn("I write it now:", (edit,)), Turn(f"{LONG} Written."))
    with shared_double(turns) as server:
        where = ("--model", "openai-compatible/any", "--base-url", server.base_url())
        terminal = OwnTerminal(callboard, "chat", *where, columns=80)
        for columns in (80, 40):
            terminal.resize(columns)
            terminal.next_prompt(LINE_PROMPT)
            terminal.press(b"tell me\r")
            shown = terminal.next_prompt("雨伞是蓝色的。\n")
            check_wrapped(shown, columns)
            assert f"```\n| {'a cell ' * 15}|\n\n" in shown
            assert CODE in shown
            terminal.next_prompt(LINE_PROMPT)
            terminal.press(b"/tools\r")
            listed = terminal.next_prompt("jobs")
            assert ("TOOL " in listed) == (columns == 80)
            assert "each call" in listed, "in the words of `callboard tools`"
            terminal.next_prompt(LINE_PROMPT)
            terminal.press(b"/help\r")
            helped = terminal.next_prompt("leaves\n").split("\n/model", 1)[1].split("\n")
            assert [line for line in helped if not fits(line, columns)] == []
        # What was said comes first, then the question, its diff above the rest; what is said meanwhile comes last.
        terminal.next_prompt(LINE_PROMPT)
        terminal.press(b"write it\r")
        question = terminal.next_prompt(QUESTION_PROMPT)
        said = question.index("I write it now:\n")
        asked = question.index("? create_file asks to run")
        assert said < asked < question.index("+answer = 42") < question.index("  why: ") < question.index("  touches: ")
        assert max(map(width, question[question.index("[y]es") :].split("\n"))) <= 40
        assert "Written." not in question
        wait_until(lambda: len(server.requests()) == 4)
        terminal.type("y")
        assert "umbrella" in terminal.next_prompt("Written.")
        terminal.next_prompt(LINE_PROMPT)
        terminal.press(b"/usage\r")
        terminal.next_prompt("3 answers, ")
        terminal.next_prompt(LINE_PROMPT)
        terminal.press(b"/conversations\r")
        terminal.next_prompt("tell me")
        terminal.next_prompt(LINE_PROMPT)
        terminal.press(b"\x04")
        assert terminal.finish() == 0
    check_going_on(callboard)


def check_going_on(callboard: Any) -> None:
    """By the first characters of its id: its title and its last exchange are shown."""
    (info,) = json.loads(callboard.run("journal", "list", "--json").out)
    terminal = OwnTerminal(callboard, "chat", "--conversation", info["id"][:5], columns=40)
    shown = terminal.next_prompt(LINE_PROMPT)
    assert f"conversation: {info['id'][:8]}: tell me\n> write it\n" in shown
    assert "Written.\n" in shown
    check_wrapped(shown[shown.index("> write it") : shown.index("Written.") + 8], 40)
    terminal.press(b"\x04")
    assert terminal.finish() == 0


def check_wrapped(shown: str, columns: int) -> None:
    """No line is too long but of code and tables, and none ends within a word."""
    words = set(f"{ANSWER} Written. write it >".split())
    lines = [line for line in shown.split("\n") if not line.startswith(("def ", "|")) and "\x1b" not in line]
    assert max(map(width, lines)) <= columns
    ends = [line.split()[-1] for line in lines if line.isascii() and line.split()]
    assert len(ends) > 2
    assert set(ends) <= words


@pytest.mark.parametrize("columns", [80, 40])
def test_a_note_and_an_error_wrap_at_words(callboard: Any, columns: int) -> None:
    with shared_double((Turn("half an answer", finish=FinishReason.LENGTH),)) as server:
        where = ("--model", "openai-compatible/any", "--base-url", server.base_url())
        terminal = OwnTerminal(callboard, "ask", "x", *where, columns=columns)
        assert terminal.finish() == 0
    note = terminal.shown[terminal.shown.index("The answer was cut off") :].split("\n")
    assert max(map(width, note)) <= columns + len("\x1b[0m")
    assert "The answer was cut off at the limit of output tokens" in " ".join(" ".join(note).split())
    terminal = OwnTerminal(callboard, "ask", "x", "--tools", "none.py", "--workspace", ".", columns=columns)
    assert terminal.finish() == 2
    assert max(map(width, terminal.shown.split("\n"))) <= columns


def test_interrupted_is_on_a_line_of_its_own(callboard: Any) -> None:
    """While an answer comes, while standard input is read, while a question waits."""
    (callboard.workspace / TOOLS).mkdir(parents=True)
    (callboard.workspace / TOOLS / "their_tools.py").write_text("x = 1\n")
    with shared_double((stall("It begins"),)) as server:
        where = ("--model", "openai-compatible/any", "--base-url", server.base_url())
        for words, seen in (
            (("ask", "x", *where, "--workspace", str(callboard.home)), "It"),
            (("journal", "import", "-", "--journal", "new.sqlite"), ""),
            (("trust",), "[v]iew all "),
        ):
            terminal = OwnTerminal(callboard, *words, columns=80)
            if seen:
                terminal.next_prompt(seen)
            else:
                wait_until(lambda process=terminal.process: sleeps_on_terminal(process.pid))  # type: ignore[misc]
            os.killpg(terminal.process.pid, signal.SIGINT)
            assert terminal.finish() == 130
            assert terminal.shown.endswith("\ncallboard: interrupted\n")
            if words[0] == "ask":
                assert terminal.shown.endswith("It begins\ncallboard: interrupted\n"), (
                    "the word that was held back, too"
                )


def sleeps_on_terminal(pid: int) -> bool:
    return "tty" in Path(f"/proc/{pid}/wchan").read_text() or "n_tty" in Path(f"/proc/{pid}/stack").read_text()


# -- what is typed


ALL = [each.prog for each in with_all_below(parser())]


def test_the_help_of_each_command_fits_and_begins_with_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in with_all_below(parser()):
        lines = command.format_help().split("\n")
        assert max(map(len, lines)) <= 80, command.prog
        assert lines[0][0].isupper() and lines[0].endswith("."), command.prog  # noqa: PT018 - of one line
        assert lines[2].startswith(f"usage: {command.prog} "), command.prog


@pytest.mark.parametrize("prog", ALL)
def test_a_mistake_names_the_usage_of_its_command(prog: str) -> None:
    words = prog.split()[1:]
    for typed in ((*words, "--jsno"), (*words, "--config"), ("--config", "f", *words, "--jsno", "x")):
        assert usage_of(typed).startswith(f"usage: {prog} [")


@pytest.mark.parametrize(
    ("typed", "command", "why"),
    [
        ("--model x ask q", "ask", "--model belongs behind the command: callboard ask --model"),
        ("--json tools", "tools", "--json belongs behind the command: callboard tools --json"),
        ("journal --limit 3 list", "journal list", "callboard journal list --limit"),
        ("tokens --json list", "tokens list", "callboard tokens list --json"),
        ("--url http://x chat", "chat", "callboard chat --url"),
        ("serve --port x", "serve", "'x' is no whole number"),
        ("rules --remove 0", "rules", "'0' is below 1"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(typed: str, command: str, why: str) -> None:
    with pytest.raises(WrongArguments, match=why) as wrong:
        parser().parse_args(typed.split())
    assert wrong.value.usage.startswith(f"usage: callboard {command} ")


def usage_of(typed: tuple[str, ...]) -> str:
    with pytest.raises(WrongArguments) as wrong:
        parser().parse_args(typed)
    return wrong.value.usage
