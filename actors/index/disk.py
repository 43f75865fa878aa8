"""Why an index cannot be written, in one sentence: which folder, what the operating system said, what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import tempfile
from pathlib import Path

import apsw

from callboard.protocol.errors import UsageError

_WHY = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EFBIG: "a file would be larger than this process may write (ulimit -f)",
    errno.EACCES: "there is no permission to write there",
    errno.EPERM: "there is no permission to write there",
    errno.EIO: "the device reports an input/output error",
}
_FREE_SPACE = "free some space or name another folder for the index, then index again"
_REMEDY = {errno.ENOSPC: _FREE_SPACE, errno.EDQUOT: _FREE_SPACE}
#: tantivy tells the error number only in its text, in one of two forms.
_NUMBER = re.compile(r"(?:os error|code:) (\d+)")
#: A full disk may still take the few bytes of a small file: a test file of this size shows that it is full.
PROBE_BYTES = 1_000_000


class IndexWriteError(UsageError):
    """The index cannot be written: no space, no permission, a read-only file system. What it held can be searched."""


def write_error(folder: Path, error: BaseException) -> IndexWriteError:
    """The sentence for a failed write of a file in `folder`; a test file is written if the error says little."""
    number = _number_of(error) or _probed(folder)
    why = _WHY.get(number) or (os.strerror(number) if number else str(error))
    remedy = _REMEDY.get(number, "name a folder for the index that can be written, then index again")
    return IndexWriteError(
        f"cannot write the index in {folder}: {why}{_free_bytes(folder)}; {remedy}; what was indexed before is kept"
    )


def _number_of(error: BaseException) -> int:
    """0 if the error does not say."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, apsw.FullError):
        return errno.ENOSPC
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else 0


def _probed(folder: Path) -> int:
    """The error number of a write in this folder; 0 when it succeeds."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(PROBE_BYTES))
            stream.flush()
    except OSError as error:
        return error.errno or 0
    # SQLite says no more than "disk I/O error" about a file that may not become larger.
    return errno.EFBIG if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY else 0


def _free_bytes(folder: Path) -> str:
    with contextlib.suppress(OSError):
        status = os.statvfs(folder)
        return f" ({status.f_bavail * status.f_frsize:,} bytes free)"
    return ""
