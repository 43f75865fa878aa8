"""The daemon as a process of its own: started by the command, asked over sockets, ended by a signal."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
from support.running_daemon import RunningDaemon, running_daemon


def test_it_says_where_it_is_and_ends_by_a_signal(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert daemon.get("/healthz").json() == {"status": "ok"}
        assert daemon.get("/readyz").json() == {"status": "ready"}
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(timeout=20) == 0


def test_metrics_need_a_token(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        bare = httpx.get(f"{daemon.url}/metrics")
        assert bare.status_code == 401
        assert bare.json()["error"]["code"] == "invalid_api_key"
        wrong = httpx.get(f"{daemon.url}/metrics", headers={"Authorization": "Bearer wrong"})
        assert wrong.status_code == 401
        assert "callboard_" in daemon.get("/metrics").text


def test_the_first_token_is_in_a_file_of_its_owner_where_there_is_no_terminal(tmp_path: Path) -> None:
    with running_daemon(tmp_path, token="") as daemon:
        path = tmp_path / "state/callboard/daemon/first-token"
        assert path.stat().st_mode & 0o777 == 0o600
        secret = path.read_text().strip()
        assert secret not in daemon.stderr()
        answer = httpx.get(f"{daemon.url}/metrics", headers={"Authorization": f"Bearer {secret}"})
        assert answer.status_code == 200


def test_a_name_that_is_not_its_own_is_refused(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert daemon.get("/healthz", headers={"Host": "evil.example"}).status_code == 421
        assert daemon.get("/healthz", headers={"Origin": "http://evil.example"}).status_code == 403
        assert isinstance(daemon, RunningDaemon)
