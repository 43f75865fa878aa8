"""All rules under the real actors: sessions side by side, dispatcher, LLM manager, pools, supervisors, in any order."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.actors.calls.approvals import ApprovalKind
from callboard.actors.journal.journal_records import without_keys
from callboard.actors.kernel import ExitReason
from callboard.actors.kernel.scheduler import Run
from callboard.actors.requests.replies import RuntimeFailure
from callboard.actors.testing.faults import (
    CRASHABLE,
    DOWN_SECONDS,
    JUMP_SECONDS,
    MAX_DEATHS,
    POOLS,
    Crash,
    Death,
    Faults,
    JournalFaults,
    ModelFaults,
    PeopleFaults,
    Remains,
    RequestFate,
    StoreFaults,
    WorkerFate,
    WorkerFaults,
)
from callboard.actors.testing.replay_token import RunToken
from callboard.actors.testing.run_reach import seeded_reach
from callboard.actors.testing.simulated_run import SimulatedRun, check, play, run_of, seeded_scenarios, token_of
from callboard.actors.testing.simulation import label
from callboard.protocol.commands import CallModel, Finish, Outcome
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.events import ModelNoted
from callboard.protocol.ids import RequestId, ToolName
from callboard.protocol.limits import MAX_CALL_SENDS
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.outside import FOREIGN_KINDS
from callboard.protocol.testing.runtimes import simulate
from callboard.protocol.testing.scenario import (
    ASKERS_TOOLS,
    STANDARD_TOOLS,
    ModelDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    ToolDoes,
)
from callboard.protocol.testing.strategies import scenarios, seconds
from callboard.protocol.testing.trace import Trace, Verb

EXAMPLES = settings().max_examples
DEEP = EXAMPLES > 1_000  # pytest --hypothesis-profile=deep
LOOK, AGAIN, WRITE = ToolName("look"), ToolName("again"), ToolName("write")


def faults() -> st.SearchStrategy[Faults]:
    crashes = st.builds(Crash, seconds(30.0), st.lists(st.sampled_from(CRASHABLE), min_size=1, max_size=2).map(tuple))
    workers = st.builds(
        WorkerFaults,
        workers=st.integers(1, 8),
        start_seconds=st.sampled_from((0.0, 0.25, 1.0)),
        fates=st.lists(st.sampled_from(WorkerFate), min_size=1, max_size=4).map(tuple),
        deaths=st.lists(st.tuples(seconds(20.0), st.sampled_from(POOLS)), max_size=2).map(tuple),
    )
    store = st.builds(
        StoreFaults,
        slow=st.lists(st.tuples(seconds(10.0), st.just(30.0), seconds(10.0)), max_size=1).map(tuple),
        refuses=st.lists(st.tuples(seconds(20.0), st.just(30.0)), max_size=1).map(tuple),
    )
    window = st.lists(st.tuples(seconds(20.0), st.just(30.0)), max_size=1).map(tuple)
    commits = st.lists(st.integers(1, 30), max_size=2).map(tuple)
    journal = st.builds(
        JournalFaults,
        commit_seconds=st.sampled_from((0.0, 0.125, 1.0)),
        full=window,
        read_only=window,
        sync_fails=window,
        crashes_before=commits,
        crashes_after=commits,
        remains=st.sampled_from(Remains),
        seed=st.integers(0, 1 << 20),
    )
    return st.builds(
        Faults,
        store=store,
        journal=st.none() | journal,
        deaths=st.lists(st.builds(Death, st.integers(1, 300), st.sampled_from(DOWN_SECONDS)), max_size=MAX_DEATHS).map(
            lambda deaths: tuple(sorted(deaths, key=lambda death: death.after_steps))
        ),
        crashes=st.lists(crashes, max_size=3).map(tuple),
        floods=st.lists(seconds(20.0), max_size=1).map(tuple),
        jumps=st.lists(st.tuples(seconds(20.0), st.sampled_from(JUMP_SECONDS)), max_size=1).map(tuple),
        workers=workers,
        max_queued_calls=st.sampled_from((0, 1, 10_000)),
    )


def played(*scenarios: Scenario, seed: int = 0, faults: Faults | None = None) -> SimulatedRun:
    """A run that has been played, and found in order; of requests without keys, which a death would not end."""
    without = [replace(scenario, options=without_keys(scenario.options)) for scenario in scenarios]
    run = SimulatedRun(without, faults, seed)
    run.play()
    assert not run.problems(), "\n".join([*run.problems(), *(trace.story() for trace in run.traces)])
    return run


def one(*scenarios: Scenario, faults: Faults | None = None) -> Trace:
    """The first trace of a run that was in order."""
    return played(*scenarios, faults=faults).traces[0]


def results(trace: Trace) -> list[str]:
    return [message.content for message in trace.session.recorded if isinstance(message, ToolMessage)]


def outcome(trace: Trace) -> Outcome:
    (finish,) = [entry.value for entry in trace.entries if isinstance(entry.value, Finish)]
    return finish.outcome


def step(*calls: PlannedCall, request_id: str = "r", **more: Any) -> Scenario:
    turns = (PlannedTurn(calls=calls),)
    return Scenario(turns=turns, tools=STANDARD_TOOLS, request_id=RequestId(request_id), **more)


# -- everything at once


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(max_turns=6 if DEEP else 3, max_calls=8 if DEEP else 4), st.integers(0, 1 << 30), faults())
def test_every_rule_holds(scenario: Scenario, seed: int, faults: Faults) -> None:
    played(scenario, seed=seed, faults=faults)


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(max_turns=2, max_calls=3), st.data())
def test_hypothesis_may_choose_who_runs_next(scenario: Scenario, data: st.DataObject) -> None:
    run = SimulatedRun([scenario], schedule=lambda _, options: data.draw(st.integers(0, len(options) - 1)))
    run.play()
    assert not run.problems()


def test_the_seeded_runs_keep_every_rule_and_reach_whatever_there_is() -> None:
    """As the page says, which is written anew where this fails for other numbers."""
    reach = seeded_reach()
    assert not reach.missed(), "what is not reached proves nothing"
    page = Path(__file__).parents[3] / "docs" / "reference" / "reached.rst"
    assert "\n".join(reach.lines()) in page.read_text("utf-8"), f"run: python -m callboard.actors.testing docs {page}"


def test_crashes_that_a_dispatcher_reads_when_it_starts_again_keep_it_down_for_longer() -> None:
    """Three more were in its mailbox: it was down for 9.5 s, and sessions ended its calls rightly."""
    check(token_of(515))


@pytest.mark.parametrize("held_up_seconds", [0.0625, 0.25, 1.0, 31.0])
@pytest.mark.parametrize("crashes", range(1, 6))
def test_a_pause_before_a_start_counts_from_when_the_supervisor_has_read_of_the_crash(
    crashes: int, held_up_seconds: float
) -> None:
    """The dispatcher crashes when a store begins to hold up the loop: its supervisor reads of it behind."""
    times = Crash(0.265625, ("root/dispatcher",)), Crash(0.296875, ("root/dispatcher",) * crashes)
    faults = Faults(crashes=times, store=StoreFaults(slow=((0.0, 100.0, held_up_seconds),)))
    turn = PlannedTurn(calls=(PlannedCall(LOOK, '{"x":0}', "a", seconds=0.25),), seconds=0.25)
    run = played(Scenario(turns=(turn,), tools=STANDARD_TOOLS, request_id=RequestId("r")), faults=faults)
    assert [seconds for _, seconds in run.world.jumps] == [held_up_seconds] * 2


@pytest.mark.parametrize("jump_seconds", [0.375, 0.5, 1.0, 10.0, 65.0])
@pytest.mark.parametrize("schedule_seed", range(5))
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_session_may_hear_that_it_is_asked_again_behind_the_next_request(
    failures: int, schedule_seed: int, jump_seconds: float
) -> None:
    """The clock jumps over the pause when the request has failed: what was due meanwhile is sent as soon as told."""
    turn = PlannedTurn(text="done", seconds=0.25, requests=failures + 1)
    scenario = Scenario(turns=(turn,), tools=STANDARD_TOOLS, request_id=RequestId("r"))
    alone = played(scenario, seed=schedule_seed)
    ended_at = next(entry.at for entry in alone.traces[0].entries if isinstance(entry.value, ModelNoted))
    run = played(scenario, seed=schedule_seed, faults=Faults(jumps=((ended_at, jump_seconds),)))
    assert outcome(run.traces[0]) is Outcome.ANSWERED


@pytest.mark.parametrize("jump_seconds", [0.375, 0.5, 10.0, 65.0, 3_600.0])
@pytest.mark.parametrize("routes", [1, 2, 3])
@pytest.mark.parametrize("fate", RequestFate)
def test_a_manager_decides_by_when_it_hears_of_a_failed_request(
    fate: RequestFate, routes: int, jump_seconds: float
) -> None:
    """The clock jumps when the provider has said its last, and the manager has not read of it; seen in seed 50486."""

    def jumps_between(_: int, options: Sequence[Run]) -> int:
        told = [label(each) for each in options]
        return next((told.index(each) for each in ("model of r", "jump") if each in told), 0)

    faults = Faults(jumps=((0.125, jump_seconds),), models=ModelFaults(routes, (fate,), more=(1,)))
    run = SimulatedRun([Scenario((PlannedTurn("done"),), request_id=RequestId("r"))], faults, jumps_between)
    run.play()
    assert not run.problems()
    assert [seconds for _, seconds in run.world.jumps] == [jump_seconds]


@pytest.mark.parametrize("routes", [2, 3])
@pytest.mark.parametrize("jumped_at", [0.25, 0.5, 1.0, 1.875, 2.5])
def test_a_session_may_hear_that_another_model_is_asked_behind_the_end_of_that(jumped_at: float, routes: int) -> None:
    """The clock jumps over the deadline of calls that wait for a rate limit, which lets one of them through then; seen
    in seed 46919."""

    def manager_first(_: int, options: Sequence[Run]) -> int:
        return next((at for at, each in enumerate(options) if "llm_manager" in label(each)), 0)

    models = ModelFaults(routes, (RequestFate.RATE_LIMITED,), more=(1,))
    scenarios = [Scenario((PlannedTurn("done"),), request_id=RequestId(name)) for name in ("r", "s")]
    run = SimulatedRun(scenarios, Faults(jumps=((jumped_at, 3_600.0),), models=models), manager_first)
    run.play()
    assert not run.problems()
    assert Outcome.FAILED in map(outcome, run.traces)


def test_a_session_that_dies_before_a_loss_is_written_and_never_starts_again_was_told() -> None:
    """The disk was full from then on."""
    check(token_of(737))


def test_the_kit_can_simulate_on_the_real_actors() -> None:
    simulate(play, conversations=20)


def test_the_same_token_gives_the_same_traces_byte_for_byte_in_another_process() -> None:
    code = (
        "import hashlib;from callboard.actors.testing.simulated_run import run_of, token_of;"
        "print(hashlib.sha256(b''.join(t.to_bytes() for s in range(25) for t in run_of(token_of(s)).play()))"
        ".hexdigest())"
    )
    traces = [trace.to_bytes() for seed in range(25) for trace in run_of(token_of(seed)).play()]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert there.stdout.strip() == hashlib.sha256(b"".join(traces)).hexdigest()


def test_the_seed_decides_the_order() -> None:
    scenario = step(*(PlannedCall(LOOK, f'{{"x":{n}}}', f"c{n}") for n in range(6)))
    assert len({play(scenario, seed).to_bytes() for seed in range(8)}) > 1


@pytest.mark.parametrize("schedule", ["uniform", "pct"])
def test_the_deviations_from_fifo_alone_give_the_same_traces(schedule: str) -> None:
    for seed in range(20):
        first = run_of(RunToken(seed, seed, schedule))
        traces = [trace.to_bytes() for trace in first.play()]
        chosen = tuple((deviation.step, deviation.index) for deviation in first.scheduler.deviations)
        again = run_of(RunToken(seed, seed, chosen))
        assert [trace.to_bytes() for trace in again.play()] == traces
        assert again.scheduler.deviations == first.scheduler.deviations


def test_scenarios_of_one_run_differ_in_their_request_and_share_their_tools() -> None:
    with pytest.raises(UsageError, match="different request ids"):
        SimulatedRun([Scenario(), Scenario()])
    with pytest.raises(UsageError, match="the same tools"):
        SimulatedRun([Scenario(), Scenario(request_id=RequestId("s"), tools=STANDARD_TOOLS)])


def test_the_asker_answers_what_was_handed_out_and_the_model_goes_on() -> None:
    mine = ASKERS_TOOLS[0].definition.name
    calls = (PlannedCall(mine, call_id="a"), PlannedCall(LOOK, call_id="b"), PlannedCall(mine, '{"x":1}', "c"))
    run = played(step(*calls, askers_tools=ASKERS_TOOLS))
    assert outcome(run.traces[0]) is Outcome.CALLS_OUTSIDE
    assert results(run.traces[0]) == []
    (answering,) = run.answering.values()
    assert outcome(answering.trace) is Outcome.ANSWERED
    shown = next(e.value.request.messages for e in answering.trace.entries if isinstance(e.value, CallModel))
    told = [message.content for message in shown if isinstance(message, ToolMessage)]
    assert (told[0], told[2]) == ("the asker's a", "the asker's c")
    assert '"of":"r/1/b"' in told[1]


# -- several requests


def crowd(count: int = 4) -> list[Scenario]:
    calls = tuple(PlannedCall(LOOK, f'{{"x":{n}}}', f"c{n}", seconds=2.0) for n in range(4))
    return [step(*calls, request_id=f"r{number}") for number in range(count)]


def test_requests_that_wait_for_the_same_workers_all_end_with_their_own_results() -> None:
    run = played(*crowd(), faults=Faults(workers=WorkerFaults(workers=2)))
    for name, request in run.requests.items():
        assert outcome(request.trace) is Outcome.ANSWERED
        told = results(request.trace)
        assert len(told) == 4
        assert all(f'"of":"{name}/' in result or '"timed_out"' in result for result in told)
    assert any('"timed_out"' in result for trace in run.traces for result in results(trace))


@pytest.mark.parametrize(
    "faults",
    [
        Faults(workers=WorkerFaults(workers=1), max_queued_calls=2),
        Faults(max_queued_calls=1),
    ],
    ids=["pool", "dispatcher"],
)
def test_what_finds_a_queue_full_is_overloaded_at_once(faults: Faults) -> None:
    run = played(*crowd(), faults=faults)
    overloaded = [result for trace in run.traces for result in results(trace) if '"overloaded"' in result]
    assert overloaded
    assert {outcome(trace) for trace in run.traces} == {Outcome.ANSWERED}


def test_a_refusing_store_ends_its_request_with_the_reason_and_touches_no_other() -> None:
    quick, slow = crowd(2)
    slow = step(PlannedCall(LOOK, seconds=4.0), request_id="r1")
    run = played(quick, slow, faults=Faults(store=StoreFaults(refuses=((2.5, 3.5),))))
    refused, other = run.requests.values()
    assert refused.kept == ()
    assert refused.answer is not None
    with pytest.raises(RuntimeFailure, match="No space left on device"):
        refused.answer.future.result()
    alone = played(slow)
    assert other.kept == alone.requests[RequestId("r1")].kept
    assert outcome(other.trace) is Outcome.ANSWERED


def test_a_slow_store_holds_everybody_up_and_nothing_is_lost() -> None:
    run = played(*crowd(), faults=Faults(store=StoreFaults(slow=((0.0, 10.0, 1.0),))))
    assert {outcome(trace) for trace in run.traces} == {Outcome.ANSWERED}
    assert run.scheduler.now() >= 4.0 + 3.0


# -- the clock


@pytest.mark.parametrize("jump", JUMP_SECONDS)
def test_a_jump_makes_what_was_due_meanwhile_due_at_once(jump: float) -> None:
    options = RequestOptions("sim/model", timeout_seconds=120.0)
    trace = one(step(PlannedCall(LOOK, does=ToolDoes.HANG), options=options), faults=Faults(jumps=((2.0, jump),)))
    assert trace.jumps == ((2.0, jump),)
    assert outcome(trace) is (Outcome.TIMED_OUT if jump > 120.0 else Outcome.ANSWERED)
    if jump > 1.0:
        ended = next(entry.at for entry in trace.entries if "TimedOut" in entry.note or "Deadline" in entry.note)
        assert 2.0 + jump <= ended < 2.0 + jump + 1.0


# -- workers


def test_a_call_that_no_worker_can_be_started_for_is_that_calls_failure_only() -> None:
    fates = (WorkerFate.NOT_STARTED,)
    trace = one(step(PlannedCall(LOOK)), faults=Faults(workers=WorkerFaults(fates=fates)))
    assert '"overloaded"' in results(trace)[0]
    assert "ToolsLost" not in trace.story()


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        (WorkerFate.FINE, '"ok":true'),
        (WorkerFate.DIES_BEFORE, '"crashed"'),
        (WorkerFate.DIES_DURING, '"crashed"'),
        (WorkerFate.DIES_AFTER, '"ok":true'),
        (WorkerFate.REPORTS_TWICE, '"ok":true'),
        (WorkerFate.NOT_SHIPPED, '"crashed"'),
    ],
)
@pytest.mark.parametrize("workers", [1, 8])
def test_a_worker_that_dies_costs_its_own_call_at_most(fate: WorkerFate, told: str, workers: int) -> None:
    calls = [PlannedCall(LOOK, f'{{"x":{n}}}', f"c{n}", seconds=0.5) for n in range(3)]
    run = played(step(*calls), faults=Faults(workers=WorkerFaults(workers=workers, fates=(fate,))))
    assert [told in result for result in results(run.traces[0])] == [True] * 3
    assert run.world.runs.total() == (0 if fate in (WorkerFate.DIES_BEFORE, WorkerFate.NOT_SHIPPED) else 3)


@pytest.mark.parametrize("fate", [WorkerFate.FINE, WorkerFate.IGNORES_INTERRUPT, WorkerFate.SLOW_TO_DIE])
def test_a_hanging_call_times_out_however_its_worker_takes_that(fate: WorkerFate) -> None:
    scenario = step(PlannedCall(LOOK, does=ToolDoes.HANG), PlannedCall(LOOK, '{"x":1}', "d"))
    trace = one(scenario, faults=Faults(workers=WorkerFaults(workers=1, fates=(fate,))))
    assert ['"timed_out"' in result for result in results(trace)] == [True, True], "the second one waits behind it"
    assert outcome(trace) is Outcome.ANSWERED


def test_a_worker_that_dies_at_its_time_takes_its_call_with_it() -> None:
    faults = Faults(workers=WorkerFaults(deaths=((2.0, "process-short"),)))
    (result,) = results(one(step(PlannedCall(LOOK, seconds=3.0)), faults=faults))
    assert '"crashed"' in result


# -- events of other requests


@pytest.mark.parametrize("kind", range(2 * FOREIGN_KINDS))
@pytest.mark.parametrize("when", [0.0, 0.25, 1.0, 2.0])
def test_whatever_is_said_of_another_request_changes_nothing(when: float, kind: int) -> None:
    """Before the request begins, too, which it does when a dispatcher has said which tools there are; seen in seed
    20150, where another one began there."""
    scenario = step(PlannedCall(LOOK), foreign=((when, kind),))
    for schedule_seed in range(4):
        assert outcome(played(scenario, seed=schedule_seed).traces[0]) is Outcome.ANSWERED


# -- crashes, by name


def crash(at: float, *actors: str) -> Faults:
    return Faults(crashes=(Crash(at, actors),))


def test_a_lost_llm_manager_is_asked_again() -> None:
    trace = one(step(PlannedCall(LOOK)), faults=crash(0.5, "root/llm_manager"))
    assert outcome(trace) is Outcome.ANSWERED
    assert "ModelLost" in trace.story()


def test_a_started_call_goes_on_when_the_dispatcher_is_lost() -> None:
    run = played(step(PlannedCall(LOOK, seconds=3.0)), faults=crash(1.5, "root/dispatcher"))
    assert '"ok":true' in results(run.traces[0])[0]
    assert list(run.world.runs.values()) == [1]


@pytest.mark.parametrize("actor", ["root/tools/process-short", "root/tools"])
def test_a_started_call_of_a_lost_actor_has_an_unknown_outcome(actor: str) -> None:
    (result,) = results(one(step(PlannedCall(LOOK, seconds=3.0)), faults=crash(1.5, actor)))
    assert '"outcome_unknown"' in result


def test_a_call_that_had_not_begun_is_sent_again_and_runs_once() -> None:
    waiting = Faults(crashes=(Crash(1.5, ("root/dispatcher",)),), workers=WorkerFaults(start_seconds=2.0))
    run = played(step(PlannedCall(LOOK, seconds=1.0)), faults=waiting)
    assert '"ok":true' in results(run.traces[0])[0]
    assert list(run.world.runs.values()) == [1]


def test_a_call_that_may_be_repeated_goes_on_after_its_dispatcher_was_lost() -> None:
    trace = one(step(PlannedCall(AGAIN, seconds=3.0), tools_lost_at=(1.5,)))
    assert '"ok":true' in results(trace)[0]


def test_a_call_that_no_dispatcher_survives_fails_and_the_others_go_on() -> None:
    lost = tuple(1.01 + n / 100 for n in range(MAX_CALL_SENDS))
    trace = one(step(PlannedCall(LOOK), tools_lost_at=lost), faults=Faults(workers=WorkerFaults(start_seconds=3.0)))
    assert not [entry for entry in trace.entries if entry.verb is Verb.RAN]
    assert '"internal_error"' in results(trace)[0]
    assert f"each of {MAX_CALL_SENDS} dispatchers" in results(trace)[0]
    assert outcome(trace) is Outcome.ANSWERED


def test_a_question_that_no_dispatcher_survives_is_a_no_at_once() -> None:
    lost = tuple(1.01 + n / 100 for n in range(MAX_CALL_SENDS))
    trace = one(step(PlannedCall(WRITE, person=PersonDoes.IGNORE), tools_lost_at=lost))
    assert f"each of {MAX_CALL_SENDS} dispatchers" in results(trace)[0]
    assert outcome(trace) is Outcome.ANSWERED
    assert trace.ended_at < 60.0


@pytest.mark.parametrize("schedule_seed", range(3))
@pytest.mark.parametrize("person", [PersonDoes.GRANT, PersonDoes.DENY])
@pytest.mark.parametrize("person_seconds", [0.0625, 0.125, 0.1875, 0.25, 0.3125])
def test_a_person_who_answers_while_no_dispatcher_is_left_may_be_asked_once_more(
    person_seconds: float, person: PersonDoes, schedule_seed: int
) -> None:
    """The next one reads of the question, of the answer, and that it is withdrawn, in one go; seen in seed 20238."""
    lost = tuple(1.01 + n / 100 for n in range(MAX_CALL_SENDS))
    call = PlannedCall(WRITE, person=person, person_seconds=person_seconds)
    run = played(step(call, tools_lost_at=lost), seed=schedule_seed)
    assert f"each of {MAX_CALL_SENDS} dispatchers" in results(run.traces[0])[0]
    assert outcome(run.traces[0]) is Outcome.ANSWERED


@pytest.mark.parametrize("kind", [ApprovalKind.REQUEST, ApprovalKind.ALWAYS])
@pytest.mark.parametrize("arguments", ['{"x":1}', '{ "x": 1 }', '{"x":1.0}'])
def test_an_answer_for_the_request_counts_though_it_came_too_late_for_its_own_call(
    arguments: str, kind: ApprovalKind
) -> None:
    """At the very time at which the first question was to be answered; seen in seed 65728."""

    first = PlannedTurn(calls=(PlannedCall(WRITE, '{"x":1}', "a", person_seconds=5.0),))
    second = PlannedTurn(calls=(PlannedCall(WRITE, arguments, "b", person=PersonDoes.IGNORE),))
    options = RequestOptions("sim/model", approval_timeout_seconds=5.0)
    scenario = Scenario((first, second), tools=STANDARD_TOOLS, request_id=RequestId("r"), options=options)
    told = []
    for schedule_seed in range(6):
        run = played(scenario, seed=schedule_seed, faults=Faults(people=PeopleFaults((kind,))))
        told.append(results(run.traces[0]))
    counted = [second for first, second in told if '"denied"' in first]
    assert len(counted) > 2
    assert all(('"ok":true' in each) is (arguments != '{"x":1.0}') for each in counted), "an integer is no other number"


def gives_up(at: float, failures: int, journal: JournalFaults) -> Faults:
    """The root bears nine failures within ten seconds."""
    actors = (("root/telemetry", "root/llm_manager") * 5)[:failures]
    return Faults(crashes=(Crash(at, actors),), escalates=True, journal=journal)


@pytest.mark.parametrize(
    ("commit_seconds", "cancel_at"), [(0.5, 1.25), (1.0, 1.3125), (1.0, 1.375), (1.0, 1.4375), (1.0, 1.5)]
)
def test_what_is_durable_when_the_tree_gives_up_begins_no_work_and_is_shown_without(
    commit_seconds: float, cancel_at: float
) -> None:
    """A turn asks for calls, and its user leaves: both wait for the journal then; seen in seed 50687."""
    turn = PlannedTurn(calls=(PlannedCall(WRITE), PlannedCall(LOOK, call_id="b")), seconds=0.25)
    scenario = Scenario((turn,), tools=STANDARD_TOOLS, request_id=RequestId("r"), cancel_at=cancel_at)
    outcomes = set()
    for sixteenths in range(12, 24):
        run = played(scenario, faults=gives_up(sixteenths / 16, 10, JournalFaults(commit_seconds)))
        assert run.world.earlier
        outcomes.add(outcome(run.traces[0]))
    assert Outcome.CANCELLED in outcomes


@pytest.mark.parametrize(
    ("commit_seconds", "commit", "at"),
    [(0.0, 5, 0.0), (0.125, 4, 0.1875), (0.25, 3, 0.3125), (0.5, 3, 0.5625), (1.0, 3, 1.0625)],
)
def test_a_session_that_waits_for_a_journal_that_is_gone_is_killed_with_its_tree(
    commit_seconds: float, commit: int, at: float
) -> None:
    """It is the journal that fails once too often, when its commit is durable; seen in seed 53362."""
    calls = (PlannedCall(WRITE), PlannedCall(LOOK, call_id="b"))
    scenario = Scenario((PlannedTurn(calls=calls, seconds=0.25),), tools=STANDARD_TOOLS, request_id=RequestId("r"))
    journal = JournalFaults(commit_seconds, crashes_after=(commit,))
    (request,) = played(scenario, faults=gives_up(at, 9 if commit_seconds else 10, journal)).requests.values()
    assert request.lost is not None
    assert request.lost.reason is ExitReason.KILLED


@pytest.mark.parametrize("seed", [279, 20_116, 20_403, 20_417, 20_593])
def test_a_tree_may_give_up_before_anybody_has_read_that_a_request_began(seed: int) -> None:
    """All crashes of these runs are due when the clock jumps at their very beginning."""
    token = token_of(seed)
    faults = run_of(token).faults
    faults = replace(faults, jumps=(*faults.jumps, (0.0, 65.0)))
    run = SimulatedRun(seeded_scenarios(token.seed, token.fault_seed), faults, token.make_schedule())
    run.play()
    assert not run.problems()
    assert run.world.earlier or run.world.why_ended


def test_telemetry_may_crash_unnoticed() -> None:
    crashes = Faults(crashes=(Crash(0.5, ("root/telemetry",)), Crash(1.5, ("root/telemetry",))))
    assert one(step(PlannedCall(LOOK)), faults=crashes).to_bytes() == one(step(PlannedCall(LOOK))).to_bytes()


def test_everything_that_may_crash_crashes_at_once_and_the_request_is_answered() -> None:
    """Where the sessions crash too, its asker hears that it was lost."""
    sessions = "root/sessions"
    others = tuple(name for name in CRASHABLE if not name.startswith("root/tools/") and name != sessions)
    scenario = step(PlannedCall(LOOK, seconds=3.0))
    assert outcome(one(scenario, faults=crash(1.5, *others))) is Outcome.ANSWERED
    (lost,) = played(scenario, faults=crash(1.5, *others, sessions)).requests.values()
    assert lost.answer is not None
    with pytest.raises(RuntimeFailure, match="session was lost"):
        lost.answer.future.result()


def test_a_crash_more_than_a_supervisor_bears_is_left_out() -> None:
    run = played(step(PlannedCall(LOOK, seconds=3.0)), faults=crash(1.5, *(["root/telemetry"] * 20)))
    assert len(run.world.happened) < 20


def test_a_flooded_session_answers_and_the_strangers_are_dead_letters() -> None:
    run = played(step(PlannedCall(LOOK)), faults=Faults(floods=(1.0, 2.0), session_capacity=4))
    assert outcome(run.traces[0]) is Outcome.ANSWERED
    assert sum(run.system.dead_letters.counts().values()) >= 4


def test_an_approval_that_waits_survives_its_dispatcher() -> None:
    call = PlannedCall(WRITE, person=PersonDoes.GRANT, person_seconds=4.0)
    assert '"ok":true' in results(one(step(call, tools_lost_at=(2.0,))))[0]


def test_hanging_tools_and_a_vanished_model_end_in_time() -> None:
    calls = (PlannedCall(LOOK, does=ToolDoes.HANG), PlannedCall(LOOK, '{"x":1}', "d", does=ToolDoes.VANISH))
    trace = one(Scenario((PlannedTurn(calls=calls), PlannedTurn(does=ModelDoes.VANISH)), tools=STANDARD_TOOLS))
    assert outcome(trace) is Outcome.FAILED, "the model call has a deadline of its own, before that of the request"
    assert ['"timed_out"' in result for result in results(trace)] == [True, True]


# -- the process dies


JOURNAL = JournalFaults()


def dies(*after_steps: int, journal: JournalFaults = JOURNAL, down_seconds: float = 0.0) -> Faults:
    return Faults(journal=journal, deaths=tuple(Death(steps, down_seconds) for steps in after_steps))


def lengths(scenario: Scenario, journal: JournalFaults = JOURNAL) -> int:
    """How many steps it takes when nothing happens to it."""
    return played(scenario, faults=Faults(journal=journal)).scheduler.steps


@pytest.mark.parametrize("journal", [JOURNAL, JournalFaults(0.125, remains=Remains.SCATTERED)], ids=["quick", "slow"])
def test_it_goes_on_wherever_the_process_dies_and_once_never_runs_twice(journal: JournalFaults) -> None:
    calls = (PlannedCall(LOOK, '{"x":0}', "a"), PlannedCall(AGAIN, '{"x":1}', "b"), PlannedCall(WRITE, "{}", "c"))
    scenario = step(*calls)
    ran_again = 0
    for steps in range(1, lengths(scenario, journal), 1 if DEEP else 5):
        run = played(scenario, faults=dies(steps, journal=journal))
        assert outcome(run.traces[0]) is Outcome.ANSWERED
        runs = {tag.call_id: count for tag, count in run.world.runs.items()}
        assert max(runs.get("a", 0), runs.get("c", 0)) <= 1
        ran_again += runs.get("b", 0) == 2
    assert ran_again, "a tool whose calls may be repeated is run again when it had begun"


def test_a_call_that_had_begun_when_the_process_died_has_an_unknown_outcome() -> None:
    scenario = step(PlannedCall(LOOK, seconds=5.0))
    for steps in range(lengths(scenario)):
        run = SimulatedRun([scenario], dies(steps))
        run.play()
        ran = next((entry.at for entry in run.traces[0].entries if entry.verb is Verb.RAN), None)
        if ran is not None and run.world.jumps and ran < run.world.jumps[0][0] < ran + 5.0:
            (result,) = results(run.traces[0])
            assert '"outcome_unknown"' in result
            return
    raise AssertionError("the process never died while the call ran")


def test_a_request_of_which_nothing_was_written_is_asked_again_by_its_asker() -> None:
    run = played(step(PlannedCall(LOOK)), faults=dies(1, journal=JournalFaults(1.0)))
    assert outcome(run.traces[0]) is Outcome.ANSWERED
    assert not any(entry.verb is Verb.RESUMED for entry in run.traces[0].entries)


def test_requests_side_by_side_survive_three_deaths() -> None:
    run = played(*crowd(), faults=dies(60, 120, 180, journal=JournalFaults(0.125), down_seconds=1.0))
    assert len(run.world.earlier) == 3
    assert {outcome(trace) for trace in run.traces} <= {Outcome.ANSWERED, Outcome.FAILED}
    assert any(entry.verb is Verb.RESUMED for trace in run.traces for entry in trace.entries)


def test_a_result_from_outside_comes_after_the_process_has_died() -> None:
    call = PlannedCall(LOOK, does=ToolDoes.DEFER, seconds=1.0, outside_seconds=20.0)
    scenario = step(call)
    for steps in range(10, lengths(scenario)):
        run = played(scenario, faults=dies(steps))
        if run.world.jumps and 3.0 < run.world.jumps[0][0] < 20.0:
            assert '"ok":true' in results(run.traces[0])[0]
            return
    raise AssertionError("the process never died while the call waited")


def test_without_a_journal_no_process_dies() -> None:
    run = played(step(PlannedCall(LOOK)), faults=Faults(deaths=(Death(10),)))
    assert not run.world.earlier
