"""Where the configuration file is named: before a command and behind it, of each that reads settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import pytest

from callboard import UsageError
from callboard.actors.cli.arguments import commands_below, parser, settings_of
from callboard.actors.cli.serve_command import plan_of
from callboard.actors.daemon.daemon_settings import read_plan
from callboard.actors.settings import Settings

#: A way to type each command.
COMMANDS: Final = (
    ("ask", "why?"),
    ("chat",),
    ("acp",),
    ("index",),
    ("doctor",),
    ("login", "copilot"),
    ("tools",),
    ("edits", "list"),
    ("trust",),
    ("rules",),
    ("mcp",),
    ("serve",),
    *(("tokens", *action) for action in (("list",), ("make",), ("remove", "1"))),
    *(
        ("journal", *action)
        for action in (("list",), ("show", "1"), ("usage",), ("export",), ("compact",), ("verify",))
    ),
)
#: They read no settings.
OTHERS: Final = {"models", "completion"}


@pytest.fixture(autouse=True)
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """One beside the user's own, which says something else."""
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.toml").write_text("[default]\nmax_steps = 5\n")
    path = tmp_path / "other.toml"
    path.write_text("[default]\nmax_steps = 9\n[profiles.more]\nmax_steps = 11\n[daemon]\nport = 9001\n")
    return path


def test_all_commands_are_here() -> None:
    assert {each[0] for each in COMMANDS} | OTHERS == set(commands_below(parser()))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_file_is_named_before_the_command_or_behind_it(file: Path, command: tuple[str, ...]) -> None:
    before = parser().parse_args(["--config", str(file), *command])
    behind = parser().parse_args([*command, "--config", str(file), "--profile", "more"])
    within = parser().parse_args([command[0], f"--config={file}", *command[1:]]) if command[0] != "journal" else behind
    assert before.config == behind.config == within.config == file
    assert (before.profile, behind.profile) == ("", "more")
    twice = parser().parse_args(["--config", "none.toml", *command, "--config", str(file)])
    assert twice.config == file, "the nearer one counts"
    neither = parser().parse_args(command)
    assert (neither.config, neither.profile) == (None, "")


def max_steps(options: argparse.Namespace) -> int:
    if options.command == "serve":
        return plan_of(options).tenants[0].settings.max_steps
    if options.command == "tokens":
        return read_plan(options.config, options.profile).tenants[0].settings.max_steps
    return settings_of(options).max_steps


@pytest.mark.parametrize("command", [each for each in COMMANDS if each[0] != "login"], ids=" ".join)
def test_its_settings_count(file: Path, command: tuple[str, ...]) -> None:
    assert max_steps(parser().parse_args(["--config", str(file), *command])) == 9
    assert max_steps(parser().parse_args([*command, "--config", str(file), "--profile", "more"])) == 11
    assert max_steps(parser().parse_args(command)) == 5


def test_a_program_may_name_it(file: Path) -> None:
    assert Settings.from_file("more", file).max_steps == 11
    assert Settings.from_file(path=file).max_steps == 9


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each[0] in ("ask", "tokens", "serve", "login", "journal")]
)
@pytest.mark.parametrize("is_before", [True, False])
def test_a_file_that_is_not_there_is_a_usage_error(here: Any, command: tuple[str, ...], is_before: bool) -> None:
    named = ("--config", "no/such.toml")
    ran = here(*named, *command) if is_before else here(*command, *named)
    assert ran.sentence == "there is no configuration file no/such.toml; --config names one that is there"
    assert ran.status == 2


@pytest.mark.parametrize(("what", "says"), [("", "is not a regular file"), ("own", "is not a regular file")])
def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says):
        Settings.from_file(path=Path(what))
    with pytest.raises(UsageError, match=says):
        read_plan(Path(what))
