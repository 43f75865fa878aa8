"""What a real terminal gets to see: nothing of a model, tool, file, server or argument that it would act on."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support.model_server import model_server
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Call, RawAnswer, Turn

MODEL = "openai-compatible/any"
#: Sets the title, changes the colour, clears the screen, goes back in the line, reorders, rings.
EVIL = "\x1b]0;evil\x07\x1b[31m\x1b[2J\x9b1mone\rtwo\u202e\b\x07"
ACTED_ON = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SGR = re.compile("\x1b\\[(?:0|2|33)m")


def seen(callboard: Any, *arguments: str, **environment: str) -> tuple[str, int]:
    """All that a terminal, which is both stdout and stderr, gets; and the exit status."""
    callboard.environment |= {"TERM": "xterm", **environment}
    ours, theirs = os.openpty()
    process = callboard.start(*arguments, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    return shown.decode().replace("\r\n", "\n"), process.wait(60)  # the terminal's driver writes \r\n for \n


def after_the_bar(shown: str) -> str:
    """What is left on the screen: the progress bar is erased when the index is up to date."""
    return shown.rpartition("\x1b[1A\x1b[2K")[2]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the other end is closed
        return b""


def assert_harmless(shown: str) -> None:
    assert ACTED_ON.findall(SGR.sub("", after_the_bar(shown))) == []


@pytest.mark.parametrize("fragment", [1, 1_000])
def test_the_answer_of_a_model(callboard: Any, fragment: int) -> None:
    with shared_double([Turn(f"before {EVIL} after\n", fragment=fragment)]) as server:
        shown, status = seen(callboard, "ask", "x", "--model", MODEL, "--base-url", server.base_url())
    assert (after_the_bar(shown), status) == ("before onetwo after\n", 0)


def test_an_answer_with_a_sequence_that_never_ends(callboard: Any) -> None:
    with shared_double([Turn("before \x1b]0;all of it is shown")]) as server:
        shown, _ = seen(callboard, "ask", "x", "--model", MODEL, "--base-url", server.base_url())
    assert after_the_bar(shown) == "before 0;all of it is shown\n"


def test_a_pipe_gets_the_answer_as_it_is(callboard: Any) -> None:
    with shared_double([Turn(f"{EVIL}\n")]) as server:
        ran = callboard.run("ask", "x", "--model", MODEL, "--base-url", server.base_url())
    assert ran.out == f"{EVIL}\n"


def test_calls_and_their_failures(callboard: Any) -> None:
    calls = (
        Call("read_file", {"path": EVIL}, "call_a"),
        Call(f"tool{EVIL}", {"x": EVIL}, "call_b"),
        Call("list_dir", f'{{"path": "{EVIL}"', "call_c"),
    )
    with shared_double([Turn(EVIL, calls), Turn("Done.")]) as server:
        shown, status = seen(callboard, "ask", "x", "--model", MODEL, "--base-url", server.base_url())
    assert status == 0
    assert "read_file" in shown
    assert_harmless(shown)


def test_the_error_of_a_server(callboard: Any) -> None:
    for command, answer in (("ask x", RawAnswer({"error": {"message": EVIL}}, 400)), ("doctor", RawAnswer(EVIL, 500))):
        with shared_double([answer]) as server:
            shown, status = seen(callboard, *command.split(), "--model", MODEL, "--base-url", server.base_url())
        assert (status, "one two" in shown) == (1, True)
        assert_harmless(shown)


def test_the_names_of_files_and_what_is_in_them(callboard: Any) -> None:
    (callboard.workspace / f"weather{EVIL}.py").write_text(f"def weather_of_mars(): return '{EVIL}'\n")
    for command in (["ask", "where is the weather of mars?"], ["index"], ["tools"]):
        shown, status = seen(callboard, *command)
        assert status == 0
        assert_harmless(shown)


@pytest.mark.parametrize(
    "arguments",
    [[EVIL], ["ask", "x", f"--{EVIL}"], ["ask", "x", "--model", EVIL], ["index", EVIL], ["login", EVIL]],
    ids=["command", "option", "model", "folder", "provider"],
)
def test_arguments_that_an_error_repeats(here: Any, arguments: list[str]) -> None:
    ran = here(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ACTED_ON.findall(ran.err) == []


def test_models_and_profiles_that_are_listed(callboard: Any, here: Any) -> None:
    with model_server({"data": [{"id": f"a{EVIL}"}, {"id": "b"}]}) as url:
        ran = here("ask", "x", "--base-url", url)
    assert "openai-compatible/aonetwo, openai-compatible/b" in ran.sentence
    assert ACTED_ON.findall(ran.err) == []
    (callboard.home / ".config" / "callboard").mkdir(parents=True)
    section = json.dumps(EVIL)  # as TOML writes a name in quotes
    (callboard.home / ".config" / "callboard" / "config.toml").write_text(f"[profiles.{section}]\nmax_steps = 1\n")
    ran = here("ask", "x", "--profile", "no")
    assert "it has: onetwo" in ran.sentence
    assert ACTED_ON.findall(ran.err) == []


def many_files(folder: Path) -> None:
    for number in range(20):
        (folder / f"module_{number}.py").write_text("def f(): pass\n" * 20)


def test_colours_and_a_bar_on_a_terminal(callboard: Any) -> None:
    many_files(callboard.workspace)
    shown, _ = seen(callboard, "ask", "weather")
    assert "\x1b[2m> request_code_context" in shown
    assert re.search("\x1b\\[[0-9;]*m.*\x1b\\[[0-9;]*[A-LSTf]", shown, re.S), "the bar moves"


def test_no_color_leaves_the_bar_and_takes_every_colour(callboard: Any) -> None:
    many_files(callboard.workspace)
    shown, _ = seen(callboard, "ask", "weather", NO_COLOR="1")
    assert "> request_code_context" in shown
    assert "indexing" in shown
    assert not re.search("\x1b\\[[0-9;:]*m", shown)


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_no_sequence_at_all(callboard: Any, term: str) -> None:
    many_files(callboard.workspace)
    shown, status = seen(callboard, "ask", "weather", TERM=term)
    assert (status, "> request_code_context" in shown) == (0, True)
    assert "\x1b" not in shown
