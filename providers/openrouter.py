"""OpenRouter: Chat Completions in front of many providers, with a say in which of them answers (docs/wire.md 1.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from callboard.protocol.content import AssistantMessage
from callboard.protocol.model import ModelRequest, Sampling
from callboard.providers.json_values import Body
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import ChatDialect
from callboard.providers.request_encoding import own_replay

DIALECT: Final = ChatDialect("openrouter", "https://openrouter.ai/api/v1", stream_usage=False)


class SendPreferences(StrEnum):
    """When the provider preferences go along."""

    WITH_TOOLS = "with_tools"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class ProviderPreferences:
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

    def body(self, request: ModelRequest) -> Body:
        body = super().body(request) | {"usage": {"include": True}}
        send = self._preferences.send
        if send is SendPreferences.ALWAYS or (send is SendPreferences.WITH_TOOLS and request.tools):
            body["provider"] = self._preferences.to_wire()
        return body

    def sampling(self, sampling: Sampling) -> Body:
        knobs = super().sampling(sampling)
        effort = knobs.pop("reasoning_effort", None)
        return knobs | ({"reasoning": {"effort": effort}} if effort else {})

    def assistant(self, message: AssistantMessage) -> Body:
        """Reasoning goes back unmodified: it holds the signatures of the provider behind."""
        body = super().assistant(message)
        kept = ((own_replay(part.replay, self.name) or {}).get("reasoning_details") for part in message.parts)
        details = [detail for items in kept if isinstance(items, list | tuple) for detail in items]
        return body | ({"reasoning_details": details} if details else {})
