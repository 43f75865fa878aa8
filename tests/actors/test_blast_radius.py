"""I10, with real processes: one tool dies, every other request ends byte for byte as without it.

The reduced form of benchmarks/blast_radius.py, whose tools and judgement these are.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

REQUESTS = 8


def _benchmark() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "blast_radius.py"
    spec = importlib.util.spec_from_file_location("blast_radius_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()
#: Those that wait for a deadline are left to the benchmark.
QUICK = [death for death in BENCHMARK.DEATHS if "timed_out" not in death.codes and "by and by" not in death.name]


@pytest.fixture(scope="module")
def plain() -> Any:
    return asyncio.run(BENCHMARK.run(BENCHMARK.DEATHS[0], REQUESTS, dying=False))


@pytest.mark.parametrize("death", QUICK, ids=lambda death: f"{death.isolation}-{death.name}".replace(" ", "-"))
def test_one_death_is_one_failed_result(death: Any, plain: Any) -> None:
    seen = asyncio.run(BENCHMARK.run(death, REQUESTS, dying=True))
    assert not BENCHMARK.judge(death, plain, seen)


def test_fifty_grandchildren_go_with_the_tool_that_left_them(plain: Any) -> None:
    (death,) = (death for death in BENCHMARK.DEATHS if death.name == "50 grandchildren")
    seen = asyncio.run(BENCHMARK.run(death, REQUESTS, dying=True))
    assert not BENCHMARK.judge(death, plain, seen)
