"""Where grammars come from: the only file that knows their wheels.

1. `semble-grammars` (extra `index`) has all languages. It is used as data: its Python is not run. Its manifest must
   have a hash of `MANIFESTS`, so a release that was not looked at is not loaded. The manifest has the hash of each
   library, which is compared before the library is loaded: once a process and language, in 1 ms for 2 MB.
2. The wheels of the tree-sitter project (extra `grammars`) have the languages of `PROJECT_WHEELS`. They serve where the
   first cannot; they are ordinary packages, and what they hold is not compared.

Where both fail, files are indexed as text, without symbols, and the log says so, once a language.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from callboard.actors.opened_folders import OpenedFolders
from callboard.protocol.errors import missing_extra, said
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import tarfile

    import tree_sitter
else:
    tarfile = lazy_module("tarfile")

logger = logging.getLogger("callboard.index")

#: SHA-256 of the manifests of semble-grammars that were looked at. For a new release: compare the sources that it names
#: (grammars/sources.json) with the last one's, take the hash of each platform's manifest, and move the range in
#: setup.cfg.
MANIFESTS: Final = {
    "d06800557f2d8ca6669f23ae18e239ab32faaa4302db8953ac081a1cfc314104": "0.1.2 linux-x86_64",
    "af1f1c556b42472148ffa62ce414ee7d8fec7c85fc9ebca2eda70f45beaabd95": "0.1.2 linux-arm64",
    "d67521f35d237c405cda3d3831e6ac706c3086a485ea7ec0deb4defaa028a698": "0.1.2 macos-arm64",
    "c7fcd375bfa6bae6445d95fb17c72162f30f5cc780196a37f184e0cea8c7018b": "0.1.2 macos-x86_64",
}
#: The wheels of the tree-sitter project: language, module and function.
PROJECT_WHEELS: Final = {
    "bash": ("tree_sitter_bash", "language"),
    "c": ("tree_sitter_c", "language"),
    "cpp": ("tree_sitter_cpp", "language"),
    "csharp": ("tree_sitter_c_sharp", "language"),
    "go": ("tree_sitter_go", "language"),
    "java": ("tree_sitter_java", "language"),
    "javascript": ("tree_sitter_javascript", "language"),
    "php": ("tree_sitter_php", "language_php"),
    "python": ("tree_sitter_python", "language"),
    "ruby": ("tree_sitter_ruby", "language"),
    "rust": ("tree_sitter_rust", "language"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
}
_BUNDLE: Final = "semble_grammars"
#: What a capsule must be called for tree_sitter to take it.
_CAPSULE_NAME: Final = b"tree_sitter.Language"
#: What this process has said in the log.
_SAID: Final[dict[str, None]] = {}
#: Libraries stay loaded as long as their languages are used: for the process.
_LIBRARIES: Final[list[ctypes.CDLL]] = []


class _Entry(NamedTuple):
    """A library of the bundle."""

    archive: Path
    release: str
    file: str
    symbol: str
    sha256: str


class NoGrammarError(Exception):
    """There is no grammar of a language that may be used; says why."""


@cache
def grammar_for(language: str) -> tree_sitter.Language:
    """The grammar of a language. The log says what is damaged.

    Raises:
        NoGrammarError: nothing has one that may be used.
    """
    problems: list[str] = []
    sources: tuple[Callable[[str], tree_sitter.Language], ...] = (_from_bundle, _from_project)
    for source in sources:
        try:
            return source(language)
        except ModuleNotFoundError as error:
            problems.append(f"{error.name} is not installed")
        except Exception as error:  # noqa: BLE001 - a broken wheel fails in any way, and text is found without it
            problems.append(said(error))
            say_once(f"a grammar cannot be used: {said(error)}")
    raise NoGrammarError("; ".join(problems))


def say_without_symbols(language: str, why: str) -> None:
    """Say in the log, once, that files of a language have no symbols, and what to do."""
    extra = "grammars" if language in PROJECT_WHEELS else "index"
    say_once(f"{language} files are indexed as text, without symbols ({why}): {missing_extra('their grammar', extra)}")


def say_once(text: str) -> None:
    """A warning in the log, once in this process."""
    if text not in _SAID:
        _SAID[text] = None
        logger.warning("%s", text)


def warnings() -> list[str]:
    """All that this process has said; a process that parses hands it to the one that started it."""
    return list(_SAID)


# -- the bundle ------------------------------------------------------------------------------------------------------


def _from_bundle(language: str) -> tree_sitter.Language:
    """Raises ModuleNotFoundError: it is not installed; other errors: it cannot be used."""
    entry = _entry(language)
    failure: OSError | None = None
    for folder in _cache_folders(entry.release):
        try:
            return _loaded(_unpacked(entry, folder), entry.symbol)
        except OSError as error:  # cannot be written, or nothing there may be executed
            failure = failure or error
    raise failure or OSError("there is no folder to unpack grammars to")


def _entry(language: str) -> _Entry:
    found = importlib.util.find_spec(_BUNDLE)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{_BUNDLE} is not installed", name="semble-grammars")
    # A wheel is for one platform.
    manifest = next(Path(found.origin).parent.glob("grammars/*/manifest.json"), None)
    if manifest is None:
        raise ValueError(f"semble-grammars in {Path(found.origin).parent} has no manifest; install it again")
    data = manifest.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 not in MANIFESTS:
        known = ", ".join(sorted({release.partition(" ")[0] for release in MANIFESTS.values()}))
        raise ValueError(
            f"{manifest} is damaged, or of a release of semble-grammars that this callboard does not know "
            f"(it knows {known}), and is not used; install semble-grammars=={known.rpartition(' ')[2]}"
        )
    content = json.loads(data)
    if language not in content["languages"]:
        raise ModuleNotFoundError(f"no grammar of {language}", name=f"a grammar of {language} in semble-grammars")
    entry = content["languages"][language]
    archive = manifest.parent / content["archive"]
    return _Entry(archive, sha256[:16], entry["file"], entry["symbol"], entry["sha256"])


def _cache_folders(release: str) -> Iterator[Path]:
    """Where libraries are unpacked: in the home, else (it cannot be written) in a folder of this user's among the
    temporary files. One a release, since file names do not tell releases apart."""
    with contextlib.suppress(RuntimeError):  # there is no home
        yield Path.home() / ".cache" / "callboard" / "grammars" / release
    shared = Path(tempfile.gettempdir()) / f"callboard-grammars-{os.getuid()}"
    shared.mkdir(mode=0o700, exist_ok=True)
    status = shared.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or shared.is_symlink():
        raise PermissionError(f"{shared} is not a folder that this user alone may write; remove it")
    yield shared / release


def _unpacked(entry: _Entry, folder: Path) -> Path:
    """The library, with the hash that it should have; unpacked where it is not there, or damaged."""
    path = folder / entry.file
    try:
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == entry.sha256:
                return path
        say_once(f"{path} was damaged or replaced, and is unpacked again")
    except FileNotFoundError:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tarfile.open(entry.archive, "r:gz") as archive:
        member = archive.extractfile(entry.file)
        content = member.read() if member is not None else b""
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise ValueError(f"{entry.archive} is damaged: {entry.file} in it; install semble-grammars again")
    _replace(path, content)
    return path


def _replace(path: Path, content: bytes) -> None:
    """At once, since other processes may unpack or load the same."""
    with OpenedFolders(path.parent.resolve()) as folder:
        folder.replace(path.name, content, 0o600)


def _loaded(path: Path, symbol: str) -> tree_sitter.Language:
    import tree_sitter  # noqa: PLC0415 - the extra `index`

    library = ctypes.CDLL(str(path))
    _LIBRARIES.append(library)
    make = library[symbol]
    make.restype = ctypes.c_void_p
    as_capsule = ctypes.pythonapi.PyCapsule_New
    as_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    as_capsule.restype = ctypes.py_object
    return tree_sitter.Language(as_capsule(make(), _CAPSULE_NAME, None))


# -- the wheels of the project ---------------------------------------------------------------------------------------


def _from_project(language: str) -> tree_sitter.Language:
    """Raises ModuleNotFoundError: its wheel is not installed, or there is none; other errors: it cannot be used."""
    import tree_sitter  # noqa: PLC0415 - the extra `index`

    if language not in PROJECT_WHEELS:
        raise ModuleNotFoundError(f"no wheel has {language}", name=f"a wheel of its own for {language}")
    module, function = PROJECT_WHEELS[language]
    return tree_sitter.Language(getattr(importlib.import_module(module), function)())
