"""`callboard serve` in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from support.homes import with_models

TOKEN = "a-token-for-tests-0123456789"
#: It starts in about a second; a busy machine takes some more.
START_SECONDS = 50.0
#: For each request by itself, httpx would read the certificates of all authorities: 40 ms of CPU. Nothing here is TLS.
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class RunningDaemon:
    """One that answers."""

    process: subprocess.Popen[str]
    url: str
    token: str
    folder: Path
    _lines: list[str] = field(default_factory=list)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self._ask("GET", path, headers)

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self._ask("POST", path, headers, json=body)

    def _ask(self, method: str, path: str, headers: Mapping[str, str] | None, **more: object) -> httpx.Response:
        shown = {**self.headers, **(headers or {})}
        return httpx.request(method, self.url + path, headers=shown, timeout=30, verify=NO_AUTHORITIES, **more)

    def stderr(self) -> str:
        """What it has said so far."""
        return "".join(self._lines)


@contextlib.contextmanager
def running_daemon(
    folder: Path,
    *arguments: str,
    token: str = TOKEN,
    config: str = "",
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = (sys.executable, "-m", "callboard.actors.cli"),
    port: int = 0,
) -> Iterator[RunningDaemon]:
    """Its state and configuration are below `folder`: a second one of the same folder goes on with its journal.

    `config`: the text of its configuration file. `program`: what is run with the arguments of `callboard`, in place of
    the command line: such as a script that gives the runtimes a scripted model.
    """
    (folder / "config").mkdir(exist_ok=True)
    path = folder / "config/callboard.toml"
    path.write_text(config)
    path.chmod(0o600)
    names = {
        "XDG_STATE_HOME": str(folder / "state"),
        "CALLBOARD_CONFIG_DIR": str(folder / "config"),
        "HOME": str(with_models(folder)),
        "CALLBOARD_TOKEN": token,
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CALLBOARD_")}
    process = subprocess.Popen(
        [*program, "serve", "--config", str(path), "--port", str(port), *arguments],
        env={**kept, **names, **(environment or {})},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "ready: " in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        ready.wait(START_SECONDS)
        found = re.search(r"ready: (\S+)", "".join(lines))
        assert found, f"the daemon did not start: {''.join(lines)}"
        yield RunningDaemon(process, found[1], token, folder, lines)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=20)
        reader.join(timeout=20)
        if process.stderr is not None:
            process.stderr.close()
