"""What comes of a question: the reply, a stream of events, and how both come back from the loop thread.

The answer of a request settles exactly once: when its session has ended, or, as a backstop outside of the actors, when
its asker finds the request lost (backstop.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import weakref
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from contextvars import Context
from functools import partial
from sys import getsizeof
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, cast

from msgspec import Struct, field
from msgspec.structs import replace
from typing_extensions import TypeVar

from callboard.actors.kernel import DependencyLost, Down, ExitReason
from callboard.actors.kernel import reply as on_loop
from callboard.actors.models.llm_manager import Route
from callboard.actors.requests.backstop import Backstop, Post, Watch
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.output_checks import ChecksAnswers, OutputChecker
from callboard.actors.requests.partial_outputs import PartialOutput, PartialReader
from callboard.actors.requests.tool_selection import ToolSelection
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.code_fences import CodeFence, MalformedFence, parse_fences
from callboard.protocol.commands import (
    WENT_WELL,
    AskApproval,
    CallOutside,
    ClearTimer,
    Command,
    Finish,
    Note,
    Outcome,
    ReportFailure,
    RunTool,
    SetTimer,
)
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Citation,
    Media,
    Message,
    Text,
    ToolCall,
    UserMessage,
)
from callboard.protocol.errors import OutcomeUnknown, ProviderError, RuntimeFailure, UsageError, said, with_advice
from callboard.protocol.events import (
    CALL_FAILS,
    Event,
    ModelFailed,
    ModelStreamed,
    RequestStarted,
    ToolCallDeferred,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStarted,
)
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.model import Error, FinishReason, StreamEvent, TextDelta, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.reports import StepReport
from callboard.protocol.tools import ToolFailure

if TYPE_CHECKING:
    from callboard.actors import wrong_calls
else:
    wrong_calls = lazy_module("callboard.actors.wrong_calls")

#: A cancelled request has ended by then: its tools are told to stop and its end is written; mostly it takes 10 ms.
OVER_SECONDS: Final = 5.0
#: Failures that a reply holds: with their tracebacks at most 2 MB.
MAX_FAILURES: Final = 100
#: What a reader of a stream may leave unread, in bytes of memory: some hundred full answers.
MAX_UNREAD_BYTES: Final = 16 * 1024 * 1024
#: At the end: what a signal handler raises on the waiter's loop may come in one of them, and end that.
WAKE_UPS: Final = 2
#: Why a request ends whose reader does not read on.
LEFT: Final = "its reader has left"
#: An event without its texts, in bytes.
_EVENT_BYTES: Final = 200
STOPPING: Final = "the runtime is stopping"
"""Why a request was cancelled whose runtime stops."""
MAY_GO_ON: Final = (
    "the journal may have it all the same, and a later start may go on with it: ask again with request_id={0!r}, which "
    "does nothing twice, or look with result({0!r})"
)
"""Of a request that ends here, and may not have ended in the journal."""
SUSPENDED: Final = f"{STOPPING}; the request is kept in the journal, and a runtime that starts with it goes on with it"
"""Likewise, where there is a journal: the request has not ended there."""

T = TypeVar("T", default=str)
"""What `output=` asks for."""
Item = TypeVar("Item")
T_co = TypeVar("T_co", default=str, covariant=True)
Seen = Event | Command | ToolProgressed
"""What a session shows of its request."""
Shown = (
    RequestStarted
    | RunTool
    | ToolCallStarted
    | ToolProgressed
    | ToolCallDeferred
    | ToolCallEnd
    | AskApproval
    | ReportFailure
    | CallOutside
    | Note
)
"""Of what a session shows, what the reader of a stream sees as it is."""


class Question(Struct, frozen=True):
    """What a request is about."""

    tag: Tag
    history: tuple[Message, ...]
    user: UserMessage
    options: RequestOptions
    asked_at: float
    """By the runtime's clock: the request's time runs from here."""
    asker: Context
    """The asker's context. Enter a copy of it, since a context can be entered only once at a time."""
    is_read_along: bool = True
    """Is the answer read while it comes? If not, a turn reaches the session in one piece, at a sixth of the
    cost of 50 deltas, and the subscriber hears only how it ended; a cancelled one leaves no partial text behind."""
    routes: tuple[Route, ...] = ()
    """The models to ask in turn; (): the LLM manager knows them by the name."""
    tools: ToolSelection = ToolSelection()
    notes: tuple[str, ...] = ()
    """What should be known of how it is asked."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """For log records and spans."""
    compacted: Compacted = Compacted()
    """What earlier requests have done to the history."""
    checker: ChecksAnswers | None = None
    """Of a question with an output: checks its answers."""


class Reply(Struct, Generic[T_co], frozen=True):
    """The answer to one request. `print(reply)` shows its text; an empty line parts OpenAI's commentary from it."""

    text: str
    usage: Usage | None
    """As the providers reported it: nothing is estimated. None where a model call did not say what it used."""
    request_id: RequestId
    outcome: Outcome
    steps: tuple[StepReport, ...]
    """The model calls made, those that were asked again included, each with its time, usage and tool calls."""
    cost: float | None
    """US dollars; 0 for models that are free, None where the price of one that answered is not known."""
    messages: tuple[Message, ...]
    """What this request added to the conversation: the question, the calls, their results and the answer."""
    output: T_co
    """The object that was asked for with `output=`; without that, the text. None in the reply of an error, where an
    object was asked for."""
    reason: str = ""
    """Why it was not answered, or not to the end, in one sentence."""
    finish_reason: FinishReason = FinishReason.OTHER
    """Why the model stopped: `length` for an answer that was cut. `other` where the last model call had no turn."""
    notes: tuple[str, ...] = ()
    """What should be known of how the answer came to be, in the order in which it happened: retries, other models that
    were asked, tools or options that the model does not take, a cut."""
    failures: tuple[ToolFailure, ...] = ()
    """Calls without a result (failed, timed out, cancelled, not run) in the order of their ends, the last 100: with
    `traceback`, which the model does not see."""

    def __str__(self) -> str:
        return self.text

    if not TYPE_CHECKING:  # a type checker that saw it would accept every name

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise wrong_calls.no_part(name, dir(type(self)))

    outside_calls: tuple[ToolCall, ...] = ()
    """With Outcome.CALLS_OUTSIDE: the calls of the asker's own tools, in the model's order (ClientTool)."""

    @property
    def model(self) -> str:
        """ "provider/model" that gave the last turn: a fallback, perhaps. "" where none came."""
        return next((step.model for step in reversed(self.steps) if step.is_whole and step.is_turn), "")

    @property
    def citations(self) -> tuple[Citation, ...]:
        """What the answer rests on, in its order; `start` and `end` are places in `text`."""
        found: list[Citation] = []
        at = 0
        for part in self._answer_parts():
            if isinstance(part, Text):
                found += [citation.moved_by(at) for citation in part.citations]
                at += len(part.text)
        return tuple(found)

    @property
    def media(self) -> tuple[Media, ...]:
        """The pictures, sounds and files of the answer."""
        return tuple(part for part in self._answer_parts() if isinstance(part, Media))

    @property
    def fences(self) -> tuple[CodeFence | MalformedFence, ...]:
        """The code that the answer shows with its place in a file, in the form in which the tools show it. One that was
        begun and not written rightly is a MalformedFence, which says what is wrong with it."""
        return tuple(parse_fences(self.text))

    def _answer_parts(self) -> tuple[AssistantPart, ...]:
        last = self.messages[-1] if self.messages else None
        return last.parts if isinstance(last, AssistantMessage) else ()


class RequestEnded(RuntimeFailure):
    """The request ended without an answer: cancelled, out of time, over a limit. `reply` holds what there was."""

    def __init__(self, reply: Reply[object]) -> None:
        self.reply = reply
        super().__init__(reply.reason or f"the request ended: {reply.outcome}")


class Unwritten(DependencyLost, RuntimeFailure):
    """What the request did could not be written to the journal."""

    def __init__(self, message: str, ids: Mapping[str, object], *, may_go_on: bool) -> None:
        """`may_go_on`: a later process may, as the journal has something of the request, perhaps."""
        super().__init__(message, ids)
        self.may_go_on = may_go_on


class ModelCallFailed(ProviderError):
    """The model could not be asked. `reply` holds what there was before."""

    def __init__(self, reply: Reply[object], error: Error) -> None:
        self.reply = reply
        message = with_advice(error.kind, error.message)
        super().__init__(error.kind, message, status=error.status, retry_after_seconds=error.retry_after)


def error_of(end: Reply[object], error: Error | None) -> ModelCallFailed | RequestEnded | None:
    """What its asker gets in place of a reply that holds no answer; `error`: why the model could not be asked last."""
    if end.outcome in WENT_WELL:
        return None
    has_turn = bool(end.steps) and end.steps[-1].is_whole
    if end.outcome is Outcome.FAILED and error is not None and not has_turn:
        return ModelCallFailed(end, error)
    return RequestEnded(end)


StreamItem = Shown | StreamEvent | PartialOutput | Reply[T]
"""What `Runtime.stream` gives: RequestStarted with the tag, the model's events, what happens to its calls, notes, with
an output the object so far, and the Reply last."""


def failure_told(seen: object) -> ToolFailure | None:
    """The failed call that this says of: each is said of once, by its event or by what the session reports."""
    return seen.failure if isinstance(seen, (*CALL_FAILS, ReportFailure)) else None


class Answer(Generic[T]):
    """The end of one request, once. The session calls it on the loop thread; it is awaited anywhere."""

    def __init__(
        self,
        conversation: Conversation,
        tag: Tag,
        timeout_seconds: float,
        checker: OutputChecker[T] | None = None,
        post: Post | None = None,
    ) -> None:
        """The request has `timeout_seconds` from now. `checker`: where an output is asked for. `post` runs something on
        the loop of its session."""
        # A Future of the standard library has 12 objects, which are a twentieth of what an open request keeps.
        self.future = on_loop.Reply[Reply[T]]()
        self.checker = checker
        self.conversation = conversation
        self.tag = tag
        self.backstop = Backstop(timeout_seconds, post)
        self._post = post
        self.is_kept = False
        """There is a journal: a later process goes on with what this one leaves open."""
        self.is_left = False
        """Its asker waits no longer: it was cancelled, or soon will be."""
        self._once = Lock()
        self._model_error: Error | None = None
        self._finish: Finish | None = None
        self._notes: list[str] = []
        self._failures: list[ToolFailure] = []

    def __call__(self, seen: Seen) -> None:
        """The session's side."""
        if isinstance(seen, ModelFailed):
            self._model_error = seen.error
        elif isinstance(seen, Note):
            self._notes.append(seen.text)
        elif isinstance(seen, Finish):
            self._finish = seen
        elif isinstance(seen, SetTimer | ClearTimer):
            self.backstop.deadline_moved(seen.at if isinstance(seen, SetTimer) else None)
        elif (failed := failure_told(seen)) is not None:
            self._failures.append(failed)
            del self._failures[:-MAX_FAILURES]

    def session_ended(self, down: Down, why_tree_ended: str = "") -> bool:
        """The session has ended, and so its name is free: settle. True if its request ended without a Finish."""
        end = self._finish
        if end is None and why_tree_ended:
            self._settle(self._no_answer(why_tree_ended, may_go_on=self.is_kept))
        elif end is None and isinstance(down.error, RuntimeFailure):
            may_go_on = isinstance(down.error, Unwritten) and down.error.may_go_on
            failure = self._no_answer(said(down.error), may_go_on=may_go_on)
            failure.__cause__ = down.error.__cause__ or down.error
            self._settle(failure)
        elif end is None and (down.error is not None or down.reason is ExitReason.KILLED):
            why = down.reason.value if down.error is None else said(down.error)
            self._settle(RuntimeFailure(f"the request has no answer, since its session was lost: {why}"))
        else:
            end = end or Finish(self.tag, Outcome.CANCELLED, "", Usage(), 0.0, (), STOPPING)
            if why_tree_ended and end.reason.startswith(STOPPING):
                end = replace(end, reason=f"{end.reason}: {why_tree_ended}")
            self._settle(self._reply(end))
        return self._finish is None

    def _no_answer(self, why: str, *, may_go_on: bool) -> RuntimeFailure:
        told, request_id = f"the request has no answer: {why}", self.tag.request_id
        if not may_go_on:
            return RuntimeFailure(told)
        return OutcomeUnknown(f"{told}; {MAY_GO_ON.format(request_id)}", request_id)

    def _reply(self, end: Finish) -> Reply[T]:
        checker, is_taken = self.checker, end.outcome is Outcome.ANSWERED
        output: object = end.text if checker is None else checker.taken(end.text) if is_taken else None
        return Reply(
            end.text,
            end.usage,
            self.tag.request_id,
            end.outcome,
            end.steps,
            end.cost,
            self.conversation.of_request,
            cast(T, output),  # without a checker T is str
            end.reason,
            end.finish_reason,
            tuple(self._notes),
            tuple(self._failures),
            end.open_turn.outside if end.open_turn is not None else (),
        )

    def expire(self) -> None:
        """The backstop: nothing has ended the request in time."""
        late = "the request has no answer long after its deadline, or while it only waited: callboard's loop is blocked"
        self._settle(OutcomeUnknown(f"{late}, or its actors were lost", self.tag.request_id))

    def _settle(self, end: Reply[T] | RuntimeFailure) -> None:
        if not self._once.acquire(blocking=False):
            return
        if isinstance(end, Reply):  # here, since later another request may have the conversation
            self.conversation.leave_open(self._finish.open_turn if self._finish is not None else None)
        self.conversation.release(self.tag.request_id)
        error = end if isinstance(end, RuntimeFailure) else error_of(end, self._model_error)
        if error is not None:
            self.future.fail(error)
        else:
            self.future.answer(end)

    def refuse(self, error: Exception) -> None:
        """The request does not begin: its asker gets this."""
        if self._once.acquire(blocking=False):
            self.future.fail(error)

    def later(self, run: Callable[[], object]) -> None:
        """Run it on callboard's loop, if that still runs. For code that may take no lock, since the collection of
        garbage calls it."""
        if self._post is not None:
            with contextlib.suppress(RuntimeError):
                self._post(run)

    def wait(self) -> Reply[T]:
        """Block until the request has ended. Raises what it ended with."""
        while not self.future.wait(self.backstop.look_seconds):
            self.look()
        return self.future.result()

    def look(self) -> None:
        """It has taken a while: end the waiting if the request is lost."""
        if self.backstop.is_lost():
            self.expire()

    async def wait_async(self) -> Reply[T]:
        """`wait`, on the asyncio loop that runs here."""
        watch = Watch(self.backstop, self.expire)
        try:
            await self._ended()
        finally:
            watch.cancel()
        return self.future.result()

    def _ended(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self.future.on_done(partial(_wake, loop, ended))
        return ended

    def wait_until_over(self) -> bool:
        """Block until the cancelled request has ended; False where that takes more than OVER_SECONDS."""
        return self.future.wait(OVER_SECONDS)

    async def until_over(self) -> None:
        """`wait_until_over`, on the asyncio loop that runs here."""
        if not self.future.done:
            await outlast(self._ended())


async def outlast(end: asyncio.Future[Any]) -> None:
    """In a task that was cancelled: wait for this end, OVER_SECONDS at most. A further `cancel()` ends the waiting.

    A scope of anyio cancels its tasks again in each turn of the loop: it is kept out.
    """
    scopes = sys.modules.get("anyio") if "anyio._backends._asyncio" in sys.modules else None
    with contextlib.nullcontext() if scopes is None else scopes.CancelScope(shield=True):
        await asyncio.wait({end}, timeout=OVER_SECONDS)


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    """Tell a waiter of another thread's loop that its answer is there."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: it no longer waits
        for _ in range(WAKE_UPS):
            loop.call_soon_threadsafe(_set, waiter)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # it may have been cancelled
        waiter.set_result(None)


class EventReader(Generic[T]):
    """One request's events on their way to its reader, who may leave MAX_UNREAD_BYTES of them unread."""

    has_begun = False
    """Its request has, and so ends with it."""

    def __init__(self, answer: Answer[T], cancel: Callable[[RequestId, str], object]) -> None:
        self.request_id = answer.tag.request_id
        self.answer = answer
        self._cancel = cancel
        self._partials = None if answer.checker is None else PartialReader(answer.checker.output)
        self._unread: deque[tuple[tuple[StreamItem[T], ...], int]] = deque()
        """What came together, and the bytes of all up to it. Added and taken in one step each: a lock could be kept."""
        self._came_bytes = self._read_bytes = 0
        self._given_up = False
        self._reading = Lock()  # held for good by the first reader

    def __del__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Nothing can read it any more. Takes no lock: garbage is collected on any thread, in the midst of anything."""
        if self.has_begun and not (self._given_up or self.answer.future.done):
            self._given_up = self.answer.is_left = True
            self.answer.later(partial(self._cancel, self.request_id, LEFT))

    def __call__(self, seen: Seen) -> None:
        """The session's side, on the loop thread."""
        self.answer(seen)
        if isinstance(seen, ModelStreamed):
            items: tuple[StreamItem[T], ...] = seen.events
        else:
            items = (seen,) if isinstance(seen, Shown) else ()
        if not items or self._given_up:
            return
        if isinstance(seen, ToolProgressed):
            self._forget_progress(seen.tag)
        self._came_bytes += sum(map(size_of, items))
        self._unread.append((items, self._came_bytes))
        if self._came_bytes - self._read_bytes > MAX_UNREAD_BYTES:
            self._give_up(f"its reader has left {MAX_UNREAD_BYTES / 1024**2:g} MiB of its events unread")
        self._notify()

    def _notify(self) -> None:
        """Wake the reader: there is something to read, or the request has ended."""
        raise NotImplementedError

    def _forget_progress(self, tag: Tag) -> None:
        """Of a call, the latest is enough for one who reads seldom."""
        with contextlib.suppress(IndexError):  # it was read meanwhile
            last = self._unread[-1][0][-1]
            if isinstance(last, ToolProgressed) and last.tag == tag:
                self._unread.pop()
                self._came_bytes -= size_of(last)

    def _begin_reading(self) -> None:
        """Raise UsageError where it was read before: its events are gone, and a second reader would wait for them."""
        if not self._reading.acquire(blocking=False):
            raise UsageError("this stream was read before; read it once, with texts() or without, or ask again")

    def _take(self) -> Iterable[StreamItem[T]]:
        """What was not read yet."""
        items: list[StreamItem[T]] = []
        for _ in range(len(self._unread)):
            with contextlib.suppress(IndexError):  # the session has replaced it by what comes next
                came, self._read_bytes = self._unread.popleft()
                items += came
        return items if self._partials is None else self._partials.follow(items)

    def _end(self) -> Iterator[StreamItem[T]]:
        """What comes last, once the request has ended."""
        reply = self.answer.future.result()
        if self._partials is not None:
            yield from self._partials.last(reply.text)
        yield reply

    def _give_up(self, why: str) -> None:
        """The reader will not read on: end the request, once."""
        self.answer.is_left = True
        if not (self._given_up or self.answer.future.done):
            self._given_up = True
            self._cancel(self.request_id, why)


class Unheld(Generic[T]):
    """The session's way to a reader: only its program holds that, so that the request ends when it is dropped."""

    __slots__ = ("_answer", "_reader")

    def __init__(self, reader: EventReader[T]) -> None:
        self._answer, self._reader = reader.answer, weakref.ref(reader)

    def __call__(self, seen: Seen) -> None:
        (self._reader() or self._answer)(seen)

    def notify(self) -> None:
        """The request has ended."""
        if (reader := self._reader()) is not None:
            reader._notify()


class Stream(EventReader[T], AsyncIterable[StreamItem[T]]):
    """One request's events, as they happen, and its Reply last. Iterate it once, on the loop it was made on.

    A request that ends without an answer raises what `Runtime.ask` would. Leaving early cancels the request.
    """

    def __init__(self, answer: Answer[T], cancel: Callable[[RequestId, str], object]) -> None:
        super().__init__(answer, cancel)
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._is_waking = False
        self.watch = Watch(answer.backstop, answer.expire)
        answer.future.on_done(Unheld(self).notify)

    def _notify(self) -> None:
        ended = self.answer.future.done
        if self._is_waking and not ended:  # it costs a system call, and the one that is under way finds this too
            return
        self._is_waking = True
        try:
            for _ in range(WAKE_UPS if ended else 1):
                self._loop.call_soon_threadsafe(self._woken)
        except RuntimeError:  # the reader's loop is closed: it will not read on
            self._give_up("the event loop of its reader is closed")

    def _woken(self) -> None:
        self._is_waking = False  # before the look: what comes after it needs a wake-up of its own
        self._wake.set()
        if self.answer.future.done:
            self.watch.cancel()

    def texts(self) -> StreamIterator[str]:
        """Only the pieces of the model's text. After a restart (`Restarted`) the text comes again from its start."""
        return StreamIterator(self._texts(), self)

    def __aiter__(self) -> StreamIterator[StreamItem[T]]:
        return StreamIterator(self._items(), self)

    async def _texts(self) -> AsyncGenerator[str, None]:
        async with aclosing(self._items()) as items:
            async for item in items:
                if isinstance(item, TextDelta):
                    yield item.text

    if not TYPE_CHECKING:  # a type checker would take it for iterable

        def __iter__(self) -> object:
            raise TypeError("a Stream is read by `async for`; without an event loop use stream_sync(...)")

    async def _items(self) -> AsyncGenerator[StreamItem[T], None]:
        try:
            ended = False
            while not ended:
                await self._wake.wait()
                self._wake.clear()
                ended = self.answer.future.done
                for item in self._take():
                    yield item
            for item in self._end():
                yield item
        finally:
            self._give_up(LEFT)
            await self.answer.until_over()


class StreamIterator(AsyncIterator[Item]):
    """What is read of a Stream: `async for`, and `aclose` to leave it and wait for the end of its request.

    Where the loop over it is left early, an async generator is closed in some later turn of the event loop, or never
    where that stands still; this object goes at once, and the request with it. Who asks next in the conversation waits
    for the end and is not refused.
    """

    _has_begun = False

    def __init__(self, items: AsyncGenerator[Item, None], reader: EventReader[Any]) -> None:
        self._items = items
        self._reader = reader

    async def __anext__(self) -> Item:  # a coroutine, which holds this object: `await anext(aiter(stream))`
        if not self._has_begun:
            self._reader._begin_reading()  # one that is refused ends nothing: the first reads on
        self._has_begun = True
        return await self._items.__anext__()

    async def aclose(self) -> None:
        await self._items.aclose()

    def __del__(self) -> None:
        if self._has_begun:
            self._reader.drop()


class SyncEvents(Iterable[StreamItem[T]]):
    """Events of a request, read without an event loop."""

    def texts(self) -> Iterator[str]:
        """Only the pieces of the model's text. After a restart (`Restarted`) the text comes again from its start."""
        return (item.text for item in self if isinstance(item, TextDelta))


class SyncStream(EventReader[T], SyncEvents[T]):
    """`Stream`, for code without an event loop. Iterate it once, on any thread.

    Leaving the loop early, or Ctrl-C while it waits, cancels the request; so does closing the iterator.
    """

    def __init__(self, answer: Answer[T], cancel: Callable[[RequestId, str], object]) -> None:
        super().__init__(answer, cancel)
        self._wake = Lock()  # not an Event, which is several steps: held until there is something to read
        self._wake.acquire()
        self._thread_id = 0
        """Of the thread that reads."""
        answer.future.on_done(Unheld(self).notify)

    def _notify(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open already
            self._wake.release()

    def __iter__(self) -> Iterator[StreamItem[T]]:
        self._begin_reading()
        self._thread_id = get_ident()
        try:
            ended = False
            while not ended:
                if not on_loop.acquired(self._wake, self.answer.backstop.look_seconds):
                    self.answer.look()
                ended = self.answer.future.done
                yield from self._take()
            yield from self._end()
        finally:
            self._give_up(LEFT)
            if get_ident() == self._thread_id:  # garbage is collected on any thread, also on callboard's own
                self.answer.wait_until_over()


def size_of(item: StreamItem[object]) -> int:
    """About how much memory an event keeps: its texts, and a little for the rest."""
    if isinstance(item, TextDelta):  # nearly all of them: 0.2 us instead of 2
        return _EVENT_BYTES + getsizeof(item.text)
    texts = (getattr(item, name) for name in type(item).__struct_fields__)
    traceback = item.failure.traceback if isinstance(item, ToolCallFailed) else ""
    return _EVENT_BYTES + len(traceback) + sum(getsizeof(text) for text in texts if isinstance(text, str))
