"""Where `callboard mcp` listens, who may call it, and what it says of wrong arguments."""

from __future__ import annotations

import logging
import socket
import stat
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ContentBlock, ElicitResult, ImageContent, TextContent
from pydantic import BaseModel

from callboard import UsageError, tool
from callboard.actors.cli.shell import run
from callboard.actors.mcp.callers import caller
from callboard.actors.mcp.mcp_caller import APPROVAL, answered_before
from callboard.actors.mcp.serving import Address, http_app, token_of
from callboard.actors.mcp.tool_server import ResultForm, ToolServer
from callboard.protocol.errors import ToolError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("", "127.0.0.1", 8_340),
        (":9000", "127.0.0.1", 9_000),
        ("localhost", "localhost", 8_340),
        ("localhost:0", "localhost", 0),
        ("[::1]:80", "::1", 80),
        ("[::1]", "::1", 8_340),
        ("10.0.0.7:1234", "10.0.0.7", 1_234),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert Address.of(text) == Address(host, port)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("localhost:x", "'x' is not a port"),
        ("localhost:65536", "'65536' is not a port"),
        ("localhost:-1", "'-1' is not a port"),
        ("localhost:٣", "'٣' is not a port"),
        ("0.0.0.0:80", "0.0.0.0 would answer under any name"),
        ("[::]:80", ":: would answer under any name"),
    ],
)
def test_an_address_that_cannot_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Address.of(text)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = Address.of(text)
    except UsageError:
        return
    assert address.host
    assert 0 <= address.port <= 65_535
    assert address.url(1).endswith("/mcp")
    assert all(address.names)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("10.0.0.7", False), ("box", False)],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, is_loopback: bool) -> None:
    address = Address(host)
    assert address.is_loopback is is_loopback
    assert ("127.0.0.1" in address.names) is is_loopback


def test_a_token_is_made_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = token_of(path)
    assert len(made) >= 43  # 256 bits in base64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(path) == made
    assert token_of(None) != token_of(None)


def test_no_connection_is_resumed() -> None:
    """What would be sent again is not kept: one client could read it with the id of another's event."""
    tools = create_autospec(ToolServer, instance=True, server=Server("tools"))
    http_app(tools, Address("127.0.0.1"), "")
    assert tools.server.session_manager.event_store is None


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("x" * 43, 0o644, "others may read"),
        ("short", 0o600, "holds no token"),
        ("", 0o600, "holds no token"),
        ("two words of which neither", 0o600, "holds no token"),
        ("é" * 43, 0o600, "holds no token"),
        ("x" * 20 + "\n" + "x" * 20, 0o600, "holds no token"),
    ],
    ids=["mode", "short", "empty", "words", "letters", "lines"],
)
def test_a_file_that_holds_no_safe_token_is_refused(tmp_path: Path, content: str, mode: int, why: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(UsageError, match=why):
        token_of(path)


def test_a_token_file_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        token_of(tmp_path)
    with pytest.raises(UsageError, match="cannot be used"):
        token_of(tmp_path / "no" / "such" / "folder")


# -- how results are told


class Model(BaseModel):
    name: str


class Tree(BaseModel):
    below: list[Tree]


def returning(annotation: Any) -> ResultForm:
    def example() -> object:
        return None

    example.__annotations__["return"] = annotation
    return ResultForm.of(tool(example))


@pytest.mark.parametrize(
    ("annotation", "is_content", "is_object"),
    [
        (str, False, False),
        (list[int], False, False),
        (object, False, False),
        (Model | None, False, False),
        (Model, False, True),
        (Tree, False, True),
        (dict[str, int], False, True),
        (ImageContent, True, False),
        (list[ContentBlock], True, False),
        (Annotated[TextContent, "x"], True, False),
        (tuple[TextContent, ...], True, False),
        (CallToolResult, True, False),
        (list[str], False, False),
        (list[TextContent | str], False, False),
    ],
    ids=str,
)
def test_objects_are_told_with_their_schema_and_content_as_it_is(
    annotation: Any, is_content: bool, is_object: bool
) -> None:
    form = returning(annotation)
    assert (form.is_content, form.schema is not None) == (is_content, is_object)
    if form.schema is not None:
        assert form.schema["type"] == "object"


# -- what a client brings along


def test_an_approval_counts_only_where_it_was_asked() -> None:
    yes = ElicitResult(action="accept", content={"decision": "allow"})
    assert answered_before(None, {APPROVAL: yes, "name": yes}) == ({"name": yes}, frozenset())
    asked = '{"asked": ["callboard_approval"], "answers": {"name": {"action": "decline"}}}'
    answers, before = answered_before(asked, {APPROVAL: yes})
    assert answers == {APPROVAL: yes, "name": ElicitResult(action="decline")}
    assert before == {APPROVAL}


def test_a_tool_that_no_client_has_called_is_told_so() -> None:
    with pytest.raises(ToolError, match="none has: it runs by `callboard mcp`"):
        caller()


# -- the command's arguments


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "tools_of_a_test.py"
    path.write_text("from callboard import tool\n\n@tool\ndef one() -> str:\n    return ''\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--token-file", "x"], "--token-file is about HTTP; give --http, too"),
        (["--no-token"], "--no-token is about HTTP"),
        (["--http", "--no-token", "--token-file", "x"], "contradict each other"),
        (["--http", "10.0.0.7:80", "--no-token"], "--no-token would let anyone who reaches 10.0.0.7 call tools"),
        (["--http", ":x"], "'x' is not a port"),
        (["--tools", "no_such.py"], "no_such.py"),
        (["--workspace", "no/such"], "no/such"),
        (["--htpp"], "unrecognized arguments"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_get_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["mcp", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert why in err
    assert len([line for line in err.splitlines() if line.startswith("callboard:")]) == 1


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    handlers = list(logging.getLogger().handlers)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(["mcp", "--workspace", str(tmp_path), "--http", address]) == 2
    assert f"--http: {address} cannot be listened on" in capsys.readouterr().err
    assert logging.getLogger().handlers == handlers  # what a command adds ends with it


def test_only_one_server_is_served_beside_the_tools(tools_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "\nfrom mcp.server.lowlevel import Server\none_server, other = Server('a'), Server('b')\n"
    tools_file.write_text(tools_file.read_text() + more)
    assert run(["mcp", "--workspace", str(tools_file.parent), "--tools", str(tools_file)]) == 2
    assert "more than one MCP server is defined" in capsys.readouterr().err
