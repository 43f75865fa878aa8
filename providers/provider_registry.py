"""Names to adapters and providers: one table each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from callboard.protocol.errors import UsageError
from callboard.providers.adapter import Adapter, Provider, Timeouts
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import MESSAGES_SERVERS
from callboard.providers.copilot.copilot_api import Copilot, copilot_of
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.local.offline import Offline
from callboard.providers.local.scripted import Scripted
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.openrouter import OpenRouter

if TYPE_CHECKING:
    from callboard.providers.openai.embeddings import EmbeddingApi
    from callboard.providers.transport import AnyTransport, HeaderListener

#: Every factory takes base_url, api_key and keyword options of its own.
ADAPTERS: Final[Mapping[str, Callable[..., Adapter]]] = {
    **{name: partial(OpenAIChat, dialect=dialect) for name, dialect in SERVERS.items()},
    **{name: partial(Anthropic, dialect=dialect) for name, dialect in MESSAGES_SERVERS.items()},
    "openai": OpenAIResponses,
    "openai-responses": OpenAIResponses,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "openrouter": OpenRouter,
    "copilot": Copilot,
}

#: The environment variable in which a provider's users keep its key. settings.py reads it, nothing here does.
KEY_VARIABLES: Final[Mapping[str, str]] = {
    **{name: dialect.key_variable for name, dialect in SERVERS.items() if dialect.key_variable},
    **{name: dialect.key_variable for name, dialect in MESSAGES_SERVERS.items() if dialect.key_variable},
    "openai": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}

#: Providers without HTTP.
_LOCAL: Final[Mapping[str, Callable[..., Provider]]] = {"offline": Offline, "scripted": Scripted}

PROVIDERS: Final = tuple(sorted({*ADAPTERS, *_LOCAL}))
"""All names that may come before the slash of `provider/model`."""


def adapter_for(name: str, *, base_url: str | None = None, api_key: str | None = None, **options: object) -> Adapter:
    """The adapter of a wire API or a well-known server. UsageError for an unknown name, with the known ones."""
    factory = ADAPTERS.get(name)
    if factory is None:
        raise UsageError(f"There is no adapter {name!r}; known are: {', '.join(sorted(ADAPTERS))}.")
    return factory(base_url=base_url, api_key=api_key, **options)


def embeddings_for(model: str, *, base_url: str | None = None, api_key: str | None = None) -> EmbeddingApi:
    """The embeddings endpoint of `provider/model`. UsageError for a provider without one."""
    from callboard.providers.openai.embeddings import EmbeddingApi  # noqa: PLC0415 - loads HTTP

    return EmbeddingApi(model, base_url=base_url, api_key=api_key)


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
    **options: object,
) -> tuple[Provider, str]:
    """The provider of `provider/model`, and its own name of the model.

    `options` go to the adapter (or to Offline: cwd, Scripted: script, copilot: tokens or login_file). Raises UsageError
    for an unknown provider, and for a missing key, naming its environment variable. With a base_url of the user's own
    the key may be left out: many a local server wants none.
    """
    provider, name = split_model(model)
    if provider in _LOCAL:
        return _LOCAL[provider](**options), name
    # HTTP takes 0.2 s to load, and `offline` never needs it.
    from callboard.providers.openai.background import ResponsesProvider  # noqa: PLC0415
    from callboard.providers.transport import HttpProvider  # noqa: PLC0415

    def http(adapter: Adapter) -> HttpProvider:
        kind = ResponsesProvider if isinstance(adapter, OpenAIResponses) else HttpProvider
        return kind(adapter, timeouts=timeouts, on_headers=on_headers, proxy=proxy, transport=transport)

    if provider == "copilot" and api_key is None:
        return copilot_of(options, http(Copilot())), name
    variable = KEY_VARIABLES.get(provider)
    if variable and not api_key and not base_url:
        raise UsageError(f"{provider} needs a key: set the environment variable {variable}, or the setting api_key.")
    if provider in SERVERS:
        SERVERS[provider].address(base_url)  # missing, it is said now and not at the first question
    return http(adapter_for(provider, base_url=base_url, api_key=api_key, **options)), name
