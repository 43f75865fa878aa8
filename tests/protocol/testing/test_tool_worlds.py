"""`check_tool`: a tool that doubles what it does outside where it is repeated (`world=`), and what each call of a
process tool finds anew."""

from __future__ import annotations

import asyncio
import importlib
import re
import sqlite3
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from callboard.actors.tools import ToolContext, tool
from callboard.protocol.testing import check_tool


class Outside:
    """A place outside of the process that calls the tool, which is told an effect and its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = str(folder / "rows.sqlite")
        with closing(sqlite3.connect(self.database)) as rows:
            rows.execute("CREATE TABLE payments (effect TEXT)")
            rows.commit()

    def read_folder(self) -> list[str]:
        return sorted(each.name for each in self.folder.glob("*.txt"))

    def read_sizes(self) -> dict[str, int]:
        return {each.name: each.stat().st_size for each in self.folder.glob("*.txt")}

    def read_rows(self) -> list[tuple[str]]:
        with closing(sqlite3.connect(self.database)) as rows:
            return sorted(rows.execute("SELECT effect FROM payments"))

    async def read_later(self) -> int:
        await asyncio.sleep(0)
        return len(self.read_rows())

    def log(self, line: str) -> None:
        with Path(self.folder, "log.txt").open("a") as log:
            log.write(f"{line}\n")

    def insert(self, effect: str, unless: str = "") -> None:
        with closing(sqlite3.connect(self.database)) as rows:
            rows.execute(f"INSERT INTO payments SELECT ? {unless}", (effect,))
            rows.commit()


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


ONCE = "WHERE NOT EXISTS (SELECT 1 FROM payments WHERE effect = ?1)"


def paying(outside: Outside, pay: Callable[[Outside, str], object]) -> Any:
    def tool_of_it(amount: int, context: ToolContext) -> str:
        """Pay."""
        pay(outside, f"{context.effect_id}")
        return "paid"

    return tool(effect="repeat")(tool_of_it)


@pytest.mark.parametrize(
    ("pay", "world"),
    [
        (lambda outside, effect: outside.insert(effect), "read_rows"),
        (lambda outside, effect: outside.insert(effect), "read_later"),
        (lambda outside, effect: outside.insert("the same"), "read_later"),
        (lambda outside, effect: Path(outside.folder, f"{uuid.uuid4()}.txt").touch(), "read_folder"),
        (lambda outside, effect: outside.log("paid"), "read_sizes"),
        (lambda outside, effect: Path(outside.folder, f"{time.monotonic_ns()}.txt").write_text(effect), "read_sizes"),
    ],
)
def test_an_effect_that_is_doubled_outside_is_found(
    outside: Outside, pay: Callable[[Outside, str], object], world: str
) -> None:
    paid = paying(outside, pay)
    with pytest.raises(AssertionError, match=r'has effect="repeat", but a second call changes the world from .* to .*'):
        check_tool(paid, examples=5, world=getattr(outside, world))
    check_tool(paid, examples=5)  # nothing says so without it


@pytest.mark.parametrize("world", ["read_rows", "read_later"])
def test_one_that_knows_its_effect_by_its_id_passes(outside: Outside, world: str) -> None:
    paid = paying(outside, lambda there, effect: there.insert(effect, ONCE))
    check_tool(paid, examples=20, world=getattr(outside, world))
    assert len(outside.read_rows()) > 5


def test_the_same_object_that_has_changed_is_seen() -> None:
    live: list[int] = []

    @tool(effect="repeat")
    def appends(n: int) -> int:
        """Append to what the world shows as it is."""
        live_of_all()[0].append(n)
        return n

    def live_of_all() -> tuple[list[int]]:
        return (live,)

    with pytest.raises(AssertionError, match="a second call changes the world"):
        check_tool(appends, examples=5, world=lambda: live)


class Uncompared:
    """Equal to nothing but itself, as most objects."""


@pytest.mark.parametrize(
    "given",
    [Uncompared(), [Uncompared()], (n for n in ""), threading.Lock()],
    ids=["object", "list", "generator", "lock"],
)
def test_a_world_that_cannot_be_compared_accuses_no_tool(given: object) -> None:
    @tool(effect="repeat")
    def same(n: int) -> int:
        """Give it back."""
        return n

    with pytest.raises(AssertionError, match=r"cannot be judged: world\(\) gives .*; it must give what can be copied"):
        check_tool(same, examples=5, world=lambda: given)


def test_a_world_that_cannot_be_read_is_said_in_one_sentence() -> None:
    def broken() -> object:
        raise OSError("no such server")

    @tool(effect="repeat")
    def same(n: int) -> int:
        """The same."""
        return n

    with pytest.raises(AssertionError, match=r"cannot be judged: world\(\) raised OSError: no such server") as caught:
        check_tool(same, examples=5, world=broken)
    assert "\n" not in str(caught.value)


# What each call of a process tool finds anew.

SEEDED = {
    "random.Random(42)": "import random\nrolls = random.Random(42)",
    "Random(x=7)": "from random import Random\nrolls = Random(x=7)",
    "random.seed('a')": "import random\nrandom.seed('a')",
    "np.random.default_rng(seed=3)": "import numpy as np\nrolls = np.random.default_rng(seed=3)",
    "RandomState(1)": "from numpy.random import RandomState\nif True:\n    rolls = [RandomState(1)]",
    "the counter 'numbers'": "import itertools\nnumbers = itertools.count(1)",
}
UNSEEDED = {
    "random.Random()": "import random\nrolls = random.Random()",
    "a None": "import random\nrolls = random.Random(None)",
    "in the function": "import random\ndef roll():\n    return random.Random(42)",
    "of the system": "import random\nrolls = random.SystemRandom()",
}


def dice(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Callable[..., Any]:
    name = f"dice_{uuid.uuid4().hex}"
    (folder / f"{name}.py").write_text(
        f'{text}\n\n\ndef draw(word: str) -> str:\n    """Draw one."""\n    return word\n'
    )
    monkeypatch.syspath_prepend(folder)
    function: Callable[..., Any] = importlib.import_module(name).draw
    return function


@pytest.mark.parametrize("what", SEEDED)
def test_what_gives_each_call_the_same_is_warned_of(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = dice(tmp_path, monkeypatch, SEEDED[what])
    with pytest.warns(UserWarning, match=f"^draw: .*{re.escape(what)}.* gives all calls the same; make it in the func"):
        check_tool(draw, examples=1)


@pytest.mark.parametrize("what", UNSEEDED)
def test_what_is_seeded_again_is_not(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = dice(tmp_path, monkeypatch, UNSEEDED[what])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_tool(draw, examples=1)


def test_a_tool_that_keeps_its_process_is_not_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = dice(tmp_path, monkeypatch, SEEDED["random.Random(42)"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_tool(tool(reuse=True)(draw), examples=1)
        check_tool(tool(isolation="thread")(draw), examples=1)
