"""I9: at rest sent = handled + dead-lettered + queued, whatever happened; each ask is answered, each monitor fires.

A storm of starts, kills, floods and stops, in virtual time (any order of events) and for a moment in reality.
"""

import random
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.kernel import (
    Actor,
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    Down,
    LoopScheduler,
    MailboxFull,
    NameTaken,
    Ref,
    Restart,
    Strategy,
    Supervisor,
    start_child,
    stop_child,
)
from callboard.actors.kernel.reply import Reply
from callboard.actors.kernel.system import RunsOn
from callboard.actors.testing.simulation import SimulatedScheduler

CAPACITY = 4
SHUTDOWN_SECONDS = 0.5
RUNS_ON: tuple[RunsOn, ...] = ("loop", "thread", "loop")


class Victim(Actor):
    """Crashes, leaves, refuses to stop or sends on, as told."""

    obedient = True

    def on_receive(self, message: Any) -> Any:
        if message == "crash":
            raise SystemExit("told to")
        if message == "leave":
            self.stop()
        if message == "resist":
            self.obedient = False
        if message == "later":
            self.tell_after(0.001, "timer")
        return message

    def on_stopping(self) -> bool:
        return self.obedient


class Storm:
    """Does random things to a family of actors, and keeps the books."""

    def __init__(self, system: ActorSystem, rng: random.Random) -> None:
        self.system, self.rng = system, rng
        specs = [
            ChildSpec(f"c{at}", Victim, capacity=CAPACITY, runs_on=runs_on, shutdown_seconds=SHUTDOWN_SECONDS,
                      backoff=Backoff(0.001, 0.01))
            for at, runs_on in enumerate(RUNS_ON)
        ]  # fmt: skip
        inner = ChildSpec("inner", lambda: Supervisor(specs, Strategy.REST_FOR_ONE, intensity=5), capacity=CAPACITY)
        self.root = system.spawn(lambda: Supervisor([inner], intensity=1_000_000), "root")
        self.refs: list[Ref] = [self.root]
        self.replies: list[Reply] = []
        self.monitors = 0
        self.downs: list[Down] = []
        self.started = 0

    def once(self) -> None:
        """One random thing."""
        action = self.rng.choice(
            (self.start, self.tell, self.tell, self.ask, self.ask, self.stop, self.monitor, self.family)
        )
        try:
            action()
        except (MailboxFull, ActorDeadError, NameTaken):
            self.started += 1

    def start(self) -> None:
        self.started += 1
        restart = self.rng.choice(list(Restart))
        spec = ChildSpec(f"x{self.started}", Victim, restart, SHUTDOWN_SECONDS, capacity=CAPACITY,
                         runs_on="thread" if self.rng.random() < 0.1 else "loop",
                         backoff=Backoff(0.001, 0.01))  # fmt: skip
        self.refs.append(start_child(self.root, spec))
        if self.rng.random() < 0.3:
            stop_child(self.root, f"x{self.rng.randint(1, self.started)}")

    def family(self) -> None:
        name = self.rng.choice(["root/inner", "root/inner/c0", "root/inner/c1", "root/inner/c2"])
        cell = self.system._cells.get(name)
        if cell is not None:
            cell.ref.tell(self.word())

    def tell(self) -> None:
        self.rng.choice(self.refs[-20:]).tell(self.word())

    def ask(self) -> None:
        ref = self.rng.choice(self.refs[-20:])
        self.replies.append(ref.ask(self.word(), block=False))

    def stop(self) -> None:
        ref = self.rng.choice(self.refs[-20:])
        if ref is not self.root:
            ref.stop()

    def monitor(self) -> None:
        self.monitors += 1
        self.system.watch(self.rng.choice(self.refs[-20:]), self.downs.append)

    def word(self) -> str:
        return self.rng.choice(["hello"] * 6 + ["crash", "leave", "later", "resist"])

    def check(self) -> None:
        """After the end of all."""
        statistics = self.system.statistics()
        assert statistics.unaccounted == 0, statistics
        assert statistics.actors == 0
        assert all(reply.done for reply in self.replies)
        assert len(self.downs) == self.monitors


@given(seed=st.integers(0, 2**32), actions=st.integers(1, 150), pace=st.integers(0, 5))
def test_nothing_is_lost_in_a_simulated_storm(seed: int, actions: int, pace: int) -> None:
    simulation = SimulatedScheduler(seed)
    system = ActorSystem(simulation)
    storm = Storm(system, random.Random(seed))
    for _ in range(actions):
        storm.once()
        for _ in range(pace):
            simulation.step(until_seconds=simulation.now() + 0.01)
    simulation.run_until_idle()
    assert system.statistics().unaccounted == 0
    assert all(reply.done for reply in storm.replies)
    system.shutdown(30)
    simulation.run_until_idle()
    storm.check()
    simulation.close()


def test_nothing_is_lost_in_a_real_storm_from_several_threads() -> None:
    scheduler = LoopScheduler("storm").start()
    system = ActorSystem(scheduler)
    storms = [Storm.__new__(Storm) for _ in range(3)]
    first = Storm(system, random.Random(0))
    for at, storm in enumerate(storms):
        storm.__dict__ = {**first.__dict__, "rng": random.Random(at), "started": at * 1_000_000}
        storm.refs, storm.replies, storm.downs = [first.root], [], []

    def blow(storm: Storm) -> None:
        for _ in range(1_000):
            storm.once()

    threads = [threading.Thread(target=blow, args=(storm,)) for storm in storms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    system.shutdown(10)
    for storm in storms:
        for reply in storm.replies:
            reply.wait(10)
        storm.check()
    assert scheduler.stop(5)
