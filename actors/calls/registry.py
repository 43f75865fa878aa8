"""The registry of tools: which there are, what the policy says of each, and which are in good health. It is pure.

A tool that keeps crashing or hanging costs a worker each time. Over its budget it is WITHDRAWN: its schema is no longer
offered to the model. After a pause it is on probation: offered again, and its next call is the probe. A probe that
succeeds restores it; one that fails withdraws it at once, for twice as long. Threads cannot be killed: a tool whose
ended calls hold too many of them is withdrawn too, until some have returned.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.kernel import logger_of
from callboard.actors.tools import Tool
from callboard.actors.tools.invoke import text_of
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Judgement, Mode, Policy, depends_on_call, staged
from callboard.protocol.tools import Decision, FailureCode, ToolFailure

logger = logger_of("callboard.tools")

ToolKey = ToolName | Tool
"""What calls, lanes and health are kept by: the name of one of the runtime's tools; of one that a question has brought
with it, the tool itself, since another question may bring another one of that name."""
MayDeny = Callable[[ToolName], bool]
"""May a saved rule deny a call of this tool? At once, without a look at a file."""


def denies_none(_: ToolName) -> bool:
    """Of a runtime without saved rules."""
    return False


def name_of(key: ToolKey) -> ToolName:
    """As models know it."""
    return key.name if isinstance(key, Tool) else key


#: Crashes and timeouts within the window that withdraw a tool: a model retries a bad call two or three times, so a
#: handful means the tool is broken and not the call.
FAILURE_BUDGET = 5
FAILURE_WINDOW_SECONDS = 60.0
#: Of its calls meanwhile. A tool that breaks once in ten calls or less is not broken: others get their answers from it,
#: and a thousand requests must not lose it for six calls that went wrong.
TOLERATED_SHARE = 0.1
#: Threads of a pool (64) that abandoned calls of one tool may hold before it is withdrawn: seven such tools still leave
#: others room.
MAX_HELD_THREADS = 8
#: The source of the tools with which the runtime was made.
GIVEN = ""
#: The first withdrawal; it doubles with each failed probe.
WITHDRAWN_SECONDS = 30.0
MAX_WITHDRAWN_SECONDS = 600.0


class ToolHealth(Struct):
    """The record of one tool."""

    budget: int | None = FAILURE_BUDGET
    """Failures within the window that are borne; None bears any number."""
    max_held_threads: int | None = MAX_HELD_THREADS
    """As many withdraw it; None bears any number."""
    held_threads: int = 0
    """That its ended calls hold."""
    failures: deque[tuple[float, int]] = field(default_factory=deque)
    """When, and after how many calls: the latest, one more than the budget at most."""
    calls: int = 0
    withdrawn_until: float | None = None
    """None: in good standing. In the past: on probation."""
    pause_seconds: float = WITHDRAWN_SECONDS

    def is_offered(self, now: float) -> bool:
        """May models see the tool, and calls of it start?"""
        if self.max_held_threads is not None and self.held_threads >= self.max_held_threads:
            return False
        return self.withdrawn_until is None or now >= self.withdrawn_until

    def record_success(self, now: float) -> bool:
        """The tool ran to its end (an error it raised itself is such an end). True if this restored it."""
        self.calls += 1
        if self.withdrawn_until is None or now < self.withdrawn_until:
            return False
        self.withdrawn_until = None
        self.pause_seconds = WITHDRAWN_SECONDS
        self.failures.clear()
        return True

    def record_failure(self, now: float) -> bool:
        """The tool crashed or hung. True if this withdrew it."""
        self.calls += 1
        if self.budget is None or not self.is_offered(now):
            return False
        if self.withdrawn_until is not None:
            self.pause_seconds = min(self.pause_seconds * 2, MAX_WITHDRAWN_SECONDS)
            return self._withdraw(now)
        self.failures.append((now, self.calls))
        while self.failures[0][0] <= now - FAILURE_WINDOW_SECONDS or len(self.failures) > self.budget + 1:
            self.failures.popleft()
        calls = self.calls - self.failures[0][1] + 1
        over = len(self.failures) > self.budget and len(self.failures) > TOLERATED_SHARE * calls
        return over and self._withdraw(now)

    def _withdraw(self, now: float) -> bool:
        self.withdrawn_until = now + self.pause_seconds
        self.failures.clear()
        return True


class ToolWithdrawn(Struct, frozen=True):
    """The tool is over its failure budget, or holds too many threads: for now it is no longer offered to models."""

    name: ToolName
    at: float
    key: ToolKey


class ToolRestored(Struct, frozen=True):
    """The tool's probe succeeded, or threads that it held have returned."""

    name: ToolName
    at: float


Change = ToolWithdrawn | ToolRestored


class Entry(Struct, frozen=True):
    """One registered tool."""

    tool: Tool
    health: ToolHealth
    offer: ToolOffer | None = None
    """What the policy says of it; None: a policy that decides by itself is asked each time."""


class Registry:
    """See the module. Raises UsageError when two tools have one name."""

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        policy: Policy | None = None,
        failure_budget: int | None = FAILURE_BUDGET,
        max_held_threads: int | None = MAX_HELD_THREADS,
        may_deny: MayDeny = denies_none,
    ) -> None:
        self._may_deny = may_deny
        self.entries: dict[ToolKey, Entry] = {}
        self._policy = policy or Policy()
        self._failure_budget = failure_budget
        self._max_held_threads = max_held_threads
        self._sources: dict[str, frozenset[ToolName]] = {}
        """The names of the tools that come and go, by what they come from."""
        self._holds: dict[Hashable, tuple[ToolKey, ...]] = {}
        """By worker: the tool of each thread that an ended call holds."""
        for tool in tools:
            self.add(tool)
        self._sources[GIVEN] = frozenset(name_of(key) for key in self.entries)

    def add(self, tool: Tool) -> None:
        """One more tool. Raises UsageError when its name is taken."""
        name = tool.definition.name
        if name in self.entries:
            raise UsageError(f"two tools are called {name!r}; rename one of them")
        self.entries[name] = self._entry(tool, name)
        risk = tool.contract.risk
        if risk not in self._policy.decisions and offer_of(tool, self._policy).decision is Decision.DENY:
            logger.warning("tool %s is not offered: its risk is %s, which the policy has no row for", name, risk)

    def replace(self, source: str, tools: Iterable[Tool]) -> tuple[Tool, ...]:
        """From now on these are all the tools of a source whose tools come and go. Those that are gone or replaced.

        A tool that stays, or that a server offers anew, keeps its health; one that the owner has replaced may have been
        mended. One whose name is another's is left out.
        """
        before, now = self._sources.get(source, frozenset()), {}
        earlier = [self.entries[name].tool for name in before]
        for tool in tools:
            if tool.name in self.entries and tool.name not in before:
                logger.warning("tool %s of %s is not offered: there is another of that name", tool.name, source)
            else:
                now[tool.name] = tool
        for name, tool in now.items():
            kept = self.entries.get(name)
            if kept is None:
                self.add(tool)
            else:
                self.entries[name] = self._in_place_of(kept, tool, source)
        for name in before:
            if name not in now:
                del self.entries[name]
        self._sources[source] = frozenset(now)
        return tuple(tool for tool in earlier if now.get(tool.name) is not tool)

    def _in_place_of(self, kept: Entry, tool: Tool, source: str) -> Entry:
        entry = self._entry(tool, tool.name)
        return replace(entry, health=kept.health) if source != GIVEN or kept.tool is tool else entry

    def bring(self, tool: Tool) -> None:
        """A tool that a question has brought with it, until `forget`."""
        if tool not in self.entries:
            self.entries[tool] = self._entry(tool, tool)

    def forget(self, tool: Tool) -> None:
        """No question has it any more."""
        self.entries.pop(tool, None)

    def offers(self, now: float, mode: Mode | None = None) -> tuple[ToolOffer, ...]:
        """What is in good health of the runtime's tools, each with what the policy says of it in this mode."""
        healthy = (
            entry for key, entry in self.entries.items() if not isinstance(key, Tool) and entry.health.is_offered(now)
        )
        policy = self._policy.in_mode(mode)
        return tuple(self._offer(entry, policy) for entry in healthy)

    def _offer(self, entry: Entry, policy: Policy) -> ToolOffer:
        found, other = self._of_policy(entry, policy), entry.tool.contract.only_with
        if not other:
            return found
        with_it = self.entries.get(ToolName(other))
        return found if with_it is not None and self._of_policy(with_it, policy).is_shown else found.of_no_use()

    def _of_policy(self, entry: Entry, policy: Policy) -> ToolOffer:
        if policy is self._policy and entry.offer is not None and not self._may_deny(entry.tool.name):
            return entry.offer
        return offer_of(entry.tool, policy, self._may_deny)

    def _entry(self, tool: Tool, key: ToolKey) -> Entry:
        held = sum(holds.count(key) for holds in self._holds.values())  # it may have been here before
        health = ToolHealth(self._failure_budget, self._max_held_threads, held)
        # It takes 20 us, and every request looks at all tools.
        return Entry(tool, health, offer_of(tool, self._policy) if type(self._policy) is Policy else None)

    def refusal(self, key: ToolKey, now: float, offered: ToolOffer | None = None) -> ToolFailure | None:
        """Why a call of this tool may not start now, or None. `offered`: what the model was shown, and judged by."""
        entry = self.entries.get(key)
        if entry is None:
            name = name_of(key)
            return ToolFailure(name, FailureCode.UNKNOWN_TOOL, f"there is no tool {name!r}")
        if offered is not None and (changes := offered.changes_to(entry.tool.definition, entry.tool.contract)):
            name = name_of(key)
            why = f"{name} has changed since this request began ({', '.join(changes)})"
            return ToolFailure(name, FailureCode.WITHDRAWN, f"{why}: it is not what you were shown any more")
        return None if entry.health.is_offered(now) else self.withdrawal(key, now)

    def withdrawal(self, key: ToolKey, now: float) -> ToolFailure:
        """What a call of this tool, which is withdrawn, ends with: it says for how long, where that is known."""
        name, until, hint = name_of(key), self.entries[key].health.withdrawn_until, ""
        if until is not None and until > now:
            hint = f"Use another tool, or go on without it. It may be called again in {math.ceil(until - now)} s."
        told = f"{name} failed too often and is withdrawn for now"
        return ToolFailure(name, FailureCode.WITHDRAWN, told, retry_hint=hint)

    def judge(self, key: ToolKey, *, worked: bool, now: float) -> Change | None:
        """The tool ran to its end, or crashed or hung: what that changes for it."""
        if (entry := self.entries.get(key)) is None:
            return None  # of a question that has ended
        name, health = name_of(key), entry.health
        if worked and health.record_success(now):
            logger.info("tool %s is restored", name)
            return ToolRestored(name, now)
        if not worked and health.record_failure(now):
            logger.warning("tool %s is withdrawn for %.0f s", name, health.pause_seconds)
            return ToolWithdrawn(name, now, key)
        return None

    def hold(self, worker: Hashable, holds: tuple[ToolKey, ...], now: float) -> list[Change]:
        """Ended calls of these tools hold threads of the worker, and no others do: what that changes."""
        moved = Counter(holds)
        moved.subtract(self._holds.pop(worker, ()))
        if holds:
            self._holds[worker] = holds
        changes = (self._hold_more(key, count, now) for key, count in moved.items() if count)
        return [change for change in changes if change is not None]

    def _hold_more(self, key: ToolKey, count: int, now: float) -> Change | None:
        if (entry := self.entries.get(key)) is None:
            return None
        name, health = name_of(key), entry.health
        was_offered = health.is_offered(now)
        health.held_threads += count
        if health.is_offered(now) == was_offered:
            return None
        if was_offered:
            logger.warning("tool %s is withdrawn: ended calls of it hold %d threads", name, health.held_threads)
            return ToolWithdrawn(name, now, key)
        logger.info("tool %s is restored: threads that it held have returned", name)
        return ToolRestored(name, now)


def offer_of(tool: Tool, policy: Policy, may_deny: MayDeny = denies_none) -> ToolOffer:
    """A tool with what the policy says of it. A policy that fails denies. Calls of a tool that a saved rule may deny
    are judged one by one, also where the policy allows them all."""
    try:
        said = policy.offer(tool.name, tool.contract, has_accesses=bool(tool.accesses))
    except Exception as error:  # noqa: BLE001 - the owner's own policy: broken, it fails closed
        logger.warning("the policy failed for %s, which is denied: %s", tool.name, text_of(error))
        said = Judgement(Decision.DENY, f"the policy failed to decide about {tool.name}")
    if said.decision is Decision.ALLOW and may_deny(tool.name):
        said = Judgement(Decision.ASK, depends_on_call(tool.name))
    if tool.contract.stages and said.decision is Decision.ASK:
        said = Judgement(Decision.ALLOW, staged(tool.name))
    return ToolOffer(tool.definition, tool.contract, said.decision, said.rule)
