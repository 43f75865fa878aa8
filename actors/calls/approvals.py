"""Who is asked before a risky tool runs. The owner of the runtime decides, never the model; without an approver: no.

An answer counts for one call, for equal calls of the same request (OpenQuestions), or always (`Remember`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextvars import Context, copy_context
from enum import StrEnum
from functools import partial
from typing import ClassVar, Final, Protocol, TypeVar

import orjson
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from callboard.actors.kernel import Ref
from callboard.actors.tools import Tool
from callboard.actors.tools.context import context_of
from callboard.actors.tools.invoke import text_of
from callboard.protocol import events
from callboard.protocol.commands import AskApproval
from callboard.protocol.content import json_text
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.policy import Access
from callboard.protocol.readers import ForDecision, arguments_for_decision, one_line_for_decision
from callboard.protocol.step import canonical_arguments
from callboard.protocol.tools import Hold, ToolFailure

logger = logging.getLogger("callboard.approvals")

#: For open questions to be withdrawn and the thread to end, when a runtime stops.
CLOSE_SECONDS = 2.0

#: More than any person writes; a reason is a part of the conversation from then on.
MAX_REASON_CHARS: Final = 10_000


class ApprovalKind(StrEnum):
    """For which calls an answer counts."""

    ONCE = "once"
    """This call runs."""
    REQUEST = "request"
    """It runs, and so does each call of the same request with the same tool and arguments."""
    ALWAYS = "always"
    """It runs, and an exact rule is saved: this tool with what this call touches runs unasked in this workspace."""
    DENY = "deny"
    DENY_ALWAYS = "deny_always"
    """It does not run, and an exact rule is saved: it is denied unasked in this workspace."""

    @property
    def grants(self) -> bool:
        return self in (ApprovalKind.ONCE, ApprovalKind.REQUEST, ApprovalKind.ALWAYS)


#: What each answer is called where the decision is recorded.
_RULES: Final = {
    ApprovalKind.ONCE: "the approver allowed {} once",
    ApprovalKind.REQUEST: "the approver allowed {} for this request",
    ApprovalKind.ALWAYS: "the approver allowed {} for always",
    ApprovalKind.DENY: "the approver denied {}",
    ApprovalKind.DENY_ALWAYS: "the approver denied {} for always",
}


class Approval(Struct, frozen=True):
    """What an `approve` callback answers: `Approval.ONCE`, `Approval.DENY.because("not on a Friday")`.

    Raises UsageError for what contradicts itself.
    """

    kind: ApprovalKind
    reason: str = ""
    """Of a denial: the model reads it."""
    arguments: Mapping[str, object] | None = None
    """Run the call with these in place of the model's, and tell the model. Only with ONCE."""

    ONCE: ClassVar[Approval]
    REQUEST: ClassVar[Approval]
    ALWAYS: ClassVar[Approval]
    DENY: ClassVar[Approval]
    DENY_ALWAYS: ClassVar[Approval]

    def __post_init__(self) -> None:
        if self.kind not in list(ApprovalKind):
            raise UsageError(f"an approval is one of {', '.join(ApprovalKind)}, not {self.kind!r:.100}")
        force_setattr(self, "kind", ApprovalKind(self.kind))
        if not isinstance(self.reason, str) or len(self.reason) > MAX_REASON_CHARS:
            raise UsageError(f"the reason of an approval must be a text of at most {MAX_REASON_CHARS:,} characters")
        if self.reason and self.kind.grants:
            raise UsageError("only a denial has a reason; leave it out, or deny")
        if self.arguments is not None and self.kind is not ApprovalKind.ONCE:
            raise UsageError("changed arguments are for one call: give them with Approval.ONCE")
        if self.arguments is not None and not isinstance(self.arguments, Mapping):
            raise UsageError(f"changed arguments must be a mapping, not {type(self.arguments).__name__}")

    def because(self, reason: str) -> Approval:
        """The same denial with a reason, which the model reads."""
        return replace(self, reason=reason)

    def with_arguments(self, arguments: Mapping[str, object]) -> Approval:
        """The same, for a call with these arguments in place of the model's."""
        return replace(self, arguments=arguments)


Approval.ONCE = Approval(ApprovalKind.ONCE)
Approval.REQUEST = Approval(ApprovalKind.REQUEST)
Approval.ALWAYS = Approval(ApprovalKind.ALWAYS)
Approval.DENY = Approval(ApprovalKind.DENY)
Approval.DENY_ALWAYS = Approval(ApprovalKind.DENY_ALWAYS)

ApprovalCallback = Callable[[AskApproval], bool | Approval | Awaitable[bool | Approval]]
Remember = Callable[[AskApproval, bool], object]
"""Saves an answer that counts always: a question with its accesses, and whether it was granted. May raise anything."""


class Verdict(Struct, frozen=True):
    """The answer to one AskApproval."""

    tag: Tag
    granted: bool
    by: str
    reason: str = ""
    rule: str = ""
    arguments: str = ""
    """Those to run the call with, where they were changed: JSON text of an object."""
    is_unanswered: bool = False
    """There is no one to ask: a call is denied then, and what can wait for its owner waits."""
    hold: Hold = Hold.NONE
    """What the kernel is to keep the call to."""
    is_for_request: bool = False
    """Does it answer equal questions of the same request, too?"""


Decide = Callable[[Verdict], None]


class Approver(Protocol):
    """Asks for approval. `ask` returns at once; `decide` is called at most once for a question, from any thread."""

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        """`asker` is the context in which the request was asked; None: an empty one. `tool` is the one to be called,
        where it is known."""

    def withdraw(self, tag: Tag) -> None:
        """The question is moot; its verdict will not be heard."""

    def close(self) -> None: ...


class NobodyToAsk:
    """The default: policy fails closed."""

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        reason = f"{question.name} needs approval and this runtime has no approver"
        decide(Verdict(question.tag, False, by="policy", reason=reason, rule=question.rule, is_unanswered=True))

    def withdraw(self, tag: Tag) -> None:
        """Every question was answered at once."""

    def close(self) -> None:
        """Nothing is held."""


class CallbackApprover:
    """Asks a function of the runtime's owner, sync or async, on a loop thread of its own: it may take hours.

    Each question to a sync function has a daemon thread of its own: one that never answers neither holds up the others,
    as it would in a pool, nor keeps the process from ending.
    """

    def __init__(
        self,
        callback: ApprovalCallback,
        remember: Remember | None = None,
        confinement_of: Callable[[Tool], str] | None = None,
    ) -> None:
        """`remember`: without it, an answer that counts always counts for the request. `confinement_of` says to what a
        tool is confined."""
        self._callback = callback
        self._remember = remember
        self._confinement_of = confinement_of
        self._questions: dict[Tag, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="callboard-approvals", daemon=True)
        self._thread.start()

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        if not self._post(self._start, question, decide, asker, tool):
            decide(Verdict(question.tag, granted=False, by="approver", reason="the runtime is stopping"))

    def withdraw(self, tag: Tag) -> None:
        self._post(self._forget, tag)

    def close(self) -> None:
        """Withdraw what is open and end the thread. A callback that will not end is left behind on it."""
        if not self._post(self._stop_loop):
            return
        self._thread.join(timeout=CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.warning("an approval callback holds its thread; it is left behind")
        else:
            self._loop.close()

    def _post(self, run: Callable[..., object], *arguments: object) -> bool:
        """Run on our loop; False when that has been closed."""
        try:
            self._loop.call_soon_threadsafe(run, *arguments)
        except RuntimeError:
            return False
        return True

    def _start(self, question: AskApproval, decide: Decide, asker: Context | None, tool: Tool | None) -> None:
        if question.tag in self._questions:
            return  # a restarted dispatcher asks again, and has the address of the one before
        # The question runs in a copy of the asker's context, so that no question sees what another one sets.
        task = self._loop.create_task(self._decide(question, decide, tool), context=context_of(asker))
        self._questions[question.tag] = task
        task.add_done_callback(lambda _: self._questions.pop(question.tag, None))

    def _forget(self, tag: Tag) -> None:
        if task := self._questions.get(tag):
            task.cancel()

    def _stop_loop(self) -> None:
        self._last_task = self._loop.create_task(self._cancel_all())

    async def _cancel_all(self) -> None:
        tasks = list(self._questions.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS / 2)
        self._loop.stop()

    async def _decide(self, question: AskApproval, decide: Decide, tool: Tool | None) -> None:
        try:
            if tool is not None:
                question = self._completed(question, tool)
            verdict = await self._verdict(question, _approval(await self._answer(question)), tool)
        except BaseException as error:  # all that a broken approver raises means no, and that is said
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            extra = question.tag.shown()
            logger.warning("the approver failed for %s: %s", question.name, text_of(error), extra=extra)
            verdict = Verdict(question.tag, False, by="approver", reason=f"the approver failed: {type(error).__name__}")
        decide(verdict)

    def _completed(self, question: AskApproval, tool: Tool) -> AskApproval:
        """With what its tool says of the call."""
        if not question.accesses:
            question = replace(question, accesses=_accesses_of(tool, question.arguments))
        if self._confinement_of is not None and not question.confinement:
            question = replace(question, confinement=self._confinement_of(tool))
        return question

    async def _verdict(self, question: AskApproval, approval: Approval, tool: Tool | None) -> Verdict:
        kind, tag = approval.kind, question.tag
        rule = _RULES[kind].format(question.name) + (f" ({question.rule})" if question.rule else "")
        if kind in (ApprovalKind.ALWAYS, ApprovalKind.DENY_ALWAYS) and self._remember is not None:
            try:
                await _on_a_thread(partial(self._remember, question, kind.grants))
                decision = "allow" if kind.grants else "deny"
                saved = {**tag.shown(), "event": "rule.saved", "tool": question.name, "decision": decision}
                logger.info("a rule was saved: %s %s", decision, question.name, extra=saved)
            except Exception as error:  # noqa: BLE001 - a full disk: the answer counts all the same, for this request
                extra = tag.shown()
                logger.warning("an answer about %s was not saved: %s", question.name, text_of(error), extra=extra)
                rule = f"{rule} (not saved: {text_of(error)})"
        arguments = ""
        if approval.arguments is not None:
            arguments, fault = await _on_a_thread(partial(_changed, approval.arguments, tool))
            if fault:
                logger.warning("the approver's arguments for %s do not fit: %s", question.name, fault)
                reason = f"a person changed its arguments to what the tool does not take: {fault}"
                return Verdict(tag, False, by="approver", reason=reason, rule=rule)
        is_for_request = kind not in (ApprovalKind.ONCE, ApprovalKind.DENY)
        return Verdict(tag, kind.grants, "approver", approval.reason, rule, arguments, is_for_request=is_for_request)

    async def _answer(self, question: AskApproval) -> object:
        if inspect.iscoroutinefunction(self._callback):
            return await self._callback(question)
        answer = await _on_a_thread(partial(self._callback, question))
        return await answer if inspect.isawaitable(answer) else answer


Done = TypeVar("Done")


async def _on_a_thread(function: Callable[[], Done]) -> Done:
    """Run it on a daemon thread of its own: see CallbackApprover."""
    ended: Future[BaseException | None] = Future()
    ended.set_running_or_notify_cancel()  # a withdrawn question leaves its thread, which may answer later
    answers: list[Done] = []

    def call() -> None:
        try:
            answers.append(function())
            ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            ended.set_result(error)

    run = partial(copy_context().run, call)
    threading.Thread(target=run, name="callboard-approval", daemon=True).start()
    if (error := await asyncio.wrap_future(ended)) is not None:
        raise error
    return answers[0]


def _approval(answer: object) -> Approval:
    """Only True and an Approval that grants allow a call."""
    if isinstance(answer, Approval):
        return answer
    return Approval.ONCE if answer is True else Approval.DENY


def _accesses_of(tool: Tool, arguments: str) -> tuple[Access, ...]:
    """What the call would touch; nothing where its tool fails to say."""
    try:
        return tool.accesses_of(orjson.loads(arguments))
    except Exception as error:  # noqa: BLE001 - a function of the tool's author
        logger.warning("%s does not say what a call would touch: %s", tool.name, text_of(error))
        return ()


def _changed(arguments: Mapping[str, object], tool: Tool | None) -> tuple[str, str]:
    """Changed arguments as JSON, and what is wrong with them; "" where nothing is."""
    text = canonical_arguments(json_text(arguments))
    if text is None:
        return "", "they are not a JSON object"
    fault = tool.invoker.fault_of(text) if tool is not None else None
    return text, _told(fault) if fault is not None else ""


def _told(fault: ToolFailure) -> str:
    return f"{fault.field}: {fault.message}" if fault.field else fault.message


UNTRUSTED: Final = ForDecision("this request has read text from outside, which may have led the model to it")


def about_call(question: AskApproval) -> ForDecision:
    """What a person must know beside the name of the tool and the diff: all of it, for surfaces that show one text."""
    lines = [f"why: {one_line_for_decision(question.rule)}"] if question.rule else []
    lines += [f"careful: {UNTRUSTED}"] if question.is_after_untrusted else []
    lines += ["arguments:", arguments_for_decision(question.arguments)]
    lines += [f"touches: {each.kind} {one_line_for_decision(each.value)}" for each in question.accesses]
    lines += [f"confined: {one_line_for_decision(question.confinement)}"] if question.confinement else []
    return ForDecision("\n".join(lines))


# The open questions of a runtime.

Answered = events.ApprovalGranted | events.ApprovalDenied


class SeekApproval(Struct, frozen=True):
    """Ask the runtime's approver; ApprovalGranted or ApprovalDenied goes to `reply_to`."""

    question: AskApproval
    reply_to: Ref[Answered]
    """The session: one request."""
    asker: Context | None = None
    tool: Tool | None = None
    """One that the question has brought with it; None: the runtime's of that name."""


_Equal = tuple[Ref[Answered], ToolName, str]
"""Questions are equal when one request asks them about the same tool and the same arguments."""


class QuestionStep(Struct, frozen=True):
    """What follows from a question, from its answer or from its withdrawal."""

    answers: tuple[tuple[Ref[Answered], Verdict], ...] = ()
    """Whom to tell what."""
    ask: SeekApproval | None = None
    """What to put to the approver now."""
    moot: tuple[Tag, ...] = ()
    """Questions that need no answer any more. Whether the approver has them open is not known: an earlier dispatcher
    may have put them, or this one once more while the answer was on its way."""


class OpenQuestions:
    """The questions that wait for an answer. Of equal ones one is put at a time: its answer may count for all.

    ONCE allows one call, and the next of them is asked about. A denial counts for those that wait with it; an answer
    for the request for those that come later, too, until the request ends.
    """

    def __init__(self) -> None:
        self._equal_of: dict[Tag, _Equal] = {}
        self._waiting: dict[_Equal, dict[Tag, SeekApproval]] = {}
        """By what makes them equal, in the order in which they came: the first has been put."""
        self._standing: dict[Ref[Answered], dict[_Equal, Verdict]] = {}
        """What was answered for the rest of a request."""

    def add(self, seek: SeekApproval) -> QuestionStep:
        """One more question."""
        question, asker = seek.question, seek.reply_to
        equal = asker, question.name, canonical_arguments(question.arguments) or question.arguments
        if answer := self._standing.get(asker, {}).get(equal):
            return QuestionStep(((asker, replace(answer, tag=question.tag)),))
        waiting = self._waiting.setdefault(equal, {})
        is_first = not waiting or question.tag in waiting  # sent again: the approver knows whether it has it
        waiting[question.tag] = seek
        self._equal_of[question.tag] = equal
        return QuestionStep(ask=seek) if is_first else QuestionStep()

    def settle(self, verdict: Verdict) -> QuestionStep:
        """The approver has answered. Nothing follows for a question that is not open."""
        equal = self._equal_of.get(verdict.tag)
        if equal is None:
            return QuestionStep()
        asker = equal[0]
        if verdict.is_for_request:
            self._standing.setdefault(asker, {})[equal] = verdict
        elif verdict.granted:
            self._close(verdict.tag)
            return QuestionStep(((asker, verdict),), self._first(equal), (verdict.tag,))
        tags = tuple(self._waiting[equal])
        for tag in tags:
            self._close(tag)
        answers = tuple((asker, replace(verdict, tag=tag)) for tag in tags)
        return QuestionStep(answers, moot=tags)

    def withdraw(self, tag: Tag) -> QuestionStep:
        """The question needs no answer any more."""
        equal = self._equal_of.get(tag)
        if equal is None:
            return QuestionStep(moot=(tag,))
        is_first = next(iter(self._waiting[equal])) == tag
        self._close(tag)
        return QuestionStep(ask=self._first(equal) if is_first else None, moot=(tag,))

    def forget(self, asker: Ref[Answered]) -> None:
        """Its request has ended."""
        self._standing.pop(asker, None)

    def _close(self, tag: Tag) -> None:
        equal = self._equal_of.pop(tag)
        del self._waiting[equal][tag]
        if not self._waiting[equal]:
            del self._waiting[equal]

    def _first(self, equal: _Equal) -> SeekApproval | None:
        return next(iter(self._waiting.get(equal, {}).values()), None)
