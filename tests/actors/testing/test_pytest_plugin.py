"""The pytest plugin, in a pytest of its own: what it plays, what a failure says, and that it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from callboard.actors.testing.pytest_plugin import conversations, scenario_of
from callboard.protocol.testing import Scenario

pytest_plugins = ("pytester",)

MODULE = "callboard.actors.testing.pytest_plugin"
ROOT = Path(__file__).parents[3]

PLAYED = """
from pathlib import Path
from callboard.actors.testing.pytest_plugin import conversations
from callboard.protocol.testing import Scenario

@conversations(20)
def test_plays(scenario, seed, tmp_path_factory, request):
    assert isinstance(scenario, Scenario)
    assert request.node.name == "test_plays"
    with open("seeds", "a") as file:
        file.write(f"{seed} ")
    assert seed != 7, "the seventh breaks"
"""


@pytest.fixture(autouse=True)
def _named_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin is named on the command line: whether this tree is installed makes no difference."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", MODULE, "--strict-markers", "-p", "no:cacheprovider", *arguments)


def test_an_installed_callboard_brings_it_along() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options.entry_points"]["pytest11"].strip() == f"callboard = {MODULE}"
    # setup.py takes all packages below actors/ (.ci/check_wheel.py compares the wheel with the tree).
    folder = ROOT.joinpath(*MODULE.split(".")[1:-1])
    assert (folder / "__init__.py").is_file()
    assert folder.parent == ROOT / setup["options"]["package_dir"].split("callboard.actors = ")[1].split()[0]


def test_the_first_failure_says_its_seed_and_the_line_that_plays_it_again(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(PLAYED)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "callboard: 1 test plays seeds 0 to 19",
            "*the seventh breaks*",
            "*seed 7: play it again with",
            f"*pytest '{path.name}::test_plays' --callboard-seed 7",
        ]
    )
    assert (pytester.path / "seeds").read_text().split() == [str(seed) for seed in range(8)]


@pytest.mark.parametrize(
    ("arguments", "seeds", "header"),
    [
        (("--callboard-seed", "7"), "7", "callboard: 1 test plays seed 7"),
        (("--callboard-seed=3",), "3", "callboard: 1 test plays seed 3"),
        (("--callboard-conversations", "3"), "0 1 2", "callboard: 1 test plays seeds 0 to 2"),
    ],
)
def test_the_command_line_says_what_is_played(
    pytester: pytest.Pytester, arguments: tuple[str, ...], seeds: str, header: str
) -> None:
    pytester.makepyfile(PLAYED)
    result = run(pytester, *arguments)
    result.assert_outcomes(failed=int("7" in seeds), passed=int("7" not in seeds))
    result.stdout.fnmatch_lines([header])
    assert (pytester.path / "seeds").read_text().split() == seeds.split()


def test_the_marker_and_the_fixture_without_the_decorator(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.callboard_seeds(3, first=5)
        def test_marked(callboard_seeds):
            assert list(callboard_seeds) == [5, 6, 7]

        def test_unmarked(callboard_seeds):
            assert len(callboard_seeds) == 100
        """
    )
    run(pytester).assert_outcomes(passed=2)


def test_pytest_fail_says_its_seed_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from callboard.actors.testing.pytest_plugin import conversations

        @conversations(3, first=40)
        def test_fails(seed):
            pytest.fail("no good")
        """
    )
    run(pytester).stdout.fnmatch_lines(["*no good*", "*--callboard-seed 40"])


def test_bad_numbers_are_refused(pytester: pytest.Pytester) -> None:
    for arguments in (("--callboard-conversations", "0"), ("--callboard-seed", "x")):
        run(pytester, *arguments).stderr.fnmatch_lines([f"*argument {arguments[0]}: invalid*value: '{arguments[1]}'"])


def test_runs_without_conversations_do_not_mention_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_other(): pass")
    result = run(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*callboard: *")


@pytest.mark.fresh_interpreter
def test_loading_it_imports_no_more_of_callboard_than_its_front_door() -> None:
    listing = f"import sys, pytest, {MODULE}; print(*sorted(m for m in sys.modules if m.startswith('callboard.')))"
    loaded = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    front_door = ["callboard.protocol", "callboard.protocol.errors", "callboard.protocol.lazy_loading"]
    assert loaded == ["callboard.actors", "callboard.actors.testing", MODULE, *front_door]


def test_only_functions_that_take_a_conversation_are_played() -> None:
    def takes_nothing() -> None: ...

    async def is_async(seed: int) -> None: ...

    for wrong in (takes_nothing, is_async):
        with pytest.raises(TypeError, match=f"{wrong.__name__}: @conversations plays a `def`"):
            conversations(3)(wrong)


def test_a_seed_is_a_scenario() -> None:
    assert isinstance(scenario_of(5), Scenario)
    assert scenario_of(5) == scenario_of(5)
