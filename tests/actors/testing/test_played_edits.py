"""The editor's play: the real one keeps to the model, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from callboard.actors.edits import applying, changes, planning, proposal_store
from callboard.actors.edits.applying import Applier
from callboard.actors.edits.changes import Splice
from callboard.actors.edits.editing import Edits
from callboard.actors.edits.proposal_store import ProposalStore
from callboard.actors.edits.texts import EditedText
from callboard.actors.testing.edits_owner import Approver
from callboard.actors.testing.played_edits import play
from callboard.protocol.policy import Mode

#: Crashes are what is played, and each is logged.
pytestmark = pytest.mark.usefixtures("quiet")

Patch = pytest.MonkeyPatch
SEEDS = 30
#: Seeds within which each planted fault is found.
MOST_SEEDS = 100


def test_the_editor_keeps_what_it_promises() -> None:
    assert [found for seed in range(SEEDS) for found in play(seed)] == []


def moves_by_nothing(patch: Patch) -> None:
    patch.setattr(changes, "_moved", lambda splice, before: splice)


def settles_what_is_settled(patch: Patch) -> None:
    patch.setattr(
        Applier,
        "deny",
        lambda self, known, by, reason: (
            self._store.settle(known, proposal_store.ProposalState.DENIED, by=by, reason=reason),
            self._store.get(known),
        )[1],
    )


def loses_permissions(patch: Patch) -> None:
    patch.setattr(applying, "attributes", lambda found: (0o644, found.st_uid, found.st_gid))


def takes_the_first(patch: Patch) -> None:
    def first(edit: Any, text: Any, field: str, start: int, end: int) -> Any:
        return text.find(edit.old_text, start, end)[0]

    patch.setattr(planning, "_found", first)


FAULTS: dict[str, Callable[[Patch], object]] = {
    "spans are not moved by an edit before them": moves_by_nothing,
    "edits of the same text are no conflict": lambda patch: patch.setattr(Splice, "overlaps", lambda *_: False),
    "what is settled is settled again": settles_what_is_settled,
    "files lose their permissions": loses_permissions,
    "of two places the first is taken": takes_the_first,
    "other proposals are left as they were": lambda patch: patch.setattr(Applier, "_move_others", lambda *_: None),
    "nothing is taken away after a failure": lambda patch: patch.setattr(Applier, "_give_up", lambda *_: []),
    "nothing is completed after a crash": lambda patch: patch.setattr(Applier, "_recover", lambda _: None),
    "all line ends are LF": lambda patch: patch.setattr(EditedText, "_line_end", lambda *_: "\n"),
    "what is told once is told again": lambda patch: patch.setattr(
        ProposalStore, "mark_told", lambda _, ids: tuple(ids)
    ),
    "a question that is moot is left open": lambda patch: patch.setattr(Approver, "withdraw", lambda *_: None),
    "an edit is applied in a mode that changes nothing": lambda patch: patch.setattr(
        Edits, "_mode_of", lambda *_: Mode.BUILD
    ),
    "a counted line too few": lambda patch: patch.setattr(proposal_store, "changed_lines", lambda _: (0, 0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    FAULTS[fault](monkeypatch)
    assert any(play(seed) for seed in range(MOST_SEEDS)), f"{MOST_SEEDS} plays do not see that {fault}"
