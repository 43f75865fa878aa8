"""The command line: one module a command. It runs requests by the Runtime, as any other program does.

Exit status: 0 done; 1 it failed (the model, the network, the index); 2 usage error; 130 Ctrl-C.
"""

import sys

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def end_line_of_interrupt() -> None:
    """A terminal shows Ctrl-C as ^C in the line that it has come to: what is said of it begins the next line."""
    shown = next((each for each in (sys.stderr, sys.stdout) if each is not None and each.isatty()), None)
    if shown is not None:
        shown.write("\n")
        shown.flush()
