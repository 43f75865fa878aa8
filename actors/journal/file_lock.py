"""Which process has a journal file: a lock beside it that ends with its holder, with the holder's pid in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final
from weakref import WeakSet

from callboard.actors.journal.journal_store import JournalFailed
from callboard.protocol.errors import UsageError

FILE_MODE: Final = 0o600
_MAX_PID_CHARS: Final = 20


#: The disk's fault and not that of who has chosen the path: it may work later.
_OF_THE_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})
#: What to do, where it is not another folder that is needed.
_CURES: Final = {
    errno.EISDIR: "move what is there away, or choose another path",
    errno.ELOOP: "move the link away, or choose another path",
}


def cannot_use(path: Path, error: OSError) -> UsageError | JournalFailed:
    """Why a file of the journal cannot be used, as the error to raise."""
    if error.errno in _OF_THE_DISK:
        return JournalFailed(f"the journal cannot use {path}: {error.strerror}: make room, or move the journal")
    cure = _CURES.get(error.errno or 0, "choose a path in a folder that can be written")
    return UsageError(f"the journal cannot use {path}: {error.strerror}: {cure}")


def lock_path(path: Path) -> Path:
    """The file that is locked for the journal `path`."""
    return path.with_name(f"{path.name}.lock")


class FileLock:
    """Held from `taken` on until `release`, or until the process ends.

    flock and not fcntl's locks, which end when any descriptor of the file is closed (fcntl(2)). A forked child has the
    same lock, and would hold it longer than we live: it closes it at once. Until it has, closing it here would not
    unlock it; LOCK_UN does, for all who have it (flock(2)).
    """

    def __init__(self, path: Path, descriptor: int, *, was_used: bool = False) -> None:
        self.path = path
        self.was_used: Final = was_used
        """Had a process this journal before?"""
        self._descriptor = descriptor
        _HELD.add(self)

    @classmethod
    def taken(cls, path: Path) -> FileLock | None:
        """The lock of the journal `path`, or None where another holds it. Raises UsageError where it cannot be made."""
        beside = lock_path(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(beside, flags, FILE_MODE)
        except OSError as error:
            raise cannot_use(beside, error) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"the journal cannot be locked: {beside} is not a regular file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file since we opened it: then it locks nothing.
            if not _is_same(descriptor, beside):
                os.close(descriptor)
                return None
            before = os.pread(descriptor, _MAX_PID_CHARS + 1, 0)
            if not _is_lock(before):
                raise UsageError(
                    f"the journal cannot be locked: {beside} is a file of another program: choose another path"
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise cannot_use(beside, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, was_used=bool(before))

    @staticmethod
    def is_of_this_process(path: Path) -> bool:
        """Has this process the lock of the journal `path`?"""
        return any(each.path == path for each in list(_HELD))

    def remove(self) -> None:
        """Together with its file: for a journal that is gone."""
        with contextlib.suppress(FileNotFoundError):
            lock_path(self.path).unlink()
        self.release()

    def release(self) -> None:
        """Also where a child that is being forked still has the descriptor."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.let_go()

    def let_go(self) -> None:
        """In a forked child: the lock is the parent's, and stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        _HELD.discard(self)


_HELD: Final[WeakSet[FileLock]] = WeakSet()


def _in_forked_child() -> None:
    for each in list(_HELD):
        each.let_go()


os.register_at_fork(after_in_child=_in_forked_child)


def has_living_holder(path: Path) -> bool:
    """Does the process run that had this journal last? Not asked is whether it has it still, or is another of its id:
    to try the lock would be in the way of one that starts."""
    pid = _written_pid(path)
    return pid.isdecimal() and Path(f"/proc/{pid}").exists()


def _written_pid(path: Path) -> str:
    try:
        return lock_path(path).read_text(encoding="ascii")[:_MAX_PID_CHARS]
    except (OSError, UnicodeError):
        return ""


def holder(path: Path) -> str:
    """Who has the lock of this journal, in words."""
    pid = _written_pid(path)
    if not pid.isdecimal():
        return "another process"
    return "this very process" if int(pid) == os.getpid() else f"process {pid}"


def _is_lock(data: bytes) -> bool:
    """Is it what we write into such a file? "uv.lock" is not, beside a journal with the name "uv"."""
    return len(data) <= _MAX_PID_CHARS and (data.isdigit() or not data)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
