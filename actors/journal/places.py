"""Where a journal is: a file of SQLite, or a database of PostgreSQL. What `Settings(journal=...)` may say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from callboard.protocol.errors import UsageError

#: In the path of a file: the id of the process that opens it, so that each process of a prefork host has its own.
PID: Final = "{pid}"
#: The two schemes that PostgreSQL's own clients read (libpq, "Connection URIs").
_SERVER_SCHEMES: Final = ("postgresql", "postgres")
_COVERED: Final = "***"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FIELD: Final = re.compile(r"\{(\w*)\}")


def checked_place(given: object) -> str | Path | None:
    """The address of a server, or the absolute path of a file; None for "", which is no journal.

    Raises ValueError, without the password of an address.
    """
    if given is None or given == "":
        return None
    if not isinstance(given, str | Path):
        raise ValueError(f"must be a path or postgresql://..., not {type(given).__name__}")
    scheme = _SCHEME.match(str(given)) if isinstance(given, str) else None
    if scheme is None:
        return _checked_path(given)
    if scheme.group()[:-3] not in _SERVER_SCHEMES:
        raise ValueError(f"must be a path or postgresql://..., not an address of {scheme.group()}")
    return _checked_address(str(given))


def is_server(place: str | Path) -> bool:
    """Is it the address of a server?"""
    return isinstance(place, str)


def shown_place(place: str | Path) -> str:
    """As people and logs may see it: without a password."""
    if isinstance(place, Path):
        return str(place)
    parts = urlsplit(place)
    user, colon, _ = parts.netloc.rpartition("@")[0].partition(":")
    host = parts.netloc.rpartition("@")[2]
    named = f"{user}{':' + _COVERED if colon else ''}@{host}" if user or colon else host
    query = [(name, _COVERED if "password" in name else value) for name, value in parse_qsl(parts.query)]
    told = urlencode(query, safe="*/")
    return f"{parts.scheme}://{named}{parts.path}{'?' if told else ''}{told}"


def file_patterns(place: str | Path | None, folder: Path) -> Iterator[str]:
    """Which files below this folder are the journal's, as .gitignore would name them: no model is shown them."""
    path = place.parent.resolve() / place.name if isinstance(place, Path) else None
    if path is not None and path.is_relative_to(folder):
        name = re.sub(r"([\\*?\[\]! #])", r"\\\1", path.relative_to(folder).as_posix())
        yield "/" + name.replace(PID, "*") + "*"


def is_there(path: Path) -> bool:
    """Is there a journal file, or at least the log of one? Raises UsageError where that cannot be seen."""
    try:
        log = path.with_name(f"{path.name}-wal")
        return path.is_file() or (log.is_file() and log.stat().st_size > 0)
    except OSError as error:
        raise UsageError(f"the journal {path} cannot be read: {error.strerror}: look at its owner and mode") from error


def no_journal(path: Path) -> UsageError:
    """The error where none is there."""
    return UsageError(f"there is no journal {path}; name one that is there, or ask first")


def _checked_path(given: str | Path) -> Path:
    text = str(given)
    if text.startswith(":memory:"):
        raise ValueError("a journal in memory keeps nothing; name a file")
    if "\0" in text or text != text.encode(errors="ignore").decode():
        raise ValueError("its path cannot be that of a file; choose another")
    for field in _FIELD.findall(text):
        if f"{{{field}}}" != PID:
            raise ValueError(f"its path has {{{field}}} in it, and only {PID} is known there")
    path = Path(given).expanduser().absolute()
    if PID in str(path.parent):
        raise ValueError(f"{PID} must be in the name of the file, not of a folder")
    if path.name.count(PID) > 1:
        raise ValueError(f"{PID} must be in its name once")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if not path.name or text.endswith("/"):
        raise ValueError("its path ends with a slash; name a file")
    return path


def _checked_address(given: str) -> str:
    try:
        parts = urlsplit(given)
        for host in parts.netloc.rpartition("@")[2].split(","):  # libpq tries one after the other
            urlsplit(f"//{host}").port  # noqa: B018 - looks whether it is a number
        if "@" in parts.path:  # a password with a / in it: what follows would count as the database, and be shown
            raise ValueError
    except ValueError:
        raise ValueError(
            "is no address that can be read; write postgresql://user@host:5432/database, with special characters of "
            "a password as %xx"
        ) from None
    if not given.isprintable() or " " in given:
        raise ValueError("its address has spaces or control characters in it; write them as %20 and the like")
    if not parts.path.strip("/") and not {"dbname", "service"} & dict(parse_qsl(parts.query)).keys():
        raise ValueError("its address names no database; write postgresql://user@host:5432/database")
    return given
