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

from msgspec.structs import replace

from callboard.actors.edits.patches import PatchLine

#: An item of a YAML list: what is nested in it stands below its text, not below its dash.
_ITEM: Final = re.compile(r"(\s*)(- +)\S")

#: What a line ends with behind which a deeper one may come.
_OPENERS: Final = (":", "(", "[", "{", ",", "=", "\\")


def indent_of(line: str) -> str:
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
    return min(steps, key=lambda step: (-steps[step], len(step)), default="")


class Surroundings:
    """How the file is indented, at and around the lines that a hunk was found to be."""

    def __init__(self, lines: Sequence[str], first: int, end: int) -> None:
        """The hunk's old lines are `lines[first:end]`."""
        self.step = step_of(lines)
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
        is_open = self._before.rstrip().endswith(_OPENERS)
        return self.levels() | {behind} | ({before + self.step} if is_open else set())


class _Rule:
    """From an indentation of the patch to one of the file."""

    def __init__(self, lines: Sequence[PatchLine], there: Sequence[str | None], around: Surroundings) -> None:
        self._around = around
        pairs = [(line.text, found) for line, found in zip(lines, there, strict=True) if found and found.strip()]
        known = [(indent_of(text), indent_of(found)) for text, found in pairs]
        self.known = dict(known) or {"": ""}
        self.is_identity = all(of_patch == of_file for of_patch, of_file in known)
        self.is_one = len(set(known)) == len(self.known) and all(
            _columns(here) <= _columns(deeper) for (_, here), (_, deeper) in _nested(self.known)
        )
        self._step = self._step_of_patch(lines)
        self._of_items = {inner: _inner(found) for text, found in pairs if (inner := _inner(text)) is not None}

    def _step_of_patch(self, lines: Sequence[PatchLine]) -> str:
        """What one level is in the patch, by what is one in the file where that can be seen; "" where that differs."""
        found = set()
        for (level, here), (deeper, there) in _nested(self.known):
            steps = there[len(here) :].count(self._around.step) if self._around.step else 0
            size, left = divmod(len(deeper) - len(level), steps) if steps else (0, 1)
            if there == here + self._around.step * steps and not left:
                found.add(deeper[len(level) :][:size])
        if len(found) > 1:
            return ""
        return found.pop() if found else step_of(line.text for line in lines)

    def of(self, indent: str) -> str | None:
        """None where it cannot be told."""
        if not self.is_one or indent in self.known:
            return self.known.get(indent) if self.is_one else None
        if (found := self._of_items.get(indent)) is not None:
            return found
        found = self._deeper(indent) if any(map(indent.startswith, self.known)) else self._less_deep(indent)
        is_between = found is not None and all(
            _columns(here) < _columns(deeper)
            for (_, here), (_, deeper) in _nested({**self.known, indent: found})
            if found in (here, deeper)
        )
        return found if is_between else None

    def _deeper(self, indent: str) -> str | None:
        """So many levels, and spaces of an aligned line, more than the nearest one that is less deep."""
        nearest = max((level for level in self.known if indent.startswith(level)), key=len)
        rest, step = indent[len(nearest) :], self._step
        if not step:
            return None
        of_file = self._around.step or step
        count = 0
        while rest.startswith(step):
            rest, count = rest[len(step) :], count + 1
        if rest.strip(" ") or (rest and len(rest) >= _columns(of_file)):
            return None
        return self.known[nearest] + of_file * count + rest

    def _less_deep(self, indent: str) -> str | None:
        """Outwards there is no evidence but that of the blocks around: it must be the level of one of them."""
        nearest = min((level for level in self.known if level.startswith(indent)), key=len, default=None)
        if nearest is None:
            return None
        rest, of_file = nearest[len(indent) :], self._around.step
        here = self.known[nearest]
        is_shift = here.endswith(rest) and (self._step == of_file or not of_file)
        if is_shift:
            found = here[: len(here) - len(rest)]
        else:
            step, depth = self._step, here.count(of_file) if of_file else 0
            if not step or here != of_file * depth or nearest != step * depth or indent != step * indent.count(step):
                return None
            found = of_file * indent.count(step)
        return found if found in self._around.levels() else None


def _nested(known: dict[str, str]) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Each two of them of which one is deeper in the patch, the deeper one last."""
    for each in known.items():
        for other in known.items():
            if other[0] != each[0] and other[0].startswith(each[0]):
                yield each, other


def reindented(
    lines: Sequence[PatchLine], there: Sequence[str | None], around: Surroundings
) -> tuple[PatchLine, ...] | None:
    """The lines of a hunk with the new ones indented as the file is; None where it is not clear how.

    `there`: of each line of the hunk the line of the file that it is, None of a new one and one not looked for.
    """
    rule = _Rule(lines, there, around)
    if not any(line.mark == "+" and line.text.strip() for line in lines):
        return tuple(lines)
    if rule.is_identity and not _is_indented_otherwise(lines, rule, around):
        return tuple(lines)
    in_file = _indents(lines, there, rule)
    is_blind = in_file is not None and not any(line.mark != "+" for line in lines)
    if in_file is None or (is_blind and not _is_possible(lines, in_file, around)) or not _keeps_shape(lines, in_file):
        return None
    return _items_aligned(lines, in_file)


def _is_indented_otherwise(lines: Sequence[PatchLine], rule: _Rule, around: Surroundings) -> bool:
    """No old line is indented, so all fit; but the new ones are where the file has lines that are indented otherwise."""
    indents = [indent_of(line.text) for line in lines if line.mark == "+" and line.text.strip()]
    if set(rule.known) != {""} or not any(indents):
        return False
    beside = around.beside()
    if any(line.mark == " " for line in lines):
        return beside.isdisjoint(indents) and rule.of(min(filter(None, indents), key=_columns)) in beside
    if any(line.mark == "-" for line in lines):
        return False
    return bool(around.step) and not _is_possible(lines, [indent_of(line.text) for line in lines], around)


def _is_possible(lines: Sequence[PatchLine], indents: Sequence[str], around: Surroundings) -> bool:
    """Can the first of these new lines, of a hunk that has no others, be where the file has it put?"""
    first = next(indent for line, indent in zip(lines, indents, strict=True) if line.text.strip())
    return first in around.between()


def _indents(lines: Sequence[PatchLine], there: Sequence[str | None], rule: _Rule) -> list[str] | None:
    """Of each line of the hunk, as it is in the file or is to be there; None where that of a new line is not clear."""
    found: list[str] = []
    for at, line in enumerate(lines):
        of_file = there[at]
        if line.mark != "+":
            found.append(indent_of(line.text if of_file is None else of_file))
            continue
        indent = rule.of(indent_of(line.text)) if line.text.strip() else ""
        if indent is None:
            indent = _of_replaced(lines, there, at)
        if indent is None:
            return None
        found.append(indent)
    return found


def _of_replaced(lines: Sequence[PatchLine], there: Sequence[str | None], at: int) -> str | None:
    """Line for line: the indentation of the line in whose place this one is put, where the patch has both at one depth."""
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
