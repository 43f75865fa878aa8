"""Process workers: warm children, one call at a time each, killed with all that they have started.

A child is used again only after a call that left nothing behind; in every other case it is killed and replaced, and
its call's outcome is told when it is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from callboard.actors.processes.frames import Ask, Reply, Told
from callboard.actors.processes.handle import ChildHandle
from callboard.actors.processes.launch import ForkServerProcess, why_not
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import Result
from callboard.actors.workers.call import Call, Ended, Room
from callboard.protocol.errors import UsageError
from callboard.protocol.limits import MAX_TOOL_PROCESSES, TOOL_MEMORY_BYTES
from callboard.protocol.tools import FailureCode, ToolFailure

#: From SIGKILL to the fork server's word that child and orphans are gone it takes 3-9 ms at rest. A fork server that
#: has said nothing at all for this long is taken for dead and replaced; one that is merely busy goes on talking.
KILL_SECONDS: Final = 1.0
#: Tools that a warm child loads in advance: those used last.
MAX_LOADED_IN_ADVANCE: Final = 32
#: Different tools that one child may have loaded; then it is replaced, since nothing is ever unloaded.
MAX_LOADED_TOOLS: Final = 256


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How a pool's children are made."""

    max_children: int = MAX_TOOL_PROCESSES
    warm: int = 1
    """Children kept ready, from the start."""
    memory_bytes: int = TOOL_MEMORY_BYTES
    """Data (heap and private mappings) of each process, a child's children too, each by itself."""
    idle_seconds: float = 30.0
    """Children beyond `warm` that were not needed for this long are ended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What children get beyond the allow-list."""


class ProcessWorkers:
    """The children of one pool, and the fork server they come from."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Ended, room: Room, options: ProcessOptions) -> None:
        self._loop = loop
        self._ended = ended
        self._room = room
        self._options = options
        self._server: ForkServerProcess | None = None
        self._children: dict[int, ChildHandle] = {}
        """All, also those that are dying."""
        self._idle: list[ChildHandle] = []
        """The last used is used next: its caches are warm."""
        self._in_use: dict[Tool, None] = {}
        self._running: dict[Call, ChildHandle] = {}
        self._dying = 0
        self._numbers = 0
        self._forking = False
        """Has the fork server shown that it can?"""
        self._heard_at = 0.0
        self._pool = uuid.uuid4().hex
        self._servers_lost = 0
        self._closed: Callable[[], None] | None = None
        self._unused = 0
        """The fewest idle children since the last look: so many were not needed."""
        self._look: asyncio.TimerHandle | None = None
        self._why_not = why_not()
        self._keep_warm()

    def has_room(self) -> bool:
        """A child is idle, or one more is allowed; not while a lost fork server is still dying."""
        if self._server is not None and not self._server.listens:
            return False
        return bool(self._idle) or self._alive < self._options.max_children

    def start(self, call: Call) -> None:
        """Run it in an idle child, else in a new one. Raises UsageError when its tool cannot be shipped."""
        if self._why_not:
            raise UsageError(self._why_not)
        call.tool.check()
        child = self._idle.pop() if self._idle else self._spawn()
        self._unused = min(self._unused, len(self._idle))
        self._running[call] = child
        child.run(call)

    def interrupt(self, call: Call) -> None:
        """SIGTERM: the tool sees an exception and may close its files. Its successor is started at once."""
        if (child := self._running.get(call)) is not None:
            self._mark_dying(child)
            self._ask(Ask.TERMINATE, child)

    def kill(self, call: Call) -> None:
        """SIGKILL, to its process group and then to everything that had left the group."""
        if (child := self._running.get(call)) is not None:
            self._kill(child)

    def close(self, closed: Callable[[], None]) -> None:
        """End the fork server, which kills everything first."""
        if self._closed is not None:
            return
        self._closed = closed
        if self._look is not None:
            self._look.cancel()
        if self._server is None:
            closed()
        else:
            self._server.close()

    # -- children -------------------------------------------------------------------------------------------------

    @property
    def _alive(self) -> int:
        return len(self._children) - self._dying

    def _keep_warm(self) -> None:
        wanted = min(self._options.warm - len(self._idle), self._options.max_children - self._alive)
        for _ in range(wanted):
            if not self._why_not and self._closed is None and self.has_room():
                child = self._spawn()
                child.load(self._in_use)
                self._idle.insert(0, child)

    def _keep_no_more(self) -> None:
        """End children that nobody needed since the last look: after a burst, a pool gets smaller again."""
        self._look = None
        for child in self._idle[: max(0, self._unused - self._options.warm)]:
            self._kill(child)
        self._unused = len(self._idle)
        self._look_later()

    def _look_later(self) -> None:
        if self._look is None and self._closed is None and len(self._idle) > self._options.warm:
            self._look = self._loop.call_later(self._options.idle_seconds, self._keep_no_more)

    def _spawn(self) -> ChildHandle:
        if self._server is None:
            options, heir = self._options, self._servers_lost > 0
            self._server = ForkServerProcess(
                self._loop, options.memory_bytes, options.environment, self._pool, heir, self._told, self._server_lost
            )
        self._numbers += 1
        child = ChildHandle(self._loop, self._numbers, self._replied, self._kill)
        self._children[child.number] = child
        # It may be used at once: what is sent to it waits in its socket until it has been forked.
        child.hand_over(self._server.spawn)
        return child

    def _mark_dying(self, child: ChildHandle) -> None:
        if child.dying:
            return
        child.dying = True
        self._dying += 1
        if child in self._idle:
            self._idle.remove(child)
        self._keep_warm()
        self._room()

    def _kill(self, child: ChildHandle) -> None:
        self._mark_dying(child)
        self._ask(Ask.KILL, child)
        self._loop.call_later(KILL_SECONDS, self._check_gone, child.number)

    def _check_gone(self, number: int) -> None:
        if number not in self._children or self._server is None:
            return
        silent_seconds = self._loop.time() - self._heard_at
        if silent_seconds >= KILL_SECONDS:
            self._server.kill()
        else:
            self._loop.call_later(KILL_SECONDS - silent_seconds, self._check_gone, number)

    def _ask(self, ask: Ask, child: ChildHandle) -> None:
        if self._server is not None:
            self._server.ask(ask, child.number)

    # -- what they say --------------------------------------------------------------------------------------------

    def _replied(self, child: ChildHandle, reply: Reply) -> None:
        call = child.call
        if call is None or reply.number != child.orders or child.verdict is not None:
            self._kill(child)  # its tool wrote to our socket
        elif child.dying or reply.spent or child.loaded >= MAX_LOADED_TOOLS:
            child.verdict = reply.result
            self._kill(child)
        else:
            output = child.take_output()
            child.call = None
            self._remember(call.tool)
            del self._running[call]
            self._idle.append(child)
            self._look_later()
            self._ended(call, reply.result, output)

    def _remember(self, tool: Tool) -> None:
        """It loads and returns: later children may load it before they are needed, and will not hang in that."""
        if tool not in self._in_use:
            self._in_use[tool] = None
            if len(self._in_use) > MAX_LOADED_IN_ADVANCE:
                del self._in_use[next(iter(self._in_use))]

    def _told(self, told: Told, number: int, value: int) -> None:
        self._heard_at = self._loop.time()
        child = self._children.get(number)
        self._forking = told is not Told.NOT_SPAWNED
        if child is None or told is Told.SPAWNED:
            return
        if told is Told.EXITED:
            self._child_gone(child, FailureCode.CRASHED, f"the tool's process {how_it_ended(value)}")
        else:
            reason = f"no process could be started for the tool: {os.strerror(value)}"
            self._child_gone(child, FailureCode.OVERLOADED, reason)
        if self._forking:
            self._keep_warm()

    def _child_gone(self, child: ChildHandle, code: FailureCode, reason: str) -> None:
        del self._children[child.number]
        if child.dying:
            self._dying -= 1
        elif child in self._idle:
            self._idle.remove(child)
        call = child.call
        output = child.take_output() if call is not None else ""
        child.close()
        if call is not None:
            del self._running[call]
            result: Result = ToolFailure(call.tool.name, code, reason) if child.verdict is None else child.verdict
            self._ended(call, result, output)

    def _server_lost(self) -> None:
        self._server = None
        self._servers_lost += 1
        for child in list(self._children.values()):
            self._child_gone(child, FailureCode.CRASHED, "the process that looks after the tools' processes was lost")
        if self._closed is not None:
            self._closed()
        elif self._forking:  # one that never came to fork would end again: the next call tries, and is told
            self._forking = False
            self._keep_warm()
        self._room()


def how_it_ended(status: int) -> str:
    """A wait status in words: "was killed by SIGSEGV", "exited with status 1"."""
    if not os.WIFSIGNALED(status):
        return f"exited with status {os.waitstatus_to_exitcode(status)} (os._exit?)"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"was killed by {name}"
