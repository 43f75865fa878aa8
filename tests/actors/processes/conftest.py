"""What is about the start of processes is tested with interpreters of their own, not with forks (support/zygote.py)."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:  # of this folder
    item.add_marker(pytest.mark.fresh_interpreter)
