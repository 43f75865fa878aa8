"""What docs/operating.md has an operator type works: nginx before a daemon, a token, a limit, a backup and its restore.

In a folder in place of the machine's, on free ports, and with a `systemctl` that only says how it was called.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.conditions import wait_until
from support.running_daemon import running_daemon
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Turn

EXAMPLES = Path(__file__).parents[3] / "examples/operating"
PAGE = (EXAMPLES.parents[1] / "docs/operating.md").read_text()
HOST = "ai.example.org"
NEEDS_NGINX = pytest.mark.skipif(not (shutil.which("nginx") and shutil.which("openssl")), reason="needs nginx")
#: What it keeps in folders of root's otherwise.
OWN_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def block(marked: str) -> str:
    """The one block of the page that holds this."""
    (found,) = (each for each in re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.M | re.S) if marked in each)
    return str(found)


def test_the_page_shows_the_files_of_the_examples() -> None:
    for name in ("callboard.toml", "nginx.conf"):
        lines = (EXAMPLES / name).read_text().splitlines(keepends=True)
        assert "".join(line for line in lines if not line.lstrip().startswith("#")) in PAGE, name


@contextlib.contextmanager
def nginx(folder: Path, daemon_url: str, listening: Path) -> Iterator[None]:
    """The example, in a main file as a distribution has it; at a socket of its own in place of port 443."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={HOST}"]
    made += ["-addext", f"subjectAltName=DNS:{HOST}"]
    made += ["-keyout", "tls.key", "-out", "tls.crt"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True, timeout=30)
    text = (EXAMPLES / "nginx.conf").read_text().replace("/etc/callboard", str(folder))
    text = text.replace("listen 443", f"listen unix:{listening}").replace("http://127.0.0.1:8330", daemon_url)
    (folder / "callboard.conf").write_text(text)
    main = folder / "nginx.conf"
    logs = f"pid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n"
    own = "".join(f"{each}_temp_path {folder}/{each};\n" for each in OWN_FOLDERS)
    main.write_text(f"{logs}events {{}}\nhttp {{\naccess_log off;\n{own}include {folder}/callboard.conf;\n}}\n")
    command = ["nginx", "-e", f"{folder}/error.log", "-c", str(main)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen([*command, "-g", "daemon off;"], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: can_connect(listening))
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def can_connect(listening: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(listening)) == 0


def typed(text: str, home: Path, status: int = 0, **environment: str) -> str:
    """Run by sh, in a folder in place of the machine's."""
    for place in ("/var/lib/callboard", "/var/backups", "/etc/callboard/callboard.toml"):
        own = {"/var/lib/callboard": "state/callboard", "/etc/callboard/callboard.toml": "config/callboard.toml"}
        text = text.replace(place, str(home / own.get(place, "backups")))
    commands = home / "bin"
    commands.mkdir(exist_ok=True)
    for name, what in (
        ("systemctl", 'echo "systemctl $*"'),
        ("callboard", f'{sys.executable} -m callboard.actors.cli "$@"'),
    ):
        (commands / name).write_text(f"#!/bin/sh\n{what}\n")
        (commands / name).chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-euc", text],
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    return ran.stdout


@NEEDS_NGINX
def test_a_client_behind_nginx_has_a_token_and_a_limit(tmp_path: Path) -> None:
    config = (EXAMPLES / "callboard.toml").read_text().replace("requests_per_minute = 600", "requests_per_minute = 1")
    with (
        shared_double([Turn("It rains in Oslo.", fragment=4, pause=0.01)], by_turn=True) as model,
        tempfile.TemporaryDirectory() as short,  # the address of a socket has 108 characters
        running_daemon(
            tmp_path, config=config, environment={"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": model.base_url()}
        ) as daemon,
        nginx(tmp_path, daemon.url, listening := Path(short) / "nginx"),
        httpx.Client(base_url=f"https://{HOST}", transport=through(listening, tmp_path / "tls.crt")) as client,
    ):
        (make,) = (line for line in block("nginx -t").splitlines() if line.startswith("callboard tokens"))
        token = typed(make, tmp_path, XDG_STATE_HOME=str(tmp_path / "state")).strip()
        assert client.get("/v1/models").status_code == 401
        assert client.get("/readyz", headers={"Host": "other.example.org"}).status_code == 421
        client.headers["Authorization"] = f"Bearer {token}"
        asked = {"stream": True, "messages": [{"role": "user", "content": "The weather?"}]}
        with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
            pieces = [line for line in answer.iter_lines() if line.startswith("data: ")]
        assert pieces[-1] == "data: [DONE]"
        assert len(pieces) > 4
        refused = client.get("/v1/models")
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 0


def through(listening: Path, authority: Path) -> httpx.HTTPTransport:
    return httpx.HTTPTransport(uds=str(listening), verify=ssl.create_default_context(cafile=authority))


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs sqlite3")
def test_the_journal_that_is_restored_has_what_was_backed_up(tmp_path: Path) -> None:
    backup, restore = block("#!/bin/sh"), block("systemctl stop callboard")
    with shared_double([Turn("It rains in Oslo.")], by_turn=True) as model:
        environment = {"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": model.base_url()}
        config = '[default]\nmodel = "openai/any"\n'
        body = {"messages": [{"role": "user", "content": "The weather?"}]}
        with running_daemon(tmp_path, config=config, environment=environment) as daemon:
            before = daemon.post("/v1/chat/completions", body).json()["callboard"]["request_id"]
            assert typed(backup, tmp_path) == ""
            after = daemon.post("/v1/chat/completions", body).json()["callboard"]["request_id"]
        (day,) = (tmp_path / "backups/callboard").iterdir()
        assert {each.name for each in day.iterdir()} == {"default.db", "default.responses.db"}
        typed(f"callboard journal verify --journal {day}/default.db", tmp_path)
        told = typed(restore.replace("2026-11-29", day.name), tmp_path)
        assert told == "systemctl stop callboard\nsystemctl start callboard\n"
        assert list((tmp_path / "state/callboard/daemon").glob("*.db-*")) == []
        with running_daemon(tmp_path, config=config, environment=environment) as daemon:
            assert daemon.get(f"/api/requests/{before}").status_code == 200
            assert daemon.get(f"/api/requests/{after}").status_code == 404


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs sqlite3")
def test_a_damaged_copy_is_an_error_and_keeps_the_older_ones(tmp_path: Path) -> None:
    state, older = tmp_path / "state/callboard/daemon", tmp_path / "backups/callboard/2026-01-01"
    for folder in (state, older):
        folder.mkdir(parents=True)
    os.utime(older, (0, 0))
    with contextlib.closing(sqlite3.connect(state / "default.db")) as base:
        base.execute("create table t (a)")
        base.executemany("insert into t values (?)", [("x" * 500,)] * 100)
        base.commit()
    whole = (state / "default.db").read_bytes()
    (state / "default.db").write_bytes(whole[:8_192] + bytes(4_096) + whole[12_288:])
    typed(block("#!/bin/sh"), tmp_path, status=1)
    assert older.exists()
    (state / "default.db").write_bytes(whole)
    typed(block("#!/bin/sh"), tmp_path)
    assert not older.exists()
