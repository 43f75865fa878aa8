"""An id that the daemon has given out is known to the next one, whenever this one was killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.running_daemon import running_daemon

from callboard import Runtime, RuntimeFailure, Settings
from callboard.actors.daemon.kept_requests import until_kept
from callboard.actors.settings import OFFLINE_MODEL


def test_a_request_is_known_though_the_daemon_is_killed_as_soon_as_it_has_begun(tmp_path: Path) -> None:
    known: list[str] = []
    for _ in range(3):
        with running_daemon(tmp_path, config=f'[default]\nmodel = "{OFFLINE_MODEL}"\n') as daemon:
            assert [daemon.get(f"/api/requests/{each}").status_code for each in known] == [200] * len(known)
            known += [daemon.post("/api/requests", {"prompt": "hello"}).json()["request_id"] for _ in range(3)]
            daemon.process.kill()
            daemon.process.wait(timeout=20)


def test_one_that_is_not_in_the_journal_and_does_not_run_was_lost(tmp_path: Path) -> None:
    with Runtime(Settings(model=OFFLINE_MODEL, journal=tmp_path / "own.db")) as runtime:
        request_id = runtime.start_request("hello")
        until_kept(runtime, request_id)
        with pytest.raises(RuntimeFailure, match="could not be written to the journal"):
            until_kept(runtime, "another")
    with Runtime(Settings()) as runtime:
        until_kept(runtime, "without a journal there is nothing to wait for")
