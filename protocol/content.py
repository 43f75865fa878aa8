"""What a conversation is made of: messages and their parts. All providers' histories are encoded from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callboard.protocol.ids import CallId, ToolName


@dataclass(frozen=True, slots=True)
class Replay:
    """A provider's own data on a part (a signature, an encrypted item). It must go back unmodified to the provider it
    came from, and is left out for every other one."""

    origin: str
    """The adapter family that understands it: "anthropic", "gemini", "openai-responses", "openai-chat" ..."""
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Text:
    """What was said."""

    text: str
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """A picture for the model: either `data_base64` with its `media_type`, or a `url` the provider fetches."""

    media_type: str = ""
    data_base64: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Thinking:
    """One block of a model's reasoning. Blocks are never merged: each carries its own signature in `replay`."""

    text: str
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model asked for."""

    call_id: CallId
    name: ToolName
    arguments: str
    """JSON text of an object; "{}" where the provider sent nothing. Raw and possibly cut off when not `complete`."""
    complete: bool = True
    """False when the arguments were cut off or are not a JSON object: such a call is never run (I12)."""
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A block of a tool the provider ran itself (web search, code execution): shown and replayed, never run by us."""

    kind: str
    replay: Replay


AssistantPart = Text | Thinking | ToolCall | ServerTool
UserPart = Text | Image


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions at the start of a conversation, or a note of ours in the middle of one."""

    text: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a person said or showed."""

    parts: tuple[UserPart, ...]

    @classmethod
    def of(cls, text: str) -> UserMessage:
        """A message of one text."""
        return cls((Text(text),))

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One model turn, its parts in the order in which they came."""

    parts: tuple[AssistantPart, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one call. It stands after the turn that asked, in the order of that turn's calls (I2, I3)."""

    call_id: CallId
    name: ToolName
    content: str
    """What the model reads: the tool's result as JSON, or a ToolFailure as JSON."""
    is_error: bool = False


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage
