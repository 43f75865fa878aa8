"""The thread of one connection to an MCP server: what it is given to do, around its end."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from callboard.actors.mcp.server_thread import NotSent, ServerThread

#: Longer than a loaded machine takes.
PATIENCE_SECONDS = 30.0


async def nothing() -> None:
    """What a caller asks for."""


def test_what_comes_while_its_loop_is_being_closed_was_certainly_not_sent() -> None:
    """So it may be sent again, by the next connection."""
    closed, go_on = threading.Event(), threading.Event()
    ended: Future[Exception | None] = Future()

    async def main(_: ServerThread) -> None:
        loop = asyncio.get_running_loop()
        close = loop.close

        def close_slowly() -> None:
            close()
            closed.set()
            go_on.wait(PATIENCE_SECONDS)

        loop.close = close_slowly  # type: ignore[method-assign]

    thread = ServerThread("closing", main, ended.set_result)
    try:
        assert closed.wait(PATIENCE_SECONDS)
        with pytest.raises(NotSent):
            thread.do(nothing)
        thread.stop()  # likewise harmless
    finally:
        go_on.set()
    assert ended.result(PATIENCE_SECONDS) is None


def test_what_still_runs_ends_with_its_thread() -> None:
    ready: Future[ServerThread] = Future()
    ended: Future[Exception | None] = Future()

    async def main(thread: ServerThread) -> None:
        ready.set_result(thread)
        await thread.stopping.wait()

    ServerThread("ending", main, ended.set_result)
    thread = ready.result(PATIENCE_SECONDS)
    started = threading.Event()

    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    errand = thread.do(waits)
    assert started.wait(PATIENCE_SECONDS)
    thread.stop()
    with pytest.raises(NotSent):
        errand.result.result(PATIENCE_SECONDS)
    assert ended.result(PATIENCE_SECONDS) is None
