"""Actors on a real loop and on real threads: asks, ends, time, and who learns what."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from callboard.actors.kernel import (
    Actor,
    ActorDeadError,
    ActorSystem,
    AskOnLoopError,
    AskTimeout,
    DeadLetterReason,
    DeadlockError,
    Down,
    ExitReason,
    NameTaken,
    NoSuchActor,
    NotSpawned,
    Ref,
)

Until = Callable[[Callable[[], bool]], None]


class Doing(Actor):
    """Calls what it is sent with itself, and keeps a diary of the rest."""

    def __init__(self) -> None:
        self.diary: list[Any] = []

    def on_start(self) -> None:
        self.diary.append("start")

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message(self)
        self.diary.append(message)
        return message

    def on_stop(self) -> None:
        self.diary.append("stop")


def crash(_actor: Actor) -> None:
    raise ValueError("told to")


def diary(actor: Doing) -> list[Any]:
    return list(actor.diary)


both = pytest.mark.parametrize("runs_on", ["loop", "thread"])


@both
def test_messages_are_handled_in_order_and_asks_are_answered(system: ActorSystem, runs_on: Any) -> None:
    ref = system.spawn(Doing, "actor", runs_on=runs_on)
    for number in range(500):
        ref.tell(number)
    assert ref.ask(diary, 5) == ["start", *range(500)]


@both
def test_control_messages_are_served_first(system: ActorSystem, runs_on: Any) -> None:
    ref, gate = system.spawn(Doing, "actor", runs_on=runs_on), threading.Event()
    ref.tell(lambda _: gate.wait(5) and None)
    for number in range(3):
        ref.tell(number)
    ref.tell_control("now")
    gate.set()
    assert ref.ask(diary, 5) == ["start", "now", 0, 1, 2]


@both
def test_a_crash_is_told_to_asker_and_monitor_and_what_waited_is_kept_as_dead_letters(
    system: ActorSystem, runs_on: Any, until: Until
) -> None:
    downs: list[Down] = []
    ref, gate = system.spawn(Doing, "actor", runs_on=runs_on), threading.Event()
    system.watch(ref, downs.append)
    ref.tell(lambda _: gate.wait(5) and None)
    crashed = ref.ask(crash, block=False)
    waiting = ref.ask("waiting", block=False)
    gate.set()
    with pytest.raises(ValueError, match="told to"):
        crashed.get(timeout=5)
    with pytest.raises(ActorDeadError):
        waiting.get(timeout=5)
    with pytest.raises(ActorDeadError):
        ref.ask("late", 5)
    ref.tell("late")
    until(lambda: len(downs) == 1)
    assert downs[0].reason is ExitReason.CRASHED
    assert isinstance(downs[0].error, ValueError)
    assert system.dead_letters.counts() == {
        DeadLetterReason.CRASHED: 1,
        DeadLetterReason.STOPPED: 1,
        DeadLetterReason.NOT_ALIVE: 2,
    }
    assert [letter.message for letter in system.dead_letters.list()][1:] == ["waiting", "late", "late"]


@both
def test_an_actor_whose_start_fails_answers_those_who_have_asked_it(system: ActorSystem, runs_on: Any) -> None:
    class Stillborn(Actor):
        def on_start(self) -> None:
            raise SystemExit(3)

    with pytest.raises(ActorDeadError):
        system.spawn(Stillborn, "actor", runs_on=runs_on).ask("hello", 5)


def test_a_factory_must_make_a_new_kernel_actor_each_time(system: ActorSystem, until: Until) -> None:
    downs: list[Down] = []
    one = Doing()
    assert system.spawn(lambda: one, "first").ask("hello", 5) == "hello"
    for name, factory in {"second": lambda: one, "third": dict}.items():
        system.watch(system.spawn(factory, name), downs.append)  # type: ignore[arg-type]  # the fault in question
    until(lambda: len(downs) == 2)
    assert [type(down.error or NotSpawned()) for down in downs] == [NotSpawned, NotSpawned]


def test_an_actor_that_does_not_run_has_no_ref() -> None:
    with pytest.raises(NotSpawned, match="exist from on_start"):
        _ = Doing().ref


def test_stop_runs_on_stop_once_and_says_whether_it_was_alive(system: ActorSystem) -> None:
    actor = Doing()
    ref = system.spawn(lambda: actor, "actor")
    assert ref.stop(block=True, timeout=5) is True
    assert ref.stop(block=True, timeout=5) is False
    assert asyncio.run(awaited(ref.stop())) is False
    assert actor.diary == ["start", "stop"]
    assert not ref.is_alive()


async def awaited(future: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(future, 5)


def test_a_stop_that_is_put_off_ends_when_the_actor_is_ready(system: ActorSystem) -> None:
    class Closing(Doing):
        def on_stopping(self) -> bool:
            self.diary.append("stopping")
            self.tell_after(0.01, lambda actor: actor.stopped())
            return False

    actor = Closing()
    assert asyncio.run(awaited(system.spawn(lambda: actor, "actor").stop())) is True
    assert actor.diary == ["start", "stopping", "stop"]


def test_a_blocking_wait_on_the_loop_is_refused(system: ActorSystem) -> None:
    other = system.spawn(Doing, "other")
    asker = system.spawn(Doing, "asker")
    with pytest.raises(AskOnLoopError, match="ask_async"):
        asker.ask(lambda _: other.ask("hello", 5), 5)
    asker = system.spawn(Doing, "asker")
    with pytest.raises(AskOnLoopError):
        asker.ask(lambda _: system.shutdown(1), 5)


def test_actors_on_threads_that_ask_each_other_in_a_circle_are_told_so_at_once(system: ActorSystem) -> None:
    first, second = (system.spawn(Doing, name, runs_on="thread") for name in "ab")
    with pytest.raises(DeadlockError, match="b asks a asks b"):
        first.ask(lambda _: second.ask(lambda _: first.ask("hello", 60), 60), 60)


def test_asks_from_any_asyncio_loop(system: ActorSystem, until: Until) -> None:
    ref = system.spawn(Doing, "actor")

    async def main() -> list[Any]:
        return await asyncio.gather(*(ref.ask_async(number, 5) for number in range(100)))

    assert asyncio.run(main()) == list(range(100))
    slow = system.spawn(Doing, "slow", runs_on="thread")
    gate = threading.Event()
    slow.tell(lambda _: gate.wait(5))
    with pytest.raises(AskTimeout):
        asyncio.run(slow.ask_async("hello", 0.001))
    gate.set()  # the answer comes after its loop has been closed
    assert slow.ask("next", 5) == "next"
    with pytest.raises(ValueError, match="told to"):
        asyncio.run(slow.ask_async(crash, 5))
    with pytest.raises(ActorDeadError):
        asyncio.run(slow.ask_async("late", 5))


def test_a_stop_iteration_reaches_an_asyncio_asker_as_a_crash(system: ActorSystem) -> None:
    ref = system.spawn(Doing, "actor")
    with pytest.raises(Exception, match="StopIteration"):
        asyncio.run(ref.ask_async(lambda _: next(iter(())), 5))


@both
def test_timers_come_back_unless_cancelled_or_outlived(system: ActorSystem, runs_on: Any, until: Until) -> None:
    ref = system.spawn(Doing, "actor", runs_on=runs_on)

    def set_timers(actor: Doing) -> None:
        actor.tell_after(0.2, "second")
        actor.tell_at(actor.now() + 0.001, "first")
        actor.tell_after(0.1, "cancelled").cancel()
        actor.tell_after(60, "outlived")

    ref.ask(set_timers, 5)
    until(lambda: "second" in ref.ask(diary, 5))
    assert ref.ask(diary, 5) == ["start", "first", "second"]


def test_monitors_fire_once_are_cancelled_and_also_tell_of_the_dead(system: ActorSystem) -> None:
    target, watcher = system.spawn(Doing, "target"), system.spawn(Doing, "watcher")
    watcher.ask(lambda actor: [actor.monitor(target), actor.monitor(target)][0].cancel(), 5)
    target.stop(block=True, timeout=5)
    watcher.ask(lambda actor: actor.monitor(target) and None, 5)
    assert watcher.ask(diary, 5) == [
        "start",
        Down(target, ExitReason.NORMAL),
        Down(target, ExitReason.NOT_ALIVE),
    ]


def test_who_begins_to_watch_what_has_crashed_is_told_why(system: ActorSystem, until: Until) -> None:
    class Broken(Doing):
        def on_start(self) -> None:
            raise OSError("no room")

    target, watcher = system.spawn(Broken, "target"), system.spawn(Doing, "watcher")
    until(lambda: not target.is_alive())
    watcher.ask(lambda actor: actor.monitor(target) and None, 5)
    _, down = watcher.ask(diary, 5)
    assert down.reason is ExitReason.NOT_ALIVE
    assert repr(down.error) == "OSError('no room')"


@pytest.mark.parametrize("ends", ["fired", "cancelled"])
def test_a_monitor_that_is_over_is_not_kept(system: ActorSystem, ends: str) -> None:
    """Who watches every client would else hold all that have left."""
    target, watcher = system.spawn(Doing, "target"), system.spawn(Doing, "watcher")
    monitor = watcher.ask(lambda actor: actor.monitor(target), 5)
    assert any(isinstance(holder, set) for holder in gc.get_referrers(monitor))
    if ends == "cancelled":
        monitor.cancel()
    target.stop(block=True, timeout=5)
    assert len(watcher.ask(diary, 5)) == (2 if ends == "fired" else 1)
    assert not any(isinstance(holder, set) for holder in gc.get_referrers(monitor))


def test_the_monitors_of_a_dead_watcher_are_taken_off(system: ActorSystem) -> None:
    watcher, *targets = (system.spawn(Doing, name) for name in ("watcher", "first", "second", "third"))
    for target in targets:
        watcher.ask(lambda actor, target=target: actor.monitor(target) and None, 5)
    watcher.stop(block=True, timeout=5)
    for target in targets:
        target.stop(block=True, timeout=5)
    assert system.dead_letters.counts() == {}


def test_who_watches_itself_is_not_told_of_its_end(system: ActorSystem) -> None:
    actor = system.spawn(Doing, "actor")
    actor.ask(lambda actor: actor.monitor(actor.ref) and None, 5)
    actor.stop(block=True, timeout=5)
    assert system.dead_letters.counts() == {}


def test_a_watch_that_an_earlier_one_cancels_is_silent(system: ActorSystem) -> None:
    actor, told = system.spawn(Doing, "actor"), list[Down]()
    system.watch(actor, lambda _: second.cancel())
    second = system.watch(actor, told.append)
    actor.stop(block=True, timeout=5)
    assert told == []


def test_who_was_killed_while_it_asked_waits_for_nobody(system: ActorSystem, until: Until) -> None:
    first, second = (system.spawn(Doing, name, runs_on="thread") for name in "ab")
    gate = threading.Event()
    second.tell(lambda _: gate.wait(5))
    first.tell(lambda _: second.ask("hello", 5))
    until(lambda: next(info for info in system.tree() if info.name == "b").mailbox_depth == 1)
    system.kill(first)
    asked = second.ask(lambda _: first.ask("are you there?", 5), block=False)
    gate.set()
    with pytest.raises(ActorDeadError):
        asked.get(timeout=5)


def test_names_are_unique_among_the_living(system: ActorSystem) -> None:
    first = system.spawn(Doing, "actor")
    with pytest.raises(NameTaken, match="'actor' is alive"):
        system.spawn(Doing, "actor")
    first.stop(block=True, timeout=5)
    second = system.spawn(Doing, "actor")
    assert system.ref("actor") is second
    with pytest.raises(NoSuchActor, match="'nobody'"):
        system.ref("nobody")


def test_one_dead_letter_is_sent_again(system: ActorSystem) -> None:
    system.spawn(Doing, "actor").stop(block=True, timeout=5)
    ref: Ref = system.spawn(Doing, "other")
    ref.stop(block=True, timeout=5)
    ref.tell("lost")
    letter = system.dead_letters.list()[-1]
    with pytest.raises(NoSuchActor):
        system.replay(letter.serial)
    again = system.spawn(Doing, "other")
    assert system.replay(letter.serial) == letter
    assert again.ask(diary, 5) == ["start", "lost"]
    assert system.dead_letters.list() == ()
    with pytest.raises(KeyError, match="not kept"):
        system.replay(letter.serial)


def test_the_tree_shows_what_an_actor_works_on_and_for_how_long(system: ActorSystem, until: Until) -> None:
    gate = threading.Event()
    ref = system.spawn(Doing, "actor", runs_on="thread")
    ref.tell(lambda _: gate.wait(5))
    ref.tell("waits")
    until(lambda: system.tree()[0].handling == "function")
    info = system.tree()[0]
    assert (info.name, info.state, info.mailbox_depth, info.restarts, info.children) == ("actor", "running", 1, 0, ())
    assert info.handling_seconds >= 0
    gate.set()
    until(lambda: system.tree()[0].handling is None)
    assert system.tree()[0].handling_seconds == 0.0


def test_after_a_shutdown_nothing_starts_any_more(scheduler: Any) -> None:
    system = ActorSystem(scheduler)
    system.spawn(Doing, "actor")
    assert system.shutdown(5)
    with pytest.raises(ActorDeadError, match="shutting down"):
        system.spawn(Doing, "late")
    assert system.statistics().actors == 0


def test_a_shutdown_kills_what_does_not_stop(scheduler: Any, until: Until) -> None:
    system = ActorSystem(scheduler)
    gate = threading.Event()
    hung = system.spawn(Doing, "hung", runs_on="thread")
    asked = hung.ask(lambda _: gate.wait(5), block=False)
    waiting = hung.ask("waits", block=False)
    until(lambda: system.tree()[0].handling is not None)
    assert not system.shutdown(0.05)
    for reply in (asked, waiting):
        with pytest.raises(ActorDeadError):
            reply.get(timeout=5)
    assert system.statistics().unaccounted == 0
    gate.set()


def test_a_ref_does_not_leave_its_process(system: ActorSystem) -> None:
    ref = system.spawn(Doing, "actor")
    with pytest.raises(TypeError, match="send the name instead"):
        ref.__reduce__()
    assert (repr(ref), str(ref), ref.name) == ("<Ref actor>", "actor", "actor")
