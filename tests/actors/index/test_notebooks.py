"""Notebooks: what of them is indexed, where it is in the file, and what is shown of it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.index import CodeIndex, assemble
from callboard.actors.index.encodings import shown_text
from callboard.actors.index.notebooks import ENCODING, NotebookText, notebook_of
from callboard.actors.index.parsing import parse_file
from callboard.actors.index.records import FileStat, ParsedFile, Skipped, digest
from callboard.actors.index.walk import MAX_NOTEBOOK_BYTES

PICTURE = base64.b64encode(bytes(range(256)) * 40).decode()


def cell(kind: str, source: str | list[str], **more: Any) -> dict[str, Any]:
    made = {"cell_type": kind, "metadata": {"tags": ["source", '"source": [']}, "source": source, **more}
    return made if kind != "code" else {"execution_count": 3, **made}


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


CELLS = [
    cell("markdown", lines("# Cleaning the data\n\nRows without a price are dropped, und „die“ auch.\n")),
    cell(
        "code",
        lines(
            "%matplotlib inline\nimport numpy\n\ndef drop_unpriced(rows):\n    return [r for r in rows if r['price']]\n"
        ),
        outputs=[
            {"output_type": "stream", "text": ["zebra crossing\n", '"source": ["hidden"]']},
            {"output_type": "display_data", "data": {"image/png": PICTURE}},
        ],
    ),
    cell("raw", ""),
    cell("markdown", "## Fitting\nA line is fitted by least squares.\twith a tab"),
    cell("code", lines('x = 1  # \U0001f600 "quoted" and \\back\\slash\\\nprint(x)'), outputs=[]),
]


def notebook(cells: list[dict[str, Any]] = CELLS, **form: Any) -> bytes:
    document = {"nbformat": 4, "metadata": {"cells": 3, "source": "elsewhere"}, "cells": cells, "nbformat_minor": 5}
    return json.dumps(document, **{"indent": 1, **form}).encode()


def read(content: bytes) -> NotebookText:
    found = notebook_of(content)
    assert found is not None
    return found


FORMS = [{}, {"ensure_ascii": False}, {"sort_keys": True}, {"indent": None}]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_text_is_that_of_the_cells(form: dict[str, Any]) -> None:
    found = read(notebook(**form))
    texts = [found.utf8[each.start : each.end].decode() for each in found.cells]
    assert texts == ["".join(each["source"]) for each in CELLS if each["source"]]
    assert [each.title for each in found.cells] == [
        "Cleaning the data",
        "Cleaning the data: drop_unpriced",
        "Fitting",
        'Fitting: x = 1  # \U0001f600 "quoted" and \\back\\slash\\',
    ]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SOURCES = st.one_of(TEXT, TEXT.map(lines), st.lists(TEXT, max_size=4))
NOTEBOOKS = st.lists(
    st.builds(
        lambda kind, source, outputs: cell(kind, source, outputs=[{"text": outputs, "source": outputs}]),
        st.sampled_from(["markdown", "code", "raw"]),
        SOURCES,
        SOURCES,
    ),
    max_size=4,
)


@given(NOTEBOOKS, st.sampled_from(FORMS), st.data())
def test_any_span_of_a_cell_is_a_slice_of_the_file_that_reads_as_it(
    cells: list[dict[str, Any]], form: dict[str, Any], data: st.DataObject
) -> None:
    content = notebook(cells, **form)
    found = read(content)
    assert [found.utf8[each.start : each.end].decode() for each in found.cells] == [
        "".join(each["source"]) for each in cells if "".join(each["source"]).strip()
    ]
    for each in found.cells:
        text = found.utf8[each.start : each.end].decode()
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        span = [each.start + len(text[:cut].encode()) for cut in (start, end)]
        places = found.places(span)
        slice_of_file = content[places[span[0]] : places[span[1]]]
        assert slice_of_file.decode(ENCODING) == text[start:end]


def test_a_cell_of_separators_alone_is_none() -> None:
    found = read(notebook([cell("markdown", "\x1f"), cell("code", "x = 1")]))
    assert [each.title for each in found.cells] == ["x = 1"]


def test_what_outputs_and_metadata_call_a_source_is_not_shown() -> None:
    inner = {"source": ["SECRET\n"], "deep": [{"source": "SECRET"}], "other": "source"}
    cells = [
        cell("code", lines("first = 1\nsecond = 2"), outputs=[{"data": {"x": inner}}], zebra=inner),
        cell("markdown", "third", attachments=inner),
        cell("code", [], outputs=[inner]),
        cell("code", lines("fourth\n"), outputs=[inner]),
    ]
    for form in FORMS:
        content = notebook(cells, **form)
        found = read(content)
        places = found.places((found.cells[0].start, found.cells[-1].end))
        shown = content[places[found.cells[0].start] : places[found.cells[-1].end]].decode(ENCODING)
        assert shown == "first = 1\nsecond = 2\n\nthird\n\nfourth\n"


def test_a_slice_over_several_cells_shows_their_sources_alone() -> None:
    content = notebook()
    found = read(content)
    places = found.places((found.cells[0].start, found.cells[-1].end))
    shown = shown_text(content, places[found.cells[0].start], places[found.cells[-1].end], ENCODING)
    assert shown == "\n\n".join("".join(each["source"]) for each in CELLS)
    assert "zebra" not in shown


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b'{"cells": 3}',
        b'{"worksheets": [{"cells": []}], "nbformat": 3}',
        notebook()[:-5],
        b'{"cells": [{"source": "\\ud800"}]}',
    ],
)
def test_what_is_no_notebook_of_today(content: bytes) -> None:
    assert notebook_of(content) is None


@pytest.mark.parametrize(
    "document",
    [
        {"cells": []},
        {"cells": [1, "source", None, [], {"source": 3}, {"source": {"source": "x"}}, {"source": [1, ["a"]]}]},
        {"cells": [{"cell_type": ["source"], "source": []}]},
    ],
)
def test_a_notebook_that_holds_something_else_than_cells_has_none(document: dict[str, Any]) -> None:
    assert read(orjson.dumps(document)).cells == ()


def parsed(tmp_path: Path, content: bytes) -> ParsedFile | Skipped:
    path = tmp_path / "analysis.ipynb"
    path.write_bytes(content)
    found = parse_file(FileStat(str(path), str(tmp_path), len(content), 0))
    assert isinstance(found, ParsedFile | Skipped)
    return found


def test_tiles_are_within_cells_and_hold_no_output(tmp_path: Path) -> None:
    content = notebook()
    file = parsed(tmp_path, content)
    assert isinstance(file, ParsedFile)
    assert (file.language, file.encoding) == ("notebook", ENCODING)
    terms = " ".join(chunk.terms for chunk in file.chunks).split()
    assert {"unpriced", "squares", "price", "numpy"} <= set(terms)
    assert not {"zebra", "crossing", "hidden"} & set(terms)
    for chunk in file.chunks:
        span = content[chunk.start_byte : chunk.end_byte]
        assert digest(span) == chunk.digest
        assert b"cell_type" not in span
        assert chunk.start_line == content[: chunk.start_byte].count(b"\n") + 1


def test_a_damaged_one_is_text(tmp_path: Path) -> None:
    file = parsed(tmp_path, b'{"cells": [\n"drop_unpriced"\n')
    assert isinstance(file, ParsedFile)
    assert (file.language, file.encoding) == ("text", "utf-8")


def test_long_outputs_do_not_keep_a_notebook_out(tmp_path: Path) -> None:
    for count, is_read in ((100, True), (MAX_NOTEBOOK_BYTES // len(PICTURE) + 1, False)):
        output = {"data": {"image/png": PICTURE * count}}
        file = parsed(tmp_path, notebook([cell("code", "def plot(): ...", outputs=[output])]))
        assert isinstance(file, ParsedFile) is is_read
        assert is_read or (isinstance(file, Skipped) and file.reason == "too_long")


def test_it_is_found_and_shown_as_text(tmp_path: Path) -> None:
    (tmp_path / "analysis.ipynb").write_bytes(notebook())
    (tmp_path / "other.py").write_text("def other():\n    return 1\n")
    with CodeIndex.open(tmp_path) as index:
        index.refresh()
        hits = index.search("rows without a price are dropped", 5)
        assert hits[0].path.endswith("analysis.ipynb")
        context = assemble(index, "How do I fit a line by least squares?", 2_000)
    text = orjson.dumps(context.as_json()).decode()
    assert "A line is fitted by least squares." in text
    assert "analysis.ipynb > Fitting" in text
    assert "zebra" not in text
    assert PICTURE[:40] not in text


def test_its_code_has_no_items_and_no_edges(tmp_path: Path) -> None:
    (tmp_path / "analysis.ipynb").write_bytes(notebook([cell("code", "def fitted():\n    return other()\n")]))
    (tmp_path / "other.py").write_text("def other():\n    return 1\n")
    with CodeIndex.open(tmp_path) as index:
        index.refresh()
        assert index.lookup("fitted") == ()
        assert len(index.lookup("other")) == 1


def test_a_source_file_cannot_say_that_it_is_one(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(f"# coding: {ENCODING}\nname = '\xe9'\n".encode("latin-1"))
    file = parse_file(FileStat(str(path), str(tmp_path), 10, 0))
    assert isinstance(file, ParsedFile)
    assert file.encoding != ENCODING
