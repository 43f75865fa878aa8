"""What a person decides on is whole, and nothing in it draws nothing or looks like another line; masks leave code."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.shown_texts import HOSTILE_TEXTS, unescaped

from callboard.protocol.masking import SIGNS, for_log, mask
from callboard.protocol.readers import for_decision, json_for_decision, name_for_decision, one_line_for_decision

HIDDEN = {
    "control": "\x1b[2K",
    "return": "\r",
    "line separator": "\u2028",
    "next line": "\x85",
    "bidi override": "\u202e",
    "isolate": "\u2067",
    "zero-width space": "\u200b",
    "zero-width joiner": "\u200d",
    "word joiner": "\u2060",
    "soft hyphen": "\xad",
    "no-break space": "\xa0",
    "em space": "\u2003",
    "ideographic space": "\u3000",
    "Hangul filler": "\u3164",
    "half-width filler": "\uffa0",
    "blank of Braille": "\u2800",
    "variation selector": "\ufe0f",
    "tag": "\U000e0041",
    "byte order mark": "\ufeff",
    "private use": "\ue000",
    "half of a pair": "\ud800",
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
def test_what_is_not_seen_is_an_escape_everywhere(hidden: str) -> None:
    for shown in (
        for_decision(f"a{hidden}b"),
        one_line_for_decision(f"a{hidden}b"),
        name_for_decision(f"a{hidden}b"),
        json_for_decision({f"a{hidden}b": f"a{hidden}b"}),
    ):
        assert "\\" in shown
        assert not set(hidden).difference("[2K") & set(shown)
        assert "a" in shown
        assert "b" in shown


@pytest.mark.parametrize(
    "text", ["rm -rf x", "größe = 'é'", "grep 'a\\.b' x", "日本語 ok", "a  b", "x = {\n\ty\n}\n", "\\d\\w"]
)
def test_ordinary_texts_are_shown_as_they_are(text: str) -> None:
    assert for_decision(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "note\n? evil asks to run (read)\n  path",
        "a\tb",
        "a\u2028b",
        "path\u00a0",
        "path ",
        " path",
        "a" + " " * 70 + "? evil asks to run",
        "a\u3164b",
        'a": "b',
        "",
        "touches",
        "asked by",
        "x" * 61,
    ],
)
def test_a_name_that_is_no_plain_word_is_quoted_and_in_one_line(name: str) -> None:
    shown = name_for_decision(name, {"touches"})
    assert re.fullmatch(r'"[^\n\t]*"', shown)
    assert "  " not in shown
    assert shown.isprintable()


@pytest.mark.parametrize("name", ["path", "file_path", "dry-run", "größe", "a.b", "x1"])
def test_a_plain_name_is_shown_as_it_is(name: str) -> None:
    assert name_for_decision(name, {"touches"}) == name


@given(HOSTILE_TEXTS)
@example("\\\x1b")
@example("\\x1b")
@example("\\\\x1b\r")
@example("\\r\r\\")
def test_no_two_texts_look_the_same_and_nothing_is_missing(text: str) -> None:
    for shown, letters in ((for_decision(text), "r"), (one_line_for_decision(text), "rnt")):
        assert unescaped(shown, letters) == text
        assert all(each.isprintable() for each in shown.replace("\t", "").split("\n"))
    assert "\n" not in one_line_for_decision(text)
    assert for_decision(text).count("\n") == text.count("\n")


def test_every_blank_and_control_of_unicode_is_an_escape() -> None:
    characters = "".join(map(chr, (*range(0x10000), *range(0xE0000, 0xE1000))))
    shown = one_line_for_decision(f"a{characters}b")
    assert {each for each in shown if unicodedata.category(each)[0] in "CZ"} <= {" "}


def test_masked_texts_are_not_for_decisions() -> None:
    """mypy says so: see tests/test_typing.py. At run time they are plain texts."""
    assert for_log("x") == mask("x") == "x"


@given(HOSTILE_TEXTS.map(lambda text: text.replace("\r", "")))
@example("machine h login a password hunter2;touch${IFS}pwned")
@example("--token Zq9Lm3Xc7A;./pwned.sh")
@example('password = "Zq9;Lm3|Xc7A"')
@example("https://u:Zq9;Lm3|Xc7A@h/")
@example("https://h/?sig=Zq9Lm3Xc7A12;ls|sh")
def test_no_mask_covers_a_sign_of_code(text: str) -> None:
    shown, data = mask(text).encode(errors="surrogatepass"), text.encode(errors="surrogatepass")
    assert [at for at, byte in enumerate(data) if byte in SIGNS] == [
        at for at, byte in enumerate(shown) if byte in SIGNS
    ]


@pytest.mark.parametrize(
    "code",
    [
        "echo machine h login a password ;touch${IFS}pwned",
        "echo machine h login a password hunter2;touch${IFS}pwned",
        "X = 'machine h login a password ';__import__('os').system('pwned')",
        "npm run deploy -- --token Zq9Lm3Xc7A;./pwned.sh",
        "npm run deploy -- --token Zq9Lm3Xc7A|./pwned.sh",
        "curl 'https://h/?key=Zq9Lm3Xc7A12;pwned'",
        "TOKEN=Zq9Lm3Xc7A12&&./pwned.sh",
        "PASSWORD=Zq9Lm3Xc7A12;./pwned.sh",
        "curl -H 'Authorization: Bearer Zq9Lm3Xc7A12';./pwned.sh",
        "export A=sk-Zq9Lm3Xc7A12Zq9Lm3Xc7A12;./pwned.sh",
    ],
)
def test_code_behind_what_looks_like_a_key_is_not_covered(code: str) -> None:
    shown = mask(code)
    assert "pwned" in shown
    assert code.endswith(shown[-5:])


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_many_more_texts_are_told_apart(text: str) -> None:
    assert unescaped(for_decision(text), "r") == text
