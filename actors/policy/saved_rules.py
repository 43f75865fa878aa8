"""The answers that count always: exact rules, kept for each workspace in a file of the user's own.

A rule names one tool and exactly what the call that was asked about would have touched: these paths (where they lead
to, with all links followed), these commands and addresses to the letter. A tool that does not say what it touches gets
a rule for exactly these arguments. No rule holds a pattern: what was not asked about is not answered.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from callboard.actors.policy.owners_file import OwnersFile, is_inside
from callboard.protocol.commands import AskApproval
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.policy import Access, AccessKind, Judgement, by_saved_answer
from callboard.protocol.step import canonical_arguments
from callboard.protocol.tools import Decision

RULES_FILE: Final = "saved_rules.json"
"""Its name in the configuration folder."""
#: Of one workspace. More cannot be looked through by a person.
MAX_RULES: Final = 1_000
_PATHS: Final = frozenset({AccessKind.READ, AccessKind.WRITE, AccessKind.DELETE})


SavedDecision = Literal[Decision.ALLOW, Decision.DENY]


@dataclass(frozen=True, slots=True)
class SavedAccess:
    """One thing that a call would touch."""

    kind: AccessKind
    value: str
    """A path is absolute, with all links followed; a command or an address is as the model wrote it."""


@dataclass(frozen=True, slots=True)
class SavedRule:
    """One answer that counts always."""

    tool: ToolName
    decision: SavedDecision
    touches: tuple[SavedAccess, ...] = ()
    """All that the call would touch, and nothing else."""
    arguments: str = ""
    """Where the tool does not say what it touches: the JSON text of exactly these arguments."""
    saved_at: str = ""
    """ISO 8601, UTC."""

    def covers(self, other: SavedRule) -> bool:
        """Is it about the very same thing?"""
        return (self.tool, self.touches, self.arguments) == (other.tool, other.touches, other.arguments)

    def __str__(self) -> str:
        what = ", ".join(f"{each.kind} {each.value}" for each in self.touches) or f"the arguments {self.arguments}"
        return f"{self.decision} {self.tool}: {what}"


@dataclass(slots=True)
class _Saved:
    version: Literal[1] = 1
    workspaces: dict[str, list[SavedRule]] = field(default_factory=dict)
    """By the path of the workspace; "": of runtimes without one."""


@cache
def _adapter() -> TypeAdapter[_Saved]:
    return TypeAdapter(_Saved)


class SavedRules:
    """Those of one workspace. All methods read or write a file: not on an event loop."""

    def __init__(self, config_dir: Path, workspace: Path | None) -> None:
        path = config_dir.expanduser() / RULES_FILE
        self._workspace = workspace
        self._key = str(workspace.resolve()) if workspace is not None else ""
        self._is_inside = is_inside(path, workspace)
        self._file = OwnersFile(path, _adapter, _Saved, "the saved rules")
        self._denied: frozenset[ToolName] | None = frozenset()
        """The tools of which calls are denied, when the file was last read; None: it could not be read."""
        with contextlib.suppress(UsageError):
            self._read()

    @property
    def path(self) -> Path:
        """Where they are kept."""
        return self._file.path

    def rules(self) -> tuple[SavedRule, ...]:
        """Those that count here, in the order in which they were saved. Raises UsageError for a file that does not
        count."""
        self._check_place()
        return self._read()

    def may_deny(self, tool: ToolName) -> bool:
        """May a call of this tool have been denied for always? It reads no file: what another process saves meanwhile
        is seen once `judge` reads it. True for all tools where the file cannot be read, so that each call is judged."""
        return self._denied is None or tool in self._denied

    def judge(self, tool: ToolName, arguments: str, accesses: Iterable[Access]) -> Judgement | None:
        """What was answered for such a call; None: nothing. A denial comes before an approval. Raises UsageError."""
        if self._is_inside or not self._file.place.exists():
            return None
        asked = self._exact(tool, Decision.ALLOW, arguments, accesses)
        found = [rule for rule in self.rules() if rule.covers(asked)]
        for rule in sorted(found, key=lambda each: each.decision is Decision.ALLOW):
            kinds = dict.fromkeys(str(each.kind) for each in rule.touches)  # no values: they are of a call's arguments
            return Judgement(rule.decision, by_saved_answer(tool, rule.decision, ", ".join(kinds)))
        return None

    def remember(self, question: AskApproval, granted: bool) -> SavedRule:
        """Save an answer; it takes the place of an earlier one about the same. Raises UsageError, or OSError."""
        self._check_place()
        decision: SavedDecision = Decision.ALLOW if granted else Decision.DENY
        new = self._exact(question.name, decision, question.arguments, question.accesses)

        def with_it(saved: _Saved) -> _Saved:
            kept = [rule for rule in saved.workspaces.get(self._key, []) if not rule.covers(new)]
            if len(kept) >= MAX_RULES:
                raise UsageError(f"{MAX_RULES:,} rules are saved for this workspace; remove some")
            return _Saved(1, {**saved.workspaces, self._key: [*kept, new]})

        self._file.change(with_it)
        self._read()
        return new

    def remove(self, number: int) -> SavedRule:
        """The one of that number, from 1 on in the order of `rules`. Raises UsageError where there is none."""
        self._check_place()
        removed: list[SavedRule] = []

        def without_it(saved: _Saved) -> _Saved:
            rules = list(saved.workspaces.get(self._key, ()))
            if not 1 <= number <= len(rules):
                raise UsageError(
                    f"there is no saved rule {number}; there are {len(rules)} for this workspace (`callboard rules`)"
                )
            removed.append(rules.pop(number - 1))
            others = {key: each for key, each in saved.workspaces.items() if key != self._key}
            return _Saved(1, {**others, self._key: rules} if rules else others)

        self._file.change(without_it)
        return removed[0]

    def _read(self) -> tuple[SavedRule, ...]:
        if self._is_inside:
            return ()
        try:
            rules = tuple(self._file.read().workspaces.get(self._key, ()))
        except UsageError:
            self._denied = None
            raise
        self._denied = frozenset(rule.tool for rule in rules if rule.decision is Decision.DENY)
        return rules

    def _exact(
        self,
        tool: ToolName,
        decision: SavedDecision,
        arguments: str,
        accesses: Iterable[Access],
    ) -> SavedRule:
        touches = sorted({(access.kind, self._place(access)) for access in accesses})
        exact = "" if touches else canonical_arguments(arguments) or arguments
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return SavedRule(tool, decision, tuple(SavedAccess(*each) for each in touches), exact, at)

    def _place(self, access: Access) -> str:
        """Where a path leads to now: a link that is turned elsewhere later is another thing."""
        if access.kind not in _PATHS:
            return access.value
        try:
            return os.path.realpath(os.path.join(self._workspace or "", access.value))
        except ValueError as error:  # NUL
            raise UsageError(f"a value of the call is no path: {error}") from None

    def _check_place(self) -> None:
        if self._is_inside:
            raise UsageError(f"rules cannot be saved inside the workspace ({self.path}); set CALLBOARD_CONFIG_DIR")
