"""Which process has a journal file: a lock beside it that ends with its holder, with the holder's pid in it.

The lock file can be removed while it is held, and a second process would make another. So the journal itself and its
log are locked too, where the system has locks that belong to an open file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
from functools import cache
from pathlib import Path
from typing import Final
from weakref import WeakSet

import msgspec
from msgspec import Struct

from callboard.actors.journal.journal_store import JournalFailed
from callboard.protocol.errors import UsageError

FILE_MODE: Final = 0o600
_MAX_PID_CHARS: Final = 20
#: Of a lock file, with what was written last.
_MAX_BYTES: Final = 64 * 1024
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
#: The journal and its log, by the ending of their names.
HELD: Final = ("", "-wal")
#: SQLite locks 512 bytes from here on ("sqlite3.c", PENDING_BYTE): those behind the second are held by all who read.
_PENDING_BYTE: Final = 0x40000000
_SHARED: Final = (_PENDING_BYTE + 2, 510)
#: Which SQLite never locks: none of its connections waits for us.
_OURS: Final = (1 << 62, 1)


#: The disk's fault and not that of who has chosen the path: it may work later.
_OF_THE_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})
#: What to do, where it is not another folder that is needed.
_CURES: Final = {
    errno.EISDIR: "move what is there away, or choose another path",
    errno.ELOOP: "move the link away, or choose another path",
}


def cannot_use(path: Path, error: OSError) -> UsageError | JournalFailed:
    """Why the journal `path` cannot be used, as the error to raise; `error` may be about a file beside it."""
    file = "" if error.filename in (None, path, str(path)) else f"{error.filename}: "
    told = f"the journal {path} cannot be used: {file}{error.strerror}"
    if error.errno in _OF_THE_DISK:
        return JournalFailed(f"{told}: make room, or move the journal")
    return UsageError(f"{told}: {_CURES.get(error.errno or 0, 'choose a path in a folder that can be written')}")


def lock_path(path: Path) -> Path:
    """The file that is locked for the journal `path`."""
    return path.with_name(f"{path.name}.lock")


class LastWritten(Struct, frozen=True, array_like=True):
    """What a process had written last, in its lock file for the next one: is it in the journal?"""

    request_id: str = ""
    """As it is written; "" where the process has closed the journal, or had written nothing."""
    number: int = 0
    """Of its event."""
    durability: str = ""
    boot: str = ""
    """Of the machine; "" where it cannot be known."""
    file: tuple[int, int] = (0, 0)
    """The journal without its log, then: its bytes, and how often it was changed. A copy has the same."""


@cache
def this_boot() -> str:
    """Another one each time that the machine is started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


_encoded: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(LastWritten)


def last_written(path: Path) -> LastWritten | None:
    """By the process that has, or had last, the journal `path`; None where none had, or that cannot be read."""
    try:
        with lock_path(path).open("rb") as file:
            return _left_in(file.read(_MAX_BYTES))
    except OSError:
        return None


def _left_in(data: bytes) -> LastWritten | None:
    """What a lock file says. Also of a process that has written its id alone it is known that it had the journal."""
    return (_noted(data) or LastWritten()) if data.strip(b"\0") else None


def _noted(data: bytes) -> LastWritten | None:
    _, _, rest = data.partition(b"\n")
    try:
        return _decoder.decode(rest.partition(b"\n")[0])
    except msgspec.MsgspecError:  # a process without a write, an older callboard, half a page after a power cut
        return None


class FileLock:
    """Held from `taken` on until `release`, or until the process ends.

    flock and not fcntl's locks, which end when any descriptor of the file is closed (fcntl(2)). A forked child has the
    same lock, and would hold it longer than we live: it closes it at once. Until it has, closing it here would not
    unlock it; LOCK_UN does, for all who have it (flock(2)).

    The journal and its log have "open file description locks" (fcntl(2)), which are likewise, and which SQLite's own
    do not see. Their descriptors stay open for as long as the connection: closing one ends all locks that SQLite has.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.files: dict[str, int] = {}
        """Descriptors of the journal and its log, by ending."""
        self.left: Final = _left_in(os.pread(descriptor, _MAX_BYTES, 0))
        """By the process before; None where none had this journal."""
        self._descriptor = descriptor
        self._process = str(os.getpid()).encode()
        _HELD.add(self)

    @classmethod
    def taken(cls, path: Path) -> FileLock | None:
        """The lock of the journal `path`, or None where another holds it. Raises UsageError where it cannot be made."""
        beside = lock_path(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(beside, flags, FILE_MODE)
        except OSError as error:
            raise cannot_use(path, error) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"the journal cannot be locked: {beside} is not a regular file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file since we opened it: then it locks nothing.
            if not _is_same(descriptor, beside):
                os.close(descriptor)
                return None
            if not _is_lock(os.pread(descriptor, _MAX_BYTES, 0)):
                raise UsageError(
                    f"the journal cannot be locked: {beside} is a file of another program: choose another path"
                )
            lock = cls(path, descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise cannot_use(path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        try:
            if not lock.hold_files():  # who has them had another lock file, which was removed
                lock.release()
                return None
            if lock.left is not None and lock.left.request_id:
                lock.note(lock.left)  # until it was looked for in the journal
            else:
                lock.forget()
        except OSError as error:
            lock.release()
            raise cannot_use(path, error) from error
        return lock

    @staticmethod
    def is_of_this_process(path: Path) -> bool:
        """Has this process the lock of the journal `path`?"""
        return any(each.path == path for each in list(_HELD))

    def hold_files(self) -> bool:
        """Lock the journal and its log as they are now, those that are there; False where another process has them."""
        for ending in HELD:
            path, held = self.path.with_name(self.path.name + ending), self.files.get(ending, -1)
            if held >= 0:
                if _is_same(held, path):
                    continue
                os.close(self.files.pop(ending))
            if _is_held_here(path):
                return False
            with contextlib.suppress(FileNotFoundError, PermissionError, IsADirectoryError):
                descriptor = self.files[ending] = os.open(path, _FLAGS)
                if _is_locked(descriptor, fcntl.F_WRLCK, _OURS) is False:
                    return False
        return True

    def note(self, written: LastWritten) -> None:
        """For the next process, if this one is killed: what it wrote last. Not synced: a power cut may take it away,
        which is no worse than none. So is that it cannot be written."""
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, b"%s\n%s\n" % (self._process, _encoded(written)), 0)

    def forget(self) -> None:
        """Nothing is known of what was written last. Raises OSError."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, self._process, 0)

    def keeps_closing_harmless(self) -> bool:
        """SQLite's last connection to a file writes the log into it and removes, by name, what it takes for the log.
        From now on it takes itself for not the last one. False where there are no such locks."""
        return "" in self.files and _is_locked(self.files[""], fcntl.F_RDLCK, _SHARED) is True

    def remove(self) -> None:
        """Together with its file: for a journal that is gone."""
        with contextlib.suppress(FileNotFoundError):
            lock_path(self.path).unlink()
        self.release()

    def give_up(self) -> None:
        """Of a journal that was refused: nothing of ours stays where nothing was."""
        if self.left is None:
            self.remove()
        self.release()

    def release(self) -> None:
        """Also where a child that is being forked still has the descriptor."""
        for descriptor in self.files.values():
            _is_locked(descriptor, fcntl.F_UNLCK, (0, 0))
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.let_go()

    def let_go(self) -> None:
        """In a forked child: the lock is the parent's, and stays."""
        for descriptor in (*self.files.values(), self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self.files, self._descriptor = {}, -1
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
        data = lock_path(path).read_bytes()[:_MAX_BYTES]
    except OSError:
        return ""
    return data.partition(b"\n")[0].decode("ascii", "replace")


_HAS_LOCKS: Final = hasattr(fcntl, "F_OFD_SETLK")


def _is_locked(descriptor: int, kind: int, span: tuple[int, int]) -> bool | None:
    """False where another one has it. None where the system, or the file system, has no such locks, which is no reason
    to do without a journal."""
    if sys.platform != "linux" or not _HAS_LOCKS:
        return None
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi", kind, os.SEEK_SET, *span, 0))
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return True


def _is_held_here(path: Path) -> bool:
    """Has this process it open? To open and close it once more would end the locks of its connection."""
    try:
        return any(os.path.samestat(os.fstat(file), path.stat()) for each in _HELD for file in each.files.values())
    except FileNotFoundError:
        return False


def holder(path: Path) -> str:
    """Who has the lock of this journal, in words."""
    pid = _written_pid(path)
    if not pid.isdecimal():
        return "another process"
    return "this very process" if int(pid) == os.getpid() else f"process {pid}"


def _is_lock(data: bytes) -> bool:
    """Is it what we write into such a file? "uv.lock" is not, beside a journal with the name "uv". A power cut may have
    left zeros of it."""
    process = data.partition(b"\n")[0].strip(b"\0")
    if not process:
        return not data.strip(b"\0") or _noted(data) is not None
    return len(process) <= _MAX_PID_CHARS and process.isdigit()


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    own = os.fstat(descriptor)
    return (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)
