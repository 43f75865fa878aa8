"""`callboard mcp` in a process of its own, over HTTP and over pipes, with the SDK's own client."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from callboard.actors.mcp.remote_values import ServerState, ServerStatus

TOOLS = Path(__file__).with_name("served_tools.py")
#: For a process to start or end on a loaded machine.
PATIENCE_SECONDS = 60.0


def is_held(marker: Path) -> bool:
    """Does the tool `hold` run with this marker?"""
    if not marker.exists():
        return False
    with open(marker) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return bool(file.read())
    return False


def is_settled(server: ServerStatus) -> bool:
    """Is it connected, or has it failed to connect?"""
    return server.state is not ServerState.STARTING or bool(server.reason)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition of another process or thread."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - neither sets an event of this loop
            await asyncio.sleep(0.02)


@dataclass
class Served:
    """A server over HTTP."""

    process: subprocess.Popen[str]
    url: str
    token: str
    workspace: Path

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


def command(workspace: Path, *more: str) -> list[str]:
    """Of a server with the tools of these tests."""
    main = [sys.executable, "-m", "callboard.actors.cli", "mcp"]
    return [*main, "--workspace", str(workspace), "--tools", str(TOOLS), *more]


def environment(folder: Path) -> dict[str, str]:
    """Without the user's own settings."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    homes = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    return {**kept, **{name: str(folder / "home") for name in homes}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    workspace = folder / "workspace"
    workspace.mkdir()
    (workspace / "a.txt").write_text("hello\n")
    server = subprocess.Popen(
        command(workspace, "--http", "127.0.0.1:0"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
    )
    assert server.stderr is not None
    said = ""
    for line in server.stderr:
        said += line
        if found := re.search(r"MCP server: (\S+)\n.*Bearer (\S+)\n", said):
            break
    else:
        pytest.fail(f"callboard mcp did not start: {said}")
    reader = threading.Thread(target=server.stderr.read, daemon=True)  # a full pipe would stop the server
    reader.start()
    yield Served(server, found[1], found[2], workspace)
    server.terminate()
    status = server.wait(PATIENCE_SECONDS)
    reader.join(PATIENCE_SECONDS)
    server.stderr.close()
    assert status == 0
