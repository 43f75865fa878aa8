"""The process in which `check_tool` calls a tool.

A tool may loop for good, hold the interpreter's lock (a regular expression does), call os._exit or crash the
interpreter: only another process outlives that, and can end it. It is forked, so that a tool need not be importable,
and finds the world that the test has made for it; what it changes in memory is not seen by the test.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Final

import orjson
from msgspec import Struct
from msgspec.structs import asdict

#: prctl(2): a child that the tool's own child leaves behind becomes ours, and is seen; we end with our parent.
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_PDEATHSIG: Final = 1


class Verdict(Struct, frozen=True):
    """What one call came to."""

    finding: str = ""
    """What is wrong with the tool, as the rest of a sentence that begins with the call; "" = nothing."""
    entered: bool = False
    """The arguments passed the tool's validators, and its body began to run."""
    plain: bool = True
    """The body got the arguments just as they stand in the JSON: no model, date or enum was made of them."""
    refusal: str = ""
    """Why the validators refused the arguments."""


Entering = Callable[[bool], None]
"""Called when the tool's body begins, with `Verdict.plain`."""
Examine = Callable[[str, Entering], Verdict]
"""Calls the tool with these arguments, JSON text, and looks at what becomes of it."""


class Child:
    """A process that examines calls, one at a time; forked when it is needed, and again after it was killed."""

    def __init__(self, examine: Examine) -> None:
        self._examine = examine
        self._pid = 0
        self._pipe: Connection | None = None

    def call(self, arguments: str, seconds: float, limit: str) -> Verdict:
        """The verdict of one call. After `seconds` the process is killed; `limit` says whose limit that was."""
        pipe = self._pipe or self._fork()
        pipe.send_bytes(arguments.encode())
        entered, plain = False, True
        while pipe.poll(seconds):
            try:
                told = orjson.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                return Verdict(f"ended its process: {self._how_it_ended()}", entered, plain)
            if "entered" not in told:
                entered, plain = True, told["plain"]
                continue
            return Verdict(**told)
        self.close()
        where = "" if entered else " (in its validators: the body never began)"
        return Verdict(f"did not return within {limit}{where}", entered, plain)

    def close(self) -> None:
        """Kill the process, with all processes that the tool has left in it."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
            os.kill(self._pid, signal.SIGKILL)
            _kill_group(self._pid)
            os.waitpid(self._pid, 0)

    def _fork(self) -> Connection:
        ours, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on, for a fork beside threads
            self._pid = os.fork()
        if not self._pid:
            try:
                gc.freeze()  # looking over what was there before would copy all of a large suite: 5 s and 900 MB seen
                ours.close()
                _serve(theirs, self._examine)
            finally:
                os._exit(0)
        theirs.close()
        self._pipe = ours
        return ours

    def _how_it_ended(self) -> str:
        assert self._pipe is not None
        self._pipe.close()
        self._pipe = None
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        _kill_group(self._pid)
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of them have ended


def _serve(pipe: Connection, examine: Examine) -> None:
    _set_up()
    while True:
        try:
            arguments = pipe.recv_bytes().decode()
        except EOFError:
            return
        try:
            verdict = examine(arguments, lambda plain: pipe.send_bytes(orjson.dumps({"plain": plain})))
        except BaseException:  # noqa: BLE001 - a fault of the check's own must be told, not taken for one of the tool
            verdict = Verdict(f"could not be examined: {traceback.format_exc()}", True)
        pipe.send_bytes(orjson.dumps(verdict, asdict))


def _set_up() -> None:
    """A session of its own, nothing to read, and what the tool prints goes nowhere: the terminal is the test's."""
    os.setsid()
    faulthandler.disable()  # a test runner's: it would tell a tool's crash as one of the test's
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process lives
    sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115
