"""A new journal from what is sound in a damaged one.

Nothing is guessed: a record is taken over when its checksum is right, also when other parts of the file are damaged.
The indexes say which records there were. A request of which a record is lost, or may be, is not gone on with: it ends
with an error that says so. The damaged file is moved aside, and kept.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from callboard.actors.journal.encoding import set_aside_row
from callboard.actors.journal.file_lock import FILE_MODE
from callboard.actors.journal.journal_database import StatementRefused
from callboard.actors.journal.journal_records import SetAside
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.journal.sqlite_database import OWN_PREFIX, SqliteDatabase, make_tables
from callboard.actors.journal.sqlite_pages import Found, Pages, Record, of_file
from callboard.actors.journal.tables import (
    CONVERSATIONS,
    ENDS,
    EVENTS,
    FORMAT,
    META,
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

#: Commits behind a damaged one in the log. One may be a commit that a power cut has interrupted: nothing was built on
#: it. Of two, the first had been reported as durable before the second began.
MOST_UNFINISHED_COMMITS: Final = 1
_KINDS: Final = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}
#: Each row of these has a key that says which request it is of, and whether a row is lost.
_WITNESSED: Final = (REQUESTS, EVENTS, ENDS, OUTCOMES)
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
    damaged: list[tuple[Table, Row]] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=Counter)
    """How many records each request has lost, by its id as it is written."""
    doubts: list[str] = field(default_factory=list)
    """Why records may be lost of any request."""
    foreign: tuple[str, ...] = ()
    """Tables that are not the journal's: those of tools."""


def damaged_path(path: Path, now: float) -> Path:
    """Where a damaged journal is moved to: a name that is free."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    for number in range(1_000):
        aside = path.with_name(f"{path.name}.damaged-{stamp}" + (f"-{number}" if number else ""))
        if not aside.exists():
            return aside
    raise JournalFailed(f"there are too many files {path.name}.damaged-*: move them away")


def _part_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvage")


def _ready_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvaged")


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
    found = of_file(path).scan(limit)
    return any(_table_of(record) is not None for _, record in found.rows)


def other_format(path: Path, found: object) -> UsageError:
    """The error for a journal of another format than ours."""
    return UsageError(
        f"the journal {path} has the format {found}, this callboard reads {FORMAT}: "
        "use the callboard that wrote it, or another path"
    )


def salvage(path: Path, why: str, now: float) -> list[str]:
    """Replace the journal, which no one may have open, by a new one. What was found, a line each."""
    pages = of_file(path)
    found = pages.scan()
    saved = _sort_out(pages, found)
    for row in saved.rows[META.name].values():
        if row[0] == "format" and row[1] != str(FORMAT):
            raise other_format(path, row[1])
    part, ready = _part_path(path), _ready_path(path)
    remove_database(part)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE))
    copied = _write(part, path, saved, now)
    for each in beside(part):
        with contextlib.suppress(FileNotFoundError):
            each.unlink()
    with part.open("rb") as file:  # where root saves it, who has written the journal goes on with it
        give(file.fileno(), attributes(path.stat()))
    part.replace(ready)
    aside = finish(path, now)
    records = sum(len(saved.rows[table.name]) for table in TABLES if table not in (META, SET_ASIDE))
    notes = [f"the journal {path} was damaged ({why}): it was moved to {aside}; sound records saved: {records:,}"]
    if saved.damaged:
        notes.append(f"damaged records set aside: {len(saved.damaged):,}")
    if saved.lost:
        notes.append(f"requests with lost records: {len(saved.lost):,}; those that had not ended are not gone on with")
    if saved.doubts:
        notes.append(f"requests that had not ended are not gone on with: {'; '.join(saved.doubts)}")
    return notes + copied


def finish(path: Path, now: float) -> Path | None:
    """Put a salvaged journal in its place; also when an earlier process has died in between. Where the old one is."""
    ready = _ready_path(path)
    if not ready.exists():
        remove_database(_part_path(path))
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


def _sort_out(pages: Pages, found: Found) -> _Saved:
    saved = _Saved()
    roots = {
        (str(kind), str(name)): root
        for _, record in found.rows
        if len(record) == 5 and isinstance(root := record[3], int)
        for kind, name in [record[:2]]
        if kind in ("table", "index") and record[1] is not None
    }
    own = (OWN_PREFIX, "sqlite_")
    saved.foreign = tuple(name for kind, name in roots if kind == "table" and not name.startswith(own))
    elsewhere: set[int] = set()
    for name in saved.foreign:
        elsewhere |= found.below(roots["table", name])[0]
    for number, record in found.rows:
        table = _table_of(record)
        if table is not None:
            row = _restored(table, record)
            saved.rows[table.name].setdefault(_key(table, row), row)
        elif number not in elsewhere and (shape := _table_like(record)) is not None:
            saved.damaged.append((shape, _restored(shape, record)))
    for table in _WITNESSED:
        _look_for_lost(table, roots.get(("index", f"sqlite_autoindex_{table.name}_1")), found, saved)
    if pages.wal.lost_commits > MOST_UNFINISHED_COMMITS:
        saved.doubts.append(f"{pages.wal.lost_commits} commits at the end of its log are lost")
    return saved


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


def _look_for_lost(table: Table, root: int | None, found: Found, saved: _Saved) -> None:
    pages, is_whole = found.below(root) if root else (set[int](), False)
    sound = saved.rows[table.name]
    keys = [record for number in pages for record in found.keys.get(number, ())]
    names = list(table.columns)[: len(table.key)]
    kinds = [_KINDS[table.columns[name].split()[0]] for name in names]
    for key in keys:
        if len(key) != len(kinds) + 1 or not all(
            isinstance(value, kind) for value, kind in zip(key[:-1], kinds, strict=True)
        ):
            is_whole = False
        elif key[:-1] not in sound:
            saved.lost[str(key[0])] += 1
    if not is_whole:
        saved.doubts.append(f"the index of {table.name} is damaged, so it is not known which records are lost")


# -- the new one


def _write(part: Path, old: Path, saved: _Saved, now: float) -> list[str]:
    database = SqliteDatabase(part)
    try:
        database.begin()
        make_tables(database)
        for table in TABLES:
            rows = list(saved.rows[table.name].values())
            for at in range(0, len(rows), _BATCH):
                database.execute_many(table.insert, rows[at : at + _BATCH])
        made = {"format": str(FORMAT), "made_at": repr(now), "journal": uuid.uuid4().hex}
        database.execute_many(META.insert, [META.row(*each) for each in made.items()])
        still_open = _still_open(saved)
        database.execute_many(_OPEN_WITHOUT_OWNER, [(each,) for each in still_open])
        database.execute_many(SET_ASIDE.insert, list(_set_aside(saved, still_open, now)))
        notes = _copy_foreign(database, old, saved.foreign)
        database.commit()
        database.checkpoint()
    finally:
        database.close()
    return notes


def _still_open(saved: _Saved) -> list[str]:
    begun = {str(row[0]) for table in (REQUESTS, EVENTS) for row in saved.rows[table.name].values()}
    known = begun | saved.lost.keys()
    ended = {str(row[0]) for row in saved.rows[ENDS.name].values()}
    return sorted(known - ended)


def _set_aside(saved: _Saved, still_open: Sequence[str], now: float) -> Iterator[Row]:
    for number, (table, row) in enumerate(saved.damaged, start=1):
        found = SetAside(f"damaged record {number}, of {table.name}: {_key(table, row)}", "its checksum is wrong", now)
        data = row[-2]
        yield set_aside_row(found, data if isinstance(data, bytes) else None)
    doubt = "; ".join(saved.doubts)
    for each in sorted(saved.lost.keys() | (set(still_open) if doubt else set())):
        if each in saved.lost:
            told = f"{saved.lost[each]} of its records are lost: the journal was damaged"
        else:
            told = f"records of it may be lost: the journal was damaged ({doubt})"
        yield SET_ASIDE.row(now, f"request {each}", told, each, "", None)


def _copy_foreign(database: SqliteDatabase, old: Path, names: Sequence[str]) -> list[str]:
    """The tables of tools, as far as SQLite reads them: they have no checksums."""
    if not names:
        return []
    try:
        with contextlib.closing(SqliteDatabase(old, reads_only=True)) as source:
            # Nothing is written to it: this lets SQLite read the rest of a schema of which a line is damaged.
            source.execute("PRAGMA writable_schema = ON")
            return [note for name in names if (note := _copy_table(database, source, name))]
    except JournalFailed as error:
        return [f"the tables of tools ({', '.join(names)}) could not be saved: {error}"]


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
