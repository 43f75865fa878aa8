"""The proposals of one workspace, in a SQLite file of the user's state folder: they outlive the process.

Several processes may work on one workspace. Each statement that changes something is one transaction of SQLite's; what
touches files besides is done under `lock`, which the kernel takes from a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from callboard.actors import sqlite_log
from callboard.actors.edits.changes import ChangeKind, FileChange, Splice, conflict
from callboard.actors.edits.diffs import changed_lines, git_diff
from callboard.actors.edits.proposals import Proposal, ProposalState, ProposedFile
from callboard.actors.index.records import digest
from callboard.protocol.errors import RuntimeFailure, UsageError

#: Proposals that may wait for their owner; more are refused.
MAX_PENDING: Final = 500
#: Settled ones that are kept, without their files' contents.
MAX_SETTLED: Final = 1_000
#: An apply of many files takes seconds on a slow disk.
LOCK_SECONDS: Final = 30.0
LOCK_POLL_SECONDS: Final = 0.02
#: Contents of files are in it.
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
DATABASE: Final = "edits.sqlite"
FORMAT_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS proposals(
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, state TEXT NOT NULL, phase TEXT NOT NULL,
    tool TEXT NOT NULL, request TEXT NOT NULL, call TEXT NOT NULL, staged_at REAL NOT NULL, by TEXT NOT NULL,
    reason TEXT NOT NULL, is_changed INTEGER NOT NULL, is_told INTEGER NOT NULL, diff TEXT NOT NULL,
    files TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS changes(
    proposal TEXT NOT NULL, place INTEGER NOT NULL, path TEXT NOT NULL, target TEXT, base BLOB, executable INTEGER,
    splices TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY(proposal, place));
CREATE INDEX IF NOT EXISTS by_state ON proposals(state);
CREATE INDEX IF NOT EXISTS untold ON proposals(request) WHERE is_told = 0;
"""
_COLUMNS: Final = "id, state, phase, tool, request, call, staged_at, by, reason, is_changed, diff, files"


class Phase(StrEnum):
    """How far an apply is. What holds the lock and finds a proposal in one of them knows that its process has died."""

    NONE = ""
    PREPARING = "preparing"
    """Temporary files are written; the files themselves are as they were."""
    FORWARD = "forward"
    """Decided: every file becomes the new one."""
    BACK = "back"
    """Decided: every file becomes the old one again."""


class ApplyRecord(Struct, frozen=True):
    """What an apply must remember, besides the changes, to be completed or taken back by another process."""

    folders: tuple[str, ...] = ()
    """Those that it makes, the outer ones first."""
    attributes: Mapping[str, tuple[int, int, int]] | None = None
    """Mode, owner and group of each file that was there."""
    by: str = ""
    """Who has approved."""
    why_back: str = ""


class NoSuchProposal(UsageError):
    """There is no proposal with this id."""


class ProposalStore:
    """One connection, for one thread. Raises UsageError where the state folder cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / DATABASE
        self._lock_path = folder / "edits.lock"
        self._held = False
        try:
            folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            # SQLite's side files get the mode of the database.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            self._connection = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"proposals cannot be kept in {folder}: {error}; name another state_dir") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=sqlite_log.BUSY_SECONDS, isolation_level=None)
        try:
            sqlite_log.switch_on(connection.execute)
            # What was decided must be on the disk before a file is renamed, also when the power fails.
            connection.execute("PRAGMA synchronous=FULL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, FORMAT_VERSION):
                raise UsageError(f"{self.path} is of another version of callboard; move it away, or update callboard")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        self._connection.close()

    # -- one at a time

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by the one process and thread that touches files. Raises RuntimeFailure when another keeps it."""
        handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            until = time.monotonic() + LOCK_SECONDS
            while not _taken(handle):
                if time.monotonic() >= until:
                    raise RuntimeFailure(f"another process has been applying edits for {LOCK_SECONDS:g} s; try again")
                time.sleep(LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; may be nested. Raises RuntimeFailure for what SQLite says."""
        try:
            if self._held:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            self._held = True
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._held = False
        except sqlite3.Error as error:
            raise RuntimeFailure(f"the proposals in {self.path} cannot be read or written: {error}") from error

    # -- staging

    def add(self, proposal: Proposal, changes: tuple[FileChange, ...]) -> tuple[str, ...]:
        """Keep a new one. Older ones that conflict with it become stale; their ids. Raises UsageError when full."""
        with self.transaction():
            pending = self.pending()
            if len(pending) >= MAX_PENDING:
                raise UsageError(f"{MAX_PENDING} proposals wait for their owner; approve or deny some of them first")
            # Not when one is settled: an old one that was decided late would be gone before its owner is told.
            self._connection.execute(
                "DELETE FROM proposals WHERE state NOT IN ('pending') AND phase = '' AND number <= "
                "(SELECT number FROM proposals WHERE state NOT IN ('pending') ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (MAX_SETTLED,),
            )
            stale = {each: why for each in pending if (why := _conflicts(self.changes(each), changes))}
            for each, why in stale.items():
                told = f"the later proposal {proposal.id} conflicts with it: {why}"
                self.settle(each, ProposalState.STALE, by=proposal.id, reason=told)
            values = (
                *(proposal.id, proposal.state, Phase.NONE, proposal.tool, proposal.request_id, proposal.call_id),
                *(proposal.staged_at, proposal.by, proposal.reason, proposal.is_changed_by_owner, 1, proposal.diff),
                *(_files_json(proposal.files), "{}"),
            )
            self._connection.execute(
                "INSERT INTO proposals(id, state, phase, tool, request, call, staged_at, by, reason, is_changed, "
                f"is_told, diff, files, record) VALUES({', '.join('?' * len(values))})",
                values,
            )
            self._write(proposal.id, changes)
            return tuple(stale)

    def rewrite(self, proposal_id: str, changes: tuple[FileChange, ...], root: str, *, by_owner: bool = False) -> None:
        """Other changes under the same id: moved by an edit that was applied, or made by who approves."""
        with self.transaction():
            self._connection.execute("DELETE FROM changes WHERE proposal = ?", (proposal_id,))
            self._write(proposal_id, changes)
            self._connection.execute(
                "UPDATE proposals SET diff = ?, files = ?, is_changed = max(is_changed, ?) WHERE id = ?",
                (git_diff(changes, root), _files_json(proposed_files(changes)), by_owner, proposal_id),
            )

    def _write(self, proposal_id: str, changes: Iterable[FileChange]) -> None:
        rows = []
        for place, each in enumerate(changes):
            spans = orjson.dumps([(splice.start, splice.end, len(splice.content)) for splice in each.splices]).decode()
            content = b"".join(splice.content for splice in each.splices)
            executable = None if each.is_executable is None else int(each.is_executable)
            rows.append((proposal_id, place, each.path, each.target, each.base, executable, spans, content))
        self._connection.executemany("INSERT INTO changes VALUES(?, ?, ?, ?, ?, ?, ?, ?)", rows)

    # -- reading

    def pending(self) -> tuple[str, ...]:
        """Those that wait for a decision, without one that is just being applied."""
        rows = self._connection.execute(
            "SELECT id FROM proposals WHERE state = 'pending' AND phase = '' ORDER BY number"
        )
        return tuple(row[0] for row in rows.fetchall())

    def ids(self, states: Iterable[ProposalState] = tuple(ProposalState)) -> tuple[str, ...]:
        """Of the proposals in these states, the oldest first."""
        wanted = tuple(states)
        marks = ", ".join("?" * len(wanted))
        rows = self._connection.execute(f"SELECT id FROM proposals WHERE state IN ({marks}) ORDER BY number", wanted)
        return tuple(row[0] for row in rows.fetchall())

    def get(self, proposal_id: str) -> Proposal:
        """Raises NoSuchProposal."""
        row = self._connection.execute(f"SELECT {_COLUMNS} FROM proposals WHERE id = ?", (proposal_id,)).fetchone()
        if row is None:
            raise NoSuchProposal(f"there is no proposal {proposal_id!r}; list the proposals to see their ids")
        known, state, phase, tool, request, call, staged_at, by, reason, is_changed, diff, files = row
        state = ProposalState.APPLYING if phase in (Phase.FORWARD, Phase.BACK) else ProposalState(state)
        listed = tuple(ProposedFile(**{**each, "kind": ChangeKind(each["kind"])}) for each in orjson.loads(files))
        return Proposal(known, state, tool, listed, diff, request, call, staged_at, by, reason, bool(is_changed))

    def changes(self, proposal_id: str) -> tuple[FileChange, ...]:
        """Of a proposal that is not settled; of others nothing is kept."""
        rows = self._connection.execute(
            "SELECT path, target, base, executable, splices, content FROM changes WHERE proposal = ? ORDER BY place",
            (proposal_id,),
        )
        return tuple(_change(*row) for row in rows)

    # -- deciding

    def settle(self, proposal_id: str, state: ProposalState, *, by: str, reason: str) -> None:
        """It is applied, denied or stale: its contents are dropped, and the model is to read so."""
        with self.transaction():
            self._connection.execute(
                "UPDATE proposals SET state = ?, phase = '', record = '{}', by = ?, reason = ?, "
                "is_told = (request = '') WHERE id = ?",
                (state, by, reason, proposal_id),
            )
            self._connection.execute("DELETE FROM changes WHERE proposal = ?", (proposal_id,))

    def remark(self, proposal_id: str, by: str, reason: str) -> None:
        """It stays pending, though it was approved: why it could not be applied."""
        with self.transaction():
            self._connection.execute(
                "UPDATE proposals SET phase = '', record = '{}', by = ?, reason = ?, is_told = (request = '') "
                "WHERE id = ?",
                (by, reason, proposal_id),
            )

    def enter(self, proposal_id: str, phase: Phase, record: ApplyRecord) -> bool:
        """On the disk when this returns. False, and nothing is done, where it is no longer pending."""
        with self.transaction():
            done = self._connection.execute(
                "UPDATE proposals SET phase = ?, record = ? WHERE id = ? AND state = 'pending'",
                (phase, orjson.dumps(record, asdict).decode(), proposal_id),
            )
        return done.rowcount > 0

    def unfinished(self) -> tuple[tuple[str, Phase, ApplyRecord], ...]:
        """What dead processes have left; asked under the lock."""
        rows = self._connection.execute("SELECT id, phase, record FROM proposals WHERE phase != '' ORDER BY number")
        return tuple((known, Phase(phase), _record(record)) for known, phase, record in rows)

    # -- what the model is yet to read

    def untold(self, request_ids: Iterable[str]) -> tuple[Proposal, ...]:
        """Decided, and the model of these requests has not read so."""
        wanted = tuple(request_ids)
        marks = ", ".join("?" * len(wanted))
        rows = self._connection.execute(
            f"SELECT id FROM proposals WHERE is_told = 0 AND request IN ({marks}) ORDER BY number", wanted
        )
        return tuple(self.get(row[0]) for row in rows.fetchall())

    def requests(self) -> frozenset[str]:
        """Those whose calls have staged what is kept here, and not yet told."""
        rows = self._connection.execute(
            "SELECT DISTINCT request FROM proposals WHERE request != '' AND (is_told = 0 OR state = 'pending')"
        )
        return frozenset(row[0] for row in rows)

    def mark_told(self, proposal_ids: Iterable[str]) -> tuple[str, ...]:
        """The model reads them now; those of them that it had not read before: another process may have told them."""
        told = []
        with self.transaction():
            for each in proposal_ids:
                done = self._connection.execute(
                    "UPDATE proposals SET is_told = 1 WHERE id = ? AND is_told = 0", (each,)
                )
                if done.rowcount:
                    told.append(each)
        return tuple(told)


def folder_of(state_dir: Path, workspace: Path) -> Path:
    """Where the proposals of a workspace are kept: a folder named after it, told apart by a digest of its path."""
    place = os.fsencode(workspace)
    name = "".join(letter if letter.isalnum() else "-" for letter in workspace.name)[:40]
    return state_dir / f"{name or 'root'}-{digest(place).hex()[:16]}"


def new_id() -> str:
    """Short enough to be typed."""
    return secrets.token_hex(4)


def proposed_files(changes: Iterable[FileChange]) -> tuple[ProposedFile, ...]:
    """What a person and a model see of the changes besides the diff."""
    found = []
    for each in changes:
        added, removed = changed_lines(each)
        renamed_to = each.target if each.target is not None and each.target != each.path else ""
        found.append(ProposedFile(each.path, each.kind, renamed_to, added, removed, each.base_hash))
    return tuple(found)


def _conflicts(older: Iterable[FileChange], newer: tuple[FileChange, ...]) -> str:
    return next((why for old in older for new in newer if (why := conflict(old, new))), "")


def _files_json(files: Iterable[ProposedFile]) -> str:
    return orjson.dumps(list(files)).decode()


def _change(
    path: str, target: str | None, base: bytes | None, executable: int | None, spans: str, content: bytes
) -> FileChange:
    splices, at = [], 0
    for start, end, size in orjson.loads(spans):
        splices.append(Splice(start, end, content[at : at + size]))
        at += size
    return FileChange(path, target, base, tuple(splices), None if executable is None else bool(executable))


def _record(text: str) -> ApplyRecord:
    read = orjson.loads(text)
    attributes = {path: (mode, owner, group) for path, (mode, owner, group) in (read.get("attributes") or {}).items()}
    return ApplyRecord(tuple(read.get("folders", ())), attributes, read.get("by", ""), read.get("why_back", ""))


def _taken(handle: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
