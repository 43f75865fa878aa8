"""What is kept of the tools of an MCP server, and for how many."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from callboard import McpServer
from callboard.actors.mcp import known_tools
from callboard.actors.mcp.known_tools import CHANGED, NOT_KNOWN, UNREADABLE, KnownTools
from callboard.actors.mcp.remote_values import RemoteTool


def described(name: str, description: str = "") -> RemoteTool:
    return RemoteTool.of({"name": name, "description": description, "inputSchema": {"type": "object"}})


def known(folder: Path, name: str = "files", command: str = "server") -> KnownTools:
    return KnownTools(name, McpServer(command=command), folder)


def meet(tools: KnownTools, **descriptions: str) -> Mapping[str, str]:
    return tools.meet([described(name, text) for name, text in descriptions.items()])


class Warnings(logging.Handler):
    """What the logger of MCP has warned of."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warnings]:
    """Heard at the logger itself: programs that other tests run in this process may have set loggers up."""
    logger, heard = logging.getLogger("callboard.mcp"), Warnings()
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    before = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(before)


def test_what_was_seen_or_approved_counts_for_this_server_in_later_runs(tmp_path: Path) -> None:
    assert meet(known(tmp_path), a="1", b="1") == {}
    assert meet(known(tmp_path), a="2", b="1", c="1") == {"a": CHANGED}
    assert meet(known(tmp_path, command="another"), a="2") == {}
    assert meet(known(tmp_path, name="other"), a="2") == {}
    approving = known(tmp_path)
    approving.accept(described("a", "2"))
    assert approving.knows(described("a", "2"))
    assert meet(known(tmp_path), a="2", c="1") == {}
    assert meet(known(tmp_path), a="1") == {"a": CHANGED}


def test_a_server_that_lists_other_names_all_the_time_has_none_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_tools, "MAX_KNOWN", 3)
    tools = known(tmp_path)
    assert meet(tools, a="1") == {}
    assert meet(tools, **dict.fromkeys("wxyz", "1")) == {"y": NOT_KNOWN, "z": NOT_KNOWN}
    assert meet(tools, a="2", z="1") == {"a": CHANGED, "z": NOT_KNOWN}
    tools.accept(described("z", "1"))
    assert meet(known(tmp_path), a="1", z="1") == {}


def test_names_of_any_length_are_kept(tmp_path: Path) -> None:
    name = "long " * 10_000
    assert meet(known(tmp_path), **{name: "1"}) == {}
    assert meet(known(tmp_path), **{name: "2"}) == {name: CHANGED}
    (file,) = (tmp_path / "mcp").glob("*.json")
    assert file.stat().st_size < 1_000


def test_without_a_file_that_can_be_read_each_tool_is_asked_about_once(tmp_path: Path, warnings: Warnings) -> None:
    folder = tmp_path / "state"
    folder.write_text("a file in its place")
    tools = known(folder)
    assert meet(tools, a="1", b="1") == {"a": UNREADABLE, "b": UNREADABLE}
    tools.accept(described("a", "1"))
    assert meet(tools, a="1", b="1") == {"b": UNREADABLE}
    assert "the known tools of the MCP server files" in warnings.text


def test_what_cannot_be_saved_counts_for_the_run(tmp_path: Path, warnings: Warnings) -> None:
    meet(known(tmp_path), a="1")
    (file,) = (tmp_path / "mcp").glob("*.json")
    file.unlink()
    lock = file.with_name(f"{file.name}.lock")
    lock.unlink()
    lock.mkdir()
    tools = known(tmp_path)
    assert meet(tools, a="1") == {}
    assert meet(tools, a="2") == {"a": CHANGED}
    assert "for this run only" in warnings.text
