"""What the runtime tells a tool about the call it is in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from pathlib import Path

from callboard.actors.tools.progress import CallProgress
from callboard.actors.tools.transaction import Transaction
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import UsageError
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
    writes_by: Transaction | None = field(default=None, repr=False, compare=False)
    """`transaction`, where there is one."""

    @property
    def tag(self) -> Tag:
        """The call's: its `request_id`, `step` and `call_id` are what `Runtime.complete_call` is to be given."""
        return self.run.tag

    @property
    def effect_id(self) -> str:
        """The same each time this very call is run again, also by another process: hand it on as an idempotency key,
        to a service that does what has the same key once (docs/tools.md has an example)."""
        return self.run.effect_id

    @property
    def transaction(self) -> Transaction:
        """For a tool with effect="transaction": by it the tool writes into the journal's own database, and what it
        wrote is committed together with the outcome of the call, or not at all (docs/tools.md).

        On SQLite it takes statements (`execute(sql, parameters)`). On PostgreSQL it is the connection of the call's own
        transaction: psycopg.Connection for a `def`, psycopg.AsyncConnection for an `async def`. Raises UsageError in a
        tool with another effect.
        """
        if self.writes_by is None:
            raise UsageError(
                'this call has no transaction: declare the tool with @tool(effect="transaction"), and run it in a '
                "runtime with a journal"
            )
        return self.writes_by

    def within(self, transaction: Transaction) -> ToolContext:
        """The same, for a tool that writes by this."""
        return replace(self, writes_by=transaction)

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
