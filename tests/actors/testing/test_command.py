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
