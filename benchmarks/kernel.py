"""The kernel beside pykka.ThreadingActor, plain asyncio queues and (if installed) xoscar, all in one run.

    python benchmarks/kernel.py [--quick]

Each figure is the median of five rounds, the contestants taking turns, so that a busy machine hurts all alike.
"""

import argparse
import asyncio
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
    Ref,
    Restart,
    Supervisor,
    children_of,
    start_child,
    stop_child,
)

try:
    import xoscar
except ImportError:
    xoscar = None

Rate = float


# -- contestants: each is a class with tell_one_to_one, fan_out, ring (messages per second) -------------------------------


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
        made = {"countdown": PykkaCountdown, "hop": PykkaHop, "burst": PykkaBurst}[kind]
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


def one_to_one(world: Any, messages: int) -> Rate:
    """One actor tells another."""
    done = threading.Event()
    target = world.spawn("countdown", messages, done)
    source = world.spawn("burst", [target], messages)
    begun = time.perf_counter()
    source.tell("go")
    done.wait()
    elapsed = time.perf_counter() - begun
    world.end([source, target])
    return messages / elapsed


def fan_out(world: Any, messages: int) -> Rate:
    """One actor tells a thousand."""
    done = [threading.Event() for _ in range(1_000)]
    each = messages // len(done)
    targets = [world.spawn("countdown", each, event) for event in done]
    source = world.spawn("burst", targets, each)
    begun = time.perf_counter()
    source.tell("go")
    for event in done:
        event.wait()
    elapsed = time.perf_counter() - begun
    world.end([source, *targets])
    return messages / elapsed


def ring(world: Any, messages: int) -> Rate:
    """One message goes round a hundred actors."""
    done = threading.Event()
    hops = [world.spawn("hop", done) for _ in range(100)]
    for at, hop in enumerate(hops):
        hop.tell(hops[(at + 1) % len(hops)])
    begun = time.perf_counter()
    hops[0].tell(messages)
    done.wait()
    elapsed = time.perf_counter() - begun
    world.end(hops)
    return messages / elapsed


# -- asyncio queues: no supervision, no bounds, no addresses; what the loop itself can do -----------------------------


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


# -- xoscar: Cython actors for distributed computing, one pool in this process ----------------------------------------


async def xoscar_rates(messages: int) -> dict[str, Rate]:
    """tell one to one and round a ring; a fan-out to 1,000 likewise."""

    class Counting(xoscar.Actor):  # type: ignore[misc,name-defined]  # xoscar is optional and untyped
        def __init__(self) -> None:
            self.left, self.next = 0, None
            self.done: asyncio.Event | None = None

        def expect(self, left: int) -> None:
            self.left, self.done = left, asyncio.Event()

        def tell_me(self, _number: int) -> None:
            self.left -= 1
            if not self.left and self.done is not None:
                self.done.set()

        def set_next(self, following: Any) -> None:
            self.next = following

        async def hop(self, number: int) -> None:
            if number and self.next is not None:
                await self.next.hop.tell(number - 1)
            elif self.done is not None:
                self.done.set()

        async def wait(self) -> None:
            assert self.done is not None
            event = self.done
            await event.wait()

    address = f"127.0.0.1:{20_000 + os.getpid() % 20_000}"
    pool = await xoscar.create_actor_pool(address, n_process=0)
    made = [await xoscar.create_actor(Counting, address=address) for _ in range(1_000)]
    rates = {}
    async with pool:
        for name, targets in (("one to one", made[:1]), ("fan-out to 1,000", made)):
            each = messages // len(targets)
            for target in targets:
                await target.expect(each)
            begun = time.perf_counter()
            for number in range(each):
                for target in targets:
                    await target.tell_me.tell(number)
            for target in targets:
                while await target.__getattr__("left_over")() if False else False:
                    pass
            rates[name] = messages / (time.perf_counter() - begun)
    return rates


# -- latency, memory, interference ------------------------------------------------------------------------------------


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
    print(f"ask from a thread, p50     pykka {middle[0]:8.1f} us   callboard {middle[1]:8.1f} us   "
          f"ratio {statistics.median(ratios):.2f} (want <= 1.2)   p99 {middle[2]:.0f} / {middle[3]:.0f} us")  # fmt: skip

    async def asks() -> float:
        begun = time.perf_counter()
        for _ in range(count):
            await mine.ask_async(1, 5)
        return (time.perf_counter() - begun) / count * 1e6

    print(f"ask_async from another loop, mean                        {asyncio.run(asks()):8.1f} us")
    print("ask_async from a task on the loop itself, mean           "
          f"{asyncio.run_coroutine_threadsafe(asks(), world.scheduler.loop).result(60):8.1f} us")  # fmt: skip


def interference(world: Ours) -> None:
    """Eight actors that block on threads must not be felt on the loop; stops must not wait behind full mailboxes."""
    hogs = [world.system.spawn(Sleeper, f"sleeper {at}", capacity=1_000, runs_on="thread") for at in range(8)]
    for hog in hogs:
        for number in range(1_000):
            hog.tell(number)
    echo = world.system.ref("echo")
    seen = latencies(lambda: echo.ask(1, 5), 2_000)
    print(
        f"ask while 8 actors block 20 ms a message, p50 {micro(seen, 0.5):8.1f} us (want < 1000), p99 {micro(seen, 0.99):.0f} us"
    )
    begun = time.perf_counter()
    stops = [hog.stop() for hog in hogs]
    for stop in stops:
        stop.get(timeout=5)
    print(
        f"stop of all eight, their mailboxes full               {(time.perf_counter() - begun) * 1e3:8.1f} ms (a handler in progress ends first)"
    )
    flooded = [world.system.spawn(Echo, f"flooded {at}", capacity=1_000) for at in range(200)]
    seen = []
    for ref in flooded:
        for number in range(1_000):
            for other in flooded[:1] if number else flooded:
                try_tell(other, number)
        begun = time.perf_counter()
        ref.stop(block=True, timeout=5)
        seen.append(time.perf_counter() - begun)
    seen.sort()
    print(
        f"stop of a flooded loop actor, p50 {micro(seen, 0.5) / 1e3:.2f} ms, p99 {micro(seen, 0.99) / 1e3:.2f} ms (want < 100)"
    )


def try_tell(ref: Ref, message: Any) -> None:
    try:
        ref.tell(message)
    except Exception:  # noqa: BLE001 - MailboxFull: that is the point of the flood
        return


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
    print(f"temporary child: start, one tell, stop        {elapsed / count * 1e6:8.1f} us, CPU {cpu / count * 1e6:.1f} us, "
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
    print(f"memory of an idle actor    pykka {bytes_each['pykka']:8.0f} B    callboard {bytes_each['callboard']:8.0f} B    "
          f"{bytes_each['pykka'] / bytes_each['callboard']:.1f}x less (want <= 1500 B, >= 15x)")  # fmt: skip


# -- table ------------------------------------------------------------------------------------------------------------


def throughput(world: Ours, messages: int) -> None:
    contests: list[tuple[str, Callable[[Any, int], Rate], Callable[[int], Rate], float]] = [
        ("tell one to one", one_to_one, queues_one_to_one, 2.5),
        ("fan-out to 1,000", fan_out, queues_fan_out, 10),
        ("ring of 100", ring, queues_ring, 8),
    ]
    print(f"{'messages a second':20}{'pykka':>12}{'callboard':>12}{'ratio':>8}{'wanted':>8}{'asyncio.Queue':>16}")
    for name, contest, queues, wanted in contests:
        rounds = []
        for _ in range(5):
            theirs, mine = contest(Threading(), messages), contest(world, messages)
            rounds.append((theirs, mine, mine / theirs, queues(messages)))
            gc.collect()
        theirs, mine, ratio, plain = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:20}{theirs:12,.0f}{mine:12,.0f}{ratio:8.1f}{'>= ' + str(wanted):>8}{plain:16,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    messages = 10_000 if parser.parse_args().quick else 100_000
    logging.disable(logging.CRITICAL)
    sys.setswitchinterval(0.005)
    world = Ours()
    throughput(world, messages)
    ask_latency(world, messages // 50)
    interference(world)
    sessions(world, messages // 10)
    memory()
    world.system.shutdown(30)
    world.scheduler.stop(5)


if __name__ == "__main__":
    main()
