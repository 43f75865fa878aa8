"""StreamEvents: the one language that all providers are translated into. A whole response is a collected stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callboard.protocol.content import Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str
    block: int = 0
    """Deltas of one kind that follow each other with the same `block` are one part."""
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of reasoning; its `replay` (a signature or opaque data, last one wins) may come with empty text."""

    text: str
    block: int = 0
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The model begins a call; its arguments follow in deltas."""

    id: CallId
    name: ToolName
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call's arguments, as JSON text."""

    id: CallId
    args_delta: str


@dataclass(frozen=True, slots=True)
class ToolCallComplete:
    """The provider finished this call. A call without it was cut off and is never run (I12)."""

    id: CallId


@dataclass(frozen=True, slots=True)
class ServerToolEvent:
    """A block of a tool which the provider runs itself: shown, replayed, never run by us."""

    kind: str
    replay: Replay


@dataclass(frozen=True, slots=True)
class Restarted:
    """Everything emitted so far is void: the provider, or our retry, began the turn again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The turn ended in good order. Exactly one Done or Error ends a stream."""

    finish_reason: FinishReason
    raw_finish_reason: str = ""
    usage: Usage = field(default_factory=Usage)
    raw_usage: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    """The model that answered, as the provider names it; may differ from the one asked."""


@dataclass(frozen=True, slots=True)
class Error:
    """The turn failed, or the stream was cut. What was emitted before it is incomplete."""

    kind: ErrorKind
    message: str
    retryable: bool = False
    retry_after: float | None = None
    """Seconds to wait, where the provider said so."""
    raw: str = ""
    """A bounded snippet of what the provider sent; never holds a secret of ours."""
    status: int = 0
    """The HTTP status, 0 where there was none."""
    code: str = ""
    """The provider's own error code."""


StreamEvent = (
    TextDelta
    | ThinkingDelta
    | ToolCallStart
    | ToolCallDelta
    | ToolCallComplete
    | ServerToolEvent
    | Restarted
    | Done
    | Error
)
