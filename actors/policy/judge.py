"""Decides about a call by the policy, before a person is asked: on threads of its own, since paths and names are looked
up, and a look at a dead network mount may never return.

Such a look holds one thread and no other call; the dispatcher goes on without its answer after JUDGE_SECONDS.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from callboard.actors.kernel import logger_of
from callboard.actors.policy.paths import Paths
from callboard.actors.secret_files import NO_RULES, SecretRules
from callboard.actors.tools import Tool
from callboard.actors.tools.invoke import text_of
from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import Tag
from callboard.protocol.policy import Access, AccessKind, Judgement, Policy, Touched
from callboard.protocol.step import canonical_arguments
from callboard.protocol.tools import Decision, Risk

logger = logger_of("callboard.policy")

#: A judgement takes under a millisecond; one that has not come by then waits for a disk or a name server.
JUDGE_SECONDS: Final = 5.0
#: Judgements at the same time; more wait for one of them.
MAX_THREADS: Final = 16
#: By the risk of a tool, the kinds of access that say what its calls do; where a call names none of them, its tool is
#: judged as such too.
_CARRIES: Final[Mapping[Risk, frozenset[AccessKind]]] = {
    Risk.READ: frozenset(AccessKind),
    Risk.WRITE: frozenset({AccessKind.WRITE, AccessKind.DELETE}),
    Risk.EXECUTE: frozenset({AccessKind.COMMAND}),
    Risk.NETWORK: frozenset({AccessKind.ADDRESS}),
    Risk.UNDECLARED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """What the policy says of one question."""

    tag: Tag
    judgement: Judgement


class Judge(Protocol):
    """Decides before a person is asked."""

    def judge(self, question: AskApproval, tool: Tool, tell: Callable[[Judged], None]) -> Judgement | None:
        """At once where that costs nothing; None: `tell` is called later, at most once, from any thread."""

    def close(self) -> None: ...


class AskAlways:
    """No policy beside the offers: whoever approves is asked."""

    def judge(self, question: AskApproval, tool: Tool, tell: Callable[[Judged], None]) -> Judgement | None:
        return Judgement(Decision.ASK, "")

    def close(self) -> None:
        """Nothing is held."""


class PolicyJudge:
    """Decides by a policy. Threads begin with the first call whose arguments matter."""

    def __init__(self, policy: Policy, workspace: Path | None = None, secrets: SecretRules = NO_RULES) -> None:
        self._policy = policy
        self._workspace = workspace
        self._secrets = secrets
        self._jobs = queue.SimpleQueue[Callable[[], None] | None]()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def judge(self, question: AskApproval, tool: Tool, tell: Callable[[Judged], None]) -> Judgement | None:
        if not tool.accesses:
            return self._contained(question, tool, lambda: ())

        def job() -> None:
            tell(Judged(question.tag, self._contained(question, tool, lambda: self._touched(tool, question))))

        self._submit(job)
        return None

    def close(self) -> None:
        """Let the threads end; one that is held by a dead mount is left behind."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _contained(
        self, question: AskApproval, tool: Tool, touched: Callable[[], Iterator[Touched] | tuple[()]]
    ) -> Judgement:
        try:
            arguments = canonical_arguments(question.arguments) or ""
            return self._policy.judge(tool.name, tool.contract, touched(), arguments)
        except Exception as error:  # noqa: BLE001 - of the owner's policy, or of what a tool says of its accesses
            told = text_of(error)
            logger.warning("a call of %s could not be judged: %s", tool.name, told, extra=question.tag.shown())
            return Judgement(Decision.ASK, f"it could not be judged ({type(error).__name__})")

    def _touched(self, tool: Tool, question: AskApproval) -> Iterator[Touched]:
        """All that the call would touch."""
        arguments = json.loads(question.arguments)
        paths = Paths(self._workspace, self._secrets)
        accesses = tool.accesses_of(arguments)
        if not _CARRIES[tool.contract.risk].intersection(each.kind for each in accesses):
            yield Touched(AccessKind.READ, risk=tool.contract.risk)
        for each in accesses:
            yield from _of_access(each, paths)

    def _submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            if not self._idle and self._threads < MAX_THREADS:
                self._threads += 1
                threading.Thread(target=self._work, name="callboard-judge", daemon=True).start()
            else:
                self._idle = max(0, self._idle - 1)
            self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._idle += 1


def _of_access(access: Access, paths: Paths) -> Iterator[Touched]:
    if access.kind in (AccessKind.COMMAND, AccessKind.ADDRESS):
        yield Touched(access.kind, risk=Risk.EXECUTE, unclear="a command")
    else:
        yield from paths.touched(access.kind, access.value)
