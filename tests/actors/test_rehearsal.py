"""I1 to I12 under the real actors: session, dispatcher, LLM manager and supervisors, over all interleavings."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.actors.kernel import Actor, ActorSystem, DeadlockError, SimulatedScheduler
from callboard.actors.rehearsal import MORTALS, Faults, Rehearsal, rehearse, seeded_faults
from callboard.protocol.commands import Finish, Outcome, RunTool
from callboard.protocol.content import ToolMessage
from callboard.protocol.events import ToolsLost
from callboard.protocol.history import history_faults
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_CALL_SENDS
from callboard.protocol.testing.invariants import violations
from callboard.protocol.testing.scenario import (
    STANDARD_TOOLS,
    ModelDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    ToolDoes,
)
from callboard.protocol.testing.seeded import scenario as seeded_scenario
from callboard.protocol.testing.strategies import scenarios, seconds
from callboard.protocol.testing.trace import Trace

EXAMPLES = settings().max_examples
DEEP = EXAMPLES > 1_000  # pytest --hypothesis-profile=deep
LOOK = ToolName("look")
IDEMPOTENT = {offer.definition.name for offer in STANDARD_TOOLS if offer.contract.idempotent}


def faults() -> st.SearchStrategy[Faults]:
    strikes = st.lists(st.tuples(seconds(30.0), st.sampled_from(MORTALS)), max_size=3).map(tuple)
    return st.builds(Faults, strikes, st.lists(seconds(20.0), max_size=1).map(tuple))


def played(scenario: Scenario, seed: int = 0, faults: Faults | None = None) -> Rehearsal:
    """A rehearsal that has been played, and found in order."""
    rehearsal = Rehearsal(scenario, seed, faults)
    trace = rehearsal.play()
    assert not list(violations(trace)), trace.story()
    statistics = rehearsal.system.statistics()
    assert statistics.unaccounted == 0, statistics
    assert statistics.queued == 0, "nothing is on its way when nothing more happens"
    kept = rehearsal.conversation.messages
    assert not history_faults(kept), "whatever the request came to, the next one can go on from here (I2)"
    assert kept[: len(scenario.history)] == scenario.history
    assert kept[len(scenario.history) :] in ((), (scenario.user, *trace.session.recorded))
    for tag, runs in rehearsal.runs.items():
        assert runs == 1 or rehearsal.plans.of_call[tag].tool in IDEMPOTENT, f"{tag} ran {runs} times"
    return rehearsal


def results(trace: Trace) -> list[str]:
    return [message.content for message in trace.session.recorded if isinstance(message, ToolMessage)]


def outcome(trace: Trace) -> Outcome:
    finish = trace.entries[-1].value
    finishes = [entry.value for entry in trace.entries if isinstance(entry.value, Finish)]
    assert len(finishes) == 1, finish
    return finishes[0].outcome


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(max_turns=6 if DEEP else 3, max_calls=8 if DEEP else 4), st.integers(0, 1 << 30), faults())
def test_every_invariant_holds_whatever_happens(scenario: Scenario, seed: int, faults: Faults) -> None:
    played(scenario, seed, faults)


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(max_turns=2, max_calls=3), st.data())
def test_hypothesis_may_choose_who_runs_next(scenario: Scenario, data: st.DataObject) -> None:
    rehearsal = Rehearsal(scenario, lambda options: data.draw(st.integers(0, options - 1)))
    assert not list(violations(rehearsal.play()))


@pytest.mark.parametrize("seed", range(60))
def test_seeded_conversations_with_faults(seed: int) -> None:
    played(seeded_scenario(seed), seed, seeded_faults(seed))


def test_the_same_seed_gives_the_same_trace_byte_for_byte_in_another_process() -> None:
    code = (
        "import hashlib;from callboard.actors.rehearsal import rehearse, seeded_faults;"
        "from callboard.protocol.testing.seeded import scenario;"
        "print(hashlib.sha256(b''.join(rehearse(scenario(s), s, seeded_faults(s)).to_bytes() for s in range(25)))"
        ".hexdigest())"
    )
    traces = [rehearse(seeded_scenario(seed), seed, seeded_faults(seed)).to_bytes() for seed in range(25)]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    there = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert there.stdout.strip() == hashlib.sha256(b"".join(traces)).hexdigest()


def test_the_seed_decides_the_order() -> None:
    calls = tuple(PlannedCall(LOOK, f'{{"x":{n}}}', f"c{n}") for n in range(6))
    scenario = Scenario(turns=(PlannedTurn(calls=calls),), tools=STANDARD_TOOLS)
    assert len({rehearse(scenario, seed).to_bytes() for seed in range(8)}) > 1


# -- one fault at a time, by name


def step(*calls: PlannedCall, **more: Any) -> Scenario:
    return Scenario(turns=(PlannedTurn(calls=calls),), tools=STANDARD_TOOLS, **more)


def test_a_lost_llm_manager_is_asked_again() -> None:
    trace = played(step(PlannedCall(LOOK)), faults=Faults(strikes=((0.5, "root/llm_manager"),))).trace
    assert outcome(trace) is Outcome.ANSWERED
    assert "ModelLost" in trace.story()


def test_a_started_call_of_a_lost_pool_has_an_unknown_outcome() -> None:
    faults = Faults(strikes=((1.5, "root/tools/process-short"),))
    rehearsal = played(step(PlannedCall(LOOK, seconds=3.0)), faults=faults)
    (result,) = results(rehearsal.trace)
    assert '"outcome_unknown"' in result
    assert outcome(rehearsal.trace) is Outcome.ANSWERED


def test_a_started_call_of_a_lost_dispatcher_has_an_unknown_outcome() -> None:
    trace = played(step(PlannedCall(LOOK, seconds=3.0), tools_lost_at=(1.5,))).trace
    (result,) = results(trace)
    assert '"outcome_unknown"' in result


def test_a_call_that_had_not_begun_is_sent_again_and_runs_once() -> None:
    rehearsal = played(step(PlannedCall(LOOK, seconds=3.0), tools_lost_at=(1.0625,)))
    assert '"ok":true' in results(rehearsal.trace)[0]
    assert list(rehearsal.runs.values()) == [1]


def test_an_idempotent_call_goes_on_after_its_dispatcher_was_lost() -> None:
    trace = played(step(PlannedCall(ToolName("again"), seconds=3.0), tools_lost_at=(1.5,))).trace
    assert '"ok":true' in results(trace)[0]


def test_a_call_that_no_dispatcher_outlives_fails_and_the_tree_stands() -> None:
    lost = tuple(1.01 + n / 100 for n in range(MAX_CALL_SENDS))
    rehearsal = played(step(PlannedCall(LOOK, seconds=3.0), tools_lost_at=lost))
    trace = rehearsal.trace
    sent = [entry.value for entry in trace.entries if isinstance(entry.value, RunTool)]
    assert len(sent) == MAX_CALL_SENDS
    assert len([entry for entry in trace.entries if isinstance(entry.value, ToolsLost)]) >= MAX_CALL_SENDS
    assert '"crashed"' in results(trace)[0]
    assert "was not run" in results(trace)[0]
    assert outcome(trace) is Outcome.ANSWERED


def test_telemetry_may_die_unnoticed() -> None:
    struck = played(step(PlannedCall(LOOK)), faults=Faults(strikes=((0.5, "root/telemetry"), (1.5, "root/telemetry"))))
    untouched = played(step(PlannedCall(LOOK)))
    assert struck.trace.to_bytes() == untouched.trace.to_bytes()


def test_a_flooded_session_answers_and_the_strangers_are_dead_letters() -> None:
    rehearsal = played(step(PlannedCall(LOOK)), faults=Faults(floods=(1.0, 2.0), session_capacity=4))
    assert outcome(rehearsal.trace) is Outcome.ANSWERED
    assert rehearsal.system.dead_letters.total >= 4


def test_an_approval_that_waits_outlives_its_dispatcher() -> None:
    call = PlannedCall(ToolName("write"), person=PersonDoes.GRANT, person_seconds=4.0)
    trace = played(step(call, tools_lost_at=(2.0,))).trace
    assert '"ok":true' in results(trace)[0]


def test_hanging_tools_and_a_vanished_model_end_in_time() -> None:
    calls = (PlannedCall(LOOK, does=ToolDoes.HANG), PlannedCall(LOOK, '{"x":1}', "d", does=ToolDoes.VANISH))
    scenario = Scenario((PlannedTurn(calls=calls), PlannedTurn(does=ModelDoes.VANISH)), tools=STANDARD_TOOLS)
    trace = played(scenario).trace
    assert outcome(trace) is Outcome.TIMED_OUT
    assert [('"timed_out"' in result) for result in results(trace)] == [True, True]


def test_a_mutual_ask_is_a_deadlock_at_once() -> None:
    simulation = SimulatedScheduler(3)
    system = ActorSystem(simulation)
    errors: list[BaseException] = []

    class Asker(Actor):
        def __init__(self, other: str) -> None:
            self._other = other

        def on_receive(self, message: Any) -> Any:
            try:
                return self.system.ref(self._other).ask("you first", 100.0)
            except DeadlockError as error:
                errors.append(error)
                raise

    one = system.spawn(lambda: Asker("two"), "one", runs_on="thread")
    system.spawn(lambda: Asker("one"), "two", runs_on="thread")
    with pytest.raises(DeadlockError):
        one.ask("go", 200.0)
    assert simulation.now() < 1.0, "it is seen when the circle closes, not when a timeout is over"
    assert errors
    simulation.close()
