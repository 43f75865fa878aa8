"""Who is asked before a risky tool runs. The owner of the runtime decides, never the model; without an approver: no."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from callboard.actors.tools.context import context_of
from callboard.actors.tools.invoke import text_of
from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import Tag

logger = logging.getLogger("callboard.approvals")

#: For open questions to be withdrawn and the thread to end, when a runtime stops.
CLOSE_SECONDS = 2.0

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
    """Asks for approval. `ask` returns at once; `decide` is called at most once for a question, from any thread."""

    def ask(self, question: AskApproval, decide: Decide, asker: Context | None = None) -> None:
        """`asker` is the context in which the request was asked; None: an empty one."""

    def withdraw(self, tag: Tag) -> None:
        """The question is moot; its verdict will not be heard."""

    def close(self) -> None: ...


class NobodyToAsk:
    """The default: policy fails closed."""

    def ask(self, question: AskApproval, decide: Decide, asker: Context | None = None) -> None:
        reason = f"{question.name} needs approval and this runtime has no approver"
        decide(Verdict(question.tag, granted=False, by="policy", reason=reason))

    def withdraw(self, tag: Tag) -> None:
        """Every question was answered at once."""

    def close(self) -> None:
        """Nothing is held."""


class CallbackApprover:
    """Asks a function of the runtime's owner, sync or async, on a loop thread of its own: it may take hours.

    Each question to a sync function has a daemon thread of its own: one that never answers neither holds up the others,
    as it would in a pool, nor keeps the process from ending.
    """

    def __init__(self, callback: ApprovalCallback) -> None:
        self._callback = callback
        self._questions: dict[Tag, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="callboard-approvals", daemon=True)
        self._thread.start()

    def ask(self, question: AskApproval, decide: Decide, asker: Context | None = None) -> None:
        if not self._post(self._start, question, decide, asker):
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

    def _start(self, question: AskApproval, decide: Decide, asker: Context | None) -> None:
        if question.tag in self._questions:
            return  # a restarted dispatcher asks again, and has the address of the one before
        # The question runs in a copy of the asker's context, so that no question sees what another one sets.
        task = self._loop.create_task(self._decide(question, decide), context=context_of(asker))
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

    async def _decide(self, question: AskApproval, decide: Decide) -> None:
        try:
            verdict = Verdict(question.tag, await self._answer(question) is True, by="approver")
        except BaseException as error:  # all that a broken approver raises means no, and that is said
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            extra = question.tag.shown()
            logger.warning("the approver failed for %s: %s", question.name, text_of(error), extra=extra)
            verdict = Verdict(question.tag, False, by="approver", reason=f"the approver failed: {type(error).__name__}")
        decide(verdict)

    async def _answer(self, question: AskApproval) -> object:
        if inspect.iscoroutinefunction(self._callback):
            return await self._callback(question)
        answer = await self._on_a_thread(question)
        return await answer if inspect.isawaitable(answer) else answer

    async def _on_a_thread(self, question: AskApproval) -> object:
        answered: Future[tuple[object, BaseException | None]] = Future()
        answered.set_running_or_notify_cancel()  # a withdrawn question leaves its thread, which may answer later

        def call() -> None:
            try:
                answered.set_result((self._callback(question), None))
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                answered.set_result((None, error))

        run = partial(copy_context().run, call)
        threading.Thread(target=run, name="callboard-approval", daemon=True).start()
        answer, error = await asyncio.wrap_future(answered)
        if error is not None:
            raise error
        return answer
