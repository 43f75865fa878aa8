"""Read a unified diff, as git and diff write it and as models do.

No library does it: unidiff 1.0 refuses a hunk whose line counts are wrong, which models often get wrong, and it and
whatthepatch 1.0 pass over a hunk whose header has no line numbers without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from callboard.protocol.errors import ToolError

#: A patch that a model can have written is far shorter.
MAX_PATCH_BYTES: Final = 1_000_000
DEV_NULL: Final = "/dev/null"
_HUNK: Final = re.compile(
    r"@@ ?(?:-(?P<start>\d{1,9})(?:,(?P<old>\d{1,9}))? \+\d{1,9}(?:,(?P<new>\d{1,9}))?)?(?P<rest>.*)"
)
_STAMP: Final = re.compile(r"\t.*$")
_ESCAPE: Final = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPES: Final = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_PREFIXES: Final = (("a/", "b/"), ("i/", "w/"), ("c/", "i/"), ("c/", "w/"), ("o/", "w/"))
#: Header lines of git, and the field that each one fills.
_EXTENDED: Final = {
    "rename from ": "renamed_from",
    "rename to ": "renamed_to",
    "copy from ": "copied_from",
    "new file mode ": "new_mode",
    "deleted file mode ": "deleted_mode",
    "new mode ": "new_mode_of_old",
}


class PatchLine(Struct, frozen=True):
    """One line of a hunk. `mark`: " " is in both files, "-" in the old one, "+" in the new one."""

    mark: str
    text: str
    ends: bool = True
    """Has it a line end? Not so the last line of a file that says so ("\\ No newline at end of file")."""


class Hunk(Struct, frozen=True):
    """One block of changes."""

    start: int | None
    """The first old line by its header, counted from 1; None where the header has no numbers."""
    lines: tuple[PatchLine, ...]
    number: int
    """Of the hunks of its file, from 1."""
    heading: str = ""
    """What its header says behind the numbers: the function or section that it is in."""

    @property
    def old(self) -> list[PatchLine]:
        return [line for line in self.lines if line.mark != "+"]


class FilePatch(Struct):
    """What a patch does to one file."""

    old: str = ""
    """Its path; "" of a new file."""
    new: str = ""
    """"" of a file that is deleted."""
    hunks: list[Hunk] = field(default_factory=list)
    is_executable: bool | None = None


class _Head(Struct):
    """The header lines of one file, as they come."""

    git: tuple[str, str] | None = None
    minus: str | None = None
    plus: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        return self.git is not None or self.minus is not None


def parse_patch(text: str) -> tuple[FilePatch, ...]:
    """The files of a patch. Text around it, as in a mail, is left out. Raises ToolError with field "patch"."""
    if len(text.encode(errors="surrogatepass")) > MAX_PATCH_BYTES:
        raise _wrong(f"the patch has more than {MAX_PATCH_BYTES:,} bytes", "a shorter patch, or several")
    if "*** Begin Patch" in text:
        raise _wrong("this is not a unified diff", 'file headers "--- a/x" and "+++ b/x", then hunks "@@ -1,3 +1,4 @@"')
    lines = text.removesuffix("\n").split("\n")
    found: list[FilePatch] = []
    head, at = _Head(), 0
    while at < len(lines):
        line = lines[at].rstrip("\r")
        if line.startswith("diff --git "):
            _end(head, found)
            head = _Head(git=_git_paths(line))
        elif _begins_file(lines, at):
            if head.minus is not None:
                _end(head, found)
                head = _Head()
            head.minus, head.plus = _path(line[4:]), _path(lines[at + 1].rstrip("\r")[4:])
            at += 1
        elif line.startswith("@@") and (header := _HUNK.fullmatch(line)):
            if head.minus is None:
                raise _wrong(f"line {at + 1} begins a hunk of no file", '"--- a/path" and "+++ b/path" before it', line)
            hunk, at = _hunk(lines, at, header, len(head.hunks) + 1)
            head.hunks.append(hunk)
            continue
        elif line.startswith(("Binary files ", "GIT binary patch")):
            raise _wrong("the patch changes a binary file", "changes of text files; leave the binary one out", line)
        elif head.git is not None:
            _take_extended(head, line)
        at += 1
    _end(head, found)
    if not found:
        raise _wrong("the patch changes nothing: no file header and hunk was found in it", "a unified diff", text[:80])
    return tuple(found)


def _begins_file(lines: Sequence[str], at: int) -> bool:
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


def _hunk(lines: Sequence[str], at: int, header: re.Match[str], number: int) -> tuple[Hunk, int]:
    """The hunk whose header is line `at`, and the line after it. Its counts end it only where a header may follow."""
    old_left, new_left = (int(header[name] or 1) if header["start"] else 0 for name in ("old", "new"))
    body: list[PatchLine] = []
    first, at = at, at + 1
    while at < len(lines):
        line = lines[at]
        mark = line[:1].rstrip("\r")
        is_over = old_left <= 0 and new_left <= 0
        if mark == "\\" and body:
            body[-1] = PatchLine(body[-1].mark, body[-1].text, ends=False)
        elif mark not in ("", " ", "-", "+", "\t") or (
            _begins_file(lines, at) and (is_over or _HUNK.match(lines[min(at + 2, len(lines) - 1)]))
        ):
            break
        else:  # an empty line, and one that begins with a tab, have lost the space before them
            kept = line[1:] if mark in (" ", "-", "+") and mark else line
            mark = mark if mark in ("-", "+") else " "
            body.append(PatchLine(mark, kept.removesuffix("\r")))
            old_left, new_left = old_left - (mark != "+"), new_left - (mark != "-")
        at += 1
    while body and (old_left, new_left) != (0, 0) and body[-1] == PatchLine(" ", ""):  # what is behind the patch
        body.pop()
        old_left, new_left = old_left + 1, new_left + 1
    if all(line.mark == " " for line in body):
        raise _wrong(f"the hunk at line {first + 1} changes nothing", 'lines that begin with "-" or "+"', lines[first])
    start = int(header["start"]) if header["start"] else None
    return Hunk(start, tuple(body), number, header["rest"].strip(" .").removeprefix("@@").strip()), at


def _take_extended(head: _Head, line: str) -> None:
    for beginning, name in _EXTENDED.items():
        if line.startswith(beginning):
            head.fields[name] = line.removeprefix(beginning)


def _end(head: _Head, found: list[FilePatch]) -> None:
    """The file's header and hunks are complete."""
    if not head.is_begun:
        return
    fields = head.fields
    if "copied_from" in fields:
        raise _wrong("the patch copies a file", "create_file for the copy", fields["copied_from"])
    old, new = _stripped(head)
    if "renamed_from" in fields and "renamed_to" in fields:
        old, new = _unquoted(fields["renamed_from"]), _unquoted(fields["renamed_to"])
    if "new_mode" in fields or head.minus == DEV_NULL:
        old = ""
    if "deleted_mode" in fields or head.plus == DEV_NULL:
        new = ""
    mode = fields.get("new_mode") or fields.get("new_mode_of_old") or ""
    is_executable = mode.endswith("755") if mode else None
    if not old and not new:
        raise _wrong("a file header names no file", '"--- a/path" and "+++ b/path"')
    if new and old == new and not head.hunks and is_executable is None:
        raise _wrong(f"the patch has no hunk for {new}", "at least one hunk")
    if mode.startswith("12") or mode.startswith("16"):
        raise _wrong(f"{new} is a symbolic link or a submodule in the patch", "changes of regular files")
    found.append(FilePatch(old, new, head.hunks, is_executable))


def _stripped(head: _Head) -> tuple[str, str]:
    """Both paths, without git's "a/" and "b/" where both have them."""
    minus, plus = (head.minus, head.plus) if head.minus is not None else (head.git or ("", ""))
    pair = minus or "", plus or ""
    for first, second in _PREFIXES:
        has = [path == DEV_NULL or path.startswith(prefix) for path, prefix in zip(pair, (first, second), strict=True)]
        if all(has):
            return pair[0].removeprefix(first), pair[1].removeprefix(second)
    return pair


def _git_paths(line: str) -> tuple[str, str]:
    """Of "diff --git a/x b/x": used only where no other header line names them, and so both are the same path."""
    rest = line.removeprefix("diff --git ")
    if rest.startswith('"'):
        first, _, second = rest.partition('" ')
        return _unquoted(first + '"'), _unquoted(second)
    half = len(rest) // 2
    if rest[half : half + 1] == " " and rest[:half].partition("/")[2] == rest[half + 1 :].partition("/")[2]:
        return rest[:half], rest[half + 1 :]
    first, _, second = rest.partition(" ")
    return first, second


def _path(text: str) -> str:
    """Of a "---" or "+++" line, without its time stamp."""
    return _unquoted(text if text.startswith('"') else _STAMP.sub("", text).rstrip())


def _unquoted(text: str) -> str:
    """git writes a path in quotes, with C's escapes, where it has unusual bytes."""
    if not (text.startswith('"') and text.rstrip().endswith('"') and len(text) > 1):
        return text

    def plain(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8) & 0xFF if len(code) == 3 else _ESCAPES[code[0]]])

    return _ESCAPE.sub(plain, text.rstrip()[1:-1].encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _wrong(told: str, expected: str, received: str = "") -> ToolError:
    return ToolError(told, field="patch", expected=expected, received=received[:200])
