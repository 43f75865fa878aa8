"""A disk that takes nothing more: one sentence with folder and bytes free, and the index that was there stays."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from support.mounted_disk import Disk, mounted_disk, needs_mount

from callboard.actors import Runtime, Settings
from callboard.actors.index import CodeIndex
from callboard.actors.index.disk import IndexWriteError, write_error
from callboard.actors.index.vectors import VectorCache

SENTENCE = re.compile(
    r"cannot write the index in \S+: no space is left on the device \([\d,]+ bytes free\); free some space or name "
    r"another folder for the index, then index again; what was indexed before is kept"
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted_disk(tmp_path / "disk") as found:
        yield found


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text("def alpha(): pass\n")
    return folder


def add_files(workspace: Path, count: int, lines: int = 200) -> None:
    for number in range(count):
        body = "\n".join(f"    word_{number}_{line} = other_{line * number}(1)" for line in range(lines))
        (workspace / f"big{number}.py").write_text(f"def beta_{number}():\n{body}\n")


@needs_mount
@pytest.mark.parametrize("free_bytes", [0, 4_096, 40_000, 120_000, 300_000])
@pytest.mark.parametrize("files", [30, 100], ids=["in this process", "in a child"])
def test_a_full_disk_is_one_clear_error_and_keeps_what_was_there(
    disk: Disk, workspace: Path, free_bytes: int, files: int
) -> None:
    """However far a refresh comes: another file of the index is the one that has no room."""
    store = disk.folder / "store"
    with CodeIndex.open(workspace, store, embedder=None) as index:
        index.refresh()
        add_files(workspace, files, lines=6_000 // files)
        disk.fill(free_bytes)
        with pytest.raises(IndexWriteError, match=SENTENCE):
            index.refresh()
        assert index.search("alpha", 1)[0].name == "alpha"
        with CodeIndex.open(workspace, store, embedder=None) as another:
            assert another.search("alpha", 1)[0].name == "alpha"
        disk.fill()
        with CodeIndex.open(workspace, store, embedder=None) as another, pytest.raises(IndexWriteError, match=SENTENCE):
            another.refresh()
        disk.empty()
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk.folder)], check=True)
        summary = index.refresh()
        assert (summary.files, summary.note) == (files + 1, "")
        assert index.search("beta_7", 1)[0].name == "beta_7"
        assert index.search("alpha", 1)[0].name == "alpha"


@needs_mount
def test_an_index_on_a_disk_that_filled_up_meanwhile_can_be_opened_and_asked(disk: Disk, workspace: Path) -> None:
    store = disk.folder / "store"
    with CodeIndex.open(workspace, store, embedder=None) as index:
        index.refresh()
    disk.fill()
    with CodeIndex.open(workspace, store, embedder=None) as index:
        assert index.search("alpha", 1)[0].name == "alpha"
        disk.empty()
        add_files(workspace, 1)
        assert index.refresh().files == 2
        assert index.search("beta_0", 1)[0].name == "beta_0"


@needs_mount
def test_an_index_that_cannot_even_be_begun(disk: Disk, workspace: Path) -> None:
    disk.fill()
    with pytest.raises(IndexWriteError, match=SENTENCE):
        CodeIndex.open(workspace, disk.folder / "store", embedder=None)
    disk.empty()
    with CodeIndex.open(workspace, disk.folder / "store", embedder=None) as index:
        assert index.refresh().files == 1


@needs_mount
def test_a_read_only_file_system_is_named_and_can_be_asked(disk: Disk, workspace: Path) -> None:
    store = disk.folder / "store"
    with CodeIndex.open(workspace, store, embedder=None) as index:
        index.refresh()
    disk.make_read_only()
    with CodeIndex.open(workspace, store, embedder=None) as index:
        assert index.search("alpha", 1)[0].name == "alpha"
        add_files(workspace, 1)
        with pytest.raises(
            IndexWriteError, match=r"the file system is read-only.*name a folder .* that can be written"
        ):
            index.refresh()
        assert index.search("alpha", 1)[0].name == "alpha"


@needs_mount
def test_a_question_is_answered_from_what_is_there_and_says_why(disk: Disk, workspace: Path) -> None:
    store = disk.folder / "store"
    with CodeIndex.open(workspace, store, embedder=None) as index:
        index.refresh()
    add_files(workspace, 40)
    disk.fill()

    async def ask() -> tuple[list[str], str]:
        async with Runtime(Settings(model="offline/x", workspace=workspace, index_dir=store)) as runtime:
            search = runtime._wiring.search
            assert search is not None
            found = await search.search("alpha", 2_000)
            return [item.name for item in found.context], found.note

    names, note = asyncio.run(ask())
    assert names == ["alpha"]
    assert SENTENCE.search(note)


@needs_mount
def test_the_command_answers_from_what_is_there_and_says_why(disk: Disk, workspace: Path, tmp_path: Path) -> None:
    folder = disk.folder / "work"
    folder.mkdir()
    (folder / "a.py").write_text("def alpha(): pass\n")
    with CodeIndex.open(folder, embedder=None) as index:
        index.refresh()
    (folder / "b.py").write_text("def beta(): pass\n")
    disk.fill()
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "callboard.actors.cli", "ask", "where is alpha?"]
    command += ["--workspace", str(folder), "--model", "offline/x"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=50, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "alpha" in ran.stdout
    assert SENTENCE.search(ran.stderr)


@needs_mount
def test_vectors_that_cannot_be_kept_are_used_all_the_same_and_it_is_logged_once(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    cache = VectorCache(disk.folder / "vectors.sqlite")
    cache.put("m", {b"a": b"1"})
    disk.fill()
    with caplog.at_level(logging.WARNING, logger="callboard.index"):
        for _ in range(3):
            cache.put("m", {bytes([n]) * 16: bytes(768) for n in range(200)})
    assert cache.get("m", [b"a"]) == {b"a": b"1"}
    assert len([record for record in caplog.records if SENTENCE.search(record.getMessage())]) == 1
    cache.close()


LIMITED = """
import sys, json, resource; sys.path[:] = json.loads(sys.argv[1])
from callboard.actors.index import CodeIndex
from callboard.protocol.errors import UsageError
with CodeIndex.open(sys.argv[2], sys.argv[3], embedder=None) as index:
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
    try:
        index.refresh()
    except UsageError as error:
        print(error)
    print(index.search("alpha", 1)[0].name)
"""


@pytest.mark.parametrize("files", [30, 100], ids=["in this process", "in a child"])
def test_a_limit_of_the_process_on_the_size_of_files_is_named(workspace: Path, tmp_path: Path, files: int) -> None:
    store = tmp_path / "store"
    with CodeIndex.open(workspace, store, embedder=None) as index:
        index.refresh()
    add_files(workspace, files)
    command = [sys.executable, "-c", LIMITED, json.dumps(sys.path), str(workspace), str(store)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    said, found = ran.stdout.splitlines()
    assert "a file would be larger than this process may write (ulimit -f)" in said
    assert found == "alpha"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "x"), "no space is left on the device"),
        (OSError(errno.EDQUOT, "x"), "the disk quota is used up"),
        (OSError(errno.EROFS, "x"), "the file system is read-only"),
        (PermissionError(errno.EACCES, "x"), "there is no permission to write there"),
        (apsw.FullError("x"), "no space is left on the device"),
        (ValueError("'Os { code: 122, kind: QuotaExceeded }'"), "the disk quota is used up"),
        (ValueError("No space left on device (os error 28)"), "no space is left on the device"),
        (ValueError("something else"), "something else"),
    ],
)
def test_every_reason_is_named(tmp_path: Path, error: Exception, words: str) -> None:
    said = str(write_error(tmp_path, error))
    assert said.startswith(f"cannot write the index in {tmp_path}: {words} (")
    assert "then index again" in said
    assert list(tmp_path.iterdir()) == [], "the test file is deleted"
