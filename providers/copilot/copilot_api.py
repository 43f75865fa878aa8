"""GitHub Copilot: one account, three wire APIs by model, and headers that say who is calling (docs/wire.md 1.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from callboard.protocol.content import AssistantMessage, Image, ToolMessage, UserMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.adapter import Adapter, Decoder, WireRequest
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import ChatDialect
from callboard.providers.openai.responses_api import OpenAIResponses

#: Used where the token exchange named no address; it names api.individual|business|enterprise.githubcopilot.com.
DEFAULT_BASE_URL: Final = "https://api.githubcopilot.com"

DIALECT: Final = ChatDialect(
    name="copilot",
    base_url=DEFAULT_BASE_URL,
    # Claude's answers come as several choices, and may end without a finish reason (copilot-sdk #1081).
    merge_choices=True,
    finish_optional=True,
)

#: What the service asks of its clients. Editors send their own; these are the least it accepts.
CLIENT_HEADERS: Final[Mapping[str, str]] = {
    "copilot-integration-id": "vscode-chat",
    "editor-version": "vscode/1.104.0",
    "editor-plugin-version": "copilot-chat/0.31.0",
    "user-agent": "GitHubCopilotChat/0.31.0",
    "openai-intent": "conversation-panel",
    "x-github-api-version": "2025-04-01",
}


class CopilotRoute(StrEnum):
    """Copilot's wire APIs."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


def route_of(model: str) -> CopilotRoute:
    """The API that serves a model: Codex models only answer on /responses, Claude is whole only on /v1/messages."""
    if model.startswith("gpt-5") and "codex" in model:
        return CopilotRoute.RESPONSES
    return CopilotRoute.MESSAGES if model.startswith("claude") else CopilotRoute.CHAT


_ROUTES: Final[Mapping[CopilotRoute, Callable[[str, str | None], Adapter]]] = {
    CopilotRoute.CHAT: lambda url, key: OpenAIChat(base_url=url, api_key=key, dialect=DIALECT),
    CopilotRoute.RESPONSES: lambda url, key: OpenAIResponses(base_url=url, api_key=key, name="copilot"),
    CopilotRoute.MESSAGES: lambda url, key: Anthropic(base_url=url, api_key=key, bearer=True, name="copilot"),
}


class Copilot:
    """The adapter of one route. `api_key` is the short-lived Copilot token (copilot_login.py gets it)."""

    name: Final = "copilot"

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        route: CopilotRoute | str = CopilotRoute.CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._inner = _ROUTES[CopilotRoute(route)](base_url or DEFAULT_BASE_URL, api_key)
        self._headers = {**CLIENT_HEADERS, **(headers or {})}

    def encode(self, request: ModelRequest, /) -> WireRequest:
        wire = self._inner.encode(request)
        headers = {**wire.headers, **self._headers, "x-initiator": _initiator(request)}
        if _has_images(request):
            headers["copilot-vision-request"] = "true"
        return WireRequest(wire.method, wire.url, headers, wire.body, wire.notes)

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        return self._inner.decoder(status, headers, streaming)


def _initiator(request: ModelRequest) -> str:
    """Who began: the first message of a user's is billed, what an agent adds to it is not."""
    acted = any(isinstance(message, AssistantMessage | ToolMessage) for message in request.messages)
    return "agent" if acted else "user"


def _has_images(request: ModelRequest) -> bool:
    users = (message for message in request.messages if isinstance(message, UserMessage))
    return any(isinstance(part, Image) for message in users for part in message.parts)
