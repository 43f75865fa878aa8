"""The index folder: foreign, broken, of another version, without room. Never a traceback, never a wrong span."""

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.actors.index import CodeIndex, layout
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


def modes(folder: Path) -> dict[str, int]:
    places = [folder, *folder.rglob("*")]
    return {str(place.relative_to(folder)): stat.S_IMODE(place.stat().st_mode) for place in places}


def is_closed(found: dict[str, int]) -> bool:
    return all(mode & 0o077 == 0 for name, mode in found.items() if name != ".gitignore")


@pytest.mark.parametrize("many", [False, True])
def test_an_index_is_readable_by_its_owner_only(workspace: Path, many: bool) -> None:
    for number in range(80 if many else 1):  # more are indexed in a child process
        (workspace / f"b{number}.py").write_text("def beta(): pass\n")
    before = os.umask(0o022)
    try:
        with CodeIndex.open(workspace, embedder=None) as index:
            index.refresh()
            found = modes(workspace / ".callboard")
    finally:
        os.umask(before)
    assert is_closed(found), found
    assert {found["."], found["index"], found["index/lexical"]} == {0o700}
    assert len(found) > 8


def test_an_index_that_was_open_to_others_is_closed(workspace: Path, store: Path) -> None:
    for place in (store, *store.rglob("*")):
        place.chmod(0o777 if place.is_dir() else 0o666)
    with CodeIndex.open(workspace, store, embedder=None) as index:
        assert is_closed(modes(store))
        assert index.refresh().note == ""
        assert index.search("alpha", 1)[0].name == "alpha"


def test_folders_on_the_way_are_made_for_their_owner_only(workspace: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with CodeIndex.open(workspace, tmp_path / "new" / "deep" / "store", embedder=None):
            found = modes(tmp_path / "new")
    finally:
        os.umask(before)
    assert is_closed(found), found


def test_an_index_of_another_user_is_refused(workspace: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As chmod answers it then; the tests may run as root, which is refused nothing."""

    def not_ours(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    store.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", not_ours)
    with pytest.raises(UsageError, match="belongs to another user, who could read the index; name another folder"):
        CodeIndex.open(workspace, store, embedder=None)


@pytest.mark.parametrize("inside", [True, False])
def test_a_workspace_that_is_gone_is_told_and_keeps_its_index(workspace: Path, tmp_path: Path, inside: bool) -> None:
    """It may be on a disk that comes back: no folder is made in its place, and nothing is deleted from the index."""
    with CodeIndex.open(workspace, None if inside else tmp_path / "store", embedder=None) as index:
        assert index.refresh().files == 1
        workspace.rename(tmp_path / "away")
        with pytest.raises(UsageError, match=f"workspace {workspace} does not exist"):
            index.refresh()
        with pytest.raises(UsageError) if inside else contextlib.nullcontext():
            index.search("alpha")
        assert not workspace.exists()
        (tmp_path / "away").rename(workspace)
        assert index.refresh().unchanged == 1
        assert [hit.name for hit in index.search("alpha")] == ["alpha"]


_OTHER = """
import sys
from callboard.actors.index import CodeIndex, layout

layout.FORMAT_VERSION += int(sys.argv[3])
with CodeIndex.open(sys.argv[1], sys.argv[2], embedder=None) as index:
    index.refresh()
    held = index._layout.write_lock(5) if sys.argv[4] == "writes" else open("/dev/null")
    with held:
        print("ready", flush=True)
        sys.stdin.readline()
    try:
        print([hit.name for hit in index.search("alpha", 5)], flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@contextlib.contextmanager
def other_process(workspace: Path, store: Path, versions: int, doing: str) -> Iterator[subprocess.Popen[str]]:
    """One that has opened the index, as a callboard whose format is so many versions newer."""
    command = [sys.executable, "-c", _OTHER, str(workspace), str(store), str(versions), doing]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[str]) -> str:
    """Let it end what it is doing and ask its index; what it says."""
    return process.communicate("\n", timeout=60)[0]


def test_an_older_index_that_another_process_reads_is_built_again_and_that_one_notices(
    workspace: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    older_one = other_process(workspace, store, -1, "reads")
    with older_one as older, CodeIndex.open(workspace, store, embedder=None) as index:
        assert "version" in index.refresh().note
        assert index.search("alpha", 1)[0].name == "alpha"
        said = go_on(older)
        assert "is of a newer callboard" in said
        assert "update this one" in said
        assert index.search("alpha", 1)[0].name == "alpha"
        assert index.refresh().note == ""


def test_an_older_index_that_another_process_writes_is_left_to_it(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setattr(layout, "REBUILD_WAIT_SECONDS", 0.1)
    with other_process(workspace, store, -1, "writes") as older:
        before = (store / "index.json").read_bytes()
        with pytest.raises(UsageError, match=rf"must be built again, since .*; but process {older.pid} is writing"):
            CodeIndex.open(workspace, store, embedder=None)
        assert (store / "index.json").read_bytes() == before
        assert "['alpha']" in go_on(older)


def test_a_newer_index_is_refused_and_left_alone(workspace: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with other_process(workspace, store, 1, "reads") as newer:
        before = {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()}
        with pytest.raises(UsageError, match=r"is of a newer callboard .*update this one, or name another folder"):
            CodeIndex.open(workspace, store, embedder=None)
        assert {path.name: path.read_bytes() for path in store.iterdir() if path.is_file()} == before
        assert "['alpha']" in go_on(newer)
