"""Questions for approval in a simulated run, followed from outside: each is put once, and its answer told as it was.

Of equal questions of one request one is put at a time. A yes for the request, and any no, counts for those that wait
with it; a yes for the request also for those that come later; any other yes for the one that was put.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

from msgspec import Struct

from callboard.actors.calls.approvals import SeekApproval, Verdict
from callboard.actors.calls.dispatcher import ConfirmStops
from callboard.actors.kernel import Ref
from callboard.actors.kernel.cell import State
from callboard.actors.kernel.system import ActorSystem
from callboard.protocol.commands import AskApproval, WithdrawApproval
from callboard.protocol.events import ApprovalDenied, ApprovalGranted, Event
from callboard.protocol.ids import RequestId, Tag, ToolName
from callboard.protocol.limits import MAX_CALL_SENDS

_Equal = tuple[Ref, ToolName, str]
_ANSWERS: Final = (ApprovalGranted, ApprovalDenied)


class _Due(Struct):
    """An answer that its session is to hear."""

    asker: Ref
    verdict: Verdict


class WatchedQuestions:
    """Of one process. `problems`: what was wrong, one sentence each, with the request's id in front."""

    def __init__(self, system: ActorSystem, problems: list[str]) -> None:
        self._system = system
        self.problems = problems
        self._open: dict[Tag, SeekApproval] = {}
        """Those that the dispatcher of now has read, and that have no answer."""
        self._equal: dict[_Equal, dict[Tag, None]] = {}
        self._standing: dict[_Equal, Verdict] = {}
        """What was answered for the rest of a request."""
        self._due: dict[Tag, _Due] = {}
        self._put: dict[Tag, None] = {}
        """Those that the person thinks about."""
        self._known: set[Tag] = set()
        self._dispatchers = 0
        """Incarnations so far: a later one may read equal questions in another order than they were put in."""

    def _wrong(self, tag: Tag, rule: str, told: str) -> None:
        question = f"the question about call {tag.step}/{tag.call_id}"
        self.problems.append(f"{tag.request_id} {rule}: {question}, at {self._system.now():g}: {told}")

    # -- what the dispatcher reads

    def dispatcher_starts(self) -> None:
        """The one before is gone, with all that it knew of questions; the sessions send theirs again."""
        self._dispatchers += 1
        self._open.clear()
        self._equal.clear()
        self._standing.clear()

    def read(self, message: object) -> None:
        """The dispatcher takes this message."""
        if isinstance(message, SeekApproval):
            self._sought(message)
        elif isinstance(message, Verdict) and message.tag in self._open:
            self._decided(message)
        elif isinstance(message, WithdrawApproval):
            self._close(message.tag)
        elif isinstance(message, ConfirmStops):
            for stop in message.stops:
                self.read(stop)

    def _sought(self, seek: SeekApproval) -> None:
        tag, equal = seek.question.tag, _equal_of(seek)
        self._known.add(tag)
        if (verdict := self._standing.get(equal)) is not None:
            self._due[tag] = _Due(seek.reply_to, verdict)
            return
        self._open[tag] = seek
        self._equal.setdefault(equal, {})[tag] = None

    def _decided(self, verdict: Verdict) -> None:
        seek = self._open[verdict.tag]
        equal = _equal_of(seek)
        if verdict.is_for_request:
            self._standing[equal] = verdict
        together = not verdict.granted or verdict.is_for_request
        for tag in tuple(self._equal[equal]) if together else (verdict.tag,):
            self._close(tag)
            self._due[tag] = _Due(seek.reply_to, verdict)

    def _close(self, tag: Tag) -> None:
        seek = self._open.pop(tag, None)
        if seek is not None:
            self._equal[_equal_of(seek)].pop(tag, None)

    # -- what the person hears and says

    def put(self, question: AskApproval) -> None:
        """The question is put to the person."""
        tag = question.tag
        if tag in self._put:
            self._wrong(tag, "put once", "it is put, and was not answered since it was put before")
        self._put[tag] = None
        if (seek := self._open.get(tag)) is None:
            self._wrong(tag, "put once", "it is put, and nobody waits for the answer")
        elif question != seek.question:
            self._wrong(tag, "put once", f"the person is asked {question}, the session said {seek.question}")

    def moot(self, tag: Tag) -> None:
        """The person need not answer it any more, or has."""
        self._put.pop(tag, None)

    # -- what the session is told

    def tells(self, event: Event) -> None:
        """Its session hears an answer."""
        if not isinstance(event, _ANSWERS) or event.tag not in self._known:
            return
        due = self._due.pop(event.tag, None)
        reason = event.reason if isinstance(event, ApprovalDenied) and self._dispatchers >= MAX_CALL_SENDS else ""
        if due is None and reason.startswith(f"each of {MAX_CALL_SENDS} dispatchers"):
            return  # its session has said so itself
        if due is None:
            self._wrong(event.tag, "answer", f"its session hears {type(event).__name__}, and nobody has said so")
            return
        if (wrong := _differs(event, due.verdict)) != "":
            self._wrong(event.tag, "answer", f"its session hears {event}, the answer was {due.verdict} ({wrong})")

    # -- when the clock is about to move

    def at_rest(self) -> None:
        """Nothing is left to do at this time: which question is not where it should be?"""
        if not (self._open or self._put or self._due) or not self._is_up():
            return
        for tag, due in tuple(self._due.items()):
            if due.asker.is_alive():
                self._wrong(tag, "answer", f"it was answered, and its session has not heard so: {due.verdict}")
            del self._due[tag]
        for tag in tuple(self._put):
            if tag not in self._open:
                self._wrong(tag, "moot", "it is before the person, and needs no answer any more")
                del self._put[tag]
        for tag, seek in tuple(self._open.items()):
            if not seek.reply_to.is_alive():
                self._wrong(tag, "moot", "its session has ended, and it was not withdrawn")
                self._close(tag)
        for equal, tags in tuple(self._equal.items()):
            put = [tag for tag in tags if tag in self._put]
            if not tags:
                del self._equal[equal]
            elif not put or (len(put) > 1 and self._dispatchers == 1):
                told = f"of {len(tags)} equal ones {len(put)} are before the person, where one should be"
                self._wrong(next(iter(tags)), "put once", told)

    def opened(self, request_id: RequestId) -> set[Tag] | None:
        """The questions of a request that the dispatcher has; None while there is none."""
        return {tag for tag in self._open if tag.request_id == request_id} if self._is_up() else None

    def _is_up(self) -> bool:
        cell = self._system._cells.get("root/dispatcher")
        return cell is not None and cell.state is State.RUNNING


def _equal_of(seek: SeekApproval) -> _Equal:
    """Questions are equal when one request asks them about one tool and the same arguments, however written."""
    return seek.reply_to, seek.question.name, _however_written(seek.question.arguments)


@lru_cache
def _however_written(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def _differs(event: ApprovalGranted | ApprovalDenied, verdict: Verdict) -> str:
    """In what an answer is not what was said; "" where it is."""
    if isinstance(event, ApprovalDenied):
        same = {"granted": False, "by": event.by, "rule": event.rule, "reason": event.reason}
    else:
        same = {"granted": True, "by": event.by, "rule": event.rule, "arguments": event.arguments, "hold": event.hold}
    return ", ".join(name for name, told in same.items() if getattr(verdict, name) != told)
