"""`callboard serve`: runtimes behind HTTP, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from functools import partial
from pathlib import Path

from callboard import UsageError
from callboard.actors.cli.arguments import with_folders
from callboard.actors.daemon.access_tokens import for_owner
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.daemon_settings import DaemonPlan, read_plan
from callboard.actors.daemon.http_server import serve
from callboard.actors.daemon.log_lines import log_to_stderr
from callboard.actors.environment import token_of_environment
from callboard.actors.kernel.scheduler import EventLoop

#: Settings of the runtimes, and of the daemon, that can be typed.
_OF_RUNTIMES = ("workspace", "model", "base_url", "confine", "journal", "trust", "mode")
_OF_DAEMON = ("host", "port", "log_format")


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Serve until SIGINT or SIGTERM. What a person must know goes to stderr."""
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    with contextlib.redirect_stdout(sys.stderr):  # what files of tools print while they are loaded
        daemon = Daemon(partial(plan_of, options), token_of_environment())
    log_to_stderr(daemon.settings.log_format)
    secret = daemon.first_token()
    if secret:
        _show(secret, daemon.plan.state_dir)
    await serve(daemon, lambda url: _ready(url, secret))


def plan_of(options: argparse.Namespace) -> DaemonPlan:
    """What was typed, over the configuration file. Raises UsageError."""
    typed = with_folders({name: value for name in _OF_RUNTIMES if (value := getattr(options, name, None)) is not None})
    of_daemon = {name: value for name in _OF_DAEMON if (value := getattr(options, name, None)) is not None}
    return read_plan(options.config, options.profile, given=typed, daemon=of_daemon, tools=options.tools)


def _show(secret: str, state_dir: Path) -> None:
    """The first token: on a terminal, else in a file that only its owner may read. It is in no log."""
    if sys.stderr.isatty():
        _say(f"token (shown once): {secret}")
        return
    path = state_dir / "first-token"
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with open(path, "x", opener=for_owner) as file:
            file.write(secret + "\n")
    except OSError as error:
        raise UsageError(f"the first token cannot be written: {path}: {error.strerror or error}") from None
    _say(f"the first token is in {path}")


def _ready(url: str, secret: str) -> None:
    """A new token opens the board by a link, which the page takes out of the address bar."""
    if secret and sys.stderr.isatty():
        _say(f"the board, by that token: {url}/#token={secret}")
    _say(f"ready: {url}")


def _say(line: str) -> None:
    sys.stderr.write(f"callboard: {line}\n")
    sys.stderr.flush()
