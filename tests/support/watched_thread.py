"""What one thread does that may take long: files, databases, sleeps, and locks that are waited for.

Import it before anything else: it puts a lock of its own in the place of `threading.Lock`. A lock that some thread
holds while it does such a thing is one that is waited for, also where that did not happen in this run.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

#: Of the module posix.
FILES = (
    "access", "fdatasync", "fstat", "fsync", "ftruncate", "link", "listdir", "lstat", "mkdir", "open", "pread",
    "pwrite", "read", "readlink", "remove", "rename", "replace", "rmdir", "scandir", "stat", "symlink", "truncate",
    "unlink", "wait", "waitid", "waitpid", "write",
)  # fmt: skip
DATABASES = ("sqlite3", "_sqlite3", "apsw", "psycopg", "psycopg_binary")
#: Of an offence, so many are shown.
FRAMES = 10
#: What leads to a place, and is none.
MACHINERY = ("asyncio/", "<frozen importlib", "importlib/__init__.py", "protocol/lazy_loading.py")
MEMORY = ("BytesIO", "StringIO")
#: The event loop's own waiting, a pool's that hands work to a thread, which it starts, and a host's log.
ALLOWED = ("selectors.py", "concurrent/futures/thread.py", "logging/__init__.py")


class Offence(NamedTuple):
    """What may take long."""

    member: str
    what: str
    where: str


class Lock:
    """`threading.Lock`, which notes who waits for it."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self.slow = ""
        """What was done by a thread that held it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        if not blocking or timeout == 0:
            return False
        _note("a lock that another thread holds")
        return self._lock.acquire(True, timeout)

    def release(self) -> None:
        if self in _held():  # as a Condition does, while it waits
            _held().remove(self)
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        taken = self.acquire()
        _held().append(self)
        if _thread.get_ident() == _watched and not _is_allowed(sys._getframe(1)):
            _entered.append((self, _member, _where()))
        return taken

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._lock = _thread.allocate_lock()


_watched = 0
"""The thread, while something of it is watched."""
_member = ""
_own = threading.local()
_entered: list[tuple[Lock, str, str]] = []
_offences: list[Offence] = []


def _held() -> list[Lock]:
    if not hasattr(_own, "held"):
        _own.held = []
    held: list[Lock] = _own.held
    return held


def _where() -> str:
    """The frames, the innermost first, without those of this file and of MACHINERY; their lines are in files."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename != __file__ and not any(each in code.co_filename for each in MACHINERY):
            found.append(f"{'/'.join(code.co_filename.split('/')[-3:])}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(found[:FRAMES])


def _is_allowed(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(ALLOWED):
            return True
        frame = frame.f_back
    return False


def _note(what: str) -> None:
    is_watched = _thread.get_ident() == _watched
    if is_watched and _is_allowed(sys._getframe(1)):
        return
    for lock in _held():
        lock.slow = lock.slow or what
    if is_watched:
        _offences.append(Offence(_member, what, _where()))


def _profile(frame: FrameType, event: str, arg: Any) -> None:
    if event != "c_call" or frame.f_code.co_filename == __file__:
        return
    if what := _long(getattr(arg, "__self__", None), arg.__name__):
        _note(what)


def _long(owner: object, name: str) -> str:
    kind = type(owner)
    if kind.__module__ in DATABASES:
        return f"SQL: {kind.__name__}.{name}"
    if kind is type(sys):
        module = getattr(owner, "__name__", "")
        if (module == "posix" and name in FILES) or (module, name) in (("time", "sleep"), ("io", "open")):
            return f"{module}.{name}"
    if kind.__module__ == "_io" and kind.__name__ not in MEMORY and name in ("read", "write", "flush", "readinto"):
        return f"{kind.__name__}.{name}"
    if kind.__name__ in ("poll", "epoll") and name == "poll":
        return "select.poll"
    if kind is _thread.LockType and name == "acquire" and owner.locked():  # type: ignore[attr-defined]
        return "a lock that is not free"
    return ""


def _audit(event: str, _: tuple[object, ...]) -> None:
    if _watched and event in ("open", "sqlite3.connect", "subprocess.Popen", "socket.connect", "os.listdir"):
        _note(event)


threading.Lock = Lock  # type: ignore[assignment, misc]
threading.setprofile(_profile)
sys.addaudithook(_audit)


@contextmanager
def watched(member: str) -> Iterator[None]:
    """What this thread does inside counts, under this name."""
    global _watched, _member
    _watched, _member = _thread.get_ident(), member
    sys.setprofile(_profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        _watched = 0


def offences() -> list[Offence]:
    """What was done so far that may take long, once each."""
    slow = [
        Offence(member, f"a lock that is held for {lock.slow}", where) for lock, member, where in _entered if lock.slow
    ]
    return list(dict.fromkeys((*_offences, *slow)))
