"""What a runtime is made of: from Settings to the plan of its tree, and to all that one question asks for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors import kernel
from callboard.actors.builtins import Workspace, builtin_tools
from callboard.actors.builtins.job_tools import job_tools
from callboard.actors.builtins.jobs import jobs_actor
from callboard.actors.builtins.tool_set import ADDED_AT_START
from callboard.actors.calls.approvals import Approver, NobodyToAsk
from callboard.actors.calls.dispatcher import ReplaceTools
from callboard.actors.calls.ledger import Ledger
from callboard.actors.calls.registry import GIVEN, offer_of
from callboard.actors.journal.opening import journal_plan
from callboard.actors.journal.places import is_server
from callboard.actors.journal.transactions import transaction_fault
from callboard.actors.mcp.named_files import named_files
from callboard.actors.mcp.server_hub import ServerHub
from callboard.actors.mcp.server_link import ServerLink
from callboard.actors.models.embedding_access import embedding_api
from callboard.actors.models.llm_manager import LlmManager, Route, start_on
from callboard.actors.models.refusals import Refusals
from callboard.actors.models.routing import OwnProviders, Router
from callboard.actors.models.suitability import suitable
from callboard.actors.models.token_ratios import TokenRatios
from callboard.actors.models.windows import UNLIMITED
from callboard.actors.policy.addresses import AllowedAddresses
from callboard.actors.policy.judge import CallJudge, JudgingApprover
from callboard.actors.policy.saved_rules import SavedRules
from callboard.actors.processes.confinement import check_hosts, confinement_of, kernel_support
from callboard.actors.processes.keeper import check_confinement, masks_secrets
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.reloading import EarlierProviders, check_reload, close_provider
from callboard.actors.requests import asking
from callboard.actors.requests.asking import AskOptions
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.read_earlier import read_tool
from callboard.actors.requests.tool_selection import ALL, ToolSelection, named_as_ours, selection_of
from callboard.actors.settings import OFFLINE_MODEL, Settings
from callboard.actors.telemetry import extras
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.telemetry.sampling import samples
from callboard.actors.telemetry.spans import BeginSpans
from callboard.actors.telemetry.telemetry import Telemetry
from callboard.actors.telemetry.timelines import RequestTimelines
from callboard.actors.tools import Tool
from callboard.actors.tools.decorator import as_tool
from callboard.actors.tools.schema import is_ours
from callboard.actors.topology import JournalPlan, Plan
from callboard.actors.workers.kinds import kinds
from callboard.protocol.budgets import MIN_OUTPUT_TOKENS
from callboard.protocol.compaction import READ_TOOL
from callboard.protocol.content import Message, SystemMessage, Text, UserMessage
from callboard.protocol.errors import UsageError, missing_extra
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import RequestId, ToolName
from callboard.protocol.limits import MAX_CALL_TOKENS
from callboard.protocol.model import ModelRequest, PromptCache, ToolChoice, ToolChoiceMode
from callboard.protocol.options import RequestOptions, ToolFallback, ToolOffer, request_of
from callboard.protocol.output import OutputMode, OutputSpec
from callboard.protocol.policy import Mode
from callboard.protocol.prompt_tokens import TokenCounter, estimate_tokens, message_tokens
from callboard.protocol.tools import ToolDefinition
from callboard.providers.catalog import Prices
from callboard.providers.example_models import example
from callboard.providers.local.offline import CONTEXT_TOOL
from callboard.providers.output_modes import output_modes
from callboard.providers.rate_limit import RateLimits
from callboard.providers.retry import RetryPolicy
from callboard.providers.tokenizers import counter_for, encoding_of

if TYPE_CHECKING:
    from callboard.actors.edits.editing import Edits
    from callboard.actors.index.rag import CodeSearch
    from callboard.actors.index.vector_making import VectorState
    from callboard.providers.openai.embeddings import EmbeddingApi

logger = logging.getLogger("callboard")

#: Connections are closed within this time, or left to the end of the process.
CLOSE_PROVIDERS_SECONDS: Final = 2.0
#: Behind the wait for a busy server (20 s) and the deadline of its last try (30 s).
EMBEDDING_WAIT_SECONDS: Final = 55.0
#: How one names a model, for who has named none.
NO_MODEL: Final = (
    f'no model is named: set CALLBOARD_MODEL, or give Settings(model="{example("openai")}"), or model= with the '
    f'question; "{OFFLINE_MODEL}" answers from the code index alone, without a model'
)
#: Models whose facts are kept; a program that makes up names must not fill the memory.
MAX_MODELS: Final = 1_000


class KnownModel(Struct, frozen=True):
    """What is known of a model before a request asks it."""

    routes: tuple[Route, ...]
    """The model itself, then the fallbacks."""
    options: RequestOptions
    """By the settings, without what was learned."""
    count_tokens: TokenCounter
    counter: str = ""
    """The name of the vocabulary by which it counts; "" for the estimate."""

    @property
    def is_unlimited(self) -> bool:
        """There is no model behind it: nothing is too long."""
        return self.routes[0].name.partition("/")[0] in UNLIMITED


class Asked(Struct, frozen=True):
    """What one question asks for, by the settings and its own options: nothing is wrong with it."""

    user: UserMessage
    at: float
    """By the runtime's clock."""
    model: KnownModel
    options: RequestOptions
    routes: tuple[Route, ...]
    """Of the model's, those that can be asked this."""
    tools: ToolSelection = ToolSelection()
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    added: tuple[Message, ...] = ()
    """With which the request begins: the step that was open, whole now."""


def _checked_loop(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop | None:
    if loop is not None and not isinstance(loop, asyncio.AbstractEventLoop):
        raise UsageError(
            f"Runtime(loop=...) takes an event loop, such as asyncio.get_running_loop(), not {loop!r:.100}"
        )
    return loop


_TRIAL: Final = UserMessage.of("?")


class Wiring:
    """The parts of one runtime; they outlive its starts and stops. Raises UsageError for bad settings or tools."""

    timelines: RequestTimelines | None = None
    """Where what each request does is written, where that is wanted."""

    def __init__(
        self,
        settings: Settings,
        tools: Iterable[Callable[..., object]],
        providers: OwnProviders | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        limits: RateLimits | None = None,
    ) -> None:
        """`loop`: where the tools of callers run; None: each on the loop from which it was asked. `limits`: what has
        been used of them so far; None: nothing."""
        self.settings, self._loop = settings, _checked_loop(loop)
        check_confinement(settings.confine)
        builtins = builtin_tools(workspace_of(settings)) if settings.workspace else ()
        self.conversations: dict[RequestId, Conversation] = {}
        """Of the requests that run, where a tool may read them."""
        compaction = settings.compaction
        reads = (read_tool(self.conversations.get),) if compaction is not None and compaction.read_back else ()
        own = (*builtins, *reads)
        added = ADDED_AT_START if settings.workspace else ()
        self.tools = _checked([*map(as_tool, tools)], own, {CONTEXT_TOOL, *added, *(each.name for each in own)})
        self._check_tools()
        self._limits = limits or RateLimits(kernel.LoopScheduler.now, settings.rate_limits)
        self._router = Router(settings, self._limits, providers)
        self._earlier = EarlierProviders()
        """Of settings that were replaced."""
        self._models: dict[str, KnownModel] = {}
        self._learning = Lock()
        self._last_options: tuple[dict[str, Any], RequestOptions] | None = None
        """Of the last question that had none of its own, and what was learned of the model then."""
        self._token_ratios = TokenRatios()
        self._refusals = Refusals(remembers_no_tools=settings.tool_fallback is ToolFallback.RETRY_WITHOUT_TOOLS)
        self.saved_rules = SavedRules(settings.config_dir, settings.workspace)
        """What the owner has answered for always."""
        self.model = self.known(settings.model or OFFLINE_MODEL)
        """That of the settings; where they name none, what stands in its place for calls without a model."""
        if compaction is not None and compaction.model:
            self.known(compaction.model)
        trial = _first_request(_TRIAL, self.model.options)
        self._asks_for_more = trial != _first_request(_TRIAL, RequestOptions(""))
        """Do the settings ask for what not every model can do?"""
        if self._asks_for_more and settings.model:
            suitable(self.model.routes, trial)
        self._embeddings: EmbeddingApi | None = None
        if model := settings.embedding_model:
            self._embeddings = embedding_api(settings, model)
        tracing = extras.tracing(settings.log_content)
        self.begin_spans: BeginSpans | None = None if tracing is None else tracing.begin
        self._find_export = extras.find_export()
        self.search: CodeSearch | None = None
        """The code index of the tree that was started last, where there is a workspace."""
        self.edits: Edits | None = None
        """The staged edits of the workspace, likewise."""
        self.code_tools: tuple[Tool, ...] = ()
        self.make_journal: Callable[[], JournalPlan | None] = partial(journal_plan, settings)
        """For each start."""
        self.servers = ServerHub(
            settings.mcp_servers,
            self._own_names,
            settings.config_dir,
            AllowedAddresses(settings.allowed_addresses),
            state=settings.state_dir,
        )
        if settings.workspace is not None:
            _import_index()

    def reload(self, settings: Settings, tools: Iterable[Callable[..., object]], own: OwnProviders | None) -> None:
        """Requests that begin from now on are as these say; those that run ask by these at their next model call.

        The dispatcher must be told of the tools (`given_tools`). Raises UsageError, and changes nothing then.
        """
        check_reload(self.settings, settings)
        has_same_limits = settings.rate_limits == self.settings.rate_limits
        new = Wiring(settings, tools, own, limits=self._limits if has_same_limits else None)
        with self._learning:
            earlier = self._router.providers
            transports = [each for each in self.settings.transports if each not in settings.transports]
            self.settings, self.tools, self._limits = settings, new.tools, new._limits
            self._router, self._models, self._last_options = new._router, new._models, None
            self.model, self._asks_for_more = new.model, new._asks_for_more
        self._token_ratios.forget()
        self._refusals.forget(remembers_no_tools=settings.tool_fallback is ToolFallback.RETRY_WITHOUT_TOOLS)
        self._earlier.add([*earlier, *transports], own or {})

    @property
    def given_tools(self) -> tuple[Tool, ...]:
        """Those of the program that has made the runtime, and those that the workspace adds."""
        return (*self.tools, *self.code_tools)

    def _renewed(self, route: Route) -> Route:
        """As it is now, where the settings were reloaded since; as it was where it is gone."""
        if not self._earlier.were_replaced:
            return route
        try:
            return self._router.route(route.name)
        except UsageError:
            return route

    @property
    def offered_tools(self) -> dict[ToolName, Tool]:
        """Those given, those that the workspace adds, and what the MCP servers offer now."""
        return {tool.name: tool for tool in (*self.tools, *self.code_tools, *self.servers.tools)}

    def _own_names(self) -> tuple[ToolName, ...]:
        return tuple(tool.name for tool in (*self.tools, *self.code_tools))

    def known(self, model: str) -> KnownModel:
        """All that is known of "provider/model". UsageError for an unknown provider or a missing key."""
        found = self._models.get(model)
        if found is None:
            with self._learning:
                found = self._models[model] = self._find(model)
                if len(self._models) > MAX_MODELS:
                    del self._models[next(iter(self._models))]
        return found

    def knows_model_of(self, given: AskOptions) -> bool:
        """Is the model of this question known already? To find one may load its adapter, a third of a second.

        Raises UsageError for a model of no provider.
        """
        model = given.get("model")
        if not isinstance(model, str) or model in self._models:
            return True  # what is no text is refused
        self._router.split(model)
        return False

    def _find(self, model: str) -> KnownModel:
        settings = self.settings
        names = tuple(dict.fromkeys((model, *settings.fallback_models)))
        routes = tuple(map(self._router.route, names))
        options = _options(settings, model, names)
        _check_budgets(settings, options, names)
        # A vocabulary takes up to half a second to load, which no running request may wait for.
        count_tokens = counter_for(model, may_load=model == settings.model)
        counter = "" if count_tokens is estimate_tokens else encoding_of(model)
        return KnownModel(routes, options, count_tokens, counter)

    def asked(self, user: UserMessage, given: AskOptions, now: float, form: OutputSpec | None = None) -> Asked:
        """What this question asks for. Raises UsageError for options that are wrong or contradict each other."""
        model = self._model_of(given) if given else self.model
        options = self.options_now(model, now, given)
        if form is not None:
            options = self._with_output(model, options, form, now)
        asked = Asked(user, now, model, options, model.routes)
        if not (given or has_media(user)):
            return asked
        offer_of_tool = partial(self._offer_of, mode=options.mode)
        tools = selection_of(given.get("tools", (ALL,)), self.offered_tools, offer_of_tool)
        if tools.names and READ_TOOL in self.offered_tools:
            tools = replace(tools, names=tools.names | {READ_TOOL})  # a part of the compaction, not of the choice
        for own in tools.own.values():
            self._check_effect(own)
        of_runtime = map(offer_of_tool, self.offered_tools.values())
        offered = tuple(offer.definition for offer in tools.offers(of_runtime) if offer.is_shown)
        asking.check_choices(given, options, [tool.name for tool in offered])
        routes: tuple[Route, ...] = model.routes
        notes: tuple[str, ...] = ()
        if self._may_be_unsuitable(user, model, given):
            routes, notes = suitable(model.routes, _first_request(user, options, offered))
        metadata = asking.metadata_of(given.get("metadata", {}))
        return replace(asked, routes=routes, tools=tools, notes=notes, metadata=metadata)

    def taken_up(self, started: RequestStarted, counter: str, *, is_direct: bool) -> Asked:
        """What a request asks for that was open in the journal, and had its tokens counted so.

        Raises UsageError where its model cannot be asked."""
        options, user = started.options, started.user
        model = self.model if is_direct else self.known(options.model)
        if counter != model.counter:  # what is left out of a prompt depends on it, and the summaries made of that
            count_tokens = counter_for(options.model) if counter else estimate_tokens
            model = replace(model, count_tokens=count_tokens, counter=counter)
        offered = tuple(offer.definition for offer in started.tools if offer.is_shown)
        routes = model.routes if is_direct else suitable(model.routes, _first_request(user, options, offered))[0]
        return Asked(user, started.at, model, options, routes)

    def _check_tools(self) -> None:
        settings = self.settings
        for each in self.tools:
            held_to = confinement_of(each.contract, kernel_support(), settings.confine, settings.workspace)
            check_hosts(each.name, held_to, settings.confine)
            self._check_effect(each)

    def _check_effect(self, tool: Tool) -> None:
        place = self.settings.journal
        on_server = place is not None and is_server(place)
        if fault := transaction_fault(tool.contract, has_journal=place is not None, on_server=on_server):
            raise UsageError(f"tool {tool.name}: {fault}")

    def _with_output(self, model: KnownModel, options: RequestOptions, form: OutputSpec, now: float) -> RequestOptions:
        """With the form of the answer, and the ways to ask this model for it."""
        name = model.routes[0].name
        provider, _, own_name = name.partition("/")
        modes, is_native_alone = output_modes(provider, own_name, form.schema)
        if len(form.modes) == 1:  # chosen by the asker
            modes = form.modes
        elif not self._refusals.takes_schemas(name, now, form.schema):
            modes = tuple(mode for mode in modes if mode is not OutputMode.NATIVE)
        if modes == (OutputMode.TOOL,) and options.tool_choice.mode is ToolChoiceMode.NONE:
            raise UsageError('an output by a tool call needs tool_choice "auto"; leave one of the two out')
        return replace(options, output=replace(form, modes=modes, is_native_alone=is_native_alone))

    def _may_be_unsuitable(self, user: UserMessage, model: KnownModel, given: AskOptions) -> bool:
        """Does the question, or what the settings say of all questions, ask for what not every model can do?"""
        is_elsewhere = model is not self.model and self._asks_for_more
        return has_media(user) or is_elsewhere or not asking.OF_EVERY_API.issuperset(given)

    def check_named(self, given: AskOptions) -> None:
        """Raise UsageError where neither the settings nor the question name a model."""
        if not self.settings.model and "model" not in given:
            raise UsageError(NO_MODEL)

    def _model_of(self, given: AskOptions) -> KnownModel:
        if "model" not in given:
            return self.model
        if not isinstance(given["model"], str):
            raise UsageError(f'model must be "provider/model", not {given["model"]!r}')
        return self.known(asking.sendable("model", given["model"]))

    def options_now(self, model: KnownModel, now: float, given: AskOptions) -> RequestOptions:
        """For a request that begins now: with what was learned of the model so far, and what its asker says."""
        name, options = model.routes[0].name, model.options
        windows = [tokens for tokens in (options.context_tokens, self._refusals.window(name, now)) if tokens]
        learned: dict[str, Any] = {
            "token_ratio": self._token_ratios.ratio(name),
            "context_tokens": min(windows, default=None),
            "takes_tools": self._refusals.takes_tools(name, now),
        }
        if not given:
            last = self._last_options
            if last is None or last[0] != learned:  # seldom: it takes 7 us
                last = self._last_options = learned, replace(options, **learned)
            return last[1]
        names = tuple(route.name for route in model.routes)
        learned = learned | asking.fields_of(given, options)
        if "instructions" in given:
            learned["tool_prompt"] = ""
        if "prompt_cache" in given and options.input_price is not None:
            prices = _dearest(self.settings, names, options.context_tokens, learned["prompt_cache"])
            learned["input_price"] = prices.input if prices else None
        options = replace(options, **learned)
        _check_budgets(self.settings, options, names)
        return options

    def judge(self) -> CallJudge:
        """The judge of calls of a runtime that starts now."""
        settings = self.settings
        allowed = AllowedAddresses(settings.allowed_addresses)
        saved = self.saved_rules.judge
        masks = partial(masks_secrets, settings.confine)
        return CallJudge(
            settings.policy,
            settings.workspace,
            settings.secret_rules,
            saved,
            allowed,
            masks,
            settings.more_workspaces,
            # What MCP servers run of the workspace, which neither confined tools nor edits change unasked.
            named_files(settings.mcp_servers.values(), settings.workspace) if settings.workspace else (),
        )

    def plan(
        self, system: kernel.ActorSystem, scheduler: kernel.LoopScheduler, approver: Approver, judge: CallJudge
    ) -> Plan:
        """The tree of a runtime that starts now."""
        settings, counted, calls = self.settings, Metrics(), Ledger()
        self._earlier.loop = scheduler.loop
        sample = partial(samples, system, calls, lambda: scheduler.held, self.vectors)
        processes = ProcessOptions(
            settings.process_workers,
            settings.warm_workers,
            settings.worker_memory_bytes,
            environment=settings.environment_for_tools,
            confine=settings.confine,
            workspace=settings.workspace,
            secrets=settings.secret_rules,
            kept=judge.kept,
        )
        start, retry, cost = start_on(scheduler.loop), RetryPolicy(), settings.catalog.cost_of
        code_actors = self._code_actors(system, scheduler, approver, judge)
        return Plan(
            telemetry=lambda: Telemetry(settings.log_content, counted, sample, self._find_export, self.timelines),
            llm_manager=lambda: LlmManager(
                self._routes, start, retry, cost, self._token_ratios, self._refusals, self._renewed
            ),
            workers=kinds(processes, self._loop),
            tools=(),
            approver=approver,
            policy=settings.policy,
            workspace=settings.workspace,
            failure_budget=settings.tool_failure_budget,
            threads=code_actors,
            calls=calls,
            servers=self.servers.specs(approver, partial(_replace_tools, system)),
            tools_that_change=self._tools_that_change,
            may_deny=self.saved_rules.may_deny,
            journal=self.make_journal(),
        )

    def _tools_that_change(self) -> dict[str, tuple[Tool, ...]]:
        """As they are now, also for a dispatcher that is started again: by what they come from."""
        return {GIVEN: self.given_tools, **{name: link.tools for name, link in self.servers.links.items()}}

    def _code_actors(
        self, system: kernel.ActorSystem, scheduler: kernel.LoopScheduler, approver: Approver, judge: CallJudge
    ) -> tuple[kernel.ChildSpec, ...]:
        """What a workspace adds to the tree; the extra `index` is not needed without one."""
        settings = self.settings
        if settings.workspace is None:
            return ()
        from callboard.actors.builtins import code_tools  # noqa: PLC0415 - the extra `index`
        from callboard.actors.edits import edit_tools, editing  # noqa: PLC0415 - likewise
        from callboard.actors.index import rag  # noqa: PLC0415 - likewise

        post = partial(_post, self._embeddings, scheduler) if self._embeddings is not None else None
        self.search = rag.CodeSearch(system, post, settings.embedding_model)
        workspace = workspace_of(settings)
        confirming = editing.Confirming(approver, judge.guards)
        self.edits = editing.Edits(
            system,
            workspace,
            settings.state_dir,
            JudgingApprover(judge, confirming, scheduler) if settings.auto_confirm_edits else approver,
            files_changed=self.search.refresh_soon,
            patience_seconds=editing.POLICY_SECONDS if settings.auto_confirm_edits else editing.AT_ONCE_SECONDS,
            kept=judge.kept,
            proposing=JudgingApprover(judge, NobodyToAsk(), scheduler),
            mode=Mode(settings.policy.mode),
        )
        added = (
            rag.context_tool(self.search),
            *code_tools.code_tools(self.search, workspace),
            *edit_tools.edit_tools(self.edits, self.search),
            *job_tools(system, workspace),
        )
        self.code_tools = tuple(tool.owned for tool in added)
        rules, embedder = settings.secret_rules, self.search.embedder
        of_index = rag.code_actors(workspace.folders, settings.index_dir, embedder, rules, self.search.vectors_seen)
        return (*of_index, self.edits.actor(), jobs_actor())

    def vectors(self) -> VectorState | None:
        """How far those of the code index are; None without one."""
        return self.search.vectors if self.search is not None else None

    def _routes(self, model: str) -> tuple[Route, ...]:
        """Of a request that does not bring them along."""
        return self.known(model).routes

    def _offer_of(self, tool: Tool, mode: Mode | None = None) -> ToolOffer:
        found = offer_of(tool, self.settings.policy.in_mode(mode), self.saved_rules.may_deny)
        if not tool.contract.only_with:
            return found
        other = self.offered_tools.get(ToolName(tool.contract.only_with))
        return found if other is not None and self._offer_of(other, mode).is_shown else found.of_no_use()

    def listed_tools(self) -> tuple[ToolOffer, ...]:
        """The tools, each with what the policy says of it and to what it is confined."""
        offers = ((tool, self._offer_of(tool)) for tool in self.offered_tools.values())
        return tuple(replace(offer, confinement=self.confinement_of(tool)) for tool, offer in offers)

    def confinement_of(self, tool: Tool) -> str:
        """To what calls of the tool are confined, in a line for people."""
        settings = self.settings
        return str(confinement_of(tool.contract, kernel_support(), settings.confine, settings.workspace))

    def close(self, scheduler: kernel.LoopScheduler) -> None:
        """Close the providers' connections, on the loop they live on, and what asks about edits."""
        if self.edits is not None:
            self.edits.close()

        async def close_all() -> None:
            held = [*self._router.providers, *self._earlier.open, *([self._embeddings] if self._embeddings else [])]
            await asyncio.gather(*map(close_provider, held))
            await asyncio.gather(*map(close_provider, self.settings.transports))

        try:
            asyncio.run_coroutine_threadsafe(close_all(), scheduler.loop).result(CLOSE_PROVIDERS_SECONDS)
        except TimeoutError:
            logger.warning("some providers' connections were not closed within %s s", CLOSE_PROVIDERS_SECONDS)


def _replace_tools(system: kernel.ActorSystem, link: ServerLink) -> None:
    """The tools of a server have changed; before the dispatcher is there, and after, it finds them itself."""
    with contextlib.suppress(kernel.NoSuchActor, kernel.ActorDeadError):
        system.ref("root/dispatcher").tell_control(ReplaceTools(link.name, link.tools))


def _post(api: EmbeddingApi, scheduler: kernel.LoopScheduler, body: Mapping[str, object]) -> Mapping[str, object]:
    """For the index's own thread, which may block: the request itself runs on the loop."""
    return asyncio.run_coroutine_threadsafe(api.post(body), scheduler.loop).result(EMBEDDING_WAIT_SECONDS)


def _import_index() -> None:
    """Load the extra `index`. UsageError where it is missing."""
    try:
        from callboard.actors.index import rag  # noqa: F401, PLC0415
    except ImportError as missing:
        raise UsageError(missing_extra(f"a workspace ({missing})", "index")) from missing


def workspace_of(settings: Settings) -> Workspace:
    """For settings that name one."""
    assert settings.workspace is not None
    return Workspace.at(settings.workspace, settings.secret_rules, settings.more_workspaces)


def _checked(tools: Iterable[Tool], own: Iterable[Tool], own_names: Collection[str]) -> tuple[Tool, ...]:
    """Those given and our own: each can run where it says, and no two share a name. `own_names`: also of those that the
    start adds."""
    names: dict[str, Tool] = {}
    for each in tools:
        if each.name in names and not is_ours(each.function) and not is_ours(names[each.name].function):
            raise UsageError(f"two tools are called {each.name!r}; rename one with @tool(name=...)")
        if each.name in names or each.name in own_names:
            raise UsageError(named_as_ours(each.name))
        names[each.name] = each
    found = (*names.values(), *own)
    for each in found:
        each.owned.check()
    return tuple(each.owned for each in found)


def has_media(user: UserMessage) -> bool:
    """Does the question show more than text?"""
    return any(not isinstance(part, Text) for part in user.parts)


def _first_request(user: UserMessage, options: RequestOptions, tools: tuple[ToolDefinition, ...] = ()) -> ModelRequest:
    """The request of the first step, as far as it matters to whether a model can be asked so."""
    choice = options.tool_choice if tools or options.server_tools else ToolChoice()
    return replace(request_of(options, "", tools, choice), messages=(user,))


def _halves(model: str) -> tuple[str, str]:
    provider, _, name = model.partition("/")
    return provider, name


def _options(settings: Settings, model: str, models: Sequence[str]) -> RequestOptions:
    """By the settings, for this model; any of `models` may answer."""
    context_tokens = settings.catalog.info(*_halves(model)).context_tokens
    if model == settings.model and settings.context_tokens:
        context_tokens = settings.context_tokens
    compaction = settings.compaction
    if compaction is not None and compaction.model:
        models = (*models, compaction.model)
        window = compaction.context_tokens or settings.catalog.info(*_halves(compaction.model)).context_tokens
        compaction = dataclasses.replace(compaction, context_tokens=window)
    prices = _dearest(settings, models, context_tokens, settings.prompt_cache)
    system_prompt, tool_prompt = settings.instructions, ""
    if settings.workspace and not system_prompt:
        folders = " and ".join(map(str, settings.workspaces))
        system_prompt, tool_prompt = _WORKSPACE_PROMPT.format(workspace=folders), _WORKSPACE_TOOLS_PROMPT
        if settings.more_workspaces:
            tool_prompt += _MORE_FOLDERS_PROMPT.format(workspace=settings.workspace)
    return RequestOptions(
        model=model,
        system_prompt=system_prompt,
        tool_prompt=tool_prompt,
        timeout_seconds=settings.request_timeout_seconds,
        approval_timeout_seconds=settings.approval_timeout_seconds,
        max_steps=settings.max_steps,
        token_budget=settings.token_budget,
        cost_budget=settings.cost_budget,
        tools_budget_tokens=settings.tools_budget_tokens,
        continue_cut_answers=settings.continue_cut_answers,
        input_price=prices.input if prices else None,
        output_price=prices.output if prices else None,
        context_tokens=context_tokens,
        sampling=settings.sampling,
        prompt_cache=settings.prompt_cache,
        parallel_tool_calls=settings.parallel_tool_calls,
        server_tools=settings.server_tools,
        storage=settings.storage,
        service_tier=settings.service_tier,
        provider_options=settings.provider_options,
        tool_fallback=settings.tool_fallback,
        max_attempts=settings.max_attempts,
        history_share=settings.history_share,
        result_share=settings.result_share,
        ask_after_untrusted=settings.ask_after_untrusted,
        compaction=compaction,
        expand_search=settings.expand_search and _halves(model)[0] != _halves(OFFLINE_MODEL)[0],
    )


def _check_budgets(settings: Settings, options: RequestOptions, models: Iterable[str]) -> None:
    """Raise UsageError for a budget that fits no question, or could not be kept."""
    told = options.system_prompt + options.tool_prompt
    least = message_tokens(SystemMessage(told), estimate_tokens) + MIN_OUTPUT_TOKENS
    if options.token_budget is not None and options.token_budget < least:
        raise UsageError(
            f"no question fits a token_budget of {options.token_budget}: instructions and the shortest answer need "
            f"at least {least} tokens; give it more"
        )
    if options.cost_budget is not None and None in (options.input_price, options.output_price):
        unknown = next(name for name in models if settings.catalog.info(*_halves(name)).prices is None)
        raise UsageError(
            f"cost_budget cannot be kept, since no price of {unknown} is known: give one, "
            f'Settings(catalog=Catalog({{"{unknown}": ModelInfo(prices=Prices(input=..., output=...))}})), in US '
            "dollars a token (0 where it is free), or leave cost_budget out"
        )


def _dearest(
    settings: Settings, models: Iterable[str], context_tokens: int | None, cache: PromptCache
) -> Prices | None:
    """By which the cost of a step is estimated: any of the models may answer it. None where one has no known price."""
    tokens = MAX_CALL_TOKENS if context_tokens is None else context_tokens
    prices = [settings.catalog.dearest(*_halves(name), tokens, cache) for name in models]
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    return Prices(max(price.input for price in known), max(price.output for price in known))


#: What is asked of a model that answers about a workspace.
_WORKSPACE_PROMPT: Final = """\
You answer questions about the code in {workspace}. Say only what the code shows, and name the place as file:lines."""
#: What the code tools are for, and how code is written. A model that takes no tools does not read it.
_WORKSPACE_TOOLS_PROMPT: Final = """\
Look before you answer: request_code_context finds the code that a question is about, search_text and find_files \
find what it does not, and read_file shows the rest.

Show code in the form in which the tools give it to you, with the absolute path and the byte offsets of the span:
<code="/absolute/path" #START:END>
...
</code>"""
#: With further folders: what relative paths mean, and what is only read.
_MORE_FOLDERS_PROMPT: Final = """

Relative paths are meant from {workspace}. Give absolute paths for files of the other folders: they are only read, and
nothing is changed or run there."""
