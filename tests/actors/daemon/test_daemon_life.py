"""The daemon is reloaded and ended by real signals."""

from __future__ import annotations

import signal
from pathlib import Path

from support.running_daemon import running_daemon

CONFIG = "[default]\nmax_steps = {}\n[daemon]\ndrain_seconds = 5\n"


def test_a_reload_reads_the_file_again_and_a_fault_changes_nothing(tmp_path: Path) -> None:
    with running_daemon(tmp_path, config=CONFIG.format(5)) as daemon:
        path = tmp_path / "config/callboard.toml"
        path.write_text(CONFIG.format(6))
        answer = daemon.post("/reload", {})
        assert (answer.status_code, answer.json()) == (200, {"status": "reloaded"})
        path.write_text(CONFIG.format('"many"'))
        answer = daemon.post("/reload", {})
        assert answer.status_code == 400
        assert "max_steps" in answer.json()["error"]["message"]
        path.write_text(CONFIG.format(6) + 'host = "0.0.0.0"\n')
        answer = daemon.post("/reload", {})
        assert answer.status_code == 400
        assert "restart" in answer.json()["error"]["message"]
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.get("/readyz").json() == {"status": "ready"}
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(timeout=20) == 0


def test_sigint_ends_it_too(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(timeout=20) == 0
