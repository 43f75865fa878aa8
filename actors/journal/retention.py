"""What is taken out of a journal: one conversation for good, and what is older or more than the settings keep.

Taking out never touches what has not ended. Of a request that goes, the numbers of its model calls and tool calls stay
(`usage_report`). Each step of the clean-up by age and size is a short transaction of its own, so that requests go on
writing between them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from callboard.actors.journal.encoding import (
    DamagedRecord,
    column,
    from_column,
    is_sound,
    read_end,
    read_set_aside,
    set_aside_row,
    usage_row,
)
from callboard.actors.journal.journal_database import JournalDatabase
from callboard.actors.journal.journal_records import SetAside
from callboard.actors.journal.journal_store import JournalReader, JournalWriter
from callboard.actors.journal.saved_conversations import no_such
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.tables import (
    COMPACTIONS,
    CONVERSATIONS,
    ENDS,
    EVENTS,
    MESSAGES,
    OFFERS,
    OPEN,
    OUTCOMES,
    REQUESTS,
    SET_ASIDE,
    TAKINGS,
    USAGE,
    Row,
)
from callboard.protocol.errors import RuntimeFailure, UsageError

R = TypeVar("R")

#: A step of the clean-up takes so long at the most, on the journal's thread, but for its last request.
STEP_SECONDS: Final = 0.02
#: Requests or conversations that are looked for at once.
_FOUND_AT_ONCE: Final = 500
#: By size, it is cleaned up to this share of what is allowed, so that it does not begin again at once.
_KEPT_SHARE: Final = 0.9
#: The log of a request that ended a moment ago stays: a call of it that was given up may still be running somewhere,
#: and the outcomes in the log are what keeps its effect from being there twice.
_FRESH_SECONDS: Final = 3_600.0
_DAY_SECONDS: Final = 86_400.0


@runtime_checkable
class CleansUp(Protocol):
    """A writer of a journal whose tables can be changed."""

    def change(self, run: Callable[[JournalDatabase], R]) -> R:
        """Run it in one transaction, which is durable when this returns."""
        ...

    def give_back(self) -> None:
        """Some of the space that is free in the file, to the disk: takes some milliseconds."""
        ...

    def vacuum(self) -> None:
        """All of it; writes everything once more and takes as long."""
        ...

    def forget(self) -> str:
        """What was deleted is not in the files any more. What could not be seen to, in one sentence, else ""."""
        ...

    def size_bytes(self) -> int:
        """How much it holds, without what is free in it."""
        ...


class Kept(Struct, frozen=True):
    """What a journal may hold."""

    days: float | None = None
    """The logs of requests that ended earlier go, and conversations in which nothing was asked since."""
    max_bytes: int | None = None
    """Above it, the logs of the requests that ended first go, then the conversations that rest for the longest."""


class CleanedUp(Struct, frozen=True):
    """What a clean-up has done."""

    logs: int = 0
    """Requests whose events were deleted; their ends and messages stay."""
    conversations: int = 0
    """Those that were deleted whole, with their requests."""
    size_bytes: int = 0
    """Of the journal afterwards."""

    def __add__(self, other: CleanedUp) -> CleanedUp:
        return CleanedUp(self.logs + other.logs, self.conversations + other.conversations, other.size_bytes)


_Find = Callable[[JournalDatabase, float], list[str]]
_Delete = Callable[[JournalDatabase, str], CleanedUp]


class CleanUp:
    """One clean-up, step by step: `step` until it gives None. `read` and `change` say how the journal is reached."""

    def __init__(
        self,
        kept: Kept,
        read: Callable[[Callable[[SqlReader], list[str]]], list[str]],
        change: Callable[[Callable[[CleansUp], CleanedUp]], CleanedUp],
        now: float,
    ) -> None:
        self._kept, self._read, self._change, self._now = kept, read, change, now
        self._work = [
            (*which, is_by_size)
            for is_by_size in (False, True)
            if (kept.max_bytes if is_by_size else kept.days) is not None
            for which in ((_old_logs, _delete_log), (_old_conversations, _delete_if_at_rest))
        ]
        self._found: list[str] = []

    def step(self) -> CleanedUp | None:
        """Some milliseconds of work, and what it did; None when all is done."""
        while self._work:
            done = self._some(*self._work[0])
            if done.logs or done.conversations:
                return done
            del self._work[0]
            self._found = []
        return None

    def _some(self, find: _Find, delete: _Delete, is_by_size: bool) -> CleanedUp:
        age = 0.0 if is_by_size else (self._kept.days or 0.0) * _DAY_SECONDS
        before = self._now - max(age, _FRESH_SECONDS)
        if not self._found:
            self._found = self._read(lambda reader: find(reader.database, before))
        if not self._found:
            return CleanedUp()
        return self._change(lambda writer: self._delete(writer, delete, is_by_size))

    def _delete(self, writer: CleansUp, delete: _Delete, is_by_size: bool) -> CleanedUp:
        until = time.monotonic() + STEP_SECONDS
        limit = self._kept.max_bytes if is_by_size else None

        def some(database: JournalDatabase) -> CleanedUp:
            done = CleanedUp()
            while self._found and (done == CleanedUp() or time.monotonic() < until):
                if limit is not None and writer.size_bytes() <= limit * _KEPT_SHARE:
                    break
                done += delete(database, self._found.pop(0))
            return done

        done = writer.change(some)
        writer.give_back()
        return done


def _old_logs(database: JournalDatabase, before: float) -> list[str]:
    sql = (
        f"SELECT e.request_id FROM {ENDS.name} e WHERE e.ended_at < ? AND EXISTS"
        f" (SELECT 1 FROM {EVENTS.name} v WHERE v.request_id = e.request_id) ORDER BY e.ended_at, e.request_id LIMIT ?"
    )
    return [str(row[0]) for row in database.query(sql, (before, _FOUND_AT_ONCE))]


def _old_conversations(database: JournalDatabase, before: float) -> list[str]:
    latest = "COALESCE(MAX(r.begun_at), c.begun_at)"
    sql = (
        f"SELECT c.conversation_id FROM {CONVERSATIONS.name} c"
        f" LEFT JOIN {REQUESTS.name} r ON r.conversation_id = c.conversation_id"
        f" GROUP BY c.conversation_id, c.begun_at HAVING {latest} < ? ORDER BY {latest}, c.conversation_id LIMIT ?"
    )
    found = [str(row[0]) for row in database.query(sql, (before, _FOUND_AT_ONCE))]
    return [own for own in found if not _open_of(database, own)]


def _open_of(database: JournalDatabase, own: str) -> list[str]:
    sql = (
        f"SELECT o.request_id FROM {OPEN} o JOIN {REQUESTS.name} r ON r.request_id = o.request_id"
        " WHERE r.conversation_id = ?"
    )
    return [str(row[0]) for row in database.query(sql, (own,))]


def _delete_log(database: JournalDatabase, request: str) -> CleanedUp:
    if database.query(f"SELECT 1 FROM {OPEN} WHERE request_id = ?", (request,)):
        return CleanedUp()
    for table in (EVENTS, OUTCOMES, TAKINGS):
        database.execute(f"DELETE FROM {table.name} WHERE request_id = ?", (request,))
    return CleanedUp(logs=1)


def _delete_if_at_rest(database: JournalDatabase, own: str) -> CleanedUp:
    """A conversation, unless a question was asked in it since it was found."""
    if _open_of(database, own):
        return CleanedUp()
    _delete_whole(database, own)
    return CleanedUp(conversations=1)


def delete_conversation(database: JournalDatabase, conversation_id: str) -> int:
    """All rows of it, but for the numbers of its usage; how many requests it had.

    Raises UsageError where there is none of this id, and while a request of it has not ended.
    """
    own = column(conversation_id)
    if open_ones := _open_of(database, own):
        shown = from_column(open_ones[0])
        raise UsageError(
            f"request {shown!r} of conversation {conversation_id!r} has not ended: cancel it or await its result, then "
            "delete the conversation"
        )
    if not any(
        database.query(f"SELECT 1 FROM {table.name} WHERE conversation_id = ? LIMIT 1", (own,))
        for table in (CONVERSATIONS, REQUESTS, MESSAGES)
    ):
        raise no_such("conversation", conversation_id)
    _empty_set_aside(database)
    return _delete_whole(database, own)


def keep_apart(database: JournalDatabase, found: SetAside) -> None:
    """Report what cannot be read, once."""
    if not database.query(f"SELECT 1 FROM {SET_ASIDE.name} WHERE what = ? AND why = ?", (found.what, found.why)):
        database.execute(SET_ASIDE.insert, set_aside_row(found, None))


def _empty_set_aside(database: JournalDatabase) -> None:
    """What a damaged record says of its conversation cannot be relied on: of all of them only the report stays."""
    for row in database.query(f"{SET_ASIDE.select} WHERE data IS NOT NULL"):
        database.execute(f"DELETE FROM {SET_ASIDE.name} WHERE found_at = ? AND what = ? AND why = ?", row[:3])
        if is_sound(SET_ASIDE, row):
            found = read_set_aside(row)
            database.execute(SET_ASIDE.insert, set_aside_row(found, None))


def _delete_whole(database: JournalDatabase, own: str) -> int:
    requests = database.query(f"SELECT request_id, tools FROM {REQUESTS.name} WHERE conversation_id = ?", (own,))
    for request, _ in requests:
        for row in database.query(f"{ENDS.select} WHERE request_id = ?", (request,)):
            if (left := _usage_of(row)) is not None:
                database.execute(USAGE.insert, left)
        for table in (EVENTS, OUTCOMES, TAKINGS, ENDS, SET_ASIDE):
            database.execute(f"DELETE FROM {table.name} WHERE request_id = ?", (request,))
    database.execute(f"DELETE FROM {SET_ASIDE.name} WHERE what = ?", (set_aside_name(own),))
    for table in (MESSAGES, COMPACTIONS, REQUESTS, CONVERSATIONS):
        database.execute(f"DELETE FROM {table.name} WHERE conversation_id = ?", (own,))
    _delete_offers(database, {str(tools) for _, tools in requests if tools is not None})
    return len(requests)


def set_aside_name(own: str) -> str:
    """What SET_ASIDE calls the conversation with this id, as `column` writes it."""
    return f"conversation {own}"


def _delete_offers(database: JournalDatabase, digests: set[str]) -> None:
    """Lists of tools that no request was offered any more: descriptions of own tools may hold what was said."""
    for digest in sorted(digests):
        if not database.query(f"SELECT 1 FROM {REQUESTS.name} WHERE tools = ? LIMIT 1", (digest,)):
            database.execute(f"DELETE FROM {OFFERS.name} WHERE digest = ?", (digest,))


def _usage_of(row: Sequence[object]) -> Row | None:
    try:
        end = read_end(row)
    except DamagedRecord:
        return None
    steps = end.finish.steps if end.finish is not None else ()
    return usage_row(uuid.uuid4().hex, end.ended_at, steps) if steps else None


def cleaning(writer: JournalWriter) -> CleansUp:
    """The writer, as one that can be cleaned up."""
    if not isinstance(writer, CleansUp):
        raise RuntimeFailure("this journal's store has no tables to clean up")
    return writer


def reading(reader: JournalReader) -> SqlReader:
    """The reader, as one of tables."""
    if not isinstance(reader, SqlReader):
        raise RuntimeFailure("this journal's store has no tables to read")
    return reader
