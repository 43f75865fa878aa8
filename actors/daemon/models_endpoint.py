"""GET /v1/models and /v1/models/{id}: models that are set up, in a shape that OpenAI's and Anthropic's clients read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from starlette.responses import Response

from callboard.actors.daemon.api_errors import Api, json_response
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.model_names import listed_models, model_of, window_of
from callboard.actors.daemon.native_io import waited
from callboard.actors.settings import Settings
from callboard.protocol.content import Audio, Document, Image, UserMessage, UserPart
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest
from callboard.providers.adapter import Adapter
from callboard.providers.provider_registry import adapter_for

#: No model says when it was made; clients want a number, and a date.
CREATED: Final = 0
CREATED_AT: Final = "1970-01-01T00:00:00Z"
#: For adapters that write a request which is not sent.
_NOWHERE: Final = "https://nowhere.invalid"


async def models(call: HttpCall) -> Response:
    """All that are set up: aliases of the daemon's, the tenant's default and its fallbacks."""
    settings = call.tenant.runtime.settings
    found = listed_models(call.daemon, call.tenant)
    data = await waited(lambda: [_described(settings, name, model) for name, model in found.items()])
    ids = list(found)
    ends = {"has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return json_response({"object": "list", "data": data, **ends})


async def model(call: HttpCall) -> Response:
    """One that a request may name. Raises ApiError (404)."""
    name = call.path("model")
    settings, asked = call.tenant.runtime.settings, model_of(call.daemon, call.tenant, name)
    return json_response(await waited(lambda: _described(settings, name, asked)))


def _described(settings: Settings, name: str, model: str) -> dict[str, object]:
    """It may load the adapter."""
    provider, _, rest = model.partition("/")
    prices = settings.catalog.info(provider, rest).prices
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": CREATED,
        "created_at": CREATED_AT,
        "owned_by": provider,
        "lifecycle": "active",
        "max_input_tokens": window_of(settings, model),
        "capabilities": _capabilities(provider),
        "callboard": {
            "model": model,
            "input_price": prices.input if prices is not None else None,
            "output_price": prices.output if prices is not None else None,
        },
    }


#: What may be part of a question besides text, by the names of Anthropic's capabilities (ModelCapabilities).
_PARTS: Final[Mapping[str, UserPart]] = {
    "image_input": Image("image/png", "AAAA"),
    "pdf_input": Document("application/pdf", "AAAA"),
    "audio_input": Audio("audio/wav", "AAAA"),
}


@cache
def _capabilities(provider: str) -> dict[str, object]:
    """What the API of the model takes, in the shape of Anthropic's `capabilities`. Whether the model itself looks at
    pictures only its server knows. Parts are left out where no adapter tells (a scripted model)."""
    found: dict[str, object] = {"tools": True, "streaming": True, "structured_outputs": True}
    try:
        adapter = adapter_for(provider, base_url=_NOWHERE, api_key="none")
    except UsageError:
        return {name: {"supported": value} for name, value in found.items()}
    found |= {name: _takes(adapter, part) for name, part in _PARTS.items()}
    return {name: {"supported": value} for name, value in found.items()}


def _takes(adapter: Adapter, part: UserPart) -> bool:
    """Can the adapter write it? Nothing is sent."""
    try:
        adapter.encode(ModelRequest("model", (UserMessage((part,)),)))
    except UsageError:
        return False
    return True


ENDPOINTS: Final = (
    Endpoint("GET", "/v1/models", models, api=Api.OPENAI, summary="The models that are set up"),
    Endpoint("GET", "/v1/models/{model:path}", model, api=Api.OPENAI, summary="One model, with what it can"),
)
