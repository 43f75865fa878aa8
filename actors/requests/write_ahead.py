"""Writing ahead: what stands between applying an event of a request and acting on it, where there is a journal.

An event is applied at once and handed to the journal. It is shown, and its commands are carried out, when it is
durable; later events are applied meanwhile and wait behind it, in their order. So the intent to run a call is durable
before the call is, its outcome before the model reads it, and the answer before the asker has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.journal.journal_records import Beginning, Needs, NewMessage, RequestEnd, Write
from callboard.actors.journal.outbox import AppendWrite, NotWritten, Outbox, Written
from callboard.actors.kernel import Ref
from callboard.actors.kernel.reply import Reply
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import MAX_FAILURES, Question, failure_told
from callboard.protocol.command_lines import led_to
from callboard.protocol.commands import CallModel, Command, Finish, Note, RecordCompaction, RecordStep, ReportFailure
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message
from callboard.protocol.errors import OutcomeUnknown
from callboard.protocol.events import (
    CALL_FAILS,
    ApprovalDenied,
    ApprovalGranted,
    Event,
    ModelFailed,
    RequestStarted,
    ToolCallDeferred,
    ToolCallEnd,
    shifted,
)
from callboard.protocol.ids import MessageId, Tag
from callboard.protocol.limits import CLOCK_TOLERANCE_SECONDS
from callboard.protocol.model import Error
from callboard.protocol.tools import ToolFailure

#: A commit takes milliseconds, and a restart of the journal's actor some seconds. After this long its disk or server
#: does not answer, and what waits for it ends with an error.
WRITTEN_WITHIN_SECONDS: Final = 30.0
#: Between the two looks that find the journal late before its request ends.
SECOND_LOOK_SECONDS: Final = 5.0
LATE: Final = f"the journal did not write for {WRITTEN_WITHIN_SECONDS:g} s; its disk or server does not answer"
#: Why a request has ended of whose session nothing else is known.
LOST: Final = "its session was lost"
#: What the end of a request tells of.
_NOTED: Final = frozenset({Note, *CALL_FAILS, ReportFailure, ModelFailed})
#: Events after which what holds a call has nothing more to do for it, or something else.
_DECIDES: Final = (ToolCallEnd, ApprovalGranted, ApprovalDenied, ToolCallDeferred)


class Waiting(Struct):
    """An applied event that waits, with its commands."""

    number: int
    """What must be durable before: of the request's events, the last that was written with it or before it."""
    event: Event
    given: tuple[Command, ...]
    since: float
    recorded: Callable[[], object] | None = None
    """The conversation has its messages in the journal."""
    confirms: Reply[bool] | None = None
    """Who wants to know when it is durable."""


class WriteAhead:
    """The writes of one request, in their order, and what waits for them."""

    def __init__(
        self,
        question: Question,
        conversation: Conversation,
        outbox: Outbox,
        needs: Needs | None = None,
        *,
        written: int = 0,
        recorded: int = 0,
    ) -> None:
        """`needs`: what a later process must have to take the request up. Of a request that was taken up, the journal
        has so many events (`written`), and its conversation so many of its messages (`recorded`)."""
        self._question = question
        self._conversation = conversation
        self._outbox = outbox
        self._needs = needs or Needs()
        self._request_id = question.tag.request_id
        self._reply_to: Ref[Written | NotWritten] | None = None
        self._held: deque[Waiting] = deque()
        self._written = written
        """Events handed over."""
        self._parent: MessageId | None = None
        """The last message that was handed over, or that the journal had."""
        self._recorded = recorded
        """Messages of this request that were handed over."""
        self._notes: list[str] = []
        self._failures: list[ToolFailure] = []
        self._error: Error | None = None
        self._is_closed = written == 0
        """Nothing more is to be said in the journal: it has not begun there, or has ended, or another has to say it."""
        ids = conversation.ids
        if ids:
            self._parent = ids[-1]

    @property
    def error(self) -> Exception | None:
        """What the last write of any request failed with; None when it was written."""
        return self._outbox.error

    def begin(self, reply_to: Ref[Written | NotWritten]) -> None:
        """The session runs: this is its address."""
        self._reply_to = reply_to

    # -- an event comes

    def holds(self, event: Event, journaled: Sequence[Event], given: tuple[Command, ...], now: float) -> bool:
        """Hand over what an applied event adds to the journal. False: nothing has to be durable before it counts.

        Raises RuntimeFailure when too many writes wait.
        """
        recorded = None
        if journaled:
            recorded = self._hand_over(journaled, given, now)
        elif not self._held:
            return False
        self._held.append(Waiting(self._written, event, given, now, recorded))
        return True

    def _hand_over(
        self, journaled: Sequence[Event], given: tuple[Command, ...], now: float
    ) -> Callable[[], object] | None:
        outbox = self._outbox
        ahead = outbox.wall_clock() - now
        number = self._written + 1
        self._written += len(journaled)
        self.take_note((*journaled, *given))
        if not given:  # two of three: beginnings of calls, and outcomes while others run
            events = tuple([shifted(each, ahead) for each in journaled])
            outbox.hand_over(AppendWrite(Write(self._request_id, number, events), self._reply_to))
            self._is_closed = False
            return None
        begins: Beginning | None = None
        messages: list[NewMessage] = []
        compacted: Compacted | None = None
        first = journaled[0]
        if isinstance(first, RequestStarted):
            messages += self._conversation.not_in_journal(outbox.name)
            if messages and first.compacted != Compacted():
                compacted = first.compacted
            begins = self._beginning(first, first.at + ahead)
            journaled = (replace(first, history=()), *journaled[1:])
        ends: RequestEnd | None = None
        for command in given:
            if isinstance(command, RecordStep):
                messages += self._named(command.messages)
            elif isinstance(command, RecordCompaction):
                compacted = command.compacted
            elif isinstance(command, Finish):
                ends = self._end(outbox.wall_clock(), command)
        write = Write(
            self._request_id,
            number,
            tuple([shifted(each, ahead) for each in journaled]),
            led_to(given),
            begins,
            self._conversation.id if messages or compacted is not None else "",
            tuple(messages),
            compacted,
            ends,
        )
        outbox.hand_over(AppendWrite(write, self._reply_to))
        self._is_closed = ends is not None
        return (lambda: self._conversation.is_in_journal(outbox.name)) if messages else None

    def goes_on(self) -> None:
        """It was taken up, and waits: that its process ends meanwhile is no fault of its own."""
        self._outbox.hand_over(AppendWrite(Write(self._request_id, self._written + 1, ()), self._reply_to))

    def _beginning(self, started: RequestStarted, begun_at: float) -> Beginning:
        question = self._question
        return Beginning(
            self._conversation.id, self._parent, begun_at, started.options.model, self._needs, question.metadata
        )

    def _named(self, added: tuple[Message, ...]) -> list[NewMessage]:
        """With the ids that the conversation will give them; the question comes with the first of them."""
        if self._recorded == 0 and self._question.user.parts:
            added = (self._question.user, *added)
        ids = self._conversation.upcoming_ids(self._request_id, self._recorded, len(added))
        self._recorded += len(added)
        named: list[NewMessage] = []
        for own, message in zip(ids, added, strict=True):
            named.append(NewMessage(own, self._parent, message))
            self._parent = own
        return named

    def take_note(self, told: Sequence[Event | Command]) -> None:
        """What the end of the request will tell of it: notes, failures, why the model could not be asked."""
        for seen in told:
            if type(seen) not in _NOTED:
                continue
            if isinstance(seen, Note):
                self._notes.append(seen.text)
            elif isinstance(seen, ModelFailed):
                self._error = seen.error
            elif (failed := failure_told(seen)) is not None:
                self._failures.append(failed)
                del self._failures[:-MAX_FAILURES]

    def _end(self, at: float, finish: Finish | None, failure: str = "") -> RequestEnd:
        return RequestEnd(at, finish, tuple(self._notes), tuple(self._failures), self._error, failure)

    # -- it is durable, or not

    def durable(self, up_to: int) -> list[Waiting]:
        """What may be acted on, now that the events up to this number are durable."""
        free: list[Waiting] = []
        held = self._held
        while held and held[0].number <= up_to:
            free.append(held.popleft())
        return free

    def confirmation(self, confirms: Reply[bool]) -> bool | Reply[bool]:
        """For who handed in the last event: True when all of it is durable, else the reply, which says so later."""
        if not self._held:
            confirms.answer(True)
            return True
        self._held[-1].confirms = confirms
        return confirms

    def close(self) -> None:
        """Its request goes on elsewhere, or what became of it is said by others."""
        self._is_closed = True

    def give_up(self, why: str) -> None:
        """The session ends without a Finish: say in the journal that its request has ended, and to all who wait."""
        for each in self._held:
            if each.confirms is not None:
                each.confirms.fail(OutcomeUnknown(why or LOST, self._request_id))
        if not self._is_closed:
            self._is_closed = True
            end = self._end(self._outbox.wall_clock(), None, why or LOST)
            write = Write(self._request_id, self._written + 1, (), ends=end)
            self._outbox.hand_over(AppendWrite(write, None), is_last=True)

    # -- what waits

    @property
    def waits(self) -> bool:
        """Is something not durable yet?"""
        return bool(self._held)

    @property
    def has_begun(self) -> bool:
        """Was anything of the request handed over?"""
        return self._written > 0

    def is_late(self, now: float) -> bool:
        """Has the oldest waited too long?"""
        late_since = now - WRITTEN_WITHIN_SECONDS + CLOCK_TOLERANCE_SECONDS
        return bool(self._held) and self._held[0].since <= late_since

    def holds_model_call(self, step: Tag) -> bool:
        """Is the model call of this step among what waits, so that it was not sent yet?"""
        return any(isinstance(each, CallModel) and each.tag == step for held in self._held for each in held.given)

    def is_behind(self, tag: Tag) -> bool:
        """Does an event or a command of this call wait: that it has begun, or that it is stopped?"""
        return any(tag in (held.event.tag, *(each.tag for each in held.given)) for held in self._held)

    def is_decided(self, tag: Tag) -> bool:
        """Does an event wait after which what holds this call has nothing more to do for it?"""
        return any(held.event.tag == tag and isinstance(held.event, _DECIDES) for held in self._held)
