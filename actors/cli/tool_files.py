"""Tools of the user's own from a Python file: those that it makes with `@tool` at its top level.

The owner named the file on the command line, as a program that is run: its tools count as passed by the owner, and a
policy decides on them as on any other of that origin. Its imports see its own folder, as those of a program do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType

from callboard import Tool, UsageError
from callboard.protocol.ids import ToolName

#: Before the names of the modules that such files become: no import of anybody's finds one by accident.
_PREFIX = "callboard_tools_"


def tools_in(files: Iterable[Path]) -> tuple[Tool, ...]:
    """The tools of these files, in the order in which they are written.

    Raises UsageError, in one sentence with the file and the line, for a file that cannot be run, for one without tools
    and for a name that two tools have.
    """
    found: dict[ToolName, Path] = {}
    tools: list[Tool] = []
    for file in files:
        for tool in _tools_of(file):
            if tool.name in found:
                raise UsageError(f"two tools are called {tool.name!r}: in {found[tool.name]} and {file}; rename one")
            found[tool.name] = file
            tools.append(tool)
    return tuple(tools)


def _tools_of(file: Path) -> list[Tool]:
    module = _run(file)
    # A tool that was imported from elsewhere is there to be called, not to be offered.
    own = [
        each for each in vars(module).values() if isinstance(each, Tool) and each.function.__module__ == module.__name__
    ]
    unique = list({id(each): each for each in own}.values())
    if not unique:
        raise UsageError(f"--tools {file}: it has no tools; decorate functions at its top level with @tool")
    return unique


def _run(file: Path) -> ModuleType:
    path = file.expanduser().absolute()
    if path.suffix != ".py" or not path.is_file():
        why = "there is no such file" if not path.exists() else "it is not a Python file (.py)"
        raise UsageError(f"--tools {file}: {why}")
    name = next(each for each in _names(path.stem) if each not in sys.modules)
    spec = spec_from_file_location(name, path)
    assert spec is not None, "it ends in .py"
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where what ships a tool to a child looks
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it may raise anything
        del sys.modules[name]
        raise UsageError(f"--tools {file}: {_where(error, path)}{type(error).__name__}: {_text(error)}") from None
    return module


def _names(stem: str) -> Iterator[str]:
    """Of a module of its own: files in several folders may have one name."""
    yield f"{_PREFIX}{stem}"
    yield from (f"{_PREFIX}{stem}_{number}" for number in count(2))


def _where(error: BaseException, path: Path) -> str:
    """The line of the file where it went wrong."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno}: "
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: " if line else ""


def _text(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return " ".join(str(text).split())
