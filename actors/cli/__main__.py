"""The entry point; shell.py does the work. Thin, so that Ctrl-C is never a traceback, from the first moment on."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence

from callboard.actors.cli import INTERRUPTED, end_line_of_interrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (see the package)."""
    atexit.register(gc.freeze)  # to look for garbage among all that was loaded would take the end some 0.1 s
    try:
        from callboard.actors.cli.shell import run  # noqa: PLC0415 - it takes time in which Ctrl-C can come

        return run(arguments)
    except KeyboardInterrupt:
        end_line_of_interrupt()
        sys.stderr.write("callboard: interrupted\n")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
