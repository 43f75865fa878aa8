"""The store of the index: a write is there whole or not at all, at whatever point it is interrupted."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from callboard.actors.index.parsing import parse_file
from callboard.actors.index.records import FileStat, ParsedFile, Skipped
from callboard.actors.index.store import SqliteStore
from callboard.protocol.errors import UsageError

TABLES = ("files", "skipped", "symbols", "chunks", "edges", "lexical_todo")
#: Deletes a file and puts another in its place, and is killed before it can commit.
CHILD = """
import sys, json, pickle; sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from callboard.actors.index.store import SqliteStore
store = SqliteStore(Path(sys.argv[2]))
known = store.known_files()
with store.transaction():
    store.replace([file.id for file in known.values()], [pickle.load(sys.stdin.buffer)])
    print("half done", flush=True)
    sys.stdin.buffer.raw.read()
"""


def parsed(folder: Path, name: str, code: str) -> ParsedFile:
    path = folder / name
    path.write_text(code)
    found = parse_file(FileStat(str(path), str(folder), len(code), path.stat().st_mtime_ns), b"")
    assert isinstance(found, ParsedFile)
    return found


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows, as another connection sees them."""
    store = SqliteStore(path)
    try:
        return {table: sorted(store.rows(f"SELECT * FROM {table}"), key=repr) for table in TABLES}
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two files, one of them with a symbol that calls something, and one that was skipped."""
    path = tmp_path / "truth.sqlite"
    store = SqliteStore(path)
    codes = {"a.py": "def alpha():\n    return beta()\n", "b.py": "def beta(): ...\n"}
    files = [parsed(tmp_path, name, code) for name, code in codes.items()]
    with store.transaction():
        store.replace([], files)
        store.remember_skipped([Skipped(replace(files[0].stat, path=str(tmp_path / "c.bin")), "binary")])
    store.close()
    assert all(content(path).values()), "there is something to lose in each table"
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def broken_by_us(store: SqliteStore, new: ParsedFile) -> None:
    raise ValueError("a bug of ours")


def broken_by_ctrl_c(store: SqliteStore, new: ParsedFile) -> None:
    raise KeyboardInterrupt


def broken_by_sqlite(store: SqliteStore, new: ParsedFile) -> None:
    store.replace([], [new])  # the same path once more


@pytest.mark.parametrize(
    ("breaks", "error"),
    [(broken_by_us, ValueError), (broken_by_ctrl_c, KeyboardInterrupt), (broken_by_sqlite, UsageError)],
)
def test_an_error_in_the_middle_of_a_write_leaves_the_old_content(
    path: Path,
    store: SqliteStore,
    tmp_path: Path,
    breaks: Callable[[SqliteStore, ParsedFile], None],
    error: type[BaseException],
) -> None:
    before, new = content(path), parsed(tmp_path, "new.py", "def gamma():\n    return alpha()\n")
    with pytest.raises(error), store.transaction():  # noqa: PT012 - what is undone is all of it
        store.replace([known.id for known in store.known_files().values()], [new])
        store.remember_skipped([Skipped(new.stat, "binary")])
        store.forget_skipped([str(tmp_path / "c.bin")])
        assert store.count("files") == 1, "the writer itself sees what it has written"
        breaks(store, new)
    assert content(path) == before
    assert {Path(known).name for known in store.known_files()} == {"a.py", "b.py"}

    with store.transaction():
        store.replace([], [new])
    assert len(content(path)["files"]) == 3, "and the store can be written again"


def test_kill_9_in_the_middle_of_a_write_leaves_the_old_content(path: Path, tmp_path: Path) -> None:
    before, new = content(path), parsed(tmp_path, "new.py", "def gamma(): ...\n")
    command = [sys.executable, "-c", CHILD, json.dumps(sys.path), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        pickle.dump(new, writer.stdin)
        writer.stdin.flush()
        assert writer.stdout.readline() == b"half done\n"
        writer.kill()
    assert content(path) == before
    store = SqliteStore(path)
    with store.transaction():
        store.replace([], [new])
    store.close()
    assert len(content(path)["files"]) == 3
