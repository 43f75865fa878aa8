"""Process 1 of the namespace in which a mutant runs: starts a command, reaps what loses its parent, ends with it.

    unshare --pid --fork --mount-proc --kill-child python init.py COMMAND ...       # exits with the command's status

A mutant of what ends processes may try to end any process: here it finds none but its own. And tests look whether
processes are gone, which one is not as long as nothing reaps it. What is left ends with process 1.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Final

#: Heap of one process of a mutant that allocates without end; the tests' own need less.
MAX_DATA_BYTES: Final = 6 * 1024**3


def main(command: list[str]) -> int:
    """The command's exit status; 128 and the number of the signal that ended it."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    process = subprocess.Popen(command, start_new_session=True)
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
