"""When a tool is withdrawn: restart intensity, applied to tools. Pure decisions; the dispatcher asks and obeys.

A tool that keeps crashing or hanging costs a worker each time. Over its budget it is WITHDRAWN: its schema is no longer
offered to the model. After a pause it is on probation: offered again, and its next call is the probe. A probe that
succeeds restores it; one that fails withdraws it at once, for twice as long.

Threads cannot be killed. A tool whose abandoned calls hold too many of them is withdrawn too, until some have returned.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

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
#: The first withdrawal; it doubles with each failed probe.
WITHDRAWN_SECONDS = 30.0
MAX_WITHDRAWN_SECONDS = 600.0


@dataclass(slots=True)
class ToolHealth:
    """The record of one tool."""

    budget: int | None = FAILURE_BUDGET
    """Failures within the window that are borne; None bears any number."""
    held_threads: int = 0
    failures: deque[tuple[float, int]] = field(default_factory=deque)
    """When, and after how many calls: the latest, one more than the budget at most."""
    calls: int = 0
    withdrawn_until: float | None = None
    """None: in good standing. In the past: on probation."""
    pause_seconds: float = WITHDRAWN_SECONDS

    def is_offered(self, now: float) -> bool:
        """May models see the tool, and calls of it start?"""
        return self.held_threads < MAX_HELD_THREADS and (self.withdrawn_until is None or now >= self.withdrawn_until)

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
