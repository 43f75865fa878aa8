"""What the runtime tells a tool about the call it is in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path

from callboard.protocol.commands import RunTool
from callboard.protocol.ids import Tag


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Annotate one parameter of a tool with this type to get it; the model neither sees nor fills that parameter."""

    run: RunTool
    """What the runtime was asked to do."""
    user_text: str = ""
    """The last message of the user."""
    workspace: Path | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the host said of the request when it asked."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    """What continues the host's trace in another process: `traceparent` and the other headers of its propagator. Spans
    that the tool itself makes are below the call's without it. {} where the host traces nothing, and for tools
    that run in the host's own process: there the call's span is the current one."""

    @property
    def tag(self) -> Tag:
        """The call's."""
        return self.run.tag

    @property
    def effect_id(self) -> str:
        """The same each time this very call is run again: hand it on as an idempotency key."""
        return self.run.effect_id

    @property
    def deadline_at(self) -> float:
        """When the call is ended: seconds of the monotonic clock, which all processes of a machine share."""
        return self.run.deadline_at

    @property
    def remaining_seconds(self) -> float:
        """From now to the deadline; 0 when it has passed."""
        return max(0.0, self.deadline_at - time.monotonic())


def context_of(asker: Context | None) -> Context:
    """A context for one run of a user's code, a copy of the asker's: what the code sets in it reaches no other."""
    return asker.copy() if asker is not None else Context()
