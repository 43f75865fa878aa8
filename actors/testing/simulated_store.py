"""A journal store in memory that fails as `JournalFaults` say: what the Journal actor writes to in a simulated run.

A `SimulatedDisk` outlives the processes that use it, one after the other. What was being committed when a process died,
or when the disk did not confirm it, may be there afterwards, whole or in part: each request's writes in their order,
and never a part of one write. What was confirmed is there.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.journal.journal_records import (
    Beginning,
    Change,
    EffectWrite,
    NewMessage,
    OpenReport,
    Recorded,
    RequestEnd,
    RequestLog,
    SetAside,
    Statement,
    Write,
    own_messages,
    without_keys,
)
from callboard.actors.journal.journal_store import ChangeRefused, Idle, JournalFailed
from callboard.actors.testing.faults import JournalFaults, Remains
from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message
from callboard.protocol.errors import UsageError
from callboard.protocol.events import Event, RequestStarted
from callboard.protocol.ids import MessageId, RequestId, Tag

#: A statement with this text is one that the database refuses.
REFUSED_STATEMENT: Final = "refused"


class ProcessDied(BaseException):
    """The process of this writer is gone: nothing that it still tries has an effect."""


class PlannedCommitCrash(BaseException):
    """What the journal's actor crashes with in a commit, by plan. It would survive an Exception."""


class _Kept(Struct, eq=False):
    """All that the disk has of one request."""

    begins: Beginning
    conversation_id: str
    records: list[tuple[bytes, tuple[str, ...], float]] = field(default_factory=list)
    messages: list[NewMessage] = field(default_factory=list)
    """That its writes have brought: first those of its history that were not there yet."""
    end: RequestEnd | None = None
    owner: int = 0
    takings_up: int = 0
    damage: str = ""


class SimulatedDisk(Struct, eq=False):
    """What processes share. `wall_clock`: as time.time(); `wait`: lets seconds pass on the thread that commits."""

    wall_clock: Callable[[], float] = lambda: 0.0
    wait: Callable[[float], object] = lambda seconds: None
    faults: JournalFaults = JournalFaults()
    requests: dict[RequestId, _Kept] = field(default_factory=dict)
    outcomes: dict[Tag, EffectWrite] = field(default_factory=dict)
    effects: list[tuple[Tag, Statement]] = field(default_factory=list)
    """The statements of tools that were carried out."""
    conversations: dict[str, dict[MessageId, NewMessage]] = field(default_factory=dict)
    compacted: dict[str, Compacted] = field(default_factory=dict)
    set_aside: list[SetAside] = field(default_factory=list)
    happened: list[tuple[float, str]] = field(default_factory=list)
    """What failed, and when: seconds since the disk was made."""
    wrong: list[str] = field(default_factory=list)
    """What no journal should be given: events with a gap, after their request's end, messages after unknown ones."""
    commits: int = 0
    """Begun so far, by all processes."""
    writer: int = 0
    """The number of the writer that uses it, or used it last."""
    is_in_use: bool = False
    is_down: bool = False
    """No process runs."""
    unconfirmed: tuple[Change, ...] = ()
    """Of the last commit, where it was not confirmed."""
    made_at: float = 0.0
    commits_effect: Callable[[], object] = bool
    """Called when it has one more outcome."""

    def __post_init__(self) -> None:
        self.made_at = self.wall_clock()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return self.wall_clock() - self.made_at

    # -- what a run does to it

    def process_dies(self) -> None:
        """It is gone, perhaps in the middle of a commit."""
        self.is_in_use, self.is_down = False, True

    def process_starts(self) -> None:
        """The next one runs."""
        self.is_down = False

    def written(self, request_id: RequestId) -> int:
        """How many events of a request are there."""
        kept = self.requests.get(request_id)
        return len(kept.records) if kept is not None else 0

    def damage(self, request_id: RequestId, number: int, why: str = "its checksum does not fit") -> None:
        """The record of this number cannot be read any more."""
        kept = self.requests[request_id]
        what = f"record {number} of request {request_id}"
        self.set_aside.append(SetAside(what, why, self.wall_clock(), request_id))
        kept.records = kept.records[: number - 1]
        kept.damage = f"{what}: {why}"

    def delete_conversation(self, conversation_id: str) -> None:
        """All of it, its requests too."""
        gone = {each for each, kept in self.requests.items() if kept.conversation_id == conversation_id}
        for request_id in gone:
            del self.requests[request_id]
        self.outcomes = {tag: each for tag, each in self.outcomes.items() if tag.request_id not in gone}
        self.conversations.pop(conversation_id, None)
        self.compacted.pop(conversation_id, None)

    # -- for the writer

    def recover(self) -> tuple[str, ...]:
        """Decide what is left of the last commit, if that was not confirmed. Returns what people should know of it."""
        changes, self.unconfirmed = self.unconfirmed, ()
        if not changes:
            return ()
        rng = random.Random(f"recovery {self.faults.seed} {self.commits}")
        left = _REMAINS[self.faults.remains](changes, rng)
        for change in left:
            self.apply(change)
        notes = [f"of {len(changes)} writes that were under way, {len(left)} are there"]
        if self.faults.remains is Remains.TORN:
            notes.append("the last record was torn, and is cut off")
        self.happened.append((self.seconds, f"recovery: {notes[0]}"))
        return tuple(notes)

    def apply(self, change: Change) -> ChangeRefused | None:
        """Add a change, or say why it cannot be added."""
        return self._apply_effect(change) if isinstance(change, EffectWrite) else self._apply_write(change)

    def _apply_effect(self, change: EffectWrite) -> ChangeRefused | None:
        if (known := self.outcomes.get(change.tag)) is not None and known.outcome == change.outcome:
            return None  # given again
        if known is not None:
            return ChangeRefused(f"call {change.tag.call_id} has an outcome already")
        if any(statement.sql == REFUSED_STATEMENT for statement in change.statements):
            return ChangeRefused(f"call {change.tag.call_id}: the database refuses its statement")
        self.outcomes[change.tag] = EffectWrite(change.tag, change.outcome)
        self.effects += [(change.tag, statement) for statement in change.statements]
        self.commits_effect()
        return None

    def _apply_write(self, change: Write) -> ChangeRefused | None:
        kept = self.requests.get(change.request_id)
        events = [encode_event(_kept(event)) for event in change.events]
        if kept is None:
            if change.begins is None:
                return ChangeRefused(f"request {change.request_id} is not in the journal")
            kept = _Kept(change.begins, change.conversation_id or change.begins.conversation_id, owner=self.writer)
            self.requests[change.request_id] = kept
        there = len(kept.records) - change.number + 1
        if there < 0 and events:
            raise self._fault(change, f"event {change.number} is written, {len(kept.records)} are there")
        new, known = events[max(there, 0) :], kept.records[change.number - 1 :]
        if any(event != other for event, (other, *_) in zip(events, known, strict=False)):
            return ChangeRefused(f"request {change.request_id} has written another event under a number that is taken")
        if new and kept.end is not None:
            raise self._fault(change, f"{change.events[there]} is written after its end")
        for place, event in enumerate(new, 1):
            led_to = change.led_to if place == len(new) else ()
            kept.records.append((event, led_to, self.wall_clock()))
        if new or change.only_goes_on:
            kept.takings_up = 0
        self._add_messages(kept, change)
        if kept.end is None:
            kept.end = change.ends
        return None

    def _fault(self, change: Write, what: str) -> AssertionError:
        self.wrong.append(f"{change.request_id}: {what}")
        return AssertionError(self.wrong[-1])

    def _add_messages(self, kept: _Kept, change: Write) -> None:
        if (change.messages or change.compacted is not None) and not change.conversation_id:
            raise self._fault(change, "something of a conversation is written, and not of which")
        kept.conversation_id = kept.conversation_id or change.conversation_id
        rows = self.conversations.setdefault(kept.conversation_id, {})
        for each in change.messages:
            if each.message_id not in rows:
                if each.parent is not None and each.parent not in rows:
                    raise self._fault(change, f"{each.message_id} follows a message that is not there")
                rows[each.message_id] = each
                kept.messages.append(each)
        if change.compacted is not None:
            self.compacted[kept.conversation_id] = change.compacted


def _prefix(changes: Sequence[Change], rng: random.Random) -> Sequence[Change]:
    return changes[: rng.randint(0, len(changes))]


def _torn(changes: Sequence[Change], rng: random.Random) -> Sequence[Change]:
    return changes[: rng.randint(0, len(changes) - 1)]


def _scattered(changes: Sequence[Change], rng: random.Random) -> Sequence[Change]:
    """Some of each request's, from its first on: pages of a disk are not written in the order of the requests."""
    cut = {_request_of(change): rng.random() for change in changes}
    lost: set[RequestId] = set()
    left: list[Change] = []
    for change in changes:
        whose = _request_of(change)
        if whose not in lost and rng.random() >= cut[whose]:
            left.append(change)
        else:
            lost.add(whose)
    return left


def _request_of(change: Change) -> RequestId:
    return change.request_id if isinstance(change, Write) else change.tag.request_id


_REMAINS: Final[dict[Remains, Callable[[Sequence[Change], random.Random], Sequence[Change]]]] = {
    Remains.NOTHING: lambda changes, rng: (),
    Remains.ALL: lambda changes, rng: changes,
    Remains.PREFIX: _prefix,
    Remains.TORN: _torn,
    Remains.SCATTERED: _scattered,
}


class SimulatedWriter:
    """One process's JournalWriter on a disk."""

    def __init__(self, disk: SimulatedDisk, *, is_shared: bool = False) -> None:
        self._disk, self.is_shared = disk, is_shared
        self._number = 0

    def open(self) -> OpenReport:
        """Raises UsageError while another one has it open."""
        disk = self._disk
        if disk.is_down:
            raise ProcessDied
        if disk.is_in_use:
            raise UsageError(f"the simulated journal is open in writer {disk.writer}")
        notes = disk.recover()  # what is there of it is of the writer before
        disk.writer += 1
        self._number, disk.is_in_use = disk.writer, True
        return OpenReport(notes)

    def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        """Half of the time passes before the batch is durable, half of it after."""
        disk, faults = self._disk, self._disk.faults
        if disk.is_down or disk.writer != self._number:
            raise ProcessDied
        disk.commits += 1
        number = disk.commits
        self._fail_if_planned()
        disk.unconfirmed = tuple(batch)
        if faults.commit_seconds:
            disk.wait(faults.commit_seconds / 2)
        if number in faults.crashes_before:
            self._crash(f"before commit {number} is durable")
        if self._sync_fails() and random.Random(f"sync {faults.seed} {number}").random() < 0.5:
            raise JournalFailed(_told(errno.EIO, "look at the disk"))
        disk.unconfirmed = ()
        refused = [disk.apply(change) for change in batch]
        if faults.commit_seconds:
            disk.wait(faults.commit_seconds / 2)
        if number in faults.crashes_after:
            self._crash(f"after commit {number} is durable")
        if self._sync_fails():
            raise JournalFailed(_told(errno.EIO, "look at the disk"))
        return refused

    def _crash(self, when: str) -> None:
        self._disk.happened.append((self._disk.seconds, f"the journal's actor crashes {when}"))
        raise PlannedCommitCrash(when)

    def _sync_fails(self) -> bool:
        disk = self._disk
        fails = any(since <= disk.seconds < until for since, until in disk.faults.sync_fails)
        if fails:
            disk.happened.append((disk.seconds, "a sync of the journal fails"))
        return fails

    def _fail_if_planned(self) -> None:
        disk = self._disk
        for windows, code, advice in (
            (disk.faults.full, errno.ENOSPC, "make room"),
            (disk.faults.read_only, errno.EROFS, "make it writable"),
        ):
            if any(since <= disk.seconds < until for since, until in windows):
                disk.happened.append((disk.seconds, f"the journal cannot be written: {os.strerror(code)}"))
                raise JournalFailed(_told(code, advice))

    def take_up(self, idle: Idle | None = None) -> tuple[RequestId, ...]:
        """See JournalWriter."""
        requests = self._disk.requests
        taken = tuple(each for each in _open(self._disk) if requests[each].owner != self._number)
        for each in taken:
            requests[each].owner = self._number
            requests[each].takings_up += 1
        return taken

    def forget_takings(self, request_ids: Sequence[RequestId]) -> None:
        """See JournalWriter."""
        for each in request_ids:
            self._disk.requests[each].takings_up = 0

    def renew(self) -> float | None:
        """Only one process can have it open."""
        return None

    def may_act(self) -> bool:
        """It has no lease that could be over."""
        return True

    def reader(self) -> SimulatedReader:
        """See JournalWriter."""
        return SimulatedReader(self._disk)

    def close(self) -> None:
        """See JournalWriter."""
        if self._number == self._disk.writer:
            self._disk.is_in_use = False


def _kept(event: Event) -> Event:
    """What a store writes of it: its history is kept elsewhere, and keys nowhere."""
    if not isinstance(event, RequestStarted):
        return event
    return replace(event, history=(), options=without_keys(event.options))


def _whole(event: Event, history: tuple[Message, ...]) -> Event:
    return replace(event, history=history) if isinstance(event, RequestStarted) else event


def _open(disk: SimulatedDisk) -> tuple[RequestId, ...]:
    found = [(kept.begins.begun_at, request_id) for request_id, kept in disk.requests.items() if kept.end is None]
    return tuple(request_id for _, request_id in sorted(found, key=lambda each: each[0]))


def _told(code: int, advice: str) -> str:
    return f"the journal could not be written: {os.strerror(code)}; {advice}"


class SimulatedReader:
    """A JournalReader of a disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def request(self, request_id: RequestId) -> RequestLog | None:
        """See JournalReader."""
        kept = self._disk.requests.get(request_id)
        if kept is None:
            return None
        damage, records = kept.damage, kept.records
        ids, history = self._history(kept)
        if history is None and not damage:
            damage, records = f"message {kept.begins.parent!r} of the conversation is missing", []
        whole = (
            Recorded(number, _whole(decode_event(event), history or ()), led_to, written_at)
            for number, (event, led_to, written_at) in enumerate(records, 1)
        )
        return RequestLog(
            request_id,
            kept.begins,
            tuple(whole),
            tuple(each for tag, each in self._disk.outcomes.items() if tag.request_id == request_id),
            own_messages([(each.message_id, each.message) for each in kept.messages], kept.begins.parent),
            kept.end,
            kept.takings_up,
            damage,
            ids,
        )

    def _history(self, kept: _Kept) -> tuple[tuple[MessageId, ...], tuple[Message, ...] | None]:
        """Of its conversation, up to where it began; None where some of it is missing."""
        rows = self._disk.conversations.get(kept.begins.conversation_id, {})
        history: list[NewMessage] = []
        parent = kept.begins.parent
        while parent is not None:
            if parent not in rows:
                return (), None
            history.insert(0, rows[parent])
            parent = rows[parent].parent
        return tuple(each.message_id for each in history), tuple(each.message for each in history)

    def open_requests(self) -> tuple[RequestId, ...]:
        """See JournalReader."""
        return _open(self._disk)

    def set_aside(self) -> Iterator[SetAside]:
        """See JournalReader."""
        return iter(tuple(self._disk.set_aside))

    def give_up(self) -> None:
        """It waits for nothing."""

    def close(self) -> None:
        """It holds nothing."""
