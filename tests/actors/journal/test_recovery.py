"""Taking up requests, one of which ends the process each time: it alone ends as one that gets nowhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.journal.recovery import MAX_TAKINGS_UP, in_turn
from callboard.protocol.ids import RequestId


@given(data=st.data(), count=st.integers(1, 12))
def test_a_request_that_ends_each_process_ends_alone(data: st.DataObject, count: int) -> None:
    """Each start counts all that are open as taken up; what goes on has a new event, and counts from 0 again."""
    found = tuple(RequestId(f"r{number}") for number in range(count))
    deadly = data.draw(st.sampled_from(found))
    takings = dict.fromkeys(found, 0)
    for _ in range(MAX_TAKINGS_UP):
        for each in found:
            takings[each] += 1
        assert max(takings.values()) <= MAX_TAKINGS_UP, "none is given up so far"
        for each in in_turn(found, takings.__getitem__):
            if each == deadly:
                break
            takings[each] = 0
    for each in found:
        takings[each] += 1
    assert {each for each in found if takings[each] > MAX_TAKINGS_UP} == {deadly}


def test_without_trouble_the_oldest_comes_first() -> None:
    found = (RequestId("a"), RequestId("b"))
    assert in_turn(found, lambda _: 1) == found
    assert in_turn((), lambda _: 1) == ()
