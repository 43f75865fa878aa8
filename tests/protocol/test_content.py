"""What its maker leaves out of a value is not there."""

from __future__ import annotations

from callboard.protocol.content import Image
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallTimedOut
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.model import Error

TAG = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))


def test_an_image_is_its_data_or_a_url() -> None:
    by_url, by_data = Image(url="https://x/y.png"), Image("image/png", "AAAA")
    assert (by_url.media_type, by_url.data_base64, by_data.url) == ("", "", "")


def test_an_error_without_an_answer_has_no_status_and_nothing_of_the_provider() -> None:
    error = Error(ErrorKind.CONNECTION, "cut")
    assert (error.status, error.code, error.raw, error.retry_after, error.retryable) == (0, "", "", None, False)


def test_a_tool_that_printed_nothing_has_no_output() -> None:
    ends = (ToolCallCompleted(TAG, 0.0, "1"), ToolCallTimedOut(TAG, 0.0), ToolCallCancelled(TAG, 0.0))
    assert [end.output for end in ends] == ["", "", ""]
