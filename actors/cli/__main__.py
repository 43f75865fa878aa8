"""`python -m callboard.actors.cli` is `callboard`."""

import sys

from callboard.actors.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
