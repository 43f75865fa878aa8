"""Which model a client means: an alias of the daemon's, "provider/model", or the name of the default model alone."""

from __future__ import annotations

from collections.abc import Iterator

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.tenants import Tenant
from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError


def model_of(daemon: Daemon, tenant: Tenant, name: str | None) -> str:
    """The "provider/model" that a client means by `name`. Raises ApiError (404) where there is none."""
    name = shown_name(tenant, name)
    settings = tenant.runtime.settings
    if (aliased := daemon.settings.models.get(name)) is not None:
        return aliased
    known = tuple(own_models(settings))
    if name in known:
        return name
    for model in known:
        if name == model.partition("/")[2]:
            return model
    provider, _, rest = name.partition("/")
    if rest and _is_configured(settings, provider):
        return name
    raise unknown_model(name)


def shown_name(tenant: Tenant, name: str | None) -> str:
    """What an answer calls its model: as the client did, or the default model where the client named none."""
    return tenant.runtime.settings.model if name is None else name


def unknown_model(name: str) -> ApiError:
    """There is no such model here; where `name` is "", neither the client nor the settings name one."""
    if not name:
        said = "no model is named: name one in the request, or start the daemon with --model or CALLBOARD_MODEL"
        return ApiError(400, "missing_required_parameter", said, param="model")
    said = f"the model {name[:100]!r} does not exist here, or has no key; GET /v1/models lists those that are set up"
    return ApiError(404, "model_not_found", said, param="model")


def listed_models(daemon: Daemon, tenant: Tenant) -> dict[str, str]:
    """The names of models that are set up, with the "provider/model" of each: aliases first, then the tenant's own."""
    return {**daemon.settings.models, **{model: model for model in own_models(tenant.runtime.settings)}}


def window_of(settings: Settings, model: str) -> int | None:
    """The tokens that "provider/model" takes, its answer included; None where that is not known."""
    if model == settings.model and settings.context_tokens is not None:
        return settings.context_tokens
    provider, _, name = model.partition("/")
    return settings.catalog.info(provider, name).context_tokens


def own_models(settings: Settings) -> Iterator[str]:
    """The tenant's default model and its fallbacks."""
    if settings.model:
        yield settings.model
    yield from settings.fallback_models


def _is_configured(settings: Settings, provider: str) -> bool:
    """Is there a key, a connection or a model of this provider?"""
    if provider in settings.connections or provider in {model.partition("/")[0] for model in own_models(settings)}:
        return True
    try:
        return bool(settings.key_source(provider) and settings.key_for(provider))
    except UsageError:
        return False
