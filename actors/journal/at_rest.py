"""A journal that no runtime of this process has open: for scripts and the command line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from callboard.actors.journal.journal_store import JournalReader, JournalWriter
from callboard.actors.journal.places import PID, checked_place, is_there, no_journal
from callboard.protocol.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from callboard.actors.journal.looking import Stamp

R = TypeVar("R")


class JournalAtRest:
    """Read while another process writes; changed only while none does (a file), or beside the others (a server)."""

    name: Final = ""
    """No conversation of this process knows what is in it."""

    def __init__(
        self,
        make_reader: Callable[[], JournalReader],
        make_writer: Callable[[], JournalWriter],
        *,
        is_checked_when_opened: bool,
        remove: Callable[[], object] | None = None,
    ) -> None:
        """`remove`: of one that is not there yet; takes away what was begun of it."""
        self._make_reader, self._make_writer = make_reader, make_writer
        self._remove = remove
        self.many_at_once: Final = is_checked_when_opened
        """Opening a file reads all of it; a lease on a server would pass meanwhile."""

    def reader(self) -> JournalReader:
        return self._make_reader()

    @property
    def is_new(self) -> bool:
        """The first change makes it: whole, or not at all."""
        return self._remove is not None

    def change(self, run: Callable[[JournalWriter], R]) -> R:
        writer = self._make_writer()
        writer.open()
        remove = self._remove
        try:
            with closing(writer):
                done = run(writer)
        except BaseException:
            if remove is not None:
                remove()
            raise
        self._remove = None
        return done

    def forgotten(self) -> None:
        """No conversation of this process has to know."""


def journal_at(place: str | Path, *, makes: bool = False) -> JournalAtRest:
    """The journal of this path or postgresql:// URL. UsageError where there is no file, unless it `makes` one."""
    try:
        checked = checked_place(place)
    except ValueError as error:
        raise UsageError(f"the journal {error}") from error
    if checked is None:
        raise UsageError("name a journal: the path of its file, or postgresql://...")
    return _on_server(checked) if isinstance(checked, str) else _in_file(checked, makes=makes)


def _in_file(path: Path, *, makes: bool) -> JournalAtRest:
    if PID in path.name:
        raise UsageError(f"{path} is a file for each process: name one of them")
    found = is_there(path)
    is_new = makes and not found and not path.exists()
    if not is_new and not found:
        raise no_journal(path)
    from callboard.actors.journal import journal_check, sqlite_journal  # noqa: PLC0415 - only where there is a journal

    checked: Stamp = ()

    def reader() -> JournalReader:
        nonlocal checked
        checked = journal_check.check_log(path, checked)
        return sqlite_journal.SqliteReader.looking(path)

    return JournalAtRest(
        reader,
        lambda: sqlite_journal.SqliteJournal(path),
        is_checked_when_opened=True,
        remove=(lambda: sqlite_journal.remove_journal(path)) if is_new else None,
    )


def _on_server(url: str) -> JournalAtRest:
    try:
        from callboard.actors.journal import postgres_journal  # noqa: PLC0415 - the extra `postgres`
    except ImportError as missing:
        raise UsageError(missing_extra(f"a journal on PostgreSQL ({missing})", "postgres")) from missing
    return JournalAtRest(
        lambda: postgres_journal.PostgresReader(url),
        lambda: postgres_journal.PostgresJournal(url),
        is_checked_when_opened=False,
    )
