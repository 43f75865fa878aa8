"""Logging in to GitHub Copilot: the device flow, and the exchange of its lasting token for a short one.

Facts: docs/wire.md 1.6. Pure steps: the caller brings `http` (transport.fetch, or a fake) and `sleep`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

import orjson

from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.providers.adapter import HttpAnswer, WireRequest
from callboard.providers.http_errors import error_from_body, scrubbed
from callboard.providers.json_values import SHAPE_ERRORS, Json, JsonObject, load_object, object_at, text_at, text_of

#: Used where the token exchange named no address; it names api.individual|business|enterprise.githubcopilot.com.
DEFAULT_BASE_URL: Final = "https://api.githubcopilot.com"
#: What the service asks of its clients. Editors send their own; these are the least it accepts.
CLIENT_HEADERS: Final[Mapping[str, str]] = {
    "copilot-integration-id": "vscode-chat",
    "editor-version": "vscode/1.104.0",
    "editor-plugin-version": "copilot-chat/0.31.0",
    "user-agent": "GitHubCopilotChat/0.31.0",
    "openai-intent": "conversation-panel",
    "x-github-api-version": "2025-04-01",
}
DEVICE_CODE_URL: Final = "https://github.com/login/device/code"
ACCESS_TOKEN_URL: Final = "https://github.com/login/oauth/access_token"
EXCHANGE_URL: Final = "https://api.github.com/copilot_internal/v2/token"
_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
#: What GitHub adds to the interval when it says slow_down.
_SLOW_DOWN_SECONDS: Final = 5.0
#: What GitHub gives a user to type the code.
_EXPIRES_SECONDS: Final = 900.0
_LONGEST_SECONDS: Final = 86_400.0
#: A short token is renewed this long before it ends, where the answer has no refresh_in of its own.
_RENEW_BEFORE_SECONDS: Final = 120.0

Http = Callable[[WireRequest], Awaitable[HttpAnswer]]
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What the user does to log in: open `verification_uri` and type `user_code`."""

    user_code: str
    verification_uri: str
    device_code: str = field(repr=False)
    interval_seconds: float
    expires_seconds: float


@dataclass(frozen=True, slots=True)
class CopilotToken:
    """The short-lived token that model calls carry."""

    token: str = field(repr=False)
    renew_at: float
    """Unix time from which a new one should be got."""
    base_url: str


async def request_device_code(http: Http, client_id: str) -> DeviceCode:
    """The first step. Raises UsageError without a client id, ProviderError where GitHub refuses."""
    if not client_id:
        raise UsageError(
            "signing in to Copilot needs the client id of a GitHub OAuth app with device flow; "
            "make one at https://github.com/settings/developers and set CALLBOARD_COPILOT_CLIENT_ID"
        )
    answer = await _post(http, DEVICE_CODE_URL, {"client_id": client_id, "scope": "read:user"})
    try:
        return DeviceCode(
            text_of(answer["user_code"]),
            text_of(answer["verification_uri"]),
            text_of(answer["device_code"]),
            _seconds(answer.get("interval"), _SLOW_DOWN_SECONDS),
            _seconds(answer.get("expires_in"), _EXPIRES_SECONDS),
        )
    except SHAPE_ERRORS:
        raise _refused(answer, "GitHub gave no device code") from None


async def wait_for_login(http: Http, sleep: Sleep, client_id: str, code: DeviceCode) -> str:
    """The second step: asks until the user has typed the code. Returns the lasting GitHub token.

    Raises ProviderError when the user says no or the code runs out: after `expires_seconds` at the latest.
    """
    interval, waited = code.interval_seconds, 0.0
    fields = {"client_id": client_id, "device_code": code.device_code, "grant_type": _GRANT}
    while waited < code.expires_seconds:
        await sleep(interval)
        waited += interval
        answer = await _post(http, ACCESS_TOKEN_URL, fields)
        if isinstance(token := answer.get("access_token"), str) and token:
            return token
        error = answer.get("error")
        if error == "slow_down":
            interval += _SLOW_DOWN_SECONDS
        elif error != "authorization_pending":
            raise _refused(answer, "GitHub refused the login")
    raise ProviderError(ErrorKind.AUTHENTICATION, "The code has run out before it was typed; log in again.")


async def exchange(http: Http, github_token: str, now: float) -> CopilotToken:
    """A short-lived token for a lasting one. `now` is Unix time. Raises ProviderError where Copilot refuses."""
    headers = {name: CLIENT_HEADERS[name] for name in ("editor-version", "editor-plugin-version", "user-agent")}
    headers |= {"authorization": f"token {github_token}", "accept": "application/json"}
    answer = await http(WireRequest("GET", EXCHANGE_URL, headers, b""))
    document = _document(answer, github_token)
    try:
        expires_at = document["expires_at"]
        if not isinstance(expires_at, int | float) or not isfinite(expires_at):
            raise TypeError("expires_at is not a time")
        lifetime = _seconds(document.get("refresh_in"), expires_at - now - _RENEW_BEFORE_SECONDS)
        base_url = text_at(object_at(document, "endpoints"), "api") or DEFAULT_BASE_URL
        return CopilotToken(text_of(document["token"]), min(now + lifetime, expires_at), base_url)
    except SHAPE_ERRORS:
        raise ProviderError(ErrorKind.MALFORMED, "Copilot's token exchange gave an answer without a token.") from None


async def _post(http: Http, url: str, fields: dict[str, str]) -> JsonObject:
    headers = {"accept": "application/json", "content-type": "application/json"}
    return _document(await http(WireRequest("POST", url, headers, orjson.dumps(fields))))


def _document(answer: HttpAnswer, secret: str | None = None) -> JsonObject:
    if answer.status >= 400:
        error = scrubbed(error_from_body("copilot", answer.status, {}, answer.body), secret)
        hint = "; log in again with `callboard login copilot`" if error.kind is ErrorKind.AUTHENTICATION else ""
        raise ProviderError(error.kind, f"GitHub refused: {error.message}{hint}", status=answer.status)
    document = load_object(answer.body)
    if document is None:
        raise ProviderError(ErrorKind.MALFORMED, "GitHub's answer is not a JSON object.")
    return document


def _seconds(value: Json, otherwise: float) -> float:
    """A time that GitHub names; `otherwise` where it names none, or one by which nothing would ever end."""
    return float(value) if isinstance(value, int | float) and 1 <= value <= _LONGEST_SECONDS else otherwise


def _refused(answer: JsonObject, what: str) -> ProviderError:
    reason = answer.get("error_description") or answer.get("error") or "no reason was given"
    return ProviderError(ErrorKind.AUTHENTICATION, f"{what}: {reason}")


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
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            # An older file of that name would keep its permissions.
            os.fchmod(file.fileno(), 0o600)
            with contextlib.suppress(FileNotFoundError, PermissionError):  # root may log in for another user
                before = self._path.stat()
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            file.write(secret + "\n")
        beside.replace(self._path)


class KeyringStore:
    """The desktop's keyring."""

    _ENTRY: Final = ("callboard", "github-copilot")
    """Service and account."""

    def __init__(self, keyring: ModuleType) -> None:
        self._keyring = keyring

    def load(self) -> str | None:
        secret: str | None = self._keyring.get_password(*self._ENTRY)
        return secret

    def save(self, secret: str) -> None:
        self._keyring.set_password(*self._ENTRY, secret)


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

    async def current(self, refused: CopilotToken | None = None) -> CopilotToken:
        """A token that has not run out and is not `refused`, which was answered with 401. Many callers at once cause
        one exchange. Raises UsageError without a login, ProviderError from GitHub."""
        async with self._lock:
            if self._token is None or self._token == refused or self._clock() >= self._token.renew_at:
                secret = self._store.load()
                if not secret:
                    raise UsageError("There is no login to Copilot here; run `callboard login copilot`.")
                self._token = await exchange(self._http, secret, self._clock())
            return self._token
