"""Which files of a workspace an MCP server runs by its command: they run unconfined, as the user, when it starts.

Its words are read as the usual interpreters and package managers read them. What a file that is named imports in turn
is not looked for, but in a package: its folder counts whole.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from callboard.actors.below import is_below, is_below_any
from callboard.actors.mcp.mcp_servers import McpServer

#: What a program reads in its folder without being told so, by its name.
_READS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("npm", "npx", "pnpm", "pnpx", "yarn", "bun", "bunx"), ("package.json",)),
    **dict.fromkeys(("uv", "uvx", "poetry", "pdm", "hatch", "pipx"), ("pyproject.toml", "uv.toml")),
    "deno": ("deno.json", "deno.jsonc", "package.json"),
    "cargo": ("Cargo.toml",),
    "go": ("go.mod",),
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "docker": ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"),
}
#: A folder with one of these in it can be run, or imported.
_PACKAGE: Final = ("__init__.py", "__main__.py", "package.json", "index.js", "go.mod", "Cargo.toml")
_MODULE: Final = "-m"
#: What a server writes itself, so that it is never what was agreed to.
_DATA: Final = (".db", ".sqlite", ".sqlite3", ".duckdb", ".log", ".jsonl", ".csv", ".parquet")


def named_files(servers: Iterable[McpServer], workspace: Path | str) -> tuple[str, ...]:
    """Real paths of the files, and folders of packages, below the workspace that these servers' commands name."""
    root = os.path.realpath(workspace)
    found = {os.path.realpath(place) for server in servers for place in _named(server, root)}
    below = sorted(place for place in found if is_below(place, root))
    return tuple(place for place in below if not is_below_any(os.path.dirname(place), below))


def _named(server: McpServer, root: str) -> Iterator[str]:
    if not server.command:
        return
    command = os.path.expanduser(server.command)
    words = [*_words((*server.args, *server.env.values())), *([command] if "/" in command else [])]
    bases = [os.path.realpath(server.cwd or os.getcwd()), root]
    # Of a folder that is named, programs read the other words from there: `uv run --directory DIR server.py`.
    bases += [place for base in tuple(bases) for word in words if os.path.isdir(place := os.path.join(base, word))]
    for base in dict.fromkeys(bases):
        for word in words:
            yield from _at(os.path.join(base, os.path.expanduser(word)), root)
        for program in (command, *words):
            for name in _READS.get(os.path.basename(program), ()):
                yield from _at(os.path.join(base, name), root)
        for option, word in pairwise(words):
            if option == _MODULE:
                yield from _module(base, word, root)
    if (found := shutil.which(command)) is not None:
        yield found


def _words(given: Iterable[str]) -> Iterator[str]:
    """Each, its parts where a shell or an option would see some, and what is behind `=`, `:` or a short option."""
    for each in given:
        try:
            parts = [each, *shlex.split(each)]
        except ValueError:  # quotes that are not closed
            parts = [each, *each.split()]
        for part in dict.fromkeys(parts):
            yield part
            yield from (value for value in part.replace("=", ":").split(":") if value != part)
            if part.startswith("-") and not part.startswith("--") and len(part) > 2:
                yield from (part[:2], part[2:])


def _at(place: str, root: str) -> Iterator[str]:
    """A file, with the package that it is in; or a folder that is a package. Other folders are data: a server may be
    given the workspace itself, to read and write in."""
    if os.path.isfile(place) and not place.endswith(_DATA):
        yield _package_of(os.path.realpath(place), root)
    elif _is_package(place) and os.path.realpath(place) != root:
        yield place


def _module(base: str, name: str, root: str) -> Iterator[str]:
    first = os.path.join(base, name.split(".")[0])
    for place in (first, os.path.join(base, "src", name.split(".")[0])):
        if os.path.isdir(place) and os.path.realpath(place) != root:
            yield place
        elif os.path.isfile(f"{place}.py"):
            yield f"{place}.py"


def _package_of(place: str, root: str) -> str:
    """The outermost folder with an `__init__.py` around a file, without a gap; the file itself where there is none."""
    found, folder = place, os.path.dirname(place)
    while folder != root and is_below(folder, root) and os.path.isfile(f"{folder}/__init__.py"):
        found, folder = folder, os.path.dirname(folder)
    return found


def _is_package(place: str) -> bool:
    return os.path.isdir(place) and any(os.path.lexists(f"{place}/{name}") for name in _PACKAGE)
