"""The real workers, with calls that come, wait, stop and end at random, beside what each kind owes of them.

    python -m callboard.actors.testing plays workers --seeds 500

The actors run in virtual time, and the code of the tools on real threads and loops: it waits at a gate until the play
lets it go, and the play waits until it has come there. So nothing depends on who is faster. Processes are made up:
their source and their children are played. `play(seed)` says what is not as promised, one sentence each; the same for
the same seed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final
from unittest import mock

from callboard.actors.calls.ledger import Call, CallState, Ending
from callboard.actors.testing import played_loops, played_processes
from callboard.actors.testing.worker_bench import NO_CALL, Bench, Gate, gates
from callboard.actors.tools import Tool, tool
from callboard.actors.workers.messages import KillCall, StopCall
from callboard.actors.workers.thread import ThreadWorker
from callboard.protocol import events
from callboard.protocol.errors import ToolError
from callboard.protocol.tools import FailureCode

opened: Final[list[list[str]]] = []
"""Of each resource that was opened: what was done with it."""


@contextmanager
def keeps() -> Iterator[list[str]]:
    """A resource, which says that it was opened and closed."""
    made = ["opened"]
    opened.append(made)
    yield made
    made.append("closed")


@cache
def thread_tools() -> tuple[Tool, Tool]:
    """A plain one, and one that keeps something open."""

    @tool(isolation="thread", description="Waits.")
    def plain(key: str) -> str:
        found: str = gates[key].wait()
        return found

    @tool(isolation="thread", description="Waits.", resource=keeps)
    def keeping(key: str, resource: Any) -> str:
        found: str = gates[key].wait(resource)
        return found

    return plain, keeping


class ThreadPlay(Bench):
    """Of a thread: it runs one call, and goes on with it when that call has ended."""

    def __init__(self, seed: int) -> None:
        super().__init__("thread", seed)
        self.call: Call | None = None
        self.mode = "idle"
        self.gate = Gate()
        self.tool = thread_tools()[0]
        self.resource: object = None
        self.has_thread = False
        self.start(lambda reports, _: ThreadWorker(reports))

    def act(self) -> None:
        """One random deed."""
        what = self.rng.choice(("give", "give", "ahead", "stop", "kill", "returns", "returns", "stack", "stranger"))
        self.deeds.append(f"{what} ({self.mode})")
        getattr(self, f"_{what}")()
        self.settle()
        self.compare()

    def _give(self) -> None:
        used, gate = self.rng.choice(thread_tools()), Gate()
        call = self.submit(used, gate)
        self.is_news = True
        is_stopped = self.rng.random() < 0.1
        if not self.has_thread and self.rng.random() < 0.05:
            self._cannot_start(call, used)
            return
        self.give(call, used)
        if is_stopped:
            call.stop(self.rng.choice(tuple(Ending)))
        self.settle()
        if self.mode != "idle":
            if is_stopped:
                self.ended(call, has_run=False, begun=False)
            elif call.state is not CallState.QUEUED:
                self.wrong(f"it runs a call, and the next one is {call.state}")
            call.end(Ending.CANCELLED, "", 0.0)
            return
        self.has_thread = True
        if is_stopped:
            self.ended(call, has_run=False, begun=False)
            return
        self.is_news = False
        self.call, self.gate, self.tool = call, gate, used
        self.owes(call, events.ToolCallStarted)
        if call.go_ahead is not None and not call.go_ahead.is_given:
            self.mode = "held"
        else:
            self._comes()

    def _cannot_start(self, call: Call, used: Tool) -> None:
        """There are no threads any more: the call says so, and the worker ends."""
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("told to")):
            self.give(call, used)
            self.settle()
        self.owes(call, events.ToolCallFailed, FailureCode.OVERLOADED)
        self.room, self.mode = 0, "gone"

    def _comes(self) -> None:
        self.mode = "running"
        if (come := self.gate.has_come()) is None:
            self.wrong("the code of its tool does not run")
        elif self.tool is thread_tools()[1]:
            self.resource = self.resource or come[0]
            if come[0] is not self.resource or self.resource != ["opened"]:
                self.wrong(f"its tool is given {come[0]}, which is not what was opened before")

    def _ahead(self) -> None:
        if self.mode == "held" and self.call is not None:
            if self.gate.has_come(0.0) is not None:
                self.wrong("the code of its tool has not waited for the go-ahead")
            self.aheads[self.call.run.tag].give()
            self.settle()
            self._comes()
        elif self.aheads:  # of a call that has ended, or has it
            self.aheads[self.rng.choice(list(self.aheads))].give() if self.mode != "held" else None

    def _stop(self) -> None:
        if self.call is None or self.call.state is not CallState.RUNNING:
            return
        self.is_news = True
        self.stop(self.call)
        self._has_stopped(self.call)

    def _has_stopped(self, call: Call) -> None:
        self.ended(call, has_run=self.mode == "running")
        if self.mode == "held":
            self.mode, self.call = "idle", None
        else:
            self.mode, self.room, self.holds = "abandoned", 0, 1

    def _kill(self) -> None:
        """Said again to one that has ended."""
        if self.call is not None and self.mode == "abandoned":
            self.worker.tell_control(KillCall(self.call.run.tag))

    def _stranger(self) -> None:
        self.worker.tell_control(self.rng.choice((StopCall, KillCall))(NO_CALL))

    def _returns(self) -> None:
        if self.mode not in ("running", "abandoned") or self.call is None:
            return
        said, code = self.rng.choice(
            (("well", ""), (ToolError("told to"), FailureCode.TOOL_ERROR), (SystemExit("told to"), FailureCode.CRASHED))
        )
        self.gate.go.put(said)
        self.await_thread("whose code has returned")
        self.is_news = True
        if self.mode == "abandoned":
            self.room, self.holds = 1, 0
        elif said == "well":
            self.owes(self.call, events.ToolCallCompleted, "well")
        else:
            self.owes(self.call, events.ToolCallFailed, code)
        self.mode, self.call = "idle", None

    def _stack(self) -> None:
        tag = self.call.run.tag if self.call is not None else NO_CALL
        found = self.stack_of(tag)
        if ("in wait" in found) is not (self.mode in ("running", "abandoned")):
            self.wrong(f"its code is said to be in {found!r}")

    def end(self) -> None:
        """It stops, with what it runs."""
        self.deeds.append(f"end ({self.mode})")
        was, call = self.mode, self.call
        self.worker.stop()
        self.settle()
        if call is not None and was in ("held", "running"):
            self.owes(call, events.ToolCallCancelled, FailureCode.CANCELLED)
        if self.resource is not None and was in ("idle", "held"):
            self.await_thread("which closes what is open")
            if self.resource != ["opened", "closed"]:
                self.wrong(f"what was open on its thread is {self.resource} in the end")
        if self.worker.is_alive():
            self.wrong("it has not stopped")
        self.compare()
        self.gate.go.put("in the end")


def play_thread(seed: int) -> list[str]:
    """A ThreadWorker."""
    made = ThreadPlay(seed)
    for _ in range(14):
        if made.problems or made.mode == "gone":
            return made.problems[:1]
        made.act()
    made.end()
    made.give_late()
    return made.problems[:1]


def play(seed: int) -> list[str]:
    """What is not as promised, in a play of each kind; those of loops take turns."""
    found = [*play_thread(seed), *played_processes.play(seed)]
    return found or (played_loops.play("task" if seed % 2 else "caller", seed) if seed % 4 < 2 else [])
