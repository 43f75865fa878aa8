"""Puts tests/ on the path for `support`; the stage on which programs that embed callboard are run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.host_programs import Stage, stage_in


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as stage:
        yield stage
