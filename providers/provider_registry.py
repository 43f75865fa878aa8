"""Names to adapters and providers, by the rows of provider_table.py and the adapters of http_adapters.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from callboard.protocol.errors import UsageError
from callboard.providers.adapter import Adapter, Authorizer, Provider, Timeouts
from callboard.providers.credentials import KEY_PLACE, Key, Token, TokenCallback, token_authorizer
from callboard.providers.local.offline import Offline
from callboard.providers.local.scripted import Scripted
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.provider_table import ROWS

if TYPE_CHECKING:
    from callboard.providers.openai.embeddings import EmbeddingApi
    from callboard.providers.transport import AnyTransport, HeaderListener, Verify

#: The environment variable in which a provider's users keep its key. settings.py reads it, nothing here does.
KEY_VARIABLES: Final[Mapping[str, str]] = {row.name: row.key_variable for row in ROWS.values() if row.key_variable}

#: Providers without HTTP.
LOCAL: Final[Mapping[str, Callable[..., Provider]]] = {"offline": Offline, "scripted": Scripted}

ENVIRONMENT: Final = "environment"
"""In place of a proxy's address: those that HTTPS_PROXY and its kin name."""

PROVIDERS: Final = tuple(sorted(ROWS))
"""All names that may come before the slash of `provider/model`."""


#: In a message about one that there is not.
_SHOWN_PROVIDERS: Final = ("anthropic", "azure", "bedrock", "gemini", "ollama", "openai", "openrouter", "vertex")


def adapter_for(name: str, *, base_url: str | None = None, api_key: str | None = None, **options: object) -> Adapter:
    """The adapter of a wire API or a well-known server. UsageError for an unknown name, with the known ones."""
    from callboard.providers.http_adapters import ADAPTERS  # noqa: PLC0415 - all of them take 0.1 s to load

    if name not in ADAPTERS:
        raise UsageError(f"There is no adapter {name!r}; known are: {', '.join(sorted(ADAPTERS))}.")
    return ADAPTERS[name](base_url=base_url, api_key=api_key, **options)


def embeddings_for(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    proxy: str = "",
    verify: Verify = True,
    transport: AnyTransport | None = None,
) -> EmbeddingApi:
    """The embeddings endpoint of `provider/model`. UsageError for a provider without one."""
    from callboard.providers.environment_proxy import environment_proxy  # noqa: PLC0415 - loads HTTP
    from callboard.providers.openai.embeddings import EmbeddingApi  # noqa: PLC0415 - likewise

    through = environment_proxy() if proxy == ENVIRONMENT else proxy
    return EmbeddingApi(
        model,
        base_url=base_url,
        api_key=api_key,
        headers=headers,
        proxy=through,
        verify=verify,
        transport=transport,
    )


def split_model(model: str, own: Collection[str] = ()) -> tuple[str, str]:
    """(provider, model) of `provider/model`. UsageError for an unknown provider or a missing half. `own`: names of
    providers besides the known ones."""
    provider, _, name = model.partition("/")
    if provider not in PROVIDERS and provider not in own:
        raise UsageError(_no_provider(model, provider, own))
    if not name:
        raise UsageError(f"{model!r} names no model; write {provider}/MODEL.")
    return provider, name


def _no_provider(model: str, provider: str, own: Collection[str]) -> str:
    from callboard.providers.meant_model import meant_model  # noqa: PLC0415 - seldom needed

    wrong = f"There is no provider {provider[:60]!r} (in {model[:60]!r})"
    if found := meant_model(model, (*own, *PROVIDERS)):
        return f"{wrong}; did you mean {found!r}?"
    known = ", ".join((*own, *_SHOWN_PROVIDERS))
    return (
        f"{wrong}. Models are named provider/model; known providers are: {known} ... (callboard models --providers "
        "lists all); for any other server: openai-compatible/MODEL with a base_url."
    )


def own_name(model: str, own: Collection[str] = ()) -> tuple[str, str]:
    """(connection, name) of `provider/model`: models with the same connection are asked through one provider, each by
    its own `name`. UsageError as in `split_model`."""
    provider, name = split_model(model, own)
    if provider != "vertex":
        return provider, name
    from callboard.providers.vertex.vertex_api import publisher_of  # noqa: PLC0415 - as in `adapter_for`

    publisher, name = publisher_of(name)
    return f"{provider}/{publisher}", name


def over_http(
    adapter: Adapter,
    timeouts: Timeouts,
    on_headers: HeaderListener,
    proxy: str = "",
    verify: Verify = True,
    transport: AnyTransport | None = None,
) -> Provider:
    """A provider around an adapter of the user's own. `proxy` as in `provider_for`."""
    from callboard.providers.environment_proxy import environment_proxy  # noqa: PLC0415 - as in `adapter_for`
    from callboard.providers.transport import HttpProvider  # noqa: PLC0415 - likewise

    through = environment_proxy() if proxy == ENVIRONMENT else proxy
    return HttpProvider(
        adapter, timeouts=timeouts, on_headers=on_headers, proxy=through, verify=verify, transport=transport
    )


def provider_for(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    token: TokenCallback | str | None = None,
    timeouts: Timeouts | None = None,
    on_headers: HeaderListener | None = None,
    proxy: str = "",
    verify: Verify = True,
    transport: AnyTransport | None = None,
    **options: object,
) -> tuple[Provider, str]:
    """The provider of `provider/model`, and its own name of the model.

    `token` is a bearer token in place of the key, or a callback (credentials.TokenCallback). A str that the callback
    gives is a key, but in a cloud, whose tokens expire (Entra's for Azure), a bearer token; Key and Token say it.
    `proxy` is the address of an HTTP proxy, or ENVIRONMENT for those that the environment names. `options` go to the
    adapter (or to Offline: cwd, Scripted: script, copilot: tokens or login_file; to sign in to vertex: credentials or
    credentials_file, to bedrock: profile). Raises UsageError for an unknown provider, and for a missing key, naming its
    environment variable. With a base_url of the user's own the key may be left out: many a local server wants none.
    """
    provider, name = split_model(model)
    if provider in LOCAL:
        return LOCAL[provider](**options), name
    if token is not None and api_key:
        raise UsageError(f"{provider} was given a key and a token; leave one of them out.")
    # HTTP takes 0.2 s to load and the adapters 0.1 s; `offline` never needs them.
    from callboard.providers.copilot.copilot_api import Copilot, copilot_of  # noqa: PLC0415
    from callboard.providers.environment_proxy import environment_proxy  # noqa: PLC0415
    from callboard.providers.http_adapters import CLOUDS  # noqa: PLC0415
    from callboard.providers.openai.background import ResponsesProvider  # noqa: PLC0415
    from callboard.providers.openai.responses_api import OpenAIResponses  # noqa: PLC0415
    from callboard.providers.transport import HttpProvider  # noqa: PLC0415

    through = environment_proxy() if proxy == ENVIRONMENT else proxy

    def http(adapter: Adapter, authorizer: Authorizer | None = None) -> HttpProvider:
        kind = ResponsesProvider if isinstance(adapter, OpenAIResponses) else HttpProvider
        return kind(
            adapter,
            timeouts=timeouts,
            on_headers=on_headers,
            proxy=through,
            verify=verify,
            transport=transport,
            authorizer=authorizer,
        )

    if provider == "copilot" and api_key is None and token is None:
        return copilot_of(options, http(Copilot())), name
    kind = Token if provider in CLOUDS else Key
    authorizer: Authorizer | None = None if token is None else token_authorizer(token, kind)
    if prepare := CLOUDS.get(provider):
        is_signed_in = bool(api_key) or authorizer is not None
        name, other = prepare(name, base_url, options, is_signed_in)
        authorizer = authorizer or other
    row = ROWS[provider]
    if row.key_variable and not api_key and authorizer is None and not (base_url and row.address):
        settings = f'Settings(api_key=...), or Settings(connections={{"{provider}": Connection(api_key=...)}})'
        ways = f"set the environment variable {row.key_variable}, or give {settings}"
        raise UsageError(f"{provider} needs a key: {ways}{f', or use {row.sign_in}' if row.sign_in else ''}.")
    if provider in SERVERS:
        SERVERS[provider].address(base_url)  # missing, it is said now and not at the first question
    key = KEY_PLACE if callable(token) else api_key
    return http(adapter_for(provider, base_url=base_url, api_key=key, **options), authorizer=authorizer), name
