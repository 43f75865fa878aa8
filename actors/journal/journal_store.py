"""What a database must do for the journal. Writing and reading are apart: one thread writes, any may read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from callboard.actors.journal.journal_records import Change, OpenReport, RequestLog, SetAside
from callboard.protocol.errors import OutcomeUnknown, RuntimeFailure
from callboard.protocol.ids import RequestId


class JournalFailed(RuntimeFailure):
    """Nothing of a batch was written. The message says why and what to do.

    Writing again can help: a full disk has room again, a server comes back.
    """


class JournalUnsure(JournalFailed, OutcomeUnknown):
    """It is not known whether it was written: the commit was under way."""


class JournalLost(JournalUnsure):
    """Another process has taken over what this one had: it may write no more under its name."""


class JournalGone(JournalLost):
    """Its files are not those any more that this process opened: the runtime ends, and opens no others in their
    place."""


class ChangeRefused(RuntimeFailure):
    """One change cannot be written, and the rest of its batch was: a statement of a tool failed, or what was to be
    written once is there already."""


Idle = Callable[[Collection[RequestId]], frozenset[RequestId]]
"""Which of these open requests nothing in this process goes on with."""


class JournalWriter(Protocol):
    """Owned by one thread. What is not a CallboardError is a fault of ours."""

    @property
    def is_shared(self) -> bool:
        """Do other processes write to it too? Then requests of those that end are looked for."""
        ...

    def open(self) -> OpenReport:
        """Before anything else: lock, make what is missing, check, repair. Raises UsageError for what is no journal, of
        another version, or owned by another process; JournalFailed where the disk or the server does not answer."""
        ...

    def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        """Write all of it, durable when this returns, in order; for each change None, or why it alone was refused.

        A Write that is there already is written once. Raises JournalFailed: then nothing of the batch counts as
        written, and it may be given again; JournalUnsure where it may be there all the same. Raises JournalLost: then
        it must not; JournalGone: all there was is over.
        """
        ...

    def take_up(self, idle: Idle | None = None) -> tuple[RequestId, ...]:
        """The open requests that are ours from now on and were not before: of earlier processes of this journal that
        have ended. Each is counted as taken up once more.

        With `idle` also those that are ours already, where others share the journal, and of which it says twice in a
        row that nothing here goes on with them: what became of taking them up was not heard, or came to nothing.
        """
        ...

    def forget_takings(self, request_ids: Sequence[RequestId]) -> None:
        """These requests were left as they are: that they were taken up does not count. Raises as `commit`."""
        ...

    def renew(self) -> float | None:
        """Prove that we are alive, or see that all is ours still; the seconds after which to do so again, None where
        there is no need.

        Raises as `commit`.
        """
        ...

    def may_act(self) -> bool:
        """May what was written be acted on? Not when our lease may be over: then another process goes on with it."""
        ...

    def reader(self) -> JournalReader:
        """A new reader, for one thread."""
        ...

    def close(self) -> None:
        """What is ours and open is left for the next process."""
        ...


class JournalReader(Protocol):
    """One connection of its own, for one thread at a time. Raises JournalFailed."""

    def request(self, request_id: RequestId) -> RequestLog | None:
        """All there is of it; None where there is nothing."""
        ...

    def open_requests(self) -> tuple[RequestId, ...]:
        """Those that have begun and not ended, the oldest first."""
        ...

    def set_aside(self) -> Iterator[SetAside]:
        """What could not be read, since the journal was made."""
        ...

    def give_up(self) -> None:
        """From any thread: who reads waits for a server no longer. It is closed next."""
        ...

    def close(self) -> None: ...
