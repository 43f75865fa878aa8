"""What the Responses API keeps of the responses of one tenant: what was asked, and the object that came of it.

The journal has the request itself. A file beside it has what only this API knows, so that a response is found after a
restart. Without a journal, all of it is in memory.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from pathlib import Path
from threading import Lock
from typing import Final

from msgspec import Struct
from pydantic_core import from_json

from callboard.actors import sqlite_log
from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.json_bytes import json_bytes
from callboard.actors.daemon.recently_used import RecentlyUsed
from callboard.actors.daemon.sealed_summaries import SummarySeal, new_key
from callboard.actors.requests.replies import Reply

#: OpenAI keeps responses for 30 days ("Your data", API guide).
KEPT_SECONDS: Final = 30 * 24 * 3600.0
#: Replies in memory of one tenant, for the responses that follow on them: some kB each; fewer where they are large.
MAX_REPLIES: Final = 2_000
#: Between two looks for what is too old.
FORGET_SECONDS: Final = 3600.0
#: Of all responses of one tenant that has no journal, with their inputs, which may have pictures.
MAX_MEMORY_BYTES: Final = 64 * 1024 * 1024
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, created_at REAL NOT NULL, previous TEXT NOT NULL, input BLOB NOT NULL, first BLOB NOT NULL,
    shows_encrypted INTEGER NOT NULL, has_form INTEGER NOT NULL, final BLOB
) STRICT
"""
_SEAL: Final = "CREATE TABLE IF NOT EXISTS seal (key BLOB NOT NULL) STRICT"


class ResponseRecord(Struct, frozen=True):
    """One response."""

    request_id: str
    created_at: float
    """Seconds since 1970."""
    previous: str
    """The request that it follows on; "": none."""
    items: list[dict[str, object]]
    """Its own input."""
    first: dict[str, object]
    """The response object at its beginning."""
    shows_encrypted: bool
    has_form: bool
    final: dict[str, object] | None = None
    """The response object at its end; None: it has not ended, or its end was not seen."""


class AttendedResponse(Struct, frozen=True):
    """What came of a response that was waited for."""

    final: dict[str, object]
    error: ApiError | None
    """Why there is no answer, for the client that waits."""


class ResponseRecords:
    """Those of one tenant. Each method may wait for the disk, some milliseconds."""

    def __init__(self, path: Path | None) -> None:
        """`path`: its file, made with access for its owner only; None: in memory. Raises OSError, sqlite3.Error."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._lock = Lock()
        self._file = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
        sqlite_log.switch_on(self._file.execute)
        self._file.execute(_TABLE)
        self._file.execute(_SEAL)
        self._file.execute("INSERT INTO seal SELECT ? WHERE NOT EXISTS (SELECT 1 FROM seal)", (new_key(),))
        self.seal = SummarySeal(self._file.execute("SELECT key FROM seal").fetchone()[0])
        """Of the summaries that clients of this tenant are given. Without a file it is another one after a restart."""
        self._is_in_memory = path is None
        self._forgot_at = 0.0
        self._forget()
        self._replies = RecentlyUsed[Reply[object]](MAX_REPLIES)
        self.attending: dict[str, asyncio.Task[AttendedResponse]] = {}
        """Who waits for the end of a response, by its request."""

    def add(self, record: ResponseRecord) -> None:
        """Before its request begins."""
        row = (record.request_id, record.created_at, record.previous, json_bytes(record.items))
        flags = (json_bytes(record.first), record.shows_encrypted, record.has_form)
        with self._lock:
            self._file.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", (*row, *flags))
            self._forget(but=record.request_id)

    def end(self, request_id: str, final: dict[str, object]) -> None:
        """The object at its end. One that was deleted stays so."""
        with self._lock:
            self._file.execute("UPDATE responses SET final = ? WHERE id = ?", (json_bytes(final), request_id))
            self._forget(but=request_id)

    def _forget(self, but: str = "") -> None:
        """What is too old, and, in memory, the oldest where it is too much."""
        now = time.time()
        if now - self._forgot_at > FORGET_SECONDS:
            self._forgot_at = now
            self._file.execute("DELETE FROM responses WHERE created_at < ?", (now - KEPT_SECONDS,))
        while self._is_in_memory and self._used_bytes() > MAX_MEMORY_BYTES:
            oldest = "SELECT id FROM responses WHERE id != ? ORDER BY created_at LIMIT 1"
            if not self._file.execute(f"DELETE FROM responses WHERE id = ({oldest})", (but,)).rowcount:
                return

    def _used_bytes(self) -> int:
        pages, free, size = (
            self._file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def remove(self, request_id: str) -> None:
        """As if it had never been; the journal keeps its request."""
        self._replies.drop(request_id)
        with self._lock:
            self._file.execute("DELETE FROM responses WHERE id = ?", (request_id,))

    def find(self, request_id: str) -> ResponseRecord | None:
        """The response; None where there is none."""
        with self._lock:
            row = self._file.execute("SELECT * FROM responses WHERE id = ?", (request_id,)).fetchone()
        if row is None:
            return None
        name, created_at, previous, items, first, shows_encrypted, has_form, final = row
        known = None if final is None else from_json(final)
        flags = (bool(shows_encrypted), bool(has_form))
        return ResponseRecord(name, created_at, previous, from_json(items), from_json(first), *flags, known)

    def keep_reply(self, reply: Reply[object]) -> None:
        """For the responses that follow on it, in place of those that were not used for the longest time."""
        self._replies.keep(reply.request_id, reply)

    def reply(self, request_id: str) -> Reply[object] | None:
        """The reply, where memory has it."""
        return self._replies.find(request_id)

    @property
    def replies_bytes(self) -> int:
        """About so much memory the replies hold."""
        return self._replies.size_bytes

    def close(self) -> None:
        """No more is kept."""
        with self._lock:
            self._file.close()
