"""What all commands share: reads the arguments, runs one, turns errors into one sentence and an exit status."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence

from callboard.actors.cli import DONE, FAILED, INTERRUPTED, USAGE
from callboard.actors.cli.arguments import parser
from callboard.protocol.errors import CallboardError, UsageError

RunCommand = Callable[[argparse.Namespace], Coroutine[object, object, None] | None]


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
        running = _command(options.command)(options)
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
    except Exception as error:  # a fault of ours: one sentence here too, the traceback for those who look for it
        if sys.flags.dev_mode:
            raise
        hint = "this is a fault in callboard; for the traceback: python -X dev -m callboard.actors.cli ..."
        return _say(f"internal error: {type(error).__name__}: {error}; {hint}", FAILED)
    return DONE


def _command(name: str) -> RunCommand:
    """Imported when it is called: a warm question takes well under a second, and all imports half of that."""
    if name == "ask":
        from callboard.actors.index import token_count  # noqa: PLC0415

        token_count.load_ahead()  # its child loads the vocabulary while this process imports the rest
        from callboard.actors.cli import ask  # noqa: PLC0415

        return ask.run
    if name == "index":
        from callboard.actors.cli import indexing  # noqa: PLC0415

        return indexing.run
    from callboard.actors.cli import doctor, login, tool_list  # noqa: PLC0415

    return {"doctor": doctor.run, "login": login.run, "tools": tool_list.run}[name]


def _prepare_streams() -> None:
    """What a terminal or a pipe cannot show is replaced, and closed streams (`>&-`) swallow what is written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives
        else:
            stream.reconfigure(errors="replace")


def _reader_gone() -> int:
    """Our output has no reader any more, as in `callboard ask ... | head -1`: end without a message.

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
