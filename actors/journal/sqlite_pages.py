"""The pages of a SQLite file, read without SQLite: what can be found in a file that SQLite itself refuses.

By the page "Database File Format" of SQLite's documentation (https://www.sqlite.org/fileformat2.html), which the names
here follow. Only what the journal's own files have is known: pages of 4,096 bytes, texts in UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from callboard.actors.journal.wal_frames import PAGE_BYTES, Log, log_of

HEADER_BYTES: Final = 100
_INDEX_INTERIOR, _TABLE_INTERIOR, _INDEX_LEAF, _TABLE_LEAF = 2, 5, 10, 13
#: The bytes of a record that a page of a table, or of an index, takes at the most, and the least that it keeps of more.
_MAX_TABLE_LOCAL: Final = PAGE_BYTES - 35
_MAX_INDEX_LOCAL: Final = (PAGE_BYTES - 12) * 64 // 255 - 23
_MIN_LOCAL: Final = (PAGE_BYTES - 12) * 32 // 255 - 23
#: The bytes of a value by its serial type, up to 11; from 12 on the type says the length of a text or BLOB.
_SIZES: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)
#: In a file of SQLite's.
_MAX_PAGES: Final = 0xFFFFFFFE
#: A page of a table without rows.
_EMPTY_LEAF: Final = bytes((_TABLE_LEAF, 0, 0, 0, 0, *PAGE_BYTES.to_bytes(2, "big"), 0)).ljust(PAGE_BYTES, b"\0")
#: Bytes of a page in pieces too small to be listed as free.
_MOST_FRAGMENTS: Final = 60

Cell = str | bytes | int | float | None
Record = tuple[Cell, ...]


class _Unreadable(Exception):
    """What is at this place is no cell, record or page of this kind."""


class FoundRow(Struct, frozen=True):
    """A row, by the page that it is on and its number in its table."""

    page: int
    number: int
    record: Record


class Found(Struct):
    """All that the pages hold, in no order."""

    rows: list[FoundRow] = field(default_factory=list)
    """Of any table."""
    keys: dict[int, list[Record]] = field(default_factory=dict)
    """Of any index, by page; the last value of each is the number of the row."""
    children: dict[int, list[int]] = field(default_factory=dict)
    """The pages below each, of those pages of tables and indexes that can be read whole; the last one first."""

    indexes: set[int] = field(default_factory=set)
    """Those of the pages that are of an index."""

    def below(self, root: int) -> tuple[set[int], bool]:
        """The pages of the table or index with this root; and were all of them read whole, and all of one kind?"""
        seen: set[int] = set()
        level, is_whole = [root], True
        while level:
            number = level.pop()
            if number in seen:
                continue
            seen.add(number)
            is_whole = is_whole and number in self.children
            level += self.children.get(number, ())
        return seen, is_whole and (seen <= self.indexes or not seen & self.indexes)

    def last_of(self, root: int) -> list[int]:
        """The way from the root to the last page; up to one that cannot be read."""
        way = [root]
        while (children := self.children.get(way[-1])) and children[0] not in way:
            way.append(children[0])
        return way


class Pages:
    """The pages of a file and its log: the latest version of each that is proved."""

    def __init__(self, database: bytes, log: Log) -> None:
        self._database = database
        self.log = log
        self._latest = {frame.page: place for place, frame in sorted(log.frames.items())}
        sizes = [frame.pages for _, frame in sorted(log.frames.items()) if frame.pages]
        self.count = sizes[-1] if sizes else -(-len(database) // PAGE_BYTES)
        self.stale = {
            number for place, lost in log.lost.items() for number in lost.pages if self.place_of(number) < place
        }
        # Frames of turns before had been copied into the file: if it is shorter now than its header says, it was cut.
        in_header = int.from_bytes(self.page(1)[28:32], "big") or _MAX_PAGES
        cut = range(self.pages_in_file + 1, in_header + 1)
        self.stale |= {frame.page for frame in log.earlier if frame.page in cut and frame.page not in self._latest}
        """Those of which the latest version is lost."""
        self.unknown = [place for place, lost in log.lost.items() if not lost.pages]
        """The places in the log of lost versions of any page."""

    def place_of(self, number: int) -> int:
        """Where in the log the latest version of a page is; -1: in the file."""
        return self._latest.get(number, -1)

    def page(self, number: int) -> bytes:
        """Shorter than a page where the file ends in it; nothing where there is none."""
        place = self._latest.get(number)
        return self._in_file(number) if place is None else self.log.frames[place].data

    def _in_file(self, number: int) -> bytes:
        return self._database[(number - 1) * PAGE_BYTES : number * PAGE_BYTES] if number > 0 else b""

    def others(self) -> Iterator[tuple[FoundRow, bool]]:
        """Rows on other versions of pages; and are they of a version that came later than the one which `page` gives?
        Those of a page that is stale count as such too."""
        found = Found()
        for lost in self.log.lost.values():
            self._read(lost.pages[0] if lost.pages else 0, lost.data, found)
        yield from ((row, True) for row in found.rows)
        found = Found()
        for frame in self.log.earlier:
            self._read(frame.page, frame.data, found)
        for place, frame in self.log.frames.items():
            if self._latest[frame.page] != place:
                self._read(frame.page, frame.data, found)
        for number in self._latest:
            self._read(number, self._in_file(number), found)
        yield from ((row, row.page in self.stale) for row in found.rows)

    def in_log_before(self, end: int) -> Iterator[list[FoundRow]]:
        """The rows on each page that the log has before this place, from the last one back."""
        for place in range(end - 1, -1, -1):
            found = Found()
            if (frame := self.log.frames.get(place)) is not None:
                self._read(frame.page, frame.data, found)
            yield found.rows

    @property
    def pages_in_file(self) -> int:
        """Whole ones."""
        return len(self._database) // PAGE_BYTES

    def whole_file(self, without: Set[int]) -> Iterator[bytes]:
        """The pages in order, as a file without a log; zeros where there is none. `without` the rows of these."""
        first = self.page(1).ljust(PAGE_BYTES, b"\0")
        yield first[:28] + self.count.to_bytes(4, "big") + first[32:]
        for number in range(2, self.count + 1):
            yield _EMPTY_LEAF if number in without else self.page(number).ljust(PAGE_BYTES, b"\0")

    def scan(self, limit: int | None = None) -> Found:
        """Read every page, or the first `limit`."""
        found = Found()
        for number in range(1, min(self.count, limit or self.count) + 1):
            self._read(number, self.page(number), found)
        return found

    def _read(self, number: int, page: bytes, found: Found) -> None:
        # Pages of other kinds hold no rows: free ones, those that a long row goes on in, pointer maps.
        with suppress(_Unreadable):
            self._read_page(number, page, found)

    def _read_page(self, number: int, page: bytes, found: Found) -> None:
        kind, places, right = _cells_of(number, page)
        if kind in (_INDEX_INTERIOR, _INDEX_LEAF):
            found.indexes.add(number)
        records: list[tuple[int, Record]] = []
        children = [right] if right else []
        is_whole = True
        for at in places:
            try:
                if right:
                    children.append(int.from_bytes(page[at : at + 4], "big"))
                if kind != _TABLE_INTERIOR:
                    own, payload = self._payload(page, at, kind)
                    records.append((own, _record(payload)))
            except (_Unreadable, IndexError, UnicodeDecodeError):
                is_whole = False
        if is_whole:
            found.children[number] = children
        if kind == _TABLE_LEAF:
            found.rows += [FoundRow(number, own, record) for own, record in records]
        elif records:
            found.keys[number] = [record for _, record in records]

    def _payload(self, page: bytes, at: int, kind: int) -> tuple[int, bytes]:
        """The number of the row, of a table, and what is in it."""
        own = 0
        if kind == _INDEX_INTERIOR:
            at += 4
        size, at = _varint(page, at)
        if kind == _TABLE_LEAF:
            own, at = _varint(page, at)
        most = _MAX_TABLE_LOCAL if kind == _TABLE_LEAF else _MAX_INDEX_LOCAL
        if size <= most:
            if at + size > PAGE_BYTES:
                raise _Unreadable
            return own, page[at : at + size]
        local = _MIN_LOCAL + (size - _MIN_LOCAL) % (PAGE_BYTES - 4)
        local = local if local <= most else _MIN_LOCAL
        if at + local + 4 > PAGE_BYTES or size > self.count * PAGE_BYTES:
            raise _Unreadable
        parts, rest = [page[at : at + local]], size - local
        following = int.from_bytes(page[at + local : at + local + 4], "big")
        chain: set[int] = set()
        while rest > 0:
            if following in chain or len(more := self.page(following)) < PAGE_BYTES:
                raise _Unreadable
            chain.add(following)
            parts.append(more[4 : 4 + rest])
            rest -= PAGE_BYTES - 4
            following = int.from_bytes(more[:4], "big")
        return own, b"".join(parts)


def _cells_of(number: int, page: bytes) -> tuple[int, tuple[int, ...], int]:
    """The kind of a page of a b-tree, where its cells are, and its last child; 0 for a leaf."""
    start = HEADER_BYTES if number == 1 else 0
    if len(page) < PAGE_BYTES or page[start] not in (_INDEX_INTERIOR, _TABLE_INTERIOR, _INDEX_LEAF, _TABLE_LEAF):
        raise _Unreadable
    kind = page[start]
    cells = int.from_bytes(page[start + 3 : start + 5], "big")
    is_interior = kind in (_INDEX_INTERIOR, _TABLE_INTERIOR)
    pointers = start + (12 if is_interior else 8)
    end = pointers + 2 * cells
    if page[start + 7] > _MOST_FRAGMENTS or end > PAGE_BYTES:
        raise _Unreadable
    places: tuple[int, ...] = struct.unpack(f">{cells}H", page[pointers:end])
    # A place that is none is read as a cell that is broken.
    places = tuple(at if end <= at < PAGE_BYTES else PAGE_BYTES for at in places)
    return kind, places, int.from_bytes(page[start + 8 : start + 12], "big") if is_interior else 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | data[at + 8], at + 9


def _record(payload: bytes) -> Record:
    size, at = _varint(payload, 0)
    if not at <= size <= len(payload):
        raise _Unreadable
    kinds: list[int] = []
    while at < size:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[Cell] = []
    at = size
    for kind in kinds:
        length = _SIZES[kind] if kind < 12 else (kind - 12) // 2
        if kind in (10, 11) or at + length > len(payload):
            raise _Unreadable
        values.append(_value(kind, payload[at : at + length]))
        at += length
    if at != len(payload):
        raise _Unreadable
    return tuple(values)


def _value(kind: int, data: bytes) -> Cell:
    if kind >= 12:
        return data if kind % 2 == 0 else data.decode()
    if kind == 7:
        (number,) = struct.unpack(">d", data)
        return float(number)
    return None if kind == 0 else kind - 8 if kind in (8, 9) else int.from_bytes(data, "big", signed=True)


def of_file(path: Path) -> Pages:
    """The pages of the file and of its log beside it."""
    return Pages(path.read_bytes() if path.exists() else b"", log_of(path, with_earlier=True))
