"""Conservation (I9) after a storm of starts, kills, floods and stops on the real scheduler.

    python benchmarks/storm.py [--seconds 60]

At rest: sent = handled + dead-lettered + queued, every ask answered, every monitor fired once,
no actor and no thread left.
"""

import argparse
import contextlib
import logging
import random
import sys
import threading
import time
from typing import Any

from callboard.actors.kernel import (
    Actor,
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    Down,
    LoopScheduler,
    MailboxFull,
    NoSuchActor,
    Ref,
    Restart,
    Strategy,
    Supervisor,
    start_child,
    stop_child,
)
from callboard.actors.kernel.reply import Reply
from callboard.actors.kernel.system import RunsOn

FAMILY: tuple[tuple[str, RunsOn], ...] = (("a", "loop"), ("bt", "thread"), ("c", "loop"))
CAPACITY = 50
SHUTDOWN_SECONDS = 0.02
#: Asks are looked at in the end, all of them; so many a thread are enough.
REPLIES_KEPT = 50_000


class Victim(Actor):
    """Crashes, leaves, refuses to stop, blocks or works, as told."""

    obedient = True

    def on_receive(self, message: Any) -> Any:
        if message == "crash":
            raise SystemExit("told to")
        if message == "leave":
            self.stop()
        if message == "resist":
            self.obedient = False
        if message == "block":
            time.sleep(0.05 if self.name.endswith("t") else 0.0)
        if message == "later":
            self.tell_after(0.01, "timer")
        return message

    def on_stopping(self) -> bool:
        return self.obedient


class Attacker(threading.Thread):
    """One thread of the storm."""

    def __init__(self, system: ActorSystem, root: Ref, seed: int, seconds: float) -> None:
        super().__init__(name=f"attacker-{seed}")
        self.system, self.root, self.seconds = system, root, seconds
        self.rng = random.Random(seed)
        self.seed, self.serial = seed, 0
        self.refs: list[Ref] = []
        self.replies: list[Reply] = []
        self.downs: list[Down] = []
        self.monitors = self.refused = 0
        self.stop_seconds: list[float] = []

    def run(self) -> None:
        actions = [self.start_one, self.flood, self.ask, self.kill, self.stop_one, self.monitor, self.hit_the_family]
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            try:
                self.rng.choice(actions)()
            except (MailboxFull, ActorDeadError, NoSuchActor):
                self.refused += 1

    def word(self) -> str:
        return self.rng.choice(["work"] * 40 + ["crash", "leave", "later", "resist", "block"])

    def victim(self) -> Ref:
        return self.rng.choice(self.refs[-30:] or [self.root])

    def start_one(self) -> None:
        self.serial += 1
        on_thread = self.rng.random() < 0.05
        child = ChildSpec(
            f"{self.seed}-{self.serial}{'t' if on_thread else 'l'}", Victim, self.rng.choice(list(Restart)),
            SHUTDOWN_SECONDS, capacity=CAPACITY, runs_on="thread" if on_thread else "loop",
            backoff=Backoff(0.001, 0.05),
        )  # fmt: skip
        self.refs.append(start_child(self.root, child))
        if len(self.refs) > 60:
            stop_child(self.root, self.refs.pop(0).name.rpartition("/")[2])

    def flood(self) -> None:
        ref = self.victim()
        for _ in range(self.rng.randint(1, 2 * CAPACITY)):
            ref.tell(self.word())

    def ask(self) -> None:
        if len(self.replies) < REPLIES_KEPT:
            self.replies.append(self.victim().ask(self.word(), block=False))

    def kill(self) -> None:
        ref = self.victim()
        if ref is not self.root:
            ref.tell("resist")
            stop_child(self.root, ref.name.rpartition("/")[2])

    def stop_one(self) -> None:
        ref = self.victim()
        if ref is not self.root:
            ref.stop()

    def monitor(self) -> None:
        self.monitors += 1
        self.system.watch(self.victim(), self.downs.append)

    def hit_the_family(self) -> None:
        ref = self.system.ref(self.rng.choice(["root/inner", "root/inner/a", "root/inner/bt", "root/inner/c"]))
        ref.tell(self.word())


def family() -> Supervisor:
    """A permanent family under the storm, and a supervisor that never gives up."""
    specs = [
        ChildSpec(
            name, Victim, capacity=CAPACITY, runs_on=runs_on, shutdown_seconds=SHUTDOWN_SECONDS, backoff=Backoff(0, 0)
        )
        for name, runs_on in FAMILY
    ]
    inner = ChildSpec("inner", lambda: Supervisor(specs, Strategy.ONE_FOR_ALL, 10, 0.1), backoff=Backoff(0.001, 0.01))
    return Supervisor([inner], intensity=sys.maxsize)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    logging.disable(logging.CRITICAL)
    threads_before = threading.active_count()
    scheduler = LoopScheduler("storm").start()
    system = ActorSystem(scheduler)
    root = system.spawn(family, "root", capacity=1_000_000)
    attackers = [Attacker(system, root, seed, seconds) for seed in range(4)]
    for attacker in attackers:
        attacker.start()
    for attacker in attackers:
        attacker.join()
    begun = time.monotonic()
    orderly = system.shutdown(30)
    shutdown_seconds = time.monotonic() - begun
    unanswered = sum(not reply.wait(10) for attacker in attackers for reply in attacker.replies)
    statistics = wait_for_rest(system)
    dead = {reason.value: count for reason, count in system.dead_letters.counts().items()}
    missed = sum(attacker.monitors - len(attacker.downs) for attacker in attackers)
    scheduler.stop(5)
    threads_left = wait_for_threads(threads_before)
    print(f"{seconds:.0f} s: {statistics}")
    print(f"dead letters {dead}")
    print(f"{sum(attacker.serial for attacker in attackers):,} actors started, {statistics.restarts:,} restarts, "
          f"{statistics.sent / seconds:,.0f} messages a second, shutdown in {shutdown_seconds:.2f} s, "
          f"orderly: {orderly}")  # fmt: skip
    print(f"unaccounted {statistics.unaccounted}, unanswered asks {unanswered} of "
          f"{sum(len(attacker.replies) for attacker in attackers):,}, monitors not fired once {missed}, "
          f"actors left {statistics.actors}, threads left {threads_left}")  # fmt: skip
    return int(bool(statistics.unaccounted or unanswered or missed or statistics.actors or threads_left))


def wait_for_rest(system: ActorSystem) -> Any:
    """Abandoned handlers block for at most 50 ms."""
    for _ in range(500):
        statistics = system.statistics()
        if not statistics.queued and not statistics.unaccounted:
            break
        time.sleep(0.01)
    return statistics


def wait_for_threads(before: int) -> int:
    """Threads that are more than before, once those about to end have ended."""
    with contextlib.suppress(TimeoutError):
        for _ in range(500):
            if threading.active_count() <= before:
                break
            time.sleep(0.01)
    return max(0, threading.active_count() - before)


if __name__ == "__main__":
    sys.exit(main())
