"""Runs a Python program when it is its turn: `in_turn.py FOLDER PROGRAM [ARGUMENT ...]`.

The suite starts all its clients at the same time; this lets as many begin as there are processors. The lock ends with
the program, which takes the place of this one.
"""

import fcntl
import os
import sys
import time

folder, *program = sys.argv[1:]
while True:
    for number in range(os.cpu_count() or 1):
        place = os.open(f"{folder}/turn-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(place)
            continue
        os.set_inheritable(place, True)
        os.execv(sys.executable, [sys.executable, *program])
    time.sleep(0.2)
