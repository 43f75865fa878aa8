"""Virtual time, chosen order, and the same trace for the same seed."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    AskOnLoopError,
    AskTimeout,
    ChildSpec,
    DeadlockError,
    Ref,
    Supervisor,
    children_of,
)
from callboard.actors.testing.simulation import SimulatedScheduler


class Relay(Actor):
    """Asks the next one, in `runs_on="thread"`."""

    def __init__(self, next_name: str | None) -> None:
        self.next_name = next_name

    def on_receive(self, message: Any) -> Any:
        if self.next_name is None:
            return message
        return self.system.ref(self.next_name).ask(message, 5)


class Diary(Actor):
    def __init__(self, diary: list[Any]) -> None:
        self.diary = diary

    def on_receive(self, message: Any) -> None:
        self.diary.append(message)


def spawn_ring(system: ActorSystem, names: str) -> list[Ref]:
    nexts = names[1:] + names[0]
    return [
        system.spawn(lambda after=after: Relay(after), name, runs_on="thread")  # type: ignore[misc]
        for name, after in zip(names, nexts, strict=True)
    ]


def story(seed: int) -> list[str]:
    """A small family with crashes, timers and threads."""
    simulation = SimulatedScheduler(seed)
    system = ActorSystem(simulation)
    specs = [ChildSpec("a", lambda: Relay(None)), ChildSpec("b", lambda: Relay(None), runs_on="thread")]
    root = system.spawn(lambda: Supervisor(specs), "root")
    children = children_of(root, 1)
    relay = system.spawn(lambda: Relay("root/b"), "relay", runs_on="thread")
    for at in range(5):
        children["a"].tell(at)
        relay.tell(at)
        simulation.call_at(at * 0.5, lambda: children["b"].tell("tick"))
    simulation.run_until_idle()
    system.shutdown(5)
    simulation.close()
    return simulation.trace


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert story(7) == story(7)
    assert len({"\n".join(story(seed)) for seed in range(10)}) > 1


def test_the_same_trace_in_another_process_with_another_hash_seed() -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    script += "import test_simulation as t; print('\\n'.join(t.story(7)))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert seen == {"\n".join(story(7)) + "\n"}


@given(st.data())
def test_the_caller_may_choose_and_each_actor_keeps_its_order(data: st.DataObject) -> None:
    simulation = SimulatedScheduler(lambda _, options: data.draw(st.integers(0, len(options) - 1)))
    system = ActorSystem(simulation)
    diaries: list[list[int]] = [[], [], []]
    refs = [system.spawn(lambda diary=diary: Diary(diary), f"d{at}") for at, diary in enumerate(diaries)]  # type: ignore[misc]
    for number in range(5):
        for ref in refs:
            ref.tell(number)
    simulation.run_until_idle()
    assert diaries == [list(range(5))] * 3


def test_time_passes_only_when_nothing_is_ready() -> None:
    simulation = SimulatedScheduler()
    system = ActorSystem(simulation)
    seen: list[Any] = []
    ref = system.spawn(lambda: Diary(seen), "diary")
    simulation.call_at(10.0, lambda: ref.tell(simulation.now()))
    simulation.call_at(3600.0, lambda: ref.tell(simulation.now()))
    cancelled = simulation.call_at(5.0, lambda: ref.tell("cancelled"))
    cancelled.cancel()
    simulation.run_until_idle(until_seconds=60.0)
    assert (seen, simulation.now()) == ([10.0], 60.0)
    simulation.run_until_idle()
    assert seen == [10.0, 3600.0]


def test_a_mutual_ask_is_a_deadlock_at_once() -> None:
    for seed in range(20):
        simulation = SimulatedScheduler(seed)
        first = spawn_ring(ActorSystem(simulation), "abc")[0]
        with pytest.raises(DeadlockError, match=r"^\w asks \w asks \w asks \w$"):
            first.ask("hello", 60)
        assert simulation.now() == 0.0
        simulation.close()


def test_asks_between_simulated_threads_cost_virtual_time_only(simulation: SimulatedScheduler) -> None:
    system = ActorSystem(simulation)
    system.spawn(lambda: Relay(None), "last")
    relay = system.spawn(lambda: Relay("last"), "relay", runs_on="thread")
    assert [relay.ask(number, 1) for number in range(3)] == [0, 1, 2]
    assert simulation.now() == 0.0


def test_an_ask_that_is_not_answered_ends_at_its_virtual_deadline(simulation: SimulatedScheduler) -> None:
    system = ActorSystem(simulation)
    gone: list[Any] = []

    class Caller(Actor):
        def on_receive(self, message: Any) -> None:
            try:
                self.system.ref("stuck").ask(message, 30)
            except AskTimeout as error:
                gone.append((self.now(), str(error)))

    class Stuck(Actor):
        """Is busy with something else for an hour."""

        def on_receive(self, message: Any) -> Any:
            try:
                return self.system.ref("closing").stop(block=True, timeout=3600)
            except AskTimeout:
                return message

    class Closing(Actor):
        def on_stopping(self) -> bool:
            return False

    system.spawn(Closing, "closing")
    system.spawn(Stuck, "stuck", runs_on="thread")
    system.spawn(Caller, "caller", runs_on="thread").tell("hello")
    simulation.run_until_idle()
    assert gone == [(30.0, "stuck did not answer within 30 s")]
    assert simulation.now() == 3600.0
    assert system.statistics().unaccounted == 0


def test_a_loop_actor_may_not_block_here_either(simulation: SimulatedScheduler) -> None:
    system = ActorSystem(simulation)
    system.spawn(lambda: Relay(None), "other")
    asker = system.spawn(lambda: Relay("other"), "asker")
    with pytest.raises(AskOnLoopError):
        asker.ask("hello", 5)


def test_waiting_for_an_answer_that_cannot_come_is_a_deadlock(simulation: SimulatedScheduler) -> None:
    class Late(Actor):
        def on_stopping(self) -> bool:
            return False

    ref = ActorSystem(simulation).spawn(Late, "late")
    with pytest.raises(DeadlockError, match="never came"):
        ref.stop().get()


def test_closing_ends_the_threads_that_wait_for_their_next_message() -> None:
    simulation = SimulatedScheduler(1)
    before = set(threading.enumerate())
    idle = ActorSystem(simulation).spawn(lambda: Relay(None), "idle", runs_on="thread")
    assert idle.ask("word", 5) == "word"
    (thread,) = set(threading.enumerate()) - before
    simulation.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_wait_of_the_test_itself_ends_at_its_virtual_deadline(simulated: ActorSystem) -> None:
    class Unwilling(Actor):
        def on_stopping(self) -> bool:
            return False

    unwilling, began = simulated.spawn(Unwilling, "unwilling"), simulated.now()
    with pytest.raises(AskTimeout):
        unwilling.stop(block=True, timeout=5)
    assert simulated.now() == began + 5
