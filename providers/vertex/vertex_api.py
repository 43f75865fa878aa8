"""Vertex AI: Gemini (publisher `google`) and Claude (publisher `anthropic`) at Google Cloud.

    POST {host}/v1beta1/projects/P/locations/L/publishers/google/models/{model}:generateContent | :streamGenerateContent
    POST {host}/v1/projects/P/locations/L/publishers/anthropic/models/{model}:rawPredict | :streamRawPredict

The same requests and answers as at their makers', but for the address and a bearer token; Claude's name is not in the
body, the version is (SDKs google-genai, `_api_client.py`, and anthropic, `lib/vertex`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import VERTEX_MESSAGES
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.json_values import Body
from callboard.providers.request_encoding import checked_url
from callboard.providers.vertex.google_credentials import UNKNOWN_PROJECT

NAME: Final = "vertex"
DEFAULT_LOCATION: Final = "global"
#: The version of the Messages API in requests to Vertex AI (Anthropic, "Claude on Vertex AI").
CLAUDE_VERSION: Final = "vertex-2023-10-16"
#: Not a region but several: they have hosts of their own (both SDKs).
_MULTI_REGIONS: Final = ("us", "eu")
_PUBLISHERS: Final = ("google", "anthropic")


def publisher_of(model: str) -> tuple[str, str]:
    """(publisher, model) of a name as users write it: `gemini-2.5-pro`, `claude-opus-4-6`, `anthropic/claude-opus-4-6`.

    Raises UsageError for a publisher whose API is another one.
    """
    publisher, slash, name = model.rpartition("/")
    publisher = publisher.removeprefix("publishers/").removesuffix("/models")
    if not slash:
        publisher = "anthropic" if name.startswith("claude") else "google"
    if publisher not in _PUBLISHERS:
        raise UsageError(
            f"vertex has the models of {' and '.join(_PUBLISHERS)} here, not of {publisher!r} (in {model!r})."
        )
    return publisher, name


def vertex_host(location: str) -> str:
    """Where a location answers."""
    if location in _MULTI_REGIONS:
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{'' if location == 'global' else quote(location, safe='') + '-'}aiplatform.googleapis.com"


def vertex(
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    project: str = "",
    location: str = DEFAULT_LOCATION,
    publisher: str = "google",
    headers: Mapping[str, str] | None = None,
) -> VertexGemini | VertexClaude:
    """The adapter for one publisher's models. `api_key` is an OAuth access token; requests without one are authorized
    on their way out (google_credentials.py), and get their project there if none is given."""
    adapter = VertexClaude if publisher == "anthropic" else VertexGemini
    url = checked_url(base_url, vertex_host(location))
    return adapter(
        base_url=url, api_key=api_key, project=project or UNKNOWN_PROJECT, location=location, headers=headers
    )


class VertexGemini(Gemini):
    """The adapter of Gemini there."""

    def __init__(
        self, *, base_url: str, api_key: str | None, project: str, location: str, headers: Mapping[str, str] | None
    ) -> None:
        super().__init__(base_url=base_url, api_key=api_key, headers=headers, project=project, location=location)
        self.name = NAME


class VertexClaude(Anthropic):
    """The adapter of Claude there."""

    def __init__(
        self, *, base_url: str, api_key: str | None, project: str, location: str, headers: Mapping[str, str] | None
    ) -> None:
        super().__init__(base_url=base_url, api_key=api_key, headers=headers, dialect=VERTEX_MESSAGES)
        self.family = "anthropic"
        self._headers = dict(headers or {})
        place = f"projects/{quote(project, safe='~')}/locations/{quote(location, safe='')}"
        self._models = f"{base_url.removesuffix('/v1')}/v1/{place}/publishers/anthropic/models"

    def endpoint(self, request: ModelRequest) -> str:
        method = "streamRawPredict" if request.stream else "rawPredict"
        return f"{self._models}/{quote(request.model, safe='@')}:{method}"

    def envelope(self, body: Body) -> Body:
        return {"anthropic_version": CLAUDE_VERSION, **{key: value for key, value in body.items() if key != "model"}}
