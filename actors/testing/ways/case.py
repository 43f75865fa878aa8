"""What a case of the chaos suite is: plain data, in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from callboard.protocol.errors import ErrorKind
from callboard.protocol.tools import FailureCode, Isolation


class Group(StrEnum):
    """What goes wrong."""

    DIE = "die"
    HANG = "hang"
    RETURN = "return"
    RAISE = "raise"
    EXHAUST = "exhaust"
    ESCAPE = "escape"
    NEXT = "next"
    """What one call changes and the next call must not find."""
    INFRASTRUCTURE = "infrastructure"
    """The processes of ours in which tools run."""
    PROVIDER = "provider"
    WIRE = "wire"
    """The model's server, over HTTP."""
    HOST = "host"
    ACTOR = "actor"


class Level(StrEnum):
    """Where it happens. The first three are isolations of a tool; a tool on its caller's loop shares all with it."""

    PROCESS = Isolation.PROCESS.value
    TASK = Isolation.TASK.value
    THREAD = Isolation.THREAD.value
    PROVIDER = "provider"
    HOST = "host"
    ACTOR = "actor"


#: Its own request is answered and its call has a result.
OK: Final = "ok"
#: Documented, and never run: at this level it ends the whole process, or cannot be told from the host's own work.
NOT_CONTAINED: Final = ("not contained",)

Expected = tuple[str, ...]
"""What becomes of the case's own call or request, any one of: OK, a FailureCode, an ErrorKind, an exception's name."""


class Blast(StrEnum):
    """What it may cost others."""

    NOTHING = "nothing"
    RUNNING_CALLS = "running calls"
    """Calls that run in the same pool at that moment have one failed result each; no request fails."""


class Case(Struct, frozen=True):
    """One thing that goes wrong beside healthy requests."""

    name: str
    """group/what/level, unique."""
    group: Group
    level: Level
    what: str
    """In plain words, for the table."""
    expected: Expected
    way: object
    """What the group's own runner needs to do it."""
    blast: Blast = Blast.NOTHING
    seconds: float = 0.1
    """How long it takes at least: its neighbours run all that time."""
    why_not: Callable[[], str] | None = None
    """Why this machine cannot run it, "" where it can."""
    alone: bool = False
    """It may reach other cases, which are not meant to bear that; so it is the only one on its runtime."""


Tell = Mapping[Level, Expected]


def at(*, process: str = "", task: str = "", thread: str = "") -> Tell:
    """What is expected at each level, words separated by spaces; "-" is NOT_CONTAINED, and "" is no case at all."""
    given = {Level.PROCESS: process, Level.TASK: task, Level.THREAD: thread}
    return {level: NOT_CONTAINED if text == "-" else known(text) for level, text in given.items() if text}


def everywhere(text: str) -> Tell:
    """The same in all three isolations."""
    return at(process=text, task=text, thread=text)


def in_process(text: str) -> Tell:
    """A process contains it; a task or a thread is part of the host and does not."""
    return at(process=text, task="-", thread="-")


#: Exceptions by which a request may end, and the refusal of a host's mistake.
EXCEPTIONS: Final = ("RequestEnded", "RuntimeFailure", "UsageError")
_KNOWN: Final = frozenset({OK, *EXCEPTIONS, *(code.value for code in FailureCode), *(kind.value for kind in ErrorKind)})


def known(text: str) -> Expected:
    """The words of `text`. Raises ValueError for one that is neither OK nor a code, a kind or an exception of ours."""
    words = tuple(text.split())
    for word in words:
        if word not in _KNOWN:
            raise ValueError(f"{word!r} is none of the FailureCodes, ErrorKinds, exceptions and {OK!r}")
    return words


class Way(Struct, frozen=True):
    """A tool that goes wrong, at each level where that makes sense: a row of a table."""

    name: str
    what: str
    function: Callable[..., object]
    tell: Tell
    in_task: Callable[..., object] | None = None
    """The `async def` for the level TASK, where it is not just `function` called in one."""
    in_thread: Callable[..., object] | None = None
    """For the level THREAD: nothing ends a thread, so a way to hang ends by itself there."""
    arguments: Mapping[str, object] | str = "{}"
    timeout: float = 10.0
    """Of the tool, in seconds."""
    blast: Blast = Blast.NOTHING
    seconds: float = 0.1
    why_not: Callable[[], str] | None = None
    alone: bool = False
    mentions: str = ""
    """A word that the model must read in the failure."""
    is_read_along: bool = False
    """Its request is asked as a stream, and read."""


def cases_of(group: Group, ways: tuple[Way, ...]) -> tuple[Case, ...]:
    """A case for each way and each level that contains it."""
    return tuple(
        Case(
            f"{group}/{way.name}/{level}",
            group,
            level,
            way.what,
            tell,
            way,
            way.blast,
            way.seconds,
            way.why_not,
            way.alone,
        )
        for way in ways
        for level, tell in way.tell.items()
        if tell is not NOT_CONTAINED
    )
