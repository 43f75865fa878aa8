"""JournalHandle: what a program reads of a journal, and what it takes out of it or brings in.

`Runtime.journal` is one of a runtime that runs. `JournalHandle.open(path)` is one without a runtime: reading works also
while another process writes; what changes something needs a journal that no process has open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol, Self, TypeVar

from msgspec import Struct, field

from callboard.actors.journal.at_rest import journal_at
from callboard.actors.journal.encoding import DamagedRecord, column, from_column, read_beginning
from callboard.actors.journal.exporting import Imported, import_conversation, import_lines, journal_lines
from callboard.actors.journal.journal import JournalMessage, run_on_store
from callboard.actors.journal.journal_database import JournalDatabase
from callboard.actors.journal.journal_records import Beginning, RequestLog, SetAside
from callboard.actors.journal.journal_store import JournalReader, JournalWriter
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.retention import (
    CleanedUp,
    CleansUp,
    CleanUp,
    Kept,
    cleaning,
    delete_conversation,
    keep_apart,
    reading,
    set_aside_name,
)
from callboard.actors.journal.saved_conversations import (
    MIN_CHARS,
    ConversationInfo,
    Filter,
    FoundMessage,
    branches,
    conversations,
    ids_in_journal,
    no_such,
    open_request,
    saved_conversation,
    search,
    whole_id,
)
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.tables import ENDS, REQUESTS
from callboard.actors.journal.usage_report import UsageFilter, UsageReport, usage_report
from callboard.actors.kernel import Ref
from callboard.actors.requests.conversation import Conversation
from callboard.protocol.codec import decode_conversation
from callboard.protocol.errors import CallboardError, RuntimeFailure, UsageError, said
from callboard.protocol.ids import MessageId, RequestId

R = TypeVar("R")
Time = float | datetime
"""Wall-clock seconds (time.time()), or a datetime; one without a zone is local time."""

#: Conversations, messages or requests of one answer.
MAX_LIMIT: Final = 10_000


class JournalAccess(Protocol):
    """How a journal is reached. All of it from any thread."""

    @property
    def name(self) -> str:
        """By which conversations know what of them is in it; "" where none is to know."""
        ...

    @property
    def many_at_once(self) -> bool:
        """Are many changes better made in one `change`?"""
        ...

    @property
    def is_new(self) -> bool:
        """Does the first change make it?"""
        ...

    def reader(self) -> JournalReader:
        """A new one."""
        ...

    def change(self, run: Callable[[JournalWriter], R]) -> R:
        """Run it over the writer, behind all that waits to be written."""
        ...

    def forgotten(self) -> None:
        """Something that conversations know to be in it may not be any more."""
        ...


class RunningJournal:
    """The journal of a runtime that runs."""

    many_at_once: Final = False
    """What requests write passes between them."""
    is_new: Final = False

    def __init__(self, journal: Ref[JournalMessage], outbox: Outbox) -> None:
        self._journal, self._outbox = journal, outbox

    @property
    def name(self) -> str:
        return self._outbox.name

    def reader(self) -> JournalReader:
        return run_on_store(self._journal, lambda writer: writer.reader())

    def change(self, run: Callable[[JournalWriter], R]) -> R:
        return run_on_store(self._journal, run, changes=True)

    def forgotten(self) -> None:
        """Conversations that go on write all of their messages again: those that are there are there once."""
        self._outbox.name += "'"


class RequestInfo(Struct, frozen=True):
    """One request of a journal."""

    request_id: RequestId
    conversation_id: str
    begun_at: float
    """Wall-clock seconds."""
    model: str
    ended_at: float | None = None
    """None: it runs, or waits to be taken up."""
    outcome: str = ""
    """Of one that has ended; "" where it could not be finished."""
    metadata: Mapping[str, str] = field(default_factory=dict)


class JournalHandle:
    """What is in a journal. Its methods wait for its disk or server and may be called from any thread; from a coroutine
    those that take long, as `await asyncio.to_thread(journal.search, "umbrella")`.

    They raise UsageError for what is asked wrongly, and JournalFailed (a RuntimeFailure) where the disk or the server
    does not answer; one that changes something, OutcomeUnknown where it may be done all the same. Times are wall-clock
    seconds; where they are asked for, a datetime does as well.
    """

    def __init__(self, access: JournalAccess) -> None:
        self._access = access

    @classmethod
    def open(cls, place: str | Path, *, makes: bool = False) -> Self:
        """Of a journal that this process has not open. Raises UsageError where there is none, and for what is none.

        `makes`: where there is no file, the first import makes it.
        """
        return cls(journal_at(place, makes=makes))

    # -- conversations

    def conversations(
        self,
        limit: int = 50,
        *,
        after: ConversationInfo | None = None,
        text: str = "",
        metadata: Mapping[str, str] | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> list[ConversationInfo]:
        """Those with the newest question first; `after`: the last one of the page before this.

        Only those that have all words of `text` in one message, whose latest request has all of `metadata`, and whose
        latest question was asked from `since` on and before `until`.
        """
        which = Filter(_seconds(since), _seconds(until), text, metadata or {})
        with self.reader() as reader:
            return conversations(reader, which, _checked_limit(limit), after)

    def conversation(self, conversation_id: str, *, at: str | None = None) -> Conversation:
        """The conversation, to be gone on with: `runtime.ask("And then?", conversation=journal.conversation(id))`.

        With `at`, the id of a message, a fork up to it: a conversation of its own, also while the other one has a
        request running, and from a branch that another process has begun.

        What is read is checked. Raises UsageError where there is no such conversation or message, where a request of it
        has not ended, and for a place between a call and its result; RuntimeFailure for one that is damaged, with
        the reason: a runtime's own journal sets it aside (`set_aside`).
        """
        with self.reader() as reader:
            if at is None and (running := open_request(reader, conversation_id)) is not None:
                raise UsageError(
                    f"request {running!r} of conversation {conversation_id!r} has not ended: await its result, or fork "
                    "the conversation at a message (`at=`)"
                )
            try:
                saved = saved_conversation(reader, conversation_id, at)
            except DamagedRecord as error:
                aside = ""
                if self._access.name:  # who looks at a journal at rest changes nothing in it
                    self._set_aside(conversation_id, str(error))
                    aside = " and was set aside"
                raise RuntimeFailure(
                    f"conversation {conversation_id!r} is damaged{aside}: {error}; fork it at a message before that "
                    "(`at=`), or delete it"
                ) from error
        made = Conversation.from_saved(saved)
        if at is not None:
            return made.fork(at)
        if self._access.name:
            made.is_in_journal(self._access.name)
        return made

    def branches(self, conversation_id: str) -> list[MessageId]:
        """The last message of each branch, the latest first: more than one where two processes went on from one
        message. `conversation` gives the first of them; the others can be forked."""
        with self.reader() as reader:
            return branches(reader, conversation_id)

    def search(
        self,
        text: str,
        limit: int = 50,
        *,
        metadata: Mapping[str, str] | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> list[FoundMessage]:
        """Messages in which all words occur, of the conversations with the newest questions first.

        A word is found where one begins with it, in capital letters or not: "umb" finds "Umbrella". What is in double
        quotes is found as it is. Of tools only results are searched. What looks like a key is masked before it is
        searched. All messages are read: about a second for 100 MB.
        """
        with self.reader() as reader:
            which = Filter(_seconds(since), _seconds(until), "", metadata or {})
            return search(reader, text, which, _checked_limit(limit))

    def delete_conversation(self, conversation_id: str) -> str:
        """Delete it for good, with its requests, so that it cannot be read from the journal's files either.

        Of its requests only numbers are left (`usage`). Returned is what could not be seen to, in one sentence, or "":
        a reader in another process keeps it readable in the WAL for a moment; files that were moved aside as damaged,
        or as those of dead processes, may hold it and are named; on PostgreSQL it is in the server's files
        until its VACUUM, and in its WAL and backups. Other copies are left: forks, exports, and `Conversation`
        objects, which write all they have when they are gone on with.

        Raises UsageError where there is none of this id, and while a request of it has not ended.
        """

        def delete(writer: JournalWriter) -> str:
            store = cleaning(writer)
            store.change(lambda database: delete_conversation(database, conversation_id))
            return store.forget()

        remark = self._access.change(delete)
        self._access.forgotten()
        return remark

    # -- in and out

    def import_conversation(self, text: str) -> str:
        """Add the conversation that `Conversation.to_json` wrote; the id that it has in this journal.

        That is its own; a new one where the journal has another conversation of this id. Raises UsageError for anything
        else, and adds nothing then.
        """
        Conversation.from_json(text)  # a history that no provider takes
        saved, now = decode_conversation(text), time.time()
        return self._changed(lambda database: import_conversation(database, saved, now))

    def export(self) -> Iterator[str]:
        """All of it as JSON lines, without line ends: the rows of each table. What cannot be read is left out."""
        with self.reader() as reader:
            yield from journal_lines(reader)

    def import_lines(self, lines: Iterable[str]) -> Imported:
        """Add what `export` wrote and is not here yet. All of it, or nothing.

        A journal that this makes takes also the requests that had not ended: a runtime that starts with it goes on with
        them, so none must with the other one. Raises UsageError, with the line, for anything else.
        """
        told, is_new = list(lines), self._access.is_new
        return self._changed(lambda database: import_lines(database, told, is_new=is_new))

    # -- requests and usage

    def requests(
        self, limit: int = 50, *, conversation_id: str | None = None, before: Time | None = None
    ) -> list[RequestInfo]:
        """Those that began last first; those that began `before`, for the next page."""
        with self.reader() as reader:
            return _requests(reader, _checked_limit(limit), conversation_id, _seconds(before))

    def request(self, request_id: str) -> RequestLog:
        """All that the journal has of it. Raises UsageError where that is nothing."""
        with self.reader() as reader:
            log = reader.request(RequestId(request_id))
        if log is None:
            raise no_such("request", request_id)
        return log

    def whole_request_id(self, given: str, also: Iterable[str] = (), least: int = MIN_CHARS) -> str:
        """The one id that begins with `given`, of at least `least` characters; else `given` itself, known or not.

        Only ids of callboard's own making are found by their beginning, never one that a program has chosen. `also`:
        ids that are not in the journal. Raises UsageError (AmbiguousId) where several begin so.
        """
        return whole_id(given, lambda part: {*self._ids_like("request_id", part), *also}, "request", least)

    def whole_conversation_id(self, given: str, least: int = MIN_CHARS) -> str:
        """Likewise, of a conversation."""
        return whole_id(given, lambda part: self._ids_like("conversation_id", part), "conversation", least)

    def _ids_like(self, kind: str, part: str) -> list[str]:
        with self.reader() as reader:
            return ids_in_journal(reader, kind, part)

    def usage(
        self,
        by: Sequence[str] = ("day", "model"),
        *,
        since: Time | None = None,
        until: Time | None = None,
        model: str = "",
        tool: str = "",
        conversation_id: str = "",
    ) -> UsageReport:
        """What requests used, in lines by "day" (of their end, in UTC), "model", "tool" and "conversation".

        Only of requests that ended from `since` on and before `until`. By tool, the lines are about calls: tokens and
        cost are those of model calls. `UsageReport` says what is not known.
        """
        which = UsageFilter(_seconds(since), _seconds(until), model, tool, conversation_id)
        with self.reader() as reader:
            return reader.patiently(lambda: usage_report(reader, by, which))

    def set_aside(self) -> list[SetAside]:
        """Records and conversations that could not be read, since the journal was made."""
        with self.reader() as reader:
            return list(reader.set_aside())

    # -- cleaning up

    def clean_up(self, *, keep_days: float | None = None, max_bytes: int | None = None) -> CleanedUp:
        """Delete what is too old or too much, in short steps. A runtime does so by itself by its settings
        (`journal_keep_days`, `journal_max_bytes`)."""
        kept = Kept(keep_days, max_bytes)
        if self._access.many_at_once:
            return self._access.change(lambda writer: _sum(self._steps(kept, lambda run: run(cleaning(writer)))))
        return _sum(self.clean_up_steps(kept))

    def clean_up_steps(self, kept: Kept) -> Iterator[CleanedUp]:
        """The same, a step of some milliseconds whenever the next one is asked for."""
        return self._steps(kept, lambda run: self._access.change(lambda writer: run(cleaning(writer))))

    def _steps(self, kept: Kept, change: Callable[[Callable[[CleansUp], CleanedUp]], CleanedUp]) -> Iterator[CleanedUp]:
        def read(find: Callable[[SqlReader], list[str]]) -> list[str]:
            with self.reader() as reader:
                return find(reader)

        if kept.max_bytes is not None:  # a server cannot say: refused before anything is deleted
            change(lambda store: CleanedUp(size_bytes=store.size_bytes()))
        cleaning_up = CleanUp(kept, read, change, time.time())
        while (done := cleaning_up.step()) is not None:
            if done.conversations:
                self._access.forgotten()
            yield done

    def vacuum(self) -> int:
        """Rewrite the file without what is free in it; its bytes afterwards. Nothing is written meanwhile, and it
        needs as much space again. UsageError for PostgreSQL, which does this itself."""

        def vacuum(writer: JournalWriter) -> int:
            store = cleaning(writer)
            store.vacuum()
            return store.size_bytes()

        return self._access.change(vacuum)

    # -- inside

    @contextmanager
    def reader(self) -> Iterator[SqlReader]:
        """What all of this is read with."""
        with closing(self._access.reader()) as reader:
            yield reading(reader)

    def _changed(self, run: Callable[[JournalDatabase], R]) -> R:
        return self._access.change(lambda writer: cleaning(writer).change(run))

    def _set_aside(self, conversation_id: str, why: str) -> None:
        """Once."""
        what = set_aside_name(column(conversation_id))
        try:
            self._changed(lambda database: keep_apart(database, SetAside(what, why, time.time())))
        except CallboardError as error:
            raise RuntimeFailure(
                f"conversation {conversation_id!r} is damaged: {why}; it could not be set aside: {said(error)}"
            ) from error


def _requests(reader: SqlReader, limit: int, conversation_id: str | None, before: float | None) -> list[RequestInfo]:
    database = reader.database
    conditions = "WHERE begun_at < ?" + ("" if conversation_id is None else " AND conversation_id = ?")
    values = [1e18 if before is None else before, *([] if conversation_id is None else [column(conversation_id)])]
    sql = f"SELECT request_id FROM {REQUESTS.name} {conditions} ORDER BY begun_at DESC, request_id LIMIT ?"
    return [_request_info(reader, row[0]) for row in database.query(sql, (*values, limit))]


def _request_info(reader: SqlReader, own: object) -> RequestInfo:
    rows = reader.database.query(f"{REQUESTS.select} WHERE request_id = ?", (own,))
    try:
        begins, _ = read_beginning(rows[0])
    except (DamagedRecord, IndexError):
        begins = Beginning("", None, 0.0, "")
    ended = reader.database.query(f"SELECT ended_at, outcome FROM {ENDS.name} WHERE request_id = ?", (own,))
    ended_at, outcome = ended[0] if ended else (None, "")
    return RequestInfo(
        RequestId(from_column(own)),
        begins.conversation_id,
        begins.begun_at,
        begins.model,
        ended_at if isinstance(ended_at, float) else None,
        str(outcome),
        begins.metadata,
    )


def _sum(steps: Iterable[CleanedUp]) -> CleanedUp:
    done = CleanedUp()
    for step in steps:
        done += step
    return done


def _checked_limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"limit must be a whole number from 1 to {MAX_LIMIT:,}, got {limit!r}")
    return limit


def _seconds(time: Time | None) -> float | None:
    return time.timestamp() if isinstance(time, datetime) else time
