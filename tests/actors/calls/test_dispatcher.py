"""The dispatcher in virtual time: each call gets its turn and one outcome, whatever becomes of its pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.probes import Probe, Probed

from callboard.actors.calls import ledger as ledger_module
from callboard.actors.calls.approvals import Approver, Decide, NobodyToAsk, SeekApproval, Verdict
from callboard.actors.calls.dispatcher import (
    ABANDON_SECONDS,
    MAX_QUEUED_CALLS,
    ConfirmStops,
    DispatchCall,
    OfferTools,
    ReplaceTools,
    StopsTold,
    ToolDispatcher,
    ToolsOffered,
    Workers,
)
from callboard.actors.calls.ledger import Call, CallReports, EndedCalls, Ledger, Outcome
from callboard.actors.calls.registry import (
    FAILURE_BUDGET,
    MAX_HELD_THREADS,
    WITHDRAWN_SECONDS,
    Registry,
    ToolRestored,
    ToolWithdrawn,
)
from callboard.actors.kernel import Actor, ActorSystem, ChildSpec, DeadLetterReason, Ref, Supervisor, handles
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.actors.testing.whole_run import left_open
from callboard.actors.tools import Tool, tool
from callboard.actors.workers.messages import (
    BeginCode,
    KillCall,
    RunCall,
    StopCall,
    ToWorker,
    WorkerKind,
    WorkerLost,
)
from callboard.protocol.commands import AskApproval, CancelTool, RunTool, WithdrawApproval
from callboard.protocol.errors import UsageError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    ToolCallCancelled,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallTimedOut,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS, TOOL_GRACE_SECONDS
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Policy
from callboard.protocol.tools import Decision, Effect, FailureCode, Hold, Latency, Risk, ToolContract, ToolFailure

DEADLINE = 30.0


@tool(isolation="thread", concurrency=2)
def look(x: int = 0) -> int:
    return x


@tool(isolation="thread", latency="long", risk="write")
def write(x: int = 0) -> int:
    return x


def tag(call_id: str, request_id: str = "r") -> Tag:
    return Tag(RequestId(request_id), MessageId("m"), 1, CallId(call_id))


class PlayedWorker(Actor[ToWorker | Exception]):
    """Begins each call it is given, and ends it when the test says so."""

    def __init__(self, backstage: Backstage, reports: CallReports) -> None:
        self._backstage = backstage
        self.reports = reports

    @handles(RunCall)
    def _run(self, call: RunCall) -> None:
        self._backstage.started.append((call, self))
        if self._backstage.begins:
            self.reports.begin(call.record)

    @handles(StopCall, KillCall)
    def _hear(self, message: StopCall | KillCall) -> None:
        self._backstage.told.append(message)

    @handles(BeginCode)
    def _begin_code(self, message: BeginCode) -> None:
        raise AssertionError("no call waits for a go-ahead without a journal")

    @handles(Exception)
    def _die(self, message: Exception) -> None:
        raise message


class Backstage:
    """A dispatcher whose workers are played: `started` has what they were given, `session` hears the events."""

    def __init__(
        self,
        system: ActorSystem,
        tools: tuple[Tool[..., Any], ...] = (look, write),
        approver: Approver | None = None,
        policy: Policy | None = None,
        failure_budget: int | None = FAILURE_BUDGET,
        max_queued_calls: int = MAX_QUEUED_CALLS,
        room: int = 100,
        max_workers: int = 1,
        has_telemetry: bool = True,
    ) -> None:
        self.system = system
        self.scheduler = system.scheduler
        self.begins = True
        self.started: list[tuple[RunCall, PlayedWorker]] = []
        self.told: list[StopCall | KillCall] = []
        self.session = Probed(system, "session")
        self.ended: dict[Ref, EndedCalls] = {}
        self.telemetry = Probed(system, "telemetry")
        self.crowded = system.spawn(lambda: Probe([]), "crowded", capacity=1)
        self.can_be_made = True

        def make_worker(reports: CallReports, _pool: str) -> PlayedWorker:
            if not self.can_be_made:
                raise LookupError("a fault of ours")
            return PlayedWorker(self, reports)

        kind = WorkerKind(make_worker, room=room, max_workers=max_workers)
        self.ledger = Ledger()

        def make() -> ToolDispatcher:
            return ToolDispatcher(
                Registry(tools, policy, failure_budget),
                self.ledger,
                Workers(system.ref("root/tools"), lambda _: kind, lambda: 0.0),
                approver or NobodyToAsk(),
                self.telemetry.ref if has_telemetry else self.crowded,
                max_queued_calls=max_queued_calls,
            )

        children = [ChildSpec("tools", Supervisor), ChildSpec("dispatcher", make)]
        system.spawn(lambda: Supervisor(children, intensity=100), "root")
        self.run()
        self.ref = system.ref("root/dispatcher")

    def run(self, until_seconds: float | None = None) -> None:
        assert isinstance(self.scheduler, SimulatedScheduler)
        self.scheduler.run_until_idle(self.scheduler.now() if until_seconds is None else until_seconds)

    @property
    def ended_calls(self) -> EndedCalls:
        """Of the session of now."""
        return self.ended.setdefault(self.session.ref, EndedCalls())

    def dispatch(self, call_id: str, name: str = "look", deadline_at: float = DEADLINE, step: int = 1) -> None:
        run = RunTool(tag(call_id)._replace(step=step), ToolName(name), "{}", deadline_at, f"effect-{call_id}")
        self.ref.tell_control(DispatchCall(run, "the user's words", self.session.ref, ended=self.ended_calls))
        self.run()

    def say(self, message: Any) -> None:
        self.ref.tell_control(message)
        self.run()

    def ends(self, call_id: str, result: Outcome = '"x"') -> None:
        """The worker that was given this call last ends it."""
        call, worker = next(each for each in reversed(self.started) if each[0].run.tag.call_id == call_id)
        worker.reports.end(call.record, result)
        self.run()

    def crashes(self, call_id: str) -> None:
        self.ends(call_id, ToolFailure(ToolName("look"), FailureCode.CRASHED, "gone"))

    def worker(self, at: int = -1) -> PlayedWorker:
        return self.started[at][1]

    def lose(self, name: str) -> None:
        """An actor crashes."""
        cell = self.system.ref(name)._cell
        cell.executor.call_soon(cell.kill)
        self.run()

    def running(self) -> list[str]:
        return [call.run.tag.call_id for call, _ in self.started]

    def events(self) -> list[tuple[str, str]]:
        return [(event.tag.call_id, type(event).__name__) for event in self.session.heard]

    def failures(self) -> list[tuple[str, FailureCode]]:
        return [(event.tag.call_id, event.failure.code) for event in self.session.of(ToolCallFailed)]

    def outcomes(self) -> list[str]:
        return [kind for kind in self.session.kinds() if kind != "ToolCallStarted"]


@pytest.fixture
def backstage(simulated: ActorSystem) -> Backstage:
    return Backstage(simulated)


def test_a_call_goes_to_a_worker_which_tells_its_session(backstage: Backstage) -> None:
    backstage.dispatch("a")
    ((call, _),) = backstage.started
    assert call.tool is look
    assert call.context.effect_id == "effect-a"
    assert call.context.user_text == "the user's words"
    backstage.ends("a")
    assert backstage.session.kinds() == ["ToolCallStarted", "ToolCallCompleted"]
    assert not left_open(backstage.ledger)


@pytest.mark.parametrize(
    ("was", "is_now", "hold", "is_refused"),
    [
        (True, False, Hold.READING, True),
        (True, False, Hold.READING_BELOW, True),
        (True, False, Hold.NONE, False),
        (True, True, Hold.READING, False),
        (False, False, Hold.READING, False),
    ],
)
def test_a_call_that_was_allowed_as_held_to_reading_does_not_run_where_it_cannot_be_held_any_more(
    simulated: ActorSystem, was: bool, is_now: bool, hold: Hold, is_refused: bool
) -> None:
    """Between the judgement and the call, the tool was replaced: `was` and `is_now` say whether it can be held."""

    @tool(isolation="process", risk="execute", can_be_held=is_now)
    def run() -> str:
        return ""

    backstage = Backstage(simulated, (run,))
    offered = ToolOffer(run.definition, replace(run.contract, can_be_held=was))
    call = RunTool(tag("a"), ToolName("run"), "{}", DEADLINE, "effect-a", hold=hold)
    backstage.say(DispatchCall(call, "", backstage.session.ref, offered=offered))
    assert backstage.running() == ([] if is_refused else ["a"])
    assert backstage.failures() == ([("a", FailureCode.WITHDRAWN)] if is_refused else [])
    if is_refused:
        (event,) = backstage.session.of(ToolCallFailed)
        assert "the kernel cannot hold it to reading any more" in event.failure.message


def test_calls_beyond_the_tools_concurrency_wait_their_turn_in_order(backstage: Backstage) -> None:
    for call_id in "abcd":
        backstage.dispatch(call_id)
    assert backstage.running() == ["a", "b"]
    backstage.ends("b")
    assert backstage.running() == ["a", "b", "c"]
    backstage.ends("a")
    assert backstage.running() == ["a", "b", "c", "d"]


def test_a_call_that_comes_back_runs_where_its_tool_does_now_though_that_was_away(backstage: Backstage) -> None:
    """Its tool was replaced, taken away, and offered again; the pool of the one in between is gone."""
    backstage.begins = False
    backstage.dispatch("a")
    call, worker = backstage.started[0]
    for tools in ((replaced(look, Latency.LONG), write), (write,), (look, write)):
        backstage.say(ReplaceTools("", tools))
    worker.reports.give_back(call.record, "its loop was blocked")
    backstage.run()
    assert backstage.running() == ["a", "a"]
    assert backstage.worker().name.startswith("root/tools/thread-short/")


def replaced(used: Tool[..., Any], latency: Latency) -> Tool[..., Any]:
    return dataclasses.replace(used, contract=replace(used.contract, latency=latency))


def test_another_tool_does_not_wait_for_a_full_one(backstage: Backstage) -> None:
    for call_id in "abc":
        backstage.dispatch(call_id)
    backstage.dispatch("w", "write")
    assert backstage.running() == ["a", "b", "w"]


def test_workers_are_started_as_calls_need_them_and_used_again(simulated: ActorSystem) -> None:
    backstage = Backstage(simulated, room=1, max_workers=2)
    for call_id in "abc":
        backstage.dispatch(call_id, "write")
    assert backstage.running() == ["a", "b"]
    assert backstage.worker(0) is not backstage.worker(1)
    backstage.ends("a")
    assert backstage.running() == ["a", "b", "c"], "of the tools' queues, the oldest call is next"
    assert backstage.worker(2) is backstage.worker(0)


def test_a_full_queue_refuses_as_overloaded(simulated: ActorSystem) -> None:
    backstage = Backstage(simulated, max_queued_calls=1)
    for call_id in "abcd":
        backstage.dispatch(call_id)
    assert backstage.failures() == [("d", FailureCode.OVERLOADED)]
    backstage.ends("a")
    assert backstage.running() == ["a", "b", "c"]


def test_a_queued_call_times_out_at_its_deadline_and_leaves_the_queue(backstage: Backstage) -> None:
    backstage.dispatch("a")
    backstage.dispatch("b")
    backstage.dispatch("c", deadline_at=5.0)
    backstage.dispatch("d")
    backstage.run(4.9)
    assert not backstage.outcomes()
    backstage.run(5.0)
    (event,) = backstage.session.of(ToolCallTimedOut)
    assert (event.tag, event.at) == (tag("c"), 5.0)
    backstage.ends("a")
    assert backstage.running() == ["a", "b", "d"]


def test_a_call_that_comes_after_its_deadline_does_not_run(backstage: Backstage) -> None:
    backstage.run(10.0)
    backstage.dispatch("a", deadline_at=5.0)
    assert backstage.events() == [("a", "ToolCallTimedOut")]
    assert not backstage.started


def test_a_running_call_is_stopped_at_its_deadline_and_killed_once_after_the_grace_period(backstage: Backstage) -> None:
    backstage.dispatch("a", deadline_at=5.0)
    backstage.run(5.0)
    assert backstage.told == [StopCall(tag("a"))]
    backstage.run(5.0 + TOOL_GRACE_SECONDS)
    assert backstage.told[1:] == [KillCall(tag("a"))]
    backstage.ends("a")
    assert backstage.events()[1:] == [("a", "ToolCallTimedOut")], "whatever the worker has for a result"
    backstage.run(100.0)
    assert len(backstage.told) == 2
    assert len(backstage.events()) == 2


def test_a_worker_that_does_not_answer_to_a_kill_is_not_waited_for(backstage: Backstage) -> None:
    backstage.dispatch("a", deadline_at=5.0)
    backstage.run(5.0 + TOOL_GRACE_SECONDS + ABANDON_SECONDS)
    assert backstage.events()[1:] == [("a", "ToolCallTimedOut")]
    assert TOOL_GRACE_SECONDS + ABANDON_SECONDS < CALL_BACKSTOP_SECONDS, "before its session ends it"
    backstage.dispatch("b")
    assert backstage.running() == ["a"], "and gets no more calls"
    assert backstage.events()[2:] == []
    worker = backstage.worker()
    worker.reports.state(100)
    backstage.run()
    assert backstage.running() == ["a", "b"], "until it says that it takes them"


def test_a_queued_call_is_cancelled_here_a_running_one_at_its_worker(backstage: Backstage) -> None:
    for call_id in "abc":
        backstage.dispatch(call_id)
    backstage.say(CancelTool(tag("c")))
    assert backstage.events()[2:] == [("c", "ToolCallCancelled")]
    backstage.say(CancelTool(tag("a")))
    backstage.say(CancelTool(tag("a")))
    assert backstage.told == [StopCall(tag("a"))]
    backstage.ends("a")
    assert len(backstage.session.of(ToolCallCancelled)) == 2
    backstage.say(CancelTool(tag("nobody's")))


def test_a_session_is_told_when_the_stops_it_sent_have_reached_the_workers(backstage: Backstage) -> None:
    backstage.dispatch("a")
    backstage.ref.tell_control(CancelTool(tag("a")))
    backstage.say(ConfirmStops(tag(""), backstage.session.ref))
    assert backstage.told == [StopCall(tag("a"))]
    assert backstage.session.of(StopsTold) == [StopsTold(tag(""))]


def test_an_unknown_tool_and_a_call_sent_twice(backstage: Backstage) -> None:
    backstage.dispatch("a", "nowhere")
    assert backstage.failures() == [("a", FailureCode.UNKNOWN_TOOL)]
    backstage.dispatch("b")
    backstage.dispatch("b")
    assert backstage.running() == ["b"]


def test_a_second_outcome_is_not_told(backstage: Backstage) -> None:
    backstage.dispatch("a")
    backstage.ends("a")
    backstage.ends("a")
    assert backstage.outcomes() == ["ToolCallCompleted"]


def test_a_call_that_has_ended_does_not_run_again_but_is_answered_when_it_is_sent_again(backstage: Backstage) -> None:
    backstage.dispatch("a")
    backstage.ends("a")
    backstage.dispatch("a")
    assert backstage.running() == ["a"]
    assert backstage.outcomes() == ["ToolCallCompleted"] * 2


def test_another_session_with_the_same_id_gets_calls_of_its_own(backstage: Backstage) -> None:
    backstage.dispatch("a")
    backstage.ends("a")
    backstage.session = Probed(backstage.system, "another session")
    backstage.dispatch("a")
    assert backstage.running() == ["a", "a"]
    backstage.session = Probed(backstage.system, "a third one")
    backstage.dispatch("a")
    assert backstage.failures() == [("a", FailureCode.OVERLOADED)], "while the call of the second one runs"


def _breaks_often(backstage: Backstage) -> None:
    for number in range(FAILURE_BUDGET + 1):
        backstage.dispatch(f"broken {number}")
        backstage.crashes(f"broken {number}")
    backstage.dispatch("a")


def _is_unknown(backstage: Backstage) -> None:
    backstage.say(ReplaceTools("", (write,)))
    backstage.dispatch("a")
    backstage.say(ReplaceTools("", (look, write)))


def _cannot_be_held(backstage: Backstage) -> None:
    run = RunTool(tag("a"), ToolName("look"), "{}", DEADLINE, "effect-a", hold=Hold.READING)
    offered = ToolOffer(look.definition, replace(look.contract, can_be_held=True))
    backstage.say(DispatchCall(run, "", backstage.session.ref, offered=offered, ended=backstage.ended_calls))


def _cannot_be_committed(backstage: Backstage) -> None:
    transaction = dataclasses.replace(look, contract=replace(look.contract, effect=Effect.TRANSACTION))
    backstage.say(ReplaceTools("", (transaction, write)))
    backstage.dispatch("a")
    backstage.say(ReplaceTools("", (look, write)))


def _is_of_another_session(backstage: Backstage) -> None:
    mine, backstage.session = backstage.session, Probed(backstage.system, "another session")
    backstage.dispatch("a")
    backstage.session = mine
    backstage.dispatch("a")
    backstage.ends("a")


def _finds_the_queue_full(backstage: Backstage) -> None:
    for call_id in "bcda":
        backstage.dispatch(call_id)
    for call_id in "bcd":
        backstage.ends(call_id)


@pytest.mark.parametrize(
    "refuse",
    [
        _breaks_often,
        _is_unknown,
        _cannot_be_held,
        _cannot_be_committed,
        _is_of_another_session,
        _finds_the_queue_full,
    ],
    ids=lambda refuse: refuse.__name__.strip("_"),
)
def test_a_call_that_was_refused_does_not_run_when_it_is_sent_again(
    simulated: ActorSystem, refuse: Callable[[Backstage], None]
) -> None:
    """Its session has heard that it failed; nothing would refuse it any more."""
    backstage = Backstage(simulated, max_queued_calls=1)
    refuse(backstage)
    ran = backstage.running()
    backstage.lose("root/dispatcher")
    backstage.dispatch("a")
    assert backstage.running() == ran
    told, again = [event for event in backstage.session.of(ToolCallFailed) if event.tag == tag("a")]
    assert told is again


def test_a_lost_dispatcher_costs_no_call(backstage: Backstage) -> None:
    """What runs goes on where it is, what waits keeps its turn, and what its session sends again does not run twice."""
    for call_id in "abc":
        backstage.dispatch(call_id)
    backstage.lose("root/dispatcher")
    for call_id in "abc":
        backstage.dispatch(call_id)
    assert backstage.running() == ["a", "b"]
    backstage.ends("a")
    backstage.ends("b")
    assert backstage.running() == ["a", "b", "c"]
    backstage.ends("c")
    assert backstage.outcomes() == ["ToolCallCompleted"] * 3


def test_the_timer_of_a_call_outlives_the_dispatcher(backstage: Backstage) -> None:
    backstage.dispatch("a", deadline_at=5.0)
    backstage.lose("root/dispatcher")
    backstage.run(5.0)
    assert backstage.told == [StopCall(tag("a"))]
    backstage.lose("root/dispatcher")
    backstage.run(6.0)
    assert KillCall(tag("a")) in backstage.told


def test_ended_calls_are_remembered_until_one_of_the_next_step_ends(backstage: Backstage) -> None:
    for call_id, step in (("a", 1), ("b", 1), ("c", 2)):
        backstage.dispatch(call_id, step=step)
        backstage.ends(call_id)
        backstage.dispatch("a")
    assert backstage.running() == ["a", "b", "c", "a"]
    backstage.dispatch("c", step=2)
    assert backstage.running() == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerLost(ToolFailure(ToolName("look"), FailureCode.CRASHED, "killed by SIGSEGV")), FailureCode.CRASHED),
        (LookupError("a fault of ours"), FailureCode.INTERNAL_ERROR),
    ],
)
def test_a_lost_worker_costs_its_calls_and_the_queue_goes_on(
    backstage: Backstage, error: Exception, code: FailureCode
) -> None:
    for call_id in "abc":
        backstage.dispatch(call_id)
    backstage.worker().ref.tell_control(error)
    backstage.run()
    assert backstage.failures() == [("a", code), ("b", code)]
    assert backstage.running() == ["a", "b", "c"]
    assert offered(backstage) == ["look", "write"]


def test_lost_pools_leave_unknown_outcomes_and_come_back_when_a_call_needs_them(backstage: Backstage) -> None:
    for call_id in "abc":
        backstage.dispatch(call_id)
    backstage.lose("root/tools")
    assert backstage.failures() == [("a", FailureCode.OUTCOME_UNKNOWN), ("b", FailureCode.OUTCOME_UNKNOWN)]
    backstage.run(1.0)
    assert backstage.running() == ["a", "b", "c"]
    backstage.ends("c")
    assert backstage.outcomes()[-1] == "ToolCallCompleted"


def test_a_call_whose_worker_is_lost_before_it_began_goes_to_another(backstage: Backstage) -> None:
    backstage.begins = False
    backstage.dispatch("a")
    backstage.begins = True
    backstage.worker().ref.tell_control(LookupError("a fault of ours"))
    backstage.run()
    assert backstage.running() == ["a", "a"]
    backstage.ends("a")
    assert backstage.events() == [("a", "ToolCallStarted"), ("a", "ToolCallCompleted")]


def test_a_call_that_no_worker_can_begin_ends_and_does_not_count_against_its_tool(backstage: Backstage) -> None:
    backstage.begins = False
    for call_id in "abcdefgh":
        backstage.dispatch(call_id)
        while backstage.ledger.calls:
            backstage.worker().ref.tell_control(LookupError("a fault of ours"))
            backstage.run()
    assert backstage.failures() == [(call_id, FailureCode.INTERNAL_ERROR) for call_id in "abcdefgh"]
    assert len(backstage.started) == 8 * ledger_module.MAX_GIVEN
    assert offered(backstage) == ["look", "write"]


def test_workers_that_cannot_be_made_cost_the_calls_that_need_them(simulated: ActorSystem) -> None:
    backstage = Backstage(simulated)
    backstage.can_be_made = False
    backstage.dispatch("a")
    assert backstage.failures() == [("a", FailureCode.INTERNAL_ERROR)]
    backstage.can_be_made = True
    backstage.dispatch("b")
    assert backstage.running() == ["b"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Registry, "judge"), (Ledger, "give"), (Ledger, "submit"), (Call, "stop"), (ToolDispatcher, "_supervisor")],
)
def test_a_fault_of_our_own_costs_the_call_it_is_about(
    backstage: Backstage, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str
) -> None:
    whole = getattr(owner, name)

    def fails_once(*given: Any) -> Any:
        monkeypatch.setattr(owner, name, whole)
        raise LookupError("a fault of ours")

    if name != "_supervisor":  # asked for a new worker only
        backstage.dispatch("first")
        backstage.ends("first")
    monkeypatch.setattr(owner, name, fails_once)
    backstage.dispatch("a", deadline_at=5.0)
    backstage.dispatch("b")
    if "a" in backstage.running() and name == "judge":
        backstage.ends("a")
    backstage.run(8.0)
    backstage.ends("b")
    ended = {event.tag.call_id: type(event).__name__ for event in backstage.session.of(ToolCallEnd)}
    assert ended["a"] == ("ToolCallCompleted" if name == "judge" else "ToolCallFailed")
    assert ended["b"] == "ToolCallCompleted"
    assert backstage.ref._cell.restarts == 0
    assert not left_open(backstage.ledger)


def test_a_message_that_it_does_not_take_is_a_dead_letter(backstage: Backstage) -> None:
    backstage.say("hello")
    assert backstage.system.dead_letters.counts() == {DeadLetterReason.REJECTED: 1}


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two tools are called 'look'"):
        Registry((look, look))


# -- withdrawal


def offered(backstage: Backstage) -> list[str]:
    backstage.say(OfferTools(tag(""), backstage.session.ref))
    return [offer.definition.name for offer in backstage.session.of(ToolsOffered)[-1].offers]


def crash_until_withdrawn(backstage: Backstage, names: str = "abcdef") -> None:
    assert len(names) == FAILURE_BUDGET + 1
    for call_id in names:
        backstage.dispatch(call_id)
        backstage.crashes(call_id)


def test_a_tool_over_its_budget_is_withdrawn_put_on_probation_and_restored(backstage: Backstage) -> None:
    assert offered(backstage) == ["look", "write"]
    crash_until_withdrawn(backstage)
    assert offered(backstage) == ["write"], "gone from the next request's schemas"
    assert [type(event) for event in backstage.telemetry.heard] == [ToolWithdrawn]
    backstage.dispatch("g")
    assert backstage.failures()[-1] == ("g", FailureCode.WITHDRAWN)

    backstage.run(backstage.scheduler.now() + WITHDRAWN_SECONDS)
    assert offered(backstage) == ["look", "write"], "on probation"
    backstage.dispatch("h", deadline_at=500.0)
    backstage.ends("h")
    assert backstage.telemetry.heard[-1] == ToolRestored(ToolName("look"), WITHDRAWN_SECONDS)
    assert offered(backstage) == ["look", "write"]


def test_a_failed_probe_withdraws_at_once_for_twice_as_long(backstage: Backstage) -> None:
    crash_until_withdrawn(backstage)
    backstage.run(WITHDRAWN_SECONDS)
    backstage.dispatch("h", deadline_at=500.0)
    backstage.crashes("h")
    backstage.run(WITHDRAWN_SECONDS * 3 - 1)
    assert offered(backstage) == ["write"]
    backstage.run(WITHDRAWN_SECONDS * 3)
    assert offered(backstage) == ["look", "write"]


def test_withdrawal_refuses_what_is_waiting_and_lets_what_runs_end(backstage: Backstage) -> None:
    for call_id in "abcde":
        backstage.dispatch(call_id)
        backstage.crashes(call_id)
    for call_id in "fghi":
        backstage.dispatch(call_id)
    assert backstage.running()[5:] == ["f", "g"]
    backstage.crashes("f")
    assert sorted(backstage.failures()[5:]) == [
        ("f", FailureCode.CRASHED),
        ("h", FailureCode.WITHDRAWN),
        ("i", FailureCode.WITHDRAWN),
    ]
    backstage.ends("g")
    assert backstage.events()[-1] == ("g", "ToolCallCompleted")
    assert backstage.running()[5:] == ["f", "g"]


def test_a_tool_that_holds_too_many_threads_is_withdrawn_until_some_have_returned(backstage: Backstage) -> None:
    def held(count: int) -> list[str]:
        worker.reports.state(100, (ToolName("look"),) * count)
        backstage.run()
        return offered(backstage)

    backstage.dispatch("w", "write")
    worker = backstage.worker()

    assert held(MAX_HELD_THREADS - 1) == ["look", "write"]
    assert held(MAX_HELD_THREADS) == held(MAX_HELD_THREADS + 1) == ["write"]
    backstage.dispatch("a")
    assert backstage.failures() == [("a", FailureCode.WITHDRAWN)]
    assert held(MAX_HELD_THREADS) == ["write"]
    assert held(MAX_HELD_THREADS - 1) == ["look", "write"]
    assert [type(event) for event in backstage.telemetry.heard] == [ToolWithdrawn, ToolRestored]


def test_threads_of_a_lost_worker_are_no_longer_held_against_its_tools(backstage: Backstage) -> None:
    backstage.dispatch("w", "write")
    backstage.worker().reports.state(100, (ToolName("look"),) * MAX_HELD_THREADS)
    backstage.run()
    assert offered(backstage) == ["write"]
    backstage.worker().ref.tell_control(LookupError("a fault of ours"))
    backstage.run()
    assert offered(backstage) == ["look", "write"]


def test_without_a_budget_no_tool_is_withdrawn_for_its_failures(simulated: ActorSystem) -> None:
    backstage = Backstage(simulated, failure_budget=None)
    crash_until_withdrawn(backstage)
    assert offered(backstage) == ["look", "write"]


@pytest.mark.parametrize("code", sorted(set(FailureCode) - {FailureCode.CRASHED, FailureCode.OUTCOME_UNKNOWN}))
def test_failures_that_cost_no_worker_do_not_count(backstage: Backstage, code: FailureCode) -> None:
    for number in range(FAILURE_BUDGET * 3):
        backstage.dispatch(f"c{number}")
        backstage.ends(f"c{number}", ToolFailure(ToolName("look"), code, "x"))
    assert offered(backstage) == ["look", "write"]


# -- offers and approvals


class Owner:
    """An approver that decides when the test says so."""

    def __init__(self) -> None:
        self.asked: list[AskApproval] = []
        self.withdrawn: list[Tag] = []
        self.decide: Decide = lambda _: None

    def ask(
        self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
    ) -> None:
        self.asked.append(question)
        self.decide = decide

    def withdraw(self, tag: Tag) -> None:
        self.withdrawn.append(tag)

    def close(self) -> None:
        """Nothing is held."""


QUESTION = AskApproval(tag("a"), ToolName("write"), "{}", Risk.WRITE)


@pytest.mark.parametrize(("granted", "event"), [(True, ApprovalGranted), (False, ApprovalDenied)])
def test_a_verdict_goes_to_whoever_asked(simulated: ActorSystem, granted: bool, event: type[Any]) -> None:
    owner = Owner()
    backstage = Backstage(simulated, approver=owner)
    backstage.say(SeekApproval(QUESTION, backstage.session.ref))
    assert owner.asked == [QUESTION]
    owner.decide(Verdict(tag("a"), granted, "me", "because"))
    backstage.run()
    (said,) = backstage.session.heard
    assert isinstance(said, event)
    assert said.by == "me"


def test_nobody_to_ask_means_no(backstage: Backstage) -> None:
    backstage.say(SeekApproval(QUESTION, backstage.session.ref))
    (said,) = backstage.session.of(ApprovalDenied)
    assert said.by == "policy"
    assert "no approver" in said.reason


def test_a_withdrawn_question_is_taken_back_and_its_verdict_is_a_dead_letter(simulated: ActorSystem) -> None:
    owner = Owner()
    backstage = Backstage(simulated, approver=owner)
    backstage.say(SeekApproval(QUESTION, backstage.session.ref))
    backstage.say(WithdrawApproval(tag("a")))
    assert owner.withdrawn == [tag("a")]
    owner.decide(Verdict(tag("a"), True, "me"))
    backstage.run()
    assert not backstage.session.heard
    assert simulated.dead_letters.counts() == {DeadLetterReason.REJECTED: 1}


def test_a_question_that_a_dispatcher_before_a_crash_has_put_is_taken_back(simulated: ActorSystem) -> None:
    owner = Owner()
    backstage = Backstage(simulated, approver=owner)
    backstage.say(WithdrawApproval(tag("a")))
    assert owner.withdrawn == [tag("a")]


def test_an_approver_that_cannot_ask_means_no(simulated: ActorSystem) -> None:
    class Broken(Owner):
        def ask(
            self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
        ) -> None:
            raise OSError("the terminal is gone")

    backstage = Backstage(simulated, approver=Broken())
    backstage.say(SeekApproval(QUESTION, backstage.session.ref))
    assert backstage.session.kinds() == ["ApprovalDenied"]
    assert backstage.ref.is_alive()


def test_a_broken_policy_denies(simulated: ActorSystem) -> None:
    class Broken(Policy):
        def decide(self, contract: ToolContract) -> Decision:
            raise LookupError("no such user")

    backstage = Backstage(simulated, policy=Broken())
    backstage.say(OfferTools(tag(""), backstage.session.ref))
    (said,) = backstage.session.of(ToolsOffered)
    assert {offer.decision for offer in said.offers} == {Decision.DENY}


def test_full_telemetry_does_not_cost_the_dispatcher(simulated: ActorSystem) -> None:
    backstage = Backstage(simulated, has_telemetry=False)
    dispatcher = backstage.ref._cell.actor
    assert isinstance(dispatcher, ToolDispatcher)
    backstage.crowded.tell("full")
    dispatcher._observe(ToolWithdrawn(ToolName("look"), 0.0, ToolName("look")))
    backstage.run()
    assert simulated.statistics().refused == 1


class Mute(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def test_errors_whose_texts_raise_cost_no_more_than_others(simulated: ActorSystem) -> None:
    class BrokenPolicy(Policy):
        def decide(self, contract: ToolContract) -> Decision:
            raise Mute

    class Broken(Owner):
        def ask(
            self, question: AskApproval, decide: Decide, asker: Context | None = None, tool: Tool | None = None
        ) -> None:
            raise Mute

        def withdraw(self, tag: Tag) -> None:
            raise Mute

    backstage = Backstage(simulated, approver=Broken(), policy=BrokenPolicy())
    backstage.say(SeekApproval(QUESTION, backstage.session.ref))
    backstage.say(WithdrawApproval(QUESTION.tag))
    backstage.dispatch("a")
    backstage.worker().ref.tell_control(Mute())
    backstage.run()
    assert backstage.failures() == [("a", FailureCode.INTERNAL_ERROR)]
    assert offered(backstage) == ["look", "write"]
    assert backstage.ref._cell.restarts == 0


# -- all of it


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "end", "crash", "cancel", "time", "dispatcher"]), st.integers(0, 9)),
        max_size=60,
    ),
    st.integers(0, 1 << 20),
)
def test_each_call_ends_once_and_no_more_run_than_may(steps: list[tuple[str, int]], seed: int) -> None:
    system = ActorSystem(SimulatedScheduler(seed))
    backstage = Backstage(system)
    sent: set[str] = set()
    for what, number in steps:
        call_id = str(number)
        if what == "send" and call_id not in sent:
            sent.add(call_id)
            backstage.dispatch(call_id, deadline_at=backstage.scheduler.now() + 5.0)
        elif what == "end" and call_id in backstage.running():
            backstage.ends(call_id)
        elif what == "crash" and call_id in backstage.running():
            backstage.crashes(call_id)
        elif what == "cancel":
            backstage.say(CancelTool(tag(call_id)))
        elif what == "time":
            backstage.run(backstage.scheduler.now() + number)
        elif what == "dispatcher" and number < 3:
            backstage.lose("root/dispatcher")
        ended = [event.tag.call_id for event in backstage.session.of(ToolCallEnd)]
        assert len(ended) == len(set(ended))
        assert len(set(backstage.running()) - set(ended)) <= look.contract.concurrency
    backstage.run(backstage.scheduler.now() + 100.0)
    ended = [event.tag.call_id for event in backstage.session.of(ToolCallEnd)]
    assert sorted(ended) == sorted(sent)
    assert not left_open(backstage.ledger)
    dispatcher = backstage.ref._cell.actor
    assert isinstance(dispatcher, ToolDispatcher)
    assert not dispatcher._timers
    assert not backstage.ledger.news
    assert system.statistics().unaccounted == 0
