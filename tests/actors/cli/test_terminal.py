"""What reaches a terminal: the same for any cut of a text, and without anything that a terminal acts on."""

from __future__ import annotations

import io
import json
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.actors.cli.terminal import (
    MAX_CONTROL_STRING_CHARS,
    TerminalText,
    cleaned,
    escaped,
    printable,
    shows_colour,
    shows_motion,
)

#: Pieces of which attacks are made, and ordinary text between them.
SEQUENCES = [
    "\x1b",
    "\x1b[",
    "\x1b]",
    "\x1bP",
    "\x1b_",
    "\x1b^",
    "\x1bX",
    "\x1b\\",
    "\x07",
    "\x9b",
    "\x9c",
    "\x9d",
    "\x90",
]
PARTS = [
    "[",
    "]",
    "31",
    ";",
    "m",
    "\\",
    "0;title",
    " ",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\x00",
    "\x7f",
    "\x18",
    "\x85",
    "\u202e",
]
TEXT_PARTS = ["é", "ab", "👩\u200d💻", "\u2066", "\ufeff", "\ud800"]
PIECES = st.sampled_from([*SEQUENCES, *PARTS, *TEXT_PARTS])
TEXTS = st.one_of(
    st.text(), st.lists(PIECES, max_size=40).map("".join), st.lists(PIECES | st.text(max_size=5)).map("".join)
)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(TEXTS)
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[start:end] for start, end in pairwise([0, *at, len(text)])]


def streamed(pieces: list[str]) -> str:
    terminal = TerminalText()
    return "".join(map(terminal.feed, pieces)) + terminal.finish()


@given(cuts())
@example(("\x1b]0;x\x1b\\y", ["\x1b]0;x\x1b", "\\y"]))
@example(("\x1b[31mred", ["\x1b", "[3", "1", "mred"]))
def test_any_cut_of_a_text_gives_the_same(given_cuts: tuple[str, list[str]]) -> None:
    text, pieces = given_cuts
    assert streamed(pieces) == cleaned(text)


@given(TEXTS)
def test_nothing_is_left_that_a_terminal_acts_on(text: str) -> None:
    shown = cleaned(text)
    assert [char for char in shown if unicodedata.category(char) == "Cc" and char not in "\n\t"] == []
    bidi = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    assert [char for char in shown if unicodedata.bidirectional(char) in bidi] == []
    assert cleaned(shown) == shown


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Zl", "Zp", "Mn", "Cn", "Cs")) | st.sampled_from("\n\t")))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert cleaned(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b[38:2::255:0:0 qx", "x"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"),
        ("\x1b]8;;http://evil\x1b\\bank.com\x1b]8;;\x1b\\", "bank.com"),
        ("a\x9d0;title\x9cb", "ab"),
        ("a\x1bPq#0\n~~\x1b\\b", "ab"),
        ("a\x1b_hidden\x1b\\b\x1b^hidden\x1b\\c\x1bXhidden\x1b\\d", "abcd"),
        ("a\x1bcb", "ab"),
        ("a\x1b(0b", "ab"),
        ("a\x1b", "a"),
        ("a\x1b[", "a"),
        ("a\x1b[31", "a"),
        ("a\x1b[3世", "a世"),
        ("yes\rno", "yesno"),
        ("one\r\ntwo", "one\ntwo"),
        ("a\bb\x7fc\x00d\x0be\x0cf\x85g", "abcdefg"),
        ("is \u202eevil\u202c \u2066x\u2069", "is evil x"),
        ("pay\u200bpal\u00ad \ufeff\u200e\U000e0041", "paypal "),
        ("one\u2028two", "one\ntwo"),
        ("👩\u200d💻 می\u200cخواهم ❤\ufe0f", "👩\u200d💻 می\u200cخواهم ❤\ufe0f"),
    ],
)
def test_each_kind_of_sequence(text: str, shown: str) -> None:
    assert cleaned(text) == shown


def test_a_control_string_that_never_ends_does_not_swallow_the_answer() -> None:
    terminal = TerminalText()
    assert terminal.feed("before \x1b]0;oops") == "before "
    assert terminal.feed(" the answer" * MAX_CONTROL_STRING_CHARS).startswith("0;oops the answer the answer")
    assert terminal.feed("!") == "!"
    short = TerminalText()
    assert short.feed("\x1b]0;the whole answer") == ""
    assert short.finish() == "0;the whole answer"


def test_many_unfinished_sequences_take_linear_time() -> None:
    """A pattern that looked again from each of them would take hours, and the test's deadline ends it."""
    for sequence in ("\x1b]", "\x9d", "\x1b[", "\x1b", "\x1b]a", "\x1b[1"):
        assert len(cleaned(sequence * 300_000)) <= 300_000
        assert len(streamed([sequence] * 20_000)) <= 20_000


@given(TEXTS)
def test_a_message_is_one_line(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert shown == cleaned(text).translate({10: " ", 9: " "})


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_keeps_its_value_and_shows_nothing_that_a_terminal_acts_on(text: str) -> None:
    shown = escaped(json.dumps(text, ensure_ascii=False))
    assert json.loads(shown) == text
    assert cleaned(shown) == shown


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "motion", "colour"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "0"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": ""}, False, False),
        ({}, False, False),
    ],
)
def test_what_the_environment_says_of_a_terminal(
    environment: dict[str, str], motion: bool, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (shows_motion(_Terminal()), shows_colour(_Terminal())) == (motion, colour)
    assert (shows_motion(io.StringIO()), shows_colour(io.StringIO())) == (False, False)
