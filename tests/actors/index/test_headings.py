"""Sections of prose: by the headings that a reader sees, nested by level, found and shown as tiles of their own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.index import CodeIndex, languages
from callboard.actors.index.encodings import source_of
from callboard.actors.index.parsing import parse_content
from callboard.actors.index.records import FileStat, ParsedFile


def parsed(path: str, text: str) -> ParsedFile:
    content = text.encode()
    source = source_of(content)
    stat = FileStat(f"/work/{path}", "/work", len(content), 0)
    return parse_content(stat, source, languages.language_of(path, content), 0)


def names(path: str, text: str) -> list[str]:
    return [symbol.canonical_path for symbol in parsed(path, text).symbols[1:]]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.md", "intro\n\n# One\nx\n## Two\ny\n# Three\n", ["One", "One > Two", "Three"]),
        ("a.md", "---\nkey: 1\n---\n# One\n", ["One"]),
        ("a.md", "# One\n```sh\n# a comment\n```\n## Two\n", ["One", "One > Two"]),
        ("a.md", "# One\n\n    # indented code\n", ["One"]),
        ("a.md", "<!--\n# hidden\n-->\n# One\n", ["One"]),
        ("a.md", "One\n===\n\nTwo\n---\n\n# Three\n", ["One", "One > Two", "Three"]),
        ("a.md", "# `code` in *a* [link](http://x/y) ##\n", ["code in a link"]),
        ("a.md", "# snake_case_name\n", ["snake_case_name"]),
        ("a.md", "#\n", ["untitled"]),
        ("a.md", "### Deep\n# High\n", ["Deep", "High"]),
        ("a.rst", "=====\nOne\n=====\n\nTwo\n---\n\nThree\n~~~~~\n\nFour\n----\n",
         ["One", "One > Two", "One > Two > Three", "One > Four"]),
        ("a.rst", "One\n===\n\ncode::\n\n   Not\n   ===\n\nTwo\n===\n", ["One", "Two"]),
        ("a.adoc", "= One\n\n== Two\n\n----\n== not\n----\n\n=== Three\n\n== Four\n",
         ["One", "One > Two", "One > Two > Three", "One > Four"]),
        ("a.html", "<p>intro</p><h1>One</h1>x<h2 id='b'><a>Two</a> &amp; <b>more</b></h2>y<H1>Three</H1>",
         ["One", "One > Two & more", "Three"]),
        ("a.html", "<!-- <h1>no</h1> --><script>'<h1>no</h1>'</script>\n  <h3>One</h3>\n", ["One"]),
        ("a.htm", "<h1></h1><h2>Left open<p>x", ["untitled"]),
        ("notes.txt", "# no heading\n", []),
    ],
)  # fmt: skip
def test_sections_are_named_by_their_headings(path: str, text: str, expected: list[str]) -> None:
    assert names(path, text) == [f"{path} > {name}" for name in expected]


LEVELS = st.lists(st.integers(1, 6), min_size=1, max_size=12)


@given(LEVELS)
def test_sections_nest_by_level_and_end_before_the_next_of_theirs(levels: list[int]) -> None:
    text = "".join(f"{'#' * level} H{n}\n\nwords of {n}\n\n" for n, level in enumerate(levels))
    symbols = parsed("a.md", text).symbols
    for n, level in enumerate(levels):
        symbol = symbols[n + 1]
        above = [m for m in range(n) if levels[m] < level and all(levels[k] > levels[m] for k in range(m + 1, n))]
        assert symbol.parent == (above[-1] + 1 if above else 0)
        later = [m for m in range(n + 1, len(levels)) if levels[m] <= level]
        assert symbol.end_byte == (symbols[later[0] + 1].start_byte if later else len(text))


LINES = st.lists(
    st.sampled_from(
        [
            "# A",
            "## B",
            "text of it",
            "===",
            "---",
            "```",
            "",
            "* item",
            "    # code",
            "<!--",
            "-->",
            "Größe",
            "<h2>C</h2>",
            "<p>",
            "<h1>D",
        ]
    ),
    max_size=25,
)


@given(LINES, st.sampled_from(["a.md", "a.rst", "a.adoc", "a.html"]))
def test_every_word_is_in_one_tile(lines: list[str], path: str) -> None:
    content = "\n".join([*lines, "the last word here"]).encode()
    tiles = sorted(parsed(path, content.decode()).chunks, key=lambda tile: tile.start_byte)
    for one, other in itertools.pairwise(tiles):
        assert one.end_byte <= other.start_byte
    at = 0
    for start, end in [(tile.start_byte, tile.end_byte) for tile in tiles] + [(len(content), len(content))]:
        # What is left between tiles says nothing: fewer than eight letters.
        assert sum(chr(byte).isalnum() for byte in content[at:start]) < 8
        at = end


def test_a_section_is_found_and_shown_alone_and_is_no_item_of_code(tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text(
        "# Guide\n\nWelcome.\n\n## Rotate the keys\n\nRun the rotation every week.\n\n## Bake bread\n\nUse flour.\n"
    )
    with CodeIndex.open(tmp_path, tmp_path / "store", embedder=None) as index:
        index.refresh()
        best = index.search("how do I rotate keys", 1)[0]
        assert (best.name, best.kind, best.start_line, best.end_line) == ("Rotate the keys", "section", 5, 7)
        assert index.lookup("Bake bread") == ()
        assert index.close_items("Bake bread") == ()
