"""The loop thread: it survives what is thrown at it, wakes once a burst, and its watchdog sees who holds it."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from callboard.actors.kernel import Actor, ActorSystem, Held, LoopScheduler, Watchdog

Until = Callable[[Callable[[], bool]], None]


def test_a_task_that_raises_system_exit_does_not_end_the_loop(scheduler: LoopScheduler, until: Until) -> None:
    async def leave() -> None:
        raise SystemExit(1)

    task = asyncio.run_coroutine_threadsafe(leave(), scheduler.loop)
    until(task.done)
    done = threading.Event()
    scheduler.call_soon(done.set)
    assert done.wait(5)
    assert scheduler.escaped == 1


def test_a_callback_that_raises_does_not_stop_the_next_one(scheduler: LoopScheduler) -> None:
    done = threading.Event()

    def fail() -> None:
        raise KeyboardInterrupt

    scheduler.call_soon(fail)
    scheduler.call_at(scheduler.now(), fail)
    scheduler.call_soon(lambda: scheduler.call_at(scheduler.now() + 0.005, done.set))
    assert done.wait(5)
    assert scheduler.escaped == 2


def test_a_burst_of_posts_wakes_the_loop_once(scheduler: LoopScheduler, monkeypatch: Any) -> None:
    gate, done, entered = threading.Event(), threading.Event(), threading.Event()
    wakes = 0
    wake = scheduler._wake

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal wakes
        wakes += 1
        return wake(*arguments, **options)

    def block() -> None:
        entered.set()
        gate.wait(5)

    scheduler.loop.call_soon_threadsafe(block)
    assert entered.wait(5)
    monkeypatch.setattr(scheduler, "_wake", counted)
    for _ in range(1_000):
        scheduler.call_soon(int)
    scheduler.call_soon(done.set)
    gate.set()
    assert done.wait(5)
    monkeypatch.undo()
    assert wakes == 1


def test_timers_are_never_early_and_may_be_cancelled_from_elsewhere(scheduler: LoopScheduler) -> None:
    seen: list[float] = []
    done = threading.Event()
    begun = scheduler.now()

    def note(due_seconds: float) -> None:
        seen.append(scheduler.now() - due_seconds)

    delays = [0.0004, 0.0015, 0.0031]
    for delay in delays:
        scheduler.call_at(begun + delay, partial(note, begun + delay))
    cancelled = scheduler.call_at(begun + 0.002, lambda: seen.append(-1.0))
    cancelled.cancel()
    scheduler.call_at(begun + 0.01, done.set)
    assert done.wait(5)
    assert len(seen) == len(delays)
    assert min(seen) >= 0


def test_the_host_keeps_its_loop_and_its_signal_handlers() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD), signal.set_wakeup_fd(-1)

    async def host() -> bool:
        mine = asyncio.get_running_loop()
        scheduler = LoopScheduler("guest").start()
        same = asyncio.get_running_loop() is mine and scheduler.loop is not mine
        return same and await asyncio.to_thread(scheduler.stop, 5)

    assert asyncio.run(host())
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD), signal.set_wakeup_fd(-1))


def test_stopping_ends_tasks_that_are_left() -> None:
    scheduler = LoopScheduler("test").start()
    ended = threading.Event()

    entered = threading.Event()

    async def wait() -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    asyncio.run_coroutine_threadsafe(wait(), scheduler.loop)
    assert entered.wait(5)
    assert scheduler.stop(5)
    assert scheduler.stop(5)
    assert ended.is_set()
    scheduler.call_soon(ended.clear)  # ignored
    assert ended.is_set()


def test_a_thread_that_has_the_number_of_an_ended_loop_thread_is_not_it() -> None:
    """The system gives numbers of threads again, the latest first."""
    ended = LoopScheduler("ended")
    ended.start()
    ended.stop(5.0)
    found: list[bool] = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: found.append(ended.is_current()))
        thread.start()
        thread.join()
    assert found == [False] * 20


def test_a_scheduler_that_was_never_started_can_be_stopped() -> None:
    assert LoopScheduler("test").stop(1)


def test_an_actor_with_endless_messages_leaves_asyncio_its_turns(scheduler: LoopScheduler, system: ActorSystem) -> None:
    heard = threading.Event()

    class Endless(Actor):
        def on_receive(self, message: Any) -> None:
            if not heard.is_set():
                self.ref.tell(message)

    system.spawn(Endless, "endless").tell("again")
    scheduler.loop.call_soon_threadsafe(heard.set)
    came = heard.wait(5)
    heard.set()  # or the actor, and with it the test's thread, would go on for good
    assert came


def test_a_timer_set_by_another_thread_wakes_a_loop_that_sleeps(scheduler: LoopScheduler) -> None:
    fired = threading.Event()
    scheduler.call_at(scheduler.now() + 0.01, fired.set)
    assert fired.wait(5)


def test_a_program_that_forgets_to_stop_its_scheduler_still_ends() -> None:
    program = """
from callboard.actors.kernel import Actor, ActorSystem, LoopScheduler
system = ActorSystem(LoopScheduler("forgotten").start())
system.spawn(Actor, "on its own thread", runs_on="thread").tell("word")
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0


def test_the_watchdog_names_who_holds_the_loop(until: Until) -> None:
    held: list[Held] = []
    watchdog = Watchdog(limit_seconds=0.5, report=held.append)
    scheduler = LoopScheduler("test", watchdog=watchdog).start()
    system = ActorSystem(scheduler)

    class Hog(Actor):
        def on_receive(self, message: Any) -> None:
            message.wait(5)

    gate = threading.Event()
    system.spawn(Hog, "hog").tell(gate)
    until(lambda: bool(held))
    gate.set()
    system.shutdown(5)
    assert scheduler.stop(5)
    assert (held[0].actor, held[0].message_type, watchdog.count) == ("hog", "Event", 1)
    assert held[0].seconds >= 0.5


def test_the_watchdog_names_a_task_that_holds_the_loop(until: Until) -> None:
    held: list[Held] = []
    scheduler = LoopScheduler("test", watchdog=Watchdog(limit_seconds=0.5, report=held.append)).start()
    gate = threading.Event()

    async def hog() -> None:
        gate.wait(5)

    scheduler.call_soon(lambda: scheduler.loop.create_task(hog(), name="a hog"))
    until(lambda: bool(held))
    gate.set()
    assert scheduler.stop(5)
    assert (held[0].actor, held[0].message_type) == ("a hog", "task")


def test_the_watchdog_reports_a_handler_at_its_limit_and_once() -> None:
    held: list[Held] = []
    watchdog = Watchdog(limit_seconds=1.0, report=held.append)
    for seconds, reports in ((10.0, 0), (10.9, 0), (11.0, 1), (12.0, 1)):
        watchdog.look(("actor", "str", 10.0), seconds)
        assert len(held) == reports, seconds
    watchdog.look(None, 12.0)
    for seconds, reports in ((12.5, 1), (13.5, 2)):  # the next message
        watchdog.look(("actor", "str", 12.0), seconds)
        assert len(held) == reports, seconds
    assert held == [Held("actor", "str", 1.0), Held("actor", "str", 1.5)]
