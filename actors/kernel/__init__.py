"""The actor kernel: addresses, mailboxes, supervision, time. It knows nothing of LLMs.

scheduler = LoopScheduler("example").start()
system = ActorSystem(scheduler)
root = system.spawn(lambda: Supervisor([ChildSpec("echo", Echo)]), "root")
children_of(root)["echo"].ask("hello", timeout_seconds=1)
system.shutdown(timeout_seconds=5)
scheduler.stop(timeout_seconds=5)
"""

from .accounts import ActorInfo, DeadLetter, DeadLetterReason, DeadLetters, Statistics
from .actor import Actor, handles
from .errors import (
    ActorCrashed,
    ActorDeadError,
    AskOnLoopError,
    AskTimeout,
    DeadlockError,
    DependencyLost,
    IntensityExceeded,
    KernelError,
    MailboxFull,
    NameTaken,
    NoSuchActor,
    NotSpawned,
    OutOfThreads,
    Rejected,
    StartFailed,
    logger_of,
)
from .ref import Down, Monitor, Ref, ask_pykka
from .reply import Asks
from .restart import Backoff, Budget, ExitReason, History, Restart
from .scheduler import Held, LoopScheduler, Scheduler, Timer, Watchdog, start_thread
from .supervisor import (
    ChildSpec,
    Strategy,
    Supervisor,
    SupervisorMessage,
    children_of,
    restart_child,
    start_child,
    stop_child,
)
from .system import ActorSystem

__all__ = [
    "Actor", "ActorCrashed", "ActorDeadError", "ActorInfo", "ActorSystem", "AskOnLoopError", "AskTimeout",
    "Asks", "Backoff", "Budget", "ChildSpec", "DeadLetter", "DeadLetterReason", "DeadLetters", "DeadlockError",
    "DependencyLost", "Down", "ExitReason", "Held", "History", "IntensityExceeded", "KernelError", "LoopScheduler",
    "MailboxFull", "Monitor", "NameTaken", "NoSuchActor", "NotSpawned", "OutOfThreads", "Ref", "Rejected", "Restart",
    "Scheduler", "StartFailed", "Statistics", "Strategy", "Supervisor", "SupervisorMessage", "Timer", "Watchdog",
    "ask_pykka", "children_of", "handles", "logger_of", "restart_child", "start_child", "start_thread", "stop_child",
]  # fmt: skip
