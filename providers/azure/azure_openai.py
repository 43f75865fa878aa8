"""Azure OpenAI: Chat Completions and Responses at a resource of one's own.

Two kinds of addresses (Microsoft Learn, "Azure OpenAI in Microsoft Foundry Models REST API reference" and "API version
lifecycle"), told apart by the api-version:

    {resource}/openai/deployments/{model}/chat/completions?api-version=2024-10-21     with the date of a version
    {resource}/openai/responses?api-version=2025-04-01-preview
    {resource}/openai/v1/chat/completions                                             without one, or "preview"
    {resource}/openai/v1/responses

The model's name is that of its deployment. The key goes into the header `api-key`; an Entra token is a bearer token
(`provider_for(..., token=callback)`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest
from callboard.providers.adapter import WireRequest
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import OPENAI
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.request_encoding import checked_url

NAME: Final = "azure"
RESPONSES_NAME: Final = "azure-responses"
KEY_VARIABLE: Final = "AZURE_OPENAI_API_KEY"
ENDPOINT_VARIABLE: Final = "AZURE_OPENAI_ENDPOINT"
KEY_HEADER: Final = "api-key"
#: (Its dated versions are older than `allowed_tools`.)
DIALECT: Final = replace(
    OPENAI, name=NAME, base_url="", key_variable=KEY_VARIABLE, key_header=KEY_HEADER, allowed_tools=False
)
_DATED: Final = re.compile(r"\d{4}-\d{2}-\d{2}(-preview)?")
_DEPLOYMENT: Final = re.compile(r"/openai/deployments/[^/]+$")


class AzureAddress(Struct, frozen=True):
    """Where a resource answers."""

    resource: str
    """Without path: https://RESOURCE.openai.azure.com."""
    api_version: str = ""
    deployment: str = ""
    """The path to the one deployment that the user's address names; "": by the model's name."""

    @classmethod
    def of(cls, base_url: str | None, api_version: str) -> AzureAddress:
        """The address in any of its forms: a resource, one of the APIs there, a deployment. Raises UsageError."""
        if not base_url:
            raise UsageError(
                f"azure has no address of its own; set {ENDPOINT_VARIABLE} (or base_url) to your resource, such as "
                "https://RESOURCE.openai.azure.com."
            )
        parts = urlsplit(checked_url(base_url, "", with_query=True))
        version = (parse_qs(parts.query).get("api-version") or [api_version])[0]
        path = parts.path.rstrip("/")
        for api in ("/chat/completions", "/responses"):
            path = path.removesuffix(api)
        found = _DEPLOYMENT.search(path)
        deployment = found[0] if found else ""
        is_v1 = path.endswith("/openai/v1")
        if deployment and not _DATED.fullmatch(version):
            raise UsageError(
                f"The address {path} needs the date of an API version: set OPENAI_API_VERSION (or api_version), such "
                "as 2024-10-21, or name the resource alone."
            )
        if is_v1 and _DATED.fullmatch(version):
            version = ""  # of the other kind of address; here it would be refused
        path = path.removesuffix(deployment).removesuffix("/v1").removesuffix("/openai")
        return cls(f"{parts.scheme}://{parts.netloc}{path}", version, deployment)

    @property
    def is_dated(self) -> bool:
        """Is it of the kind with a version's date?"""
        return _DATED.fullmatch(self.api_version) is not None

    @property
    def api(self) -> str:
        """What all addresses of the API begin with."""
        return f"{self.resource}/openai" if self.is_dated else f"{self.resource}/openai/v1"

    @property
    def chat_path(self) -> str:
        """Behind `api`, where Chat Completions are; {model} is the deployment."""
        deployment = self.deployment.removeprefix("/openai") or "/deployments/{model}"
        return self.versioned(f"{deployment if self.is_dated else ''}/chat/completions")

    def versioned(self, url: str) -> str:
        """The address with the API's version, if one was given."""
        if not self.api_version:
            return url
        return f"{url}{'&' if '?' in url else '?'}api-version={quote(self.api_version, safe='')}"


class AzureChat(OpenAIChat):
    """The adapter of Chat Completions. Without an address it can only read answers."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api_version: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._address = AzureAddress.of(base_url, api_version) if base_url else None
        api, dialect = None, DIALECT
        if self._address is not None:
            api, dialect = self._address.api, replace(DIALECT, path=self._address.chat_path)
        super().__init__(base_url=api, api_key=api_key, dialect=dialect, headers=headers)

    def question(self, path: str, body: bytes | None = None) -> WireRequest:
        """See `AsksServer.question`."""
        return _versioned(super().question(path, body), self._address)


class AzureResponses(OpenAIResponses):
    """The adapter of Responses. Without an address it can only read answers."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api_version: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._address = AzureAddress.of(base_url, api_version) if base_url else None
        # (The address of OpenAI is never asked: see `encode`.)
        address = self._address.api if self._address else None
        super().__init__(base_url=address, api_key=api_key, headers=headers, name=NAME)
        self.name = RESPONSES_NAME
        self._credential = {KEY_HEADER: api_key} if api_key else {}

    def encode(self, request: ModelRequest, /) -> WireRequest:
        return _versioned(super().encode(request), self._address or AzureAddress.of(None, ""))

    def question(self, path: str, body: bytes | None = None) -> WireRequest:
        """See `AsksServer.question`."""
        return _versioned(super().question(path, body), self._address)


def _versioned(wire: WireRequest, address: AzureAddress | None) -> WireRequest:
    return replace(wire, url=address.versioned(wire.url)) if address else wire
