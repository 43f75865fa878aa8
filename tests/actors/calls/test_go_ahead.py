"""With a journal, a call whose code must not run twice begins only when it is durable that it begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import CallReports
from callboard.actors.journal.journal_records import Change, Write
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.requests.direct_calls import CallResult
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.actors.workers.messages import pool_name
from callboard.protocol.errors import CallboardError
from callboard.protocol.events import ToolCallStarted
from callboard.protocol.tools import FailureCode

#: A call that does not wait has begun long before.
GIVES_UP_SECONDS = 0.4
PATIENCE_SECONDS = 20.0


def mark(marker: str) -> None:
    Path(marker).touch()


@tool(reuse=True)
def in_process(marker: str) -> str:
    mark(marker)
    return "done"


@tool(isolation="thread")
def on_thread(marker: str) -> str:
    mark(marker)
    return "done"


@tool
async def on_loop(marker: str) -> str:
    mark(marker)
    return "done"


@tool(effect="transaction")
async def in_transaction(marker: str, context: ToolContext) -> str:
    context.transaction.execute("CREATE TABLE IF NOT EXISTS marks (mark)")
    mark(marker)
    return "done"


@tool(effect="repeat", reuse=True)
def repeats_in_process(marker: str) -> str:
    mark(marker)
    return "done"


@tool(effect="repeat", isolation="thread")
def repeats_on_thread(marker: str) -> str:
    mark(marker)
    return "done"


@tool(effect="repeat")
async def repeats_on_loop(marker: str) -> str:
    mark(marker)
    return "done"


WAITS: Sequence[Tool] = (in_process, on_thread, on_loop, in_transaction)
REPEATS: Sequence[Tool] = (repeats_in_process, repeats_on_thread, repeats_on_loop)


def before_the_begin_is_written(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do this, on the journal's thread, before it writes that a call begins."""
    commit = SqliteJournal.commit

    def commits(self: SqliteJournal, batch: Sequence[Change]) -> object:
        events = [event for change in batch if isinstance(change, Write) for event in change.events]
        if any(isinstance(event, ToolCallStarted) for event in events):
            act()
        return commit(self, batch)

    monkeypatch.setattr(SqliteJournal, "commit", commits)


def wait_for(marker: Path, seconds: float) -> bool:
    """Does it come in this time?"""
    never = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if marker.exists():
            return True
        never.wait(0.01)
    return marker.exists()


def run(tmp_path: Path, used: Tool, marker: Path, **more: Any) -> CallResult:
    async def call() -> CallResult:
        async with Runtime(Settings(journal=tmp_path / "journal.db", **more), tools=[used]) as made:
            return await made.call_tool(used.name, {"marker": str(marker)})

    return asyncio.run(call())


@pytest.mark.parametrize("used", WAITS, ids=lambda used: used.name)
def test_code_that_must_not_run_twice_begins_when_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: Tool
) -> None:
    marker = tmp_path / "marker"
    seen: list[bool] = []
    before_the_begin_is_written(monkeypatch, lambda: seen.append(wait_for(marker, GIVES_UP_SECONDS)))
    assert run(tmp_path, used, marker).content == "done"
    assert seen == [False]
    assert marker.exists()


@pytest.mark.parametrize("used", REPEATS, ids=lambda used: used.name)
def test_code_that_may_run_twice_begins_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: Tool) -> None:
    marker = tmp_path / "marker"
    seen: list[bool] = []
    before_the_begin_is_written(monkeypatch, lambda: seen.append(wait_for(marker, PATIENCE_SECONDS)))
    assert run(tmp_path, used, marker).content == "done"
    assert seen == [True]


@pytest.mark.parametrize("used", WAITS, ids=lambda used: used.name)
def test_code_whose_begin_cannot_be_written_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: Tool
) -> None:
    marker = tmp_path / "marker"

    def fail() -> None:
        raise JournalFailed("the disk is full: make room")

    before_the_begin_is_written(monkeypatch, fail)
    with pytest.raises(CallboardError, match="the disk is full: make room"):
        run(tmp_path, used, marker)
    assert not marker.exists()


# All begin before their deadlines, on a busy machine too: one has a child that must be there first.
@tool(timeout=6, reuse=True)
def short_in_process(marker: str) -> str:
    mark(marker)
    return "done"


@tool(timeout=2, isolation="thread")
def short_on_thread(marker: str) -> str:
    mark(marker)
    return "done"


@tool(timeout=2)
async def short_on_loop(marker: str) -> str:
    mark(marker)
    return "done"


@pytest.mark.parametrize("used", [short_in_process, short_on_thread, short_on_loop], ids=lambda used: used.name)
def test_a_deadline_that_passes_before_the_go_ahead_keeps_the_code_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: Tool
) -> None:
    marker, is_over, end = tmp_path / "marker", threading.Event(), CallReports.end
    before_the_begin_is_written(monkeypatch, lambda: is_over.wait(PATIENCE_SECONDS))

    def ends(self: CallReports, *given: Any, **more: Any) -> None:
        end(self, *given, **more)
        is_over.set()

    monkeypatch.setattr(CallReports, "end", ends)
    result = run(tmp_path, used, marker)
    assert is_over.is_set()
    assert result.failure is not None
    assert result.failure.code is FailureCode.TIMED_OUT
    assert "the call was not run" in result.failure.message
    assert result.failure.retry_hint == "It had no effect. Send it again later."
    assert not marker.exists()


@pytest.mark.parametrize("used", [in_process, on_thread, on_loop], ids=lambda used: used.name)
def test_a_worker_that_is_lost_before_the_go_ahead_does_not_end_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: Tool
) -> None:
    made: list[Runtime] = []
    is_lost = threading.Event()

    def lose() -> None:
        if is_lost.is_set():
            return
        system = made[0]._live().system
        pool = system.ref(f"root/tools/{pool_name(used.contract)}")
        system.watch(pool, lambda down: is_lost.set())
        pool._cell.kill()
        assert is_lost.wait(PATIENCE_SECONDS)

    before_the_begin_is_written(monkeypatch, lose)

    async def call() -> CallResult:
        async with Runtime(Settings(journal=tmp_path / "journal.db"), tools=[used]) as runtime:
            made.append(runtime)
            return await runtime.call_tool(used.name, {"marker": str(tmp_path / "marker")})

    result = asyncio.run(call())
    assert is_lost.is_set()
    assert result.failure is None or result.failure.code is not FailureCode.INTERNAL_ERROR


def test_a_go_ahead_is_told_to_the_worker_that_asked_last_also_where_it_was_given_before() -> None:
    told: list[str] = []
    early, late = GoAhead(), GoAhead()
    early.give()
    early.when_given(lambda: told.append("early"))
    late.when_given(lambda: told.append("lost"))
    late.when_given(lambda: told.append("last"))
    assert told == ["early"]
    late.give()
    late.give()
    assert told == ["early", "last"]
