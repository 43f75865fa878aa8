"""Which model a command asks, where none was named: the one of the server whose address was given, else the code index
alone."""

from __future__ import annotations

from typing import Final

from callboard import Settings, UsageError
from callboard.actors.settings import OFFLINE_MODEL

#: What speaks Chat Completions at any address.
PROVIDER: Final = "openai-compatible"
#: So many names of a server are shown; a hosted one may have hundreds.
SHOWN_MODELS: Final = 20


async def with_model(settings: Settings) -> Settings:
    """The settings with the one model of the server at `base_url`, where no model was chosen; without an address, with
    the one that needs none: people read such an answer, and it says of itself what it is.

    Raises UsageError where there are several, and ProviderError where the server does not say.
    """
    if settings.model:
        return settings
    if settings.base_url is None:
        return settings.model_copy(update={"model": OFFLINE_MODEL})
    # It loads what connects: 0.15 s, which a question without a server does not pay.
    from callboard.providers.openai.served_models import served_models  # noqa: PLC0415

    local = settings.model_copy(update={"model": f"{PROVIDER}/"})
    names = await served_models(settings.base_url, local.key_for(PROVIDER))
    if len(names) == 1:
        return settings.model_copy(update={"model": f"{PROVIDER}/{names[0]}"})
    shown = ", ".join(f"{PROVIDER}/{name}" for name in names[:SHOWN_MODELS])
    more = f" and {len(names) - SHOWN_MODELS:,} more" if len(names) > SHOWN_MODELS else ""
    raise UsageError(f"choose one of the {len(names):,} models at {settings.base_url} with --model: {shown}{more}")
