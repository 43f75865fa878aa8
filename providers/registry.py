"""Names to adapters and providers: one table each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from callboard.protocol.errors import UsageError
from callboard.providers.adapter import DEFAULT_TIMEOUTS, Adapter, Provider, Timeouts
from callboard.providers.openai.dialects import SERVERS

if TYPE_CHECKING:
    from callboard.providers.openai.embeddings import EmbeddingApi
    from callboard.providers.transport import AnyTransport, HeaderListener


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of this package, imported when it is first called: HTTP alone takes 0.2 s, `offline` needs none of it."""

    module: str
    name: str

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(import_module(f"callboard.providers.{self.module}"), self.name)(*args, **options)


_OPENAI_CHAT: Final = _Class("openai.chat_api", "OpenAIChat")
_OPENAI_RESPONSES: Final = _Class("openai.responses_api", "OpenAIResponses")
_HTTP: Final = _Class("transport", "HttpProvider")
_COPILOT: Final = _Class("copilot.copilot_provider", "copilot_of")
_EMBEDDINGS: Final = _Class("openai.embeddings", "EmbeddingApi")

#: Every factory takes base_url, api_key and keyword options of its own.
ADAPTERS: Final[Mapping[str, Callable[..., Adapter]]] = {
    **{name: partial(_OPENAI_CHAT, dialect=server.dialect) for name, server in SERVERS.items()},
    "openai": _OPENAI_RESPONSES,
    "openai-responses": _OPENAI_RESPONSES,
    "anthropic": _Class("anthropic.messages_api", "Anthropic"),
    "gemini": _Class("gemini.gemini_api", "Gemini"),
    "openrouter": _Class("openrouter", "OpenRouter"),
    "copilot": _Class("copilot.copilot_api", "Copilot"),
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
_LOCAL: Final[Mapping[str, Callable[..., Provider]]] = {
    "offline": _Class("local.offline", "Offline"),
    "scripted": _Class("local.scripted", "Scripted"),
}

PROVIDERS: Final = tuple(sorted({*ADAPTERS, *_LOCAL}))
"""All names that may stand before the slash of `provider/model`."""


def adapter_for(name: str, *, base_url: str | None = None, api_key: str | None = None, **options: Any) -> Adapter:
    """The adapter of a wire API or a well-known server. UsageError for an unknown name, with the known ones."""
    factory = ADAPTERS.get(name)
    if factory is None:
        raise UsageError(f"There is no adapter {name!r}; known are: {', '.join(sorted(ADAPTERS))}.")
    return factory(base_url=base_url, api_key=api_key, **options)


def embeddings_for(model: str, *, base_url: str | None = None, api_key: str | None = None) -> EmbeddingApi:
    """The embeddings endpoint of `provider/model`. UsageError for a provider without one."""
    api: EmbeddingApi = _EMBEDDINGS(model, base_url=base_url, api_key=api_key)
    return api


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
    transport: AnyTransport | None = None,
    **options: Any,
) -> tuple[Provider, str]:
    """The provider of `provider/model`, and its own name of the model.

    `options` go to the adapter (or to Offline: cwd, Scripted: script, copilot: tokens or login_file). Raises UsageError
    for an unknown provider, and for a missing key, naming its environment variable. With a base_url of the user's own
    the key may be left out: many a local server wants none.
    """
    provider, name = split_model(model)
    if provider in _LOCAL:
        return _LOCAL[provider](**options), name
    carry: dict[str, Any] = {
        "timeouts": timeouts or DEFAULT_TIMEOUTS,
        "on_headers": on_headers,
        "proxy": proxy,
        "transport": transport,
    }
    if provider == "copilot" and api_key is None:
        return _COPILOT(options, carry), name
    variable = key_variable(provider)
    if variable and not api_key and not base_url:
        raise UsageError(f"{provider} needs a key: set the environment variable {variable}, or give api_key.")
    if provider in SERVERS:
        SERVERS[provider].dialect.address(base_url)  # missing, it is said now and not at the first question
    return _HTTP(adapter_for(provider, base_url=base_url, api_key=api_key, **options), **carry), name
