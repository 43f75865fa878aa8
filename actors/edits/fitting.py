"""Find where a hunk belongs in a file: where it says, else elsewhere, else with other white space or less context.

What is not exact is said. Only the changed lines are replaced, so lines of context stay as they are in the file, and
the new ones are indented as it is. Of several places that of the right line number is taken, else the one below the
hunk's heading; never the nearest, which is another function as often as not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from callboard.actors.edits.changes import Splice
from callboard.actors.edits.indentation import Evidence, PlacedHunk, Surroundings, indent_of, reindented, step_of
from callboard.actors.edits.patches import Hunk, PatchLine
from callboard.actors.edits.texts import MAX_PLACES, EditedText
from callboard.protocol.errors import ToolError

#: Lines of context that may differ at either end of a hunk, as with patch(1).
MAX_FUZZ: Final = 2
#: Lines of the file that a failure shows.
MAX_SHOWN_LINES: Final = 12
#: Lines that begin so end no block, however little they are indented: brackets, comments, C's preprocessor.
_NO_END: Final = ("{", "}", "(", ")", "[", "]", "#")


def _as_it_is(line: str) -> str:
    return line


def _squeezed(line: str) -> str:
    return " ".join(line.split())


#: How lines are compared, the strictest way first, and what is said of a hunk that fits only so.
_WAYS: Final[tuple[tuple[Callable[[str], str], str], ...]] = (
    (_as_it_is, ""),
    (str.rstrip, "white space at the ends of lines differs"),
    (_squeezed, "white space differs"),
)


class Fit(Struct, frozen=True):
    """Where a hunk's old lines are in the file, and what is not exact about it."""

    at: int
    """The first line, counted from 0."""
    skipped: int = 0
    """Old lines at the beginning of the hunk that were not looked for."""
    looked_for: int = 0
    told: tuple[str, ...] = ()


class Fitter:
    """Fits the hunks of one file, from its beginning to its end. Raises ToolError for one that does not fit."""

    def __init__(self, text: EditedText, path: str) -> None:
        self._text = text
        self._path = path
        lines = [text.decoded(start, end) for start, end, _ in text.lines]
        self._lines = [[way(line) for line in lines] for way, _ in _WAYS]
        self._step = step_of(lines)
        self._from = 0
        """The first line that no hunk so far covers."""
        self._moved = 0
        """By how much the last hunk was away from where it says."""
        self.notes: list[str] = []

    def fit(self, *hunks: Hunk) -> list[Splice]:
        """The splices that the hunks come to, in their order in the file."""
        fits = [self._found(hunk) for hunk in hunks]
        placed = [self._placed(hunk, fit) for hunk, fit in zip(hunks, fits, strict=True)]
        evidence = Evidence(placed)
        found: list[Splice] = []
        for hunk, fit, place in zip(hunks, fits, placed, strict=True):
            lines = reindented(place, evidence)
            if lines is None:
                raise self._unclear(hunk, fit)
            told = fit.told if lines == hunk.lines else (*fit.told, "its new lines were indented as the file is")
            if told:
                self.notes.append(f"{self._path}: hunk {hunk.number} fits, but {', and '.join(told)}")
            found += self._splices(lines, fit)
        return found

    def _found(self, hunk: Hunk) -> Fit:
        fit = self._find(hunk)
        self._from = fit.at + fit.looked_for
        if hunk.start is not None:
            self._moved = fit.at - fit.skipped - (hunk.start - 1)
        return fit

    def _placed(self, hunk: Hunk, fit: Fit) -> PlacedHunk:
        lines, end = self._lines[0], fit.at + fit.looked_for
        there: list[str | None] = []
        at = fit.at - fit.skipped
        for line in hunk.lines:
            there.append(lines[at] if line.mark != "+" and fit.at <= at < end else None)
            at += line.mark != "+"
        return PlacedHunk(hunk.lines, tuple(there), Surroundings(lines, fit.at, end, self._step))

    def _find(self, hunk: Hunk) -> Fit:
        old = [line.text for line in hunk.old]
        if not old:
            return self._insertion(hunk)
        leading, trailing = _context(hunk.lines), _context(hunk.lines[::-1])
        for fuzz in range(MAX_FUZZ + 1):
            skipped, cut = min(fuzz, leading), min(fuzz, trailing)
            wanted = old[skipped : len(old) - cut]
            if fuzz and (skipped + cut == 0 or not any(line.strip() for line in wanted)):
                continue
            for way, (shape, told) in enumerate(_WAYS):
                found = self._places(way, [shape(line) for line in wanted])
                if found:
                    is_loose = f"{skipped + cut} lines of its context were left out of account" if fuzz else ""
                    return self._chosen(hunk, found, skipped, len(wanted), tuple(filter(None, (told, is_loose))))
        raise self._misfit(hunk, old)

    def _places(self, way: int, wanted: Sequence[str]) -> list[int]:
        """Where these lines are, one after the other, from where the last hunk has ended."""
        lines, first, size = self._lines[way], wanted[0], len(wanted)
        found: list[int] = []
        at = self._from
        while True:
            try:
                at = lines.index(first, at)
            except ValueError:
                return found
            if lines[at : at + size] == list(wanted):
                found.append(at)
            at += 1

    def _chosen(self, hunk: Hunk, found: list[int], skipped: int, size: int, told: tuple[str, ...]) -> Fit:
        at, why = self._decided(hunk, found, skipped, size)
        if hunk.start is not None and (by := at - (hunk.start - 1 + skipped)):
            way = "below" if by > 0 else "above"
            told = (f"{abs(by)} lines {way} line {hunk.start}, where its header says", *told)
        if why:
            told = (*told, f"its lines are in {len(found)} places; line {at + 1} is {why}")
        return Fit(at, skipped, size, told)

    def _decided(self, hunk: Hunk, found: list[int], skipped: int, size: int) -> tuple[int, str]:
        """One of these places, and what has decided where neither text nor line number has. Raises ToolError."""
        if len(found) == 1:
            return found[0], ""
        said = None if hunk.start is None else hunk.start - 1 + skipped
        numbered = [] if said is None else [at for at in found if at in (said, said + self._moved)]
        within, behind = self._below_heading(hunk.heading, found, size) if hunk.heading else (set[int](), set[int]())
        headed = within or behind
        chosen = [at for at in numbered if not headed or at in within | behind] if numbered else sorted(headed)
        if len(chosen) != 1:
            raise self._ambiguous(hunk, found)
        at = chosen[0]
        if at == said:
            return at, ""
        return at, "below its heading" if at in headed else "as far away as the hunk before it"

    def _below_heading(self, heading: str, found: list[int], size: int) -> tuple[set[int], set[int]]:
        """Which of these places are in the function, class or section that the text behind "@@" names, and which are
        just behind it.

        git names what is before the hunk's first line, models what the change is in: that may be one of its lines.
        """
        lines, wanted = self._lines[-1], _squeezed(heading.rstrip(". \u2026"))
        within, behind = set[int](), set[int]()
        for head in (at for at, line in enumerate(lines) if wanted and line.startswith(wanted)):
            end = _end_of_block(self._lines[0], head)
            within.update(at for at in found if head - size < at < end)
            behind.update(at for at in found if at == end)
        return within, behind

    def _insertion(self, hunk: Hunk) -> Fit:
        """A hunk without old lines goes behind the line that its header names."""
        count = len(self._text.lines)
        if hunk.start is None and count:
            raise self._error(hunk, "it has no context and no line number", "a hunk with lines of context")
        at = min(hunk.start or 0, count)
        if at < self._from or (hunk.start or 0) > count:
            raise self._error(hunk, f"there is no line {hunk.start}", f"a line from 0 to {count}")
        return Fit(at)

    def _splices(self, lines: Sequence[PatchLine], fit: Fit) -> list[Splice]:
        """One for each run of changed lines."""
        found: list[Splice] = []
        at, passed = fit.at, 0
        removed: list[PatchLine] = []
        added: list[PatchLine] = []
        for line in (*lines, PatchLine(" ", "")):
            if line.mark == "+":
                added.append(line)
            elif line.mark == "-":
                removed.append(line)
            else:
                if removed or added:
                    found.append(self._splice(at, removed, added))
                    at, removed, added = at + len(removed), [], []
                passed += 1
                at += passed > fit.skipped
        return found

    def _splice(self, at: int, removed: Sequence[PatchLine], added: Sequence[PatchLine]) -> Splice:
        lines, content = self._text.lines, self._text.content
        end_of_all = len(content)
        start = lines[at][0] if at < len(lines) else end_of_all
        end = lines[at + len(removed) - 1][2] if removed else start
        text = "".join(line.text + ("\n" if line.ends else "") for line in added)
        if start == end_of_all and lines and added and lines[-1][1] == lines[-1][2]:
            text = "\n" + text.removesuffix("\n")  # behind a last line that has no end
        elif removed and added and removed[-1].ends and lines[at + len(removed) - 1][1] == end:
            text = text.removesuffix("\n")  # the last line has no end, of which the patch does not know
        return Splice(start, end, self._text.encoded(text, start, "patch"))

    # -- failures

    def _unclear(self, hunk: Hunk, fit: Fit) -> ToolError:
        end = min(fit.at + fit.looked_for, fit.at + MAX_SHOWN_LINES)
        shown = "\n".join(f"{at + 1}: {self._lines[0][at]}" for at in range(fit.at, end))
        told = "its lines are in the file with another indentation, and it is not clear how deep the new ones are to be"
        expected = f"a hunk indented as the file is{':' if shown else ''}\n{shown}".rstrip()
        return self._error(hunk, told, expected, "\n".join(line.text for line in hunk.old))

    def _misfit(self, hunk: Hunk, old: Sequence[str]) -> ToolError:
        near = self._text.nearest("\n".join(old))
        expected = f"lines that are in the file; the nearest are:\n{near}" if near else "lines that are in the file"
        told = "its lines are not in the file" + (" behind the hunk before it" if self._from else "")
        return self._error(hunk, told, expected, "\n".join(old))

    def _ambiguous(self, hunk: Hunk, found: Sequence[int]) -> ToolError:
        lines = ", ".join(str(at + 1) for at in found[:MAX_PLACES])
        more = ", ..." if len(found) > MAX_PLACES else ""
        told = f"its lines are in {len(found)} places"
        if hunk.start is not None:
            told += ", and line number and heading do not tell which"
        return self._error(hunk, told, f"a line number in its header: one of {lines}{more}")

    def _error(self, hunk: Hunk, told: str, expected: str, received: str = "") -> ToolError:
        return ToolError(
            f"hunk {hunk.number} of {self._path} does not fit: {told}; nothing was staged",
            field="patch",
            expected=expected,
            received=received[:500],
            retry_hint="Read the file again and send a patch against what it is now.",
        )


def _context(lines: Sequence[PatchLine]) -> int:
    """How many lines of context there are before the first change."""
    return next((place for place, line in enumerate(lines) if line.mark != " "), len(lines))


def _end_of_block(lines: Sequence[str], head: int) -> int:
    """The line behind the function, class or section that begins at this one: the next that is indented no deeper; of
    a heading that begins with a sign ("## ", "[name]"), the next that begins with it."""
    text, depth = lines[head].strip(), len(indent_of(lines[head]).expandtabs())
    sign = "" if text[0].isalnum() or text[0] in "_$@" else text[0]
    for at in range(head + 1, len(lines)):
        line = lines[at].strip()
        if not line or len(indent_of(lines[at]).expandtabs()) > depth:
            continue
        if line.startswith(sign) if sign else not line.startswith(_NO_END):
            return at
    return len(lines)
