"""Where Python imports from: what a confined tool reads besides its own paths, so that it can import what it needs.

Folders are allowed as they really are. In a tree of links (Bazel, Nix, uv's link mode, a strict editable install)
the files are elsewhere, each behind a link of its own: of those, what Python would open is allowed, file by file. What
may hold secrets is not, nor what cannot be judged. The folders of Python's path themselves are not listed.
"""

from __future__ import annotations

import importlib.machinery
import os
import site
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol, Self

from callboard.actors.below import is_below, is_below_any
from callboard.actors.processes.landlock import May

if TYPE_CHECKING:
    from importlib.abc import Loader

#: Folders of packages that are installed, not developed.
PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
#: In the order in which Python looks for them.
_LOADERS: Final[Mapping[str, Callable[[str, str], Loader]]] = {
    **dict.fromkeys(importlib.machinery.EXTENSION_SUFFIXES, importlib.machinery.ExtensionFileLoader),
    **dict.fromkeys(importlib.machinery.SOURCE_SUFFIXES, importlib.machinery.SourceFileLoader),
    **dict.fromkeys(importlib.machinery.BYTECODE_SUFFIXES, importlib.machinery.SourcelessFileLoader),
}
_MODULE_ENDINGS: Final = tuple(_LOADERS)
_INIT: Final = "__init__.py"
_CACHE: Final = "__pycache__"
#: Of a package, and of the folder that says what is installed.
_OF_EACH: Final = (_INIT, "METADATA")
#: Names in a folder of Python's path that are looked at; one with more is no folder of modules.
_MAX_MODULES: Final = 2_000
#: Names in all trees of links together; what comes after them is not allowed. A rule for each costs some 10 us.
MAX_LINKED: Final = 20_000
#: Names that are looked at to find such trees below folders without an `__init__.py`, which may hold anything.
_MAX_SEARCHED: Final = 2_000
#: Of the module that an editable install of setuptools leaves, with the places of the packages.
_EDITABLE: Final = "__editable__"

Place = tuple[str, May]


class Judge(Protocol):
    """Says whether a place may hold secrets."""

    def is_secret(self, place: str, is_folder: bool = False) -> bool: ...


def prefixes() -> Iterator[str]:
    """Where Python and its packages are installed."""
    given = (sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages(), *sysconfig.get_paths().values())
    for each in dict.fromkeys(map(os.path.realpath, given)):
        if each not in ("/", os.path.expanduser("~")):
            yield each


def import_places(installed: Iterable[str], packages: Iterable[str], judge: Judge) -> Iterator[Place]:
    """What Python needs to import what it has not imported yet: of a folder on its path, modules and packages. The
    project that a tool is part of is not read as a whole.

    `installed` are folders that are allowed already, `packages` those that the runtime has loaded from elsewhere.
    """
    known = tuple(installed)
    for each in packages:
        yield each, May.READ
    for folder in dict.fromkeys(map(os.path.realpath, sys.path)):
        if os.path.basename(folder) in PACKAGES or os.path.isfile(folder):
            yield folder, May.READ
        elif not is_below_any(folder, known):
            yield from _modules(folder, judge)


def linked_places(installed: Iterable[str], packages: Iterable[str], judge: Judge) -> Iterator[Place]:
    """The same of trees of links, which takes longer; and what finders of editable installs know."""
    known = tuple(installed)
    linked = _Linked(known, judge)
    for each in packages:
        yield from linked.in_package(each, False)
    for folder in dict.fromkeys(map(os.path.realpath, sys.path)):
        is_installed = os.path.basename(folder) in PACKAGES or is_below_any(folder, known)
        yield from linked.in_folder(folder, is_installed)
    for place in _editable():
        yield from linked.named(place)


def find_by_name() -> None:
    """Have Python find what is in folders that this process may not list, also after they have changed."""
    sys.path_hooks.insert(0, _Unlisted.of)
    for folder in list(sys.path_importer_cache):
        if os.path.isdir(folder) and not _may_list(folder):
            del sys.path_importer_cache[folder]


class _Unlisted:
    """The finder of a folder: asks for each file that a module may be. Python's own lists the folder, and takes one
    that it may not list for an empty one."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @classmethod
    def of(cls, folder: str) -> Self:
        """A hook of Python's path. Raises ImportError for what it is not for."""
        if not os.path.isdir(folder) or _may_list(folder):
            raise ImportError(f"another finder is for {folder}", path=folder)
        return cls(folder)

    def find_spec(self, name: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """In Python's order: a package, a module, a folder without an `__init__.py`."""
        place = os.path.join(self._folder, name.rpartition(".")[2])
        for start, within in ((f"{place}/__init__", [place]), (place, None)):
            for ending, loader in _LOADERS.items():
                if os.path.isfile(path := f"{start}{ending}"):
                    return _spec(name, loader(name, path), path, within)
        return _spec(name, None, None, [place]) if os.path.isdir(place) else None


def _spec(name: str, loader: Loader | None, path: str | None, within: list[str] | None) -> ModuleSpec:
    """`within`: of a package, where what it has is looked for."""
    spec = ModuleSpec(name, loader, origin=path)
    spec.has_location = path is not None
    spec.submodule_search_locations = within
    return spec


def _may_list(folder: str) -> bool:
    try:
        os.scandir(folder).close()
    except OSError:
        return False
    return True


def _modules(folder: str, judge: Judge) -> Iterator[Place]:
    for entry in _entries(folder)[:_MAX_MODULES]:
        is_package = _is_folder(entry) and (entry.name == _CACHE or os.path.isfile(f"{entry.path}/{_INIT}"))
        if is_package or (entry.name.endswith(_MODULE_ENDINGS) and not _is_folder(entry)):
            place = os.path.realpath(entry.path)
            if not entry.is_symlink() or not judge.is_secret(place, is_package):
                yield place, May.READ if is_package else May.READ_FILE


def _editable() -> Iterator[str]:
    """The packages and modules that finders of editable installs know."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_EDITABLE):
            for table in (getattr(module, "MAPPING", {}), getattr(module, "NAMESPACES", {})):
                if isinstance(table, Mapping):
                    for value in table.values():
                        yield from (value,) if isinstance(value, str) else map(str, value)


class _Linked:
    """What links in trees of links lead to. Looks at `MAX_LINKED` names."""

    def __init__(self, known: tuple[str, ...], judge: Judge) -> None:
        self._known = known
        self._judge = judge
        self._left, self._to_search = MAX_LINKED, _MAX_SEARCHED
        self._seen = set[str]()
        self._folders: dict[str, tuple[str, bool]] = {}
        """Where folders really are, and whether they are allowed already."""
        self._home = os.path.realpath(os.path.expanduser("~"))

    def in_folder(self, folder: str, is_installed: bool) -> Iterator[Place]:
        """Of a folder on Python's path: what is a package or a module there, through links."""
        for entry in _entries(folder):
            if _is_folder(entry):
                if is_installed or entry.name.isidentifier():
                    yield from self.in_package(entry.path, is_installed)
            elif is_installed and entry.is_symlink():
                yield from self._file(entry, is_installed)

    def named(self, place: str) -> Iterator[Place]:
        """A package or a module (its ending may be missing), where an editable install says that it is."""
        if os.path.isdir(place):
            yield from self._folder(place, False)
        else:
            for path in (place, *(f"{place}{ending}" for ending in _MODULE_ENDINGS)):
                if os.path.isfile(path) and path.endswith(_MODULE_ENDINGS) and not self._judge.is_secret(_real(path)):
                    yield _real(path), May.READ_FILE

    def in_package(self, folder: str, is_installed: bool) -> Iterator[Place]:
        """What is in it through links, if it is a tree of links: then some name at its top is one. Of the hundreds of
        folders that are installed, only the names are looked at that each has."""
        names = _OF_EACH if is_installed else [entry.name for entry in _entries(folder)]
        if os.path.islink(folder) or any(os.path.islink(f"{folder}/{name}") for name in names):
            yield from self._folder(folder, is_installed)
        elif os.path.basename(folder).isidentifier() and not os.path.lexists(f"{folder}/{_INIT}"):
            yield from self._namespace(folder, is_installed)

    def _namespace(self, folder: str, is_installed: bool) -> Iterator[Place]:
        """A folder without an `__init__.py`: it is worth listing if what is below it is linked."""
        entries = _entries(folder)
        self._to_search -= len(entries)
        if self._to_search < 0:
            return
        found = [
            place
            for entry in entries
            if entry.name.isidentifier() and _is_folder(entry)
            for place in self.in_package(entry.path, is_installed)
        ]
        yield from found
        if found and not is_installed:
            yield _real(folder), May.LIST

    def _folder(self, folder: str, is_installed: bool, within: str = "") -> Iterator[Place]:
        """`within`: a package that is allowed whole, through which this one was come to."""
        place = _real(folder)
        if not place or place in self._seen:
            return
        self._seen.add(place)
        if is_below(self._home, place) or self._judge.is_secret(place, is_folder=True):
            return
        entries, found = _entries(place), False
        if not (within and is_below(place, within)):
            within = place if any(each.name == _INIT for each in entries) else ""
        is_known = is_below_any(place, self._known)
        if within == place and not is_known:
            yield place, May.READ
        for entry in entries:
            self._left -= 1
            if self._left < 0:
                return
            if _is_folder(entry):
                look = self._folder(entry.path, is_installed, within)
            elif within and not entry.is_symlink():
                continue
            else:
                look = self._file(entry, is_installed)
            for each in look:
                found = True
                yield each
        if found and not within and not is_known:
            yield place, May.LIST

    def _file(self, entry: os.DirEntry[str], is_installed: bool) -> Iterator[Place]:
        """Of a package that is installed, any; else what Python would open by this name, if it is called so itself."""
        if not is_installed and not entry.name.endswith(_MODULE_ENDINGS):
            return
        place, is_known = self._behind(entry)
        if not place or is_known or not (is_installed or place.endswith(_MODULE_ENDINGS)):
            return
        if not self._judge.is_secret(place):
            yield place, May.READ_FILE

    def _behind(self, entry: os.DirEntry[str]) -> tuple[str, bool]:
        """The regular file that it is or leads to ("": none), and whether it is allowed already. Links of a tree lead
        to few folders, each of which is resolved once."""
        try:
            target = os.path.join(os.path.dirname(entry.path), os.readlink(entry.path) if entry.is_symlink() else "")
            folder, name = os.path.split(target if entry.is_symlink() else entry.path)
            if folder not in self._folders:
                real = os.path.realpath(folder, strict=True)
                self._folders[folder] = real, is_below_any(real, self._known)
            real, is_known = self._folders[folder]
            place = os.path.join(real, name)
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode):
                place = os.path.realpath(place, strict=True)
                mode, is_known = os.lstat(place).st_mode, is_below_any(place, self._known)
        except OSError:
            return "", False
        return place if stat.S_ISREG(mode) else "", is_known


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Or a link to one; a link that leads nowhere, or in a circle, is none."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """None of a folder that cannot be listed."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _real(path: str) -> str:
    """Where it leads; "" where that cannot be found out."""
    try:
        return os.path.realpath(path, strict=True)
    except OSError:
        return ""
