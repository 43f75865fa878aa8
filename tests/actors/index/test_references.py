"""Where a name is used: by tokens, in several languages, in the file's own bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.index.references import MAX_LINE_BYTES, NameUse, Reference, references

DEFINITION, CALL, IMPORT, EXTENDS, USE, TEXT = NameUse

#: File, content, and what is said of each line in which the name `paint` is a token.
CODES: tuple[tuple[str, str, dict[int, tuple[NameUse, ...]]], ...] = (
    (
        "a.py",
        "from art import paint\nimport art.paint as other\n\ndef paint(x):\n    return x\n\n# paint\ntext = 'paint'\n"
        "repaint = paints = paint_all = 1\nobj.paint(paint)\nf'{paint}'\nclass A(paint): ...\n@paint\ndef g(): ...\n",
        {
            1: (IMPORT,),
            2: (IMPORT,),
            4: (DEFINITION,),
            10: (CALL, USE),
            11: (USE,),
            12: (EXTENDS,),
            13: (CALL,),
        },
    ),
    (
        "a.rs",
        'use art::paint;\nfn paint() {}\n// paint\nfn go() { paint(); self.paint(); let s = "paint"; let paint_ = 1}\n',
        {1: (IMPORT,), 2: (DEFINITION,), 4: (CALL,)},
    ),
    (
        "a.ts",
        'import { paint } from "./paint"\nexport const paint = () => 1\nconst $paint = `paint ${paint}`\n'
        "class B extends paint {}\n",
        {1: (IMPORT,), 2: (DEFINITION,), 3: (USE,), 4: (EXTENDS,)},
    ),
    ("a.go", "package a\n\nfunc paint() {}\n\nfunc go() { paint() /* paint */ }\n", {3: (DEFINITION,), 5: (CALL,)}),
    ("A.java", 'class A { void paint() {} void b() { paint(); String s = "paint"; } }\n', {1: (DEFINITION, CALL)}),
    (
        "a.c",
        '#include "paint.h"\nint paint(int x) { return x; }\nint go(void) { return paint(1); } // paint\n',
        {2: (DEFINITION,), 3: (CALL,)},
    ),
    ("a.md", "We paint, and repaint.\npainting\n", {1: (TEXT,)}),
    ("broken.py", "def paint(:\n  (((\npaint()\n", {1: (USE,), 3: (CALL,)}),
)  # fmt: skip


def find(folder: Path, name: str, content: bytes, word: str = "paint", *wanted: NameUse) -> list[Reference]:
    (folder / name).write_bytes(content)
    found = references([str(folder.resolve() / name)], word, frozenset(wanted), lambda: False)
    return [each for each in found if each is not None]


@pytest.mark.parametrize(("name", "code", "wanted"), CODES, ids=[name for name, _, _ in CODES])
def test_tokens_count_and_nothing_else(
    tmp_path: Path, name: str, code: str, wanted: dict[int, tuple[NameUse, ...]]
) -> None:
    if name == "broken.py":  # what the parser makes of it is its own; the name is found all the same
        assert {each.line for each in find(tmp_path, name, code.encode())} == set(wanted)
    else:
        assert {each.line: each.usages for each in find(tmp_path, name, code.encode())} == wanted


def test_only_what_is_wanted(tmp_path: Path) -> None:
    code = b"def paint(): ...\n\npaint()\nx = paint\n"
    assert [each.line for each in find(tmp_path, "a.py", code, "paint", DEFINITION, USE)] == [1, 4]


@pytest.mark.parametrize(
    ("encoding", "mark"), [("utf-8", b""), ("utf-8", b"\xef\xbb\xbf"), ("utf-16-le", b"\xff\xfe"), ("latin-1", b"")]
)
@pytest.mark.parametrize("word", ["paint", "größe"])
def test_spans_are_in_the_bytes_of_the_file(tmp_path: Path, encoding: str, mark: bytes, word: str) -> None:
    text = f"# coding: {encoding}, für\r\nx = 1\r\ndef {word}(): ...\r\n"
    content = mark + text.encode(encoding)
    (found,) = find(tmp_path, "a.py", content, word)
    assert (found.line, found.usages) == (3, (DEFINITION,))
    assert content[found.start_byte : found.end_byte].decode(encoding) == found.text == f"def {word}(): ..."


def test_one_name_written_in_two_ways(tmp_path: Path) -> None:
    code = "def gro\u0308\u00dfe(): ...\n\ngr\u00f6\u00dfe()\n".encode()
    assert [each.line for each in find(tmp_path, "a.py", code, "gr\u00f6\u00dfe")] == [1, 3]


def test_a_long_line_is_cut_around_the_name(tmp_path: Path) -> None:
    code = "x = [" + "'ä', " * 400 + "paint, " + "'ö', " * 400 + "]\n"
    (found,) = find(tmp_path, "a.py", code.encode())
    assert "paint" in found.text
    assert found.end_byte - found.start_byte <= MAX_LINE_BYTES
    assert "\ufffd" not in found.text


def test_keys_in_a_line_are_masked(tmp_path: Path) -> None:
    key = "sk-ant-api03-" + "a1B2c3D4" * 10
    (found,) = find(tmp_path, "a.py", f'paint("{key}")\n'.encode())
    assert key not in found.text
    assert "paint" in found.text


def test_binary_files_and_files_that_are_gone_have_none(tmp_path: Path) -> None:
    assert find(tmp_path, "a.py", b"paint()\n\0\0") == []
    assert [*references([str(tmp_path / "gone.py")], "paint", frozenset(), lambda: False)] == [None]


def test_a_search_that_is_over_leaves_the_other_files(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("paint()\n")
    files = [str(tmp_path.resolve() / name) for name in ("a.py", "b.py")]
    over = iter([False, True])
    assert [each and each.file for each in references(files, "paint", frozenset(), lambda: next(over))] == [
        files[0],
        None,
    ]


@given(st.lists(st.sampled_from(["paint", "paint_", "xpaint", "Paint", "# paint", "'paint'", "y"]), max_size=12))
def test_lines_are_found_like_the_python_tokenizer_finds_them(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    found = find(tmp_path_factory.getbasetemp(), "tokens.py", "\n".join(lines).encode() + b"\n")
    assert [each.line for each in found] == [number for number, line in enumerate(lines, 1) if line == "paint"]
