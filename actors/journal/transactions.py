"""Calls with the effect `transaction`: what a tool writes is committed together with the outcome of its call.

On SQLite, which one thread writes, the tool hands over statements. When it has returned, the Journal actor executes
them and adds the outcome, in one transaction. On PostgreSQL the call has a connection of its own
(postgres_effects.py). In both, a unique key lets one call commit once, and a call that was lost is found there by the
process that goes on with its request: so its effect is there exactly once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import Lock

from msgspec import Struct

from callboard.actors.journal.journal_records import EffectWrite, Statement
from callboard.actors.journal.journal_store import ChangeRefused
from callboard.actors.journal.outbox import CommitEffect, EffectCommitted, Outbox
from callboard.actors.kernel import Ref
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.invoke import Result
from callboard.actors.tools.transaction import Statements
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.events import ToolCallCompleted
from callboard.protocol.tools import Deferred, Effect, FailureCode, Isolation, ToolContract, ToolFailure


class CallEffect:
    """What one call writes, with a journal in SQLite.

    It is either committed or stopped, by which comes first: a deadline that passes during the commit changes nothing.
    """

    def __init__(self, run: RunTool, outbox: Outbox) -> None:
        self.run = run
        self.outbox = outbox
        self.statements = Statements()
        """Those of the tool; from a child process they come with its result."""
        self.commit_by: float | None = None
        """When the dispatcher waits for it no longer, once it should have ended."""
        self._lock = Lock()
        self._is_stopped = False
        self._is_committing = False
        self._handed_over: CommitEffect | None = None

    @property
    def is_committing(self) -> bool:
        """Is it too late to stop the call?"""
        return self._is_committing

    @property
    def is_handed_over(self) -> bool:
        """Does its commit no longer need the worker of the call?"""
        return self._handed_over is not None

    def claim(self) -> bool:
        """It is committed now; False where the call was stopped before."""
        with self._lock:
            self._is_committing = not self._is_stopped
            return self._is_committing

    def stop(self) -> bool:
        """The call is stopped now; False where it is being committed, and that decides."""
        with self._lock:
            self._is_stopped = not self._is_committing
            return self._is_stopped

    def for_tool(self, context: ToolContext) -> ToolContext:
        """What the tool is given, each time that the call is given to a worker."""
        self.statements = Statements()
        return context.within(self.statements)

    def call(self, run: Callable[[ToolContext], Result], context: ToolContext) -> Result:
        """Run a `def`, on a thread."""
        return run(context)

    async def call_async(self, run: Callable[[ToolContext], Awaitable[Result]], context: ToolContext) -> Result:
        """Run an `async def`."""
        return await run(context)

    def abandon(self) -> None:
        """The call was stopped, and its thread goes on: nothing that it writes may count."""

    def finish(self, result: Result, printed: str, reply_to: Ref[EffectCommitted]) -> Result | None:
        """The tool has returned this. What the call comes to; None where it is handed over to be committed, and
        `reply_to` hears of it."""
        if isinstance(result, ToolFailure):
            return result
        if isinstance(result, Deferred):
            why = 'a tool with effect="transaction" cannot return Deferred: its outcome is committed with what it wrote'
            return self.failed(FailureCode.INVALID_RESULT, f"{why}. Nothing was written")
        return self.commit(result, printed, reply_to)

    def commit(self, result: str, printed: str, reply_to: Ref[EffectCommitted]) -> Result | None:
        """As `finish`, of a call that has a result."""
        if self.is_handed_over:
            return None
        if not self.claim():
            return result  # the ledger knows that it was stopped
        tag = self.run.tag
        statements = tuple(Statement(*each) for each in self.statements.taken())
        outcome = ToolCallCompleted(tag, self.outbox.wall_clock(), result, printed)
        self._handed_over = CommitEffect(EffectWrite(tag, outcome, statements), reply_to)
        try:
            self.outbox.hand_over(self._handed_over)
        except RuntimeFailure as full:
            self._handed_over = None
            return self.failed(FailureCode.OVERLOADED, f"nothing was written: {full}")
        return None

    def hand_over_again(self) -> None:
        """The answer may be lost, with the dispatcher that it was for. What is there already is not written again."""
        if self._handed_over is not None:
            self.outbox.hand_over(self._handed_over, is_last=True)

    def settled(self, error: RuntimeFailure | None) -> tuple[Result, str]:
        """What the call comes to now that it was committed, or was not for this reason; and what it printed."""
        outcome = self._handed_over.change.outcome if self._handed_over is not None else None
        result, printed = (outcome.content, outcome.output) if isinstance(outcome, ToolCallCompleted) else ("", "")
        if error is None:
            return result, printed
        if isinstance(error, ChangeRefused):
            return self.failed(FailureCode.TOOL_ERROR, f"nothing was written: {error}"), printed
        return self.unknown(error), printed

    def unknown(self, error: object) -> ToolFailure:
        """The error where it is not known whether it was committed."""
        return self.failed(FailureCode.OUTCOME_UNKNOWN, f"whether what it wrote was committed is not known: {error}")

    def failed(self, code: FailureCode, why: str) -> ToolFailure:
        """The call has failed so."""
        return ToolFailure(self.run.name, code, why)


MakeEffect = Callable[[RunTool, Outbox], CallEffect]


class Effects(Struct, frozen=True):
    """How a runtime commits what calls write."""

    outbox: Outbox
    on_server: MakeEffect | None = None
    """Where the journal is on PostgreSQL."""

    def of(self, run: RunTool) -> CallEffect:
        """For a new call."""
        return (self.on_server or CallEffect)(run, self.outbox)

    def fault(self, contract: ToolContract) -> str:
        """As `transaction_fault`."""
        return transaction_fault(contract, has_journal=True, on_server=self.on_server is not None)


def transaction_fault(contract: ToolContract, *, has_journal: bool = False, on_server: bool = False) -> str:
    """Why a tool cannot have the effect `transaction` with this journal; "" where it can, or does not want to."""
    if contract.effect is not Effect.TRANSACTION:
        return ""
    if not has_journal:
        return 'effect="transaction" commits in the journal\'s database: name one by Settings(journal=...)'
    if on_server and contract.isolation is Isolation.PROCESS:
        return (
            'with a journal on PostgreSQL a call with effect="transaction" is given a connection, which no child '
            'process can have: make the tool an `async def`, or give isolation="thread"'
        )
    return ""
