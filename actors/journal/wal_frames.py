"""The write-ahead log of a SQLite file, read without SQLite, which gives up all that is behind the first damaged frame.

Each frame has a checksum that goes on from the one before (https://www.sqlite.org/walformat.html), and that sum is
written down: so what is behind a damaged frame can be proved from what the damaged one says. It can be run backwards
too: that tells where a frame belongs that was moved. What is given out here is proved; what is missing is named.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from callboard.actors.journal.file_lock import last_written, this_boot

#: SQLite's default, and what a journal is made with.
PAGE_BYTES: Final = 4_096
WAL_HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
FRAME_BYTES: Final = FRAME_HEADER_BYTES + PAGE_BYTES
#: Commits at the end of the log that cannot be proved. One may be a commit that the end of a process or a power cut has
#: interrupted: nothing was built on it. Of two, the first had been reported as durable before the second began.
MOST_UNFINISHED_COMMITS: Final = 1
_WAL_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
_UNFINISHED: Final = "had not been finished when its process ended"
#: Frames of so many earlier turns may stand behind the last one. Of random bytes one in 65,536 looks like theirs.
_EARLIER_TURNS: Final = 1 << 16
_MASK: Final = 0xFFFFFFFF
#: The first part of the index beside a log, which is there twice: version, changes, page size, frames, pages, sums,
#: salts and a sum of its own; behind them how many frames are in the file already.
_INDEX: Final = struct.Struct("=3I2BH8I")
_INDEX_COPIED: Final = struct.Struct("=I")
_INDEX_BYTES: Final = 2 * _INDEX.size + _INDEX_COPIED.size

Sums = tuple[int, int]


class LogFrame(Struct, frozen=True):
    """One page as a commit has written it."""

    page: int
    pages: int
    """Of the file after the commit that it is the last frame of; else 0."""
    data: bytes


class LostFrame(Struct, frozen=True):
    """A place at which nothing can be proved."""

    pages: tuple[int, ...] = ()
    """Which page it may have been of; none where that is not known."""
    data: bytes = b""
    """What stands there, if anything. Its rows have checksums of their own."""


class Log(Struct):
    """What a log adds to its file. Places are counted from 0."""

    frames: dict[int, LogFrame] = field(default_factory=dict)
    """By place: what is proved of the last turn of the log, up to its last commit."""
    lost: dict[int, LostFrame] = field(default_factory=dict)
    """The other places before that, and what of damage, rather than of a commit that was not finished, is behind it."""
    earlier: tuple[LogFrame, ...] = ()
    """Of turns before: all of it had been copied into the file when the last turn began."""
    fault: str = ""
    """What is wrong with it. A commit at its end that was not finished is no fault."""
    tail: str = ""
    """What is to be said of such a commit."""
    torn: bytes = b""
    """The frames of such a commit, where it is not certain that it was not finished."""


class _Told(Struct, frozen=True):
    """What the index says of its log."""

    frames: int
    """How many had been committed."""
    copied: int
    """How many of them had been copied into the file."""
    salts: bytes
    """Of their turn."""


class _Raw(Struct):
    """A frame as it stands in the log."""

    head: bytes
    data: bytes
    page: int
    pages: int
    before: int | None = None
    """The frame that it goes on from, by where that stands in the log; -1: the header. None: it is not proved."""
    is_plain: bool = False
    """SQLite itself takes it for sound, where it has got so far."""

    @property
    def salts(self) -> bytes:
        return self.head[8:16]

    @property
    def stored(self) -> Sums:
        return struct.unpack(">II", self.head[16:24])

    @property
    def is_commit(self) -> bool:
        return self.head[4:8] != bytes(4)


def log_of(path: Path, *, with_earlier: bool = False) -> Log:
    """The log beside the file `path`; the frames of earlier turns only where they are asked for, or it is damaged.

    Nothing is changed. The index is read first: who writes meanwhile has written all frames that it tells of. One that
    is older than the start of the machine says nothing: it is never synced, and after a power cut it may be older than
    its log, or newer.
    """
    index, log = (path.with_name(f"{path.name}{ending}") for ending in ("-shm", "-wal"))
    left = last_written(path)
    is_older = left is not None and left.boot not in ("", this_boot())
    finished = b"" if is_older else _read(index, _INDEX_BYTES)
    return read_log(_read(log), finished, with_earlier=with_earlier)


def is_log_header(header: bytes) -> bool:
    """Is this the beginning of a log, and sound? Else SQLite takes the log for an empty one."""
    magic = _WAL_MAGIC.get(int.from_bytes(header[:4], "big"))
    return (
        magic is not None and len(header) == WAL_HEADER_BYTES and _header_sum(magic, header) == _header_stored(header)
    )


def _read(path: Path, size: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except (FileNotFoundError, IsADirectoryError):
        return b""


def read_log(data: bytes, index: bytes = b"", *, with_earlier: bool = True) -> Log:
    """What can be proved. `index`: the beginning of the file beside the log, which a killed process leaves behind: it
    says how many frames had been committed."""
    header = data[:WAL_HEADER_BYTES]
    raws = list(_raws(data))
    told = _told(index)
    if not raws:
        return _without_frames(header, told)
    magic = _WAL_MAGIC.get(int.from_bytes(header[:4], "big"))
    sound = magic is not None and _header_sum(magic, header) == _header_stored(header)
    if sound and not with_earlier:
        own = [raw for raw in raws if _is_of_last(raw, header[16:24])]
        if own == raws[: len(own)]:
            raws = own  # each frame costs some 0.1 ms
    if magic is not None and sound:
        order = magic
    else:  # one bit makes it the other order
        order = max(_WAL_MAGIC.values(), key=lambda each: (_prove(raws, each, header), each == magic))
    if _prove(raws, order, header) < len(raws) and not with_earlier:
        return read_log(data, index)
    in_header = header[16:24] if sound or told is None else told.salts
    salts = in_header if sound else next((raw.salts for raw in raws if raw.before is not None), in_header)
    if sound and told is not None and _is_of_another(salts, told.salts):
        return _gone(told, "its log is another journal's")
    _prove_moved(raws, order, header)
    placed, earlier = _placed(raws, salts)
    plain = _seen_by_sqlite(raws, salts) if sound else 0
    told = told if told is not None and told.salts == salts else None
    finished = None if told is None else told.frames
    end = 1 + max((place for place, raw in placed.items() if raw.pages), default=-1)
    if sound and (finished or 0) <= plain and _is_unfinished(raws[plain:], range(plain, end), placed, salts):
        end = plain
    log = Log(earlier=tuple(map(_frame, earlier)))
    end = _look_at_end(log, raws, salts, end, finished)
    log.frames = {place: _frame(raw) for place, raw in sorted(placed.items()) if place < end}
    for place in sorted(set(range(end)) - log.frames.keys()):
        is_there = place < len(raws) and raws[place].salts == salts
        log.lost[place] = _lost_frame(raws, place, order, header) if is_there else LostFrame()
    _tell(log, plain, is_sound=sound)
    if log.fault and told is not None:
        _leave_out_copied(log, told.copied)
    return log


def _leave_out_copied(log: Log, copied: int) -> None:
    """So many frames had been copied into the file: what they are of is there, in no older version. Where some of them
    are lost, those before would hide it."""
    log.earlier += tuple(frame for place, frame in log.frames.items() if place < copied)
    log.frames = {place: frame for place, frame in log.frames.items() if place >= copied}
    log.lost = {place: lost for place, lost in log.lost.items() if place >= copied}


def _raws(data: bytes) -> Iterator[_Raw]:
    for at in range(WAL_HEADER_BYTES, len(data) - FRAME_HEADER_BYTES + 1, FRAME_BYTES):
        head = data[at : at + FRAME_HEADER_BYTES]
        page, pages = struct.unpack(">II", head[:8])
        yield _Raw(head, data[at + FRAME_HEADER_BYTES : at + FRAME_BYTES], page, pages)


def _frame(raw: _Raw) -> LogFrame:
    return LogFrame(raw.page, raw.pages, raw.data)


def _without_frames(header: bytes, told: _Told | None) -> Log:
    """A log that is empty, or gone: its index says which, since an emptied one has none there either."""
    if told is None or told.copied >= told.frames or (len(header) == WAL_HEADER_BYTES and header[16:24] != told.salts):
        return Log()
    return _gone(told, "its log is gone")


def _gone(told: _Told, why: str) -> Log:
    lost = dict.fromkeys(range(told.copied, told.frames), LostFrame())
    return Log(lost=lost, fault=f"{why}: its own had {told.frames} frames")


def _is_of_another(salts: bytes, own: bytes) -> bool:
    """Neither an earlier nor a later turn of the log that its index tells of? See `_is_of_no_turn`."""
    turns = int.from_bytes(salts[:4], "big") - int.from_bytes(own[:4], "big") & _MASK
    return min(turns, _MASK + 1 - turns) >= _EARLIER_TURNS


# -- checksums


def sums(order: str, data: bytes, start: Sums) -> Sums:
    """The checksum that goes on from `start`."""
    first, second = start
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, other in zip(words, words, strict=True):
        first = (first + one + second) & _MASK
        second = (second + other + first) & _MASK
    return first, second


def _start_of(order: str, data: bytes, end: Sums) -> Sums:
    """From which sums this data leads to `end`."""
    first, second = end
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data)[::-1])
    for other, one in zip(words, words, strict=True):
        second = (second - other - first) & _MASK
        first = (first - one - second) & _MASK
    return first, second


def _header_stored(header: bytes) -> Sums:
    return struct.unpack(">II", header[24:32])


def _header_sum(order: str, header: bytes) -> Sums:
    return sums(order, header[:24], (0, 0))


def _told(index: bytes) -> _Told | None:
    """None where the index does not say it."""
    own, other, copied = index[: _INDEX.size], index[_INDEX.size : 2 * _INDEX.size], index[2 * _INDEX.size :]
    if len(index) < _INDEX_BYTES or own != other:
        return None
    _, _, _, is_made, _, _, frames, *_, first, second = _INDEX.unpack(own)
    if not is_made or not frames or sums("=", own[:-8], (0, 0)) != (first, second):
        return None
    return _Told(frames, min(frames, *_INDEX_COPIED.unpack(copied)), own[32:40])


# -- proofs


def _prove(raws: Sequence[_Raw], order: str, header: bytes) -> int:
    """Those that go on from the frame before them; how many do."""
    start = _header_stored(header)
    for number, raw in enumerate(raws):
        raw.is_plain = (
            raw.page > 0 and len(raw.data) == PAGE_BYTES and sums(order, raw.head[:8] + raw.data, start) == raw.stored
        )
        raw.before = number - 1 if raw.is_plain else None
        start = raw.stored
    return sum(raw.is_plain for raw in raws)


def _page_limit(raws: Sequence[_Raw]) -> int:
    """No page has a higher number."""
    return max((raw.pages for raw in raws if raw.before is not None), default=0) + len(raws)


def _prove_moved(raws: Sequence[_Raw], order: str, header: bytes) -> None:
    """Those that stand in another place, and those of which, or before which, only a sum is damaged."""
    left = [number for number, raw in enumerate(raws) if raw.before is None and len(raw.data) == PAGE_BYTES]
    ends = {raw.stored: number for number, raw in enumerate(raws)}
    ends |= {_header_stored(header): -1, _header_sum(order, header): -1}
    reached: dict[Sums, int] = {}
    for number in left:
        raw = raws[number]
        if raw.page:
            begin = raws[number - 1].stored if number else _header_stored(header)
            reached.setdefault(sums(order, raw.head[:8] + raw.data, begin), number)
    for number in left:
        raw = raws[number]
        begin = _start_of(order, raw.head[:8] + raw.data, raw.stored) if raw.page else (0, 0)
        if begin == (0, 0):
            continue
        if begin in ends and ends[begin] != number:
            raw.before = ends[begin]
        elif begin in reached and reached[begin] != number:
            raw.before = reached[begin]
            raws[raw.before].before = raw.before - 1


# -- places


def _placed(raws: Sequence[_Raw], salts: bytes) -> tuple[dict[int, _Raw], list[_Raw]]:
    """The proved frames of the last turn by their places, and those of earlier turns."""
    places: dict[int, int] = {}
    roots: dict[int, int] = {}
    for number in range(len(raws)):
        chain = []
        at: int | None = number
        while at is not None and at >= 0 and raws[at].before is not None and at not in places and at not in chain:
            chain.append(at)
            at = raws[at].before
        for each in reversed(chain):
            before = raws[each].before
            assert before is not None
            linked = before in places
            places[each] = 0 if before == -1 else places[before] + 1 if linked else each
            roots[each] = -1 if before == -1 else roots[before] if linked else each
    own = {roots[number] for number in places if raws[number].salts == salts} | {-1}
    placed: dict[int, _Raw] = {}
    earlier: list[_Raw] = []
    for number, place in places.items():
        if roots[number] in own:
            placed.setdefault(place, raws[number])
        else:
            earlier.append(raws[number])
    return placed, earlier


def _seen_by_sqlite(raws: Sequence[_Raw], salts: bytes) -> int:
    """How many frames it takes for sound."""
    end = 0
    for number, raw in enumerate(raws):
        if not raw.is_plain or raw.salts != salts:
            break
        if raw.pages:
            end = number + 1
    return end


def _is_unfinished(behind: Sequence[_Raw], places: range, placed: dict[int, _Raw], salts: bytes) -> bool:
    """Is what is behind the frames that SQLite sees one commit, of which a power cut has left the end, and not all?"""
    proved = [placed[place] for place in places if place in placed]
    own = {id(raw) for raw in behind[: len(places)]}
    is_at_its_place = all(id(raw) in own for raw in proved)  # what was moved, a power cut has not moved
    commits = sum(raw.pages > 0 for raw in proved)
    others = [raw.head for raw in behind if raw.before is None]
    is_one = commits + _commits_among(others, salts) <= MOST_UNFINISHED_COMMITS
    return len(proved) < len(places) and is_at_its_place and is_one


def _look_at_end(log: Log, raws: Sequence[_Raw], salts: bytes, end: int, finished: int | None) -> int:
    """Up to which place there were commits; what is behind is not, or may not be, a finished one."""
    behind = [(place, raw) for place, raw in enumerate(raws) if place >= end and _is_of_last(raw, salts)]
    torn = [(place, raw) for place, raw in behind if raw.before is None]
    if finished is not None and finished > end:
        return finished
    if _commits_among([raw.head for _, raw in torn], salts) > MOST_UNFINISHED_COMMITS:
        return torn[-1][0] + 1
    if behind:
        log.tail = f"its last commit {_UNFINISHED}: nothing was built on it"
    if torn and finished != end:
        log.tail = f"its last commit is not whole: it {_UNFINISHED}, or was damaged since"
        log.torn = b"".join(raw.head + raw.data for _, raw in behind)
    return end


def _lost_frame(raws: Sequence[_Raw], place: int, order: str, header: bytes) -> LostFrame:
    """Its page, by its head, and by its checksum where that is right and the head is damaged."""
    raw, limit = raws[place], _page_limit(raws)
    told = {raw.page}
    if len(raw.data) == PAGE_BYTES:
        start = raws[place - 1].stored if place else _header_stored(header)
        first, _ = _start_of(order, raw.data, raw.stored)
        told.add(int.from_bytes(struct.pack(f"{order}I", (first - sum(start)) & _MASK), "big"))
    return LostFrame(tuple(page for page in told if 0 < page <= limit), raw.data)


def _is_of_last(raw: _Raw, salts: bytes) -> bool:
    """Is it, as far as one can see, no frame of an earlier turn?"""
    return raw.salts == salts or (raw.before is None and _is_of_no_turn(raw.head, salts))


def _commits_among(heads: list[bytes], salts: bytes) -> int:
    """Of the frames behind the sound ones, in their order. Those that no turn has written count as one, however many
    stand together: it is not known what was there. Zeros are room that the file had got, and that was not written when
    the power went."""
    written = [head for head in heads if head.strip(b"\0")]
    own = [head[4:8] != bytes(4) for head in written if head[8:16] == salts]
    of_last_turn = sum(own) + (any(own) and not own[-1])  # behind a commit there is another one, which was begun
    return of_last_turn + sum(
        is_of_none for is_of_none, _ in groupby(written, lambda head: _is_of_no_turn(head, salts))
    )


def _is_of_no_turn(head: bytes, salts: bytes) -> bool:
    """Of a frame behind the sound ones: is it neither of the last turn of the log, which has these salts, nor of an
    earlier one? Each turn has its first salt one above that of the turn before, and draws the other
    (https://www.sqlite.org/walformat.html)."""
    turns = int.from_bytes(salts[:4], "big") - int.from_bytes(head[8:12], "big") & 0xFFFFFFFF
    return head[8:16] != salts and (not 0 < turns < _EARLIER_TURNS or head[12:16] == salts[4:])


def _tell(log: Log, plain: int, *, is_sound: bool) -> None:
    """What SQLite, which sees so many frames, would give up."""
    given_up = sum(frame.pages > 0 for place, frame in log.frames.items() if place >= plain)
    ends = sorted(place for place, frame in log.frames.items() if frame.pages)
    lost = len({bisect_left(ends, place) for place in log.lost})
    if not log.lost and not given_up:
        return
    where = f"at its frame {min(log.lost, default=plain) + 1}" if is_sound else "at its beginning"
    log.fault = f"its log is damaged {where}; sound commits behind that: {given_up}"
    if log.lost:
        log.fault += f"; lost pages: {len(log.lost)}, of {lost} commits or more"
