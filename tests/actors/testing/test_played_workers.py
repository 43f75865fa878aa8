"""The plays of workers: the real ones do what they owe, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import CallReports
from callboard.actors.testing.__main__ import main
from callboard.actors.testing.played_workers import play
from callboard.actors.workers.caller import CallerWorker
from callboard.actors.workers.process import ProcessWorker
from callboard.actors.workers.task import TaskWorker

#: Crashes are what is played, and each is logged.
pytestmark = pytest.mark.usefixtures("quiet")

Patch = pytest.MonkeyPatch
SEEDS = 60
#: Seeds within which each planted fault is found.
MOST_SEEDS = 200


def test_workers_do_what_they_owe() -> None:
    assert [found for seed in range(SEEDS) for found in play(seed)] == []


def test_the_command_plays_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plays", "workers", "--seeds", "2"]) == 0
    assert "workers: 2 plays, all as promised" in capsys.readouterr().out


def holds_nothing(patch: Patch) -> None:
    state = CallReports.state
    patch.setattr(CallReports, "state", lambda self, room, holds=(): state(self, room))


def takes_calls(patch: Patch) -> None:
    state = CallReports.state
    patch.setattr(CallReports, "state", lambda self, room, holds=(): state(self, 1, holds))


FAULTS: dict[str, Callable[[Patch], object]] = {
    "code does not wait for the go-ahead": lambda patch: patch.setattr(GoAhead, "when_given", lambda _, tell: tell()),
    "what a call holds is not told": holds_nothing,
    "a thread that is held takes calls": takes_calls,
    "a loop that is stuck is kept": lambda patch: patch.setattr(TaskWorker, "_abandon", lambda *_: None),
    "a blocked loop keeps what waits": lambda patch: patch.setattr(TaskWorker, "_send_elsewhere", lambda *_: None),
    "a loop is given up for one in time": lambda patch: patch.setattr(TaskWorker, "_is_held_by_another", lambda *_: 0),
    "nobody hears what holds a caller's loop": lambda patch: patch.setattr(CallerWorker, "_tell_holds", lambda _: None),
    "output is not read to its end": lambda patch: patch.setattr(ProcessWorker, "_take_output", lambda *_: ""),
    "a process is not let go": lambda patch: patch.setattr(ProcessWorker, "_release", lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    FAULTS[fault](monkeypatch)
    assert any(play(seed) for seed in range(MOST_SEEDS)), f"{MOST_SEEDS} plays do not see that {fault}"
