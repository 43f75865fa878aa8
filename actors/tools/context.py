"""What the runtime tells a tool about the call it is in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from pathlib import Path

from callboard.actors.tools.progress import CallProgress
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import Tag

Report = Callable[[CallProgress], None]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Annotate one parameter of a tool with this type to get it; the model neither sees nor fills that parameter."""

    run: RunTool
    """What the runtime was asked to do."""
    user_text: str = ""
    """The last message of the user."""
    workspace: Path | None = None
    is_read_along: bool = False
    """Does someone read the stream of the request, who is shown the progress?"""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What the host said of the request when it asked."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    """What continues the host's trace in another process: `traceparent` and the other headers of its propagator. Spans
    that the tool itself makes are below the call's without it. {} where the host traces nothing, and for tools
    that run in the host's own process: there the call's span is the current one."""
    _report: Report | None = field(default=None, repr=False, compare=False)

    @property
    def tag(self) -> Tag:
        """The call's: its `request_id`, `step` and `call_id` are what `Runtime.complete_call` is to be given."""
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

    def progress(self, message: str = "", fraction: float | None = None) -> None:
        """Say how far the call is, to the reader of its stream: some words (1 kB), a fraction from 0 to 1, or both.

        It costs microseconds, never waits, and may be called from any thread of the tool, as often as it likes: a
        reader is shown the latest, ten times a second. The model does not see it. Raises UsageError for a fraction that
        is not from 0 to 1.
        """
        made = CallProgress.of(message, fraction)
        if self._report is not None:
            self._report(made)

    def reporting(self, report: Report) -> ToolContext:
        """The same, where the code of the tool runs: its progress goes there, if it is shown to someone."""
        return replace(self, _report=report) if self.is_read_along else self


def context_of(asker: Context | None) -> Context:
    """A context for one run of a user's code, a copy of the asker's: what the code sets in it reaches no other."""
    return asker.copy() if asker is not None else Context()
