"""Names of remote tools, what their results become, and how servers are read from settings."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import McpServer, Runtime, Settings, UsageError, tool
from callboard.actors.mcp.mcp_servers import OAuth
from callboard.actors.mcp.remote_results import shown_result
from callboard.actors.mcp.remote_tools import fit_name
from callboard.actors.tools.decorator import NAME
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.tools import FailureCode, Risk, ToolFailure

LETTERS = st.text(alphabet=string.ascii_letters + "._/-é\0", min_size=0, max_size=90)


@given(st.lists(st.tuples(st.sampled_from(["a", "a_b", "files"]), LETTERS), unique=True, max_size=20))
def test_names_fit_every_provider_and_no_two_are_equal(pairs: list[tuple[str, str]]) -> None:
    taken: dict[str, tuple[str, str]] = {}
    for server, name in pairs:
        fitted = fit_name(server, name, taken)
        assert NAME.fullmatch(fitted)
        assert fitted not in taken
        taken[fitted] = (server, name)


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert fit_name("files", "read_file", ()) == "files_read_file"
    assert fit_name("files", "read.file", ()).startswith("files_read_file_")
    assert fit_name("files", "read.file", ()) == fit_name("files", "read.file", ())
    assert len(fit_name("files", "x" * 100, ())) == 64


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["content", "type", "text", "data", "resource", "uri", "isError", "structuredContent"]),
                inner,
            )
        ),
        max_leaves=12,
    )
)
def test_any_result_becomes_a_text_or_a_failure(result: object) -> None:
    shown = shown_result(ToolName("t"), {"content": [result], "structuredContent": result})
    assert isinstance(shown, str | ToolFailure)


def test_a_structured_result_is_shown_once() -> None:
    def shown(text: str, structured: object) -> object:
        return shown_result(
            ToolName("t"), {"content": [{"type": "text", "text": text}], "structuredContent": structured}
        )

    assert shown('{"a": 1}', {"a": 1}) == '{"a": 1}'
    assert shown("3", {"result": 3}) == "3"
    assert shown("three", {"n": 3}) == 'three\n{"n":3}'
    large = shown("x" * (MAX_RESULT_BYTES + 1), None)
    assert isinstance(large, ToolFailure)
    assert large.code is FailureCode.RESULT_TOO_LARGE


# -- settings ----------------------------------------------------------------------------------------------------------


def test_variables_are_put_in_and_one_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret-value")
    monkeypatch.delenv("NO_SUCH", raising=False)
    server = McpServer(url="https://a.example/mcp", headers={"Authorization": "Bearer ${MY_TOKEN}"})
    assert server.headers["Authorization"] == "Bearer secret-value"
    assert "secret" not in repr(server)
    assert McpServer(command="x", args=("${NO_SUCH:-else}", "$HOME")).args == ("else", "$HOME")
    with pytest.raises(UsageError, match=r"env\.KEY names the variable NO_SUCH, which is not set"):
        McpServer(command="x", env={"KEY": "${NO_SUCH}"})


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({}, "either a command or a url"),
        ({"command": "x", "url": "http://a"}, "either a command or a url"),
        ({"command": "x", "headers": {"a": "b"}}, "headers is of no use with a command"),
        ({"url": "ftp://a"}, "url must be an address"),
        ({"command": "x", "timeout": 0}, "timeout must be above 0"),
        ({"command": "x", "cwd": "/no/such"}, "there is no folder"),
        ({"command": "x", "arg": []}, "there is no 'arg' in it; did you mean 'args'?"),
        ({"command": "x", "tools": {"a": "harmless"}}, "the risks are"),
        ({"command": "x", "revision": "2024"}, "revision must be one of"),
        ({"command": "x", "deferred": "yes"}, "deferred must be true or false"),
        ({"url": "http://a", "oauth": {"machine": True}}, "needs a client_id"),
        ({"command": "a\0b"}, "without NUL"),
    ],
    ids=str,
)
def test_a_server_that_is_wrong_is_one_sentence(server: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as wrong:
        Settings(mcp_servers={"files": server})
    assert why in str(wrong.value)
    assert str(wrong.value).startswith("setting 'mcp_servers': files: ")


def test_names_of_servers_are_checked() -> None:
    with pytest.raises(UsageError, match=r"'a\.b' is not 1 to 24 letters"):
        Settings(mcp_servers={"a.b": McpServer(command="x")})


def test_servers_of_the_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", str(tmp_path))
    file = tmp_path / "config.toml"
    file.write_text(
        '[default.mcp_servers.files]\ncommand = "server"\nargs = ["-y"]\ncwd = "."\ntools = {search = "read"}\n'
        '[default.mcp_servers.web]\nurl = "https://a.example/mcp"\noauth = true\nheaders = {Authorization = "k"}\n'
    )
    file.chmod(0o644)
    with pytest.raises(UsageError, match="holds a key and others can read it"):
        Settings.from_file()
    file.chmod(0o600)
    servers = Settings.from_file().mcp_servers
    assert servers["files"].args == ("-y",)
    assert servers["files"].cwd is not None
    assert servers["files"].cwd.samefile(tmp_path)
    assert servers["files"].risk_of("search") is Risk.READ
    assert servers["files"].risk_of("other") is Risk.UNDECLARED
    assert servers["web"].oauth == OAuth()


def test_a_tool_of_the_owner_keeps_its_name() -> None:
    @tool
    def files_search() -> str:
        return ""

    with Runtime(Settings(mcp_servers={"files": McpServer(command=os.devnull)}), tools=[files_search]) as runtime:
        assert runtime.mcp("files").status.name == "files"
        with pytest.raises(UsageError, match="there is no MCP server 'other'; the servers of this runtime are: files"):
            runtime.mcp("other")
