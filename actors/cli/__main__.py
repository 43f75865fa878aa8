"""The entry point; shell.py does the work. Thin, so that Ctrl-C is never a traceback, from the first moment on."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from callboard.actors.cli import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (see the package)."""
    try:
        from callboard.actors.cli.shell import run  # noqa: PLC0415 - it takes time in which Ctrl-C can come

        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("callboard: interrupted\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
