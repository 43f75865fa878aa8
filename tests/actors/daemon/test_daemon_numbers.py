"""What `/metrics` says of the daemon and its process."""

from __future__ import annotations

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.running_daemon import RunningDaemon, running_daemon


def samples(daemon: RunningDaemon) -> dict[str, float]:
    text = daemon.get("/metrics").text
    return {
        ",".join((each.name, *(each.labels[name] for name in ("path", "status") if name in each.labels))): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_it_has_the_process_answers_connections_and_followers(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert daemon.get("/api/tools").status_code == 200
        found = samples(daemon)
        assert found["callboard_daemon_answers_total,/api/tools,200"] == 1
        assert found["callboard_daemon_connections"] >= 1
        assert found["callboard_daemon_followers"] == 0
        for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"):
            assert found[name] > 0, name
        assert found["callboard_daemon_threads"] > 1
        with httpx.stream("GET", f"{daemon.url}/api/board/events", headers=daemon.headers, timeout=30) as follower:
            chunks = follower.iter_raw()  # kept: the stream is closed with it
            assert next(chunks)
            assert samples(daemon)["callboard_daemon_followers"] == 1
