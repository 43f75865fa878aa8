"""Answers of Chat Completions: our own adapter reads them as what they were written from."""

from __future__ import annotations

from pathlib import Path

import orjson
from hypothesis import given
from hypothesis import strategies as st
from support.answer_samples import ABOUT, pieces, reasons, told, usages
from support.client_wires import read_by

from callboard.actors.daemon.answer_pieces import Piece
from callboard.actors.daemon.api_errors import ApiError, error_of
from callboard.actors.daemon.chat_answers import ChatStream, joined_text, whole_chat
from callboard.protocol.errors import ProviderError
from callboard.protocol.model import Done, Error, ErrorKind, FinishReason, Usage
from callboard.providers.openai.chat_api import OpenAIChat

ADAPTER = OpenAIChat(api_key="k")


@given(pieces(), reasons(), st.none() | usages())
def test_a_stream_is_read_as_it_was_written(found: list[Piece], reason: FinishReason, usage: Usage | None) -> None:
    writer = ChatStream("r1", "m", includes_usage=True)
    data = b"".join((writer.begin(), *map(writer.write, found), writer.end(reason, usage, ABOUT)))
    events = read_by(ADAPTER, data, streaming=True)
    assert told(events) == told_of(found)
    done = events[-1]
    assert isinstance(done, Done)
    if usage is not None and usage.total_tokens:
        assert done.usage is not None
        assert (done.usage.input_tokens, done.usage.output_tokens) == (usage.input_tokens, usage.output_tokens)


@given(pieces(), reasons(), st.none() | usages())
def test_a_whole_answer_says_what_the_stream_says(
    found: list[Piece], reason: FinishReason, usage: Usage | None
) -> None:
    document = whole_chat("r1", "m", found, reason, usage, ABOUT)
    events = read_by(ADAPTER, orjson.dumps(document), streaming=False)
    assert told(events) == told_of(found)
    assert document["callboard"] == ABOUT


def told_of(found: list[Piece]) -> tuple[str, str, list[tuple[str, str, str]]]:
    _, thinking, calls = told(found)
    return joined_text(found), thinking, calls


def test_an_error_in_a_stream_is_read_as_one() -> None:
    writer = ChatStream("r1", "m", includes_usage=False)
    data = writer.begin() + writer.fail(ApiError(503, "provider_overloaded", "busy"))
    assert isinstance(read_by(ADAPTER, data, streaming=True)[-1], Error)


def test_the_page_has_the_code_and_status_of_each_failure_of_a_provider() -> None:
    page = (Path(__file__).parents[3] / "docs/endpoints.md").read_text()
    for kind in ErrorKind:
        found = error_of(ProviderError(kind, "no"))
        assert any(f"`{found.code}`" in line and str(found.status) in line for line in page.splitlines()), kind
