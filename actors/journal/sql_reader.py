"""Reads requests back from the tables, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.journal.encoding import (
    DamagedRecord,
    column,
    from_column,
    read_beginning,
    read_end,
    read_event,
    read_message,
    read_outcome,
    read_set_aside,
    read_tools,
)
from callboard.actors.journal.journal_database import JournalDatabase
from callboard.actors.journal.journal_records import (
    Beginning,
    EffectWrite,
    NewMessage,
    Recorded,
    RequestEnd,
    RequestLog,
    SetAside,
    own_messages,
)
from callboard.actors.journal.tables import (
    ENDS,
    EVENTS,
    MESSAGES,
    OFFERS,
    OPEN,
    OPEN_REQUESTS,
    OUTCOMES,
    REQUESTS,
    SET_ASIDE,
    TAKINGS,
)
from callboard.protocol.content import Message
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import MessageId, RequestId

R = TypeVar("R")


class _Found(Struct):
    """What has been read of a request so far."""

    begins: Beginning
    records: tuple[Recorded, ...] = ()
    history_ids: tuple[MessageId, ...] = ()
    outcomes: tuple[EffectWrite, ...] = ()
    messages: tuple[tuple[MessageId, Message], ...] = ()
    end: RequestEnd | None = None
    damage: str = ""


class SqlReader:
    """One for each connection that reads."""

    def __init__(self, database: JournalDatabase) -> None:
        self._database = database

    @property
    def database(self) -> JournalDatabase:
        """For what else is read: conversations, usage, all of it."""
        return self._database

    def request(self, request_id: RequestId) -> RequestLog | None:
        """As `JournalReader.request`."""

        def read() -> RequestLog | None:
            with self.one_moment():
                return self.read_request(request_id)

        return self.patiently(read)

    def patiently(self, read: Callable[[], R]) -> R:
        """What it reads, all of it again where a server was away for a moment."""
        return read()

    def give_up(self) -> None:
        """As `JournalReader.give_up`."""

    def open_requests(self) -> tuple[RequestId, ...]:
        """As `JournalReader.open_requests`."""
        return tuple(RequestId(from_column(row[0])) for row in self._database.query(OPEN_REQUESTS))

    def set_aside(self) -> Iterator[SetAside]:
        """As `JournalReader.set_aside`."""
        for row in self._database.query(f"{SET_ASIDE.select} ORDER BY found_at, what, why"):
            yield _kept(row)

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """What is read meanwhile is all of one moment."""
        self._database.begin()
        try:
            yield
        finally:
            self._database.rollback()

    def read_request(self, request_id: RequestId) -> RequestLog | None:
        """`request` within one moment."""
        key = (column(request_id),)
        rows = self._database.query(f"{REQUESTS.select} WHERE request_id = ?", key)
        if not rows and not any(
            self._database.query(f"SELECT 1 FROM {table} WHERE request_id = ?", key) for table in (OPEN, ENDS.name)
        ):
            return None
        damages = [_kept(row).why for row in self._database.query(f"{SET_ASIDE.select} WHERE request_id = ?", key)]
        digest: str | None = None
        begins, is_begun = Beginning("", None, 0.0, ""), False
        try:
            if not rows:
                raise DamagedRecord("its beginning is missing")
            begins, digest = read_beginning(rows[0])
            is_begun = True
        except DamagedRecord as error:
            damages.append(str(error))
        found = _Found(begins)
        steps = [self._read_events, self._read_outcomes, self._read_messages, self._read_end]
        for step in steps:
            if damage := step(found, key):
                damages.append(damage)
        try:
            # Without what it begins with, the first event would not be the one that was written.
            found.records = self._with_history(found, digest) if is_begun else ()
        except DamagedRecord as error:
            damages.append(str(error))
            found.records = ()
        if not found.records and found.end is None and not damages:
            damages.append("its events are missing")
        last = found.records[-1].number if found.records else 0
        takings = self._database.query(f"{TAKINGS.select} WHERE request_id = ? AND number = ?", (*key, last))
        return RequestLog(
            request_id, found.begins, found.records, found.outcomes, found.messages, found.end, len(takings),
            "; ".join(dict.fromkeys(damages)), found.history_ids,
        )  # fmt: skip

    def _read_events(self, found: _Found, key: Sequence[str]) -> str:
        """Up to the first that is damaged or missing. What is wrong; "" when nothing is. So in those below."""
        records: list[Recorded] = []
        rows = self._database.query(f"{EVENTS.select} WHERE request_id = ? ORDER BY number", key)
        try:
            for row in rows:
                record = read_event(row)
                if record.number != len(records) + 1:
                    raise DamagedRecord(f"event {len(records) + 1} is missing, {record.number} is there")
                records.append(record)
        except DamagedRecord as error:
            found.records = tuple(records)
            return f"event {len(records) + 1}: {error}"
        found.records = tuple(records)
        return ""

    def _read_outcomes(self, found: _Found, key: Sequence[str]) -> str:
        outcomes: list[EffectWrite] = []
        damage = ""
        for row in self._database.query(f"{OUTCOMES.select} WHERE request_id = ? ORDER BY step, call_id", key):
            try:
                outcomes.append(read_outcome(row))
            except DamagedRecord as error:
                damage = str(error)
        found.outcomes = tuple(outcomes)
        return damage

    def _read_messages(self, found: _Found, key: Sequence[str]) -> str:
        conversation = column(found.begins.conversation_id)
        sql = f"{MESSAGES.select} WHERE conversation_id = ? AND request_id = ? ORDER BY number, place"
        added: list[tuple[MessageId, Message]] = []
        damage = ""
        for row in self._database.query(sql, (conversation, *key)):
            try:
                new, _ = read_message(row)
                added.append((new.message_id, new.message))
            except DamagedRecord as error:
                damage = str(error)
        found.messages = own_messages(added, found.begins.parent)
        return damage

    def _read_end(self, found: _Found, key: Sequence[str]) -> str:
        try:
            for row in self._database.query(f"{ENDS.select} WHERE request_id = ?", key):
                found.end = read_end(row)
        except DamagedRecord as error:
            return str(error)
        return ""

    def _with_history(self, found: _Found, digest: str | None) -> tuple[Recorded, ...]:
        """The records, the first one with the tools and the history again that it was written without."""
        if not found.records or not isinstance(started := found.records[0].event, RequestStarted):
            return found.records
        tools = started.tools
        if digest is not None:
            rows = self._database.query(f"{OFFERS.select} WHERE digest = ?", (digest,))
            if not rows:
                raise DamagedRecord("the tools of the request are missing")
            tools = read_tools(rows[0])
        history = self.history(found.begins.conversation_id, found.begins.parent)
        found.history_ids = tuple(each.message_id for each in history)
        whole = replace(started, tools=tools, history=tuple(each.message for each in history))
        return (replace(found.records[0], event=whole), *found.records[1:])

    def history(self, conversation_id: str, last: MessageId | None) -> list[NewMessage]:
        """The messages of a conversation up to the one with the id `last`, in order. Raises DamagedRecord."""
        if last is None:
            return []
        rows = self._database.query(f"{MESSAGES.select} WHERE conversation_id = ?", (column(conversation_id),))
        by_id = {row[1]: row for row in rows}
        path: list[NewMessage] = []
        above: MessageId | None = last
        while above is not None:
            row = by_id.pop(column(above), None)
            if row is None:
                raise DamagedRecord(f"message {above!r} of the conversation is missing")
            new, _ = read_message(row)
            path.append(new)
            above = new.parent
        path.reverse()
        return path


def _kept(row: Sequence[object]) -> SetAside:
    """A row of SET_ASIDE; where it is damaged itself, what that says."""
    try:
        return read_set_aside(row)
    except DamagedRecord as error:
        return SetAside("a record that was set aside", str(error), 0.0)
