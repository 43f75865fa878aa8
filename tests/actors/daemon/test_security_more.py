"""What a reading of the daemon for its security has found: each test failed before."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.running_daemon import running_daemon
from support.scripted_daemon import PLANTED_KEY, scripted_daemon

from callboard.actors.daemon import board_pages
from callboard.actors.daemon.access_tokens import AccessTokens, Scope
from callboard.actors.daemon.daemon_settings import read_plan
from callboard.actors.daemon.log_lines import JsonRecords, TextRecords
from callboard.actors.daemon.response_records import MAX_MEMORY_BYTES, ResponseRecord, ResponseRecords
from callboard.actors.daemon.tenants import made
from callboard.protocol.errors import UsageError

ANSWER_SECONDS = 20.0
FRIEND = "https://app.example.org"


# -- pages of other origins


def test_pages_of_allowed_origins_only(tmp_path: Path) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-stainless-os"}
    with scripted_daemon(tmp_path, daemon=f'allowed_origins = ["{FRIEND}"]') as daemon:
        for path in ("/v1/chat/completions", "/api/requests", "/v1/responses/x"):
            allowed = httpx.options(daemon.url + path, headers={"Origin": FRIEND, **asks})
            assert allowed.status_code == 204
            assert allowed.headers["access-control-allow-origin"] == FRIEND
            assert allowed.headers["access-control-allow-headers"] == asks["Access-Control-Request-Headers"]
            assert "DELETE" in allowed.headers["access-control-allow-methods"]
            assert "access-control-allow-credentials" not in allowed.headers
            for origin in ("https://evil.example", f"{FRIEND}.evil.example", "http://app.example.org", "null"):
                refused = httpx.options(daemon.url + path, headers={"Origin": origin, **asks})
                assert refused.status_code in (403, 404, 405)
                assert not any(name.startswith("access-control") for name in refused.headers)
        rebound = httpx.options(
            daemon.url + "/api/requests", headers={"Origin": FRIEND, "Host": "evil.example", **asks}
        )
        assert rebound.status_code == 421
        read = daemon.get("/v1/models", headers={"Origin": FRIEND})
        assert read.status_code == 200
        assert read.headers["access-control-allow-origin"] == FRIEND
        assert read.headers["vary"] == "Origin"
        refused = httpx.get(daemon.url + "/v1/models", headers={"Origin": FRIEND})
        assert refused.status_code == 401  # a page can read why
        assert refused.headers["access-control-allow-origin"] == FRIEND
        assert "access-control-allow-origin" not in daemon.get("/v1/models").headers


# -- bodies that are too large


def test_a_client_reads_that_its_body_was_too_large(tmp_path: Path) -> None:
    """A connection closed with bytes unread is reset, and the answer can be lost with it."""
    with scripted_daemon(tmp_path, daemon="limits = {max_body_bytes = 100000}") as daemon, httpx.Client() as client:
        for size in (100_001, 300_000, 800_000) * 4:
            body = {"a": "x" * size}
            answer = client.post(f"{daemon.url}/v1/chat/completions", json=body, headers=daemon.headers)
            assert answer.json()["error"]["code"] == "request_too_large"


# -- tenants


def test_responses_of_another_tenant_are_unknown(tmp_path: Path) -> None:
    state = tmp_path / "state/callboard/daemon"
    state.mkdir(parents=True, mode=0o700)
    bob = AccessTokens(state / "tokens.json").make(Scope.ADMIN, "bob")[1]
    with scripted_daemon(tmp_path) as daemon:
        begun = daemon.post("/v1/responses", {"model": "scripted/model", "input": "hello"}).json()
        path = f"/v1/responses/{begun['id']}"
        assert daemon.get(path).json()["status"] == "completed"
        foreign = {"Authorization": f"Bearer {bob}"}
        calls = (("GET", path), ("POST", f"{path}/cancel"), ("DELETE", path), ("GET", f"{path}/input_items"))
        for method, at in (*calls, ("GET", f"{path}?stream=true")):
            assert httpx.request(method, daemon.url + at, headers=foreign).status_code == 404
        follows = {"model": "scripted/model", "input": "more", "previous_response_id": begun["id"]}
        for at in ("/v1/responses", "/v1/responses/compact"):
            answer = httpx.post(f"{daemon.url}{at}", json=follows, headers=foreign, timeout=ANSWER_SECONDS)
            assert answer.status_code == 404
        assert daemon.get(path).status_code == 200


@pytest.mark.parametrize("journal", ["/tmp/one.db", "postgresql://host/one"])
def test_two_tenants_with_one_journal_are_refused(tmp_path: Path, journal: str) -> None:
    """Each of them would have read what the other asked."""
    path = tmp_path / "callboard.toml"
    path.write_text(f'[default]\njournal = "{journal}"\n[tenants.ann]\n[tenants.bob]\n')
    path.chmod(0o600)
    with pytest.raises(UsageError, match=r"'ann' and 'bob' .* have one journal; give each its own"):
        read_plan(path)
    path.write_text(f'[default]\njournal = "{journal}"\n[tenants.ann]\n[tenants.bob]\njournal = "off"\n')
    assert len(read_plan(path).tenants) == 2


def test_off_is_no_journal_and_no_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "callboard.toml"
    path.write_text('[default]\njournal = "off"\n[tenants.ann]\n[tenants.bob]\n')
    path.chmod(0o600)
    assert [each.settings.journal for each in read_plan(path).tenants] == [None, None]
    path.write_text("")
    assert read_plan(path, given={"journal": "off"}).tenants[0].settings.journal is None
    monkeypatch.setenv("CALLBOARD_JOURNAL", "off")
    assert read_plan(path).tenants[0].settings.journal is None


def test_no_file_of_one_tenant_is_another_tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The responses of `ann` were in the journal of `ann-responses`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "callboard.toml"
    path.write_text("[tenants.ann]\n[tenants.ann-responses]\n")
    path.chmod(0o600)
    plan = read_plan(path)
    tenant = made(plan.tenants[0])
    tenant.responses.close()
    journals = [Path(str(each.settings.journal)).name for each in plan.tenants]
    files = [each.name for each in plan.state_dir.iterdir() if each.suffix == ".db"]
    assert files == ["ann.responses.db"]
    assert set(journals) == {"ann.db", "ann-responses.db"}


# -- bounds


def test_responses_in_memory_are_bounded_in_bytes() -> None:
    records = ResponseRecords(None)
    text = "x" * (MAX_MEMORY_BYTES // 8)
    for number in range(20):
        record = ResponseRecord(f"r{number}", 1e10 + number, "", [{"content": text}], {}, False, False)
        records.add(record)
        records.end(record.request_id, {"status": "completed"})
        assert records.find(record.request_id) is not None
        assert records._used_bytes() <= MAX_MEMORY_BYTES
    assert records.find("r0") is None
    records.close()


def test_responses_of_a_daemon_that_runs_for_long_are_forgotten(tmp_path: Path) -> None:
    records = ResponseRecords(tmp_path / "responses.db")
    records.add(ResponseRecord("old", 1.0, "", [], {}, False, False))
    assert records.find("old") is not None
    records._forgot_at = 0.0  # an hour later
    records.add(ResponseRecord("new", 1e10, "", [], {}, False, False))
    assert records.find("old") is None
    assert records.find("new") is not None
    records.close()


# -- secrets

WHITE = st.text(alphabet=" \n\t\r\x0b\u2028\"'`:,;=()", max_size=5)


@given(before=WHITE, behind=WHITE)
def test_a_key_is_masked_in_each_line_of_the_log(before: str, behind: str) -> None:
    """In JSON an end of line before a key is written as a letter, behind which the key was not found."""
    text = f"{before}{PLANTED_KEY}{behind}"
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        caught = (type(error), error, error.__traceback__)
    record = logging.LogRecord("callboard", logging.ERROR, __file__, 1, text, None, caught)
    record.note = text
    for line in (JsonRecords().format(record), TextRecords().format(record)):
        assert PLANTED_KEY not in line
    assert json.loads(JsonRecords().format(record))["level"] == "error"


class _Refusing(BaseHTTPRequestHandler):
    """A provider that says a key back, as some do."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        told = {"error": {"message": f"Incorrect API key provided:\n{PLANTED_KEY}", "code": "invalid_api_key"}}
        body = json.dumps(told).encode()
        self.send_response(401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join(ANSWER_SECONDS)
    server.server_close()


ASKS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100},
    "/v1/responses": {"input": "hello"},
    "/v1/responses/compact": {"input": "hello"},
}


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_providers_key_is_in_no_answer_and_no_log(tmp_path: Path, refusing: str, log_format: str) -> None:
    config = f'[default]\nmodel = "openai/gpt-x"\nbase_url = "{refusing}"\n[daemon]\nlog_format = "{log_format}"\n'
    environment = {"OPENAI_API_KEY": PLANTED_KEY}
    with running_daemon(tmp_path, config=config, environment=environment) as daemon:
        told = []
        for path, body in ASKS.items():
            for is_streamed in (False, True):
                answer = daemon.post(path, {"model": "openai/gpt-x", **body, "stream": is_streamed})
                assert re.search("Incorrect API key|authentication", answer.text), answer.text
                told.append(answer.text)
        request_id = daemon.post("/api/requests", {"prompt": "hello"}).json()["request_id"]
        told.append(daemon.get(f"/api/requests/{request_id}/events").text)
        for path in (f"/api/requests/{request_id}", "/api/requests", "/api/board", "/metrics", "/api/usage"):
            told.append(daemon.get(path).text)
    told.append(daemon.stderr())
    told += [path.read_bytes().decode(errors="replace") for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert "Traceback" not in daemon.stderr()
    for each in told:
        assert PLANTED_KEY not in each


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_curl_lines_of_the_board_are_one_command() -> None:
    """The id of a call is a model's: a quote in it must not end the word."""
    source = Path(board_pages.__file__).parent / "board/daemon.js"
    found = re.search(r"export (function curl\(.*?\n})", source.read_text(), re.DOTALL)
    assert found
    tricky = ("/api/calls/x'(id)'/1", {"reason": "it's `id` $(id)"})
    use = f"console.log(curl('POST', ...{json.dumps(tricky)}))"
    program = f"const location = {{origin: 'http://localhost'}};\n{found[1]}\n{use}"
    line = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True, timeout=ANSWER_SECONDS)
    words = shlex.split(line.stdout)
    assert words[-1] == f"http://localhost{tricky[0]}"
    assert json.loads(words[words.index("-d") + 1]) == tricky[1]
