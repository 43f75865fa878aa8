"""A pytest plugin of `benchmarks/mutants.py`: records which test runs which line, or runs the tests it is given.

It gets its orders as a JSON file, named by the environment variable MUTANTS_ORDERS:

    {"record": "FOLDER"}                                    # writes FOLDER/coverage (contexts: node ids) and tests.json
    {"tests": ["NODE ID", ...], "module": "callboard.x", "file": "/copy/x.py", "text": "the mutant's whole source",
     "running": "/a/file"}                                  # gets the time (monotonic) at which the last test began
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import hypothesis
import pytest

from mutation.kit import NOT_THE_MUTANT


class Recorder:
    """Coverage of every line by every test, and how long each test took: seconds, None when it failed."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        layers = [str(root / layer) for layer in ("protocol", "providers", "actors")]
        self._coverage = coverage.Coverage(data_file=str(folder / "coverage"), source=layers, config_file=False)
        warnings = ["no-data-collected", "module-not-imported"]  # a file of tests need not run any source
        self._coverage.set_option("run:disable_warnings", warnings)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        result = yield
        self._coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        taken = {test: None if test in self._failed else round(time, 4) for test, time in self._seconds.items()}
        (self._folder / "tests.json").write_text(json.dumps(taken, indent=0))


class Chosen:
    """Only the tests of the list, in its order, against a module that is known to be the mutant."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders = orders

    def pytest_sessionstart(self) -> None:
        """The mutant is what `import` finds: else every figure would be worth nothing.

        A mutant that cannot be imported is killed by any test, so its error is left for the tests to meet.
        """
        spec = importlib.util.find_spec(self._orders["module"])
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != Path(self._orders["file"]):
            pytest.exit(
                f"{self._orders['module']} is not the mutant but {spec and spec.origin}", returncode=NOT_THE_MUTANT
            )

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The names of a test's parameters may be the mutant's: then all of that test's runs take their place."""
        found = {item.nodeid: item for item in items}
        wanted = set(self._orders["tests"])
        renamed = {test.split("[")[0] for test in self._orders["tests"] if test not in found}
        chosen = [found[test] for test in self._orders["tests"] if test in found]
        items[:] = chosen + [
            item for item in items if item.nodeid not in wanted and item.nodeid.split("[")[0] in renamed
        ]

    def pytest_runtest_logstart(self) -> None:
        Path(self._orders["running"]).write_text(str(time.monotonic()))

    def pytest_sessionfinish(self) -> None:
        """Once more, after the run: what was imported has the mutant's text."""
        module = sys.modules.get(self._orders["module"])
        if module is not None and inspect.getsource(module) != self._orders["text"]:
            pytest.exit(f"{self._orders['module']} was imported from {module.__file__}", returncode=NOT_THE_MUTANT)


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis: the same examples in every run, and no time spent on the smallest example."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    slow = (hypothesis.HealthCheck.too_slow,)
    hypothesis.settings.register_profile(
        "mutants", database=None, deadline=None, phases=phases, suppress_health_check=slow
    )
    hypothesis.settings.load_profile("mutants")
    orders = json.loads(Path(os.environ["MUTANTS_ORDERS"]).read_text())
    if "record" in orders:
        config.pluginmanager.register(Recorder(Path(orders["record"]), config.rootpath))
    else:
        config.pluginmanager.register(Chosen(orders))
