"""Lines that wrap at words, and tables that fit: for any text, any width, and any cut of a text in pieces."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.imports import parsed

from callboard.actors import cli
from callboard.actors.cli.columns import WordWrap, counted, shortened, table, width, wrapped

WORDS = st.lists(st.sampled_from(["a", "word", "longer", "“quoted”", "naïve", "中文", "字。", "👩", "é", "x" * 30]))
LINES = ("```python\n", "| a | b |\n", "- item ", "1. ", "    code ")
PIECES = st.sampled_from(("word ", "another", "\n", "```", "中文文本", "。", " ", "\t", *LINES))
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))


@st.composite
def cuts(draw: st.DrawFn) -> list[str]:
    text = draw(TEXTS)
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in pairwise([0, *at, len(text)])]


def streamed(pieces: list[str], columns: int | None) -> str:
    wrap = WordWrap(lambda: columns)
    return "".join(map(wrap.feed, pieces)) + wrap.finish()


@given(cuts(), st.sampled_from([None, 10, 40, 80]))
@example(["- it", "em ", "wo", "rd"], 10)
@example(["an", "otherxxxxxxxxx", "xx|", " a"], 10)
@example(["中文", "文本anotherxxxxxxxx", "文本"], 10)
def test_any_cut_of_a_text_is_shown_alike(pieces: list[str], columns: int | None) -> None:
    assert streamed(pieces, columns) == streamed(["".join(pieces)], columns)
    assert "".join(streamed(pieces, 10).split()) == "".join("".join(pieces).split())
    if columns is None:
        assert streamed(pieces, columns) == "".join(pieces)


@given(WORDS, st.sampled_from([20, 40, 80]))
def test_no_line_is_too_long_and_no_word_is_lost(words: list[str], columns: int) -> None:
    lines = wrapped(" ".join(words), columns, "  ").split("\n")
    assert all(width(line) <= columns or "x" * 30 in line for line in lines)
    assert "".join("".join(lines).split()) == "".join(words)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one two three four five", "one two three\nfour five"),
        ("one two three fourteen", "one two three\nfourteen"),
        ("- one two three four", "- one two\n  three four"),
        ("12. one two three", "12. one two\n    three"),
        ("```\none two three four\n```\none two three four", "```\none two three four\n```\none two three\nfour"),
        ("    one two three four", "    one two three four"),
        ("| one | two | three |", "| one | two | three |"),
        ("中文文本没有空格所以", "中文文本没有空\n格所以"),
        ("中文文本没有空。所以", "中文文本没有\n空。所以"),
        ("see https://example.org/a?b=c it", "see\nhttps://example.org/a?b=c it"),
        ("  two  blanks", "  two  blanks"),
    ],
)
def test_each_kind_of_line(text: str, shown: str) -> None:
    assert streamed([text], 14) == shown


def test_a_word_is_shown_when_it_is_whole() -> None:
    wrap = WordWrap(lambda: 14)
    assert [wrap.feed(each) for each in ("one two th", "ree fo", "ur", " ")] == ["one two", " three", "", "\nfour"]


def test_the_width_is_that_of_the_terminal_when_the_line_begins() -> None:
    now = [20]
    wrap = WordWrap(lambda: now[0])
    shown = wrap.feed("one two three four five\n")
    now[0] = 10
    assert shown + wrap.feed("one two three\n") == "one two three four\nfive\none two\nthree\n"


def test_a_terminal_that_gets_another_width_within_a_line() -> None:
    now = [20]
    wrap = WordWrap(lambda: now[0])
    shown = wrap.feed("one two three four five six ")
    now[0] = 10
    shown += wrap.feed("seven eight nine ten eleven twelve\n")
    assert shown == "one two three four\nfive six seven eight\nnine ten\neleven\ntwelve\n"


ROWS = [("NAME", "N", "WHAT IT IS"), ("read_file", "1", "Read a text file."), ("todo", "12", "中文" * 10)]


@pytest.mark.parametrize("columns", [None, 120, 80, 40, 34, 20])
def test_a_table_has_a_row_each_or_a_block_where_there_is_no_room(columns: int | None) -> None:
    lines = table(ROWS, columns).split("\n")
    assert columns is None or max(map(width, lines)) <= columns
    is_table = columns is None or columns >= 34
    assert len(lines) == 3 if is_table else "  what it is: Read a\n    text file." in "\n".join(lines)
    if is_table:
        assert ("..." in lines[2]) == (columns is not None and columns < 55)


def test_only_the_columns_are_cut_that_may_be() -> None:
    rows = [("A" * 20, "B", "C"), ("a" * 20, "b" * 40, "c" * 40)]
    assert table(rows, 80, (1, 2)).split("\n")[1] == f"{'a' * 20}  {'b' * 25}...  {'c' * 25}..."


@pytest.mark.parametrize(("text", "shown"), [("abcdef", "abcdef"), ("abcdefg", "abc..."), ("中文文本", "中...")])
def test_what_is_cut_has_dots(text: str, shown: str) -> None:
    assert shortened(text, 6) == shown


@pytest.mark.parametrize(
    ("number", "words", "shown"),
    [
        (0, ("answer",), "0 answers"),
        (1, ("answer",), "1 answer"),
        (2, ("tool call",), "2 tool calls"),
        (1, ("request has", "requests have"), "1 request has"),
        (1_000, ("request has", "requests have"), "1,000 requests have"),
    ],
)
def test_a_number_and_its_word_agree(number: int, words: tuple[str, ...], shown: str) -> None:
    assert counted(number, *words) == shown


#: Numbers that are never 1: limits, and how many there are to choose from.
NEVER_ONE = ("MAX_", "MOST_", "len(names)", "context_tokens", "PATIENCE_SECONDS")


def test_no_message_writes_a_number_before_a_plural_itself() -> None:
    """1 answers, 1 faults: `counted` writes both."""
    offenders = []
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.JoinedStr):
                offenders += [f"{path.name}:{node.lineno} {each}" for each in _counts_in(node)]
    assert offenders == []


def _counts_in(text: ast.JoinedStr) -> Iterator[str]:
    for value, behind in pairwise(text.values):
        if not isinstance(value, ast.FormattedValue) or not isinstance(behind, ast.Constant):
            continue
        source = ast.unparse(value.value)
        is_number = ast.unparse(value).endswith(":,}'") or source.startswith("len(")
        if (
            is_number
            and not any(each in source for each in NEVER_ONE)
            and re.match(r" ([a-z]+ )?[a-z]+s\b", behind.value)
        ):
            yield f"{source}{behind.value}"
