"""What an adapter for a runtime is: a class with two methods, and what its documentation does not promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol

from msgspec import Struct

from callboard.actors.testing.runtimes.tools import Tools
from callboard.protocol.testing.observation import CALL_SECONDS, Does

#: A stream that brings nothing for so long has stalled.
IDLE_SECONDS = 1.0


class Setup(Struct, frozen=True):
    """What an adapter is given: the model to ask, the tools to offer, and the limits to set where there are options."""

    base_url: str
    """Of a server with the Chat Completions API; any key does."""
    tools: Tools
    max_steps: int
    """Model calls of one question."""
    run_seconds: float
    """The deadline of one question."""
    model: str = "double"
    call_seconds: float = CALL_SECONDS
    """The deadline of one call."""
    idle_seconds: float = IDLE_SECONDS
    model_attempts: int = 1
    """How often one model call is tried where that can be set; 1 leaves it as it is by default."""

    @staticmethod
    def may_run(arguments: Mapping[str, Any]) -> bool:
        """What the person says who is asked about a call of `write` with these arguments."""
        return bool(arguments.get("does") != Does.DENIED)


class NotPromised(Struct, frozen=True):
    """Cases of rules that a runtime does not claim to keep."""

    cases: tuple[str, ...]
    """Names of `ObservedRule`s, or their beginnings."""
    why: str
    page: str
    """The page of its documentation that says so, or that would say otherwise."""


#: Cases that several runtimes do not promise.
EXITS: Final = (
    "I10 blast radius: an async tool that exits",
    "I10 blast radius: a plain tool that exits",
    "I10 blast radius: the conversation beside a tool that exits",
)
BLOCKS: Final = (
    "I5 bounded: an async tool that blocks",
    "I10 blast radius: the conversation beside a tool that blocks",
)
PLAIN_WORK: Final = ("I5 bounded: a plain tool that hangs ends", "I7 cancel: ends plain tools")
SAME_ID: Final = ("I1 terminal once: calls with the same id in a turn",)


class Adapter(Protocol):
    """Drives one runtime. One object serves all conversations of a process."""

    name: ClassVar[str]
    distribution: ClassVar[str]
    """What is installed with pip, for its version."""
    isolates: ClassVar[bool]
    """Does it promise that a plain tool which calls os._exit() takes nothing with it?"""
    not_promised: ClassVar[tuple[NotPromised, ...]]

    def __init__(self, setup: Setup) -> None: ...

    async def ask(self, conversation: str, text: str) -> str:
        """The answer to `text`, which continues this conversation; raises what the runtime raises.

        The caller cancels it by cancelling its task.
        """
        ...

    async def close(self) -> None:
        """Free what `__init__` made."""
        ...


AdapterType = type[Adapter]
