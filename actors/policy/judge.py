"""Decides about a call by the policy, before a person is asked: on threads of its own, since paths and names are looked
up, and a look at a dead network mount may never return.

Such a look holds one thread and no other call; without an answer in time a person is asked, as after an error.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import Context
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.calls.approvals import Approver, Decide, Verdict
from callboard.actors.kernel import Timer, logger_of
from callboard.actors.policy.addresses import NONE_ALLOWED, AllowedAddresses, check_address
from callboard.actors.policy.paths import Paths
from callboard.actors.policy.shell_commands import command_touches
from callboard.actors.secret_files import NO_RULES, SecretRules
from callboard.actors.tools import Tool
from callboard.actors.tools.invoke import text_of
from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.policy import Access, AccessKind, Judgement, Mode, Policy, Touch, not_judged
from callboard.protocol.step import canonical_arguments
from callboard.protocol.tools import Decision, Risk

logger = logger_of("callboard.policy")

#: A judgement takes about a millisecond; one that has not come by then waits for a disk or a name server.
JUDGE_SECONDS: Final = 5.0
#: Judgements at the same time; more wait for one of them.
MAX_THREADS: Final = 16
#: With those that take the place of threads which are late; beyond that all wait, and are late.
MAX_ALL_THREADS: Final = 64
#: By the risk of a tool, the kinds of access that say what its calls do; where a call names none of them, its tool is
#: judged as such too.
_CARRIES: Final[Mapping[Risk, frozenset[AccessKind]]] = {
    Risk.READ: frozenset(AccessKind),
    Risk.WRITE: frozenset({AccessKind.WRITE, AccessKind.DELETE}),
    Risk.EXECUTE: frozenset({AccessKind.COMMAND}),
    Risk.NETWORK: frozenset({AccessKind.ADDRESS}),
    Risk.UNDECLARED: frozenset(),
}

#: Of a command that can read them.
_NOT_MASKED: Final = "secret files are not covered for commands on this machine"

Saved = Callable[[ToolName, str, Iterable[Access]], Judgement | None]
"""What the owner has answered for always, of a call of this tool with these arguments that touches this. May raise."""


class Clock(Protocol):
    """Of a scheduler."""

    def now(self) -> float: ...

    def call_at(self, when_seconds: float, run: Callable[[], None], *, lived: bool = False) -> Timer: ...


class CallJudge:
    """What a policy says of calls. It blocks: paths and names are looked up."""

    def __init__(
        self,
        policy: Policy,
        workspace: Path | None = None,
        secrets: SecretRules = NO_RULES,
        saved: Saved | None = None,
        addresses: AllowedAddresses = NONE_ALLOWED,
        masks_secrets: Callable[[], bool] = lambda: True,
        read_only: tuple[Path, ...] = (),
        kept: tuple[str, ...] = (),
    ) -> None:
        """`masks_secrets`: whether secret files are covered for commands; it may block, and what it raises asks.
        `kept`: see `Paths`."""
        self.policy = policy
        self.saved = saved
        self._workspace = workspace
        self._read_only = read_only
        self.kept = kept
        self._secrets = secrets
        self._addresses = addresses
        self._masks_secrets = masks_secrets

    def judge(
        self, tool: Tool, arguments: str, *, after_untrusted: bool = False, mode: Mode | None = None
    ) -> Judgement:
        """A call with these arguments (JSON), in a question of this mode. What fails asks."""
        try:
            accesses = tool.accesses_of(json.loads(arguments))
            touches = tuple(self._touches(tool, accesses))
            exact = canonical_arguments(arguments) or ""
            policy = self.policy.in_mode(mode)
            said = policy.judge(tool.name, tool.contract, touches, exact, after_untrusted=after_untrusted)
            if said.decision is Decision.DENY or self.saved is None:
                return said
            answered = self.saved(tool.name, arguments, accesses)
            if answered is None or (tool.contract.asks_because and answered.decision is Decision.ALLOW):
                return said
            return answered
        except Exception as error:  # noqa: BLE001 - of the owner's policy, or of what a tool says of its accesses
            logger.warning("a call of %s could not be judged: %s", tool.name, text_of(error))
            return Judgement(Decision.ASK, not_judged(tool.name, type(error).__name__))

    def guards(self, question: AskApproval) -> str:
        """Why a person is asked about these edits though edits are confirmed; "" if nobody is. It blocks."""
        try:
            paths = Paths(self._workspace, self._secrets, self._read_only, self.kept)
            changes = [each for each in question.accesses if each.kind in (AccessKind.WRITE, AccessKind.DELETE)]
            touches = (touch for each in changes for touch in paths.touches(each.kind, each.value))
            return next((touch.guarded for touch in touches if touch.guarded), "")
        except Exception as error:  # noqa: BLE001 - of a look at the file system: what is not known is asked about
            logger.warning("edits of %s could not be looked at: %s", question.name, text_of(error))
            return f"it could not be looked at ({type(error).__name__})"

    def _touches(self, tool: Tool, accesses: Iterable[Access]) -> Iterator[Touch]:
        """All that the call would touch."""
        paths = Paths(self._workspace, self._secrets, self._read_only, self.kept)
        found = tuple(accesses)
        if not _CARRIES[tool.contract.risk].intersection(each.kind for each in found):
            yield Touch(AccessKind.READ, risk=tool.contract.risk)
        folders = [os.path.join(paths.root, each.value) for each in found if each.kind is AccessKind.READ]
        for each in found:
            if each.kind is AccessKind.COMMAND:  # it runs in a folder that the call names, or in the workspace
                exposes = "" if self._masks_secrets() else _NOT_MASKED
                for touch in command_touches(each.value, paths, folders, can_hold=tool.contract.can_be_held):
                    yield replace(touch, exposes=exposes)
            elif each.kind is AccessKind.ADDRESS:
                yield self._of_address(each.value)
            else:
                yield from paths.touches(each.kind, each.value)

    def _of_address(self, value: str) -> Touch:
        checked = check_address(value, self._addresses)
        why = checked.refused.partition(":")[0]  # without the host, which a log need not hold
        refused = f"{why} (Settings.allowed_addresses)" if why else ""
        return Touch(AccessKind.ADDRESS, risk=Risk.NETWORK, forms=(checked.host,), refused=refused)


class _OpenJudgement(Struct, eq=False):
    """A question that is being judged."""

    question: AskApproval
    decide: Decide
    asker: Context | None
    tool: Tool
    late: Timer | None = None


class JudgingApprover:
    """An approver that asks the policy first, and the approver behind it where the policy says so."""

    def __init__(self, judge: CallJudge, behind: Approver, clock: Clock) -> None:
        self._judge = judge
        self._behind = behind
        self._clock = clock
        self._threads = JudgeThreads()
        self._open: dict[Tag, _OpenJudgement] = {}
        self._lock = threading.Lock()

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        """Judge it at once where nothing is looked up, else on a thread."""
        if tool is None:
            why = (
                question.rule or f"callboard does not know the tool {question.name}"
            )  # a server's own question has none
            self._behind.ask(replace(question, rule=why), decide, asker)
            return
        opened = _OpenJudgement(question, decide, asker, tool)
        with self._lock:
            if question.tag in self._open:
                return  # a restarted dispatcher asks again, and has the address of the one before
            self._open[question.tag] = opened
        if not tool.accesses and self._judge.saved is None:
            self._judged(opened, self._said(opened))
            return
        late_at = self._clock.now() + JUDGE_SECONDS
        opened.late = self._clock.call_at(late_at, lambda: self._is_late(opened), lived=True)
        self._threads.run(lambda: self._judged(opened, self._said(opened)))

    def withdraw(self, tag: Tag) -> None:
        with self._lock:
            opened = self._open.pop(tag, None)
        if opened is None:
            self._behind.withdraw(tag)
        elif opened.late is not None:
            opened.late.cancel()

    def close(self) -> None:
        """Let the threads end, and close what is behind."""
        self._threads.close()
        self._behind.close()

    def _said(self, opened: _OpenJudgement) -> Judgement:
        question = opened.question
        is_wary, mode = question.is_after_untrusted, question.mode
        return self._judge.judge(opened.tool, question.arguments, after_untrusted=is_wary, mode=mode)

    def _is_late(self, opened: _OpenJudgement) -> None:
        tag, name = opened.question.tag, opened.tool.name
        self._threads.add_one()
        logger.warning("a call of %s was not judged within %g s", name, JUDGE_SECONDS, extra=tag.shown())
        self._judged(opened, Judgement(Decision.ASK, not_judged(name, f"no decision within {JUDGE_SECONDS:g} s")))

    def _judged(self, opened: _OpenJudgement, judgement: Judgement) -> None:
        """The first judgement of a question counts."""
        question, tag = opened.question, opened.question.tag
        with self._lock:  # held while the question is handed on, so that it is withdrawn before or after that
            if self._open.get(tag) is not opened:
                return
            del self._open[tag]
            if opened.late is not None:
                opened.late.cancel()
            if judgement.decision is Decision.ASK:
                self._ask_behind(replace(question, rule=judgement.rule), opened)
                return
        is_granted = judgement.decision is Decision.ALLOW
        reason = "" if is_granted else f"the policy denies it ({judgement.rule})."
        opened.decide(Verdict(tag, is_granted, "policy", reason, judgement.rule, hold=judgement.hold))

    def _ask_behind(self, question: AskApproval, opened: _OpenJudgement) -> None:
        try:
            self._behind.ask(question, opened.decide, opened.asker, opened.tool)
        except Exception as error:  # noqa: BLE001 - an approver that cannot ask means no
            logger.warning("%s could not be asked about: %s", question.name, text_of(error), extra=question.tag.shown())
            reason = "the approver could not ask"
            opened.decide(Verdict(question.tag, granted=False, by="approver", reason=reason, rule=question.rule))


class JudgeThreads:
    """Daemon threads that begin when they are needed: one that never returns does not keep the process from ending."""

    def __init__(self) -> None:
        self._jobs = queue.SimpleQueue[Callable[[], None] | None]()
        self._lock = threading.Lock()
        self._count = 0
        self._idle = 0

    def run(self, job: Callable[[], None]) -> None:
        """Run it on a thread that is free; later, where all are busy."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._count < MAX_THREADS:
                self._start()
            self._jobs.put(job)

    def add_one(self) -> None:
        """One of them does not come back in time: another one takes its place."""
        with self._lock:
            if self._count < MAX_ALL_THREADS:
                self._start()

    def close(self) -> None:
        """Let them end once their jobs are done; what is held by a dead mount is left behind."""
        with self._lock:
            for _ in range(self._count):
                self._jobs.put(None)

    def _start(self) -> None:
        threading.Thread(target=self._work, name="callboard-judge", daemon=True).start()
        self._count += 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                logger.error("a judgement failed: %s", text_of(error), exc_info=error)
            with self._lock:
                self._idle += 1
