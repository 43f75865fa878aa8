"""A patch that is indented otherwise than its file: what comes of it is what was meant, or it is refused."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.edits.changes import FileChange
from callboard.actors.edits.fitting import Fitter
from callboard.actors.edits.patches import parse_patch
from callboard.actors.edits.texts import EditedText
from callboard.protocol.errors import ToolError


def patched(before: str, patch: str) -> str:
    (file,) = parse_patch(patch)
    content = before.encode()
    splices = tuple(Fitter(EditedText(content), "a").fit(*file.hunks))
    result = FileChange("/w/a", "/w/a", content, splices).result
    assert result is not None
    return result.decode()


def hunk(*lines: str, header: str = "@@ -1,4 +1,5 @@") -> str:
    return "\n".join(("--- a/a", "+++ b/a", header, *lines, ""))


RETURNS = "def f():\n\tif x:\n\t\treturn 1\n"


TWO_DEEP = "def f():\n    if x:\n        a()\n"
ITEMS = "l:\n    - a: 1\n      b: 2\n"


@pytest.mark.parametrize(
    ("before", "lines", "after"),
    [
        (RETURNS, (" def f():", "     if x:", "+        y = 2"), "def f():\n\tif x:\n\t\ty = 2\n\t\treturn 1\n"),
        (
            RETURNS,
            ("   if x:", "-    return 1", "+    while y:", "+      z()"),
            "def f():\n\tif x:\n\t\twhile y:\n\t\t\tz()\n",
        ),
        (RETURNS, (" if x:", "     return 1", "+y = 2"), RETURNS + "\ty = 2\n"),
        (
            RETURNS,
            ("         return 1", "+", "+    def g():", "+        return 2"),
            RETURNS + "\n\tdef g():\n\t\treturn 2\n",
        ),
        (RETURNS, (" def f():", "+    y = 2"), "def f():\n\ty = 2\n\tif x:\n\t\treturn 1\n"),
        (
            RETURNS,
            ("     if x:  ", "-        return 1", "+        return f(1,", "+                 2)"),
            "def f():\n\tif x:\n\t\treturn f(1,\n\t\t         2)\n",
        ),
        (
            RETURNS.replace("\n", "\r\n"),
            ("     if x:", "+        y = 2"),
            "def f():\r\n\tif x:\r\n\t\ty = 2\r\n\t\treturn 1\r\n",
        ),
        (
            TWO_DEEP,
            (" def f():", " \tif x:", "+\t\tb()", "+\t\tif c:", "+\t\t\td()"),
            "def f():\n    if x:\n        b()\n        if c:\n            d()\n        a()\n",
        ),
        ("def f():\n    if x:\n\ta()\n", ("   if x:", "     a()", "+    b()"), "def f():\n    if x:\n\ta()\n\tb()\n"),
        (ITEMS, (" l:", "   - a: 1", "     b: 2", "+  - a: 3", "+    b: 4"), ITEMS + "    - a: 3\n      b: 4\n"),
        (ITEMS, ("   - a: 1", "+    c: 3"), "l:\n    - a: 1\n      c: 3\n      b: 2\n"),
        (
            "l:\n-   a: 1\n    b: 2\n",
            (" - a: 1", "   b: 2", "+- a: 3", "+  b: 4"),
            "l:\n-   a: 1\n    b: 2\n- a: 3\n  b: 4\n",
        ),
        ("all: x\n\tcc a\n", (" all: x", "         cc a", "+        cc b"), "all: x\n\tcc a\n\tcc b\n"),
        (
            "v = f(\n\t\ta,\n)\n",  # two tabs at once are two levels
            ("+if c:", "+  if d:", "+    x()", " v = f(", "     a,"),
            "if c:\n\tif d:\n\t\tx()\nv = f(\n\t\ta,\n)\n",
        ),
        ("all: x\n\tcc a\n", (" all: x", "+    cc b"), "all: x\n\tcc b\n\tcc a\n"),
    ],
)
def test_new_lines_are_indented_as_the_file_is(before: str, lines: tuple[str, ...], after: str) -> None:
    assert patched(before, hunk(*lines, header="@@ @@")) == after


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        (RETURNS, (" def f():", " if x:", " return 1", "+y = 2")),  # no indentation at all: it may be at any depth
        (RETURNS, (" def f():", " if x:", "-return 1", "+if y:", "+return 2")),
        ("a:\n  b:\n    c: 1\n", (" a:", "   b:", "   c: 1", "+  d: 1")),
        ("def f():\n\tif x:\n\t\ta()\n", ("     if x:", "   a()", "+  b()")),  # deeper there, less deep here
        ("if a:\n  if b:\n    if c:\n      d()\n", ("         d()", "+     e()")),  # the depth of no block around
    ],
)
def test_what_is_no_one_rule_is_refused(before: str, lines: tuple[str, ...]) -> None:
    with pytest.raises(ToolError, match="it is not clear how deep the new ones are to be; nothing was staged") as told:
        patched(before, hunk(*lines, header="@@ @@"))
    assert "a hunk indented as the file is:\n" in told.value.expected


def test_line_for_line_needs_no_rule() -> None:
    lines = (" def f():", " if x:", "-return 1", "+return 2")
    assert patched(RETURNS, hunk(*lines)) == "def f():\n\tif x:\n\t\treturn 2\n"


def test_an_exact_hunk_is_taken_as_it_is() -> None:
    """Also where it mixes what the file does not: a table's columns, a here document, the other style."""
    lines = (" def f():", " \tif x:", "+\t    text = 1", "+        more", " \t\treturn 1")
    assert patched(RETURNS, hunk(*lines)) == "def f():\n\tif x:\n\t    text = 1\n        more\n\t\treturn 1\n"


def test_a_hunk_that_fits_by_chance_is_indented_as_the_others_are() -> None:
    """Eight columns are one level of the patch, which knows nothing of the outer block, and two of the file."""
    before = "class C:\n    if a:\n        b = 1\n        if c:\n            d = 1\n"
    others = hunk(" if a:", "-        b = 1", "+        b = 2", header="@@ @@")
    by_chance = "@@ @@\n         if c:\n+                e = 1\n"
    assert patched(before, others + by_chance) == before.replace("b = 1", "b = 2").replace(
        "c:\n", "c:\n            e = 1\n"
    )


@dataclass(frozen=True)
class Line:
    """One statement, or the head of a block with what is in it."""

    text: str
    block: tuple[Line, ...] | None = None


@dataclass(frozen=True)
class Language:
    statements: tuple[str, ...]
    """`%` is a number; a line that begins with `>` is a level deeper, one with `^` is aligned under a bracket."""
    heads: tuple[str, ...]
    indents: tuple[str, ...]


PYTHON = Language(
    ("v% = %", "v% = %", "v% = f(\n>>a,\n>>b,\n)", "v% = f(\n>a,\n)", "v% = f(a,\n^b)", "\nv% = %", "# c\nv% = %"),
    ("if c%:", "def f%():", "for x in c%:", "class C%:"),
    ("\t", "  ", "   ", "    ", "        "),
)
YAML = Language(
    ("k%: %", "k%: %", "k%:\n> - a: %\n>   b: %\n> - c: %", "k%: >\n>text %\n"),
    ("b%:",),
    ("  ", "   ", "    ", "        "),
)


@st.composite
def programs(draw: st.DrawFn, language: Language) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """A program, and what it is to become."""
    numbers = iter(range(100, 10_000))

    def new(text: str) -> str:
        return re.sub("%", lambda found: str(next(numbers)), text)

    def statement() -> Line:
        return Line(new(draw(st.sampled_from(language.statements))))

    def block(depth: int, size: int) -> tuple[Line, ...]:
        deep = [depth < 3 and draw(st.integers(0, 9)) < 4 for _ in range(draw(st.integers(1, size)))]
        return tuple(head(depth, size) if each else statement() for each in deep)

    def head(depth: int, size: int) -> Line:
        return Line(new(draw(st.sampled_from(language.heads))), block(depth + 1, size))

    def changed(lines: tuple[Line, ...], depth: int) -> tuple[Line, ...]:
        found: list[Line] = []
        for line in lines:
            what = draw(st.integers(0, 19))
            if what == 0:
                continue
            if what == 1:
                found.append(statement())
            if what == 2:
                found.append(head(depth, 2))
            inner = line if line.block is None else replace(line, block=changed(line.block, depth + 1))
            found.append(Line(new(language.heads[0]), (inner,)) if what == 3 else statement() if what == 4 else inner)
        return tuple(found) or (statement(),)

    before = block(0, 4)
    return before, changed(before, 0)


def rendered(lines: tuple[Line, ...], indent: str, depth: int = 0) -> list[str]:
    found = []
    for line in lines:
        for text in line.text.split("\n"):
            if text.startswith("^"):
                found.append(indent * depth + " " * 9 + text[1:])
            else:
                bare = text.lstrip(">")
                found.append(indent * (depth + len(text) - len(bare)) + bare.removeprefix(" ") if bare else "")
        found += rendered(line.block or (), indent, depth + 1)
    return found


@st.composite
def patches(draw: st.DrawFn, language: Language) -> tuple[str, str, str]:
    """A file, a patch that is indented in another way and may know nothing of the outer blocks, and what is meant."""
    before, after = draw(programs(language))
    of_file, of_patch = draw(st.sampled_from(language.indents)), draw(st.sampled_from(language.indents))
    outer = draw(st.sampled_from((0, 1, 2)))
    heads = [of_file * depth + text for depth, text in enumerate((language.heads[-1].replace("%", "0"),) * outer)]
    old, new = ([*heads, *rendered(each, of_file, outer)] for each in (before, after))
    shown, wanted = (rendered(each, of_patch) for each in (before, after))
    context = draw(st.integers(1, 3))
    diff = difflib.unified_diff(shown, wanted, "a/a", "b/a", lineterm="", n=context)
    return "\n".join((*old, "")), "\n".join((*diff, "")), "\n".join((*new, ""))


@settings(max_examples=150)
@given(case=patches(PYTHON))
def test_python_stays_what_was_meant(case: tuple[str, str, str]) -> None:
    before, patch, meant = case
    if not patch.strip():
        return
    try:
        after = patched(before, patch)
    except ToolError:
        return
    assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(meant))


@settings(max_examples=150)
@given(case=patches(YAML))
def test_yaml_stays_what_was_meant(case: tuple[str, str, str]) -> None:
    before, patch, meant = case
    if not patch.strip():
        return
    try:
        after = patched(before, patch)
    except ToolError:
        return
    assert yaml.safe_load(after) == yaml.safe_load(meant)


@settings(max_examples=60)
@given(
    rules=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    place=st.integers(0, 4),
    indent=st.sampled_from(["  ", "    ", "        ", "\t"]),
    context=st.integers(1, 3),
    is_new_rule=st.booleans(),
)
def test_recipes_of_a_makefile_begin_with_tabs(
    rules: list[int], place: int, indent: str, context: int, is_new_rule: bool
) -> None:
    def makefile(indent: str, with_new: bool) -> list[str]:
        found = []
        for number, recipe in enumerate(rules):
            found += [f"rule{number}: other", *(f"{indent}cc {number}.{at}" for at in range(recipe))]
            if with_new and number == place % len(rules):
                found += ["new:", f"{indent}ld x"] if is_new_rule else [f"{indent}ld x"]
        return found

    diff = difflib.unified_diff(makefile(indent, False), makefile(indent, True), "a/a", "b/a", lineterm="", n=context)
    before, meant = ("\n".join((*makefile("\t", with_new), "")) for with_new in (False, True))
    assert patched(before, "\n".join((*diff, ""))) == meant
