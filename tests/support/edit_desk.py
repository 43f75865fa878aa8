"""The editor of one workspace, called without actors around it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from callboard.actors.builtins.workspace import Workspace
from callboard.actors.edits.editor import Editor, ListProposals, Stage, Staged
from callboard.actors.edits.planning import CodeEdit, EditCode
from callboard.actors.edits.proposals import DecideEdits, Proposal, ProposalState
from callboard.protocol.errors import CallboardError


class Desk:
    """The editor of one workspace, called without actors around it."""

    def __init__(self, root: Path, state: Path) -> None:
        self.root = root
        self.heard: list[Proposal] = []
        self.changed = 0
        self._state = state
        self._editor = self._new()

    def _new(self) -> Editor:
        editor = Editor(Workspace.at(self.root), self._state, self)
        editor.on_start()
        return editor

    def decided(self, proposal: Proposal) -> None:
        self.heard.append(proposal)

    def files_changed(self) -> None:
        self.changed += 1

    def remembers(self, request_ids: Iterable[str]) -> None:
        self.requests = set(request_ids)

    def restart(self) -> None:
        self._editor.on_stop()
        self._editor = self._new()

    def stage(self, request: object) -> Staged:
        found = self._editor._stage(Stage(request, "a_tool", "request"))  # type: ignore[arg-type]
        if isinstance(found, CallboardError):
            raise found
        return found

    def staged(self, request: object) -> str:
        proposal = self.stage(request).proposal
        assert proposal is not None
        return proposal.id

    def replace(self, file: str, old: str, new: str) -> str:
        return self.staged(EditCode((CodeEdit(new, file=file, old_text=old),), {}))

    def decide(self, *ids: str, approve: bool = True, reason: str = "", **contents: str) -> tuple[Proposal, ...]:
        named = {name.replace("__", "."): text for name, text in contents.items()}
        found = self._editor._decide(DecideEdits(ids or None, approve, "owner", reason, named))
        if isinstance(found, CallboardError):
            raise found
        return found

    def states(self) -> dict[str, ProposalState]:
        found = self._editor._list(ListProposals())
        assert isinstance(found, tuple)
        return {each.id: each.state for each in found}

    def close(self) -> None:
        self._editor.on_stop()

    def leftovers(self) -> list[str]:
        return [name for _, _, names in os.walk(self.root) for name in names if name.startswith(".callboard-")]
