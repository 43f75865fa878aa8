"""What a request's asker, its reader, telemetry and journal are told in a simulated run, compared with its trace.

The trace says what its session heard and gave. From that follows, without the code under test, what is to be shown and
in which order, what telemetry hears, and what stands in the reply and in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any, Final

from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.requests.partial_outputs import PartialOutput
from callboard.actors.requests.replies import (
    EventReader,
    ModelCallFailed,
    Question,
    Reply,
    RequestEnded,
    Seen,
)
from callboard.actors.telemetry.notices import PeerLost
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol import commands, events
from callboard.protocol.commands import Command, Finish, Note, Outcome, ReportFailure
from callboard.protocol.content import Message
from callboard.protocol.events import Event
from callboard.protocol.ids import Tag
from callboard.protocol.testing.trace import Entry, Verb
from callboard.protocol.tools import ToolFailure

#: Commands that are shown to who reads along; a model call only where it asks for no turn.
_SHOWN: Final = (
    commands.CallModel, commands.RunTool, commands.AskApproval, commands.ReportFailure, commands.Note,
    commands.CallOutside, commands.Finish,
)  # fmt: skip
_FAILS: Final = (events.ToolCallFailed, events.ToolCallTimedOut, events.ToolCallCancelled)
#: What is shown also to who reads only the reply.
_TO_ALL: Final = (events.ModelFailed, *_FAILS, commands.ReportFailure, commands.Note, commands.Finish)
#: What the reader of a stream is given as it is.
_ITEMS: Final = (
    events.RequestStarted, commands.RunTool, events.ToolCallStarted, events.ToolCallDeferred, events.ToolCallCompleted,
    *_FAILS, commands.AskApproval, commands.ReportFailure, commands.CallOutside, commands.Note,
)  # fmt: skip
#: What telemetry hears, besides the question and actors that were lost.
_HEARD: Final = (
    events.ModelResponded, events.ModelFailed, events.ModelLost, events.ModelNoted, events.ToolCallCompleted, *_FAILS,
    events.ToolCallDeferred, events.ApprovalGranted, events.ApprovalDenied, commands.CallModel, commands.RunTool,
    commands.AskApproval, commands.ReportFailure, commands.Note, commands.CallOutside, commands.Finish,
)  # fmt: skip
_APART: Final = (ToolProgressed, commands.SetTimer, commands.ClearTimer)
_RETURNS: Final = (events.ToolCallCompleted, events.ToolCallFailed)
#: Of a played tool, at its end.
LAST_WORDS: Final = "all done"
_WENT_WELL: Final = (Outcome.ANSWERED, Outcome.CALLS_OUTSIDE)
MAX_FAILURES: Final = 100

Told = Event | Command


class PlayedReader(EventReader[Any]):
    """The reader of a stream, who looks at every third piece and at the end."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer, lambda request_id, why: None)
        self.items: list[Any] = []
        self._count = 0

    def _notify(self) -> None:
        self._count += 1
        if self._count % 3 == 0:
            self.read()

    def read(self) -> None:
        """What was not read yet."""
        self.items += self._take()


def happened(entries: Sequence[Entry]) -> list[Told]:
    """What its last process applied and gave, in order, without what a session is resumed with."""
    told: list[Told] = []
    is_resumed = False
    for entry in entries:
        is_resumed = entry.verb is Verb.RESUMED or (is_resumed and entry.verb is Verb.GAVE)
        if entry.value is not None and not is_resumed and entry.verb in (Verb.APPLIED, Verb.GAVE):
            told.append(entry.value)
    return told


@cache
def _is_shown(kind: type[Told], reads_along: bool) -> bool:
    return issubclass(kind, (Event, *_SHOWN)) and (reads_along or issubclass(kind, _TO_ALL))


@cache
def _is_heard(kind: type[Told]) -> bool:
    return issubclass(kind, _HEARD)


def shown_wrongly(told: Sequence[Told], shown: Sequence[Seen], *, reads_along: bool, is_whole: bool) -> Iterator[str]:
    """Each event is shown, and each command that is for a reader, once, in their order. `is_whole`: to the end."""
    due = [
        each
        for each in told
        if _is_shown(type(each), reads_along) and not (type(each) is commands.CallModel and each.is_turn)
    ]
    seen = [each for each in shown if not isinstance(each, _APART)]
    yield from _difference("shown", due, seen, is_whole=is_whole)


def heard_wrongly(
    told: Sequence[Told], heard: Sequence[object], *, is_whole: bool, has_run: bool = True
) -> Iterator[str]:
    """Telemetry hears each piece of work, each end of one, each decision and note, once, in their order.

    `has_run`: its session was not lost before it did anything."""
    due = [each for each in told if _is_heard(type(each))]
    known = [each for each in heard if not isinstance(each, Question | PeerLost)]
    questions = sum(isinstance(each, Question) for each in heard)
    if questions != 1 and (has_run or questions):
        yield f"telemetry: it has heard {questions} times that it was asked"
    yield from _difference("telemetry", due, known, is_whole=is_whole)


def _difference(rule: str, due: Sequence[object], found: Sequence[object], *, is_whole: bool) -> Iterator[str]:
    for number, (right, wrong) in enumerate(zip_longest(due, found), 1):
        if right is wrong or (wrong is None and not is_whole) or right == wrong:
            continue
        yield f"{rule}: number {number} is {_short(wrong)}, where {_short(right)} was due"
        return


def _short(value: object) -> str:
    return "nothing" if value is None else f"{value!r:.240}"


def read_wrongly(told: Sequence[Told], shown: Sequence[Seen], reader: PlayedReader) -> Iterator[str]:
    """A stream has what is shown, piece by piece, and the reply last."""
    reader.read()
    due: list[object] = []
    for each in told:
        if isinstance(each, events.ModelStreamed):
            due += each.events
        elif isinstance(each, _ITEMS):
            due.append(each)
    items = [each for each in reader.items if not isinstance(each, ToolProgressed | PartialOutput)]
    yield from _difference("stream", due, items, is_whole=True)
    latest = {each.tag: each for each in shown if isinstance(each, ToolProgressed)}
    read = {each.tag: each for each in reader.items if isinstance(each, ToolProgressed)}
    if latest != read:
        yield f"stream: the last progress that was read is {read}, shown was {latest}"


def timers_wrongly(
    entries: Sequence[Entry], first: tuple[Tag, float], jumps: Sequence[tuple[float, float]] = ()
) -> Iterator[str]:
    """A timer fires that was set, and no other: not one that was cleared, or that another has replaced.

    `first`: that of the request, before its session gives commands. `jumps`: when the loop was held, and how long."""
    due: dict[Tag, float] = dict([first])
    gone: dict[tuple[Tag, float], float] = {}
    """Those that are set no longer, and since when: they may have fired in that moment, which is read later where
    the loop is held then."""
    whose = first[0][:2]
    for entry in entries:
        value = entry.value
        if value is None or value.tag[:2] != whose:
            continue  # of another request
        if entry.verb is Verb.GAVE and isinstance(value, commands.SetTimer | commands.ClearTimer):
            if (before := due.pop(value.tag, None)) is not None:
                gone[value.tag, before] = entry.at
            if isinstance(value, commands.SetTimer):
                due[value.tag] = value.at
        elif entry.verb in (Verb.APPLIED, Verb.REFUSED) and isinstance(value, events.DeadlinePassed):
            if due.get(value.tag) == value.at:
                gone[value.tag, due.pop(value.tag)] = entry.at
            elif not value.at <= (since := gone.get((value.tag, value.at), -1.0)) <= entry.at <= _held(since, jumps):
                yield f"timer: that of {value.tag} fires at {entry.at:g} for {value.at:g}, and none is set for then"


def _held(at: float, jumps: Sequence[tuple[float, float]]) -> float:
    """Until when what is there at this time may wait for the loop."""
    for since, seconds in jumps:
        if since <= at:
            at = max(at, since + seconds)
    return at


def progress_wrongly(shown: Sequence[Seen]) -> Iterator[str]:
    """Before the end of a call that has come to its end, the last that it has said of its progress is shown."""
    last: dict[Tag, ToolProgressed] = {}
    for seen in shown:
        if isinstance(seen, ToolProgressed):
            last[seen.tag] = seen
        elif isinstance(seen, _RETURNS) and seen.output.startswith("printed by"):
            said = last.get(seen.tag)
            if said is None or said.message != LAST_WORDS:
                yield f"progress: before the end of {seen.tag} {said} was shown last"


def failures_of(told: Sequence[Told]) -> tuple[ToolFailure, ...]:
    """Of calls without a result, in the order of their ends."""
    found = [each.failure for each in told if isinstance(each, (*_FAILS, ReportFailure)) and each.failure is not None]
    return tuple(found[-MAX_FAILURES:])


def notes_of(told: Sequence[Told]) -> tuple[str, ...]:
    """The notes for people."""
    return tuple(each.text for each in told if isinstance(each, Note))


def error_of(told: Sequence[Told]) -> object:
    """Why the model could not be asked last."""
    return next((each.error for each in reversed(told) if isinstance(each, events.ModelFailed)), None)


def replied_wrongly(
    told: Sequence[Told], finish: Finish, messages: tuple[Message, ...], end: Reply[Any] | BaseException
) -> Iterator[str]:
    """The reply says what the request ended with, and what was told on the way."""
    reply = end if isinstance(end, Reply) else getattr(end, "reply", None)
    if not isinstance(reply, Reply):
        yield f"reply: it ended as {finish.outcome}, and its asker has {end!r}"
        return
    outside = finish.open_turn.outside if finish.open_turn is not None else ()
    due = {
        "text": finish.text, "usage": finish.usage, "request_id": finish.tag.request_id, "outcome": finish.outcome,
        "steps": finish.steps, "cost": finish.cost, "messages": messages, "reason": finish.reason,
        "finish_reason": finish.finish_reason, "notes": notes_of(told), "failures": failures_of(told),
        "outside_calls": outside,
    }  # fmt: skip
    for name, value in due.items():
        if (found := getattr(reply, name)) != value:
            yield f"reply: {name} is {found!r:.240}, and was {value!r:.240}"
    yield from _raised_wrongly(told, finish, end)


def _raised_wrongly(told: Sequence[Told], finish: Finish, end: object) -> Iterator[str]:
    error = error_of(told)
    has_turn = bool(finish.steps) and finish.steps[-1].is_whole
    expected: type[object] = Reply if finish.outcome in _WENT_WELL else RequestEnded
    if finish.outcome is Outcome.FAILED and error is not None and not has_turn:
        expected = ModelCallFailed
    if type(end) is not expected:
        yield f"reply: it ended as {finish.outcome}, and its asker has a {type(end).__name__}"
    elif isinstance(end, ModelCallFailed) and (end.kind, end.status) != (error.kind, error.status):  # type: ignore[attr-defined]
        yield f"reply: the model failed with {error}, and its asker has {end!r}"


def kept_wrongly(log: RequestLog, told: Sequence[Told], finish: Finish) -> Iterator[str]:
    """The journal has the end of a request as its asker has it, and its messages."""
    end = log.end
    if end is None or end.finish is None:
        return  # said elsewhere
    due = {"finish": finish, "notes": notes_of(told), "failures": failures_of(told), "error": error_of(told)}
    for name, value in due.items():
        if (found := getattr(end, name)) != value:
            yield f"journal: its {name} at the end is {found!r:.240}, and was {value!r:.240}"
    asked = [each.user for each in told if isinstance(each, events.RequestStarted) and each.user.parts]
    steps = [each for each in told if isinstance(each, commands.RecordStep)]
    due_messages = [*asked, *(message for step in steps for message in step.messages)] if steps else []
    messages = [message for _, message in log.messages]
    if messages != due_messages:
        yield f"journal: it has the messages {messages!r:.240}, its session recorded {due_messages!r:.240}"
