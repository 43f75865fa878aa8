"""The id of a request or a conversation, by its first characters.

Only ids of callboard's own making can be shortened. One that a program has chosen is taken whole: "order-1" is never
taken for "order-12".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

from callboard.actors.journal.encoding import from_column
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.tables import CONVERSATIONS, ENDS, OPEN, REQUESTS
from callboard.protocol.errors import UsageError

#: Of an id: fewer would be found by chance.
MIN_CHARS: Final = 4
#: As many as lists show.
SHOWN_CHARS: Final = 8
#: Ids that are read, and that an error names.
_MAX_FOUND, _MAX_NAMED = 1_000, 5
#: As `uuid4().hex` writes them.
_OWN: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_BEGINNING: Final = re.compile(rf"[0-9a-f]{{{MIN_CHARS},31}}", re.ASCII)
_TABLES: Final = {
    "request_id": (REQUESTS.name, ENDS.name, OPEN),
    "conversation_id": (CONVERSATIONS.name, REQUESTS.name),
}

IdsLike = Callable[[str], Collection[str]]
"""The ids that begin with these characters, also those that are exactly these."""


class AmbiguousId(UsageError):
    """Several ids begin with what was given."""


def shown_id(whole: str) -> str:
    """As lists show it: the first characters of an id of our own, else all of it."""
    return whole[:SHOWN_CHARS] if _OWN.fullmatch(whole) else whole


def whole_id(given: str, ids_like: IdsLike, noun: str, least: int = MIN_CHARS) -> str:
    """The one id that begins with `given`, which has `least` characters or more; else `given` itself, also where it is
    unknown. Raises AmbiguousId where several begin so. `noun`: "request" or "conversation", for the message.
    """
    if len(given) < least or not _BEGINNING.fullmatch(given):
        return given
    found = set(ids_like(given))
    own = sorted(each for each in found if _OWN.fullmatch(each))
    if given in found or not own:
        return given
    if len(own) > 1:
        named = ", ".join([each[: len(given) + 4] + "…" for each in own[:_MAX_NAMED]])
        more = ", …" if len(own) > _MAX_NAMED else ""
        raise AmbiguousId(f"{len(own):,} {noun}s begin with {given!r} ({named}{more}): give more of the id")
    return own[0]


def ids_in_journal(reader: SqlReader, kind: str, beginning: str) -> list[str]:
    """`kind`: "request_id" or "conversation_id". The first thousand that begin so."""
    # A part of the text, since an order by bytes is not what each PostgreSQL's indexes have.
    one = f"SELECT {kind} FROM {{}} WHERE substr({kind}, 1, {len(beginning)}) = ?"
    tables = _TABLES[kind]
    sql = " UNION ".join(one.format(table) for table in tables) + f" ORDER BY 1 LIMIT {_MAX_FOUND}"
    return [from_column(row[0]) for row in reader.database.query(sql, [beginning] * len(tables))]
