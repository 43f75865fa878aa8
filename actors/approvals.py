"""Who is asked before a risky tool runs. Whoever owns the runtime decides, never the model; nobody to ask means no."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, cast

from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import Tag

logger = logging.getLogger("callboard.approvals")

ApprovalCallback = Callable[[AskApproval], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one AskApproval."""

    tag: Tag
    granted: bool
    by: str
    reason: str = ""


Decide = Callable[[Verdict], None]


class Approver(Protocol):
    """Asks somebody. `ask` returns at once; `decide` is called at most once for a question, from any thread."""

    def ask(self, question: AskApproval, decide: Decide) -> None: ...

    def withdraw(self, tag: Tag) -> None:
        """The question is moot; its verdict will not be heard."""

    def close(self) -> None: ...


class NobodyToAsk:
    """The default: policy fails closed."""

    def ask(self, question: AskApproval, decide: Decide) -> None:
        reason = f"{question.name} needs approval and this runtime has no approver"
        decide(Verdict(question.tag, granted=False, by="policy", reason=reason))

    def withdraw(self, tag: Tag) -> None:
        """Every question was answered at once."""

    def close(self) -> None:
        """Nothing is held."""


class CallbackApprover:
    """Asks a function of the runtime's owner, sync or async, on a loop thread of its own: it may take hours."""

    def __init__(self, callback: ApprovalCallback) -> None:
        self._callback = callback
        self._questions: dict[Tag, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="callboard-approvals", daemon=True)
        self._thread.start()

    def ask(self, question: AskApproval, decide: Decide) -> None:
        self._loop.call_soon_threadsafe(self._start, question, decide)

    def withdraw(self, tag: Tag) -> None:
        self._loop.call_soon_threadsafe(self._forget, tag)

    def close(self) -> None:
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(timeout=2)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=2)
            self._loop.close()

    def _start(self, question: AskApproval, decide: Decide) -> None:
        task = self._loop.create_task(self._decide(question, decide))
        self._questions[question.tag] = task
        task.add_done_callback(lambda _: self._questions.pop(question.tag, None))

    def _forget(self, tag: Tag) -> None:
        if task := self._questions.pop(tag, None):
            task.cancel()

    async def _cancel_all(self) -> None:
        tasks = list(self._questions.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _decide(self, question: AskApproval, decide: Decide) -> None:
        try:
            if inspect.iscoroutinefunction(self._callback):
                granted = await self._callback(question)
            else:
                granted = await asyncio.to_thread(cast(Callable[[AskApproval], bool], self._callback), question)
            verdict = Verdict(question.tag, granted is True, by="approver")
        except Exception as error:  # noqa: BLE001 - a broken approver means no, and the reason is told
            logger.warning("the approver failed for %s: %r", question.name, error)
            verdict = Verdict(question.tag, False, by="approver", reason=f"the approver failed: {type(error).__name__}")
        decide(verdict)
