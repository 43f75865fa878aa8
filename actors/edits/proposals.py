"""Proposals as a host sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from msgspec import Struct, field

from callboard.actors.edits.changes import ChangeKind
from callboard.actors.kernel import Asks
from callboard.protocol.errors import CallboardError, UsageError


class ProposalState(StrEnum):
    """Where a proposal is."""

    PENDING = "pending"
    """Nothing of it is applied; its owner has not decided."""
    APPLYING = "applying"
    """It is being applied, or the process that did so has died: the next one to look completes it, or takes it back."""
    APPLIED = "applied"
    DENIED = "denied"
    STALE = "stale"
    """It no longer fits: a file was changed meanwhile, or a later proposal changes the same lines."""


@dataclass(frozen=True, slots=True)
class ProposedFile:
    """One file of a proposal."""

    path: str
    """Absolute."""
    kind: ChangeKind
    renamed_to: str = ""
    """Absolute; "" where it is not renamed."""
    added_lines: int = 0
    removed_lines: int = 0
    hash: str = ""
    """The tracking hash of what was there when it was staged; "" of a new file."""


class Proposal(Struct, frozen=True):
    """Changes of one or more files that a tool call has staged: all of them are applied, or none."""

    id: str
    state: ProposalState
    tool: str
    files: tuple[ProposedFile, ...]
    diff: str
    """A unified diff in git's form, whole and unmasked: for a person, and for `git apply`."""
    request_id: str = ""
    """Of the request whose call staged it."""
    call_id: str = ""
    staged_at: float = 0.0
    """Seconds since 1970."""
    by: str = ""
    """Who decided: "approver", "owner", "auto_confirm_edits", or a rule."""
    reason: str = ""
    """Why it was denied, is stale, or could not be applied."""
    is_changed_by_owner: bool = False
    """Not what the model has written: who approved it has changed it."""


class DecideEdits(Asks[tuple[Proposal, ...] | CallboardError], Struct, frozen=True):
    """To the actor `editor`: approve or deny proposals; answered with what they are then."""

    ids: tuple[str, ...] | None
    """None: all that are pending."""
    is_approved: bool
    by: str
    reason: str = ""
    contents: Mapping[str, str] = field(default_factory=dict)
    """New whole texts of files, in place of what was proposed."""
    is_told: bool = False
    """The model reads it in the result of its call."""

    @classmethod
    def by_owner(
        cls,
        ids: Iterable[str] | None,
        *,
        is_approved: bool,
        reason: str = "",
        contents: Mapping[str, str] | None = None,
    ) -> Self:
        """Of the runtime's owner. Raises UsageError for what is no list of ids."""
        if isinstance(ids, str):
            raise UsageError(f"ids must be a list of ids, not the text {ids!r}; put it into a list")
        return cls(None if ids is None else tuple(ids), is_approved, "owner", reason, contents or {})
