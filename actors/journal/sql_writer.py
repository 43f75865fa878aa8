"""Writes batches of changes into the tables: one transaction a batch, one statement a table."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, TypeVar

from callboard.actors.journal.encoding import OfferRows, column, from_column, outcome_row, rows_of
from callboard.actors.journal.journal_database import JournalDatabase, StatementRefused
from callboard.actors.journal.journal_records import Change, EffectWrite, Write
from callboard.actors.journal.journal_store import ChangeRefused
from callboard.actors.journal.tables import (
    BEGIN_OPEN,
    END_OPEN,
    EVENTS,
    FORGET_TAKINGS,
    IS_KNOWN,
    OPEN_OF_OTHERS,
    OUTCOMES,
    TABLES,
    TAKE,
    TAKINGS,
    Row,
    Table,
)
from callboard.protocol.ids import RequestId

R = TypeVar("R")

#: SQLite takes a value of up to 1,000,000,000 bytes (its page "Limits"), PostgreSQL one of 1 GB with its row.
MAX_DATA_BYTES: Final = 900_000_000
#: For all statements of one call. All requests of the process wait for them, each for WRITTEN_WITHIN_SECONDS (30 s).
EFFECT_SECONDS: Final = 5.0
_SAVEPOINT: Final = "callboard_effect"
#: The columns of an event but the time of writing, which differs when it is written again.
_SAME_WHEN_GIVEN_AGAIN: Final = tuple(place for place, name in enumerate(EVENTS.columns) if name != "written_at")


class SqlWriter:
    """One for each connection that writes."""

    def __init__(self, database: JournalDatabase, owner: str, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._owner = owner
        self._wall_clock = wall_clock
        self._offers = OfferRows()

    def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        """As `JournalWriter.commit`."""
        now = self._wall_clock()
        refused: list[ChangeRefused | None] = [None] * len(batch)
        rows: dict[int, list[tuple[Table, Row]]] = {}
        for place, change in enumerate(batch):
            if isinstance(change, Write):
                try:
                    rows[place] = self._encoded(change, now)
                except ChangeRefused as error:
                    refused[place] = error
        while not self._is_committed(batch, rows, refused, now):
            pass  # one more of them is refused: the rest is written without it
        return refused

    def _encoded(self, write: Write, now: float) -> list[tuple[Table, Row]]:
        try:
            rows = rows_of(write, now, self._offers)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChangeRefused(f"what happened to request {write.request_id!r} cannot be written: {error}") from error
        for table, row in rows:
            if type(data := row[-2]) is bytes and len(data) > MAX_DATA_BYTES:
                raise ChangeRefused(
                    f"request {write.request_id!r}: a record of {table.name} has more than {MAX_DATA_BYTES:,} bytes"
                )
        return rows

    def _is_committed(
        self,
        batch: Sequence[Change],
        rows: dict[int, list[tuple[Table, Row]]],
        refused: list[ChangeRefused | None],
        now: float,
    ) -> bool:
        """Write all that is not refused; or nothing, when a change is found now that must be refused first."""
        self._database.begin()
        try:
            if (contradicted := self._add(rows)) is not None:
                for place in [place for place in rows if rows[place] and _request_of(batch[place]) == contradicted]:
                    del rows[place]
                    refused[place] = ChangeRefused(
                        f"request {contradicted!r} has written another event under a number that is taken; "
                        "this is a fault of callboard: please report it"
                    )
                self._database.rollback()
                return False
            if orphans := self._ends_without_beginning(batch, rows):
                for place in orphans:
                    del rows[place]
                    refused[place] = ChangeRefused(f"request {_request_of(batch[place])!r} is not in the journal")
                self._database.rollback()
                return False
            self._keep_open([change for place in rows if isinstance(change := batch[place], Write)])
            for place, change in enumerate(batch):
                if isinstance(change, EffectWrite) and refused[place] is None:
                    refused[place], ended = self._commit_effect(change, now)
                    if ended:
                        return False
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise
        return True

    def _add(self, rows: Mapping[int, Sequence[tuple[Table, Row]]]) -> RequestId | None:
        """Adds the rows; the request whose rows contradict what is there, if there is one."""
        by_table: defaultdict[str, list[Row]] = defaultdict(list)
        for table, row in chain.from_iterable(rows.values()):
            by_table[table.name].append(row)
        for table in TABLES:
            if (added := by_table.get(table.name)) is None:
                continue
            changed = self._database.execute_many(table.insert, added)
            if table is EVENTS and changed < len(added) and (found := self._contradiction(added)) is not None:
                return found
        return None

    def _ends_without_beginning(
        self, batch: Sequence[Change], rows: Mapping[int, Sequence[tuple[Table, Row]]]
    ) -> list[int]:
        """Of the writes that say only that a request has ended: those of requests that are not there."""
        found: list[int] = []
        for place in rows:
            change = batch[place]
            if not isinstance(change, Write) or change.events or change.begins is not None or change.ends is None:
                continue
            if not self._database.query(IS_KNOWN, (column(change.request_id),) * 2):
                found.append(place)
        return found

    def _keep_open(self, writes: Iterable[Write]) -> None:
        begun = [column(each.request_id) for each in writes if each.begins is not None]
        if begun:
            self._database.execute_many(BEGIN_OPEN, [(each, self._owner, each) for each in begun])
        if going_on := [column(each.request_id) for each in writes if each.only_goes_on]:
            self._database.execute_many(FORGET_TAKINGS, [(each,) for each in going_on])
        ended = [column(each.request_id) for each in writes if each.ends is not None]
        if ended:
            self._database.execute_many(END_OPEN, [(each,) for each in ended])

    def _contradiction(self, added: Sequence[Row]) -> RequestId | None:
        """Of rows of which some were there already: the request of one that is there with other content."""
        for row in added:
            for there in self._database.query(f"{EVENTS.select} WHERE request_id = ? AND number = ?", row[:2]):
                if any(there[place] != row[place] for place in _SAME_WHEN_GIVEN_AGAIN):
                    return RequestId(from_column(row[0]))
        return None

    def _commit_effect(self, change: EffectWrite, now: float) -> tuple[ChangeRefused | None, bool]:
        """Within the transaction of the batch, but for itself: when it is refused, only it is undone. And whether a
        statement of it has ended the whole transaction: then the rest is to be written again."""
        self._database.execute(f"SAVEPOINT {_SAVEPOINT}")
        told, until = "", time.monotonic() + EFFECT_SECONDS
        try:
            row = outcome_row(change.tag, change.outcome, now)
            if self._database.execute(OUTCOMES.insert, row) == 0:
                if not self._is_there(row):  # else it is given again, since it was not heard that it is written
                    told = f"call {change.tag.shown_call_id!r} has an outcome already: its effect is there once"
            else:
                for statement in change.statements:
                    self._database.execute_for_tool(statement.sql, statement.parameters, until)
        except StatementRefused as error:
            told = str(error)
            if error.ended_transaction:
                return ChangeRefused(told), True
        if told:
            self._database.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        self._database.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return (ChangeRefused(told) if told else None), False

    def _is_there(self, row: Row) -> bool:
        """Is it this very outcome that its call has? Another run of the call has another time."""
        found = f"{OUTCOMES.select} WHERE request_id = ? AND step = ? AND call_id = ?"
        return any(there[-2] == row[-2] for there in self._database.query(found, row[: len(OUTCOMES.key)]))

    def change(self, run: Callable[[JournalDatabase], R]) -> R:
        """Run it in one transaction, which is durable when this returns: for what is no change of a request."""
        self._database.begin()
        try:
            result = run(self._database)
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise
        return result

    def take_up(self) -> tuple[RequestId, ...]:
        """The open requests of all other owners become ours. Only for a database that no one else can have open."""
        now = self._wall_clock()
        self._database.begin()
        try:
            found = self._database.query(OPEN_OF_OTHERS, (self._owner,))
            taken = [(str(request_id), number) for request_id, number in found if isinstance(number, int)]
            self._database.execute_many(TAKE, [(self._owner, request_id) for request_id, _ in taken])
            self._database.execute_many(TAKINGS.insert, [TAKINGS.row(*each, now) for each in taken])
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise
        return tuple(RequestId(from_column(each)) for each, _ in taken)

    def forget_takings(self, request_ids: Sequence[RequestId]) -> None:
        """As `JournalWriter.forget_takings`."""
        self._database.begin()
        try:
            self._database.execute_many(FORGET_TAKINGS, [(column(each),) for each in request_ids])
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise


def _request_of(change: Change) -> RequestId | None:
    return change.request_id if isinstance(change, Write) else None
