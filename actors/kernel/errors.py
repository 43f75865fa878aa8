"""Errors of the kernel, and how the errors of others are kept from doing harm."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import pykka


class ContainedLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for actors: a handler or filter of the host that raises costs its record, and no actor."""

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        """As it is: `extra` belongs to the record."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """What all other methods call."""
        try:
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})
        except BaseException:  # noqa: BLE001 - there is no better place left to report it
            return


def logger_of(name: str) -> ContainedLogger:
    """The ContainedLogger over `logging.getLogger(name)`."""
    return ContainedLogger(logging.getLogger(name), {})


logger = logger_of("callboard.kernel")


class KernelError(Exception):
    """Base of all errors the kernel raises."""


class DependencyLost(KernelError):
    """For an actor to crash with when what it works with has ended: a process, a connection. There is no fault in its
    code to look for, so the crash is one log record without a traceback; `ids` become attributes of that record."""

    def __init__(self, message: str, ids: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.ids = ids or {}


class ActorDeadError(pykka.ActorDeadError, KernelError):
    """The actor ended before it answered. Ask again only if a supervisor starts a new one under that name."""


class ActorCrashed(KernelError):
    """The handler ended with an exception that would do harm in the asker, for instance SystemExit; see `__cause__`."""


class AskTimeout(pykka.Timeout, TimeoutError, KernelError):
    """No answer within the asker's timeout. Only the waiting ends: the actor may still handle the message."""


class AskOnLoopError(KernelError):
    """A blocking wait on the thread that runs the actors. Use `await ref.ask_async(...)` or tell a reply address."""


class DeadlockError(KernelError):
    """Actors wait for each other's answers in a circle, which the message names."""


class IntensityExceeded(KernelError):
    """More failures within the period than a supervisor's budget allows; its own supervisor decides now."""


class MailboxFull(KernelError):
    """Overloaded: the mailbox holds as many messages as it may. Nothing was sent; slow down or shed load."""


class Rejected(KernelError):
    """The actor has no handler for this message, or its handler declines it: a late or illegal event.

    The message becomes a dead letter with this text as its note, its asker gets this exception, the actor goes on.
    """


class NameTaken(KernelError):
    """Another live actor has this name."""


class NoSuchActor(KernelError):
    """No live actor has this name."""


class NotSpawned(KernelError):
    """An actor lives in an ActorSystem only: give a factory to `ActorSystem.spawn` or to a `ChildSpec`."""


class OutOfThreads(KernelError):
    """The host could not start another thread; what needed it was not started, everything else continues."""


class StartFailed(KernelError):
    """An actor that others rely on could not start: `name` says which, `cause` why (AskTimeout: not in time)."""

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(f"{name} could not start: {text_of(cause, str)}")
        self.name = name
        self.cause = cause
        self.__cause__ = cause


def contained(run: Callable[[], object], where: str) -> bool:
    """Run a callback of others; False when an exception escaped it, which is logged and goes no further."""
    try:
        run()
    except BaseException as error:
        logger.error("%s: an exception escaped %s", where, text_of(run), exc_info=error)
        return False
    return True


def text_of(value: object, to_text: Callable[[object], str] = repr) -> str:
    """`repr(value)` or `str(value)`, also of an object whose method for that raises."""
    try:
        return to_text(value)
    except BaseException:  # noqa: BLE001 - it may be anything: the object is not ours
        return f"<{type(value).__name__} without a readable text>"
