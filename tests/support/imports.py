"""What the files of the three layers import, read from their source: relative imports and those for types too."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("protocol", "providers", "actors")
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    """The tree of a file, with the garbage collector at rest: code that it runs in the midst of this may read a tree
    too, and before 3.11.7 the interpreter then miscounts, a SystemError (CPython's issue 106905)."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if is_collecting:
            gc.enable()


@dataclass(frozen=True)
class Import:
    """One name of an import statement."""

    where: str
    """File and line."""
    module: str
    """Absolute, and the module itself where a name of a package is one: `from callboard import actors` too."""
    name: str
    """As it is known in the importing file."""
    function: str = ""
    """The function around it; "" at the top of the file."""
    for_types: bool = False
    """Under `if TYPE_CHECKING:`."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def module_of(path: Path) -> str:
    """The name under which a file is installed."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[:2] == ("actors", "front"):
        return "callboard"
    return ".".join(("callboard", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MODULES = {module_of(path): path for path in SOURCES}


def imports(path: Path) -> tuple[Import, ...]:
    """All imports of a file, wherever they are in it."""
    return _read(path)[0]


def classes(path: Path) -> tuple[str, ...]:
    """The classes at the top of a file."""
    return _read(path)[1]


@cache  # not of the trees, which would be 170 MB
def _read(path: Path) -> tuple[tuple[Import, ...], tuple[str, ...]]:
    tree = parsed(path)
    return tuple(_below(tree, path, "", False)), tuple(
        each.name for each in tree.body if isinstance(each, ast.ClassDef)
    )


def _below(node: ast.AST, path: Path, function: str, for_types: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        where = f"{name(path)}:{node.lineno}"
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(where, alias.name, alias.asname or alias.name, function, for_types)
    elif isinstance(node, ast.ImportFrom):
        base = _base(node, path)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield Import(where, inner if inner in MODULES else base, alias.asname or alias.name, function, for_types)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    guarded = isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):  # no expression has an import in it
        for child in getattr(node, block, ()):
            yield from _below(child, path, function, for_types or (guarded and block == "body"))


def _base(node: ast.ImportFrom, path: Path) -> str:
    if not node.level:
        return node.module or ""
    parts = module_of(path).split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
