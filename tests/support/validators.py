"""What each API accepts, checked on the body of a request. Written from docs/wire.md alone, not from the encoders.

Each validator returns the list of broken rules; an empty list is an accepted request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from support.rules import Body
from support.rules_anthropic import anthropic
from support.rules_chat import chat
from support.rules_gemini import gemini
from support.rules_responses import responses

__all__ = ["VALIDATORS", "anthropic", "chat", "gemini", "responses"]

VALIDATORS: Mapping[str, Callable[[Body], list[str]]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
