"""Where Copilot's lasting token is kept, and the short ones made of it, renewed before they end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

from callboard.protocol.errors import UsageError
from callboard.providers.copilot_login import CopilotToken, Http, exchange

_SERVICE: Final = "callboard"
_ACCOUNT: Final = "github-copilot"
_OWNER_ONLY: Final = 0o600


class TokenStore(Protocol):
    """Keeps one secret."""

    def load(self) -> str | None:
        """The secret, None where there is none."""

    def save(self, secret: str) -> None:
        """Keep it, in place of the one before."""


class FileStore:
    """A file that only its owner may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> str | None:
        try:
            return self._path.read_text().strip() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"The Copilot token in {self._path} cannot be read: {error.strerror}.") from None

    def save(self, secret: str) -> None:
        """Written beside and moved into place, so that no moment shows half a token, or one others may read."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _OWNER_ONLY)
        with os.fdopen(descriptor, "w") as file:
            # An older file of that name would keep its permissions.
            os.fchmod(file.fileno(), _OWNER_ONLY)
            file.write(secret + "\n")
        beside.replace(self._path)


class KeyringStore:
    """The desktop's keyring."""

    def __init__(self, keyring: ModuleType) -> None:
        self._keyring = keyring

    def load(self) -> str | None:
        secret: str | None = self._keyring.get_password(_SERVICE, _ACCOUNT)
        return secret

    def save(self, secret: str) -> None:
        self._keyring.set_password(_SERVICE, _ACCOUNT, secret)


def token_store(path: Path) -> TokenStore:
    """The keyring, where the `keyring` package is installed and finds one that works; else the file at `path`."""
    try:
        import keyring  # noqa: PLC0415 - an optional extra
    except ImportError:
        return FileStore(path)
    # Backends say how usable they are here: the one for machines without any has priority 0.
    usable = getattr(keyring.get_keyring(), "priority", 0) > 0
    return KeyringStore(keyring) if usable else FileStore(path)


class CopilotTokens:
    """Hands out a valid short token. `clock` is Unix time."""

    def __init__(self, store: TokenStore, http: Http, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._http = http
        self._clock = clock
        self._token: CopilotToken | None = None
        self._lock = asyncio.Lock()

    async def current(self) -> CopilotToken:
        """A token that has not run out. Raises UsageError where nobody has logged in, ProviderError from GitHub."""
        async with self._lock:
            if self._token is None or self._clock() >= self._token.renew_at:
                self._token = await self._exchanged()
            return self._token

    async def renewed(self, refused: CopilotToken) -> CopilotToken:
        """A token in place of one that was answered with 401; many callers at once cause one exchange."""
        async with self._lock:
            if self._token is None or self._token.token == refused.token:
                self._token = await self._exchanged()
            return self._token

    async def _exchanged(self) -> CopilotToken:
        secret = self._store.load()
        if not secret:
            raise UsageError("Nobody has logged in to Copilot here; run `callboard login copilot`.")
        return await exchange(self._http, secret, self._clock())
