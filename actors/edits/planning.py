"""From what a model asks for to the changes that it comes to, checked against the files as they are now.

Everything that can be wrong is found here, before anything is staged, and is a ToolError that names the argument.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Struct
from pydantic import Field

from callboard.actors.builtins.workspace import Workspace, reason_of, secret_error
from callboard.actors.edits.applying import MAX_FILE_BYTES
from callboard.actors.edits.changes import FileChange, Splice, clashes, tracking_hash
from callboard.actors.edits.patches import FilePatch, parse_patch
from callboard.actors.edits.texts import MAX_PLACES, EditedText, ordered
from callboard.actors.opened_folders import OpenedFolders
from callboard.actors.secret_files import SecretFiles
from callboard.protocol.errors import ToolError
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    from callboard.actors.edits import fitting
else:  # only a patch needs it
    fitting = lazy_module("callboard.actors.edits.fitting")

#: Edits in one call, and files in one patch: more are several calls.
MAX_EDITS: Final = 200

Place = Literal["replace", "before", "after"]
OnExists = Literal["fail", "overwrite", "keep"]


@dataclass(frozen=True, slots=True)
class CodeEdit:
    """One edit. Name what it changes by `canonical_path`, by `old_text`, or by `start_byte` and `end_byte`."""

    new_text: Annotated[str, Field(description="What is to be there; empty removes.")]
    file: Annotated[str, Field(description="Path in the workspace.")] = ""
    canonical_path: Annotated[
        str, Field(description='Of a function, class, method ...: "pkg.mod.Class.method", or its name.')
    ] = ""
    kind: Annotated[str, Field(description="Narrows canonical_path: function, class, method ...")] = ""
    old_text: Annotated[str, Field(description="The exact text that is replaced; it must be there once.")] = ""
    start_byte: Annotated[int | None, Field(ge=0, description="Of the span, as in a code fence.")] = None
    end_byte: Annotated[int | None, Field(ge=0)] = None
    hash: Annotated[
        str, Field(description="The file's hash when it was read. Needed with a span that has no old_text.")
    ] = ""
    place: Annotated[Place, Field(description="Replace it, or add new_text as lines before or after it.")] = "replace"


class LocatedItem(Struct, frozen=True):
    """What a canonical path was found to be; the hash is that of the file which was indexed."""

    file: str
    start_byte: int
    end_byte: int
    hash: str


class EditCode(Struct, frozen=True):
    """`apply_code_edit`; `items` are the places of those edits that name one by its canonical path."""

    edits: tuple[CodeEdit, ...]
    items: Mapping[int, LocatedItem]


class ApplyPatch(Struct, frozen=True):
    """`apply_patch`."""

    patch: str


class CreateFile(Struct, frozen=True):
    """`create_file`."""

    path: str
    content: str
    on_exists: OnExists = "fail"
    create_parents: bool = True


class DeleteFile(Struct, frozen=True):
    """`delete_file`."""

    path: str


class RenameFile(Struct, frozen=True):
    """`rename_file`."""

    path: str
    new_path: str
    create_parents: bool = True


EditRequest = EditCode | ApplyPatch | CreateFile | DeleteFile | RenameFile


class Planned(Struct, frozen=True):
    """The changes; none where nothing is to be done, and then a note says why."""

    changes: tuple[FileChange, ...]
    notes: tuple[str, ...] = ()


class Planner:
    """Plans one request."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._secrets = workspace.secrets()
        self._folders = OpenedFolders(workspace.root)

    def plan(self, request: EditRequest) -> Planned:
        """Raises ToolError."""
        with self._folders:
            try:
                return _PLANS[type(request)](self, request)
            except OSError as error:  # a link was put into a path that was resolved before, say
                raise ToolError(f"{error.filename} cannot be used: {reason_of(error)}") from None

    # -- paths

    def place(self, path: str, field: str) -> str:
        """Where the path leads. Raises ToolError for one that no tool may write."""
        if not path or "\0" in path:
            raise ToolError("no path" if not path else "the path holds a NUL byte", field=field, expected="a path")
        found = self._workspace.inside_or_missing(path, field, self._secrets)
        if self._secrets.is_protected(self._workspace.root / path) or self._secrets.is_protected(found):
            hint = "Go on without it; the owner of the workspace can change it."
            raise ToolError(f"{path!r} is protected: no tool writes it", field=field, received=path, retry_hint=hint)
        return str(found)

    def itself(self, path: str, field: str) -> str:
        """Likewise, of a file that is to be moved or removed: not by the name of a link to it."""
        place = self.place(path, field)
        if (self._workspace.root / path).is_symlink():
            raise ToolError(f"{path!r} is a symbolic link", field=field, expected=f"the file itself: {place}")
        return place

    def _read(self, place: str, field: str) -> bytes | None:
        """None where there is none. Raises ToolError for what is no file that can be edited."""
        # By the folder that is read in, which may be another one than when the path was resolved.
        secrets = SecretFiles(self._workspace.root, self._workspace.rules, self._folders.open_followed)
        try:
            if (found := self._folders.status(place)) is None:
                return None
            if secrets.is_secret(place):
                raise secret_error(place, field)
            if not stat.S_ISREG(found.st_mode):
                what = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
                raise ToolError(f"{place} is {what}", field=field, expected="a file")
            if found.st_size > MAX_FILE_BYTES:
                told = f"{place} has {found.st_size:,} bytes; files of more than {MAX_FILE_BYTES:,} are not edited"
                raise ToolError(told, field=field, expected="a smaller file")
            content = self._folders.read(place, MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ToolError(f"{place} cannot be read: {reason_of(error)}", field=field) from None
        if content is None:
            raise ToolError(f"{place} is being changed by another program", field=field, retry_hint="Try again.")
        return content

    def _existing(self, path: str, field: str) -> tuple[str, bytes]:
        place = self.place(path, field)
        content = self._read(place, field)
        if content is None:
            told = f"there is no {path!r} in the workspace"
            raise ToolError(told, field=field, expected="a file that exists", received=path)
        if not self._folders.may(place, os.W_OK):
            raise ToolError(f"{path!r} is read-only", field=field, expected="a file that may be written")
        return place, content

    def _check_parent(self, place: str, field: str, *, may_be_made: bool) -> None:
        folder = os.path.dirname(place)
        while may_be_made and self._folders.status(folder) is None:
            folder = os.path.dirname(folder)
        if not self._folders.is_folder(folder):
            is_free = self._folders.status(folder) is None
            told = f"there is no folder {folder}" if is_free else f"{folder} is no folder"
            expected = "a path below a folder" if may_be_made else "a folder that exists, or create_parents=true"
            raise ToolError(told, field=field, expected=expected)
        if not self._folders.may(folder, os.W_OK | os.X_OK):
            raise ToolError(f"{folder} is read-only", field=field, expected="a folder that may be written")

    # -- the requests

    def _create(self, request: CreateFile) -> Planned:
        place = self.place(request.path, "path")
        before = self._read(place, "path")
        if before is None:
            self._check_parent(place, "create_parents", may_be_made=request.create_parents)
            content = _utf8(request.content, "content")
            return Planned((FileChange(place, place, None, (Splice(0, 0, content),)),))
        if request.on_exists == "keep":
            return Planned((), (f"{place} exists and is kept as it is",))
        if request.on_exists == "fail":
            raise ToolError(
                f"{request.path!r} exists",
                field="path",
                expected="a path at which there is nothing, or on_exists: overwrite or keep",
                received=request.path,
            )
        content = EditedText(before, "path").whole(request.content, "content")
        return self._of_edit(place, before, (Splice(0, len(before), content),))

    def _of_edit(self, place: str, before: bytes, splices: Sequence[Splice]) -> Planned:
        change = FileChange(place, place, before, tuple(splices))
        if change.result == before:
            return Planned((), (f"{place} holds that already",))
        _check_size(change)
        return Planned((change,))

    def _delete(self, request: DeleteFile) -> Planned:
        place = self.itself(request.path, "path")
        content = self._read(place, "path")
        if content is None:
            return Planned((), (f"there is no {request.path!r}; nothing is to be deleted",))
        self._check_parent(place, "path", may_be_made=False)
        return Planned((FileChange(place, None, content),))

    def _rename(self, request: RenameFile) -> Planned:
        self.itself(request.path, "path")
        place, content = self._existing(request.path, "path")
        target = self.itself(request.new_path, "new_path")
        self._check_free(target, request.new_path, "new_path", may_make_parents=request.create_parents)
        return Planned((FileChange(place, target, content),))

    def _check_free(self, target: str, path: str, field: str, *, may_make_parents: bool) -> None:
        if self._folders.status(target) is not None:
            told = f"{path!r} exists; a file is never renamed onto another one"
            raise ToolError(told, field=field, expected="a path at which there is nothing", received=path)
        self._check_parent(target, field, may_be_made=may_make_parents)

    def _edit(self, request: EditCode) -> Planned:
        if not 0 < len(request.edits) <= MAX_EDITS:
            raise ToolError(f"{len(request.edits)} edits", field="edits", expected=f"1 to {MAX_EDITS} edits")
        by_file: dict[str, tuple[EditedText, list[tuple[Splice, str]]]] = {}
        for position, edit in enumerate(request.edits):
            field = f"edits.{position}"
            item = request.items.get(position)
            named = edit.file or (item.file if item else "")
            if not named:
                told = "the edit names no place"
                raise ToolError(told, field=field, expected="file with old_text or a span, or canonical_path")
            place, content = self._existing(named, f"{field}.file" if edit.file else f"{field}.canonical_path")
            text, splices = by_file.setdefault(place, (EditedText(content, f"{field}.file"), []))
            splices.append((_splice_of(edit, item, text, field), field))
        planned = [
            self._of_edit(place, text.content, tuple(ordered(splices))) for place, (text, splices) in by_file.items()
        ]
        return _together(planned)

    def _patch(self, request: ApplyPatch) -> Planned:
        files = parse_patch(request.patch)
        if len(files) > MAX_EDITS:
            raise ToolError(f"the patch has {len(files)} files", field="patch", expected=f"at most {MAX_EDITS}")
        moved = {self.itself(each.old, "patch") for each in files if each.old and each.old != each.new}
        planned = [self._patched(each, moved) for each in files]
        done = _together(planned)
        for position, why in clashes(done.changes):
            told = f"{why}: its change for {done.changes[position].path} cannot be made with another one of this patch"
            raise ToolError(told, field="patch", expected="one change for each file")
        return done

    def _patched(self, patch: FilePatch, moved: set[str]) -> Planned:
        """`moved`: the places that this very patch makes free."""
        if not patch.old:
            return self._patched_new(patch, moved)
        if patch.old != patch.new:
            self.itself(patch.old, "patch")
        place, before = self._existing(patch.old, "patch")
        if not patch.new:
            return self._patched_away(place, before, patch)
        target = place if patch.new == patch.old else self.itself(patch.new, "patch")
        if target != place and target not in moved:
            self._check_free(target, patch.new, "patch", may_make_parents=True)
        text = EditedText(before, "patch")
        fitter = fitting.Fitter(text, patch.old)
        splices = fitter.fit(*patch.hunks)
        change = FileChange(place, target, before, tuple(splices), patch.is_executable)
        if change.result == before and target == place and patch.is_executable is None:
            return Planned((), (f"{place} holds that already",))
        _check_size(change)
        return Planned((change,), tuple(fitter.notes))

    def _patched_new(self, patch: FilePatch, moved: set[str]) -> Planned:
        place = self.place(patch.new, "patch")
        if place not in moved:
            self._check_free(place, patch.new, "patch", may_make_parents=True)
        lines = [line for hunk in patch.hunks for line in hunk.lines]
        if any(line.mark == "-" for line in lines):
            told = f"the patch makes {patch.new!r} new and removes lines of it"
            raise ToolError(told, field="patch", expected='only lines that begin with "+"')
        text = "".join(line.text + ("\n" if line.ends else "") for line in lines)
        return Planned(
            (FileChange(place, place, None, (Splice(0, 0, _utf8(text, "patch")),), patch.is_executable or None),)
        )

    def _patched_away(self, place: str, before: bytes, patch: FilePatch) -> Planned:
        """A deletion says in its hunk what the file held."""
        text = EditedText(before, "patch")
        fitter = fitting.Fitter(text, patch.old)
        splices = fitter.fit(*patch.hunks)
        left = FileChange(place, place, before, tuple(splices)).result or b""
        if patch.hunks and left[text.mark_bytes :].strip():
            told = f"the patch deletes {patch.old!r}, but its hunk is not all that the file holds"
            expected = "every line of the file, removed; or delete_file"
            raise ToolError(told, field="patch", expected=expected)
        return Planned((FileChange(place, None, before),), tuple(fitter.notes))


#: How each request is planned.
_PLANS: Final[Mapping[type[EditRequest], Callable[[Planner, Any], Planned]]] = {
    EditCode: Planner._edit,
    ApplyPatch: Planner._patch,
    CreateFile: Planner._create,
    DeleteFile: Planner._delete,
    RenameFile: Planner._rename,
}


def _together(planned: Sequence[Planned]) -> Planned:
    changes = tuple(change for each in planned for change in each.changes)
    return Planned(changes, tuple(note for each in planned for note in each.notes))


def _splice_of(edit: CodeEdit, item: LocatedItem | None, text: EditedText, field: str) -> Splice:
    """Where the edit belongs, verified against the file as it is now."""
    start, end = _span_of(edit, item, text, field)
    if edit.place == "replace":
        new = edit.new_text
        ends = new.endswith("\n") and not text.decoded(start, end).endswith("\n")
        if item and ends and text.decoded(end, end + 2 * 4).startswith(("\r\n", "\n")):
            new = new.removesuffix("\n")  # the item's span ends before its line end
        return Splice(start, end, text.encoded(new, start, f"{field}.new_text"))
    new = edit.new_text if edit.new_text.endswith("\n") else edit.new_text + "\n"
    first = text.line_of(start) - 1
    last = text.line_of(max(start, end - 1)) - 1
    if edit.place == "before":
        at = text.lines[first][0] if first < len(text.lines) else len(text.content)
    else:
        at = text.lines[last][2] if last < len(text.lines) else len(text.content)
        if last < len(text.lines) and text.lines[last][1] == at:
            new = "\n" + new.removesuffix("\n")  # behind a last line without an end
    return Splice(at, at, text.encoded(new, at, f"{field}.new_text"))


def _span_of(edit: CodeEdit, item: LocatedItem | None, text: EditedText, field: str) -> tuple[int, int]:
    now = tracking_hash(text.content)
    if edit.hash and edit.hash != now:
        raise _changed(f"{field}.hash", now, edit.hash)
    if item is not None:
        if item.hash != now:
            raise _changed(f"{field}.canonical_path", now, item.hash)
        within = item.start_byte, item.end_byte
        return within if not edit.old_text else _found(edit, text, field, *within)
    if edit.start_byte is None and edit.end_byte is None:
        if not edit.old_text:
            told = "the edit does not say what of the file it changes"
            raise ToolError(told, field=field, expected="canonical_path, old_text, or start_byte and end_byte")
        return _found(edit, text, field, 0, len(text.content))
    start, end = edit.start_byte, edit.end_byte
    size = len(text.content)
    if start is None or end is None or not start <= end <= size:
        told = f"the file has {size:,} bytes"
        raise ToolError(told, field=f"{field}.end_byte", expected=f"0 <= start_byte <= end_byte <= {size}")
    if edit.old_text:
        if (start, end) not in text.find(edit.old_text, start, end):
            shown = text.decoded(start, min(end, start + 200))
            told = "the span does not hold old_text; the file may have changed since it was read"
            raise ToolError(told, field=f"{field}.old_text", expected=shown, received=edit.old_text[:200])
    elif not edit.hash:
        told = "a span needs the hash of the file it was read from, or its old_text: the file may have changed"
        raise ToolError(told, field=f"{field}.hash", expected="the hash that read_file gave")
    return start, end


def _found(edit: CodeEdit, text: EditedText, field: str, start: int, end: int) -> tuple[int, int]:
    """Where old_text is, once."""
    places = text.find(edit.old_text, start, end)
    if len(places) == 1:
        return places[0]
    if not places:
        near = text.nearest(edit.old_text)
        raise ToolError(
            "old_text is not in the file",
            field=f"{field}.old_text",
            expected=f"text that is in the file; the nearest lines are:\n{near}"
            if near
            else "text that is in the file",
            received=edit.old_text[:200],
        )
    lines = ", ".join(str(text.line_of(at)) for at, _ in places[:MAX_PLACES])
    more = " and more" if len(places) > MAX_PLACES else ""
    raise ToolError(
        f"old_text is in the file more than once: at lines {lines}{more}",
        field=f"{field}.old_text",
        expected="text that is there once: with more of the lines around it, or with start_byte and end_byte",
        received=edit.old_text[:200],
    )


def _changed(field: str, now: str, then: str) -> ToolError:
    return ToolError(
        "the file has changed since it was read or indexed",
        field=field,
        expected=now,
        received=then,
        retry_hint="Read it again and send the edit for what it is now.",
    )


def _check_size(change: FileChange) -> None:
    size = len(change.result or b"")
    if size > MAX_FILE_BYTES:
        raise ToolError(f"{change.path} would have {size:,} bytes", expected=f"at most {MAX_FILE_BYTES:,} bytes")


def _utf8(text: str, field: str) -> bytes:
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ToolError("the text holds half a character (a lone surrogate)", field=field, expected="text") from None
    if len(content) > MAX_FILE_BYTES:
        told = f"the file would have {len(content):,} bytes"
        raise ToolError(told, field=field, expected=f"at most {MAX_FILE_BYTES:,} bytes")
    return content
