"""The tools that change files: each stages a proposal. They run as tasks, since the actor `editor` does the work."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Protocol

from msgspec.structs import replace
from pydantic import Field

from callboard.actors.edits.editing import EditResult, Edits
from callboard.actors.edits.patches import parse_patch
from callboard.actors.edits.planning import (
    MAX_EDITS,
    ApplyPatch,
    CodeEdit,
    CreateFile,
    DeleteFile,
    EditCode,
    EditRequest,
    LocatedItem,
    OnExists,
    RenameFile,
)
from callboard.actors.index.code_items import CodeItem
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.errors import ToolError, UsageError
from callboard.protocol.policy import Access, AccessKind

#: Places that a failure names.
MAX_CANDIDATES: Final = 10
#: A look-up in the index and an apply on a slow disk.
TIMEOUT_SECONDS: Final = 120.0


class FindsCode(Protocol):
    """What finds items by their canonical paths: CodeSearch (index/rag.py)."""

    async def lookup(self, name: str, kind: str = "", file: str = "") -> Sequence[CodeItem]: ...

    async def close_items(self, name: str, kind: str = "", file: str = "") -> Sequence[CodeItem]: ...


def edit_tools(edits: Edits, finder: FindsCode) -> tuple[Tool, ...]:
    """All of them, for the workspace of `edits`."""
    return (
        apply_code_edit_tool(edits, finder),
        apply_patch_tool(edits),
        create_file_tool(edits),
        delete_file_tool(edits),
        rename_file_tool(edits),
    )


class _Stager:
    """Stages for one tool, which it learns of once that is made."""

    def __init__(self, edits: Edits) -> None:
        self._edits = edits
        self._tool: Tool | None = None

    def of(self, made: Tool) -> Tool:
        """The tool as it is registered: its calls change nothing themselves."""
        self._tool = dataclasses.replace(made, contract=replace(made.contract, stages=True))
        return self._tool

    async def __call__(self, request: EditRequest, context: ToolContext) -> EditResult:
        assert self._tool is not None
        return await self._edits.stage(request, context, self._tool)


def apply_code_edit_tool(edits: Edits, finder: FindsCode) -> Tool:
    """`apply_code_edit`: several edits in one or more files."""
    stage = _Stager(edits)

    @tool(risk="write", timeout=TIMEOUT_SECONDS, accesses=_edited)
    async def apply_code_edit(
        edits: Annotated[list[CodeEdit], Field(min_length=1, max_length=MAX_EDITS)], context: ToolContext
    ) -> EditResult:
        """Propose edits of files: all of them are applied together, or none. The owner may have to approve them first.

        Args:
            edits: Each names a place (by canonical_path, old_text, or a span of bytes) and what is to be there.
        """
        items = {at: await _located(finder, each, at) for at, each in enumerate(edits) if each.canonical_path}
        return await stage(EditCode(tuple(edits), items), context)

    return stage.of(apply_code_edit)


def apply_patch_tool(edits: Edits) -> Tool:
    """`apply_patch`: a unified diff."""
    stage = _Stager(edits)

    @tool(risk="write", timeout=TIMEOUT_SECONDS, accesses=_patched)
    async def apply_patch(patch: str, context: ToolContext) -> EditResult:
        """Propose the changes of a unified diff: edited, new, deleted and renamed files, all together or none.

        Args:
            patch: As git diff writes it, with paths relative to the workspace ("--- a/x.py", "+++ b/x.py", "@@ ...").
        """
        return await stage(ApplyPatch(patch), context)

    return stage.of(apply_patch)


def create_file_tool(edits: Edits) -> Tool:
    """`create_file`."""
    stage = _Stager(edits)

    @tool(risk="write", timeout=TIMEOUT_SECONDS, accesses={"path": "write"})
    async def create_file(
        path: str, content: str, context: ToolContext, on_exists: OnExists = "fail", create_parents: bool = True
    ) -> EditResult:
        """Propose a new file.

        Args:
            path: Relative to the workspace, or absolute within it.
            content: All of it.
            on_exists: What to do where there is a file already.
            create_parents: Make the folders that it is in.
        """
        return await stage(CreateFile(path, content, on_exists, create_parents), context)

    return stage.of(create_file)


def delete_file_tool(edits: Edits) -> Tool:
    """`delete_file`."""
    stage = _Stager(edits)

    @tool(risk="write", timeout=TIMEOUT_SECONDS, accesses={"path": "delete"})
    async def delete_file(path: str, context: ToolContext) -> EditResult:
        """Propose to delete a file.

        Args:
            path: Relative to the workspace, or absolute within it.
        """
        return await stage(DeleteFile(path), context)

    return stage.of(delete_file)


def rename_file_tool(edits: Edits) -> Tool:
    """`rename_file`."""
    stage = _Stager(edits)

    @tool(risk="write", timeout=TIMEOUT_SECONDS, accesses={"path": "delete", "new_path": "write"})
    async def rename_file(path: str, new_path: str, context: ToolContext, create_parents: bool = True) -> EditResult:
        """Propose to rename or move a file, never onto another one.

        Args:
            path: Relative to the workspace, or absolute within it.
            new_path: Likewise.
            create_parents: Make the folders that it is moved to.
        """
        return await stage(RenameFile(path, new_path, create_parents), context)

    return stage.of(rename_file)


# What a call would touch, by its arguments.


def _edited(arguments: Mapping[str, object]) -> Iterator[Access]:
    given = arguments.get("edits")
    for position, edit in enumerate(given if isinstance(given, list) else ()):
        file = edit.get("file") if isinstance(edit, Mapping) else None
        if isinstance(file, str) and file:
            yield Access(AccessKind.WRITE, file, f"edits.{position}.file")


def _patched(arguments: Mapping[str, object]) -> Iterator[Access]:
    for each in parse_patch(str(arguments.get("patch", ""))):
        if each.old and each.old != each.new:
            yield Access(AccessKind.DELETE, each.old, "patch")
        if each.new:
            yield Access(AccessKind.WRITE, each.new, "patch")


async def _located(finder: FindsCode, edit: CodeEdit, position: int) -> LocatedItem:
    """The one item that the edit names. Raises ToolError with candidates where there is none, or more than one."""
    name, kind, file = edit.canonical_path, edit.kind, edit.file
    try:
        found = await finder.lookup(name, kind, file)
        if len(found) == 1:
            return LocatedItem(found[0].file, found[0].start_byte, found[0].end_byte, found[0].hash)
        candidates = found or await finder.close_items(name, kind, file)
    except UsageError as error:
        raise ToolError(str(error), field=f"edits.{position}.canonical_path", received=name) from error
    shown = "; ".join(
        f"{each.kind} {each.canonical_path} in {each.file} lines {each.start_line}-{each.end_line}"
        f" (bytes {each.start_byte}:{each.end_byte}, hash {each.hash})"
        for each in candidates[:MAX_CANDIDATES]
    )
    more = f"; and {len(candidates) - MAX_CANDIDATES} more" if len(candidates) > MAX_CANDIDATES else ""
    told = f"{name!r} is {len(found)} items" if found else f"there is no {kind or 'item'} {name!r} in the index"
    raise ToolError(
        told,
        field=f"edits.{position}.canonical_path",
        expected=f"one of: {shown}{more}" if shown else "the name of an item; code_item_lookup finds them",
        received=name,
        retry_hint="Name one of them by its whole path with kind and file, or by its span with hash." if found else "",
    )
