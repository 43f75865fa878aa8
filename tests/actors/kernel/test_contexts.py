"""Context variables of the host's threads do not reach our loop: 200 asks from 20 contexts, 0 mixed."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import dataclass

from callboard.actors.kernel import Actor, ActorSystem, Asks, LoopScheduler, handles

WHO: ContextVar[str] = ContextVar("who", default="empty")
THREADS = 20
ASKS = 10


@dataclass(frozen=True, slots=True)
class See(Asks[str]):
    """What WHO is in a handler, with a timer and a task set on the way."""


@dataclass(frozen=True, slots=True)
class Later:
    pass


class Seer(Actor[See | Later]):
    def __init__(self, seen: list[str], loop: asyncio.AbstractEventLoop) -> None:
        self._seen = seen
        self._loop = loop

    @handles(See)
    def _see(self, _message: See) -> str:
        self.tell_after(0.001, Later())
        self._loop.create_task(self._in_a_task())
        return WHO.get()

    @handles(Later)
    def _later(self, _message: Later) -> None:
        self._seen.append(WHO.get())

    async def _in_a_task(self) -> None:
        self._seen.append(WHO.get())


def test_no_handler_timer_or_task_sees_the_context_of_a_thread_of_the_host(
    scheduler: LoopScheduler, system: ActorSystem
) -> None:
    seen: list[str] = []
    seer = system.spawn(lambda: Seer(seen, scheduler.loop), "seer")
    fired = threading.Barrier(THREADS + 1)

    async def in_a_task() -> str:
        await asyncio.sleep(0)
        return WHO.get()

    def ask(number: int) -> None:
        WHO.set(f"thread {number}")
        for _ in range(ASKS):
            seen.append(seer.ask(See(), 5))
            seen.append(asyncio.run_coroutine_threadsafe(in_a_task(), scheduler.loop).result(5))
            posted = threading.Event()
            scheduler.call_at(scheduler.now(), lambda done=posted: (seen.append(WHO.get()), done.set()))
            assert posted.wait(5)
        assert WHO.get() == f"thread {number}"
        fired.wait(10)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    fired.wait(10)
    assert system.shutdown(5)
    assert len(seen) >= 4 * THREADS * ASKS
    assert set(seen) == {"empty"}


def test_what_one_handler_sets_the_next_does_not_see(system: ActorSystem) -> None:
    entered, gate = threading.Event(), threading.Event()

    class Setter(Actor):
        def on_receive(self, message: str) -> str:
            if message == "hold":
                entered.set()
                gate.wait(5)
            before = WHO.get()
            WHO.set(message)
            return before

    first, second = system.spawn(Setter, "first"), system.spawn(Setter, "second")
    first.tell("hold")  # so that the turns of both are due in one run of the loop
    assert entered.wait(5)
    answers = [ref.ask("mine", block=False) for ref in (second, first, second)]
    gate.set()
    assert answers[0].get(timeout=5) == "empty"
