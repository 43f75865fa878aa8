"""Runtime: callboard as one object, for async and for sync hosts.

It has one loop thread of its own and touches nothing of the host's: not its event loop, its signal handlers, its
threads or its Pykka actors. Requests come from any thread and any loop; they meet the actors only through refs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Self

from callboard.actors.calls.approvals import ApprovalCallback, Approver, CallbackApprover, NobodyToAsk
from callboard.actors.kernel import (
    ActorDeadError,
    ActorInfo,
    ActorSystem,
    ChildSpec,
    DeadLetter,
    Down,
    LoopScheduler,
    MailboxFull,
    NameTaken,
    Ref,
    Restart,
    Statistics,
    start_child,
)
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.reply import Reply
from callboard.actors.requests.request_session import Question, RequestSession, Subscriber
from callboard.actors.requests.subscription import Answer, Stream
from callboard.actors.settings import Settings
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.telemetry.telemetry import ReadMetrics, RequestLost
from callboard.actors.tools import Tool
from callboard.actors.topology import SESSION_CAPACITY, Tree, build, tree_of
from callboard.actors.wiring import Wiring
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.protocol.events import CancelRequested
from callboard.protocol.ids import MessageId, RequestId, Tag

logger = logging.getLogger("callboard")
# A host that has set up no logging hears nothing from us on its stderr.
logger.addHandler(logging.NullHandler())

#: The tree stands within milliseconds; this long means the machine is not answering.
START_SECONDS = 30.0
#: Everything must have stopped by then; what has not is killed.
SHUTDOWN_SECONDS = 10.0
#: Indexing a million lines takes about a minute; this bounds a broken disk.
REFRESH_TIMEOUT_SECONDS = 3_600.0
#: For somebody who looks for a cause; a late result may hold a megabyte, so these are some hundred at the most.
DEAD_LETTERS_KEPT = 256
#: A snapshot is a copy of some counters; a wait this long means that something holds the loop.
METRICS_TIMEOUT_SECONDS = 5.0


class Runtime:
    """Runs requests under supervision.

        async with Runtime(Settings(model="openai/gpt-5"), tools=[lookup]) as runtime:
            reply = await runtime.ask("What is the weather in Oslo?")

    `tools` are functions decorated with `@tool`. `approve` decides on calls that the policy asks about (sync or async,
    True to allow); without it they are denied. Raises UsageError for bad settings or tools, before anything is started.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        tools: Iterable[Tool] = (),
        *,
        approve: ApprovalCallback | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._approve = approve
        self._parts = Wiring(self.settings, tools)
        self._running: _Running | None = None
        self._changing = Lock()

    # -- life

    def start(self) -> Self:
        """Start the loop thread and the tree; blocks for the few milliseconds that takes."""
        with self._changing:
            if self._running is not None:
                raise UsageError("this runtime is running already")
            self._running = _Running(self._parts, CallbackApprover(self._approve) if self._approve else NobodyToAsk())
        return self

    def stop(self) -> None:
        """Cancel what runs, stop the tree in reverse order of its start, and end the thread."""
        with self._changing:
            running, self._running = self._running, None
            if running is not None and running.process_id == os.getpid():
                running.close()  # in a fork of its process there is nothing to end: threads are not forked

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A start cannot be broken off, and nobody will leave what was not entered: it ends as soon as it stands.
            await asyncio.wait({starting})
            await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    # -- requests

    async def ask(self, text: str, *, conversation: Conversation | None = None, request_id: str = "") -> Reply:
        """Ask, and wait for the answer. Cancelling the waiting task cancels the request.

        `request_id` names the request, so that another task can `cancel` it; "" makes one up.

        Raises ModelCallFailed (a ProviderError) when the model could not be asked, RequestEnded when the request was
        cancelled or ran out of time or budget (both have `.reply`), UsageError for an empty text.
        """
        answer = Answer(conversation or Conversation())
        begun = self._begin(text, request_id, answer)
        try:
            return await asyncio.wrap_future(answer.future)
        except asyncio.CancelledError:
            self.cancel(begun)
            raise

    def ask_sync(self, text: str, *, conversation: Conversation | None = None, request_id: str = "") -> Reply:
        """`ask`, for code without an event loop. Ctrl-C while it waits cancels the request."""
        answer = Answer(conversation or Conversation())
        begun = self._begin(text, request_id, answer)
        try:
            return answer.future.result()
        except KeyboardInterrupt:
            self.cancel(begun)
            raise

    def stream(self, text: str, *, conversation: Conversation | None = None, request_id: str = "") -> Stream:
        """Ask, and see everything as it happens: `async for event in runtime.stream(text)`; the Reply comes last.

        Call it where an event loop runs. Raises what `ask` raises, from the iteration.
        """
        request_id = request_id or _new_request_id()
        try:
            stream = Stream(Answer(conversation or Conversation()), self.cancel, RequestId(request_id))
        except RuntimeError as error:
            raise UsageError("stream() needs a running event loop; without one use ask_sync()") from error
        self._begin(text, request_id, stream.answer, reader=stream)
        return stream

    def cancel(self, request_id: str, reason: str = "cancelled by the caller") -> bool:
        """End a request: its model stream, its running tools, its waiting approvals. False if it is not running."""
        running = self._running
        return running is not None and running.cancel(RequestId(request_id), reason)

    def _begin(self, text: str, request_id: str, answer: Answer, reader: Stream | None = None) -> RequestId:
        if not isinstance(text, str):
            raise UsageError(f"the question must be a str, not {type(text).__name__}")
        if not text.strip():
            raise UsageError("the question is empty; say what you want to know")
        if "/" in request_id:
            raise UsageError(f"the request id {request_id!r} has a slash in it; leave it out")
        running = self._live()
        if running.open_requests >= self.settings.max_concurrent_requests:
            raise RuntimeFailure(f"overloaded: {running.open_requests} requests are running; try again later")
        answer.conversation.take()
        history = answer.conversation.messages
        begun = RequestId(request_id or _new_request_id())
        user, options = UserMessage.of(text), self._parts.options
        question = Question(_tag_of(begun), history, user, options, is_read_along=reader is not None)
        try:
            running.begin(question, answer, reader or answer)
        except NameTaken:
            answer.conversation.release()
            raise UsageError(f"a request with the id {request_id!r} is running; choose another") from None
        except ActorDeadError as error:
            answer.conversation.release()
            raise RuntimeFailure("this runtime is stopping, or has failed too often; start it anew") from error
        return begun

    async def refresh_index(
        self, progress: Callable[[Any], None] | None = None, *, timeout_seconds: float = REFRESH_TIMEOUT_SECONDS
    ) -> Any:
        """Index what is new, changed or gone in the workspace; returns a RefreshSummary.

        Questions are answered meanwhile, from what is there. `progress` is called with index.Progress on the indexing
        thread. Raises UsageError without a workspace or when the index cannot be written.
        """
        self._live()
        search = self._parts.code.search
        if search is None:
            raise UsageError("there is nothing to index: this runtime has no workspace (Settings(workspace=...))")
        return await search.refresh(progress, timeout_seconds=timeout_seconds)

    # -- looking in

    def tools(self) -> tuple[Tool, ...]:
        """What a model is offered: the tools given and those that the workspace adds."""
        self._live()
        return (*self._parts.tools, *self._parts.code.tools)

    def metrics(self) -> Metrics:
        """What was counted since the start: calls, failures, tokens, latencies by tool and model."""
        snapshot = self._live().tree.peers.telemetry.ask(ReadMetrics(), METRICS_TIMEOUT_SECONDS)
        if not isinstance(snapshot, Metrics):
            raise RuntimeFailure("telemetry did not answer with metrics")
        return snapshot

    def tree(self) -> tuple[ActorInfo, ...]:
        """Every actor: state, mailbox depth, restarts, the message it is at and for how long."""
        return self._live().system.tree()

    def statistics(self) -> Statistics:
        """Message counts; at rest, sent = handled + dead-lettered + queued."""
        return self._live().system.statistics()

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The latest messages that nobody handled, with the reason."""
        return self._live().system.dead_letters.list()

    def _live(self) -> _Running:
        running = self._running
        if running is None:
            raise UsageError("this runtime is not running; use it as `with Runtime(...) as runtime:`, or call start()")
        if running.process_id != os.getpid():
            raise UsageError("this runtime was started before its process was forked; make a new one after the fork")
        return running


class _Running:
    """A started runtime: the thread, the tree and the requests that are open."""

    def __init__(self, parts: Wiring, approver: Approver) -> None:
        self.process_id = os.getpid()
        self._parts = parts
        self._approver = approver
        self._scheduler = LoopScheduler("callboard").start()
        self.system = ActorSystem(self._scheduler, dead_letters_kept=DEAD_LETTERS_KEPT)
        self._sessions: dict[RequestId, Ref] = {}
        try:
            build(self.system, parts.plan(self.system, self._scheduler, approver))
            self.tree: Tree = tree_of(self.system, START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def open_requests(self) -> int:
        return len(self._sessions)

    def begin(self, question: Question, answer: Answer, subscriber: Subscriber) -> None:
        """Start the session; its answer settles exactly once, even if the session is lost."""
        request_id = question.tag.request_id
        start = partial(RequestSession, question, self.tree.peers, subscriber, answer.record)
        spec = ChildSpec(str(request_id), start, restart=Restart.TEMPORARY, capacity=SESSION_CAPACITY)
        ref = start_child(self.tree.sessions, spec)
        self._sessions[request_id] = ref

        def ended(down: Down) -> None:
            if self._sessions.get(request_id) is ref:  # the name is free before this is told
                del self._sessions[request_id]
            if answer.session_ended(down):
                with contextlib.suppress(MailboxFull):
                    self.tree.peers.telemetry.tell(RequestLost(question.tag))

        self.system.watch(ref, ended)

    def cancel(self, request_id: RequestId, reason: str) -> bool:
        ref = self._sessions.get(request_id)
        if ref is None:
            return False
        ref.tell_control(CancelRequested(_tag_of(request_id), self._scheduler.now(), reason))
        return True

    def close(self) -> None:
        """Everything that was begun is ended, in reverse order, whatever fails on the way."""
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self._scheduler.stop, SHUTDOWN_SECONDS)
            last_to_first.callback(self._parts.close, self._scheduler)
            last_to_first.callback(self._approver.close)
            for request_id in tuple(self._sessions):
                self.cancel(request_id, "the runtime is stopping")
            if not self.system.shutdown(SHUTDOWN_SECONDS):
                logger.warning("some actors did not stop within %s s and were killed", SHUTDOWN_SECONDS)


def _new_request_id() -> str:
    return uuid.uuid4().hex


def _tag_of(request_id: RequestId) -> Tag:
    """The tag of a request as a whole; the message it answers has no other name yet."""
    return Tag(request_id, MessageId(f"{request_id}/user"))
