"""Calls with the effect `transaction` where the journal is on PostgreSQL: each runs within a transaction of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from callboard.actors.journal.journal_store import JournalLost
from callboard.actors.journal.outbox import EffectCommitted, Outbox
from callboard.actors.journal.postgres_calls import CallConnections, NotCommitted, ThreadCall
from callboard.actors.journal.transactions import CallEffect, MakeEffect
from callboard.actors.kernel import Ref
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.invoke import Result
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import CallboardError
from callboard.protocol.events import ToolCallCompleted
from callboard.protocol.tools import FailureCode, ToolFailure


class PostgresEffect(CallEffect):
    """What one call writes: by a connection that is the tool's, and committed where the tool ran."""

    def __init__(self, run: RunTool, outbox: Outbox, connections: CallConnections) -> None:
        super().__init__(run, outbox)
        self._connections = connections
        self._open: ThreadCall | None = None

    def for_tool(self, context: ToolContext) -> ToolContext:
        """It is given its connection where it runs."""
        return context

    def call(self, run: Callable[[ToolContext], Result], context: ToolContext) -> Result:
        """Run a `def`, on a thread, and commit."""
        tag, seconds = self.run.tag, context.remaining_seconds
        try:
            with self._connections.of_thread(tag, self.run.effect_id, seconds) as transaction:
                self._open = transaction
                result = run(context.within(transaction.connection))
                if isinstance(result, str) and self.claim():
                    transaction.commit(self._outcome(result))
                return result
        except CallboardError as error:
            return self._told(error)
        finally:
            self._open = None

    async def call_async(self, run: Callable[[ToolContext], Awaitable[Result]], context: ToolContext) -> Result:
        """Run an `async def`, and commit. Cancelled before the commit begins, it is rolled back."""
        tag, seconds = self.run.tag, context.remaining_seconds
        try:
            async with self._connections.of_task(tag, self.run.effect_id, seconds) as transaction:
                result = await run(context.within(transaction.connection))
                if isinstance(result, str) and self.claim():
                    await transaction.commit(self._outcome(result))
                return result
        except CallboardError as error:
            return self._told(error)

    def abandon(self) -> None:
        """The server rolls back at once."""
        if (transaction := self._open) is not None:
            transaction.abandon()

    def commit(self, result: str, printed: str, reply_to: Ref[EffectCommitted]) -> Result | None:
        """It is committed already."""
        return result

    def _outcome(self, result: str) -> ToolCallCompleted:
        return ToolCallCompleted(self.run.tag, self.outbox.wall_clock(), result)

    def _told(self, error: CallboardError) -> ToolFailure:
        if isinstance(error, NotCommitted | JournalLost):
            return self.failed(FailureCode.TOOL_ERROR, f"nothing was written: {error}")
        return self.unknown(error)


def by_connections(connections: CallConnections) -> MakeEffect:
    """For `Effects`."""
    return lambda run, outbox: PostgresEffect(run, outbox, connections)
