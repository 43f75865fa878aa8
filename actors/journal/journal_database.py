"""What SQLite and PostgreSQL do for the journal, in the same words: the seam below the SQL layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from callboard.actors.journal.tables import Row
from callboard.protocol.errors import RuntimeFailure


class StatementRefused(RuntimeFailure):
    """The database has understood a statement and does not carry it out: a unique key, a syntax error, a limit."""

    ended_transaction = False
    """Has it undone the whole transaction that it was in?"""


class JournalDatabase(Protocol):
    """One connection, used by one thread at a time. Marks for parameters are `?`.

    All methods raise JournalFailed where the disk or the server does not do its part, with what can be done about it.
    """

    def begin(self) -> None:
        """A transaction begins. Of a writer: it is checked to be ours still (JournalLost). Of a reader: all that it
        reads in it is of one moment."""
        ...

    def commit(self) -> None:
        """Durable when this returns, as the settings say."""
        ...

    def rollback(self) -> None:
        """Never raises: what was begun is void in any case."""
        ...

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> int:
        """How many rows it has changed. Raises StatementRefused."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Row]) -> int:
        """How many rows all of them have changed. Raises StatementRefused."""
        ...

    def execute_for_tool(self, sql: str, parameters: Sequence[object], until: float) -> None:
        """A statement that a tool has given: it may not end the transaction, nor touch the journal's own tables, nor
        take longer than to this time of the monotonic clock. Its rows are dropped. Raises StatementRefused."""
        ...

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """All rows. Raises StatementRefused."""
        ...
