"""McpServerActor: owns the connection to one MCP server. A lost connection is its crash, so its supervisor makes a new
actor and with it a new connection, later each time; after too many it gives the server up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from callboard.actors.kernel import (
    Actor,
    Backoff,
    Budget,
    ChildSpec,
    DependencyLost,
    History,
    Restart,
    handles,
    logger_of,
)
from callboard.actors.mcp.remote_values import ServerState
from callboard.actors.mcp.server_link import ServerLink
from callboard.actors.mcp.server_thread import ServerThread

logger = logger_of("callboard.mcp")

#: A server may fail so often: with the pauses between the tries that is a minute in which it does not come back.
BUDGET: Final = Budget(intensity=8, period_seconds=300.0)
BACKOFF: Final = Backoff(initial_seconds=0.5, maximum_seconds=30.0)
#: For a server to end after its stdin was closed, then after SIGTERM, and for a thread to notice.
SHUTDOWN_SECONDS: Final = 4.0

OpenConnection = Callable[[ServerLink, Callable[[Exception | None], object]], ServerThread]
"""Starts a thread with a connection, which tells the link what it finds; the other is called when it has ended."""


class ConnectionEnded(Struct, frozen=True):
    """The thread of a connection has ended."""

    thread_number: int
    error: Exception | None


class McpServerActor(Actor[ConnectionEnded]):
    """See the module."""

    def __init__(self, link: ServerLink, open_connection: OpenConnection, failures: Failures) -> None:
        self._link = link
        self._open = open_connection
        self._failures = failures
        self._thread: ServerThread | None = None
        self._has_ended = False

    def on_start(self) -> None:
        """Begin to connect. What comes of it, the thread tells the link."""
        number, ref = self._failures.next_number(), self.ref
        self._number = number
        self._thread = thread = self._open(self._link, lambda error: ref.tell_control(ConnectionEnded(number, error)))
        self.at_end(thread.kill)

    def on_stopping(self) -> bool:
        """Close the connection; its end is told."""
        if self._thread is None or self._has_ended:
            return True
        self._thread.stop()
        return False

    def on_stop(self) -> None:
        if self._link.status.state is not ServerState.FAILED:
            self._link.over(ServerState.STOPPED)

    @handles(ConnectionEnded)
    def _ended(self, ended: ConnectionEnded) -> None:
        if ended.thread_number != self._number:
            return  # of an earlier incarnation, which was killed
        self._has_ended = True
        if ended.error is None:
            self.stopped()
            return
        assert self._thread is not None
        why = str(ended.error)
        if self._failures.are_too_many(self.now()):
            logger.error("MCP server %s is given up, it failed too often; the last time: %s", self._link.name, why)
            self._link.over(ServerState.FAILED, f"it failed too often; the last time: {why}")
            self.stop()
            return
        self._link.lost(self._thread, why)
        raise DependencyLost(f"MCP server {self._link.name}: {why}", {"mcp_server": self._link.name})


class Failures:
    """How often one server has failed lately; it outlives the incarnations."""

    def __init__(self, budget: Budget = BUDGET) -> None:
        self._budget = budget
        self._history = History()
        self._number = 0

    def next_number(self) -> int:
        """For a connection: none has that of another."""
        self._number += 1
        return self._number

    def are_too_many(self, now: float) -> bool:
        """Count one more."""
        self._history = self._history.after(now, self._budget, BACKOFF)
        return len(self._history.failures) > self._budget.intensity


def server_spec(
    link: ServerLink, open_connection: OpenConnection, budget: Budget = BUDGET
) -> ChildSpec[ConnectionEnded]:
    """The actor of one server. Its own budget decides before that of its supervisor, which has room for one more."""
    failures = Failures(budget)
    return ChildSpec(
        f"mcp-{link.name}",
        lambda: McpServerActor(link, open_connection, failures),
        restart=Restart.TRANSIENT,
        shutdown_seconds=SHUTDOWN_SECONDS,
        intensity=budget.intensity + 1,
        period_seconds=budget.period_seconds,
        backoff=BACKOFF,
    )
