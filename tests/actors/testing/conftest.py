"""For the tests of plays."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
