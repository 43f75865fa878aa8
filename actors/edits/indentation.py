"""Indent the new lines of a hunk as the file is indented, where the patch is indented otherwise.

The old lines of the hunk and the lines of the file that they were found to be are the evidence: each indentation of the
patch is one of the file. A new line that is indented as an old one takes the file's indentation of that; any other is
so many steps deeper or less deep than the nearest one. Where the evidence contradicts itself there is no answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.edits.patches import PatchLine

#: An item of a YAML list: what is nested in it stands below its text, not below its dash.
_ITEM: Final = re.compile(r"(\s*)(- +)\S")

#: What a line ends with behind which a deeper one may come.
_OPENERS: Final = (":", "(", "[", "{", ",", "=", "\\")


def indent_of(line: str) -> str:
    """The white space that it begins with."""
    return line[: len(line) - len(line.lstrip())]


def _columns(indent: str) -> int:
    return len(indent.expandtabs(8))


def _inner(line: str) -> str | None:
    """The indentation below the text of a list's item."""
    found = _ITEM.match(line)
    return found[1] + " " * len(found[2]) if found else None


def step_of(lines: Iterable[str]) -> str:
    """What one level of indentation is in these lines; "" where none is indented.

    Counted are the steps from a line to a deeper one behind it and those between the levels that occur, since a
    continued line may be two levels deeper, and an aligned one any number of spaces.
    """
    indents = ["", *(indent_of(line) for line in lines if line.strip())]
    levels = sorted(set(indents), key=_columns)
    steps = Counter(
        deeper[len(level) :]
        for level, deeper in chain(pairwise(indents), pairwise(levels))
        if deeper != level and deeper.startswith(level)
    )
    likely = min(steps, key=lambda step: (-steps[step], len(step)), default="")
    return "\t" if likely.startswith("\t") else likely  # a tab is a level, where one has two of them too


class Surroundings:
    """How the file is indented, at and around the lines that a hunk was found to be."""

    def __init__(self, lines: Sequence[str], first: int, end: int, step: str) -> None:
        """The hunk's old lines are `lines[first:end]`; `step` is one level of the file."""
        self.step = step
        self._lines = lines
        self._first = first
        self._end = end

    @property
    def _before(self) -> str:
        return next((line for line in reversed(self._lines[: self._first]) if line.strip()), "")

    @property
    def _behind(self) -> str:
        return next((line for line in self._lines[self._end :] if line.strip()), "")

    def levels(self) -> set[str]:
        """The indentations of the line before the hunk, and of the blocks in which that is."""
        found = {""}
        lowest = _columns(indent_of(self._before)) + 1
        for line in reversed(self._lines[: self._first]):
            if line.strip() and _columns(indent_of(line)) < lowest:
                lowest = _columns(indent_of(line))
                found.add(indent_of(line))
            if not lowest:
                break
        return found

    def beside(self) -> set[str]:
        """The indentations, other than none, of the nearest lines before and behind the hunk."""
        return {indent_of(self._before), indent_of(self._behind)} - {""}

    def between(self) -> set[str]:
        """Those that a line may have which is put there."""
        before, behind = indent_of(self._before), indent_of(self._behind)
        if _columns(before) < _columns(behind):
            return {behind}
        return self.levels() | {behind} | ({before + self.step} if self.is_open else set())

    @property
    def is_open(self) -> bool:
        """Does the line before the hunk begin a block?"""
        return self._before.rstrip().endswith(_OPENERS)

    def may_follow(self, indent: str, text: str) -> bool:
        """May the line behind the hunk stand behind one like this?"""
        return _columns(indent_of(self._behind)) <= _columns(indent) or text.rstrip().endswith(_OPENERS)


class PlacedHunk(Struct, frozen=True):
    """A hunk, and where its old lines were found."""

    lines: tuple[PatchLine, ...]
    there: tuple[str | None, ...]
    """Of each line the line of the file that it is; None of a new one, and of one that was not looked for."""
    around: Surroundings

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The indentations of the patch with those of the file."""
        for line, found in zip(self.lines, self.there, strict=True):
            if found and found.strip():
                yield indent_of(line.text), indent_of(found)

    @property
    def is_indented_as_found(self) -> bool:
        return all(of_patch == of_file for of_patch, of_file in self.pairs())

    @property
    def is_blind(self) -> bool:
        """Has it no line, but blank ones, by which to see how the file is indented?"""
        return not any(line.mark != "+" and line.text.strip() for line in self.lines)

    @property
    def added(self) -> list[str]:
        """The indentations of the new lines that are not blank."""
        return [indent_of(line.text) for line in self.lines if line.mark == "+" and line.text.strip()]


class Evidence:
    """What all hunks of one file tell of how the patch is indented."""

    def __init__(self, hunks: Sequence[PlacedHunk]) -> None:
        self.is_otherwise = not all(hunk.is_indented_as_found for hunk in hunks)
        self.pairs = {pair for hunk in hunks for pair in hunk.pairs()}
        self._seen = {step for hunk in hunks for step in _steps_seen(dict(hunk.pairs()), hunk.around.step)}
        self._likely = step_of(line.text for hunk in hunks for line in hunk.lines)

    def step(self, of_hunk: set[str]) -> str:
        """One level in the patch, by what is one in the file where that can be seen; "" where that differs."""
        seen = of_hunk or self._seen or {self._likely}
        return next(iter(seen)) if len(seen) == 1 else self._likely if self._likely in seen else ""


def _steps_seen(known: dict[str, str], of_file: str) -> set[str]:
    """What one level of the file is in the patch, by each two lines of which one is deeper in both."""
    found = set()
    for (level, here), (deeper, there) in _nested(known):
        count = there[len(here) :].count(of_file) if of_file else 0
        size, left = divmod(len(deeper) - len(level), count) if count else (0, 1)
        step = deeper[len(level) :][:size]
        if there == here + of_file * count and not left and deeper == level + step * count:
            found.add(step)
    return found


class _Rule:
    """From an indentation of the patch to one of the file."""

    def __init__(self, hunk: PlacedHunk, evidence: Evidence) -> None:
        self._around = hunk.around
        self._of_file = hunk.around.step
        pairs = set(hunk.pairs()) or evidence.pairs or {("", "")}
        of_levels = {
            (here, there) for here, there in pairs if there == self._of_file * there.count(self._of_file or "?")
        }
        self._step = evidence.step(_steps_seen(dict(of_levels), self._of_file))
        is_plain = dict(pairs) if _is_one(pairs) else None
        # An aligned line is at no level: where it contradicts the others it is left out of account.
        of_levels = {(here, there) for here, there in of_levels if here == self._step * here.count(self._step or "?")}
        self.known = is_plain or (dict(of_levels) if _is_one(of_levels) else {})

    def of(self, indent: str) -> str | None:
        """None where it cannot be told."""
        if indent in self.known:
            return self.known[indent]
        found = self._deeper(indent) if any(map(indent.startswith, self.known)) else self._less_deep(indent)
        if found is None:
            return None
        order = [(one, other) for one, other in _nested({**self.known, indent: found}) if indent in (one[0], other[0])]
        return found if all(_columns(here) < _columns(there) for (_, here), (_, there) in order) else None

    def aligned(self, rest: str) -> str | None:
        """What of an indentation goes beyond the line before it that is less deep, where that is no whole level."""
        is_level = not self._step or rest == self._step * rest.count(self._step)
        return None if is_level or not self.known or rest.strip(" ") else rest

    def _deeper(self, indent: str) -> str | None:
        """So many levels more than the nearest one that is less deep."""
        nearest = max((level for level in self.known if indent.startswith(level)), key=len)
        count = indent[len(nearest) :].count(self._step) if self._step else 0
        if not count or indent != nearest + self._step * count:
            return None
        return self.known[nearest] + (self._of_file or self._step) * count

    def _less_deep(self, indent: str) -> str | None:
        """Outwards there is no evidence but that of the blocks around: it must be the level of one of them."""
        nearest = min((level for level in self.known if level.startswith(indent)), key=len, default=None)
        if nearest is None or not self._step:
            return None
        here, of_file = self.known[nearest], self._of_file or self._step
        depth, count = here.count(of_file), indent.count(self._step)
        if self._step == of_file:
            found = here.removesuffix(nearest[len(indent) :])
        elif here == of_file * depth and nearest == self._step * depth and indent == self._step * count:
            found = of_file * count
        else:
            return None
        return found if found != here and found in self._around.levels() else None


def _is_one(pairs: set[tuple[str, str]]) -> bool:
    """Is each indentation of the patch one of the file, and none that is deeper less deep there?"""
    known = dict(pairs)
    return len(known) == len(pairs) > 0 and all(
        _columns(here) <= _columns(there) for (_, here), (_, there) in _nested(known)
    )


def _nested(known: dict[str, str]) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Each two of them of which one is deeper in the patch, the deeper one last."""
    for each in known.items():
        for other in known.items():
            if other[0] != each[0] and other[0].startswith(each[0]):
                yield each, other


def reindented(hunk: PlacedHunk, evidence: Evidence) -> tuple[PatchLine, ...] | None:
    """The lines of a hunk with the new ones indented as the file is; None where it is not clear how."""
    if not any(line.mark == "+" and line.text.strip() for line in hunk.lines):
        return hunk.lines
    rule = _Rule(hunk, evidence)
    if hunk.is_indented_as_found and not _is_indented_otherwise(hunk, rule, evidence):
        return hunk.lines
    in_file = _indents(hunk, rule)
    if in_file is None or (rule.known and not _keeps_shape(hunk.lines, in_file)):
        return None
    if hunk.is_blind and not _is_possible(hunk, in_file):
        return None
    return _items_aligned(hunk.lines, in_file)


def _is_indented_otherwise(hunk: PlacedHunk, rule: _Rule, evidence: Evidence) -> bool:
    """All old lines are indented as in the file; but other hunks are not, so that may be by chance. Or no old line is
    indented, and new ones are where the file has lines that are indented otherwise."""
    if evidence.is_otherwise:
        return True
    if any(here for here, _ in hunk.pairs()) or not (any(hunk.added) or hunk.around.is_open):
        return False
    if hunk.is_blind:
        return bool(hunk.around.step) and not _is_possible(hunk, [indent_of(line.text) for line in hunk.lines])
    if all(line.mark != " " for line in hunk.lines):
        return False
    beside = hunk.around.beside()
    indented = list(filter(None, hunk.added))
    return bool(indented) and beside.isdisjoint(hunk.added) and rule.of(min(indented, key=_columns)) in beside


def _is_possible(hunk: PlacedHunk, indents: Sequence[str]) -> bool:
    """Can the new lines of a hunk that has no others be where the file has them put?"""
    new = [(indent, line.text) for line, indent in zip(hunk.lines, indents, strict=True) if line.text.strip()]
    return new[0][0] in hunk.around.between() and hunk.around.may_follow(*new[-1])


class _Outer(Struct, frozen=True):
    """A line of the new text: one that later ones may be nested in."""

    indent: str
    in_file: str
    inner: str | None
    """Of a list's item: where its text begins."""
    inner_in_file: str


def _indents(hunk: PlacedHunk, rule: _Rule) -> list[str] | None:
    """Of each line of the hunk, as it is in the file or is to be there; None where that of a new line is not clear."""
    found: list[str] = []
    outer: list[_Outer] = []
    for at, (line, there) in enumerate(zip(hunk.lines, hunk.there, strict=True)):
        indent, text = indent_of(line.text), line.text if there is None else there
        if not line.text.strip():
            found.append("")
            continue
        if line.mark == "-":
            found.append(indent_of(text))
            continue
        outer = [each for each in outer if each.indent != indent and indent.startswith(each.indent)]
        in_file = _indent_of_new(hunk, at, rule, outer) if line.mark == "+" else indent_of(text)
        if in_file is None:
            return None
        found.append(in_file)
        inner_in_file = in_file + " " * (len(_inner(text) or "") - len(indent_of(text)))
        outer.append(_Outer(indent, in_file, _inner(line.text), inner_in_file))
    return found


def _indent_of_new(hunk: PlacedHunk, at: int, rule: _Rule, outer: Sequence[_Outer]) -> str | None:
    indent = indent_of(hunk.lines[at].text)
    if outer and outer[-1].inner == indent:
        return outer[-1].inner_in_file
    found = rule.of(indent)
    if found is None and outer and (rest := rule.aligned(indent[len(outer[-1].indent) :])) is not None:
        return outer[-1].in_file + rest
    return _of_replaced(hunk.lines, hunk.there, at) if found is None else found


def _of_replaced(lines: Sequence[PatchLine], there: Sequence[str | None], at: int) -> str | None:
    """Line for line: that of the line in whose place this one is put, where the patch has both at one depth."""
    first = at
    while first and lines[first - 1].mark == "+":
        first -= 1
    end = next((place for place in range(at, len(lines)) if lines[place].mark != "+"), len(lines))
    begin = first
    while begin and lines[begin - 1].mark == "-":
        begin -= 1
    if first - begin != end - first:
        return None
    pairs = list(zip(lines[begin:first], lines[first:end], strict=True))
    if any(indent_of(old.text) != indent_of(new.text) for old, new in pairs):
        return None
    return indent_of(there[begin + at - first] or "")


def _keeps_shape(lines: Sequence[PatchLine], in_file: Sequence[str]) -> bool:
    """Is what begins a block in the patch, and what ends one, likewise in the file?"""
    new = [
        (line, _columns(indent_of(line.text)), _columns(indent))
        for line, indent in zip(lines, in_file, strict=True)
        if line.mark != "-" and line.text.strip()
    ]
    for (before, was, is_now), (line, then, now) in pairwise(new):
        if "+" in (before.mark, line.mark) and not (is_now < now if was < then else is_now >= now):
            return False
    return True


def _items_aligned(lines: Sequence[PatchLine], in_file: Sequence[str]) -> tuple[PatchLine, ...] | None:
    """With the text of a list's item above what is nested in it."""
    found: list[PatchLine] = []
    for at, line in enumerate(lines):
        if line.mark != "+":
            found.append(line)
            continue
        text = line.text.lstrip()
        behind = next((b for b in range(at + 1, len(lines)) if lines[b].mark != "-" and lines[b].text.strip()), None)
        inner = _inner(line.text)
        if inner is not None and behind is not None and indent_of(lines[behind].text) == inner:
            space = len(in_file[behind]) - len(in_file[at]) - 1
            if space < 1 or in_file[behind] != in_file[at] + " " * (space + 1):
                return None
            text = "-" + " " * space + text[1:].lstrip()
        found.append(replace(line, text=in_file[at] + text if text else ""))
    return tuple(found)
