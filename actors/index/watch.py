"""Changed paths as the operating system tells them (extra `watch`); without it a refresh finds changes by itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from callboard.actors.index.code_index import CodeIndex
from callboard.actors.index.walk import SKIPPED_FOLDERS
from callboard.protocol.errors import UsageError, missing_extra

#: Editors write a file several times within this; one refresh does for all of it.
DEBOUNCE_MS = 50
#: How long a stop may take to be seen.
STOP_POLL_MS = 500


def watch(index: CodeIndex, stop: threading.Event) -> Iterator[list[str]]:
    """Batches of changed paths under the index's roots until `stop` is set; give each to `index.refresh(paths=...)`.

    Raises:
        UsageError: the extra is not installed.
    """
    return (batch for batch in batches(index, stop) if batch)


def batches(index: CodeIndex, stop: threading.Event) -> Iterator[list[str]]:
    """As `watch`, and an empty batch each STOP_POLL_MS in which nothing has changed; the first says that it has begun.

    It ends, too, when a root is gone or is another folder now, of which the operating system tells nothing more.
    Changes of the same path within a batch are one, so a batch is never longer than the workspace has paths.

    Raises:
        UsageError: the extra is not installed, or there are more folders than the operating system watches.
    """
    try:
        import watchfiles  # noqa: PLC0415  optional extra
    except ImportError as error:
        raise UsageError(missing_extra("watching files", "watch")) from error
    folders = folders_of(index)
    try:
        for batch in watchfiles.watch(
            *index.roots,
            watch_filter=watchfiles.DefaultFilter(ignore_dirs=sorted(SKIPPED_FOLDERS)),
            debounce=DEBOUNCE_MS,
            step=DEBOUNCE_MS // 2,
            rust_timeout=STOP_POLL_MS,
            stop_event=stop,
            raise_interrupt=True,
            yield_on_timeout=True,
        ):
            yield sorted({path for _, path in batch})
            if folders_of(index) != folders:
                return
    except FileNotFoundError:  # of a root that went before it was watched
        return
    except OSError as error:
        raise UsageError(
            f"the folders cannot be watched: {error}; where there are too many, raise fs.inotify.max_user_watches"
        ) from error


def folders_of(index: CodeIndex) -> tuple[tuple[int, int], ...] | None:
    """Which folders the roots are on disk; None: one is gone."""
    try:
        found = [os.stat(root) for root in index.roots]
    except OSError:
        return None
    return tuple((each.st_dev, each.st_ino) for each in found)
