"""OpenRouter: Chat Completions in front of many providers, with a say in which of them answers (docs/wire.md 1.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from callboard.protocol.content import Audio, Document, Image, Video
from callboard.protocol.model import ModelRequest
from callboard.protocol.server_tools import WebFetch, WebSearch
from callboard.providers.json_values import Body
from callboard.providers.openai import chat_fields as fields
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.chat_fields import MediaSource, PartForm, ServerToolForm
from callboard.providers.openai.dialects import ChatDialect
from callboard.providers.own_options import OPENROUTER_OPTIONS

# "API Reference", "Multimodal" (images, PDFs, audio, video), "Prompt Caching" (marks for Anthropic), "Server Tools"
# (the plugin `web` and the suffix `:online` are deprecated).
DIALECT: Final = ChatDialect(
    "openrouter",
    "https://openrouter.ai/api/v1",
    "OPENROUTER_API_KEY",
    stream_usage=False,
    effort=fields.OPENROUTER_EFFORT,
    cached_models=re.compile("~?anthropic/"),
    modalities=("image", "audio"),
    parts=MappingProxyType(
        {
            Image: PartForm(fields.image_part, (MediaSource.BYTES, MediaSource.URL)),
            Document: PartForm(fields.file_part, (MediaSource.BYTES, MediaSource.URL)),
            Audio: PartForm(fields.audio_part, (MediaSource.BYTES,)),
            Video: PartForm(fields.video_part, (MediaSource.BYTES, MediaSource.URL)),
        }
    ),
    result_media=(Image,),
    server_tools={
        WebSearch: ServerToolForm(
            fields.openrouter_search,
            ("allowed_domains", "blocked_domains", "country", "city", "region", "timezone"),
        ),
        WebFetch: ServerToolForm(fields.openrouter_fetch, ("max_uses", "allowed_domains", "blocked_domains")),
    },
)


class SendPreferences(StrEnum):
    """When the provider preferences go along."""

    WITH_TOOLS = "with_tools"
    ALWAYS = "always"
    NEVER = "never"


class ProviderPreferences(Struct, frozen=True):
    """Which of OpenRouter's providers may answer, in its own words; None and () leave its default."""

    order: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    allow_fallbacks: bool | None = None
    require_parameters: bool | None = True
    """Only providers that understand every field of the request: without it, one that drops `tools` may answer."""
    max_price: Mapping[str, float] | None = None
    """US dollars a million tokens, by "prompt" and "completion"."""
    sort: str | None = None
    data_collection: str | None = None
    send: SendPreferences = SendPreferences.WITH_TOOLS

    def to_wire(self) -> Body:
        """The `provider` object."""
        return {name: value for name, value in asdict(self).items() if name != "send" and value not in (None, ())}


class OpenRouter(OpenAIChat):
    """The adapter. OpenRouter shows the calling application by the headers `http-referer` and `x-title`."""

    own_options = OPENROUTER_OPTIONS

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        preferences: ProviderPreferences | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(base_url=base_url, api_key=api_key, dialect=DIALECT, headers=headers)
        self._preferences = preferences or ProviderPreferences()

    def own_fields(self, request: ModelRequest) -> Body:
        body: Body = {"usage": {"include": True}}
        send = self._preferences.send
        if send is SendPreferences.ALWAYS or (send is SendPreferences.WITH_TOOLS and request.tools):
            body["provider"] = self._preferences.to_wire()
        return body
