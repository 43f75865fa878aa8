"""Tools of a user's own from Python files: those that a file makes with `@tool` at its top level.

A file that the owner names on the command line (`--tools my_tools.py`) is run as a program is: under its own name, and
its imports see its own folder. Its tools count as passed by the owner.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import text_of
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName

#: Before the names of modules that are made of a text: no import finds one by accident.
_PREFIX: Final = "callboard_workspace_"


def load_tool_file(path: Path, prefix: str = "") -> ModuleType:
    """Run the file as a module of its own name, with `prefix` before it, beside which it may import others.

    Raises UsageError, in one sentence with the line, for a file that cannot be run.
    """
    if not path.is_file() or path.suffix != ".py":
        why = "it is not a Python file (.py)" if path.exists() else "there is no such file"
        raise UsageError(f"--tools {path}: {why}")
    name, place = f"{prefix}{path.stem}", path.resolve()
    if name in sys.modules:
        raise UsageError(f"--tools {path}: it would be the module {name!r}, which there is already; rename the file")
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise UsageError(f"--tools {path}: it cannot be loaded; is its name a Python name?")
    module = importlib.util.module_from_spec(spec)
    if str(place.parent) not in sys.path:
        sys.path.insert(0, str(place.parent))
    loader = spec.loader
    return _run(module, f"--tools {path}", place, lambda: loader.exec_module(module))


def load_tool_text(path: Path, data: bytes) -> ModuleType:
    """The same for a file whose content is known already: this very text is run, whatever the file holds by now, and
    its imports see no more than those of callboard. Raises UsageError."""
    module = ModuleType(f"{_PREFIX}{path.stem}")
    module.__file__ = str(path)
    return _run(module, str(path), path, lambda: exec(compile(data, str(path), "exec"), vars(module)))


def tools_in(module: ModuleType) -> tuple[Tool, ...]:
    """The tools that it defines, in their order; not those that it imports. Raises UsageError where there is none."""
    own = [each for each in vars(module).values() if isinstance(each, Tool)]
    own = [each for each in own if each.function.__module__ == module.__name__]
    if not own:
        raise UsageError(f"{module.__file__} defines no tool; put @tool before a function")
    return tuple({id(each): each for each in own}.values())


def tools_of_files(files: Iterable[Path], prefix: str = "") -> tuple[Tool, ...]:
    """The tools of files that were named on the command line. Raises UsageError, also for two tools of one name.

    A `prefix` of their modules' names, another one each time, lets the same file be run again.
    """
    found: dict[ToolName, tuple[Path, Tool]] = {}
    for file in files:
        for tool in tools_in(load_tool_file(file, prefix)):
            if tool.name in found:
                raise UsageError(f"two tools are called {tool.name!r}: in {found[tool.name][0]} and {file}; rename one")
            found[tool.name] = file, tool
    return tuple(tool for _, tool in found.values())


def forget_modules(tools: Iterable[Tool]) -> None:
    """Those that these were found in, now that others have taken their place: a module holds all that it has made. What
    runs of it goes on."""
    for name in {tool.function.__module__ for tool in tools}:
        sys.modules.pop(name, None)


def _run(module: ModuleType, named: str, path: Path, run: Callable[[], object]) -> ModuleType:
    """Where what ships a tool to a child process finds the module, too."""
    sys.modules[module.__name__] = module
    try:
        run()
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        what = error.msg if isinstance(error, SyntaxError) else text_of(error)
        told = " ".join(f"{_where(error, path)}{what}".split())
        raise UsageError(f"{named}: {told}") from error
    return module


def _where(error: BaseException, path: Path) -> str:
    """The line of the file where it went wrong."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: SyntaxError: " if error.filename == str(path) else "SyntaxError: "
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: " if line else ""
