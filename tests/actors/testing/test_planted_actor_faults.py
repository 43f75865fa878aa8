"""Faults planted in the real actors: a simulated run finds each of them by the rule that is named, within few seeds.

Each is a change of a few words in one method, as somebody may make it by mistake.
"""

from __future__ import annotations

import inspect
from typing import Any, Final, NamedTuple

import pytest

from callboard.actors.calls.approvals import OpenQuestions
from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.calls.ledger import Call, CallReports, Ledger, Pool, Seat
from callboard.actors.kernel.mailbox import Mailbox
from callboard.actors.kernel.supervisor import Supervisor
from callboard.actors.models.llm_manager import LlmManager
from callboard.actors.requests.replies import Answer, EventReader
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.requests.write_ahead import WriteAhead
from callboard.actors.testing.simulated_run import attempt, token_of

#: Each is found by fewer.
SEEDS: Final = 60


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
    Fault(ToolDispatcher, "_time_is_over", "call.seat.worker.tell_control(", "str(", "grace"),
    Fault(ToolDispatcher, "_admit", "> self._max_queued_calls", "> self._max_queued_calls + 1", "queue"),
    Fault(ToolDispatcher, "_admit", "            self._set_timer(call, due)", "            pass", "stop late"),
    Fault(ToolDispatcher, "_down", "self._go_on(seat.pool)", "pass", "idle"),
    Fault(ToolDispatcher, "_worker_state", "self._go_on(seat.pool)", "pass", "idle"),
    Fault(ToolDispatcher, "_cancel", "Ending.CANCELLED", "Ending.TIMED_OUT", "end"),
    Fault(ToolDispatcher, "on_start", "            self.monitor(worker)\n", "", "idle"),
    Fault(ToolDispatcher, "_go_on_asking", "verdict.reason, rule)", "verdict.reason)", "answer"),
    Fault(ToolDispatcher, "_go_on_asking", "if verdict.granted:", "if verdict.by:", "answer"),
    # Ledger and pools.
    Fault(Pool, "next_call", "lane.running < lane.concurrency", "lane.running < 1", "idle"),
    Fault(Pool, "next_call", "self.workers < self.max_workers", "self.workers < 1", "idle"),
    Fault(Seat, "take", "if len(self.calls) < self.room", "if not self.calls", "idle"),
    Fault(Ledger, "lose", "        seat.pool.workers -= 1\n", "", "idle"),
    Fault(CallReports, "begin", "            call.reply_to.tell_control(", "            str(", "started"),
    Fault(CallReports, "end", "            call.reply_to.tell_control(event)", "            pass", "end"),
    Fault(
        Call,
        "wait",
        "insort(self.lane.waiting, (self.sequence, self))",
        "self.lane.waiting.insert(0, (self.sequence, self))",
        "in order",
    ),
    # Questions.
    Fault(OpenQuestions, "add", "is_first = not waiting", "is_first = True", "put once"),
    Fault(OpenQuestions, "settle", "self._first(equal)", "None", "put once"),
    Fault(OpenQuestions, "settle", "elif verdict.granted:", "else:", "answer put"),
    Fault(OpenQuestions, "settle", "elif verdict.granted:", "elif False:", "answer"),
    Fault(OpenQuestions, "withdraw", "if is_first else None, moot=(tag,))", "if is_first else None)", "moot"),
    Fault(OpenQuestions, "settle", "if verdict.is_for_request:", "if verdict.granted:", "answer"),
    # The LLM manager.
    Fault(LlmManager, "_stop_model", "self._drop(command.tag)", "self._open.pop(command.tag, None)", "stopped"),
    Fault(LlmManager, "_take", "requests, first_at = call.attempt,", "requests, first_at = 1,", "told"),
    Fault(LlmManager, "_cost_with", "cost + call.lost_cost", "cost", "told"),
    Fault(LlmManager, "_end", "error, call.attempt, model", "error, 1, model", "told"),
    Fault(LlmManager, "_attempt_failed", "if pause is None:", "if pause:", "told"),
    Fault(LlmManager, "_attempt_failed", "self.tell_after(pause,", "self.tell_after(2 * pause,", "goes on"),
    Fault(LlmManager, "on_start", "self.at_end(self._release_all)", "pass", "stopped"),
    Fault(LlmManager, "_start_attempt", "number == asked.call.attempts", "False", "requests"),
    # The session, and what it tells.
    Fault(RequestSession, "_holder_down", "            self._send_again()", "            pass", "moot carried"),
    Fault(RequestSession, "_holder_down", "self._apply(events.ModelLost(step, self.now()))", "pass", "carried out"),
    Fault(RequestSession, "_stop_work", "self._peers.llm_manager.tell_control(command)", "pass", "stopped carried"),
    Fault(RequestSession, "_taken_in", "ApprovalGranted | events.ApprovalDenied", "ApprovalDenied", "telemetry"),
    Fault(RequestSession, "_taken_in", "        self._show(event)\n", "", "shown"),
    Fault(
        RequestSession,
        "_taken_in",
        "self._trace.observe(event)\n            self._open.pop(event.tag, None)\n            self._deferred",
        "self._open.pop(event.tag, None)\n            self._deferred",
        "telemetry",
    ),
    Fault(Answer, "__call__", "self._notes.append(seen.text)", "self._notes[:] = [seen.text]", "reply"),
    Fault(Answer, "__call__", "self._failures[:-MAX_FAILURES]", "self._failures[1:]", "reply"),
    Fault(Answer, "_reply", "            end.cost,", "            end.cost or 0.0,", "reply"),
    Fault(EventReader, "_take", "items += came", "items = list(came)", "stream"),
    # Writing ahead, supervisors, mailboxes.
    Fault(WriteAhead, "_end", "tuple(self._failures)", "()", "journal"),
    Fault(WriteAhead, "_end", "tuple(self._notes)", "()", "journal"),
    Fault(Supervisor, "_failed", "elif delay_seconds > 0:", "elif False:", "restart"),
    Fault(Supervisor, "_failed", "            self._launch(child)", "            pass", "restart"),
    Fault(Mailbox, "take", "self._control.pop(0)", "self._control.pop()", "shown"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.method}-{fault.after.strip()[:24]}")
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    plant(monkeypatch, fault)
    for seed in range(SEEDS):
        if problems := attempt(token_of(seed))[1]:
            assert any(f"{rule}" in problem for problem in problems for rule in fault.rules.split()), problems[:3]
            return
    pytest.fail(f"not found within {SEEDS} seeds")
