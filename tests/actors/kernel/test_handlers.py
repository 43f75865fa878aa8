"""Typed actors: the union of messages in the brackets, a handler for each, and what becomes of any other message."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    Asks,
    ChildSpec,
    DeadLetterReason,
    Rejected,
    Supervisor,
    handles,
    start_child,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Shout(Say):
    pass


@dataclass(frozen=True, slots=True)
class Count(Asks[int]):
    pass


class Echo(Actor[Say | Count]):
    def __init__(self) -> None:
        self.said: list[str] = []

    @handles(Say)
    def _say(self, message: Say) -> str:
        self.said.append(message.text)
        return message.text

    @handles(Count)
    def _count(self, _message: Count) -> int:
        return len(self.said)


class Parrot(Echo):
    def _say(self, message: Say) -> str:
        return super()._say(message) * 2


def test_each_message_goes_to_its_handler_and_what_it_returns_answers(system: ActorSystem) -> None:
    echo = system.spawn(Echo, "echo")
    echo.tell(Say("hello"))
    assert echo.ask(Say("again"), 5) == "again"
    assert echo.ask(Count(), 5) + 0 == 2


@pytest.mark.parametrize("runs_on", ["loop", "thread"])
def test_an_unknown_message_is_rejected_with_the_names_and_the_actor_goes_on(system: ActorSystem, runs_on) -> None:  # type: ignore[no-untyped-def]
    echo = system.spawn(Echo, "echo", runs_on=runs_on)
    echo.tell(3)  # type: ignore[arg-type]
    with pytest.raises(Rejected, match=r"echo \(Echo\) does not take a dict"):
        echo.ask({}, 5)  # type: ignore[call-overload]
    assert echo.ask(Count(), 5) == 0
    assert system.dead_letters.counts() == {DeadLetterReason.REJECTED: 2}
    assert [letter.note for letter in system.dead_letters.list()] == [
        "echo (Echo) does not take a int",
        "echo (Echo) does not take a dict",
    ]


def test_a_subclass_of_a_message_is_handled_as_its_nearest_base(system: ActorSystem) -> None:
    echo = system.spawn(Echo, "echo")
    assert [echo.ask(Shout("HELLO"), 5) for _ in range(2)] == ["HELLO", "HELLO"]
    assert Echo.messages() == (Say, Count)


def test_a_method_that_is_overridden_handles_the_same_message(system: ActorSystem) -> None:
    assert system.spawn(Parrot, "parrot").ask(Say("hello"), 5) == "hellohello"
    assert Parrot.messages() == (Say, Count)


def test_an_actor_that_overrides_on_receive_takes_everything_and_may_pass_it_on(system: ActorSystem) -> None:
    class Crashable(Echo):
        def on_receive(self, message: object) -> object:
            return "what?" if message == "crash" else super().on_receive(message)

    crashable = system.spawn(Crashable, "crashable")
    assert crashable.ask("crash", 5) == "what?"  # type: ignore[call-overload]
    assert crashable.ask(Say("hello"), 5) == "hello"
    with pytest.raises(Rejected, match=r"crashable \(Crashable\) does not take a float"):
        crashable.ask(1.5, 5)  # type: ignore[call-overload]
    assert Crashable.messages() == (Say, Count)


def test_a_message_without_a_handler_is_an_error_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="Deaf takes Count, NoneType but has no method with @handles for it"):

        class Deaf(Actor[Say | Count | None]):
            @handles(Say)
            def _say(self, _message: Say) -> None: ...


def test_a_handler_of_what_is_not_in_the_union_is_an_error_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="Odd: _count handles Count, which is not among the messages it takes"):

        class Odd(Actor[Say]):
            @handles(Say)
            def _say(self, _message: Say) -> None: ...

            @handles(Count)
            def _count(self, _message: Count) -> None: ...


def test_two_handlers_of_one_message_are_an_error_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="_one and _other both handle Say"):

        class Torn(Actor[Say]):
            @handles(Say)
            def _one(self, _message: Say) -> None: ...

            @handles(Say)
            def _other(self, _message: Say) -> None: ...


def test_the_name_of_a_union_is_no_union() -> None:
    with pytest.raises(TypeError, match="a class or a union of classes, not ForwardRef"):

        class Named(Actor["Say | Count"]):
            pass


def test_generic_and_abstract_classes_are_checked_only_where_they_are_complete(system: ActorSystem) -> None:
    class Talker(Actor[Say | T], Generic[T]):
        @handles(Say)
        def _say(self, message: Say) -> str:
            return message.text

    class Base(Actor[Say | Count], ABC):
        @handles(Say)
        def _say(self, message: Say) -> str:
            return message.text

    class Counter(Talker[Count]):
        @handles(Count)
        def _count(self, _message: Count) -> int:
            return 7

    assert Counter.messages() == (Say, Count)
    assert system.spawn(Counter, "counter").ask(Count(), 5) == 7
    with pytest.raises(TypeError, match="Mute takes Count"):

        class Mute(Talker[Count]):
            pass

    with pytest.raises(TypeError, match="Half takes Count"):

        class Half(Base):
            pass


def test_one_method_may_handle_several_messages(system: ActorSystem) -> None:
    class Both(Actor[Say | Count]):
        @handles(Say, Count)
        def _both(self, message: Say | Count) -> str:
            return type(message).__name__

    both = system.spawn(Both, "both")
    assert [both.ask(Say(""), 5), both.ask(Count(), 5)] == ["Say", "Count"]


def test_an_actor_that_cannot_hear_of_an_end_may_not_wait_for_it(system: ActorSystem) -> None:
    class Watcher(Actor[Say]):
        @handles(Say)
        def _say(self, _message: Say) -> None:
            self.monitor(self.ref)

    with pytest.raises(TypeError, match=r"Watcher monitors watcher but has no method with @handles\(Down\)"):
        system.spawn(Watcher, "watcher").ask(Say(""), 5)


WRONG = {
    "self.tell_after(1.0, 3)": '"tell_after" of "Actor" has incompatible type "int"; expected "Say | Count"',
    "self.ref.tell(None)": '"tell" of "Ref" has incompatible type "None"; expected "Say | Count"',
    "wider: Ref[Say | int] = self.ref": 'expression has type "Ref[Say | Count]", variable has type "Ref[Say | int]"',
    "text: str = self.ref.ask(Count())": 'expression has type "int", variable has type "str"',
    "other: str = self.ref.ask(Say('x'))": 'expression has type "object", variable has type "str"',
    "self.system.watch(self.ref, len)": 'Argument 2 to "watch" of "System" has incompatible type',
}
PROGRAM = """
from dataclasses import dataclass
from callboard.actors.kernel import Actor, ActorSystem, Asks, ChildSpec, Ref, Supervisor, handles, start_child
from callboard.actors.kernel import SupervisorMessage
@dataclass(frozen=True, slots=True)
class Say:
    text: str
@dataclass(frozen=True, slots=True)
class Count(Asks[int]):
    pass
class Base(Actor[Say | Count]):
    @handles(Say)
    def _say(self, message: Say) -> None:
        LINES
    @handles(Count)
    def _count(self, message: COUNT) -> int:
        narrower: Ref[Say] = self.ref
        self.tell_after(1.0, Say("later"))
        return self.ref.ask(Count())
class Other(Actor[str]):
    @handles(str)
    def _take(self, message: str) -> str:
        return message
def right(system: ActorSystem, supervisor: Ref[SupervisorMessage]) -> None:
    spawned: Ref[Say | Count] = system.spawn(lambda: Base(), "spawned")
    started: Ref[str] = start_child(supervisor, ChildSpec("other", Other))
    Supervisor([ChildSpec("base", Base), ChildSpec("other", Other)])
"""


@pytest.mark.timeout(300)  # where nothing is cached
def test_mypy_knows_what_an_actor_takes_and_what_it_answers(tmp_path: Path) -> None:
    lines = "\n        ".join(WRONG)
    (tmp_path / "right.py").write_text(PROGRAM.replace("LINES", "pass").replace("COUNT", "Count"))
    (tmp_path / "wrong.py").write_text(PROGRAM.replace("LINES", lines).replace("COUNT", "Say"))
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-color-output", str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=280,
    )
    found = [line for line in ran.stdout.splitlines() if ": error:" in line]
    assert all("wrong.py" in line for line in found), ran.stdout
    expected = [*WRONG.values(), 'Argument 1 has incompatible type "Callable[[Base, Say], int]"']
    assert [each for each in expected if not any(each in line for line in found)] == [], ran.stdout
    assert len(found) == len(expected), ran.stdout


def test_the_children_of_a_supervisor_are_seen_without_waiting(system: ActorSystem) -> None:
    @dataclass(frozen=True, slots=True)
    class Look(Asks[list[str]]):
        pass

    root = system.spawn(lambda: Supervisor([ChildSpec("a", Echo), ChildSpec("b", Echo)]), "root")

    class Looker(Actor[Look]):
        @handles(Look)
        def _look(self, _message: Look) -> list[str]:
            return [child.name for child in self.children(root)]

    system.wait_until_started(root, 5)
    start_child(root, ChildSpec("c", Echo))
    looker = system.spawn(Looker, "looker")
    assert looker.ask(Look(), 5) == ["root/a", "root/b", "root/c"]
