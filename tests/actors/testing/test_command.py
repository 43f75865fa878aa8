"""`python -m callboard.actors.testing`: what a failure prints can be pasted."""

from __future__ import annotations

import pytest

from callboard.actors.testing.__main__ import main
from callboard.protocol.testing.generator import VERSION


def test_a_token_is_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", f"{VERSION}.17"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("seed 17, ")
    assert "no rule is broken here" in told


def test_a_token_of_another_version_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", f"{VERSION + 1}.17"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "of the scenario generator" in captured.err


def test_too_few_seeds_do_not_reach_their_floors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reach", "3"]) == 1
    told = capsys.readouterr().out
    assert "| running_tools | `ToolsLost` | finished |" in told
    assert "Below their floor:" in told


def test_the_cases_of_the_chaos_suite_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--list", "--cases", "hang/gil/*"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split(maxsplit=1) == ["hang/gil/process", "an endless loop in C that holds the GIL: timed_out"]


def test_one_case_of_the_chaos_suite_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    tool = "callboard.actors.testing.ways.healthy:in_task"
    with pytest.raises(SystemExit):
        main(["chaos", "--tools"])
    capsys.readouterr()
    assert main(["chaos", "--cases", "die/exception/*", "--neighbours", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count('"status": "held"') == 3
    assert captured.err.count("held") == 3
    assert (
        main(["chaos", "--cases", "die/exception/task", "--tools", tool]) == 2
    )  # it is among the healthy ones already
    assert "two tools are called 'healthy_task'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--cases", "no/such"], "no case is called 'no/such'"),
        (["--tools", "json:dumps"], "'json:dumps' is no tool; decorate the function with @tool"),
        (["--tools", "no_such_module:tool"], "there is no tool 'no_such_module:tool'"),
        (["--tools", "json"], "there is no tool 'json'"),
    ],
)
def test_a_case_or_tool_that_is_not_there_is_a_usage_error(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err
    assert len(captured.err.splitlines()) == 1
