"""What items of code have to do with each other, in several languages, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_tree import write_tree

from callboard.actors.index import CodeIndex
from callboard.actors.index.relations import Certainty, Relation, Relatives

EXACT, SCOPE, NAME, OUTSIDE = Certainty

#: The item, the relation, and what is found: by canonical path, or by name where it is outside the workspace.
RELATED: tuple[tuple[str, Relation, list[tuple[str, Certainty]]], ...] = (
    ("Client", Relation.CONTAINS, [("pkg.client.Client.retry", EXACT), ("pkg.client.Client.send", EXACT)]),
    ("Client.retry", Relation.CONTAINED_IN, [("pkg.client", EXACT), ("pkg.client.Client", EXACT)]),
    ("Client.retry", Relation.CALLED_BY, [("pkg.client.Client.send", SCOPE)]),
    ("Client.send", Relation.CALLS, [("pkg.client.Client.retry", SCOPE)]),
    ("Client.send", Relation.CALLED_BY, [("pkg.server.send", NAME)]),
    ("Client.retry", Relation.CALLS, [("staticmethod", OUTSIDE)]),
    ("Client", Relation.CALLED_BY, [("pkg.server.send", SCOPE)]),
    ("Client", Relation.IMPORTED_BY, [("pkg.server", SCOPE)]),
    ("Client", Relation.EXTENDED_BY, [("pkg.server.Server", SCOPE)]),
    ("Server", Relation.EXTENDS, [("pkg.client.Client", SCOPE)]),
    ("Server", Relation.IMPORTS, [("pkg.client", SCOPE)]),
    # `Client().send()` is a method of something, so it is not sure to be this function, which is nearer.
    (
        "pkg.server.send",
        Relation.CALLS,
        [("pkg.client.Client", SCOPE), ("pkg.client.Client.send", NAME), ("pkg.server.send", NAME)],
    ),
    ("Conn", Relation.CONTAINS, [("net::Conn::open", EXACT)]),
    ("Wire", Relation.EXTENDED_BY, [("pool::Pool", SCOPE)]),
    ("Conn", Relation.IMPORTED_BY, [("pool", SCOPE)]),
    ("fill", Relation.CALLED_BY, [("pool::Pool::open", SCOPE)]),
    ("fill", Relation.CALLS, [("net::Conn::open", NAME), ("net::Wire::open", NAME), ("pool::Pool::open", NAME)]),
    ("fill", Relation.IMPORTS, [("net", SCOPE)]),
    ("Page", Relation.EXTENDS, [("web.view.View", SCOPE)]),
    ("Page", Relation.CALLS, [("web.view.paint", SCOPE), ("web.view.View.render", NAME)]),
    ("paint", Relation.CALLED_BY, [("web.page.Page.show", SCOPE), ("web.view.View.render", SCOPE)]),
    ("View", Relation.IMPORTED_BY, [("web.page", SCOPE)]),
    ("main", Relation.IMPORTS, [("store.store", SCOPE)]),
    ("main", Relation.CALLS, [("store.store.Open", SCOPE), ("store.store.Store.Get", NAME)]),
    ("Store.Get", Relation.CALLED_BY, [("cmd.main.main", NAME)]),
    ("Order", Relation.EXTENDS, [("Thing", OUTSIDE)]),
    ("Order.total", Relation.CALLED_BY, [("app.Order.Order.total", SCOPE)]),
    ("list_size", Relation.CALLED_BY, [("use.twice", SCOPE)]),
    ("twice", Relation.CALLS, [("list.list_size", SCOPE)]),
    ("twice", Relation.IMPORTS, [("list", SCOPE)]),
    ("Shade", Relation.CALLED_BY, []),
    ("Shade", Relation.CONTAINS, []),
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodeIndex]:
    with CodeIndex.open(write_tree(tmp_path_factory.mktemp("workspace")), embedder=None) as opened:
        opened.refresh()
        yield opened


def related(index: CodeIndex, name: str, relation: Relation, limit: int = 50) -> Relatives:
    return index.relatives(index.lookup(name), relation, limit)


@pytest.mark.parametrize(("name", "relation", "wanted"), RELATED, ids=[f"{n}-{r.value}" for n, r, _ in RELATED])
def test_what_is_related(index: CodeIndex, name: str, relation: Relation, wanted: list[tuple[str, Certainty]]) -> None:
    found = related(index, name, relation).found
    assert sorted((each.canonical_path or each.name, each.certainty) for each in found) == sorted(wanted)


def test_the_surest_come_first_and_each_has_its_place(index: CodeIndex) -> None:
    surest, *rest = related(index, "pkg.server.send", Relation.CALLS).found
    assert (surest.certainty, Path(surest.file).name, surest.line) == (SCOPE, "client.py", 6)
    assert {each.certainty for each in rest} == {NAME}


def test_what_is_beyond_the_limit_is_counted(index: CodeIndex) -> None:
    cut = related(index, "Client", Relation.CONTAINS, limit=1)
    assert [each.name for each in cut.found] == ["retry"]
    assert cut.left_out == 1


def test_a_module_is_an_item_too(index: CodeIndex) -> None:
    (module,) = index.lookup("web.view", "module")
    assert [each.name for each in index.relatives([module], Relation.IMPORTED_BY, 9).found] == ["page"]
    assert [each.name for each in index.relatives([module], Relation.CONTAINS, 9).found] == ["View", "paint", "Shade"]


def test_a_name_that_is_in_two_modules_is_not_sure(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("def paint(): ...\n")
    (tmp_path / "c.py").write_text("from x import *\n\ndef go():\n    paint()\n")
    (tmp_path / "d.py").write_text("from b import paint\n\ndef go():\n    paint()\n")
    with CodeIndex.open(tmp_path, embedder=None) as opened:
        opened.refresh()
        unsure = related(opened, "c.go", Relation.CALLS).found
        sure = related(opened, "d.go", Relation.CALLS).found
    assert [(each.canonical_path, each.certainty) for each in unsure] == [("a.paint", NAME), ("b.paint", NAME)]
    assert [(each.canonical_path, each.certainty) for each in sure] == [("b.paint", SCOPE)]
