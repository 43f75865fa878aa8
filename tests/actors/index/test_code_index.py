"""An index of a small workspace: found, fresh, exact."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.actors.index import CodeIndex
from callboard.actors.index.refresh import SMALL_FILES
from callboard.protocol.errors import UsageError


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("")
    (folder / "pkg" / "client.py").write_text(
        "import time\n\n\nclass Client:\n    '''Talks to a server.'''\n\n    # Waits longer each time.\n"
        "    @staticmethod\n    def retry_request(attempts):\n        return time.sleep(attempts)\n"
    )
    (folder / "pkg" / "cache.py").write_text("def evict_oldest(cache):\n    cache.popitem(last=False)\n")
    return folder


@pytest.fixture
def index(workspace: Path) -> Iterator[CodeIndex]:
    with CodeIndex.open(workspace) as opened:
        opened.refresh()
        yield opened


def test_a_question_finds_the_function_with_its_decorator_and_comment(index: CodeIndex, workspace: Path) -> None:
    best = index.search("where are requests retried?", 3)[0]
    assert best.canonical_path == "pkg.client.Client.retry_request"
    assert best.path == str(workspace / "pkg" / "client.py")
    assert (best.start_line, best.end_line) == (7, 10)
    span = Path(best.path).read_bytes()[best.start_byte : best.end_byte]
    assert span.startswith(b"# Waits longer")
    assert span.endswith(b"time.sleep(attempts)")


def test_a_changed_file_is_found_by_its_new_words_only(index: CodeIndex, workspace: Path) -> None:
    (workspace / "pkg" / "cache.py").write_text("def flush_everything(cache):\n    cache.clear()\n")
    summary = index.refresh()
    assert (summary.indexed, summary.unchanged, summary.removed) == (1, 1, 0)
    assert index.search("flush everything", 1)[0].name == "flush_everything"
    assert all(hit.name != "evict_oldest" for hit in index.search("evict oldest", 5))
    assert index._parts.lexical.document_count == index._parts.store.count("chunks")


def test_a_removed_file_is_not_found(index: CodeIndex, workspace: Path) -> None:
    (workspace / "pkg" / "cache.py").unlink()
    assert index.refresh(paths=[str(workspace / "pkg" / "cache.py")]).removed == 1
    assert index.search("evict oldest", 5) == []
    assert index._parts.lexical.document_count == index._parts.store.count("chunks")


def test_an_unchanged_workspace_is_not_read_again(index: CodeIndex) -> None:
    summary = index.refresh()
    assert (summary.indexed, summary.removed, summary.unchanged) == (0, 0, 2)


def test_a_large_change_is_indexed_in_a_child_process_with_progress(index: CodeIndex, workspace: Path) -> None:
    for number in range(SMALL_FILES + 1):
        (workspace / f"part{number}.py").write_text(f"def handle_event_{number}():\n    return {number}\n")
    seen: list[tuple[int, int]] = []
    summary = index.refresh(lambda progress: seen.append((progress.done_files, progress.total_files)))
    assert summary.indexed == SMALL_FILES + 1
    assert seen[-1][0] == seen[-1][1] >= summary.indexed
    assert len(index.search("handle event", 100)) == SMALL_FILES + 1


def test_two_repositories_in_one_index(workspace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "main.rs").write_text("/// Parses the header.\nfn parse_header(line: &str) {}\n")
    with CodeIndex.open([workspace, other], tmp_path / "store") as index:
        index.refresh()
        assert index.search("parse header", 1)[0].path == str(other / "main.rs")
        assert index.search("evict oldest", 1)[0].path == str(workspace / "pkg" / "cache.py")


def test_a_second_index_on_the_same_store_sees_what_the_first_commits(index: CodeIndex, workspace: Path) -> None:
    with CodeIndex.open(workspace) as reader:
        (workspace / "new.py").write_text("def freshly_added():\n    pass\n")
        index.refresh()
        assert reader.search("freshly added", 1)[0].name == "freshly_added"


def test_symbols_and_edges(index: CodeIndex) -> None:
    (method,) = index.symbols(canonical_path="Client::retry_request")
    assert method.kind == "method"
    assert {(edge.kind, edge.target) for edge in index.edges(method)} >= {("calls", "sleep"), ("calls", "staticmethod")}
    (outer,) = index.symbols(name="Client")
    assert [edge.target for edge in index.edges(outer, "contains")] == ["retry_request"]
    assert [edge.source for edge in index.edges(method, "contains", incoming=True)] == ["pkg.client.Client"]
    assert [edge.source for edge in index.edges(outer, "contains", incoming=True)] == ["pkg.client"]
    assert [edge.kind for edge in index.edges(method)][:1] == ["calls"]
    assert [edge.kind for edge in index.edges(method, incoming=True)] == ["contains"]


def test_members_come_as_they_are_in_the_file(index: CodeIndex, workspace: Path) -> None:
    (workspace / "pkg" / "order.py").write_text(
        "class Order:\n" + "".join(f"    def {name}(self): ...\n" for name in "zax")
    )
    index.refresh()
    (outer,) = index.symbols(name="Order")
    assert [edge.target for edge in index.edges(outer, "contains", limit=2)] == ["z", "a"]


@pytest.mark.parametrize("query", ["", "   ", "what is this", "?!", "\0", "a" * 100_000, "ünïcødé 漢字", '"AND (OR'])
def test_any_query_is_answered(index: CodeIndex, query: str) -> None:
    assert len(index.search(query, 5)) <= 5


def test_a_workspace_that_is_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, tmp_path / "missing"):
        with pytest.raises(UsageError, match="name the folder"):
            CodeIndex.open(path)
