"""The play of recovery: the real journal and what takes requests up keep to the model, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.actors import taking_up
from callboard.actors.builtins.asking_user import UserQuestion
from callboard.actors.journal import recovery
from callboard.actors.journal.journal import Journal
from callboard.actors.journal.journal_records import NewMessage
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.records_of_runtime import JournalRecords
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.write_ahead import WriteAhead
from callboard.actors.taking_up import TakingUp
from callboard.actors.testing.played_recovery import play

#: Crashes are what is played, and each is logged.
pytestmark = pytest.mark.usefixtures("quiet")

Patch = pytest.MonkeyPatch
SEEDS = 60
#: Seeds within which each planted fault is found.
MOST_SEEDS = 320


def test_what_was_written_is_there_and_goes_on() -> None:
    assert [found for seed in range(SEEDS) for found in play(seed)] == []


def test_a_play_is_the_same_each_time(monkeypatch: Patch) -> None:
    monkeypatch.setattr(recovery, "MAX_TAKINGS_UP", recovery.MAX_TAKINGS_UP - 1)
    found = [(seed, told) for seed in range(SEEDS) for told in play(seed)]
    assert found
    assert found == [(seed, told) for seed in range(SEEDS) for told in play(seed)]


def forgets_the_notes(patch: Patch) -> None:
    rebuilt = recovery.rebuilt
    patch.setattr(taking_up, "rebuilt", lambda *given: replace(rebuilt(*given), told=()))


def one_parent_for_all(patch: Patch) -> None:
    named = WriteAhead._named

    def with_the_first(self: WriteAhead, added: Any) -> list[NewMessage]:
        found = named(self, added)
        return [replace(each, parent=found[0].parent) for each in found]

    patch.setattr(WriteAhead, "_named", with_the_first)


def tells_the_others(patch: Patch) -> None:
    written = Journal._written
    patch.setattr(Journal, "_written", lambda self, batch, refused: written(self, batch, [*refused[1:], *refused[:1]]))


def writes_all_once_more(patch: Patch) -> None:
    patch.setattr(Conversation, "is_in_journal", lambda self, journal: None)


def takes_up_what_others_have(patch: Patch) -> None:
    patch.setattr(TakingUp, "_here", lambda self: frozenset())


def puts_no_questions(patch: Patch) -> None:
    none: Sequence[UserQuestion] = []
    patch.setattr(TakingUp, "_questions_of", lambda self, found: none)


FAULTS: dict[str, Callable[[Patch], object]] = {
    "the notes of before are lost": forgets_the_notes,
    "messages have one parent": one_parent_for_all,
    "a refusal is told to others": tells_the_others,
    "what is written is written once more": writes_all_once_more,
    "what is in hand is not known": takes_up_what_others_have,
    "questions are not put again": puts_no_questions,
    "it is given up too late": lambda patch: patch.setattr(recovery, "MAX_TAKINGS_UP", recovery.MAX_TAKINGS_UP + 1),
    "the oldest is always the first": lambda patch: patch.setattr(taking_up, "in_turn", lambda found, _: found),
    "what is left as it is counts": lambda patch: patch.setattr(JournalRecords, "left_as_they_are", lambda *_: None),
    "needs are not looked at": lambda patch: patch.setattr(taking_up, "check_needs", lambda *_: None),
    "failures are forgotten": lambda patch: patch.setattr(Outbox, "is_failed", lambda *_: False),
    "the lease is not renewed": lambda patch: patch.setattr(Journal, "_set_renewal", lambda *_: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    FAULTS[fault](monkeypatch)
    assert any(play(seed) for seed in range(MOST_SEEDS)), f"{MOST_SEEDS} plays do not see it: {fault}"
