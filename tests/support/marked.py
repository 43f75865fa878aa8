"""Processes that can be found again: a tool's own pid says little, since it may live in a PID namespace of its own."""

from __future__ import annotations

from pathlib import Path


def processes_with(mark: str) -> list[int]:
    """The live processes of this machine that have `mark` in their environment."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return found
