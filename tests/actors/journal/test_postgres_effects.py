"""Tools with effect="transaction" in a runtime whose journal is on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from support.postgres_server import new_database

from callboard.actors.journal import postgres_calls
from callboard.actors.requests.direct_calls import CallResult
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.errors import ToolError
from callboard.protocol.tools import FailureCode

PAY = "INSERT INTO payments VALUES (%s)"


def on_thread(context: ToolContext) -> psycopg.Connection[Any]:
    connection = context.transaction
    assert isinstance(connection, psycopg.Connection)
    return connection


def on_loop(context: ToolContext) -> psycopg.AsyncConnection[Any]:
    connection = context.transaction
    assert isinstance(connection, psycopg.AsyncConnection)
    return connection


@tool(effect="transaction", isolation="thread")
def pay(what: str, context: ToolContext) -> int:
    connection = on_thread(context)
    connection.execute(PAY, (what,))
    found = connection.execute("SELECT count(*) FROM payments").fetchone()
    return int(found[0]) if found else -1


@tool(effect="transaction")
async def pay_async(what: str, context: ToolContext) -> int:
    connection = on_loop(context)
    await connection.execute(PAY, (what,))
    found = await (await connection.execute("SELECT count(*) FROM payments")).fetchone()
    return int(found[0]) if found else -1


@tool(effect="transaction", isolation="thread")
def raises(what: str, context: ToolContext) -> str:
    on_thread(context).execute(PAY, (what,))
    raise ToolError("no longer wanted")


@tool(effect="transaction")
async def raises_async(what: str, context: ToolContext) -> str:
    await on_loop(context).execute(PAY, (what,))
    raise ToolError("no longer wanted")


@tool(effect="transaction", isolation="thread")
def swallows(what: str, context: ToolContext) -> str:
    on_thread(context).execute(PAY, (what,))
    with contextlib.suppress(psycopg.Error):
        on_thread(context).execute("INSERT INTO nowhere VALUES (1)")
    return "paid"


@tool(effect="transaction", isolation="thread")
def commits(what: str, context: ToolContext) -> str:
    on_thread(context).execute(PAY, (what,))
    on_thread(context).commit()
    return "paid"


@tool(effect="transaction", isolation="thread")
def commits_by_a_statement(what: str, context: ToolContext) -> str:
    on_thread(context).execute("COMMIT")
    return what


@tool(effect="transaction", timeout=0.5)
async def never_ends(what: str, context: ToolContext) -> str:
    await on_loop(context).execute(PAY, (what,))
    await asyncio.Event().wait()
    return "never"


@pytest.fixture
def url() -> Iterator[str]:
    with new_database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE payments (what text)")
        yield url


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def counts(url: str) -> tuple[int, int]:
    """How many effects and outcomes there are."""
    [(effects, outcomes)] = rows(
        url, "SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM callboard.callboard_outcomes)"
    )
    return effects, outcomes


def run(url: str, used: Tool, times: int = 1) -> Sequence[CallResult]:
    async def call() -> Sequence[CallResult]:
        async with Runtime(Settings(journal=url), tools=[used]) as made:
            calls = [made.call_tool(used.name, {"what": f"{number}"}) for number in range(times)]
            return await asyncio.gather(*calls)

    return asyncio.run(call())


@pytest.mark.parametrize("used", [pay, pay_async], ids=lambda used: used.name)
def test_a_tool_reads_and_writes_by_its_own_transaction(url: str, used: Tool) -> None:
    results = run(url, used, times=5)
    assert all(each.ok for each in results)
    assert counts(url) == (5, 5)


@pytest.mark.parametrize(
    ("used", "code", "told"),
    [
        (raises, FailureCode.TOOL_ERROR, "no longer wanted"),
        (raises_async, FailureCode.TOOL_ERROR, "no longer wanted"),
        (swallows, FailureCode.TOOL_ERROR, "nothing was written: the call was rolled back"),
        (commits, FailureCode.TOOL_ERROR, "does not end its transaction"),
        (commits_by_a_statement, FailureCode.OUTCOME_UNKNOWN, "the tool has ended its transaction itself"),
        (never_ends, FailureCode.TIMED_OUT, ""),
    ],
    ids=lambda given: given.name if isinstance(given, Tool) else "",
)
def test_a_call_that_fails_is_rolled_back(url: str, used: Tool, code: FailureCode, told: str) -> None:
    (result,) = run(url, used)
    assert result.failure is not None
    assert result.failure.code is code
    assert told in result.failure.message
    assert counts(url) == (0, 0)


def test_a_thread_that_goes_on_after_its_deadline_commits_nothing(url: str) -> None:
    may_go_on, ended = threading.Event(), threading.Event()
    after: list[str] = []

    @tool(effect="transaction", isolation="thread", timeout=1.0)
    def slow(what: str, context: ToolContext) -> str:
        connection = on_thread(context)
        connection.execute(PAY, (what,))
        may_go_on.wait(20)
        try:
            connection.execute(PAY, (what,))
        except psycopg.Error as error:
            after.append(type(error).__name__)
        ended.set()
        return "paid"

    async def call() -> CallResult:
        async with Runtime(Settings(journal=url), tools=[slow]) as made:
            result = await made.call_tool("slow", {"what": "late"})
            may_go_on.set()
            await asyncio.to_thread(ended.wait, 20)
            return result

    result = asyncio.run(call())
    assert result.failure is not None
    assert result.failure.code is FailureCode.TIMED_OUT
    assert after == ["OperationalError"], "its connection was closed at the deadline"
    assert counts(url) == (0, 0)


def test_more_calls_than_connections_wait_their_turn(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_calls, "MAX_CONNECTIONS", 2)
    results = run(url, pay, times=8)
    assert all(each.ok for each in results)
    assert counts(url) == (8, 8)


@tool(effect="transaction")
async def makes_a_table(what: str, context: ToolContext) -> str:
    await on_loop(context).execute("CREATE TABLE made (what text)")
    await on_loop(context).execute("INSERT INTO made VALUES (%s)", (what,))
    return "made"


def test_the_names_of_a_tool_are_not_looked_for_among_the_journals_tables(url: str) -> None:
    """The user of these tests is named like the journal's schema, which is first in its search path by default."""
    (result,) = run(url, makes_a_table)
    assert result.ok, result.failure
    assert rows(url, "SELECT schemaname FROM pg_tables WHERE tablename = 'made'") == [("public",)]
