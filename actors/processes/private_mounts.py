"""A view of the files for one tool: read-only but where it may write, secret files covered, a scratch folder.

Made by mounts that no other process sees, in a process that has not loaded the tool yet. Landlock, which comes after
it, forbids all further mounts.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from callboard.actors.processes.linux import (
    bind_mount,
    enter_mount_namespace,
    mount_memory,
    set_read_only,
)

#: Of the scratch folders of all calls of one tool that run at the same time, in memory.
SCRATCH_BYTES: Final = 256 * 1024**2
SCRATCH_FILES: Final = 65_536
#: In it, what is mounted over secret files and folders: a socket, which cannot be opened, and an empty folder.
_COVERS: Final = ".covers"
#: For semaphores and shared memory of the C library, where a tool may have them.
SHARED_MEMORY: Final = "/dev/shm"


class View(Struct, frozen=True):
    """What a tool is to see."""

    scratch: str
    """An empty folder, over which one in memory is mounted."""
    writable: tuple[str, ...]
    """Files and folders."""
    fixed: tuple[str, ...]
    """Within these, what stays read-only: code that the runtime itself runs."""
    secret_files: tuple[str, ...]
    secret_folders: tuple[str, ...]
    shared_memory_bytes: int
    """Of a /dev/shm of its own; 0: the one that is there, read-only."""


def make(view: View) -> None:
    """Give this process the view. Raises OSError where the kernel refuses."""
    folder = os.getcwd()
    enter_mount_namespace()
    mount_memory(view.scratch, SCRATCH_BYTES, SCRATCH_FILES)
    if view.shared_memory_bytes:
        mount_memory(SHARED_MEMORY, view.shared_memory_bytes, SCRATCH_FILES)
    cover_file, cover_folder = _make_covers(view.scratch)
    writable = [place for place in view.writable if os.path.lexists(place)]
    for place in writable:
        bind_mount(place, place)
    set_read_only("/", below=True)
    for place in (*writable, view.scratch, *([SHARED_MEMORY] if view.shared_memory_bytes else ())):
        # What was read-only before this process came must stay so, and then the kernel refuses.
        with contextlib.suppress(PermissionError):
            set_read_only(place, below=True, on=False)
    bind_mount(cover_file, cover_file)
    bind_mount(cover_folder, cover_folder)
    for place in (cover_file, cover_folder):
        set_read_only(place)
    for place in view.fixed:
        if os.path.exists(place):
            _fix(place, writable)
    for place in (*view.secret_files, *view.secret_folders):
        _cover(place, cover_file, cover_folder)
    os.chdir(folder)  # else it goes on in the view of before, without covers


def _cover(place: str, cover_file: str, cover_folder: str) -> None:
    """By what is there now: it was found up to a minute ago, and a file that has gone needs no cover."""
    try:
        mode = os.lstat(place).st_mode
        if not stat.S_ISLNK(mode):  # what a link leads to is judged by its own name
            bind_mount(cover_folder if stat.S_ISDIR(mode) else cover_file, place)
    except (FileNotFoundError, NotADirectoryError):
        return


def _make_covers(scratch: str) -> tuple[str, str]:
    covers = f"{scratch}/{_COVERS}"
    os.mkdir(covers, 0o755)
    os.mknod(f"{covers}/file", stat.S_IFSOCK)
    os.mkdir(f"{covers}/folder", 0o555)  # an empty one: `grep -r` and `find` go on
    return f"{covers}/file", f"{covers}/folder"


def _fix(place: str, writable: Iterable[str]) -> None:
    """Keep it from being written, and the folders above it from being moved: what is mounted on cannot be moved."""
    for root in writable:
        if not place.startswith(f"{root.rstrip('/')}/"):
            continue
        names = os.path.relpath(place, root).split("/")
        for depth in range(1, len(names) + 1):
            outer = os.path.join(root, *names[:depth])
            bind_mount(outer, outer)
        set_read_only(place, below=True)
