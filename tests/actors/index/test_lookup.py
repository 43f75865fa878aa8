"""Look-ups by name and canonical path: exact spans, in several languages, of the files as they are now."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_tree import write_tree

from callboard.actors import Runtime, Settings
from callboard.actors.index import CodeIndex
from callboard.actors.index.code_items import KINDS, CodeItem, plain_path
from callboard.actors.index.lookup import MAX_CLOSE, MAX_ITEMS
from callboard.actors.index.rag import CodeSearch
from callboard.protocol.errors import UsageError

#: What is asked, and the text with which the span of each item that is found begins.
FOUND: tuple[tuple[str, str, str, list[str]], ...] = (
    ("pkg.client.Client.retry", "", "", ["# tries again"]),
    ("Client.retry", "", "", ["# tries again"]),
    ("Client::retry", "", "", ["# tries again"]),
    ("Client.retry()", "", "", ["# tries again"]),
    ("retry", "", "", ["# tries again", "def retry(self)"]),
    ("retry", "", "pkg/server.py", ["def retry(self)"]),
    ("retry", "", "server.py", ["def retry(self)"]),
    ("send", "function", "", ["def send(self)", "def send():"]),
    ("send", "method", "", ["def send(self)"]),
    ("LIMIT", "const", "client.py", ["LIMIT = 3"]),
    ("Conn", "", "", ["/// A connection.", "impl Conn"]),
    ("Conn", "struct", "", ["/// A connection."]),
    ("net::Conn::open", "fn", "", ["pub fn open"]),
    ("crate::net::Conn::open", "", "", ["pub fn open"]),
    ("Wire", "trait", "", ["pub trait Wire"]),
    ("View.render", "", "", ["render(): string"]),
    ("View#render", "", "", ["render(): string"]),
    ("paint", "function", "", ["export const paint"]),
    ("Shade", "enum", "", ["export enum Shade"]),
    ("Store.Get", "", "", ["// Get reads."]),
    ("store.Store.Get", "", "", ["// Get reads."]),
    ("Order.total", "", "", ["int total()", "int total(int x)"]),
    ("list_size", "", "", ["int list_size"]),
    ("list", "struct", "", ["struct list"]),
    ("LIST_MAX", "", "", ["#define LIST_MAX"]),
    ("pkg.client", "module", "", ['"""Doc."""']),
    ("pkg.client", "", "", []),
    ("Client", "enum", "", []),
    ("lient.retry", "", "", []),
    ("client.retry", "", "", []),
    ("retry", "", "elsewhere.py", []),
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeIndex]:
    with CodeIndex.open(write_tree(tmp_path_factory.mktemp("workspace")), embedder=None) as opened:
        opened.refresh()
        yield opened


def text(item: CodeItem) -> str:
    return Path(item.file).read_bytes()[item.start_byte : item.end_byte].decode()


@pytest.mark.parametrize(("name", "kind", "file", "begins"), FOUND, ids=[f"{n}-{k}-{f}" for n, k, f, _ in FOUND])
def test_what_is_found(index: CodeIndex, name: str, kind: str, file: str, begins: list[str]) -> None:
    found = index.lookup(name, kind, file)
    assert len(found) == len(begins), [item.canonical_path for item in found]
    for item, beginning in zip(found, begins, strict=True):
        assert text(item).startswith(beginning)
        lines = Path(item.file).read_text().splitlines()[item.start_line - 1 : item.end_line]
        assert text(item).rstrip("\n") in "\n".join(lines)
        assert item.hash == hashlib.blake2b(Path(item.file).read_bytes(), digest_size=16).hexdigest()


def test_overloads_are_told_apart(index: CodeIndex) -> None:
    assert [item.ordinal for item in index.lookup("Order.total")] == [0, 1]


@pytest.mark.parametrize(
    ("name", "kind", "file", "best"),
    [
        ("retyr", "", "", "pkg.client.Client.retry"),
        ("Client.rety", "", "", "pkg.client.Client.retry"),
        ("Server.rety", "", "", "pkg.server.Server.retry"),
        ("Client", "enum", "", "pkg.client.Client"),
        ("retry", "", "other/server.py", "pkg.server.Server.retry"),
        ("callboard.pkg.client.Client.send", "", "", "pkg.client.Client.send"),
        ("listsize", "", "", "list.list_size"),
        ("LISTSIZE", "", "", "list.list_size"),
    ],
)
def test_what_may_have_been_meant(index: CodeIndex, name: str, kind: str, file: str, best: str) -> None:
    assert index.lookup(name, kind, file) == ()
    close = index.close_items(name, kind, file)
    assert close[0].canonical_path == best
    assert len(close) <= MAX_CLOSE


def test_names_that_are_like_no_other_find_nothing(index: CodeIndex) -> None:
    assert index.close_items("qqqqzzzz") == ()


@pytest.mark.parametrize("name", ["", "  ", "()", "..", "::"])
def test_an_empty_name_is_refused(index: CodeIndex, name: str) -> None:
    with pytest.raises(UsageError, match="name is empty"):
        index.lookup(name)


def test_an_unknown_kind_is_refused_with_those_that_there_are(index: CodeIndex) -> None:
    with pytest.raises(UsageError, match=r"kind 'banana' is unknown; give one of .*function"):
        index.lookup("retry", "banana")


def test_every_kind_of_the_index_has_a_word() -> None:
    from_words = frozenset().union(*KINDS.values())
    assert {"function", "method", "class", "struct", "enum", "trait", "impl", "interface", "file"} <= from_words


@pytest.mark.parametrize(
    ("given", "plain"),
    [("a::b", "a.b"), ("Foo#bar", "Foo.bar"), ("mod.Foo.#own", "mod.Foo.#own"), ("crate::a", "a"), (" x() ", "x")],
)
def test_paths_are_compared_in_one_form(given: str, plain: str) -> None:
    assert plain_path(given) == plain


def test_a_name_that_too_many_share_is_cut(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text("".join(f"class C{n}:\n    def go(self): ...\n" for n in range(MAX_ITEMS + 5)))
    with CodeIndex.open(tmp_path, embedder=None) as opened:
        opened.refresh()
        assert len(opened.lookup("go")) == MAX_ITEMS
        assert len(opened.lookup("C104.go")) == 1


def test_spans_are_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "paint.py"
    file.write_text("def red(): ...\n")
    with CodeIndex.open(tmp_path, embedder=None) as opened:
        opened.refresh()
        file.write_text("# moved\n\n\ndef red(): ...\n")
        (item,) = opened.lookup("red")
        assert (item.start_byte, item.start_line) == (10, 4)
        file.unlink()
        assert opened.lookup("red") == ()


def test_a_file_that_has_become_secret_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "paint.py").write_text("def red(): ...\n")
    with CodeIndex.open(tmp_path, embedder=None) as opened:
        opened.refresh()
        (tmp_path / ".callboardignore").write_text("paint.py\n")
        assert opened.lookup("red") == ()
        assert opened.close_items("rde") == ()


def test_what_was_written_a_moment_ago_is_found(tmp_path: Path) -> None:
    (tmp_path / "paint.py").write_text("def red(): ...\n")

    async def write_and_look() -> list[str]:
        async with Runtime(Settings(model="offline/x", workspace=tmp_path)) as runtime:
            search = runtime._wiring.search
            assert isinstance(search, CodeSearch)
            found = [*await search.lookup("red")]
            (tmp_path / "more.py").write_text("def green(): ...\n")
            found += await search.lookup("green")
            (tmp_path / "more.py").write_text("def green(): ...\ndef red(): ...\n")
            await search.changed([tmp_path / "more.py"])
            found += await search.lookup("red")
            return [item.canonical_path for item in found]

    assert asyncio.run(write_and_look()) == ["paint.red", "more.green", "more.red", "paint.red"]
