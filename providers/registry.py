"""Names to adapters and providers: one table each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import httpx

from callboard.protocol.errors import UsageError
from callboard.providers.adapter import Adapter, Provider
from callboard.providers.anthropic import Anthropic
from callboard.providers.copilot import Copilot
from callboard.providers.copilot_provider import CopilotProvider
from callboard.providers.copilot_tokens import CopilotTokens
from callboard.providers.gemini import Gemini
from callboard.providers.offline import Offline
from callboard.providers.openai_chat import OpenAIChat
from callboard.providers.openai_responses import OpenAIResponses
from callboard.providers.openrouter import OpenRouter
from callboard.providers.scripted import Scripted
from callboard.providers.servers import SERVERS
from callboard.providers.transport import HeaderListener, HttpProvider, Timeouts

#: Every factory takes base_url, api_key and keyword options of its own.
ADAPTERS: Final[Mapping[str, Callable[..., Adapter]]] = {
    **{name: partial(OpenAIChat, dialect=server.dialect) for name, server in SERVERS.items()},
    "openai": OpenAIResponses,
    "openai-responses": OpenAIResponses,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "openrouter": OpenRouter,
    "copilot": Copilot,
}

#: The environment variable in which a provider's users keep its key. settings.py reads it, nothing here does.
KEY_VARIABLES: Final[Mapping[str, str]] = {
    **{name: server.key_variable for name, server in SERVERS.items() if server.key_variable},
    "openai": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}

#: Providers without HTTP.
_LOCAL: Final[Mapping[str, Callable[..., Provider]]] = {"offline": Offline, "scripted": Scripted}

PROVIDERS: Final = tuple(sorted({*ADAPTERS, *_LOCAL}))
"""All names that may stand before the slash of `provider/model`."""


def adapter_for(name: str, *, base_url: str | None = None, api_key: str | None = None, **options: Any) -> Adapter:
    """The adapter of a wire API or a well-known server. UsageError for an unknown name, with the known ones."""
    factory = ADAPTERS.get(name)
    if factory is None:
        raise UsageError(f"There is no adapter {name!r}; known are: {', '.join(sorted(ADAPTERS))}.")
    return factory(base_url=base_url, api_key=api_key, **options)


def key_variable(provider: str) -> str | None:
    """The environment variable of a provider's key; None where it needs none or is not known."""
    return KEY_VARIABLES.get(provider)


def split_model(model: str) -> tuple[str, str]:
    """(provider, model) of `provider/model`. UsageError for an unknown provider or a missing half."""
    provider, _, name = model.partition("/")
    if provider not in PROVIDERS:
        raise UsageError(
            f"There is no provider {provider!r} (in {model!r}). Models are named provider/model; known providers are: "
            f"{', '.join(PROVIDERS)}. Any other server that speaks Chat Completions: openai-compatible/MODEL with a "
            "base_url."
        )
    if not name:
        raise UsageError(f"{model!r} names no model; write {provider}/MODEL.")
    return provider, name


def provider_for(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    timeouts: Timeouts | None = None,
    on_headers: HeaderListener | None = None,
    proxy: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    **options: Any,
) -> tuple[Provider, str]:
    """The provider of `provider/model`, and its own name of the model.

    `options` go to the adapter (or to Offline: cwd, Scripted: script, CopilotProvider: tokens). Raises UsageError for
    an unknown provider, and for a missing key, naming its environment variable. With a base_url of the user's own the
    key may be left out: many a local server wants none.
    """
    provider, name = split_model(model)
    if provider in _LOCAL:
        return _LOCAL[provider](**options), name
    carry: dict[str, Any] = {
        "timeouts": timeouts or Timeouts(),
        "on_headers": on_headers,
        "proxy": proxy,
        "transport": transport,
    }
    if provider == "copilot" and api_key is None:
        return _copilot(options, carry), name
    variable = key_variable(provider)
    if variable and not api_key and not base_url:
        raise UsageError(f"{provider} needs a key: set the environment variable {variable}, or give api_key.")
    return HttpProvider(adapter_for(provider, base_url=base_url, api_key=api_key, **options), **carry), name


def _copilot(options: Mapping[str, Any], carry: Mapping[str, Any]) -> Provider:
    tokens = options.get("tokens")
    if not isinstance(tokens, CopilotTokens):
        raise UsageError("copilot needs a login: run `callboard login copilot`.")
    return CopilotProvider(tokens, **carry)
