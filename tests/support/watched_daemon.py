"""`support.answering_daemon`, whose event loop is watched while it answers: what its thread does that may take long
(watched_thread) is written to the file of the variable WATCHED when it drains."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from support.answering_daemon import _with_script
from support.watched_thread import offences, watched

from callboard.actors.cli import serve_command
from callboard.actors.cli.__main__ import main
from callboard.actors.daemon import http_server
from callboard.actors.daemon.daemon import Daemon

_watching = watched("the daemon")
_drain, _serve = http_server.drain, serve_command.serve


async def _watched(daemon: Daemon, started: Callable[[str], object]) -> None:
    def begin(url: str) -> None:
        started(url)
        _watching.__enter__()

    await _serve(daemon, begin)


async def _drained(daemon: Daemon) -> None:
    _watching.__exit__(None, None, None)
    write(Path(os.environ["WATCHED"]))
    await _drain(daemon)


def write(path: Path) -> None:
    path.write_text(json.dumps(offences()), encoding="utf-8")


def run() -> None:
    """With the arguments of `callboard`. Import watched_thread before this file."""
    serve_command.read_plan = _with_script  # type: ignore[assignment]
    serve_command.serve = _watched
    http_server.drain = _drained
    sys.exit(main())
