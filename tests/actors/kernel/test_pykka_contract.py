"""Pykka as we found it (4.5), and that ours is safe where it is not. A new Pykka that behaves otherwise fails here."""

import asyncio
import gc
import inspect
import operator
import threading
from typing import Any

import pykka
import pytest
from pykka._envelope import Envelope

from callboard.actors.kernel import Actor, ActorDeadError, ActorSystem, AskTimeout, MailboxFull, NotSpawned, Ref
from callboard.actors.kernel.reply import Reply

SHORT_SECONDS = 0.05


class Raiser:
    """Raises what it is sent, if that is an exception."""

    failures = 0

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        return message

    def on_failure(self, *_exc_info: Any) -> None:
        self.failures += 1


class PykkaRaiser(Raiser, pykka.ThreadingActor):
    pass


class OurRaiser(Raiser, Actor):
    pass


class Gated:
    """Handles nothing until its gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate
        self.seen: list[Any] = []

    def on_receive(self, message: Any) -> None:
        self.gate.wait(5)
        self.seen.append(message)


class PykkaGated(Gated, pykka.ThreadingActor):
    pass


class OurGated(Gated, Actor):
    pass


# -- the private names we touch --------------------------------------------------------------------------------------


def test_an_envelope_carries_a_future_of_ours() -> None:
    reply: Reply = Reply()
    envelope = Envelope("message", reply_to=reply)
    assert (envelope.message, envelope.reply_to) == ("message", reply)
    assert "reply_to.set(response)" in inspect.getsource(pykka.Actor._actor_loop_running)
    assert "reply_to.set_exception()" in inspect.getsource(pykka.Actor._actor_loop_running)


def test_a_ref_of_ours_is_one_of_theirs_and_has_a_urn(system: ActorSystem) -> None:
    ref = system.spawn(OurRaiser, "actor")
    assert ref.ask(0) == 0
    assert isinstance(ref, pykka.ActorRef)
    assert ref.actor_urn == "actor"


def test_a_proxy_of_ours_is_refused_since_it_goes_past_the_messages(system: ActorSystem) -> None:
    with pytest.raises(TypeError, match="has no proxy; tell or ask it one of its messages"):
        system.spawn(OurRaiser, "actor").proxy()


def test_futures_keep_their_hook_where_we_look_for_it() -> None:
    assert pykka.Future()._get_hook is None
    reply: Reply[int] = Reply()
    doubled = reply.map(lambda value: value * 2)
    reply.set(21)
    assert doubled.get(timeout=1) == 42
    assert isinstance(reply, pykka.Future)


def test_what_pykka_makes_of_replies_is_not_awaited_for_ever() -> None:
    first, second = Reply[int](), Reply[int]()

    async def awaited(future: Any) -> object:
        return await future

    for made in (first.map(lambda value: value * 2), first.join(second), first.join(second).reduce(operator.add)):
        with pytest.raises(TypeError, match="await the replies themselves"):
            asyncio.run(awaited(made))


# -- hazards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_a_base_exception_stops_every_pykka_actor_and_leaves_the_asker_waiting(error: BaseException) -> None:
    bystander, raiser = PykkaRaiser.start(), PykkaRaiser.start()
    with pytest.raises(pykka.Timeout):
        raiser.ask(error, timeout=SHORT_SECONDS)
    bystander.actor_stopped.wait(5)
    assert not bystander.is_alive()


@pytest.mark.parametrize("runs_on", ["loop", "thread"])
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_a_base_exception_ends_our_actor_only_and_answers_the_asker(
    system: ActorSystem, error: BaseException, runs_on: Any
) -> None:
    bystander, raiser = system.spawn(OurRaiser, "bystander"), system.spawn(OurRaiser, "raiser", runs_on=runs_on)
    with pytest.raises(Exception, match=type(error).__name__) as raised:
        raiser.ask(error, 5)
    assert raised.value.__cause__ is error
    assert not raiser.is_alive()
    assert bystander.ask("still here", 5) == "still here"


def test_pykka_can_put_an_ask_into_the_inbox_of_the_dead() -> None:
    ref = PykkaRaiser.start()
    ref.stop(block=True)
    ref.is_alive = lambda: True  # type: ignore[method-assign]  # it was alive when the asker looked
    with pytest.raises(pykka.Timeout):
        ref.ask("hello", timeout=SHORT_SECONDS)


def test_our_asks_to_the_dying_are_all_answered(system: ActorSystem) -> None:
    for round_number in range(50):
        ref = system.spawn(OurRaiser, f"dying {round_number}")
        replies = [ref.ask(number, block=False) for number in range(10)]
        ref.stop()
        replies += [ref.ask(number, block=False) for number in range(10)]
        for reply in replies:
            try:
                reply.get(timeout=5)
            except ActorDeadError:
                assert True, "refused, and told so"


def test_pykka_does_not_call_on_failure_for_an_ask() -> None:
    actor = PykkaRaiser.start()
    alive = actor._actor_weakref()
    with pytest.raises(ValueError, match="asked"):
        actor.ask(ValueError("asked"))
    assert actor.is_alive()
    assert alive is not None
    assert alive.failures == 0
    actor.stop()


def test_ours_ends_after_a_failed_ask_so_that_its_supervisor_acts(system: ActorSystem) -> None:
    actor = system.spawn(OurRaiser, "actor")
    with pytest.raises(ValueError, match="asked"):
        actor.ask(ValueError("asked"), 5)
    assert not actor.is_alive()


def test_pykka_stop_waits_behind_all_messages() -> None:
    gate = threading.Event()
    actor = PykkaGated.start(gate)
    alive = actor._actor_weakref()
    for number in range(3):
        actor.tell(number)
    stopped = actor.stop(block=False)
    gate.set()
    assert stopped.get(timeout=5)
    assert alive is not None
    assert alive.seen == [0, 1, 2]


def test_our_stop_overtakes_them(system: ActorSystem) -> None:
    gate = threading.Event()
    gated = OurGated(gate)
    actor = system.spawn(lambda: gated, "actor", runs_on="thread")
    for number in range(3):
        actor.tell(number)
    stopped = actor.stop()
    gate.set()
    assert stopped.get(timeout=5)
    assert len(gated.seen) <= 1


async def _ticks_while(awaitable: Any) -> int:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await awaitable
    ticker.cancel()
    return ticks


def test_awaiting_a_pykka_future_blocks_the_loop() -> None:
    future: pykka.ThreadingFuture[None] = pykka.ThreadingFuture()
    threading.Timer(SHORT_SECONDS, future.set).start()
    assert asyncio.run(_ticks_while(future)) <= 2


def test_awaiting_ours_does_not(system: ActorSystem) -> None:
    gate = threading.Event()
    actor = system.spawn(lambda: OurGated(gate), "actor", runs_on="thread")
    threading.Timer(SHORT_SECONDS, gate.set).start()
    assert asyncio.run(_ticks_while(actor.ask_async("hello", 5))) > 5
    gate.clear()
    threading.Timer(SHORT_SECONDS, gate.set).start()
    assert asyncio.run(_ticks_while(actor.ask("hello", block=False))) > 5


def test_our_actors_are_not_in_the_registry_so_that_the_host_may_stop_its_own(system: ActorSystem) -> None:
    theirs = PykkaRaiser.start()
    ours = system.spawn(OurRaiser, "ours")
    assert ours.ask(1, 5) == 1
    assert pykka.ActorRegistry.get_all() == [theirs]
    pykka.ActorRegistry.stop_all()
    assert ours.ask(2, 5) == 2


def test_pykka_refs_hold_their_actor_weakly_and_ours_lives_without_any_ref(system: ActorSystem) -> None:
    assert "weakref.ref(actor)" in inspect.getsource(pykka.ActorRef.__init__)
    system.spawn(OurRaiser, "unheld")
    gc.collect()
    assert system.ref("unheld").ask("alive", 5) == "alive"


def tell_four(actor: Ref) -> None:
    for number in range(4):
        actor.tell(number)


def test_pykka_inboxes_are_unbounded_and_ours_refuse(system: ActorSystem) -> None:
    inbox = pykka.ThreadingActor._create_actor_inbox()
    assert inbox.maxsize == 0  # type: ignore[attr-defined]
    gate = threading.Event()
    actor = system.spawn(lambda: OurGated(gate), "actor", runs_on="thread", capacity=2)
    with pytest.raises(MailboxFull, match="actor is overloaded: 2 messages wait, it takes 2"):
        tell_four(actor)
    gate.set()


def test_pykka_start_is_refused_with_the_remedy() -> None:
    with pytest.raises(NotSpawned, match=r"ActorSystem\.spawn"):
        OurRaiser.start()


def test_an_ask_timeout_is_also_pykkas_and_pythons(system: ActorSystem) -> None:
    gate = threading.Event()
    actor = system.spawn(lambda: OurGated(gate), "actor", runs_on="thread")
    for kind in (AskTimeout, pykka.Timeout, TimeoutError):
        with pytest.raises(kind):
            actor.ask("hello", 0.001)
    gate.set()
