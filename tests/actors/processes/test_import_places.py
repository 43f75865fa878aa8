"""What a confined tool imports from a folder that it may not list: all that Python would find there, at any time."""

from __future__ import annotations

import importlib
import py_compile
from pathlib import Path

import pytest

from callboard import Runtime, Settings
from callboard.actors.processes.confinement import kernel_support

pytestmark = pytest.mark.skipif(bool(kernel_support().lacks), reason=f"this kernel has {kernel_support()}")

TOOL = """
from callboard import tool

@tool(risk="read")
def {name}() -> str:
    return __name__
"""
LOOK = """
import os

@tool(risk="read")
def look(path: str) -> list[str]:
    return os.listdir(path)
"""


def write(place: Path) -> None:
    """A module with a tool, which is called like the first part of the module's name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(TOOL.format(name=place.parts[-1].removesuffix(".py")))


def module(root: Path) -> str:
    write(root / "a_module.py")
    return "a_module.a_module"


def package(root: Path) -> str:
    (root / "a_package").mkdir()
    write(root / "a_package.py")
    (root / "a_package.py").rename(root / "a_package" / "__init__.py")
    return "a_package.a_package"


def in_packages(root: Path) -> str:
    write(root / "outer" / "inner" / "in_packages.py")
    for folder in ("outer", "outer/inner"):
        (root / folder / "__init__.py").touch()
    return "outer.inner.in_packages.in_packages"


def in_namespace(root: Path) -> str:
    write(root / "namespace" / "in_namespace.py")
    return "namespace.in_namespace.in_namespace"


def deep_in_namespaces(root: Path) -> str:
    write(root / "deep" / "below" / "deep_in_namespaces.py")
    return "deep.below.deep_in_namespaces.deep_in_namespaces"


def without_source(root: Path) -> str:
    write(root / "bare.py")
    py_compile.compile(str(root / "bare.py"), str(root / "bare.pyc"))
    (root / "bare.py").unlink()
    return "bare.bare"


def package_before_module(root: Path) -> str:
    write(root / "both" / "both.py")
    (root / "both" / "both.py").rename(root / "both" / "__init__.py")
    (root / "both.py").write_text("raise AssertionError('the package comes first')")
    return "both.both"


KINDS = (module, package, in_packages, in_namespace, deep_in_namespaces, without_source, package_before_module)


async def test_what_changes_beside_a_module_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python lists a folder anew when it has changed, and found nothing in one that it may not list."""
    code, workspace = tmp_path / "code", tmp_path / "workspace"
    code.mkdir()
    workspace.mkdir()
    write(code / "first.py")
    with (code / "first.py").open("a") as file:
        file.write(LOOK)
    paths = [kind(code) for kind in KINDS]
    monkeypatch.syspath_prepend(code)
    found = [getattr(importlib.import_module(place), name) for place, _, name in (p.rpartition(".") for p in paths)]
    first = importlib.import_module("first")
    async with Runtime(Settings(workspace=workspace), tools=[first.first, first.look, *found]) as runtime:
        listed = await runtime.call_tool("look", {"path": str(code)})
        assert listed.failure is not None
        assert "confined" in listed.failure.message, "else nothing is shown"
        (code / "changed").touch()
        for path in paths:
            place, _, name = path.rpartition(".")
            assert (await runtime.call_tool(name, {})).data == place
