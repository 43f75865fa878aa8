"""`callboard ask ... -`: a question about what standard input holds, and a question from there."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shared_double import shared_double

from callboard.actors.cli.question import MAX_INPUT_BYTES, about
from callboard.actors.testing.wire_double import Turn

MODEL = "openai-compatible/any"
DONE, USAGE = 0, 2
Until = Callable[[Callable[[], bool]], None]


def asked(callboard: Any, data: bytes, *arguments: str) -> tuple[Any, str]:
    """What came of it, and the user's message that the server got ("" for none)."""
    source = callboard.home / "input"
    source.write_bytes(data)
    with shared_double([Turn("Understood.")]) as server, open(source, "rb") as stdin:
        where = ("--model", MODEL, "--base-url", server.base_url())
        ran = callboard.finish(callboard.start("ask", *arguments, *where, stdin=stdin))
        bodies = server.traffic().bodies
    texts = [each["content"] for body in bodies for each in body["messages"] if each["role"] == "user"]
    return ran, texts[0] if texts else ""


def test_standard_input_is_added_to_the_question(callboard: Any) -> None:
    ran, text = asked(callboard, "first\nsecond: Grüße\n".encode(), "what is this?", "-")
    assert (ran.status, ran.out) == (DONE, "Understood.\n")
    assert text.startswith("what is this?\n")
    assert text.endswith("\n```\nfirst\nsecond: Grüße\n```")


def test_the_question_itself_comes_from_standard_input(callboard: Any) -> None:
    ran, text = asked(callboard, b"  where is\nthe weather?\n", "-")
    assert (ran.status, text) == (DONE, "where is\nthe weather?")


def test_bytes_that_are_not_utf_8_are_replaced(callboard: Any) -> None:
    ran, text = asked(callboard, b"\xef\xbb\xbfcaf\xe9", "what is this?", "-")
    assert ran.status == DONE
    assert "\ncaf\N{REPLACEMENT CHARACTER}\n" in text


@pytest.mark.parametrize(
    ("data", "arguments", "says"),
    [
        (b"", ["what?", "-"], "standard input is empty"),
        (b" \n", ["-"], "standard input is empty"),
        (b"x" * (MAX_INPUT_BYTES + 1), ["what?", "-"], "holds more than 1,048,576 bytes"),
        (b"text", ["-", "-"], "cannot both be standard input"),
        (b"text", ["", "-"], "the question is empty"),
    ],
    ids=["empty", "blank", "too large", "twice", "no question"],
)
def test_what_cannot_be_asked(
    here: Any, callboard: Any, data: bytes, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    ran = here("ask", *arguments)
    assert says in ran.sentence
    assert (ran.status, ran.out) == (USAGE, "")
    assert not (callboard.workspace / ".callboard").exists()


def test_a_terminal_or_nothing_as_standard_input(callboard: Any) -> None:
    ours, theirs = os.openpty()
    ran = callboard.finish(callboard.start("ask", "what?", "-", stdin=theirs))
    os.close(ours)
    os.close(theirs)
    assert "reads standard input, which is the terminal" in ran.sentence
    assert ran.status == USAGE
    ran = callboard.finish(callboard.start("ask", "what?", "-", preexec_fn=lambda: os.close(0)))
    assert "standard input is closed" in ran.sentence
    assert ran.status == USAGE


def test_ctrl_c_while_standard_input_is_waited_for(callboard: Any, until: Until) -> None:
    process = callboard.start("ask", "what?", "-", stdin=subprocess.PIPE)
    waits = Path(f"/proc/{process.pid}/syscall")  # 0 is read(2) on x86_64, 63 on arm64; then the descriptor
    until(lambda: waits.read_text().split()[:2] in (["0", "0x0"], ["63", "0x0"]))
    os.killpg(process.pid, signal.SIGINT)
    process.stdin.close()
    process.stdin = None
    ran = callboard.finish(process)
    assert ran.sentence == "interrupted"
    assert ran.status == 130


@given(st.text(st.sampled_from("`\n a")))
def test_no_text_ends_its_own_fence(text: str) -> None:
    lines = about("question", text).splitlines()
    fence = lines[-1]
    assert set(fence) == {"`"}
    assert [line for line in lines if line.startswith(fence)] == [fence, fence]
