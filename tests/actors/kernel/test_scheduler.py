"""The loop thread: it survives what is thrown at it, wakes once a burst, and its watchdog sees who holds it."""

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Any

import pytest
from support.strikes import Strike

from callboard.actors.kernel import Actor, ActorSystem, Held, LoopScheduler, Watchdog, handles
from callboard.actors.kernel import scheduler as scheduler_file
from callboard.actors.kernel.scheduler import DedicatedThread, SteadyLoop

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


def test_news_of_a_task_that_nobody_waits_for_is_no_escape(scheduler: LoopScheduler) -> None:
    scheduler.loop.call_exception_handler({"message": "Task exception was never retrieved", "exception": ValueError()})
    assert scheduler.escaped == 0


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


# -- exceptions that another thread raises in ours

LOOP_FILES = ("kernel/scheduler.py", "asyncio/base_events.py", "asyncio/selector_events.py",
              "asyncio/events.py", "/selectors.py")  # fmt: skip


def of_loop(frame: FrameType) -> bool:
    """Not within a turn: what strikes an actor is its crash."""
    code = frame.f_code
    return code.co_filename.endswith(LOOP_FILES) and code.co_name not in ("call_soon", "guarded")


class LoopOfAsyncio(SteadyLoop):
    """As without uvloop."""

    is_of_host = False

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(callback, *args, context=context or Context())


class Struck(Actor[str]):
    """Its timer fires after its answer."""

    def __init__(self, arm: Callable[[], None]) -> None:
        self.arm = arm
        self.fired = 0

    @handles(str)
    def _answer(self, word: str) -> int:
        if word == "strike":
            self.tell_after(0.001, "fired")
            self.arm()
        elif word == "over":
            sys.settrace(None)
        self.fired += word == "fired"
        return self.fired


@pytest.mark.parametrize("loop", [scheduler_file._LoopWithoutContext, LoopOfAsyncio])
def test_an_exception_that_strikes_the_loop_loses_neither_turn_nor_timer(
    loop: type, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    """At each point at which CPython looks for one."""
    monkeypatch.setattr(scheduler_file, "_LoopWithoutContext", loop)
    strike = Strike(0, of_loop, lambda _: False)
    scheduler = LoopScheduler("struck").start()
    system = ActorSystem(scheduler)
    actor = system.spawn(lambda: Struck(lambda: strike.arm()), "actor")
    for at in itertools.count():
        strike = Strike(at, of_loop, lambda _: False)
        before = actor.ask("strike", 20)
        until(partial(has_fired, actor, before))
        actor.ask("over", 20)
        if not strike.has_struck:
            break
    assert at > 10, "there are more points"
    assert scheduler.escaped >= at
    system.shutdown(5)
    assert scheduler.stop(5)


def has_fired(actor: Any, before: Any) -> bool:
    return bool(actor.ask("look", 20) > before)


class Blocking(Actor[str]):
    """On a thread of its own."""

    def __init__(self, arm: Callable[[], None]) -> None:
        self.arm = arm

    @handles(str)
    def _answer(self, word: str) -> str:
        if word == "strike":
            self.arm()
        elif word == "over":
            sys.settrace(None)
        return word


def of_thread(frame: FrameType) -> bool:
    """Between turns, as above."""
    return frame.f_code in (DedicatedThread._main.__code__, DedicatedThread._serve.__code__)


def test_an_exception_that_strikes_the_thread_of_an_actor_loses_no_turn(scheduler: LoopScheduler) -> None:
    strike = Strike(0, of_thread, lambda _: False)
    actor = ActorSystem(scheduler).spawn(lambda: Blocking(lambda: strike.arm()), "actor", runs_on="thread")
    for at in itertools.count():
        strike = Strike(at, of_thread, lambda _: False)
        assert [actor.ask(word, 20) for word in ("strike", "look", "over")] == ["strike", "look", "over"]
        if not strike.has_struck:
            break
    assert at > 3, "there are more points"
