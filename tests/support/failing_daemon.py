"""`support.answering_daemon`, whose first tenant's actors fail for good at SIGUSR1: those that BROKEN names end, and
crash each time they are started again."""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import cycle

from support.answering_daemon import _with_script

from callboard.actors.cli import serve_command
from callboard.actors.cli.__main__ import main
from callboard.actors.daemon.tenants import Tenants
from callboard.actors.runtime import Runtime
from callboard.protocol.errors import CallboardError

FIRST: list[Runtime] = []


def break_for_good() -> None:
    """As a fault that a restart does not mend."""
    runtime, names = FIRST[0], os.environ["BROKEN"].split()
    assert runtime._running is not None
    pause, system = threading.Event(), runtime._running.system
    for name in names:
        kind = type(system.ref(f"root/{name}")._cell.actor)

        def on_start(_: object) -> None:
            raise OSError("the secret of the log")

        kind.on_start = on_start  # type: ignore[method-assign]
    for name in cycle(names):
        if runtime.failed.done():
            return
        try:
            runtime.kill_actor(f"root/{name}")
        except CallboardError:
            pause.wait(0.01)  # it waits for its next start


def _remembered(tenants: Tenants, plans: object, make: object = Tenants.__init__) -> None:
    make(tenants, plans)  # type: ignore[operator]
    FIRST.append(next(iter(tenants)).runtime)


if __name__ == "__main__":
    serve_command.read_plan = _with_script  # type: ignore[assignment]
    Tenants.__init__ = _remembered  # type: ignore[assignment, method-assign]
    signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=break_for_good, daemon=True).start())
    sys.exit(main())
