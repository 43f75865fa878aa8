"""The dispatcher in virtual time: each call gets its turn and one outcome, whatever becomes of its pool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.probes import Probe, Probed

from callboard.actors.calls import dispatcher as under_test
from callboard.actors.calls.approvals import Approver, Decide, NobodyToAsk, Verdict
from callboard.actors.calls.dispatcher import (
    MAX_QUEUED_CALLS,
    DispatchCall,
    OfferTools,
    SeekApproval,
    ToolDispatcher,
    ToolRestored,
    ToolsOffered,
    ToolWithdrawn,
)
from callboard.actors.calls.tool_health import FAILURE_BUDGET, MAX_HELD_THREADS, WITHDRAWN_SECONDS
from callboard.actors.kernel import ActorSystem, DeadLetterReason, SimulatedScheduler
from callboard.actors.tools import Tool, tool
from callboard.actors.workers.pool import StartCall, StopCall, ThreadsHeld
from callboard.protocol.commands import AskApproval, CancelTool, RunTool, WithdrawApproval
from callboard.protocol.errors import UsageError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import Decision, FailureCode, Isolation, Latency, Policy, Risk, ToolContract, ToolFailure

DEADLINE = 30.0


@tool(isolation="thread", concurrency=2)
def look(x: int = 0) -> int:
    return x


@tool(isolation="thread", latency="long", risk="write")
def write(x: int = 0) -> int:
    return x


def tag(call_id: str, request_id: str = "r") -> Tag:
    return Tag(RequestId(request_id), MessageId("m"), 1, CallId(call_id))


class Backstage:
    """A dispatcher with played pools: `pool` hears StartCall and StopCall, `session` the events."""

    def __init__(
        self,
        system: ActorSystem,
        tools: tuple[Tool[..., Any], ...] = (look, write),
        approver: Approver | None = None,
        policy: Policy | None = None,
        failure_budget: int | None = FAILURE_BUDGET,
        max_queued_calls: int = MAX_QUEUED_CALLS,
    ) -> None:
        self.system = system
        self.scheduler = system.scheduler
        self.session = Probed(system, "session")
        self.telemetry = Probed(system, "telemetry")
        self.pool = Probed(system, "pool", self._in_pool)
        pools = {(isolation, latency): self.pool.ref for isolation in Isolation for latency in Latency}
        self.ref = system.spawn(
            lambda: ToolDispatcher(
                tools,
                pools,
                approver or NobodyToAsk(),
                policy or Policy(),
                self.telemetry.ref,
                failure_budget=failure_budget,
                max_queued_calls=max_queued_calls,
            ),
            "dispatcher",
        )
        self.run()

    def _in_pool(self, probe: Probe, message: Any) -> None:
        if message == "crash":
            raise RuntimeError("the pool is lost")

    def run(self, until_seconds: float | None = None) -> None:
        assert isinstance(self.scheduler, SimulatedScheduler)
        self.scheduler.run_until_idle(self.scheduler.now() if until_seconds is None else until_seconds)

    def dispatch(self, call_id: str, name: str = "look", deadline_at: float = DEADLINE) -> None:
        run = RunTool(tag(call_id), ToolName(name), "{}", deadline_at, f"effect-{call_id}")
        self.ref.tell_control(DispatchCall(run, "the user's words", self.session.ref))
        self.run()

    def say(self, event: Any) -> None:
        self.ref.tell_control(event)
        self.run()

    def running(self) -> list[str]:
        return [start.run.tag.call_id for start in self.pool.of(StartCall)]

    def failures(self) -> list[tuple[str, FailureCode]]:
        return [(event.tag.call_id, event.failure.code) for event in self.session.of(ToolCallFailed)]


@pytest.fixture
def backstage(simulated: ActorSystem) -> Backstage:
    return Backstage(simulated)


def completed(call_id: str) -> ToolCallCompleted:
    return ToolCallCompleted(tag(call_id), 1.0, '"x"')


def crashed(call_id: str) -> ToolCallFailed:
    return ToolCallFailed(tag(call_id), 1.0, ToolFailure(ToolName("look"), FailureCode.CRASHED, "gone"))


def test_a_call_goes_to_its_pool_and_its_events_to_its_session(backstage: Backstage) -> None:
    backstage.dispatch("a")
    (start,) = backstage.pool.of(StartCall)
    assert start.tool is look
    assert start.context.effect_id == "effect-a"
    assert start.context.user_text == "the user's words"
    backstage.say(ToolCallStarted(tag("a"), 0.5))
    backstage.say(completed("a"))
    assert backstage.session.kinds() == ["ToolCallStarted", "ToolCallCompleted"]


def test_calls_beyond_the_tools_concurrency_wait_their_turn_in_order(backstage: Backstage) -> None:
    for call_id in "abcd":
        backstage.dispatch(call_id)
    assert backstage.running() == ["a", "b"]
    backstage.say(completed("b"))
    assert backstage.running() == ["a", "b", "c"]
    backstage.say(completed("a"))
    assert backstage.running() == ["a", "b", "c", "d"]


def test_another_tool_does_not_wait_for_a_full_one(backstage: Backstage) -> None:
    for call_id in "abc":
        backstage.dispatch(call_id)
    backstage.dispatch("w", "write")
    assert backstage.running() == ["a", "b", "w"]


def test_a_full_queue_refuses_as_overloaded(simulated: ActorSystem) -> None:
    backstage = Backstage(simulated, max_queued_calls=1)
    for call_id in "abcd":
        backstage.dispatch(call_id)
    assert backstage.failures() == [("d", FailureCode.OVERLOADED)]
    backstage.say(completed("a"))
    assert backstage.running() == ["a", "b", "c"]


def test_a_queued_call_times_out_at_its_deadline_and_leaves_the_queue(backstage: Backstage) -> None:
    backstage.dispatch("a")
    backstage.dispatch("b")
    backstage.dispatch("c", deadline_at=5.0)
    backstage.dispatch("d")
    backstage.run(4.9)
    assert not backstage.session.heard
    backstage.run(5.0)
    (event,) = backstage.session.heard
    assert isinstance(event, ToolCallTimedOut)
    assert (event.tag, event.at) == (tag("c"), 5.0)
    backstage.say(completed("a"))
    assert backstage.running() == ["a", "b", "d"]


def test_a_running_call_is_left_to_its_pool_at_its_deadline(backstage: Backstage) -> None:
    backstage.dispatch("a", deadline_at=5.0)
    backstage.run(20.0)
    assert not backstage.session.heard


def test_a_queued_call_is_cancelled_here_a_running_one_in_its_pool(backstage: Backstage) -> None:
    for call_id in "abc":
        backstage.dispatch(call_id)
    backstage.say(CancelTool(tag("c")))
    assert [type(event) for event in backstage.session.heard] == [ToolCallCancelled]
    backstage.say(CancelTool(tag("a")))
    assert backstage.pool.of(StopCall) == [StopCall(tag("a"))]
    backstage.say(ToolCallCancelled(tag("a"), 1.0))
    assert len(backstage.session.of(ToolCallCancelled)) == 2
    backstage.say(CancelTool(tag("nobody's")))


def test_an_unknown_tool_and_a_call_sent_twice(backstage: Backstage) -> None:
    backstage.dispatch("a", "nowhere")
    assert backstage.failures() == [("a", FailureCode.UNKNOWN_TOOL)]
    backstage.dispatch("b")
    backstage.dispatch("b")
    assert backstage.running() == ["b"]


def test_a_second_outcome_is_a_dead_letter(backstage: Backstage) -> None:
    backstage.dispatch("a")
    backstage.say(completed("a"))
    backstage.say(completed("a"))
    assert backstage.session.kinds() == ["ToolCallCompleted"]
    assert backstage.system.dead_letters.counts() == {DeadLetterReason.REJECTED: 1}


def test_a_call_that_has_ended_does_not_run_again_when_it_is_sent_again(backstage: Backstage) -> None:
    backstage.dispatch("a")
    backstage.say(completed("a"))
    backstage.dispatch("a")
    assert backstage.running() == ["a"]


def test_an_outcome_for_a_former_incarnation_is_told_when_the_call_is_sent_again(backstage: Backstage) -> None:
    """The dispatcher crashed with the call's start and outcome in its mailbox; its session took it for not begun."""
    backstage.say(ToolCallStarted(tag("a"), 0.5))
    backstage.say(completed("a"))
    assert not backstage.session.heard
    backstage.dispatch("a")
    assert backstage.running() == [], "it must not run twice"
    assert backstage.session.heard == [completed("a")]
    backstage.dispatch("a")
    assert len(backstage.session.heard) == 1


def test_a_call_that_began_for_a_former_incarnation_must_not_begin_again(backstage: Backstage) -> None:
    """The dispatcher crashed with the call's start in its mailbox; its session took it for not begun."""
    started = ToolCallStarted(tag("a"), 0.5)
    backstage.say(started)
    backstage.dispatch("a")
    (start,) = backstage.pool.of(StartCall)
    assert start.has_begun
    assert backstage.session.heard == [started]
    backstage.dispatch("b")
    assert not backstage.pool.of(StartCall)[1].has_begun


def test_settled_calls_are_remembered_within_a_bound(backstage: Backstage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_SETTLED_CALLS", 2)
    for call_id in "abc":
        backstage.dispatch(call_id)
        backstage.say(completed(call_id))
    backstage.dispatch("a")
    backstage.dispatch("c")
    assert backstage.running() == ["a", "b", "c", "a"]


def test_a_lost_pool_leaves_unknown_outcomes_and_the_queue_goes_on(backstage: Backstage) -> None:
    for call_id in "abc":
        backstage.dispatch(call_id)
    backstage.pool.ref.tell_control("crash")
    backstage.run()
    assert backstage.failures()[:2] == [("a", FailureCode.OUTCOME_UNKNOWN), ("b", FailureCode.OUTCOME_UNKNOWN)]


def test_a_message_nobody_understands_is_named() -> None:
    with pytest.raises(UsageError, match="does not understand str"):
        ToolDispatcher((), {}, NobodyToAsk(), Policy(), None).on_receive("hello")  # type: ignore[arg-type]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two tools are called 'look'"):
        ToolDispatcher((look, look), {}, NobodyToAsk(), Policy(), None)  # type: ignore[arg-type]


# -- withdrawal


def offered(backstage: Backstage) -> list[str]:
    backstage.say(OfferTools(tag(""), backstage.session.ref))
    return [offer.definition.name for offer in backstage.session.of(ToolsOffered)[-1].offers]


def crash_until_withdrawn(backstage: Backstage, names: str = "abcdef") -> None:
    assert len(names) == FAILURE_BUDGET + 1
    for call_id in names:
        backstage.dispatch(call_id)
        backstage.say(crashed(call_id))


def test_a_tool_over_its_budget_is_withdrawn_put_on_probation_and_restored(backstage: Backstage) -> None:
    assert offered(backstage) == ["look", "write"]
    crash_until_withdrawn(backstage)
    assert offered(backstage) == ["write"], "gone from the next request's schemas"
    assert [type(event) for event in backstage.telemetry.heard] == [ToolWithdrawn]
    backstage.dispatch("g")
    assert backstage.failures()[-1] == ("g", FailureCode.WITHDRAWN)

    backstage.run(backstage.scheduler.now() + WITHDRAWN_SECONDS)
    assert offered(backstage) == ["look", "write"], "on probation"
    backstage.dispatch("h")
    backstage.say(completed("h"))
    assert backstage.telemetry.heard[-1] == ToolRestored(ToolName("look"), WITHDRAWN_SECONDS)
    assert offered(backstage) == ["look", "write"]


def test_a_failed_probe_withdraws_at_once_for_twice_as_long(backstage: Backstage) -> None:
    crash_until_withdrawn(backstage)
    backstage.run(WITHDRAWN_SECONDS)
    backstage.dispatch("h", deadline_at=500.0)
    backstage.say(crashed("h"))
    backstage.run(WITHDRAWN_SECONDS * 3 - 1)
    assert offered(backstage) == ["write"]
    backstage.run(WITHDRAWN_SECONDS * 3)
    assert offered(backstage) == ["look", "write"]


def test_withdrawal_refuses_what_is_waiting_and_lets_what_runs_end(backstage: Backstage) -> None:
    for call_id in "abcde":
        backstage.dispatch(call_id)
        backstage.say(crashed(call_id))
    for call_id in "fghi":
        backstage.dispatch(call_id)
    assert backstage.running()[5:] == ["f", "g"]
    backstage.say(crashed("f"))
    assert sorted(backstage.failures()[5:]) == [
        ("f", FailureCode.CRASHED),
        ("h", FailureCode.WITHDRAWN),
        ("i", FailureCode.WITHDRAWN),
    ]
    backstage.say(completed("g"))
    assert backstage.session.heard[-1] == completed("g")
    assert backstage.running()[5:] == ["f", "g"]


def test_a_tool_that_holds_too_many_threads_is_withdrawn_until_some_have_returned(backstage: Backstage) -> None:
    def held(count: int) -> list[str]:
        backstage.say(ThreadsHeld(ToolName("look"), count))
        return offered(backstage)

    assert held(MAX_HELD_THREADS - 1) == ["look", "write"]
    assert held(MAX_HELD_THREADS) == held(MAX_HELD_THREADS + 1) == ["write"]
    backstage.dispatch("a")
    assert backstage.failures() == [("a", FailureCode.WITHDRAWN)]
    assert held(MAX_HELD_THREADS) == ["write"]
    assert held(MAX_HELD_THREADS - 1) == ["look", "write"]
    assert [type(event) for event in backstage.telemetry.heard] == [ToolWithdrawn, ToolRestored]


def test_threads_of_a_lost_pool_are_no_longer_held_against_its_tools(backstage: Backstage) -> None:
    backstage.say(ThreadsHeld(ToolName("look"), MAX_HELD_THREADS))
    backstage.pool.ref.tell("crash")
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
        backstage.say(ToolCallFailed(tag(f"c{number}"), 1.0, ToolFailure(ToolName("look"), code, "x")))
    assert offered(backstage) == ["look", "write"]


# -- offers and approvals


class Owner:
    """An approver that decides when the test says so."""

    def __init__(self) -> None:
        self.asked: list[AskApproval] = []
        self.withdrawn: list[Tag] = []
        self.decide: Decide = lambda _: None

    def ask(self, question: AskApproval, decide: Decide) -> None:
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
    backstage.say(WithdrawApproval(tag("a")))
    assert owner.withdrawn == [tag("a")]
    owner.decide(Verdict(tag("a"), True, "me"))
    backstage.run()
    assert not backstage.session.heard
    assert simulated.dead_letters.counts() == {DeadLetterReason.REJECTED: 1}


def test_an_approver_that_cannot_ask_means_no(simulated: ActorSystem) -> None:
    class Broken(Owner):
        def ask(self, question: AskApproval, decide: Decide) -> None:
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
    backstage = Backstage(simulated)
    crowded = simulated.spawn(lambda: Probe([]), "crowded", capacity=1)
    dispatcher = ToolDispatcher((look,), {}, NobodyToAsk(), Policy(), crowded)
    crowded.tell("full")
    dispatcher._observe(ToolWithdrawn(ToolName("look"), 0.0))
    backstage.run()
    assert simulated.statistics().refused == 1


# -- all of it


@given(
    st.lists(st.tuples(st.sampled_from(["send", "end", "crash", "cancel", "time"]), st.integers(0, 9)), max_size=60),
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
        elif what == "end":
            backstage.say(completed(call_id))
        elif what == "crash":
            backstage.say(crashed(call_id))
        elif what == "cancel":
            backstage.say(CancelTool(tag(call_id)))
        elif what == "time":
            backstage.run(backstage.scheduler.now() + number)
        ended = [event.tag.call_id for event in backstage.session.heard]
        assert len(ended) == len(set(ended))
        assert len(set(backstage.running()) - set(ended)) <= look.contract.concurrency
    for call_id in set(backstage.running()):
        backstage.say(completed(call_id))
    backstage.run(backstage.scheduler.now() + 100.0)
    for call_id in set(backstage.running()):
        backstage.say(completed(call_id))
    assert {event.tag.call_id for event in backstage.session.heard} == sent
    assert system.statistics().unaccounted == 0
