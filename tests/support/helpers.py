"""Helper processes for tests; each is started in an interpreter of its own, which imports this module."""

from __future__ import annotations

import os
import signal
import sys

from callboard.actors.processes.spawning import Caller


def reverse() -> None:
    """A helper that answers with the question backwards, and prints on its way."""

    def answer(question: bytes) -> bytes:
        print("a word that must not get into the answer")  # noqa: T201
        return question[::-1]

    Caller().serve(answer)


def half_an_answer() -> None:
    """A helper that begins to answer and then says no more."""
    Caller().hear()
    os.write(1, b"\x00\x00\x00\x09half")
    signal.pause()


def deaf() -> None:
    """A helper that does not read."""
    signal.pause()


def no_word() -> None:
    """A helper that ends when it is asked."""
    Caller().hear()
    sys.exit(3)
