"""What a tool with the effect `transaction` writes with. It is committed together with the outcome of its call."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Final, Protocol, TypeGuard

import orjson
from msgspec import Struct, field

from callboard.protocol.errors import UsageError

#: Of one call. They are held in memory, and all requests of the runtime wait while they are executed.
MAX_STATEMENTS: Final = 1_000
#: Of all statements of one call, as JSON, with bytes in base64.
MAX_STATEMENTS_BYTES: Final = 1_000_000
#: SQLite's largest whole number (https://www.sqlite.org/datatype3.html).
_MOST: Final = 2**63 - 1

Value = str | bytes | int | float | None
"""What a parameter can be."""


class Transaction(Protocol):
    """What `ToolContext.transaction` is in every case. With a journal on PostgreSQL it is more: the connection itself
    (psycopg.Connection for a `def`, psycopg.AsyncConnection for an `async def`, whose `execute` is awaited)."""

    def execute(self, sql: str, parameters: Sequence[Value] = (), /) -> object:
        """One statement, with a value for each of its placeholders."""
        ...


class Statements(Struct):
    """With a journal in SQLite: the statements are kept until the tool has returned, and are executed then, in their
    order, by what writes the journal. A tool that raises has written nothing."""

    _kept: list[tuple[str, tuple[Value, ...]]] = field(default_factory=list)
    _bytes: int = 0

    def execute(self, sql: str, parameters: Sequence[Value] = (), /) -> None:
        """Have it executed when the tool has returned: one statement, with a `?` for each of the parameters (texts,
        bytes, numbers, None). It gives no rows; the tool cannot read by it.

        Raises UsageError for what SQLite cannot store, and for more than 1,000 statements or 1 MB of them.
        """
        statement = sql, _checked(sql, parameters)
        self._bytes += len(_encoded(statement))
        if len(self._kept) >= MAX_STATEMENTS or self._bytes > MAX_STATEMENTS_BYTES:
            raise UsageError(
                f"a call may write at most {MAX_STATEMENTS:,} statements and {MAX_STATEMENTS_BYTES:,} bytes; "
                "write fewer rows a call"
            )
        self._kept.append(statement)

    def taken(self) -> tuple[tuple[str, tuple[Value, ...]], ...]:
        """All that was given so far."""
        return tuple(self._kept)

    def to_json(self) -> bytes:
        """For `from_json`, in another process."""
        return b"[" + b",".join(map(_encoded, self._kept)) + b"]"

    @staticmethod
    def from_json(data: bytes) -> Statements:
        """Raises ValueError and UsageError for what `to_json` has not written."""
        made = Statements()
        given = orjson.loads(data)
        if not isinstance(given, list):
            raise ValueError("no list of statements")
        for each in given:
            sql, parameters = each
            made.execute(sql, tuple(map(_decoded, parameters)))
        return made


def _checked(sql: object, parameters: object) -> tuple[Value, ...]:
    if not isinstance(sql, str):
        raise UsageError(f"a statement must be a text, got {type(sql).__name__}")
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence):
        raise UsageError(
            f"the parameters of a statement must be a list, one for each ?, got {type(parameters).__name__}"
        )
    for value in (sql, *parameters):
        if not _is_value(value):
            raise UsageError(
                f"SQLite cannot store {value!r:.100} ({type(value).__name__}); give a text, bytes, a finite number of "
                "at most 64 bits, or None"
            )
    return tuple(parameters)


def _is_value(value: object) -> TypeGuard[Value]:
    if isinstance(value, int):
        return -_MOST - 1 <= value <= _MOST
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="ignore").decode() == value
    return value is None or isinstance(value, bytes)


def _encoded(statement: tuple[str, tuple[Value, ...]]) -> bytes:
    sql, parameters = statement
    return orjson.dumps(
        (sql, [[base64.b64encode(each).decode()] if isinstance(each, bytes) else each for each in parameters])
    )


def _decoded(value: object) -> Value:
    if isinstance(value, list):
        (text,) = value
        return base64.b64decode(text, validate=True)
    if not _is_value(value):
        raise ValueError("no value of a statement")
    return value
