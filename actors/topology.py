"""The supervision tree: the only file that names every actor.

root (one_for_one)
|- telemetry      permanent
|- journal        permanent   where there is one; a thread. It stops behind all that write
|- journal_cleaner permanent  where the settings limit the journal; a thread
|- llm_manager    permanent
|- rag, indexer   permanent   where there is a workspace; a thread each
|- vectorizer     permanent   likewise, where there is an embedding model
|- editor         permanent   likewise
|- jobs           permanent   likewise, without a thread: commands in the background
|- tools          permanent   one_for_one: the supervisor of each pool (isolation, latency), made when a tool needs it;
|                             its children are the workers; and a transient child for each MCP server
|- dispatcher     permanent
'- sessions       permanent   one_for_one: a temporary child for each request
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Never

from msgspec import Struct, field

from callboard.actors.calls.approvals import Approver
from callboard.actors.calls.dispatcher import MAX_QUEUED_CALLS, ToolDispatcher, Workers
from callboard.actors.calls.ledger import Ledger
from callboard.actors.calls.registry import FAILURE_BUDGET, MayDeny, Registry, denies_none
from callboard.actors.journal.cleaner import cleaner_actor
from callboard.actors.journal.journal import journal_actor
from callboard.actors.journal.journal_handle import JournalHandle, RunningJournal
from callboard.actors.journal.journal_store import JournalWriter
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.retention import Kept
from callboard.actors.journal.transactions import Effects, MakeEffect
from callboard.actors.kernel import (
    ActorSystem,
    ChildSpec,
    IntensityExceeded,
    Ref,
    Supervisor,
    children_of,
    start_child,
)
from callboard.actors.models.llm_manager import LlmManager
from callboard.actors.requests.session_messages import Peers
from callboard.actors.telemetry.telemetry import Telemetry
from callboard.actors.tools import Tool
from callboard.actors.workers.messages import KindOf
from callboard.protocol.policy import Policy

#: Messages that may wait for an actor which serves every request: ten for each of 10,000 requests.
SHARED_CAPACITY = 100_000
#: Messages that may wait for one session: more than a thousand socket reads behind means that the loop is blocked.
SESSION_CAPACITY = 4_096
#: Failures of the root's children together before the runtime gives up: three actors may each fail three times.
ROOT_INTENSITY = 9
ROOT_PERIOD_SECONDS = 10.0


class JournalPlan(Struct, frozen=True):
    """Where and how a journal is written."""

    make_writer: Callable[[], JournalWriter]
    outbox: Outbox
    kept: Kept = Kept()
    """What it may hold; more is deleted."""
    effect_on_server: MakeEffect | None = None
    """How what a call writes is committed on PostgreSQL; None: by statements, as SQLite does it."""


class Plan(Struct, frozen=True):
    """How each actor of the tree is made; a simulation plans other workers and another model."""

    telemetry: Callable[[], Telemetry]
    llm_manager: Callable[[], LlmManager]
    workers: KindOf
    """How the workers of a tool are made."""
    tools: Iterable[Tool]
    approver: Approver
    policy: Policy
    workspace: Path | None = None
    dispatcher: Callable[..., ToolDispatcher] = ToolDispatcher
    failure_budget: int | None = FAILURE_BUDGET
    """Breakdowns of a tool within a minute that do not withdraw it yet; None never does."""
    max_queued_calls: int = MAX_QUEUED_CALLS
    """Calls of one tool that may wait for their turn; more are refused as overloaded."""
    threads: tuple[ChildSpec, ...] = ()
    """Further permanent children of the root, started before the tools."""
    chance: Callable[[], float] = random.random
    """From [0, 1): spreads restarts. A simulation gives its own, so that the same seed gives the same trace."""
    calls: Ledger = field(default_factory=Ledger)
    """Outlives the dispatchers."""
    servers: tuple[ChildSpec, ...] = ()
    """One for each MCP server."""
    tools_that_change: Callable[[], Mapping[str, Iterable[Tool]]] = dict
    """By their source, as they are now."""
    journal: JournalPlan | None = None
    may_deny: MayDeny = denies_none
    """May a saved rule deny a call of this tool?"""
    gives_up: Callable[[IntensityExceeded], object] | None = None
    """Called when the root's budget of failures is spent, on the loop: the tree ends then."""


def build(system: ActorSystem, plan: Plan) -> None:
    """Start the tree. Returns at once."""

    written = plan.journal
    effects = Effects(written.outbox, written.effect_on_server) if written is not None else None

    def dispatcher() -> ToolDispatcher:
        registry = Registry(plan.tools, plan.policy, plan.failure_budget, may_deny=plan.may_deny)
        for source, tools in plan.tools_that_change().items():
            registry.replace(source, tools)
        return plan.dispatcher(
            registry,
            plan.calls,
            Workers(system.ref("root/tools"), plan.workers, plan.chance),
            plan.approver,
            system.ref("root/telemetry"),
            plan.workspace,
            plan.max_queued_calls,
            effects,
        )

    def root() -> Supervisor:
        children: list[ChildSpec[Never]] = [
            ChildSpec("telemetry", plan.telemetry, capacity=SHARED_CAPACITY),
            *_journal(system, plan),
            ChildSpec("llm_manager", plan.llm_manager, capacity=SHARED_CAPACITY),
            *plan.threads,
            ChildSpec("tools", lambda: Supervisor(chance=plan.chance), capacity=SHARED_CAPACITY),
            ChildSpec("dispatcher", dispatcher, capacity=SHARED_CAPACITY),
            ChildSpec("sessions", lambda: Supervisor(chance=plan.chance), capacity=SHARED_CAPACITY),
        ]
        return Supervisor(
            children,
            intensity=ROOT_INTENSITY,
            period_seconds=ROOT_PERIOD_SECONDS,
            chance=plan.chance,
            gives_up=plan.gives_up,
        )

    system.spawn(root, "root", capacity=SHARED_CAPACITY)


def _journal(system: ActorSystem, plan: Plan) -> tuple[ChildSpec[Never], ...]:
    if plan.journal is None:
        return ()
    written = plan.journal
    writer = journal_actor(written.make_writer, written.outbox, lambda: system.ref("root/telemetry"))
    if written.kept == Kept():
        return (writer,)
    return writer, cleaner_actor(lambda: journal_handle(system, written.outbox), written.kept)


def journal_handle(system: ActorSystem, outbox: Outbox) -> JournalHandle:
    """Of the journal of this tree."""
    return JournalHandle(RunningJournal(system.ref("root/journal"), outbox))


def start_servers(system: ActorSystem, plan: Plan) -> None:
    """Start the actors of the MCP servers, once the rest runs: one that fails for good takes nothing with it."""
    for spec in plan.servers:
        start_child(system.ref("root/tools"), spec)


def addresses_of(system: ActorSystem, timeout_seconds: float) -> tuple[Ref, Peers]:
    """Of the sessions' supervisor and their peers, as soon as they work: what is sent to an actor that is still
    starting waits in its mailbox. A blocking ask. Raises AskTimeout.
    """
    children = children_of(system.ref("root"), timeout_seconds)
    return children["sessions"], Peers(children["llm_manager"], children["dispatcher"], children["telemetry"])
