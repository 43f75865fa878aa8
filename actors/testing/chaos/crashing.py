"""Crashes of actors on purpose: the next messages of a type end each actor of a class that handles one.

The wrapper stands in the table of handlers that the kernel has collected of the class, so product code knows nothing of
it and pays nothing for it; an actor crashes there just as by an exception of its own code.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct, field

from callboard.actors.builtins.jobs import Jobs
from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.journal.cleaner import JournalCleaner
from callboard.actors.journal.journal import Journal
from callboard.actors.kernel import Actor
from callboard.actors.mcp.server_actor import McpServerActor
from callboard.actors.models.llm_manager import LlmManager
from callboard.actors.processes.source import ProcessSource
from callboard.actors.requests.request_session import RequestSession
from callboard.actors.telemetry.telemetry import Telemetry
from callboard.actors.workers.caller import CallerWorker
from callboard.actors.workers.process import ProcessWorker
from callboard.actors.workers.task import TaskWorker
from callboard.actors.workers.thread import ThreadWorker
from callboard.protocol.ids import Tag

_OF_A_WORKSPACE: tuple[type[Actor[Any]], ...] = ()
with contextlib.suppress(ModuleNotFoundError):  # the extra `index`
    from callboard.actors.edits.editor import Editor
    from callboard.actors.index.rag import Indexer, Rag, Vectorizer

    _OF_A_WORKSPACE = (Editor, Indexer, Rag, Vectorizer)
#: Every actor of the product but the supervisors: their messages are the kernel's own, and have tests there.
ACTORS: Final[tuple[type[Actor[Any]], ...]] = (
    CallerWorker,
    Jobs,
    Journal,
    JournalCleaner,
    LlmManager,
    McpServerActor,
    ProcessSource,
    ProcessWorker,
    RequestSession,
    TaskWorker,
    Telemetry,
    ThreadWorker,
    ToolDispatcher,
    *_OF_A_WORKSPACE,
)
#: How deep in a message, or in an actor, the request is looked for that it is about.
DEPTH: Final = 4


class ChaosCrash(Exception):
    """On purpose."""


class Crashes(Struct):
    """What was crashed."""

    left: int
    actors: list[str] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)
    """The requests that the messages were about."""
    tells: Callable[[str], object] = bool
    """Hears the name of each that crashes, before it does."""
    came: int = 0
    """Messages of the type, those that were handled too."""


class Target(Struct, frozen=True):
    """A class of actors, and one of the messages that it takes."""

    actor: type[Actor[Any]]
    message: type

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.actor.__name__}/{self.message.__name__}"


def targets() -> tuple[Target, ...]:
    """Each actor of the product and each message that it takes, as its class says."""
    classes = sorted(ACTORS, key=lambda each: each.__name__)
    return tuple(Target(each, message) for each in classes for message in each.messages())


def _subclasses(base: type[Actor[Any]]) -> Iterator[type[Actor[Any]]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


@contextmanager
def crashing(target: Target, times: int) -> Iterator[Crashes]:
    """Inside, the next `times` messages of this type crash whatever actor of the class handles one."""
    crashes = Crashes(times)

    def wrapped(handler: Handler) -> Handler:
        def crash_or_handle(actor: Actor[Any], message: Any) -> object:
            crashes.came += 1
            if crashes.left <= 0:
                return handler(actor, message)
            crashes.left -= 1
            crashes.actors.append(actor.name)
            crashes.tells(actor.name)
            crashes.requests |= requests_of(message) or _only(requests_of(actor))
            raise ChaosCrash(f"on a {type(message).__name__}")

        return crash_or_handle

    with contextlib.ExitStack() as restored:
        for actor in (target.actor, *_subclasses(target.actor)):  # a simulation has subclasses of its own
            restored.callback(_wrap(actor, target.message, wrapped))
        yield crashes


Handler = Callable[[Any, Any], object]


def _wrap(actor: type[Actor[Any]], message: type, wrapped: Callable[[Handler], Handler]) -> Callable[[], None]:
    """Wrap what handles the message, and its subclasses; returns what takes that back."""
    table = actor._kernel_dispatch
    kinds = [message, *(kind for kind in table if kind is not message and issubclass(kind, message))]
    before = {kind: table[kind] for kind in kinds if kind in table}
    for kind in kinds:
        table[kind] = wrapped(before.get(kind, actor.on_receive))

    def restore() -> None:
        for kind in kinds:
            if kind in before:
                table[kind] = before[kind]
            else:
                del table[kind]

    return restore


def _only(requests: set[str]) -> set[str]:
    """An actor that holds one request alone is about that one; of many, none is meant."""
    return requests if len(requests) == 1 else set()


def requests_of(value: object, depth: int = DEPTH) -> set[str]:
    """The ids of the requests that an object names by its tags."""
    if isinstance(value, Tag):
        return {str(value.request_id)}
    if depth == 0 or isinstance(value, str | bytes | int | float | type | None):
        return set()
    if isinstance(value, dict):
        return _all_of((*value.keys(), *value.values()), depth)
    if isinstance(value, list | tuple | set | frozenset):
        return _all_of(tuple(value), depth)
    if not type(value).__module__.startswith("callboard.actors") or ".kernel." in type(value).__module__:
        is_value = isinstance(value, Struct) or dataclasses.is_dataclass(value)
        return _all_of(_fields(value), depth) if is_value else set()
    return _all_of(_fields(value), depth)


def _all_of(values: Sequence[object], depth: int) -> set[str]:
    return {request for each in values for request in requests_of(each, depth - 1)}


def _fields(value: object) -> list[object]:
    names = [name for base in type(value).__mro__ for name in _slots(base)]
    return [getattr(value, name, None) for name in names if name != "__weakref__"] + [
        each for name, each in getattr(value, "__dict__", {}).items() if not name.startswith("_kernel")
    ]


def _slots(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
