"""What a proposal changes, as values: splices of one file's bytes, how they shift, and when two of them conflict."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.index.records import digest


def tracking_hash(content: bytes) -> str:
    """Of a file's bytes, as the index and the reading tools give it."""
    return digest(content).hex()


class ChangeKind(StrEnum):
    """What happens to one file."""

    CREATED = "created"
    EDITED = "edited"
    DELETED = "deleted"
    RENAMED = "renamed"


class Splice(Struct, frozen=True):
    """These bytes in place of a span (end exclusive) of the file as it was when it was staged."""

    start: int
    end: int
    content: bytes

    @property
    def growth(self) -> int:
        """By how much what follows is moved."""
        return len(self.content) - (self.end - self.start)

    def overlaps(self, other: Splice) -> bool:
        """Also where both insert at one place: which came first would be chance."""
        if self.start == self.end == other.start == other.end:
            return True
        return self.start < other.end and other.start < self.end


class FileChange(Struct, frozen=True):
    """One file: where it is, where it will be, and what of it is replaced. Paths are absolute and resolved."""

    path: str
    target: str | None
    """Where it is afterwards, most often where it was; None: it is deleted."""
    base: bytes | None
    """What the splices are of; None: there is no such file yet."""
    splices: tuple[Splice, ...] = ()
    """In order, none overlapping another."""
    is_executable: bool | None = None
    """None: as it is, and not for a new file."""

    @property
    def kind(self) -> ChangeKind:
        if self.base is None:
            return ChangeKind.CREATED
        if self.target is None:
            return ChangeKind.DELETED
        return ChangeKind.EDITED if self.target == self.path else ChangeKind.RENAMED

    @property
    def base_hash(self) -> str:
        """The tracking hash of `base`; "" of a file that is not there."""
        return "" if self.base is None else tracking_hash(self.base)

    @property
    def result(self) -> bytes | None:
        """The file's content afterwards; None where it is deleted."""
        return None if self.target is None else spliced(self.base or b"", self.splices)

    @property
    def touched(self) -> frozenset[str]:
        """The places that are other than before."""
        return frozenset({self.path, self.target or self.path})

    @property
    def taken(self) -> frozenset[str]:
        """The places at which there will be a file that is not there now."""
        is_new = self.target is not None and (self.base is None or self.target != self.path)
        return frozenset({self.target} if is_new and self.target is not None else ())


def spliced(base: bytes, splices: Iterable[Splice]) -> bytes:
    """The content with every splice done."""
    parts, at = [], 0
    for each in splices:
        parts += [base[at : each.start], each.content]
        at = each.end
    return b"".join((*parts, base[at:]))


def conflict(older: FileChange, newer: FileChange) -> str:
    """Why not both of them can be applied, in whichever order; "" where they can."""
    if older.path == newer.path and older.base is not None and newer.base is not None:
        if older.target is None or newer.target is None:
            return "one of them deletes the file"
        if ChangeKind.EDITED not in (older.kind, newer.kind):
            return "both rename the file"
        if older.base_hash == newer.base_hash and any(a.overlaps(b) for a in older.splices for b in newer.splices):
            return "both change the same lines"
        return ""
    if older.taken & newer.touched or newer.taken & older.touched:
        return "both put a file at the same place"
    return ""


def rebased(change: FileChange, applied: FileChange) -> FileChange | None:
    """The change as it is to be after `applied` was; None where it can no longer be made."""
    if change.path != applied.path or applied.base is None:
        return None if conflict(applied, change) else change
    if change.base_hash != applied.base_hash or conflict(applied, change):
        return None
    path = applied.target
    assert path is not None  # a deletion conflicts with every other change of the file
    moved = tuple(_moved(each, applied.splices) for each in change.splices)
    target = path if change.target == change.path else change.target
    return replace(change, path=path, target=target, base=applied.result, splices=moved)


def _moved(splice: Splice, before: Iterable[Splice]) -> Splice:
    by = sum(each.growth for each in before if each.end <= splice.start)
    return replace(splice, start=splice.start + by, end=splice.end + by)


class Operation(Struct, frozen=True):
    """What is done at one place: this content, or no file, in place of that one."""

    path: str
    old: bytes | None
    new: bytes | None
    source: str
    """Whose permissions and owner the new file gets; the path itself where it is new."""
    is_executable: bool | None = None


def operations(changes: Sequence[FileChange]) -> tuple[Operation, ...]:
    """What is to be at each place, whatever the order: also where files of one proposal change places."""
    old = {change.path: change.base for change in changes}
    new: dict[str, tuple[bytes | None, FileChange]] = {}
    for change in changes:
        if change.target != change.path and change.base is not None:
            new.setdefault(change.path, (None, change))
    for change in changes:
        if change.target is not None:
            new[change.target] = change.result, change
    return tuple(
        Operation(path, old.get(path), content, change.path if content is not None else path, change.is_executable)
        for path, (content, change) in sorted(new.items())
    )


def clashes(changes: Sequence[FileChange]) -> Iterator[tuple[int, str]]:
    """Changes of one proposal that cannot be made together: the position of the later one, and why."""
    sources: set[str] = set()
    targets: dict[str, FileChange] = {}
    for position, change in enumerate(changes):
        if change.path in sources:
            yield position, f"{change.path} is changed twice"
        sources.add(change.path)
        if change.target is None:
            continue
        other = targets.setdefault(folded(change.target), change)
        if other is change:
            continue
        if other.target == change.target:
            yield position, f"{change.target} is made twice"
        elif other.taken or change.taken:
            yield position, f"{change.target} differs from {other.target} only in case: one file, on many disks"


def folded(path: str) -> str:
    """The same text for two paths that a disk which ignores case and Unicode forms takes for one."""
    return unicodedata.normalize("NFC", path).casefold()
