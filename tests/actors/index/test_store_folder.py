"""The index folder: foreign, broken, of another version, without room. Never a traceback, never a wrong span."""

import json
from pathlib import Path

import pytest

from callboard.actors.index import CodeIndex
from callboard.protocol.errors import UsageError


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text("def alpha(): pass\n")
    return folder


@pytest.fixture
def store(workspace: Path, tmp_path: Path) -> Path:
    with CodeIndex.open(workspace, tmp_path / "store", embedder=None) as index:
        index.refresh()
    return tmp_path / "store"


def test_the_default_store_is_inside_the_workspace_and_ignored_by_git(workspace: Path) -> None:
    with CodeIndex.open(workspace, embedder=None) as index:
        assert index.refresh().files == 1
    assert (workspace / ".callboard" / ".gitignore").read_text() == "*\n"


def test_a_folder_of_something_else_is_refused_and_left_alone(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(UsageError, match="not a callboard index"):
        CodeIndex.open(workspace, tmp_path / "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_store_that_is_a_file_or_cannot_be_made_is_a_usage_error(workspace: Path) -> None:
    for store in (workspace / "a.py", workspace / "a.py" / "below", Path("/proc/nothing/here")):
        with pytest.raises(UsageError, match="name another folder"):
            CodeIndex.open(workspace, store)


@pytest.mark.parametrize(
    ("marker", "word"),
    [
        (json.dumps({"callboard_index": 0}), "version 0"),
        ("{broken", "marker file is broken"),
        ("[]", "marker file is broken"),
    ],
)
def test_another_version_is_rebuilt_with_a_word_about_why(store: Path, workspace: Path, marker: str, word: str) -> None:
    (store / "index.json").write_text(marker)
    with CodeIndex.open(workspace, store, embedder=None) as index:
        summary = index.refresh()
        assert word in summary.note
        assert summary.indexed == 1
        assert index.refresh().note == ""


@pytest.mark.parametrize("name", ["truth.sqlite", "lexical/meta.json"])
def test_a_broken_store_is_rebuilt_with_a_word_about_why(store: Path, workspace: Path, name: str) -> None:
    (store / "truth.sqlite-wal").unlink(missing_ok=True)
    (store / name).write_bytes(b"\xff not what it should be " * 400)
    with CodeIndex.open(workspace, store, embedder=None) as index:
        summary = index.refresh()
        assert "rebuilt" in summary.note
        assert index.search("alpha", 1)[0].name == "alpha"
