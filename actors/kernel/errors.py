"""Errors of the kernel.

KernelError
├── ActorDeadError      (also pykka.ActorDeadError) the actor ended before it answered
├── ActorCrashed        the handler of an ask raised something that must not travel (SystemExit, CancelledError ...)
├── AskTimeout          (also pykka.Timeout, TimeoutError) no answer in time; the handler may still run
├── AskOnLoopError      a blocking ask on the thread that runs the actors: it could never be answered
├── DeadlockError       actors ask each other in a circle
├── IntensityExceeded   a supervisor gave up: more failures than its budget allows
├── MailboxFull         overloaded: the message was not taken
├── NameTaken           another live actor has this name
├── NoSuchActor         no live actor has this name
├── NotSpawned          an actor was started or built by other means than ActorSystem.spawn or a child spec
├── Rejected            raised by a handler that declines its message; the actor goes on
└── StartFailed         an actor of a tree could not start, or not in time
"""

import pykka

__all__ = [
    "ActorCrashed",
    "ActorDeadError",
    "AskOnLoopError",
    "AskTimeout",
    "DeadlockError",
    "IntensityExceeded",
    "KernelError",
    "MailboxFull",
    "NameTaken",
    "NoSuchActor",
    "NotSpawned",
    "Rejected",
    "StartFailed",
]


class KernelError(Exception):
    """Base of all errors the kernel raises."""


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
    """Raised by a handler that declines its message: a late or illegal event. The message becomes a dead letter with
    this text as its note, its asker gets this exception, and the actor goes on."""


class NameTaken(KernelError):
    """Another live actor has this name."""


class NoSuchActor(KernelError):
    """No live actor has this name."""


class NotSpawned(KernelError):
    """An actor lives in an ActorSystem only: give a factory to `ActorSystem.spawn` or to a `ChildSpec`."""


class StartFailed(KernelError):
    """An actor that others rely on could not start: `name` says which, `cause` why (AskTimeout: not in time)."""

    def __init__(self, name: str, cause: BaseException) -> None:
        super().__init__(f"{name} could not start: {cause}")
        self.name = name
        self.cause = cause
        self.__cause__ = cause
