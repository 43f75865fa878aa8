"""A new journal from what is sound in a damaged one.

Nothing is guessed: a record is taken over when its checksum is right, also when other parts of the file are damaged,
and from an older version of a page where the latest is lost. The indexes say which records there were, and so do the
numbers of the rows. A request of which a record is lost, or may be, is not gone on with: it ends with an error that
says so. The damaged file is moved aside, and kept, with its log.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import uuid
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from callboard.actors.journal.encoding import DamagedRecord, read_event, read_tools, set_aside_row
from callboard.actors.journal.file_lock import FILE_MODE
from callboard.actors.journal.journal_database import StatementRefused
from callboard.actors.journal.journal_records import SetAside
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.journal.sqlite_database import OWN_PREFIX, Durability, SqliteDatabase, make_tables
from callboard.actors.journal.sqlite_pages import Found, FoundRow, Pages, Record, of_file
from callboard.actors.journal.tables import (
    CONVERSATIONS,
    ENDS,
    EVENTS,
    FORMAT,
    MESSAGES,
    META,
    OFFERS,
    OPEN,
    OUTCOMES,
    REQUESTS,
    SET_ASIDE,
    TABLES,
    Row,
    Table,
)
from callboard.actors.opened_folders import attributes, give
from callboard.protocol.errors import UsageError
from callboard.protocol.events import ModelResponded, ToolCallEnd, ToolCallStarted
from callboard.protocol.tools import Effect

_KINDS: Final = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}
#: Each row of these has a key that says which request it is of, and whether a row is lost.
_WITNESSED: Final = (REQUESTS, EVENTS, MESSAGES, ENDS, OUTCOMES)
#: Of these a row may be lost without a trace, and its request would go on as if it had never been: what it began would
#: be done twice. The others follow from the events, which are compared with them when a request is taken up.
_DOUBTED: Final = (EVENTS, OUTCOMES)
_WRITTEN_AT: Final = {EVENTS.name: "written_at", OUTCOMES.name: "committed_at"}
#: What a power cut takes with durability="process" was written in these last seconds, or not much before.
IDLE_SECONDS: Final = 5.0
_NO_NUMBER: Final = 1 << 62
_OWNER: Final = re.compile("[0-9a-f]{32}").fullmatch
_BATCH: Final = 500
_OPEN_WITHOUT_OWNER: Final = f"INSERT INTO {OPEN} (request_id, owner) VALUES (?, '')"
_MADE_BY: Final = (
    "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND type IN ('table', 'index') AND sql IS NOT NULL"
    " ORDER BY type = 'index'"
)


class _Saved(Struct):
    """What is sound, and what is known to be lost."""

    rows: dict[str, dict[Row, Row]] = field(default_factory=lambda: defaultdict(dict))
    """By the name of the table and by key."""
    numbers: dict[str, dict[Row, int]] = field(default_factory=lambda: defaultdict(dict))
    """Which row of its table each is."""
    damaged: list[tuple[Table, Row]] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=Counter)
    """How many records each request has lost, by its id as it is written."""
    in_doubt: set[str] = field(default_factory=set)
    """Of these requests, which had not ended, records may be lost that nothing names."""
    unnamed: list[str] = field(default_factory=list)
    """The tables in which records may be lost that nothing names."""
    foreign: list[str] = field(default_factory=list)
    """Tables that are not the journal's: those of tools."""
    foreign_lost: list[str] = field(default_factory=list)
    """Those in whose place are pages of SQLite's own table of them."""
    not_theirs: set[int] = field(default_factory=set)
    """Pages below these that have rows of the journal's: what a tool had written there since is lost."""

    def add(self, table: Table, found: FoundRow) -> None:
        row = _restored(table, found.record)
        key = _key(table, row)
        self.rows[table.name].setdefault(key, row)
        self.numbers[table.name].setdefault(key, found.number)

    def still_open(self) -> list[str]:
        """The requests that have not ended, as far as one can see."""
        begun = {str(row[0]) for table in (REQUESTS, EVENTS) for row in self.rows[table.name].values()}
        return sorted((begun | self.lost.keys()) - {str(key[0]) for key in self.rows[ENDS.name]})

    def last_events(self) -> dict[str, tuple[int, float]]:
        """The number of the last event of each request that is there, and when it was written."""
        last: dict[str, tuple[int, float]] = {}
        for (request_id, number), row in self.rows[EVENTS.name].items():
            if isinstance(number, int):
                last[str(request_id)] = max((number, _number(row[2])), last.get(str(request_id), (0, 0.0)))
        return last

    def has_tables_of_tools(self) -> bool:
        """Had it any, as far as one can see?"""
        try:
            tools = [tool for offer in self.rows[OFFERS.name].values() for tool in read_tools(offer)]
        except DamagedRecord:
            return True
        is_offered = any(tool.contract.effect is Effect.TRANSACTION for tool in tools)
        return is_offered or bool(self.foreign or self.foreign_lost or self.rows[OUTCOMES.name])

    def may_lack_outcome(self, request_id: str) -> bool:
        """Has a call with the effect `transaction` begun of which no event tells the end, as far as one can see?"""
        row = self.rows[REQUESTS.name].get((request_id,))
        offer = self.rows[OFFERS.name].get((row[4],)) if row is not None else None
        events = [row for row in self.rows[EVENTS.name].values() if row[0] == request_id]
        try:
            tools = () if offer is None else read_tools(offer)
            told = [read_event(each).event for each in events]
        except DamagedRecord:
            return True
        others = {each.definition.name for each in tools if each.contract.effect is not Effect.TRANSACTION}
        named = {
            (event.tag.step, call.call_id): call.name
            for event in told
            if isinstance(event, ModelResponded)
            for call in event.response.tool_calls
        }
        ended = {(event.tag.step, event.tag.call_id) for event in told if isinstance(event, ToolCallEnd)}
        begun = {(event.tag.step, event.tag.call_id) for event in told if isinstance(event, ToolCallStarted)}
        return any(named.get(each) not in others for each in begun - ended)


def damaged_path(path: Path, now: float) -> Path:
    """Where a damaged journal is moved to."""
    return free_path(path, time.strftime("damaged-%Y%m%dT%H%M%SZ", time.gmtime(now)))


def free_path(path: Path, ending: str) -> Path:
    """A name for a copy of the journal that is free. Raises JournalFailed."""
    for number in range(1_000):
        aside = path.with_name(f"{path.name}.{ending}" + (f"-{number}" if number else ""))
        if not aside.exists():
            return aside
    raise JournalFailed(f"there are too many files {path.name}.{ending}*: move them away")


def _part_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvage")


def _ready_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvaged")


def _pages_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvage-pages")


def beside(path: Path) -> tuple[Path, ...]:
    """The files that SQLite keeps beside a database."""
    return tuple(path.with_name(f"{path.name}{ending}") for ending in ("-wal", "-shm", "-journal"))


def remove_database(path: Path) -> None:
    """With the files beside it, which go last: without its log a database is an older one."""
    for each in (path, *beside(path)):
        with contextlib.suppress(FileNotFoundError):
            each.unlink()


def has_records(path: Path, limit: int | None = None) -> bool:
    """Is there a record of a journal in this file, also when the file is damaged? Looks at its first `limit` pages."""
    pages = of_file(path)
    rows = chain(pages.scan(limit).rows, (row for row, _ in pages.others()))
    return any(_table_of(row.record) is not None for row in rows)


def other_format(path: Path, found: object) -> UsageError:
    """The error for a journal of another format than ours."""
    return UsageError(
        f"the journal {path} has the format {found}, this callboard reads {FORMAT}: "
        "use the callboard that wrote it, or another path"
    )


def salvage(path: Path, why: str, now: float, durability: Durability = "power") -> list[str]:
    """Replace the journal, which no one may have open, by a new one. What was found, a line each.

    With the durability "process" a power cut may have taken what was written last out of the log: a request that had
    waited for longer is not doubted for that.
    """
    pages = of_file(path)
    saved = _Evidence(pages).sorted_out(durability)
    for row in saved.rows[META.name].values():
        if row[0] == "format" and row[1] != str(FORMAT):
            raise other_format(path, row[1])
    part, ready = _part_path(path), _ready_path(path)
    remove_database(part)
    aside = damaged_path(path, now)
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE))
        told = _write(part, path, pages, saved, f"the journal was damaged ({why}): it is kept as {aside.name}", now)
        for each in beside(part):
            with contextlib.suppress(FileNotFoundError):
                each.unlink()
        with part.open("rb") as file:  # where root saves it, who has written the journal goes on with it
            give(file.fileno(), attributes(path.stat()))
    except BaseException:
        remove_database(part)  # where the disk is full it needs the room
        raise
    part.replace(ready)
    finish(path, now)
    records = sum(len(saved.rows[table.name]) for table in TABLES if table not in (META, SET_ASIDE))
    return [f"the journal {path} was damaged ({why}): it was moved to {aside}; sound records saved: {records:,}", *told]


def finish(path: Path, now: float) -> Path | None:
    """Put a salvaged journal in its place; also when an earlier process has died in between. Where the old one is."""
    ready = _ready_path(path)
    if not ready.exists():
        remove_database(_part_path(path))
        remove_database(_pages_path(path))
        return None
    aside = damaged_path(path, now)
    for each, ending in zip((path, *beside(path)), ("", "-wal", "-shm", "-journal"), strict=True):
        with contextlib.suppress(FileNotFoundError):
            each.replace(aside.with_name(f"{aside.name}{ending}"))
    ready.replace(path)
    sync_folder(path)
    return aside


def sync_folder(path: Path) -> None:
    """Names that were changed in the folder of this file are durable when this returns."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- what is there


class _Tree(Struct):
    """A table and the index of its keys, and what is known of the two."""

    table: Table
    keys: dict[Row, int]
    """By the index: the number of each row."""
    is_whole: bool
    """All rows of the table can be read: what else an index names is no row any more."""
    is_complete: bool
    """No row is lost that neither names."""
    has_last: bool
    """Its latest rows are there."""
    index: int
    """The root of the index,"""
    pages: set[int]
    """and its pages that have no keys of others."""


class _Evidence:
    """What the pages say: which rows there are, and which there were."""

    def __init__(self, pages: Pages) -> None:
        self.pages, self.found = pages, pages.scan()
        self.saved = _Saved()
        self._roots = _roots(self.found)
        own, schema = (OWN_PREFIX, "sqlite_"), self.found.below(1)[0]
        for (kind, name), root in self._roots.items():
            if kind == "table" and not name.startswith(own):
                is_there = not self.found.below(root)[0] & schema
                (self.saved.foreign if is_there else self.saved.foreign_lost).append(name)
        self._below_roots: set[int] = set().union(*(self.found.below(root)[0] for root in self._roots.values()))
        self._parents = {each: page for page, below in self.found.children.items() for each in below}
        self._unsound: set[int] = set()
        self._pages_of: dict[str, set[int]] = defaultdict(set)
        self._take_rows()
        self._trees = [self._tree(table) for table in TABLES if table is not META]

    def sorted_out(self, durability: Durability) -> _Saved:
        saved = self.saved
        self._add_others()
        for tree in self._trees:
            if tree.table in _WITNESSED and not tree.is_whole:
                self._look_for_lost(tree)
        saved.damaged = [(table, row) for table, row in saved.damaged if _key(table, row) not in saved.rows[table.name]]
        known = {row[0] for row in saved.rows[CONVERSATIONS.name].values()}
        for row in list(saved.rows[REQUESTS.name].values()):
            if row[1] not in known:  # it follows from its requests
                saved.rows[CONVERSATIONS.name].setdefault(row[1:2], CONVERSATIONS.row(*row[1:3]))
        saved.unnamed = [tree.table.name for tree in self._trees if not tree.is_complete]
        saved.in_doubt = self._in_doubt(durability) - saved.lost.keys()
        return saved

    def _take_rows(self) -> None:
        found, saved = self.found, self.saved
        elsewhere: set[int] = set()
        for name in saved.foreign:
            elsewhere |= found.below(self._roots["table", name])[0]
        for row in found.rows:
            table = _table_of(row.record)
            if table is not None:
                self._pages_of[table.name].add(row.page)
                saved.add(table, row)
            elif row.page not in elsewhere and not _is_of_schema(row.record):
                self._unsound.add(row.page)
                if (shape := _table_like(row.record)) is not None:
                    saved.damaged.append((shape, _restored(shape, row.record)))
        saved.not_theirs = {row.page for row in found.rows if row.page in elsewhere and self._is_ours(row.record)}

    def _is_ours(self, record: Record) -> bool:
        """Of OPEN, which has no checksums, a row is a request that is known, and the id of who works at it."""
        if _table_of(record) is not None or _is_of_schema(record):
            return True
        owner = record[1] if len(record) == 2 and record[:1] in self.saved.rows[REQUESTS.name] else None
        return isinstance(owner, str) and _OWNER(owner) is not None

    def _tree(self, table: Table) -> _Tree:
        found, pages, name = self.found, self.pages, table.name
        others = set().union(*(each for other, each in self._pages_of.items() if other != name))
        bad = self._unsound | pages.stale | others
        root = self._roots.get(("table", name)) or self._top(self._pages_of[name])
        own, is_whole = found.below(root)
        is_whole = is_whole and not own & bad and self._pages_of[name] <= own
        index_root = self._roots.get(("index", f"sqlite_autoindex_{name}_1"), 0)
        index, is_index_whole = found.below(index_root)
        keys, foreign = self._keys(table, index)
        is_index_whole = is_index_whole and not foreign and not index & pages.stale
        is_index_whole = is_index_whole and self.saved.numbers[name].items() <= keys.items()
        # A lost page, of which it is not known which one it was, was not both the table's and the index's; two may be.
        is_complete = (is_whole or is_index_whole, is_whole and is_index_whole, False)[min(len(pages.unknown), 2)]
        way = found.last_of(root)
        has_last = all(each in found.children and each not in bad for each in way)
        has_last = has_last and pages.place_of(way[-1]) >= max(pages.unknown, default=-1)
        is_whole = is_whole and not pages.unknown and not is_index_whole
        return _Tree(table, keys, is_whole, is_complete, has_last, index_root, index - foreign)

    def _top(self, pages: set[int]) -> int:
        """The root of a table of which the name is lost: the one page that all of these are below; else 0."""
        tops = {self._parents.get(page, page) for page in pages}
        while tops != pages:
            pages, tops = tops, {self._parents.get(page, page) for page in tops}
        top = pages.pop() if len(pages) == 1 else 0
        return top if self.found.children.get(top) else 0  # a page with rows may be all that is left of it

    def _keys(self, table: Table, index: set[int]) -> tuple[dict[Row, int], set[int]]:
        """Also of pages that are below nothing; and those pages of the index that have keys of other tables."""
        kinds = [_KINDS[table.columns[name].split()[0]] for name in table.key]
        numbers = self.saved.numbers[table.name]
        keys_of = {number: key for key, number in numbers.items()}
        keys: dict[Row, int] = {}
        foreign: set[int] = set()
        for page, records in self.found.keys.items():
            of_page = dict(filter(None, (_key_of(record, kinds) for record in records)))
            right = sum(numbers.get(key) == number for key, number in of_page.items())
            wrong = sum(keys_of.get(number, key) != key for key, number in of_page.items())
            is_of_table = page in index or (page not in self._below_roots and right and len(of_page) == len(records))
            if is_of_table and wrong <= right:  # else a page of another index has got there
                keys |= of_page
            if page in index and (len(of_page) < len(records) or wrong):
                foreign.add(page)
        return keys, foreign

    def _add_others(self) -> None:
        """Rows that only other versions of pages have: where an index names them, or what came later is lost."""
        rows = self.saved.rows
        missing = {tree.table.name: tree.keys.keys() - rows[tree.table.name].keys() for tree in self._trees}
        if not self.pages.log.lost and not self.pages.stale and not any(missing.values()):
            return
        for row, is_latest in self.pages.others():
            table = _table_of(row.record)
            if table is not None:
                is_missing = _key(table, _restored(table, row.record)) in missing.get(table.name, ())
                if is_latest or is_missing:
                    self.saved.add(table, row)

    def _look_for_lost(self, tree: _Tree) -> None:
        saved = self.saved
        begun = saved.rows[REQUESTS.name]
        for key in tree.keys.keys() - saved.rows[tree.table.name].keys():
            request_id = str(key[0])
            if tree.table is MESSAGES:  # the id of a message begins with that of the request which has added it
                parts = str(key[1]).split("/")
                above = ("/".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
                request_id = next((each for each in above if (each,) in begun), "")
            if request_id:
                saved.lost[request_id] += 1

    # -- rows of which there is no trace

    def _in_doubt(self, durability: Durability) -> set[str]:
        """The open requests that may have lost a row of which there is no trace."""
        saved = self.saved
        trees = {tree.table.name: (tree, self._until(tree)) for tree in self._trees if tree.table in _DOUBTED}
        since = self._lost_since() - IDLE_SECONDS if durability == "process" and self._only_log() else -math.inf
        last = saved.last_events()
        found: set[str] = set()
        for each in saved.still_open():
            number, at = last.get(each, (0, math.inf))
            (events, events_until), (outcomes, outcomes_until) = trees[EVENTS.name], trees[OUTCOMES.name]
            may_lack = (at < events_until and not self._names_all(events, (each, number + 1), (each, _NO_NUMBER))) or (
                at < outcomes_until
                and saved.may_lack_outcome(each)
                and not self._names_all(outcomes, (each, 0), (each, _NO_NUMBER))
            )
            if may_lack and at >= since:
                found.add(each)
        return found

    def _names_all(self, tree: _Tree, first: Row, last: Row) -> bool:
        """Is the index sound where keys from the first to the last of these are, or would be?"""
        return all(self._is_sound_at(tree, key) for key in (first, last))

    def _is_sound_at(self, tree: _Tree, key: Row) -> bool:
        page, seen = tree.index, set[int]()
        while page not in seen:
            seen.add(page)
            below, keys = self.found.children.get(page), self.found.keys.get(page, [])
            if below is None or page in self.pages.stale or page not in tree.pages:
                return False
            if self.pages.place_of(page) < max(self.pages.unknown, default=-1):
                return False
            if not below:
                return True
            if len(below) != len(keys) + 1:
                return False
            place = bisect_right([each[: len(key)] for each in keys], key)
            page = (*below[1:], below[0])[place]
        return False

    def _until(self, tree: _Tree) -> float:
        """When the last row was written, at the latest, that may be lost though nothing names it.

        The rows of a table are numbered as they are added. A number that neither a row nor the index has was a row that
        is lost, or was deleted; it was written before the next one.
        """
        if tree.is_complete:
            return -math.inf
        if not tree.has_last:
            return math.inf
        name = tree.table.name
        place = list(tree.table.columns).index(_WRITTEN_AT[name])
        numbers = self.saved.numbers[name]
        times = {numbers[key]: _number(row[place]) for key, row in self.saved.rows[name].items()}
        known = sorted({0, *times, *tree.keys.values()})
        behind = [after for before, after in pairwise(known) if after > before + 1]
        if not behind:
            return -math.inf
        return next((times[each] for each in known if each >= behind[-1] and each in times), math.inf)

    def _lost_since(self) -> float:
        """When the last event was written that the log has before its first lost frame, or the file."""
        for rows in self.pages.in_log_before(min(self.pages.log.lost)):
            if times := _times(rows):
                return max(times)
        return max(_times([row for row in self.found.rows if self.pages.place_of(row.page) < 0]), default=-math.inf)

    def _only_log(self) -> bool:
        """Is a part of the log damaged, and nothing in the file?"""
        pages, found = self.pages, self.found
        in_file = [page for page in range(1, pages.pages_in_file + 1) if pages.place_of(page) < 0]
        return bool(pages.log.lost and pages.log.frames) and not any(
            page in self._unsound or (page in self._below_roots and page not in found.children) for page in in_file
        )


def _roots(found: Found) -> dict[tuple[str, str], int]:
    """The root of each table and index, by kind and name: from the rows of SQLite's own table of them."""
    return {
        (str(row.record[0]), str(row.record[1])): root
        for row in found.rows
        if _is_of_schema(row.record) and isinstance(root := row.record[3], int)
    }


def _is_of_schema(record: Record) -> bool:
    """Is it a row of SQLite's own table of tables and indexes?"""
    return len(record) == 5 and record[0] in ("table", "index") and record[1] is not None


def _key_of(record: Record, kinds: Sequence[type[object]]) -> tuple[Row, int] | None:
    """The key of a row and its number, from a record of its index."""
    *values, number = record
    key = tuple(
        float(each) if kind is float and isinstance(each, int) else each
        for each, kind in zip(values, kinds, strict=False)
    )
    fits = len(values) == len(kinds) and all(map(isinstance, key, kinds))
    return (key, number) if fits and isinstance(number, int) else None


def _times(rows: Iterable[FoundRow]) -> list[float]:
    """When those of them that are events were written."""
    return [_number(row.record[2]) for row in rows if _table_of(row.record) is EVENTS]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else -math.inf


def _table_of(record: Record) -> Table | None:
    """The table of ours that a row with this checksum is of."""
    for table in TABLES:
        if len(record) == len(table.columns) + 1 and table.checksum(_restored(table, record)[:-1]) == record[-1]:
            return table
    return None


def _table_like(record: Record) -> Table | None:
    for table in TABLES:
        if table in (META, CONVERSATIONS) or len(record) != len(table.columns) + 1 or not isinstance(record[-1], int):
            continue
        kinds = [(_KINDS[kind.split()[0]], "NOT NULL" not in kind) for kind in table.columns.values()]
        row = _restored(table, record)
        if all(
            isinstance(value, kind) or (value is None and may)
            for value, (kind, may) in zip(row[:-1], kinds, strict=True)
        ):
            return table
    return None


def _restored(table: Table, record: Record) -> Row:
    """SQLite keeps a REAL without a fraction as an integer ("Datatypes In SQLite", 3.4)."""
    kinds = (*table.columns.values(), "INTEGER")
    return tuple(
        float(value) if isinstance(value, int) and kind.startswith("REAL") else value
        for value, kind in zip(record, kinds, strict=True)
    )


def _key(table: Table, row: Row) -> Row:
    return tuple(value for name, value in zip(table.columns, row[:-1], strict=True) if name in table.key)


# -- the new one


def _write(part: Path, old: Path, pages: Pages, saved: _Saved, why: str, now: float) -> list[str]:
    """What is to be told of it."""
    rows = list(_set_aside(saved, now))
    if pages.log.fault or saved.unnamed or not rows:
        unnamed = f"; records of which nothing tells may be lost: {', '.join(saved.unnamed)}" if saved.unnamed else ""
        rows.append(SET_ASIDE.row(now, "the journal", why + unnamed, None, "", None))
    database = SqliteDatabase(part)
    try:
        database.begin()
        make_tables(database)
        for table in TABLES:
            found = list(saved.rows[table.name].values())
            for at in range(0, len(found), _BATCH):
                database.execute_many(table.insert, found[at : at + _BATCH])
        made = {"format": str(FORMAT), "made_at": repr(now), "journal": uuid.uuid4().hex}
        database.execute_many(META.insert, [META.row(*each) for each in made.items()])
        database.execute_many(_OPEN_WITHOUT_OWNER, [(each,) for each in saved.still_open()])
        database.execute_many(SET_ASIDE.insert, rows)
        notes = _copy_foreign(database, old, pages, saved)
        if (pages.log.lost or pages.stale or pages.unknown) and saved.has_tables_of_tools():
            notes.append("pages are lost: tables of tools, or rows of them, may be lost with these")
        for note in notes:
            database.execute(SET_ASIDE.insert, SET_ASIDE.row(now, "a table of a tool", note, None, "", None))
        database.commit()
        database.checkpoint()
    finally:
        database.close()
    if saved.damaged:
        notes.append(f"damaged records set aside: {len(saved.damaged):,}")
    if saved.lost:
        notes.append(f"requests with lost records: {len(saved.lost):,}; those that had not ended are not gone on with")
    if saved.in_doubt:
        doubted = f"{len(saved.in_doubt):,}; they are not gone on with"
        notes.append(f"requests that had not ended and may have lost records: {doubted}")
    return notes


def _set_aside(saved: _Saved, now: float) -> Iterator[Row]:
    for number, (table, row) in enumerate(saved.damaged, start=1):
        found = SetAside(f"damaged record {number}, of {table.name}: {_key(table, row)}", "its checksum is wrong", now)
        data = row[-2]
        yield set_aside_row(found, data if isinstance(data, bytes) else None)
    for each in sorted(saved.lost):
        told = f"{saved.lost[each]} of its records are lost: the journal was damaged"
        yield SET_ASIDE.row(now, f"request {each}", told, each, "", None)
    for each in sorted(saved.in_doubt):
        told = "records of it may be lost: the journal was damaged, and nothing of it tells what came behind"
        yield SET_ASIDE.row(now, f"request {each}", told, each, "", None)


def _copy_foreign(database: SqliteDatabase, old: Path, pages: Pages, saved: _Saved) -> list[str]:
    """The tables of tools, as far as SQLite reads them: they have no checksums."""
    names = saved.foreign
    lost = [f"the table {each} of a tool is lost" for each in saved.foreign_lost]
    if not names:
        return lost
    whole = _pages_path(old)
    try:
        remove_database(whole)
        with open(os.open(whole, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE), "wb") as file:
            file.writelines(pages.whole_file(saved.not_theirs))
        with contextlib.closing(SqliteDatabase(whole, reads_only=True)) as source:
            # Nothing is written to it: this lets SQLite read the rest of a schema of which a line is damaged.
            source.execute("PRAGMA writable_schema = ON")
            return lost + [note for name in names if (note := _copy_table(database, source, name))]
    except JournalFailed as error:
        return [*lost, f"the tables of tools ({', '.join(names)}) could not be saved: {error}"]
    finally:
        remove_database(whole)


def _copy_table(database: SqliteDatabase, source: SqliteDatabase, name: str) -> str:
    quoted = '"' + name.replace('"', '""') + '"'
    copied = 0
    try:
        for sql in source.query(_MADE_BY, (name,)):
            database.execute(str(sql[0]))
        for row in source.each(f"SELECT * FROM {quoted}"):
            database.execute(f"INSERT INTO {quoted} VALUES ({', '.join('?' * len(row))})", row)
            copied += 1
    except (JournalFailed, StatementRefused) as error:
        return f"of the table {name} of a tool {copied} rows were saved, and not all: {error}"
    return ""
