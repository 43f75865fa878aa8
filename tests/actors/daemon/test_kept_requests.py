"""An id that the daemon has given out is known to the next one; what it refuses does not run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.conditions import wait_until
from support.running_daemon import RunningDaemon, running_daemon

from callboard.actors.settings import OFFLINE_MODEL

CONFIG = f'[default]\nmodel = "{OFFLINE_MODEL}"\n'

#: The daemon, whose journal writes no beginning while there is a file `trouble`: with "unsure" in it the journal has
#: written it, and its answer is lost.
TROUBLED = """
import sys
from pathlib import Path
from callboard.actors.cli.__main__ import main
from callboard.actors.journal.journal_store import JournalFailed, JournalUnsure
from callboard.actors.journal.sql_writer import SqlWriter

commit, trouble = SqlWriter.commit, Path.cwd() / "trouble"

def commits(writer, batch):
    if not trouble.exists() or not any(getattr(each, "begins", None) for each in batch):
        return commit(writer, batch)
    if trouble.read_text() == "unsure":
        commit(writer, batch)
        raise JournalUnsure("the answer to the commit was lost")
    raise JournalFailed("the disk is full")

SqlWriter.commit = commits
sys.exit(main())
"""


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningDaemon, Path]]:
    folder = tmp_path_factory.mktemp("troubled")
    with running_daemon(folder, config=CONFIG, program=(sys.executable, "-c", TROUBLED)) as daemon:
        yield daemon, folder / "trouble"


def count(daemon: RunningDaemon) -> int:
    told = daemon.get("/api/requests").json()
    return len({each["request_id"] for each in (*told["open"], *told["recent"])})  # one that ends just now is in both


def test_a_request_is_known_though_the_daemon_is_killed_as_soon_as_it_has_begun(tmp_path: Path) -> None:
    known: list[str] = []
    for _ in range(3):
        with running_daemon(tmp_path, config=CONFIG) as daemon:
            assert [daemon.get(f"/api/requests/{each}").status_code for each in known] == [200] * len(known)
            known += [daemon.post("/api/requests", {"prompt": "hello"}).json()["request_id"] for _ in range(2)]
            response = daemon.post("/v1/responses", {"input": "hello", "model": OFFLINE_MODEL, "background": True})
            known.append(response.json()["id"].removeprefix("resp_"))
            daemon.process.kill()
            daemon.process.wait(timeout=20)


def test_what_is_refused_does_not_run(troubled: tuple[RunningDaemon, Path]) -> None:
    daemon, trouble = troubled
    before = count(daemon)
    trouble.write_text("full")
    for path, body in (
        ("/api/requests", {"prompt": "hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/responses", {"input": "hello", "background": True}),
    ):
        refused = daemon.post(path, {"model": OFFLINE_MODEL, **body})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert "the disk is full" in refused.json()["error"]["message"]
    trouble.unlink()
    assert daemon.post("/api/requests", {"prompt": "hello"}).json()["state"] == "started"
    wait_until(lambda: count(daemon) > before)
    assert count(daemon) == before + 1


def test_what_may_have_begun_is_no_refusal_and_is_not_begun_twice(troubled: tuple[RunningDaemon, Path]) -> None:
    daemon, trouble = troubled
    before = count(daemon)
    trouble.write_text("unsure")
    told = daemon.post("/api/requests", {"prompt": "hello"})
    assert (told.status_code, told.json()["state"]) == (202, "unknown")
    request_id = told.json()["request_id"]
    assert "the answer to the commit was lost" in told.json()["message"]
    assert f"ask again with request_id='{request_id}'" in told.json()["message"]
    chat = daemon.post(
        "/v1/chat/completions", {"model": OFFLINE_MODEL, "messages": [{"role": "user", "content": "hello"}]}
    )
    assert (chat.status_code, chat.json()["error"]["code"], chat.headers["x-should-retry"]) == (504, "unknown", "false")
    trouble.unlink()
    for _ in range(2):
        again = daemon.post("/api/requests", {"prompt": "hello", "request_id": request_id})
        assert (again.status_code, again.json()["request_id"], again.json()["state"]) == (202, request_id, "started")
    other = daemon.post("/api/requests", {"prompt": "another question", "request_id": request_id})
    assert (other.status_code, "choose another" in other.text) == (400, True)
    wait_until(lambda: count(daemon) == before + 2)  # with the chat's: that both have ended is written when it can be


def test_a_request_of_a_conversation_can_be_sent_again(troubled: tuple[RunningDaemon, Path]) -> None:
    daemon, _ = troubled
    first = daemon.post("/api/requests", {"prompt": "hello"}).json()["request_id"]
    conversation = daemon.get(f"/api/requests/{first}").json()["request"]["conversation_id"]
    body = {"prompt": "and then?", "conversation": conversation, "request_id": "sent-again"}
    wait_until(lambda: daemon.post("/api/requests", body).status_code == 202)  # 409 until the first one has ended
    assert daemon.post("/api/requests", body).json()["request_id"] == "sent-again"
