"""One running call, and what a pool needs of those who run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from callboard.actors.kernel import Ref, Timer
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import Result
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import ToolName


class Ending(Enum):
    """Why a running call is being ended."""

    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class Call:
    """From StartCall to its terminal event."""

    run: RunTool
    tool: Tool
    context: ToolContext
    reply_to: Ref
    ending: Ending | None = None
    timer: Timer | None = None
    """To the deadline while it runs, to the end of the grace period while it is being ended."""


Ended = Callable[[Call, Result, str], None]
"""Told once a call has ended and whatever ran it is free or gone: the call, its result, what it had printed."""

Held = Callable[[ToolName, int], None]
"""Told when calls of a tool that were given up hold another number of threads than before: the tool and the number."""

Room = Callable[[], None]
"""Told when there is room again, or more of it, for another reason than an ended call."""


class Workers(Protocol):
    """Those who run calls in one way. All methods are called on the control loop and return at once."""

    def has_room(self) -> bool:
        """May a call start now?"""

    def start(self, call: Call) -> None:
        """Run it. Raises UsageError when it cannot be run here at all."""

    def interrupt(self, call: Call) -> None:
        """Ask it to end: its grace period begins."""

    def kill(self, call: Call) -> None:
        """End it, whatever it does. Its `Ended` follows within a bounded time."""

    def close(self, closed: Callable[[], None]) -> None:
        """End everything, calls that run included and untold, and tell when all of it is gone. Again: nothing."""
