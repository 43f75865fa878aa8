"""A daemon whose actors have failed for good: it says so, to probes, clients, systemd and the log, and ends, to be
started again. Each time in a process of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from support.conditions import wait_until
from support.running_daemon import RunningDaemon, running_daemon

from callboard.actors.daemon.access_tokens import AccessTokens, Scope

SUPPORT: Final = Path(__file__).parents[2] / "support"
WAYS: Final = (
    "telemetry llm_manager",
    "dispatcher telemetry",
    "llm_manager dispatcher",
    "journal telemetry",
    "telemetry llm_manager dispatcher journal",
)
CONFIG: Final = """
[default]
model = "scripted/model"

[daemon]
log_format = "json"
drain_seconds = 20
limits = { requests_per_minute = 1_000_000 } # each path is asked without a pause

[tenants.ann]

[tenants.bob]
tools = ["slow_tools.py"]
"""
TOOLS: Final = """
import asyncio
from callboard import tool

@tool(risk="read", timeout=60)
async def look() -> str:
    "Look."
    open("begun", "w").close()
    await asyncio.sleep(3)
    return "rain"
"""


@contextlib.contextmanager
def failing_daemon(folder: Path, broken: str, **environment: str) -> Iterator[RunningDaemon]:
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config/slow_tools.py").write_text(TOOLS)
    program = (sys.executable, str(SUPPORT / "failing_daemon.py"))
    path = ":".join(each for each in (str(SUPPORT.parent), *sys.path) if each)
    more = {"PYTHONPATH": path, "BROKEN": broken, **environment}
    with running_daemon(folder, program=program, config=CONFIG, environment=more) as daemon:
        yield daemon


def probed(daemon: RunningDaemon, path: str) -> tuple[int, str]:
    """What this path answers last, before the daemon is gone."""
    found = (0, "")
    with httpx.Client(timeout=30, headers=daemon.headers) as client:
        while True:
            try:
                answer = client.get(daemon.url + path)
            except httpx.HTTPError:
                return found
            found = (answer.status_code, answer.text)


@pytest.mark.parametrize("broken", WAYS)
def test_probes_and_clients_read_why_and_it_ends_to_be_started_again(tmp_path: Path, broken: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        with failing_daemon(tmp_path, broken, NOTIFY_SOCKET=str(tmp_path / "notify")) as daemon:
            paths = ("/healthz", "/readyz", "/api/requests", "/api/actors", "/api/tools")
            told: dict[str, tuple[int, str]] = {}
            probing = [
                threading.Thread(target=lambda at: told.update({at: probed(daemon, at)}), args=(at,)) for at in paths
            ]
            for each in probing:
                each.start()
            assert daemon.get("/healthz").json() == {"status": "ok"}
            daemon.process.send_signal(signal.SIGUSR1)
            assert daemon.process.wait(40) == 1, "Restart=on-failure starts it again"
            for each in probing:
                each.join(40)
            reason = "the actors of the tenant ann failed too often; the log has the rest"
            for probe in paths[:2]:
                status, body = told[probe]
                assert (status, json.loads(body)) == (503, {"status": "failed", "reason": reason})
            for path in paths[2:]:
                status, body = told[path]
                assert (status, "failed too often" in body) == (503, True), body
            log = daemon.stderr()
            assert "this runtime has ended by itself, since its actors failed too often" in log
            assert "the secret of the log" in log
            assert f"callboard: {reason}" in log.splitlines()[-1]
            assert '"internal_error"' not in log
        assert manager.recv(4_096) == b"READY=1"
        assert manager.recv(4_096).decode() == f"STATUS={reason}"
    with failing_daemon(tmp_path, broken) as daemon:
        assert daemon.get("/readyz").status_code == 200


def test_what_other_tenants_run_may_end(tmp_path: Path) -> None:
    state = tmp_path / "state/callboard/daemon"
    state.mkdir(parents=True, mode=0o700)
    made = AccessTokens(state / "tokens.json").make(Scope.USE, "bob")[1]
    with failing_daemon(tmp_path, "telemetry llm_manager") as daemon:
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {"model": "scripted/model", "messages": [{"role": "user", "content": 'call [["look", {}]]'}]}
            answers.append(daemon.post("/v1/chat/completions", body, {"Authorization": f"Bearer {made}"}))

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: answers or (tmp_path / "begun").exists())
        assert not answers, answers[0].text
        daemon.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: daemon.get("/readyz").status_code == 503)
        refused = daemon.post("/reload", None)
        assert (refused.status_code, "failed too often" in refused.text) == (503, True)
        asking.join(40)
        assert answers[0].json()["choices"][0]["message"]["content"].endswith("The tools said: rain")
        assert daemon.process.wait(40) == 1
