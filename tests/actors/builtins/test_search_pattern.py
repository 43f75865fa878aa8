"""What is told of a regular expression: literal pieces that each of its matches has, and what ripgrep can be given."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.builtins.ripgrep import files_with, find_ripgrep
from callboard.actors.builtins.search_pattern import needles_of, pattern_of
from callboard.protocol.errors import ToolError


@pytest.mark.parametrize(
    ("regex", "needles"),
    [
        ("foo", ("foo",)),
        (r"def \w+_handler\(", ("_handler(",)),
        ("foo|ba[rz]", ("foo", "ba")),
        ("foo|[xy]", ()),
        ("colou?r", ("colo",)),
        ("ab+cd*e", ("ab",)),
        ("xa{2,3}yz", ("yz",)),
        (r"(foo|bar)baz", ("baz",)),
        (r"(?:a(?P<x>[)])b)tail", ("tail",)),
        (r"a\.b\|c", ("a.b|c",)),
        ("[]abc]xy", ("xy",)),
        (r"[\]abc]xy", ("xy",)),
        (r"\x41BC", ()),
        (r"(a)\1bcd", ()),
        ("(?i)foo", ()),
        ("^foo$", ("foo",)),
        ("a{b}", ("a{b}",)),
        (r"\bword\b", ("word",)),
    ],
)
def test_the_longest_piece_of_each_alternative(regex: str, needles: tuple[str, ...]) -> None:
    re.compile(regex)
    assert needles_of(regex) == needles


PIECES = r"a bc K ß . \. \d \w \s [ab] [^a] []\]x] (ab|c) (?:d) x* y? z+ w{2} v{0,1} | _ \( { - (e(f|g)h)? \\ i s"
pieces = st.sampled_from([*PIECES.split(), " "])
regexes = st.lists(pieces, min_size=1, max_size=6).map("".join)


@given(regexes.filter(lambda each: _is_valid(each)), st.data())
def test_each_match_has_one_of_the_needles(regex: str, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(regex, fullmatch=True))
    needles = needles_of(regex)
    assert not needles or any(needle in text for needle in needles)


@given(regexes.filter(lambda each: _is_valid(each)), st.booleans(), st.data())
def test_a_file_with_a_match_is_worth_looking_into(regex: str, ignores_case: bool, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(re.compile(regex, re.IGNORECASE if ignores_case else 0), fullmatch=True))
    try:
        pattern = pattern_of(regex, is_regex=True, ignores_case=ignores_case)
    except ToolError:
        return  # it matches the empty text
    assert pattern.may_be_in(f"before{text}behind".encode())


def _is_valid(regex: str) -> bool:
    try:
        re.compile(regex)
    except re.error:
        return False
    return True


@pytest.mark.parametrize(
    ("query", "is_regex", "words"),
    [
        ("", False, "1 to 1,000 characters"),
        ("x" * 1_001, False, "1 to 1,000 characters"),
        ("a\nb", False, "one line of text"),
        ("a\0b", True, "one line of text"),
        ("(", True, "a regular expression of Python's .missing"),
        ("a{99999999999}", True, "a regular expression of Python's"),
        ("x*", True, "does not match the empty text"),
        ("^", True, "does not match the empty text"),
    ],
)
def test_a_query_that_finds_nothing_or_all_is_refused(query: str, is_regex: bool, words: str) -> None:
    with pytest.raises(ToolError, match=words) as refusal:
        pattern_of(query, is_regex=is_regex, ignores_case=False)
    assert refusal.value.field == "query"


RIPGREP = find_ripgrep(Path("/nowhere"))
SHARED = [
    *(r"[A-Z]\d?\w", r"\w+\s\w", r"[\s,]x", "a.c", "(ab|cd)+"),
    *(r"\bf", r"x[^\s]y", r"[a-f\-]{3}", r"\S\W\D", "i.s"),
]


@pytest.mark.skipif(RIPGREP is None, reason="ripgrep is not installed; the tests of our own search always run")
@pytest.mark.parametrize("regex", SHARED)
@pytest.mark.parametrize("ignores_case", [False, True])
def test_what_python_finds_ripgrep_finds(tmp_path: Path, regex: str, ignores_case: bool) -> None:
    pattern = pattern_of(regex, is_regex=True, ignores_case=ignores_case)
    assert pattern.shared
    assert not pattern.needles
    texts = [_example(regex, number) for number in range(60)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(text)
    with_match = {
        str(tmp_path / f"{number}.txt")
        for number, text in enumerate(texts)
        if any(pattern.regex.search(line) for line in text.decode().split("\n"))
    }
    found = files_with(str(RIPGREP), str(tmp_path), pattern, 10**6, 20.0)
    assert found is not None
    assert with_match <= set(found)
    assert with_match


@pytest.mark.skipif(RIPGREP is None, reason="ripgrep is not installed; the tests of our own search always run")
def test_ripgrep_takes_every_character_of_a_needle(tmp_path: Path) -> None:
    """A backslash before some of them is an error for it, and the search would be slow without a word."""
    text = "".join(map(chr, range(32, 127))) + "Ä\u2028ß"
    (tmp_path / "a.txt").write_text(text)
    for ignores_case in (False, True):
        pattern = pattern_of(text, is_regex=False, ignores_case=ignores_case)
        assert files_with(str(RIPGREP), str(tmp_path), pattern, 10**6, 20.0) == [str(tmp_path / "a.txt")]


def _example(regex: str, number: int) -> bytes:
    """Texts of the characters that this expression and white space are about, the same in each run."""
    letters = "AZ09abcdf x,y-_\t\x1c\x1f\n.is\u0130\u212aß"
    state, text = number + 1, ""
    for _ in range(30):
        state = (state * 1_103_515_245 + 12_345 + len(regex)) % 2**31
        text += letters[(state >> 16) % len(letters)]
    return text.encode()


@pytest.mark.parametrize(
    "regex", [r"a\Z[b]", "(?=a)[b]", "[a&&b]c", "[[a]b]c", r"x$[y]", "[+--]c", r"\<[a]b", r"[^\S]x"]
)
def test_what_the_two_may_read_differently_is_not_given_to_ripgrep(regex: str) -> None:
    assert pattern_of(regex, is_regex=True, ignores_case=False).shared == ""


def test_a_ripgrep_in_the_workspace_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "rg"
    program.write_text("#!/bin/sh\ntouch ran\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_ripgrep(tmp_path) is None
    assert find_ripgrep(tmp_path / "below") == str(program)


@pytest.mark.parametrize("script", ["#!/nowhere/interpreter\n", "#!/bin/sh\necho bad >&2\nexit 2\n"])
def test_a_ripgrep_that_does_not_work_is_no_answer(tmp_path: Path, script: str) -> None:
    program = tmp_path / "rg"
    program.write_text(script)
    program.chmod(0o755)
    pattern = pattern_of("foo", is_regex=False, ignores_case=False)
    assert files_with(str(program), str(tmp_path), pattern, 10**6, 20.0) is None


def test_a_ripgrep_that_does_not_end_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "rg"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    pattern = pattern_of("foo", is_regex=False, ignores_case=False)
    with pytest.raises(subprocess.TimeoutExpired):
        files_with(str(program), str(tmp_path), pattern, 10**6, 0.2)
