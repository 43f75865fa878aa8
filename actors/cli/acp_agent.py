"""The agent of `callboard acp`: sessions, prompts, permissions (agentclientprotocol.com, protocol version 1).

A session is a conversation in a folder. Sessions of one folder share a runtime, where they have the same MCP servers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import acp
from acp import RequestError, schema
from acp.interfaces import Client
from msgspec import Struct, field

from callboard import (
    Approval,
    AskApproval,
    CallboardError,
    Conversation,
    McpServer,
    Outcome,
    Reply,
    RequestEnded,
    Runtime,
    Settings,
    Tool,
    UsageError,
    __version__,
)
from callboard.actors.cli.acp_servers import EditorServer, servers_of
from callboard.actors.cli.acp_updates import Block, SessionUpdates, prompt_of
from callboard.actors.cli.failure import failure_of
from callboard.protocol.model import FinishReason
from callboard.protocol.policy import MEANINGS, Mode
from callboard.protocol.tools import Risk

#: Of one process. An editor opens a few; each has its conversation in memory.
MAX_SESSIONS: Final = 100
_STOP_REASONS: Final[dict[Outcome, schema.StopReason]] = {
    Outcome.ANSWERED: "end_turn",
    Outcome.CANCELLED: "cancelled",
    Outcome.STEP_LIMIT: "max_turn_requests",
    Outcome.TOKEN_LIMIT: "max_tokens",
    Outcome.COST_LIMIT: "max_tokens",
    Outcome.REPEATED_CALLS: "max_turn_requests",
}
_OPTIONS: Final[tuple[tuple[str, str, schema.PermissionOptionKind, Approval], ...]] = (
    ("once", "Allow", "allow_once", Approval.ONCE),
    ("request", "Allow for this request", "allow_always", Approval.REQUEST),
    ("always", "Always allow", "allow_always", Approval.ALWAYS),
    ("deny", "Deny", "reject_once", Approval.DENY),
    ("deny_always", "Always deny", "reject_always", Approval.DENY_ALWAYS),
)
"""Id, name, kind of the protocol, and what it is of ours."""


_Place = tuple[Path, str]
"""A folder, and the editor's MCP servers with their names: what sessions of one runtime have in common."""


class EditorSession(Struct):
    """One conversation of the editor."""

    id: str
    runtime: Runtime
    conversation: Conversation
    updates: SessionUpdates
    mode: Mode
    """Of the next prompts."""
    request_id: str = ""
    """Of the prompt that is being answered."""
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One update after the other."""


class EditorAgent:
    """What an editor calls. Each method raises RequestError, which the editor shows."""

    def __init__(self, settings: Settings, tools: Iterable[Tool]) -> None:
        self._settings = settings
        self._tools = tuple(tools)
        self._sessions: dict[str, EditorSession] = {}
        self._runtimes: dict[_Place, Runtime] = {}
        self._starting = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._client: Client | None = None

    def on_connect(self, conn: Client) -> None:
        """The other side of the connection."""
        self._client = conn

    async def close(self) -> None:
        """End all that runs."""
        for each in self._runtimes.values():
            await asyncio.to_thread(each.stop)

    # -- what the editor calls

    async def initialize(self, protocol_version: int, **_: object) -> acp.InitializeResponse:
        """What there is here."""
        return acp.InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_info=schema.Implementation(name="callboard", title="callboard", version=__version__),
            agent_capabilities=schema.AgentCapabilities(
                load_session=self._settings.journal is not None,
                prompt_capabilities=schema.PromptCapabilities(image=True, audio=True, embedded_context=True),
                mcp_capabilities=schema.McpCapabilities(http=True),
            ),
        )

    async def authenticate(self, method_id: str, **_: object) -> acp.AuthenticateResponse | None:
        """Keys come from the environment, never from the editor."""
        raise RequestError.invalid_params({"message": "there is nothing to sign in to: set the provider's key"})

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[EditorServer] | None = None, **_: object
    ) -> acp.NewSessionResponse:
        """A new conversation in this folder, with the tools of these MCP servers too."""
        session = await self._opened(cwd, None, mcp_servers or ())
        return acp.NewSessionResponse(session_id=session.id, modes=_modes(session.mode))

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[EditorServer] | None = None, **_: object
    ) -> acp.LoadSessionResponse:
        """A conversation of the journal: all of it is shown again."""
        session = await self._opened(cwd, session_id, mcp_servers or ())
        for message in session.conversation.messages:
            await self._show(session, session.updates.of_message(message))
        return acp.LoadSessionResponse(modes=_modes(session.mode))

    async def set_session_mode(self, session_id: str, mode_id: str, **_: object) -> acp.SetSessionModeResponse:
        """What the next prompts are for; the one that is being answered goes on in its own."""
        session = self._session(session_id)
        if mode_id not in list(Mode):
            raise RequestError(-32602, f"modeId: {mode_id!r:.100} is none of {', '.join(Mode)}")
        session.mode = Mode(mode_id)
        await self._show(session, [acp.helpers.update_current_mode(session.mode)])
        return acp.SetSessionModeResponse()

    async def prompt(self, session_id: str, prompt: list[Block], **_: object) -> acp.PromptResponse:
        """Answer one question; what happens on the way are updates."""
        session = self._session(session_id)
        if session.request_id:
            raise RequestError(-32600, "this session is being answered; cancel that first")
        session.request_id = uuid.uuid4().hex
        session.updates.begin()
        try:
            return acp.PromptResponse(stop_reason=await self._answer(session, prompt))
        except RequestEnded as ended:
            if (reason := _STOP_REASONS.get(ended.reply.outcome)) is None:
                raise _refused(ended) from None
            return acp.PromptResponse(stop_reason=reason)
        except CallboardError as error:
            raise _refused(error) from None
        finally:
            session.request_id = ""

    async def cancel(self, session_id: str, **_: object) -> None:
        """End the answer, with its tools and its questions for approval."""
        session = self._sessions.get(session_id)
        if session is not None and session.request_id:
            session.runtime.cancel(session.request_id, "cancelled in the editor")

    # -- the rest

    async def _answer(self, session: EditorSession, prompt: list[Block]) -> schema.StopReason:
        reason: schema.StopReason = "end_turn"
        stream = session.runtime.stream(
            prompt_of(prompt), conversation=session.conversation, request_id=session.request_id, mode=session.mode
        )
        async with aclosing(aiter(stream)) as items:
            async for item in items:
                await self._show(session, session.updates.of_item(item))
                if isinstance(item, Reply):
                    reason = _reason(item)
        return reason

    async def _opened(self, cwd: str, conversation_id: str | None, servers: Sequence[EditorServer]) -> EditorSession:
        if len(self._sessions) >= MAX_SESSIONS and conversation_id not in self._sessions:
            raise RequestError(-32600, f"there are {MAX_SESSIONS} sessions already; start callboard acp again")
        folder = Path(cwd)
        if not folder.is_absolute() or not await asyncio.to_thread(folder.is_dir):
            raise RequestError(-32602, f"cwd: {cwd!r:.200} is no absolute path of a folder")
        try:
            runtime = await self._runtime(folder, servers_of(servers, folder))
            if conversation_id is None:
                conversation = Conversation()
            elif self._settings.journal is None:
                raise UsageError("there is no journal to load a session from: callboard acp --journal PATH")
            else:
                conversation = await asyncio.to_thread(runtime.journal.conversation, conversation_id)
        except CallboardError as error:
            raise _refused(error) from None

        def risk_of(name: str) -> Risk | None:
            return next((each.contract.risk for each in runtime.tools() if each.definition.name == name), None)

        session_id = conversation_id or conversation.id
        known = self._sessions.get(session_id)
        mode = known.mode if known is not None else Mode(self._settings.policy.mode)
        session = EditorSession(session_id, runtime, conversation, SessionUpdates(folder, risk_of), mode)
        self._sessions[session_id] = session
        return session

    async def _runtime(self, folder: Path, servers: Mapping[str, McpServer]) -> Runtime:
        place = folder, repr({name: dataclasses.asdict(each) for name, each in servers.items()})
        async with self._starting:
            if place not in self._runtimes:
                all_servers = {**servers, **self._settings.mcp_servers}  # those that its owner has set up count first
                of_session: dict[str, object] = {"workspace": folder, "mcp_servers": all_servers}
                if folder != self._settings.workspace:  # those are besides the folder that was typed
                    of_session["more_workspaces"] = ()
                settings = self._settings.model_copy(update=of_session)
                made = Runtime(settings, self._tools, approve=self._approve)
                await asyncio.to_thread(made.start)
                self._runtimes[place] = made
            return self._runtimes[place]

    def _session(self, session_id: str) -> EditorSession:
        if session_id not in self._sessions:
            raise RequestError(-32602, f"there is no session {session_id!r:.100}; session/new makes one")
        return self._sessions[session_id]

    async def _show(self, session: EditorSession, updates: Iterable[acp.helpers.SessionUpdate]) -> None:
        async with session.sending:
            for each in updates:
                await self._connected().session_update(session.id, each)

    async def _approve(self, question: AskApproval) -> Approval:
        """Called on the runtime's loop for approvals; cancelled when the question is moot."""
        asked = asyncio.run_coroutine_threadsafe(self._ask_editor(question), self._loop)
        return await asyncio.wrap_future(asked)

    async def _ask_editor(self, question: AskApproval) -> Approval:
        request_id = str(question.tag.request_id)
        session = next((each for each in self._sessions.values() if each.request_id == request_id), None)
        if session is None:
            return Approval.DENY.because("the editor's session is gone")
        await self._show(session, session.updates.call(question.tag, question.name, question.arguments))
        options = [schema.PermissionOption(option_id=own, name=name, kind=kind) for own, name, kind, _ in _OPTIONS]
        answer = await self._connected().request_permission(
            session_id=session.id, tool_call=session.updates.question(question), options=options
        )
        if isinstance(answer.outcome, schema.DeniedOutcome):
            return Approval.DENY.because("the question was dismissed in the editor")
        chosen = answer.outcome.option_id
        return next((ours for own, *_, ours in _OPTIONS if own == chosen), Approval.DENY)

    def _connected(self) -> Client:
        if self._client is None:
            raise RequestError.internal_error({"message": "no editor is connected"})
        return self._client


def _modes(current: Mode) -> schema.SessionModeState:
    """All of them: who sits at the editor is the one who owns the runtime."""
    known = [schema.SessionMode(id=each, name=each.title(), description=MEANINGS[each]) for each in Mode]
    return schema.SessionModeState(current_mode_id=current, available_modes=known)


def _reason(reply: Reply) -> schema.StopReason:
    reasons: dict[FinishReason, schema.StopReason] = {
        FinishReason.LENGTH: "max_tokens",
        FinishReason.REFUSAL: "refusal",
    }
    return reasons.get(reply.finish_reason, "end_turn")


def _refused(error: CallboardError) -> RequestError:
    """One line for the person; without keys."""
    code = -32602 if isinstance(error, UsageError) else -32603
    return RequestError(code, failure_of(error).message)
