"""Changed paths as the operating system tells them (extra `watch`); without it a refresh finds changes by itself."""

from __future__ import annotations

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
    try:
        import watchfiles  # noqa: PLC0415  optional extra
    except ImportError as error:
        raise UsageError(missing_extra("watching files", "watch")) from error
    for batch in watchfiles.watch(
        *index.roots,
        watch_filter=watchfiles.DefaultFilter(ignore_dirs=sorted(SKIPPED_FOLDERS)),
        debounce=DEBOUNCE_MS,
        step=DEBOUNCE_MS // 2,
        rust_timeout=STOP_POLL_MS,
        stop_event=stop,
        raise_interrupt=False,
    ):
        yield sorted({path for _, path in batch})
