"""GET /v1/models and /v1/models/{id}: models that are set up, in a shape that OpenAI's and Anthropic's clients read."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from callboard.actors.daemon.api_errors import Api, json_response
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.model_names import listed_models, model_of
from callboard.actors.settings import Settings

#: No model says when it was made; clients want a number, and a date.
CREATED: Final = 0
CREATED_AT: Final = "1970-01-01T00:00:00Z"


async def models(call: HttpCall) -> Response:
    """All that are set up: aliases of the daemon's, the tenant's default and its fallbacks."""
    settings = call.tenant.runtime.settings
    found = listed_models(call.daemon, call.tenant)
    data = [_described(settings, name, model) for name, model in found.items()]
    ids = list(found)
    ends = {"has_more": False, "first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
    return json_response({"object": "list", "data": data, **ends})


async def model(call: HttpCall) -> Response:
    """One that a request may name. Raises ApiError (404)."""
    name = call.path("model")
    return json_response(_described(call.tenant.runtime.settings, name, model_of(call.daemon, call.tenant, name)))


def _described(settings: Settings, name: str, model: str) -> dict[str, object]:
    provider, _, rest = model.partition("/")
    known = settings.catalog.info(provider, rest)
    window = settings.context_tokens if model == settings.model else None
    prices = known.prices
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": CREATED,
        "created_at": CREATED_AT,
        "owned_by": provider,
        "capabilities": {
            "model": model,
            "context_tokens": window or known.context_tokens,
            "input_price": prices.input if prices is not None else None,
            "output_price": prices.output if prices is not None else None,
            "endpoints": ["/v1/chat/completions", "/v1/messages", "/v1/responses"],
            "streaming": True,
            "tools": True,
            "structured_output": True,
        },
    }


ENDPOINTS: Final = (
    Endpoint("GET", "/v1/models", models, api=Api.OPENAI, summary="The models that are set up"),
    Endpoint("GET", "/v1/models/{model:path}", model, api=Api.OPENAI, summary="One model, with what it can"),
)
