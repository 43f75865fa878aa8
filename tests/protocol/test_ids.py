"""What is shown of a tag in log records and spans."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.ids import MAX_SHOWN_CALL_ID_CHARS, CallId, MessageId, RequestId, Tag

STEP = Tag(RequestId("r"), MessageId("m"), 1)


def test_an_id_like_those_of_the_providers_is_shown_as_it_is() -> None:
    tag = STEP._replace(call_id=CallId("functions.look_up:0-é"))
    assert tag.shown() == {"request_id": "r", "parent_id": "m", "step": 1, "call_id": "functions.look_up:0-é"}


def test_line_ends_and_escapes_are_written_out() -> None:
    assert STEP._replace(call_id=CallId("a\n\x1b[31mb")).shown_call_id == r"a\n\x1b[31mb"


@given(st.text(st.characters(exclude_categories=[]), max_size=4 * MAX_SHOWN_CALL_ID_CHARS))
def test_any_id_is_printable_bounded_and_fit_for_utf_8(call_id: str) -> None:
    shown = STEP._replace(call_id=CallId(call_id)).shown_call_id
    assert shown.isprintable()
    assert len(shown.encode()) <= 10 * MAX_SHOWN_CALL_ID_CHARS
