"""`callboard tools` shows the tools of MCP servers, and how the servers are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "support"
RAW = str(SUPPORT / "mcp_raw_server.py")


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


def test_what_is_left_out_of_a_server_is_told_and_bounded(tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    tools = [{"name": "good", "inputSchema": {"type": "object"}}, *({"name": f"bad{n}"} for n in range(25))]
    answers.write_text(json.dumps({"tools/list": {"": {"result": {"tools": tools}}}}))
    args = [str(SUPPORT / "mcp_told_server.py"), str(answers)]
    (tmp_path / "config.toml").write_text(
        f"[default.mcp_servers.told]\ncommand = {sys.executable!r}\nargs = {args!r}\n"
    )
    environment = {**os.environ, "CALLBOARD_CONFIG_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "callboard.actors.cli", "tools", "--workspace", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment, check=False).stdout
    said = " ".join(shown.split())
    assert "left out: bad0 (inputSchema: Field required); left out: bad1 (" in said
    assert "left out: bad20" not in said
    assert "5 more are left out, which --json tells" in said
    told = subprocess.run([*command, "--json"], capture_output=True, timeout=50, env=environment, check=True)
    (server,) = json.loads(told.stdout)["mcp_servers"]
    assert len(server["left_out"]) == 25
