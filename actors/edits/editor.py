"""Editor: the actor that owns the proposals of a workspace and the files that they change, on a thread of its own."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from callboard.actors.builtins.workspace import Workspace
from callboard.actors.edits.applying import Applier
from callboard.actors.edits.diffs import git_diff
from callboard.actors.edits.planning import EditRequest, Planner
from callboard.actors.edits.proposal_store import DATABASE, ProposalStore, new_id, proposed_files
from callboard.actors.edits.proposals import DecideEdits, Proposal, ProposalState
from callboard.actors.kernel import Actor, Asks, ChildSpec, handles, logger_of
from callboard.protocol.errors import CallboardError, RuntimeFailure, said

logger = logger_of("callboard.edits")
Answered = TypeVar("Answered")


class Staged(Struct, frozen=True):
    """What a request came to."""

    proposal: Proposal | None
    """None: there is nothing to be done, and the notes say why."""
    notes: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    """Older proposals that it conflicts with."""


class Stage(Asks[Staged | CallboardError], Struct, frozen=True):
    """Stage what a call asks for."""

    request: EditRequest
    tool: str
    request_id: str = ""
    call_id: str = ""


class ListProposals(Asks[tuple[Proposal, ...] | CallboardError], Struct, frozen=True):
    """All that are kept, or those in these states; the oldest first."""

    states: tuple[ProposalState, ...] = tuple(ProposalState)


class ListUntold(Asks[tuple[Proposal, ...] | CallboardError], Struct, frozen=True):
    """Those of these requests that are decided, of which the model has not read it."""

    request_ids: tuple[str, ...]


class MarkTold(Asks[tuple[str, ...] | CallboardError], Struct, frozen=True):
    """The model reads of these; answered with those that it had not read of before."""

    ids: tuple[str, ...]


EditorMessage = Stage | ListProposals | DecideEdits | ListUntold | MarkTold


class Listener(Protocol):
    """Hears of proposals, on the editor's thread."""

    def decided(self, proposal: Proposal) -> None:
        """It has ended, or it was approved and could not be applied."""

    def files_changed(self) -> None:
        """One was applied."""

    def remembers(self, request_ids: Iterable[str]) -> None:
        """Earlier runtimes have staged for these requests what is kept here."""


class Editor(Actor[EditorMessage]):
    """See the module. What goes wrong costs the message that it was asked for."""

    def __init__(self, workspace: Workspace, folder: Path, listener: Listener) -> None:
        """`folder` keeps the proposals."""
        self._workspace = workspace
        self._folder = folder
        self._listener = listener
        self._store: ProposalStore | None = None

    def on_start(self) -> None:
        """Complete or take back what a dead process has left."""
        if (self._folder / DATABASE).exists():
            self._ask(self._begin)

    def _begin(self, store: ProposalStore) -> None:
        self._applier(store).recover()
        self._listener.remembers(store.requests())

    def on_stop(self) -> None:
        if self._store is not None:
            self._store.close()

    def _ask(self, question: Callable[[ProposalStore], Answered]) -> Answered | CallboardError:
        try:
            if self._store is None:
                self._store = ProposalStore(self._folder)
            return question(self._store)
        except CallboardError as error:
            return error
        except sqlite3.Error as error:
            return RuntimeFailure(f"the proposals in {self._folder} cannot be read or written: {said(error)}")
        except Exception as error:
            logger.exception("an edit failed")
            return RuntimeFailure(f"internal_error: an edit failed: {said(error)}")

    def _applier(self, store: ProposalStore) -> Applier:
        return Applier(store, self._workspace.root, self._workspace.rules)

    @handles(Stage)
    def _stage(self, message: Stage) -> Staged | CallboardError:
        return self._ask(lambda store: self._staged(store, message))

    def _staged(self, store: ProposalStore, message: Stage) -> Staged:
        self._applier(store).recover()
        planned = Planner(self._workspace).plan(message.request)
        changes = planned.changes
        if not changes:
            return Staged(None, planned.notes)
        proposal = Proposal(
            new_id(),
            ProposalState.PENDING,
            message.tool,
            proposed_files(changes),
            git_diff(changes, str(self._workspace.root)),
            message.request_id,
            message.call_id,
            time.time(),
        )
        stale = store.add(proposal, changes)
        for each in stale:
            self._listener.decided(store.get(each))
        return Staged(proposal, planned.notes, stale)

    @handles(ListProposals)
    def _list(self, message: ListProposals) -> tuple[Proposal, ...] | CallboardError:
        def found(store: ProposalStore) -> tuple[Proposal, ...]:
            self._applier(store).recover()
            return tuple(map(store.get, store.ids(message.states)))

        return self._ask(found)

    @handles(DecideEdits)
    def _decide(self, message: DecideEdits) -> tuple[Proposal, ...] | CallboardError:
        return self._ask(lambda store: self._all_decided(store, message))

    def _all_decided(self, store: ProposalStore, message: DecideEdits) -> tuple[Proposal, ...]:
        applier = self._applier(store)
        ids = store.pending() if message.ids is None else tuple(dict.fromkeys(message.ids))
        before = {each: store.get(each) for each in ids}  # a wrong id changes nothing
        others = [each for each in store.pending() if each not in before]
        found = []
        for each in ids:
            if message.is_approved:
                proposal = applier.apply(each, message.by, message.contents)
            else:
                proposal = applier.deny(each, message.by, message.reason)
            found.append(proposal)
            if message.is_told:
                store.mark_told((each,))
            elif proposal != before[each]:
                self._listener.decided(proposal)
        for each in others:  # of the same lines as one that was applied
            if (other := store.get(each)).state is ProposalState.STALE:
                self._listener.decided(other)
        if any(each.state is ProposalState.APPLIED and before[each.id].state != each.state for each in found):
            self._listener.files_changed()
        return tuple(found)

    @handles(ListUntold)
    def _list_untold(self, message: ListUntold) -> tuple[Proposal, ...] | CallboardError:
        return self._ask(lambda store: store.untold(message.request_ids))

    @handles(MarkTold)
    def _mark_told(self, message: MarkTold) -> tuple[str, ...] | CallboardError:
        return self._ask(lambda store: store.mark_told(message.ids))


def editor_actor(workspace: Workspace, folder: Path, listener: Listener) -> ChildSpec[EditorMessage]:
    """For the tree; see `Editor`."""
    return ChildSpec("editor", lambda: Editor(workspace, folder, listener), runs_on="thread")
