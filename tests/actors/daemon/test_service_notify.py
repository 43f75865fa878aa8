"""What systemd hears of the daemon, over a real socket."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from support.running_daemon import running_daemon

from callboard.actors.daemon.service_notify import ServiceNotify


def heard(manager: socket.socket) -> list[str]:
    return manager.recv(4_096).decode().splitlines()


def test_it_says_when_it_is_ready_reloads_and_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        with running_daemon(tmp_path, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as daemon:
            assert heard(manager) == ["READY=1"]
            daemon.process.send_signal(signal.SIGHUP)
            began, when = heard(manager)
            assert began == "RELOADING=1"
            assert int(when.removeprefix("MONOTONIC_USEC=")) > 0
            assert heard(manager) == ["READY=1"]
            daemon.process.send_signal(signal.SIGTERM)
            assert heard(manager) == ["STOPPING=1"]
            assert daemon.process.wait(timeout=20) == 0


def test_a_reload_that_is_refused_ends_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0callboard-test-" + tmp_path.name)
        manager.settimeout(30)
        address = "@callboard-test-" + tmp_path.name
        with running_daemon(tmp_path, environment={"NOTIFY_SOCKET": address}) as daemon:
            assert heard(manager) == ["READY=1"]
            (tmp_path / "config/callboard.toml").write_text("[daemon]\nprot = 1\n")
            daemon.process.send_signal(signal.SIGHUP)
            assert heard(manager)[0] == "RELOADING=1"
            assert heard(manager) == ["READY=1"]


def test_without_a_manager_nothing_fails(tmp_path: Path) -> None:
    for address in ("", str(tmp_path / "gone")):
        manager = ServiceNotify(address)
        manager.ready()
        manager.reloading()
        manager.stopping()
