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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from callboard.actors import kernel
from callboard.actors.calls.approvals import ApprovalCallback, Approver, CallbackApprover, NobodyToAsk
from callboard.actors.calls.registry import offer_of
from callboard.actors.models.llm_manager import LlmManager, Route, start_on
from callboard.actors.models.refusals import Refusals
from callboard.actors.models.token_ratios import TokenRatios
from callboard.actors.models.windows import UNLIMITED, Windows
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.requests.conversation import Answer, Question, Reply, Stream
from callboard.actors.requests.history import Conversation
from callboard.actors.requests.request_session import RequestSession, SessionMessage, Subscriber
from callboard.actors.settings import Settings
from callboard.actors.telemetry.telemetry import Metrics, ReadMetrics, RequestLost, Telemetry, spans_where_installed
from callboard.actors.tools import Tool
from callboard.actors.tools.files import workspace_tools
from callboard.actors.topology import SESSION_CAPACITY, Plan, addresses_of, build
from callboard.actors.workers.kinds import kinds
from callboard.protocol.budgets import MIN_OUTPUT_TOKENS
from callboard.protocol.content import SystemMessage, UserMessage
from callboard.protocol.errors import CallboardError, RuntimeFailure, UsageError, missing_extra, said
from callboard.protocol.events import CancelRequested
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.limits import MAX_CALL_TOKENS
from callboard.protocol.machine import Session
from callboard.protocol.options import RequestOptions, ToolFallback, ToolOffer
from callboard.protocol.prompt_tokens import estimate_tokens, message_tokens
from callboard.providers.adapter import Provider, Timeouts
from callboard.providers.catalog import Prices
from callboard.providers.local.offline import CONTEXT_TOOL
from callboard.providers.provider_registry import KEY_VARIABLES, embeddings_for, provider_for, split_model
from callboard.providers.rate_limit import RateLimits
from callboard.providers.retry import RetryPolicy
from callboard.providers.tokenizers import counter_for

if TYPE_CHECKING:
    from callboard.actors.index import Progress, RefreshSummary
    from callboard.actors.index.rag import CodeSearch
    from callboard.providers.openai.embeddings import EmbeddingApi

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
#: A snapshot is a copy of some counters; a wait this long means that something holds the loop.
METRICS_TIMEOUT_SECONDS: Final = 5.0
#: Connections are closed within this time, or left to the end of the process.
CLOSE_PROVIDERS_SECONDS: Final = 2.0
#: Behind the request's own deadline of 30 s.
EMBEDDING_WAIT_SECONDS: Final = 35.0


class Runtime:
    """Runs requests under supervision.

        async with Runtime(Settings(model="openai/gpt-6.1-sol"), tools=[lookup]) as runtime:
            reply = await runtime.ask("What is the weather in Oslo?")

    `tools` are functions decorated with `@tool`. `approve` decides on calls that the policy asks about (sync or async,
    True to allow); without it they are denied. Raises UsageError for bad settings or tools, before anything is started.
    A runtime that is dropped without `stop` is stopped, with a ResourceWarning.
    """

    def __init__(
        self, settings: Settings | None = None, tools: Iterable[Tool] = (), *, approve: ApprovalCallback | None = None
    ) -> None:
        self.settings = settings or Settings()
        self._approve = approve
        self._wiring = Wiring(self.settings, tools)
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
            self._running = running = _Running(self._wiring, self._approve)
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

    async def ask(self, text: str, *, conversation: Conversation | None = None, request_id: str = "") -> Reply:
        """Ask, and wait for the answer. Cancelling the waiting task cancels the request.

        `request_id` names the request, so that another task can `cancel` it; "" makes one up. The caller's context
        variables travel with the request: into its task tools, threads, approvals, log records and spans.

        Raises ModelCallFailed (a ProviderError) when the model could not be asked, RequestEnded when the request was
        cancelled or ran out of time or budget (both have `.reply`), RuntimeFailure when callboard could not finish it,
        UsageError for an empty text or a conversation that no provider would accept.
        """
        _check_for_asyncio("await runtime.ask(...)")
        answer = self._answer(conversation, request_id)
        self._begin(text, answer)
        try:
            return await answer.wait_async()
        except asyncio.CancelledError:
            self.cancel(answer.tag.request_id)
            raise

    def ask_sync(self, text: str, *, conversation: Conversation | None = None, request_id: str = "") -> Reply:
        """`ask`, for code without an event loop. Ctrl-C while it waits cancels the request."""
        answer = self._answer(conversation, request_id)
        self._begin(text, answer)
        try:
            return answer.wait()
        except BaseException:  # also what a signal handler raises
            self.cancel(answer.tag.request_id)
            raise

    def stream(self, text: str, *, conversation: Conversation | None = None, request_id: str = "") -> Stream:
        """Ask, and see everything as it happens: `async for event in runtime.stream(text)`; the Reply comes last.

        Call it where an event loop runs. Raises what `ask` raises, from the iteration. A reader that leaves more than
        MAX_UNREAD_BYTES unread loses the request.
        """
        _check_for_asyncio("runtime.stream(...)")
        stream = Stream(self._answer(conversation, request_id), self._live().cancel)
        self._begin(text, stream.answer, reader=stream)
        return stream

    def cancel(self, request_id: str, reason: str = "cancelled by the caller") -> bool:
        """End a request: its model stream, its running tools, its waiting approvals. False if it is not running."""
        return self._running is not None and self._live().cancel(RequestId(request_id), reason)

    def _answer(self, conversation: Conversation | None, request_id: str) -> Answer:
        if "/" in request_id:
            raise UsageError(f"the request id {request_id!r} has a slash in it; leave it out")
        tag = _tag_of(RequestId(request_id or uuid.uuid4().hex))
        return Answer(conversation or Conversation(), tag, self._wiring.options.timeout_seconds)

    def _begin(self, text: str, answer: Answer, reader: Stream | None = None) -> None:
        if not isinstance(text, str):
            raise UsageError(f"the question must be a str, not {type(text).__name__}")
        if not text.strip():
            raise UsageError("the question is empty; say what you want to know")
        running = self._live()
        if len(running.sessions) >= self.settings.max_concurrent_requests:
            raise RuntimeFailure(f"overloaded: {len(running.sessions)} requests are running; try again later")
        answer.conversation.take()
        asked_at, asker = running.system.now(), copy_context()
        history, user, options = answer.conversation.messages, UserMessage.of(text), self._wiring.options_now(asked_at)
        is_read_along, compacted = reader is not None, answer.conversation.compacted
        question = Question(answer.tag, history, user, options, asked_at, asker, is_read_along, compacted)
        try:
            running.begin(question, answer, reader or answer)
        except BaseException as error:
            answer.conversation.release()
            if isinstance(error, kernel.NameTaken):
                request_id = answer.tag.request_id
                raise UsageError(f"a request with the id {request_id!r} is running; choose another") from None
            if isinstance(error, kernel.ActorDeadError):
                raise RuntimeFailure("this runtime is stopping, or has failed too often; start it again") from error
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

    # -- looking in

    def index_note(self) -> str:
        """What a person should know of code search now, in one sentence: that the embedding model fails. Else ""."""
        self._live()
        return self._wiring.search.health.note if self._wiring.search is not None else ""

    def tools(self) -> tuple[ToolOffer, ...]:
        """The tools given and those that the workspace adds, each with what the policy says of it.

        Models are offered those whose `decision` is not DENY.
        """
        self._live()
        tools = (*self._wiring.tools, *self._wiring.code_tools)
        return tuple(offer_of(tool, self.settings.policy) for tool in tools)

    def metrics(self) -> Metrics:
        """What was counted since the start: calls, failures, tokens, restarts, latencies by tool and model."""
        running = self._live()
        metrics = running.peers.telemetry.ask(ReadMetrics(), METRICS_TIMEOUT_SECONDS)
        metrics.counters["actors.restarted"] = running.system.statistics().restarts
        return metrics

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

    def __init__(self, wiring: Wiring, approve: ApprovalCallback | None) -> None:
        self.process_id = os.getpid()
        self._make_session = partial(Session, count_tokens=wiring.count_tokens)
        self.sessions: dict[RequestId, kernel.Ref[SessionMessage]] = {}
        try:
            with contextlib.ExitStack() as begun:  # what fails here ends what has begun before it
                self._start(begun, wiring, approve)
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
        self._windows, self._route = Windows(), wiring.routes[0]
        begun.callback(scheduler.loop.call_soon_threadsafe, self._windows.cancel)
        approver: Approver = CallbackApprover(approve) if approve else NobodyToAsk()
        begun.callback(approver.close)
        self.system = kernel.ActorSystem(scheduler, dead_letters_kept=DEAD_LETTERS_KEPT)
        begun.callback(self._stop_actors)
        build(self.system, wiring.plan(self.system, scheduler, approver))
        self.system.wait_until_started(self.system.ref("root"), START_SECONDS)
        self._supervisor, self.peers = addresses_of(self.system, START_SECONDS)

    def begin(self, question: Question, answer: Answer, subscriber: Subscriber) -> None:
        """Start the session; its answer settles exactly once, even if the session is lost."""
        request_id = question.tag.request_id
        is_open = question.options.context_tokens is None and self._route.name.partition("/")[0] not in UNLIMITED
        find = partial(self._windows.find, self._route) if is_open else None
        make = self._make_session
        start = partial(RequestSession, question, self.peers, subscriber, answer.record, make, find_window=find)
        spec = kernel.ChildSpec(str(request_id), start, restart=kernel.Restart.TEMPORARY, capacity=SESSION_CAPACITY)
        ref = kernel.start_child(self._supervisor, spec)
        self.sessions[request_id] = ref

        def ended(down: kernel.Down) -> None:
            if self.sessions.get(request_id) is ref:  # the name is free before the asker knows
                del self.sessions[request_id]
            if answer.session_ended(down):
                with contextlib.suppress(kernel.MailboxFull):
                    self.peers.telemetry.tell(RequestLost(question.tag))

        self.system.watch(ref, ended)

    def cancel(self, request_id: RequestId, reason: str) -> bool:
        ref = self.sessions.get(request_id)
        if ref is None:
            return False
        ref.tell_control(CancelRequested(_tag_of(request_id), self.system.now(), reason))
        return True

    def _stop_actors(self) -> None:
        if not self.system.shutdown(SHUTDOWN_SECONDS):
            logger.warning("some actors did not stop within %s s and were killed", SHUTDOWN_SECONDS)


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


# -- from settings to the plan of a tree


class Wiring:
    """The parts of one runtime; they outlive its starts and stops. Raises UsageError for bad settings or tools."""

    def __init__(self, settings: Settings, tools: Iterable[Tool]) -> None:
        self.settings = settings
        files = workspace_tools(settings.workspace, settings.secret_rules) if settings.workspace else ()
        self.tools = _checked([*tools, *files])
        limits = RateLimits(kernel.LoopScheduler.now, settings.rate_limits)
        self.routes = tuple(route_for(settings, model, limits) for model in (settings.model, *settings.fallback_models))
        self.options = _options(settings, self.routes)
        self.count_tokens = counter_for(settings.model)
        self._token_ratios = TokenRatios()
        self._refusals = Refusals(remembers_no_tools=settings.tool_fallback is ToolFallback.RETRY_WITHOUT_TOOLS)
        self._embeddings: EmbeddingApi | None = None
        if model := settings.embedding_model:
            key = settings.key_for(model.partition("/")[0])
            self._embeddings = embeddings_for(model, base_url=settings.embedding_base_url, api_key=key)
        self._make_spans = spans_where_installed()
        self.search: CodeSearch | None = None
        """The code index of the tree that was started last, where there is a workspace."""
        self.code_tools: tuple[Tool, ...] = ()
        if settings.workspace is not None:
            _import_index(settings)

    def options_now(self, now: float) -> RequestOptions:
        """For a request that begins now: with what was learned of the model so far."""
        name = self.routes[0].name
        windows = [tokens for tokens in (self.options.context_tokens, self._refusals.window(name, now)) if tokens]
        return replace(
            self.options,
            token_ratio=self._token_ratios.ratio(name),
            context_tokens=min(windows, default=None),
            takes_tools=self._refusals.takes_tools(name, now),
        )

    def routes_from(self, model: str) -> tuple[Route, ...]:
        """The routes to try in turn: that of this model and those behind it. A fallback is named once it has refused
        tools."""
        at = next((place for place, route in enumerate(self.routes) if route.name == model), 0)
        return self.routes[at:]

    def plan(self, system: kernel.ActorSystem, scheduler: kernel.LoopScheduler, approver: Approver) -> Plan:
        """The tree of a runtime that starts now."""
        settings, metrics = self.settings, Metrics()
        processes = ProcessOptions(
            settings.process_workers,
            settings.warm_workers,
            settings.worker_memory_bytes,
            environment=settings.environment_for_tools,
        )
        start, retry, cost = start_on(scheduler.loop), RetryPolicy(), settings.catalog.cost_of
        code_actors = self._code_actors(system, scheduler)
        return Plan(
            telemetry=lambda: Telemetry(self._make_spans(), settings.log_content, metrics),
            llm_manager=lambda: LlmManager(self.routes_from, start, retry, cost, self._token_ratios, self._refusals),
            workers=kinds(processes),
            tools=(*self.tools, *self.code_tools),
            approver=approver,
            policy=settings.policy,
            workspace=settings.workspace,
            failure_budget=settings.tool_failure_budget,
            threads=code_actors,
        )

    def _code_actors(self, system: kernel.ActorSystem, scheduler: kernel.LoopScheduler) -> tuple[kernel.ChildSpec, ...]:
        """What a workspace adds to the tree; the extra `index` is not needed without one."""
        settings = self.settings
        if settings.workspace is None:
            return ()
        from callboard.actors.index import rag  # noqa: PLC0415 - the extra `index`

        post = partial(_post, self._embeddings, scheduler) if self._embeddings is not None else None
        self.search = rag.CodeSearch(system, post, settings.embedding_model)
        self.code_tools = (rag.context_tool(self.search).owned,)
        return rag.code_actors(settings.workspace, settings.index_dir, self.search.embedder, settings.secret_rules)

    def close(self, scheduler: kernel.LoopScheduler) -> None:
        """Close the providers' connections, on the loop they live on."""

        async def close(held: Provider | EmbeddingApi) -> None:
            try:
                await held.aclose()
            except Exception as error:  # noqa: BLE001 - of a provider written by a user
                logger.warning("a provider's connections could not be closed: %s", said(error))

        async def close_all() -> None:
            held = [route.provider for route in self.routes] + ([self._embeddings] if self._embeddings else [])
            await asyncio.gather(*map(close, held))

        try:
            asyncio.run_coroutine_threadsafe(close_all(), scheduler.loop).result(CLOSE_PROVIDERS_SECONDS)
        except TimeoutError:
            logger.warning("some providers' connections were not closed within %s s", CLOSE_PROVIDERS_SECONDS)


def _post(api: EmbeddingApi, scheduler: kernel.LoopScheduler, body: Mapping[str, object]) -> Mapping[str, object]:
    """For the index's own thread, which may block: the request itself runs on the loop."""
    return asyncio.run_coroutine_threadsafe(api.post(body), scheduler.loop).result(EMBEDDING_WAIT_SECONDS)


def _import_index(settings: Settings) -> None:
    """Load the extra `index`. UsageError where it is missing."""
    try:
        from callboard.actors.index import dense, rag  # noqa: F401, PLC0415
    except ImportError as missing:
        raise UsageError(missing_extra(f"a workspace ({missing})", "index")) from missing
    dense.import_ahead(local=not settings.embedding_model)


def _checked(tools: list[Tool]) -> tuple[Tool, ...]:
    """Each tool can run where it says, and no two share a name."""
    names = {CONTEXT_TOOL}
    for each in tools:
        if not isinstance(each, Tool):
            raise UsageError(f"{each!r} is not a tool; decorate the function with @tool")
        if each.name in names:
            raise UsageError(f"two tools are called {each.name!r}; rename one with @tool(name=...)")
        names.add(each.name)
        each.owned.check()
    return tuple(each.owned for each in tools)


def route_for(settings: Settings, model: str, limits: RateLimits) -> Route:
    """How to ask "provider/model" with these settings. Raises UsageError for an unknown one or a missing key."""
    provider, _ = split_model(model)
    key = settings.key_for(provider)
    options: dict[str, Any] = {**settings.options_for(provider)}
    address = options.pop("base_url", None)
    if provider == settings.provider:
        address = settings.base_url or address
    # As its own client has it: a token of the environment's comes before a key of the environment's.
    if "token" in options and settings.key_source(provider) == KEY_VARIABLES.get(provider):
        key = None
    elif key:
        options.pop("token", None)
    if provider == "offline":
        options["cwd"] = os.getcwd()
    if provider == "scripted" and settings.script is not None:
        options["script"] = settings.script
    if provider == "copilot" and key is None:
        options["login_file"] = settings.copilot_token_file
    limiter = limits.limiter(provider, key)
    found, name = provider_for(
        model,
        base_url=address,
        api_key=key,
        timeouts=Timeouts(
            idle_seconds=settings.stream_idle_timeout_seconds, total_seconds=settings.stream_total_timeout_seconds
        ),
        on_headers=limiter.on_headers,
        **options,
    )
    return Route(found, name, limiter, model)


def _options(settings: Settings, routes: Iterable[Route]) -> RequestOptions:
    provider, model = split_model(settings.model)
    context_tokens = settings.context_tokens or settings.catalog.info(provider, model).context_tokens
    prices = _dearest(settings, [route.name for route in routes], context_tokens)
    system_prompt, tool_prompt = settings.system_prompt, ""
    if settings.workspace and not system_prompt:
        system_prompt, tool_prompt = _WORKSPACE_PROMPT.format(workspace=settings.workspace), _WORKSPACE_TOOLS_PROMPT
    least = message_tokens(SystemMessage(system_prompt + tool_prompt), estimate_tokens) + MIN_OUTPUT_TOKENS
    if settings.token_budget is not None and settings.token_budget < least:
        raise UsageError(
            f"no question fits a token_budget of {settings.token_budget}: instructions and the shortest answer need "
            f"at least {least} tokens; give it more"
        )
    return RequestOptions(
        model=settings.model,
        system_prompt=system_prompt,
        tool_prompt=tool_prompt,
        timeout_seconds=settings.request_timeout_seconds,
        max_steps=settings.max_steps,
        token_budget=settings.token_budget,
        cost_budget=settings.cost_budget,
        input_price=prices.input if prices else None,
        output_price=prices.output if prices else None,
        context_tokens=context_tokens,
        sampling=settings.sampling,
        prompt_cache=settings.prompt_cache,
        tool_fallback=settings.tool_fallback,
        max_attempts=settings.max_attempts,
        history_share=settings.history_share,
        result_share=settings.result_share,
        compaction=settings.compaction,
    )


def _dearest(settings: Settings, models: Iterable[str], context_tokens: int | None) -> Prices | None:
    """By which the cost of a step is estimated: any of the models may answer it. None where one has no known price.

    Raises UsageError for a cost budget that could not be kept.
    """
    tokens = MAX_CALL_TOKENS if context_tokens is None else context_tokens
    prices = {name: settings.catalog.dearest(*split_model(name), tokens, settings.prompt_cache) for name in models}
    known = [price for price in prices.values() if price is not None]
    if len(known) == len(prices):
        return Prices(max(price.input for price in known), max(price.output for price in known))
    if settings.cost_budget is not None:
        unknown = next(name for name, price in prices.items() if price is None)
        raise UsageError(
            f"cost_budget cannot be kept, since no price of {unknown} is known: give one, "
            f'Settings(catalog=Catalog({{"{unknown}": ModelInfo(prices=Prices(input=..., output=...))}})), in US '
            "dollars a token (0 where it is free), or leave cost_budget out"
        )
    return None


#: What is asked of a model that answers about a workspace.
_WORKSPACE_PROMPT: Final = """\
You answer questions about the code in {workspace}. Say only what the code shows, and name the place as file:lines."""
#: What the code tools are for, and how code is written. A model that takes no tools does not read it.
_WORKSPACE_TOOLS_PROMPT: Final = """\
Look before you answer: request_code_context finds the code that a question is about, read_file and list_dir show the \
rest.

Show code in the form in which the tools give it to you, with the absolute path and the byte offsets of the span:
<code="/absolute/path" #START:END>
...
</code>"""
