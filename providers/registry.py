"""Names to adapters and providers: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from callboard.protocol.errors import UsageError
from callboard.providers.adapter import Adapter
from callboard.providers.chat_dialect import COMPATIBLE, OPENAI
from callboard.providers.openai_chat import OpenAIChat

#: Every factory takes base_url, api_key and keyword options of its own.
ADAPTERS: Final[Mapping[str, Callable[..., Adapter]]] = {
    "openai-chat": partial(OpenAIChat, dialect=OPENAI),
    "openai-compatible": partial(OpenAIChat, dialect=COMPATIBLE),
}


def adapter_for(name: str, *, base_url: str | None = None, api_key: str | None = None, **options: Any) -> Adapter:
    """The adapter of a wire API. UsageError for an unknown name, with the known ones."""
    factory = ADAPTERS.get(name)
    if factory is None:
        raise UsageError(f"There is no adapter {name!r}; known are: {', '.join(sorted(ADAPTERS))}.")
    return factory(base_url=base_url, api_key=api_key, **options)
