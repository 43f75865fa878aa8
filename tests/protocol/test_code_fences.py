"""The fence: what is rendered is read back byte for byte, what is malformed is said."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.protocol.code_fences import (
    AssembledContext,
    CodeFence,
    ContextItem,
    MalformedFence,
    parse_fences,
    render_fence,
)

PATHS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
CODE = st.text(st.characters(exclude_categories=["Cs"]))


@given(PATHS, CODE, st.integers(0, 10**9), st.text(st.sampled_from("ab \n"), max_size=20))
@example('a"b&amp;c\n.py', "x", 0, "")
@example("a.py", "one\n</code>\ntwo", 5, "")
@example("a.py", "", 7, "")
@example("a.py", "\n", 7, "")
@example("a.py", "tail\n", 7, "")
@example("a.py", "\r\n</code>\r", 7, "")
def test_a_rendered_fence_is_read_back(path: str, code: str, start: int, around: str) -> None:
    end = start + len(code.encode())
    text = around + render_fence(path, start, end, code) + around
    assert parse_fences(text) == [CodeFence(path, start, end, code, len(around))]


@given(
    st.lists(st.sampled_from(['<code="a.py" #1:2>', "<code=", "</code>", "\n", "x", '"', "#1:2>", " ", "é"])).map(
        "".join
    )
)
def test_any_text_is_parsed_without_failing(text: str) -> None:
    for found in parse_fences(text):
        assert text.startswith("<code", found.position)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<code="a.py">\nx\n</code>', "span"),
        ('<code="a.py" #9:3>\nx\n</code>', "ends before it starts"),
        ('<code="a.py" #1:3>\nx', "never closed"),
        ('<code="a.py" #1:3> x\n</code>', "line after the opening"),
        ("<code=a.py #1:3>\nx\n</code>", "double quotes"),
        ('<code="a.py" #1:3\nx\n</code>', "does not end with >"),
        ('<code="" #1:3>\nx\n</code>', "double quotes"),
    ],
)
def test_what_is_malformed_is_said(text: str, reason: str) -> None:
    (found,) = parse_fences(text)
    assert isinstance(found, MalformedFence)
    assert reason in found.reason


def test_code_edited_by_a_model_may_have_another_length() -> None:
    text = 'Change it:\n\n<code="/r/a.py" #10:20>\ndef f():\n    return 2\n</code>\nDone. <code>inline</code> is HTML.'
    assert parse_fences(text) == [CodeFence("/r/a.py", 10, 20, "def f():\n    return 2", 12)]


def test_a_bad_fence_does_not_hide_the_next_one() -> None:
    text = '<code="a.py">\nx\n</code>\n' + render_fence("b.py", 0, 1, "y")
    first, second = parse_fences(text)
    assert isinstance(first, MalformedFence)
    assert isinstance(second, CodeFence)


def test_the_json_of_a_context_says_path_and_names_once() -> None:
    item = ContextItem("/r/a.py", "1-2", ("a.C.f", "a.C.g"), render_fence("/r/a.py", 0, 3, "def"))
    shown = {"lines": "1-2", "symbols": ("a.C.f", "a.C.g"), "snippet": '<code="/r/a.py" #0:3>\ndef\n</code>'}
    assert AssembledContext(("q",), (item,)).as_json() == {
        "version": 1,
        "ok": True,
        "queries": ("q",),
        "fit": "unsure",
        "context": [shown],
    }
    assert item.name == "f"


def test_what_is_missing_is_said() -> None:
    context = AssembledContext(("q",), (), "a note", tuple(f"a.py:{n}" for n in range(9)), ("b.py: no_permission",))
    assert context.as_json() == {
        "version": 1,
        "ok": True,
        "queries": ("q",),
        "fit": "unsure",
        "context": [],
        "left_out": {"places": 9, "first": ("a.py:0", "a.py:1", "a.py:2")},
        "could_not_read": ("b.py: no_permission",),
        "note": "a note",
    }
