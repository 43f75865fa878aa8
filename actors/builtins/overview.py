"""`codebase_overview`: what is in a workspace, on a page that fits into a budget of tokens."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.index import CodeIndex
from callboard.actors.index.code_items import CodeItem
from callboard.actors.index.languages import by_name
from callboard.actors.index.rag import CodeSearch
from callboard.actors.index.store import FileRow
from callboard.actors.index.token_count import counted
from callboard.actors.index.tokens import word_set
from callboard.actors.tools import Tool, tool
from callboard.protocol.errors import ToolError, UsageError

DEFAULT_BUDGET: Final = 2_000
#: Less holds no more than a few names; more is read better file by file.
MIN_BUDGET: Final = 300
MAX_BUDGET: Final = 20_000
#: Rows of each list before the modules, which take what is left of the budget.
MAX_ROWS: Final = 20
MAX_MODULES: Final = 60
#: Definitions that are named of a module.
MAX_MODULE_ITEMS: Final = 8
#: Of one file; the budget has room for no more.
MAX_FILE_ITEMS: Final = 2_000
#: Seconds that the index may take.
WAIT_SECONDS: Final = 15.0

#: Files that say how a project is built, run and read, by their name in lower case.
MANIFESTS: Final = word_set(
    """pyproject.toml setup.py setup.cfg requirements.txt cargo.toml package.json go.mod pom.xml build.gradle
    build.gradle.kts cmakelists.txt makefile meson.build gemfile composer.json mix.exs pubspec.yaml package.swift
    build.sbt dockerfile docker-compose.yml compose.yaml justfile tox.ini readme.md readme.rst readme.txt readme"""
)
#: Files where a program begins, by their name in lower case.
ENTRY_POINTS: Final = word_set(
    """__main__.py main.py app.py manage.py wsgi.py asgi.py main.rs lib.rs main.go main.c main.cc main.cpp main.java
    main.kt main.swift index.js index.ts index.tsx main.js main.ts server.js server.ts app.js app.ts program.cs"""
)
#: Of a file, why nothing is said of what it defines.
_NOT_INDEXED: Final = (
    "it is not in the code index (git ignores it, or it is empty, binary, minified, too large or no plain file); "
    "read_file shows text"
)
_NO_SYMBOLS: Final = (
    "callboard does not know the syntax of this language ({}), so it names no definitions; read_file shows it"
)
_NO_ITEMS: Final = "nothing is defined in it"
_MANY_ITEMS: Final = f"it defines more than {MAX_FILE_ITEMS:,} things; these are the first"
#: Parts of a path that tell tests and the like, which come after what they test.
_ASIDE: Final = word_set("test tests testing spec specs benchmarks bench examples example docs vendor third_party")


@dataclass(frozen=True, slots=True)
class LanguageCount(BriefResult):
    """How much of a language there is."""

    name: str
    files: int
    lines: int
    has_symbols: bool
    """Whether callboard finds definitions in it; else there is only text."""


@dataclass(frozen=True, slots=True)
class FolderCount(BriefResult):
    """A folder, with all below it. Relative to the workspace."""

    path: str
    files: int
    lines: int


@dataclass(frozen=True, slots=True)
class ModuleSummary(BriefResult):
    """A file and its largest definitions. Relative to the workspace."""

    file: str
    lines: int
    items: list[str]
    """Such as `class Client 12-48`, in the order of the file."""


@dataclass(frozen=True, slots=True)
class OverviewAnswer(BriefResult):
    """The answer of `codebase_overview`. Lists that were cut to fit have their row in `left_out`."""

    root: str
    exists: bool
    files: int
    lines: int
    languages: list[LanguageCount]
    folders: list[FolderCount]
    manifests: list[str]
    entry_points: list[str]
    modules: list[ModuleSummary]
    left_out: dict[str, int]
    note: str = ""
    version: Literal[1] = 1


def codebase_overview_tool(search: CodeSearch, workspace: Workspace) -> Tool:
    """`codebase_overview`, over the index of the workspace."""

    @tool(risk="read", latency="short", effect="repeat", concurrency=4, accesses={"path": "read"})
    async def codebase_overview(
        path: str = ".", token_budget: Annotated[int, Field(ge=MIN_BUDGET, le=MAX_BUDGET)] = DEFAULT_BUDGET
    ) -> OverviewAnswer:
        """What is in the workspace: languages, folders, build files, entry points, the largest modules and what they
        define. Of one file: all that it defines. Files that git ignores, binary files and files with secrets are not
        counted.

        Args:
            path: A folder or a file, relative to the workspace or absolute; the whole workspace if left out.
            token_budget: How many tokens the answer may have, at most.
        """
        place = str(workspace.readable(path))
        page, found = (file_overview, _only(place)) if _is_file(place) else (overview, _all)
        try:
            await search.ask_twice(found, WAIT_SECONDS)
        except UsageError as error:
            raise ToolError(str(error)) from error
        return await search.ask_index(lambda index: page(index, place, token_budget))

    return codebase_overview


def _is_file(path: str) -> bool:
    return os.path.lexists(path) and not os.path.isdir(path)


def _all(index: CodeIndex) -> Sequence[FileRow]:
    return index.files()


def _only(path: str) -> Callable[[CodeIndex], Sequence[FileRow]]:
    return lambda index: [row for row in index.files() if row.path == path]


def file_overview(index: CodeIndex, path: str, token_budget: int) -> OverviewAnswer:
    """The page for one file (absolute): all its definitions, as many as the budget allows, the outer ones first."""
    rows = _only(path)(index)
    items = index.items_in(path, MAX_FILE_ITEMS + 1) if rows else ()
    note = _MANY_ITEMS if len(items) > MAX_FILE_ITEMS else "" if items else _why_no_items(rows)
    items, lines = items[:MAX_FILE_ITEMS], sum(row.lines for row in rows)
    whole = OverviewAnswer(path, True, len(rows), lines, _languages(rows), [], [], [], [], {}, note)
    if not items:
        return whole
    names, depths = _nested(items, by_name(rows[0].language).separator)
    inmost = sorted(range(len(names)), key=lambda at: (depths[at], at))

    def cut_to(count: int) -> OverviewAnswer:
        kept = [names[at] for at in sorted(inmost[:count])]
        left_out = {"items": len(names) - count} if count < len(names) else {}
        return replace(whole, modules=[ModuleSummary(os.path.basename(path), lines, kept)], left_out=left_out)

    counts = [len(names)]
    while counts[-1]:
        counts.append(counts[-1] * 4 // 5)
    return next(
        (page for page, tokens in counted(map(cut_to, counts), _text_of, token_budget) if tokens <= token_budget), whole
    )


def _why_no_items(rows: Sequence[FileRow]) -> str:
    if not rows:
        return _NOT_INDEXED
    language = by_name(rows[0].language)
    return _NO_ITEMS if language.query else _NO_SYMBOLS.format(language.name)


def _nested(items: Sequence[CodeItem], separator: str) -> tuple[list[str], list[int]]:
    """Each item's kind, its name behind those that it stands in, and its lines; and in how many it stands."""
    names, depths, around = list[str](), list[int](), list[CodeItem]()
    for item in items:
        while around and around[-1].end_byte < item.end_byte:
            around.pop()
        name = separator.join(each.name for each in (*around, item))
        names.append(f"{item.kind} {name} {item.start_line}-{item.end_line}")
        depths.append(len(around))
        around.append(item)
    return names, depths


def overview(index: CodeIndex, root: str, token_budget: int) -> OverviewAnswer:
    """The page for a folder (absolute). The same tree gives the same page."""
    is_secret, state = index.secret_files(), index.state()
    below = root.rstrip("/") + "/"
    rows = [
        FileRow(row.path[len(below) :], row.language, row.lines)
        for row in index.files()
        if row.path.startswith(below) and not is_secret(row.path)
    ]
    names = [(row.path, PurePosixPath(row.path).name.lower()) for row in rows]
    whole = OverviewAnswer(
        root, os.path.isdir(root), len(rows), sum(row.lines for row in rows), _languages(rows), _folders(rows),
        _nearest(path for path, name in names if name in MANIFESTS),
        _nearest(path for path, name in names if name in ENTRY_POINTS and not _is_aside(path)), [], {},
        "" if state.is_complete else str(state),
    )  # fmt: skip
    page = _cut(whole, token_budget)
    return _with_modules(page, index, below, rows, token_budget)


def _languages(rows: Sequence[FileRow]) -> list[LanguageCount]:
    files, lines = Counter[str](), Counter[str]()
    for row in rows:
        files[row.language] += 1
        lines[row.language] += row.lines
    counts = [LanguageCount(name, files[name], lines[name], by_name(name).is_code) for name in files]
    return sorted(counts, key=lambda each: (not each.has_symbols, -each.lines, each.name))


def _folders(rows: Sequence[FileRow]) -> list[FolderCount]:
    """Those at the top; where nearly all is in one (`src`), those in it too."""
    top = _counted(rows, 1)
    second = _counted(rows, 2)
    large = {each.path for each in top if 2 * each.lines > sum(row.lines for row in rows)}
    inner = [each for each in second if str(PurePosixPath(each.path).parent) in large]
    return sorted([*top, *inner], key=lambda each: (-each.lines, each.path))


def _counted(rows: Sequence[FileRow], depth: int) -> list[FolderCount]:
    files, lines = Counter[str](), Counter[str]()
    for row in rows:
        parts = PurePosixPath(row.path).parts
        if len(parts) > depth:
            folder = "/".join(parts[:depth])
            files[folder] += 1
            lines[folder] += row.lines
    return [FolderCount(folder, files[folder], lines[folder]) for folder in files]


def _nearest(paths: Iterable[str]) -> list[str]:
    """Those near the top first."""
    return sorted(paths, key=lambda path: (_is_aside(path), path.count("/"), path))


def _is_aside(path: str) -> bool:
    parts = PurePosixPath(path.lower()).parts
    return any(part in _ASIDE for part in parts[:-1]) or parts[-1].startswith(("test_", "test-"))


def _cut(page: OverviewAnswer, budget: int) -> OverviewAnswer:
    """The lists, as long as half of the budget allows; the rest is for the modules."""
    shorter = [MAX_ROWS]
    while shorter[-1]:
        shorter.append(shorter[-1] * 2 // 3)
    for cut, tokens in counted((_with_rows(page, rows) for rows in shorter), _text_of, budget // 2):
        if tokens <= budget // 2:
            return cut
    return _with_rows(page, 0)


def _with_rows(page: OverviewAnswer, rows: int) -> OverviewAnswer:
    lengths = {
        "languages": len(page.languages), "folders": len(page.folders), "manifests": len(page.manifests),
        "entry_points": len(page.entry_points),
    }  # fmt: skip
    return replace(
        page,
        languages=page.languages[:rows],
        folders=page.folders[:rows],
        manifests=page.manifests[:rows],
        entry_points=page.entry_points[:rows],
        left_out={name: length - rows for name, length in lengths.items() if length > rows},
    )


def _with_modules(
    page: OverviewAnswer, index: CodeIndex, below: str, rows: Sequence[FileRow], budget: int
) -> OverviewAnswer:
    """The largest modules that still fit, one of each folder before the second of any."""
    of_folder: dict[str, list[FileRow]] = defaultdict(list)
    code = [row for row in rows if by_name(row.language).is_code and not _is_aside(row.path)]
    for row in sorted(code, key=lambda row: (-row.lines, row.path)):
        of_folder[os.path.dirname(row.path)].append(row)
    turns = sorted(
        (place, -row.lines, row.path, row) for found in of_folder.values() for place, row in enumerate(found)
    )

    def longer(page: OverviewAnswer) -> Iterator[OverviewAnswer]:
        for taken, (_, _, _, row) in enumerate(turns[:MAX_MODULES], 1):
            module = ModuleSummary(row.path, row.lines, _named(index.top_items(below + row.path)))
            left_out = {**page.left_out, "modules": len(turns) - taken}
            page = replace(page, modules=[*page.modules, module], left_out=left_out)
            yield page

    for each, tokens in counted(longer(page), _text_of, budget):
        if tokens > budget:
            break
        page = each
    left = {**page.left_out, "modules": len(turns) - len(page.modules)}
    return replace(page, left_out={name: count for name, count in left.items() if count})


def _named(items: Sequence[CodeItem]) -> list[str]:
    """The largest definitions of a file, in its order."""
    largest = sorted(items, key=lambda item: (item.start_byte - item.end_byte, item.start_byte))[:MAX_MODULE_ITEMS]
    ordered = sorted(largest, key=lambda item: item.start_byte)
    return [f"{item.kind} {item.name} {item.start_line}-{item.end_line}" for item in ordered]


def _text_of(page: OverviewAnswer) -> str:
    return TypeAdapter(OverviewAnswer).dump_json(page).decode()
