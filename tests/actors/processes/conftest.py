"""What is about the start of processes is tested with interpreters of their own, not with forks (support/zygote.py)."""

from __future__ import annotations

import pytest

from callboard.actors.processes.keeper import containment, masks_secrets


def pytest_itemcollected(item: pytest.Item) -> None:  # of this folder
    item.add_marker(pytest.mark.fresh_interpreter)


# What the kernel gives is found out by a process: when a test needs it, not when each process of a run lists the tests.


@pytest.fixture(scope="session")
def mounts() -> None:
    if not containment().mounts:
        pytest.skip("this kernel gives a tool no mounts of its own")


@pytest.fixture(scope="session")
def namespaces() -> None:
    if not containment().namespaces:
        pytest.skip(f"no namespaces here: {containment().why_not}")


@pytest.fixture(scope="session")
def held_to_reading() -> None:
    if not masks_secrets():
        pytest.skip("this kernel cannot hold a line to reading")
