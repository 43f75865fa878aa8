"""Tools with effect="transaction" on SQLite: what they write is there exactly where the outcome of their call is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import killed_transaction

from callboard.actors.calls import dispatcher
from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.journal import sql_writer
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.journal.transactions import CallEffect
from callboard.actors.requests.direct_calls import CallResult
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.errors import RuntimeFailure, ToolError, UsageError
from callboard.protocol.events import ToolCallCompleted
from callboard.protocol.tools import Deferred, FailureCode

MAKE = "CREATE TABLE IF NOT EXISTS payments (what TEXT UNIQUE, data)"
PAY = "INSERT INTO payments (what, data) VALUES (?, ?)"


def write(context: ToolContext, what: str, data: str | bytes | float | None = None) -> None:
    context.transaction.execute(MAKE)
    context.transaction.execute(PAY, (what, data))


@tool(effect="transaction")
def pay_in_process(what: str, context: ToolContext) -> str:
    print("paying")  # noqa: T201 - what it prints is in its outcome
    write(context, what, what.encode() + b"\x00\xff")
    return f"paid {what}"


@tool(effect="transaction", reuse=True)
def pay_in_kept_process(what: str, context: ToolContext) -> str:
    write(context, what)
    return f"paid {what}"


@tool(effect="transaction", isolation="thread")
def pay_on_thread(what: str, context: ToolContext) -> str:
    write(context, what, 0.1)
    return f"paid {what}"


@tool(effect="transaction")
async def pay_on_loop(what: str, context: ToolContext) -> str:
    write(context, what)
    return f"paid {what}"


PAYING: Sequence[Tool] = (pay_in_process, pay_in_kept_process, pay_on_thread, pay_on_loop)


@tool(effect="transaction")
def raises_after_it(what: str, context: ToolContext) -> str:
    write(context, what)
    raise ToolError("no longer wanted")


@tool(effect="transaction", isolation="thread")
def executes(statement: str, parameters: list[Any], context: ToolContext) -> str:
    context.transaction.execute(MAKE)
    context.transaction.execute(PAY, ("before", None))
    context.transaction.execute(statement, parameters)
    return "executed"


@tool(effect="transaction", isolation="thread")
def leaves_it_to_others(what: str, context: ToolContext) -> str | Deferred:
    write(context, what)
    return Deferred(60.0)


@tool(isolation="thread")
def has_no_transaction(context: ToolContext) -> str:
    context.transaction.execute(MAKE)
    return "never"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def runtime(path: Path, *tools: Tool) -> Runtime:
    return Runtime(Settings(journal=path), tools=tools)


def rows(path: Path, sql: str = "SELECT what, data FROM payments ORDER BY what") -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'payments'").fetchall()
        return connection.execute(sql).fetchall() if made or "payments" not in sql else []


def run(path: Path, used: Tool, **arguments: object) -> CallResult:
    async def call() -> CallResult:
        async with runtime(path, used) as made:
            return await made.call_tool(used.name, arguments)

    return asyncio.run(call())


def outcomes(path: Path) -> list[object]:
    """Of all requests, in order."""
    found = []
    reader = SqliteJournal(path)
    reader.open()
    reading = reader.reader()
    try:
        for (request_id,) in rows(path, "SELECT request_id FROM callboard_requests ORDER BY begun_at"):
            log = reading.request(request_id)
            assert log is not None
            found += [each.outcome for each in log.outcomes]
    finally:
        reading.close()
        reader.close()
    return found


@pytest.mark.parametrize("used", PAYING, ids=lambda used: used.name)
def test_what_a_tool_writes_is_committed_with_its_outcome(path: Path, used: Tool) -> None:
    result = run(path, used, what="rent")
    assert result.content == "paid rent"
    expected = {"pay_in_process": b"rent\x00\xff", "pay_on_thread": 0.1}.get(used.name)
    assert rows(path) == [("rent", expected)]
    (outcome,) = outcomes(path)
    assert isinstance(outcome, ToolCallCompleted)
    assert outcome.content == "paid rent"
    assert outcome.output == ("paying\n" if used is pay_in_process else "")


def test_a_kept_process_hands_over_the_statements_of_each_call_alone(path: Path) -> None:
    async def call() -> None:
        async with runtime(path, pay_in_kept_process) as made:
            for what in ("rent", "food", "rent"):
                await made.call_tool("pay_in_kept_process", {"what": what})

    asyncio.run(call())
    assert [what for what, _ in rows(path)] == ["food", "rent"]  # the second rent was refused as a whole
    assert len(outcomes(path)) == 2


@pytest.mark.parametrize(
    ("used", "arguments", "told"),
    [
        (raises_after_it, {"what": "rent"}, "no longer wanted"),
        (leaves_it_to_others, {"what": "rent"}, "cannot return Deferred"),
        (executes, {"statement": "INSERT INTO nowhere VALUES (1)", "parameters": []}, "no such table: nowhere"),
        (executes, {"statement": PAY, "parameters": ["before", 1]}, "UNIQUE constraint failed: payments.what"),
        (executes, {"statement": PAY, "parameters": ["one", 1, 2]}, "bindings"),
        (executes, {"statement": PAY, "parameters": [2**63, 1]}, "SQLite cannot store 9223372036854775808"),
        (executes, {"statement": PAY, "parameters": [[], 1]}, "SQLite cannot store []"),
        (executes, {"statement": "COMMIT", "parameters": []}, "nothing was written"),
        (executes, {"statement": "ROLLBACK", "parameters": []}, "nothing was written"),
        (executes, {"statement": "PRAGMA secure_delete = OFF", "parameters": []}, "not authorized"),
        (executes, {"statement": "DELETE FROM callboard_outcomes", "parameters": []}, "nothing was written"),
        (executes, {"statement": "INSERT OR ROLLBACK INTO payments VALUES ('before', 1)", "parameters": []}, "UNIQUE"),
        (executes, {"statement": "SELECT 1; DELETE FROM payments", "parameters": []}, "one statement at a time"),
    ],
    ids=lambda given: given.name if isinstance(given, Tool) else str(given)[:60],
)
def test_a_call_that_fails_has_written_nothing(path: Path, used: Tool, arguments: dict[str, Any], told: str) -> None:
    result = run(path, used, **arguments)
    assert result.failure is not None
    assert told in result.failure.message
    assert rows(path) == []
    assert outcomes(path) == []


def test_a_failing_statement_of_one_call_costs_no_other_call(path: Path) -> None:
    async def calls() -> list[CallResult]:
        async with runtime(path, pay_on_loop) as made:
            whats = ["twice", *(f"{number}" for number in range(30)), "twice"]
            return await asyncio.gather(*(made.call_tool("pay_on_loop", {"what": what}) for what in whats))

    results = asyncio.run(calls())
    failed = [each.failure for each in results if each.failure is not None]
    assert [each.code for each in failed] == [FailureCode.TOOL_ERROR]
    assert len(rows(path)) == 31 == len(outcomes(path))


def test_a_tool_with_another_effect_has_no_transaction(path: Path) -> None:
    result = run(path, has_no_transaction)
    assert result.failure is not None
    assert 'declare the tool with @tool(effect="transaction")' in result.failure.message


def test_a_call_that_is_stopped_before_it_returns_writes_nothing(path: Path) -> None:
    entered, may_return = threading.Event(), threading.Event()

    @tool(effect="transaction", isolation="thread", timeout=2.0)
    def slow(context: ToolContext) -> str:
        write(context, "late")
        entered.set()
        may_return.wait(20)
        return "late"

    async def call() -> CallResult:
        async with runtime(path, slow) as made:
            result = await made.call_tool("slow")
            may_return.set()
            return result

    result = asyncio.run(call())
    assert entered.is_set()
    assert result.failure is not None
    assert result.failure.code is FailureCode.TIMED_OUT
    assert rows(path) == [] == outcomes(path)


def test_a_commit_that_takes_longer_than_the_deadline_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SqliteJournal.commit
    deadline = threading.Event()

    def slow(self: SqliteJournal, batch: Sequence[Any]) -> object:
        if any(hasattr(change, "statements") for change in batch):
            deadline.wait(20)
        return commit(self, batch)

    monkeypatch.setattr(SqliteJournal, "commit", slow)
    _when_due(monkeypatch, deadline.set)

    @tool(effect="transaction", timeout=2.0)
    async def quick(context: ToolContext) -> str:
        write(context, "in time")
        return "paid"

    result = run(path, quick)
    assert deadline.is_set()
    assert result.content == "paid"
    assert rows(path) == [("in time", None)]
    assert len(outcomes(path)) == 1


@pytest.mark.parametrize(
    "endless",
    [
        "INSERT INTO payments SELECT x, 1 FROM (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) "
        "SELECT x FROM n) WHERE x > 1",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
    ],
)
def test_statements_that_take_too_long_are_ended(path: Path, monkeypatch: pytest.MonkeyPatch, endless: str) -> None:
    monkeypatch.setattr(sql_writer, "EFFECT_SECONDS", 0.2)
    result = run(path, executes, statement=endless, parameters=[])
    assert result.failure is not None
    assert "nothing was written: the call's statements take too long" in result.failure.message
    assert rows(path) == []
    assert outcomes(path) == []


def test_an_answer_that_is_lost_with_its_dispatcher_is_asked_for_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled, lost = CallEffect.settled, list[RuntimeFailure | None]()

    def settles(self: CallEffect, error: RuntimeFailure | None) -> object:
        lost.append(error)
        if len(lost) == 1:
            raise RuntimeError("planned")
        return settled(self, error)

    monkeypatch.setattr(CallEffect, "settled", settles)
    monkeypatch.setattr(dispatcher, "COMMIT_SECONDS", 1.0)

    @tool(effect="transaction", timeout=1.0)
    async def quick(context: ToolContext) -> str:
        write(context, "once")
        return "paid"

    assert run(path, quick).content == "paid"
    assert lost == [None, None]
    assert rows(path) == [("once", None)]
    assert len(outcomes(path)) == 1


def _when_due(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Call this when the dispatcher has found that the deadline of a call passed during its commit."""
    wait = ToolDispatcher._wait_for_commit

    def waits(self: ToolDispatcher, *given: Any) -> None:
        wait(self, *given)
        then()

    monkeypatch.setattr(ToolDispatcher, "_wait_for_commit", waits)


def test_without_a_journal_such_a_tool_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'tool pay_on_loop: effect="transaction" .* Settings\(journal=...\)'):
        Runtime(Settings(), tools=[pay_on_loop])
    with Runtime(Settings(model="scripted/x")) as made, pytest.raises(UsageError, match="tool pay_on_loop: "):
        made.ask_sync("pay", tools=[pay_on_loop])


def test_on_a_server_a_process_tool_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r'tool pay_in_process: .* give isolation="thread"'):
        Runtime(Settings(journal="postgresql://nobody@127.0.0.1:1/none"), tools=[pay_in_process])


def test_alone_its_statements_are_checked_and_forgotten() -> None:
    assert pay_in_process.alone(what="rent") == "paid rent"
    with pytest.raises(UsageError, match="SQLite cannot store"):
        executes.alone(statement="x", parameters=[float("nan")])


KILLS = [(kind, point) for kind in killed_transaction.TOOLS for point in killed_transaction.POINTS if point]
#: Each starts two processes. All nine with CALLBOARD_DEEP.
FEW_KILLS = [each for each in KILLS if each[0] == "task" or each == ("process", "before its effect is committed")]


@pytest.mark.repeats
@pytest.mark.parametrize(("kind", "point"), KILLS if os.environ.get("CALLBOARD_DEEP") else FEW_KILLS)
def test_a_process_that_is_killed_leaves_one_effect_in_the_end(tmp_path: Path, kind: str, point: str) -> None:
    journal = tmp_path / "journal.db"

    def start(point: str) -> subprocess.CompletedProcess[bytes]:
        order = [sys.executable, killed_transaction.__file__, str(journal), kind, point]
        return subprocess.run(order, capture_output=True, timeout=60, check=False)

    assert start(point).returncode == -signal.SIGKILL
    began = {"before its begin is written": 0}.get(point, 1)
    runs = Path(f"{journal}.runs")
    assert (len(runs.read_text().split()) if runs.exists() else 0) == began
    ended = start("")
    assert json.loads(ended.stdout or b"{}") == {"text": "paid"}, ended.stderr.decode()
    effect_ids = runs.read_text().split()
    assert len(effect_ids) == (2 if point == "before its effect is committed" else 1)
    assert rows(journal, "SELECT effect_id FROM payments") == [(effect_ids[0],)]
    assert len(set(effect_ids)) == 1
    assert len(outcomes(journal)) == 1
