"""Jobs for real: started, read, waited for, ended; with the runtime at the latest."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors import Runtime, Settings
from callboard.actors.builtins import job_spool
from callboard.actors.builtins.job_spool import RING_BYTES, Spool, SpoolWriter
from callboard.actors.builtins.jobs import MAX_JOBS, TellAtEnd
from callboard.actors.kernel import ActorSystem
from callboard.actors.processes.keeper import masks_secrets
from callboard.actors.tools import ToolContext
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import FailureCode, ToolFailure

Call = Callable[..., Awaitable[Any]]

PATIENCE_SECONDS = 60.0


def with_jobs(workspace: Path, scenario: Callable[[Call], Awaitable[Any]]) -> Any:
    """Run a scenario, which calls tools by name, in a runtime."""

    async def run() -> Any:
        async with Runtime(Settings(model="offline/x", workspace=workspace)) as runtime:
            return await scenario(caller(runtime))

    return asyncio.run(run())


def caller(runtime: Runtime) -> Call:
    """Calls a tool by its name: the JSON of the answer, or the failure."""
    tools = runtime._wiring.offered_tools

    async def call(name: str, request: str = "r", **given: object) -> Any:
        arguments = json.dumps(given)
        tag = Tag(RequestId(request), MessageId("m"))
        run_tool = RunTool(tag, ToolName(name), arguments, time.monotonic() + PATIENCE_SECONDS, "")
        result = await tools[ToolName(name)].invoker.call_async(arguments, ToolContext(run_tool))
        return json.loads(result) if isinstance(result, str) else result

    return call


def test_the_file_of_a_jobs_output_is_neither_made_nor_removed_through_a_link(tmp_path: Path) -> None:
    root, away, outside = (tmp_path / name for name in ("work", "away", "outside"))
    for folder in (root, outside):
        folder.mkdir()
    spool = Spool.make(root)
    (outside / spool.path.name).write_text("of another program")
    root.rename(away)
    root.symlink_to(outside)
    with pytest.raises(ToolError, match="no job can be started"):
        Spool.make(root)
    with pytest.raises(OSError, match="symbolic links"):
        SpoolWriter(str(spool.path))
    spool.close()
    assert [each.read_text() for each in outside.iterdir()] == ["of another program"]


def test_a_job_is_started_read_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "go").mkdir()

    async def scenario(call: Call) -> None:
        line = 'echo "$WORD $PWD"; while [ ! -e end ]; do sleep 0.02; done; echo late >&2; exit 3'
        started = await call("start_job", command=line, cwd="go", env={"WORD": "hi"})
        seen = await _until(call, started["id"], lambda job: job["output_bytes"] > 0)
        assert (seen["state"], seen["output"], "exit_code" in seen) == ("running", f"hi {tmp_path}/go\n", False)
        assert [job["id"] for job in (await call("jobs", action="list"))["jobs"]] == [started["id"]]
        assert (await call("jobs", action="list", request="another"))["jobs"] == []
        (tmp_path / "go" / "end").touch()
        (ended,) = (await call("jobs", action="wait", id=started["id"], since=seen["output_bytes"]))["jobs"]
        assert (ended["state"], ended["exit_code"], ended["output"]) == ("exited", 3, "late\n")
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".callboard-job-")]

    with_jobs(tmp_path, scenario)


def test_a_job_that_is_refused_is_told_by_what(tmp_path: Path) -> None:
    if not masks_secrets():
        pytest.skip("this kernel cannot cover files")
    (tmp_path / ".env").write_text("KEY=secret")

    async def scenario(call: Call) -> None:
        started = await call("start_job", command="cat .env")
        (ended,) = (await call("jobs", action="wait", id=started["id"]))["jobs"]
        assert (ended["state"], ended["exit_code"]) == ("exited", 1)
        assert f"confined: this tool reads and writes {tmp_path}" in ended["note"]

    with_jobs(tmp_path, scenario)


async def _until(call: Call, job: str, is_so: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            (seen,) = (await call("jobs", action="poll", id=job))["jobs"]
            if is_so(seen):
                return seen
            await asyncio.sleep(0.02)  # each look is a whole call


def test_a_job_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)

    async def scenario(call: Call) -> None:
        started = await call("start_job", command="exec 8> alive; setsid sleep 1000 & echo begun; sleep 1000")
        await _until(call, started["id"], lambda job: job["output_bytes"] > 0)
        (killed,) = (await call("jobs", action="kill", id=started["id"]))["jobs"]
        assert (killed["state"], killed["output"]) == ("killed", "begun\n")
        assert os.read(reader, 1) == b""  # no process has it open any more
        (again,) = (await call("jobs", action="kill", id=started["id"]))["jobs"]
        assert again["state"] == "killed"

    with_jobs(tmp_path, scenario)


def test_a_job_whose_time_is_up_is_ended(tmp_path: Path) -> None:
    async def scenario(call: Call) -> None:
        started = await call("start_job", command="echo begun; sleep 1000", max_seconds=1)
        (ended,) = (await call("jobs", action="wait", id=started["id"]))["jobs"]
        assert (ended["state"], ended["signal"], ended["output"]) == ("timed_out", "SIGTERM", "begun\n")

    with_jobs(tmp_path, scenario)


def test_output_is_kept_as_far_as_there_is_room(tmp_path: Path) -> None:
    async def scenario(call: Call) -> None:
        key = "$(printf 'a1B2c3D4%.0s' 1 2 3 4 5 6 7 8 9 0)"
        line = f"head -c 3000000 /dev/zero | tr '\\0' x; printf 'b\\xffd sk-ant-api03-%s' {key}"
        started = await call("start_job", command=line)
        (ended,) = (await call("jobs", action="wait", id=started["id"]))["jobs"]
        assert ended["output_bytes"] > 3_000_000
        assert len(ended["output"]) < 21_000
        assert "b\\xffd " in ended["output"]
        assert "a1B2c3D4" not in ended["output"]
        assert "older bytes are no longer kept" in ended["note"]

    with_jobs(tmp_path, scenario)


WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("jobs", {"action": "poll"}, "id"),
    ("jobs", {"action": "dance"}, "action"),
    ("jobs", {"action": "poll", "id": "x", "since": -1}, "since"),
    ("start_job", {"command": "a\0"}, "command"),
    ("start_job", {"command": "x", "cwd": ".."}, "cwd"),
    ("start_job", {"command": "x", "max_seconds": 1e9}, "max_seconds"),
    ("start_job", {"command": "x", "env": {"LD_PRELOAD": "x"}}, "env"),
)


def test_too_many_jobs_are_refused_and_unknown_ones_do_not_exist(tmp_path: Path) -> None:
    async def scenario(call: Call) -> None:
        started = [await call("start_job", command="sleep 1000") for _ in range(MAX_JOBS)]
        refused = await call("start_job", command="sleep 1000")
        assert isinstance(refused, ToolFailure)
        assert (refused.code, "kill" in refused.retry_hint) == (FailureCode.TOOL_ERROR, True)
        await call("jobs", action="kill", id=started[0]["id"])
        assert "id" in await call("start_job", command="true")
        assert (await call("jobs", action="poll", id="0" * 16))["exists"] is False
        for tool, arguments, field in WRONG:
            failure = await call(tool, **arguments)
            assert (failure.code, failure.field) == (FailureCode.INVALID_ARGUMENTS, field)

    with_jobs(tmp_path, scenario)


def test_jobs_end_when_what_owns_them_has_crashed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)

    async def crash() -> bytes:
        async with Runtime(Settings(model="offline/x", workspace=tmp_path)) as runtime:
            call = caller(runtime)
            started = await call("start_job", command="exec 8> alive; echo begun; sleep 1000")
            await _until(call, started["id"], lambda job: job["output_bytes"] > 0)
            _system(runtime).ref("root/jobs").tell(TellAtEnd("none", _fail))
            select.select([alive], [], [], PATIENCE_SECONDS)
            left = os.read(alive, 1)
            assert (await call("jobs", action="poll", id=started["id"]))["exists"] is False
            assert "id" in await call("start_job", command="true")
            return left

    assert asyncio.run(crash()) == b""


def _system(runtime: Runtime) -> ActorSystem:
    search = runtime._wiring.search
    assert search is not None
    return search._system


def _fail() -> None:
    raise RuntimeError("a callback that breaks its promise")


#: A program whose runtime has a job when it is told that it may go on.
HOST = """
import asyncio, json, sys, time
from pathlib import Path
from callboard.actors import Runtime, Settings
from callboard.actors.tools import ToolContext
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName

async def main():
    workspace = Path(sys.argv[1])
    async with Runtime(Settings(model="offline/x", workspace=workspace)) as runtime:
        tool = runtime._wiring.offered_tools[ToolName("start_job")]
        line = "exec 8> alive; setsid sleep 1000 & echo begun >&8; sleep 1000"
        run = RunTool(Tag(RequestId("r"), MessageId("m")), tool.name, "", time.monotonic() + 60, "")
        print(await tool.invoker.call_async(json.dumps({"command": line}), ToolContext(run)), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["end", "kill"])
def test_no_job_outlives_its_runtime(tmp_path: Path, way: str) -> None:
    os.mkfifo(tmp_path / "alive")
    command = [sys.executable, "-c", HOST, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdin is not None
        with (tmp_path / "alive").open("rb") as alive:  # returns when the job has opened it too
            assert alive.readline() == b"begun\n"
            if way == "kill":
                host.send_signal(signal.SIGKILL)
            else:
                host.stdin.close()
            assert select.select([alive], [], [], PATIENCE_SECONDS)[0]
            assert alive.read() == b""  # the last process that had it open has ended
        host.wait(PATIENCE_SECONDS)


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(0, 200))
def test_the_ring_holds_the_end_of_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], since: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_spool, "RING_BYTES", 32)
        spool = Spool.make(tmp_path_factory.getbasetemp())
        writer = SpoolWriter(str(spool.path))
        whole = b""
        for number, size in enumerate(sizes):
            piece = bytes([number]) * size
            writer.add(piece)
            whole += piece
        begin, data = spool.read(since)
        spool.close()
        os.close(writer._file)
    if since >= len(whole):
        assert data == b""
    else:
        assert begin == max(since, len(whole) - 32)
        assert data == whole[begin:]


def test_the_file_of_a_job_is_the_runtimes_own(tmp_path: Path) -> None:
    spool = Spool.make(tmp_path)
    assert spool.path.stat().st_mode & 0o777 == 0o600
    SpoolWriter(str(spool.path)).add(b"x" * (RING_BYTES + 5))
    assert not spool.path.exists()
    assert spool.read(0)[0] == 5
    spool.close()
    with pytest.raises(ToolError, match="cannot be written"):
        Spool.make(tmp_path / "gone")
