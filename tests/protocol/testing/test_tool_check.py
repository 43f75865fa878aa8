"""`check_tool`: each of these faulty tools is found and told in one sentence, and sound tools pass."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field
from typing_extensions import TypedDict

from callboard.actors.tools import ToolContext, tool
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import ToolName
from callboard.protocol.testing import check_tool
from callboard.protocol.testing.tool_check import definition_of
from callboard.protocol.tools import ToolDefinition

EXAMPLE = Path(__file__).parents[3] / "examples" / "test_my_tool.py"


class Unit(StrEnum):
    KM = "km"
    MILES = "miles"


class Place(BaseModel):
    city: str = Field(min_length=1, max_length=9)
    near: list[Place] = Field(default=[], max_length=2)


class Weather(TypedDict):
    degrees: int
    words: str


# Sound tools.


def drive_to(
    place: Place,
    unit: Unit,
    mode: Literal["car", "bike"],
    days: Annotated[int, Field(gt=0, le=7)],
    share: Annotated[float, Field(ge=0, lt=1)],
    even: Annotated[int, Field(multiple_of=2)] = 0,
    note: str | None = None,
    code: Annotated[str, Field(pattern="^[a-z]{3}$")] = "abc",
) -> dict[str, float]:
    """How far it is."""
    assert place.city
    assert 0 < days <= 7
    assert 0 <= share < 1
    assert even % 2 == 0
    return {"share": share / days}


async def wait_for(seconds: Annotated[int, Field(ge=0, le=3)]) -> str:
    """Wait."""
    await asyncio.sleep(0.001)
    if seconds > 2:
        raise ToolError("too long")
    return "x" * seconds


def tidy(x: int) -> int:
    """Prints, opens a file and runs a program, and leaves nothing of it."""
    sys.stdout.write("a word to nobody\n")
    with open(os.devnull):
        subprocess.run(["true"], check=True)
    return x


POOL = ThreadPoolExecutor(4)


def pooled(x: int) -> int:
    """Has one pool of threads for all its calls, made at the first of them."""
    return POOL.submit(abs, x).result()


DONE: dict[str, int] = {}


@tool(effect="repeat")
def once(x: int, context: ToolContext) -> int:
    """Has its effect once for an effect id."""
    return DONE.setdefault(context.effect_id, len(DONE))


def share_of(total: Annotated[float, Field(ge=0, le=100)]) -> float:
    """A share: an int is a float to Python's types."""
    return 0 if total == 0 else total / 100


@pytest.mark.parametrize("sound", [drive_to, wait_for, tidy, pooled, once, share_of])
def test_a_sound_tool_passes(sound: Any) -> None:
    check_tool(sound, examples=40)


# Faulty ones: (tool, what is said).


def forgets_zero(people: int) -> float:
    """Share."""
    return 100 / people


def knows_atlantis(city: str, days: int) -> int:
    """Weather."""
    return 1 // 0 if city == "Atlantis" else days


FORBIDDEN = {"Mordor"}


def _far(place: Place) -> bool:
    return any(near.city in FORBIDDEN for near in place.near)


def knows_mordor(place: Place) -> int:
    """Weather."""
    return 1 // 0 if _far(place) else 1


def knows_a_number(n: int) -> int:
    """A number."""
    return 1 // 0 if n == 4711 else n


def knows_a_pair(city: str, n: int) -> int:
    """Both."""
    return 1 // 0 if city == "Atlantis" and n > 1_000 else n


def forgets_a_member(unit: Unit) -> int:
    """A unit."""
    return {Unit.KM: 1}[unit]


def fears_long_texts(text: str) -> int:
    """A text."""
    return 1 // (0 if len(text) > 2_000 else 1)


def no_json(name: str) -> Any:
    """A thing."""
    return object()


def far_too_much(times: Annotated[int, Field(ge=1, le=2)]) -> str:
    """Much."""
    return "x" * 1_100_000


def undocumented(x: int) -> int:
    return x


def number_as_text(x: int) -> int:
    """A number."""
    return "1"  # type: ignore[return-value]


def sometimes_nothing(x: int) -> str:
    """A word."""
    return None if x == 77 else ""  # type: ignore[return-value]


def half_a_dict(x: int) -> Weather:
    """Weather."""
    return {"degrees": x}  # type: ignore[typeddict-item]


def no_number(x: float) -> dict[str, list[float]]:
    """Numbers."""
    return {"of": [x, math.nan if x > 1 else x]}


def endless(x: Annotated[float, Field(ge=1)]) -> float:
    """A large number."""
    return x * 1e308 * 10


@tool
def asks_the_runtime(x: int, context: ToolContext) -> float:
    """Takes a context, which is no argument of its schema."""
    return context.remaining_seconds / x


class SaysOtherwise:
    """A tool whose definition is of another function."""

    definition = ToolDefinition(ToolName("says"), "x", {"type": "object", "properties": {}})

    @staticmethod
    def function(y: int) -> int:
        return y

    def __call__(self) -> None: ...


class _Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _UnreadableToolError(ToolError):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def unreadable(x: int) -> int:
    """Raises."""
    raise _Unreadable


def unreadable_to_the_model(x: int) -> int:
    """Raises."""
    raise _UnreadableToolError


def leaves(how: bool) -> str:
    """Leave."""
    raise SystemExit(3)


async def interrupts(x: int) -> int:
    """Interrupt."""
    raise KeyboardInterrupt


async def says_cancelled(x: int) -> int:
    """Not cancelled by anybody."""
    raise asyncio.CancelledError


def exits(x: int) -> int:
    """Exit."""
    os._exit(3)


def crashes(x: int) -> int:
    """Crash."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return x


COUNT = [0]
SENT: list[str] = []


@tool(effect="repeat")
def counts(x: int) -> int:
    """Gives another result each time."""
    COUNT[0] += 1
    return COUNT[0]


@tool(effect="repeat")
def sends(to: str) -> str:
    """Sends each time."""
    SENT.append(to)
    return "sent"


@tool(effect="repeat")
def grows(x: int) -> list[str]:
    """Gives out its own list, and adds to it."""
    SENT.append("x")
    return SENT


@tool(effect="repeat")
def once_only(to: str) -> str:
    """Refuses the second time."""
    if to in SENT:
        raise ToolError("it was sent already")
    SENT.append(to)
    return "sent"


KEPT: list[Any] = []


async def leaves_a_task(x: int) -> int:
    """Task."""
    KEPT.append(asyncio.create_task(asyncio.Event().wait()))
    return x


def leaves_a_thread(x: int) -> int:
    """Thread."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return x


def leaves_a_file(x: int) -> int:
    """File."""
    KEPT.append(open(os.devnull))  # noqa: SIM115
    return x


def leaves_a_socket(x: int) -> int:
    """Socket, in a rare branch."""
    if x > 100:
        KEPT.append(socket.socket())
    return x


def sets_a_variable(x: int) -> int:
    """Sets."""
    os.environ.setdefault("LEFT_BY_A_TOOL", "hunter2")
    return x


def changes_variables(x: int) -> int:
    """Changes."""
    os.environ["HOME"] = "/nowhere"
    del os.environ["PATH"]
    return x


def puts_it_back(x: int) -> int:
    """As it was."""
    home = os.environ["HOME"]
    os.environ["HOME"] = "/nowhere"
    os.environ["HOME"] = home
    return x


def test_a_tool_may_change_the_environment_for_a_while() -> None:
    check_tool(puts_it_back, examples=20)


def leaves_a_process(x: int) -> int:
    """Child process."""
    KEPT.append(subprocess.Popen(["sleep", "60"]))
    return x


def leaves_an_orphan(x: int) -> int:
    """Child process of a child process."""
    subprocess.run("sleep 60 &", shell=True, check=True)
    return x


async def swallows(x: int) -> int:
    """Will not be cancelled."""
    try:
        await asyncio.sleep(0.001)
    except asyncio.CancelledError:
        return -1
    return x


async def goes_on(x: int) -> int:
    """Goes on."""
    try:
        await asyncio.sleep(0.001)
    except asyncio.CancelledError:
        await asyncio.sleep(30)
        raise
    return x


async def renames(x: int) -> int:
    """Cancelled as a failure of another kind."""
    try:
        await asyncio.sleep(0.001)
    except asyncio.CancelledError as error:
        raise ValueError("gone") from error
    return x


@pytest.mark.parametrize(
    ("faulty", "told"),
    [
        (forgets_zero, r'forgets_zero\(\{"people":0\}\) raised ZeroDivisionError'),
        (knows_atlantis, r'\(\{"city":"Atlantis","days":0\}\) raised ZeroDivisionError'),
        (knows_mordor, r'\{"city":"Mordor".*raised ZeroDivisionError'),
        (knows_a_number, r'\(\{"n":4711\}\) raised ZeroDivisionError'),
        (knows_a_pair, r'"city":"Atlantis","n":100[01]\}\) raised ZeroDivisionError'),
        (forgets_a_member, r'\(\{"unit":"miles"\}\) raised KeyError'),
        (fears_long_texts, r"raised ZeroDivisionError"),
        (no_json, "which is no JSON"),
        (far_too_much, "at most 1000000 are sent"),
        (undocumented, "has no description"),
        (number_as_text, "returned '1', which is not what it declares"),
        (sometimes_nothing, r'\(\{"x":77\}\) returned None, which is not what it declares'),
        (half_a_dict, "not what it declares: words: Field required"),
        (no_number, "JSON has no nan"),
        (endless, "JSON has no inf"),
        (asks_the_runtime, r'asks_the_runtime\(\{"x":0\}\) raised ZeroDivisionError'),
        (SaysOtherwise(), "cannot be called: y: Missing required argument"),
        (unreadable, "raised _Unreadable, whose text cannot be read: its __str__ raises RuntimeError"),
        (unreadable_to_the_model, "raised _UnreadableToolError, whose text cannot be read"),
        (leaves, r"leaves\(.*\) raised SystemExit: 3"),
        (interrupts, "raised KeyboardInterrupt"),
        (says_cancelled, "raised CancelledError"),
        (exits, "ended its process: exit status 3"),
        (crashes, "ended its process: signal SIGSEGV"),
        (counts, 'has effect="repeat", but gives 1 at first and 2 when called again'),
        (sends, r"has effect=.repeat., but a second call changes SENT from \[''\] to \['', ''\]"),
        (grows, r'has effect="repeat", but gives .* when called again'),
        (once_only, "but returns a result at first and raises ToolError when called again"),
        (leaves_a_task, r"leaves an asyncio task behind at each call: Task-\d+ \(Event.wait\)"),
        (leaves_a_thread, "leaves a thread behind at each call"),
        (leaves_a_file, "leaves an open file or socket behind at each call: .*null"),
        (leaves_a_socket, r'\(\{"x":101\}\) leaves an open file or socket behind at each call: .*socket'),
        (sets_a_variable, r"changes os.environ, .*: it sets LEFT_BY_A_TOOL; call it again"),
        (changes_variables, "changes os.environ, .*: it changes HOME, deletes PATH; call it again"),
        (leaves_a_process, "leaves a child process behind"),
        (leaves_an_orphan, "leaves a child process behind"),
        (swallows, "swallows its cancellation: it was cancelled, and returned a result"),
        (goes_on, "goes on for more than 0.5 s after it was cancelled"),
        (renames, "turns its cancellation into ValueError: gone"),
    ],
)
def test_a_faulty_tool_is_found(faulty: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told) as caught:
        check_tool(faulty)
    assert "\n" not in str(caught.value)


# Time.


def loops(n: int) -> int:
    """Loops."""
    while n == 12:
        pass
    return n


def sleeps(n: int) -> int:
    """Sleeps."""
    time.sleep(1_000 if n == 12 else 0)
    return n


def backtracks(text: str) -> bool:
    """Holds the interpreter's lock for as long as the universe lasts."""
    return re.match(r"(a+)+$", "a" * 50 + "b") is None if text else True


@tool(timeout=0.2)
def is_late(n: int) -> int:
    """Takes longer than it says."""
    if n == 12:
        time.sleep(1_000)
    return n


@pytest.mark.parametrize(
    ("slow", "told"),
    [
        (loops, r'loops\(\{"n":12\}\) did not return within 0.5 s \(call_seconds\)'),
        (sleeps, r'sleeps\(\{"n":12\}\) did not return within 0.5 s'),
        (backtracks, "did not return within 0.5 s"),
        (is_late, r'is_late\(\{"n":12\}\) did not return within its own timeout of 0.2 s'),
    ],
)
def test_a_tool_that_hangs_is_found_and_ended(slow: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_tool(slow, examples=20, call_seconds=0.5)


def test_the_whole_check_has_a_limit_too() -> None:
    def slow(n: int) -> int:
        """Slow, but not too slow."""
        time.sleep(0.1)
        return n

    with pytest.raises(AssertionError, match=r"slow: only \d calls could be made within 0.5 s, too few to tell"):
        check_tool(slow, examples=1_000_000, seconds=0.5)


# What is not reached proves nothing.


def picky(day: Annotated[str, AfterValidator(lambda day: date.fromisoformat(day).isoformat())]) -> str:
    """Its validator is stricter than its schema."""
    return day[100] if day.endswith("-29") else day


def test_a_body_that_was_never_reached_is_not_passed() -> None:
    with pytest.raises(AssertionError, match=r"picky: none of \d+ calls reached the tool's body \(day: .*arguments="):
        check_tool(picky)
    check_tool(picky, arguments=[{"day": "2024-02-28"}])
    with pytest.raises(AssertionError, match=r'picky\(\{"day":"2024-02-29"\}\) raised IndexError'):
        check_tool(picky, arguments=[{"day": "2024-02-29"}])


# The line that makes the call again.


@pytest.mark.parametrize(
    "found",
    [forgets_zero, asks_the_runtime, knows_mordor, interrupts, knows_atlantis],
    ids=lambda tool: getattr(tool, "name", "") or tool.__name__,
)
def test_the_line_makes_the_call_again(found: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        check_tool(found)
    line = str(caught.value).split("call it again: ")[1]
    with pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
        eval(line, {**globals(), "pydantic": __import__("pydantic"), "found": found})


def test_the_tests_own_world_is_left_alone() -> None:
    seen: list[int] = []

    def remembers(x: int) -> int:
        """Remembers."""
        seen.append(x)
        return len(seen)

    threads = set(threading.enumerate())
    check_tool(remembers, examples=10)
    assert seen == []
    assert set(threading.enumerate()) <= threads


def test_a_tool_may_bring_its_definition() -> None:
    @dataclass
    class Bare:
        definition: ToolDefinition

        @staticmethod
        def function() -> None: ...

        def __call__(self, **arguments: Any) -> Any:
            return arguments

    bad_name = Bare(ToolDefinition(ToolName("no spaces please"), "x"))
    assert definition_of(bad_name) is bad_name.definition
    with pytest.raises(AssertionError, match="no name that all providers take"):
        check_tool(bad_name)


def test_a_tool_that_has_no_schema_is_told() -> None:
    def odd(x: threading.Lock) -> int:  # type: ignore[valid-type]
        """Takes a lock."""
        return 1

    with pytest.raises(AssertionError, match=r"odd.* cannot be described to a model: "):
        check_tool(odd)


def test_the_example_finds_its_planted_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("test_my_tool", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "test_my_tool", module)
    spec.loader.exec_module(module)
    module.main()
    assert capsys.readouterr().out.splitlines() == [
        'found: split_bill({"total_cents":0,"people":0}) raised ZeroDivisionError: integer division or modulo by zero; '
        "call it again: split_bill(**{'total_cents': 0, 'people': 0})",
        "split_bill_fairly: nothing found",
    ]


# What a tool keeps open.


def opens() -> Iterator[list[str]]:
    yield ["a pool"]


async def opens_later() -> AsyncIterator[list[str]]:
    yield ["a pool"]


@tool(resource=opens)
def looks(name: str, resource: list[str]) -> bool:
    """Look for a name."""
    return name in resource


@tool(resource=opens_later)
async def looks_later(name: str, context: ToolContext, resource: list[str]) -> int:
    """Look for a name."""
    await asyncio.sleep(0)
    return len(resource) // len(name)


def test_it_is_opened_for_each_call() -> None:
    check_tool(looks, examples=5)
    with pytest.raises(AssertionError, match=r"looks_later.alone\(\*\*\{'name': ''\}"):
        check_tool(looks_later, examples=5)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(looks_later.alone(name=""))
