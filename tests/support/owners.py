"""Work that is done as another user, in a process of its own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

#: A user without rights, whose name the machine need not know.
NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")


def run_as(user: int, work: Callable[[], object], folder: Path) -> None:
    """Fails where the work raises. The folders above `folder` are opened to the user."""
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.geteuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o011)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            work()
            status = 0
        finally:
            traceback.print_exc()
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
