"""Several queries, filters, callers' evidence, guides, and whether anything fits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.actors.index import CodeIndex, assemble
from callboard.actors.index.searching import MAX_QUERIES, NO_FILTERS, Filters
from callboard.protocol.code_fences import ContextFit
from callboard.protocol.errors import UsageError

FILES = {
    "src/pool.py": (
        "class Pool:\n"
        "    def acquire_connection(self):\n"
        "        '''Hands out a free socket, or waits for one.'''\n"
        "        while not self.free:\n            self.wait()\n        return _unlock_slot(self.free.pop())\n\n"
        "    def shutdown(self):\n        for each in self.free:\n            each.close()\n\n\n"
        "def _unlock_slot(slot):\n    slot.busy = True\n    slot.since = now()\n    return slot\n\n\n"
        "def unrelated_slot(slot):\n    slot.busy = True\n    slot.since = now()\n    return slot\n"
    ),
    "src/retry.go": (
        "package retry\n\n// Backoff doubles the pause after each failed attempt.\n"
        "func Backoff(attempt int) int {\n\tpause := 1 << attempt\n\treturn pause\n}\n"
    ),
    "src/limits.go": (
        "package limits\n\nfunc ClampTries(n int) int {\n\tif n > ceiling {\n\t\treturn ceiling\n\t}\n\treturn n\n}\n"
    ),
    "docs/guide.md": (
        "# Guide\n\n## Retry settings\n\nSet the number of attempts and the pause before a retry in the settings.\n"
        "What is too much is cut by `limits.ClampTries(n)`; `test_acquire_connection` shows it.\n"
    ),
    "tests/test_pool.py": "def test_acquire_connection():\n    assert Pool().acquire_connection()\n",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeIndex]:
    folder = tmp_path_factory.mktemp("work")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with CodeIndex.open(folder, embedder=None) as opened:
        opened.refresh()
        yield opened


def found(index: CodeIndex, query: str | list[str], filters: Filters = NO_FILTERS) -> list[str]:
    return [hit.name for hit in index.search(query, 10, filters)]


def test_several_queries_find_what_each_of_them_finds(index: CodeIndex) -> None:
    one, other = found(index, "acquire a connection")[0], found(index, "backoff after an attempt")[0]
    assert {one, other} == {"acquire_connection", "Backoff"}
    assert set(found(index, ["acquire a connection", "backoff after an attempt"])[:2]) == {one, other}


def test_a_place_that_several_queries_agree_on_comes_first(index: CodeIndex) -> None:
    assert found(index, ["doubles", "attempt", "free"])[0] == "Backoff"


def test_a_query_that_is_given_twice_or_empty_changes_nothing(index: CodeIndex) -> None:
    assert found(index, ["backoff", "", "backoff", "  "]) == found(index, "backoff")
    assert found(index, []) == []


def test_a_hundred_queries_are_refused(index: CodeIndex) -> None:
    with pytest.raises(UsageError, match=f"at most {MAX_QUERIES} queries can be asked together, and there are 100"):
        index.search([str(n) for n in range(100)])
    with pytest.raises(UsageError, match="at most"):
        assemble(index, [str(n) for n in range(100)], 1_000)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (Filters(paths=("src",)), ["pool.py", "retry.go"]),
        (Filters(paths=("./src/",)), ["pool.py", "retry.go"]),
        (Filters(paths=("src/*.py",)), ["pool.py"]),
        (Filters(paths=("tests/test_pool.py", "docs")), ["guide.md", "test_pool.py"]),
        (Filters(languages=("go",)), ["retry.go"]),
        (Filters(languages=("markdown",)), ["guide.md"]),
        (Filters(kinds=("method",)), ["pool.py"]),
        (Filters(paths=("src",), languages=("python",), kinds=("function",)), ["pool.py"]),
        (Filters(paths=("nowhere",)), []),
    ],
    ids=str,
)
def test_filters(index: CodeIndex, filters: Filters, expected: list[str]) -> None:
    hits = index.search("slot retry attempt pause connection acquire", 20, filters)
    assert sorted({Path(hit.path).name for hit in hits}) == expected
    assert not filters.kinds or {hit.kind for hit in hits} <= set(filters.kinds)


def test_the_context_keeps_to_the_filters_too(index: CodeIndex) -> None:
    context = assemble(index, "acquire a connection", 8_000, filters=Filters(paths=("src",)))
    assert {Path(item.file).name for item in context.context} <= {"pool.py", "retry.go"}


def test_filters_that_match_nothing_say_what_to_do(index: CodeIndex) -> None:
    nowhere = assemble(index, "retry", 1_000, filters=Filters(paths=("nowhere", "else"), languages=("go",)))
    assert nowhere.context == ()
    assert nowhere.note == (
        "no file of the workspace passes the filters (path nowhere or else, language go); ask again with others, or "
        "without"
    )
    other = assemble(index, "retry", 1_000, filters=Filters(kinds=("macro",)))
    assert other.note == "nothing was found with the filters (kind macro); ask again without them"


@pytest.mark.parametrize(
    ("filters", "why"),
    [
        (Filters(languages=("klingon",)), "no language 'klingon'; there are .*python"),
        (Filters(kinds=("x",)), "no kind 'x'"),
    ],
)
def test_a_filter_that_there_is_not_is_refused(index: CodeIndex, filters: Filters, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        index.search("retry", 5, filters)
    with pytest.raises(UsageError, match=why):
        assemble(index, "retry", 1_000, filters=filters)


def test_what_a_good_hit_calls_comes_before_its_twin(index: CodeIndex) -> None:
    names = found(index, "slot busy since acquire connection socket free")
    assert names.index("_unlock_slot") < names.index("unrelated_slot")


def test_a_copy_of_a_better_hit_comes_behind_other_code(tmp_path: Path) -> None:
    body = "export function {name}(row: string) {{\n  const cells = row.split(',')\n  return cells.map(trim)\n}}\n"
    for place, name in (("src/csv.ts", "splitCells"), ("csv.js", "splitCells"), ("src/tsv.ts", "splitTabs")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(
            body.format(name=name).replace(": string", "" if place == "csv.js" else ": string")
        )
    with CodeIndex.open(tmp_path, embedder=None) as index:
        index.refresh()
        hits = index.search("how are the cells of a row split?", 3)
    assert [hit.name for hit in hits] == ["splitCells", "splitTabs", "splitCells"]


def test_a_guide_comes_first_where_one_is_asked_for(index: CodeIndex) -> None:
    assert found(index, "how do I set the number of retry attempts and the pause?")[0] == "Retry settings"
    assert found(index, "what computes the pause after an attempt?")[0] == "Backoff"


def test_a_guide_is_followed_by_the_code_that_it_names(index: CodeIndex) -> None:
    context = assemble(index, "how do I set the number of retry attempts and the pause?", 4_000)
    shown = [item.file.rpartition("/")[2] for item in context.context]
    assert shown[0] == "guide.md"
    assert "limits.go" in shown  # by its name alone: it holds no word of the question
    assert "test_pool.py" not in shown
    few = assemble(index, ["how do I set the number of retry attempts and the pause?"], 4_000, "", Filters(("docs",)))
    assert all("docs" in item.file for item in few.context)


def test_tests_come_behind_unless_they_are_asked_for(index: CodeIndex) -> None:
    assert found(index, "acquire connection")[0] == "acquire_connection"
    assert found(index, "test of acquire connection")[0] == "test_acquire_connection"


def test_whether_anything_fits_is_said(index: CodeIndex) -> None:
    assert assemble(index, "acquire a connection", 2_000).fit is ContextFit.GOOD
    assert assemble(index, "glacier sediment sampling in the arctic pause", 2_000).fit is ContextFit.NOTHING
    assert assemble(index, "zebra", 2_000).fit is ContextFit.NOTHING


def test_the_context_goes_on_with_what_was_called_and_the_neighbours(index: CodeIndex) -> None:
    context = assemble(index, "acquire a connection", 8_000)
    shown = "".join(item.snippet for item in context.context)
    assert "def _unlock_slot" in shown
    assert "def shutdown" in shown
    assert context.left_out == ()
    (best, *_) = context.context
    assert "src.pool.Pool.acquire_connection" in "".join(best.symbols) or "pool.Pool.acquire_connection" in best.symbols
    assert {"acquire", "connection"} <= set(best.words)


def test_good_places_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    body = "".join(f"    retry_step_{n}(client)\n" for n in range(60))
    for n in range(12):
        (tmp_path / f"m{n}.py").write_text(f"def retry_request_{n}(client):\n{body}")
    with CodeIndex.open(tmp_path, embedder=None) as small:
        small.refresh()
        context = assemble(small, "retry a request", 1_500)
        assert context.left_out
        assert len(context.context) + len(context.left_out) <= 12


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "open.py").write_text("def retry_request():\n    return 1\n")
    hidden = tmp_path / "hidden.py"
    hidden.write_text("def retry_secret():\n    return 1\n")
    hidden.chmod(0)
    with CodeIndex.open(tmp_path, embedder=None) as small:
        small.refresh()
        assert assemble(small, "retry a request", 1_500).unread == (f"{hidden}: no_permission",)
        hidden.chmod(0o600)
        small.refresh()
        assert assemble(small, "retry a request", 1_500).unread == ()


def test_an_empty_workspace_answers_that_nothing_fits(tmp_path: Path) -> None:
    with CodeIndex.open(tmp_path, tmp_path / "store", embedder=None) as empty:
        empty.refresh()
        context = assemble(empty, "how is anything done?", 500)
        assert (context.context, context.fit) == ((), ContextFit.NOTHING)
