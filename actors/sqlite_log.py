"""SQLite's write-ahead log: with it, those who read a database do not wait for one who writes.

While another connection writes to a database that has no such log yet, SQLite refuses to switch it on, and at once: its
busy timeout is for those who hold no lock themselves. So of two processes that make a database at the same moment, one
would fail now and then (1 of 1,500 that six at once have opened).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Final

#: How long one waits for another; all hold their locks for milliseconds.
BUSY_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.005
_PRIMARY_CODE: Final = 0xFF


def switch_on(execute: Callable[[str], Iterable[tuple[object, ...]]]) -> str:
    """For the database in which `execute` runs a statement (of sqlite3 or apsw); returns the mode that it is in then.

    Raises what `execute` raises; that another one holds a lock only after `BUSY_SECONDS`.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            ((mode,),) = execute("PRAGMA journal_mode = WAL")
            return str(mode)
        except Exception as error:
            code = getattr(error, "sqlite_errorcode", getattr(error, "result", 0))
            if code & _PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
        time.sleep(_PAUSE_SECONDS)
