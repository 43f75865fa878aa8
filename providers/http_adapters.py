"""The adapters behind HTTP, by the name of the provider, and what the clouds need besides a key and an address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from callboard.protocol.errors import UsageError
from callboard.providers.adapter import Adapter, Authorizer
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import MESSAGES_SERVERS
from callboard.providers.azure import azure_openai
from callboard.providers.azure.azure_openai import AzureAddress, AzureChat, AzureResponses
from callboard.providers.bedrock.aws_credentials import aws_authorizer, configured_region
from callboard.providers.bedrock.converse_api import Bedrock
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.openrouter import OpenRouter
from callboard.providers.provider_table import ROWS
from callboard.providers.vertex.google_credentials import google_authorizer
from callboard.providers.vertex.vertex_api import publisher_of, vertex

#: Each takes base_url, api_key and keyword options of its own.
ADAPTERS: Final[Mapping[str, Callable[..., Adapter]]] = {
    **{name: partial(OpenAIChat, dialect=dialect) for name, dialect in SERVERS.items()},
    **{name: partial(Anthropic, dialect=dialect) for name, dialect in MESSAGES_SERVERS.items() if name in ROWS},
    "openai": OpenAIResponses,
    "openai-responses": OpenAIResponses,
    "anthropic": Anthropic,
    "gemini": Gemini,
    azure_openai.NAME: AzureChat,
    azure_openai.RESPONSES_NAME: AzureResponses,
    "vertex": vertex,
    "bedrock": Bedrock,
    "openrouter": OpenRouter,
    "copilot": Copilot,
}

_Prepared = tuple[str, Authorizer | None]
"""The model's name as the adapter wants it, and what signs in where no credential was given."""


def _prepare_azure(name: str, base_url: str | None, options: dict[str, object], is_signed_in: bool) -> _Prepared:
    AzureAddress.of(base_url, str(options.get("api_version", "")))  # what is wrong with it is said now
    return name, None


def _prepare_vertex(name: str, base_url: str | None, options: dict[str, object], is_signed_in: bool) -> _Prepared:
    options["publisher"], name = publisher_of(name)
    credentials, file = options.pop("credentials", None), options.pop("credentials_file", None)
    if not is_signed_in:
        return name, google_authorizer(credentials, Path(str(file)) if file else None)
    if not options.get("project"):
        raise UsageError("vertex needs a project: set GOOGLE_CLOUD_PROJECT, or give project.")
    return name, None


def _prepare_bedrock(name: str, base_url: str | None, options: dict[str, object], is_signed_in: bool) -> _Prepared:
    profile = str(options.pop("profile", ""))
    region = str(options.get("region", "")) or ("" if is_signed_in else configured_region(profile))
    if not region:
        raise UsageError("bedrock needs a region: set AWS_REGION, or give region.")
    options["region"] = region
    return name, None if is_signed_in else aws_authorizer(region, profile)


#: What a cloud needs besides a key and an address.
CLOUDS: Final[Mapping[str, Callable[[str, str | None, dict[str, object], bool], _Prepared]]] = {
    azure_openai.NAME: _prepare_azure,
    azure_openai.RESPONSES_NAME: _prepare_azure,
    "vertex": _prepare_vertex,
    "bedrock": _prepare_bedrock,
}
