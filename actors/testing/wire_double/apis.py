"""The wire APIs by name and by path: one table each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from callboard.actors.testing.wire_double.render_anthropic import AnthropicApi
from callboard.actors.testing.wire_double.render_chat import ChatApi, CopilotApi, OpenRouterApi
from callboard.actors.testing.wire_double.render_gemini import GeminiApi
from callboard.actors.testing.wire_double.render_responses import ResponsesApi
from callboard.actors.testing.wire_double.script import Api
from callboard.actors.testing.wire_double.wire_api import WireApi

APIS: Final[Mapping[Api, WireApi]] = {
    Api.CHAT: ChatApi(),
    Api.RESPONSES: ResponsesApi(),
    Api.ANTHROPIC: AnthropicApi(),
    Api.GEMINI: GeminiApi(),
    Api.OPENROUTER: OpenRouterApi(),
    Api.COPILOT: CopilotApi(),
}

#: The first line that fits decides: (what the path begins with, what it ends with, the API).
_PATHS: Final = (
    ("/openrouter/", "/chat/completions", Api.OPENROUTER),
    ("/copilot/", "/chat/completions", Api.COPILOT),
    ("/", "/chat/completions", Api.CHAT),
    ("/", "/responses", Api.RESPONSES),
    ("/", "/messages", Api.ANTHROPIC),
    ("/", ":generateContent", Api.GEMINI),
    ("/", ":streamGenerateContent", Api.GEMINI),
)


def api_of(path: str) -> Api | None:
    """The API that a path, without a script's prefix and without its query, belongs to; None for any other path."""
    return next((api for start, end, api in _PATHS if path.startswith(start) and path.endswith(end)), None)
