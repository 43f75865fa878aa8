"""The actor kernel: addresses, mailboxes, supervision, time. It knows nothing of LLMs.

scheduler = LoopScheduler("example").start()
system = ActorSystem(scheduler)
root = system.spawn(lambda: Supervisor([ChildSpec("echo", Echo)]), "root")
children_of(root)["echo"].ask("hello", timeout_seconds=1)
system.shutdown(timeout_seconds=5)
scheduler.stop(timeout_seconds=5)
"""

from .actor import Actor
from .child_spec import ChildSpec, Strategy
from .dead_letters import DeadLetter, DeadLetterReason, DeadLetters
from .errors import (
    ActorCrashed,
    ActorDeadError,
    AskOnLoopError,
    AskTimeout,
    DeadlockError,
    IntensityExceeded,
    KernelError,
    MailboxFull,
    NameTaken,
    NoSuchActor,
    NotSpawned,
    Rejected,
    StartFailed,
)
from .handlers import Asks, handles
from .introspection import ActorInfo, Statistics
from .mailbox import Overflow
from .monitors import Down, ExitReason, Monitor
from .ref import Ref
from .restart import Backoff, Restart
from .scheduler import LoopScheduler, Scheduler, Timer
from .simulation import SimulatedScheduler
from .supervisor import Supervisor, children_of, start_child, stop_child
from .system import ActorSystem
from .watchdog import Held, Watchdog

__all__ = [
    "Actor",
    "ActorCrashed",
    "ActorDeadError",
    "ActorInfo",
    "ActorSystem",
    "AskOnLoopError",
    "AskTimeout",
    "Asks",
    "Backoff",
    "ChildSpec",
    "DeadLetter",
    "DeadLetterReason",
    "DeadLetters",
    "DeadlockError",
    "Down",
    "ExitReason",
    "Held",
    "IntensityExceeded",
    "KernelError",
    "LoopScheduler",
    "MailboxFull",
    "Monitor",
    "NameTaken",
    "NoSuchActor",
    "NotSpawned",
    "Overflow",
    "Ref",
    "Rejected",
    "Restart",
    "Scheduler",
    "SimulatedScheduler",
    "StartFailed",
    "Statistics",
    "Strategy",
    "Supervisor",
    "Timer",
    "Watchdog",
    "children_of",
    "handles",
    "start_child",
    "stop_child",
]
