"""What stateless APIs need of a runtime beyond text and its own tools: calls for the client, results without a
question, an answer by a JSON Schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from callboard.actors.daemon.api_errors import bad_field
from callboard.actors.daemon.client_question import AnswerFormat
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import Reply
from callboard.protocol.content import AssistantMessage, ToolCall, ToolMessage
from callboard.protocol.tools import ToolDefinition


def client_tools(tools: Sequence[ToolDefinition]) -> list[str]:
    if tools:
        raise bad_field("tools", "tools of clients are not taken yet")
    return []


def results_alone() -> NoReturn:
    raise bad_field("messages", "results of tools are not taken yet")


def form_of(output: AnswerFormat | None) -> type[object] | None:
    if output is not None:
        raise bad_field("response_format", "forms are not taken yet")
    return None


def outside_calls(reply: Reply[object]) -> tuple[ToolCall, ...]:
    return ()


def outside_call(item: object) -> ToolCall | None:
    return None


def open_turn(conversation: Conversation) -> tuple[AssistantMessage, tuple[ToolMessage, ...]] | None:
    return None
