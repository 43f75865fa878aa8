"""Random numbers of calls: what no one has seeded differs from call to call, what was given a seed does not."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from callboard.actors.processes.child import watching_generators
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools.decorator import Tool, tool
from callboard.protocol.events import ToolCallCompleted

GENERATORS = """
import random
import numpy as np

class Dice(random.Random):
    def roll(self):
        return self.random()

class Unhashable(random.Random):
    def __eq__(self, other):
        return self is other
    __hash__ = None

class Fixed(random.Random):
    def seed(self, a=None, version=2):
        super().seed(7)

class Shop:
    numbers = random.Random()

def _closure():
    numbers = random.Random()
    return lambda: numbers.random()

_reseeded, _given = random.Random(42), random.Random()
_reseeded.seed()
_given.seed("a name")

UNSEEDED = {
    "module": random.Random().random,
    "of a subclass": Dice().roll,
    "not hashable": Unhashable().random,
    "of a class": Shop.numbers.random,
    "in a closure": _closure(),
    "seeded again by the system": _reseeded.random,
    "the hidden one": random.random,
    "of the system": random.SystemRandom().random,
    "numpy": np.random.default_rng().random,
    "numpy, another generator": np.random.Generator(np.random.Philox()).random,
    "numpy, legacy": np.random.RandomState().random,
    "numpy, the global one": np.random.random,
}
SEEDED = {
    "with a number": random.Random(42).random,
    "with 0": random.Random(0).random,
    "later": _given.random,
    "by its class": Fixed().random,
    "numpy": np.random.default_rng(42).random,
    "numpy, legacy": np.random.RandomState(7).random,
}
"""
DRAWS = """
def draw() -> dict[str, dict[str, float]]:
    "Draw a number of each."
    drawn = {"unseeded": UNSEEDED, "seeded": SEEDED}
    return {kind: {name: float(draw()) for name, draw in draws.items()} for kind, draws in drawn.items()}
"""


@pytest.fixture(scope="module")
def stage() -> Iterator[ToolStage]:
    with ToolStage() as running:
        yield running


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    folder = tmp_path_factory.mktemp("modules")
    Path(folder, "shop_of_numbers.py").write_text(GENERATORS + DRAWS)
    sys.path.insert(0, str(folder))
    import shop_of_numbers  # type: ignore[import-not-found]  # noqa: PLC0415

    yield tool(isolation="process")(shop_of_numbers.draw)
    sys.path.remove(str(folder))
    del sys.modules["shop_of_numbers"]


def drawn(stage: ToolStage, drawing: Tool) -> dict[str, dict[str, float]]:
    event = stage.call(drawing)
    assert isinstance(event, ToolCallCompleted), event
    read: dict[str, dict[str, float]] = orjson.loads(event.content)
    return read


def test_calls_share_what_has_a_seed_and_nothing_else(stage: ToolStage, drawing: Tool) -> None:
    calls = [drawn(stage, drawing) for _ in range(4)]
    for name in calls[0]["unseeded"]:
        assert len({call["unseeded"][name] for call in calls}) == 4, name
    for name in calls[0]["seeded"]:
        assert len({call["seeded"][name] for call in calls}) == 1, name


def test_a_generator_that_comes_by_value_is_seeded_in_each_call(stage: ToolStage) -> None:
    """Of a script or a notebook: whether a pickled generator was given a seed cannot be told."""
    script: dict[str, object] = {"__name__": "__main__"}
    exec(
        "import random\nnumbers, fixed = random.Random(), random.Random(42)\n"
        "def draw() -> list[float]:\n    'Draw.'\n"
        "    return [numbers.random(), fixed.random(), random.Random(42).random()]",
        script,
    )
    made = tool(isolation="process")(script["draw"])  # type: ignore[call-overload]
    first, second = (stage.call(made) for _ in range(2))
    assert isinstance(first, ToolCallCompleted)
    assert isinstance(second, ToolCallCompleted)
    pairs = list(zip(orjson.loads(first.content), orjson.loads(second.content), strict=True))
    assert [one == other for one, other in pairs] == [False, False, True]


def test_the_class_is_left_as_it_was_also_where_loading_fails() -> None:
    seed = random.Random.seed
    with pytest.raises(ImportError), watching_generators():  # noqa: PT012
        assert random.Random.seed is not seed
        raise ImportError
    assert random.Random.seed is seed
