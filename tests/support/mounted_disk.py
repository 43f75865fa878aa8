"""A small disk of its own, mounted for a test: it can be filled, emptied and made read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

DISK_BYTES = 3_000_000
needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk of its own needs the right to mount")


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, but_for_bytes: int = 0) -> None:
        """Leave no more than this free."""
        with (self.folder / "filler").open("wb", buffering=0) as stream, suppress(OSError):
            while True:
                stream.write(bytes(4096))
        size = (self.folder / "filler").stat().st_size
        os.truncate(self.folder / "filler", max(0, size - but_for_bytes))

    def empty(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def make_read_only(self) -> None:
        assert mount("-o", "remount,ro", str(self.folder))


@contextmanager
def mounted_disk(folder: Path) -> Iterator[Disk]:
    """Skips the test where nothing can be mounted."""
    folder.mkdir()
    if not mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)):
        pytest.skip("no file system can be mounted here")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
