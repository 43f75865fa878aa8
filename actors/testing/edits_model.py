"""What must become of staged edits: files are bytes by name, a proposal puts something in place of spans of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

Span = tuple[int, int, bytes]
"""From, to (exclusive), and what is there instead."""


class Edit(Struct, frozen=True):
    """What a proposal does to one file. Names are relative to the workspace."""

    name: str
    target: str | None
    """Where it is afterwards; None: it is deleted."""
    base: bytes | None
    """None: it is new."""
    spans: tuple[Span, ...] = ()
    is_executable: bool | None = None

    @property
    def result(self) -> bytes | None:
        """Its content afterwards."""
        if self.target is None:
            return None
        content = self.base or b""
        for start, end, new in reversed(self.spans):
            content = content[:start] + new + content[end:]
        return content

    @property
    def kind(self) -> str:
        """In the words of a proposal."""
        if self.base is None:
            return "created"
        if self.target is None:
            return "deleted"
        return "edited" if self.target == self.name else "renamed"

    @property
    def places(self) -> set[str]:
        """Where something is other than before."""
        return {self.name, self.target or self.name}

    @property
    def filled(self) -> set[str]:
        """Where a file will be that is not there now."""
        return {self.target} if self.target is not None and self.kind in ("created", "renamed") else set()


class Offer(Struct, eq=False):
    """A proposal, as the model has it."""

    edits: tuple[Edit, ...]
    state: str = "pending"
    request: str = ""
    call: str = ""
    is_told: bool = True
    is_changed: bool = False
    may_say_why: bool = False
    """It was approved and could not be applied."""


def collide(one: Edit, other: Edit) -> bool:
    """Whether not both can be done, in whichever order."""
    if one.name == other.name and one.base is not None and other.base is not None:
        if None in (one.target, other.target) or one.kind == other.kind == "renamed":
            return True
        return one.base == other.base and any(meet(a, b) for a in one.spans for b in other.spans)
    return bool(one.filled & other.places or other.filled & one.places)


def meet(one: Span, other: Span) -> bool:
    """Whether both change the same bytes, or put something at one place."""
    both_insert = one[0] == one[1] == other[0] == other[1]
    return both_insert or (one[0] < other[1] and other[0] < one[1])


def after(edit: Edit, done: Edit) -> Edit | None:
    """The edit once another one was applied; None where it can no longer be done."""
    if collide(done, edit):
        return None
    if edit.name != done.name or done.base is None:
        return edit
    if edit.base != done.base or done.target is None:
        return None
    spans = tuple((start + _by(done, start), end + _by(done, start), new) for start, end, new in edit.spans)
    target = done.target if edit.target == edit.name else edit.target
    return replace(edit, name=done.target, target=target, base=done.result, spans=spans)


def _by(done: Edit, at: int) -> int:
    return sum(len(new) - (end - start) for start, end, new in done.spans if end <= at)


class Shelf(Struct):
    """All files and proposals."""

    files: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)
    new_mode: int = 0o644
    """Of a file that nobody has given another one."""

    def pending(self) -> dict[str, Offer]:
        """Those that wait."""
        return {known: offer for known, offer in self.offers.items() if offer.state == "pending"}

    def stage(self, known: str, offer: Offer) -> set[str]:
        """A new one; the older ones that it makes stale."""
        stale = {
            other
            for other, old in self.pending().items()
            if any(collide(one, new) for one in old.edits for new in offer.edits)
        }
        for other in stale:
            self.settle(other, "stale")
        self.offers[known] = offer
        return stale

    def settle(self, known: str, state: str) -> None:
        """It is decided."""
        offer = self.offers[known]
        offer.state, offer.is_told = state, offer.request == ""

    def fits(self, offer: Offer) -> bool:
        """Whether all is as it was when it was staged."""
        moved = {edit.name for edit in offer.edits if edit.target != edit.name}
        return all(self.files.get(edit.name) == edit.base for edit in offer.edits) and not any(
            name in self.files and name not in moved for edit in offer.edits for name in edit.filled
        )

    def changed(self, offer: Offer) -> tuple[dict[str, bytes], dict[str, int]]:
        """All files, and their permissions, once it is applied."""
        files, modes = dict(self.files), dict(self.modes)
        for edit in offer.edits:
            if edit.target != edit.name and edit.base is not None:
                files.pop(edit.name, None)
                modes.pop(edit.name, None)
        for edit in offer.edits:
            if edit.target is not None and (content := edit.result) is not None:
                files[edit.target] = content
                mode = self.new_mode if edit.base is None else self.modes[edit.name]
                if edit.is_executable is not None:
                    mode = (mode | (mode & 0o444) >> 2) if edit.is_executable else mode & ~0o111
                modes[edit.target] = mode
        return files, modes

    def apply(self, known: str) -> list[str]:
        """It is approved; the others that no longer fit then."""
        offer = self.offers[known]
        if not self.fits(offer):
            self.settle(known, "stale")
            return []
        stale: list[str] = []
        self.files, self.modes = self.changed(offer)
        self.settle(known, "applied")
        for other, left in self.pending().items():
            edits: list[Edit | None] = list(left.edits)
            for done in offer.edits:
                if any(edit.places & done.places for edit in left.edits):
                    edits = [edit and after(edit, done) for edit in edits]
            if None in edits:
                self.settle(other, "stale")
                stale.append(other)
            else:
                left.edits = tuple(edit for edit in edits if edit is not None)
        return stale


# -- a diff, as git writes it, read by itself

_HUNK = re.compile(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n")


def told_by(diff: str) -> dict[tuple[str, str], list[str]]:
    """Of each file of a diff, by its paths before and after ("" for none): its header and hunk lines."""
    found: dict[tuple[str, str], list[str]] = {}
    for part in re.split(r"(?m)^(?=diff --git )", diff)[1:]:
        lines = (
            part.splitlines(keepends=True) if "\r" not in part and "\f" not in part else re.findall(r"[^\n]*\n", part)
        )
        _, _, rest = lines[0].partition(" a/")
        old, _, new = rest.rstrip("\n").partition(" b/")
        is_new = any(line.startswith("new file mode") for line in lines[:3])
        is_gone = any(line.startswith("deleted file mode") for line in lines[:3])
        found["" if is_new else old, "" if is_gone else new] = lines[1:]
    return found


def done_by(lines: Sequence[str], before: bytes) -> bytes | str:
    """What a file becomes by the hunks of a diff, applied to the letter; or what is wrong with them."""
    old = re.findall(rb"[^\n]*\n|[^\n]+", before)
    new: list[bytes] = []
    at = 0
    place = 0
    while place < len(lines):
        header = _HUNK.fullmatch(lines[place])
        place += 1
        if header is None:
            continue
        start, many, new_start, new_many = map(int, header.groups())
        start -= many > 0
        new += old[at:start]
        if len(new) != new_start - (new_many > 0):
            return f"a hunk says that it makes line {new_start}, and makes line {len(new) + 1}"
        at, made = start, len(new)
        while place < len(lines) and lines[place][0] in " +-\\":
            mark, text = lines[place][0], lines[place][1:].encode()
            place += 1
            if place < len(lines) and lines[place][0] == "\\":
                text = text[:-1]
                place += 1
            if mark != "+":
                if old[at : at + 1] != [text]:
                    return f"a hunk has the line {text!r}, where {old[at : at + 1]!r} is"
                at += 1
            if mark != "-":
                new.append(text)
        if (at - start, len(new) - made) != (many, new_many):
            return f"a hunk has {at - start} and {len(new) - made} lines, and says {many} and {new_many}"
    return b"".join([*new, *old[at:]])
