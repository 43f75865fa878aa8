"""A journal as JSON lines, and conversations and ended requests taken in from such lines.

The first line names the format; each other line is one row of a table, with what is inside it as JSON:

    {"table": "messages", "conversation_id": "...", ..., "data": {...}}

What cannot be read is not in it: `verify` and the records set aside tell of that. A new journal takes all of it, with
the requests that had not ended, and a runtime that starts with it goes on with them; another one takes what has ended.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from callboard.actors.journal import encoding
from callboard.actors.journal.encoding import DamagedRecord, column
from callboard.actors.journal.journal_database import JournalDatabase
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.tables import (
    BEGIN_OPEN,
    COMPACTIONS,
    CONVERSATIONS,
    ENDS,
    EVENTS,
    MESSAGES,
    OFFERS,
    OPEN_REQUESTS,
    OUTCOMES,
    REQUESTS,
    SET_ASIDE,
    TAKINGS,
    USAGE,
    Row,
    Table,
    Value,
)
from callboard.protocol.codec import SavedConversation, encode_messages, encode_parts
from callboard.protocol.compaction import Compacted
from callboard.protocol.errors import UsageError

JOURNAL_FORMAT: Final = "callboard-journal"
JOURNAL_VERSION: Final = 1
#: What came in so was added by no request of this journal.
IMPORTED: Final = "imported"
_PREFIX: Final = "callboard_"
_EXPORTED: Final = (
    OFFERS, CONVERSATIONS, REQUESTS, EVENTS, MESSAGES, COMPACTIONS, ENDS, OUTCOMES, TAKINGS, SET_ASIDE, USAGE,
)  # fmt: skip
_OF_REQUESTS: Final = (REQUESTS, EVENTS, OUTCOMES, TAKINGS)
_READ: Final = {
    OFFERS.name: encoding.read_tools,
    REQUESTS.name: encoding.read_beginning,
    EVENTS.name: encoding.read_event,
    MESSAGES.name: encoding.read_message,
    COMPACTIONS.name: encoding.read_compacted,
    ENDS.name: encoding.read_end,
    OUTCOMES.name: encoding.read_outcome,
    USAGE.name: encoding.read_usage,
}
#: Rows read from the database at once.
_PAGE: Final = 500


class Imported(Struct, frozen=True):
    """What came of an import."""

    rows: int = 0
    """Those that were not there before."""
    left_out: int = 0
    """Rows of requests that had not ended when the lines were written: a journal that was there before does not go on
    with them."""
    open_requests: int = 0
    """Requests that had not ended, and that a runtime with this new journal goes on with."""


def journal_lines(reader: SqlReader) -> Iterator[str]:
    """All that can be read of a journal, of one moment, a line at a time."""
    yield json.dumps({"format": JOURNAL_FORMAT, "version": JOURNAL_VERSION})
    has_lost = False
    with reader.one_moment():
        for table in _EXPORTED:
            for row in _rows(reader.database, table):
                try:
                    encoding.check(table, row)
                except DamagedRecord:
                    has_lost |= table in _OF_REQUESTS
                    continue
                yield _line(table, row)
        if has_lost:
            yield from (_line(SET_ASIDE, row) for row in _doubts(reader.database, time.time()))


def _line(table: Table, row: Sequence[object]) -> str:
    return json.dumps({"table": table.name.removeprefix(_PREFIX), **_shown(table, row)})


def _doubts(database: JournalDatabase, now: float) -> Iterator[Row]:
    """Nobody goes on with an open request of which an event may be missing: a call would be run again."""
    for (request_id,) in database.query(OPEN_REQUESTS):
        why = "records of it may be lost: the journal that was exported is damaged"
        yield SET_ASIDE.row(now, f"request {request_id}", why, str(request_id), "", None)


def _rows(database: JournalDatabase, table: Table) -> Iterator[Sequence[object]]:
    """All rows in the order of the key, page by page."""
    names = ", ".join(table.key)
    marks = ", ".join("?" * len(table.key))
    places = [list(table.columns).index(name) for name in table.key]
    rows = database.query(f"{table.select} ORDER BY {names} LIMIT ?", (_PAGE,))
    while rows:
        yield from rows
        after = [rows[-1][place] for place in places]
        sql = f"{table.select} WHERE ({names}) > ({marks}) ORDER BY {names} LIMIT ?"
        rows = database.query(sql, (*after, _PAGE))


def _shown(table: Table, row: Sequence[object]) -> dict[str, object]:
    shown = dict(zip(table.columns, row, strict=False))
    data = shown.get("data")
    if isinstance(data, bytes):
        try:
            shown["data"] = json.loads(data)
        except ValueError:  # of a record that was set aside
            shown["data"] = {"base64": base64.b64encode(data).decode()}
    return shown


# -- back


def import_lines(database: JournalDatabase, lines: Iterable[str], *, is_new: bool = False) -> Imported:
    """Add what is not there yet, within the transaction that runs. `is_new`: the journal was made for it, and takes
    requests that had not ended too. Raises UsageError, with the line, for anything that `journal_lines` did not write.
    """
    rows = _parsed(lines)
    begun, ended = ({row[0] for each, row in rows if each is table} for table in (REQUESTS, ENDS))
    added = left_out = 0
    for table in _EXPORTED:
        of_table = [row for each, row in rows if each is table]
        kept = of_table if is_new else [row for row in of_table if _belongs(table, row, ended)]
        left_out += len(of_table) - len(kept)
        if kept:
            added += max(0, database.execute_many(table.insert, kept))
    still_open = begun - ended if is_new else set()
    if still_open:
        database.execute_many(BEGIN_OPEN, [(each, "", each) for each in still_open])
    return Imported(added, left_out, len(still_open))


def _belongs(table: Table, row: Row, ended: set[Value]) -> bool:
    """Is it no row of a request that had not ended? Its messages are the conversation's."""
    if table in _OF_REQUESTS:
        return row[0] in ended
    return True


def _parsed(lines: Iterable[str]) -> list[tuple[Table, Row]]:
    found: list[tuple[Table, Row]] = []
    tables = {table.name.removeprefix(_PREFIX): table for table in _EXPORTED}
    has_begun = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} is not JSON: {error}") from error
        if not isinstance(told, dict):
            raise UsageError(f"line {number} is not an object")
        if not has_begun:
            _check_first(told)
            has_begun = True
        elif (table := tables.get(str(told.pop("table", "")))) is None:
            raise UsageError(f'line {number}: "table" must be one of {", ".join(tables)}')
        else:
            found.append((table, _row(table, told, number)))
    if not has_begun:
        raise UsageError("there is nothing to import: the first line must name the format")
    return found


def _check_first(told: Mapping[str, object]) -> None:
    if told.get("format") != JOURNAL_FORMAT:
        raise UsageError(f'this is no export of a journal: the "format" of its first line must be "{JOURNAL_FORMAT}"')
    if told.get("version") != JOURNAL_VERSION:
        raise UsageError(
            f"this export has the version {told.get('version')!r:.40}; this callboard reads {JOURNAL_VERSION}"
        )


def _row(table: Table, told: dict[str, object], number: int) -> Row:
    if told.keys() != table.columns.keys():
        raise UsageError(f"line {number}: a row of {table.name} has {', '.join(table.columns)}")
    values = tuple(_value(told[name], kind, f"line {number}: {name!r}") for name, kind in table.columns.items())
    row = table.row(*values)
    read = _READ.get(table.name)
    if read is not None:
        try:
            read(row)
        except DamagedRecord as error:
            raise UsageError(f"line {number}: {error}") from error
    return row


def _value(value: object, kind: str, where: str) -> Value:
    name, _, rest = kind.partition(" ")
    if value is None and not rest:
        return None
    if name == "BLOB" and isinstance(value, dict):
        return _bytes(value, where)
    if name == "TEXT" and isinstance(value, str):
        return value
    if name == "INTEGER" and type(value) is int and abs(value) < 2**63:
        return value
    if name == "REAL" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise UsageError(f"{where} must be of the type {name}")


def _bytes(value: dict[str, object], where: str) -> bytes:
    if value.keys() == {"base64"}:
        try:
            return base64.b64decode(str(value["base64"]), validate=True)
        except ValueError as error:
            raise UsageError(f"{where} is no base64") from error
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def import_conversation(database: JournalDatabase, saved: SavedConversation, now: float) -> str:
    """Add one conversation, within the transaction that runs; the id that it has in the journal.

    That is its own, or a new one where the journal has another conversation of this id.
    """
    rows, own = _rows_of(saved, saved.id or uuid.uuid4().hex, now), saved.id
    there = database.query(f"{MESSAGES.select} WHERE conversation_id = ?", (column(own),)) if own else []
    if there:
        known = {row[1]: row[7] for row in there}
        if known == {row[1]: row[7] for table, row in rows if table is MESSAGES}:
            return own
        own = ""
    if not own:
        own = uuid.uuid4().hex
        rows = _rows_of(saved, own, now)
    for table, row in rows:
        database.execute(table.insert, row)
    return own


def _rows_of(saved: SavedConversation, own: str, now: float) -> list[tuple[Table, Row]]:
    conversation = column(own)
    rows: list[tuple[Table, Row]] = [(CONVERSATIONS, CONVERSATIONS.row(conversation, now))]
    parent: str | None = None
    for place, (message_id, message) in enumerate(zip(saved.ids, saved.messages, strict=True)):
        data = encode_messages((message,))
        row = MESSAGES.row(conversation, column(message_id), parent, IMPORTED, 0, place, now, data)
        rows.append((MESSAGES, row))
        parent = column(message_id)
    if saved.compacted != Compacted():
        data = encode_parts({"compacted": saved.compacted})
        rows.append((COMPACTIONS, COMPACTIONS.row(conversation, IMPORTED, 0, now, data)))
    return rows
