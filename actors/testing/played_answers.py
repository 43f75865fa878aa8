"""The approver of an owner's callback on its real threads: each answer, as it reaches the one who asked.

A play of it is a part of the play of calls (played_calls.py).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Final

from msgspec.structs import replace

from callboard.actors.calls.approvals import UNTRUSTED, Approval, ApprovalKind, CallbackApprover, NobodyToAsk, Verdict
from callboard.actors.calls.approvals import about_call as shown
from callboard.actors.tools import Tool, tool
from callboard.protocol.commands import AskApproval
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.policy import Access, AccessKind
from callboard.protocol.tools import Risk

#: Real seconds for an answer to come, which take microseconds.
PATIENCE_SECONDS: Final = 5.0
#: What the callback gives back, and for which kind of answer that counts.
ANSWERS: Final[tuple[tuple[object, ApprovalKind], ...]] = (
    (True, ApprovalKind.ONCE),
    (False, ApprovalKind.DENY),
    (1, ApprovalKind.DENY),
    (None, ApprovalKind.DENY),
    *((Approval(kind), kind) for kind in ApprovalKind),
    (Approval.DENY.because("not today"), ApprovalKind.DENY),
    (Approval.DENY_ALWAYS.because("never"), ApprovalKind.DENY_ALWAYS),
    (Approval.ONCE.with_arguments({"path": "b", "number": 2}), ApprovalKind.ONCE),
    (Approval.ONCE.with_arguments({"number": "two"}), ApprovalKind.ONCE),
)
ERRORS: Final = (ValueError("told to"), SystemExit("told to"), asyncio.CancelledError("told to"))
SAYS: Final = {
    ApprovalKind.ONCE: "the approver allowed write once",
    ApprovalKind.REQUEST: "the approver allowed write for this request",
    ApprovalKind.ALWAYS: "the approver allowed write for always",
    ApprovalKind.DENY: "the approver denied write",
    ApprovalKind.DENY_ALWAYS: "the approver denied write for always",
}
COUNTS_FOR_MORE: Final = (ApprovalKind.REQUEST, ApprovalKind.ALWAYS, ApprovalKind.DENY_ALWAYS)
GRANTS: Final = (ApprovalKind.ONCE, ApprovalKind.REQUEST, ApprovalKind.ALWAYS)
#: Answers that contradict themselves.
WRONG: Final[tuple[Callable[[], object], ...]] = (
    lambda: Approval.ONCE.because("since"),
    lambda: Approval.REQUEST.with_arguments({}),
    lambda: Approval.DENY.with_arguments({}),
    lambda: Approval("perhaps"),  # type: ignore[arg-type]
    lambda: Approval.DENY.because("x" * 10_001),
    lambda: replace(Approval.ONCE, arguments=[1]),
)
_asked_by: ContextVar[str] = ContextVar("asked_by", default="nobody")


@cache
def _tool() -> Tool:
    @tool(isolation="thread", risk="write", accesses={"path": "write"})
    def write(path: str = "", number: int = 0) -> str:
        raise AssertionError("it is only asked about")

    return write


class Answers:
    """One approver, and what is asked of it."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"answers {seed}")
        self.problems: list[str] = []
        self.gates: dict[Tag, SimpleQueue[Any]] = {}
        """What the callback is to answer."""
        self.futures: dict[Tag, asyncio.Future[Any]] = {}
        """The same, where it is async."""
        self.seen: SimpleQueue[tuple[AskApproval, str]] = SimpleQueue()
        """What the callback was asked, and by whom."""
        self.verdicts: SimpleQueue[Verdict] = SimpleQueue()
        self.saved: list[tuple[Tag, bool]] = []
        self.cannot_save = rng.random() < 0.3
        self.remembers, self.confines = rng.random() < 0.8, rng.random() < 0.5
        is_async, self.is_later = rng.random() < 0.5, rng.random() < 0.3
        callback: Any = self._answer_async if is_async else self._answer
        self.approver = CallbackApprover(
            callback, self._save if self.remembers else None, (lambda _: "held to it") if self.confines else None
        )

    def wrong(self, told: str) -> None:
        """Note it."""
        self.problems.append(f"an approver: {told}")

    def _save(self, question: AskApproval, granted: bool) -> None:
        self.saved.append((question.tag, granted))
        if self.cannot_save:
            raise OSError("told to")

    # -- the owner's callback

    def _sees(self, question: AskApproval) -> None:
        self.seen.put((question, _asked_by.get()))
        _asked_by.set("another")

    def _answer(self, question: AskApproval) -> Any:
        self._sees(question)
        said = self.gates[question.tag].get()
        if isinstance(said, BaseException):
            raise said
        return self._later(said) if self.is_later else said

    async def _later(self, said: Any) -> Any:
        return said

    async def _answer_async(self, question: AskApproval) -> Any:
        self.futures[question.tag] = asyncio.get_running_loop().create_future()
        self._sees(question)
        return await self.futures[question.tag]

    def let(self, tag: Tag, said: Any) -> None:
        """The callback answers so."""
        future = self.futures.get(tag)
        if future is None:
            self.gates[tag].put(said)
            return

        def settle() -> None:
            if not future.done():
                if isinstance(said, BaseException):
                    future.set_exception(said)
                else:
                    future.set_result(said)

        future.get_loop().call_soon_threadsafe(settle)

    # -- what is done

    def ask(self, number: int) -> tuple[AskApproval, Tool | None]:
        """Ask, and see what the callback is asked."""
        rng = self.rng
        tag = Tag(RequestId("r"), MessageId("m"), 1, CallId(f"c{number}"))
        known = _tool() if rng.random() < 0.7 else None
        question = AskApproval(
            tag, _tool().name, '{"path": "a.txt"}', Risk.WRITE, rule=rng.choice(("", "since it writes")),
            accesses=(Access(AccessKind.READ, "b.txt"),) if rng.random() < 0.2 else (),
            confinement=rng.choice(("", "", "a box")), is_after_untrusted=rng.random() < 0.3,
        )  # fmt: skip
        asker = copy_context() if rng.random() < 0.8 else None
        if asker is not None:
            asker.run(_asked_by.set, tag.call_id)
        self.gates[tag] = SimpleQueue()
        for _ in range(rng.choice((1, 1, 2))):  # a restarted dispatcher asks again
            self.approver.ask(question, self.verdicts.put, asker, known)
        due = question
        if known is not None and not question.accesses:
            due = replace(due, accesses=(Access(AccessKind.WRITE, "a.txt", "path"),))
        if known is not None and self.confines and not question.confinement:
            due = replace(due, confinement="held to it")
        found = self._next(self.seen)
        if found != (due, tag.call_id if asker is not None else "nobody"):
            self.wrong(f"the callback is asked {found}, due is {due} by {tag.call_id}")
        if asker is not None and asker.get(_asked_by) != tag.call_id:
            self.wrong("what a callback sets reaches the asker")
        self._shown(due)
        return due, known

    def _shown(self, question: AskApproval) -> None:
        """A person is shown all of it."""
        text = str(shown(question))
        parts = [question.rule, question.confinement, "a.txt", *(str(each.value) for each in question.accesses)]
        if not all(part in text for part in parts) or (str(UNTRUSTED) in text) is not question.is_after_untrusted:
            self.wrong(f"a person is shown {text!r} of {question}")

    def answer(self, question: AskApproval, known: Tool | None) -> None:
        """The callback answers; its answer is told as it is."""
        rng = self.rng
        said, kind = rng.choice(ANSWERS)
        if rng.random() < 0.1:
            error = rng.choice(ERRORS)
            self.let(question.tag, error)
            why = f"the approver failed: {type(error).__name__}"
            self.compare(question, Verdict(question.tag, False, "approver", why))
            return
        self.saved.clear()
        self.let(question.tag, said)
        rule = SAYS[kind] + (f" ({question.rule})" if question.rule else "")
        is_saved = self.remembers and kind in (ApprovalKind.ALWAYS, ApprovalKind.DENY_ALWAYS)
        if is_saved and self.cannot_save:
            rule += " (not saved: OSError: told to)"
        approval = said if isinstance(said, Approval) else Approval.ONCE
        reason, changed, granted = approval.reason, approval.arguments, kind in GRANTS
        if changed is not None and known is not None and changed.get("number") == "two":
            reason, changed, granted = "a person changed its arguments to what the tool does not take", None, False
        arguments = json.dumps(changed) if changed is not None else ""
        due = Verdict(
            question.tag, granted, "approver", reason, rule, arguments, is_for_request=kind in COUNTS_FOR_MORE
        )
        self.compare(question, due)
        if self.saved != ([(question.tag, granted)] if is_saved else []):
            self.wrong(f"{self.saved} is saved for the answer {said}")

    def compare(self, question: AskApproval, due: Verdict) -> None:
        """What the asker hears."""
        found = self._next(self.verdicts)
        if not isinstance(found, Verdict):
            self.wrong(f"nothing comes of the answer {due}")
            return
        if found.arguments and due.arguments and json.loads(found.arguments) == json.loads(due.arguments):
            due = replace(due, arguments=found.arguments)
        if due.reason.startswith("a person") and found.reason.startswith(due.reason):
            due = replace(due, reason=found.reason)
        if found != replace(due, rule=due.rule if "failed" not in due.reason else found.rule):
            self.wrong(f"the asker hears {found} of {question.tag.call_id}, due is {due}")

    def _next(self, queue: SimpleQueue[Any]) -> Any:
        try:
            return queue.get(timeout=PATIENCE_SECONDS)
        except Empty:
            return None

    def end(self, left: list[AskApproval]) -> None:
        """It is closed, and nobody hears of what was open."""
        self.is_later = False
        for question in left:
            self.let(question.tag, True)  # lets the callback go: it may have been asked by then
        self.approver.close()
        if not self.seen.empty():
            self.wrong(f"the callback was asked twice about {self.seen.get()[0].tag.call_id}")
        if not self.verdicts.empty():
            self.wrong(f"{self.verdicts.get()} is told, and was not wanted any more")
        tag = Tag(RequestId("r"), MessageId("m"), 1, CallId("late"))
        question = AskApproval(tag, _tool().name, "{}", Risk.WRITE, rule="of the plan")
        self.approver.ask(question, self.verdicts.put)
        self.compare(question, Verdict(tag, False, "approver", "the runtime is stopping"))
        NobodyToAsk().ask(question, self.verdicts.put)
        reason = "write needs approval and this runtime has no approver"
        self.compare(question, Verdict(tag, False, "policy", reason, "of the plan", is_unanswered=True))


def play(seed: int) -> list[str]:
    """What is not as promised, in one play."""
    answers = Answers(seed)
    try:
        answers.rng.choice(WRONG)()
        answers.wrong("an answer that contradicts itself is taken")
    except UsageError:
        pass
    open_ones = [answers.ask(number) for number in range(answers.rng.choice((1, 2, 3)))]
    answers.rng.shuffle(open_ones)
    withdrawn = []
    for question, known in open_ones:
        if answers.rng.random() < 0.2:
            answers.approver.withdraw(question.tag)
            withdrawn.append(question)
        else:
            answers.answer(question, known)
    answers.end(withdrawn)
    return answers.problems[:1]
