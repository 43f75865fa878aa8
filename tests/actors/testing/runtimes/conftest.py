"""One harness for all tests of a module, and conversations of one turn with one fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from callboard.actors.testing.runtimes.harness import Harness, harness


@pytest.fixture(scope="module")
def driver() -> Iterator[Harness]:
    with harness(("callboard", "bare-loop")) as driver:
        yield driver
