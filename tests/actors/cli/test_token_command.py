"""`callboard tokens`, beside a daemon that runs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
from support.running_daemon import running_daemon

from callboard.actors.daemon.access_tokens import AccessTokens

BOARD_DAEMON = Path(__file__).parents[2] / "support/board_daemon.py"


def tokens(folder: Path, *arguments: str, status: int = 0) -> str:
    """What the command prints; on stderr where it fails."""
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "CALLBOARD_CONFIG_DIR": str(folder / "config"),
        "HOME": str(folder),
    }
    config = ("--config", str(folder / "config/callboard.toml"))
    ran = subprocess.run(
        [sys.executable, "-m", "callboard.actors.cli", "tokens", *config, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    return ran.stderr if status else ran.stdout


def test_a_token_counts_as_soon_as_it_is_made_and_no_more_once_it_is_removed(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:

        def metrics(secret: str) -> int:
            headers = {"Authorization": f"Bearer {secret}"}
            return httpx.get(f"{daemon.url}/metrics", headers=headers, timeout=30).status_code

        admin, use = (tokens(tmp_path, "make", "--scope", scope).strip() for scope in ("admin", "use"))
        assert (metrics(admin), metrics(use), metrics(admin + "x")) == (200, 403, 401)
        listed = json.loads(tokens(tmp_path, "list", "--json"))["tokens"]
        assert [each["scope"] for each in listed] == ["admin", "use"]
        assert admin not in (tmp_path / "state/callboard/daemon/tokens.json").read_text()
        place = tmp_path / "state/callboard/daemon/tokens.json"
        place.chmod(0o644)
        refused = httpx.get(f"{daemon.url}/metrics", headers={"Authorization": f"Bearer {admin}"}, timeout=30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "tokens_unreadable")
        place.chmod(0o600)
        assert metrics(admin) == 200
        tokens(tmp_path, "remove", listed[0]["id"])
        assert metrics(admin) == 401


def test_streams_of_a_token_that_is_removed_end_and_what_they_showed_goes_on(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path, program=(sys.executable, str(BOARD_DAEMON))) as daemon,
        contextlib.ExitStack() as open_,
    ):
        secret = tokens(tmp_path, "make", "--scope", "use").strip()
        (made,) = json.loads(tokens(tmp_path, "list", "--json"))["tokens"]
        request_id = daemon.post("/api/requests", {"prompt": "publish"}).json()["request_id"]
        streams = []
        for path in ("/api/board/events", f"/api/requests/{request_id}/events"):
            headers = {"Authorization": f"Bearer {secret}"}
            found = open_.enter_context(httpx.stream("GET", daemon.url + path, headers=headers, timeout=30))
            assert found.status_code == 200
            streams.append(found.iter_raw())
            assert next(streams[-1])
        others = open_.enter_context(httpx.stream("GET", daemon.url + path, headers=daemon.headers, timeout=30))
        tokens(tmp_path, "remove", made["id"])
        for each in streams:
            assert b"cancelled" not in b"".join(each)  # and they end
        assert daemon.get(f"/api/requests/{request_id}").json()["request"]["outcome"] == ""
        daemon.post(f"/api/requests/{request_id}/cancel", {})
        assert b"cancelled" in b"".join(others.iter_raw())


def test_tokens_made_by_several_processes_at_once_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "state/callboard/daemon/tokens.json"
    program = (
        "import sys\nfrom pathlib import Path\nfrom callboard.actors.daemon.access_tokens import AccessTokens, Scope\n"
        "tokens = AccessTokens(Path(sys.argv[1]))\nfor _ in range(20):\n    tokens.make(Scope.USE, 'default')\n"
    )
    makers = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(4)]
    assert [each.wait(timeout=50) for each in makers] == [0] * 4
    assert len(AccessTokens(path).tokens) == 80
    assert path.stat().st_mode & 0o777 == 0o600


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/callboard.toml").write_text("")
    assert "no tenant 'bob'" in tokens(tmp_path, "make", "--tenant", "bob", status=2)
    assert "no token 'x'" in tokens(tmp_path, "remove", "x", status=2)
