"""From "provider/model" to the route that asks it. Providers, with their connections, are made when first needed and
shared by all models and requests of one credential; so are the rate limits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final

from callboard.actors.config_file import similar
from callboard.actors.connection import Connection
from callboard.actors.models.llm_manager import Route
from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError
from callboard.providers.adapter import Adapter, Provider, Timeouts
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.provider_registry import (
    ENVIRONMENT,
    KEY_VARIABLES,
    LOCAL,
    PROVIDERS,
    over_http,
    own_name,
    provider_for,
    split_model,
)
from callboard.providers.rate_limit import RateLimiter, RateLimits

OwnProviders = Mapping[str, Provider | Adapter]
"""Providers of the user's own, by the names that come before the slash of "provider/model"; HTTP is put around an
adapter."""
#: What a name of a provider is made of.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")


class Router:
    """See the module. Usable from any thread. Raises UsageError for wrong names, and for what is no provider."""

    def __init__(self, settings: Settings, limits: RateLimits, own: OwnProviders | None = None) -> None:
        self._settings = settings
        self._limits = limits
        self._own = _checked(own or {})
        known = dict.fromkeys((*self._own, *PROVIDERS))
        for name in settings.connections:
            if name not in known:
                raise UsageError(f"connections: there is no provider {name!r}{similar(name, known)}")
        for name in self._own:
            _check_connection(name, self._own[name], settings)
        self._made: dict[str, tuple[Provider, RateLimiter]] = {}
        """By what tells connections apart: the provider, and at Vertex AI the maker of the model."""
        self._making = Lock()

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Those that were made so far."""
        return tuple(provider for provider, _ in self._made.values())

    def route(self, model: str) -> Route:
        """How to ask "provider/model". Raises UsageError for an unknown provider or a missing key."""
        connection, name = own_name(model, self._own)
        with self._making:
            if connection not in self._made:
                self._made[connection] = self._provider(model)
            provider, limiter = self._made[connection]
        return Route(provider, name, limiter, model)

    def split(self, model: str) -> tuple[str, str]:
        """(provider, model) of "provider/model". UsageError for an unknown provider."""
        return split_model(model, self._own)

    def _provider(self, model: str) -> tuple[Provider, RateLimiter]:
        settings, (provider, _) = self._settings, self.split(model)
        connection, key = settings.connection(provider), settings.key_for(provider)
        proxy = ENVIRONMENT if connection.proxy is None else connection.proxy
        verify = True if connection.verify is None else connection.verify
        timeouts = Timeouts(
            idle_seconds=settings.stream_idle_timeout_seconds, total_seconds=settings.stream_total_timeout_seconds
        )
        limiter = self._limits.limiter(provider, key)
        if (own := self._own.get(provider)) is not None:
            if isinstance(own, Provider):
                return own, limiter
            return over_http(own, timeouts, limiter.on_headers, proxy, verify, connection.transport), limiter
        options: dict[str, Any] = {**settings.options_for(provider)}
        if connection.headers and provider not in LOCAL:  # a fake takes the place of any model, with its settings
            options["headers"] = connection.headers
        if connection.reasoning is not None:
            if provider not in SERVERS:
                raise UsageError(
                    f"connections.{provider}.reasoning: only a server that speaks Chat Completions has such a field; "
                    f"leave it out, or ask by one of: {', '.join(SERVERS)}"
                )
            options["reasoning"] = connection.reasoning
        # As its own client has it: a token of the environment's comes before a key of the environment's.
        if "token" in options and settings.key_source(provider) == KEY_VARIABLES.get(provider):
            key = None
        elif key:
            options.pop("token", None)
        if callable(connection.api_key):
            options["token"] = connection.api_key
        if provider == "offline":
            options["cwd"] = os.getcwd()
        if provider == "scripted" and settings.script is not None:
            options["script"] = settings.script
        if provider == "copilot" and key is None and "token" not in options:
            options["login_file"] = settings.copilot_token_file
        found, _ = provider_for(
            model,
            base_url=connection.base_url,
            api_key=key,
            timeouts=timeouts,
            on_headers=limiter.on_headers,
            proxy=proxy,
            verify=verify,
            transport=connection.transport,
            **options,
        )
        return found, limiter


#: What a provider of the user's own says itself, and of that what an adapter does not.
_OF_A_PROVIDER: Final = ("base_url", "api_key", "headers", "proxy", "verify", "reasoning", "transport")
_OF_AN_ADAPTER: Final = ("base_url", "api_key", "headers", "reasoning")


def _check_connection(name: str, own: Provider | Adapter, settings: Settings) -> None:
    """Raise UsageError for what is set for a provider of the user's own, and would do nothing."""
    is_whole = isinstance(own, Provider)
    entry = settings.connections.get(name, Connection())
    # Not base_url: it may come from the environment, which is meant for other programs too.
    of_model = {"api_key": settings.api_key, "headers": settings.headers} if name == settings.provider else {}
    for field in _OF_A_PROVIDER if is_whole else _OF_AN_ADAPTER:
        if getattr(entry, field) not in (None, {}) or of_model.get(field):
            what = "a provider" if is_whole else "an adapter"
            raise UsageError(f"{field} does nothing for {name}, which is {what} of your own; say it to that itself")


def _checked(own: OwnProviders) -> OwnProviders:
    if not isinstance(own, Mapping):
        raise UsageError('providers are those of your own, by name: {"mine": ...}; the known ones need none')
    for name, provider in own.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"providers: {name!r} is no name of a provider; use small letters, digits and dashes, such as my-llm"
            )
        if name in PROVIDERS:
            raise UsageError(f"providers: there is a provider {name!r} already; choose another name for yours")
        if isinstance(provider, type):
            raise UsageError(f"providers: {name} is a class; give an object of it: {provider.__name__}(...)")
        if not isinstance(provider, Adapter | Provider):
            raise UsageError(
                f"providers: {name} is neither a provider nor an adapter: a provider has `name`, `stream` and "
                "`aclose`, an adapter `name`, `encode` and `decoder`"
            )
    return dict(own)
