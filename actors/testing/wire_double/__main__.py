"""The command: `python -m callboard.actors.testing.wire_double --port 0 [--script script.json]`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from callboard.actors.testing.wire_double.http_server import WireDoubleServer
from callboard.actors.testing.wire_double.script import Script, scripts_from_json
from callboard.protocol.errors import UsageError

new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
with contextlib.suppress(ImportError):  # without the extra `uvloop` asyncio's own loop does the same, slower
    from uvloop import new_event_loop

_USAGE_ERROR = 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m callboard.actors.testing.wire_double",
        description="A server that answers like a model API, from a script. Prints one line of JSON with its address "
        "and runs until its standard input closes (unless that is /dev/null) or SIGINT or SIGTERM comes.",
    )
    parser.add_argument("--port", type=int, default=0, help="a loopback port; 0 (the default) takes any free one")
    script = 'a JSON file with one script, or a list of them: {"turns": [{"text": "Hello."}]}'
    parser.add_argument("--script", type=Path, help=script)
    return parser.parse_args()


def _scripts(file: Path | None) -> list[Script]:
    """The scripts of a file. Raises UsageError where it cannot be read or holds none."""
    if file is None:
        return []
    try:
        return scripts_from_json(file.read_bytes())
    except OSError as error:
        raise UsageError(f"The script {file} cannot be read: {error.strerror}.") from None


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    """On a thread of its own: a read that blocks must not keep the process from ending."""
    loop = asyncio.get_running_loop()
    # A shell gives /dev/null to what it starts in the background: there only a signal ends the server.
    if sys.stdin is None or os.fstat(sys.stdin.fileno()).st_rdev == os.stat(os.devnull).st_rdev:
        return

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            continue
        with contextlib.suppress(RuntimeError):  # the server has ended before its input
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait, name="wire-double-stdin", daemon=True).start()


async def _serve(port: int, scripts: list[Script]) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    runner, url = await WireDoubleServer(scripts).start(port)
    _stop_at_end_of_input(stop)
    print(json.dumps({"url": url, "pid": os.getpid()}), flush=True)  # noqa: T201 - the line that tells the address
    await stop.wait()
    await runner.cleanup()


def main() -> int:
    """Run the server; the exit status."""
    arguments = _arguments()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(arguments.port, _scripts(arguments.script)))
    except (UsageError, OSError, OverflowError) as error:
        sys.stderr.write(f"wire_double: {error}\n")
        return _USAGE_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
