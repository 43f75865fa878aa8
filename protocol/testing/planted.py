"""Faults planted on purpose, each a small patch: what the kit must find, and so the proof that it looks.

Each names the invariant that must catch it. `find` hunts one and shrinks it to a short story.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from callboard.protocol import asking, transcript, turns
from callboard.protocol.budgets import Allowance
from callboard.protocol.calls import NO_CALLS, Batch
from callboard.protocol.commands import CallModel, CancelTool, Command, StopModel, WithdrawApproval
from callboard.protocol.content import Message, SystemMessage, ToolMessage
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import (
    ApprovalDenied,
    DeadlinePassed,
    Event,
    ModelResponded,
    ToolCallCompleted,
)
from callboard.protocol.session import Session
from callboard.protocol.states import CALL_TRANSITIONS, CallState, RequestState
from callboard.protocol.testing import seeded
from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.invariants import INVARIANTS
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.shrinking import shrink
from callboard.protocol.testing.story import Story
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import FailureCode

Plant = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule broken on purpose."""

    name: str
    invariant: str
    """The key of `INVARIANTS` that must notice."""
    plant: Plant


def _swap(target: object, name: str, value: object) -> Plant:
    return lambda: patch.object(target, name, value)


# What the faulty code does instead. Each keeps the rest of the original.

_messages: Final = Batch.messages
_let_go: Final = Session._let_go
_apply: Final = Session.apply
_after_calls: Final = Session._after_calls
_add: Final = Trace.add
_tidy_call: Final = turns._tidy_call


def _late_answer_counts_twice() -> AbstractContextManager[Any]:
    done: Any = CALL_TRANSITIONS[CallState.COMPLETED]
    return patch.dict(done, {ToolCallCompleted: (CallState.COMPLETED,)})


def _results_by_completion(self: Batch) -> tuple[Message, ...]:
    first, *rest = _messages(self)
    results = [message for message in rest if isinstance(message, ToolMessage)]
    return (first, *sorted(results, key=lambda result: result.is_error), *rest[len(results) :])


def _notes_between_results(self: Batch) -> tuple[Message, ...]:
    first, *rest = _messages(self)
    failed = any(isinstance(message, ToolMessage) and message.is_error for message in rest)
    return (first, SystemMessage("a call failed"), *rest) if failed else (first, *rest)


def _turn_without_results(self: Session, event: Any, why: str) -> list[Command]:
    if not self._batch.calls:
        return _let_go(self, event, why)
    commands = self._batch.abandon(event, why)
    turn, *_ = self._batch.messages()
    self._batch = NO_CALLS
    return [*commands, self._record((turn,))]


def _starts_early(self: Session, at: float, commands: list[Command]) -> Any:
    if any(call.result is not None for call in self._batch.calls.values()):
        for call in self._batch.open_calls():
            call.result = ToolMessage(call.call.call_id, call.call.name, "null")
            self._batch.open -= 1
    return _after_calls(self, at, commands)


def _deadline_waits_for_people(self: Session, event: Event) -> tuple[Command, ...]:
    waiting = CallState.AWAITING_APPROVAL in self.calls.values()
    if type(event) is DeadlinePassed and event.tag == self.tag and waiting:
        return ()
    return _apply(self, event)


def _replay_without_denials(journal: Any, **options: Any) -> Session:
    rebuilt = Session(**options)
    for event in journal:
        if type(event) is not ApprovalDenied:
            with suppress(ProtocolError):
                rebuilt.apply(event)
    return rebuilt


def _step_number_is_enough(self: Session, event: Event) -> None:
    if event.tag.step != self._step.step:
        raise ProtocolError(self._state, type(event).__name__, "another step")


def _charged_although_refused(self: Session, event: Event) -> tuple[Command, ...]:
    try:
        return _apply(self, event)
    except ProtocolError:
        if type(event) is ModelResponded and self.state is not RequestState.NEW:
            self._asking.spent.usage += event.response.usage
        raise


def _same_number_when_asked_again(self: Session, at: float, reason: str) -> Any:
    self._retries += 1
    number = self._step.step
    state, commands = self._next_step(at, [], again=True)
    if state is RequestState.CALLING_MODEL:
        self._step = self.tag.at_step(number)
        commands = [replace(c, tag=self._step) if isinstance(c, CallModel) else c for c in commands]
    return state, commands


def _without(*kinds: type[Any]) -> Callable[..., list[Command]]:
    def let_go(self: Session, event: Any, why: str) -> list[Command]:
        return [command for command in _let_go(self, event, why) if not isinstance(command, kinds)]

    return let_go


def _drop_half_an_atom(self: Any, target: int) -> None:
    for piece in self._steps:
        piece.messages = piece.messages[:1]


def _crash_takes_siblings(self: Batch, call: Any, event: Any, state: CallState, failure: Any) -> None:
    _fail(self, call, event, state, failure)
    if failure.code is FailureCode.CRASHED:
        for sibling in self.open_calls():
            _fail(self, sibling, event, state, replace(failure, tool=sibling.call.name))


_fail: Final = Batch.fail
_resend: Final = Batch.resend


def _runs_what_had_begun(self: Batch, at: float, max_runs: int) -> list[Command]:
    for call in self.open_calls():
        if call.state is CallState.RUNNING:
            call.offer = (
                replace(call.offer, contract=replace(call.offer.contract, idempotent=True)) if call.offer else None
            )
    return _resend(self, at, max_runs)


def _swallows_dead_letters(self: Trace, at: float, verb: Verb, value: Any, note: str = "") -> None:
    if verb is not Verb.REFUSED:
        _add(self, at, verb, value, note)


def _one_step_more(self: Any, *, again: bool) -> Any:
    return _next_request(self, again=again or self._steps_taken == self._options.max_steps)


_next_request: Final = asking.Asking.next_request


def _keeps_duplicate_ids(call: Any, taken: Any, index: int) -> Any:
    return _tidy_call(call, set(), index)


def _takes_half_a_call(call: Any, taken: Any, index: int) -> Any:
    asked = _tidy_call(call, taken, index)
    return replace(asked, arguments="{}", call=replace(asked.call, arguments=call.arguments))


def _no_deadline(self: Batch, call: Any, event: Any, at: float) -> Any:
    return replace(_send(self, call, event, at), deadline_at=at + 1_000_000.0)


_send: Final = Batch.send

FAULTS: Final[tuple[Fault, ...]] = (
    Fault("a late answer counts a second time", "I1 terminal once", _late_answer_counts_twice),
    Fault(
        "a step asked again keeps its number",
        "I1 terminal once",
        _swap(Session, "_ask_again", _same_number_when_asked_again),
    ),
    Fault(
        "a cancel leaves calls without results", "I2 valid history", _swap(Session, "_let_go", _turn_without_results)
    ),
    Fault(
        "a note stands between turn and results", "I2 valid history", _swap(Batch, "messages", _notes_between_results)
    ),
    Fault("duplicate call ids are kept", "I2 valid history", _swap(turns, "_tidy_call", _keeps_duplicate_ids)),
    Fault(
        "the history is cut inside an atom",
        "I2 valid history",
        _swap(transcript.Transcript, "_drop_old", _drop_half_an_atom),
    ),
    Fault("results stand in another order", "I3 order", _swap(Batch, "messages", _results_by_completion)),
    Fault("the next step starts early", "I4 no early step", _swap(Session, "_after_calls", _starts_early)),
    Fault("the deadline waits for people", "I5 bounded", _swap(Session, "apply", _deadline_waits_for_people)),
    Fault("no backstop behind the dispatcher", "I5 bounded", _swap(Batch, "watch", lambda self: [])),
    Fault("a call is given no deadline", "I5 bounded", _swap(Batch, "send", _no_deadline)),
    Fault("one step more than allowed", "I6 budgets hold", _swap(asking.Asking, "next_request", _one_step_more)),
    Fault(
        "budgets are not looked at",
        "I6 budgets hold",
        _swap(asking, "allow_step", lambda options, spent, tokens: Allowance()),
    ),
    Fault("a cancel leaves the stream running", "I7 cancel", _swap(Session, "_let_go", _without(StopModel))),
    Fault("a cancel leaves the tools running", "I7 cancel", _swap(Session, "_let_go", _without(CancelTool))),
    Fault("a cancel leaves the question open", "I7 cancel", _swap(Session, "_let_go", _without(WithdrawApproval))),
    Fault("replay skips a denied call", "I8 replay", _swap(Session, "replay", staticmethod(_replay_without_denials))),
    Fault("a refused event is charged", "I8 replay", _swap(Session, "apply", _charged_although_refused)),
    Fault("what had begun is run again", "I8 replay", _swap(Batch, "resend", _runs_what_had_begun)),
    Fault("dead letters vanish", "I9 conservation", _swap(Trace, "add", _swallows_dead_letters)),
    Fault("a crash takes its siblings along", "I10 blast radius", _swap(Batch, "fail", _crash_takes_siblings)),
    Fault("another request's answer is taken", "I11 isolation", _swap(Session, "_check_step", _step_number_is_enough)),
    Fault("half a call is run", "I12 no half calls", _swap(turns, "_tidy_call", _takes_half_a_call)),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The shortest story that shows a fault."""

    trace: Trace
    messages: tuple[str, ...]
    runs: int


def find(fault: Fault, *, max_scenarios: int = 5_000, shorten: bool = True) -> Found | None:
    """Plant the fault, hunt it through the scenarios of seeds 0, 1, 2 ..., and shrink the first that shows it.

    None when `max_scenarios` of them did not show it.
    """
    check = INVARIANTS[fault.invariant]
    runs = 0

    def shows(scenario: Scenario) -> bool:
        nonlocal runs
        runs += 1
        return any(True for _ in check(Story.of(drive(scenario))))

    with fault.plant():
        scenario = next((found for found in map(seeded.scenario, range(max_scenarios)) if shows(found)), None)
        if scenario is None:
            return None
        trace = drive(shrink(scenario, shows) if shorten else scenario)
        return Found(trace, tuple(check(Story.of(trace))), runs)
