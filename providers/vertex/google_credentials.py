"""Google Cloud credentials by google-auth (extra `vertex`): application default credentials, or a service account.

google-auth looks for them where every Google tool does: GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth
application-default login`, the metadata server of a machine. That opens connections and blocks, so it happens in a
thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from msgspec.structs import replace

from callboard.protocol.errors import UsageError, missing_extra
from callboard.providers.adapter import WireRequest
from callboard.providers.credentials import (
    RENEWAL_SECONDS,
    CredentialError,
    InThread,
    RenewedCredential,
    Token,
    described,
    with_bearer,
)

if TYPE_CHECKING:
    from google.auth.transport.requests import Request

#: What the address of a request has where the project is only known with the credentials: no project is called so.
UNKNOWN_PROJECT: Final = "~"
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_TODO: Final = (
    "sign in (`gcloud auth application-default login`), or name the key file of a service account in "
    "GOOGLE_APPLICATION_CREDENTIALS"
)


@dataclass(frozen=True, slots=True)
class GoogleToken:
    """An access token, and what is known with it."""

    text: str = field(repr=False)
    expires_at: float | None = None
    project: str = ""
    quota_project: str = ""
    """Which is billed, where it is not that of the request."""


@runtime_checkable
class Renewable(Protocol):
    """What is used of `google.auth.credentials.Credentials`."""

    token: str | None
    expiry: datetime | None
    """In UTC, without saying so."""

    def refresh(self, request: Request) -> None:
        """Get a new token."""


def google_authorizer(
    credentials: object = None, file: Path | None = None, *, seconds: float = RENEWAL_SECONDS
) -> RenewedCredential[GoogleToken]:
    """Authorizes requests by these credentials of google-auth, by those of a service account's key file, or else by the
    default ones.

    Raises UsageError without the extra `vertex`, and for other credentials.
    """
    if not isinstance(credentials, Renewable | None):
        raise UsageError(f"vertex takes credentials of google-auth, not a {type(credentials).__name__}.")
    ask = InThread(_Login(credentials, file).token)

    async def source(was_refused: bool) -> GoogleToken:
        return await ask()

    return RenewedCredential(source, _with_token, todo=_TODO, seconds=seconds)


def _with_token(wire: WireRequest, token: GoogleToken) -> WireRequest:
    wire = with_bearer(wire, Token(token.text))
    unknown = f"/projects/{UNKNOWN_PROJECT}/"
    if unknown in wire.url:
        if not token.project:
            raise CredentialError("the credentials name no project; set GOOGLE_CLOUD_PROJECT")
        wire = replace(wire, url=wire.url.replace(unknown, f"/projects/{token.project}/"))
    if token.quota_project:
        wire = replace(wire, headers={**wire.headers, "x-goog-user-project": token.quota_project})
    return wire


class _Login:
    """Credentials of google-auth. `token` blocks."""

    def __init__(self, credentials: Renewable | None, file: Path | None) -> None:
        try:
            import google.auth.transport.requests  # noqa: F401, PLC0415 - an optional extra
        except ImportError:
            raise UsageError(f"{missing_extra('vertex without a token', 'vertex')}.") from None
        self._credentials = credentials
        self._file = file
        self._project = ""

    def token(self) -> GoogleToken:
        """A new token. Raises CredentialError."""
        from google.auth.exceptions import GoogleAuthError, TransportError  # noqa: PLC0415 - an optional extra
        from google.auth.transport.requests import Request  # noqa: PLC0415

        try:
            credentials = self._credentials = self._credentials or self._load()
            credentials.refresh(Request())
        except (GoogleAuthError, OSError, ValueError) as error:
            temporary = isinstance(error, TransportError | OSError) or bool(getattr(error, "retryable", False))
            raise CredentialError(f"Google credentials cannot be got: {described(error)}", temporary) from None
        expiry = credentials.expiry
        expires_at = None if expiry is None else expiry.replace(tzinfo=UTC).timestamp()
        quota_project = getattr(credentials, "quota_project_id", None) or ""
        project = self._project or getattr(credentials, "project_id", None) or ""
        return GoogleToken(str(credentials.token or ""), expires_at, str(project), str(quota_project))

    def _load(self) -> Renewable:
        import google.auth  # noqa: PLC0415 - an optional extra
        from google.oauth2 import service_account  # noqa: PLC0415

        if self._file is not None:
            account: Renewable = service_account.Credentials.from_service_account_file(str(self._file), scopes=[_SCOPE])
            return account
        found: tuple[Renewable, str | None] = google.auth.default(scopes=[_SCOPE])
        self._project = found[1] or ""
        return found[0]
