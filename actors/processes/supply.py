"""What process workers and their source say to each other, how a pool's children are made, and how long is kept what
they are forked of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final
from weakref import ref

from msgspec import Struct, field

from callboard.actors.kernel import Ref, Timer
from callboard.actors.processes.confined import Walls
from callboard.actors.processes.confinement import Confine
from callboard.actors.processes.handle import ChildEnds
from callboard.actors.processes.launch import ChildSocket
from callboard.actors.secret_files import NO_RULES, SecretRules
from callboard.actors.tools.decorator import Tool
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_TOOL_PROCESSES, TOOL_MEMORY_BYTES
from callboard.protocol.tools import ToolFailure
from callboard.protocol.values import repr_without


class ProcessOptions(Struct, frozen=True):
    """How a pool's children are made."""

    max_children: int = MAX_TOOL_PROCESSES
    """In which calls run, at the same time."""
    warm: int = 1
    """Children kept ready for each tool that was used lately, beyond those."""
    memory_bytes: int = TOOL_MEMORY_BYTES
    """Data (heap and private mappings) of each process, a child's children too, each by itself; and the shared memory
    of all together, where there are namespaces."""
    idle_seconds: float = 30.0
    """A tool that was not used for this long keeps no children ready."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What children get beyond the allow-list."""
    namespaces: bool = True
    """Run tools in namespaces of their own (user, PID, mount, IPC) where the kernel allows it."""
    confine: Confine = Confine.AUTO
    """Hold tools to their declared risk."""
    workspace: Path | None = None
    """What a confined tool may touch that declares no paths."""
    secrets: SecretRules = NO_RULES
    """Which files of its paths no confined tool may open."""

    kept: tuple[str, ...] = ()
    """Files and folders that no confined tool may write, wherever they are: what runs outside of the confinement."""

    __repr__ = repr_without("environment")


# -- what a worker asks


class Obtain(Struct, frozen=True):
    """A child for a call of this tool; answered with Obtained or NotObtained."""

    tool: Tool
    worker: ChildUser


class Withdraw(Struct, frozen=True):
    """The worker does not need the child any more that it has asked for."""

    worker: ChildUser


class Replaced(Struct, frozen=True):
    """There is another tool in place of this one, or none: what is kept ready for its calls ends with the last one that
    waits here."""

    tool: Tool


class After(Enum):
    """What becomes of a child that a worker lets go of."""

    KEEP = "keep"
    """It can serve a call of its tool."""
    ENDS = "ends"
    """It ends by itself."""
    KILL = "kill"


class Release(Struct, frozen=True):
    """The worker is done with its child and wants to hear no more of it."""

    child: ChildEnds
    after: After


class End(Struct, frozen=True):
    """End the child: SIGTERM, or SIGKILL to it and all it has started. ChildEnded follows."""

    number: int
    kill: bool


class WriteStack(Struct, frozen=True):
    """Have the child write down where its code is, or (`begins` False) tell what it has written. StackWritten follows,
    unless the child ends meanwhile."""

    number: int
    begins: bool


# -- what it hears


class StackWritten(Struct, frozen=True):
    """What there is of it now."""

    number: int
    text: str
    is_to_be_had: bool
    """False: the text says why not."""


class Obtained(Struct, frozen=True):
    """A child that has loaded the tool. The worker must Release it."""

    child: ChildEnds


class NotObtained(Struct, frozen=True):
    """There is none."""

    failure: ToolFailure


class ChildEnded(Struct, frozen=True):
    """The child and all that it had started are gone. It is released."""

    number: int
    how: str
    """"was killed by SIGSEGV"."""


ChildUser = Ref[Obtained | NotObtained | ChildEnded | StackWritten]
"""The address of a worker."""


# -- what the source keeps of each tool, and for how long

#: Templates (processes that have loaded a tool, of which children are forked) at the same time, and the memory of their
#: own, all together: of what is over, the one not used for longest goes. For its memory alone none goes that is in use:
#: two large tools that are called in turn would be loaded for each call. A small one takes 3 MB, one with pandas 60.
MAX_TEMPLATES: Final = 64
MAX_TEMPLATES_BYTES: Final = 512 * 1024 * 1024
#: Without a call it is kept for as long as its spares, or for 1,000 times as long as it took to load: loading it again
#: and again takes a thousandth of the time. At most for an hour.
KEPT_PER_LOADING: Final = 1_000.0
MAX_KEPT_SECONDS: Final = 3_600.0


class TemplateState(Enum):
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
    state: TemplateState = TemplateState.GONE
    server: Server | None = None
    waiting: deque[ChildUser] = field(default_factory=deque)
    spares: list[ForkedChild] = field(default_factory=list)
    forking: int = 0
    timer: Timer | None = None
    is_replaced: bool = False

    def loaded(self, own_bytes: int, now: float) -> None:
        """The tool's module has been run in it."""
        self.own_bytes, self.loading_seconds = own_bytes, now - self.loading_since

    def is_needed(self, now: float, idle_seconds: float) -> bool:
        """Is it worth its memory?"""
        if self.is_replaced or self.of() is None:
            return False
        kept = max(idle_seconds, min(self.loading_seconds * KEPT_PER_LOADING, MAX_KEPT_SECONDS))
        # One that loads finishes, or no call would ever find it loaded that gives up before.
        return self.state is TemplateState.LOADING or now - self.used_at < kept


class ChildPlace(Enum):
    """Where a child is."""

    FORKING = "forking"
    SPARE = "spare"
    TAKEN = "taken"
    """By a worker, or its call is over and it has not ended yet: it counts as one of `max_children`."""
    UNWANTED = "unwanted"
    """A spare that is being ended."""


class ForkedChild(Struct, eq=False):
    """A process for one call, or for several one after the other."""

    ends: ChildEnds
    template: Template
    server: Server
    place: ChildPlace = ChildPlace.FORKING
    worker: ChildUser | None = None
    ending: bool = False
    killed: bool = False
    ticks: int = 0
    """Since it should have ended."""

    @property
    def keeps_something(self) -> bool:
        """May it have something open that it is to close? One that a worker has is ended with its call."""
        return self.place is ChildPlace.SPARE and self.template.has_resource


def superfluous(templates: Sequence[Template], now: float, idle_seconds: float) -> Iterator[Template]:
    """Which of them go, of all that there are, the last used one last. Never one for which a call waits."""
    number = own_bytes = 0
    for template in reversed(templates):
        number, own_bytes = number + 1, own_bytes + template.own_bytes
        is_idle = now - template.used_at >= idle_seconds
        is_over = number > MAX_TEMPLATES or (is_idle and number > 1 and own_bytes > MAX_TEMPLATES_BYTES)
        if not template.waiting and (is_over or not template.is_needed(now, idle_seconds)):
            number, own_bytes = number - 1, own_bytes - template.own_bytes
            yield template
