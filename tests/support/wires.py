"""Every wire API that turns are written in."""

from __future__ import annotations

from support.told_bedrock import Converse
from support.turns import Chat, GeminiArray, GenerateContent, Messages, Responses, Wire

WIRES: dict[str, Wire] = {
    "chat": Chat(),
    "responses": Responses(),
    "messages": Messages(),
    "gemini": GenerateContent(),
    "gemini array": GeminiArray(),
    "converse": Converse(),
}
