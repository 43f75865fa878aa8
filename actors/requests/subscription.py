"""How a request's events get from the loop thread to whoever asked: a future for an answer, a stream for all of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable
from concurrent.futures import Future

from callboard.actors.kernel import Down
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.reply import Reply, failure_of, reply_of
from callboard.actors.requests.request_session import Seen
from callboard.protocol.commands import AskApproval, Finish, Note, RunTool
from callboard.protocol.content import Message
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.events import ModelFailed, ModelStreamed, RequestStarted, ToolCallEnd, ToolCallStarted
from callboard.protocol.ids import RequestId
from callboard.protocol.model import Error, StreamEvent

Shown = RequestStarted | RunTool | ToolCallStarted | ToolCallEnd | AskApproval | Note
"""Of what a session sees, what its reader sees as it is."""

StreamItem = Shown | StreamEvent | Reply
"""What `Runtime.stream` gives: RequestStarted with the tag, the model's events, what happens to its calls, notes, and
the Reply last."""

#: Events a slow consumer may leave unread: about a hundred full answers. The request goes on without it.
MAX_UNREAD_EVENTS = 200_000


class Answer:
    """The end of one request, once, whatever becomes of its session. Called on the loop thread; awaited anywhere."""

    def __init__(self, conversation: Conversation) -> None:
        self.future: Future[Reply] = Future()
        # Running from the start: a waiter that goes away must not settle it, only the request's end does.
        self.future.set_running_or_notify_cancel()
        self.conversation = conversation
        self._messages: tuple[Message, ...] = ()
        self._model_error: Error | None = None
        self._finish: Finish | None = None

    def record(self, messages: tuple[Message, ...]) -> None:
        """A finished step."""
        self._messages += messages
        self.conversation.record(messages)

    def __call__(self, seen: Seen) -> None:
        """The session's side."""
        if isinstance(seen, ModelFailed):
            self._model_error = seen.error
        elif isinstance(seen, Finish):
            self._finish = seen

    def session_ended(self, down: Down) -> bool:
        """The session has ended, and so its name is free: now whoever waits is told. True if the request was lost."""
        self.conversation.release()
        if self._finish is not None:
            self._settle(self._finish)
            return False
        why = "the runtime was stopped" if down.error is None else f"its session was lost: {down.error!r}"
        self.future.set_exception(RuntimeFailure(f"the request has no answer, since {why}"))
        return True

    def _settle(self, finish: Finish) -> None:
        reply = reply_of(finish, self._messages)
        failure = failure_of(reply, self._model_error)
        if failure is None:
            self.future.set_result(reply)
        else:
            self.future.set_exception(failure)


class Stream(AsyncIterable[StreamItem]):
    """One request's events, as they happen, and its Reply last. Iterate it once.

    A request that ends without an answer raises what `Runtime.ask` would. Leaving early cancels the request.
    """

    def __init__(self, answer: Answer, cancel: Callable[[RequestId, str], object], request_id: RequestId) -> None:
        self.request_id = request_id
        self.answer = answer
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._unread: list[StreamItem] = []
        self._wake = asyncio.Event()
        self._given_up = False
        answer.future.add_done_callback(lambda _: self._notify())

    def __call__(self, seen: Seen) -> None:
        """The session's side, on the loop thread."""
        with self._lock:
            if isinstance(seen, ModelStreamed):
                self._unread.extend(seen.events)
            elif isinstance(seen, Shown):
                self._unread.append(seen)
            unread = len(self._unread)
        self.answer(seen)
        if unread > MAX_UNREAD_EVENTS and not self._given_up:
            self._give_up(f"{MAX_UNREAD_EVENTS} of its events are unread")
        if unread:
            self._notify()

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the consumer's loop is closed: nobody will read on
            self._give_up("the event loop of its reader is closed")

    def _give_up(self, why: str) -> None:
        """Nobody will read on: end the request, once."""
        if not (self._given_up or self.answer.future.done()):
            self._given_up = True
            self._cancel(self.request_id, why)

    async def __aiter__(self) -> AsyncIterator[StreamItem]:
        try:
            ended = False
            while not ended:
                await self._wake.wait()
                self._wake.clear()
                ended = self.answer.future.done()
                with self._lock:
                    items, self._unread = self._unread, []
                for item in items:
                    yield item
            yield self.answer.future.result(timeout=0)
        finally:
            self._give_up("its reader has left")
