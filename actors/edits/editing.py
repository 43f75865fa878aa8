"""Edits: what tools and hosts use. They stage proposals, put them to the owner, and decide them; see `editor`.

A staged call never waits for a person. Its proposal is put to the runtime's approver, whose policy may allow or deny it
by a rule; a person may take days. A decision that comes at once is in the call's result. Of any later one the model
reads in a message of its own: in the request that is running, else before the next question of the conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, Literal, TypeVar

from msgspec.structs import replace

from callboard.actors.below import is_below_any
from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.calls.approvals import Approver, Decide, NobodyToAsk, Verdict
from callboard.actors.edits.editor import (
    EditorMessage,
    ListProposals,
    ListUntold,
    MarkTold,
    Stage,
    Staged,
    editor_actor,
)
from callboard.actors.edits.planning import EditRequest
from callboard.actors.edits.proposal_store import folder_of
from callboard.actors.edits.proposals import DecideEdits, Proposal, ProposalState, ProposedFile
from callboard.actors.kernel import ActorDeadError, ActorSystem, AskTimeout, ChildSpec, MailboxFull, NoSuchActor, Ref
from callboard.actors.policy.paths import is_guarded
from callboard.actors.tools import Tool, ToolContext
from callboard.protocol.commands import AskApproval
from callboard.protocol.errors import CallboardError, RuntimeFailure, ToolError, UsageError
from callboard.protocol.ids import Tag
from callboard.protocol.masking import ForModel, mask
from callboard.protocol.policy import Access, AccessKind, Mode

logger = logging.getLogger("callboard.edits")
Answered = TypeVar("Answered")

#: A rule, or a callback that asks no person, answers within milliseconds; a person does not.
AT_ONCE_SECONDS: Final = 0.2
#: Of a diff, what a model is shown: about 5,000 tokens. The proposal has all of it.
MAX_PREVIEW_CHARS: Final = 20_000
#: Applying some hundred files to a slow disk takes seconds.
DECIDE_SECONDS: Final = 120.0
#: With `auto_confirm_edits` mostly only the policy is waited for, which answers within its own limit of 5 s.
POLICY_SECONDS: Final = 10.0
#: A look into the store, before a question of a conversation that has staged edits.
LOOK_SECONDS: Final = 5.0
#: Requests that are remembered to have staged something.
MAX_REQUESTS: Final = 10_000
PROPOSED_TOLD: Final = "in mode {} an edit is only proposed: it is applied if its owner approves it later"
BY_SETTING: Final = "auto_confirm_edits"

TellModel = Callable[[str, str], bool]
"""Give the model of a running request this text to read; False where the request does not run."""


@dataclass(frozen=True, slots=True)
class EditedFile(BriefResult, ProposedFile):
    """One file of it, as a model reads it."""


@dataclass(frozen=True, slots=True)
class EditResult(BriefResult):
    """What the model reads of a staged edit."""

    staged: bool
    """There is a proposal; nothing of it may be applied yet."""
    applied: bool
    auto_confirmed: bool
    proposal: str
    """Its id; "" where nothing is to be done."""
    state: str
    files: tuple[EditedFile, ...]
    preview: ForModel
    """The diff, with keys masked."""
    notes: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    """Older proposals that conflict with it: they will not be applied."""
    version: Literal[1] = 1


class Confirming:
    """The approver of a runtime with `auto_confirm_edits`, behind the policy: yes, but for places that are guarded."""

    def __init__(self, behind: Approver, is_guarded: Callable[[AskApproval], str]) -> None:
        """`behind` is asked where `is_guarded` says why. That may block: the policy asks on a thread of its own."""
        self._behind = behind
        self._is_guarded = is_guarded

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        if self._is_guarded(question):
            self._behind.ask(question, decide, asker, tool)
        else:
            decide(Verdict(question.tag, granted=True, by=BY_SETTING))

    def withdraw(self, tag: Tag) -> None:
        self._behind.withdraw(tag)

    def close(self) -> None:
        self._behind.close()


class _AtOnce:
    """The verdict of a question, for as long as the call waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._verdict: asyncio.Future[Verdict] = self._loop.create_future()
        self._lock = Lock()
        self._is_left = False

    def offer(self, verdict: Verdict) -> bool:
        """From any thread; False where the call no longer waits."""
        with self._lock:
            if self._is_left:
                return False
            self._is_left = True
        self._loop.call_soon_threadsafe(self._verdict.set_result, verdict)
        return True

    def take(self, verdict: Verdict) -> None:
        """`offer`, where one that comes too late is not wanted."""
        self.offer(verdict)

    async def wait(self, seconds: float) -> Verdict | None:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._verdict), seconds)
        with self._lock:
            if not self._is_left:
                self._is_left = True
                return None
        return await self._verdict  # it is on its way


class Edits:
    """The edits of one workspace, for one start of a runtime. Any thread may use it."""

    def __init__(
        self,
        system: ActorSystem,
        workspace: Workspace,
        state_dir: Path,
        approver: Approver,
        *,
        files_changed: Callable[[], None] = lambda: None,
        patience_seconds: float = AT_ONCE_SECONDS,
        kept: tuple[str, ...] = (),
        proposing: Approver | None = None,
        mode: Mode = Mode.BUILD,
    ) -> None:
        """`files_changed` is called, on the editor's thread, when a proposal was applied. A call waits for the approver
        no longer than `patience_seconds`, and for a person not at all: guarded places, and what is `kept`. In a mode
        that changes nothing (`mode` where the question has none) only `proposing` is asked, which may deny."""
        self._proposing = proposing or NobodyToAsk()
        self._mode = mode
        self._kept = kept
        self.workspace = workspace
        self._system = system
        self._folder = folder_of(state_dir, workspace.root)
        self._approver = approver
        self._patience_seconds = patience_seconds
        self.files_changed = files_changed
        self.tell_model: TellModel = lambda request_id, text: False
        """Set by the runtime."""
        self._asked: dict[str, Tag] = {}
        """The questions that are open, by their proposals."""
        self._requests: dict[str, None] = {}
        """Those that have staged something, the oldest first: of others there is nothing to tell."""

    @property
    def _editor(self) -> Ref[EditorMessage]:
        return self._system.ref("root/editor")

    def actor(self) -> ChildSpec[EditorMessage]:
        """For the tree."""
        return editor_actor(self.workspace, self._folder, self)

    # -- for tools

    async def stage(self, request: EditRequest, context: ToolContext, tool: Tool) -> EditResult:
        """Stage what a call asks for, and put it to the owner. Raises ToolError."""
        tag = context.tag
        message = Stage(request, tool.name, tag.request_id, tag.call_id or "")
        try:
            staged = _known(await self._editor.ask_async(message, context.remaining_seconds))
        except UsageError as error:
            raise ToolError(str(error)) from error
        self.remembers((tag.request_id,))
        if staged.proposal is None:
            return EditResult(False, False, False, "", "", (), ForModel(""), staged.notes)
        found = self._result(staged, await self._put(staged.proposal, context, tool))
        mode = self._mode_of(context)
        if mode is Mode.BUILD or found.state != ProposalState.PENDING:
            return found
        return dataclasses.replace(found, notes=(*found.notes, PROPOSED_TOLD.format(mode)))

    async def _put(self, proposal: Proposal, context: ToolContext, tool: Tool) -> Proposal:
        """Ask the approver; the proposal as it is when the call returns."""
        run, at_once, accesses = context.run, _AtOnce(), _accesses(proposal)
        question = AskApproval(
            run.tag,
            run.name,
            run.arguments,
            tool.contract.risk,
            accesses=accesses,
            preview=proposal.diff,
            mode=run.mode,
        )
        # Judged by the places that were found, not by those that the arguments name.
        found = dataclasses.replace(tool, accesses=lambda arguments: accesses)
        if self._mode_of(context) is not Mode.BUILD:
            return await self._only_proposed(proposal, question, at_once, found)
        self._asked[proposal.id] = run.tag
        self._approver.ask(question, partial(self._answered, proposal.id, at_once), copy_context(), found)
        places = [os.path.join(self.workspace.root, each.value) for each in accesses]
        is_kept = any(is_below_any(place, self._kept) for place in places)
        is_for_a_person = is_kept or any(is_guarded(each.value) for each in accesses)
        verdict = await at_once.wait(AT_ONCE_SECONDS if is_for_a_person else self._patience_seconds)
        if verdict is None:
            return proposal
        self._asked.pop(proposal.id, None)
        if verdict.is_unanswered:
            return proposal  # it waits for its owner
        return await self._decide(replace(_decision(proposal.id, verdict), is_told=True))

    def _mode_of(self, context: ToolContext) -> Mode:
        return context.run.mode or self._mode

    async def _only_proposed(
        self, proposal: Proposal, question: AskApproval, at_once: _AtOnce, found: Tool
    ) -> Proposal:
        """Nothing is changed in such a mode but by its owner, who looks at what is proposed; the policy may deny it."""
        self._proposing.ask(question, at_once.take, copy_context(), found)
        verdict = await at_once.wait(POLICY_SECONDS)
        if verdict is None or verdict.is_unanswered or verdict.granted:
            return proposal
        return await self._decide(replace(_decision(proposal.id, verdict), is_told=True))

    def _answered(self, proposal_id: str, at_once: _AtOnce, verdict: Verdict) -> None:
        if at_once.offer(verdict):
            return
        self._asked.pop(proposal_id, None)
        if verdict.is_unanswered:
            return
        try:
            self._editor.tell(_decision(proposal_id, verdict))
        except (NoSuchActor, MailboxFull) as error:
            logger.warning("the answer about edit %s is lost, and it stays pending: %s", proposal_id, error)

    async def _decide(self, message: DecideEdits) -> Proposal:
        return _known(await self._editor.ask_async(message, DECIDE_SECONDS))[0]

    def _result(self, staged: Staged, proposal: Proposal) -> EditResult:
        notes = (*staged.notes, *([outcome_of(proposal)] if proposal.reason or proposal.is_changed_by_owner else []))
        return EditResult(
            staged=True,
            applied=proposal.state is ProposalState.APPLIED,
            auto_confirmed=proposal.state is ProposalState.APPLIED and proposal.by == BY_SETTING,
            proposal=proposal.id,
            state=proposal.state,
            files=tuple(EditedFile(*dataclasses.astuple(each)) for each in proposal.files),
            preview=_shown(proposal.diff),
            notes=notes,
            stale=staged.stale,
        )

    def close(self) -> None:
        """The runtime has stopped."""
        self._approver.close()
        self._proposing.close()

    # -- for the owner

    def list(self, states: Iterable[ProposalState] = tuple(ProposalState)) -> tuple[Proposal, ...]:
        """A blocking look; not on callboard's own loop."""
        return _known(self._editor.ask(ListProposals(tuple(states)), DECIDE_SECONDS))

    async def decide(self, message: DecideEdits) -> tuple[Proposal, ...]:
        """Approve or deny. Raises UsageError for an unknown id, and nothing is done."""
        return _known(await self._editor.ask_async(message, DECIDE_SECONDS))

    def decide_sync(self, message: DecideEdits) -> tuple[Proposal, ...]:
        """`decide`, for code without an event loop."""
        return _known(self._editor.ask(message, DECIDE_SECONDS))

    # -- what the model is to read

    def remembers(self, request_ids: Iterable[str]) -> None:
        """They have staged something."""
        self._requests.update(dict.fromkeys(request_ids))
        while len(self._requests) > MAX_REQUESTS:
            del self._requests[next(iter(self._requests))]

    def decided(self, proposal: Proposal) -> None:
        """On the editor's thread: one was settled, or could not be applied."""
        told = {"event": "edit.decided", "edit": proposal.id, "state": str(proposal.state), "by": proposal.by}
        logger.info("edit %s: %s", proposal.id, proposal.state, extra={**told, "request_id": proposal.request_id or ""})
        if proposal.state is not ProposalState.PENDING and (tag := self._asked.pop(proposal.id, None)) is not None:
            self._approver.withdraw(tag)
        if proposal.request_id and self.tell_model(proposal.request_id, outcome_of(proposal)):
            self._editor.tell(MarkTold((proposal.id,)))

    def has_staged(self, request_ids: Iterable[str]) -> bool:
        """May there be something to tell the model of these requests?"""
        return any(each in self._requests for each in request_ids)

    def untold(self, request_ids: Iterable[str]) -> dict[str, str]:
        """By their ids, what the model of these requests is yet to read: it reads it now. Blocks for milliseconds where
        one of them has staged something."""
        staged = tuple(each for each in request_ids if each in self._requests)
        if not staged:
            return {}
        try:
            found = _known(self._editor.ask(ListUntold(staged), LOOK_SECONDS))
            if not found:
                return {}
            told = _known(self._editor.ask(MarkTold(tuple(each.id for each in found)), LOOK_SECONDS))
        except (AskTimeout, ActorDeadError, RuntimeFailure, UsageError) as error:
            logger.warning("what became of staged edits is not told to the model: %s", error)
            return {}
        return {each.id: outcome_of(each) for each in found if each.id in told}


def outcome_of(proposal: Proposal) -> str:
    """What became of a proposal, as the model reads it."""
    files = ", ".join(each.path for each in proposal.files)
    what = f"The edit {proposal.id} ({files})"
    reason = f": {proposal.reason}" if proposal.reason else ""
    match proposal.state:
        case ProposalState.APPLIED if proposal.is_changed_by_owner:
            return f"{what} was changed by the owner and applied so:\n{_shown(proposal.diff)}"
        case ProposalState.APPLIED:
            return f"{what} was applied."
        case ProposalState.DENIED:
            return f"{what} was not allowed and not applied{reason}"
        case ProposalState.STALE:
            return (
                f"{what} was not applied, since it no longer fits{reason}. Look at what is there before you edit again."
            )
    return f"{what} waits for its owner{reason}"


def _decision(proposal_id: str, verdict: Verdict) -> DecideEdits:
    by = verdict.rule or verdict.by
    if verdict.granted and verdict.arguments:
        reason = f"the owner wants the call to be made with these arguments instead: {verdict.arguments}"
        return DecideEdits((proposal_id,), False, by, reason)
    return DecideEdits((proposal_id,), verdict.granted, by, verdict.reason)


def _accesses(proposal: Proposal) -> tuple[Access, ...]:
    """What applying it touches: the places as they were resolved."""
    found = []
    for each in proposal.files:
        is_removed = each.kind in ("deleted", "renamed")
        found.append(Access(AccessKind.DELETE if is_removed else AccessKind.WRITE, each.path))
        if each.renamed_to:
            found.append(Access(AccessKind.WRITE, each.renamed_to))
    return tuple(found)


def _shown(diff: str) -> ForModel:
    """For a model: bounded, with keys masked."""
    masked = mask(diff)
    if len(masked) <= MAX_PREVIEW_CHARS:
        return masked
    shown = masked[: masked.rfind("\n", 0, MAX_PREVIEW_CHARS) + 1]
    return ForModel(f"{shown}... ({masked.count(chr(10)) - shown.count(chr(10)):,} more lines)\n")


def _known(answer: Answered | CallboardError) -> Answered:
    if isinstance(answer, CallboardError):
        raise answer
    return answer
