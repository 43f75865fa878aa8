"""What a runtime is put together from: settings become providers, tools and the plan of a tree.

Whatever is wrong with settings or tools is a UsageError here, before anything is started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from callboard.actors.calls.approvals import Approver
from callboard.actors.default_prompt import default_prompt
from callboard.actors.kernel import ActorSystem, ChildSpec, LoopScheduler
from callboard.actors.models.llm_manager import LlmManager, Route
from callboard.actors.models.model_stream import AsyncioDriver
from callboard.actors.settings import Settings
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.telemetry.spans import spans_where_installed
from callboard.actors.telemetry.telemetry import Telemetry
from callboard.actors.tools import Tool
from callboard.actors.tools.files import workspace_tools
from callboard.actors.topology import Plan
from callboard.actors.workers.kinds import kinds
from callboard.actors.workers.process import ProcessOptions, process_kind
from callboard.protocol.errors import UsageError
from callboard.protocol.options import RequestOptions
from callboard.providers.adapter import Timeouts
from callboard.providers.local.offline import CONTEXT_TOOL
from callboard.providers.rate_limit import RateLimits
from callboard.providers.registry import embeddings_for, provider_for, split_model
from callboard.providers.retry import RetryPolicy

if TYPE_CHECKING:
    from callboard.actors.index.rag import CodeSearch, PostEmbeddings
    from callboard.providers.openai.embeddings import EmbeddingApi

#: Connections are closed within this time, or left to the end of the process.
CLOSE_PROVIDERS_SECONDS = 2.0
#: Behind the request's own deadline of 30 s.
EMBEDDING_WAIT_SECONDS = 35.0

logger = logging.getLogger("callboard")


class Wiring:
    """The parts of one runtime; they outlive its starts and stops."""

    def __init__(self, settings: Settings, tools: Iterable[Tool]) -> None:
        self.settings = settings
        self.tools = _checked([*tools, *_file_tools(settings)])
        self.routes: Mapping[str, Sequence[Route]] = {settings.model: _routes(settings)}
        self.options = _options(settings)
        self._embeddings = _embeddings(settings)
        self._code_of = _code_of(settings)
        self.code = NO_CODE

    def plan(self, system: ActorSystem, scheduler: LoopScheduler, approver: Approver) -> Plan:
        """The tree of a runtime that starts now."""
        settings = self.settings
        processes = ProcessOptions(
            settings.process_workers,
            settings.warm_workers,
            settings.worker_memory_bytes,
            environment=settings.environment_for_tools,
        )
        self.code = code = self._code_of(system, self._post_embeddings(scheduler))
        metrics = Metrics()
        return Plan(
            telemetry=lambda: Telemetry(spans_where_installed(scheduler.now), settings.log_content, metrics),
            llm_manager=lambda: LlmManager(
                self.routes_of,
                AsyncioDriver(scheduler.loop),
                RetryPolicy(settings.max_attempts),
                settings.catalog.response_cost,
            ),
            workers=kinds(process_kind(processes)),
            tools=(*self.tools, *code.tools),
            approver=approver,
            policy=settings.policy,
            workspace=settings.workspace,
            failure_budget=settings.tool_failure_budget,
            threads=code.actors,
        )

    def _post_embeddings(self, scheduler: LoopScheduler) -> PostEmbeddings | None:
        """For the index's own thread, which may block: the request itself runs on the loop."""
        if self._embeddings is None:
            return None
        api = self._embeddings

        def post(body: Mapping[str, Any]) -> Mapping[str, Any]:
            return asyncio.run_coroutine_threadsafe(api.post(body), scheduler.loop).result(EMBEDDING_WAIT_SECONDS)

        return post

    def routes_of(self, model: str) -> Sequence[Route]:
        """What to ask for "provider/model", in turn."""
        routes = self.routes.get(model)
        if routes is None:
            raise UsageError(f"this runtime was not set up for the model {model!r}")
        return routes

    def close(self, scheduler: LoopScheduler) -> None:
        """Close the providers' connections, on the loop they live on."""

        async def close_all() -> None:
            open_ones = [route.provider.aclose() for routes in self.routes.values() for route in routes]
            if self._embeddings is not None:
                open_ones.append(self._embeddings.aclose())
            for end in await asyncio.gather(*open_ones, return_exceptions=True):
                if end is not None:
                    logger.warning("a provider's connections could not be closed: %r", end)

        try:
            asyncio.run_coroutine_threadsafe(close_all(), scheduler.loop).result(CLOSE_PROVIDERS_SECONDS)
        except TimeoutError:
            logger.warning("some providers' connections were not closed within %s s", CLOSE_PROVIDERS_SECONDS)


@dataclass(frozen=True, slots=True)
class Code:
    """What a workspace adds to the tree."""

    actors: tuple[ChildSpec, ...] = ()
    tools: tuple[Tool, ...] = ()
    search: CodeSearch | None = None


NO_CODE = Code()


def _code_of(settings: Settings) -> Callable[[ActorSystem, PostEmbeddings | None], Code]:
    """Makes the code part for a tree. Without a workspace there is none, and the extra `index` is not needed."""
    if settings.workspace is None:
        return lambda _system, _post: NO_CODE
    workspace = settings.workspace
    try:
        from callboard.actors.index import rag  # noqa: PLC0415 - the extra `index`
    except ImportError as missing:
        raise UsageError(f"a workspace needs code search ({missing}): pip install 'callboard[index]'") from missing

    def make(system: ActorSystem, post: PostEmbeddings | None) -> Code:
        search = rag.CodeSearch(system)
        actors = rag.code_actors(rag.Workspace(workspace, settings.index_dir, post, settings.embedding_model))
        return Code(actors, (rag.context_tool(search),), search)

    return make


def _embeddings(settings: Settings) -> EmbeddingApi | None:
    if not settings.embedding_model:
        return None
    key = settings.key_for(settings.embedding_model.partition("/")[0])
    return embeddings_for(settings.embedding_model, base_url=settings.embedding_base_url, api_key=key)


def _file_tools(settings: Settings) -> tuple[Tool, ...]:
    return workspace_tools(settings.workspace) if settings.workspace is not None else ()


def _checked(tools: list[Tool]) -> tuple[Tool, ...]:
    """Each tool can run where it says, and no two share a name."""
    names = {CONTEXT_TOOL}
    for each in tools:
        if not isinstance(each, Tool):
            raise UsageError(f"{each!r} is no tool; decorate the function with @tool")
        if each.name in names:
            raise UsageError(f"two tools are called {each.name!r}; rename one with @tool(name=...)")
        names.add(each.name)
        each.check()
    return tuple(tools)


def _routes(settings: Settings) -> tuple[Route, ...]:
    limits = RateLimits(LoopScheduler.now, settings.rate_limits)
    return tuple(route_for(settings, model, limits) for model in (settings.model, *settings.fallback_models))


def route_for(settings: Settings, model: str, limits: RateLimits) -> Route:
    """How to ask "provider/model" with these settings. Raises UsageError for an unknown one or a missing key."""
    provider, _ = split_model(model)
    key = settings.key_for(provider)
    options: dict[str, Any] = {}
    if provider == "offline":
        options["cwd"] = settings.working_directory
    if provider == "scripted" and settings.script is not None:
        options["script"] = settings.script
    if provider == "copilot" and key is None:
        options["login_file"] = settings.copilot_token_file
    limiter = limits.limiter(provider, key)
    found, name = provider_for(
        model,
        base_url=settings.base_url if model == settings.model else None,
        api_key=key,
        timeouts=Timeouts(
            idle_seconds=settings.stream_idle_timeout_seconds, total_seconds=settings.stream_total_timeout_seconds
        ),
        on_headers=limiter.on_headers,
        **options,
    )
    return Route(found, name, limiter)


def _options(settings: Settings) -> RequestOptions:
    info = settings.catalog.info(*split_model(settings.model))
    return RequestOptions(
        model=settings.model,
        system_prompt=settings.system_prompt or default_prompt(settings.workspace),
        timeout_seconds=settings.request_timeout_seconds,
        max_steps=settings.max_steps,
        token_budget=settings.token_budget,
        cost_budget=settings.cost_budget,
        input_price=info.prices.input if info.prices else None,
        output_price=info.prices.output if info.prices else None,
        context_tokens=settings.context_tokens or info.context_tokens,
        sampling=settings.sampling,
        tool_fallback=settings.tool_fallback,
    )
