"""What comes from outside for calls that their tools have deferred: results, failures and progress, from any thread.

The result is written as JSON where it is said, since types and serialisers of a tool are code of its author, which must
not run on the control loop. Whether it counts is decided by the session of the request: one result a call (I1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from callboard.actors.kernel import (
    ActorDeadError,
    ActorSystem,
    Asks,
    AskTimeout,
    DeadLetterReason,
    MailboxFull,
    Ref,
    Rejected,
)
from callboard.actors.kernel.reply import Reply
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import shortened
from callboard.actors.tools.progress import CallProgress
from callboard.protocol.errors import OutcomeUnknown, RuntimeFailure, UsageError
from callboard.protocol.ids import RequestId, Tag, ToolName
from callboard.protocol.tools import Deferred, FailureCode, ToolFailure

#: A session answers within milliseconds; a wait this long means that something holds callboard's loop.
ANSWER_SECONDS: Final = 10.0

A = TypeVar("A")


class CalledTool(Struct, frozen=True):
    """The answer to FindCall."""

    name: ToolName
    own: Tool | None = None
    """The tool, where only its question has it."""


class FindCall(Asks[CalledTool], Struct, frozen=True):
    """Asks which tool an open call is of. Rejected where the request has no such call, or the call has ended."""

    tag: Tag


class ResolveCall(Asks["bool | Reply[bool]"], Struct, frozen=True):
    """What an open call came to; True, or where there is a journal a reply that comes when it is durable. Rejected
    where it has ended, or came to something before."""

    tag: Tag
    outcome: str | ToolFailure
    confirms: Reply[bool] | None = None
    """Of one that came early: who waits for it."""


class ReportProgress(Asks[bool], Struct, frozen=True):
    """How far an open call is; True. Rejected where it has ended."""

    tag: Tag
    progress: CallProgress


OutsideMessage = FindCall | ResolveCall | ReportProgress


class OutsideCalls:
    """The way from outside to the sessions of a started runtime."""

    def __init__(
        self,
        system: ActorSystem,
        session_of: Callable[[RequestId], Ref[OutsideMessage] | None],
        tools_of_runtime: Callable[[], Mapping[ToolName, Tool]],
    ) -> None:
        self._system = system
        self._session_of = session_of
        self._tools_of_runtime = tools_of_runtime

    def complete(self, tag: Tag, result: object) -> bool:
        """The call has this result. Raises UsageError, and leaves it open, where the model could not be sent it."""
        called = self._ask(tag, FindCall(tag))
        if called is None:
            return False
        tool = called.own or self._tools_of_runtime()[called.name]
        written = tool.invoker.result_of(result)
        if isinstance(written, Deferred):
            raise UsageError(f"{called.name}: only a tool defers its call; complete_call needs the result")
        if isinstance(written, ToolFailure):
            raise UsageError(f"{called.name}: {written.message}; the call is still open")
        return self._resolve(ResolveCall(tag, written))

    def fail(self, tag: Tag, message: str) -> bool:
        """The call has no result, and why."""
        if not isinstance(message, str) or not message.strip():
            raise UsageError("fail_call needs a message that tells the model what went wrong")
        called = self._ask(tag, FindCall(tag))
        if called is None:
            return False
        failure = ToolFailure(called.name, FailureCode.TOOL_ERROR, shortened(message))
        return self._resolve(ResolveCall(tag, failure))

    def report_progress(self, tag: Tag, message: str, fraction: float | None) -> bool:
        """The call has come so far."""
        return self._ask(tag, ReportProgress(tag, CallProgress.of(message, fraction))) or False

    def _resolve(self, message: ResolveCall) -> bool:
        taken = self._ask(message.tag, message)
        if not isinstance(taken, Reply):
            return taken or False
        try:
            return taken.get(timeout=ANSWER_SECONDS)
        except AskTimeout as error:
            raise OutcomeUnknown(
                f"the result for a call of {message.tag.request_id} was taken, and was not durable in time: the tool "
                "has not returned yet, or the journal is slow; given again, it counts once",
                message.tag.request_id,
            ) from error

    def _ask(self, tag: Tag, message: Asks[A]) -> A | None:
        """None, and a dead letter with the reason, where the message is not taken."""
        session = self._session_of(tag.request_id)
        if session is None:
            why = f"no request with the id {tag.request_id!r} is running"
            self._system.dead_letters.add(message, DeadLetterReason.NOT_ALIVE, tag.request_id, why)
            return None
        try:
            return session.ask(message, ANSWER_SECONDS)
        except (Rejected, ActorDeadError):
            return None
        except (AskTimeout, MailboxFull) as error:
            told = f"the request {tag.request_id} did not say in time whether it takes this"
            if isinstance(message, ResolveCall) and isinstance(error, AskTimeout):
                raise OutcomeUnknown(f"{told}; given again, it counts once", tag.request_id) from error
            raise RuntimeFailure(told) from error
