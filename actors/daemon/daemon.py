"""Daemon: what one daemon has: its tenants, its tokens, its settings. http_server.py serves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from callboard.actors.daemon.access_tokens import AccessToken, AccessTokens, Scope, given_token
from callboard.actors.daemon.daemon_settings import DaemonPlan
from callboard.actors.daemon.tenants import Tenants
from callboard.actors.daemon.token_rates import TokenRates
from callboard.protocol.errors import UsageError

logger = logging.getLogger("callboard.daemon")

#: Of `[daemon]`; all else needs a new start.
RELOADABLE_OF_DAEMON: Final = frozenset({"limits", "models", "allowed_origins", "drain_seconds"})
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")


class Daemon:
    """One daemon."""

    def __init__(self, plan: DaemonPlan, token: str = "", read_again: Callable[[], DaemonPlan] | None = None) -> None:
        """`token`: one that may do all, of the first tenant (CALLBOARD_TOKEN). `read_again` reads the configuration for
        a reload; None: the plan that it has. Raises UsageError."""
        self.plan = plan
        self._read_again = read_again or (lambda: plan)
        self._reloading = asyncio.Lock()
        self.settings = plan.daemon
        self.state = "starting"
        _make_folder(plan.state_dir)
        first = plan.tenants[0].name
        given: tuple[AccessToken, ...] = (given_token(token, first),) if token else ()
        self.tokens = AccessTokens(plan.state_dir / "tokens.json", given)
        self.rates = TokenRates()
        self.tenants = Tenants(plan.tenants)
        named = (*self.settings.allowed_hosts, self.settings.host)
        self.host_names = {
            *LOOPBACK_NAMES,
            *(host_name(f"[{each}]" if each.count(":") > 1 else each) for each in named),
        }
        """By which a client may call it."""

    @property
    def is_ready(self) -> bool:
        """Does it take requests?"""
        return self.state == "running"

    async def reload(self) -> None:
        """Read the configuration and the tokens again, while requests run. Raises UsageError; then nothing changes but
        the tokens."""
        async with self._reloading:
            self.tokens.reload()
            plan = await asyncio.to_thread(self._read_again)
            names = [name for name in type(plan.daemon).model_fields if name not in RELOADABLE_OF_DAEMON]
            changed = [name for name in names if getattr(plan.daemon, name) != getattr(self.settings, name)]
            if changed:
                raise UsageError(f"{', '.join(changed)} in [daemon] cannot be changed while it runs: restart it")
            await asyncio.to_thread(self.tenants.reload, plan.tenants)
            self.plan, self.settings = plan, plan.daemon
            logger.info("reloaded")

    async def drain(self) -> None:
        """Take no new requests, and wait for those that run, for `drain_seconds`; what is left waits in the journal."""
        self.state = "draining"
        if not await self.tenants.drain(self.settings.drain_seconds):
            logger.warning("some requests had not ended after %g s", self.settings.drain_seconds)

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
