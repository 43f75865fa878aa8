"""What is to come of a request and of reading it: a plain account, beside which the real thing is played."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.kernel import ExitReason
from callboard.actors.requests.outputs import OutputType
from callboard.actors.requests.partial_outputs import PartialReader
from callboard.actors.requests.replies import (
    LEFT,
    MAY_GO_ON,
    STOPPING,
    Reply,
    Seen,
    Shown,
    Unwritten,
)
from callboard.actors.testing.request_plans import NEVER, REQUEST, TAG, Plan
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import ClearTimer, Finish, Note, Outcome, RecordStep, ReportFailure, SetTimer
from callboard.protocol.content import AssistantMessage, Image, Message, Text
from callboard.protocol.errors import OutcomeUnknown, RuntimeFailure, said, with_advice
from callboard.protocol.events import (
    ModelFailed,
    ModelStreamed,
    ToolCallCancelled,
    ToolCallFailed,
    ToolCallTimedOut,
)
from callboard.protocol.model import Error, TextDelta, Usage
from callboard.protocol.tools import ToolFailure

#: What one reading may leave unread, and what a reply holds of failures: in these plays.
UNREAD_BYTES: Final = 4_000
FAILURES: Final = 3
#: As is promised: seconds to the end of a cancelled request, behind a deadline, between two looks, and how late a look
#: may come without the machine having slept.
OVER: Final = 5.0
GRACE: Final = 5.0
BETWEEN_LOOKS: Final = 60.0
FROZEN: Final = 0.5
CLOSED: Final = "the event loop of its reader is closed"
UNREAD: Final = f"its reader has left {UNREAD_BYTES / 1024**2:g} MiB of its events unread"
_FAILS: Final = (ToolCallFailed, ToolCallTimedOut, ToolCallCancelled, ReportFailure)


class Told(Struct, frozen=True):
    """An error, as its asker meets it."""

    name: str
    message: str
    reply: object = None
    kind: object = None
    status: object = None
    retry_after_seconds: object = None
    request_id: object = None
    cause: str = "None"


def told(end: object) -> object:
    """What an end says, to be compared."""
    if not isinstance(end, BaseException):
        return end
    fields = {each: getattr(end, each, None) for each in Told.__struct_fields__[2:-1]}
    return Told(type(end).__name__, str(end), **fields, cause=repr(end.__cause__))


def bytes_of(item: Any) -> int:
    """About what an event keeps."""
    texts = [each for each in map(item.__getattribute__, type(item).__struct_fields__) if isinstance(each, str)]
    if isinstance(item, ToolCallFailed):
        return 200 + len(item.failure.traceback) + sum(map(sys.getsizeof, texts))
    return 200 + sum(map(sys.getsizeof, texts))


class Looks(Struct):
    """Of an asker who waits: when it looks whether its request is lost, and what it finds."""

    deadline: float | None
    loop_ends_at: float = NEVER
    is_blocked: bool = False
    went_on_at: float = 0.0
    unanswered: int = 0

    def moved(self, at: float | None) -> None:
        """The session says when it must have ended."""
        self.deadline, self.unanswered = at, 0

    def seconds(self, now: float) -> float:
        """To the next look."""
        if self.deadline is None:
            return BETWEEN_LOOKS if self.unanswered < 2 else GRACE
        return max(0.0, max(self.deadline, self.went_on_at) + GRACE - now)

    def is_lost(self, now: float) -> bool:
        """Look now."""
        if self.deadline is not None:
            late = now - (max(self.deadline, self.went_on_at) + GRACE)
            self.went_on_at = now if late > FROZEN else self.went_on_at
            return 0.0 <= late <= FROZEN
        if self.unanswered == 2 or now >= self.loop_ends_at:
            return True
        self.unanswered = self.unanswered + 1 if self.is_blocked else 0
        return False


class Account(Struct):
    """One request and its reading. Times are of the clock of its world."""

    plan: Plan
    began: float
    now: float
    output: OutputType[Any] | None
    looks: Looks
    look_at: float = NEVER
    """The next look of an asyncio loop."""
    place: int = 0
    ended: bool = False
    """Its session shows no more."""
    cancel_ends_at: float = NEVER
    down_at: float = NEVER
    finish: Finish | None = None
    settled_at: float | None = None
    result: object = None
    is_open: bool = False
    """The conversation was left with an open turn."""
    notes: list[str] = field(default_factory=list)
    failures: list[ToolFailure] = field(default_factory=list)
    error: Error | None = None
    messages: list[Message] = field(default_factory=list)
    has_reader: bool = False
    unread: list[object] = field(default_factory=list)
    unread_bytes: int = 0
    given_up: bool = False
    is_left: bool = False
    is_closed: bool = False
    """The reader's loop is."""
    woken: bool = False
    cancels: list[tuple[float, str, str]] = field(default_factory=list)
    got: list[tuple[float, object]] = field(default_factory=list)
    over_at: float = NEVER
    end: object = None
    """What the reader meets."""

    # -- time

    def _next(self) -> tuple[float, int]:
        """When the next thing happens, and which."""
        plan, began = self.plan, self.began
        shown = began + plan.shown[self.place][0] if self.place < len(plan.shown) and not self.ended else NEVER
        ends = NEVER if self.ended else min(began + plan.ends_at, self.cancel_ends_at)
        look = NEVER if self.settled_at is not None else self.look_at
        refused = NEVER if self.settled_at is not None else began + plan.refused_at
        return min((shown, 0), (ends, 1), (self.down_at, 2), (look, 3), (refused, 4))

    def run(self, until: float, *, to_wake: bool = False, to_end: bool = False) -> None:
        """What happens up to then; with `to_wake`, until there is something to read; `to_end`: until it has settled."""
        while not (to_wake and self.woken) and not (to_end and self.settled_at is not None):
            at, what = self._next()
            if at > until or at == NEVER:
                self.now = max(self.now, until) if until != NEVER else self.now
                return
            self.now = max(self.now, at)
            (self._show, self._finish, self._down, self._look, self._refuse)[what]()

    def _refuse(self) -> None:
        self.settle(Told("ValueError", "refused"))

    def _look(self) -> None:
        if self.looks.is_lost(self.now):
            self.lost()
        else:
            self.look_at = self.now + self.looks.seconds(self.now)

    def lost(self) -> None:
        """Nobody has ended it."""
        late = "the request has no answer long after its deadline, or while it only waited: "
        late += "callboard's loop is blocked, or its actors were lost"
        self.settle(OutcomeUnknown(late, REQUEST))

    # -- what the session shows

    def _show(self) -> None:
        seen, self.place = self.plan.shown[self.place][1], self.place + 1
        for each in seen:
            if isinstance(each, RecordStep):
                self.messages += each.messages if self.settled_at is None else ()
            else:
                self._sees(each)

    def _sees(self, seen: Seen) -> None:
        if isinstance(seen, ModelFailed):
            self.error = seen.error
        if isinstance(seen, Note):
            self.notes.append(seen.text)
        if isinstance(seen, SetTimer):
            self.looks.moved(seen.at)
        if isinstance(seen, ClearTimer):
            self.looks.moved(None)
        if isinstance(seen, _FAILS) and seen.failure is not None:
            self.failures.append(seen.failure)
        if not self.has_reader or self.given_up:
            return
        items = seen.events if isinstance(seen, ModelStreamed) else (seen,) if isinstance(seen, Shown) else ()
        last = self.unread[-1] if self.unread else None
        if isinstance(seen, ToolProgressed) and isinstance(last, ToolProgressed) and last.tag == seen.tag:
            self.unread_bytes -= bytes_of(self.unread.pop())  # the latest is enough
        self.unread += items
        self.unread_bytes += sum(map(bytes_of, items))
        if self.unread_bytes > UNREAD_BYTES:
            self.give_up(UNREAD)
        if items:
            self._wake()

    def _wake(self) -> None:
        self.woken = True
        if self.is_closed:
            self.give_up(CLOSED)

    def _finish(self) -> None:
        plan, self.ended = self.plan, True
        is_cancelled = self.cancel_ends_at < self.began + plan.ends_at
        self.finish = cancelled(self.cancels[0][2]) if is_cancelled else plan.finish
        self.down_at = self.now + plan.down_after

    def _down(self) -> None:
        self.down_at = NEVER
        if self.settled_at is None:
            self.settle(self._end())

    def _end(self) -> object:
        plan, finish = self.plan, self.finish
        error, why = plan.down.error, plan.why_tree_ended
        if finish is None and why:
            return self._no_answer(why, plan.is_kept)
        if finish is None and isinstance(error, RuntimeFailure):
            failure = self._no_answer("told to", isinstance(error, Unwritten) and error.may_go_on)
            failure.__cause__ = error.__cause__ or error
            return failure
        if finish is None and (error is not None or plan.down.reason is ExitReason.KILLED):
            lost = said(error) if error is not None else "killed"
            return RuntimeFailure(f"the request has no answer, since its session was lost: {lost}")
        if finish is None:
            finish = Finish(TAG, Outcome.CANCELLED, "", Usage(), 0.0, (), STOPPING)
        if why and finish.reason.startswith(STOPPING):
            finish = replace(finish, reason=f"{finish.reason}: {why}")
        return self.answered(finish)

    @staticmethod
    def _no_answer(why: str, may_go_on: bool) -> RuntimeFailure:
        if may_go_on:
            return OutcomeUnknown(f"the request has no answer: {why}; {MAY_GO_ON.format(REQUEST)}", REQUEST)
        return RuntimeFailure(f"the request has no answer: {why}")

    def answered(self, finish: Finish) -> object:
        self.is_open = finish.open_turn is not None
        output: object = finish.text
        if self.output is not None:
            fits = finish.outcome is Outcome.ANSWERED and self.plan.is_checked
            output = json.loads(finish.text) if fits else None
        reply = Reply[Any](
            text=finish.text, usage=finish.usage, request_id=REQUEST, outcome=finish.outcome, steps=finish.steps,
            cost=finish.cost, messages=tuple(self.messages), output=output, reason=finish.reason,
            finish_reason=finish.finish_reason, notes=tuple(self.notes), failures=tuple(self.failures[-FAILURES:]),
            outside_calls=finish.open_turn.message.tool_calls if finish.open_turn is not None else (),
        )  # fmt: skip
        if finish.outcome in (Outcome.ANSWERED, Outcome.CALLS_OUTSIDE):
            return reply
        was_asked, error = bool(finish.steps) and finish.steps[-1].is_whole, self.error
        if finish.outcome is Outcome.FAILED and error is not None and not was_asked:
            message = with_advice(error.kind, error.message)
            return Told("ModelCallFailed", message, reply, error.kind, error.status, error.retry_after)
        return Told("RequestEnded", finish.reason or f"the request ended: {finish.outcome}", reply)

    def settle(self, end: object) -> None:
        """Once."""
        self.settled_at, self.result = self.now, told(end)
        if self.has_reader:
            self._wake()

    # -- the reader's side

    def give_up(self, why: str) -> None:
        """It will not read on."""
        self.is_left = True
        if not self.given_up and self.settled_at is None:
            self.given_up = True
            self.cancel(why)

    def cancel(self, why: str) -> None:
        """Ask for the end of the request."""
        self.cancels.append((self.now, REQUEST, why))
        if not self.ended and self.cancel_ends_at == NEVER and self.plan.refused_at == NEVER:
            self.cancel_ends_at = self.now + self.plan.cancel_takes

    def drop(self) -> None:
        """Nobody can read it any more."""
        if self.plan.refused_at == NEVER and not self.given_up and self.settled_at is None:
            self.given_up = self.is_left = True
            if self.now < self.began + self.plan.loop_ends_at:
                self.cancel(LEFT)

    def read(self) -> None:
        """As its reader does, to the end."""
        kind, begin = self.plan.reader.kind, self.began + self.plan.reader.begins_at
        if kind in ("stream", "plain", "scope", "closed", "dropped"):
            self.look_at = self.began + self.looks.seconds(self.began)
        self.has_reader = kind not in ("ask", "ask_async")
        self.run(begin)
        if kind in ("ask", "ask_async"):
            self._ask()
        elif kind.startswith("dropped"):
            self.over_at = self.now
            self.drop()
            self.has_reader = False
        else:
            self._read()
        if self.is_closed:
            self.look_at = NEVER
        self.run(NEVER)

    def _ask(self) -> None:
        self.look_at = self.now + self.looks.seconds(self.now)
        cancelled_at = self.began + self.plan.reader.cancelled_at
        self.run(cancelled_at, to_end=True)
        if self.settled_at is None:
            self.look_at = NEVER
            self.cancel("no longer wanted")
            self._leave()
            self.end = "cancelled"
        else:
            self.end, self.over_at = self.result, self.now

    def _leave(self) -> None:
        """Wait for the end of the request, a moment."""
        reader, limit = self.plan.reader, self.now + OVER
        if reader.kind.startswith("stream_sync"):
            if not reader.is_collected:
                self.run(limit, to_end=True)
        else:
            cuts = (self.began + at for at in (reader.cancelled_at, reader.cancelled_again_at))
            cut_at = min((at for at in cuts if at > self.now and reader.kind != "scope"), default=NEVER)
            self.run(min(limit, cut_at), to_end=True)
            if self.settled_at is None and cut_at < limit:
                self.end = "cancelled"
        self.over_at = self.now

    def _read(self) -> None:
        reader = self.plan.reader
        if reader.leaves_after == 0:
            self._leaves()
            return
        partials = None if self.output is None else PartialReader(self.output)
        cancelled_at = self.began + reader.cancelled_at
        count = 0
        is_last = False
        while not is_last:
            if not self._wait(cancelled_at):
                self._is_cancelled()
                return
            self.woken, is_last = False, self.settled_at is not None
            items, self.unread, self.unread_bytes = self.unread, [], 0
            for item in partials.follow(items) if partials is not None else items:
                if reader.only_texts and not isinstance(item, TextDelta):
                    continue
                self.got.append((self.now, item.text if reader.only_texts else item))  # type: ignore[attr-defined]
                count += 1
                if count == reader.leaves_after:
                    self._leaves()
                    return
                if not self._pause(count, cancelled_at):
                    return
        self._last(partials, count, cancelled_at)

    def _pause(self, count: int, cancelled_at: float) -> bool:
        """Behind so many items; False: it was cancelled meanwhile."""
        pauses = self.plan.reader.pauses
        pause = pauses[(count - 1) % len(pauses)]
        if pause:
            until = self.now + pause
            self.run(min(until, cancelled_at))
            if until >= cancelled_at:
                self._is_cancelled()
                return False
        return True

    def _last(self, partials: PartialReader | None, count: int, cancelled_at: float) -> None:
        reader, result = self.plan.reader, self.result
        assert self.settled_at is not None
        self.end, self.over_at = result, self.now
        if isinstance(result, Reply):
            last = [*(partials.last(result.text) if partials is not None else ()), result]
            for item in last if not reader.only_texts else ():
                self.got.append((self.now, item))
                count += 1
                if count == reader.leaves_after:
                    self._leaves()
                    return
                if not self._pause(count, cancelled_at):
                    return
            self.end = "read"
        self.over_at = self.now
        self.is_left = True

    def _wait(self, cancelled_at: float) -> bool:
        """For something to read; False: it was cancelled meanwhile."""
        if self.plan.reader.kind != "stream_sync":
            self.run(cancelled_at, to_wake=True)
            return self.woken
        look_at = self.now + self.looks.seconds(self.now)
        self.run(look_at, to_wake=True)
        if not self.woken and self.settled_at is None and self.looks.is_lost(self.now):
            self.lost()
        return True

    def _is_cancelled(self) -> None:
        self._leaves()
        self.end = "cancelled"

    def _leaves(self) -> None:
        kind = self.plan.reader.kind
        self.end, self.over_at = "left", self.now
        if kind == "closed":
            self.is_closed = True
        elif kind == "plain":
            self.drop()
            self.is_left = True
        elif not self.plan.reader.leaves_after:
            self.drop()
        else:
            self.give_up(LEFT)
            self._leave()


def cancelled(why: str) -> Finish:
    """Of a request that was cancelled."""
    return Finish(TAG, Outcome.CANCELLED, "so far", Usage(1, 2), 0.5, (), why)


# -- the parts of a reply


def parts_amiss(reply: Reply[Any]) -> Iterator[str]:
    """What is not as its fields say."""
    last = reply.messages[-1] if reply.messages else None
    parts = last.parts if isinstance(last, AssistantMessage) else ()
    turns = [step.model for step in reply.steps if step.is_whole and step.is_turn]
    before, citations = "", []
    for part in parts:
        if isinstance(part, Text):
            for each in part.citations:
                start = None if each.start is None else each.start + len(before)
                citations.append(replace(each, start=start, end=None if each.end is None else each.end + len(before)))
            before += part.text
    pairs = {
        "its text as a text": (str(reply), reply.text),
        "model": (reply.model, turns[-1] if turns else ""),
        "citations": (reply.citations, tuple(citations)),
        "media": (reply.media, tuple(part for part in parts if isinstance(part, Image))),
        "the number of fences": (len(reply.fences), int("a.py" in reply.text)),
        "whether it has private parts": (hasattr(reply, "_no"), False),
    }
    yield from (f"{what} is {found!r}, due is {due!r}" for what, (found, due) in pairs.items() if found != due)
    for name, says in (("contents", "a Reply has no 'contents'"), ("_no", "object has no attribute")):
        try:
            yield f"it has a part that none has: {getattr(reply, name)!r}"
        except AttributeError as error:
            if says not in str(error):
                yield f"it does not say which part it has not: {error}"
    try:
        setattr(reply, "text", "")  # noqa: B010 - a type checker knows that it cannot be written
        yield "it can be changed"
    except AttributeError:
        return
