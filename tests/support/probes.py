"""Actors that take the places of others and write down the messages they get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from callboard.actors.kernel import Actor, ActorSystem, Ref

Message = TypeVar("Message")


class Probe(Actor):
    """Writes down each message; `react`, where given, does something about it."""

    def __init__(self, heard: list[Any], react: Callable[[Probe, Any], object] | None = None) -> None:
        self._heard = heard
        self._react = react

    def on_receive(self, message: Any) -> Any:
        self._heard.append(message)
        return self._react(self, message) if self._react else None


class Probed:
    """A probe that has been spawned, seen from the test."""

    def __init__(self, system: ActorSystem, name: str, react: Callable[[Probe, Any], object] | None = None) -> None:
        self.heard: list[Any] = []
        self.ref: Ref = system.spawn(lambda: Probe(self.heard, react), name)

    def of(self, kind: type[Message]) -> list[Message]:
        """What it heard of this kind, in order."""
        return [message for message in self.heard if isinstance(message, kind)]

    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.heard]
