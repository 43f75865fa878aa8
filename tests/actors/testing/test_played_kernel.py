"""The kernel's plays: the real one keeps to the model, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from callboard.actors.kernel import Backoff, History, Monitor, Restart, Supervisor
from callboard.actors.kernel.accounts import DeadLetterReason
from callboard.actors.kernel.actor import Actor, SelfTimer
from callboard.actors.kernel.cell import Cell
from callboard.actors.kernel.mailbox import Mailbox
from callboard.actors.kernel.reply import Ask
from callboard.actors.testing.__main__ import main
from callboard.actors.testing.played_kernel import play

#: Crashes are what is played, and each is logged.
pytestmark = pytest.mark.usefixtures("quiet")

Patch = pytest.MonkeyPatch
SEEDS = 60
#: Seeds within which each planted fault is found.
MOST_SEEDS = 200


def test_the_kernel_keeps_what_it_promises() -> None:
    assert [found for seed in range(SEEDS) for found in play(seed)] == []


def test_a_play_is_the_same_each_time(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Mailbox, "put_control", Mailbox.put)
    assert play(0) == play(0) != []


def test_the_command_names_the_seed(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plays", "kernel", "--seeds", "2"]) == 0
    monkeypatch.setattr(Mailbox, "put_control", Mailbox.put)
    assert main(["plays", "kernel"]) == 1
    told = capsys.readouterr().out
    assert "kernel: 2 plays, all as promised" in told
    assert "plays kernel --first 0 --seeds 1" in told


def room_for_more(patch: Patch) -> None:
    put = Mailbox.put

    def one_more(self: Mailbox, item: object) -> Any:
        self.capacity += self.refused == 0
        return put(self, item)

    patch.setattr(Mailbox, "put", one_more)


def loses_what_waits(patch: Patch) -> None:
    patch.setattr(Mailbox, "hold", lambda self: (self._incoming.clear(), setattr(self, "awake", True)))


def latest_first(patch: Patch) -> None:
    take = Mailbox.take

    def backwards(self: Mailbox) -> object:
        self._outgoing.reverse()
        return take(self)

    patch.setattr(Mailbox, "take", backwards)


def buries_in_silence(patch: Patch) -> None:
    note = Cell._note_dead

    def all_but_rejected(self: Cell, item: object, reason: DeadLetterReason, error: BaseException | None) -> None:
        if reason is not DeadLetterReason.REJECTED:
            note(self, item, reason, error)

    patch.setattr(Cell, "_note_dead", all_but_rejected)


def leaves_askers_waiting(patch: Patch) -> None:
    bury = Cell.bury

    def without_answer(self: Cell, item: Any, *given: Any) -> None:
        bury(self, item.message if type(item) is Ask else item, *given)

    patch.setattr(Cell, "bury", without_answer)


def transient_after_all(patch: Patch) -> None:
    patch.setattr("callboard.actors.kernel.cell.wants_restart", lambda restart, _: restart is not Restart.TEMPORARY)


def never_forgets(patch: Patch) -> None:
    after = History.after

    def all_that_were(self: History, now_seconds: float, budget: Any, backoff: Any) -> History:
        new = after(self, now_seconds, budget, backoff)
        return History((*self.failures, now_seconds), new.streak, now_seconds)

    patch.setattr(History, "after", all_that_were)


def starts_backwards(patch: Patch) -> None:
    listed = Supervisor._listed
    patch.setattr(Supervisor, "_listed", lambda self: listed(self)[::-1])


FAULTS: dict[str, Callable[[Patch], object]] = {
    "control messages wait behind others": lambda patch: patch.setattr(Mailbox, "put_control", Mailbox.put),
    "a full mailbox takes one more": room_for_more,
    "what waits for a restart is lost": loses_what_waits,
    "of many messages the latest is first": latest_first,
    "a rejected message is no dead letter": buries_in_silence,
    "who asked a dead actor waits": leaves_askers_waiting,
    "a cancelled watch fires": lambda patch: patch.setattr(Monitor, "cancel", lambda _: None),
    "a cancelled timer fires": lambda patch: patch.setattr(SelfTimer, "cancel", lambda _: None),
    "callbacks at the end come early": lambda patch: patch.setattr(Actor, "at_end", lambda _, callback: callback()),
    "a transient child that left comes back": transient_after_all,
    "a backoff is not doubled": lambda patch: patch.setattr(
        Backoff, "delay_seconds", lambda self, failures, _: self.initial_seconds if failures > 1 else 0.0
    ),
    "failures of long ago count": never_forgets,
    "groups stop and start in the wrong order": starts_backwards,
    "who does not stop is not killed": lambda patch: patch.setattr(Supervisor._kill, "__code__", _nothing.__code__),
    "children of a lost supervisor live on": lambda patch: patch.setattr(Cell, "kill", lambda _: None),
}


def _nothing(self: Any, message: Any) -> None:
    return None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    FAULTS[fault](monkeypatch)
    assert any(play(seed) for seed in range(MOST_SEEDS)), f"{MOST_SEEDS} plays do not see that {fault}"
