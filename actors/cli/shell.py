"""What all commands share: reads the arguments, runs one, turns errors into one sentence and an exit status.

Exit status: 0 done; 1 it failed (the model, the network, the index); 2 it was asked wrongly (usage); 130 Ctrl-C.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from importlib import import_module

from callboard.actors.cli.arguments import parser
from callboard.actors.cli.main import INTERRUPTED
from callboard.protocol.errors import CallboardError, UsageError

DONE, FAILED, USAGE = 0, 1, 2


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    _prepare_streams()
    # What matters to a person is said by the commands; without a handler, logging would print its warnings as well.
    logging.getLogger("callboard").addHandler(logging.NullHandler())
    status = _run_command(arguments)
    try:
        sys.stdout.flush()
    except OSError:
        return _reader_gone()
    return status


def _run_command(arguments: Sequence[str] | None) -> int:
    try:
        options = parser().parse_args(arguments)
        if options.ahead:
            import_module(options.ahead).load_ahead()
        # A command is imported when it is called: a warm question takes well under a second, all imports half of that.
        command = import_module(f"callboard.actors.cli.{options.module}")
        running = command.run(options)
        if isinstance(running, Coroutine):
            asyncio.run(running)
    except UsageError as error:
        return _say(error, USAGE)
    except CallboardError as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _reader_gone()
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("callboard"):
            raise
        return _say(f"this needs more than callboard's core ({missing}); type: pip install 'callboard[cli]'", FAILED)
    except OSError as error:
        return _say(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", FAILED)
    return DONE


def _prepare_streams() -> None:
    """What a terminal or a pipe cannot show is replaced, and closed streams (`>&-`) swallow what is written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives
        else:
            stream.reconfigure(errors="replace")


def _reader_gone() -> int:
    """The reader of our output has gone, as in `callboard ask ... | head -1`: nothing to say, nobody to hear it.

    The interpreter flushes stdout once more at its end; what is left in it goes nowhere.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _say(what: object, status: int) -> int:
    try:
        sys.stderr.write(f"callboard: {what}\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return status
