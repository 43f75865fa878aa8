"""The kernel beside pykka.ThreadingActor, plain asyncio queues and (if installed) xoscar, all in one run.

    python benchmarks/kernel.py [--quick] [--xoscar-python PATH]

Each figure is the median of five rounds, the contestants taking turns, so that a busy machine hurts all alike.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pykka

from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    ChildSpec,
    LoopScheduler,
    MailboxFull,
    Ref,
    Restart,
    Supervisor,
    children_of,
    start_child,
    stop_child,
)

Rate = float


# -- contestants: each is a class with tell_one_to_one, fan_out, ring (messages per second) -------------------


class Countdown:
    """Counts messages; opens `done` at the last. Shared by both actor types."""

    def __init__(self, expected: int, done: threading.Event) -> None:
        super().__init__()
        self.left, self.done = expected, done

    def on_receive(self, _message: Any) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


class Hop:
    """One place in a ring: passes the number on, less one."""

    next: Any = None

    def __init__(self, done: threading.Event) -> None:
        super().__init__()
        self.done = done

    def on_receive(self, message: Any) -> None:
        if not isinstance(message, int):
            self.next = message
        elif message:
            self.next.tell(message - 1)
        else:
            self.done.set()


class Burst:
    """Tells each of its targets some numbers when told to."""

    def __init__(self, targets: list[Any], each: int) -> None:
        super().__init__()
        self.targets, self.each = targets, each

    def on_receive(self, _message: Any) -> None:
        for number in range(self.each):
            for target in self.targets:
                target.tell(number)


class PykkaCountdown(Countdown, pykka.ThreadingActor):
    pass


class PykkaHop(Hop, pykka.ThreadingActor):
    pass


class PykkaBurst(Burst, pykka.ThreadingActor):
    pass


class OurCountdown(Countdown, Actor):
    pass


class OurHop(Hop, Actor):
    pass


class OurBurst(Burst, Actor):
    pass


class Threading:
    """pykka.ThreadingActor."""

    name = "pykka"

    def spawn(self, kind: str, *arguments: Any) -> Any:
        made: Any = {"countdown": PykkaCountdown, "hop": PykkaHop, "burst": PykkaBurst}[kind]
        return made.start(*arguments)

    def end(self, refs: list[Any]) -> None:
        for stopped in [ref.stop(block=False) for ref in refs]:
            stopped.get()


class Ours:
    """callboard."""

    name = "callboard"

    def __init__(self) -> None:
        self.scheduler = LoopScheduler("bench").start()
        self.system = ActorSystem(self.scheduler)
        self.count = 0

    def spawn(self, kind: str, *arguments: Any) -> Ref:
        made: Any = {"countdown": OurCountdown, "hop": OurHop, "burst": OurBurst}[kind]
        self.count += 1
        return self.system.spawn(lambda: made(*arguments), f"{kind} {self.count}", capacity=1_000_000)

    def end(self, refs: list[Ref]) -> None:
        for stopped in [ref.stop() for ref in refs]:
            stopped.get(timeout=30)


def one_to_one(world: Any, messages: int) -> tuple[Rate, float]:
    """One actor tells another."""
    done = threading.Event()
    target = world.spawn("countdown", messages, done)
    source = world.spawn("burst", [target], messages)
    begun, cpu = time.perf_counter(), time.process_time()
    source.tell("go")
    done.wait()
    elapsed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    world.end([source, target])
    return messages / elapsed, cpu / messages * 1e6


def fan_out(world: Any, messages: int) -> tuple[Rate, float]:
    """One actor tells a thousand."""
    done = [threading.Event() for _ in range(1_000)]
    each = messages // len(done)
    targets = [world.spawn("countdown", each, event) for event in done]
    source = world.spawn("burst", targets, each)
    begun, cpu = time.perf_counter(), time.process_time()
    source.tell("go")
    for event in done:
        event.wait()
    elapsed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    world.end([source, *targets])
    return messages / elapsed, cpu / messages * 1e6


def ring(world: Any, messages: int) -> tuple[Rate, float]:
    """One message goes round a hundred actors."""
    done = threading.Event()
    hops = [world.spawn("hop", done) for _ in range(100)]
    for at, hop in enumerate(hops):
        hop.tell(hops[(at + 1) % len(hops)])
    begun, cpu = time.perf_counter(), time.process_time()
    hops[0].tell(messages)
    done.wait()
    elapsed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    world.end(hops)
    return messages / elapsed, cpu / messages * 1e6


# -- asyncio queues: no supervision, no bounds, no addresses; what the loop itself can do ---------------------


def queues_one_to_one(messages: int) -> Rate:
    """A task puts, a task gets."""

    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(64)

        async def produce() -> None:
            for number in range(messages):
                await queue.put(number)

        producer = asyncio.create_task(produce())
        for _ in range(messages):
            await queue.get()
        await producer

    return timed_async(main, messages)


def queues_fan_out(messages: int) -> Rate:
    """A task puts into a thousand queues."""

    async def main() -> None:
        queues: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(1_000)]
        each = messages // len(queues)

        async def consume(queue: asyncio.Queue[int]) -> None:
            for _ in range(each):
                await queue.get()

        consumers = [asyncio.create_task(consume(queue)) for queue in queues]
        for number in range(each):
            for queue in queues:
                queue.put_nowait(number)
            await asyncio.sleep(0)
        await asyncio.gather(*consumers)

    return timed_async(main, messages)


def queues_ring(messages: int) -> Rate:
    """A number goes round a hundred tasks."""

    async def main() -> None:
        queues: list[asyncio.Queue[int]] = [asyncio.Queue() for _ in range(100)]
        done = asyncio.Event()

        async def hop(at: int) -> None:
            while True:
                number = await queues[at].get()
                if not number:
                    done.set()
                    return
                queues[(at + 1) % 100].put_nowait(number - 1)

        tasks = [asyncio.create_task(hop(at)) for at in range(100)]
        queues[0].put_nowait(messages)
        await done.wait()
        for task in tasks:
            task.cancel()

    return timed_async(main, messages)


def timed_async(main: Callable[[], Any], messages: int) -> Rate:
    begun = time.perf_counter()
    asyncio.run(main())
    return messages / (time.perf_counter() - begun)


# -- xoscar: Cython actors for distributed computing, one pool in one process, an interpreter of its own ------

XOSCAR = """
import asyncio, os, sys, time
import xoscar
class Place(xoscar.Actor):
    def __init__(self): self.left = 0
    def expect(self, left): self.left = left
    def hit(self, number): self.left -= 1
    def how_many_left(self): return self.left
    def set_next(self, following): self.following = following
    async def hop(self, number):
        if number: await self.following.hop.tell(number - 1)
        else: self.left = 0
async def finished(places):
    while any([await place.how_many_left() for place in places]): await asyncio.sleep(0.0005)
async def main(messages):
    pool = await xoscar.create_actor_pool(f"127.0.0.1:{20_000 + os.getpid() % 20_000}", n_process=0)
    async with pool:
        places = [await xoscar.create_actor(Place, address=pool.external_address) for _ in range(1_000)]
        for targets in (places[:1], places):
            each = messages // len(targets)
            for target in targets: await target.expect(each)
            begun = time.perf_counter()
            for number in range(each):
                for target in targets: await target.hit.tell(number)
            await finished(targets)
            print(messages / (time.perf_counter() - begun))
        for at in range(100): await places[at].set_next(places[(at + 1) % 100])
        for at in range(100): await places[at].expect(0)
        await places[messages % 100].expect(1)
        begun = time.perf_counter()
        await places[0].hop(messages)
        await finished(places[messages % 100 : messages % 100 + 1])
        print(messages / (time.perf_counter() - begun))
asyncio.run(main(int(sys.argv[1])))
"""


def xoscar_rates(python: str, messages: int) -> list[Rate] | None:
    """One to one, fan-out, ring; None when that interpreter has no xoscar."""
    command = [python, "-c", XOSCAR, str(messages)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return [float(line) for line in ran.stdout.split()] if ran.returncode == 0 else None


# -- latency, memory, interference ----------------------------------------------------------------------------


class PykkaEcho(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return message


class Echo(Actor):
    def on_receive(self, message: Any) -> Any:
        return message


class Sleeper(Actor):
    """Blocks 20 ms a message, on a thread of its own."""

    def on_receive(self, _message: Any) -> None:
        time.sleep(0.02)


def latencies(call: Callable[[], Any], count: int) -> list[float]:
    """Sorted seconds."""
    seen = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        seen.append(time.perf_counter() - begun)
    return sorted(seen)


def micro(seen: list[float], part: float) -> float:
    return seen[int(len(seen) * part)] * 1e6


def ask_latency(world: Ours, count: int) -> None:
    theirs, mine = PykkaEcho.start(), world.system.spawn(Echo, "echo")
    ratios, rows = [], []
    for _ in range(5):
        a, b = latencies(lambda: theirs.ask(1), count), latencies(lambda: mine.ask(1, 5), count)
        rows.append((micro(a, 0.5), micro(b, 0.5), micro(a, 0.99), micro(b, 0.99)))
        ratios.append(micro(b, 0.5) / micro(a, 0.5))
    theirs.stop()
    middle = [statistics.median(column) for column in zip(*rows, strict=True)]
    print(f"ask from a thread, p50: pykka {middle[0]:.1f} us, callboard {middle[1]:.1f} us, "
          f"ratio {statistics.median(ratios):.2f} (want <= 1.2); p99 {middle[2]:.0f}, {middle[3]:.0f} us")  # fmt: skip

    async def asks() -> float:
        begun = time.perf_counter()
        for _ in range(count):
            await mine.ask_async(1, 5)
        return (time.perf_counter() - begun) / count * 1e6

    print(f"ask_async from another loop, mean {asyncio.run(asks()):.1f} us, from a task on the actors' own loop "
          f"{asyncio.run_coroutine_threadsafe(asks(), world.scheduler.loop).result(60):.1f} us")  # fmt: skip


def interference(world: Ours) -> None:
    """Eight actors that block on threads must not be felt on the loop; stops must not wait behind full mailboxes."""
    hogs = [world.system.spawn(Sleeper, f"sleeper {at}", capacity=1_000, runs_on="thread") for at in range(8)]
    for hog in hogs:
        fill(hog)
    echo = world.system.ref("echo")
    seen = latencies(lambda: echo.ask(1, 5), 2_000)
    print(f"ask while 8 actors block 20 ms a message, p50 {micro(seen, 0.5):.1f} us (want < 1000), "
          f"p99 {micro(seen, 0.99):.0f} us")  # fmt: skip
    seen = sorted(latencies(lambda: hogs.pop().stop(block=True, timeout=5), 8))
    print(f"stop of those, mailboxes full, longest {seen[-1] * 1e3:.1f} ms (want < 100; a handler of 20 ms ends first)")
    flooded = [world.system.spawn(Echo, f"flooded {at}", capacity=1_000) for at in range(200)]
    seen = []
    while flooded:
        for ref in flooded:
            fill(ref)
        seen += latencies(lambda: flooded.pop().stop(block=True, timeout=5), 1)
    seen.sort()
    print(f"stop of one of 200 loop actors, all mailboxes full: p50 {micro(seen, 0.5) / 1e3:.2f} ms, "
          f"p99 {micro(seen, 0.99) / 1e3:.2f} ms (want < 100)")  # fmt: skip


def fill(ref: Ref) -> None:
    """Tell until the mailbox is full."""
    with contextlib.suppress(MailboxFull):
        for number in range(1_000):
            ref.tell(number)


def sessions(world: Ours, count: int) -> None:
    """A temporary child a request: started, asked once, stopped."""
    root = world.system.spawn(lambda: Supervisor([ChildSpec("first", Echo)]), "root")
    children_of(root, 5)
    begun, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        start_child(root, ChildSpec(f"s{number}", Echo, Restart.TEMPORARY)).tell(number)
        stop_child(root, f"s{number}")
    while len(children_of(root, 30)) > 1:
        pass
    elapsed, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(f"temporary child (start, one tell, stop): {elapsed / count * 1e6:.1f} us, CPU {cpu / count * 1e6:.1f} us, "
          f"{count / elapsed:,.0f} a second")  # fmt: skip


MEMORY = """
import gc, sys, threading
import pykka
from callboard.actors.kernel import Actor, ActorSystem, LoopScheduler
def rss():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
class Theirs(pykka.ThreadingActor):
    use_daemon_thread = True
    def on_receive(self, message): return message
class Mine(Actor):
    def on_receive(self, message): return message
count = 10_000 if sys.argv[1] == "callboard" else 2_000
system = ActorSystem(LoopScheduler().start())
def make(number):
    return Theirs.start() if sys.argv[1] == "pykka" else system.spawn(Mine, f"a{number}")
warm = [make(-number) for number in range(1, 101)]
gc.collect(); before = rss()
made = [make(number) for number in range(count)]
[ref.ask(1) for ref in made[::100]]
made[-1].ask(1)
gc.collect()
print((rss() - before) / count)
import os; os._exit(0)
"""


def memory() -> None:
    """Resident bytes an idle actor, each kind in a process of its own; 2,000 threads stand for 10,000."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    bytes_each = {
        name: statistics.median(
            float(
                subprocess.run(
                    [sys.executable, "-c", MEMORY, name], env=env, capture_output=True, text=True, check=True
                ).stdout
            )
            for _ in range(3)
        )
        for name in ("pykka", "callboard")
    }
    print(f"memory of an idle actor: pykka {bytes_each['pykka']:.0f} B, callboard {bytes_each['callboard']:.0f} B, "
          f"{bytes_each['pykka'] / bytes_each['callboard']:.1f}x less (want <= 1500 B, >= 15x)")  # fmt: skip


# -- table ----------------------------------------------------------------------------------------------------


def throughput(world: Ours, messages: int, xoscar_python: str) -> None:
    """The table."""
    contests: list[tuple[str, Callable[[Any, int], tuple[Rate, float]], Callable[[int], Rate], float]] = [
        ("tell one to one", one_to_one, queues_one_to_one, 2.5),
        ("fan-out to 1,000", fan_out, queues_fan_out, 10),
        ("ring of 100", ring, queues_ring, 8),
    ]
    xoscar = xoscar_rates(xoscar_python, messages // 5)
    print("messages a second; CPU us a message, which a busy machine hardly changes")
    heads = ("", "pykka", "callboard", "ratio", "wanted", "CPU", "CPU", "ratio", "asyncio.Queue", "xoscar")
    print("{:18}{:>10}{:>11}{:>7}{:>8}{:>8}{:>6}{:>7}{:>15}{:>15}".format(*heads))
    for at, (name, contest, queues, wanted) in enumerate(contests):
        rounds = []
        for _ in range(5):
            (theirs, their_cpu), (mine, my_cpu) = contest(Threading(), messages), contest(world, messages)
            rounds.append((theirs, mine, mine / theirs, their_cpu, my_cpu, their_cpu / my_cpu, queues(messages)))
            gc.collect()
        theirs, mine, ratio, *cpu, plain = (statistics.median(column) for column in zip(*rounds, strict=True))
        other = "not installed" if xoscar is None else f"{xoscar[at]:,.0f}"
        print(f"{name:18}{theirs:10,.0f}{mine:11,.0f}{ratio:7.1f}{f'>= {wanted}':>8}", end="")
        print(f"{cpu[0]:8.2f}{cpu[1]:6.2f}{cpu[2]:7.1f}{plain:15,.0f}{other:>15}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--xoscar-python", default=sys.executable, help="an interpreter that has xoscar installed")
    options = parser.parse_args()
    messages = 10_000 if options.quick else 100_000
    logging.disable(logging.CRITICAL)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    world = Ours()
    throughput(world, messages, options.xoscar_python)
    ask_latency(world, messages // 50)
    interference(world)
    sessions(world, messages // 10)
    memory()
    world.system.shutdown(30)
    world.scheduler.stop(5)


if __name__ == "__main__":
    main()
