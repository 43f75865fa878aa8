"""Jobs: commands that go on while the model does something else.

`Jobs`, an actor of the tree, has each job run as a call of a process tool, like any other: in the same namespaces and
confinement, in a child that is ended with all that it has started, also when the runtime is killed. A job outlives the
request that started it, so that a later question can look at it; it ends with the runtime at the latest.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, get_args

from msgspec import Struct, field

from callboard.actors.builtins.command_output import HeadAndTail
from callboard.actors.builtins.job_spool import Spool, SpoolWriter
from callboard.actors.calls.dispatcher import DispatchCall
from callboard.actors.calls.ledger import CallEvent, LastEvent
from callboard.actors.kernel import Actor, ActorDeadError, Asks, ChildSpec, NoSuchActor, handles
from callboard.actors.processes import confined, run_shell
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.actors.tools.progress import ProgressMade
from callboard.protocol import events
from callboard.protocol.commands import CancelTool, RunTool
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.tools import Hold
from callboard.protocol.values import repr_without

#: Jobs at a time, of all requests: each holds one of the processes of long tools, of which a runtime has 32.
MAX_JOBS: Final = 8
#: Jobs that have ended and can still be looked at; each holds a megabyte of output at most.
MAX_ENDED: Final = 32
MAX_JOB_SECONDS: Final = 3_600.0
#: Of the call that runs a job, beyond the job's own time: for a process to begin in, and for ending it politely.
BEGIN_SECONDS: Final = 30.0
SPARE_SECONDS: Final = run_shell.GRACE_SECONDS + 1.0


class JobState(StrEnum):
    """Where a job is."""

    WAITING = "waiting"
    """For a process."""
    RUNNING = "running"
    EXITED = "exited"
    KILLED = "killed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    """It could not be run; the note says why."""


class JobView(Struct, frozen=True):
    """A job as it is at one moment."""

    id: str
    command: str
    cwd: str
    state: JobState
    exit_code: int | None
    signal: str
    seconds: float
    """Since it was started, or from its start to its end."""
    output_bytes: int
    note: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state not in (JobState.WAITING, JobState.RUNNING)


class StartJob(Asks[bool], Struct, frozen=True):
    """Start a job. False: MAX_JOBS run already."""

    id: str
    request: RequestId
    command: str
    cwd: Path
    environment: Mapping[str, str]
    seconds: float
    spool: Spool
    """The actor's from now on, unless the answer is False."""
    hold: Hold
    """What the kernel is to keep it to."""

    __repr__ = repr_without("environment")


class ReadJob(Asks[tuple[JobView, int, bytes] | None], Struct, frozen=True):
    """The job, with its output from byte `since` on: which byte it begins with, and the bytes. None: there is none."""

    id: str
    since: int


class ListJobs(Asks[tuple[JobView, ...]], Struct, frozen=True):
    """The jobs that this request has started."""

    request: RequestId


class KillJob(Asks[bool], Struct, frozen=True):
    """End a job. False: there is none of this id."""

    id: str


class TellAtEnd(Struct, frozen=True):
    """Call this, which must neither block nor raise, when the job has ended; at once if it has, or if there is none."""

    id: str
    told: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _JobEnd:
    """What the call of a job returns."""

    end: run_shell.CommandEnd
    hint: str
    """What confinement has to do with what it printed; "" if nothing."""


class _Job(Struct):
    started: StartJob
    tag: Tag
    began_at: float
    ended_at: float | None = None
    state: JobState = JobState.WAITING
    exit_code: int | None = None
    signal: str = ""
    note: str = ""
    waiters: list[Callable[[], None]] = field(default_factory=list)

    def view(self, now: float) -> JobView:
        until = now if self.ended_at is None else self.ended_at
        begun = self.started
        return JobView(
            begun.id, begun.command, str(begun.cwd), self.state, self.exit_code, self.signal,
            round(until - self.began_at, 1), begun.spool.total(), self.note,
        )  # fmt: skip

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None


JobMessage = StartJob | ReadJob | ListJobs | KillJob | TellAtEnd | CallEvent


class Jobs(Actor[JobMessage]):
    """See the module."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        """By id, the oldest first."""
        self._tool = _job_tool()

    def on_start(self) -> None:
        self.at_end(self._end_all)

    def _end_all(self) -> None:
        """However this actor ends: nothing would ever read what its jobs print."""
        for job in self._jobs.values():
            if not job.has_ended:
                with contextlib.suppress(NoSuchActor, ActorDeadError):  # the runtime ends
                    self._cancel(job)
            self._forget(job)
        self._jobs.clear()

    def _cancel(self, job: _Job) -> None:
        self.system.ref("root/dispatcher").tell_control(CancelTool(job.tag))

    @handles(StartJob)
    def _start(self, message: StartJob) -> bool:
        if sum(not job.has_ended for job in self._jobs.values()) >= MAX_JOBS:
            return False
        now = self.now()
        tag = Tag(RequestId(f"job-{message.id}"), MessageId(message.id), 1, CallId(message.id))
        self._jobs[message.id] = _Job(message, tag, now)
        arguments = {
            "command": message.command, "cwd": str(message.cwd), "environment": dict(message.environment),
            "seconds": message.seconds, "spool": str(message.spool.path), "hold": message.hold,
        }  # fmt: skip
        deadline_at = now + BEGIN_SECONDS + message.seconds + SPARE_SECONDS
        run = RunTool(tag, self._tool.name, json.dumps(arguments), deadline_at, message.id)
        self.system.ref("root/dispatcher").tell_control(DispatchCall(run, "", self.ref, tool=self._tool))
        return True

    @handles(ReadJob)
    def _read(self, message: ReadJob) -> tuple[JobView, int, bytes] | None:
        job = self._jobs.get(message.id)
        return (job.view(self.now()), *job.started.spool.read(message.since)) if job is not None else None

    @handles(ListJobs)
    def _list(self, message: ListJobs) -> tuple[JobView, ...]:
        now = self.now()
        return tuple(job.view(now) for job in self._jobs.values() if job.started.request == message.request)

    @handles(KillJob)
    def _kill(self, message: KillJob) -> bool:
        job = self._jobs.get(message.id)
        if job is not None and not job.has_ended:
            self._cancel(job)
        return job is not None

    @handles(TellAtEnd)
    def _tell_at_end(self, message: TellAtEnd) -> None:
        job = self._jobs.get(message.id)
        if job is None or job.has_ended:
            message.told()
        else:
            job.waiters.append(message.told)

    @handles(ProgressMade)
    def _progress(self, _: ProgressMade) -> None:
        """Of a job there is none."""

    @handles(events.ToolCallStarted)
    def _begun(self, event: events.ToolCallStarted) -> None:
        if (job := self._job_of(event.tag)) is not None and not job.has_ended:
            job.state = JobState.RUNNING

    @handles(*get_args(LastEvent))
    def _ended(self, event: LastEvent) -> None:
        job = self._job_of(event.tag)
        if job is None or job.has_ended:
            return
        job.ended_at = self.now()
        _ENDS[type(event)](job, event)
        waiters, job.waiters = job.waiters, []
        for told in waiters:
            told()
        ended = [each for each in self._jobs.values() if each.has_ended]
        for old in ended[: max(0, len(ended) - MAX_ENDED)]:
            self._forget(self._jobs.pop(old.started.id))

    def _job_of(self, tag: Tag) -> _Job | None:
        return self._jobs.get(str(tag.call_id))

    def _forget(self, job: _Job) -> None:
        job.started.spool.close()
        for told in job.waiters:
            told()


def _exited(job: _Job, event: LastEvent) -> None:
    assert isinstance(event, events.ToolCallCompleted)
    said = json.loads(event.content)
    end, job.note = said["end"], said["hint"]
    job.state = JobState.TIMED_OUT if end["timed_out"] else JobState.EXITED
    job.exit_code, job.signal = end["exit_code"], end["signal"]
    if end["too_many_processes"]:
        job.state, job.note = JobState.KILLED, f"it had more than {run_shell.MAX_PROCESSES} processes"


def _failed(job: _Job, event: LastEvent) -> None:
    assert isinstance(event, events.ToolCallFailed)
    job.state, job.note = JobState.FAILED, event.failure.message


def _stopped(state: JobState, job: _Job, _: LastEvent) -> None:
    job.state = state


#: What becomes of a job by the last event of its call.
_ENDS: Final[Mapping[type, Callable[[_Job, LastEvent], None]]] = {
    events.ToolCallCompleted: _exited,
    events.ToolCallFailed: _failed,
    events.ToolCallTimedOut: partial(_stopped, JobState.TIMED_OUT),
    events.ToolCallCancelled: partial(_stopped, JobState.KILLED),
    events.ToolCallDeferred: partial(_stopped, JobState.FAILED),
}


def jobs_actor() -> ChildSpec[JobMessage]:
    """For the tree."""
    return ChildSpec("jobs", Jobs)


def _job_tool() -> Tool:
    """What runs a job, in a child process. No model is offered it."""

    @tool(name="job", risk="execute", latency="long", concurrency=MAX_JOBS)
    def job(
        context: ToolContext,
        command: str,
        cwd: str,
        environment: dict[str, str],
        seconds: float,
        spool: str,
        hold: Hold,
    ) -> _JobEnd:
        """Run a command whose output goes into a file."""
        output, kept = SpoolWriter(spool), HeadAndTail()
        confined.hold(hold)  # not before: the spool is written

        def add(data: bytes) -> None:
            output.add(data)
            kept.add(data)

        left = context.remaining_seconds - SPARE_SECONDS
        end = run_shell.run(command, Path(cwd), environment, min(seconds, left), add)
        return _JobEnd(end, confined.hint(kept.text()))

    return job.owned
