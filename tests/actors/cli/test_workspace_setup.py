"""What files inside a workspace add: nothing until a person has agreed to their content; rules that narrow, at once."""

from __future__ import annotations

import argparse
import json
import os
import select
import time
from pathlib import Path
from typing import Any

import pytest

from callboard import Decision, UsageError
from callboard.actors.cli.approval_prompt import lines_of_text
from callboard.actors.cli.workspace_setup import WorkspaceSetup, rules_in, servers_in, set_up
from callboard.actors.policy.workspace_trust import RULES, SERVERS, TOOLS, FileState, WorkspaceFile, WorkspaceTrust

TOOL = "from callboard import tool\n@tool(risk='read')\ndef theirs() -> int:\n    '''T.'''\n    return 1\n"
LOUD = "raise SystemExit('run without leave')\n"
RULE_LINES = """
[[rules]]
tool = "run_command"
command = "pytest*"
decision = "allow"

[[rules]]
path = "secrets/**"
decision = "deny"
"""
SERVER_LINES = json.dumps({"mcpServers": {"files": {"type": "stdio", "command": "some-server", "args": ["-y"]}}})


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", str(tmp_path / "config"))
    for name in ("CALLBOARD_WORKSPACE", "CALLBOARD_MODEL", "CALLBOARD_PROFILE", "CALLBOARD_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def write(workspace: Path, path: str, text: str) -> None:
    (workspace / path).parent.mkdir(parents=True, exist_ok=True)
    (workspace / path).write_text(text)


def prepared() -> WorkspaceSetup:
    return set_up(argparse.Namespace(command="ask", profile="", config=None, tools=[], workspace=None))


def agree(workspace: Path) -> None:
    trust = WorkspaceTrust(workspace.parent / "config", workspace)
    trust.agree(trust.files())


def rules(given: WorkspaceSetup) -> list[tuple[str, object]]:
    return [(rule.tool, rule.decision) for rule in given.settings.policy.rules]


def test_without_such_files_nothing_is_said(workspace: Path) -> None:
    given = prepared()
    assert (given.tools, given.note, rules(given)) == ((), "", [])


def test_before_the_owner_agrees_only_what_narrows_counts_and_no_code_runs(workspace: Path) -> None:
    write(workspace, RULES, RULE_LINES)
    write(workspace, SERVERS, SERVER_LINES)
    write(workspace, f"{TOOLS}/loud.py", LOUD)
    given = prepared()
    assert rules(given) == [("*", Decision.DENY)]
    assert given.tools == ()
    assert given.settings.mcp_servers == {}
    assert given.note == (
        f"{RULES}, {SERVERS}, {TOOLS}/loud.py of the workspace do not count until you agree to the content; "
        "type: callboard trust"
    )


def test_once_the_owner_has_agreed_all_of_it_counts_until_it_changes(workspace: Path) -> None:
    write(workspace, RULES, RULE_LINES)
    write(workspace, SERVERS, SERVER_LINES)
    write(workspace, f"{TOOLS}/theirs_tools.py", TOOL)
    agree(workspace)
    given = prepared()
    assert rules(given) == [("run_command", Decision.ALLOW), ("*", Decision.DENY)]
    assert [tool.name for tool in given.tools] == ["theirs"]
    assert list(given.settings.mcp_servers) == ["files"]
    assert given.note == ""
    write(workspace, f"{TOOLS}/theirs_tools.py", LOUD)
    write(workspace, RULES, RULE_LINES.replace("pytest*", "*"))
    given = prepared()
    assert given.tools == ()
    assert rules(given) == [("*", Decision.DENY)]
    assert list(given.settings.mcp_servers) == ["files"]


def test_rules_that_only_narrow_need_no_agreement_and_no_word(workspace: Path) -> None:
    write(workspace, RULES, RULE_LINES[RULE_LINES.rindex("[[rules]]") :])
    given = prepared()
    assert (rules(given), given.note) == ([("*", Decision.DENY)], "")


def test_a_server_of_the_owners_settings_is_not_replaced_by_one_of_the_workspace(workspace: Path) -> None:
    write(workspace, SERVERS, SERVER_LINES)
    agree(workspace)
    config = workspace.parent / "config"
    (config / "config.toml").write_text('[default.mcp_servers.files]\ncommand = "mine"\n')
    assert prepared().settings.mcp_servers["files"].command == "mine"


def of(path: str, text: str) -> WorkspaceFile:
    return WorkspaceFile(path, FileState.AGREED, text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "[[rules]",
        "rules = 1",
        "rules = [1]",
        'x = 1\n[[rules]]\ndecision = "deny"',
        '[[rules]]\ntoool = "x"\ndecision = "deny"',
        '[[rules]]\ntool = "x"',
        '[[rules]]\ntool = "x"\ndecision = "perhaps"',
        '[[rules]]\ntool = 7\ndecision = "deny"',
        "\xff",
    ],
)
def test_rules_that_cannot_be_read_are_one_sentence_and_not_passed_over(workspace: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"rules\.toml"):
        rules_in(of(RULES, text))
    write(workspace, RULES, text)
    with pytest.raises(UsageError, match=r"rules\.toml"):
        prepared()


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"mcpServers": []}', '{"mcpServers": {"a b": {"command": "x"}}}', '{"mcpServers": {"a": 1}}',
     '{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {"command": "x", "rm": "y"}}}'],
)  # fmt: skip
def test_servers_that_cannot_be_read_are_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"\.mcp\.json of the workspace: "):
        servers_in(of(SERVERS, text))


def test_tools_say_what_does_not_count(here: Any) -> None:
    write(Path.cwd(), f"{TOOLS}/loud.py", LOUD)
    result = here("tools", "--json")
    assert result.status == 0
    assert "loud.py of the workspace does not count until you agree to the content" in result.err
    assert "run without leave" not in result.err
    listed = here("trust")
    assert f"{TOOLS}/loud.py  new" in listed.out
    assert listed.status == 2
    assert "no terminal to ask at" in listed.sentence


def test_a_file_that_cannot_be_read_is_named_and_no_agreement_is_asked_for(here: Any) -> None:
    write(Path.cwd(), f"{TOOLS}/big.py", "#" * 1_100_000)
    told = here("tools", "--json").err
    assert (
        f"{TOOLS}/big.py of the workspace does not count: it is not a regular file of at most 1,048,576 bytes" in told
    )
    assert "agree" not in told


def at_a_terminal(callboard: Any, *arguments: str, types: str) -> str:
    """All that is shown; `types` is the answer to the first question."""
    callboard.environment |= {"TERM": "xterm"}
    ours, theirs = os.openpty()
    process = callboard.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, end, has_answered = "", time.monotonic() + 50, False
    while time.monotonic() < end and select.select([ours], [], [], 50)[0]:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux says EIO when the other end is closed
            break
        shown += data.decode().replace("\r\n", "\n")
        if "[v]iew all " in shown and not has_answered:
            os.write(ours, f"{types}\n".encode())
            has_answered = True
    os.close(ours)
    assert process.wait(30) == 0, shown
    return shown


@pytest.mark.parametrize(
    "data",
    [
        b"# coding: utf-7\n# +AAo-import os\n",
        b"# -*- coding: unicode_escape -*-\n# \\u000aimport os\n",
        b"#!/bin/python\n# vim: set fileencoding=raw_unicode_escape :\n# \\u000aimport os\n",
        b"# coding: latin-1\nx = '\xe9'\n",
        b"# coding: cp037\n",
        b"x = '\xff'\n",
        b"# coding: no_such\n",
    ],
)
def test_code_that_is_not_utf8_is_not_agreed_to(workspace: Path, data: bytes) -> None:
    """Python would run another text than the one a person is shown."""
    path = workspace / TOOLS / "theirs.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    (file,) = WorkspaceTrust(workspace.parent / "config", workspace).files()
    assert file.state is FileState.UNUSABLE
    assert "not UTF-8" in file.fault
    path.write_bytes(b"\xef\xbb\xbf# coding: utf-8\nx = '\xc3\xa9'\n")
    (file,) = WorkspaceTrust(workspace.parent / "config", workspace).files()
    assert file.state is FileState.NEW


def test_the_question_of_trust_hides_no_code() -> None:
    for code in (
        'NETRC = "machine h login a password ";pwned()',
        "# --token Zq9Lm3Xc7A;pwned()",
        'PASSWORD = "Zq9Lm3Xc7A";pwned()',
        "# -----BEGIN RSA PRIVATE KEY-----\npwned\n# -----END RSA PRIVATE KEY-----",
        "# x\rpwned()",
        "# x\x0cpwned()",
        "\u202e\u200bpwned()",
    ):
        shown = "\n".join(lines_of_text(f"{TOOLS}/x.py", code, whole=True))
        assert "pwned" in shown
        assert shown.replace("\n", "").isprintable()


def test_a_person_is_asked_once_and_sees_what_the_files_hold(callboard: Any, here: Any) -> None:
    write(callboard.workspace, f"{TOOLS}/theirs_tools.py", TOOL + "# \x1b[2K gone\n")
    shown = at_a_terminal(callboard, "ask", "where is the weather?", types="n")
    assert f"{TOOLS}/theirs_tools.py (new; Python code that callboard runs, for its tools):" in shown
    assert "    def theirs() -> int:" in shown
    assert r"# \x1b[2K gone" in shown
    assert "does not count until you agree" in shown
    shown = at_a_terminal(callboard, "trust", types="y")
    assert f"{TOOLS}/theirs_tools.py  agreed" in shown
    assert "theirs" in {each["name"] for each in json.loads(here("tools", "--json").out)["tools"]}
    assert f"{TOOLS}/theirs_tools.py  new" in here("trust", "--forget").out
