"""What may be said of progress, and the relay by which it reaches a session."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.tools.progress import CallProgress, ProgressMade, ProgressRelay
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.limits import MAX_PROGRESS_BYTES

TAG = Tag(RequestId("r"), MessageId("m"), 1)


@given(st.text(st.characters(), max_size=3_000), st.none() | st.floats(0, 1) | st.integers(0, 1))
def test_a_message_is_cut_and_stays_text(message: str, fraction: float | None) -> None:
    progress = CallProgress.of(message, fraction)
    assert len(progress.message.encode()) <= MAX_PROGRESS_BYTES
    assert progress.fraction == fraction
    is_text = not any("\ud800" <= character <= "\udfff" for character in message)
    assert progress.message == message or len(message) * 4 > MAX_PROGRESS_BYTES or not is_text


@pytest.mark.parametrize("fraction", [float("nan"), float("inf"), -0.01, 1.01, True, "0.5", [1]])
def test_a_fraction_is_a_number_from_0_to_1(fraction: object) -> None:
    with pytest.raises(UsageError, match="fraction must be a number from 0 to 1, got"):
        CallProgress.of("", fraction)


def test_a_message_is_a_text() -> None:
    with pytest.raises(UsageError, match="message must be a text, got bytes"):
        CallProgress.of(b"x", 0.5)


def test_one_message_is_under_way_and_it_brings_the_latest() -> None:
    posted: list[ProgressMade] = []
    relay = ProgressRelay(TAG, posted.append)
    for number in range(100):
        relay.report(CallProgress(str(number), None))
    assert len(posted) == 1
    assert relay.take() == CallProgress("99", None)
    relay.report(CallProgress("100", None))
    assert len(posted) == 1, "its session looks again after a pause"
    assert relay.take() == CallProgress("100", None)
    assert relay.take() is None
    relay.report(CallProgress("101", None))
    assert len(posted) == 2
    assert relay.close() == CallProgress("101", None)
    relay.report(CallProgress("after the end", None))
    assert len(posted) == 2


def test_the_last_report_of_several_threads_is_never_lost() -> None:
    """The session takes and rests while threads report: what was said last is taken in the end."""
    posted: list[ProgressMade] = []
    relay = ProgressRelay(TAG, posted.append)

    def talk(number: int) -> None:
        for step in range(500):
            relay.report(CallProgress(f"{number}/{step}", None))

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    taken = []
    while any(thread.is_alive() for thread in threads) or posted:
        if posted and random.random() < 0.5:
            posted.pop()
            while (progress := relay.take()) is not None:
                taken.append(progress.message)
    assert relay.take() is None, "whatever was not taken had a message under way"
    assert {message.partition("/")[0] for message in taken} <= {"0", "1", "2", "3"}
    assert any(message.endswith("/499") for message in taken)
