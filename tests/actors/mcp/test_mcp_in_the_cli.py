"""`callboard tools` shows the tools of MCP servers, and how the servers are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RAW = str(Path(__file__).parents[2] / "support" / "mcp_raw_server.py")


def test_tools_of_servers_and_the_servers_state_are_listed(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        f"[default.mcp_servers.raw]\ncommand = {sys.executable!r}\nargs = [{RAW!r}]\ntools = {{echo = 'read'}}\n"
        "[default.mcp_servers.gone]\ncommand = 'no-such-command-of-mine'\n"
    )
    environment = {**os.environ, "CALLBOARD_CONFIG_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "callboard.actors.cli", "tools", "--workspace", str(tmp_path)]
    told = subprocess.run([*command, "--json"], capture_output=True, timeout=50, env=environment, check=True)
    servers = {each["name"]: each for each in json.loads(told.stdout)["mcp_servers"]}
    assert servers["raw"]["state"] == "ready"
    assert "raw_echo" in servers["raw"]["tools"]
    assert "there is no command" in servers["gone"]["reason"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment, check=False)
    lines = {line.split()[0]: line.split() for line in shown.stdout.splitlines() if line.startswith("raw_")}
    assert lines["raw_echo"][1] == "read", shown.stderr
    assert "allowed" in lines["raw_echo"]
    assert lines["raw_pid"][1] == "undeclared"
    assert "asked" in lines["raw_pid"]
    assert "MCP server raw: ready, " in shown.stdout
    assert "MCP server gone: starting, no tools; there is no command 'no-such-command-of-mine'" in shown.stdout
