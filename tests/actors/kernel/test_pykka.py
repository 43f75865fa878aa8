"""A host's own Pykka actors beside ours: they tell and ask each other, both ways, and a crash stays on its side."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pykka
import pytest
from support.imports import parsed
from support.offenders import no_offenders

from callboard.actors.kernel import (
    Actor,
    ActorDeadError,
    ActorSystem,
    Asks,
    AskTimeout,
    LoopScheduler,
    Ref,
    ask_pykka,
    handles,
)
from callboard.actors.kernel.reply import Reply

Until = Callable[[Callable[[], bool]], None]
EXAMPLE = Path(__file__).parents[3] / "examples" / "pykka_host.py"


class Theirs(pykka.ThreadingActor):
    """Answers what it is sent; raises exceptions, calls functions."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        self.heard.append(message)
        if isinstance(message, BaseException):
            raise message
        return message(self) if callable(message) else message


@dataclass(frozen=True, slots=True)
class Forward(Asks[str]):
    """Tell or ask the Pykka actor this."""

    message: Any
    is_ask: bool = False


@dataclass(frozen=True, slots=True)
class Heard(Asks[list[Any]]):
    pass


@dataclass(frozen=True, slots=True)
class Answered:
    reply: Reply


class Ours(Actor[Forward | Heard | Answered | str]):
    """On the loop, with a Pykka actor as its neighbour."""

    def __init__(self, neighbour: pykka.ActorRef[Theirs]) -> None:
        self._neighbour = neighbour
        self._heard: list[Any] = []

    @handles(Forward)
    def _forward(self, message: Forward) -> str:
        if message.is_ask:
            self.tell_answer(ask_pykka(self._neighbour, message.message), Answered, timeout_seconds=0.2)
        else:
            self._neighbour.tell(message.message)
        return "sent"

    @handles(Answered)
    def _answered(self, message: Answered) -> None:
        try:
            self._heard.append(message.reply.result())
        except (ValueError, AskTimeout) as error:
            self._heard.append(error)

    @handles(Heard)
    def _which(self, _message: Heard) -> list[Any]:
        return list(self._heard)

    @handles(str)
    def _say(self, message: str) -> str:
        if message == "crash":
            raise SystemExit(message)
        return message.upper()


@pytest.fixture
def theirs() -> Iterator[pykka.ActorRef[Theirs]]:
    actor = Theirs.start()
    yield actor
    if actor.is_alive():
        actor.stop(timeout=5)


@pytest.fixture
def ours(system: ActorSystem, theirs: pykka.ActorRef[Theirs]) -> Ref[Any]:
    return system.spawn(lambda: Ours(theirs), "ours")


def test_a_handler_of_ours_tells_a_pykka_actor(ours: Ref[Any], theirs: pykka.ActorRef[Theirs]) -> None:
    ours.tell(Forward("hello"))
    assert ours.ask(Forward("again"), 5) == "sent"
    assert theirs.ask(lambda actor: actor.heard[:2], timeout=5) == ["hello", "again"]


def test_a_pykka_actor_asks_and_tells_ours_as_if_it_were_one_of_its_own(
    ours: Ref[Any], theirs: pykka.ActorRef[Theirs]
) -> None:
    def conversation(_actor: Theirs) -> list[Any]:
        ours.tell("unheard")
        future = ours.ask("later", block=False)
        return [ours.ask("now", timeout=5), ours.ask("now", block=True, timeout=5), future.get(timeout=5)]

    assert theirs.ask(conversation, timeout=5) == ["NOW", "NOW", "LATER"]
    assert pykka.get_all([ours.ask("a", block=False), theirs.ask("b", block=False)], timeout=5) == ["A", "b"]


def test_a_handler_of_ours_asks_a_pykka_actor_while_the_loop_goes_on(
    ours: Ref[Any], theirs: pykka.ActorRef[Theirs], until: Until
) -> None:
    gate = threading.Event()

    def answer_slowly(_actor: Theirs) -> str:
        assert gate.wait(5)
        return "at last"

    ours.tell(Forward(answer_slowly, is_ask=True))
    assert ours.ask("still here?", 5) == "STILL HERE?"
    assert ours.ask(Heard(), 5) == []
    gate.set()
    until(lambda: bool(ours.ask(Heard(), 5)))
    assert ours.ask(Heard(), 5) == ["at last"]


def test_an_ask_that_is_not_answered_in_time_is_an_answer_too(
    ours: Ref[Any], theirs: pykka.ActorRef[Theirs], until: Until
) -> None:
    gate = threading.Event()
    ours.tell(Forward(lambda _actor: gate.wait(5), is_ask=True))
    until(lambda: bool(ours.ask(Heard(), 5)))
    gate.set()
    assert theirs.ask("done", timeout=5) == "done"
    (late,) = ours.ask(Heard(), 5)
    assert isinstance(late, AskTimeout)
    assert "no answer within 0.2 s" in str(late)


def test_what_a_pykka_actor_raises_reaches_our_handler_and_both_go_on(
    ours: Ref[Any], theirs: pykka.ActorRef[Theirs], until: Until
) -> None:
    ours.tell(Forward(ValueError("theirs"), is_ask=True))
    until(lambda: bool(ours.ask(Heard(), 5)))
    (error,) = ours.ask(Heard(), 5)
    assert isinstance(error, ValueError)
    assert theirs.ask("still here?", timeout=5) == "still here?"


def test_what_ours_raises_reaches_the_pykka_actor_that_asked_and_only_ours_ends(
    ours: Ref[Any], theirs: pykka.ActorRef[Theirs]
) -> None:
    with pytest.raises(Exception, match="SystemExit"):
        theirs.ask(lambda _actor: ours.ask("crash", timeout=5), timeout=5)
    assert not ours.is_alive()
    assert theirs.ask("still here?", timeout=5) == "still here?"
    with pytest.raises(pykka.ActorDeadError):
        theirs.ask(lambda _actor: ours.ask("hello", timeout=5), timeout=5)


def test_a_dead_pykka_actor_is_an_exception_in_our_handler(ours: Ref[Any], theirs: pykka.ActorRef[Theirs]) -> None:
    theirs.stop(timeout=5)
    with pytest.raises(pykka.ActorDeadError):
        ask_pykka(theirs, "hello")
    with pytest.raises(pykka.ActorDeadError):
        ours.ask(Forward("hello"), 5)


def test_a_pykka_actor_that_crashes_on_our_tell_does_not_reach_ours(
    ours: Ref[Any], theirs: pykka.ActorRef[Theirs], until: Until
) -> None:
    ours.tell(Forward(ValueError("theirs")))
    until(lambda: not theirs.is_alive())
    assert ours.ask("still here?", 5) == "STILL HERE?"


def test_asyncio_code_awaits_a_pykka_actor(theirs: pykka.ActorRef[Theirs]) -> None:
    async def main() -> list[Any]:
        return [await asyncio.wait_for(ask_pykka(theirs, word), 5) for word in ("one", "two")]

    assert asyncio.run(main()) == ["one", "two"]


def test_pykka_stops_ours_by_its_ref(ours: Ref[Any], theirs: pykka.ActorRef[Theirs]) -> None:
    assert theirs.ask(lambda _actor: ours.stop(block=True, timeout=5), timeout=5) is True
    assert not ours.is_alive()
    assert ours.stop(block=True, timeout=5) is False
    with pytest.raises(ActorDeadError):
        ours.ask("hello", timeout=5)


def test_an_answer_for_an_incarnation_that_has_ended_is_dropped(theirs: pykka.ActorRef[Theirs], until: Until) -> None:
    scheduler = LoopScheduler("test").start()
    system = ActorSystem(scheduler)
    ours, gate = system.spawn(lambda: Ours(theirs), "ours"), threading.Event()
    assert ours.ask(Forward(lambda _actor: gate.wait(5), is_ask=True), 5) == "sent"
    assert ours.stop(block=True, timeout=5)
    gate.set()
    assert theirs.ask("handled", timeout=5) == "handled"
    assert system.shutdown(5)
    assert scheduler.stop(5)
    assert system.dead_letters.counts() == {}


def test_the_example_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("pykka_host", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pykka_host", example)
    spec.loader.exec_module(example)
    example.main()
    assert capsys.readouterr().out.splitlines() == [
        "the till sold 1: 3 left",
        "the stock asked the till: 1 sold",
        "the stock crashed, the till got ValueError('cannot take -1')",
        "the stock was started again: 4 left",
        "the till goes on: 1 sold",
    ]
    assert not pykka.ActorRegistry.get_all()


# -- what README says of Pykka


def test_an_address_is_a_pykka_ref_and_the_answer_to_an_ask_a_pykka_future(ours: Ref[Any]) -> None:
    """That they talk to each other is in the tests above."""
    assert isinstance(ours, Ref)
    assert isinstance(ours, pykka.ActorRef)
    answer = ours.ask("now", block=False)
    assert isinstance(answer, Reply)
    assert isinstance(answer, pykka.Future)
    assert pykka.get_all([answer], timeout=5) == ["NOW"]
    assert answer.map(str.lower).get(timeout=5) == "now"


#: Pykka without its private modules, for whoever imports them by name.
WITHOUT_PRIVATE = """
import sys, pykka
for name in [each for each in sys.modules if each.startswith("pykka._")]:
    sys.modules[name] = None
from callboard import Runtime, Settings
with Runtime(Settings(model="scripted/model", script=["hi"])) as runtime:
    print(runtime.ask_sync("x").text)
"""


@pytest.mark.fresh_interpreter
def test_no_private_name_of_pykka_is_imported_where_nothing_is_asked_of_its_actors() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_PRIVATE], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("hi\n", "")


def test_no_private_name_of_pykka_is_looked_at_when_a_module_is_loaded() -> None:
    rooms = [Path(__file__).parents[3] / room for room in ("actors", "protocol", "providers")]
    files = [path for room in rooms for path in room.rglob("*.py")]
    no_offenders(f"{path}:{line}" for path in files for line in private_at_load(parsed(path)))


def private_at_load(module: ast.AST) -> Iterator[int]:
    """The lines outside of functions where a private name of pykka is imported or read."""
    for node in ast.iter_child_nodes(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        imported = getattr(node, "module", None) or ""
        names = [each.name for each in getattr(node, "names", []) if isinstance(each, ast.alias)]
        of_pykka = [name for name in (f"{imported}.{each}".strip(".") for each in names) if name.startswith("pykka")]
        if any("._" in name for name in of_pykka):
            yield node.lineno  # type: ignore[attr-defined]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and "pykka" in ast.unparse(node.value):
            yield node.lineno
        yield from private_at_load(node)


@pytest.mark.parametrize(
    "line",
    [
        "from pykka._envelope import Envelope",
        "import pykka._ref",
        "from pykka import _actor",
        "x = pykka.Future()._get_hook_result",
        "class A:\n    x = pykka._ref.ActorRef",
    ],
)
def test_such_a_name_is_seen(line: str) -> None:
    assert list(private_at_load(ast.parse(line)))
    indented = line.replace("\n", "\n    ")
    assert not list(private_at_load(ast.parse(f"def later():\n    {indented}")))
