"""Which process may write to a journal that several share: its owners, and for how long each of them counts as alive.

An owner is a row: a number that no other owner ever had (its fencing token), and a time of the server's clock, to be
renewed before it comes. Who finds a time passed deletes the row, and the open requests of that owner belong to the one
that deleted it. Each transaction that writes locks its own owner's row first, so that it cannot be deleted before the
commit; where there is no such row any more, nothing is written. So a process that was stopped for longer than its
lease, and then goes on, writes nothing once another process has its requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Protocol

from callboard.actors.journal.journal_store import JournalLost

#: A process that does not answer for so long is taken for dead. A restart of the server and a full collection of
#: garbage take less; of what a dead process had open, nothing goes on for so long. As long as Kubernetes' leases by
#: default (client-go, LeaseDuration of its leader election).
LEASE_SECONDS: Final = 15.0
#: So often within a lease is it renewed: two attempts may fail.
RENEWALS: Final = 3
#: Counts while the machine sleeps, too. Where there is no such clock (macOS), the monotonic one does.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

OWNERS: Final = "callboard_owners"
OWNERS_TABLE: Final = f"""
CREATE TABLE IF NOT EXISTS {OWNERS} (
    token bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    who text NOT NULL,
    lease interval NOT NULL,
    lease_until timestamptz NOT NULL
)"""
_BEGIN: Final = f"""
INSERT INTO {OWNERS} (who, lease, lease_until)
SELECT ?, given.lease, clock_timestamp() + given.lease FROM make_interval(secs => ?) AS given(lease)
RETURNING token"""
_RENEW: Final = f"UPDATE {OWNERS} SET lease_until = clock_timestamp() + lease WHERE token = ? RETURNING lease_until"
_UNTIL: Final = f"SELECT lease_until FROM {OWNERS} WHERE token = ?"
#: FOR KEY SHARE lets renewals by (UPDATE of another column), and no deletion.
_PROVE: Final = f"SELECT token FROM {OWNERS} WHERE token = ? FOR KEY SHARE"
#: One process at a time looks for dead ones. Two that did so at once could each see the other's work half done: a
#: statement that has waited for a row looks at that row again, but not at the other tables.
_ALONE: Final = "SELECT pg_try_advisory_xact_lock(7239001146002)"
#: After a start of the server each owner has a whole lease to come back: while it was away none was renewed.
#: Rows that are locked belong to owners that are writing this moment, so they are alive.
_DROP_EXPIRED: Final = f"""
DELETE FROM {OWNERS} WHERE token IN (
    SELECT token FROM {OWNERS}
    WHERE greatest(lease_until, pg_postmaster_start_time() + lease) < clock_timestamp() AND token <> ?
    FOR UPDATE SKIP LOCKED)
RETURNING token"""
_END: Final = f"DELETE FROM {OWNERS} WHERE token = ? RETURNING token"


class Execute(Protocol):
    """Runs one statement of PostgreSQL's that returns rows, with `?` for each parameter."""

    def __call__(self, sql: str, parameters: Sequence[object] = ()) -> Sequence[tuple[object, ...]]: ...


def seconds_awake_or_not() -> float:
    """A clock that never goes back, and that goes on while the process is stopped or the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """The right of one process to write. Each method is given what runs its statements; `who` is for people to read."""

    def __init__(
        self, who: str, seconds: float = LEASE_SECONDS, now: Callable[[], float] = seconds_awake_or_not
    ) -> None:
        self.token = 0
        """The fencing token; 0 before `begin`, and when it was lost."""
        self._who, self._seconds, self._now = who, seconds, now
        self._until = 0.0

    @property
    def renew_seconds(self) -> float:
        """After so many seconds it is to be renewed."""
        return self._seconds / RENEWALS

    def is_held(self) -> bool:
        """Counted from before the server was asked, so never longer than the server counts."""
        return self._now() < self._until

    def begin(self, execute: Execute) -> None:
        """Become a new owner, with a new token; outside a transaction, or in one that is committed at once."""
        asked_at = self._now()
        [(token,)] = execute(_BEGIN, (self._who, self._seconds))
        assert isinstance(token, int)
        self.token, self._until = token, asked_at + self._seconds

    def renew(self, execute: Execute) -> None:
        """Also late, as long as no other process has taken over. Raises JournalLost."""
        asked_at = self._now()
        self._expect_a_row(execute(_RENEW, (self.token,)))
        self._until = asked_at + self._seconds

    def prove(self, execute: Execute) -> None:
        """First in each transaction that writes: until its end no other process can take over. Raises JournalLost."""
        self._expect_a_row(execute(_PROVE, (self.token,)))

    def mark(self, execute: Execute) -> datetime:
        """`prove`, for a transaction whose commit is not waited for; gives what `marked` tells once it has one."""
        return _time_of(self._expect_a_row(execute(_RENEW, (self.token,))))

    def marked(self, execute: Execute) -> datetime:
        """Whatever has a later mark, the server has forgotten. Raises JournalLost."""
        return _time_of(self._expect_a_row(execute(_UNTIL, (self.token,))))

    def drop_expired(self, execute: Execute) -> bool:
        """In a transaction, before what dead owners had is taken over: whether to go on, since no other does it."""
        self.prove(execute)
        [(alone,)] = execute(_ALONE)
        if alone:
            execute(_DROP_EXPIRED, (self.token,))
        return bool(alone)

    def end(self, execute: Execute) -> None:
        """Leave what is open to others, at once."""
        if self.token:
            execute(_END, (self.token,))
        self.token, self._until = 0, 0.0

    def _expect_a_row(self, rows: Sequence[tuple[object, ...]]) -> tuple[object, ...]:
        if not rows:
            self.token, self._until = 0, 0.0
            raise JournalLost(
                f"another process has taken over what this one had open, since for more than {self._seconds:g} s this "
                "one did not renew its lease of the journal; the requests go on there"
            )
        return rows[0]


def _time_of(row: tuple[object, ...]) -> datetime:
    (time_there,) = row
    assert isinstance(time_there, datetime)
    return time_there
