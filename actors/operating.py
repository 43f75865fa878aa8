"""What the operator of a running runtime sees of it, and can do to its actors and dead letters.

Each of these blocks for some milliseconds, is for any thread but callboard's own, and raises UsageError where it is not
done: then nothing has changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from callboard.actors import kernel
from callboard.actors.host_process import from_host
from callboard.actors.requests.outside import ReportProgress, ResolveCall
from callboard.actors.telemetry import extras
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.workers.call_stacks import NoStack, ReadStack
from callboard.protocol import commands, events
from callboard.protocol.errors import CallboardError, RuntimeFailure, UsageError
from callboard.protocol.ids import RequestId
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from callboard.actors import running as started
    from callboard.actors.requests.open_requests import OpenRequest
    from callboard.actors.running import StartedRuntime
else:
    started = lazy_module("callboard.actors.running")

#: For the code of a tool to say where it is.
STACK_SECONDS: Final = 2.0
#: For an actor to stop, be killed where it does not, and run again: its own deadline is 5 s at most.
RESTART_SECONDS: Final = 10.0
#: Between two looks at whether it was.
LOOK_SECONDS: Final = 0.005
ROOT: Final = "root"
SESSIONS: Final = "root/sessions"
#: Actors that are neither restarted nor killed, and what to do instead.
_SPARED: Final[Mapping[str, str]] = {
    ROOT: "it looks after all others; stop the runtime and start it again",
    SESSIONS: "it holds all requests; cancel those that should end",
}
#: Messages that may be sent a second time: whoever takes them checks whether they still fit, and takes each of them
#: once. All others begin something, or are one of a series.
_SENT_AGAIN: Final = (
    events.ApprovalDenied,
    events.ApprovalGranted,
    events.CancelRequested,
    events.NoticeCame,
    events.ToolCallCancelled,
    events.ToolCallCompleted,
    events.ToolCallDeferred,
    events.ToolCallFailed,
    events.ToolCallTimedOut,
    commands.CancelTool,
    commands.WithdrawApproval,
    ReportProgress,
    ResolveCall,
)


class Operated:
    """The part of a Runtime that its operator uses."""

    def _live(self) -> StartedRuntime:
        raise NotImplementedError

    def open_request(self, request_id: str) -> OpenRequest | None:
        """Where a request is that has not ended; None where it has, or is not known here."""
        running = self._live()
        opened = running.requests.get(RequestId(request_id))
        with running.asking():
            found = opened.described() if opened is not None else None
        return found if found is not None else running.left_open.get(RequestId(request_id))

    def journal_damage(self) -> str:
        """What this process found damaged of its journal when it opened it, and set aside; "" where nothing was."""
        outbox = self._live().outbox
        return outbox.damage if outbox is not None else ""

    def left_open(self) -> tuple[OpenRequest, ...]:
        """Of `open_requests`, those of earlier processes that this runtime cannot go on with, and what is missing."""
        return tuple(self._live().left_open.values())

    def is_running(self, request_id: str) -> bool:
        """Has a request of this id begun here, and not ended? It waits for nothing."""
        return RequestId(request_id) in self._live().requests

    @from_host
    def restart_actor(self, path: str) -> None:
        """Stop the actor of this path, such as "root/rag" (`tree` shows them), and start it again; returns when it
        runs. What it worked on ends as when it crashes. Raises UsageError where there is none, and for one that cannot
        be started again: `root`, `root/sessions`, a request, a worker; RuntimeFailure when it does not run in time."""
        running = self._live()
        with running.asking():
            restart_actor(running, path)

    @from_host
    def kill_actor(self, path: str) -> None:
        """End the actor of this path at once, as a crash would: its supervisor starts it again, or (of a worker) its
        call ends. A request is cancelled. Raises UsageError where there is none, and for `root` and `root/sessions`."""
        running = self._live()
        with running.asking():
            kill_actor(running, path)

    @from_host
    def replay_dead_letter(self, number: int) -> kernel.DeadLetter:
        """Send the message of one of `dead_letters` (its `serial`) again, once, to the actor that has the name now.

        Raises UsageError, and keeps it, for a message that could do its work twice (`may_replay` says so beforehand),
        and where the actor has ended; UsageError also where there is no such letter.
        """
        running = self._live()
        with running.asking():
            return replay_dead_letter(running, number)

    @staticmethod
    def may_replay(letter: kernel.DeadLetter) -> bool:
        """May the message of this dead letter be sent again?"""
        return may_be_replayed(letter)

    @from_host
    def stack_of(self, request_id: str, step: int, call_id: str) -> str:
        """Where the code of a running tool is now: its frames by file, line and function, of a tool in a process as
        Python's faulthandler writes them. The call goes on as it was; but C code of a tool in a process that sleeps or
        waits may return early, as by any signal (Python's own code goes on waiting). Blocks for some milliseconds.

        Raises UsageError where no code of such a call runs, or none can say where it is; RuntimeFailure after 2 s.
        """
        running = self._live()
        with running.asking():
            return stack_of(running, request_id, step, call_id)

    def metrics(self) -> Metrics:
        """What was counted since the start: requests, calls, failures, tokens, durations, and what runs and waits now.

        docs/telemetry.md lists them. Raises UsageError when it does not run.
        """
        return self._live().metrics()

    def prometheus(self) -> str:
        """The metrics as a scrape of Prometheus reads them (text format 0.0.4).

        For a web framework's own route: the content type is "text/plain; version=0.0.4". Raises UsageError without the
        extra `telemetry`.
        """
        return extras.exposition(self._live().metrics)

    def prometheus_collector(self) -> Collector:
        """For a registry of prometheus-client: `REGISTRY.register(runtime.prometheus_collector())`.

        Raises UsageError without the extra `telemetry`; a scrape of a stopped runtime gets none of its metrics.
        """
        return extras.collector(self._metrics_or_none)

    def _metrics_or_none(self) -> Metrics:
        try:
            return self.metrics()
        except CallboardError:  # it does not run, or no more
            return Metrics()

    @from_host
    def tree(self) -> tuple[kernel.ActorInfo, ...]:
        """Every actor: state, mailbox depth, restarts, the message it is at and for how long."""
        return self._live().system.tree()

    @from_host
    def statistics(self) -> kernel.Statistics:
        """Message counts; at rest, sent = handled + dead-lettered + queued."""
        return self._live().system.statistics()

    @from_host
    def dead_letters(self) -> tuple[kernel.DeadLetter, ...]:
        """The latest messages that no actor handled, with the reason."""
        return self._live().system.dead_letters.list()


def may_be_replayed(letter: kernel.DeadLetter) -> bool:
    """May its message be sent again, if its recipient is alive?"""
    return isinstance(letter.message, _SENT_AGAIN)


def kill_actor(running: StartedRuntime, path: str) -> None:
    """End an actor at once; its supervisor sees a failure. The session of a request is cancelled rather."""
    ref = _found(running, path)
    if path.startswith(f"{SESSIONS}/"):
        running.cancel(RequestId(path.removeprefix(f"{SESSIONS}/")), "cancelled by the operator")
        return
    try:
        running.system.kill(ref)
    except kernel.AskTimeout as error:
        raise RuntimeFailure(f"{path} could not be killed: a handler holds callboard's loop") from error


def restart_actor(running: StartedRuntime, path: str) -> None:
    """Stop an actor in order and start it again; returns when it runs. That counts as no failure."""
    ref = _found(running, path)
    if path.startswith(f"{SESSIONS}/"):
        raise UsageError(f"{path} is a request: it cannot be started again; cancel it")
    if running.system.restart_of(ref) is kernel.Restart.TEMPORARY:
        raise UsageError(f"{path} is temporary: its supervisor does not start it again; kill it, or restart its pool")
    supervisor, _, name = path.rpartition("/")
    before, until, pause = running.system.incarnation(ref), time.monotonic() + RESTART_SECONDS, threading.Event()
    kernel.restart_child(running.system.ref(supervisor), name)
    while running.system.incarnation(ref) == before and ref.is_alive():
        if time.monotonic() > until:
            raise RuntimeFailure(f"{path} was not started again within {RESTART_SECONDS:g} s")
        pause.wait(LOOK_SECONDS)
    try:
        running.system.wait_until_started(ref, RESTART_SECONDS)
    except kernel.StartFailed as error:
        raise RuntimeFailure(f"{path} has stopped, and could not be started again: {error}") from error


def replay_dead_letter(running: StartedRuntime, number: int) -> kernel.DeadLetter:
    """Send the message of a dead letter again, once: the letter is kept no more."""
    letter = next((each for each in running.system.dead_letters.list() if each.serial == number), None)
    if letter is None:
        raise UsageError(f"there is no dead letter {number}: it was sent again already, or newer ones have replaced it")
    if not may_be_replayed(letter):
        kind = type(letter.message).__name__
        raise UsageError(f"dead letter {number} cannot be sent again: a {kind} could do its work twice")
    try:
        return running.system.replay(number)
    except KeyError:
        raise UsageError(f"dead letter {number} was sent again a moment ago") from None
    except kernel.NoSuchActor:
        gone = f"dead letter {number} cannot be sent again: {letter.recipient} has ended"
        raise UsageError(gone) from None
    except kernel.MailboxFull as error:
        raise RuntimeFailure(f"the mailbox of {letter.recipient} is full; the message is lost") from error


def stack_of(running: StartedRuntime, request_id: str, step: int, call_id: str) -> str:
    """Where the code of a call is now."""
    answer: Future[str] = Future()
    with running.reading_stack:  # a pool's processes write to one pipe
        try:
            running.peers.dispatcher.tell_control(ReadStack(started.tag_of_call(request_id, step, call_id), answer))
            return answer.result(STACK_SECONDS)
        except TimeoutError as error:
            answer.cancel()
            raise RuntimeFailure(
                f"the tool has not said within {STACK_SECONDS:g} s where it is: its process is stopped, or in the "
                "kernel and cannot be interrupted"
            ) from error
        except NoStack as error:
            raise UsageError(f"there is no stack of {call_id}: {error}") from None


def _found(running: StartedRuntime, path: str) -> kernel.Ref:
    if path in _SPARED:
        raise UsageError(f"{path} is not ended here: {_SPARED[path]}")
    try:
        return running.system.ref(path)
    except kernel.NoSuchActor:
        raise UsageError(f"there is no actor {path!r}; the tree shows those that live") from None
