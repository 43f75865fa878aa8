"""Items by name or canonical path: exactly, and where there are none, what may have been meant."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from callboard.actors.index.code_items import CodeItem, kinds_of, plain_path
from callboard.actors.index.store import SqliteStore
from callboard.protocol.errors import UsageError
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import rapidfuzz
    from rapidfuzz import distance
else:  # 47 modules, for names that are not found
    rapidfuzz = lazy_module("rapidfuzz")
    distance = lazy_module("rapidfuzz.distance")

#: Items in one answer. A name that more items share (`__init__`) is too common to be looked up by itself.
MAX_ITEMS: Final = 100
#: Items that are offered when none is called as asked for.
MAX_CLOSE: Final = 8
#: Of these, items of one name.
MAX_ALIKE: Final = 3
#: How alike two names must be (Jaro-Winkler, 0 to 1) to be offered for each other: `retry_reqest` has 0.98 with
#: `retry_request`.
MIN_LIKENESS: Final = 0.85
#: How long a look-up waits for another process that writes the index, to have a changed file indexed again.
REFRESH_SECONDS: Final = 0.5


class ItemName(Struct, frozen=True):
    """What is looked up."""

    given: str
    """As the asker wrote it."""
    path: str
    """With dots between the names."""
    kinds: frozenset[str]
    """Empty: any."""
    file: str

    @classmethod
    def of(cls, name: str, kind: str, file: str) -> Self:
        """Raises UsageError."""
        path = plain_path(name)
        if not path:
            raise UsageError(
                "the name is empty; give a name such as `retry` or a path such as `pkg.client.Client.retry`"
            )
        return cls(name.strip(), path, kinds_of(kind), file.strip())

    @property
    def name(self) -> str:
        """The last one of the path."""
        return self.path.rpartition(".")[2]

    @property
    def outer_name(self) -> str:
        """The last one but one; empty if there is none."""
        return self.path.rpartition(".")[0].rpartition(".")[2]


def find(store: SqliteStore, roots: Sequence[str], asked: ItemName) -> list[CodeItem]:
    """Those of the whole canonical path; if there are none, those whose path ends so."""
    conditions, values = _conditions(asked)
    if asked.file:
        conditions.append("s.file IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(_files(store, roots, asked.file)))

    def items(condition: str, *parameters: object) -> list[CodeItem]:
        return store.items(" AND ".join([condition, *conditions]), [*parameters, *values], MAX_ITEMS)

    whole = items("s.canonical_path IN (?, ?, ?)", asked.given, asked.path, asked.path.replace(".", "::"))
    if whole or not asked.outer_name:
        return whole or items("s.name = ?", asked.name)
    ends = "s.name = ? AND substr('.' || replace(s.canonical_path, '::', '.'), ?) = ?"
    ending = asked.name, -len(asked.path) - 1, f".{asked.path}"
    # In a file where the outer name is defined; a method of Go or C++ may be in another one than its type.
    near = f"{ends} AND s.file IN (SELECT file FROM symbols WHERE name = ?)"
    return items(near, *ending, asked.outer_name) or items(ends, *ending)


def find_close(store: SqliteStore, asked: ItemName) -> list[CodeItem]:
    """Items of this very name first, wherever and of whatever kind; without such, of names that are spelt nearly so."""
    same = store.items("s.kind NOT IN ('file', 'section') AND s.name = ?", [asked.name], MAX_ITEMS)
    names = {asked.name: 1.0} if same else _close_names(store, asked.name)
    found = same or [
        item
        for name in names
        for item in store.items("s.kind NOT IN ('file', 'section') AND s.name = ?", [name], MAX_ALIKE)
    ]  # fmt: skip

    def likeness(item: CodeItem) -> tuple[bool, float, bool, int]:
        is_kind = not asked.kinds or item.kind in asked.kinds
        is_file = not asked.file or os.path.basename(item.file) == os.path.basename(asked.file)
        return is_kind, names[item.name], is_file, _common_names(item, asked.path)

    return sorted(found, key=likeness, reverse=True)[:MAX_CLOSE]


def _conditions(asked: ItemName) -> tuple[list[str], list[object]]:
    if not asked.kinds:
        return ["s.kind NOT IN ('file', 'section')"], []
    return ["s.kind IN (SELECT value FROM json_each(?))"], [json.dumps(sorted(asked.kinds))]


def _files(store: SqliteStore, roots: Sequence[str], file: str) -> list[int]:
    """Ids of the files that are called so: the one of the whole path, or those whose path ends with it."""
    places = [os.path.realpath(os.path.join(root, file)) for root in roots]
    exact = store.rows("SELECT id FROM files WHERE path IN (SELECT value FROM json_each(?))", [json.dumps(places)])
    ending = f"/{file.lstrip('./')}"
    found = exact or store.rows("SELECT id FROM files WHERE substr(path, ?) = ?", [-len(ending), ending])
    return [int(str(row[0])) for row in found]


def _close_names(store: SqliteStore, name: str) -> dict[str, float]:
    """Names of items that are spelt nearly so, with their likeness; case and underscores do not count."""
    names: Iterable[str] = (
        str(row[0]) for row in store.rows("SELECT DISTINCT name FROM symbols WHERE kind NOT IN ('file', 'section')")
    )
    found = rapidfuzz.process.extract(
        name,
        list(names),
        scorer=distance.JaroWinkler.similarity,
        processor=rapidfuzz.utils.default_process,
        limit=MAX_CLOSE,
        score_cutoff=MIN_LIKENESS,
    )
    return {each[0]: each[1] for each in found}


def _common_names(item: CodeItem, path: str) -> int:
    """How many names of its path are in the path asked for."""
    return len(set(plain_path(item.canonical_path).split(".")) & set(path.split(".")))
