"""`callboard edits`: what tools have staged is listed with its diff, applied or given up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callboard import Runtime, Settings
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn


@pytest.fixture
def staged(here: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of two edits that wait."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    calls = [
        ScriptedCall("create_file", {"path": "one.txt", "content": "1\n"}),
        ScriptedCall("create_file", {"path": "two.txt", "content": "\x1b[2Kevil\n"}),
    ]
    turns = [ScriptedTurn(calls=calls), ScriptedTurn("Staged.")]
    with Runtime(Settings(model="scripted/x", script=turns, workspace=Path(), warm_workers=0)) as runtime:
        runtime.ask_sync("Make two files.")
        return [each.id for each in runtime.proposals()]


def test_they_are_listed_applied_and_given_up(here: Any, staged: list[str]) -> None:
    first, second = staged
    listed = here("edits").out
    assert f"{first}  pending" in listed
    assert "+1" in listed
    assert r"+\x1b[2Kevil" in listed
    assert "\x1b" not in listed
    assert here("edits", "approve").status == 2, "none was named"
    applied = here("edits", "approve", first[:5])
    assert (applied.status, Path("one.txt").read_text()) == (0, "1\n")
    assert f"{first}  applied" in applied.out
    denied = here("edits", "deny", "--all-pending", "--reason", "not now", "--json")
    assert [(each["id"], each["state"], each["reason"]) for each in json.loads(denied.out)] == [
        (second, "denied", "not now")
    ]
    assert not Path("two.txt").exists()
    assert here("edits").out == "no edits wait in this workspace\n"
    assert {each["state"] for each in json.loads(here("edits", "--all", "--json").out)} == {"applied", "denied"}
    assert here("edits", "approve", "no-such-edit").status == 2
