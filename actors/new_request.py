"""From a question to its request: what is wrong with it is found, what it needs is read, it begins, and is kept.

Reading may wait for a disk or a server: the journal knows the ids of earlier requests, the editor what became of staged
edits, and of a model that is asked for the first time the adapter is loaded. On an event loop it is done on a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, copy_context
from functools import partial
from typing import Final, Generic, TypeVar, cast

from msgspec.structs import replace
from typing_extensions import TypeForm

from callboard.actors import kernel
from callboard.actors.host_process import BEGINS_SECONDS, apart, start_apart
from callboard.actors.journal.journal_records import Needs, RequestLog
from callboard.actors.journal.recovery import needs_of
from callboard.actors.kernel.reply import Reply as AskReply
from callboard.actors.requests.asking import AskOptions, Prompt, check_names, fields_of, identity_of, user_message
from callboard.actors.requests.backstop import Watch
from callboard.actors.requests.client_tools import WENT_ON, CallResults
from callboard.actors.requests.conversation import HeldAnswer
from callboard.actors.requests.direct_calls import direct_options
from callboard.actors.requests.output_checks import OutputChecker
from callboard.actors.requests.outputs import output_type
from callboard.actors.requests.replies import Answer, EventReader, Question, Reply, Stream, SyncStream, T, Unheld
from callboard.actors.requests.request_feed import RequestFeed
from callboard.actors.requests.session_messages import Subscriber
from callboard.actors.running import Acceptance, StartedRequest, StartedRuntime, tag_of
from callboard.actors.tools.context import context_of_asker
from callboard.actors.wiring import Asked, Wiring
from callboard.protocol.content import ToolCall, UserMessage
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import RequestId

R = TypeVar("R")
Follow = Callable[[Answer[object], Subscriber], RequestFeed]
"""Makes the feed of a request. The second also hears of it."""


CANCELLED: Final = "cancelled by the caller"


class IdTaken(UsageError):
    """Another request has this id."""


class NewRequest(Generic[T]):
    """One question.

    Its asker's thread may be interrupted between any two instructions, by what a signal handler raises. It finds what
    is wrong with the question, and posts: `begin`, and `leave` where it waits no longer. All that lasts is made on
    callboard's own threads.
    """

    def __init__(
        self,
        running: StartedRuntime,
        wiring: Wiring,
        prompt: Prompt,
        options: AskOptions,
        output: TypeForm[T] | None = None,
        direct: ToolCall | None = None,
    ) -> None:
        """`direct`: the call that is run without a model. Raises UsageError for what is wrong, as far as nothing has to
        be read; RuntimeFailure when overloaded."""
        self._running, self._wiring, self._direct = running, wiring, direct
        self._prompt, self._options = prompt, options
        if options:
            check_names(options)
        self._user = user_message(prompt)
        if direct is None:
            wiring.check_named(options)
        self._given_id, self._conversation = identity_of(options)
        if self._given_id not in running.requests:  # one that is asked again is no refused one
            self._check_room()
        self._form = output_type(output) if output is not None else None
        self._at = running.system.now()
        timeout = {"timeout": options["timeout"]} if "timeout" in options else {}
        seconds = fields_of(timeout, wiring.model.options).get(
            "timeout_seconds", wiring.settings.request_timeout_seconds
        )
        checker = None
        if self._form is not None:
            checker = OutputChecker(self._form, running.check_threads, copy_context())
        tag = tag_of(RequestId(self._given_id or uuid.uuid4().hex))
        self.answer = Answer[T](self._conversation, tag, cast(float, seconds), checker, running.post)
        self.request_id = tag.request_id
        self._asked: Asked | None = None
        self._asker = Context()
        self._acceptance: Acceptance | None = None
        self._is_entering = False
        self._is_left = False
        self.has_begun = False
        self.entered = AskReply[None]()
        """It has begun, or does not begin; then `refused` says why."""
        self.refused: Exception | None = None
        self.why_cancelled: str | None = None
        """By someone who knows its id."""

    def _check_room(self) -> None:
        running, most = self._running, self._wiring.settings.max_concurrent_requests
        if running.is_draining and self not in running.beginning:
            raise RuntimeFailure("draining: this runtime takes no new requests, since it is about to stop")
        if len(running.sessions) >= most:
            raise RuntimeFailure(f"overloaded: {len(running.sessions)} requests are running; try again later")

    # -- what it needs

    @property
    def is_quick(self) -> bool:
        """Is `_check` done without waiting for anything? Raises UsageError for a model of no provider."""
        wiring = self._wiring
        knows_model = wiring.knows_model_of(self._options)
        reads_journal = bool(self._given_id) and self._running.records is not None
        return knows_model and not reads_journal and not self._has_staged and self._left_before is None

    @property
    def _has_staged(self) -> bool:
        edits, conversation = self._wiring.edits, self._conversation
        return edits is not None and bool(conversation.messages) and edits.has_staged(conversation.requests)

    @property
    def _left_before(self) -> HeldAnswer | None:
        """The answer of the conversation's cancelled request, which has not quite ended."""
        before = self._conversation.held_by
        return before if before is not None and before.is_left else None

    def _check(self) -> None:
        """Find what it needs, once its conversation has no cancelled request. Raises UsageError."""
        if (before := self._left_before) is not None:
            before.wait_until_over()
        form, conversation, request_id = self._form, self._conversation, self.request_id
        asked = self._wiring.asked(self._user, self._options, self._at, form.spec if form is not None else None)
        running, records = self._running, self._running.records
        if self._given_id and request_id in running.requests:
            raise IdTaken(f"a request with the id {request_id!r} is running; choose another")
        if self._given_id and records is not None and records.request(request_id) is not None:
            raise IdTaken(f"the journal has a request with the id {request_id!r} already; choose another")
        self._gone_on(asked)
        conversation.check_free()
        self._asked = asked

    def _gone_on(self, asked: Asked) -> Asked:
        """With what the conversation's open turn comes to. Raises UsageError."""
        conversation = self._conversation
        if isinstance(self._prompt, CallResults):
            return replace(asked, added=conversation.going_on(self._prompt))
        if conversation.open_turn is not None:
            return replace(asked, added=conversation.going_on(None), notes=(*asked.notes, WENT_ON))
        return asked

    def _take(self) -> None:
        """Take the conversation. Raises UsageError."""
        conversation, request_id = self._conversation, self.request_id
        assert self._asked is not None
        self._asked = asked = self._gone_on(self._asked)
        conversation.take(request_id, answer=self.answer)
        try:
            if asked.added:
                conversation.close_turn(asked.added, request_id)
            if self._wiring.edits is not None and self._has_staged:
                for known, text in self._wiring.edits.untold(conversation.requests).items():
                    conversation.told(text, f"edits/{known}")
        except BaseException:
            conversation.release(self.request_id)
            raise

    # -- its beginning

    def begin(self, subscriber: Subscriber, *, is_waiting: bool = False) -> None:
        """Begin it soon; what is wrong then is the answer's error. `is_waiting`: this thread will wait for the answer,
        with the event loop that runs on it. Raises UsageError, and nothing begins, where nothing has to be read to find
        it. The one place where an asker's thread leaves something: an entry of `beginning`, then the way to it."""
        running, is_quick = self._running, self.is_quick
        if is_quick:
            self._check()
        self._asker = context_of_asker(_running_loop(), is_waiting=is_waiting)
        running.beginning[self] = None
        if is_quick:
            running.system.scheduler.call_soon(partial(self._enter, subscriber))
        else:
            look = start_apart(partial(self._enter, subscriber))
            running.system.scheduler.call_at(running.system.now() + BEGINS_SECONDS, look)
        if running.is_over:  # its loop runs nothing more
            running.refuse_beginning()

    def _enter(self, subscriber: Subscriber) -> None:
        """On a thread of callboard's own: take the conversation, and start the session."""
        running = self._running
        is_known = self._asked is not None and running.system.scheduler.is_current()
        if is_known and (self._has_staged or self._left_before is not None):
            self._asked = None  # since it was looked at: now something has to be read, or waited for
            start_apart(partial(self._enter, subscriber))
            return
        self._is_entering = True
        self._is_left = self._is_left or self.answer.is_left
        try:
            if self._asked is None and not self._is_left:
                self._check()
            if not (self._is_left or self.answer.future.done):
                self._take()
                self._start(subscriber)
                self.has_begun = True
        except Exception as error:  # noqa: BLE001 - whatever it is, the asker gets it
            self.refused = error
            self.answer.refuse(error)
        finally:
            running.beginning.pop(self, None)
        if self._is_left:
            self._leave()
        elif self.why_cancelled is not None:
            running.cancel(self.request_id, self.why_cancelled)
        self.entered.answer(None)

    def leave(self) -> None:
        """Its asker waits no longer: end it, or let it not begin. From any thread, in the midst of anything."""
        self.answer.is_left = True
        if not self.answer.future.done:
            self._running.system.scheduler.call_soon(self._leave)

    def _leave(self) -> None:
        self._is_left = True  # before the look: who enters now looks behind it
        if self.has_begun:
            self._running.cancel(self.request_id, CANCELLED)
        elif not self._is_entering or self not in self._running.beginning:
            self._running.beginning.pop(self, None)
            self.answer.refuse(RuntimeFailure(f"{CANCELLED}, before the request began"))

    def begin_stream(self, cancel: Callable[[RequestId, str], object]) -> Stream[T]:
        """What is wrong and has to be read for is raised by the stream. `cancel` also reaches a request that has not
        begun."""
        if not self.is_quick:
            fields_of(self._options, self._wiring.model.options)  # raises for a value that is none of its option
        stream = Stream(self.answer, cancel)
        try:
            self.begin(stream)
        except BaseException:
            stream.watch.cancel()
            self.leave()
            raise
        return stream

    def begin_stream_sync(self, cancel: Callable[[RequestId, str], object]) -> SyncStream[T]:
        """Likewise, once it has begun. Raises what is wrong."""
        with self._unless_interrupted():
            stream = SyncStream(self.answer, cancel)
            self.answer.future.on_done(partial(self.entered.answer, None))
            self.begin(stream, is_waiting=True)
            while not self.entered.wait(self.answer.backstop.look_seconds):
                self.answer.look()
            if self.refused is not None:
                raise self.refused
            return stream

    def _start(self, subscriber: Subscriber) -> None:
        """Start its session. Raises RuntimeFailure, and UsageError for an id that has a request running."""
        running, answer, asked, conversation = self._running, self.answer, self._asked, self._conversation
        direct = self._direct
        assert asked is not None
        reader = subscriber if isinstance(subscriber, EventReader) else None
        if reader is not None:
            subscriber = Unheld(reader)
        if direct is not None:
            asked = replace(asked, options=direct_options(asked.options))
        question = Question(
            answer.tag,
            conversation.messages,
            asked.user,
            asked.options,
            asked.at,
            self._asker,
            subscriber is not answer,
            asked.routes,
            asked.tools,
            asked.notes,
            asked.metadata,
            conversation.compacted,
            answer.checker,
        )
        options = question.options
        needs = Needs()
        if running.outbox is not None:
            counter = asked.model.counter
            needs = needs_of(options, asked.tools.own, counter, has_approver=running.has_approver, direct=direct)
        elif direct is not None:
            needs = Needs(direct=direct)
        try:
            self._check_room()  # others have begun since
            begun_at = time.time() - running.system.now() + asked.at
            feed = subscriber if isinstance(subscriber, RequestFeed) else None
            opened = StartedRequest(running, question, asked.model, answer, subscriber, begun_at, needs, feed=feed)
            opened.acceptance = self._acceptance
            running.begin(opened)
        except BaseException as error:
            conversation.release(self.request_id)
            if isinstance(error, kernel.NameTaken):
                request_id = answer.tag.request_id
                raise IdTaken(f"a request with the id {request_id!r} is running; choose another") from None
            if isinstance(error, kernel.ActorDeadError):
                raise running.failure or RuntimeFailure("this runtime is stopping") from error
            raise
        if reader is not None:
            reader.has_begun = True
        if self._acceptance is not None and running.outbox is None:
            self._acceptance.counts()

    # -- one that no one waits for

    async def begun(self, follow: Follow) -> str:
        """Start it with a feed; its id, once it is kept. Where another has the id and the same question, that one's.

        Where the waiting task is cancelled, so is the request: no one knows of it. Raises IdTaken for the id of another
        question, and what it ended with, where it did not begin."""
        try:
            return await self._unless_cancelled(self._id_of_own(follow))
        except IdTaken as taken:
            acceptance = await asyncio.to_thread(self._asked_again, taken)
        return await self._id_once_known(acceptance)

    async def _id_of_own(self, follow: Follow) -> str:
        return await self._id_once_known(self._begin(follow))

    async def _id_once_known(self, acceptance: Acceptance | None) -> str:
        if acceptance is not None:
            watch = Watch(acceptance.answer.backstop, acceptance.answer.expire)
            try:
                await acceptance.known
            finally:
                watch.cancel()
        return self._id_of(acceptance)

    def begun_sync(self, follow: Follow) -> str:
        """`begun`, for code without an event loop."""
        try:
            with self._unless_interrupted():
                return self._id_when_known(self._begin(follow))
        except IdTaken as taken:
            acceptance = apart(partial(self._asked_again, taken))
        return self._id_when_known(acceptance)

    def _id_when_known(self, acceptance: Acceptance | None) -> str:
        if acceptance is not None:
            while not acceptance.known.wait(acceptance.answer.backstop.look_seconds):
                acceptance.answer.look()
        return self._id_of(acceptance)

    def _begin(self, follow: Follow) -> Acceptance:
        self._acceptance = acceptance = Acceptance(cast("Answer[object]", self.answer))
        self.begin(follow(acceptance.answer, acceptance))
        return acceptance

    def _asked_again(self, taken: IdTaken) -> Acceptance | None:
        """Of the request that has the id; None where it is kept. Raises `taken` where its question is another one."""
        running, request_id = self._running, self.answer.tag.request_id
        opened = running.requests.get(request_id)
        acceptance = opened.acceptance if opened is not None else None
        if opened is not None and (acceptance is not None or running.records is None):
            user: UserMessage | None = opened.question.user
        else:
            log = running.records.written_request(request_id) if running.records is not None else None
            user = _question_of(log) if log is not None else None
        if user != self._user:
            raise taken
        return acceptance

    def _id_of(self, acceptance: Acceptance | None) -> str:
        if acceptance is not None and not acceptance.has_begun:
            acceptance.answer.future.result()
        return self.answer.tag.request_id

    # -- its end

    async def ended(self, subscriber: Subscriber) -> Reply[T]:
        """Begin it, and wait for its end. Where the waiting task is cancelled, so is the request, and it is over when
        that raises."""
        return await self._unless_cancelled(self._end_of(subscriber))

    async def _end_of(self, subscriber: Subscriber) -> Reply[T]:
        self.begin(subscriber)
        return await self.answer.wait_async()

    def ended_sync(self) -> Reply[T]:
        """`ended`, for code without an event loop: Ctrl-C, and whatever else a signal handler raises, cancels it."""
        with self._unless_interrupted():
            self.begin(self.answer, is_waiting=True)
            return self.answer.wait()

    async def _unless_cancelled(self, waiting: Awaitable[R]) -> R:
        try:
            return await waiting
        except BaseException as error:
            # A coroutine that was dropped or closed (GeneratorExit) may not wait, and Ctrl-C should not.
            self.leave()
            if isinstance(error, asyncio.CancelledError):
                await self.answer.until_over()
            raise

    @contextlib.contextmanager
    def _unless_interrupted(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.leave()
            self.answer.wait_until_over()
            raise


def _question_of(log: RequestLog) -> UserMessage | None:
    """What it was asked with; None where that is not known."""
    if log.records and isinstance(started := log.records[0].event, RequestStarted):
        return started.user
    return next((each for _, each in log.messages if isinstance(each, UserMessage)), None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
