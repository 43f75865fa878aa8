"""A journal in virtual time: slow, full for a while, and cut off by a crash."""

from __future__ import annotations

from msgspec import Struct

from callboard.protocol.testing.scenario import Store


class _Write(Struct, frozen=True):
    written_at: float
    lines: list[bytes]
    entries: int
    """How many entries the trace had when this was applied."""


class Journal:
    """Holds what was written, and what is on its way there; lines are written in the order in which they came."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writes: list[_Write] = []

    def write(self, lines: list[bytes], entries: int, now: float) -> float:
        """Write these lines; returns the time at which they are durable, in virtual seconds."""
        ready = max(now, self._writes[-1].written_at if self._writes else now)
        written_at = ready + (self._store.write_seconds if lines else 0.0)
        if self._store.full_from <= written_at < self._store.full_until:
            written_at = self._store.full_until
        self._writes.append(_Write(written_at, lines, entries))
        return written_at

    def mark(self, entries: int, now: float) -> None:
        """These entries of the trace are known to the outside: a session has just been resumed."""
        self._writes.append(_Write(now, [], entries))

    def crash(self, now: float) -> tuple[list[bytes], int]:
        """The lines that are durable now, and how many entries of the trace they stand for. The rest is gone."""
        self._writes = [write for write in self._writes if write.written_at <= now]
        entries = self._writes[-1].entries if self._writes else 0
        return [line for write in self._writes for line in write.lines], entries
