"""What a started runtime reads from its journal, from any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from callboard.actors.journal.journal import JournalMessage, run_on_store
from callboard.actors.journal.journal_records import RequestLog, SetAside
from callboard.actors.journal.journal_store import JournalReader
from callboard.actors.journal.retention import cleaning, keep_apart
from callboard.actors.kernel import Ref
from callboard.protocol.ids import RequestId


class JournalRecords:
    """One connection, made when it is first used; one reads at a time."""

    def __init__(self, journal: Ref[JournalMessage]) -> None:
        self._journal = journal
        self._reader: JournalReader | None = None
        self._reading = Lock()

    def request(self, request_id: RequestId) -> RequestLog | None:
        """All that is durable of it. Raises JournalFailed."""
        return self._read(lambda reader: reader.request(request_id))

    def written_request(self, request_id: RequestId) -> RequestLog | None:
        """Likewise, with what waits to be written now."""
        run_on_store(self._journal, lambda _: None)
        return self.request(request_id)

    def take_up(self) -> tuple[RequestId, ...]:
        """The open requests that are ours from now on, the oldest first."""
        return run_on_store(self._journal, lambda writer: writer.take_up())

    def left_as_they_are(self, request_ids: Sequence[RequestId]) -> None:
        """It does not count that these were taken up."""
        run_on_store(self._journal, lambda writer: writer.forget_takings(request_ids))

    def set_aside(self, found: SetAside) -> None:
        """Add it to the report. Raises JournalFailed."""
        run_on_store(self._journal, lambda writer: cleaning(writer).change(lambda on: keep_apart(on, found)))

    def _read(self, read: Callable[[JournalReader], RequestLog | None]) -> RequestLog | None:
        with self._reading:
            if self._reader is None:
                self._reader = run_on_store(self._journal, lambda writer: writer.reader())
            return read(self._reader)

    def close(self) -> None:
        """Read no more."""
        if (reader := self._reader) is not None:
            reader.give_up()
        with self._reading:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
