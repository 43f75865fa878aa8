"""The daemon answers without holding its event loop: no file, no SQL, no lock is waited for there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
from support.running_daemon import RunningDaemon, running_daemon
from support.stateless_daemon import CONFIG, openai_client

TESTS = Path(__file__).resolve().parents[2]
PROGRAM = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from support import watched_thread, watched_daemon  # in this order
watched_daemon.run()
"""
#: The file of the tokens is looked at for each request, which takes 2 us, and read where it has changed.
LOOKED_AT = "daemon/access_tokens.py"


def test_no_endpoint_waits_on_the_daemons_loop(tmp_path: Path) -> None:
    """Those that ask, look up or follow a request, with a journal."""
    found = tmp_path / "found.json"
    with running_daemon(
        tmp_path,
        "--tools",
        str(TESTS / "support" / "daemon_tools.py"),
        program=(sys.executable, "-c", PROGRAM),
        config=CONFIG,
        environment={"WATCHED": str(found)},
    ) as daemon:
        play(daemon)
    offences = [each for each in json.loads(found.read_text()) if LOOKED_AT not in each[2]]
    assert offences == []


def play(daemon: RunningDaemon) -> None:
    asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}
    tools = {**asked, "messages": [{"role": "user", "content": f"call {json.dumps([['weather', {'city': 'Oslo'}]])}"}]}
    for body in (asked, tools):
        assert daemon.post("/v1/chat/completions", body).status_code == 200
        with httpx.stream(
            "POST", f"{daemon.url}/v1/chat/completions", json={**body, "stream": True}, headers=daemon.headers
        ) as stream:
            assert list(stream.iter_lines())
        assert daemon.post("/v1/messages", {**body, "max_tokens": 100}).status_code == 200
    with openai_client(daemon) as client:
        made = client.responses.create(model="gpt-4o", input="hello")
        assert client.responses.create(model="gpt-4o", input="again", previous_response_id=made.id).output_text
        assert client.responses.retrieve(made.id).output_text
        later = client.responses.create(model="gpt-4o", input="wait", background=True)
        assert client.responses.retrieve(later.id).status in ("in_progress", "queued")
        client.responses.cancel(later.id)
        with client.responses.stream(model="gpt-4o", input="hello") as events:
            assert list(events)
        client.responses.delete(made.id)
    started = daemon.post("/api/requests", {"prompt": "hello", "request_id": "r1"})
    assert started.status_code == 202, started.text
    with httpx.stream("GET", f"{daemon.url}/api/requests/r1/events", headers=daemon.headers) as stream:
        assert list(stream.iter_lines())
    for path in ("requests", "requests/r1", "conversations", "usage", "tools", "actors", "dead_letters"):
        answer = daemon.get(f"/api/{path}")
        assert answer.status_code in (200, 404), answer.text
    assert daemon.post("/api/requests/r1/cancel", {}).status_code == 200
    assert daemon.get("/metrics").status_code == 200
    assert daemon.get("/v1/models").status_code == 200
