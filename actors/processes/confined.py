"""Confining a process to what its tool declares: done in the template, before the tool is loaded, and in each child.

The template gets its view of the files (mounts), gives up what a root could do with it, and is then held by Landlock
and a filter of system calls, which its children inherit. A child is held once more, by the same rules with a scratch
folder of its own, so that calls of one tool reach neither each other nor the template. What is refused is explained
here, too: this is where it is known what the tool may do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

from callboard.actors.below import is_below, is_below_any
from callboard.actors.processes import held_environment, private_mounts, seccomp
from callboard.actors.processes.confinement import Confinement
from callboard.actors.processes.control import LENGTH
from callboard.actors.processes.import_places import (
    PACKAGES,
    Judge,
    Place,
    find_by_name,
    import_places,
    linked_places,
    prefixes,
)
from callboard.actors.processes.landlock import May, PathRule, open_place, restrict
from callboard.actors.processes.linux import FILE_CAPABILITIES, capabilities, keep_capabilities
from callboard.protocol.tools import Hold

#: Programs and libraries of the system, which anyone may read.
_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/nix/store", "/gnu/store", "/run/current-system", "/etc/alternatives"),
)
#: Of /etc, what says how the system is set up and holds no secrets; certificates of authorities, not their keys.
_ETC: Final = """
    passwd group hosts host.conf nsswitch.conf resolv.conf gai.conf services protocols networks localtime timezone
    ld.so.cache ld.so.conf ld.so.conf.d ld.so.preload os-release lsb-release debian_version mime.types locale.conf
    locale.alias gitconfig default/locale inputrc terminfo profile profile.d bash.bashrc bashrc zsh fonts magic
    ca-certificates.conf ca-certificates ssl/certs ssl/openssl.cnf ssl/cert.pem pki/tls/certs pki/tls/cert.pem
    pki/tls/openssl.cnf pki/ca-trust crypto-policies machine-id shells login.defs python3 java-17-openjdk
    java-21-openjdk OpenCL ImageMagick-6 ImageMagick-7 vulkan glvnd
""".split()  # noqa: SIM905 - to be read as a list
_MACHINE: Final = ("/proc", "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_TERMINALS: Final = ("/dev/ptmx", "/dev/pts", "/dev/tty")
#: Of the roots of installed programs, what a program needs beside itself.
_BESIDE_PROGRAMS: Final = ("lib", "libexec")
#: What may be done with what trees of links lead to.
_LINKED: Final = (May.READ, May.LIST, May.READ_FILE)
#: What programs print at these errors, and git where .git looks empty.
_REFUSED_WORDS: Final = tuple(map(os.strerror, (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENXIO)))
_NO_GIT: Final = "not a git repository"
_REFUSALS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENXIO})


_CALLS_OF_READING: Final = seccomp.CallsAllowed(connections=False, unfiled_programs=False, metadata=False, shared=False)


class Walls(Struct, frozen=True):
    """What a process is to be held to; the runtime sends it along with the tool."""

    confinement: Confinement
    landlock: int
    """Its version."""
    workspace: str = ""
    secret_patterns: tuple[str, ...] = ()
    secret_folders: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Folders of packages that the runtime has loaded from elsewhere than its path (an editable install)."""
    code: tuple[str, ...] = ()
    """Files of the tool and of callboard, and what MCP servers run: they stay as they are wherever they are."""
    shared_memory_bytes: int = 0
    is_required: bool = False
    """Fail where the kernel gives no mounts; else do without: secret files are not covered then, and modes, owners and
    times of files are out of reach for all but `execute`."""


Identity = tuple[int, int]
"""Of a file: its device and its inode."""


class _Held(Struct):
    """What holds this process; none as long as `walls` is None."""

    walls: Walls | None = None
    rules: list[PathRule] = field(default_factory=list)
    """For its children, their places open."""
    in_scratch: int = 0
    """What a child may do in its scratch folder."""
    scratch: str = ""
    readable: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)
    hidden: frozenset[str] = frozenset()
    covers: dict[str, Identity | None] = field(default_factory=dict)
    """What is at the place of each secret file and folder, once it is covered."""
    spared: frozenset[str] = frozenset()
    """Folders in which no secret files are looked for."""
    programs: list[str] = field(default_factory=list)
    """Where programs are that are not of its paths."""
    is_reading: bool = False
    """Is it held to reading?"""


_held: Final = _Held()


def pack_walls(walls: Walls | None) -> bytes:
    """As they are sent, before the packed tool."""
    packed = b"" if walls is None else pickle.dumps(walls, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(packed)) + packed


def unpack_walls(data: bytes) -> tuple[Walls | None, bytes]:
    """The walls, and the packed tool behind them."""
    (length,) = LENGTH.unpack_from(data)
    end = LENGTH.size + length
    walls: Walls | None = pickle.loads(data[LENGTH.size : end]) if length else None
    return walls, data[end:]


def loaded_packages() -> tuple[str, ...]:
    """Folders of the packages that this process has loaded, without those within another."""
    paths = [getattr(module, "__path__", ()) for module in list(sys.modules.values())]
    folders = {_real(str(each)) for path in paths if isinstance(path, Iterable) for each in path}
    found: list[str] = []
    for folder in sorted(folders, key=lambda each: each.split("/")):
        if os.path.isabs(folder) and not is_below_any(folder, found[-1:]):
            found.append(folder)
    return tuple(each for each in found if not PACKAGES.intersection(each.split("/")))


# -- in the template ----------------------------------------------------------------------------------------------


def enter(walls: Walls, scratch: str, found: int, *, has_mounts: bool) -> None:
    """Hold this process, which has not loaded its tool yet. Raises OSError where the kernel refuses.

    `scratch` is a folder for this pool; `found` a file in which secret places are shared with other templates.
    """
    rights, paths = walls.confinement.rights, walls.confinement.paths
    with contextlib.suppress(FileExistsError):  # who clears /tmp of what is old may have taken it away
        os.mkdir(scratch, 0o700)
    has_mounts = has_mounts and _has_made_view(walls, scratch, found)
    if walls.is_required and not has_mounts:
        raise PermissionError("confine is required, and the kernel gives the tool no mounts of its own")
    # Before the scratch folder is the home.
    rules = [
        *_python(walls, found),
        *_of_the_system(executes=rights.executes, has_mounts=has_mounts),
    ]
    _held.scratch = f"{scratch}/{os.getpid()}"
    os.mkdir(_held.scratch, 0o700)
    _live_in(f"{_held.scratch}/template")
    permitted = capabilities()[1] & FILE_CAPABILITIES
    keep_capabilities((0, permitted, permitted))
    for path in paths:
        rules.append((path, _may_in_paths(writes=rights.writes, executes=rights.executes)))
    _held.walls = walls
    _held.readable = [place for place, may in rules if may & May.READ_FILE]
    _held.writable = [place for place, may in rules if may & May.MAKE_FILE]
    _held.programs = [place for place, may in rules if may & May.RUN and place not in paths]
    in_scratch = May.READ | May.WRITE | (May.RUN if rights.executes else May(0))
    _held.in_scratch = int(in_scratch)
    _held.rules = [*_opened({**_coarse(rules, scratch), f"{_held.scratch}/template": May.READ})]
    _restrict(_opened([*rules, (_held.scratch, in_scratch)]))
    find_by_name()
    if rights.executes:
        seccomp.assembled(_CALLS_OF_READING)  # a child that is held finds it made
    metadata = has_mounts or rights.executes
    seccomp.install(seccomp.CallsAllowed(rights.connects, rights.executes, metadata, rights.executes))


def _has_made_view(walls: Walls, scratch: str, found: int) -> bool:
    # A list of patterns takes 30 ms to load, once a minute and pool.
    from callboard.actors.processes.secret_places import find_shared  # noqa: PLC0415
    from callboard.actors.secret_files import SecretRules  # noqa: PLC0415

    confinement = walls.confinement
    rules = SecretRules(walls.secret_patterns, walls.secret_folders)
    of_python = frozenset(prefixes())
    places = find_shared(found, confinement.paths, walls.workspace, rules, of_python)
    writable = confinement.paths if confinement.rights.writes else ()
    view = private_mounts.View(
        scratch,
        writable,
        tuple(dict.fromkeys((*walls.code, *walls.packages, *of_python))),
        tuple(places.files),
        tuple(places.folders),
        walls.shared_memory_bytes if confinement.rights.executes else 0,
    )
    try:
        private_mounts.make(view)
    except OSError as error:
        sys.stderr.write(f"a confined tool gets no mounts of its own: {error}\n")
        return False
    _held.spared = of_python
    _held.hidden = frozenset((*places.files, *places.folders))
    _held.covers = {place: _identity(place) for place in _held.hidden}
    return True


class _SecretsBehindLinks:
    """Says which places that links lead to may hold secrets: in the workspace by its rules, elsewhere by those that
    hold anywhere. Made when the first link is judged."""

    def __init__(self, walls: Walls) -> None:
        self._walls = walls
        self._judges: list[tuple[str, Judge]] = []

    def is_secret(self, place: str, is_folder: bool = False) -> bool:
        if not self._judges:
            from callboard.actors.secret_files import SecretFiles, SecretRules  # noqa: PLC0415 - as above

            rules = SecretRules(self._walls.secret_patterns, self._walls.secret_folders)
            self._judges = [(root, SecretFiles(root, rules)) for root in (self._walls.workspace, "/") if root]
        return next(judge for root, judge in self._judges if is_below(place, root)).is_secret(place, is_folder)


def _identity(path: str) -> Identity | None:
    """None where nothing is."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def has_lost_a_cover() -> bool:
    """Is another file by now where a secret one was covered? The kernel takes a cover away when a file is renamed onto
    the place, as most editors save."""
    return any(_identity(place) not in (None, cover) for place, cover in _held.covers.items())


def _coarse(rules: Iterable[tuple[str, May]], scratch: str) -> dict[str, May]:
    """The same for a process that is held by the rules already, as few as can be: they need only leave out the scratch
    folders of others. 15 in place of 150 spare a child 0.5 ms."""
    found: dict[str, May] = {}
    for path, may in rules:
        place = _beside(path, scratch)
        found[place] = found.get(place, May(0)) | may
    return found


def _beside(path: str, scratch: str) -> str:
    """The outermost folder that the path is in and the scratch folders are not."""
    names = path.split("/")
    folders = ("/".join(names[:depth]) for depth in range(2, len(names)))
    return next((folder for folder in folders if not is_below(scratch, folder)), path)


def _opened(rules: Mapping[str, May] | Iterable[Place]) -> Iterator[PathRule]:
    """One after the other: there may be more of them than files that a process may have open."""
    for path, may in rules.items() if isinstance(rules, Mapping) else rules:
        if (place := open_place(path)) is not None:
            yield PathRule(place, int(may))


def _restrict(rules: Iterable[PathRule]) -> None:
    """Hold this process to them, each of which is closed after it."""
    walls = _held.walls
    assert walls is not None
    restrict(_closed_after(rules), walls.landlock, connections=walls.confinement.rights.connects)


def _closed_after(rules: Iterable[PathRule]) -> Iterator[PathRule]:
    for rule in rules:
        try:
            yield rule
        finally:
            os.close(rule.place)


def _may_in_paths(*, writes: bool, executes: bool) -> May:
    may = May.READ
    if writes:
        may |= May.WRITE | May.CONTROL_DEVICE
    return may | May.RUN if executes else may


def _python(walls: Walls, found: int) -> Iterator[Place]:
    """What Python needs to start programs of its own and to import what it has not imported yet."""
    from callboard.actors.processes.secret_places import found_lately  # noqa: PLC0415 - as above

    installed, judge = (*prefixes(), *_program_folders()), _SecretsBehindLinks(walls)
    for each in installed:
        yield each, May.READ | May.RUN
    yield os.path.realpath(sys.executable), May.READ | May.RUN
    yield from import_places(installed, walls.packages, judge)
    key = (sys.path, installed, walls.packages, walls.workspace, walls.secret_patterns, walls.secret_folders)
    linked = found_lately(found, key, lambda: _by_right(linked_places(installed, walls.packages, judge)))
    for may, places in zip(_LINKED, linked, strict=True):
        yield from ((place, may) for place in places)


def _by_right(places: Iterable[Place]) -> list[list[str]]:
    """In the order of `_LINKED`."""
    given = list(places)
    return [[place for place, may in given if may is right] for right in _LINKED]


def _program_folders() -> Iterator[str]:
    """The folders of PATH, where they hold programs and nothing else."""
    home = os.path.realpath(os.path.expanduser("~"))
    for folder in os.get_exec_path():
        place = os.path.realpath(folder)
        if os.path.basename(place) != "bin" or home.startswith(f"{place}/"):
            continue
        yield place
        for beside in _BESIDE_PROGRAMS:
            yield os.path.join(os.path.dirname(place), beside)


def _of_the_system(*, executes: bool, has_mounts: bool) -> Iterator[tuple[str, May]]:
    for each in _SYSTEM:
        yield os.path.realpath(each), May.READ | May.RUN
    for name in _ETC:
        yield os.path.realpath(f"/etc/{name}"), May.READ
    for each in _MACHINE:
        yield each, May.READ
    for each in _DEVICES:
        yield each, May.USE_DEVICE
    if executes:
        for each in _TERMINALS:
            yield each, May.USE_DEVICE | May.LIST
        yield private_mounts.SHARED_MEMORY, May.READ | May.WRITE if has_mounts else May(0)


def _live_in(scratch: str) -> None:
    os.mkdir(scratch, 0o700)
    os.environ["HOME"] = os.environ["TMPDIR"] = scratch
    tempfile.tempdir = None


# -- in each child ------------------------------------------------------------------------------------------------


def enter_child() -> None:
    """Hold this child of a template, which is held already, to a scratch folder of its own. Nothing where none is."""
    walls = _held.walls
    if walls is None:
        return
    own = f"{_held.scratch}/{os.getpid()}"
    _live_in(own)
    scratch = open_place(own)
    assert scratch is not None
    _restrict([*_held.rules, PathRule(scratch, _held.in_scratch)])
    _held.rules.clear()
    _held.writable.append(own)
    _held.readable.append(own)


def hold(wanted: Hold) -> None:
    """Hold this child to reading, for what it runs from here on: it writes nothing but in its scratch folder, connects
    to nothing, and of programs runs those of the system. Raises PermissionError where it is not confined, OSError where
    the kernel refuses."""
    if wanted is Hold.NONE:
        return
    walls = _held.walls
    if walls is None:
        raise PermissionError("this call may only run held to reading, and its process is not confined")
    own = f"{_held.scratch}/{os.getpid()}"
    late = _late_secrets(walls) if wanted is Hold.READING_BELOW else []
    rules = {"/": May.READ} if not late else {"/": May.LIST} | dict.fromkeys(_without(late), May.READ)
    rules |= dict.fromkeys(_held.programs, May.READ | May.RUN)
    rules |= {**dict.fromkeys(_DEVICES, May.USE_DEVICE), own: May(_held.in_scratch)}
    found = _opened(rules)
    try:
        restrict(found, walls.landlock, connections=False)
    finally:
        for rule in found:
            os.close(rule.place)
    seccomp.install(_CALLS_OF_READING)
    _held.is_reading = True
    _held.writable = [own]
    os.environ.update(held_environment.SET)
    for name in held_environment.DROPPED:
        os.environ.pop(name, None)


def _late_secrets(walls: Walls) -> list[str]:
    """Secret files and folders that have come since this process's were covered."""
    from callboard.actors.processes.secret_places import find  # noqa: PLC0415 - as above
    from callboard.actors.secret_files import SecretRules  # noqa: PLC0415

    rules = SecretRules(walls.secret_patterns, walls.secret_folders)
    found = find(walls.confinement.paths, walls.workspace, rules, _held.spared)
    return [place for place in (*found.files, *found.folders) if place not in _held.hidden]


def _without(places: Sequence[str]) -> Iterator[str]:
    """What may be read but these: of each folder above one, what else is in it."""
    hidden = frozenset(places)
    above = {os.path.dirname(place) for place in places}
    for folder in list(above):
        while (folder := os.path.dirname(folder)) != "/":
            above.add(folder)
    todo = list(_held.readable)
    while todo:
        place = todo.pop()
        if place not in above:
            yield from () if place in hidden else (place,)
        elif os.path.isdir(place):
            with contextlib.suppress(OSError):  # it has gone, or is not for this process
                todo += [os.path.join(place, name) for name in os.listdir(place)]


def is_held() -> bool:
    """Is this process confined?"""
    return _held.walls is not None


def forget_child(pid: int) -> None:
    """In the template: remove the scratch folder of a child that has ended."""
    if _held.walls is not None:
        shutil.rmtree(f"{_held.scratch}/{pid}", ignore_errors=True)


# -- what was refused ---------------------------------------------------------------------------------------------


def explain(error: BaseException) -> str:
    """What confinement has to do with this exception, for the model and the author; "" if it has nothing to do."""
    walls = _held.walls
    if walls is None:
        return ""
    for each in _chain(error):
        if _held.is_reading and isinstance(each, OSError) and each.errno in _REFUSALS:
            return _READING
        if isinstance(each, OSError) and (why := _refused(each, walls.confinement)):
            return f"confined: this tool declares risk={walls.confinement.risk.value!r} and {why}"
    return ""


def hint(text: str) -> str:
    """The same for what a program has printed, such as "Permission denied"."""
    walls = _held.walls
    no_git = _NO_GIT in text and any(os.path.basename(each) == ".git" for each in _held.hidden)
    if walls is None or not (no_git or any(words in text for words in _REFUSED_WORDS)):
        return ""
    parts = [f"confined: this tool {walls.confinement}; nothing else is written but its TMPDIR"]
    if _held.is_reading:
        parts = [_READING]
    if _held.hidden:
        parts.append(f"{len(_held.hidden)} secret files and folders cannot be opened")
    if no_git:
        parts.append("the owner can show .git to it by Settings(secret_files=('!.git/',))")
    return "; ".join(parts)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: BaseException | None = error
    while todo is not None and id(todo) not in seen:
        seen.add(id(todo))
        yield todo
        todo = todo.__cause__ or todo.__context__


def _refused(error: OSError, confinement: Confinement) -> str:
    rights = confinement.rights
    if isinstance(error, socket.gaierror):
        return "" if rights.connects else _NO_SOCKETS
    if error.errno not in _REFUSALS:
        return ""
    named = [each for each in (error.filename2, error.filename) if isinstance(each, str | bytes)]
    if not named:
        if error.errno == errno.EACCES:
            return _OTHER_SOCKETS if rights.connects else _NO_SOCKETS
        return "may not do that: the system call is refused to confined tools" if error.errno == errno.EPERM else ""
    for each in named:
        place = os.path.realpath(os.fsdecode(each))
        if is_below_any(place, _held.hidden):
            return f"may not open {place}, which may hold secrets; the owner can allow it by Settings(secret_files=...)"
        if not is_below_any(place, _held.readable):
            return f"may not touch {place}; its author can allow that by paths=[...]"
        if error.errno != errno.ENXIO and not is_below_any(place, _held.writable):
            todo = "paths=[...]" if rights.writes else "risk='write'"
            return f"may not write {place}; its author can allow that by {todo}"
    return ""


_READING: Final = (
    "confined: this line was found only to read, so it ran unasked and the kernel lets it write nothing but in TMPDIR, "
    "open no sockets and run no programs of the workspace; a line that says what it writes or runs is asked about"
)
_NO_SOCKETS: Final = "may open no sockets; its author can allow that by risk='network'"
_OTHER_SOCKETS: Final = "may open sockets of the internet (TCP and UDP) only"


@lru_cache(maxsize=4_096)
def _real(folder: str) -> str:
    return os.path.realpath(folder)
