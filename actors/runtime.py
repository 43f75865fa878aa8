"""Runtime: callboard as one object, for async and for sync hosts.

It has one loop thread of its own and touches nothing of the host's: not its event loop, its signal handlers, its
threads or its Pykka actors. Requests come from any thread and any loop; they meet the actors only through refs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Self, Unpack, overload

from typing_extensions import TypeForm

from callboard.actors import kernel
from callboard.actors.builtins.asking_user import AskUserCallback, UserQuestions
from callboard.actors.calls.approvals import ApprovalCallback, Approver, CallbackApprover, NobodyToAsk
from callboard.actors.calls.dispatcher import ReadOffers
from callboard.actors.edits.proposals import DecideEdits
from callboard.actors.mcp.mcp_handle import McpHandle
from callboard.actors.mcp.remote_values import ServerStatus
from callboard.actors.models.routing import OwnProviders
from callboard.actors.models.windows import Windows
from callboard.actors.requests.asking import AskOptions, Prompt, check_names, identity_of, user_message
from callboard.actors.requests.direct_calls import (
    CallOptions,
    CallResult,
    ProgressListener,
    direct_options,
    result_of,
    said_with,
    tool_call,
)
from callboard.actors.requests.output_checks import CheckThreads, OutputChecker
from callboard.actors.requests.outputs import output_type
from callboard.actors.requests.outside import OutsideCalls
from callboard.actors.requests.replies import Answer, Question, Reply, RequestEnded, Stream, SyncStream, T
from callboard.actors.requests.request_session import RequestSession, SessionMessage, Subscriber
from callboard.actors.settings import Settings
from callboard.actors.telemetry import extras
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.telemetry.telemetry import ReadMetrics, RequestLost
from callboard.actors.tools import Tool
from callboard.actors.tools.progress import ToolProgressed
from callboard.actors.topology import SESSION_CAPACITY, addresses_of, build, start_servers
from callboard.actors.wiring import Asked, KnownModel, Wiring
from callboard.protocol.content import ToolCall
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import CallboardError, RuntimeFailure, UsageError, said
from callboard.protocol.events import CancelRequested, NoticeCame
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.options import ToolOffer

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from callboard.actors.edits.editing import Edits
    from callboard.actors.edits.proposals import Proposal
    from callboard.actors.index import Progress, RefreshSummary

logger = logging.getLogger("callboard")
# A host that has set up no logging hears nothing from us on its stderr.
logger.addHandler(logging.NullHandler())

#: The tree starts within milliseconds; this long means the machine is not answering.
START_SECONDS: Final = 30.0
#: Everything must have stopped by then; what has not is killed.
SHUTDOWN_SECONDS: Final = 10.0
#: Indexing a million lines takes about a minute; this bounds a broken disk.
REFRESH_TIMEOUT_SECONDS: Final = 3_600.0
#: For finding causes; a late result may hold a megabyte, so these are some hundred at the most.
DEAD_LETTERS_KEPT: Final = 256
#: A session takes a message within milliseconds; one that holds the loop must not hold the editor of files for long.
TELL_SECONDS: Final = 2.0
#: A snapshot is a copy of some counters; a wait this long means that something holds the loop.
METRICS_TIMEOUT_SECONDS: Final = 5.0
#: Likewise.
OFFERS_TIMEOUT_SECONDS: Final = 5.0


class Runtime:
    """Runs requests under supervision.

        async with Runtime(Settings(model="openai/gpt-6.1-sol"), tools=[lookup]) as runtime:
            reply = await runtime.ask("What is the weather in Oslo?")

    `tools` are functions, decorated with `@tool` where its defaults do not fit. `approve` decides on calls that the
    policy asks about (sync or async; True allows, or an `Approval` says more); without it they are denied. `providers`
    are models of your own: with `{"mine": provider}` "mine/x" is a model (a Provider or an Adapter, docs/providers.md);
    stopping the runtime closes them. `ask_user` (sync or async) is given a `UserQuestion` of a model's and returns the
    user's answer, or None; without it, models have no tool to ask with. Raises UsageError for bad settings, tools or
    providers, before anything starts.
    A runtime that is dropped without `stop` is stopped, with a ResourceWarning.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        tools: Iterable[Callable[..., object]] = (),
        *,
        approve: ApprovalCallback | None = None,
        ask_user: AskUserCallback | None = None,
        providers: OwnProviders | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._approve = approve
        questions = UserQuestions(ask_user, self.settings.approval_timeout_seconds) if ask_user is not None else None
        if questions is not None:
            tools = (*tools, questions.tool)
        self._questions = questions
        self._wiring = Wiring(self.settings, tools, providers)
        self._running: _Running | None = None
        self._changing = threading.Lock()
        self._dropped: weakref.finalize[[_Running], Runtime] | None = None

    # -- life

    def start(self) -> Self:
        """Start the loop thread and the tree; blocks for the few milliseconds until every permanent actor runs.

        Raises UsageError when it runs already, and what kept an actor from starting (RuntimeFailure, where it is no
        error of callboard's own); then nothing is left running.
        """
        with self._changing:
            if self._running is not None:
                self._live()  # says so where it runs in another process
                raise UsageError("this runtime is running already")
            self._running = running = _Running(self._wiring, self._approve, self._questions)
            self._dropped = weakref.finalize(self, _end_dropped, running)
        return self

    def stop(self) -> None:
        """Cancel what runs, stop the tree in reverse order of its start, and end the thread.

        Requests that are open end with RequestEnded ("the runtime is stopping"). Does nothing in a fork of the process
        that has started it: threads are not forked.
        """
        if self._running is not None and self._running.process_id != os.getpid():
            return
        with self._changing:
            running, self._running = self._running, None
            if running is not None:
                if self._dropped is not None:
                    self._dropped.detach()
                running.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        _check_for_asyncio("async with Runtime(...)")
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # start() cannot be interrupted, and __aexit__ does not run when __aenter__ is cancelled: stop once started.
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    # -- requests

    @overload
    async def ask(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Reply: ...
    @overload
    async def ask(self, prompt: Prompt, *, output: TypeForm[T], **options: Unpack[AskOptions]) -> Reply[T]: ...
    async def ask(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> Reply[T] | Reply:
        """Ask, and wait for the answer. Cancelling the waiting task cancels the request.

        A prompt is a text, a part (`Image`, `Document` ...) or a list of both; `options` say in what this question
        differs from the settings (`AskOptions`, docs/asking.md). The caller's context variables travel with the
        request: into its task tools, threads, approvals, log records and spans. `output` names the type of
        `Reply.output`: a pydantic model, a dataclass, `list[...]`, a union ... (docs/structured_output.md).

        Raises ModelCallFailed (a ProviderError) when the model could not be asked, RequestEnded when the request was
        cancelled or ran out of time or budget (both have `.reply`), RuntimeFailure when callboard could not finish it,
        UsageError for an empty prompt, for options that are wrong or contradict each other, and for a conversation that
        no provider would accept: then nothing was sent.
        """
        _check_for_asyncio("await runtime.ask(...)")
        asked, answer = self._prepare(prompt, options, output)
        self._begin(asked, answer, answer)
        try:
            return await answer.wait_async()
        except asyncio.CancelledError:
            self.cancel(answer.tag.request_id)
            raise

    @overload
    def ask_sync(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Reply: ...
    @overload
    def ask_sync(self, prompt: Prompt, *, output: TypeForm[T], **options: Unpack[AskOptions]) -> Reply[T]: ...
    def ask_sync(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> Reply[T] | Reply:
        """`ask`, for code without an event loop. Ctrl-C while it waits cancels the request."""
        asked, answer = self._prepare(prompt, options, output)
        self._begin(asked, answer, answer)
        try:
            return answer.wait()
        except BaseException:  # also what a signal handler raises
            self.cancel(answer.tag.request_id)
            raise

    @overload
    def stream(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Stream: ...
    @overload
    def stream(self, prompt: Prompt, *, output: TypeForm[T], **options: Unpack[AskOptions]) -> Stream[T]: ...
    def stream(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> Stream[T] | Stream:
        """Ask, and see everything as it happens: `async for event in runtime.stream(prompt)`; the Reply comes last.

        Call it where an event loop runs. Raises what `ask` raises: a UsageError at once, the rest from the iteration. A
        reader that leaves more than MAX_UNREAD_BYTES unread loses the request.
        """
        _check_for_asyncio("runtime.stream(...)")
        asked, answer = self._prepare(prompt, options, output)
        stream = Stream(answer, self._live().cancel)
        self._begin(asked, answer, stream)
        return stream

    @overload
    def stream_sync(self, prompt: Prompt, **options: Unpack[AskOptions]) -> SyncStream: ...
    @overload
    def stream_sync(self, prompt: Prompt, *, output: TypeForm[T], **options: Unpack[AskOptions]) -> SyncStream[T]: ...
    def stream_sync(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> SyncStream[T] | SyncStream:
        """`stream`, for code without an event loop: `for event in runtime.stream_sync(prompt)`. Leaving the loop early
        and Ctrl-C cancel the request."""
        asked, answer = self._prepare(prompt, options, output)
        stream = SyncStream(answer, self._live().cancel)
        self._begin(asked, answer, stream)
        return stream

    def complete_call(self, request_id: str, step: int, call_id: str, result: object) -> bool:
        """Give a deferred call its result, from any thread. The three ids are those of `ToolContext.tag` in the tool,
        and of `ToolCallDeferred.tag` in a stream.

        True when it was taken: the model reads it as if the tool had returned it. False when there is no such call, or
        it has its result, has timed out or was cancelled; then the result is among `dead_letters`, with the reason. A
        result may come while the tool still runs: it counts once the tool has returned `Deferred`. Where the tool ends
        otherwise, that counts, and the early result is a dead letter.
        Raises UsageError, and the call stays open, for a result that is not of the type that the tool declares, cannot
        be written as JSON or is larger than a result may be. It waits for callboard's loop, mostly less than 1 ms.
        """
        return self._live().outside.complete(_tag_of_call(request_id, step, call_id), result)

    def fail_call(self, request_id: str, step: int, call_id: str, message: str) -> bool:
        """End a deferred call without a result: the model reads `message`. Otherwise as `complete_call`."""
        return self._live().outside.fail(_tag_of_call(request_id, step, call_id), message)

    def report_progress(
        self, request_id: str, step: int, call_id: str, message: str = "", fraction: float | None = None
    ) -> bool:
        """Say how far a deferred call is, as `ToolContext.progress` does in a tool: to the reader of the stream.

        False when the call is not open. Raises UsageError for a fraction that is not from 0 to 1.
        """
        return self._live().outside.report_progress(_tag_of_call(request_id, step, call_id), message, fraction)

    def cancel(self, request_id: str, reason: str = "cancelled by the caller") -> bool:
        """End a request: its model stream, its running tools, its waiting approvals. False if it is not running."""
        return self._running is not None and self._live().cancel(RequestId(request_id), reason)

    def _prepare(self, prompt: Prompt, options: AskOptions, output: TypeForm[T] | None) -> tuple[Asked, Answer[T]]:
        """All that can be wrong with a question is found here. Raises UsageError; RuntimeFailure when overloaded."""
        user = user_message(prompt)
        if options:
            check_names(options)
        running = self._live()
        if len(running.sessions) >= self.settings.max_concurrent_requests:
            raise RuntimeFailure(f"overloaded: {len(running.sessions)} requests are running; try again later")
        form = output_type(output) if output is not None else None
        asked = self._wiring.asked(user, options, running.system.now(), form.spec if form is not None else None)
        checker = OutputChecker(form, running.check_threads, copy_context()) if form is not None else None
        request_id, conversation = identity_of(options)
        tag = _tag_of(RequestId(request_id or uuid.uuid4().hex))
        return asked, Answer(conversation, tag, asked.options.timeout_seconds, checker, running.post)

    def _begin(self, asked: Asked, answer: Answer[T], subscriber: Subscriber, direct: ToolCall | None = None) -> None:
        """`direct`: the call that is run without a model."""
        running = self._live()
        answer.conversation.take(answer.tag.request_id)
        if self._wiring.edits is not None and answer.conversation.messages:
            for known, text in self._wiring.edits.untold(answer.conversation.requests).items():
                answer.conversation.told(text, f"edits/{known}")
        question = Question(
            answer.tag,
            answer.conversation.messages,
            asked.user,
            asked.options,
            asked.at,
            copy_context(),
            subscriber is not answer,
            asked.routes,
            asked.tools,
            asked.notes,
            asked.metadata,
            answer.conversation.compacted,
            answer.checker,
        )
        try:
            running.begin(_OpenRequest(running, question, asked.model, answer, subscriber, direct))
        except BaseException as error:
            answer.conversation.release()
            if isinstance(error, kernel.NameTaken):
                request_id = answer.tag.request_id
                raise UsageError(f"a request with the id {request_id!r} is running; choose another") from None
            if isinstance(error, kernel.ActorDeadError):
                raise RuntimeFailure("this runtime is stopping, or has failed too often; start it again") from error
            raise

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        *,
        on_progress: Callable[[ToolProgressed], object] | None = None,
        **options: Unpack[CallOptions],
    ) -> CallResult:
        """Run one call of a tool, without a model, under the rules of every call: policy, approval, deadline.

        All that can become of a call is a CallResult, its failures too: a name that no tool has, arguments that do not
        fit, a denial, a crash. `on_progress` is called on this event loop with what the tool says of its progress.
        Cancelling the waiting task cancels the call.

        Raises UsageError for arguments that are not JSON and for wrong options, RequestEnded when the runtime stops
        before the call has begun, RuntimeFailure when callboard could not finish it.
        """
        _check_for_asyncio("await runtime.call_tool(...)")
        call = tool_call(name, arguments)
        asked, answer = self._prepare(f"Call {call.name}.", said_with(call, options), None)
        shown: Subscriber = answer
        if on_progress is not None:
            shown = ProgressListener(answer, on_progress, asyncio.get_running_loop())
        self._begin(replace(asked, options=direct_options(asked.options)), answer, shown, call)
        try:
            return result_of(call.name, await answer.wait_async())
        except RequestEnded as ended:
            return result_of(call.name, ended.reply, ended)
        except asyncio.CancelledError:
            self.cancel(answer.tag.request_id)
            raise

    async def refresh_index(
        self, progress: Callable[[Progress], None] | None = None, *, timeout_seconds: float = REFRESH_TIMEOUT_SECONDS
    ) -> RefreshSummary:
        """Index what is new, changed or gone in the workspace.

        Questions are answered meanwhile, from what is there. `progress` is called on the indexing thread. Raises
        UsageError without a workspace or when the index cannot be written.
        """
        self._live()
        if self._wiring.search is None:
            raise UsageError("there is nothing to index: this runtime has no workspace (Settings(workspace=...))")
        return await self._wiring.search.refresh(progress, timeout_seconds=timeout_seconds)

    # -- staged edits

    def proposals(self) -> tuple[Proposal, ...]:
        """The edits that tools have staged in this workspace, the oldest first, and what became of each.

        Those of other processes and of earlier ones are among them. It waits for callboard's disk, mostly some
        milliseconds. Raises UsageError without a workspace, or where the state folder cannot be used.
        """
        return self._edits().list()

    async def approve_edits(
        self, ids: Iterable[str] | None = None, *, contents: Mapping[str, str] | None = None
    ) -> tuple[Proposal, ...]:
        """Apply staged edits, all that are pending where no ids are given, and say what became of each.

        Each is applied whole or not at all: look at its `state`, and at its `reason` where that is not APPLIED.
        `contents` are new whole texts of files by their paths, in place of what was proposed. The model is told.
        Raises UsageError, and nothing is done, for an unknown id; RuntimeFailure where they cannot be reached.
        """
        return await self._edits().decide(_decision(ids, is_approved=True, contents=contents or {}))

    async def deny_edits(self, ids: Iterable[str] | None = None, reason: str = "") -> tuple[Proposal, ...]:
        """Give up staged edits, all that are pending where no ids are given; the model reads the reason."""
        return await self._edits().decide(_decision(ids, is_approved=False, reason=reason))

    def approve_edits_sync(
        self, ids: Iterable[str] | None = None, *, contents: Mapping[str, str] | None = None
    ) -> tuple[Proposal, ...]:
        """`approve_edits`, for code without an event loop."""
        return self._edits().decide_sync(_decision(ids, is_approved=True, contents=contents or {}))

    def deny_edits_sync(self, ids: Iterable[str] | None = None, reason: str = "") -> tuple[Proposal, ...]:
        """`deny_edits`, for code without an event loop."""
        return self._edits().decide_sync(_decision(ids, is_approved=False, reason=reason))

    def _edits(self) -> Edits:
        self._live()
        if self._wiring.edits is None:
            raise UsageError("there are no edits: this runtime has no workspace (Settings(workspace=...))")
        return self._wiring.edits

    # -- looking in

    def index_note(self) -> str:
        """What a person should know of code search now, in one sentence: that the embedding model fails. Else ""."""
        self._live()
        return self._wiring.search.health.note if self._wiring.search is not None else ""

    def tools(self) -> tuple[ToolOffer, ...]:
        """The tools given and those that the workspace adds, each with what the policy says of it and what confines it.

        Models are offered those whose `decision` is not DENY.
        """
        self._live()
        return self._wiring.listed_tools()

    def offered(self) -> tuple[ToolOffer, ...]:
        """The tools that a model would be offered now: without those that are denied or withdrawn."""
        offers = self._live().peers.dispatcher.ask(ReadOffers(), OFFERS_TIMEOUT_SECONDS)
        return tuple(offer for offer in offers if offer.is_shown)

    def tool(self, name: str) -> Tool | None:
        """The tool of this name, of those given and those that the workspace adds; None where there is none."""
        self._live()
        return self._wiring.offered_tools.get(ToolName(name))

    def mcp(self, name: str) -> McpHandle:
        """The MCP server of this name: its resources and prompts. Raises UsageError where no setting has it."""
        self._live()
        return McpHandle(self._wiring.servers.link(name))

    def mcp_servers(self) -> tuple[ServerStatus, ...]:
        """How each MCP server of the settings is: its state, what its last connection failed with, its tools."""
        self._live()
        return self._wiring.servers.statuses

    def metrics(self) -> Metrics:
        """What was counted since the start: requests, calls, failures, tokens, durations, and what runs and waits now.

        docs/telemetry.md lists them. Raises UsageError when it does not run.
        """
        return self._live().metrics()

    def prometheus(self) -> str:
        """The metrics as a scrape of Prometheus reads them (text format 0.0.4).

        For a web framework's own route: the content type is "text/plain; version=0.0.4". Raises UsageError without the
        extra `telemetry`.
        """
        return extras.exposition(self._live().metrics)

    def prometheus_collector(self) -> Collector:
        """For a registry of prometheus-client: `REGISTRY.register(runtime.prometheus_collector())`.

        Raises UsageError without the extra `telemetry`; a scrape of a stopped runtime gets none of its metrics.
        """
        return extras.collector(self._metrics_or_none)

    def _metrics_or_none(self) -> Metrics:
        try:
            return self.metrics()
        except UsageError:
            return Metrics()

    def tree(self) -> tuple[kernel.ActorInfo, ...]:
        """Every actor: state, mailbox depth, restarts, the message it is at and for how long."""
        return self._live().system.tree()

    def statistics(self) -> kernel.Statistics:
        """Message counts; at rest, sent = handled + dead-lettered + queued."""
        return self._live().system.statistics()

    def dead_letters(self) -> tuple[kernel.DeadLetter, ...]:
        """The latest messages that no actor handled, with the reason."""
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

    def __init__(
        self, wiring: Wiring, approve: ApprovalCallback | None, questions: UserQuestions | None = None
    ) -> None:
        self.process_id = os.getpid()
        self.begin_spans = wiring.begin_spans
        self.sessions: dict[RequestId, kernel.Ref[SessionMessage]] = {}
        self.conversations = wiring.conversations
        self.check_threads = CheckThreads()
        try:
            with contextlib.ExitStack() as begun:  # what fails here ends what has begun before it
                self._start(begun, wiring, approve)
                if questions is not None:
                    questions.open(self.outside)
                    begun.callback(questions.close)
                self.close = begun.pop_all().close
                """End everything that was begun, in reverse order, also where some of it fails."""
        except (kernel.StartFailed, kernel.OutOfThreads, OSError) as error:  # OSError: no more descriptors to be had
            cause = error.cause if isinstance(error, kernel.StartFailed) else None
            failure = RuntimeFailure(f"the runtime could not start, and nothing of it is left running: {said(error)}")
            raise cause if isinstance(cause, CallboardError) else failure from error

    def _start(self, begun: contextlib.ExitStack, wiring: Wiring, approve: ApprovalCallback | None) -> None:
        scheduler = kernel.LoopScheduler("callboard")
        begun.callback(scheduler.stop, SHUTDOWN_SECONDS)
        scheduler.start()
        begun.callback(wiring.close, scheduler)
        begun.callback(self.check_threads.close)
        self.windows = Windows()
        begun.callback(scheduler.loop.call_soon_threadsafe, self.windows.cancel)
        behind: Approver = NobodyToAsk()
        if approve is not None:
            behind = CallbackApprover(approve, wiring.saved_rules.remember, wiring.confinement_of)
        approver = wiring.judging(behind, scheduler)
        begun.callback(approver.close)
        self.system = kernel.ActorSystem(scheduler, dead_letters_kept=DEAD_LETTERS_KEPT)
        begun.callback(self._stop_actors)
        plan = wiring.plan(self.system, scheduler, approver)
        build(self.system, plan)
        if wiring.edits is not None:
            wiring.edits.tell_model = self.tell_model
        self.post = scheduler.loop.call_soon_threadsafe
        self.outside = OutsideCalls(self.system, self.sessions.get, lambda: wiring.offered_tools)
        self.system.wait_until_started(self.system.ref("root"), START_SECONDS)
        self._supervisor, self.peers = addresses_of(self.system, START_SECONDS)
        start_servers(self.system, plan)
        wiring.servers.wait()
        begun.callback(extras.observe(self.metrics))

    def begin(self, opened: _OpenRequest[T]) -> None:
        """Start the session; its answer settles exactly once, even if the session is lost."""
        question, answer = opened.question, opened.answer
        request_id = question.tag.request_id
        temporary, capacity = kernel.Restart.TEMPORARY, SESSION_CAPACITY
        spec = kernel.ChildSpec(str(request_id), opened.make_session, restart=temporary, capacity=capacity)
        self.sessions[request_id] = ref = opened.ref = kernel.start_child(self._supervisor, spec)
        if question.options.compaction is not None:
            self.conversations[request_id] = answer.conversation
        self.system.watch(ref, opened.ended)

    def metrics(self) -> Metrics:
        return self.peers.telemetry.ask(ReadMetrics(self.system.now()), METRICS_TIMEOUT_SECONDS)

    def cancel(self, request_id: RequestId, reason: str) -> bool:
        ref = self.sessions.get(request_id)
        if ref is None:
            return False
        ref.tell_control(CancelRequested(_tag_of(request_id), self.system.now(), reason))
        return True

    def tell_model(self, request_id: str, text: str) -> bool:
        """Give the model of a running request something to read; False where it does not run, or is about to end."""
        tag = _tag_of(RequestId(request_id))
        ref = self.sessions.get(tag.request_id)
        if ref is None:
            return False
        try:
            ref.ask(NoticeCame(tag, self.system.now(), text), TELL_SECONDS)
        except kernel.KernelError:
            return False
        return True

    def _stop_actors(self) -> None:
        if not self.system.shutdown(SHUTDOWN_SECONDS):
            logger.warning("some actors did not stop within %s s and were killed", SHUTDOWN_SECONDS)


@dataclass(slots=True, eq=False)
class _OpenRequest(Generic[T]):
    """One request, from its question to its answer. One object, where closures and partials would be twenty: those that
    are open take a share of every collection of garbage."""

    running: _Running
    question: Question
    model: KnownModel
    answer: Answer[T]
    subscriber: Subscriber
    direct: ToolCall | None = None
    """The call that is run without a model."""
    ref: kernel.Ref[SessionMessage] | None = None

    def make_session(self) -> RequestSession:
        running, question, model, direct = self.running, self.question, self.model, self.direct
        is_open = direct is None and question.options.context_tokens is None and not model.is_unlimited
        return RequestSession(
            question,
            running.peers,
            self.subscriber,
            self.answer.conversation.record,
            partial(Session, count_tokens=model.count_tokens) if direct is None else partial(DirectCall, direct),
            find_window=partial(running.windows.find, model.routes[0]) if is_open else None,
            begin_spans=running.begin_spans,
        )

    def ended(self, down: kernel.Down) -> None:
        """Its session has."""
        running, request_id = self.running, self.question.tag.request_id
        if running.sessions.get(request_id) is self.ref:  # the name is free before the asker knows
            del running.sessions[request_id]
            running.conversations.pop(request_id, None)
        if self.answer.session_ended(down):
            with contextlib.suppress(kernel.MailboxFull):
                running.peers.telemetry.tell(RequestLost(self.question))


def _decision(
    ids: Iterable[str] | None, *, is_approved: bool, reason: str = "", contents: Mapping[str, str] | None = None
) -> DecideEdits:
    """Of the runtime's owner. Raises UsageError for what is no list of ids."""
    if isinstance(ids, str):
        raise UsageError(f"ids must be a list of ids, not the text {ids!r}; put it into a list")
    return DecideEdits(None if ids is None else tuple(ids), is_approved, "owner", reason, contents or {})


def _end_dropped(running: _Running) -> None:
    """Its runtime was collected, or the process ends, without stop()."""
    if running.process_id != os.getpid():
        return  # the exit of a fork, which has none of the threads
    try:
        dropped = "a Runtime was dropped without stop(); use it as `with Runtime(...) as runtime:`"
        warnings.warn(dropped, ResourceWarning, stacklevel=2)
    finally:
        if threading.main_thread().is_alive():
            # Not here: garbage is collected on any thread, also on the one that close() waits for.
            threading.Thread(target=running.close, name="callboard-close").start()
        else:
            running.close()


def _check_for_asyncio(what: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            f"{what} needs a running asyncio event loop; without one use ask_sync() in `with Runtime(...)`, in another "
            "async library on a thread: `await trio.to_thread.run_sync(runtime.ask_sync, text)`"
        ) from None


def _tag_of(request_id: RequestId) -> Tag:
    """The tag of a request as a whole; the message it answers has no other name yet."""
    return Tag(request_id, MessageId(f"{request_id}/user"))


def _tag_of_call(request_id: str, step: int, call_id: str) -> Tag:
    return _tag_of(RequestId(request_id)).at_step(step)._replace(call_id=CallId(call_id))
