"""Adapters of other runtimes that fail, in a module of their own: the process that plays them imports it by name."""

from __future__ import annotations

from typing import ClassVar

from callboard.actors.testing.runtimes.adapter import Setup
from callboard.actors.testing.runtimes.naive_loop import NaiveLoop


class Broken:
    """An adapter that cannot be made."""

    name: ClassVar = "broken"
    distribution: ClassVar = "callboard"
    isolates: ClassVar = False
    not_promised: ClassVar = ()

    def __init__(self, setup: Setup) -> None:
        raise ZeroDivisionError("no such server")

    async def ask(self, conversation: str, text: str) -> str:
        return text

    async def close(self) -> None:
        """Nothing was made."""


class Idle(Broken):
    """An adapter that answers without asking a model."""

    def __init__(self, setup: Setup) -> None:
        """Needs nothing."""


class Raises(Idle):
    """An adapter whose questions all fail."""

    async def ask(self, conversation: str, text: str) -> str:
        raise AttributeError("no attribute 'run'")


class NotClosed(NaiveLoop):
    """An adapter that cannot be closed."""

    async def close(self) -> None:
        raise OSError("still in use")
