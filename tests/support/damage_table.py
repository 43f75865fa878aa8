"""Each damage that a journal is tried with: of which file, where, and of which kind. A child process that is killed has
left the journal."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from support.damaged_files import REQUESTS, fill

from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.journal.tables import META

PAGE = 4_096
PLACES = ("head", "middle", "tail")
FILES = {"file": "", "log": "-wal", "index": "-shm", "lock": ".lock"}


@dataclass(frozen=True)
class Damage:
    """One line of the table."""

    do: Callable[[Path], object]
    refused: str = ""
    """What a start and a repair say that cannot go on; "" where they do."""


def kill_one_at(path: Path) -> None:
    """Fill a journal, two thirds of it with a checkpoint every 40 pages, as one under load has every 4,000, and die."""
    journal = SqliteJournal(path, durability="process")
    journal.open()
    for pages, requests in ((40, REQUESTS * 2 // 3), (0, REQUESTS)):
        journal._file().query(f"PRAGMA wal_autocheckpoint = {pages}")
        fill(journal, requests)
    os.kill(os.getpid(), signal.SIGKILL)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _place(size: int, where: str) -> int:
    return {"head": 0, "middle": size // 2, "tail": max(0, size - PAGE)}[where] // PAGE * PAGE


def _cut(data: bytearray, where: str) -> None:
    del data[{"head": 50, "middle": len(data) * 2 // 5, "tail": max(0, len(data) - 100)}[where] :]


def _zeroed(data: bytearray, where: str) -> None:
    at = _place(len(data), where)
    data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))


def _bits(data: bytearray, where: str) -> None:
    chosen, at = random.Random(where), _place(len(data), where)
    for _ in range(8):
        data[min(len(data) - 1, at + chosen.randrange(PAGE))] ^= 1 << chosen.randrange(8)


def _exchanged(data: bytearray, where: str) -> None:
    one = _place(len(data), where)
    other = one + PAGE if where == "head" else one - 2 * PAGE
    data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]


_KINDS: Mapping[str, Callable[[bytearray, str], None]] = MappingProxyType(
    {"cut": _cut, "zeroed": _zeroed, "bits": _bits, "exchanged": _exchanged}
)


def _done(file: str, kind: str, where: str) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        hit = _beside(path, FILES[file])
        data = bytearray(hit.read_bytes())
        _KINDS[kind](data, where)
        hit.write_bytes(data)

    return do


def _lines() -> Iterator[tuple[str, Damage]]:
    for file in ("file", "log"):
        for kind in _KINDS:
            for where in PLACES:
                yield f"{file} {kind} {where}", Damage(_done(file, kind, where))
    for kind in ("cut", "zeroed", "bits"):
        yield f"index {kind}", Damage(_done("index", kind, "head"))
    yield from _SINGLE.items()


def _missing(*endings: str) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        for each in endings:
            _beside(path, each).unlink()

    return do


def _written(ending: str, data: bytes) -> Callable[[Path], object]:
    return lambda path: _beside(path, ending).write_bytes(data)


def _cut_to(ending: str, size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(_beside(path, ending), size)


def _folder(ending: str) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        _beside(path, ending).unlink()
        _beside(path, ending).mkdir()

    return do


def _both(*steps: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: [step(path) for step in steps]


def _of_format(value: str) -> Callable[[Path], None]:
    """As another callboard closes it: without a log."""

    def do(path: Path) -> None:
        *_, crc = META.row("format", value)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE callboard_meta SET value = ?, crc = ? WHERE name = 'format'", (value, crc))
            if value.isdigit():
                connection.execute(f"PRAGMA user_version = {value}")
            connection.commit()

    return do


def _theirs(path: Path) -> None:
    """A database of another program, with a log that it has not copied into it."""
    _missing("", "-wal", "-shm")(path)
    other = path.with_name("other")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (name)")
        for ending in ("", "-wal"):
            _beside(path, ending).write_bytes(_beside(other, ending).read_bytes())
    for each in path.parent.glob("other*"):
        each.unlink()


def _log_of_another(path: Path) -> None:
    other = path.with_name("other")
    journal = SqliteJournal(other, durability="process")
    journal.open()
    fill(journal, 3)
    _beside(path, "-wal").write_bytes(_beside(other, "-wal").read_bytes())
    journal.close()
    for each in path.parent.glob("other*"):
        each.unlink()


def _linked(path: Path) -> None:
    os.link(path, path.with_name("second name"))


_TEXT = b"A text, and no journal.\n" * 1_000
_SINGLE: Mapping[str, Damage] = MappingProxyType(
    {
        "none": Damage(lambda _: None),
        "file empty": Damage(_written("", b"")),
        "file empty, log without index": Damage(_both(_written("", b""), _missing("-shm"))),
        "file empty, no log": Damage(_both(_written("", b""), _missing("-wal", "-shm"))),
        "log alone": Damage(_missing("", "-shm")),
        "log and index alone": Damage(_missing("")),
        "log empty": Damage(_written("-wal", b"")),
        "log is its header alone": Damage(_cut_to("-wal", 32)),
        "log is its header alone, index cut": Damage(_both(_cut_to("-wal", 32), _cut_to("-shm", 100))),
        "log is its header alone, no index": Damage(_both(_cut_to("-wal", 32), _missing("-shm"))),
        "log cut in its header": Damage(_cut_to("-wal", 31)),
        "log cut in its first frame": Damage(_cut_to("-wal", 33)),
        "log cut before its first commit": Damage(_cut_to("-wal", 32 + 24 + PAGE)),
        "log missing": Damage(_missing("-wal")),
        "log and index missing": Damage(_missing("-wal", "-shm")),
        "log is a text": Damage(_written("-wal", _TEXT)),
        "log is a folder": Damage(_folder("-wal"), "move it away"),
        "log of another journal": Damage(_log_of_another),
        "index missing": Damage(_missing("-shm")),
        "index is a text": Damage(_written("-shm", _TEXT)),
        "index is a folder": Damage(_folder("-shm"), "move it away"),
        "lock missing": Damage(_missing(".lock")),
        "lock empty": Damage(_written(".lock", b"")),
        "lock is a text": Damage(_written(".lock", _TEXT), "is a file of another program"),
        "lock is a folder": Damage(_folder(".lock"), "move what is there away"),
        "file is a text": Damage(_both(_missing("-wal", "-shm"), _written("", _TEXT)), "not a journal"),
        "file is a text, log is ours": Damage(_written("", _TEXT)),
        "file of another program": Damage(_theirs, "a database of another program"),
        "file is a folder": Damage(_both(_missing("-wal", "-shm"), _folder("")), "not a regular file"),
        "file with two names": Damage(_linked, "leave it only one"),
        "newer format": Damage(_of_format("99"), "use the callboard that wrote it"),
        "older format": Damage(_of_format("0"), "use the callboard that wrote it"),
        "format that is no number": Damage(_of_format("one"), "use the callboard that wrote it"),
    }
)

DAMAGES: Mapping[str, Damage] = MappingProxyType(dict(_lines()))
