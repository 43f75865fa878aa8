"""Damage of equal length: bytes changed in place, in any file of the index. Noticed when read, and built again."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path
from subprocess import run

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from callboard.actors import Runtime, Settings
from callboard.actors.index import CodeIndex
from callboard.actors.index.vectors import VectorCache

FILES = 24
QUERIES = ("where are parcels weighed?", "handler_7", "closing of doors", "shared word", "class Keeper")
View = dict[str, list[tuple[object, ...]]]


def write_workspace(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"m{number}.py").write_text(
            f"def handler_{number}(parcel):\n    return weighed(parcel, {number}) + shared_word()\n\n\n"
            f"class Keeper{number}:\n    '''Closing of door {number}.'''\n\n    def close(self): ...\n"
        )


def view(index: CodeIndex) -> View:
    """All that can be asked, without ids and scores (BM25 depends on what was deleted before)."""
    seen: View = {
        query: sorted(
            (hit.path, hit.start_byte, hit.end_byte, hit.name, hit.digest) for hit in index.search(query, 200)
        )
        for query in QUERIES
    }
    symbols = index.symbols(limit=999)
    seen["symbols"] = [(each.path, each.canonical_path, each.start_byte, each.digest) for each in symbols]
    seen["edges"] = [(edge.kind, edge.source, edge.target) for each in symbols for edge in index.edges(each)]
    seen["by name"] = [(each.path, each.start_byte) for each in index.symbols(name="close")]
    return seen


class Whole:
    """A workspace, its undamaged index, and what that answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.store = folder / "store"
        write_workspace(self.work)
        with self.opened(self.store) as index:
            index.refresh()
            (self.work / "m3.py").write_text("def handler_3(): ...\n")  # a second segment, and deleted documents
            index.refresh()
            self.view = view(index)

    def opened(self, store: Path) -> CodeIndex:
        return CodeIndex.open(self.work, store, embedder=None)

    def copy(self) -> Path:
        """Of the store; its times are those of the copy."""
        target = Path(tempfile.mkdtemp(dir=self.folder)) / "store"
        shutil.copytree(self.store, target)
        return target


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


def files_of(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)


def flip(path: Path, offset: int, mask: int = 0x01) -> None:
    """Change one byte in place; as a failing disk does, without a new time."""
    status = path.stat()
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ mask]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@given(st.data())
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_with_any_bytes_changed_the_answers_are_right_or_the_index_is_rebuilt(
    whole: Whole, data: st.DataObject
) -> None:
    store = whole.copy()
    try:
        for _ in range(data.draw(st.integers(1, 3))):
            path = data.draw(st.sampled_from(files_of(store)))
            flip(path, data.draw(st.integers(0, path.stat().st_size - 1)), data.draw(st.integers(1, 255)))
        with whole.opened(store) as index:
            index.refresh()
            assert view(index) == whole.view
    finally:
        shutil.rmtree(store.parent)


#: SQLite's page size.
PAGE = 4_096


def places_in(path: Path) -> list[int]:
    """One in each page of the store, since a question reads some of them; the middle of any other file."""
    size = path.stat().st_size
    return list(range(PAGE // 2, size, PAGE)) if path.suffix == ".sqlite" else [size // 2]


@pytest.mark.parametrize(
    "kind", [".idx", ".term", ".fast", ".fieldnorm", ".del", ".store", "meta.json", "truth.sqlite"]
)
def test_a_changed_byte_is_noticed_and_told(whole: Whole, kind: str) -> None:
    store = whole.copy()
    for path in files_of(store):
        if path.name.endswith(kind):
            for place in places_in(path):
                flip(path, place)
    with whole.opened(store) as index:
        note = index.refresh().note
        assert "rebuilt: " in note or "built again" in note
        assert view(index) == whole.view
        assert index.refresh().note == "", "it is told once"


def test_every_page_of_the_store_is_guarded(whole: Whole) -> None:
    """Also those that no refresh reads: the first question that reads one has the index built again."""
    for place in places_in(whole.store / "truth.sqlite"):
        store = whole.copy()
        flip(store / "truth.sqlite", place)
        with whole.opened(store) as index:
            assert view(index) == whole.view
        shutil.rmtree(store.parent)


OPENED_AT_ONCE = """
import pathlib, sys, threading
import apsw, apsw.sqlite_extra
from callboard.actors.index.vectors import VectorCache

load, loaded, again = apsw.sqlite_extra.load, threading.Event(), threading.Event()

def load_slowly(*args):
    load(*args)
    if loaded.is_set():
        again.set()
        threads[0].join(30)
    loaded.set()
    again.wait(0.5)  # the other one comes meanwhile, where it can

def open_one(name):
    cache = VectorCache(pathlib.Path(sys.argv[1]) / name)
    opened.append(cache._database.connection.open_vfs)
    cache.close()

opened = []
apsw.sqlite_extra.load = load_slowly
threads = [threading.Thread(target=open_one, args=[name]) for name in ("a", "b")]
threads[0].start()
loaded.wait(30)
threads[1].start()
for thread in threads:
    thread.join(30)
print(*opened, apsw.vfs_names()[0])
"""


def test_indexes_that_are_opened_at_once_have_checksums_and_others_do_not(tmp_path: Path) -> None:
    """The first one that a process opens loads what compares them, which changes the default of the whole process."""
    ran = run([sys.executable, "-c", OPENED_AT_ONCE, tmp_path], check=True, capture_output=True, text=True, timeout=60)
    *checked, default = ran.stdout.split()
    assert checked == ["cksmvfs"] * 2
    assert default != "cksmvfs"


def test_damage_while_the_index_is_open_is_noticed_by_the_next_refresh(whole: Whole) -> None:
    store = whole.copy()
    with whole.opened(store) as index:
        assert index.refresh().note == ""
        (segment,) = itertools.islice((path for path in files_of(store) if path.suffix == ".idx"), 1)
        flip(segment, 5)
        os.utime(segment)
        assert "damaged" in index.refresh().note
        assert view(index) == whole.view


def test_an_index_that_another_process_has_rebuilt_is_opened_again(whole: Whole) -> None:
    store = whole.copy()
    with whole.opened(store) as reader, whole.opened(store) as other:
        before = view(reader)
        other._layout.condemn("damaged for this test")
        assert "damaged for this test" in other.refresh().note
        (whole.work / "late.py").write_text("def late_comer(): ...\n")
        try:
            other.refresh()
            assert [hit.name for hit in reader.search("late comer", 1)] == ["late_comer"]
        finally:
            (whole.work / "late.py").unlink()
        other.refresh()
        assert view(reader) == before


def test_a_question_to_a_runtime_with_a_damaged_index_is_answered_from_a_new_one(whole: Whole) -> None:
    store = whole.copy()
    for path in files_of(store):
        if path.suffix == ".idx":
            flip(path, places_in(path)[0])

    async def ask() -> list[str]:
        settings = Settings(model="offline/x", workspace=whole.work, index_dir=store)
        async with Runtime(settings) as runtime:
            search = runtime._wiring.search
            assert search is not None
            found = await search.search("handler_7", 2_000)
            return [item.name for item in found.context]

    assert "handler_7" in asyncio.run(ask())


def test_damaged_vectors_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    rows = {bytes([n]) * 16: bytes([n]) * 768 for n in range(40)}
    cache = VectorCache(path)
    cache.put("m", rows)
    cache.close()
    for offset in range(100, path.stat().st_size, 997):
        copy = tmp_path / f"v{offset}.sqlite"
        shutil.copyfile(path, copy)
        flip(copy, offset)
        cache = VectorCache(copy)
        found = cache.get("m", list(rows))
        assert found.items() <= rows.items(), "never another vector"
        cache.put("m", rows)
        assert cache.get("m", list(rows)) == rows
        cache.close()
