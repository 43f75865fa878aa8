"""From "provider/model" to the route that asks it. Providers, with their connections, are made when first needed and
shared by all models and requests of one credential; so are the rate limits."""

from __future__ import annotations

import os
from threading import Lock
from typing import Any

from callboard.actors.models.llm_manager import Route
from callboard.actors.settings import Settings
from callboard.providers.adapter import Provider, Timeouts
from callboard.providers.provider_registry import KEY_VARIABLES, own_name, provider_for, split_model
from callboard.providers.rate_limit import RateLimiter, RateLimits


class Router:
    """See the module. Usable from any thread."""

    def __init__(self, settings: Settings, limits: RateLimits) -> None:
        self._settings = settings
        self._limits = limits
        self._made: dict[str, tuple[Provider, RateLimiter]] = {}
        """By what tells connections apart: the provider, and at Vertex AI the maker of the model."""
        self._making = Lock()

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Those that were made so far."""
        return tuple(provider for provider, _ in self._made.values())

    def route(self, model: str) -> Route:
        """How to ask "provider/model". Raises UsageError for an unknown provider or a missing key."""
        connection, name = own_name(model)
        with self._making:
            if connection not in self._made:
                self._made[connection] = self._provider(model)
            provider, limiter = self._made[connection]
        return Route(provider, name, limiter, model)

    def _provider(self, model: str) -> tuple[Provider, RateLimiter]:
        settings, (provider, _) = self._settings, split_model(model)
        key = settings.key_for(provider)
        options: dict[str, Any] = {**settings.options_for(provider)}
        address = options.pop("base_url", None)
        if provider == settings.provider:
            address = settings.base_url or address
        # As its own client has it: a token of the environment's comes before a key of the environment's.
        if "token" in options and settings.key_source(provider) == KEY_VARIABLES.get(provider):
            key = None
        elif key:
            options.pop("token", None)
        if provider == "offline":
            options["cwd"] = os.getcwd()
        if provider == "scripted" and settings.script is not None:
            options["script"] = settings.script
        if provider == "copilot" and key is None:
            options["login_file"] = settings.copilot_token_file
        limiter = self._limits.limiter(provider, key)
        found, _ = provider_for(
            model,
            base_url=address,
            api_key=key,
            timeouts=Timeouts(
                idle_seconds=settings.stream_idle_timeout_seconds, total_seconds=settings.stream_total_timeout_seconds
            ),
            on_headers=limiter.on_headers,
            **options,
        )
        return found, limiter
