"""`callboard tokens`, beside a daemon that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
from support.running_daemon import running_daemon


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
        tokens(tmp_path, "remove", listed[0]["id"])
        assert metrics(admin) == 401


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/callboard.toml").write_text("")
    assert "no tenant 'bob'" in tokens(tmp_path, "make", "--tenant", "bob", status=2)
    assert "no token 'x'" in tokens(tmp_path, "remove", "x", status=2)
