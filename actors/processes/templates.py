"""What a source keeps of each tool: its template, the children forked of it, and for how long.

A template is a process that has loaded the tool. It costs memory of its own, and when it is gone, the next call of its
tool waits until a new one has loaded it. So one that took long to load is kept for longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final
from weakref import ref

from msgspec import Struct, field

from callboard.actors.kernel import Timer
from callboard.actors.processes import supply
from callboard.actors.processes.confined import Walls
from callboard.actors.processes.handle import ChildEnds
from callboard.actors.processes.launch import ChildSocket
from callboard.actors.tools.decorator import Tool
from callboard.protocol.ids import ToolName

#: Templates at the same time, and the memory that they have for themselves, all together: of what is over, the one not
#: used for longest goes. A small tool takes 3 MB, one that loads pandas 60.
MAX_TEMPLATES: Final = 64
MAX_TEMPLATES_BYTES: Final = 512 * 1024 * 1024
#: Without a call it is kept for as long as its spares, or for 1,000 times as long as it took to load: loading it again
#: and again takes a thousandth of the time. At most for an hour.
KEPT_PER_LOADING: Final = 1_000.0
MAX_KEPT_SECONDS: Final = 3_600.0


class State(Enum):
    """Where a template is."""

    GONE = "gone"
    """It has no process."""
    LOADING = "loading"
    READY = "ready"
    UNFIT = "unfit"
    """It must not be forked: its children come from the first fork server and load the tool themselves."""


class Server(Struct, eq=False):
    """A fork server: the first one, or the process of a template."""

    number: int
    connection: ChildSocket
    template: Template | None
    ready: bool = False
    pending: set[int] = field(default_factory=set)
    """What it was ordered to fork and has not confirmed."""
    ticks: int = 0
    """Since the last receipt, or since its start until it is ready."""


class Template(Struct, eq=False):
    """What there is of one tool."""

    of: ref[Tool]
    """A tool that no one has any more, such as one that was made for a question, is not held by it."""
    name: ToolName
    packed: bytes
    has_resource: bool
    used_at: float = 0.0
    """When a call came for it."""
    loading_since: float = 0.0
    loading_seconds: float = 0.0
    own_bytes: int = 0
    """Memory that it shares with no other process, once it is loaded."""
    walls: Walls | None = None
    """What it is held to."""
    state: State = State.GONE
    server: Server | None = None
    waiting: deque[supply.ChildUser] = field(default_factory=deque)
    spares: list[Child] = field(default_factory=list)
    forking: int = 0
    timer: Timer | None = None
    is_replaced: bool = False

    def loaded(self, own_bytes: int, now: float) -> None:
        """From now on it forks."""
        self.own_bytes, self.loading_seconds = own_bytes, now - self.loading_since

    def is_needed(self, now: float, idle_seconds: float) -> bool:
        """Is it worth its memory?"""
        kept = max(idle_seconds, min(self.loading_seconds * KEPT_PER_LOADING, MAX_KEPT_SECONDS))
        return not self.is_replaced and self.of() is not None and now - self.used_at < kept


class Place(Enum):
    """Where a child is."""

    FORKING = "forking"
    SPARE = "spare"
    TAKEN = "taken"
    """By a worker, or its call is over and it has not ended yet: it counts as one of `max_children`."""
    UNWANTED = "unwanted"
    """A spare that is being ended."""


class Child(Struct, eq=False):
    """A process for one call, or for several one after the other."""

    ends: ChildEnds
    template: Template
    server: Server
    place: Place = Place.FORKING
    worker: supply.ChildUser | None = None
    ending: bool = False
    killed: bool = False
    ticks: int = 0
    """Since it should have ended."""

    @property
    def keeps_something(self) -> bool:
        """May it have something open that it is to close? One that a worker has is ended with its call."""
        return self.place is Place.SPARE and self.template.has_resource


def superfluous(templates: Sequence[Template], now: float, idle_seconds: float) -> Iterator[Template]:
    """Which of them go, of all that there are, the last used one last. Never one for which a call waits."""
    number = own_bytes = 0
    for template in reversed(templates):
        number, own_bytes = number + 1, own_bytes + template.own_bytes
        is_over = number > MAX_TEMPLATES or (number > 1 and own_bytes > MAX_TEMPLATES_BYTES)
        if not template.waiting and (is_over or not template.is_needed(now, idle_seconds)):
            number, own_bytes = number - 1, own_bytes - template.own_bytes
            yield template
