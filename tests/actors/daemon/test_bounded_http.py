"""What a head may be: bytes of which a proxy could make another request than we do are refused, with 400 and the end of
the connection; clients go on working. Against a daemon, over raw sockets."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
from support.running_daemon import RunningDaemon
from support.scripted_daemon import scripted_daemon

SECONDS: Final = 20.0
BODY: Final = b'{"prompt":"hi"}'
NAMED: Final = "begun-by-what-is-wrong"
CHUNKED: Final = b"f\r\n" + BODY + b"\r\n0\r\n\r\n"
LENGTH: Final = "Content-Length: 15"
CODING: Final = "Transfer-Encoding: chunked"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with scripted_daemon(tmp_path_factory.mktemp("framing")) as running:
        yield running


def sent(daemon: RunningDaemon, data: bytes) -> bytes:
    """All that comes back until the daemon hangs up."""
    where = urlsplit(daemon.url)
    with socket.create_connection((where.hostname, where.port), timeout=SECONDS) as connection:
        connection.sendall(data)
        found = b""
        while part := connection.recv(65_536):
            found += part
        return found


def statuses(data: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


def asking(daemon: RunningDaemon, *lines: str, version: str = "HTTP/1.1", host: str = "Host: localhost") -> bytes:
    """The head of a request that would begin one, with these lines."""
    own = (f"POST /api/requests {version}", host, f"Authorization: Bearer {daemon.token}")
    return "\r\n".join(each for each in (*own, *lines, "\r\n") if each).encode("latin-1")


def has_begun(daemon: RunningDaemon) -> bool:
    return daemon.get(f"/api/requests/{NAMED}").status_code != 404


LENGTHS = ("15,15", "15, 15", "+15", "-15", "0xf", "1 5", "", "15;", "15.0", "\xb2", "9" * 30, "15\x0b", "fifteen")
CODINGS = (
    "xchunked", "identity", "chunked;q=1", "gzip, chunked", "chunked, identity", "chunked,", ", chunked",
    "identity, chunked", "deflate", '"chunked"', "chunked chunked", "\x0bchunked", "chunke", "", "chunked\x00",
)  # fmt: skip
HOSTS = (
    "localhost:80:80", "localhost:80:", "me@localhost", "localhost@evil.example", "localhost:80@evil.example:80",
    "localhost/evil", "http://localhost", "localhost, evil.example", "localhost evil.example", "[::1", "[::1]x",
    "[::1]:1:2", "localhost:8o", "localhost:-1", "localhost#x", "localhost?x", "::1", "", "local\xe9host",
    "localhost\\x",
)  # fmt: skip
CHUNKS: Final = {
    "a number of another base": b"0xf\r\n" + BODY,
    "a negative size": b"-f\r\n" + BODY,
    "a blank behind the size": b"f \r\n" + BODY,
    "no size": b"\r\n" + BODY,
    "a size beyond all": b"f" * 17 + b"\r\n" + BODY,
    "a control character": b"f;\x00\r\n" + BODY,
    "no carriage return": b"f\n" + BODY,
    "more data than its size": b"e\r\n" + BODY,
    "no end of a chunk": b"f\r\n" + BODY + b"0\r\n",
}
LINES: Final = {
    "two lengths that are one": (LENGTH, LENGTH),
    "two lengths": (LENGTH, "Content-Length: 0"),
    "a length and a coding": (LENGTH, CODING),
    "a coding and a length": (CODING, LENGTH),
    "a coding and a length of 0": (CODING, "Content-Length: 0"),
    "two codings": (CODING, CODING),
    "two codings that differ": ("Transfer-Encoding: gzip", CODING),
    "a folded length": ("Content-Length: 1\r\n 5",),
    "a folded coding": ("Transfer-Encoding:\r\n chunked",),
    "a folded line": (LENGTH, "X-Note: a\r\n b"),
    "a folded line, by a tab": (LENGTH, "X-Note: a\r\n\tb"),
    "a blank before the colon": ("Content-Length : 15",),
    "a line that begins with a blank": (" X-Note: a", LENGTH),
    "a line without a colon": (LENGTH, "X-Note"),
    "a line without a name": (LENGTH, ": a"),
    "a lone line feed": (LENGTH + "\nX-Note: a",),
    "a lone carriage return": (LENGTH, "X-Note: a\rb"),
    "a NUL in a value": (LENGTH, "X-Note: a\x00b"),
    "a NUL in a name": (LENGTH, "X-No\x00te: a"),
    "two hosts": ("Host: evil.example", LENGTH),
    "two hosts that are one": ("host: localhost", LENGTH),
    "two authorizations": ("Authorization: Bearer x", LENGTH),
    "two keys": ("x-api-key: x", "X-API-Key: y", LENGTH),
    "two origins": ("Origin: http://localhost", "Origin: http://evil.example", LENGTH),
    "two types": ("Content-Type: application/json", "Content-Type: text/plain", LENGTH),
}
WRONG: Final = {
    **{f"Content-Length: {each!r}": ({}, (f"Content-Length: {each}",), BODY) for each in LENGTHS},
    **{f"Transfer-Encoding: {each!r}": ({}, (f"Transfer-Encoding: {each}",), CHUNKED) for each in CODINGS},
    **{f"Host: {each!r}": ({"host": f"Host: {each}"}, (LENGTH,), BODY) for each in HOSTS},
    "no Host": ({"host": ""}, (LENGTH,), BODY),
    "no Host, HTTP/1.0": ({"host": "", "version": "HTTP/1.0"}, (LENGTH,), BODY),
    "a folded Host": ({"host": "Host:\r\n localhost"}, (LENGTH,), BODY),
    "HTTP/1.0 in chunks": ({"version": "HTTP/1.0"}, (CODING,), CHUNKED),
    **{f"HTTP/{each}": ({"version": f"HTTP/{each}"}, (LENGTH,), BODY) for each in ("0.9", "1.2", "2.0", "3", "11")},
    **{name: ({}, lines, CHUNKED if CODING in lines else BODY) for name, lines in LINES.items()},
    **{name: ({}, (CODING,), data + b"\r\n0\r\n\r\n") for name, data in CHUNKS.items()},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_could_be_read_in_two_ways_is_refused_and_begins_nothing(daemon: RunningDaemon, name: str) -> None:
    how, lines, body = WRONG[name]
    more = b'{"prompt":"hi","request_id":"%b"}' % NAMED.encode()
    behind = asking(daemon, f"Content-Length: {len(more)}") + more  # it hangs up, and that is no request either
    found = sent(daemon, asking(daemon, *lines, **how) + body + behind)
    assert statuses(found) == [400]
    head, _, told = found.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert json.loads(told)["error"]["type"] == "invalid_request_error"
    assert not has_begun(daemon)


RIGHT: Final = {
    "a blank behind a length": ("Content-Length: 15 ",),
    "tabs around a length": ("Content-Length:\t 15 \t",),
    "no blank before a length": ("Content-Length:15",),
    "zeros before a length": ("Content-Length: 0015",),
    "a coding in capitals": ("Transfer-Encoding: CHUNKED",),
    "a blank behind a coding": ("Transfer-Encoding: chunked ",),
    "a key beside a token": (LENGTH, "x-api-key: other"),
    "two of what may be a list": (LENGTH, "Accept: text/html", "Accept: application/json"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_means_one_thing_begins_a_request(daemon: RunningDaemon, name: str) -> None:
    lines = RIGHT[name]
    body = CHUNKED if "Transfer-Encoding" in lines[0] else BODY
    assert statuses(sent(daemon, asking(daemon, *lines, "Connection: close") + body)) == [202]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:", "[::1]:80", "localhost:65535"])
def test_names_of_this_machine(daemon: RunningDaemon, host: str) -> None:
    data = asking(daemon, LENGTH, "Connection: close", host=f"Host: {host}") + BODY
    assert statuses(sent(daemon, data)) == [202]


def test_a_wrong_head_behind_a_right_one_ends_the_connection(daemon: RunningDaemon) -> None:
    head = f"GET /api/requests HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.token}\r\n\r\n".encode()
    where = urlsplit(daemon.url)
    with socket.create_connection((where.hostname, where.port), timeout=SECONDS) as connection:
        connection.sendall(head)
        found = connection.recv(65_536)
        assert statuses(found) == [200]
        connection.sendall(asking(daemon, "Transfer-Encoding: identity") + BODY)
        rest = b""
        while part := connection.recv(65_536):
            rest += part
    assert statuses(rest) == [400]


def test_a_field_behind_the_body_is_none_of_the_head(daemon: RunningDaemon) -> None:
    head = asking(daemon, CODING, "Connection: close").replace(daemon.token.encode(), b"wrong")
    body = b"f\r\n" + BODY + f"\r\n0\r\nAuthorization: Bearer {daemon.token}\r\n\r\n".encode()
    assert statuses(sent(daemon, head + body)) == [401]


# -- clients


async def test_clients_go_on_working(daemon: RunningDaemon) -> None:
    url, headers = f"{daemon.url}/api/requests", daemon.headers

    async def pieces() -> AsyncIterator[bytes]:
        yield BODY[:5]
        yield BODY[5:]

    async with httpx.AsyncClient(headers=headers) as client:
        assert (await client.post(url, json={"prompt": "hi"})).status_code == 202
        assert (await client.post(url, content=pieces())).status_code == 202
    async with aiohttp.ClientSession(headers=headers) as session:
        for data in (BODY, pieces()):
            async with session.post(url, data=data) as answer:
                assert answer.status == 202
    where = urlsplit(daemon.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=SECONDS)
    for options in ({}, {"encode_chunked": True}):
        body = iter([BODY]) if options else BODY
        more = {"Transfer-Encoding": "chunked"} if options else {}
        connection.request("POST", "/api/requests", body, {**headers, **more}, **options)
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (202, True)
    connection.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    "how", [(), ("--http1.0",), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue")]
)
def test_curl_goes_on_working(daemon: RunningDaemon, how: tuple[str, ...]) -> None:
    given = ["-H", f"Authorization: Bearer {daemon.token}", "--data-binary", BODY.decode(), *how]
    command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20", *given]
    done = subprocess.run([*command, f"{daemon.url}/api/requests"], capture_output=True, text=True, check=True)
    assert done.stdout == "202"


# -- what each answer says to a browser


def test_answers_are_what_they_say_and_are_not_kept(daemon: RunningDaemon) -> None:
    answers = [
        daemon.get("/api/requests"),
        daemon.post("/api/requests", {"prompt": "hi"}),
        daemon.post("/api/requests", []),
        daemon.get("/api/requests/none"),
        daemon.get("/api/none"),
        daemon.get("/api/requests", headers={"Authorization": "Bearer wrong"}),
        daemon.get("/api/requests", headers={"Host": "evil.example"}),
        daemon.get("/v1/models"),
        daemon.get("/readyz"),
    ]
    assert [each.status_code for each in answers] == [200, 202, 400, 404, 404, 401, 421, 200, 200]
    for each in answers:
        assert (each.headers["x-content-type-options"], each.headers["cache-control"]) == ("nosniff", "no-store")
    refused = sent(daemon, asking(daemon, "Transfer-Encoding: identity")).lower()
    assert b"x-content-type-options: nosniff" in refused
    assert b"cache-control: no-store" in refused
    with httpx.stream("GET", f"{daemon.url}/api/board/events", headers=daemon.headers) as stream:
        assert (stream.headers["x-content-type-options"], stream.headers["cache-control"]) == ("nosniff", "no-store")
    assert daemon.get("/").headers["cache-control"] == "no-cache", "the board's own files are asked for again"
