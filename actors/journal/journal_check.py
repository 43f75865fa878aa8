"""Check a journal file, and repair it: for people, beside what opening it does by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.journal.encoding import (
    DamagedRecord,
    check,
    read_beginning,
    read_compacted,
    read_end,
    read_event,
    read_message,
    read_outcome,
    read_set_aside,
    read_tools,
)
from callboard.actors.journal.file_lock import FileLock, LastWritten, has_living_holder, holder, last_written
from callboard.actors.journal.journal_database import StatementRefused
from callboard.actors.journal.journal_records import SetAside
from callboard.actors.journal.looking import Stamp, cannot_look, stamp
from callboard.actors.journal.own_files import LOG_IS_SHORT, is_as_left, lost_end
from callboard.actors.journal.places import is_there, no_journal
from callboard.actors.journal.salvage import salvage
from callboard.actors.journal.sqlite_database import JournalDamaged
from callboard.actors.journal.sqlite_file import header_fault, prepared, real_path
from callboard.actors.journal.sqlite_journal import SqliteReader
from callboard.actors.journal.tables import (
    COMPACTIONS,
    ENDS,
    EVENTS,
    MESSAGES,
    OFFERS,
    OUTCOMES,
    REQUESTS,
    SET_ASIDE,
    TABLES,
)
from callboard.actors.journal.wal_frames import log_of
from callboard.protocol.errors import UsageError

_READ: Final[Mapping[str, Callable[[Sequence[object]], object]]] = {
    OFFERS.name: read_tools,
    REQUESTS.name: read_beginning,
    EVENTS.name: read_event,
    MESSAGES.name: read_message,
    COMPACTIONS.name: read_compacted,
    ENDS.name: read_end,
    OUTCOMES.name: read_outcome,
    SET_ASIDE.name: read_set_aside,
}
#: What seems damaged may have been written to meanwhile: then it is looked at again.
_TRIES: Final = 3


class Report(Struct, frozen=True):
    """What is in a journal file, and what is wrong with it."""

    path: Path
    records: Mapping[str, int] = field(default_factory=dict)
    """How many sound ones there are, by table."""
    open_requests: int = 0
    faults: tuple[str, ...] = ()
    """What is wrong with it now, a line each."""
    set_aside: tuple[SetAside, ...] = ()
    """What was found damaged before, and is kept apart."""
    repaired: tuple[str, ...] = ()
    """What `repair` has done, a line each."""

    @property
    def is_sound(self) -> bool:
        return not self.faults


def verify(path: str | Path) -> Report:
    """Read all of a journal file, and change nothing; also while a process writes it.

    Raises UsageError where there is no such file, and for that of another program; JournalFailed where it cannot be
    opened, though it is not damaged.
    """
    real = _found(path)
    for _ in range(_TRIES):
        was = stamp(real)
        report = _looked_at(real)
        if report.is_sound or stamp(real) == was:
            break
    return report


def check_log(path: Path, checked: Stamp = ()) -> Stamp:
    """Raises JournalDamaged where commits of a log that no process is at are damaged or gone: SQLite would read an
    older state, without a word. A log of 16 MB takes a second; as it was `checked` before, it is not read again."""
    try:
        was = stamp(path)
        if was == checked or not is_there(path) or has_living_holder(path):
            return was
        if (why := log_of(path).fault or _lost_end(path)) and stamp(path) == was:
            raise JournalDamaged(path, why)
        return was
    except OSError as error:
        raise cannot_look(path, error) from error


def _lost_end(path: Path) -> str:
    left = last_written(path)
    if not is_as_left(path, left):
        return ""
    with closing(SqliteReader.looking(path)) as reader:
        return _end_fault(reader, left)


def _end_fault(reader: SqliteReader, left: LastWritten | None) -> str:
    lost = lost_end(reader.database, left)
    return f"{LOG_IS_SHORT}: {lost}" if lost else ""


def _found(path: str | Path) -> Path:
    if not is_there(Path(path).expanduser()):
        raise no_journal(Path(path))
    return real_path(str(path))


def _looked_at(real: Path) -> Report:
    faults: tuple[str, ...] = ()
    try:
        left = None
        if not FileLock.is_of_this_process(real):  # else to open and close it would end the locks of its connection
            faults = tuple(filter(None, (header_fault(real), log_of(real).fault)))
            left = last_written(real)  # before what it is looked for in
            left = left if is_as_left(real, left) and not faults else None
        with closing(SqliteReader.looking(real)) as reader:
            found = _checked(real, reader, left)
            return replace(found, faults=(*faults, *found.faults))
    except JournalDamaged as error:
        return Report(real, faults=tuple(dict.fromkeys((*faults, error.why))))
    except StatementRefused as error:
        return Report(real, faults=(*faults, str(error)))
    except OSError as error:
        raise cannot_look(real, error) from error


def _checked(path: Path, reader: SqliteReader, left: LastWritten | None) -> Report:
    faults: list[str] = []
    records: dict[str, int] = {}
    if fault := reader.database.fault() or reader.database.schema_fault():
        faults.append(fault)
    if fault := _end_fault(reader, left):
        faults.append(fault)
    for table in TABLES:
        records[table.name] = 0
        for row in reader.database.each(table.select):
            try:
                check(table, row)
                if table.name in _READ:
                    _READ[table.name](row)
                records[table.name] += 1
            except DamagedRecord as error:
                key = dict(zip(table.columns, row, strict=False))
                faults.append(f"{table.name} {[key[name] for name in table.key]}: {error}")
    open_requests = reader.open_requests()
    for request_id in open_requests:
        log = reader.request(request_id)
        if log is None or log.damage:
            faults.append(f"request {request_id!r} cannot be gone on with: {log.damage if log else 'it is not there'}")
    return Report(path, records, len(open_requests), tuple(faults), tuple(reader.set_aside()))


def repair(path: str | Path, *, wall_clock: Callable[[], float] = time.time) -> Report:
    """Save what is sound of a damaged journal in a new one, and move the damaged one aside; a sound one stays as it is.

    Raises UsageError where there is no journal or a process writes it; JournalFailed where the disk does not do its
    part.
    """
    real = _found(path)
    lock = FileLock.taken(real)
    if lock is None:
        raise UsageError(f"the journal {real} is in use by {holder(real)}: end it first")
    try:
        database, notes = prepared(lock, "power", wall_clock())
        database.close()
        before = verify(real)
        damaged = [fault for fault in before.faults if not fault.startswith("request ")]
        if damaged:
            notes += salvage(real, damaged[0], wall_clock())
        after = verify(real)
        return Report(after.path, after.records, after.open_requests, after.faults, after.set_aside, tuple(notes))
    except UsageError:
        lock.give_up()
        raise
    finally:
        lock.release()
