"""A workspace without an index yet: every question waits for the first index, or for its own deadline and says so."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from callboard.actors import Runtime, Settings
from callboard.actors.index import CodeIndex, Progress, layout, rag
from callboard.actors.index.rag import CodeSearch, context_tool
from callboard.actors.index.token_count import count_tokens
from callboard.actors.tools import ToolContext
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import ToolError, UsageError
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName

#: More than are indexed in the calling process.
FILES = 120
#: All of one length, so that a batch is a number of files.
CODE = "def handler_{0:03}():\n    return shared_word('{0:03}')\n"
#: Files in a batch of the process that builds the index, which stops when it has committed the first.
BATCH = 40
#: Says after each file how many are done, and goes on from the one it stops at when it is told to.
BUILDER = """
import sys, json; sys.path[:] = json.loads(sys.argv[1])
from callboard.actors.index import refresh, CodeIndex
refresh.BATCH_BYTES, refresh.SMALL_FILES = int(sys.argv[4]), 10**6
stop_at = int(sys.argv[3])
def report(progress):
    print(progress.done_files, flush=True)
    if progress.done_files == stop_at:
        sys.stdin.readline()
with CodeIndex.open(sys.argv[2], embedder=None) as index:
    index.refresh(report)
print("done", flush=True)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"m{number:03}.py").write_text(CODE.format(number))
    return folder


class Builder:
    """Another process that is building the first index, and stops in the middle."""

    def __init__(self, workspace: Path) -> None:
        sizes = str(BATCH), str(BATCH * len(CODE.format(0)))
        command = [sys.executable, "-c", BUILDER, json.dumps(sys.path), str(workspace), *sizes]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == str(BATCH):
                break

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def builder(workspace: Path) -> Iterator[Builder]:
    builder = Builder(workspace)
    yield builder
    builder.end()


def search(runtime: Runtime) -> CodeSearch:
    found = runtime._wiring.search
    assert found is not None
    return found


def runtime_in(workspace: Path) -> Runtime:
    return Runtime(Settings(model="offline/x", workspace=workspace))


def test_two_questions_at_once_both_wait_for_the_first_index(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rag, "REFRESH_PATIENCE_SECONDS", 0.01)  # the index of a large workspace takes longer
    count_tokens(["loaded now, so that an answer that does not wait is quicker than the index"])

    async def ask() -> list[list[str]]:
        async with runtime_in(workspace) as runtime:
            questions = (search(runtime).search(query, 2_000) for query in ("handler_007", "handler_100"))
            return [[item.name for item in found.context] for found in await asyncio.gather(*questions)]

    first, second = asyncio.run(ask())
    assert "handler_007" in first
    assert "handler_100" in second


def test_a_second_process_waits_for_the_first_and_reads_its_result(workspace: Path, builder: Builder) -> None:
    seen: list[Progress] = []

    def report(progress: Progress) -> None:
        if not seen:
            builder.go_on()
        seen.append(progress)

    with CodeIndex.open(workspace, embedder=None) as index:
        summary = index.refresh(report)
        assert (summary.indexed, summary.unchanged, summary.files, summary.note) == (0, FILES, FILES, "")
        assert len(index.search("shared word", 2 * FILES)) == FILES
    assert (seen[0].done_files, seen[0].total_files) == (BATCH, FILES)


def test_a_question_waits_for_another_process_that_indexes(
    workspace: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "WAITING_SECONDS", 0.0)
    told: list[Progress] = []

    def report(progress: Progress) -> None:
        if not told:
            builder.go_on()
        told.append(progress)

    async def ask() -> list[str]:
        async with runtime_in(workspace) as runtime:
            question = asyncio.ensure_future(search(runtime).search("handler_110", 2_000))
            assert (await runtime.refresh_index(report)).is_complete
            return [item.name for item in (await question).context]

    assert "handler_110" in asyncio.run(ask())
    assert told[0].total_files == FILES


def test_a_process_that_waits_takes_over_when_the_one_that_indexes_is_killed(workspace: Path, builder: Builder) -> None:
    killed: list[Progress] = []

    def kill(progress: Progress) -> None:
        if not killed:
            builder.end()
        killed.append(progress)

    with CodeIndex.open(workspace, embedder=None) as index:
        summary = index.refresh(kill)
        assert (summary.files, summary.note) == (FILES, "")
        assert summary.indexed <= FILES - BATCH, "what the other one had committed is not read again"
        assert len(index.search("shared word", 2 * FILES)) == FILES
    assert killed


def test_an_answer_from_a_part_of_the_index_says_how_far_it_is(workspace: Path, builder: Builder) -> None:
    async def ask(query: str) -> tuple[str, list[str]]:
        async with runtime_in(workspace) as runtime:
            found = await search(runtime).search(query, 2_000, timeout_seconds=1.0)
            return found.note, [item.name for item in found.context]

    note, names = asyncio.run(ask("shared word"))
    assert names
    assert f"the index is being built: {BATCH} of {FILES} files so far" in note
    with pytest.raises(
        UsageError, match=rf"nothing was found so far: .*{BATCH} of {FILES} files.*ask again in 30 seconds"
    ):
        asyncio.run(ask("zebra crossing"))


def test_the_model_is_told_when_its_time_was_not_enough(workspace: Path, builder: Builder) -> None:
    tag = Tag(RequestId("r"), MessageId("m"))
    run = RunTool(tag, ToolName("request_code_context"), "{}", time.monotonic() + 1.0, "e")

    async def call() -> object:
        async with runtime_in(workspace) as runtime:
            return await context_tool(search(runtime))(ToolContext(run), ["zebra crossing"], 2_000)

    with pytest.raises(ToolError, match=r"the index is being built: 40 of 120 files so far.*ask again in 30 seconds"):
        asyncio.run(call())


def test_a_refresh_that_may_not_wait_says_how_far_the_other_one_is(workspace: Path, builder: Builder) -> None:
    with CodeIndex.open(workspace, embedder=None) as index:
        summary = index.refresh(wait_seconds=0.05)
    assert not summary.is_complete
    assert f"process {builder.process.pid} is writing" in summary.note
    assert f"{BATCH} of {FILES} files so far" in summary.note


def test_an_index_that_is_replaced_while_a_refresh_waits_is_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be written to files that have been deleted."""
    (tmp_path / "a.py").write_text("def alpha(): pass\n")
    monkeypatch.setattr(layout, "WAITING_SECONDS", 0.0)
    waiting = threading.Event()
    with CodeIndex.open(tmp_path, embedder=None) as index, CodeIndex.open(tmp_path, embedder=None) as other:
        with ThreadPoolExecutor(1) as threads:
            with other._layout.write_lock(1):
                refreshing = threads.submit(index.refresh, lambda _: waiting.set())
                assert waiting.wait(20)
                other._layout.clear()
            assert refreshing.result(40).files == 1
        assert [hit.name for hit in other.search("alpha", 1)] == ["alpha"]


def test_an_empty_workspace_is_complete_at_once(tmp_path: Path) -> None:
    with CodeIndex.open(tmp_path, embedder=None) as index:
        assert not index.state().is_complete
        assert index.refresh().is_complete
        assert index.state().is_complete
        assert index.search("anything", 5) == []


def test_many_processes_that_open_a_fresh_workspace_at_once_do_not_clear_each_others_index(tmp_path: Path) -> None:
    """The first to come writes the marker; a second one must not take its store for one that was left half-made."""
    (tmp_path / "a.py").write_text("def alpha(): pass\n")

    def opened(_: int) -> str:
        with CodeIndex.open(tmp_path, embedder=None) as index:
            index.refresh()
            return ",".join(hit.name for hit in index.search("alpha", 1))

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(opened, range(24))) == {"alpha"}


def test_two_commands_at_once_both_answer_from_the_whole_index(workspace: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "callboard.actors.cli", "ask", "where is handler_077?"]
    command += ["--workspace", str(workspace), "--model", "offline/x"]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    for each in both:
        out, err = each.communicate(timeout=50)
        assert each.returncode == 0, err
        assert "handler_077" in out
