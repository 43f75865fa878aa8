"""Faults planted in the real actors: a simulated run finds each of them by the rule that is named, within few seeds.

Each is a change of a few words in one method, as somebody may make it by mistake.
"""

from __future__ import annotations

import inspect
from typing import Any, Final, NamedTuple

import pytest

from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.calls.ledger import CallReports, Pool
from callboard.actors.models.llm_manager import LlmManager
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.testing.simulated_run import attempt, token_of

#: Each is found by fewer.
SEEDS: Final = 120


class Fault(NamedTuple):
    """Words of a method, what stands there in their place, and the rules of which one is broken then."""

    owner: type[Any]
    method: str
    before: str
    after: str
    rules: str


def plant(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Change the method, also where messages are handled by it."""
    old = vars(fault.owner)[fault.method]
    function = old.fget if isinstance(old, property) else old
    source = inspect.getsource(function)
    assert source.count(fault.before) == 1, f"{fault.before!r} stands {source.count(fault.before)} times in {source}"
    made: dict[str, Any] = {}
    exec(f"class Changed:\n{source.replace(fault.before, fault.after)}", function.__globals__, made)
    new = vars(made["Changed"])[fault.method]
    patch.setattr(fault.owner, fault.method, new)
    handlers = getattr(fault.owner, "_kernel_handlers", {})
    for kind in _with_subclasses(fault.owner) if handlers else ():
        for message, handler in tuple(kind._kernel_handlers.items()):
            if handler is old:
                patch.setitem(kind._kernel_handlers, message, new)


def _with_subclasses(owner: type[Any]) -> list[type[Any]]:
    return [owner, *(each for below in owner.__subclasses__() for each in _with_subclasses(below))]


FAULTS = [
    # The dispatcher.
    Fault(ToolDispatcher, "_give", "seat.worker.tell_control(", "str(", "idle stop"),
    Fault(ToolDispatcher, "_cancel", "self._contained(self._end_running, call, Ending.CANCELLED)", "pass", "stop"),
    Fault(ToolDispatcher, "_admit", "            self._set_timer(call, due)", "            pass", "stop late"),
    Fault(ToolDispatcher, "_worker_state", "self._go_on(seat.pool)", "pass", "idle"),
    Fault(ToolDispatcher, "_go_on_asking", "verdict.reason, rule)", "verdict.reason)", "answer"),
    Fault(ToolDispatcher, "_go_on_asking", "if verdict.granted:", "if verdict.by:", "answer"),
    # Ledger and pools.
    Fault(Pool, "next_call", "lane.running < lane.concurrency", "lane.running < 1", "idle"),
    Fault(Pool, "next_call", "self.workers < self.max_workers", "self.workers < 1", "idle"),
    Fault(CallReports, "begin", "            call.reply_to.tell_control(", "            str(", "started"),
    Fault(CallReports, "end", "            call.reply_to.tell_control(event)", "            pass", "end"),
    # The LLM manager.
    Fault(LlmManager, "_take", "requests, first_at = call.attempt,", "requests, first_at = 1,", "told"),
    Fault(LlmManager, "_end", "error, call.attempt, model", "error, 1, model", "told"),
    Fault(LlmManager, "_attempt_failed", "if pause is None:", "if pause:", "told"),
    Fault(LlmManager, "_attempt_failed", "self.tell_after(pause,", "self.tell_after(2 * pause,", "goes on"),
    Fault(LlmManager, "on_start", "self.at_end(self._release_all)", "pass", "stopped"),
    Fault(LlmManager, "_start_attempt", "number == asked.call.attempts", "False", "requests"),
    # The session.
    Fault(RequestSession, "_holder_down", "self._apply(events.ModelLost(step, self.now()))", "pass", "carried out"),
    Fault(RequestSession, "_apply", "given, self.now()", "self.now(), given", "end"),
    Fault(RequestSession, "_act", "self._carried_out(event)", "self._carried(event)", "end"),
    Fault(RequestSession, "_context_for", "self._trace.context_for", "self._trace.context_of", "end"),
    Fault(RequestSession, "_give_go_ahead", "order.go_ahead.give()", "order.go_ahead.gives()", "end"),
    Fault(RequestSession, "_happened", "event.tag == self._question.tag", "event.tag == self._tag", "end"),
    Fault(RequestSession, "_taken_in", "ApprovalGranted | events.ApprovalDenied", "ApprovalDenied", "telemetry"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.method}-{fault.after.strip()[:24]}")
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    plant(monkeypatch, fault)
    for seed in range(SEEDS):
        if problems := attempt(token_of(seed))[1]:
            assert any(f"{rule}" in problem for problem in problems for rule in fault.rules.split()), problems[:3]
            return
    pytest.fail(f"not found within {SEEDS} seeds")
