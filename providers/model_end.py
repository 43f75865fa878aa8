"""When a model goes out of service, as its server says: a pure question and answer, which transport.py carries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Final
from urllib.parse import quote

from callboard.protocol.errors import CallboardError
from callboard.providers.adapter import Inquirable, Provider
from callboard.providers.json_values import Json, load_object

#: Where a list of models has the day: OpenAI (guide "Deprecations"), Mistral (`deprecation` of its model cards, a
#: time), OpenRouter (API reference, "List available models").
_FIELDS: Final = ("shutdown_date", "deprecation", "expiration_date")
#: What is asked, in turn: the model alone, then the list it is in.
_PATHS: Final = ("{api}/models/{model}", "{api}/models")
#: It is not worth more of a person's time.
SECONDS: Final = 5.0


async def end_of_service(provider: Provider, model: str) -> date | None:
    """The day on which the model ends; None where its server does not say, or cannot be asked."""
    if not isinstance(provider, Inquirable):
        return None
    try:
        async with asyncio.timeout(SECONDS):
            for path in _PATHS:
                answer = await provider.inquire(path.replace("{model}", quote(model, safe="/")))
                if answer.status < 400 and (found := day_in(load_object(answer.body), model)):
                    return found
    except (CallboardError, TimeoutError):
        return None  # the model has answered; that its server has no such list is no fault
    return None


def day_in(document: Json, model: str) -> date | None:
    """The day in an entry of this model, or in the list of such entries."""
    return next(filter(None, map(_day, _entries(document, model))), None)


def _entries(document: Json, model: str) -> Iterator[Json]:
    if not isinstance(document, dict):
        return
    listed = document.get("data")
    for entry in listed if isinstance(listed, list) else [document]:
        if isinstance(entry, dict) and entry.get("id") == model:
            yield from (entry.get(name) for name in _FIELDS)


def _day(value: Json) -> date | None:
    try:
        return date.fromisoformat(value[:10]) if isinstance(value, str) else None
    except ValueError:
        return None
