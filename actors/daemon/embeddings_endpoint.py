"""POST /v1/embeddings, where `embedding_model` is set in [daemon]: passed on to that model's own API."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field
from starlette.responses import Response

from callboard.actors.daemon.api_errors import Api, ApiError, json_response
from callboard.actors.daemon.body_models import ApiBody, ModelField, read_body
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.model_names import unknown_model
from callboard.actors.models.embedding_access import embedding_api

#: Texts of one call (OpenAI, API reference, "Create embeddings").
MAX_INPUTS: Final = 2_048
_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
_Tokens = Annotated[list[int], Field(min_length=1)]
_TokenLists = Annotated[list[_Tokens], Field(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingsBody(ApiBody):
    """What is read of a request, and passed on."""

    model: ModelField = None
    input: str | _Texts | _Tokens | _TokenLists
    dimensions: int | None = Field(default=None, ge=1)
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


async def embeddings(call: HttpCall) -> Response:
    """The vectors of texts. Raises ApiError (404) where no embedding model is set, and for another one."""
    model = call.daemon.settings.embedding_model
    if not model:
        said = "no embedding model is set up here: embedding_model in [daemon]"
        raise ApiError(404, "model_not_found", said, param="model")
    read = read_body(EmbeddingsBody, call.body)
    name = read.model or model
    if name not in (model, model.partition("/")[2]) and call.daemon.settings.models.get(name) != model:
        raise unknown_model(name)
    api = embedding_api(call.tenant.runtime.settings, model)
    try:
        document = await api.post(read.model_dump(exclude_none=True))
    finally:
        await api.aclose()
    return json_response({**document, "model": name})


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/v1/embeddings",
        embeddings,
        api=Api.OPENAI,
        summary="Vectors of texts, by the embedding model of the daemon",
        body=EmbeddingsBody,
    ),
)
