"""Which folder a command works in, and which settings it takes from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callboard.actors.cli.arguments import parser, settings_of


@pytest.fixture
def elsewhere(callboard: Any) -> Path:
    folder: Path = callboard.home / "elsewhere"
    folder.mkdir()
    (folder / "moon.py").write_text("def fetch_moon():\n    return 1\n")
    return folder


def test_the_variable_names_the_folder_of_ask_and_index_and_tools(callboard: Any, elsewhere: Path) -> None:
    callboard.environment["CALLBOARD_WORKSPACE"] = str(elsewhere)
    assert "1 file indexed" in callboard.run("index").out
    assert "moon.py:1-2" in callboard.run("ask", "where is the moon fetched?").out
    assert not (callboard.workspace / ".callboard").exists()
    here = str(callboard.workspace)
    assert "weather.py:1-3" in callboard.run("ask", "where is the weather?", "--workspace", here).out


@pytest.mark.parametrize("command", ["ask x", "index", "tools"])
def test_a_folder_from_the_variable_is_checked_like_one_that_is_typed(
    here: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLBOARD_WORKSPACE", "/no/such")
    ran = here(*command.split())
    assert ran.sentence == "CALLBOARD_WORKSPACE: there is no folder /no/such; name one that exists"
    assert ran.status == 2
    monkeypatch.setenv("CALLBOARD_WORKSPACE", "")
    monkeypatch.setenv("CALLBOARD_MODEL", "gpt-5")
    ran = here(*command.split())
    assert ran.sentence.startswith('CALLBOARD_MODEL: must be "provider/model"')
    assert ran.status == 2


def test_typed_before_variable_before_file_before_this_folder(
    here: Any, callboard: Any, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workspace(*typed: str) -> Path | None:
        return settings_of(parser().parse_args(["ask", "x", *typed])).workspace

    assert workspace() == callboard.workspace
    (callboard.home / ".config" / "callboard").mkdir(parents=True)
    config = callboard.home / ".config" / "callboard" / "config.toml"
    config.write_text(
        f"[default]\nworkspace = '{elsewhere}'\nindex_dir = 'index'\n[profiles.etc]\nworkspace = '/etc'\n"
    )
    assert workspace() == elsewhere
    assert workspace("--profile", "etc") == Path("/etc")
    monkeypatch.setenv("CALLBOARD_WORKSPACE", "/usr")
    assert workspace("--profile", "etc") == Path("/usr")
    assert workspace("--profile", "etc", "--workspace", "/") == Path("/")


def test_index_keeps_the_index_where_the_file_says(here: Any, callboard: Any, elsewhere: Path) -> None:
    (callboard.home / ".config" / "callboard").mkdir(parents=True)
    config = callboard.home / ".config" / "callboard" / "config.toml"
    config.write_text(f"[profiles.moon]\nworkspace = '{elsewhere}'\nindex_dir = 'moon'\n")
    ran = callboard.run("index", "--profile", "moon")
    assert "1 file indexed" in ran.out
    assert (config.parent / "moon" / "index.json").exists()
    assert not (elsewhere / ".callboard").exists()
