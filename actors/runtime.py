"""Runtime: callboard as one object, for async and for sync hosts.

It has one loop thread of its own and touches nothing of the host's: not its event loop, its signal handlers, its
threads or its Pykka actors. Requests come from any thread and any loop; they meet the actors only through refs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Self, Unpack, cast, overload

from typing_extensions import TypeForm

from callboard.actors import host_process, kernel
from callboard.actors.calls.dispatcher import ReadOffers, ReplaceTools
from callboard.actors.calls.registry import GIVEN
from callboard.actors.edits.proposals import DecideEdits
from callboard.actors.host_process import apart, check_for_asyncio, check_may_wait, from_host, start_apart
from callboard.actors.operating import Operated
from callboard.actors.requests.asking import AskOptions, Prompt
from callboard.actors.requests.direct_calls import (
    CallOptions,
    CallResult,
    ProgressListener,
    result_of,
    said_with,
    tool_call,
)
from callboard.actors.requests.feed_positions import Position
from callboard.actors.requests.outputs import by_title
from callboard.actors.requests.recorded_reply import recorded_reply
from callboard.actors.requests.replies import Answer, Reply, RequestEnded, Stream, SyncStream, T
from callboard.actors.telemetry.timelines import RequestTimelines
from callboard.actors.tools import Tool
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.errors import RuntimeFailure, UsageError, explained
from callboard.protocol.ids import RequestId, ToolName
from callboard.protocol.lazy_loading import lazy_module, load_now
from callboard.protocol.options import ToolOffer

if TYPE_CHECKING:
    from callboard.actors import following, new_request, taking_up, topology, wiring, wrong_calls
    from callboard.actors import running as started
    from callboard.actors import settings as all_settings
    from callboard.actors.builtins import asking_user
    from callboard.actors.calls.approvals import ApprovalCallback
    from callboard.actors.edits.editing import Edits
    from callboard.actors.edits.proposals import Proposal
    from callboard.actors.index import Progress, RefreshSummary
    from callboard.actors.index.vector_making import VectorState
    from callboard.actors.journal.journal_handle import JournalHandle
    from callboard.actors.mcp import mcp_handle
    from callboard.actors.mcp.remote_values import ServerStatus
    from callboard.actors.models.routing import OwnProviders
    from callboard.actors.requests.open_requests import OpenRequest
    from callboard.actors.requests.request_feed import Followed
    from callboard.actors.requests.session_messages import Subscriber
    from callboard.actors.settings import Settings
else:  # what a Runtime is made of: programs and the children of tools import the class that never make one
    all_settings = lazy_module("callboard.actors.settings")
    asking_user = lazy_module("callboard.actors.builtins.asking_user")
    following = lazy_module("callboard.actors.following")
    mcp_handle = lazy_module("callboard.actors.mcp.mcp_handle")
    new_request = lazy_module("callboard.actors.new_request")
    started = lazy_module("callboard.actors.running")
    taking_up = lazy_module("callboard.actors.taking_up")
    topology = lazy_module("callboard.actors.topology")
    wiring = lazy_module("callboard.actors.wiring")
    wrong_calls = lazy_module("callboard.actors.wrong_calls")

logger = logging.getLogger("callboard")
# A host that has set up no logging hears nothing from us on its stderr.
logger.addHandler(logging.NullHandler())

#: Indexing a million lines takes about a minute; this bounds a broken disk.
REFRESH_TIMEOUT_SECONDS: Final = 3_600.0
#: A list of the tools is made in milliseconds; a wait this long means that something holds the loop.
OFFERS_TIMEOUT_SECONDS: Final = 5.0

#: Of the methods that ask.
_asked = explained(lambda *wrong: wrong_calls.of_question(*wrong))


class Runtime(Operated):
    """Runs requests under supervision.

        async with Runtime(Settings(model="openai/gpt-6.1-sol"), tools=[lookup]) as runtime:
            reply = await runtime.ask("What is the weather in Oslo?")

    `tools` are functions, decorated with `@tool` where its defaults do not fit. `approve` decides on calls that the
    policy asks about (sync or async; True allows, or an `Approval` says more); without it they are denied. `providers`
    are models of your own: with `{"mine": provider}` "mine/x" is a model (a Provider or an Adapter);
    stopping the runtime closes them. `ask_user` (sync or async) is given a `UserQuestion` of a model's and returns the
    user's answer, or None; without it, models have no tool to ask with. `outputs` are types of answers: of
    requests with `output=` that may be taken up from the journal. `loop` is the event loop, on a thread of yours, for
    tools with `isolation="caller"`; without it each runs on the loop from which its question was asked. Raises
    UsageError for bad settings, tools or providers, before anything starts.
    A runtime that is dropped without `stop` is stopped, with a ResourceWarning.
    """

    @explained(lambda *wrong: wrong_calls.of_runtime(*wrong))
    def __init__(
        self,
        settings: Settings | None = None,
        tools: Iterable[Callable[..., object]] = (),
        *,
        approve: ApprovalCallback | None = None,
        ask_user: asking_user.AskUserCallback | None = None,
        providers: OwnProviders | None = None,
        outputs: Iterable[object] = (),
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        settings = all_settings.Settings() if settings is None else settings
        if not isinstance(settings, all_settings.Settings):
            raise wrong_calls.not_settings(settings)
        for name, callback in (("approve", approve), ("ask_user", ask_user)):
            if callback is not None and not callable(callback):
                raise wrong_calls.not_callable(name, callback)
        _check_list(tools)
        self.settings = settings
        self._outputs = by_title(outputs)
        self._approve = approve
        patience = settings.approval_timeout_seconds
        questions = None if ask_user is None else asking_user.UserQuestions(ask_user, patience)
        self._questions = questions
        self._given, self._providers = tuple(tools), providers
        asks = () if questions is None else (questions.tool,)
        self._wiring = wiring.Wiring(self.settings, (*self._given, *asks), providers, loop)
        self._running: started.StartedRuntime | None = None
        self._changing = threading.Lock()
        self._turns = itertools.count(1)  # of starts and stops, in the order in which they are asked for
        self._started_in = self._stopped_in = 0
        self._dropped: weakref.finalize[[started.StartedRuntime], Runtime] | None = None

    if not TYPE_CHECKING:  # a type checker that saw it would accept every name

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise wrong_calls.no_method(name, dir(type(self)))

    # -- life

    def start(self) -> Self:
        """Start the loop thread and the tree; blocks for the few milliseconds until every permanent actor runs.

        Raises UsageError when it runs already and where gevent or eventlet has replaced the threads, and what kept an
        actor from starting (RuntimeFailure, where it is no error of callboard's own); then nothing is left running.
        RuntimeFailure also where its tree has ended by itself (`failed`): call `stop` before; and where it was stopped
        meanwhile. What a signal handler raises (Ctrl-C) ends it: nothing is left, and it may be called again.
        """
        host_process.check_for_threads()
        start = started.Start(next(self._turns))
        try:
            apart(partial(self._start, start))
        except BaseException:
            start.is_wanted = False
            apart(partial(self._stop, range(start.turn, start.turn + 1)))
            raise
        if start.running is None or self._running is not start.running:
            raise RuntimeFailure("this runtime was stopped while it started")
        return self

    def _start(self, start: started.Start) -> None:
        with self._changing:
            if not start.is_wanted or start.turn < self._stopped_in:  # by a stop() that was here first
                return
            if self._running is not None:
                self._live()  # says so where it runs in another process
                raise UsageError("this runtime is running already")
            load_now(following, new_request, taking_up, topology)  # here, and not on an event loop that asks
            running = started.StartedRuntime(self._wiring, self._approve, self._begin_work)
            self._running = start.running = running
            self._started_in = start.turn
            self._dropped = weakref.finalize(self, host_process.end_dropped, running)

    def _begin_work(self, running: started.StartedRuntime, begun: contextlib.ExitStack) -> None:
        """What the tree is there for: the user can be asked, and what was open in the journal goes on."""
        if self._questions is not None:
            self._questions.open(running.outside)
            begun.callback(self._questions.close)
        if running.records is not None and running.outbox is not None:
            records, outbox = running.records, running.outbox
            taking_up.TakingUp(running, self._wiring, records, outbox, self._outputs, self._questions).at_start()

    def stop(self) -> None:
        """Cancel what runs, stop the tree in reverse order of its start, and end the thread.

        Requests that are open end with RequestEnded ("the runtime is stopping"); where there is a journal they stay
        open in it, and the next start goes on with them. Does nothing in a fork of the process that has started it:
        threads are not forked.

        A signal handler may call it, whatever the thread that it interrupts does: `start` and `ask_sync` then raise
        RuntimeFailure, another `stop` ends with this one. Where it is itself interrupted, it goes on without being
        waited for. Raises UsageError on callboard's own loop, which it waits for.
        """
        if self._running is not None and self._running.process_id != os.getpid():
            return
        check_may_wait("stop", "`await asyncio.to_thread(runtime.stop)`")
        stop = partial(self._stop, range(next(self._turns)))
        try:
            apart(stop)
        except BaseException:
            start_apart(stop)
            raise

    def _stop(self, turns: range) -> None:
        """What was started in these: a `stop` that was interrupted may come behind a later `start`."""
        with self._changing:
            self._stopped_in = max(self._stopped_in, turns.stop if not turns.start else 0)
            if self._running is not None and self._started_in in turns:
                running, self._running = self._running, None
                running.close()
                if self._dropped is not None:
                    self._dropped.detach()

    async def reload(
        self,
        settings: Settings,
        tools: Iterable[Callable[..., object]] | None = None,
        *,
        providers: OwnProviders | None = None,
    ) -> None:
        """Go on with these settings, tools (None: the same ones) and providers (likewise), while requests run.

        A request that runs keeps the tools that it was offered, and its next model call goes by the new addresses, keys
        and limits; a call of a tool that is gone is answered so. All is checked first: raises UsageError, and changes
        nothing, for what is wrong and for a setting that only a start can change (its name is in the message).
        """
        await asyncio.to_thread(self.reload_sync, settings, tools, providers=providers)

    @from_host
    def reload_sync(
        self,
        settings: Settings,
        tools: Iterable[Callable[..., object]] | None = None,
        *,
        providers: OwnProviders | None = None,
    ) -> None:
        """`reload`, for code without an event loop."""
        _check_list(tools or ())
        with self._changing:
            ask = None if self._questions is None else self._questions.tool_for(settings.approval_timeout_seconds)
            given = self._given if tools is None else tuple(tools)
            own = self._providers if providers is None else providers
            running = self._live() if self._running is not None else None
            self._wiring.reload(settings, given if ask is None else (*given, ask), own)
            self.settings, self._given, self._providers = settings, given, own
            if self._questions is not None and ask is not None:
                self._questions.go_by(ask, settings.approval_timeout_seconds)
            if running is not None:
                running.post(running.windows.forget)
                running.peers.dispatcher.tell_control(ReplaceTools(GIVEN, self._wiring.given_tools))

    async def drain(self, deadline_seconds: float) -> bool:
        """Take no new requests from now on, and wait for those that run; `stop` comes after it.

        False where some have not ended by the deadline, or wait for someone outside while there is a journal, which
        keeps them: `stop` leaves them there for the next start. New ones raise RuntimeFailure ("draining").
        """
        self._live().is_draining = True  # the thread that waits may come to it later
        return await asyncio.to_thread(self.drain_sync, deadline_seconds)

    @from_host
    def drain_sync(self, deadline_seconds: float) -> bool:
        """`drain`, for code without an event loop."""
        check_may_wait("drain_sync", "`await runtime.drain(...)`")
        return self._live().drain(deadline_seconds)

    @property
    def failed(self) -> started.Failed:
        """Why the tree has ended by itself, once it has: there were more failures than supervision mends.

        `why = await runtime.failed` waits for it, `runtime.failed.add_done_callback(...)` is told. The result is the
        RuntimeFailure that every other member raises from then on, until `stop` was called and `start` begins anew; or
        None, when the runtime was stopped. Each start has one of its own. Raises UsageError when it does not run.
        """
        return self._begun().failed

    @property
    def is_draining(self) -> bool:
        """`drain` was called: no new requests are taken."""
        return self._running is not None and self._running.is_draining

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        check_for_asyncio("async with Runtime(...)")
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # start() cannot be interrupted, and __aexit__ does not run when __aenter__ is cancelled: stop once started.
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.to_thread(self.stop)
            raise
        except (KeyboardInterrupt, SystemExit):
            starting.add_done_callback(lambda _: start_apart(partial(self._stop, range(next(self._turns)))))
            raise

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.shield(asyncio.to_thread(self.stop))
        except BaseException:
            start_apart(partial(self._stop, range(next(self._turns))))
            raise

    # -- requests

    @overload
    async def ask(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Reply: ...
    @overload
    async def ask(self, prompt: Prompt, *, output: TypeForm[T], **options: Unpack[AskOptions]) -> Reply[T]: ...
    @_asked
    async def ask(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> Reply[T] | Reply:
        """Ask, and wait for the answer. Cancelling the waiting task cancels the request, and ends when that has ended
        (within 5 s; a further cancel does not wait).

        A prompt is a text, a part (`Image`, `Document` ...) or a list of both; `options` say in what this question
        differs from the settings (`AskOptions`, docs/asking.md). The caller's context variables travel with the
        request: into its task tools, threads, approvals, log records and spans. `output` names the type of
        `Reply.output`: a pydantic model, a dataclass, `list[...]`, a union ... (docs/structured_output.md).

        Raises ModelCallFailed (a ProviderError) when the model could not be asked, RequestEnded when the request was
        cancelled or ran out of time or budget (both have `.reply`), RuntimeFailure when callboard could not finish it,
        UsageError for an empty prompt, for options that are wrong or contradict each other, and for a conversation that
        no provider would accept: then nothing was sent.
        """
        check_for_asyncio("await runtime.ask(...)")
        new = self._new_request(prompt, options, output)
        return await new.ended(new.answer)

    @overload
    def ask_sync(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Reply: ...
    @overload
    def ask_sync(self, prompt: Prompt, *, output: TypeForm[T], **options: Unpack[AskOptions]) -> Reply[T]: ...
    @_asked
    def ask_sync(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> Reply[T] | Reply:
        """`ask`, for code without an event loop. Ctrl-C while it waits cancels the request."""
        check_may_wait("ask_sync", "`await runtime.ask(...)`")
        new = self._new_request(prompt, options, output)
        return new.ended_sync()

    @overload
    def stream(self, prompt: Prompt, **options: Unpack[AskOptions]) -> Stream: ...
    @overload
    def stream(self, prompt: Prompt, *, output: TypeForm[T], **options: Unpack[AskOptions]) -> Stream[T]: ...
    @_asked
    def stream(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> Stream[T] | Stream:
        """Ask, and see everything as it happens: `async for event in runtime.stream(prompt)`; the Reply comes last.

        Call it where an event loop runs. Raises what `ask` raises: a UsageError at once, unless something is read to
        find it (the journal, for a `request_id`; the adapter of a model that was not asked before), the rest from the
        iteration. A reader that leaves more than MAX_UNREAD_BYTES unread loses the request.
        """
        check_for_asyncio("runtime.stream(...)")
        return self._new_request(prompt, options, output).begin_stream(self._live().cancel)

    @overload
    def stream_sync(self, prompt: Prompt, **options: Unpack[AskOptions]) -> SyncStream: ...
    @overload
    def stream_sync(self, prompt: Prompt, *, output: TypeForm[T], **options: Unpack[AskOptions]) -> SyncStream[T]: ...
    @_asked
    def stream_sync(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> SyncStream[T] | SyncStream:
        """`stream`, for code without an event loop: `for event in runtime.stream_sync(prompt)`. Leaving the loop early
        and Ctrl-C cancel the request."""
        check_may_wait("stream_sync", "`async for ... in runtime.stream(...)`")
        return self._new_request(prompt, options, output).begin_stream_sync(self._live().cancel)

    @_asked
    def start_request(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> Awaitable[str]:
        """Begin a request that no one waits for: `request_id = await runtime.start_request(prompt)`, for `follow`,
        `result` and `cancel`. It goes on without any follower.

        The id comes once the journal has the request, so that a process that is killed then loses none; without a
        journal, once it is accepted. Where no event loop runs there is nothing to await: it is `start_request_sync`.
        With the `request_id` and the question of a request that was begun before, it gives that id, and begins none.

        Raises what is wrong with the question, as `ask` does; OutcomeUnknown, with the `request_id`, where the request
        may have begun or begin later. Any other RuntimeFailure says that this call has begun none and will not.
        Cancelling the waiting task cancels the request that it has begun.
        """
        if asyncio._get_running_loop() is None:
            return cast("Awaitable[str]", self.start_request_sync(prompt, output=output, **options))
        new = self._new_request(prompt, options, output)
        return new.begun(following.Following(self._live(), self._outputs).feed)

    @_asked
    def start_request_sync(
        self, prompt: Prompt, *, output: TypeForm[T] | None = None, **options: Unpack[AskOptions]
    ) -> str:
        """`start_request`, for code without an event loop: it waits."""
        check_may_wait("start_request_sync", "`await runtime.start_request(...)`")
        new = self._new_request(prompt, options, output)
        return new.begun_sync(following.Following(self._live(), self._outputs).feed)

    def follow(self, request_id: str, after: str = "") -> AsyncIterator[Followed]:
        """Read along any request of this runtime or its journal, running or ended: `async for each in
        runtime.follow(request_id)`. Each `Followed` has an `item` of a stream and an `id`; the Reply comes last.

        `after` is the id to go on behind, also one of an earlier process: what is durable comes once. A turn of which
        that follower has seen a part comes again from its beginning behind a `Restarted`, where its pieces are no
        longer kept. Any number may follow a request, and leaving does not end it. docs/embedding.md says more.

        Raises UsageError for an `after` that is no id, and from the iteration: UsageError for a request that is not
        known, FollowerTooSlow for a follower that leaves MAX_UNREAD_BYTES unread, and what `result` raises.
        """
        check_for_asyncio("runtime.follow(...)")
        return following.Following(self._live(), self._outputs).follow(RequestId(request_id), Position.read(after))

    def complete_call(self, request_id: str, step: int, call_id: str, result: object) -> bool:
        """Give a deferred call its result, from any thread. The three ids are those of `ToolContext.tag` in the tool,
        and of `ToolCallDeferred.tag` in a stream.

        True when it was taken: the model reads it as if the tool had returned it. False when there is no such call, or
        it has its result, has timed out or was cancelled; then the result is among `dead_letters`, with the reason. A
        result may come while the tool still runs: it counts once the tool has returned `Deferred`. Where the tool ends
        otherwise, that counts, and the early result is a dead letter.
        Raises UsageError, and the call stays open, for a result that is not of the type that the tool declares, cannot
        be written as JSON or is larger than a result may be. It waits for callboard's loop, mostly less than 1 ms.
        Where there is a journal, it waits until the result is durable in it, one that comes early until the tool has
        returned; OutcomeUnknown when that is not known within 10 s, or the result could not be written.
        """
        return self._live().outside.complete(started.tag_of_call(request_id, step, call_id), result)

    def fail_call(self, request_id: str, step: int, call_id: str, message: str) -> bool:
        """End a deferred call without a result: the model reads `message`. Otherwise as `complete_call`."""
        return self._live().outside.fail(started.tag_of_call(request_id, step, call_id), message)

    def report_progress(
        self, request_id: str, step: int, call_id: str, message: str = "", fraction: float | None = None
    ) -> bool:
        """Say how far a deferred call is, as `ToolContext.progress` does in a tool: to the reader of the stream.

        False when the call is not open. Raises UsageError for a fraction that is not from 0 to 1.
        """
        return self._live().outside.report_progress(started.tag_of_call(request_id, step, call_id), message, fraction)

    def cancel(self, request_id: str, reason: str = "cancelled by the caller") -> bool:
        """End a request: its model stream, its running tools, its waiting approvals. False if it is not running."""
        return self._running is not None and self._live().cancel(RequestId(request_id), reason)

    # -- requests of the journal

    def open_requests(self) -> tuple[OpenRequest, ...]:
        """The requests of this runtime that have not ended, those that were taken up from the journal among them: where
        each is, and what it waits for. It waits for callboard's loop, mostly some milliseconds."""
        running = self._live()
        with running.asking():
            found = [opened.described() for opened in tuple(running.requests.values())]
        return tuple(each for each in (*found, *running.left_open.values()) if each is not None)

    async def result(self, request_id: str) -> Reply[object]:
        """The reply of any request: of one that runs when it has ended, of an ended one from the journal.

        Cancelling the waiting task does not cancel the request. Raises what `ask` would have raised for it; UsageError
        for an id that neither this runtime nor its journal has, for a request that ended and was not journalled, and
        for an answer of a type that is not among `outputs`.
        """
        check_for_asyncio("await runtime.result(...)")
        answer = self._answer_of(request_id)
        if answer is not None:
            return await answer.wait_async()
        return await asyncio.to_thread(self._recorded, request_id)

    def result_sync(self, request_id: str) -> Reply[object]:
        """`result`, for code without an event loop."""
        check_may_wait("result_sync", "`await runtime.result(...)`")
        answer = self._answer_of(request_id)
        return answer.wait() if answer is not None else self._recorded(request_id)

    def _answer_of(self, request_id: str) -> Answer[object] | None:
        opened = self._live().requests.get(RequestId(request_id))
        return opened.answer if opened is not None else None

    @from_host
    def _recorded(self, request_id: str) -> Reply[object]:
        running = self._live()
        if running.records is None:
            raise UsageError(
                f"no request with the id {request_id!r} is running; with Settings(journal=...) those that have ended "
                "are kept"
            )
        log = running.records.written_request(RequestId(request_id))
        if log is None:
            raise UsageError(f"neither this runtime nor its journal has a request with the id {request_id!r}")
        if log.end is not None:
            return recorded_reply(log, log.end, self._outputs)
        if log.damage:
            raise RuntimeFailure(f"the record of the request is damaged: {log.damage}")
        left = running.left_open.get(log.request_id)
        why = left.waits_for if left is not None else "another process has it"
        raise UsageError(f"the request {request_id!r} has not ended, and does not run here: {why}")

    def _new_request(
        self, prompt: Prompt, options: AskOptions, output: TypeForm[T] | None = None
    ) -> new_request.NewRequest[T]:
        return new_request.NewRequest(self._live(), self._wiring, prompt, options, output)

    # -- a tool alone

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
        Cancelling the waiting task cancels the call. With a journal it is kept like a request: a process that ends
        meanwhile costs no second effect, and `result` has what became of it.

        Raises UsageError for arguments that are not JSON and for wrong options, RequestEnded when the runtime stops
        before the call has begun, RuntimeFailure when callboard could not finish it.
        """
        check_for_asyncio("await runtime.call_tool(...)")
        call = tool_call(name, arguments)
        said = said_with(call, options)
        new = new_request.NewRequest[str](self._live(), self._wiring, f"Call {call.name}.", said, direct=call)
        answer = new.answer
        shown: Subscriber = answer
        if on_progress is not None:
            shown = ProgressListener(answer, on_progress, asyncio.get_running_loop())
        try:
            return result_of(call.name, await new.ended(shown))
        except RequestEnded as ended:
            return result_of(call.name, ended.reply, ended)

    async def refresh_index(
        self, progress: Callable[[Progress], None] | None = None, *, timeout_seconds: float = REFRESH_TIMEOUT_SECONDS
    ) -> RefreshSummary:
        """Index what is new, changed or gone in the workspace, and get ready to answer by meaning too.

        Questions are answered meanwhile, from what is there. `progress` is called on the indexing thread. Raises
        UsageError without a workspace or when the index cannot be written.
        """
        running = self._live()
        if self._wiring.search is None:
            raise UsageError("there is nothing to index: this runtime has no workspace (Settings(workspace=...))")
        with running.asking():
            return await self._wiring.search.prepared(progress, timeout_seconds=timeout_seconds)

    # -- staged edits

    def proposals(self) -> tuple[Proposal, ...]:
        """The edits that tools have staged in this workspace, the oldest first, and what became of each.

        Those of other processes and of earlier ones are among them. It waits for callboard's disk, mostly some
        milliseconds. Raises UsageError without a workspace, or where the state folder cannot be used.
        """
        with self._edits() as edits:
            return edits.list()

    async def approve_edits(
        self, ids: Iterable[str] | None = None, *, contents: Mapping[str, str] | None = None
    ) -> tuple[Proposal, ...]:
        """Apply staged edits, all that are pending where no ids are given, and say what became of each.

        Each is applied whole or not at all: look at its `state`, and at its `reason` where that is not APPLIED.
        `contents` are new whole texts of files by their paths, in place of what was proposed. The model is told.
        Raises UsageError, and nothing is done, for an unknown id; RuntimeFailure where they cannot be reached.
        """
        with self._edits() as edits:
            return await edits.decide(DecideEdits.by_owner(ids, is_approved=True, contents=contents or {}))

    async def deny_edits(self, ids: Iterable[str] | None = None, reason: str = "") -> tuple[Proposal, ...]:
        """Give up staged edits, all that are pending where no ids are given; the model reads the reason."""
        with self._edits() as edits:
            return await edits.decide(DecideEdits.by_owner(ids, is_approved=False, reason=reason))

    def approve_edits_sync(
        self, ids: Iterable[str] | None = None, *, contents: Mapping[str, str] | None = None
    ) -> tuple[Proposal, ...]:
        """`approve_edits`, for code without an event loop."""
        with self._edits() as edits:
            return edits.decide_sync(DecideEdits.by_owner(ids, is_approved=True, contents=contents or {}))

    def deny_edits_sync(self, ids: Iterable[str] | None = None, reason: str = "") -> tuple[Proposal, ...]:
        """`deny_edits`, for code without an event loop."""
        with self._edits() as edits:
            return edits.decide_sync(DecideEdits.by_owner(ids, is_approved=False, reason=reason))

    @contextlib.contextmanager
    def _edits(self) -> Iterator[Edits]:
        running = self._live()
        if self._wiring.edits is None:
            raise UsageError("there are no edits: this runtime has no workspace (Settings(workspace=...))")
        with running.asking(changes=True):
            yield self._wiring.edits

    @property
    def journal(self) -> JournalHandle:
        """What is in the journal: conversations to go on with, search, usage. Raises UsageError without one."""
        running = self._live()
        if running.outbox is None:
            raise UsageError("this runtime has no journal: Settings(journal='path' or 'postgresql://...')")
        return topology.journal_handle(running.system, running.outbox)

    # -- looking in

    def index_note(self) -> str:
        """What a person should know of code search now, in one sentence: that the embedding model fails. Else ""."""
        self._live()
        return self._wiring.search.health.note if self._wiring.search is not None else ""

    def vectors(self) -> VectorState | None:
        """How many tiles of the code index can be found by meaning by now; None without a workspace or a model, and
        before that was looked at."""
        self._live()
        return self._wiring.vectors()

    def tools(self) -> tuple[ToolOffer, ...]:
        """The tools given and those that the workspace adds, each with what the policy says of it and what confines it.

        Models are offered those whose `decision` is not DENY.
        """
        self._live()
        return self._wiring.listed_tools()

    def offered(self) -> tuple[ToolOffer, ...]:
        """The tools that a model would be offered now: without those that are denied or withdrawn."""
        running = self._live()
        with running.asking():
            offers = running.peers.dispatcher.ask(ReadOffers(), OFFERS_TIMEOUT_SECONDS)
        return tuple(offer for offer in offers if offer.is_shown)

    def tool(self, name: str) -> Tool | None:
        """The tool of this name, of those given and those that the workspace adds; None where there is none."""
        self._live()
        if not isinstance(name, str):
            raise UsageError("tool(...) takes a name; the tools are given when it is made: Runtime(tools=[...])")
        return self._wiring.offered_tools.get(ToolName(name))

    def mcp(self, name: str) -> mcp_handle.McpHandle:
        """The MCP server of this name: its resources and prompts. Raises UsageError where no setting has it."""
        self._live()
        return mcp_handle.McpHandle(self._wiring.servers.link(name))

    def mcp_servers(self) -> tuple[ServerStatus, ...]:
        """How each MCP server of the settings is: its state, what its last connection failed with, its tools."""
        self._live()
        return self._wiring.servers.statuses

    def record_timelines(self) -> RequestTimelines:
        """Write from now on what each request does and when, to be read on any thread: those that run, and the last 200
        that have ended. To be called before `start`; raises UsageError afterwards."""
        if self._running is not None:
            self._live()
            raise UsageError("this runtime runs already: call record_timelines() before it is started")
        if self._wiring.timelines is None:
            self._wiring.timelines = RequestTimelines(kernel.LoopScheduler.now)
        return self._wiring.timelines

    def _live(self) -> started.StartedRuntime:
        """Raises UsageError where it does not run, and RuntimeFailure where its tree has ended."""
        running = self._begun()
        if (failure := running.failure) is not None:
            raise failure
        return running

    def _begun(self) -> started.StartedRuntime:
        running = self._running
        if running is None:
            raise UsageError("this runtime is not running; use it as `with Runtime(...) as runtime:`, or call start()")
        if running.process_id != os.getpid():
            raise UsageError("this runtime was started before its process was forked; make a new one after the fork")
        return running


def _check_list(tools: object) -> None:
    """Raise UsageError for one tool, its name, or a mapping in place of a list."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise wrong_calls.not_tools(tools, "functions")
