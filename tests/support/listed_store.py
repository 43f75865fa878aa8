"""A journal store for tests of the Journal actor: it lists its commits, and fails as the test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from callboard.actors.journal.journal_records import Change, OpenReport
from callboard.actors.journal.journal_store import ChangeRefused, Idle
from callboard.protocol.ids import RequestId


@dataclass
class ListedStore:
    """What all writers share."""

    commits: list[tuple[Change, ...]] = field(default_factory=list)
    """Those that were made durable."""
    on_open: Callable[[], object] = lambda: None
    on_commit: Callable[[tuple[Change, ...]], object] = lambda batch: None
    """May raise, before anything is written."""
    refuses: Callable[[Change], ChangeRefused | None] = lambda change: None
    on_renew: Callable[[], float | None] = lambda: None
    acts: bool = True
    taken_up: tuple[RequestId, ...] = ()
    notes: tuple[str, ...] = ()
    opened: int = 0
    closed: int = 0
    renewed: int = 0

    def make(self) -> ListedWriter:
        return ListedWriter(self)

    @property
    def changes(self) -> list[Change]:
        return [change for batch in self.commits for change in batch]


class ListedWriter:
    """A JournalWriter of it."""

    is_shared = True

    def __init__(self, store: ListedStore) -> None:
        self._store = store
        self._is_open = False

    def open(self) -> OpenReport:
        self._store.on_open()
        self._store.opened += 1
        self._is_open = True
        return OpenReport(self._store.notes)

    def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        assert self._is_open
        store = self._store
        store.on_commit(tuple(batch))
        refused = [store.refuses(change) for change in batch]
        store.commits.append(tuple(change for change, why in zip(batch, refused, strict=True) if why is None))
        return refused

    def take_up(self, idle: Idle | None = None) -> tuple[RequestId, ...]:
        found, self._store.taken_up = self._store.taken_up, ()
        return found

    def renew(self) -> float | None:
        self._store.renewed += 1
        seconds = self._store.on_renew()
        self._store.acts = True
        return seconds

    def may_act(self) -> bool:
        return self._store.acts

    def reader(self) -> Any:
        raise NotImplementedError("no test of the Journal actor reads")

    def close(self) -> None:
        assert self._is_open
        self._is_open = False
        self._store.closed += 1
