"""The pages of a SQLite file, read without SQLite: what can be found in a file that SQLite itself refuses.

By the page "Database File Format" of SQLite's documentation (https://www.sqlite.org/fileformat2.html), which the names
here follow. Only what the journal's own files have is known: pages of 4,096 bytes, texts in UTF-8.
"""

from __future__ import annotations

import struct
from collections import Counter
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Final

from msgspec import Struct, field

#: SQLite's default, and what a journal is made with.
PAGE_BYTES: Final = 4_096
HEADER_BYTES: Final = 100
WAL_HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
FRAME_BYTES: Final = FRAME_HEADER_BYTES + PAGE_BYTES
_WAL_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
#: Frames of so many earlier turns may stand behind the last one. Of random bytes one in 65,536 looks like theirs.
_EARLIER_TURNS: Final = 1 << 16
_INDEX_INTERIOR, _TABLE_INTERIOR, _INDEX_LEAF, _TABLE_LEAF = 2, 5, 10, 13
#: The bytes of a record that a page of a table, or of an index, takes at the most, and the least that it keeps of more.
_MAX_TABLE_LOCAL: Final = PAGE_BYTES - 35
_MAX_INDEX_LOCAL: Final = (PAGE_BYTES - 12) * 64 // 255 - 23
_MIN_LOCAL: Final = (PAGE_BYTES - 12) * 32 // 255 - 23
#: The bytes of a value by its serial type, up to 11; from 12 on the type says the length of a text or BLOB.
_SIZES: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)
#: Bytes of a page in pieces too small to be listed as free.
_MOST_FRAGMENTS: Final = 60

Cell = str | bytes | int | float | None
Record = tuple[Cell, ...]


class _Unreadable(Exception):
    """What is at this place is no cell, record or page of this kind."""


class Wal(Struct):
    """What the write-ahead log adds to the file."""

    pages: dict[int, bytes] = field(default_factory=dict)
    """By number, as of the last commit that is whole."""
    lost_commits: int = 0
    """Commits behind the last whole one, which SQLite does not see. Frames that no turn of the log has written count as
    one where they stand together."""


class Found(Struct):
    """All that the pages hold, in no order."""

    rows: list[tuple[int, Record]] = field(default_factory=list)
    """Of any table, with the page that each is on."""
    keys: dict[int, list[Record]] = field(default_factory=dict)
    """Of any index, by page; the last value of each is the number of the row."""
    children: dict[int, list[int]] = field(default_factory=dict)
    """The pages below each, of those pages of tables and indexes that can be read whole."""

    def below(self, root: int) -> tuple[set[int], bool]:
        """The pages of the table or index with this root; and were all of them read whole?"""
        seen: set[int] = set()
        level, is_whole = [root], True
        while level:
            number = level.pop()
            if number in seen:
                continue
            seen.add(number)
            is_whole = is_whole and number in self.children
            level += self.children.get(number, ())
        return seen, is_whole


def read_wal(data: bytes) -> Wal:
    """The frames up to the last commit before the first frame that is damaged."""
    wal = Wal()
    if len(data) < WAL_HEADER_BYTES + FRAME_HEADER_BYTES:
        return wal
    order = _WAL_MAGIC.get(int.from_bytes(data[:4], "big"))
    sound = _header_sum(data[:WAL_HEADER_BYTES])
    check, is_sound = sound or (0, 0), sound is not None
    # Without a sound header, the salts of the first frame.
    salts = data[16:24] if is_sound else data[WAL_HEADER_BYTES + 8 : WAL_HEADER_BYTES + 16]
    uncommitted: dict[int, bytes] = {}
    unsound: list[bytes] = []
    for at in range(WAL_HEADER_BYTES, len(data) - FRAME_HEADER_BYTES + 1, FRAME_BYTES):
        head, page = data[at : at + FRAME_HEADER_BYTES], data[at + FRAME_HEADER_BYTES : at + FRAME_BYTES]
        if head[8:16] != salts:
            is_sound = False  # damaged, or of an earlier turn of the log
            unsound.append(head)
            continue
        number, commit = struct.unpack(">II", head[:8])
        if is_sound and order and len(page) == PAGE_BYTES:
            check = _sum(order, page, _sum(order, head[:8], check))
            is_sound = check == struct.unpack(">II", head[16:24])
        else:
            is_sound = False
        if not is_sound:
            unsound.append(head)
            continue
        uncommitted[number] = page
        if commit:
            wal.pages |= uncommitted
            uncommitted = {}
    wal.lost_commits = _commits_among(unsound, salts)
    return wal


def _header_sum(header: bytes) -> tuple[int, int] | None:
    """The checksums that those of the first frame begin with; None for a header that is damaged."""
    order = _WAL_MAGIC.get(int.from_bytes(header[:4], "big"))
    if order is None or len(header) < WAL_HEADER_BYTES:
        return None
    sums = _sum(order, header[:24], (0, 0))
    return sums if sums == struct.unpack(">II", header[24:32]) else None


def _sum(order: str, data: bytes, start: tuple[int, int]) -> tuple[int, int]:
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def lost_commits(path: Path, frames_seen: int) -> int:
    """The commits in a log behind the frames that SQLite takes for sound: cheap, since it reads only their heads."""
    try:
        with path.open("rb") as file:
            header = file.read(WAL_HEADER_BYTES)
            salts = header[16:24] if _header_sum(header) else b""
            heads: list[bytes] = []
            at = WAL_HEADER_BYTES + frames_seen * FRAME_BYTES
            while True:
                file.seek(at)
                head = file.read(FRAME_HEADER_BYTES)
                if len(head) < FRAME_HEADER_BYTES:
                    break
                heads.append(head)
                at += FRAME_BYTES
    except FileNotFoundError:
        return 0
    if salts:
        return _commits_among(heads, salts)
    # Without a sound header it is not known which turn of the log is the last: the one with the most.
    return max(Counter(head[8:16] for head in heads if _is_commit(head)).values(), default=0)


def _commits_among(heads: list[bytes], salts: bytes) -> int:
    """Of the frames behind the sound ones, in their order: see `Wal.lost_commits`."""
    of_last_turn = sum(_is_commit(head) for head in heads if head[8:16] == salts)
    return of_last_turn + sum(is_of_none for is_of_none, _ in groupby(heads, lambda head: _is_of_no_turn(head, salts)))


def _is_commit(head: bytes) -> bool:
    return head[4:8] != bytes(4)


def _is_of_no_turn(head: bytes, salts: bytes) -> bool:
    """Of a frame behind the sound ones: is it neither of the last turn of the log, which has these salts, nor of an
    earlier one? Each turn has its first salt one above that of the turn before, and draws the other
    (https://www.sqlite.org/walformat.html)."""
    turns = int.from_bytes(salts[:4], "big") - int.from_bytes(head[8:12], "big") & 0xFFFFFFFF
    return head[8:16] != salts and (not 0 < turns < _EARLIER_TURNS or head[12:16] == salts[4:])


class Pages:
    """The pages of a file and its log."""

    def __init__(self, database: bytes, wal: Wal) -> None:
        self._database = database
        self.wal = wal
        self.count = max(-(-len(database) // PAGE_BYTES), max(wal.pages, default=0))

    def page(self, number: int) -> bytes:
        """Shorter than a page where the file ends in it; nothing where there is none."""
        found = self.wal.pages.get(number)
        if found is not None:
            return found
        return self._database[(number - 1) * PAGE_BYTES : number * PAGE_BYTES] if number > 0 else b""

    def scan(self, limit: int | None = None) -> Found:
        """Read every page, or the first `limit`."""
        found = Found()
        for number in range(1, min(self.count, limit or self.count) + 1):
            # Pages of other kinds hold no rows: free ones, those that a long row goes on in, pointer maps.
            with suppress(_Unreadable):
                self._read_page(number, self.page(number), found)
        return found

    def _read_page(self, number: int, page: bytes, found: Found) -> None:
        kind, places, right = _cells_of(number, page)
        records: list[Record] = []
        children = [right] if right else []
        is_whole = True
        for at in places:
            try:
                if right:
                    children.append(int.from_bytes(page[at : at + 4], "big"))
                if kind != _TABLE_INTERIOR:
                    records.append(_record(self._payload(page, at, kind)))
            except (_Unreadable, IndexError, UnicodeDecodeError):
                is_whole = False
        if is_whole:
            found.children[number] = children
        if kind == _TABLE_LEAF:
            found.rows += [(number, each) for each in records]
        elif records:
            found.keys[number] = records

    def _payload(self, page: bytes, at: int, kind: int) -> bytes:
        if kind == _INDEX_INTERIOR:
            at += 4
        size, at = _varint(page, at)
        if kind == _TABLE_LEAF:
            _, at = _varint(page, at)
        most = _MAX_TABLE_LOCAL if kind == _TABLE_LEAF else _MAX_INDEX_LOCAL
        if size <= most:
            if at + size > PAGE_BYTES:
                raise _Unreadable
            return page[at : at + size]
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
        return b"".join(parts)


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
    log = path.with_name(f"{path.name}-wal")
    return Pages(path.read_bytes(), read_wal(log.read_bytes() if log.exists() else b""))
