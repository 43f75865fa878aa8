"""The peers of crashes.py: the same load under other libraries, each as its own documentation has it.

    python benchmarks/crash_peers.py dbos FOLDER --requests 50

It runs in the peer's own environment; crashes.py starts it, kills it and starts it again, until it says that all have
ended. What is durable is in FOLDER.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from crash_load import ANSWER, BOOK, KINDS, MODEL_SECONDS, STEPS, TABLE, TOOL_SECONDS, act, key, report, request_ids

Peer = Callable[[Path, list[str]], Awaitable[None]]


async def dbos(folder: Path, ids: list[str]) -> None:
    """DBOS on SQLite, its default. Workflows are started with ids of their own, so that starting one again takes it up
    (Python docs, "Workflows": workflow ids); calls side by side as steps (same page: asyncio.gather); the transaction
    by its datasource ("Transactions & Datasources"), which promises exactly once."""
    import sqlalchemy  # noqa: PLC0415 - in its own environment only
    from dbos import DBOS, AsyncSQLAlchemyDatasource, DBOSConfig, SetWorkflowID  # noqa: PLC0415

    config: DBOSConfig = {
        "name": "crashes",
        "system_database_url": f"sqlite:///{folder / 'system.sqlite'}",
        "log_level": "ERROR",
        "run_admin_server": False,
        "application_version": "1",
    }
    DBOS(config=config)
    source = await AsyncSQLAlchemyDatasource.create(f"sqlite+aiosqlite:///{folder / 'effects.sqlite'}")
    async with source.engine.begin() as connection:
        await connection.execute(sqlalchemy.text(TABLE))

    @DBOS.step()
    async def model(step: int) -> str:
        await asyncio.sleep(MODEL_SECONDS)
        return ANSWER if step > STEPS else "calls"

    @DBOS.step()
    async def call(call_key: str) -> str:
        return await act(str(folder), call_key)

    @source.transaction()
    async def book(call_key: str) -> str:
        await asyncio.sleep(TOOL_SECONDS)
        statement = sqlalchemy.text(BOOK.replace("?", ":key"))
        await source.sql_session().execute(statement, {"key": call_key})
        await asyncio.sleep(TOOL_SECONDS)
        return f"done {call_key}"

    @DBOS.workflow()
    async def request(request_id: str) -> str:
        for step in range(1, STEPS + 1):
            await model(step)
            called = {kind: book if kind == "transaction" else call for kind in KINDS}
            await asyncio.gather(*(called[kind](key(request_id, step, kind)) for kind in KINDS))
        return await model(STEPS + 1)

    DBOS.launch()
    report(ready=True)

    async def one(request_id: str) -> None:
        with SetWorkflowID(request_id):
            handle = await DBOS.start_workflow_async(request, request_id)
        report(accepted=request_id)
        report(ended=request_id, text=await handle.get_result())

    await asyncio.gather(*(one(each) for each in ids))


async def pydantic_ai_harness(folder: Path, ids: list[str]) -> None:
    """pydantic-ai with the harness's StepPersistence on SQLite. What is open is continued from its latest complete
    snapshot, as its README has it ("Failure recovery"); without one it is asked again."""
    from pydantic_ai import Agent  # noqa: PLC0415
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart  # noqa: PLC0415
    from pydantic_ai.models.function import AgentInfo, FunctionModel  # noqa: PLC0415
    from pydantic_ai_harness import StepPersistence  # noqa: PLC0415
    from pydantic_ai_harness.step_persistence import SqliteStepStore, continue_run  # noqa: PLC0415

    store = SqliteStepStore(database=folder / "system.sqlite")
    with closing(sqlite3.connect(folder / "effects.sqlite")) as connection:
        connection.execute(TABLE)

    async def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        await asyncio.sleep(MODEL_SECONDS)
        step = sum(isinstance(each, ModelResponse) for each in messages) + 1
        if step > STEPS:
            return ModelResponse([TextPart(ANSWER)])
        request_id = str(messages[0].parts[0].content)  # type: ignore[union-attr]
        calls = [ToolCallPart(kind, {"call_key": key(request_id, step, kind)}, f"{step}-{kind}") for kind in KINDS]
        return ModelResponse(calls)

    async def call(call_key: str) -> str:
        return await act(str(folder), call_key)

    async def book(call_key: str) -> str:
        """It has no transactions to take part in."""
        await asyncio.sleep(TOOL_SECONDS)
        await asyncio.to_thread(insert, folder / "effects.sqlite", call_key)
        await asyncio.sleep(TOOL_SECONDS)
        return f"done {call_key}"

    agent: Any = Agent(FunctionModel(model), capabilities=[StepPersistence(store=store)])
    for kind in KINDS:
        agent.tool_plain(book if kind == "transaction" else call, name=kind)
    known = [run for run in await store.list_runs() if run.conversation_id in ids]
    report(ready=len(known))

    async def one(request_id: str) -> None:
        before = await store.list_runs(conversation_id=request_id)
        history = None
        for run in reversed(before):
            try:
                history = await continue_run(store, run_id=run.run_id)
            except LookupError:
                continue
            break
        if history and not getattr(history[-1], "tool_calls", True):
            report(ended=request_id, text=ANSWER)
            return
        report(accepted=request_id)
        result = await agent.run(None if history else request_id, message_history=history, conversation_id=request_id)
        report(ended=request_id, text=str(result.output))

    await asyncio.gather(*(one(each) for each in ids))


def insert(database: Path, call_key: str) -> None:
    """In a transaction of the tool's own."""
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        connection.execute(BOOK, (call_key,))


PEERS: dict[str, Peer] = {"dbos": dbos, "pydantic-ai-harness": pydantic_ai_harness}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=list(PEERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, required=True)
    options = parser.parse_args()
    report(begun=True)
    asyncio.run(PEERS[options.name](options.folder, request_ids(options.requests)))
    report(all=True)


if __name__ == "__main__":
    main()
