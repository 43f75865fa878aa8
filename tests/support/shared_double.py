"""One wire double for all tests of a run: starting a process takes longer than most of them."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from callboard.actors.testing.wire_double import Answer, Fault, FaultKind, Turn, WireDouble

CUT = Fault(FaultKind.CUT)
STALL = Fault(FaultKind.STALL)


@cache
def _running() -> WireDouble:
    double = WireDouble().__enter__()
    atexit.register(double.__exit__)
    return double


@contextmanager
def shared_double(turns: Iterable[Answer] = (), *, by_turn: bool = False) -> Iterator[WireDouble]:
    """The double with these answers, as if it had just been started."""
    double = _running()
    double.reset()
    double.play(turns, by_turn=by_turn)
    yield double


def stall(text: str = "") -> Turn:
    """Says `text` in one piece, then nothing, and keeps the connection open."""
    return Turn(text, fragment=len(text) or 1, fault=STALL)


def cut(text: str = "") -> Turn:
    """Says `text` in one piece, then breaks the connection."""
    return Turn(text, fragment=len(text) or 1, fault=CUT)
