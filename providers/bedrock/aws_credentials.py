"""AWS credentials by botocore (extra `bedrock`): its chain of sources finds them, its SigV4 signs each request.

botocore looks for them where every AWS tool does: the environment, ~/.aws, single sign-on, a container's or machine's
role. That may open connections and block, so it happens in a thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from callboard.protocol.errors import UsageError, missing_extra
from callboard.providers.adapter import WireRequest
from callboard.providers.credentials import RENEWAL_SECONDS, CredentialError, InThread, RenewedCredential, described

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from botocore.session import Session

#: The name by which Bedrock's requests are signed (`signingName` of its service model).
SIGNING_NAME: Final = "bedrock"
_TODO: Final = (
    "sign in (`aws sso login`), set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a Bedrock API key in "
    "AWS_BEARER_TOKEN_BEDROCK"
)


@dataclass(frozen=True, slots=True)
class AwsCredential:
    """What a request is signed with."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires_at: float | None = math.inf
    """None for what botocore renews by itself: it is asked each time, and keeps them as long as they are good."""


def aws_authorizer(
    region: str, profile: str = "", *, seconds: float = RENEWAL_SECONDS
) -> RenewedCredential[AwsCredential]:
    """Signs requests to Bedrock in `region` with what botocore finds; `profile` is a section of ~/.aws/config.

    Raises UsageError without the extra `bedrock`.
    """
    chain = _Chain(_new_session(profile), lambda: _new_session(profile))
    ask = InThread(chain.credential)

    async def source(was_refused: bool) -> AwsCredential:
        if was_refused:
            chain.forget()
        return await ask()

    def sign(wire: WireRequest, credential: AwsCredential) -> WireRequest:
        return signed(wire, credential, region)

    return RenewedCredential(source, sign, todo=_TODO, seconds=seconds)


def configured_region(profile: str = "") -> str:
    """The region that the profile names; "" for none. Raises UsageError without the extra `bedrock`, or the profile."""
    session = _new_session(profile)
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - behind `_new_session`, which says if it is missing

    try:
        region = session.get_config_variable("region")
    except BotoCoreError as error:
        raise UsageError(f"AWS's configuration cannot be used: {described(error)}.") from None
    return str(region or "")


def signed(wire: WireRequest, credential: AwsCredential, region: str) -> WireRequest:
    """The request with its signature (SigV4): over method, address, content type and body."""
    from botocore.auth import SigV4Auth  # noqa: PLC0415 - an optional extra
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415
    from botocore.credentials import Credentials  # noqa: PLC0415

    kept = {"content-type": wire.headers["content-type"]} if "content-type" in wire.headers else {}
    request = AWSRequest(wire.method, wire.url, kept, wire.body)
    keys = Credentials(credential.access_key, credential.secret_key, credential.session_token or None)
    SigV4Auth(keys, SIGNING_NAME, region).add_auth(request)
    added = {name.lower(): value for name, value in request.headers.items()}
    return replace(wire, headers={**wire.headers, **added})


def _new_session(profile: str) -> Session:
    try:
        from botocore.session import Session  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise UsageError(f"{missing_extra('bedrock without an API key', 'bedrock')}.") from None
    return Session(profile=profile or None)


class _Chain:
    """botocore's sources. `credential` blocks."""

    def __init__(self, session: Session, again: Callable[[], Session]) -> None:
        self._session: Session | None = session
        self._again = again
        self._found: Credentials | None = None

    def forget(self) -> None:
        """Look again, in files that may have been written meanwhile."""
        self._session = self._found = None

    def credential(self) -> AwsCredential:
        """What to sign with now. Raises CredentialError."""
        from botocore.credentials import RefreshableCredentials  # noqa: PLC0415 - an optional extra
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError  # noqa: PLC0415

        try:
            session = self._session = self._session or self._again()
            found = self._found = self._found or session.get_credentials()
            keys = None if found is None else found.get_frozen_credentials()
        except (BotoCoreError, ClientError, OSError) as error:
            temporary = isinstance(error, HTTPClientError | OSError)
            raise CredentialError(f"AWS credentials cannot be got: {described(error)}", temporary) from None
        if keys is None:
            raise CredentialError("there are no AWS credentials here")
        expires_at = None if isinstance(found, RefreshableCredentials) else math.inf
        return AwsCredential(keys.access_key, keys.secret_key, keys.token or "", expires_at)
