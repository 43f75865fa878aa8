"""Events of the Responses API: our own adapter reads them as what they were written from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.client_wires import read_by

from callboard.actors.daemon import response_runs
from callboard.actors.daemon.client_question import outside_call_id
from callboard.actors.daemon.response_objects import begun
from callboard.actors.daemon.response_records import ResponseRecord
from callboard.actors.daemon.response_runs import sent_events
from callboard.actors.daemon.responses_body import read_responses_body
from callboard.actors.daemon.responses_input import messages_of
from callboard.actors.requests.replies import Reply
from callboard.protocol.commands import CallOutside, Outcome, RunTool
from callboard.protocol.content import AssistantMessage, Replay, Thinking, ToolCall
from callboard.protocol.events import ToolCallCompleted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Done, FinishReason, ModelResponse, Restarted, TextDelta, ThinkingDelta, Usage
from callboard.providers import adapter_for
from callboard.providers.response_builder import ResponseBuilder

ADAPTER = adapter_for("openai-responses", base_url="http://127.0.0.1:1/v1", api_key="k")
WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
#: A turn's blocks of text and thinking, each in pieces.
BLOCKS = st.lists(
    st.tuples(st.sampled_from((TextDelta, ThinkingDelta)), st.lists(WORDS, min_size=1, max_size=3)), max_size=3
)
ARGUMENTS = st.dictionaries(WORDS, st.none() | st.booleans() | st.integers(-9, 9) | WORDS, max_size=2)
CALLS = st.lists(st.tuples(st.sampled_from(("f", "g")), ARGUMENTS), max_size=3)
REASONS = st.sampled_from((FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTENT_FILTER))


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    most_in, most_out = draw(st.integers(1, 10_000)), draw(st.integers(1, 10_000))
    cached, reasoning = draw(st.integers(0, most_in)), draw(st.integers(0, most_out))
    return Usage(most_in, most_out, cached_tokens=cached, reasoning_tokens=reasoning)


def tag_of(call_id: str, step: int = 1) -> Tag:
    return Tag(RequestId("r1"), MessageId("m"), step, CallId(call_id))


def items_of_turns(turns: Sequence[Sequence[tuple[type, list[str]]]]) -> list[object]:
    """What the turns show, each with its end. Behind all but the last a tool of the daemon runs."""
    found: list[object] = []
    for step, turn in enumerate(turns, 1):
        if step > 1:
            tag = tag_of("own", step)
            found += [RunTool(tag, ToolName("own"), "{}", 1.0, "e"), ToolCallCompleted(tag, 1.0, "done")]
        for block, (kind, texts) in enumerate(turn):
            found += [kind(text, block) for text in texts]
        found.append(Done(FinishReason.STOP))
    return found


def reply_of(reason: FinishReason, usage: Usage | None, calls: tuple[ToolCall, ...] = ()) -> Reply[object]:
    outcome = Outcome.CALLS_OUTSIDE if calls else Outcome.ANSWERED
    return Reply("", usage, RequestId("r1"), outcome, (), None, (), "", finish_reason=reason, outside_calls=calls)


def sent(items: Sequence[object], *, shows_encrypted: bool = False) -> bytes:
    """The bytes of the response whose request has shown these."""
    first = begun(read_responses_body(b'{"model": "m", "input": "x"}'), "m", "r1", 0.0)
    record = ResponseRecord("r1", 0.0, "", [], first, shows_encrypted, has_form=False)

    async def followed(*_: object) -> AsyncGenerator[object, None]:
        for item in items:
            yield item

    async def read() -> bytes:
        return b"".join([data async for data in sent_events(None, record)])  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(response_runs, "_followed", followed)
        return asyncio.run(read())


def read_back(data: bytes) -> ModelResponse:
    events = read_by(ADAPTER, data, streaming=True)
    assert not [event for event in events if isinstance(event, Restarted)]  # no item ends otherwise than it came
    builder = ResponseBuilder()
    builder.feed(events)
    return builder.response()


@given(st.lists(BLOCKS, min_size=1, max_size=3), CALLS, REASONS, st.none() | usages())
def test_a_stream_is_read_as_it_was_written(
    turns: list[list[tuple[type, list[str]]]],
    asked: list[tuple[str, dict[str, object]]],
    reason: FinishReason,
    usage: Usage | None,
) -> None:
    calls = tuple(
        ToolCall(CallId(f"c{number}"), ToolName(name), orjson.dumps(arguments).decode())
        for number, (name, arguments) in enumerate(asked)
    )
    outside = [CallOutside(tag_of(call.call_id), call) for call in calls]
    reason = FinishReason.TOOL_CALLS if calls else reason
    found = read_back(sent([*items_of_turns(turns), *outside, reply_of(reason, usage, calls)]))

    def said(wanted: type) -> str:
        return "".join(text for turn in turns for kind, texts in turn for text in texts if kind is wanted)

    assert (found.text, found.thinking) == (said(TextDelta), said(ThinkingDelta))
    assert [(call.call_id, call.name, call.arguments) for call in found.tool_calls] == [
        (outside_call_id("r1", number), call.name, call.arguments) for number, call in enumerate(calls)
    ]
    assert (found.finish_reason, found.error, found.usage) == (reason, None, usage)


@given(st.text(max_size=9), st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=2))
def test_what_a_provider_has_encrypted_goes_to_the_client_and_comes_back(text: str, data: dict[str, str]) -> None:
    replay = Replay("openai", data)
    items = [ThinkingDelta(text, 0, replay), Done(FinishReason.STOP), reply_of(FinishReason.STOP, None)]
    last = orjson.loads(sent(items, shows_encrypted=True).rpartition(b"data: ")[2])["response"]
    (turn,) = messages_of(last["output"])
    assert turn == AssistantMessage((Thinking(text, replay),))
    hidden = orjson.loads(sent(items).rpartition(b"data: ")[2])["response"]
    assert "encrypted_content" not in (hidden["output"] or [{}])[0]
