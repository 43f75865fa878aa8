"""Who answers in `callboard chat`: a runtime of this process, or a daemon. The same few operations for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from msgspec import Struct

from callboard import AskOptions, Conversation, Reply, Runtime, UsageError
from callboard.actors.cli.arguments import place_of, whole_id
from callboard.actors.cli.listed_tools import ListedTool
from callboard.actors.edits.proposals import Proposal, ProposalState
from callboard.actors.journal.saved_conversations import shown_id, title_of
from callboard.actors.requests.asking import Prompt
from callboard.protocol.content import AssistantMessage, UserMessage
from callboard.protocol.model import Usage
from callboard.protocol.policy import Mode

#: So many conversations are listed.
SHOWN_CONVERSATIONS = 20


class AnswerEnded(Struct, frozen=True):
    """The last item of an answer."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """US dollars; None: not known."""
    error: str = ""
    """Why there is no whole answer; "" where there is."""


class StagedEdit(Struct, frozen=True):
    """An edit that a tool has proposed."""

    id: str
    state: str
    files: tuple[str, ...]
    diff: str
    reason: str = ""


class SoFar(Struct, frozen=True):
    """What a conversation is about, and its last exchange."""

    title: str
    question: str
    answer: str


def so_far(messages: Sequence[tuple[str, str]]) -> SoFar | None:
    """Of the role and the text of each message; None where nothing was asked yet."""
    questions = [number for number, (role, _) in enumerate(messages) if role == "user"]
    if not questions:
        return None
    answers = [text for role, text in messages[questions[-1] :] if role == "assistant" and text]
    return SoFar(title_of(messages[questions[0]][1]), messages[questions[-1]][1], answers[-1] if answers else "")


class ChatPartner(Protocol):
    """Answers questions of one conversation at a time. Each method raises CallboardError for what went wrong."""

    model: str
    """ "provider/model"; "": as the daemon has it."""
    mode: Mode | None
    """Of the next questions; None: as the daemon has it."""

    @property
    def conversation_id(self) -> str:
        """Empty before the first question."""
        ...

    def ask(self, prompt: Prompt) -> AsyncGenerator[object, None]:
        """Items as `Runtime.stream` gives them, and AnswerEnded last. Closing it early cancels the request."""
        ...

    async def tools(self) -> Sequence[ListedTool]:
        """Those that there are, offered or not."""
        ...

    async def edits(self) -> Sequence[StagedEdit]:
        """Those that wait."""
        ...

    async def decide(self, ids: Sequence[str] | None, *, approve: bool, reason: str = "") -> Sequence[StagedEdit]:
        """Apply edits or give them up; None: all that wait."""
        ...

    async def conversations(self) -> Sequence[tuple[str, ...]]:
        """A row for each, the newest first: id, title."""
        ...

    async def go_on_with(self, conversation_id: str) -> None:
        """The next question belongs to this conversation; "": to a new one."""
        ...

    async def so_far(self) -> SoFar | None:
        """None where nothing was asked in the conversation yet."""
        ...

    async def fork(self) -> None:
        """The next question belongs to a copy of this conversation."""
        ...

    async def export(self) -> str:
        """The conversation as JSON."""
        ...


class LocalPartner:
    """A runtime of this process."""

    def __init__(self, runtime: Runtime, conversation: Conversation, options: AskOptions) -> None:
        self._runtime = runtime
        self._conversation = conversation
        self._options = options
        self.model = runtime.settings.model
        self.mode: Mode | None = Mode(runtime.settings.policy.mode)

    @property
    def conversation_id(self) -> str:
        return self._conversation.id

    async def ask(self, prompt: Prompt) -> AsyncGenerator[object, None]:
        """As a ChatPartner does."""
        options: AskOptions = {**self._options, "conversation": self._conversation}
        if self.mode is not None and self.mode != self._runtime.settings.policy.mode:
            options["mode"] = self.mode
        if self.model != self._runtime.settings.model:
            options["model"] = self.model
        async with aclosing(aiter(self._runtime.stream(prompt, **options))) as stream:
            async for item in stream:
                yield item
                if isinstance(item, Reply):
                    used = item.usage or Usage()
                    yield AnswerEnded(used.input_tokens, used.output_tokens, item.cost)

    async def tools(self) -> Sequence[ListedTool]:
        offered = frozenset(each.definition.name for each in self._runtime.offered())
        return [ListedTool.of(each, offered, self._runtime.settings.workspace) for each in self._runtime.tools()]

    async def edits(self) -> Sequence[StagedEdit]:
        found = await asyncio.to_thread(self._runtime.proposals)
        return [_staged(each) for each in found if each.state is ProposalState.PENDING]

    async def decide(self, ids: Sequence[str] | None, *, approve: bool, reason: str = "") -> Sequence[StagedEdit]:
        if ids is not None:
            known = [each.id for each in await asyncio.to_thread(self._runtime.proposals)]
            ids = [whole_id(each, known, "edit") for each in ids]
        if approve:
            return [_staged(each) for each in await self._runtime.approve_edits(ids)]
        return [_staged(each) for each in await self._runtime.deny_edits(ids, reason)]

    async def conversations(self) -> Sequence[tuple[str, ...]]:
        place_of(self._runtime.settings)
        found = await asyncio.to_thread(self._runtime.journal.conversations, SHOWN_CONVERSATIONS)
        return [(shown_id(each.id), each.title) for each in found]

    async def go_on_with(self, conversation_id: str) -> None:
        if not conversation_id:
            self._conversation = Conversation()
            return
        place_of(self._runtime.settings)
        journal = self._runtime.journal
        own = await asyncio.to_thread(journal.whole_conversation_id, conversation_id)
        self._conversation = await asyncio.to_thread(journal.conversation, own)

    async def so_far(self) -> SoFar | None:
        said = (each for each in self._conversation.messages if isinstance(each, UserMessage | AssistantMessage))
        return so_far([("user" if isinstance(each, UserMessage) else "assistant", each.text) for each in said])

    async def fork(self) -> None:
        if not self._conversation.ids:
            raise UsageError("nothing was said in this conversation yet: there is nothing to fork")
        self._conversation = self._conversation.fork(self._conversation.ids[-1])

    async def export(self) -> str:
        return self._conversation.to_json()


def _staged(proposal: Proposal) -> StagedEdit:
    return StagedEdit(
        proposal.id, str(proposal.state), tuple(each.path for each in proposal.files), proposal.diff, proposal.reason
    )
