"""What the runtime tells a tool about the call it is in, and where the question was asked that it belongs to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from callboard.actors.tools.progress import CallProgress
from callboard.actors.tools.transaction import Transaction
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import Tag

if TYPE_CHECKING:
    import asyncio

Report = Callable[[CallProgress], None]
OpenResource = Callable[[Callable[[], object]], Any]
"""From the function that opens a resource to the resource; for an async tool, to be awaited (tools/resources.py)."""


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
    open_resource: OpenResource | None = field(default=None, repr=False, compare=False)
    """Where this call runs, gives it what its tool keeps open there."""
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

    def keeping(self, open_resource: OpenResource) -> ToolContext:
        """The same, where the code of the tool runs: with what is open there."""
        return replace(self, open_resource=open_resource)

    def reporting(self, report: Report) -> ToolContext:
        """The same, where the code of the tool runs: its progress goes there, if it is shown to someone."""
        return replace(self, _report=report) if self.is_read_along else self


def context_of(asker: Context | None) -> Context:
    """A context for one run of a user's code, a copy of the asker's: what the code sets in it reaches no other."""
    return asker.copy() if asker is not None else Context()


# -- the loop from which a question was asked


class AskedFrom(Struct, frozen=True, eq=False):
    """Where a question was asked, for the tools that run there."""

    loop: asyncio.AbstractEventLoop | None = None
    is_waiting: bool = False
    """The loop waits in a sync method for the answer, and runs nothing else."""


_NOWHERE: Final = AskedFrom()
#: Set in the context that goes with a question. A server of ours sets None: its loop is not that of a host's own code.
_asked_from: ContextVar[AskedFrom | None] = ContextVar("callboard_asked_from", default=_NOWHERE)


def context_of_asker(loop: asyncio.AbstractEventLoop | None, *, is_waiting: bool) -> Context:
    """The caller's context, with the loop that runs: of a tool that asks itself, the loop from which it was asked."""
    context = copy_context()
    if loop is not None and getattr(loop, "is_of_host", True) and _asked_from.get() is not None:
        context.run(_asked_from.set, AskedFrom(loop, is_waiting))
    return context


def asked_from(asker: Context | None) -> AskedFrom:
    """Where a question was asked that has this context."""
    return (asker.get(_asked_from) if asker is not None else None) or _NOWHERE


@contextlib.contextmanager
def asked_by_others() -> Iterator[None]:
    """What is asked within is asked by others than the code of the running loop, which is a server's of ours."""
    before = _asked_from.set(None)
    try:
        yield
    finally:
        _asked_from.reset(before)
