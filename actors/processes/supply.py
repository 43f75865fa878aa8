"""What process workers and their source say to each other, and how a pool's children are made."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from msgspec import Struct, field

from callboard.actors.kernel import Ref
from callboard.actors.processes.confinement import Confine
from callboard.actors.processes.handle import ChildEnds
from callboard.actors.secret_files import NO_RULES, SecretRules
from callboard.actors.tools.decorator import Tool
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
