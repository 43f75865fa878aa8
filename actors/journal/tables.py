"""The tables of a journal, for every database: SQLite's and PostgreSQL's own words differ only in the types.

Rows are added and taken away, and changed in `callboard_open` alone. So a row that is written twice is there once,
every other row has a checksum of all its columns, and two journals are merged by copying rows.

**The format and the next one.** `FORMAT` is the number of this format. A journal of another number is refused, but for
those that `UPGRADES` leads on from: it holds, for each older number, the statements that make the next format of it.
They run in one transaction when the journal is opened. A new column or table, or another meaning of a column, is a new
number. What is inside the column `data` has a version of its own (`protocol/codec.py`), where a new field with a
default is no new version. A journal of every released format is kept in tests/actors/journal/formats, and read by a
test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final
from zlib import crc32

FORMAT: Final = 1
#: From the format of this number, the statements that lead to the next.
UPGRADES: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType({})

Value = str | bytes | int | float | None
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """One table, whose rows are only added. The last column of each is `crc`."""

    name: str
    columns: Mapping[str, str]
    """The type of each in SQLite's words, in order."""
    key: tuple[str, ...]
    references: str = ""

    @cached_property
    def insert(self) -> str:
        """Adds a row; one with a key that is there already is left out."""
        names = ", ".join((*self.columns, "crc"))
        marks = ", ".join("?" * (len(self.columns) + 1))
        return f"INSERT INTO {self.name} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"

    @property
    def select(self) -> str:
        """All columns, as `insert` takes them; a condition may follow."""
        return f"SELECT {', '.join((*self.columns, 'crc'))} FROM {self.name}"

    def create(self, types: Mapping[str, str]) -> str:
        """The statement that makes it, with each type in the words of the database."""
        columns = [
            f"{name} {_typed(kind, types)}" for name, kind in {**self.columns, "crc": "INTEGER NOT NULL"}.items()
        ]
        key = f"PRIMARY KEY ({', '.join(self.key)})"
        extra = [self.references] if self.references else []
        return f"CREATE TABLE {self.name} ({', '.join([*columns, key, *extra])})"

    def row(self, *values: Value) -> Row:
        """A whole row, with its checksum behind the values."""
        return (*values, self.checksum(values))

    def checksum(self, values: Row) -> int:
        """CRC-32 of all values and of the table's name.

        The database has none of its own: SQLite's pages have no checksums (its page "The Checksum VFS Shim"), and a bit
        that has changed in a text or number is read as another one. With key and name in it, a row that has moved to
        another place is found too. It is against accidents, not against people.
        """
        last = values[-1]  # `data`, mostly
        head = crc32(repr(values[:-1]).encode(), self._start)
        return crc32(last if isinstance(last, bytes) else repr(last).encode(), head)

    @cached_property
    def _start(self) -> int:
        return crc32(self.name.encode())


def _typed(kind: str, types: Mapping[str, str]) -> str:
    name, _, rest = kind.partition(" ")
    return f"{types.get(name, name)} {rest}".rstrip()


_TEXT, _INTEGER, _REAL, _BLOB = "TEXT NOT NULL", "INTEGER NOT NULL", "REAL NOT NULL", "BLOB NOT NULL"

OFFERS: Final = Table("callboard_offers", {"digest": _TEXT, "data": _BLOB}, ("digest",))
"""The tools that requests were offered, each list once."""
CONVERSATIONS: Final = Table(
    "callboard_conversations", {"conversation_id": _TEXT, "begun_at": _REAL}, ("conversation_id",)
)
REQUESTS: Final = Table(
    "callboard_requests",
    {
        "request_id": _TEXT, "conversation_id": _TEXT, "begun_at": _REAL, "model": _TEXT, "tools": "TEXT",
        "data": _BLOB,
    },
    ("request_id",),
    f"FOREIGN KEY (tools) REFERENCES {OFFERS.name} (digest)",
)  # fmt: skip
"""How each request began: `journal_records.Beginning`, but for its first event."""
EVENTS: Final = Table(
    "callboard_events",
    {"request_id": _TEXT, "number": _INTEGER, "written_at": _REAL, "led_to": "TEXT", "data": _BLOB},
    ("request_id", "number"),
)
MESSAGES: Final = Table(
    "callboard_messages",
    {
        "conversation_id": _TEXT, "message_id": _TEXT, "parent": "TEXT", "request_id": _TEXT, "number": _INTEGER,
        "place": _INTEGER, "added_at": _REAL, "data": _BLOB,
    },
    ("conversation_id", "message_id"),
)  # fmt: skip
"""`number` is that of the Write which brought it, `place` its place among the messages of that Write."""
COMPACTIONS: Final = Table(
    "callboard_compactions",
    {"conversation_id": _TEXT, "request_id": _TEXT, "number": _INTEGER, "written_at": _REAL, "data": _BLOB},
    ("conversation_id", "request_id", "number"),
)
"""What was done to the messages of a conversation: the latest counts."""
ENDS: Final = Table(
    "callboard_ends", {"request_id": _TEXT, "ended_at": _REAL, "outcome": _TEXT, "data": _BLOB}, ("request_id",)
)
OUTCOMES: Final = Table(
    "callboard_outcomes",
    {"request_id": _TEXT, "step": _INTEGER, "call_id": _TEXT, "committed_at": _REAL, "data": _BLOB},
    ("request_id", "step", "call_id"),
)
"""Of calls with the effect `transaction`: committed together with what they did."""
TAKINGS: Final = Table(
    "callboard_takings",
    {"request_id": _TEXT, "number": _INTEGER, "taken_at": _REAL},
    ("request_id", "number", "taken_at"),
)
"""When a request was taken up by a process that did not begin it; `number` is that of its last event then."""
SET_ASIDE: Final = Table(
    "callboard_set_aside",
    {"found_at": _REAL, "what": _TEXT, "why": _TEXT, "request_id": "TEXT", "call_id": _TEXT, "data": "BLOB"},
    ("found_at", "what", "why"),
)
"""Records that could not be read, with what was left of them."""
USAGE: Final = Table("callboard_usage", {"usage_id": _TEXT, "ended_at": _REAL, "data": _BLOB}, ("usage_id",))
"""Of requests that were deleted: their model calls and tool calls in numbers, without a word of what was said."""
META: Final = Table("callboard_meta", {"name": _TEXT, "value": _TEXT}, ("name",))
"""`format`, `made_at`, `journal` (its own id), and `merged <id>` for each journal whose rows were copied into it."""

#: In the order in which rows are added: what refers to a row comes behind it.
TABLES: Final = (
    META, OFFERS, CONVERSATIONS, REQUESTS, EVENTS, MESSAGES, COMPACTIONS, ENDS, OUTCOMES, TAKINGS, SET_ASIDE,
    USAGE,
)  # fmt: skip
#: Which requests have not ended, and whose they are: the one table with rows that change. It follows from the others.
OPEN: Final = "callboard_open"
CREATE_OPEN: Final = f"CREATE TABLE {OPEN} (request_id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL)"
INDEXES: Final = (
    f"CREATE INDEX callboard_requests_of ON {REQUESTS.name} (conversation_id, begun_at)",
    f"CREATE INDEX callboard_open_of ON {OPEN} (owner)",
    f"CREATE INDEX callboard_ends_at ON {ENDS.name} (ended_at)",
)

BEGIN_OPEN: Final = (
    f"INSERT INTO {OPEN} (request_id, owner) SELECT ?, ?"
    f" WHERE NOT EXISTS (SELECT 1 FROM {ENDS.name} WHERE request_id = ?) ON CONFLICT DO NOTHING"
)
#: Of one whose beginning is lost, only OPEN knows: it must end all the same.
IS_KNOWN: Final = (
    f"SELECT 1 FROM {REQUESTS.name} WHERE request_id = ? UNION ALL SELECT 1 FROM {OPEN} WHERE request_id = ?"
)
END_OPEN: Final = f"DELETE FROM {OPEN} WHERE request_id = ?"
#: The open requests of other owners than this one, with the number of the last event of each.
OPEN_OF_OTHERS: Final = (
    f"SELECT o.request_id, COALESCE((SELECT MAX(e.number) FROM {EVENTS.name} e WHERE e.request_id = o.request_id), 0)"
    f" FROM {OPEN} o LEFT JOIN {REQUESTS.name} r ON r.request_id = o.request_id WHERE o.owner <> ?"
    " ORDER BY r.begun_at, o.request_id"
)
FORGET_TAKINGS: Final = f"DELETE FROM {TAKINGS.name} WHERE request_id = ?"
TAKE: Final = f"UPDATE {OPEN} SET owner = ? WHERE request_id = ?"
OPEN_REQUESTS: Final = (
    f"SELECT o.request_id FROM {OPEN} o LEFT JOIN {REQUESTS.name} r ON r.request_id = o.request_id"
    " ORDER BY r.begun_at, o.request_id"
)


def schema(types: Mapping[str, str]) -> tuple[str, ...]:
    """The statements that make an empty journal; `types` has the database's words for TEXT, BLOB, INTEGER and REAL."""
    made = [table.create(types) for table in TABLES]
    return (*made, " ".join(_typed(word, types) for word in CREATE_OPEN.split(" ")), *INDEXES)
