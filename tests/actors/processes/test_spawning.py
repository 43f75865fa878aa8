"""Helpers: processes of our own code that answer over their pipes, within a deadline or not at all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support.helpers import deaf, half_an_answer, no_word, reverse

from callboard.actors.processes.spawning import Helper

LARGE = 3_000_000


@pytest.fixture
def helpers() -> Iterator[list[Helper]]:
    made: list[Helper] = []
    yield made
    for helper in made:
        helper.close()


@pytest.mark.parametrize("size", [0, 1, LARGE])
def test_an_answer_arrives_whole(helpers: list[Helper], size: int) -> None:
    helper = Helper(reverse, quiet=True)
    helpers.append(helper)
    question = os.urandom(size)
    assert helper.ask(question, 30) == question[::-1]
    assert helper.ask(b"abc", 30) == b"cba"


@pytest.mark.parametrize(
    ("main", "size", "error"),
    [
        (half_an_answer, 1, TimeoutError),
        (deaf, LARGE, TimeoutError),
        (no_word, 1, EOFError),
        (no_word, LARGE, EOFError),
    ],
)
def test_without_an_answer_the_deadline_holds(
    helpers: list[Helper], main: object, size: int, error: type[Exception]
) -> None:
    helper = Helper(main)  # type: ignore[arg-type]
    helpers.append(helper)
    with pytest.raises(error):
        helper.ask(b"x" * size, 2.0 if error is TimeoutError else 30.0)


def test_a_helper_ends_when_its_caller_closes_its_end() -> None:
    helper = Helper(reverse, quiet=True)
    assert helper.leave(30) == 0
    assert helper.close() == 0


def test_closing_ends_a_helper_that_hangs() -> None:
    helper = Helper(deaf)
    assert helper.close() == -signal.SIGKILL
    assert helper.close() == -signal.SIGKILL
