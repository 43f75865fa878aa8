"""Folders that are opened once: what is done in them is done where it was checked, whatever is put into their paths.

A path is looked at and then used, and in between another program (a confined job, say) may put a link in place of one
of its folders. So a path is first resolved and judged, as ever: links that a workspace has are followed there. Then the
folder that it led to is opened through no link at all, and files are read, made, renamed and removed by names in this
opened folder. A folder that has become a link meanwhile is an OSError (ELOOP), and nothing is done.

Linux opens the whole path in one step (openat2 with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS); where
a kernel or a filter has no such call, and elsewhere, each folder of the path is opened in the one before it. A mount
below the root is a folder like another one. Who moves the opened folder itself elsewhere takes what is in it along.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType
from typing import Final, Self, TypeVar

from callboard.actors.processes.linux import IS_LINUX, libc

Done = TypeVar("Done")
Attributes = tuple[int, int, int]
"""Mode, owner and group of a file."""

#: To go on from: it needs no right to list the folder where the system tells the two apart.
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
_ALWAYS: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NONBLOCK
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
#: Folders that are held open at once; one that is let go of is known again. A proposal has up to 200 files.
MAX_HELD: Final = 64

# linux/openat2.h, asm-generic/unistd.h
_OPENAT2: Final = 437
_PLAIN: Final = 0x02 | 0x04
"""RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS."""
_BENEATH: Final = 0x08
_HERE: Final = -100
"""AT_FDCWD: an absolute path has no folder that it is in."""
#: The kernel asks for another try where something was renamed or mounted meanwhile; after these the slow way is taken.
_TRIES: Final = 8
_ASK_AGAIN: Final = (errno.EAGAIN, errno.EINTR)
#: EPERM: a filter of system calls that does not know it.
_NOT_HERE: Final = (errno.ENOSYS, errno.EPERM)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_HOW_BYTES: Final = ctypes.sizeof(_OpenHow)


@lru_cache(maxsize=32)
def _how(flags: int, mode: int, resolve: int) -> object:
    """Of few kinds. Without O_NOFOLLOW, which would make a link where a folder is wanted an ENOTDIR."""
    return ctypes.byref(_OpenHow((flags | os.O_CLOEXEC) & ~os.O_NOFOLLOW, mode, resolve))


def open_plain(path: str | os.PathLike[str], flags: int = _READ, mode: int = 0) -> int:
    """A descriptor of the file at this absolute path, no part of which is a link. Raises OSError; see `is_link`."""
    given = os.fspath(path)
    opened = _by_openat2(_HERE, given, flags, mode) if given.startswith("/") else None
    if opened is not None:
        return opened
    names = _names("/", given)
    top = os.open("/", _FOLDER | _ALWAYS)
    try:
        return _open_one_by_one(top, names, flags, mode)
    finally:
        os.close(top)


def _open_beneath(folder: int, names: list[str], flags: int, mode: int = 0) -> int:
    opened = _by_openat2(folder, "/".join(names) or ".", flags, mode)
    return _open_one_by_one(folder, names, flags, mode) if opened is None else opened


def _by_openat2(folder: int, path: str, flags: int, mode: int) -> int | None:
    """None where there is no such call. Raises OSError."""
    if not IS_LINUX:
        return None
    if "\0" in path:
        raise ValueError("embedded null byte")  # as of os.open; the C library would take what is before it
    how = _how(flags, mode if flags & os.O_CREAT else 0, (0 if folder == _HERE else _BENEATH) | _PLAIN)
    name, call = os.fsencode(path), libc().syscall
    for _ in range(_TRIES):
        opened = call(_OPENAT2, folder, name, how, _HOW_BYTES)
        if opened >= 0:
            return int(opened)
        if (error := ctypes.get_errno()) in _NOT_HERE:
            return None
        if error not in _ASK_AGAIN:
            raise OSError(error, os.strerror(error), path)
    return None


def _open_one_by_one(folder: int, names: list[str], flags: int, mode: int) -> int:
    *above, last = names or ["."]
    at = folder
    try:
        for name in above:
            below = _open_in(at, name, _FOLDER | _ALWAYS, 0)
            if at != folder:
                os.close(at)
            at = below
        return _open_in(at, last, flags | _ALWAYS, mode)
    finally:
        if at != folder:
            os.close(at)


def _open_in(folder: int, name: str, flags: int, mode: int) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=folder)
    except NotADirectoryError:  # what Linux says of a link where a folder is wanted
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise


def _names(root: str, path: str) -> list[str]:
    """Of the folders from the root to the path, and its own. Raises OSError for a path that is not below it."""
    above = f"{root.rstrip('/')}/"
    whole = f"{path}/" if path.startswith("/") else f"{above}{path}"
    names = [name for name in whole.removeprefix(above).split("/") if name not in ("", ".")]
    if not whole.startswith(above) or ".." in names:
        raise OSError(errno.EXDEV, "it leads out of the folder", path)
    return names


def is_link(error: OSError) -> bool:
    """Was something not opened since it, or a folder above it, is a link?"""
    return error.errno == errno.ELOOP


class OpenedFolders:
    """The folders below one root, for as long as `with` lasts: each is opened once, when it is first used.

    Paths are absolute, at or below the root, or relative to it. Every method raises OSError, and for a link in place of
    a folder one that `is_link`; the last name of a path is never followed either.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """`root` is absolute, without links. It is opened with the first folder."""
        self._root = os.fspath(root)
        self._held: dict[str, int] = {}
        """Descriptors by path, the one that was used last at the end."""
        self._known: dict[str, tuple[int, int]] = {}
        """Device and inode of each that was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()
        self._known.clear()

    def folder(self, path: str) -> int:
        """The descriptor of this folder, which is not the caller's to close."""
        names = _names(self._root, path)
        key = "/".join(names)
        if key not in self._held:
            if names:  # in the folder above it where that is open, so that both are where they were first
                above = self._held.get("/".join(names[:-1]))
                opened = _open_beneath(*(self.folder(""), names) if above is None else (above, names[-1:]), _FOLDER)
            else:
                opened = open_plain(self._root, _FOLDER)
            found = os.fstat(opened)
            if self._known.setdefault(key, (found.st_dev, found.st_ino)) != (found.st_dev, found.st_ino):
                os.close(opened)
                raise OSError(errno.ESTALE, "another folder was put in its place", path)
            while len(self._held) >= MAX_HELD:
                os.close(self._held.pop(next(iter(self._held))))
            self._held[key] = opened
        descriptor = self._held[key] = self._held.pop(key)
        return descriptor

    def _at(self, path: str) -> tuple[int, str]:
        """The folder of a path, and its name in there."""
        *above, name = _names(self._root, path) or ["."]
        return self.folder("/".join(above)), name

    def _do(self, path: str, act: Callable[[int, str], Done]) -> Done:
        """Something to the name in its folder."""
        try:
            return act(*self._at(path))
        except OSError as error:
            error.filename = path
            raise

    # -- looking

    def status(self, path: str) -> os.stat_result | None:
        """Of what is there, a link itself too; None where there is nothing."""
        try:
            return self._do(path, lambda folder, name: os.stat(name, dir_fd=folder, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_folder(self, path: str) -> bool:
        """False where there is nothing, or a file."""
        try:
            self.folder(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def may(self, path: str, mode: int) -> bool:
        """May this process, as who it acts as, use what is there so (os.W_OK ...)? False where there is nothing."""
        as_acting = os.access in os.supports_effective_ids
        return self._do(path, lambda folder, name: os.access(name, mode, dir_fd=folder, effective_ids=as_acting))

    def open(self, path: str, flags: int = _READ, mode: int = 0) -> int:
        """A descriptor of the file, not waiting for the other end of a pipe."""
        return self._do(path, lambda folder, name: os.open(name, flags | _ALWAYS, mode, dir_fd=folder))

    def open_or_make(self, path: str, mode: int) -> int:
        """A descriptor to read and write it, of a new empty file where there is none; see `replace` for its owner."""
        try:
            handle = self.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            return self.open(path, os.O_RDWR)
        if os.geteuid() == 0:
            give(handle, self.like_new(path, mode))
        return handle

    def open_followed(self, path: str, flags: int = _READ) -> int:
        """As `open`, but where the file itself is a link, what it leads to is opened. Its folders are no links."""
        found = self.status(path)
        if found is not None and stat.S_ISLNK(found.st_mode):
            return open_plain(os.path.realpath(path), flags)
        return self.open(path, flags)

    def read(self, path: str, most: int) -> bytes | None:
        """The content; None for what is no regular file, or has more bytes than `most`."""
        handle = self.open(path)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size > most:
                return None
            with open(handle, "rb", closefd=False) as file:
                content = file.read(most + 1)
            return content if len(content) <= most else None
        finally:
            os.close(handle)

    # -- changing

    def make(self, path: str, content: bytes, like: Attributes | None = None, mode: int = 0o666) -> None:
        """A new file, on the disk when this returns: of this mode (less the umask), or of mode and owner of another
        one, as far as this process may give it away. Raises FileExistsError, and leaves nothing behind on any error."""
        handle = self.open(path, _NEW, mode)
        try:
            with open(handle, "wb") as file:
                if like is not None:
                    give(handle, like)
                file.write(content)
                file.flush()
                os.fsync(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(path)
            raise

    def replace(self, path: str, content: bytes, mode: int) -> None:
        """All or nothing, also after a crash: what is there is the old content or the new one, under the old mode and
        owner. A new file gets `mode`, and where root makes it, the owner of its folder: who reads it there."""
        above, _, name = path.rpartition("/")
        beside = f"{above}/.{name}.{secrets.token_hex(4)}" if above else f".{name}.{secrets.token_hex(4)}"
        found = self.status(path)
        by_root = self.like_new(path, mode) if os.geteuid() == 0 else None
        self.make(beside, content, by_root if found is None else attributes(found), mode)
        try:
            self.rename(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(beside)
            raise
        self.sync(above)

    def like_new(self, path: str, mode: int) -> Attributes:
        """For a new file of root's in a folder of another user, who is to read it."""
        folder = os.fstat(self._at(path)[0])
        return mode, folder.st_uid, folder.st_gid

    def rename(self, path: str, to: str) -> None:
        """In place of what is there."""
        folder, name = self._at(path)
        self._do(to, lambda target, new: os.rename(name, new, src_dir_fd=folder, dst_dir_fd=target))

    def remove(self, path: str) -> None:
        """A file, or a link itself."""
        self._do(path, lambda folder, name: os.unlink(name, dir_fd=folder))

    def make_folder(self, path: str) -> None:
        """Not those above it."""
        self._do(path, lambda folder, name: os.mkdir(name, dir_fd=folder))

    def remove_folder(self, path: str) -> None:
        """An empty one."""
        self._do(path, lambda folder, name: os.rmdir(name, dir_fd=folder))
        key = "/".join(_names(self._root, path))
        self._known.pop(key, None)
        if key in self._held:
            os.close(self._held.pop(key))

    def sync(self, path: str) -> None:
        """The names in this folder are on the disk when this returns."""
        handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | _ALWAYS, dir_fd=self.folder(path))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def attributes(found: os.stat_result) -> Attributes:
    """For a file that takes the place of this one."""
    return stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid


def give(handle: int, like: Attributes) -> None:
    """Mode and owner of another file, as far as this process may: only root gives files away, others may set a group
    that they are in. A file of another owner than that one is not run as its owner."""
    mode, owner, group = like
    for to in ((owner, group), (-1, group)):
        now = os.fstat(handle)
        if (now.st_uid, now.st_gid) != (owner, group):
            with contextlib.suppress(OSError):
                os.fchown(handle, *to)
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != (owner, group):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(handle, mode)
