"""What all commands share: reads the arguments, runs one, turns errors into one sentence and an exit status."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from callboard.actors.cli import DONE, FAILED, INTERRUPTED, end_line_of_interrupt
from callboard.actors.cli.arguments import parser, wants_json
from callboard.actors.cli.failure import Failure, failure_of
from callboard.actors.cli.terminal import print_json, printable
from callboard.protocol.errors import ErrorKind, UsageError, missing_extra
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import asyncio
    import logging

    from callboard.actors.cli import columns
else:  # --version, --help and a mistake in what was typed need neither
    asyncio = lazy_module("asyncio")
    columns = lazy_module("callboard.actors.cli.columns")
    logging = lazy_module("logging")

Known = dict[str, object]
"""What is known of a question so far, for --json: printed when it fails, too."""
RunCommand = Callable[[argparse.Namespace, Known], Coroutine[object, object, None] | None]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    _prepare_streams()
    status = _run_command(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except OSError:
        return _reader_gone()
    return status


def _run_command(arguments: Sequence[str]) -> int:
    known: Known = {}
    try:
        options = parser().parse_args(arguments)
        # What matters to a person is said by the commands; without a handler, logging would print its warnings as well.
        logging.getLogger("callboard").addHandler(logging.NullHandler())
        running = _command(options)(options, known)
        if isinstance(running, Coroutine):
            asyncio.run(running)
    except SystemExit:  # --help and --version
        return DONE
    except BrokenPipeError:
        return _reader_gone()
    except (KeyboardInterrupt, Exception) as error:
        failure = failure_of(error)
        if failure.kind == ErrorKind.INTERNAL and sys.flags.dev_mode:
            raise  # for those who look for the fault
        if wants_json(arguments):
            _print_failure(failure, known)
        return _say(failure)
    return DONE


#: Each command, and the module in this package whose `run` it is.
_MODULES: Final = {
    "acp": "serve_acp",
    "ask": "ask",
    "chat": "chat",
    "completion": "completion",
    "doctor": "doctor",
    "edits": "edit_list",
    "index": "indexing",
    "journal": "journal_command",
    "login": "login",
    "mcp": "serve_mcp",
    "models": "provider_list",
    "rules": "rule_list",
    "serve": "serve_command",
    "tokens": "token_command",
    "tools": "tool_list",
    "trust": "workspace_setup",
}
#: What a command needs besides the extra `cli`.
_EXTRAS: Final = {"acp": "acp", "mcp": "mcp", "serve": "daemon", "tokens": "daemon"}


def _command(options: argparse.Namespace) -> RunCommand:
    """Imported when it is called: a warm question takes well under a second, and all imports half of that."""
    name = options.command
    if name == "ask":
        from callboard.actors.index.token_count import load_ahead  # noqa: PLC0415

        load_ahead(options.workspace or [os.curdir])  # its child loads the vocabulary while the rest is imported here
    gc.disable()  # what is loaded stays: looking it over for garbage would take a tenth of the time
    try:
        module = import_module(f"callboard.actors.cli.{_MODULES[name]}")
    except ImportError as missing:
        if name not in _EXTRAS:
            raise
        raise UsageError(missing_extra(f"callboard {name} ({missing})", _EXTRAS[name])) from missing
    finally:
        gc.enable()
    run_command: RunCommand = module.run
    return run_command


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


def _print_failure(failure: Failure, known: Known) -> None:
    """One JSON object: what there was of the answer, and why there is no more."""
    try:
        print_json({"text": "", "request_id": None, **known, "error": failure.as_json()})
    except OSError:
        _reader_gone()


def _say(failure: Failure) -> int:
    try:
        if failure.exit_status == INTERRUPTED:
            end_line_of_interrupt()
        shown = columns.wrapped(f"callboard: {printable(failure.message)}", columns.columns_of(sys.stderr), "  ")
        sys.stderr.write(f"{failure.usage}{shown}\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return failure.exit_status
