"""`callboard`: reads the arguments, runs one command, and turns errors into one sentence and an exit status.

Exit status: 0 done; 1 it failed (the model, the network, the index); 2 it was asked wrongly (usage); 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from callboard.actors.settings import OFFLINE_MODEL
from callboard.protocol.errors import CallboardError, UsageError

try:
    from callboard.actors.cli.commands import ask, doctor, index, login
except ImportError as missing:
    sys.exit(f"callboard's command line needs more than its core ({missing}); type: pip install 'callboard[cli]'")

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """What can be typed."""
    root = argparse.ArgumentParser(prog="callboard", description="A supervised actor runtime for LLM tool calls.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    asking = commands.add_parser("ask", help="ask about the code in a workspace")
    asking.add_argument("question", metavar="QUESTION")
    asking.add_argument("--workspace", type=Path, default=Path(), metavar="DIR", help="the folder to ask about (here)")
    asking.add_argument("--model", metavar="PROVIDER/MODEL", help=f"whom to ask (CALLBOARD_MODEL, {OFFLINE_MODEL})")
    asking.add_argument("--base-url", metavar="URL", help="where the model's API is, if not at its usual place")
    asking.add_argument("--json", action="store_true", help="print the reply as one JSON object")
    asking.set_defaults(run=ask)

    indexing = commands.add_parser("index", help="index a workspace, so that questions start at once")
    indexing.add_argument("workspace", type=Path, nargs="?", default=Path(), metavar="DIR")
    indexing.set_defaults(run=index)

    doctoring = commands.add_parser("doctor", help="check each provider's key, address and a small call")
    doctoring.add_argument("--model", metavar="PROVIDER/MODEL", help="check this one only")
    doctoring.add_argument("--base-url", metavar="URL")
    doctoring.set_defaults(run=doctor)

    signing = commands.add_parser("login", help="sign in where a key is not enough")
    signing.add_argument("provider", choices=["copilot"])
    signing.set_defaults(run=login)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        asyncio.run(options.run(options))
    except UsageError as error:
        return _say(error, USAGE)
    except CallboardError as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as in `callboard ask ... | head`
        sys.stderr.close()
        return FAILED
    return DONE


def _say(what: object, status: int) -> int:
    sys.stderr.write(f"callboard: {what}\n")
    return status
