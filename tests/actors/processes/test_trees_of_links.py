"""Confined tools import what lies in trees of links, where each file is a link to somewhere else; and nothing more.

Each kind of tree is made in a virtual environment of its own, whose interpreter runs a host without bytecode.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from support.imports import ROOT

from callboard.actors.processes import import_places as import_places_module
from callboard.actors.processes.confinement import kernel_support
from callboard.actors.processes.import_places import linked_places

pytestmark = pytest.mark.skipif(bool(kernel_support().lacks), reason=f"this kernel has {kernel_support()}")

DEVELOPED = Path(__file__).parents[3] / ".dev"
PACKAGE = {
    "__init__.py": "",
    "deep.py": "from linked.below.more import VALUE\n",
    "below/__init__.py": "",
    "below/more.py": "VALUE = 'imported'\n",
}
TOOLS = '''
import importlib, importlib.metadata
from pathlib import Path
from callboard import tool

@tool(risk="read")
def use(name: str) -> str:
    """x"""
    return importlib.import_module(name).VALUE

@tool(risk="read")
def steal(path: str) -> str:
    """x"""
    return Path(path).read_text()

@tool(risk="read")
def version(name: str) -> str:
    """x"""
    return importlib.metadata.version(name)
'''
HOST = """
import asyncio, json, sys
from callboard import Runtime, Settings
import tools_of_host

workspace, orders = sys.argv[1], json.loads(sys.argv[2])
async def main():
    settings = Settings(workspace=workspace, state_dir=workspace + "-state", confine="auto")
    tools = [tools_of_host.use, tools_of_host.steal, tools_of_host.version]
    async with Runtime(settings, tools=tools, approve=lambda question: True) as runtime:
        said = [await runtime.call_tool(name, arguments) for name, arguments in orders]
        print(json.dumps([[each.ok, str(each.data) if each.ok else each.failure.message] for each in said]))

if __name__ == "__main__":
    asyncio.run(main())
"""


class Scene:
    """A virtual environment, a home with secrets, sources elsewhere, and a host with its tools."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.sources = root, root / "home", root / "sources"
        self.workspace, self.app = root / "workspace", root / "app"
        write(
            self.home,
            {
                ".ssh/id_rsa": "a secret",
                ".ssh/key.py": "VALUE = 'a secret'\n",
                "diary.txt": "a secret",
                "notes.txt": "x",
            },
        )
        write(self.sources / "linked", PACKAGE)
        write(self.workspace, {"file": "text"})
        write(self.app, {"tools_of_host.py": TOOLS, "host.py": HOST})
        venv.create(root / "venv", symlinks=True)
        self.packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(root / "venv")}))
        self.path(sysconfig.get_path("purelib"), name="installed")
        self.path(str(DEVELOPED), name="developed")

    def path(self, *lines: str, name: str = "tree") -> None:
        (self.packages / f"{name}.pth").write_text("\n".join(lines) + "\n")

    def run(self, *orders: tuple[str, dict[str, str]]) -> list[tuple[bool, str]]:
        """What comes of these calls."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(
            [self.root / "venv/bin/python", self.app / "host.py", str(self.workspace), json.dumps(orders)],
            env=environment | {"CALLBOARD_CONFIG_DIR": str(self.root / "config")},
            cwd=self.app,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert ran.returncode == 0, ran.stderr
        return [tuple(each) for each in json.loads(ran.stdout)]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def link_tree(tree: Path, source: Path) -> None:
    """Folders are real, each file is a link."""
    tree.mkdir(parents=True, exist_ok=True)
    for path in source.rglob("*.py"):
        link = tree / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)


def strict_editable(scene: Scene) -> Path:
    """As `pip install --editable . --config-settings editable_mode=strict` makes it: a .pth that names a tree."""
    tree = scene.root / "build/__editable__.linked-0.1-py3-none-any"
    link_tree(tree / "linked", scene.sources / "linked")
    scene.path(str(tree))
    return tree / "linked"


def editable_finder(scene: Scene) -> Path:
    """As `pip install --editable .` makes it where a folder on the path will not do; the package is a tree of links."""
    tree = scene.root / "checkout/src/package"
    link_tree(tree, scene.sources / "linked")
    write(scene.packages, {"__editable___linked_finder.py": f"""
import importlib.util, sys
from pathlib import Path
MAPPING = {{"linked": {str(tree)!r}}}
NAMESPACES = {{}}
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in MAPPING:
            place = Path(MAPPING[name], "__init__.py")
            return importlib.util.spec_from_file_location(name, place, submodule_search_locations=[str(place.parent)])
def install():
    sys.meta_path.append(Finder)
"""})  # fmt: skip
    scene.path("import __editable___linked_finder; __editable___linked_finder.install()")
    return tree


def bazel(scene: Scene) -> Path:
    """A folder of runfiles: all files are links, and other repositories' folders are links to folders of links."""
    real = scene.root / "execroot/external/linked"
    link_tree(real, scene.sources / "linked")
    tree = scene.root / "bin/app.runfiles/main"
    tree.mkdir(parents=True)
    (tree / "linked").symlink_to(real)
    scene.path(str(tree))
    return real


def uv_link_mode(scene: Scene) -> Path:
    """As `uv pip install --link-mode symlink`: what is installed are links to files of a cache."""
    about = scene.sources / "about"
    write(about, {"METADATA": "Metadata-Version: 2.1\nName: linked\nVersion: 7.0\n"})
    link_tree(scene.packages / "linked", scene.sources / "linked")
    (scene.packages / "linked-7.0.dist-info").mkdir()
    (scene.packages / "linked-7.0.dist-info/METADATA").symlink_to(about / "METADATA")
    return scene.packages / "linked"


def nix(scene: Scene) -> Path:
    """An environment whose packages are links to folders of a store, there again links."""
    store = scene.root / "store/abc-linked-0.1"
    link_tree(store, scene.sources / "linked")
    (scene.packages / "linked").symlink_to(store)
    return store


def namespace(scene: Scene) -> Path:
    """No `__init__.py` above the package."""
    inner = scene.root / "monorepo/libs/linked"
    link_tree(inner, scene.sources / "linked")
    (inner / "__init__.py").unlink()
    scene.path(str(scene.root / "monorepo/libs"))
    return inner


def modules(scene: Scene) -> Path:
    """Of single modules on the path, by links with other names for their folders."""
    tree = scene.root / "links"
    tree.mkdir()
    (tree / "linked").symlink_to(scene.root / "hop")
    (scene.root / "hop").symlink_to(scene.root / "last")
    link_tree(scene.root / "last", scene.sources / "linked")
    scene.path(str(tree))
    return scene.root / "last"


KINDS: list[Callable[[Scene], Path]] = [strict_editable, editable_finder, bazel, uv_link_mode, nix, namespace, modules]


@pytest.mark.parametrize("make", KINDS, ids=lambda each: each.__name__)
def test_a_tool_imports_from_a_tree_of_links_and_secrets_behind_links_stay_covered(
    tmp_path: Path, make: Callable[[Scene], Path]
) -> None:
    scene = Scene(tmp_path)
    tree = make(scene)
    for name, target in {"key.py": ".ssh/key.py", "id.py": ".ssh/id_rsa", "diary.py": "diary.txt"}.items():
        (tree / name).symlink_to(scene.home / target)
    (tree / "dot").symlink_to(scene.home / ".ssh")
    (tree / "house").symlink_to(scene.home)
    (tree / "loop").symlink_to(tree / "loop")
    secrets = ["key.py", "id.py", "dot/id_rsa", "dot/key.py", "house/notes.txt"]
    # An environment's own files may be of any kind: its owner installed them.
    secrets += [] if make in (uv_link_mode, nix) else ["diary.py"]
    said = scene.run(("use", {"name": "linked.deep"}), *(("steal", {"path": str(tree / each)}) for each in secrets))
    assert said[0] == (True, "imported")
    for name, (ok, text) in zip(secrets, said[1:], strict=True):
        assert not ok, name
        assert "may not touch" in text or "may not open" in text, text


def test_what_is_installed_by_links_says_its_version(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    uv_link_mode(scene)
    assert scene.run(("version", {"name": "linked"})) == [(True, "7.0")]


def test_callboard_itself_may_be_a_tree_of_links(tmp_path: Path) -> None:
    """A strict editable install of it: its own tools run, and those that import it."""
    scene = Scene(tmp_path)
    tree = tmp_path / "build/callboard"
    for layer in ("actors", "protocol", "providers"):
        link_tree(tree / layer, ROOT / layer)
    for path in (DEVELOPED / "callboard").iterdir():
        if path.is_file():
            (tree / path.name).symlink_to(path.resolve())
    scene.path(str(tree.parent), name="developed")
    said = scene.run(("read_file", {"path": "file"}), ("run_command", {"command": "cat file"}), ("use", {"name": "x"}))
    assert [ok for ok, _ in said] == [True, True, False]
    assert all("text" in text for _, text in said[:2])
    assert "No module named 'x'" in said[2][1]


class Everything:
    """Hides nothing."""

    def is_secret(self, place: str, is_folder: bool = False) -> bool:
        return False


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    monkeypatch.setattr(sys, "path", [str(tree)])
    return tree


def test_there_is_a_bound_and_what_comes_after_it_is_not_allowed(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_places_module, "MAX_LINKED", 100)
    source = tmp_path / "source.py"
    source.touch()
    for folder in range(3):
        (alone / f"package_{folder}").mkdir()
        for number in range(60):
            (alone / f"package_{folder}" / f"m{number}.py").symlink_to(source)
    found = [place for place, _ in linked_places((), (), Everything()) if place == str(source.resolve())]
    assert len(found) == 100


def test_a_link_that_cannot_be_followed_is_not_allowed(alone: Path, tmp_path: Path) -> None:
    (alone / "package").mkdir()
    for name, target in {"a": "a", "b": "/nowhere/b", "c": "../c", "d": "/dev/null", "e": "x" * 255}.items():
        (alone / "package" / f"{name}.py").symlink_to(target)
    assert {place for place, _ in linked_places((), (), Everything())} <= {str(alone / "package")}


def test_the_doctor_tries_a_confined_tool_and_says_what_is_wrong(tmp_path: Path) -> None:
    """Here callboard lies behind links that lead to where secrets are."""
    scene = Scene(tmp_path)
    hidden = scene.home / ".ssh/checkout"
    for layer in ("actors", "protocol", "providers"):
        shutil.copytree(ROOT / layer, hidden / layer, ignore=shutil.ignore_patterns("__pycache__"))
        link_tree(tmp_path / "build/callboard" / layer, hidden / layer)
    (tmp_path / "build/callboard/__init__.py").symlink_to(hidden / "actors/front/__init__.py")
    scene.path(str(tmp_path / "build"), name="developed")
    code = "import sys; from callboard.actors.cli.__main__ import main; sys.exit(main())"
    ran = subprocess.run(
        [
            scene.root / "venv/bin/python",
            "-c",
            code,
            "doctor",
            *["--model", "openai-compatible/any", "--base-url", "http://127.0.0.1:9/v1"],
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(scene.home), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=scene.app,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 1, ran.stderr
    assert "FAIL a tool that declares risk='read' was tried" in ran.stdout
    assert ".ssh/checkout" in ran.stdout
