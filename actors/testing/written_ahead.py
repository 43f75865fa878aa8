"""What a simulated run knows of the journal: what was applied, what of it was durable when it was shown or carried out.

It asks the disk, not the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.recovery import Rebuilt
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import Question
from callboard.actors.requests.write_ahead import Waiting, WriteAhead
from callboard.actors.testing.simulated_store import SimulatedDisk, SimulatedReader
from callboard.actors.testing.told_truly import happened, kept_wrongly
from callboard.protocol.commands import Command, Finish, RunTool
from callboard.protocol.events import Event, ModelStreamed, RequestStarted, ToolCallStarted
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.machine import Session
from callboard.protocol.recorded import replay_log
from callboard.protocol.testing.trace import Trace

#: Some thirty classes: to put them together for each question takes longer than the answer.
_EVENT_OR_COMMAND: Final = Event | Command


class Applied(Struct):
    """What one request has applied."""

    trace: Trace
    events: int = 0
    """That a journal must hold."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """After each event: how many must be durable for it to count, and how many entries the trace had."""
    acted: int = 0
    """How many events the session has acted on."""
    shown: int = 0
    """The number of what was shown last."""
    values: dict[tuple[type[object], Tag], list[tuple[int, Event | Command]]] = field(default_factory=dict)
    """Each event and command, and how many must be durable before it is shown or carried out."""

    def add(self, events: int, values: list[Event | Command]) -> None:
        """An event was applied, of which a journal must hold so many, and led to commands."""
        self.events += events
        self.marks.append((self.events, len(self.trace.entries)))
        for value in values:
            self.values.setdefault((type(value), value.tag), []).append((self.events, value))

    def process_dies(self, durable: int) -> None:
        """Only so many events count, and what they led to."""
        self.events = self.acted = self.shown = durable
        self.marks = [mark for mark in self.marks if mark[0] <= durable]
        self.values = {
            key: left for key, found in self.values.items() if (left := [each for each in found if each[0] <= durable])
        }

    def needs(self, value: Event | Command) -> int:
        """How many events must be durable before this may be acted on."""
        same = self.values.get((type(value), value.tag), ())
        return min((number for number, other in same if other is value or other == value), default=0)

    def comes_in_order(self, value: Event | Command) -> bool:
        """Is it shown behind what was applied before it?"""
        found = self.values.get((type(value), value.tag), ())
        number = next((number for number, other in found if other is value), self.shown)
        in_order, self.shown = number >= self.shown, max(number, self.shown)
        return in_order

    def entries_of(self, durable: int) -> int:
        """How many entries of the trace these events stand for."""
        return max((entries for number, entries in self.marks if number <= durable), default=0)


class WatchedWriteAhead(WriteAhead):
    """The real one, which says how long things waited, and up to where the session has acted."""

    def __init__(
        self,
        question: Question,
        conversation: Conversation,
        outbox: Outbox,
        applied: Applied,
        now: Callable[[], float],
        *,
        written: int = 0,
        recorded: int = 0,
    ) -> None:
        super().__init__(question, conversation, outbox, written=written, recorded=recorded)
        self._applied = applied
        self._now = now

    def durable(self, up_to: int) -> list[Waiting]:
        """What may be acted on; written down one by one, as they were acted on."""
        free, trace = super().durable(up_to), self._applied.trace
        trace.lag_seconds = max([trace.lag_seconds, *(self._now() - held.since for held in free)])
        return _Acted(free, self._applied)


class _Acted(list[Waiting]):
    def __init__(self, free: list[Waiting], applied: Applied) -> None:
        super().__init__(free)
        self._applied = applied

    def __iter__(self) -> Iterator[Waiting]:
        for held in super().__iter__():
            yield held
            self._applied.acted = held.number


class WrittenAhead:
    """The journal of a run, and what was acted on before it was in there."""

    def __init__(self, disk: SimulatedDisk, now: Callable[[], float]) -> None:
        """`now`: the clock of the sessions."""
        self.disk = disk
        self._now = now
        self.applied: dict[RequestId, Applied] = {}
        self.too_early: list[str] = []
        self.outbox = self._make_outbox()

    def _make_outbox(self) -> Outbox:
        return Outbox("simulated", wall_clock=self.disk.wall_clock)

    def process_starts(self) -> None:
        """The one before has died."""
        self.disk.process_starts()
        self.outbox = self._make_outbox()

    def begin(self, trace: Trace, question: Question, conversation: Conversation) -> WriteAhead:
        """For a session that begins."""
        applied = self.applied[question.tag.request_id] = Applied(trace, marks=[(0, len(trace.entries))])
        return WatchedWriteAhead(question, conversation, self.outbox, applied, self._now)

    def go_on(self, question: Question, rebuilt: Rebuilt) -> WriteAhead:
        """For a session that goes on with a request."""
        applied = self.applied[question.tag.request_id]
        ahead = WatchedWriteAhead(
            question,
            rebuilt.conversation,
            self.outbox,
            applied,
            self._now,
            written=rebuilt.written,
            recorded=rebuilt.recorded,
        )
        ahead.take_note(rebuilt.told)
        return ahead

    def acts(self, what: str, value: object, at: float) -> None:
        """Something is shown or carried out: what it follows from must be durable."""
        if not isinstance(value, _EVENT_OR_COMMAND):
            return
        request_id = value.tag.request_id
        applied = self.applied.get(request_id)
        if applied is None:
            return
        needed, durable = applied.needs(value), self.disk.written(request_id)
        if what == "shown" and not applied.comes_in_order(value):
            told = f"{type(value).__name__} of step {value.tag.step} was shown at {at:g}, behind what followed it"
            self.too_early.append(f"{request_id} shown in order: {told}")
        if durable < needed:
            told = f"{type(value).__name__} of step {value.tag.step} was {what} at {at:g}"
            self.too_early.append(f"{request_id} written ahead: {told}, with {durable} of {needed} events durable")

    def at_rest(self, has_done_all: Callable[[RequestId], bool]) -> Iterator[str]:
        """A request that goes on after a death has said so: that it was taken up was not in vain. `has_done_all`: its
        session lives, and waits for nothing to be written."""
        for request_id, kept in self.disk.requests.items() if not self.outbox.count else ():
            if kept.takings_up and kept.end is None and has_done_all(request_id):
                yield f"{request_id} taken up: it goes on, and the journal has it as taken up in vain"

    def begins(self, run: RunTool, at: float) -> None:
        """The code of a tool begins that must not run twice: that it has begun must be durable."""
        applied = self.applied.get(run.tag.request_id)
        found = applied.values.get((ToolCallStarted, run.tag)) if applied is not None else None
        if applied is not None and (not found or self.disk.written(run.tag.request_id) < found[0][0]):
            told = f"the code of call {run.tag.call_id} of step {run.tag.step} began at {at:g}"
            self.too_early.append(f"{run.tag.request_id} written ahead: {told}, before that was durable")
        if run.tag in self.disk.outcomes:
            self.too_early.append(f"{run.tag.request_id} transaction: {run.tag} runs, and its outcome is committed")

    def problems(self, finished: Mapping[RequestId, Finish | None]) -> Iterator[str]:
        """At rest. `finished`: how each request ended, None where its session was lost."""
        yield from self.too_early
        yield from (f"journal: {wrong}" for wrong in self.disk.wrong)
        reader = SimulatedReader(self.disk)
        for request_id, finish in finished.items():
            log = reader.request(request_id)
            if log is not None:
                applied = self.applied.get(request_id)
                told = happened(applied.trace.entries) if applied is not None else []
                yield from (f"{request_id} {wrong}" for wrong in _of_request(log, finish, told))
            elif finish is not None:
                yield f"{request_id} journal: it was answered, and the journal has nothing of it"


def rebuilt_wrongly(disk: SimulatedDisk, log: RequestLog, found: Rebuilt) -> Iterator[str]:
    """What a request goes on with is what the disk has of it, in its conversation and in its session."""
    kept = disk.requests[log.request_id]
    outcomes = [each.outcome for tag, each in disk.outcomes.items() if tag.request_id == log.request_id]
    own, ids = [each.message for each in kept.messages if each.message_id not in log.history_ids], chain_of(disk, log)
    session, started = found.taken_up.session, log.records[0].event
    replayed = Session.replay([record.event for record in log.records]) if not log.begins.needs.direct else session
    assert isinstance(started, RequestStarted)
    same = {
        "its events": (found.written, len(kept.records)),
        "its messages": (found.recorded, len(own)),
        "the place in its feed": (
            found.taken_up.number, sum(not isinstance(record.event, ModelStreamed) for record in log.records)
        ),
        "the committed outcomes": (
            [(type(each), each.tag) for each in found.taken_up.outcomes],
            [(type(each), each.tag) for each in outcomes],
        ),
        "the conversation": (found.conversation.id, log.begins.conversation_id),
        "the ids of the messages": (list(found.conversation.ids), ids),
        "the messages": (found.conversation.messages, (*started.history, *own)),
        "what is left out of the prompts": (
            found.conversation.compacted, disk.compacted.get(log.begins.conversation_id, started.compacted)
        ),
        "the state": (session.state, replayed.state),
        "the step": (session.step, replayed.step),
        "the calls": (session.calls, replayed.calls),
    }  # fmt: skip
    for what, (there, due) in same.items():
        if there != due:
            yield f"{what}: {there!r:.240}, where {due!r:.240} was due"


def chain_of(disk: SimulatedDisk, log: RequestLog) -> list[MessageId]:
    """The ids of its conversation up to its last message, by their parents."""
    rows = disk.conversations.get(log.begins.conversation_id, {})
    last = log.messages[-1][0] if log.messages else log.begins.parent
    ids: list[MessageId] = []
    while last is not None and last in rows and last not in ids:
        ids.insert(0, last)
        last = rows[last].parent
    return ids


def _of_request(log: RequestLog, finish: Finish | None, told: list[Event | Command]) -> Iterator[str]:
    if log.end is None:
        yield "journal: at rest it is still open there"
    elif finish is not None and log.end.finish is None:
        yield f"journal: it ended as {finish.outcome}, the journal says {log.end}"
    elif finish is not None:
        yield from kept_wrongly(log, told, finish)
    for replayed in replay_log(log):
        yield from (f"I8 replay: {told}" for told in replayed.differences)
