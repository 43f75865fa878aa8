"""Tools of a user's own from a file: `--tools my_tools.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import text_of
from callboard.protocol.errors import UsageError


def load_tool_file(path: Path) -> ModuleType:
    """Run the file as a module of its own name, beside which it may import others. Raises UsageError."""
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"--tools: {path} is no Python file; give one that defines tools with @tool")
    name = path.stem
    if name in sys.modules:
        raise UsageError(f"--tools: {path} would be the module {name!r}, which there is already; rename the file")
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"--tools: {path} cannot be loaded; is its name a Python name?")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"--tools: {path} fails when it is loaded: {text_of(error)}") from error
    return module


def tools_in(module: ModuleType) -> tuple[Tool, ...]:
    """The tools that it defines, in their order. Raises UsageError where there is none."""
    found = tuple(dict.fromkeys(value for value in vars(module).values() if isinstance(value, Tool)))
    if not found:
        raise UsageError(f"--tools: {module.__file__} defines no tool; put @tool before a function")
    return found
