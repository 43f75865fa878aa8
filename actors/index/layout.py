"""The folder of an index: who may write it, which version it is, and that it is ours.

index.json      format version, an id that is new with each rebuild, and what was found damaged; if it is missing beside
                other files, the folder is not an index
truth.sqlite    files, symbols, chunks, edges
lexical/        tantivy, rebuilt from the sources where it does not match truth.sqlite
vectors.sqlite  embeddings by content hash; only a cache
writer.lock     held by the one process that writes
vectors.lock    held by the one process that makes embeddings ahead of questions
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from callboard.actors.index.disk import write_error
from callboard.protocol.errors import UsageError

#: Raised by one whenever a stored form or the way of cutting and naming changes; an older index is rebuilt.
FORMAT_VERSION = 7
NO_VERSION = -1
MARKER = "index.json"
#: How long a process that must build the index again waits for one that is writing it.
REBUILD_WAIT_SECONDS = 10.0
VECTOR_NAMES = frozenset({"vectors.sqlite", "vectors.sqlite-wal", "vectors.sqlite-shm", "vectors.lock"})
OUR_NAMES = VECTOR_NAMES | {MARKER, "truth.sqlite", "truth.sqlite-wal", "truth.sqlite-shm", "lexical", "writer.lock"}
#: In a workspace, where the index is by default.
OUR_FOLDER = ".callboard"
#: An index says what is in files that others may not be allowed to read.
FOLDER_MODE, FILE_MODE = 0o700, 0o600
#: How often a waiting writer looks at the lock.
LOCK_POLL_SECONDS = 0.05
#: How often it says how far the other one is.
WAITING_SECONDS = 0.5


class IndexBusyError(UsageError):
    """Another process is writing this index. It can still be searched."""


class IndexReplacedError(UsageError):
    """The index was built again by another process since it was opened; open it again."""


class Layout:
    """The folder of one index, and where each part of it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.truth = folder / "truth.sqlite"
        self.lexical = folder / "lexical"
        self.vectors = folder / "vectors.sqlite"
        self.lock = folder / "writer.lock"
        self.vectors_lock = folder / "vectors.lock"

    def prepare(self) -> str:
        """Make or check the folder. Returns why an index that was there has to be rebuilt; usually nothing.

        Raises:
            UsageError: the folder cannot be made, or holds something that is not an index of ours.
        """
        try:
            _make_private(self.folder)
            names = {entry.name for entry in self.folder.iterdir() if not entry.name.startswith(f"{MARKER}.")}
            if names and MARKER not in names and not names <= OUR_NAMES:
                raise UsageError(
                    f"{self.folder} is not empty and not a callboard index; name another folder (the setting index_dir)"
                )
            self._check_version()
            self.close_to_others()
            if reason := self._reason_to_rebuild():
                reason = self._clear_for(reason)
            return reason
        except OSError as error:
            if self.folder.is_dir():
                raise write_error(self.folder, error) from error
            raise UsageError(
                f"cannot use {self.folder} for the index: {error.strerror or error}; name another folder for it"
            ) from error

    def _clear_for(self, reason: str) -> str:
        """Begin an empty index, unless another process has done so meanwhile. Returns why."""
        try:
            with self.write_lock(REBUILD_WAIT_SECONDS):
                reason = self._reason_to_rebuild()
                if reason:
                    self.clear()
                return reason
        except IndexBusyError as busy:
            raise IndexBusyError(f"the index must be built again, since {reason}; but {busy}") from busy

    def _check_version(self) -> None:
        """Raise UsageError for an index of a newer callboard: each would build again what the other has built."""
        if (version := _version_in(self.marker())) > FORMAT_VERSION:
            raise UsageError(
                f"the index in {self.folder} is of a newer callboard (version {version}, this one writes version "
                f"{FORMAT_VERSION}); update this one, or name another folder for its index (the setting index_dir)"
            )

    def marker(self) -> bytes:
        """The bytes of the marker file: other ones when the index has been rebuilt. Empty if there is none."""
        try:
            return (self.folder / MARKER).read_bytes()
        except OSError:
            return b""

    def check_still(self, marker: bytes) -> None:
        """Under the write lock: raise IndexReplacedError if the index is no longer the one with this marker."""
        if self.marker() != marker:
            raise IndexReplacedError(
                f"the index in {self.folder} has just been built again by another process; try again"
            )

    def condemn(self, damage: str) -> None:
        """Note that the index is damaged: whichever process opens it next builds it again. Not of one that another
        version of callboard has built since it was opened: the damage was in the one before.

        Raises:
            UsageError: that cannot be written.
        """
        if _version_in(self.marker()) not in (NO_VERSION, FORMAT_VERSION):
            return
        try:
            self._replace_marker({"callboard_index": FORMAT_VERSION, "damage": damage})
        except OSError as error:
            raise write_error(self.folder, error) from error

    def close_to_others(self) -> None:
        """Let only its owner read what is in an index, also where an older version or a copy has left it open.

        The files are made before SQLite opens them: those that it adds get the mode of its database. What a full disk
        does not let us make here is an error where it is written.
        """
        with contextlib.suppress(OSError):
            self.lexical.mkdir(mode=FOLDER_MODE, exist_ok=True)
            for file in (self.truth, self.vectors, self.lock):
                os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        outer = (self.folder.parent,) if self.folder.parent.name == OUR_FOLDER else ()
        inside = self.lexical.iterdir() if self.lexical.exists() else ()
        for place in (*outer, self.folder, *self.folder.iterdir(), *inside):
            _close_to_others(place)

    def _reason_to_rebuild(self) -> str:
        try:
            marker = json.loads((self.folder / MARKER).read_bytes())
            version, damage = marker["callboard_index"], marker.get("damage", "")
        except FileNotFoundError:
            # The marker is written before everything else: files without one were left by a rebuild that was killed.
            has_content = self.truth.exists() and self.truth.stat().st_size
            if has_content and not (self.folder / MARKER).exists():
                return "the index was not finished being made"
            self._write_first_marker()
            return ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return "the index's marker file is broken"
        if version != FORMAT_VERSION:
            return f"the index has version {version}, this callboard writes version {FORMAT_VERSION}"
        return str(damage)

    def _write_first_marker(self) -> None:
        self._replace_marker(_new_marker(), first=True)
        parent_ignore = self.folder.parent / ".gitignore"
        if self.folder.parent.name == OUR_FOLDER and not parent_ignore.exists():
            parent_ignore.write_text("*\n")

    def _replace_marker(self, content: dict[str, object], *, first: bool = False) -> None:
        """With `first`, one that another process has written meanwhile stays."""
        temporary = self.folder / f"{MARKER}.{secrets.token_hex(4)}"
        try:
            temporary.write_text(json.dumps(content))
            temporary.chmod(FILE_MODE)
            if not first or not _linked(temporary, self.folder / MARKER):
                temporary.replace(self.folder / MARKER)
        finally:
            temporary.unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete our files and start with an empty index; only under the write lock. Vectors belong to texts, not to
        files: they stay."""
        for name in OUR_NAMES - {"writer.lock", MARKER} - VECTOR_NAMES:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._replace_marker(_new_marker())

    @contextmanager
    def write_lock(self, wait_seconds: float, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the right to write; the kernel gives it back when the process dies, however it dies.

        `waiting` is called every WAITING_SECONDS while another process holds it.

        Raises:
            IndexBusyError: another process held it for `wait_seconds`.
            IndexWriteError: the lock file cannot be made.
        """
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise write_error(self.folder, error) from error
        try:
            self._wait_for(descriptor, wait_seconds, waiting)
            # Only for people: the lock itself is the kernel's, and a full disk has no room for a number.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            try:
                yield
            finally:
                self.close_to_others()
        finally:
            os.close(descriptor)

    def _wait_for(self, descriptor: int, wait_seconds: float, waiting: Callable[[], None]) -> None:
        started = said_at = time.monotonic()
        while not _try_lock(descriptor):
            now = time.monotonic()
            if now - started >= wait_seconds:
                owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
                raise IndexBusyError(
                    f"process {owner} is writing the index in {self.folder}; try again when it is done"
                )
            if now - said_at >= WAITING_SECONDS:
                said_at = now
                waiting()
            time.sleep(LOCK_POLL_SECONDS)


def _version_in(marker: bytes) -> int:
    """NO_VERSION where it does not say."""
    try:
        version = json.loads(marker)["callboard_index"]
    except (ValueError, KeyError, TypeError):
        return NO_VERSION
    return version if isinstance(version, int) else NO_VERSION


def _linked(file: Path, name: Path) -> bool:
    """Give the file this name unless there is one already. False where the file system has no hard links."""
    try:
        os.link(file, name)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def _new_marker() -> dict[str, object]:
    return {"callboard_index": FORMAT_VERSION, "made": secrets.token_hex(8)}


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_read_only(place: Path) -> bool:
    """Whether it is on a file system that takes no other modes either."""
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def _make_private(folder: Path) -> None:
    """Make the folder and those above it that are missing, none of them open to others at any time."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)


def _close_to_others(place: Path) -> None:
    """Raises UsageError where that cannot be done: the place belongs to another user."""
    try:
        status = place.lstat()
        wanted = FOLDER_MODE if stat.S_ISDIR(status.st_mode) else FILE_MODE
        if stat.S_IMODE(status.st_mode) & ~wanted and not stat.S_ISLNK(status.st_mode) and not _is_read_only(place):
            place.chmod(wanted)
    except FileNotFoundError:
        return  # a file of another process that writes the index
    except PermissionError:
        raise UsageError(
            f"{place} belongs to another user, who could read the index; name another folder for it"
        ) from None
