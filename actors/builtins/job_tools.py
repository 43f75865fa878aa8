"""`start_job` and `jobs`: commands in the background, and what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from msgspec.structs import replace
from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.builtins.command_output import READ_BYTES, Diagnostic, HeadAndTail
from callboard.actors.builtins.job_spool import Spool
from callboard.actors.builtins.jobs import (
    MAX_JOB_SECONDS,
    MAX_JOBS,
    JobMessage,
    JobState,
    JobView,
    KillJob,
    ListJobs,
    ReadJob,
    StartJob,
    TellAtEnd,
)
from callboard.actors.builtins.run_command import (
    Command,
    Variables,
    checked_line,
    command_accesses,
    diagnosed,
    folder_of,
)
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.kernel import ActorSystem, Ref
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.errors import ToolError

DEFAULT_SECONDS: Final = 1_800.0
#: Of one answer: the beginning and the end of what is new.
HEAD_BYTES: Final = 5_000
TAIL_BYTES: Final = 15_000
MAX_WAIT_SECONDS: Final = 300.0
#: From the end of a wait to that of the call.
SPARE_SECONDS: Final = 2.0
#: The actor answers within milliseconds.
ASK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class JobStarted(BriefResult):
    """The answer of `start_job`."""

    id: str
    cwd: str
    max_seconds: float
    note: str = "jobs(action='wait', id=...) waits for its end, 'poll' shows what it has printed, 'kill' ends it"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class JobReport(BriefResult):
    """One job, with what it has printed since byte `since`."""

    KEEPS: ClassVar = frozenset({"output"})

    id: str
    command: str
    state: JobState
    exit_code: int | None
    signal: str
    seconds: float
    output: str
    output_bytes: int
    """All that it has printed: give it as `since` the next time."""
    left_out_bytes: int
    """Of what is new, what `output` does not show."""
    diagnostics: list[Diagnostic]
    """As of `run_command`: those in what is new."""
    diagnostics_left_out: int | None
    note: str


@dataclass(frozen=True, slots=True)
class JobsAnswer(BriefResult):
    """The answer of `jobs`."""

    KEEPS: ClassVar = frozenset({"jobs"})

    exists: bool
    jobs: list[JobReport]
    note: str = ""
    version: Literal[1] = 1


def job_tools(system: ActorSystem, workspace: Workspace) -> tuple[Tool, ...]:
    """Both, for the actor `root/jobs` of this system."""

    def actor() -> Ref[JobMessage]:
        return system.ref("root/jobs")

    @tool(risk="execute", latency="short", concurrency=4, accesses=command_accesses, can_be_held=True)
    async def start_job(
        context: ToolContext,
        command: Command,
        cwd: str = ".",
        env: Variables = None,
        max_seconds: Annotated[float, Field(gt=0, le=MAX_JOB_SECONDS)] = DEFAULT_SECONDS,
    ) -> JobStarted:
        """Run a line with bash in the background: a server, a long build. Returns at once, with the job's id.

        Args:
            command: The line.
            cwd: The folder it runs in, relative to the workspace.
            env: Variables beside those that it has.
            max_seconds: After so long it is ended.
        """
        folder = folder_of(workspace, cwd)
        variables = checked_line(command, env)
        spool = await asyncio.to_thread(Spool.make, workspace.root)
        job = secrets.token_hex(8)
        hold = context.run.hold
        message = StartJob(job, context.tag.request_id, command, folder, variables, max_seconds, spool, hold)
        if not await actor().ask_async(message, ASK_SECONDS):
            spool.close()
            raise ToolError(
                f"{MAX_JOBS} jobs run already, which is as many as there may be",
                retry_hint="End one with jobs(action='kill', id=...), or wait for one.",
            )
        return JobStarted(job, str(folder), max_seconds)

    @tool(risk="read", latency="long", timeout=MAX_WAIT_SECONDS + 2 * SPARE_SECONDS, concurrency=8)
    async def jobs(
        context: ToolContext,
        action: Literal["list", "poll", "wait", "kill"],
        id: Annotated[str, Field(max_length=64)] = "",
        since: Annotated[int, Field(ge=0)] = 0,
        seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)] = 30.0,
    ) -> JobsAnswer:
        """Look at the jobs that start_job has started, wait for one, or end one.

        Args:
            action: `list` those of this request; `poll` one: its state and its new output; `wait` for its end, then as
                `poll`; `kill` it, then as `poll`.
            id: The job's, for all but `list`.
            since: Only output after so many bytes: `output_bytes` of the answer before.
            seconds: How long to wait at most, for `wait`.
        """
        if action == "list":
            views = await actor().ask_async(ListJobs(context.tag.request_id), ASK_SECONDS)
            return JobsAnswer(
                bool(views),
                [_report(view, view.output_bytes, b"", view.output_bytes, workspace.root) for view in views],
            )
        if not id:
            raise ToolError(f"{action} needs the job's id", field="id", expected="an id of start_job's", received="")
        if action == "kill":
            await actor().ask_async(KillJob(id), ASK_SECONDS)
        if action in ("kill", "wait"):
            await _end_of(actor(), id, min(seconds, context.remaining_seconds - SPARE_SECONDS))
        found = await actor().ask_async(ReadJob(id, since), ASK_SECONDS)
        if found is None:
            return JobsAnswer(False, [], "there is no such job, or it ended long ago")
        view, begin, data = found
        return JobsAnswer(True, [await asyncio.to_thread(_report, view, begin, data, since, workspace.root)])

    of_it = dataclasses.replace(jobs, contract=replace(jobs.contract, only_with=start_job.name))
    return start_job.owned, of_it.owned


async def _end_of(actor: Ref[JobMessage], job: str, seconds: float) -> None:
    """Wait until the job has ended, or so long."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def told() -> None:
        with contextlib.suppress(RuntimeError):  # the loop of the tools has ended meanwhile
            loop.call_soon_threadsafe(ended.set)

    actor.tell(TellAtEnd(job, told))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), max(0.0, seconds))


def _report(view: JobView, begin: int, data: bytes, since: int, root: Path) -> JobReport:
    kept, read = HeadAndTail(HEAD_BYTES, TAIL_BYTES), HeadAndTail(READ_BYTES, READ_BYTES)
    kept.add(data)
    read.add(data)
    found, more = diagnosed(read, view.cwd, root)
    lost = max(0, begin - since)
    note = f"{lost:,} older bytes are no longer kept. {view.note}".strip() if lost and data else view.note
    return JobReport(
        view.id, view.command, view.state, view.exit_code, view.signal, view.seconds, kept.text(),
        begin + len(data), kept.left_out + lost, found, more, note,
    )  # fmt: skip
