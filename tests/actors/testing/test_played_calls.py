"""The play of calls: dispatcher, registry, ledger and approver keep to the model, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.actors.calls import dispatcher, ledger, registry
from callboard.actors.calls.approvals import CallbackApprover, OpenQuestions, QuestionStep, SeekApproval
from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.calls.ledger import CallReports, Ledger, Pool
from callboard.actors.calls.registry import Registry, ToolHealth
from callboard.actors.testing.__main__ import main
from callboard.actors.testing.played_calls import play

#: Crashes are what is played, and each is logged.
pytestmark = pytest.mark.usefixtures("quiet")

Patch = pytest.MonkeyPatch
SEEDS = 100
#: Seeds within which each planted fault is found.
MOST_SEEDS = 400


def test_calls_are_as_promised() -> None:
    assert [found for seed in range(SEEDS) for found in play(seed)] == []


def test_a_play_is_the_same_each_time(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ToolDispatcher, "_forget_lane", lambda *_: None)
    monkeypatch.setattr(registry, "FAILURE_WINDOW_SECONDS", 0.0)
    seed = next(seed for seed in range(MOST_SEEDS) if play(seed))
    assert play(seed) == play(seed)


def test_the_command_plays_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plays", "calls", "--seeds", "2"]) == 0
    assert "calls: 2 plays, all as promised" in capsys.readouterr().out


def last_comes_first(patch: Patch) -> None:
    def next_call(self: Pool) -> Any:
        lanes = [lane for lane in self.waiting if lane.running < lane.concurrency]
        has_room = self.free or self.workers < self.max_workers
        return max((lane.waiting[0] for lane in lanes), key=lambda each: each[0])[1] if has_room and lanes else None

    patch.setattr(Pool, "next_call", next_call)


def a_pause_that_stays(patch: Patch) -> None:
    withdraw = ToolHealth._withdraw

    def same_pause(self: ToolHealth, now: float) -> bool:
        self.pause_seconds = registry.WITHDRAWN_SECONDS
        return withdraw(self, now)

    patch.setattr(ToolHealth, "_withdraw", same_pause)


def forgotten_by_the_first(patch: Patch) -> None:
    leave = Ledger.leave

    def forgets(self: Ledger, session: Any) -> Any:
        tools = self.brought.get(session, set())
        return [*leave(self, session), *tools]

    patch.setattr(Ledger, "leave", forgets)


def once_is_for_all(patch: Patch) -> None:
    settle = OpenQuestions.settle
    patch.setattr(
        OpenQuestions, "settle", lambda self, verdict: settle(self, replace(verdict, is_for_request=verdict.granted))
    )


def asks_twice(patch: Patch) -> None:
    def add(self: OpenQuestions, seek: SeekApproval) -> QuestionStep:
        plain(self, seek)
        return QuestionStep(ask=seek)

    plain = OpenQuestions.add
    patch.setattr(OpenQuestions, "add", add)


def keeps_the_arguments(patch: Patch) -> None:
    verdict = CallbackApprover._verdict

    async def without(self: CallbackApprover, *given: Any) -> Any:
        return replace(await verdict(self, *given), arguments="")

    patch.setattr(CallbackApprover, "_verdict", without)


def forgets_the_hint(patch: Patch) -> None:
    withdrawal = Registry.withdrawal
    patch.setattr(Registry, "withdrawal", lambda self, key, now: withdrawal(self, key, now - 1.0))


FAULTS: dict[str, Callable[[Patch], object]] = {
    "the last tool has its turn first": last_comes_first,
    "a withdrawn tool waits no longer than the first time": a_pause_that_stays,
    "six failures are borne": lambda patch: patch.setattr(registry, "TOLERATED_SHARE", 0.3),
    "older failures count": lambda patch: patch.setattr(registry, "FAILURE_WINDOW_SECONDS", 62.0),
    "a brought tool is forgotten by the first who leaves": forgotten_by_the_first,
    "a seventh worker may have it": lambda patch: patch.setattr(ledger, "MAX_GIVEN", 6),
    "nothing is said of an effect": lambda patch: patch.setattr(ledger, "after_effect", lambda failure, _: failure),
    "the time that is left is told wrong": forgets_the_hint,
    "what was held is taken off twice": lambda patch: patch.setattr(Registry, "hold", lambda *_: []),
    "a call that is killed is waited for longer": lambda patch: patch.setattr(dispatcher, "ABANDON_SECONDS", 2.0),
    "no end is told to the dispatcher": lambda patch: patch.setattr(CallReports, "state", lambda *_: None),
    "one answer is for all": once_is_for_all,
    "each question is put": asks_twice,
    "changed arguments are lost": keeps_the_arguments,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    FAULTS[fault](monkeypatch)
    assert any(play(seed) for seed in range(MOST_SEEDS)), f"{MOST_SEEDS} plays do not see that {fault}"
