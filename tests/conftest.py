"""For all tests: how Hypothesis looks for examples, of what programs are forked, a configuration and a state of their
own, and the end of a test that hangs.

A test that passes its time limit (60 s, see setup.cfg; more where it costs much, or by `@pytest.mark.timeout`) is
failed by pytest-timeout, which shows the stacks of all threads and continues with the next test. That takes Python code
to run in the main thread. Behind it is a backstop that needs none, for C code that never returns and for cleaning up
that hangs as well: it writes all stacks to stderr and ends the process.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import logging
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from support.zygote import Forking

REPOSITORY = Path(__file__).resolve().parents[1]

# A slow machine, or a first run that has yet to write its tables of Unicode, says nothing about the code: examples have
# no time limit of their own, the test has. The database is named, because Hypothesis warns where its own choice cannot
# be written, and warnings are errors here; a named one that cannot be written is left alone.
settings.register_profile(
    "callboard",
    derandomize=False,  # where the variable CI is set, Hypothesis would draw the same examples each time
    max_examples=20,  # of some 190 properties; what they have found is kept as named examples
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=DirectoryBasedExampleDatabase(REPOSITORY / ".hypothesis" / "examples"),
)
# New examples in every run, and none that an earlier run has found: `--hypothesis-seed` alone decides.
settings.register_profile("fresh", settings.get_profile("callboard"), database=None, print_blob=True)
# As many as Hypothesis draws by itself: in the deep stage, and for a change of one part.
settings.register_profile("thorough", settings.get_profile("fresh"), max_examples=100)
# A hundred times as many, however long that takes.
settings.register_profile("deep", settings.get_profile("callboard"), max_examples=10_000)
settings.load_profile("callboard")

#: What each test that costs much costs in seconds, by .ci/measure_tests.py.
COSTS = Path(__file__).parent / "costs.tsv"
#: Those that cost so much are no tests of every day; 14% of all.
SLOW_SECONDS = 0.15
#: Those that cost more than this have a limit of twelve times their cost: on a busy machine one of 13 s took 60.
MUCH_SECONDS = 5.0
#: Hypothesis makes a failing example smaller for up to five minutes. It takes the end of its time for a failure as any
#: other, and goes on; what it has found would be lost with the process.
SHRINKING_SECONDS = 400
#: Marks of tests that run only where `-m` names them.
ASKED_FOR = ("runtimes", "deep")
_NUMBERS = itertools.count()
STDERR_FD = pytest.StashKey[int]()
LIMIT_SECONDS = pytest.StashKey[float]()
FORKING = pytest.StashKey[Forking]()
HOMES = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "backstop_seconds", "how long after its time limit a test may go on before the run ends", default="15"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Of a failing example: as an error it would be told in place of the failure.
    config.addinivalue_line("filterwarnings", "ignore:Generating overly large repr")
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # the real stderr, not the file that takes a test's output
        config.stash[STDERR_FD] = os.dup(2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell: inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[HOMES] = tempfile.TemporaryDirectory(prefix="callboard-homes-", ignore_cleanup_errors=True)
    config.stash[FORKING] = Forking()
    if hasattr(config, "workerinput"):  # one of several processes of a run: some of its tests will start programs
        config.stash[FORKING].start_ahead()


def _set_backstop(config: pytest.Config, seconds: float) -> None:
    grace = float(config.getini("backstop_seconds"))
    faulthandler.dump_traceback_later(seconds + grace, exit=True, file=config.stash[STDERR_FD])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """What the test modules load stays until the end of the run. The garbage collector would look through it again and
    again: a third of the CPU of collecting tests, and half a second in each full collection of a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lines = COSTS.read_text().splitlines() if COSTS.exists() else ()  # a test has a copy of this file alone
    costs = {name: float(cost) for cost, name in (line.split("\t") for line in lines)}
    seconds: Counter[Path] = Counter()
    for item in items:
        cost = costs.get(item.nodeid.partition("[")[0], 0.0)
        seconds[item.path] += cost
        if cost >= SLOW_SECONDS:
            item.add_marker("slow")
        is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)  # its plugin marks it later
        if (is_property or cost > MUCH_SECONDS) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SHRINKING_SECONDS if is_property else 12 * cost))
    asked = config.getoption("markexpr")
    left_out = {mark for mark in ASKED_FOR if mark not in asked}
    kept = [item for item in items if left_out.isdisjoint(mark.name for mark in item.iter_markers())]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept
    # xdist hands files out in this order (--no-loadscope-reorder: its own order is by how many tests there are): those
    # that take long come first, so that no worker begins one of them when the others have nothing left.
    items.sort(key=lambda item: -seconds[item.path])
    if config.getoption("--hypothesis-profile") == "deep":
        for item in items:
            item.add_marker(pytest.mark.timeout(0))


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Called by pytest-timeout for each test with a limit, before it sets its own timer."""
    item.config.stash[LIMIT_SECONDS] = settings.timeout
    _set_backstop(item.config, settings.timeout)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> Iterator[None]:
    """Pytest itself clears the backstop here, for a debugger; cleaning up after the failed test needs it again, also
    where the time is over just now, so that the time limit is raised in the midst of this."""
    try:
        return (yield)
    finally:
        if LIMIT_SECONDS in node.config.stash:
            _set_backstop(node.config, node.config.stash[LIMIT_SECONDS])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.config.stash[FORKING].is_on = item.get_closest_marker("fresh_interpreter") is None
    # What the user has configured decides no test, and what a test saves is neither the user's nor the next test's.
    home = Path(item.config.stash[HOMES].name, str(next(_NUMBERS)))  # made by the test that writes something
    os.environ.pop("CALLBOARD_CONFIG_DIR", None)
    os.environ["XDG_CONFIG_HOME"], os.environ["XDG_STATE_HOME"] = str(home / "config"), str(home / "state")
    named = list(logging.root.manager.loggerDict.items())
    ours = [each for name, each in named if name.startswith("callboard") and isinstance(each, logging.Logger)]
    before = [(each, each.level, each.disabled, each.propagate) for each in (logging.root, *ours)]
    try:
        result = yield
        # Not where a time limit was raised in the midst of pytest: then the run ends, and cleaning up may hang.
        faulthandler.cancel_dump_traceback_later()
        return result
    finally:
        # A program that is run within a test may quiet the log of its process: not that of the next test.
        if logging.root.manager.disable:
            logging.disable(logging.NOTSET)
        for logger, level, disabled, propagate in before:
            if logger.level != level:
                logger.setLevel(level)
            logger.disabled, logger.propagate = disabled, propagate
        if LIMIT_SECONDS in item.config.stash:
            del item.config.stash[LIMIT_SECONDS]


@pytest.fixture
def forking(pytestconfig: pytest.Config) -> Forking:
    """On at the start of each test, unless it is marked `fresh_interpreter`."""
    return pytestconfig.stash[FORKING]


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()  # a person who debugs takes their time


def pytest_unconfigure(config: pytest.Config) -> None:
    """The end of the zygote. Python would wait for a thread that a test has left behind, and the run would not end."""
    faulthandler.cancel_dump_traceback_later()
    config.stash[FORKING].close()
    config.stash[HOMES].cleanup()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        _set_backstop(config, 0.0)
