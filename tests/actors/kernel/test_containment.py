"""What others hand the kernel may raise anywhere: monitors, callbacks, log handlers, texts of errors, new threads.

None of it stops the loop, loses a message or keeps an end from being reported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    Backoff,
    ChildSpec,
    DeadLetterReason,
    Down,
    ExitReason,
    Held,
    LoopScheduler,
    OutOfThreads,
    Ref,
    Rejected,
    StartFailed,
    Supervisor,
    Watchdog,
    children_of,
    start_child,
)
from callboard.actors.kernel.reply import Reply
from callboard.actors.testing.simulation import SimulatedScheduler

Until = Callable[[Callable[[], bool]], None]
both = pytest.mark.parametrize("runs_on", ["loop", "thread"])


class Unreadable(Exception):
    """Raises when it is shown."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class Doing(Actor):
    """Calls what it is sent."""

    def on_receive(self, message: Any) -> Any:
        return message(self) if callable(message) else message


def crash(_actor: Actor) -> None:
    raise ValueError("told to")


def fail(*_arguments: Any) -> None:
    raise SystemExit("a callback")


@pytest.fixture
def failing_log() -> Iterator[None]:
    """A log handler of the host that raises."""

    class Failing(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise SystemExit("the log")

    logger, handler = logging.getLogger("callboard"), Failing()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@both
def test_a_monitor_that_raises_hides_the_end_from_no_other(system: ActorSystem, runs_on: Any, until: Until) -> None:
    downs: list[Down] = []
    root = system.spawn(lambda: Supervisor([ChildSpec("a", Doing, runs_on=runs_on)]), "root")
    child = children_of(root, 5)["a"]
    system.watch(child, fail)
    system.watch(child, downs.append)
    child.tell(crash)
    until(lambda: len(downs) == 1)
    assert child.ask("started again", 5) == "started again"
    child.stop(block=True, timeout=5)
    system.watch(root, fail)
    root.stop(block=True, timeout=5)
    system.watch(root, fail)  # dead already: it is called at once, here


@both
def test_a_callback_of_an_answer_that_raises_is_no_failure_of_the_actor(system: ActorSystem, runs_on: Any) -> None:
    actor = system.spawn(Doing, "actor", runs_on=runs_on)
    gate = threading.Event()
    actor.tell(lambda _: gate.wait(5) and None)
    reply, heard = actor.ask("hello", block=False), threading.Event()
    reply.on_done(fail)
    reply.on_done(heard.set)
    gate.set()
    assert heard.wait(5)
    assert reply.get(timeout=5) == "hello"
    assert actor.ask("still here", 5) == "still here"
    reply.on_done(fail)


@both
def test_an_exception_without_a_readable_text_is_a_crash_like_any_other(system: ActorSystem, runs_on: Any) -> None:
    def raise_it(_actor: Actor) -> None:
        raise Unreadable

    def reject(_actor: Actor) -> None:
        raise Rejected(Unreadable())

    root = system.spawn(lambda: Supervisor([ChildSpec("a", Doing, runs_on=runs_on)]), "root")
    child = children_of(root, 5)["a"]
    with pytest.raises(Unreadable):
        child.ask(raise_it, 5)
    with pytest.raises(Rejected):
        child.ask(reject, 5)
    assert child.ask("started again", 5) == "started again"
    assert {letter.note for letter in system.dead_letters.list()} == {
        "<Unreadable without a readable text>",
        "<Rejected without a readable text>",
    }


@both
@pytest.mark.usefixtures("failing_log")
def test_a_log_handler_that_raises_stops_neither_the_actor_nor_the_loop(
    system: ActorSystem, scheduler: LoopScheduler, runs_on: Any
) -> None:
    root = system.spawn(lambda: Supervisor([ChildSpec("a", Doing, runs_on=runs_on)]), "root")
    child = children_of(root, 5)["a"]
    with pytest.raises(ValueError, match="told to"):
        child.ask(crash, 5)
    scheduler.call_soon(fail)
    scheduler.call_at(scheduler.now(), fail)
    assert child.ask("started again", 5) == "started again"
    assert system.spawn(Doing, "other").ask("the loop goes on", 5) == "the loop goes on"


@both
def test_a_stop_whose_handler_raises_rejected_is_a_crash_and_not_a_lost_stop(
    system: ActorSystem, runs_on: Any, until: Until
) -> None:
    class Declining(Doing):
        def on_stopping(self) -> bool:
            raise Rejected("not now")

    downs: list[Down] = []
    actor = system.spawn(Declining, "actor", runs_on=runs_on)
    system.watch(actor, downs.append)
    assert actor.stop(block=True, timeout=5)
    until(lambda: len(downs) == 1)
    assert downs[0].reason is ExitReason.CRASHED
    assert system.dead_letters.counts() == {}


def test_a_report_of_the_watchdog_that_raises_does_not_end_its_watch(until: Until) -> None:
    reports: list[Held] = []

    def report(held: Held) -> None:
        reports.append(held)
        raise SystemExit("report")

    scheduler = LoopScheduler("test", watchdog=Watchdog(limit_seconds=0.5, report=report)).start()
    system = ActorSystem(scheduler)
    for number in (1, 2):
        gate = threading.Event()
        system.spawn(Doing, f"hog {number}").tell(lambda _, gate=gate: gate.wait(5))
        until(lambda number=number: len(reports) == number)
        gate.set()
    assert system.shutdown(5)
    assert scheduler.stop(5)


def test_the_answer_to_an_ask_that_comes_after_its_timeout_is_dropped() -> None:
    reply: Reply[str] = Reply()
    reply.fail(TimeoutError("late"))
    reply.answer("too late")
    with pytest.raises(TimeoutError):
        reply.get(timeout=0)


@pytest.mark.parametrize("threads", [2, 8])
def test_callbacks_that_are_set_while_the_answer_comes_are_each_called_once(threads: int) -> None:
    for _ in range(50):
        reply, called, together = Reply[int](), list[int](), threading.Barrier(threads + 1)

        def add(number: int, reply: Reply[int], called: list[int], together: threading.Barrier) -> None:
            together.wait(5)
            for step in range(10):
                reply.on_done(partial(called.append, 10 * number + step))

        adding = [threading.Thread(target=add, args=(number, reply, called, together)) for number in range(threads)]
        for thread in adding:
            thread.start()
        together.wait(5)
        reply.answer(1)
        for thread in adding:
            thread.join(5)
        assert sorted(called) == list(range(10 * threads))


# -- a host without threads --------------------------------------------------------------------------------------------


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The host has reached its limit, as threading reports it."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


def test_spawning_on_a_thread_says_what_is_missing_and_leaves_nothing_behind(
    system: ActorSystem, no_threads: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutOfThreads, match=r"no thread for slow: this host can start no more .* \(ulimit -u"):
        system.spawn(Doing, "slow", runs_on="thread")
    assert system.spawn(Doing, "quick").ask("the loop goes on", 5) == "the loop goes on"
    no_threads.undo()
    assert system.spawn(Doing, "slow", runs_on="thread").ask("again", 5) == "again"


def test_a_scheduler_that_gets_no_thread_has_started_nothing(no_threads: pytest.MonkeyPatch) -> None:
    scheduler = LoopScheduler("test")
    with pytest.raises(OutOfThreads, match="no thread for test-loop"):
        scheduler.start()
    assert scheduler.stop(5)
    assert scheduler.loop.is_closed()


def test_a_child_that_gets_no_thread_is_a_failed_start_and_is_tried_again(
    system: ActorSystem, no_threads: pytest.MonkeyPatch, until: Until
) -> None:
    # Each failed start is logged with its traceback: more often, and the loop does little else.
    spec = ChildSpec("slow", Doing, runs_on="thread", backoff=Backoff(0.1, 0.1))
    root = system.spawn(lambda: Supervisor([ChildSpec("quick", Doing), spec], intensity=1_000), "root")
    with pytest.raises(StartFailed, match="root/slow could not start: no thread for root/slow"):
        system.wait_until_started(root, 5)
    visitor: Ref[Any] = start_child(root, ChildSpec("visitor", Doing, runs_on="thread", intensity=0))
    until(lambda: not visitor.is_alive())
    assert children_of(root, 5)["quick"].ask("the loop goes on", 5) == "the loop goes on"
    no_threads.undo()
    assert children_of(root, 5)["slow"].ask("at last", 5) == "at last"


def test_a_killed_child_that_gets_no_new_thread_does_not_end_its_supervisor(
    system: ActorSystem, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    gate, start = threading.Event(), threading.Thread.start
    spec = ChildSpec("slow", Doing, runs_on="thread", backoff=Backoff(0.01, 0.01))
    root = system.spawn(lambda: Supervisor([spec], intensity=1_000), "root")
    child = children_of(root, 5)["slow"]
    child.tell(lambda _: gate.wait(5))
    until(lambda: system.tree()[0].children[0].handling is not None)
    refused = threading.Event()

    def refuse(_thread: threading.Thread) -> None:
        refused.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    system.scheduler.call_soon(child._cell.kill)
    assert refused.wait(5)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert child.ask("at last", 5) == "at last"
    gate.set()
    until(lambda: system.abandoned == 0)
    assert system.dead_letters.counts() == {DeadLetterReason.KILLED: 1}


# -- the same in virtual time ------------------------------------------------------------------------------------------


def test_a_failing_monitor_in_a_simulation_leaves_the_supervisor_its_report() -> None:
    simulation = SimulatedScheduler(7)
    system = ActorSystem(simulation)
    root = system.spawn(lambda: Supervisor([ChildSpec("a", Doing)]), "root")
    simulation.run_until_idle()
    child = system.ref("root/a")
    system.watch(child, fail)
    child.tell(crash)
    simulation.run_until_idle()
    assert system.tree()[0].children[0].restarts == 1
    assert root.is_alive()
