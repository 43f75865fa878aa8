"""The workers of async tools, on a loop of their own or on that of their caller: see played_workers.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, Final

from msgspec import Struct

from callboard.actors.calls.ledger import Call, CallState, Ending
from callboard.actors.kernel.system import cell_of
from callboard.actors.testing.worker_bench import NO_CALL, PATIENCE_SECONDS, Bench, gates
from callboard.actors.tools import Tool, tool
from callboard.actors.workers.caller import CallerWorker
from callboard.actors.workers.messages import KillCall, StopCall
from callboard.actors.workers.task import TaskWorker
from callboard.protocol import events
from callboard.protocol.errors import ToolError
from callboard.protocol.tools import FailureCode

DEEDS: Final = (
    *("give",) * 6, *("ahead",) * 2, *("returns",) * 5, *("block",) * 2, *("unblock",) * 2, *("stop",) * 3,
    *("kill",) * 3, *("hangs",) * 3, "stack", "stranger", *("wait",) * 2,
)  # fmt: skip
#: Besides, where the loop is ours.
MORE_DEEDS: Final = ("others", "strange", *("overdue",) * 4, *("elsewhere",) * 3)
#: A blocked loop is looked at four times a second, and two looks find that it is.
LOOKS_SECONDS: Final = 0.6
GRACE_SECONDS: Final = 0.25
ROOM: Final = 100


class AsyncGate:
    """Where the code of one async call waits."""

    def __init__(self, *, is_deaf: bool) -> None:
        self.is_deaf = is_deaf
        """It does not end when it is cancelled for the first time."""
        self.come: SimpleQueue[object] = SimpleQueue()
        self.unblock: SimpleQueue[object] = SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[Any] | None = None
        self.future: asyncio.Future[Any] | None = None

    async def wait(self, resource: object = None) -> str:
        """On its loop, again and again, until it is to return."""
        self.loop, self.task, is_deaf = asyncio.get_running_loop(), asyncio.current_task(), self.is_deaf
        while True:
            self.future = self.loop.create_future()
            self.come.put(resource)
            try:
                said = await self.future
            except asyncio.CancelledError:
                if not is_deaf:
                    raise
                is_deaf = False
                continue
            if isinstance(said, BaseException):
                raise said
            if callable(said):
                said()
            else:
                return str(said)

    def say(self, said: object) -> None:
        """Its code goes on with this."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self._set, said)

    def _set(self, said: object) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(said)

    def blocks(self) -> None:
        """On its loop: it takes it from all."""
        self.come.put("blocks")
        self.unblock.get()

    def has_come(self, seconds: float = PATIENCE_SECONDS) -> tuple[object] | None:
        """In time: with what?"""
        try:
            return (self.come.get(timeout=seconds),)
        except Empty:
            return None


@asynccontextmanager
async def keeps() -> AsyncIterator[list[str]]:
    """A resource, which says that it was opened and closed."""
    made = ["opened"]
    yield made
    made.append("closed")


@cache
def loop_tools(isolation: Any) -> tuple[Tool, Tool]:
    """A plain one, and one that keeps something open."""

    @tool(isolation=isolation, description="Waits.")
    async def plain(key: str) -> str:
        found: str = await gates[key].wait()
        return found

    @tool(isolation=isolation, description="Waits.", resource=keeps)
    async def keeping(key: str, resource: Any) -> str:
        found: str = await gates[key].wait(resource)
        return found

    return plain, keeping


class Job(Struct, eq=False):
    """One call at the worker."""

    call: Call
    tool: Tool
    gate: AsyncGate
    mode: str
    """held, unbegun, running, stuck (its call has ended)"""
    waits_until: float
    is_cancelled: bool = False
    """Its loop has been asked to cancel it."""
    is_struck: bool = False
    """It held the loop when it was given up: it ends as soon as it goes on."""


class LoopPlay(Bench):
    """Of a TaskWorker or a CallerWorker."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed, room=ROOM)
        self.is_shared = name == "task"
        self.jobs: list[Job] = []
        self.blocker: Job | None = None
        self.is_given_up = self.is_gone = False
        self.resource: object = None
        self.has_run: set[str] = set()
        """Tools that have run here."""
        self.own: asyncio.AbstractEventLoop | None = None
        if self.is_shared:
            self.start(lambda reports, _: TaskWorker(reports))
        else:
            self.own = asyncio.new_event_loop()
            self.thread = threading.Thread(target=self.own.run_forever, daemon=True)
            self.thread.start()
            self.start(lambda reports, _: CallerWorker(reports, self.own))

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Where the tools run."""
        if self.own is not None:
            return self.own
        actor: Any = cell_of(self.worker).actor
        return actor._loop._loop if actor is not None and actor._loop is not None else None

    def calm(self) -> None:
        """Until loop and actor have done all that they can."""
        for _ in range(3):
            self.settle()
            loop = self.loop()
            if loop is None or self.blocker is not None or loop.is_closed():
                break
            done = threading.Event()
            try:
                loop.call_soon_threadsafe(loop.call_soon, loop.call_soon, done.set)
            except RuntimeError:
                break  # it has been closed
            if not self._is_done(done):
                break
        self.settle()

    def _is_done(self, done: threading.Event) -> bool:
        """False where the loop has ended meanwhile."""
        if not self.is_given_up:
            return done.wait(PATIENCE_SECONDS)
        while not done.wait(0.001):
            actor: Any = cell_of(self.worker).actor
            if actor is None or actor._loop is None or not actor._loop._thread.is_alive():
                return False
        return True

    def act(self) -> None:
        """One random deed."""
        what = self.rng.choice((*DEEDS, *MORE_DEEDS) if self.is_shared else DEEDS)
        self.deeds.append(what)
        getattr(self, f"_{what}")()
        self.calm()
        self.look()

    def look(self) -> None:
        """After a deed."""
        if self.is_given_up and not self.is_gone and not any(each.mode == "running" for each in self.jobs):
            self._ends_by_itself()
        self.room = 0 if self.is_given_up else ROOM
        self.holds = sum(each.mode == "stuck" for each in self.jobs)
        if not self.is_gone and not self.worker.is_alive():
            self.wrong("it has ended")
        self.compare()

    def _ends_by_itself(self) -> None:
        """A loop that was given up ends with the last call that is in time."""
        if self.blocker is not None:
            return
        self._await_end()
        if self.worker.is_alive():
            self.wrong("its loop was given up, runs nothing any more, and it has not ended")
        self.is_gone = True
        self.jobs.clear()

    # -- deeds

    def _some(self, *modes: str) -> Job | None:
        found = [each for each in self.jobs if each.mode in modes]
        return self.rng.choice(found) if found else None

    def _give(self) -> None:
        self._gives(self.rng.choice(loop_tools(self.name)), self.rng.choice((1.0, 100.0)))

    def _gives(self, used: Tool, seconds: float, *, is_plain: bool = False) -> None:
        gate = AsyncGate(is_deaf=self.rng.random() < 0.3)
        call = self.submit(used, gate, seconds, may_wait=not is_plain)
        is_stopped = self.rng.random() < 0.1 and not is_plain
        self.give(call, used)
        if is_stopped:
            call.stop(self.rng.choice(tuple(Ending)))
        self.settle()
        if self.is_given_up or is_stopped:
            self.is_news = True
            if is_stopped:
                self.ended(call, has_run=False, begun=False)
            elif call.state is not CallState.QUEUED:
                self.wrong(f"its loop was given up, and the next call is {call.state}")
            call.end(Ending.CANCELLED, "", 0.0)
            return
        self.owes(call, events.ToolCallStarted)
        job = Job(call, used, gate, "held", self.simulation.now() + seconds / 2)
        self.jobs.append(job)
        if call.go_ahead is None or call.go_ahead.is_given:
            self._starts(job)

    def _starts(self, job: Job) -> None:
        job.mode = "unbegun"
        now = self.simulation.now()
        job.waits_until = now + (job.call.run.deadline_at - now) / 2
        if self.blocker is None:
            self._comes(job)

    def _comes(self, job: Job) -> None:
        self.settle()
        job.mode = "running"
        self.has_run.add(job.tool.name)
        if (come := job.gate.has_come()) is None:
            self.wrong("the code of its tool does not run")
        elif job.tool is loop_tools(self.name)[1]:
            self.resource = self.resource or come[0]
            if come[0] is not self.resource or self.resource != ["opened"]:
                self.wrong(f"its tool is given {come[0]}, which is not what was opened before")
        if self.is_shared and job.call.lane.home is not self.seat:
            self.wrong(f"further calls of {job.tool.name} do not run where it has something open")

    def _ahead(self) -> None:
        if (job := self._some("held")) is not None:
            if job.gate.has_come(0.0) is not None:
                self.wrong("the code of its tool has not waited for the go-ahead")
            self.aheads[job.call.run.tag].give()
            self._starts(job)

    def _returns(self) -> None:
        job = self._some("running", "stuck")
        if job is None or self.blocker is not None:
            return
        said, code = self.rng.choice(
            (("well", ""), (ToolError("told to"), FailureCode.TOOL_ERROR), (SystemExit("told to"), FailureCode.CRASHED))
        )
        job.gate.say(said)
        self._finishes(job, str(said) if code == "" else "", code)

    def _finishes(self, job: Job, content: str = "", code: str = "") -> None:
        """Its code ends now."""
        self.jobs.remove(job)
        self.is_news = True
        self.calm()
        if job.mode == "stuck":
            return
        if job.call.why is not None:
            self.ended(job.call, has_run=True)
        elif content:
            self.owes(job.call, events.ToolCallCompleted, content)
        else:
            self.owes(job.call, events.ToolCallFailed, code)

    def _block(self) -> None:
        job = self._some("running", "stuck")
        if job is not None and self.blocker is None:
            self._blocks(job)

    def _blocks(self, job: Job) -> None:
        job.gate.say(job.gate.blocks)
        if job.gate.has_come() is None:
            self.wrong("its code does not go on")
        self.blocker = job

    def _unblock(self) -> None:
        if (job := self.blocker) is None:
            return
        self.blocker = None
        job.gate.unblock.put(None)
        if job.is_struck:
            self._finishes(job)
        elif job.gate.has_come() is None:
            self.wrong("its code does not go on")
        for each in [each for each in self.jobs if each.mode == "unbegun"]:
            self._comes(each)
        for each in [each for each in self.jobs if each.call.why is not None and not each.is_cancelled]:
            self._is_cancelled(each)

    def _is_cancelled(self, job: Job) -> None:
        """Its loop has come to cancel it."""
        job.is_cancelled = True
        if not job.gate.is_deaf:
            self._finishes(job)
        elif job.gate.has_come() is None:
            self.wrong("its code was not asked to end")

    def _stop(self) -> None:
        job = self._some("held", "unbegun", "running")
        if job is not None and job.call.state is CallState.RUNNING:
            self._stops(job)

    def _stops(self, job: Job) -> None:
        self.stop(job.call)
        if job.mode == "running":
            if self.blocker is None:
                self.settle()
                self._is_cancelled(job)
            return
        self.jobs.remove(job)
        self.is_news = True
        if job.mode == "held":
            self.ended(job.call, has_run=False)
        elif not self.is_shared and job.call.why is Ending.TIMED_OUT:  # its code never ran: that is said
            self.owes(job.call, events.ToolCallFailed, FailureCode.TIMED_OUT)
        else:
            self.ended(job.call, has_run=False, begun=False)

    def _kill(self) -> None:
        found = [each for each in self.jobs if each.call.state is CallState.ENDING and each.mode == "running"]
        if found:
            self._kills(self.rng.choice(found))

    def _kills(self, job: Job) -> None:
        blocker, now = self.blocker, self.simulation.now()
        is_held = blocker is not None and blocker is not job and now < blocker.call.run.deadline_at
        is_held = is_held and not job.is_cancelled and not self.is_given_up
        if self.is_shared and is_held and job.gate.is_deaf:
            return
        self.kill(job.call)
        job.mode, self.is_news = "stuck", True
        self.ended(job.call, has_run=True)
        if self.is_shared and not is_held:
            job.is_struck = blocker is job
            self._gives_up()

    def _gives_up(self) -> None:
        self.settle()
        if not self.is_given_up:
            self.is_given_up = True
            for each in [each for each in self.jobs if each.mode in ("held", "unbegun")]:
                self.jobs.remove(each)
                if each.call.state is not CallState.QUEUED:
                    self.wrong(f"its loop is given up, and a call that has not begun there is {each.call.state}")
                each.call.end(Ending.CANCELLED, "", 0.0)

    def _others(self) -> None:
        """A tool cancels all tasks that it finds, and tries to take the loop from all: in vain, where it is ours."""
        job = self._some("running")
        is_quiet = not any(each.call.why is not None for each in self.jobs)
        if not self.is_shared or job is None or self.blocker is not None or not is_quiet:
            return
        loop, own = job.gate.loop, job.gate.task

        def cancel_all() -> None:
            assert loop is not None
            for task in asyncio.all_tasks(loop):
                if task is not own:
                    task.cancel()
            loop.stop()
            loop.set_exception_handler(None)

        job.gate.say(cancel_all)
        if job.gate.has_come() is None:
            self.wrong("its code does not go on")

    def _strange(self) -> None:
        """A thread of the host cancels the task of a call."""
        job = self._some("running")
        if (
            not self.is_shared
            or job is None
            or self.blocker is not None
            or job.gate.is_deaf
            or job.call.why is not None
        ):
            return
        assert job.gate.loop is not None
        assert job.gate.task is not None
        job.gate.loop.call_soon_threadsafe(job.gate.task.cancel)
        self._finishes(job, code=FailureCode.INTERNAL_ERROR)

    def _stack(self) -> None:
        job = self._some("held", "unbegun", "running", "stuck")
        found = self.stack_of(job.call.run.tag if job is not None else NO_CALL)
        is_due = job is not None and job.mode == "running"
        if not self.is_shared and job is self.blocker:
            return  # of what blocks the loop of a host, only the outermost frame is known
        if ("in wait" in found) is not is_due:
            self.wrong(f"the code of a call that is {job and job.mode} is said to be in {found!r}")

    def _stranger(self) -> None:
        self.worker.tell_control(self.rng.choice((StopCall, KillCall))(NO_CALL))

    def _overdue(self) -> None:
        """A call ends while another one, which is in time, holds the loop: that is not given up before its deadline."""
        now = self.simulation.now()
        found = [each for each in self.jobs if each.mode == "running" and each.call.why is None]
        soon = [each for each in found if now < each.call.run.deadline_at <= now + 1.0]
        others = [each for each in found if not each.gate.is_deaf and each not in soon[:1]]
        if self.blocker is not None or not soon or not others or self.is_given_up or not self.is_shared:
            return
        blocker, job = soon[0], others[0]
        self._blocks(blocker)
        self._stops(job)
        self.settle()
        self._kills(job)
        for seconds in (0.0, 0.3, 1.2):
            self._waits(seconds)
            self.settle()
            self.look()

    def _hangs(self) -> None:
        """A call does not end when it is asked to."""
        found = [each for each in self.jobs if each.mode == "running" and each.gate.is_deaf and each.call.why is None]
        if found and self.blocker is None:
            job = self.rng.choice(found)
            self._stops(job)
            self.settle()
            self._kills(job)

    def _elsewhere(self) -> None:
        """A call of a tool that has not run here waits for a loop that is blocked."""
        job, new = self._some("running"), [each for each in loop_tools(self.name) if each.name not in self.has_run]
        if job is None or not new or self.blocker is not None or self.is_given_up or not self.is_shared:
            return
        self._blocks(job)
        self._gives(new[0], 1.0, is_plain=True)
        for seconds in (0.0, 0.3, 1.2):
            self._waits(seconds)
            self.settle()
            self.look()

    def _wait(self) -> None:
        self._waits(self.rng.choice((0.1, 0.3, 1.0)))

    def _waits(self, seconds: float) -> None:
        """Time passes: what waits for a blocked loop too long goes elsewhere, unless it has something open here."""
        now = self.simulation.now() + seconds
        self.simulation.run_until_idle(now)
        if not self.is_shared:
            return
        for job in [each for each in self.jobs if each.mode == "unbegun"]:
            is_at_home = job.tool.name in self.has_run
            if job.call.state is CallState.QUEUED:
                if is_at_home or now < job.waits_until or job.call.left is not self.seat:
                    self.wrong(f"a call is given back at {now}, and was to wait until {job.waits_until} at the least")
                self.jobs.remove(job)
                self.is_news = True
                job.call.end(Ending.CANCELLED, "", 0.0)
            elif not is_at_home and now - LOOKS_SECONDS > job.waits_until:
                self.wrong(f"its loop is blocked, and a call that waits for it since long is not given back at {now}")
        blocker = self.blocker
        is_late = blocker is not None and now >= blocker.call.run.deadline_at
        is_overdue = any(each.mode == "stuck" and each is not blocker for each in self.jobs)
        if is_late and is_overdue and not self.is_given_up:
            self.simulation.run_until_idle(now + 2 * GRACE_SECONDS)
            self._gives_up()

    def end(self) -> None:
        """It stops, with what it runs."""
        self.deeds.append("end")
        self._unblock()
        self.calm()
        self.look()
        if self.is_gone:
            return
        self.worker.stop()
        self.settle()
        for job in self.jobs:
            if job.mode in ("held", "running"):
                if job.call.why is None:
                    self.owes(job.call, events.ToolCallCancelled, FailureCode.CANCELLED)
                else:
                    self.ended(job.call, has_run=job.mode == "running")
        if not self.is_shared:
            self._let_go()
        self._await_end()
        if self.worker.is_alive():
            self.wrong("it has not stopped")
        if self.resource not in (None, ["opened", "closed"]):
            self.wrong(f"what was open on its loop is {self.resource} in the end")
        self.room, self.holds = self.seat.room, len(self.seat.holds)
        self.compare()

    def _let_go(self) -> None:
        """The loop of a host ends what runs there when it does."""
        for job in [each for each in self.jobs if self._goes_on(each)]:
            if not job.is_cancelled:
                self._is_cancelled(job)
            job.gate.say("in the end")

    def _goes_on(self, job: Job) -> bool:
        return job.mode == "stuck" or (job.mode == "running" and job.gate.is_deaf)

    def _await_end(self) -> None:
        for _ in range(20):
            if not self.worker.is_alive():
                return
            self.simulation.woken.acquire(timeout=PATIENCE_SECONDS / 20)
            self.settle()

    def close(self) -> None:
        """Nothing of it goes on."""
        if self.blocker is not None:
            self.blocker.gate.unblock.put(None)
        if self.own is not None:
            self.own.call_soon_threadsafe(self.own.stop)
            self.thread.join(PATIENCE_SECONDS)
            self.own.close()


def play(name: str, seed: int) -> list[str]:
    """A TaskWorker ("task") or a CallerWorker ("caller")."""
    made = LoopPlay(name, seed)
    for _ in range(14):
        if made.problems or made.is_gone:
            break
        made.act()
    if not made.problems and not made.is_gone:
        made.end()
    made.give_late()
    made.close()
    return made.problems[:1]
