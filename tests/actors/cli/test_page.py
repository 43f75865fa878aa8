"""docs/cli.md is true: its commands, variables, fields and statuses are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from callboard import Outcome
from callboard.actors import cli
from callboard.actors.cli import ask, failure, question
from callboard.actors.cli.arguments import commands_below, parser
from callboard.actors.environment import VARIABLES
from callboard.actors.settings import Settings
from callboard.providers.example_models import example

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


def first_column(title: str) -> list[str]:
    """The first cells of the table with this heading."""
    (table,) = re.findall(rf"^\| {title} \|.*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.M)
    return [row.split("|")[1].strip().strip("`") for row in table.splitlines()]


def test_every_command_is_in_the_table() -> None:
    named = {each.split()[1] for each in first_column("command")}
    assert named == {*commands_below(parser()), "--version"}


def test_every_variable_is_in_the_table() -> None:
    proxies = {"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"}
    others = {
        "CALLBOARD_API_KEY",
        "CALLBOARD_PROFILE",
        "CALLBOARD_TOKEN",
        "NO_COLOR",
        "NOTIFY_SOCKET",
        "TERM",
        "OPENAI_BASE_URL, ANTHROPIC_BASE_URL, OLLAMA_HOST ...",
        *proxies,
    }
    assert set(first_column("variable")) == {*VARIABLES.values(), *others}


def test_every_field_of_the_json_is_in_the_table_in_its_order() -> None:
    assert first_column("field") == [*ask.FIELDS, "error"]


def test_every_exit_status_is_in_the_table() -> None:
    statuses = (cli.DONE, cli.FAILED, cli.USAGE, cli.INTERRUPTED)
    assert first_column("exit status") == [str(status) for status in statuses]


def test_limits_kinds_and_outcomes_that_it_names() -> None:
    assert f"{question.MAX_INPUT_BYTES:,} bytes" in PAGE
    for kind in (failure.USAGE_KIND, failure.RUNTIME_KIND, failure.SYSTEM_KIND, failure.EXTRA_KIND, "interrupted"):
        assert f"`{kind}`" in PAGE
    for outcome in (Outcome.ANSWERED, Outcome.FAILED, Outcome.CANCELLED):
        assert f"`{outcome}`" in PAGE


def test_the_configuration_that_it_shows_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALLBOARD_MODEL", "CALLBOARD_BASE_URL", "CALLBOARD_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", str(tmp_path))
    (block,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "config.toml").write_text(block)
    assert (Settings.from_file().model, Settings.from_file().sampling.temperature) == (example("openai"), 0.2)
    local = Settings.from_file("local")
    assert (local.base_url, local.max_steps) == ("http://localhost:8000/v1", 20)
    assert local.catalog.info("openai-compatible", "qwen3").context_tokens == 40_960
