"""The walk of one tool call: how many files it passes, and in how many shapes. The ceilings may only go down.

They went up once, by one file: since the Chat adapter has its requests and its answers in files of their own. What
only measures a call, or reports afterwards how it ended, is not on its way (benchmarks/walk.py): counted so, the engine
had the same 21, 19 and 19 files and 9 shapes before it had either in files of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

WALK = Path(__file__).parents[2] / "benchmarks" / "walk.py"


@pytest.mark.parametrize(
    ("isolation", "most_files"),
    [
        pytest.param("process", 21, marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux's system calls")),
        ("task", 19),
        ("thread", 19),
    ],
)
def test_a_call_passes_few_files_in_few_shapes(isolation: str, most_files: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(WALK), "--isolation", isolation]
    walked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    counted = re.match(r"\w+: (\d+) files besides the kernel, (\d+) shapes\n", walked)
    assert counted is not None, walked
    files, shapes = map(int, counted.groups())
    assert 10 < files <= most_files, walked
    assert 5 < shapes <= 9, walked
