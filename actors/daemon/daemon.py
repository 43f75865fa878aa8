"""Daemon: what one daemon has: its tenants, its tokens, its settings. http_server.py serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from callboard.actors.daemon.access_tokens import AccessToken, AccessTokens, Scope, given_token
from callboard.actors.daemon.board_feed import BoardFeeds
from callboard.actors.daemon.daemon_numbers import DaemonNumbers
from callboard.actors.daemon.daemon_settings import DaemonPlan
from callboard.actors.daemon.open_streams import OpenStreams
from callboard.actors.daemon.quotas import Quotas
from callboard.actors.daemon.tenants import Tenants
from callboard.actors.daemon.token_rates import TokenRates
from callboard.protocol.errors import UsageError

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")


class Daemon:
    """One daemon."""

    def __init__(self, read_plan: Callable[[], DaemonPlan], token: str = "") -> None:
        """`read_plan` reads the configuration, now and at each reload. `token`: one that may do all, of the first
        tenant (CALLBOARD_TOKEN). Raises UsageError."""
        self.read_plan = read_plan
        plan = read_plan()
        self.take(plan)
        self.reloading = asyncio.Lock()
        self.state = "starting"
        self.failure = ""
        """Why it ends: the tree of a tenant has. Nothing of what an actor has crashed with, which probes would tell."""
        _make_folder(plan.state_dir)
        first = plan.tenants[0].name
        given: tuple[AccessToken, ...] = (given_token(token, first),) if token else ()
        self.tokens = AccessTokens(plan.state_dir / "tokens.json", given)
        self.rates = TokenRates()
        self.quotas = Quotas()
        self.tenants = Tenants(plan.tenants)
        self.boards = BoardFeeds()
        self.streams = OpenStreams()
        self.numbers = DaemonNumbers()
        self.numbers.streams = self.streams

    def take(self, plan: DaemonPlan) -> None:
        """Go by this plan from now on, as far as it is about the daemon itself."""
        self.plan, self.settings = plan, plan.daemon
        named = (*plan.daemon.allowed_hosts, plan.daemon.host)
        self.host_names = {
            *LOOPBACK_NAMES,
            *(host_name(f"[{each}]" if each.count(":") > 1 else each) for each in named),
        }
        """By which a client may call it."""

    def look_at_tokens(self) -> None:
        """Some may have been made or removed by another process; streams of those that are gone end."""
        self.tokens.look()
        self.streams.end_others(set(self.tokens.tokens))

    def fails(self, tenant: str) -> None:
        """The tree of this tenant has ended by itself: the daemon does too, and is to be started again."""
        self.failure = f"the actors of the tenant {tenant} failed too often; the log has the rest"
        self.state = "failed"

    @property
    def is_ready(self) -> bool:
        """Does it take requests?"""
        return self.state == "running"

    def first_token(self) -> str:
        """The secret of a new token that may do all, where there is none yet; else ""."""
        if self.tokens.tokens:
            return ""
        return self.tokens.make(Scope.ADMIN, self.plan.tenants[0].name, "made at the first start")[1]


def host_name(header: str) -> str:
    """The name in a Host header, without the port, in lower case."""
    if header.startswith("["):
        return header.partition("]")[0].lower() + "]"
    return header.partition(":")[0].lower()


def _make_folder(path: Path) -> None:
    """For tokens and journals, which its owner alone may read. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(
            f"the folder of the daemon's state cannot be made: {path}: {error.strerror or error}"
        ) from None
