"""Runs the rules of callboard.protocol.testing against a mutant of the protocol: exits 1 if they find it.

    python kit.py MODULE FILE SECONDS     # the module that is changed, and the file it must have been imported from

Any failure counts, an exception of the code under test too. Prints one line that says what was found.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

#: The exit status of a run that says nothing: the mutant was not what ran.
NOT_THE_MUTANT = 99


def main(module: str, file: str, seconds: float) -> int:
    """Play scenarios of the seeds 0, 1, 2 ... until one breaks a rule, or the time is over."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != Path(file):
        print(f"{module} is not the mutant but {spec and spec.origin}")
        return NOT_THE_MUTANT
    testing = importlib.import_module("callboard.protocol.testing")
    generator = importlib.import_module("callboard.protocol.testing.generator")
    importlib.import_module(module)
    seed, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for violation in testing.violations(testing.drive(generator.scenario(seed), seed)):
            print(f"seed {seed}: {violation}")
            return 1
        seed += 1
    print(f"nothing found with {seed:,} seeds")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
