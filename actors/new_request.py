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
from contextvars import copy_context
from typing import Generic, TypeVar, cast

from msgspec.structs import replace
from typing_extensions import TypeForm

from callboard.actors import kernel
from callboard.actors.journal.journal_records import Needs, RequestLog
from callboard.actors.journal.recovery import needs_of
from callboard.actors.requests.asking import AskOptions, Prompt, check_names, fields_of, identity_of, user_message
from callboard.actors.requests.backstop import Watch
from callboard.actors.requests.client_tools import WENT_ON, CallResults
from callboard.actors.requests.conversation import HeldAnswer
from callboard.actors.requests.direct_calls import direct_options
from callboard.actors.requests.output_checks import OutputChecker
from callboard.actors.requests.outputs import output_type
from callboard.actors.requests.replies import Answer, EventReader, Question, Reply, Stream, T, Unheld, outlast
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


class IdTaken(UsageError):
    """Another request has this id."""


class NewRequest(Generic[T]):
    """One question: `ready` (or `ready_async`), then `start`; `begin_stream` does both."""

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
        self._check_room()
        self._form = output_type(output) if output is not None else None
        self._at = running.system.now()
        self._given_id, self._conversation = identity_of(options)
        timeout = {"timeout": options["timeout"]} if "timeout" in options else {}
        seconds = fields_of(timeout, wiring.model.options).get(
            "timeout_seconds", wiring.settings.request_timeout_seconds
        )
        checker = None
        if self._form is not None:
            checker = OutputChecker(self._form, running.check_threads, copy_context())
        tag = tag_of(RequestId(self._given_id or uuid.uuid4().hex))
        self.answer = Answer[T](self._conversation, tag, cast(float, seconds), checker, running.post)
        self._asked: Asked | None = None

    def _check_room(self) -> None:
        running, most = self._running, self._wiring.settings.max_concurrent_requests
        if running.is_draining:
            raise RuntimeFailure("draining: this runtime takes no new requests, since it is about to stop")
        if len(running.sessions) >= most:
            raise RuntimeFailure(f"overloaded: {len(running.sessions)} requests are running; try again later")

    # -- what it needs

    @property
    def is_quick(self) -> bool:
        """Is `ready` done without waiting for anything? Raises UsageError for a model of no provider."""
        wiring, conversation = self._wiring, self._conversation
        knows_model = wiring.knows_model_of(self._options)
        reads_journal = bool(self._given_id) and self._running.records is not None
        staged = wiring.edits is not None and conversation.messages and wiring.edits.has_staged(conversation.requests)
        return knows_model and not reads_journal and not staged and self._left_before is None

    @property
    def _left_before(self) -> HeldAnswer | None:
        """The answer of the conversation's cancelled request, which has not quite ended."""
        before = self._conversation.held_by
        return before if before is not None and before.is_left else None

    def ready(self) -> None:
        """Find what it needs, and take the conversation, once it has no cancelled request. Raises UsageError."""
        if (before := self._left_before) is not None:
            before.wait_until_over()
        form, conversation, request_id = self._form, self._conversation, self.answer.tag.request_id
        asked = self._wiring.asked(self._user, self._options, self._at, form.spec if form is not None else None)
        running, records = self._running, self._running.records
        if self._given_id and request_id in running.requests:
            raise IdTaken(f"a request with the id {request_id!r} is running; choose another")
        if self._given_id and records is not None and records.request(request_id) is not None:
            raise IdTaken(f"the journal has a request with the id {request_id!r} already; choose another")
        if isinstance(self._prompt, CallResults):
            asked = replace(asked, added=conversation.going_on(self._prompt))
        elif conversation.open_turn is not None:
            asked = replace(asked, added=conversation.going_on(None), notes=(*asked.notes, WENT_ON))
        conversation.take(request_id, answer=self.answer)
        try:
            if asked.added:
                conversation.close_turn(asked.added, request_id)
            if self._wiring.edits is not None and conversation.messages:
                for known, text in self._wiring.edits.untold(conversation.requests).items():
                    conversation.told(text, f"edits/{known}")
        except BaseException:
            conversation.release()
            raise
        self._asked = asked

    async def ready_async(self) -> None:
        """`ready`, without waiting on this loop."""
        if self.is_quick:
            self.ready()
            return
        reading = asyncio.ensure_future(asyncio.to_thread(self.ready))
        try:
            await asyncio.shield(reading)
        except (asyncio.CancelledError, GeneratorExit) as left:
            # The thread cannot be interrupted: what it takes is given back when it is done.
            reading.add_done_callback(self._give_back)
            if isinstance(left, asyncio.CancelledError):
                await outlast(reading)
            raise

    def _give_back(self, reading: asyncio.Future[None]) -> None:
        if not reading.cancelled() and reading.exception() is None:
            self._conversation.release()

    # -- the request

    def begin_stream(self, cancel: Callable[[RequestId, str], object]) -> Stream[T]:
        """At once, where nothing has to be read before; else when that is done. What is wrong then is raised by the
        stream. `cancel` also reaches a request that has not begun."""
        if self.is_quick:
            self.ready()
            stream = Stream(self.answer, cancel)
            self.start(stream)
            return stream
        fields_of(self._options, self._wiring.model.options)  # raises for a value that is none of its option
        stream = Stream(self.answer, cancel)
        self._running.beginning[self.answer.tag.request_id] = None
        stream.beginning = asyncio.ensure_future(self._begin_later(stream))
        return stream

    async def _begin_later(self, stream: Stream[T]) -> None:
        beginning, request_id = self._running.beginning, self.answer.tag.request_id
        why = None
        try:
            await self.ready_async()
            self.start(stream)
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader of the stream gets it
            self.answer.refuse(error)
        except asyncio.CancelledError:
            self.answer.refuse(RuntimeFailure("the task that begins the request was cancelled"))
            raise
        finally:
            why = beginning.pop(request_id, None)
        if why is not None:
            self._running.cancel(request_id, why)

    def start(
        self,
        subscriber: Subscriber,
        feed: RequestFeed | None = None,
        *,
        is_waiting: bool = False,
        acceptance: Acceptance | None = None,
    ) -> None:
        """Start its session. `is_waiting`: this thread will wait for the answer, with the event loop that runs on it.
        Raises RuntimeFailure, and UsageError for an id that has a request running."""
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
            context_of_asker(_running_loop(), is_waiting=is_waiting),
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
            opened = StartedRequest(running, question, asked.model, answer, subscriber, begun_at, needs, feed=feed)
            opened.acceptance = acceptance
            running.begin(opened)
        except BaseException as error:
            conversation.release()
            if isinstance(error, kernel.NameTaken):
                request_id = answer.tag.request_id
                raise IdTaken(f"a request with the id {request_id!r} is running; choose another") from None
            if isinstance(error, kernel.ActorDeadError):
                raise running.failure or RuntimeFailure("this runtime is stopping") from error
            raise
        if reader is not None:
            reader.has_begun = True

    # -- one that no one waits for

    async def begun(self, follow: Follow) -> str:
        """Start it with a feed; its id, once it is kept. Where another has the id and the same question, that one's.

        Where the waiting task is cancelled, so is the request: no one knows of it. Raises IdTaken for the id of another
        question, and what it ended with, where it did not begin."""
        try:
            await self.ready_async()
            own: Acceptance | None = self._begin(follow)
            acceptance = own
        except IdTaken as taken:
            own, acceptance = None, await asyncio.to_thread(self._asked_again, taken)
        if acceptance is not None:
            watch = Watch(acceptance.answer.backstop, acceptance.answer.expire)
            try:
                await (acceptance.known if own is None else self._unless_cancelled(acceptance.known))
            finally:
                watch.cancel()
        return self._id_of(acceptance)

    def begun_sync(self, follow: Follow) -> str:
        """`begun`, for code without an event loop."""
        try:
            self.ready()
            own: Acceptance | None = self._begin(follow)
            acceptance = own
        except IdTaken as taken:
            own, acceptance = None, self._asked_again(taken)
        if acceptance is not None:
            with contextlib.nullcontext() if own is None else self._unless_interrupted():
                while not acceptance.known.wait(acceptance.answer.backstop.look_seconds):
                    acceptance.answer.look()
        return self._id_of(acceptance)

    def _begin(self, follow: Follow) -> Acceptance:
        acceptance = Acceptance(cast("Answer[object]", self.answer))
        feed = follow(acceptance.answer, acceptance)
        self.start(feed, feed=feed, acceptance=acceptance)
        if self._running.outbox is None:
            acceptance.counts()
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

    async def ended(self) -> Reply[T]:
        """Wait for its end. Where the waiting task is cancelled, so is the request, and it is over when that raises."""
        return await self._unless_cancelled(self.answer.wait_async())

    def ended_sync(self) -> Reply[T]:
        """`ended`, for code without an event loop: Ctrl-C, and whatever else a signal handler raises, cancels it."""
        with self._unless_interrupted():
            return self.answer.wait()

    async def _unless_cancelled(self, waiting: Awaitable[R]) -> R:
        try:
            return await waiting
        except asyncio.CancelledError:
            self._cancel()
            await self.answer.until_over()
            raise
        except GeneratorExit:  # its coroutine was dropped or closed, and may not wait: on any thread, in the midst of
            self.answer.is_left = True  # anything, as garbage is collected
            self.answer.later(self._cancel)
            raise

    @contextlib.contextmanager
    def _unless_interrupted(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._cancel()
            self.answer.wait_until_over()
            raise

    def _cancel(self) -> None:
        self._running.cancel(self.answer.tag.request_id, "cancelled by the caller")


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
