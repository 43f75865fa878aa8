"""Takes up the requests that were open in the journal when their process ended: each goes on, or ends with a reason.

A request whose model cannot be asked here, for want of a key mostly, is left open: that is a fault of this start and
not of the request, and the next start can have the key.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextvars import Context
from typing import TYPE_CHECKING

import orjson

from callboard.actors import kernel
from callboard.actors.builtins.asking_user import UserQuestion, UserQuestions
from callboard.actors.following import Following
from callboard.actors.journal.journal_records import RequestEnd, RequestLog, SetAside, Write
from callboard.actors.journal.outbox import AppendWrite, Outbox
from callboard.actors.journal.records_of_runtime import JournalRecords
from callboard.actors.journal.recovery import Available, CannotGoOn, Rebuilt, check_needs, in_turn, rebuilt, started_of
from callboard.actors.requests.open_requests import OpenRequest, OpenState
from callboard.actors.requests.output_checks import OutputChecker
from callboard.actors.requests.outputs import OutputType
from callboard.actors.requests.replies import Answer, Question
from callboard.actors.requests.session_messages import FeedStart
from callboard.actors.running import StartedRequest
from callboard.actors.wiring import Asked
from callboard.protocol.errors import RuntimeFailure, UsageError, said
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import RequestId
from callboard.protocol.states import CallState

if TYPE_CHECKING:
    from callboard.actors.running import StartedRuntime
    from callboard.actors.wiring import Wiring

logger = logging.getLogger("callboard")

FAILS_ON_CRASH = 'the process that ran it ended, and this runtime ends such requests: Settings(on_crash="fail")'


class TakingUp:
    """For one start of a runtime."""

    def __init__(
        self,
        running: StartedRuntime,
        wiring: Wiring,
        records: JournalRecords,
        outbox: Outbox,
        outputs: Mapping[str, OutputType[object]],
        questions: UserQuestions | None,
    ) -> None:
        self._running = running
        self._wiring = wiring
        self._records = records
        self._outbox = outbox
        self._outputs = outputs
        self._questions = questions
        self._fails = wiring.settings.on_crash == "fail"
        self._in_hand: set[RequestId] = set()
        """Those that are being taken up."""

    def at_start(self) -> None:
        """Those that earlier processes have left. Raises JournalFailed where they cannot be read."""
        self._outbox.here = self._here
        self._each(self._records.take_up())
        # Of processes that end while this one runs, where several share a journal.
        self._outbox.taken_up = self._later

    def _here(self) -> frozenset[RequestId]:
        # In this order: they go from the first to one of the others.
        in_hand, running = frozenset(self._in_hand), self._running
        return in_hand | frozenset(running.left_open) | frozenset(running.sessions)

    def _later(self, found: tuple[RequestId, ...]) -> None:
        """Called on the journal's thread, which must not wait for itself."""
        self._in_hand.update(found)
        threading.Thread(target=self._all, args=(found,), name="callboard-taking-up", daemon=True).start()

    def _all(self, found: tuple[RequestId, ...]) -> None:
        try:
            self._each(found)
        except (RuntimeFailure, kernel.KernelError) as error:
            # The runtime stops, or the journal does not answer: they are open there, and the next start has them.
            logger.warning("requests of an ended process could not be taken up yet: %s", said(error))
        finally:
            self._in_hand.difference_update(found)

    def _each(self, found: tuple[RequestId, ...]) -> None:
        for request_id in in_turn(found, self._takings_up):
            self._one(request_id)
        if left := [request_id for request_id in found if request_id in self._running.left_open]:
            self._records.left_as_they_are(left)

    def _takings_up(self, request_id: RequestId) -> int:
        log = self._records.request(request_id)
        return 0 if log is None else log.takings_up

    def _one(self, request_id: RequestId) -> None:
        log = self._records.request(request_id)
        if log is None or log.end is not None:
            return
        try:
            started = started_of(log)
            if self._fails:
                raise CannotGoOn(FAILS_ON_CRASH)
            self._go_on(log, started)
        except CannotGoOn as why:
            if log.damage:
                self._set_aside(log)
            self._end(log, RequestEnd(self._outbox.wall_clock(), None, failure=str(why)))
            logger.warning("request %s does not go on: %s", request_id, why, extra={"request_id": request_id})
        except UsageError as why:
            self._leave_open(log, str(why))
            logger.warning("request %s is left open: %s", request_id, why, extra={"request_id": request_id})

    def _end(self, log: RequestLog, end: RequestEnd) -> None:
        write = Write(log.request_id, len(log.records) + 1, (), ends=end)
        self._outbox.hand_over(AppendWrite(write, None), is_last=True)

    def _set_aside(self, log: RequestLog) -> None:
        found = SetAside(f"request {log.request_id}", log.damage, self._outbox.wall_clock(), log.request_id)
        try:
            self._records.set_aside(found)
        except RuntimeFailure as error:
            logger.warning("the damage of request %s is not in the journal's report: %s", log.request_id, said(error))

    def _leave_open(self, log: RequestLog, why: str) -> None:
        begins = log.begins
        self._running.left_open[log.request_id] = OpenRequest(
            log.request_id,
            begins.conversation_id,
            begins.model,
            begins.begun_at,
            OpenState.LEFT_OPEN,
            waits_for=why,
            was_taken_up=True,
        )

    def _go_on(self, log: RequestLog, started: RequestStarted) -> None:
        """Raises CannotGoOn; UsageError where its model cannot be asked here."""
        has = Available(self._wiring.offered_tools, self._outputs, self._running.has_approver)
        form = check_needs(started, log.begins.needs, has)
        needs = log.begins.needs
        asked = self._wiring.taken_up(started, needs.counter, is_direct=needs.direct is not None)
        running = self._running
        found = rebuilt(log, asked.model.count_tokens, running.system.now(), self._outbox.wall_clock())
        if found.finish is not None:
            self._end(log, RequestEnd(self._outbox.wall_clock(), found.finish))
            return
        # The context in which it was asked is gone with its process.
        context = Context()
        checker = OutputChecker(form, running.check_threads, context) if form is not None else None
        question = _question(log, found, asked, checker, context)
        answer = Answer(found.conversation, question.tag, started.options.timeout_seconds, checker, running.post)
        for seen in found.told:
            answer(seen)
        found.conversation.take(log.request_id, found.recorded, answer)
        # It is read along, for the followers of the process that has ended will come back.
        feed = Following(running, self._outputs).feed(answer, answer)
        feed.begins_at(FeedStart(found.taken_up.number))
        opened = StartedRequest(
            running, question, asked.model, answer, feed, log.begins.begun_at, log.begins.needs, found, feed=feed
        )
        put_again = self._questions_of(found)  # before its actor has the session, and changes it
        try:
            running.begin(opened)
        except kernel.NameTaken:
            raise UsageError("a new request of this process has the same id, and must end first") from None
        if self._questions is not None:
            for each in put_again:
                self._questions.put(each)

    def _questions_of(self, found: Rebuilt) -> list[UserQuestion]:
        """The questions of `ask_user` that were put by the process that has ended."""
        session, questions = found.taken_up.session, self._questions
        put: list[UserQuestion] = []
        for tag, state in session.calls.items():
            call = session.call_of(tag)
            if questions is not None and state is CallState.DEFERRED and call.name == questions.tool.name:
                said_then = orjson.loads(call.arguments)
                put.append(UserQuestion(tag, said_then["question"], tuple(said_then.get("choices") or ())))
        return put


def _question(
    log: RequestLog,
    found: Rebuilt,
    asked: Asked,
    checker: OutputChecker[object] | None,
    context: Context,
) -> Question:
    started = found.taken_up.started
    return Question(
        started.tag,
        started.history,
        started.user,
        started.options,
        started.at,
        context,
        routes=asked.routes,
        metadata=log.begins.metadata,
        compacted=started.compacted,
        checker=checker,
    )
