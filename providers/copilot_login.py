"""Logging in to GitHub Copilot: the device flow, and the exchange of its lasting token for a short one.

Facts: docs/wire.md 1.6. Pure steps: the caller brings `http` (transport.fetch, or a fake) and `sleep`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.providers.adapter import HttpAnswer, WireRequest
from callboard.providers.copilot import CLIENT_HEADERS, DEFAULT_BASE_URL
from callboard.providers.errors import error_from_body
from callboard.providers.json_text import SHAPE_ERRORS, dumps, loads

DEVICE_CODE_URL: Final = "https://github.com/login/device/code"
ACCESS_TOKEN_URL: Final = "https://github.com/login/oauth/access_token"
EXCHANGE_URL: Final = "https://api.github.com/copilot_internal/v2/token"
_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
#: What GitHub adds to the interval when it says slow_down.
_SLOW_DOWN_SECONDS: Final = 5.0
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
    expires_at: float
    """Unix time, seconds."""
    renew_at: float
    """Unix time from which a new one should be got."""
    base_url: str


async def request_device_code(http: Http, client_id: str) -> DeviceCode:
    """The first step. Raises UsageError without a client id, ProviderError where GitHub refuses."""
    if not client_id:
        raise UsageError("Copilot needs the client id of a GitHub OAuth app; set it in the settings.")
    answer = await _post(http, DEVICE_CODE_URL, {"client_id": client_id, "scope": "read:user"})
    try:
        return DeviceCode(
            answer["user_code"],
            answer["verification_uri"],
            answer["device_code"],
            float(answer.get("interval", _SLOW_DOWN_SECONDS)),
            float(answer.get("expires_in", 900)),
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
    document = _document(answer)
    try:
        expires_at = float(document["expires_at"])
        lifetime = float(document.get("refresh_in") or expires_at - now - _RENEW_BEFORE_SECONDS)
        base_url = (document.get("endpoints") or {}).get("api") or DEFAULT_BASE_URL
        return CopilotToken(document["token"], expires_at, min(now + lifetime, expires_at), base_url)
    except SHAPE_ERRORS:
        raise ProviderError(ErrorKind.MALFORMED, "Copilot's token exchange gave an answer without a token.") from None


async def _post(http: Http, url: str, fields: dict[str, str]) -> dict[str, Any]:
    headers = {"accept": "application/json", "content-type": "application/json"}
    return _document(await http(WireRequest("POST", url, headers, dumps(fields))))


def _document(answer: HttpAnswer) -> dict[str, Any]:
    if answer.status >= 400:
        error = error_from_body("copilot", answer.status, {}, answer.body)
        hint = "; log in again with `callboard login copilot`" if error.kind is ErrorKind.AUTHENTICATION else ""
        raise ProviderError(error.kind, f"GitHub refused: {error.message}{hint}", status=answer.status)
    try:
        document = loads(answer.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ProviderError(ErrorKind.MALFORMED, "GitHub's answer is not a JSON object.")
    return document


def _refused(answer: dict[str, Any], what: str) -> ProviderError:
    reason = answer.get("error_description") or answer.get("error") or "no reason was given"
    return ProviderError(ErrorKind.AUTHENTICATION, f"{what}: {reason}")
