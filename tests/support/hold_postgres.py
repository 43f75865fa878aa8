"""The process that holds a PostgreSQL server of the tests: it ends when they do, however they end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: PostgreSQL does not run as root.
NOT_ROOT = "nobody"


def as_user() -> dict[str, Any]:
    """For subprocess: without root's rights."""
    if os.geteuid() != 0:
        return {}
    return {"user": NOT_ROOT, "group": pwd.getpwnam(NOT_ROOT).pw_gid, "extra_groups": [], "cwd": "/"}


def _hold(program: str, data: str) -> None:
    """Start the server, say when it is ready, and end it when told to or when there is nobody left to tell."""
    server = subprocess.Popen([program, "-D", data], stdin=subprocess.DEVNULL, stdout=2, **as_user())
    _wait_until_ready(server, Path(data, "postmaster.pid"))
    sys.stdout.write("ready\n" if server.poll() is None else "failed\n")
    sys.stdout.flush()
    told = sys.stdin.readline().strip()
    server.send_signal(int(told) if told else signal.SIGQUIT)
    server.wait()
    if not told:
        shutil.rmtree(Path(data).parent, ignore_errors=True)


def _wait_until_ready(server: subprocess.Popen[bytes], status: Path) -> None:
    """As pg_ctl does: the eighth line of postmaster.pid says so."""
    while server.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            lines = status.read_text().splitlines()
            if int(lines[0]) == server.pid and lines[7].strip() == "ready":
                return
        time.sleep(0.02)


if __name__ == "__main__":
    _hold(sys.argv[1], sys.argv[2])
