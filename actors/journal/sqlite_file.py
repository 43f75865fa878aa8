"""The file of a journal: whose it is, whether it is sound, what to do when it is not, and files of dead processes."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from callboard.actors.journal.encoding import is_sound
from callboard.actors.journal.file_lock import FILE_MODE, FileLock, cannot_use
from callboard.actors.journal.journal_database import StatementRefused
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.journal.looking import looked_at
from callboard.actors.journal.own_files import end_looked_for, is_as_left
from callboard.actors.journal.salvage import (
    beside,
    finish,
    free_path,
    has_records,
    other_format,
    remove_database,
    salvage,
    sync_folder,
)
from callboard.actors.journal.sqlite_database import (
    APPLICATION_ID,
    OWN_PREFIX,
    Durability,
    JournalDamaged,
    SqliteDatabase,
    make_tables,
)
from callboard.actors.journal.sqlite_pages import HEADER_BYTES
from callboard.actors.journal.tables import FORMAT, META, OPEN, SET_ASIDE, TABLES, UPGRADES
from callboard.actors.journal.wal_frames import PAGE_BYTES, Log, log_of
from callboard.protocol.errors import UsageError

#: In a path: the process that opens it.
PID_MARK: Final = "{pid}"
_FOLDER_MODE: Final = 0o700
_MAGIC: Final = b"SQLite format 3\x00"
#: The first pages of a journal have its first rows, those of META: without any there it is another program's file.
_LOOK_FOR_RECORDS_PAGES: Final = 2_000
#: What the header of each journal has in these places: the size of its pages, how it is read and written (2: with a
#: log), the shares of a page; the kind of its schema, its encoding (https://www.sqlite.org/fileformat2.html, 1.3).
_FIXED: Final = (
    (16, b"\x10\x00\x02\x02\x00\x40\x20\x20", b"\x10\x00\x01\x01\x00\x40\x20\x20"),
    (44, b"\0\0\0\4", b"\0\0\0\4"),
    (56, b"\0\0\0\1", b"\0\0\0\1"),
)
_EMPTIED: Final = "it is empty: the process before had just begun it, or what it held is gone"
_HEADER_FAULT: Final = "its header is damaged"
#: Of a commit that may not have been finished.
_MOST_KEPT_BYTES: Final = 1 << 20


def real_path(given: str) -> Path:
    """Where the file is, behind links; its folder is made if only it is missing. Raises UsageError.

    Two names of one file would have two locks and two WALs, and damage it (https://www.sqlite.org/howtocorrupt.html,
    "Multiple links to the same file").
    """
    try:
        path = Path(given).expanduser().resolve()
        if path.parent.parent.is_dir() and not path.parent.exists():
            path.parent.mkdir(_FOLDER_MODE)
        if not path.parent.is_dir():
            raise UsageError(f"the journal cannot be made: there is no folder {path.parent}: make it first")
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"the journal {path} is not a regular file: choose another path")
            if found.st_nlink > 1:
                raise UsageError(f"the journal {path} has {found.st_nlink} names (hard links): leave it only one")
    except (OSError, RuntimeError, ValueError) as error:
        told = error if isinstance(error, OSError) else OSError(0, str(error))
        raise cannot_use(Path(given), told) from error
    return path


def prepared(lock: FileLock, durability: Durability, now: float) -> tuple[SqliteDatabase, list[str]]:
    """The connection that writes, to a journal that is there, whole and of our format; and what was done for that.

    SQLite gives up what is behind the first damaged frame of a log, and writes over it: so it is opened for writing
    only when nothing is wrong with any file.

    Nothing of this process has the file open: to read it as we do here and close it would
    end the locks of SQLite's that the process has on it (https://www.sqlite.org/howtocorrupt.html, "Posix advisory
    locks canceled by a separate thread doing close()"). Raises UsageError, JournalFailed.
    """
    path, was_there = lock.path, lock.path.exists()
    try:
        as_left = is_as_left(path, lock.left)
        for each in beside(path):
            if os.path.lexists(each) and not each.is_file():
                raise UsageError(f"{each} is not a regular file, and SQLite needs one there: move it away")
        aside = finish(path, now)
        notes = [f"an earlier process had begun to repair {path}: the damaged one is {aside}"] if aside else []
        is_new = _is_new(path)
        log = log_of(path)
        is_emptied = was_there and lock.left is not None and not path.stat().st_size
        why = log.fault or (_EMPTIED if is_emptied else "")
        if not is_new and not is_emptied:
            why = header_fault(path) or log.fault or _fault(path)
        path.chmod(FILE_MODE)  # now that it is known to be ours
        is_told = bool(log.lost) or bool(why and not as_left)
        log_is_there = bool(log.frames)
        if why:
            notes += salvage(path, why, now, durability)
            log = Log()
        database = SqliteDatabase(path, durability=durability)
        try:
            notes += _set_up(database, now, log)
            if not is_told:
                notes += end_looked_for(database, lock, now, as_left=as_left, log_is_there=log_is_there)
            lock.forget()
        except BaseException:
            database.close()
            raise
        return database, notes
    except UsageError:
        if not was_there:
            path.unlink(missing_ok=True)
        raise
    except OSError as error:
        raise cannot_use(path, error) from error


def _fault(path: Path) -> str:
    """What SQLite, or a checksum, says is wrong with the file; "" when nothing is, or there is nothing in it yet."""
    try:
        with contextlib.closing(looked_at(path)) as database:
            if not database.query("SELECT 1 FROM sqlite_master"):
                return ""
            if why := database.fault():
                return why
            found = format_of(database)
            if found not in {str(each) for each in (FORMAT, *UPGRADES)}:
                raise other_format(path, found)
            return "" if found != str(FORMAT) else database.schema_fault() or record_fault(database)
    except JournalDamaged as error:
        return error.why
    except StatementRefused as error:
        return str(error)


def record_fault(database: SqliteDatabase) -> str:
    """The first table with a record of which the checksum is wrong; "" when none is."""
    for table in TABLES:
        for row in database.each(table.select):
            if not is_sound(table, row):
                return f"a record in {table.name} is damaged"
    return ""


def _set_up(database: SqliteDatabase, now: float, log: Log) -> list[str]:
    """Make the tables, or bring them up to our format. What is to be said of the end of the log."""
    if not database.query("SELECT 1 FROM sqlite_master"):
        with _transaction(database):
            make_tables(database)
            made = {"format": str(FORMAT), "made_at": repr(now), "journal": uuid.uuid4().hex}
            database.execute_many(META.insert, [META.row(*each) for each in made.items()])
        # Now: the header of the file itself says whose it is, also when it is next looked at after a kill.
        database.checkpoint()
        sync_folder(database.path)
        return []
    _upgrade(database)
    if log.torn:
        with _transaction(database):
            row = SET_ASIDE.row(now, "the end of the journal's log", log.tail, None, "", log.torn[:_MOST_KEPT_BYTES])
            database.execute(SET_ASIDE.insert, row)
    return [f"the end of the log of {database.path}: {log.tail}"] if log.tail else []


def format_of(database: SqliteDatabase) -> str:
    """The record of its format, which is a number if nobody has written another thing. Raises JournalDamaged where it
    cannot be read."""
    try:
        rows = database.query(f"{META.select} WHERE name = 'format'")
    except StatementRefused as error:
        raise JournalDamaged(database.path, str(error)) from error
    if not rows or not is_sound(META, rows[0]):
        raise JournalDamaged(database.path, "the record of its format is damaged")
    return str(rows[0][1])


def _upgrade(database: SqliteDatabase) -> None:
    """Bring a journal of an older format up to ours."""
    number = int(format_of(database))
    while number != FORMAT:
        with _transaction(database):
            for statement in UPGRADES[number]:
                database.execute(statement)
            number += 1
            database.execute(f"DELETE FROM {META.name} WHERE name = 'format'")
            database.execute(META.insert, META.row("format", str(number)))
    ids = database.query("SELECT * FROM pragma_application_id, pragma_user_version")
    if ids != [(APPLICATION_ID, FORMAT)]:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {FORMAT}")


@contextlib.contextmanager
def _transaction(database: SqliteDatabase) -> Iterator[None]:
    database.begin()
    try:
        yield
        database.commit()
    except BaseException:
        database.rollback()
        raise


def _is_new(path: Path) -> bool:
    """Make the file where there is none, for its owner alone; the log and its index get the same mode from SQLite."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE))
    log = path.with_name(f"{path.name}-wal")
    return path.stat().st_size == 0 and not (log.exists() and log.stat().st_size)


def header_fault(path: Path) -> str:
    """What is wrong with the beginning of a file that is ours; "" when nothing is. Raises UsageError for another's.

    As with `prepared`, this process may not have the file open as a journal.
    """
    header = b""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    is_sqlite = header.startswith(_MAGIC)
    application = int.from_bytes(header[68:72], "big")
    if is_sqlite and application == APPLICATION_ID:
        return "" if all(header[at : at + len(one)] in (one, other) for at, one, other in _FIXED) else _HEADER_FAULT
    if is_sqlite and application == 0 and _is_ours(path):
        return ""  # the making of it was interrupted
    if has_records(path, _LOOK_FOR_RECORDS_PAGES):
        return _HEADER_FAULT
    kind = "a database of another program" if is_sqlite else "not a journal"
    raise UsageError(f"{path} is {kind}, or nothing of it is sound: choose another path for the journal")


def _is_ours(path: Path) -> bool:
    """Is it, with its log, a journal or an empty database? It may be another program's: nothing of it is changed."""
    with contextlib.suppress(JournalFailed, StatementRefused), contextlib.closing(looked_at(path)) as database:
        is_empty = path.stat().st_size <= PAGE_BYTES and not database.query("SELECT 1 FROM sqlite_master")
        return is_empty or database.query("PRAGMA application_id") == [(APPLICATION_ID,)]
    return False


def moved_aside(given: str, path: Path) -> list[Path]:
    """Copies of what the journal had: damaged ones, and those of dead processes that were kept for tables of tools."""
    name = "[0-9]+".join(re.escape(part) for part in Path(given).name.split(PID_MARK))
    pattern = re.compile(rf"(?:{name}|{re.escape(path.name)})\.(?:damaged-.+|merged(?:-[0-9]+)?)\Z")
    return sorted(each for each in path.parent.iterdir() if pattern.match(each.name))


# -- a file for each process


def merge_files_of_dead(
    given: str, own: Path, database: SqliteDatabase, durability: Durability, now: float
) -> list[str]:
    """Copy the rows of files of the same pattern whose processes have ended, and remove those files.

    Each journal has an id of its own, which is written together with its rows: when a process dies between copying and
    removing, the next one only removes.
    """
    pattern = re.compile("([0-9]+)".join(re.escape(part) for part in Path(given).name.split(PID_MARK)) + r"\Z")
    notes: list[str] = []
    for path in sorted(own.parent.iterdir()):
        if path == own or not pattern.match(path.name) or not path.is_file() or path.is_symlink():
            continue
        lock = FileLock.taken(path)
        if lock is None:
            continue
        try:
            if path.exists():
                notes += _merge(lock, database, durability, now)
        except (UsageError, JournalFailed) as error:
            notes.append(f"the journal of a process that has ended cannot be taken over: {error}")
            lock.release()
        else:
            lock.remove()
    return notes


def _merge(lock: FileLock, database: SqliteDatabase, durability: Durability, now: float) -> list[str]:
    path = lock.path
    dead, notes = prepared(lock, durability, now)
    try:
        of_tools = [str(row[0]) for row in dead.query(_TABLES_OF_TOOLS, (f"{OWN_PREFIX}%",))]
        ((journal,),) = dead.query(f"SELECT value FROM {META.name} WHERE name = 'journal'")
        mark = f"merged {journal}"
        done = database.query(f"SELECT value FROM {META.name} WHERE name = ?", (mark,))
        why = "" if done == [(_WITH_TOOLS,)] else "whether their rows were copied is not known"
        if not done:
            with _transaction(database):
                for table in TABLES:
                    if table is not META:
                        for row in dead.each(table.select):
                            database.execute(table.insert, row)
                for row in dead.each(f"SELECT request_id FROM {OPEN}"):
                    database.execute(_OPEN_FOR_ANY, row)
                why = _copy_of_tools(dead, database, of_tools)
                database.execute(META.insert, META.row(mark, str(path) if why else _WITH_TOOLS))
            notes.append(f"the journal {path} of a process that has ended was taken over")
    finally:
        dead.close()
    if of_tools and why:
        aside = free_path(path, "merged")  # an earlier process may have had the same id
        path.replace(aside)
        notes.append(f"it has tables of tools ({', '.join(of_tools)}), which stay in {aside}: {why}")
    else:
        remove_database(path)
    return notes


def _copy_of_tools(dead: SqliteDatabase, database: SqliteDatabase, names: Sequence[str]) -> str:
    """Add the rows of tools' tables to ours of the same name, all or none; why none were, "" when all were."""
    database.execute("SAVEPOINT callboard_tools")
    try:
        for name in names:
            _copy_table(dead, database, name)
        # What fires on rows has fired for these: their traces are rows that are copied too.
        if dead.query(_TRIGGERS) or database.query(_TRIGGERS):
            raise StatementRefused("there are triggers or views")
    except StatementRefused as error:
        database.execute("ROLLBACK TO callboard_tools")
        database.execute("RELEASE callboard_tools")
        return str(error)
    database.execute("RELEASE callboard_tools")
    return ""


def _copy_table(dead: SqliteDatabase, database: SqliteDatabase, name: str) -> None:
    """Raises StatementRefused, also where the two tables are not made alike."""
    made, made_here = (each.query(_MADE_BY, (name,)) for each in (dead, database))
    if not made_here:
        for (sql,) in made:
            database.execute(str(sql))
    elif made != made_here:
        raise StatementRefused(f"the table {name} is another one here")
    quoted = '"' + name.replace('"', '""') + '"'
    for row in dead.each(f"SELECT * FROM {quoted}"):
        database.execute(f"INSERT INTO {quoted} VALUES ({', '.join('?' * len(row))})", row)


_OPEN_FOR_ANY: Final = f"INSERT INTO {OPEN} (request_id, owner) VALUES (?, '') ON CONFLICT DO NOTHING"
_TABLES_OF_TOOLS: Final = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE ? AND name NOT LIKE 'sqlite%'"
)
#: What was merged whole.
_WITH_TOOLS: Final = "with its tables of tools"
#: The table, then its indexes.
_MADE_BY: Final = (
    "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND type IN ('table', 'index') AND sql IS NOT NULL"
    " ORDER BY type = 'index', name"
)
_TRIGGERS: Final = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index')"
