"""`[daemon.limits]` after a reload: each of them holds for the next connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.conditions import wait_until
from support.running_daemon import RunningDaemon, running_daemon

PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("limits")) as found:
        yield found


def limit(daemon: RunningDaemon, line: str) -> None:
    (daemon.folder / "config/callboard.toml").write_text(f"[daemon.limits]\n{line}\n")
    assert daemon.post("/reload", None).status_code == 200


def connected(daemon: RunningDaemon) -> socket.socket:
    host, _, port = daemon.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def answered(daemon: RunningDaemon, data: bytes) -> bytes:
    """The first bytes of what is said to these, and then nothing more."""
    with connected(daemon) as connection:
        connection.sendall(data)
        return connection.recv(12)


def test_a_head_that_is_too_large_or_late(daemon: RunningDaemon) -> None:
    large = {"x-much": "x" * 2_000}
    assert daemon.get("/healthz", large).status_code == 200
    limit(daemon, "max_header_bytes = 1024")
    assert daemon.get("/healthz", large).status_code == 431
    limit(daemon, "head_seconds = 0.2")
    assert daemon.get("/healthz", large).status_code == 200
    assert answered(daemon, b"GET /healthz HT") == b"HTTP/1.1 408"


def test_a_body_that_is_too_large_or_late(daemon: RunningDaemon) -> None:
    limit(daemon, "max_body_bytes = 1024")
    assert daemon.post("/api/requests", {"prompt": "x" * 2_000}).status_code == 413
    limit(daemon, "body_seconds = 0.2")
    head = (
        f"POST /api/requests HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {daemon.token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    assert answered(daemon, head.encode()) == b"HTTP/1.1 408"


def test_too_many_connections(daemon: RunningDaemon) -> None:
    limit(daemon, "max_connections = 5")
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(connected(daemon))
        assert daemon.get("/healthz").status_code == 503
    wait_until(lambda: daemon.get("/healthz").status_code == 200)
    limit(daemon, "")


def test_a_time_that_no_socket_takes_is_refused(daemon: RunningDaemon) -> None:
    limit(daemon, "unread_seconds = 60")
    assert daemon.get("/healthz").status_code == 200
    (daemon.folder / "config/callboard.toml").write_text("[daemon.limits]\nunread_seconds = 1e12\n")
    refused = daemon.post("/reload", None)
    assert refused.status_code == 400
    assert "unread_seconds" in refused.json()["error"]["message"]


def test_too_many_requests_a_minute(daemon: RunningDaemon) -> None:
    limit(daemon, "requests_per_minute = 6")  # a burst of one
    assert [daemon.get("/v1/models").status_code for _ in range(2)] == [200, 429]
