"""The MCP client that has called a tool of ours: what may be asked of it while the call runs.

An async tool finds it with `callers.caller()`; approvals ask it, too. In the revision of 2025-11-25 a question is a
request to the client, and its answer comes while the call waits. In that of 2026-07-28 there are no such requests: the
call ends with what is needed ("input required"), and the client sends it once more with the answers. So a tool asks
before it does anything: up to its questions it runs once for each round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import orjson
from mcp.server.connection import allowed_log_levels
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import ServerEvent
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CreateMessageRequest,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponse,
    ListRootsRequest,
    ListRootsResult,
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from callboard.protocol.errors import ToolError

#: Of the question whether a call may run; no tool may ask by this name.
APPROVAL: Final = "callboard_approval"
#: From RFC 5424, as MCP has them, the least first.
LEVELS: Final[tuple[LoggingLevel, ...]] = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip

A = TypeVar("A")
Announcer = Callable[[ServerEvent], Awaitable[None]]
_RESPONSES: Final[TypeAdapter[dict[str, InputResponse]]] = TypeAdapter(dict[str, InputResponse])
#: What answers each question, and what a client calls that it can answer it.
_KINDS: Final[Mapping[type, tuple[type, type, str]]] = {
    ElicitRequest: (ElicitResult, ElicitResult, "elicitation"),
    CreateMessageRequest: (CreateMessageResult, CreateMessageResultWithTools, "sampling"),
    ListRootsRequest: (ListRootsResult, ListRootsResult, "roots"),
}


class InputNeeded(ToolError):
    """The call goes on when its client has sent it again with answers. A tool lets it pass."""


@dataclass(eq=False)
class McpCaller:
    """The client of one call. Its methods may be awaited on any event loop."""

    context: ServerRequestContext[object, object]
    loop: asyncio.AbstractEventLoop
    """Of the server."""
    answers: dict[str, InputResponse] = field(default_factory=dict)
    """By name: what the client has answered so far."""
    asked: frozenset[str] = frozenset()
    """What earlier rounds of this call have asked, as its sealed state says."""
    level: LoggingLevel = "debug"
    """Log messages below it are not sent; of the revisions before 2026-07-28."""
    announcer: Announcer | None = None
    needs: dict[str, InputRequest] = field(default_factory=dict)
    """What was asked in this round and is not answered."""
    lacks: str = ""
    """What the client would need to be able to do, and cannot."""

    @property
    def is_modern(self) -> bool:
        """Does it speak the revision of 2026-07-28?"""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def can(self, capability: str) -> bool:
        """Can the client do this: "elicitation", "sampling" or "roots"?"""
        told = self.context.session.client_capabilities
        is_reachable = self.is_modern or self.context.session.can_send_request
        return is_reachable and told is not None and getattr(told, capability, None) is not None

    async def elicit(self, message: str, schema: Mapping[str, object], name: str = "answer") -> ElicitResult:
        """Ask the client's user: a form with the fields of this schema, which is flat. `name` tells questions apart."""
        params = ElicitRequestFormParams(message=message, requested_schema=dict(schema))
        answer = (await self.ask({name: ElicitRequest(params=params)}))[name]
        assert isinstance(answer, ElicitResult)
        return answer

    async def ask(self, questions: Mapping[str, InputRequest]) -> dict[str, InputResponse]:
        """Ask several things at once, each by a name; the answers have the same names.

        Raises ToolError where the client cannot be asked, or answers wrongly, and InputNeeded (which a tool lets pass)
        where the client sends the call once more with its answers.
        """
        for question in questions.values():
            capability = _KINDS[type(question)][2]
            if not self.can(capability):
                self.lacks = capability
                raise ToolError(f"the MCP client cannot be asked: it has no {capability}")
        if not self.is_modern:
            return {name: await self._on_loop(self._send(question)) for name, question in questions.items()}
        for name, question in questions.items():
            if not isinstance(self.answers.get(name), _KINDS[type(question)][:2]):
                self.needs[name] = question
        if self.needs:
            raise InputNeeded(f"the MCP client has to answer first: {', '.join(self.needs)}")
        return {name: self.answers[name] for name in questions}

    async def log(self, level: LoggingLevel, data: object, logger: str = "") -> None:
        """Tell the client, for its log, where it wants to hear of this level."""
        allowed = allowed_log_levels(self.context.protocol_version, self.context.meta)
        if level not in allowed or LEVELS.index(level) < LEVELS.index(self.level):
            return
        params = LoggingMessageNotificationParams(level=level, data=data, logger=logger or None)
        told = self.context.session.send_notification(
            LoggingMessageNotification(params=params), related_request_id=self.context.request_id
        )
        await self._on_loop(told)

    async def announce(self, change: ServerEvent) -> None:
        """Tell all clients that resources or prompts have changed: `PromptsListChanged()`, `ResourceUpdated(uri)` ...

        The list of tools is looked after by the server.
        """
        if self.announcer is not None:
            await self._on_loop(self.announcer(change))

    def input_required(self) -> InputRequiredResult:
        """What is needed, and a state (sealed on its way out) with what was answered before."""
        answered = {name: answer.model_dump(mode="json", by_alias=True) for name, answer in self.answers.items()}
        asked = sorted({*self.asked, *self.needs})
        state = orjson.dumps({"asked": asked, "answers": answered}).decode()
        return InputRequiredResult(input_requests=dict(self.needs), request_state=state)

    async def _send(self, question: InputRequest) -> InputResponse:
        answer_type = _KINDS[type(question)][0]
        metadata = ServerMessageMetadata(related_request_id=self.context.request_id)
        try:
            answer: InputResponse = await self.context.session.send_request(question, answer_type, metadata=metadata)
        except (MCPError, ValidationError) as error:
            raise ToolError(f"the MCP client gave no answer: {error}") from None
        return answer

    async def _on_loop(self, running: Awaitable[A]) -> A:
        """Await it on the server's loop, from whichever loop the tool runs on."""
        if asyncio.get_running_loop() is self.loop:
            return await running

        async def run() -> A:
            return await running

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self.loop))


def answered_before(
    state: str | None, responses: Mapping[str, InputResponse] | None
) -> tuple[dict[str, InputResponse], frozenset[str]]:
    """What a call that was sent once more brings along: all answers so far, and what was asked.

    The state is our own (it was sealed). Whether a call may run is answered only where it was asked: a client that says
    yes without having been asked has shown it to no person.
    """
    before = orjson.loads(state) if state else {"asked": [], "answers": {}}
    asked = frozenset(before["asked"])
    answers = _RESPONSES.validate_python(before["answers"])
    given = {name: answer for name, answer in (responses or {}).items() if name != APPROVAL or name in asked}
    return {**answers, **given}, asked
