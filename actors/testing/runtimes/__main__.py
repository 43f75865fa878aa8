"""The command: `python -m callboard.actors.testing.runtimes [--runtime NAME] [--conversations N] [--seed S]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from callboard.actors.testing.runtimes.harness import RUNTIMES, AdapterFailed, adapter_type, harness
from callboard.actors.testing.runtimes.table import insert, render, story, survey
from callboard.protocol.errors import UsageError

_FAILED, _USAGE_ERROR = 1, 2
PAGE = Path("docs/other_runtimes.md")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m callboard.actors.testing.runtimes",
        description="Plays the same conversations on several agent runtimes and prints which rule each keeps and "
        f"breaks. With all of them, in a clone, the table is also written to {PAGE}.",
    )
    parser.add_argument("--runtime", choices=RUNTIMES, help="only this one")
    parser.add_argument("--conversations", type=int, default=60, help="how many conversations each, from seed 0")
    parser.add_argument("--seed", type=int, help="play the one conversation of this seed and tell its story")
    return parser.parse_args()


def main() -> int:
    """Run the command; the exit status."""
    arguments = _arguments()
    names = (arguments.runtime,) if arguments.runtime else tuple(RUNTIMES)
    try:
        for name in names:
            adapter_type(name)
        with harness(names) as driver:
            if arguments.seed is not None:
                for name in names:
                    sys.stdout.write(f"{name}, seed {arguments.seed}\n{story(driver.play(name, arguments.seed))}\n")
                return 0
            surveys = [survey(driver, name, range(arguments.conversations)) for name in names]
    except UsageError as error:
        sys.stderr.write(f"runtimes: {error}\n")
        return _USAGE_ERROR
    except AdapterFailed as error:
        sys.stderr.write(f"runtimes: {error}\n")
        return _FAILED
    table = render(surveys, arguments.conversations)
    sys.stdout.write(table)
    if PAGE.exists() and len(names) == len(RUNTIMES):
        PAGE.write_text(insert(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
