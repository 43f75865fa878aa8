"""Each endpoint of the table: who is let in, what is refused, and that a refusal says so in the shape of its API."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running_daemon import TOKEN, RunningDaemon
from support.scripted_daemon import PLANTED_KEY, scripted_daemon

from callboard.actors.daemon.access_tokens import AccessTokens, Scope
from callboard.actors.daemon.api_errors import Api
from callboard.actors.daemon.app import ENDPOINTS
from callboard.actors.daemon.endpoint import Endpoint
from callboard.actors.daemon.quotas import ASKS_MODELS

GUARDED = [each for each in ENDPOINTS if each.scope is not None]
WITH_BODY = [each for each in GUARDED if each.body is not None]
ANSWER_SECONDS = 20.0
LIMITS = "limits = {max_body_bytes = 100000, body_seconds = 0.5, head_seconds = 1.0, requests_per_minute = 1000000}"
#: Of each variable of a path, one that fits.
VALUES = {"step": "1", "number": "1"}


def path_of(endpoint: Endpoint) -> str:
    return re.sub(r"{(\w+)(?::\w+)?}", lambda found: VALUES.get(found[1], "nothing"), endpoint.path)


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


@dataclass(frozen=True)
class Guarded:
    daemon: RunningDaemon
    secrets: dict[tuple[str, Scope], str]
    client: httpx.Client

    def ask(
        self, endpoint: Endpoint, secret: str | None, *, headers: dict[str, str] | None = None, content: bytes = b"{}"
    ) -> httpx.Response:
        with_token = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        has_body = endpoint.method in ("POST", "PUT", "PATCH")
        return self.client.request(
            endpoint.method,
            self.daemon.url + path_of(endpoint),
            headers={**with_token, **(headers or {})},
            content=content if has_body else None,
        )

    def raw(self, data: bytes, *, ends: bool = False) -> bytes:
        """What comes back for these bytes, until the daemon hangs up. `ends`: that nothing follows is said at once; an
        answer that takes time is not sent then."""
        host, port = self.daemon.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS) as end:
            found = b""
            try:
                end.sendall(data)
                if ends:
                    end.shutdown(socket.SHUT_WR)
                while part := end.recv(65_536):
                    found += part
            except ConnectionError:
                return found  # it had hung up already
            return found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    state = folder / "state/callboard/daemon"
    state.mkdir(parents=True, mode=0o700)
    tokens = AccessTokens(state / "tokens.json")
    secrets = {(name, scope): tokens.make(scope, name)[1] for name in ("ann", "bob") for scope in Scope}
    with scripted_daemon(folder, daemon=LIMITS) as daemon, httpx.Client(timeout=ANSWER_SECONDS) as client:
        yield Guarded(daemon, secrets, client)


def assert_shaped(endpoint: Endpoint | None, answer: httpx.Response) -> None:
    """An error as the API of this endpoint writes it; without a traceback."""
    body = answer.json()
    assert not re.search(r"Traceback|\.py\b", answer.text)
    if endpoint is not None and endpoint.api is Api.ANTHROPIC:
        assert body["type"] == "error"
        assert body["error"]["type"]
        assert body["error"]["message"]
    else:
        assert set(body["error"]) >= {"message", "type", "param", "code"}, body


def assert_nothing_started(guarded: Guarded) -> None:
    assert guarded.daemon.get("/api/requests").json() == {"open": [], "recent": []}


# -- tokens


@pytest.mark.parametrize("endpoint", GUARDED, ids=name_of)
def test_no_token_a_wrong_one_and_one_that_is_too_narrow(guarded: Guarded, endpoint: Endpoint) -> None:
    for secret, status in ((None, 401), ("wrong", 401), (f"{TOKEN}x", 401)):
        answer = guarded.ask(endpoint, secret)
        assert answer.status_code == status, (secret, answer.text)
        assert_shaped(endpoint, answer)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert endpoint.scope is not None
    for scope in Scope:
        if scope < endpoint.scope:
            answer = guarded.ask(endpoint, guarded.secrets["ann", scope])
            assert answer.status_code == 403, answer.text
            assert_shaped(endpoint, answer)
    assert_nothing_started(guarded)


def test_endpoints_without_a_token_are_these() -> None:
    """Whoever adds one says here why: they tell nothing of a tenant."""
    open_ones = {name_of(each) for each in ENDPOINTS if each.scope is None}
    assert open_ones >= {"GET /healthz", "GET /readyz", "GET /openapi.json"}
    assert all(name.startswith("GET ") and not name.startswith("GET /api") for name in open_ones), open_ones
    assert not any("{" in name and "/board" not in name for name in open_ones), open_ones


def test_what_a_scope_may_do() -> None:
    """Changes by others than the asker need more than `use`; what shows or ends actors needs `admin`."""
    scopes = {name_of(each): each.scope for each in ENDPOINTS}
    for name, scope in scopes.items():
        if re.search("actors|dead-letters|/stack|/metrics|/reload", name):
            assert scope is Scope.ADMIN, name
        if re.match("POST /api/(approvals|edits|calls)", name) or name.startswith("DELETE /api"):
            assert (scope or 0) >= Scope.APPROVE, name


def test_all_that_asks_models_is_under_the_quotas() -> None:
    asking = {each.path for each in ENDPOINTS if each.method == "POST" and each.path in ASKS_MODELS}
    assert "/api/requests" in asking
    known = {each.path for each in ENDPOINTS if each.path.startswith("/v1/") and each.method == "POST"}
    free = {path for path in known if re.search("count_tokens|cancel|input_tokens|input_items", path)}
    assert known - free <= ASKS_MODELS, "a path that asks models must be in ASKS_MODELS"


# -- hosts and origins


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_foreign_names_and_pages(guarded: Guarded, endpoint: Endpoint) -> None:
    secret = guarded.secrets["ann", Scope.ADMIN]
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", "localhost.evil.example"):
        answer = guarded.ask(endpoint, secret, headers={"Host": host})
        assert answer.status_code == 421
        assert_shaped(endpoint, answer)
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", "file://"):
        answer = guarded.ask(endpoint, secret, headers={"Origin": origin})
        assert answer.status_code == 403, origin
        assert_shaped(endpoint, answer)
        assert not any(name.startswith("access-control") for name in answer.headers)
    assert_nothing_started(guarded)


def test_a_preflight_is_answered_with_no_permission(guarded: Guarded) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = httpx.options(f"{guarded.daemon.url}/api/requests", headers=headers)
    assert answer.status_code in (403, 405)
    assert not any(name.startswith("access-control-allow") for name in answer.headers)


# -- bodies


BAD_BODIES = (
    b"{", b"[]", b"null", b'"x"', b"1", b'{"no_such_field": 1}', b'{"prompt": 1, "messages": 1, "input": 1}',
    b"\xff\xfe", b'{"a": "\xc3\x28"}', b'{"a": "\\ud800"}', b"[" * 5_000, b'{"a":' * 5_000, b'{"a": NaN}',
    b'{"prompt": null}', b'{"ids": {}}', b"\x00", b'{"prompt": "x", "timeout": -1}',
)  # fmt: skip


@pytest.mark.parametrize("endpoint", WITH_BODY, ids=name_of)
def test_bad_bodies(guarded: Guarded, endpoint: Endpoint) -> None:
    for content in BAD_BODIES:
        answer = guarded.ask(endpoint, guarded.secrets["ann", Scope.ADMIN], content=content)
        assert 400 <= answer.status_code < 500, (content[:30], answer.text)
        assert_shaped(endpoint, answer)


def test_nothing_was_started_by_bad_bodies(guarded: Guarded) -> None:
    assert_nothing_started(guarded)


@pytest.mark.parametrize("endpoint", WITH_BODY, ids=name_of)
def test_bodies_that_are_too_large(guarded: Guarded, endpoint: Endpoint) -> None:
    size = 100_001 if endpoint.may_be_large else 64 * 1024 + 1
    answer = guarded.ask(endpoint, guarded.secrets["ann", Scope.ADMIN], content=b'{"a": "' + b"x" * size + b'"}')
    assert answer.status_code == 413
    assert_shaped(endpoint, answer)


def head(endpoint: Endpoint, secret: str, *more: str) -> bytes:
    lines = (
        f"{endpoint.method} {path_of(endpoint)} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {secret}",
        "Connection: close",
    )
    return "\r\n".join((*lines, *more, "", "")).encode()


START = next(each for each in ENDPOINTS if each.method == "POST" and each.path == "/api/requests")


def status_of(data: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", data)
    assert found, data[:200]
    return int(found[1])


def test_a_body_in_chunks_that_is_too_large(guarded: Guarded) -> None:
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    data = head(START, guarded.secrets["ann", Scope.USE], "Transfer-Encoding: chunked") + chunk * 3
    assert status_of(guarded.raw(data)) == 413


@pytest.mark.parametrize("length", ["-1", "x", "1" * 30, "1, 2", " ", "0x10", "²"])
def test_a_length_that_is_none(guarded: Guarded, length: str) -> None:
    data = head(START, guarded.secrets["ann", Scope.USE], f"Content-Length: {length}") + b"{}"
    assert 400 <= status_of(guarded.raw(data)) < 500


def test_a_slow_body(guarded: Guarded) -> None:
    data = head(START, guarded.secrets["ann", Scope.USE], "Content-Length: 10") + b"{"
    assert status_of(guarded.raw(data)) == 408


def test_a_slow_head(guarded: Guarded) -> None:
    assert status_of(guarded.raw(b"GET /healthz HTTP/1.1\r\nHost: loc")) == 408
    assert status_of(guarded.raw(b"")) == 408


def test_a_second_head_on_a_connection_is_bounded_too(guarded: Guarded) -> None:
    first = head(START, "wrong", "Content-Length: 0").replace(b"Connection: close\r\n", b"")
    found = guarded.raw(first + b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
    assert status_of(found) == 401


def test_headers_that_are_too_large(guarded: Guarded) -> None:
    secret = guarded.secrets["ann", Scope.USE]
    answer = guarded.ask(START, secret, headers={"X-Filler": "x" * 70_000})
    assert answer.status_code == 431
    assert_shaped(START, answer)
    endless = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5_000_000
    assert guarded.raw(endless)[:12] in (b"HTTP/1.1 431", b"")


# -- paths


@pytest.mark.parametrize(
    "target",
    [
        "/api/requests/%2e%2e", "/api/requests/..%2f..%2fetc%2fpasswd", "/api/requests/../../etc/passwd",
        "//api/requests", "/api//requests", "/api/requests/%00", "/api/requests/a%00b/events",
        "/api/requests/" + "x" * 5_000, "/" + "y" * 20_000, "/api/requests/%ff%fe", "/api/requests/%",
        "/api/requests/%zz", "/api/requests/\\..\\", "/api/calls/a/-1/c/complete", "/api/calls/a/1e9/c/complete",
        "/api/calls/a/99999999999999999999/c/complete", "/api/dead-letters/0x1/replay", "/api/requests?limit=x",
        "/api/requests?limit=1&limit=2", "/api/requests?nothing=1", "/api/conversations/%f0%9f%92%a9",
        "/api/conversations/'%20OR%201=1--", "/v1/..%2fapi/requests", "http://evil.example/api/requests", "*",
        "/api/usage?since=nan", "/api/usage?by=secret", "/api/search", "/.git/config",
        "/api/requests/x/events?after=%0a",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_path_tricks(guarded: Guarded, method: str, target: str) -> None:
    secret = guarded.secrets["ann", Scope.ADMIN]
    headers = ("Host: localhost", f"Authorization: Bearer {secret}", "Content-Length: 2", "Connection: close", "", "{}")
    found = guarded.raw("\r\n".join((f"{method} {target} HTTP/1.1", *headers)).encode())
    assert 400 <= status_of(found) < 500, found[:300]
    assert b'"error"' in found
    assert not re.search(b"Traceback|root:", found)


# -- anything


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400))
def test_random_bytes_do_no_harm(guarded: Guarded, data: bytes) -> None:
    found = guarded.raw(data, ends=True)
    assert not found or status_of(found) < 500
    assert guarded.daemon.process.poll() is None


HEADER = st.text(st.characters(blacklist_categories=("Cs",)), max_size=40)


@settings(max_examples=80, deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "OPTIONS", "HEAD", "TRACE", "CONNECT", "FOO"]),
    endpoint=st.sampled_from(ENDPOINTS),
    path=st.binary(max_size=60),
    name=HEADER,
    value=HEADER,
    body=st.binary(max_size=200),
)
def test_random_requests_do_no_harm(
    guarded: Guarded, method: str, endpoint: Endpoint, path: bytes, name: str, value: str, body: bytes
) -> None:
    secret = guarded.secrets["bob", Scope.ADMIN]
    target = path_of(endpoint).encode().replace(b"nothing", path or b"x")
    lines = [
        b"%s %s HTTP/1.1" % (method.encode(), target),
        b"Host: localhost",
        f"Authorization: Bearer {secret}".encode(),
        f"{name}: {value}".encode(),
        b"Content-Length: %d" % len(body),
        b"Connection: close",
    ]
    if endpoint.is_stream or (endpoint.path.endswith("/events") and method == "GET"):
        return
    found = guarded.raw(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    assert not found or status_of(found) < 500, found[:500]
    assert guarded.daemon.process.poll() is None


def test_the_daemon_still_answers(guarded: Guarded) -> None:
    assert guarded.daemon.get("/healthz").status_code == 200


def test_no_secret_in_any_answer_or_in_the_log(guarded: Guarded) -> None:
    secret = guarded.secrets["ann", Scope.ADMIN]
    told = [guarded.ask(each, secret).text for each in ENDPOINTS if not each.is_stream]
    told += [guarded.ask(each, f"wrong {secret}").text for each in ENDPOINTS if not each.is_stream]
    told.append(guarded.daemon.stderr())
    folder = guarded.daemon.folder
    told.append((folder / "state/callboard/daemon/tokens.json").read_text())
    for hidden in (PLANTED_KEY, TOKEN, *guarded.secrets.values()):
        assert all(hidden not in each for each in told)
    assert json.loads(told[-1])["tokens"]


def test_files_are_of_their_owner_alone(guarded: Guarded) -> None:
    folder: Path = guarded.daemon.folder / "state/callboard/daemon"
    assert folder.stat().st_mode & 0o077 == 0
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
