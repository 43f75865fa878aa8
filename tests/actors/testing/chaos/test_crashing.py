"""Crashes on purpose: which message ends which actor, how often, and what the message was about."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from callboard.actors.kernel import Actor, ActorSystem, ChildSpec, Supervisor, handles, start_child
from callboard.actors.testing.chaos.crashing import Crashes, Target, crashing, requests_of
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.ids import MessageId, RequestId, Tag


@dataclass(frozen=True, slots=True)
class Say:
    tag: Tag


@dataclass(frozen=True, slots=True)
class Count:
    """About no request."""


class Listener(Actor[Say | Count]):
    heard: list[object] = []  # noqa: RUF012 - of all incarnations

    @handles(Say)
    def _say(self, message: Say) -> None:
        self.heard.append(message)

    @handles(Count)
    def _count(self, message: Count) -> None:
        self.heard.append(message)


class Listens(Listener):
    """As a simulation has subclasses of the product's actors."""


def tag(request: str) -> Tag:
    return Tag(RequestId(request), MessageId("m"))


@pytest.fixture
def listener(simulated: ActorSystem, simulation: SimulatedScheduler) -> object:
    Listener.heard.clear()
    root = simulated.spawn(lambda: Supervisor(chance=lambda: 0.0), "root")
    return start_child(root, ChildSpec("listener", Listens))


def tell(listener: object, simulation: SimulatedScheduler, *messages: object) -> None:
    for message in messages:
        listener.tell(message)  # type: ignore[attr-defined]
        simulation.run_until_idle()


def test_messages_that_are_handled_are_counted_too(listener: object, simulation: SimulatedScheduler) -> None:
    with crashing(Target(Listener, Say), 0) as crashes, crashing(Target(Listener, Count), 0) as others:
        tell(listener, simulation, Say(tag("a")), Say(tag("b")))
    assert (crashes.came, others.came, crashes.actors) == (2, 0, [])


@pytest.mark.parametrize("times", [1, 2, 3])
def test_so_many_messages_crash_their_actor_and_the_next_is_handled(
    listener: object, simulation: SimulatedScheduler, times: int
) -> None:
    messages = [Say(tag(f"r{number}")) for number in range(4)]
    with crashing(Target(Listener, Say), times) as crashes:
        tell(listener, simulation, *messages)
    assert Listener.heard == messages[times:]
    assert crashes.actors == ["root/listener"] * times
    assert crashes.requests == {f"r{number}" for number in range(times)}


def test_other_messages_are_handled_meanwhile(listener: object, simulation: SimulatedScheduler) -> None:
    with crashing(Target(Listener, Say), 1) as crashes:
        tell(listener, simulation, Count(), Say(tag("r")), Count())
    assert Listener.heard == [Count(), Count()]
    assert crashes.requests == {"r"}


def test_a_message_about_no_request_names_none(listener: object, simulation: SimulatedScheduler) -> None:
    with crashing(Target(Listener, Count), 1) as crashes:
        tell(listener, simulation, Count())
    assert crashes == Crashes(0, ["root/listener"], set(), came=1)


def test_afterwards_everything_is_as_before() -> None:
    tables = [dict(each._kernel_dispatch) for each in (Listener, Listens)]
    with crashing(Target(Listener, Say), 3):
        assert [dict(each._kernel_dispatch) for each in (Listener, Listens)] != tables
    assert [dict(each._kernel_dispatch) for each in (Listener, Listens)] == tables


def test_requests_are_found_in_what_a_message_holds() -> None:
    assert requests_of(Say(tag("a"))) == {"a"}
    assert requests_of([Say(tag("a")), {"b": (tag("b"),)}]) == {"a", "b"}
    assert requests_of(Count()) == requests_of("a") == set()
