"""Unified diffs of proposals, in git's form: what a person reads, and what `git apply` takes."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from callboard.actors.edits.changes import FileChange
from callboard.actors.index.encodings import source_of

CONTEXT_LINES: Final = 3
#: difflib takes time that grows with the square of the lines; beyond so many, the block is shown as replaced whole.
MAX_COMPARED_LINES: Final = 2_000
#: What needs quotes in git's header lines.
_QUOTED: Final = re.compile(r'[\x00-\x1f\x7f"\\]')
#: One piece of a comparison: the lines before (from, to), and the lines after.
Block = tuple[str, int, int, int, int]


def git_diff(changes: Iterable[FileChange], root: str) -> str:
    """All changes, with paths relative to the workspace. Text of other encodings is shown as text."""
    return "".join(_of_file(change, root) for change in changes)


def changed_lines(change: FileChange) -> tuple[int, int]:
    """How many lines it adds, and how many it removes."""
    before, after = _lines(change.base), _lines(change.result)
    added = removed = 0
    for tag, i, j, k, m in blocks(before, after):
        if tag != "equal":
            removed, added = removed + j - i, added + m - k
    return added, removed


def told_difference(before: bytes | None, now: bytes | None) -> str:
    """What was changed in a file meanwhile, in one line: for someone whose edit no longer fits."""
    if now is None:
        return "it is no longer there"
    if before is None:
        return "there is a file by that name now"
    old, new = _lines(before), _lines(now)
    spans = [f"{k + 1}-{max(m, k + 1)}" for tag, _, _, k, m in blocks(old, new) if tag != "equal"]
    more = f" and {len(spans) - 3} more places" if len(spans) > 3 else ""
    return f"it was changed at lines {', '.join(spans[:3])}{more}" if spans else "its bytes were changed"


def blocks(before: Sequence[str], after: Sequence[str]) -> list[Block]:
    """Which lines are the same and which are not; what is the same at both ends is not looked at twice."""
    start = _same(before, after)
    end = _same(before[start:][::-1], after[start:][::-1])
    middle = before[start : len(before) - end], after[start : len(after) - end]
    found: list[Block] = [("equal", 0, start, 0, start)] if start else []
    if any(middle):
        if len(middle[0]) + len(middle[1]) > MAX_COMPARED_LINES:
            codes: list[Block] = [("replace", 0, len(middle[0]), 0, len(middle[1]))]
        else:
            codes = list(difflib.SequenceMatcher(None, *middle, autojunk=False).get_opcodes())
        found += [(tag, i + start, j + start, k + start, m + start) for tag, i, j, k, m in codes]
    if end:
        found.append(("equal", len(before) - end, len(before), len(after) - end, len(after)))
    return found


def _same(before: Sequence[str], after: Sequence[str]) -> int:
    """How many lines they have in common at the beginning."""
    most = min(len(before), len(after))
    return next((place for place in range(most) if before[place] != after[place]), most)


def _lines(content: bytes | None) -> list[str]:
    """With their line ends and a byte order mark, which may be what was changed. Only \\n ends a line, as in git."""
    if not content:
        return []
    source = source_of(content)
    return _split(content if source.encoding == "utf-8" else source.utf8)


def _split(utf8: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in re.findall(rb"[^\n]*\n|[^\n]+", utf8)]


def _of_file(change: FileChange, root: str) -> str:
    old, new = _shown(change.path, root), _shown(change.target or change.path, root)
    head = [f"diff --git {_quoted(f'a/{old}')} {_quoted(f'b/{new}')}\n"]
    if change.base is None:
        head.append(f"new file mode {'100755' if change.is_executable else '100644'}\n")
    elif change.target is None:
        head.append("deleted file mode 100644\n")
    elif change.is_executable is not None:
        modes = ("100644", "100755") if change.is_executable else ("100755", "100644")
        head += [f"old mode {modes[0]}\n", f"new mode {modes[1]}\n"]
    if change.target is not None and change.target != change.path:
        head += [f"rename from {_quoted(old)}\n", f"rename to {_quoted(new)}\n"]
    body = list(_hunks(_lines(change.base), _lines(change.result)))
    if body:
        head.append(f"--- {_quoted(f'a/{old}') if change.base is not None else '/dev/null'}\n")
        head.append(f"+++ {_quoted(f'b/{new}') if change.target is not None else '/dev/null'}\n")
    return "".join((*head, *body))


def _hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    for group in _grouped(blocks(before, after)):
        (_, i, _, k, _), (_, _, j, _, m) = group[0], group[-1]
        yield f"@@ -{_range(i, j)} +{_range(k, m)} @@\n"
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from _marked(" ", before[i:j])
                continue
            yield from _marked("-", before[i:j])
            yield from _marked("+", after[k:m])


def _grouped(found: Sequence[Block]) -> Iterator[list[Block]]:
    """Changes with the lines around them, as in difflib's own grouping."""
    group: list[Block] = []
    for place, (tag, i, j, k, m) in enumerate(found):
        if tag != "equal":
            group.append((tag, i, j, k, m))
            continue
        is_first, is_last = place == 0, place == len(found) - 1
        if is_first:
            i, k = max(i, j - CONTEXT_LINES), max(k, m - CONTEXT_LINES)
        if is_last:
            j, m = min(j, i + CONTEXT_LINES), min(m, k + CONTEXT_LINES)
        if not (is_first or is_last) and j - i > 2 * CONTEXT_LINES:
            yield [*group, (tag, i, i + CONTEXT_LINES, k, k + CONTEXT_LINES)]
            group, i, k = [], j - CONTEXT_LINES, m - CONTEXT_LINES
        group.append((tag, i, j, k, m))
    if any(tag != "equal" for tag, *_ in group):
        yield group


def _range(start: int, end: int) -> str:
    """A hunk's lines in its header: of an empty range, the line before it."""
    return f"{start if start == end else start + 1},{end - start}"


def _marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _shown(path: str, root: str) -> str:
    return os.path.relpath(path, root)


def _quoted(path: str) -> str:
    """As git writes a path that holds control characters, quotes or backslashes."""
    if not _QUOTED.search(path):
        return path
    return '"' + _QUOTED.sub(lambda found: f"\\{ord(found[0]):03o}", path) + '"'
