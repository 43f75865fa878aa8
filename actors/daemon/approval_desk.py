"""ApprovalDesk: the calls of a tenant that wait for a person, and the person's answers, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from callboard.actors.calls.approvals import Approval
from callboard.protocol.commands import AskApproval
from callboard.protocol.errors import UsageError

CallKey = tuple[str, int, str]
"""Request id, step, call id."""


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """A call that waits."""

    key: CallKey
    question: AskApproval
    since: float
    """Wall-clock seconds."""
    _answer: asyncio.Future[Approval] = field(repr=False, compare=False)


class ApprovalDesk:
    """Its `approve` is what a Runtime is given; each question waits here until `answer`, or until it is withdrawn."""

    def __init__(self) -> None:
        self._open: dict[CallKey, OpenApproval] = {}
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], object]] = []

    async def approve(self, question: AskApproval) -> Approval:
        """Called on the runtime's loop for approvals; cancelled when the question is moot."""
        key = (str(question.tag.request_id), question.tag.step, str(question.tag.call_id))
        opened = OpenApproval(key, question, time.time(), asyncio.get_running_loop().create_future())
        with self._lock:
            self._open[key] = opened
        self._changed()
        try:
            return await opened._answer
        finally:
            with self._lock:
                if self._open.get(key) is opened:
                    del self._open[key]
            self._changed()

    @property
    def open(self) -> tuple[OpenApproval, ...]:
        """The oldest first."""
        with self._lock:
            return tuple(sorted(self._open.values(), key=lambda each: each.since))

    def answer(self, request_id: str, step: int, call_id: str, approval: Approval) -> bool:
        """True when it was taken: an approval is answered once. False where no such question is open.

        Whether changed arguments fit is checked by the runtime, behind this.
        """
        if not isinstance(approval, Approval):
            raise UsageError(f"an answer is an Approval, not {type(approval).__name__}")
        with self._lock:
            opened = self._open.pop((request_id, step, call_id), None)
        if opened is None:
            return False
        try:
            opened._answer.get_loop().call_soon_threadsafe(_settle, opened._answer, approval)
        except RuntimeError:  # the runtime has stopped
            return False
        return True

    def watch(self, changed: Callable[[], object]) -> Callable[[], None]:
        """`changed` is called, on any thread, whenever a question comes or goes; gives what ends that."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def _changed(self) -> None:
        for each in tuple(self._watchers):
            each()


def _settle(answer: asyncio.Future[Approval], approval: Approval) -> None:
    if not answer.done():
        answer.set_result(approval)
