"""What of a question is not written: keys and headers, of which the journal has the names."""

from __future__ import annotations

from callboard.actors.journal.encoding import rows_of
from callboard.actors.journal.journal_records import Write, unwritten, without_keys
from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.content import UserMessage
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.options import RequestOptions
from callboard.protocol.provider_options import ExtraFields, OpenAIOptions
from callboard.protocol.server_tools import CodeExecution, RemoteMcp, WebSearch

SERVER = RemoteMcp("files", "https://mcp.example", "sekret-1", headers={"x-team": "sekret-2"})
OPTIONS = RequestOptions(
    "p/m",
    server_tools=(WebSearch(3), SERVER, CodeExecution(("f",))),
    provider_options=(ExtraFields({"a": 1}, {"x-trial": "sekret-3"}), OpenAIOptions(verbosity="low")),
)


def started(options: RequestOptions) -> RequestStarted:
    return RequestStarted(Tag(RequestId("r"), MessageId("m")), 0.0, (), UserMessage.of("x"), options)


def test_tools_of_a_provider_and_its_options_round_trip() -> None:
    assert decode_event(encode_event(started(OPTIONS))) == started(OPTIONS)


def test_what_may_be_a_key_is_named_and_left_out() -> None:
    assert unwritten(OPTIONS) == ("authorization of files", "x-team", "x-trial")
    kept = without_keys(OPTIONS)
    assert unwritten(kept) == ()
    assert kept.server_tools == (WebSearch(3), RemoteMcp("files", "https://mcp.example"), CodeExecution(("f",)))
    assert kept.provider_options == (ExtraFields({"a": 1}), OpenAIOptions(verbosity="low"))
    assert without_keys(kept) is kept


def test_no_row_has_one() -> None:
    rows = rows_of(Write(RequestId("r"), 1, (started(OPTIONS),)), 0.0)
    assert b"mcp.example" in repr(rows).encode()
    assert b"sekret" not in repr(rows).encode()
