"""A pytest plugin for tests that play seeded conversations: it needs the extra `testing` and nothing else.

    from callboard.actors.testing.pytest_plugin import conversations

    @conversations(200)
    def test_my_runtime(scenario, seed):
        assert not violations(my_runtime(scenario, seed))

plays 200 scenarios. The first that fails says its seed, and `pytest --callboard-seed SEED` plays that one alone.
pytest loads this module in each run where callboard is installed, so it imports nothing of callboard at its top.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from callboard.protocol.testing.scenario import Scenario

#: Conversations of a test that does not say how many.
DEFAULT_CONVERSATIONS: Final = 100
_MARKER: Final = "callboard_seeds"


def conversations(count: int = DEFAULT_CONVERSATIONS, *, first: int = 0) -> Callable[[Callable[..., None]], Any]:
    """Make `def test_x(scenario, seed, ...)` a test that plays `count` seeded scenarios, from the seed `first` on.

    `scenario` and `seed` are filled in, all other parameters are fixtures as always, made once for all conversations.
    Raises TypeError for a function that takes neither, or is an `async def`.
    """

    def decorate(function: Callable[..., None]) -> Any:
        from callboard.protocol.annotation_reading import signature_of  # noqa: PLC0415 - nothing of callboard at its top

        parameters = signature_of(function).parameters
        given = {"scenario", "seed"} & parameters.keys()
        if not given or inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__name__}: @conversations plays a `def` that takes `scenario`, `seed` or both")

        @wraps(function)
        def played(callboard_seeds: Sequence[int], request: pytest.FixtureRequest, **fixtures: Any) -> None:
            own = {"request": request} if "request" in parameters else {}
            for seed in callboard_seeds:
                values = {"scenario": scenario_of(seed) if "scenario" in given else None, "seed": seed}
                try:
                    function(**{name: values[name] for name in given}, **own, **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(_replay_line(request.node.nodeid, seed))
                    raise

        shown = [parameter for name, parameter in parameters.items() if name not in {*given, "request"}]
        asked = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("callboard_seeds", "request")]
        named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in shown]
        played.__signature__ = inspect.Signature([*named, *asked])  # type: ignore[attr-defined]
        return getattr(pytest.mark, _MARKER)(count, first)(played)

    return decorate


def scenario_of(seed: int) -> Scenario:
    """The Scenario of a seed."""
    from callboard.protocol.testing import generator  # noqa: PLC0415 - needless in the other sessions of pytest

    return generator.scenario(seed)


@pytest.fixture
def callboard_seeds(request: pytest.FixtureRequest) -> Sequence[int]:
    """The seeds that this test plays: of its marker `callboard_seeds(n, first=0)`, and of the command line."""
    return _seeds(request.node, request.config)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options, both of the command line alone."""
    group = parser.getgroup("callboard", "callboard: seeded conversations")
    group.addoption(
        "--callboard-seed", type=int, metavar="SEED", help="play the conversation of this seed alone, in each test"
    )
    group.addoption(
        "--callboard-conversations", type=_count, metavar="N", help="N conversations a test, not the number it asks for"
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker, for --strict-markers."""
    config.addinivalue_line("markers", f"{_MARKER}(n, first=0): the test plays n seeded conversations of callboard")


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Above the results, which seeds are played; nothing where no test plays any."""
    players = [item for item in items if item.get_closest_marker(_MARKER) is not None]
    if not players:
        return []
    seeds = {seed for item in players for seed in _seeds(item, config)}
    span = f"seed {min(seeds)}" if len(seeds) == 1 else f"seeds {min(seeds)} to {max(seeds)}"
    return [f"callboard: {len(players)} {'test plays' if len(players) == 1 else 'tests play'} {span}"]


def _seeds(item: Any, config: pytest.Config) -> Sequence[int]:
    alone = config.getoption("--callboard-seed")
    if alone is not None:
        return [alone]
    marker = item.get_closest_marker(_MARKER)
    count, first = _marked(*marker.args, **marker.kwargs) if marker is not None else _marked()
    return range(first, first + (config.getoption("--callboard-conversations") or count))


def _marked(n: int = DEFAULT_CONVERSATIONS, first: int = 0) -> tuple[int, int]:
    return n, first


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _replay_line(test: str, seed: int) -> str:
    return f"seed {seed}: play it again with\n    pytest '{test}' --callboard-seed {seed}"
