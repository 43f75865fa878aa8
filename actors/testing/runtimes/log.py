"""What the tools and the player wrote down, read back."""

from __future__ import annotations

from pathlib import Path

import orjson

from callboard.protocol.testing.observation import Seen, What


def read_log(log: Path) -> list[Seen]:
    """What was written down so far; a line that is being written is left out."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    fields = [orjson.loads(line) for line in lines]
    return [Seen(each["at"], What(each["what"]), each["number"], detail=each["detail"]) for each in fields]


def forget(log: Path) -> None:
    """Remove what was written down."""
    log.unlink(missing_ok=True)
