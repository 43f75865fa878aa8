"""Hypothesis strategies: histories, model turns, tool outcomes, stream events, byte chunkings, whole scenarios.

They shrink towards the plain: no fault, one call, one turn.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from hypothesis import strategies as st

from callboard.protocol.content import (
    AssistantMessage,
    Message,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, Usage
from callboard.protocol.options import RequestOptions, ToolFallback
from callboard.protocol.stream import (
    Done,
    Error,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
)
from callboard.protocol.testing.scenario import (
    STANDARD_TOOLS,
    ModelDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    ToolDoes,
)

#: Larger than nearly all real requests, small enough to be played by the thousand.
MAX_TURNS: Final = 6
MAX_PARALLEL_CALLS: Final = 8

_NAMES: Final = tuple(offer.definition.name for offer in STANDARD_TOOLS)
#: Few ids and arguments, so that they collide; "" and "{..." are what sloppy servers send.
_CALL_IDS: Final = ("a", "b", "c", "d", "")
_ARGUMENTS: Final = ("{}", '{"x":1}', '{"x":2}', '{ "x": 1 }', '{"x":', "[1]", "")


def texts(max_size: int = 20) -> st.SearchStrategy[str]:
    """Texts that can be written as UTF-8."""
    return st.text(st.characters(codec="utf-8"), max_size=max_size)


def json_values() -> st.SearchStrategy[Any]:
    """Whatever JSON can hold and give back unchanged."""
    leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | texts()
    leaves = leaves.filter(lambda value: value not in (float("inf"), float("-inf")))
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(8), inner, max_size=3), max_leaves=8
    )


def replays() -> st.SearchStrategy[Replay | None]:
    """Provider data on a part, mostly none."""
    data = st.dictionaries(st.sampled_from(("signature", "id", "$")), json_values(), max_size=2)
    return st.none() | st.builds(Replay, st.sampled_from(("anthropic", "gemini", "openai-responses")), data)


# Histories.


def _results() -> st.SearchStrategy[str]:
    return texts() | st.just("x" * 1_500)


@st.composite
def _exchange(draw: st.DrawFn) -> list[Message]:
    names = draw(st.lists(st.sampled_from(_NAMES), max_size=3))
    parts: list[Any] = [Text(draw(texts()) or "x", draw(replays()))]
    if draw(st.booleans()):
        parts.insert(0, Thinking(draw(texts()), draw(replays())))
    calls = [
        ToolCall(CallId(f"h{index}"), name, draw(st.sampled_from(_ARGUMENTS[:3]))) for index, name in enumerate(names)
    ]
    results = [ToolMessage(call.call_id, call.name, draw(_results()), draw(st.booleans())) for call in calls]
    messages: list[Message] = [UserMessage.of(draw(texts())), AssistantMessage((*parts, *calls)), *results]
    noted = draw(st.booleans())
    if results and noted:
        messages.append(SystemMessage("a note after the results"))
    return messages


def histories(max_exchanges: int = 4) -> st.SearchStrategy[tuple[Message, ...]]:
    """Conversations that are legal for every provider."""
    return st.lists(_exchange(), max_size=max_exchanges).map(
        lambda exchanges: tuple(message for exchange in exchanges for message in exchange)
    )


# What model, tools and people will do.


def seconds(longest: float = 12.0) -> st.SearchStrategy[float]:
    """Virtual durations, in quarters: equal times are likely, and so are both sides of a 5 s deadline."""
    return st.integers(1, int(longest * 4)).map(lambda quarters: quarters / 4)


def tool_outcomes() -> st.SearchStrategy[ToolDoes]:
    """What becomes of a run of a tool, all equally likely."""
    return st.sampled_from(ToolDoes)


def planned_calls() -> st.SearchStrategy[PlannedCall]:
    """A call with its fate; one in eight names no tool that exists."""
    return st.builds(
        PlannedCall,
        st.sampled_from((*_NAMES, *_NAMES, ToolName("nowhere"))),
        st.sampled_from(_ARGUMENTS),
        st.sampled_from(_CALL_IDS),
        tool_outcomes(),
        seconds(),
        st.sampled_from(PersonDoes),
        seconds(),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    )


def model_turns(max_calls: int = MAX_PARALLEL_CALLS) -> st.SearchStrategy[PlannedTurn]:
    """A turn of the model with its fate; every finish reason with any content."""
    return st.builds(
        PlannedTurn,
        st.sampled_from(("", "let me look")),
        st.lists(planned_calls(), max_size=max_calls).map(tuple),
        st.none() | st.sampled_from(FinishReason),
        st.sampled_from((*[ModelDoes.ANSWER] * 8, *ModelDoes)),
        seconds(),
        st.sampled_from((1, 8, 40)),
        st.booleans(),
        st.booleans(),
    )


def request_options() -> st.SearchStrategy[RequestOptions]:
    """Options with any mixture of limits, tight enough to be met."""
    return st.builds(
        RequestOptions,
        model=st.just("sim/model"),
        system_prompt=st.sampled_from(("", "be brief")),
        timeout_seconds=st.sampled_from((1_800.0, 120.0, 20.0, 6.0)),
        max_steps=st.sampled_from((32, 3, 1)),
        token_budget=st.none() | st.integers(10, 3_000),
        cost_budget=st.none() | st.sampled_from((0.01, 0.1, 1.0)),
        input_price=st.none() | st.just(1e-5),
        output_price=st.none() | st.just(1e-4),
        context_tokens=st.none() | st.integers(50, 1_500),
        tool_fallback=st.sampled_from(ToolFallback),
        repeated_call_limit=st.sampled_from((3, 2, 1)),
        max_step_retries=st.sampled_from((2, 0, 1)),
    )


def moments(longest: float = 30.0) -> st.SearchStrategy[tuple[float, ...]]:
    """At most two times at which something is done to a request."""
    return st.lists(seconds(longest), max_size=2).map(tuple)


def scenarios(max_turns: int = MAX_TURNS, max_calls: int = MAX_PARALLEL_CALLS) -> st.SearchStrategy[Scenario]:
    """Whole requests with every kind of fault, under the standard tools."""
    return st.builds(
        Scenario,
        turns=st.lists(model_turns(max_calls), max_size=max_turns).map(tuple),
        history=histories(2),
        options=request_options(),
        tools=st.just(STANDARD_TOOLS),
        cancel_at=st.none() | seconds(30.0),
        restart_at=moments(),
        tools_lost_at=moments(),
        foreign_at=moments(),
        latency_seconds=st.sampled_from((0.0, 0.5)),
    )


# Streams and bytes, for adapters.


@st.composite
def stream_events(draw: st.DrawFn, max_parts: int = 5) -> list[StreamEvent]:
    """One legal stream: text, thinking and calls in pieces, ended by exactly one Done or Error."""
    events: list[StreamEvent] = []
    for index in range(draw(st.integers(0, max_parts))):
        pieces = draw(st.lists(texts(), min_size=1, max_size=3))
        match draw(st.sampled_from(("text", "thinking", "call"))):
            case "text":
                events += [TextDelta(piece, index) for piece in pieces]
            case "thinking":
                events += [ThinkingDelta(piece, index) for piece in pieces]
            case _:
                events += _call_events(CallId(f"c{index}"), draw(st.sampled_from(_NAMES)), whole=draw(st.booleans()))
    usage = Usage(draw(st.integers(0, 1_000)), draw(st.integers(0, 1_000)))
    reason = draw(st.sampled_from(FinishReason))
    whole = draw(st.booleans())
    events.append(Done(reason, str(reason), usage) if whole else Error(ErrorKind.TRUNCATED, "cut", True))
    return events


def _call_events(call_id: CallId, name: ToolName, *, whole: bool) -> list[StreamEvent]:
    pieces: list[StreamEvent] = [
        ToolCallStart(call_id, name),
        ToolCallDelta(call_id, '{"x"'),
        ToolCallDelta(call_id, ":1}"),
    ]
    return [*pieces, ToolCallComplete(call_id)] if whole else pieces[:2]


@st.composite
def chunkings(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes as a socket may deliver them: cut anywhere, in the middle of a character or a line end too."""
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=12).map(sorted)) if data else []
    edges = [0, *cuts, len(data)]
    return [data[start:end] for start, end in pairwise(edges)]
