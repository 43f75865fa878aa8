"""Hypothesis strategies: histories, model turns, tool outcomes, stream events, byte chunkings, whole scenarios.

They shrink towards the plain: no fault, one call, one turn.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from callboard.protocol import limits
from callboard.protocol.content import Audio, Citation, Document, Image, Message, Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    CitationDelta,
    Done,
    Error,
    FinishReason,
    MediaDelta,
    ReplayDelta,
    ServerToolEvent,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing import drawing, generator, oddities
from callboard.protocol.testing.scenario import STANDARD_TOOLS, PlannedCall, PlannedTurn, Scenario, ToolDoes
from callboard.protocol.tools import Effect, Isolation, Latency, Origin, Risk, ToolContract

_NAMES: Final = tuple(offer.definition.name for offer in STANDARD_TOOLS)
_MEDIA: Final[tuple[type[Image] | type[Audio] | type[Document], ...]] = (Image, Audio, Document)
_Item = TypeVar("_Item")


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


# The one generator, with Hypothesis to choose.


class _Drawn:
    """Decisions drawn by Hypothesis, which can make them smaller."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, options: Sequence[_Item]) -> _Item:
        return self._draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def text(self) -> str:
        return self._draw(texts())


def _drawn(make: Callable[..., _Item], *arguments: Any, **named: Any) -> st.SearchStrategy[_Item]:
    """What a function of the generator makes, as a strategy."""

    @st.composite
    def strategy(draw: st.DrawFn) -> _Item:
        return make(_Drawn(draw), *arguments, **named)

    return strategy()


def histories(max_exchanges: int = 4) -> st.SearchStrategy[tuple[Message, ...]]:
    """Conversations that are legal for every provider: also with a leading system message, and with old tool calls."""
    return _drawn(drawing.draw_history, max_exchanges)


def tool_outcomes() -> st.SearchStrategy[ToolDoes]:
    """What becomes of a run of a tool, all equally likely."""
    return st.sampled_from(ToolDoes)


def contracts() -> st.SearchStrategy[ToolContract]:
    """Contracts of every risk, undeclared too, and of every origin."""
    return st.builds(
        ToolContract,
        risk=st.sampled_from(Risk),
        timeout_seconds=st.floats(0, limits.MAX_TOOL_TIMEOUT_SECONDS, exclude_min=True),
        isolation=st.sampled_from(Isolation),
        concurrency=st.integers(1, 1_000),
        latency=st.sampled_from(Latency),
        effect=st.sampled_from(Effect),
        needs_approval=st.booleans(),
        origin=st.sampled_from(Origin),
    )


def planned_calls() -> st.SearchStrategy[PlannedCall]:
    """A call with its fate; some name no tool that exists."""
    return _drawn(drawing.draw_call)


def model_turns(max_calls: int = drawing.MAX_PARALLEL_CALLS) -> st.SearchStrategy[PlannedTurn]:
    """A turn of the model with its fate."""
    return _drawn(drawing.draw_turn, max_calls)


def turns_that_ask_back(max_calls: int = 4) -> st.SearchStrategy[PlannedTurn]:
    """A turn with calls of the asker's own tools (`ASKERS_TOOLS`), alone or beside others."""
    return _drawn(lambda choices: oddities.ask_back(choices, drawing.draw_turn(choices, max_calls)))


def request_options() -> st.SearchStrategy[RequestOptions]:
    """Options of a request: mostly generous, sometimes any mixture of tight limits."""
    return _drawn(lambda choices: drawing.draw_tool_options(choices, drawing.draw_options(choices)))


def scenarios(
    max_turns: int = drawing.MAX_TURNS, max_calls: int = drawing.MAX_PARALLEL_CALLS, *, restarts: bool = True
) -> st.SearchStrategy[Scenario]:
    """Whole requests with every kind of fault; `restarts` also lets the process die and its journal be slow."""
    return _drawn(generator.draw_scenario, max_turns=max_turns, max_calls=max_calls, restarts=restarts)


def seconds(longest: float = 12.0) -> st.SearchStrategy[float]:
    """Virtual durations, in quarters: equal times are likely, and so are both sides of a deadline."""
    return st.integers(1, int(longest * 4)).map(lambda quarters: quarters / 4)


# Streams and bytes, for adapters.


@st.composite
def stream_events(draw: st.DrawFn, max_parts: int = 5) -> list[StreamEvent]:
    """One legal stream: all kinds of parts, in pieces, ended by exactly one Done or Error."""
    events: list[StreamEvent] = []
    for index in range(draw(st.integers(0, max_parts))):
        pieces = draw(st.lists(texts(), min_size=1, max_size=3))
        match draw(st.sampled_from(("text", "thinking", "call", "cited", "server tool", "media"))):
            case "text":
                events += [TextDelta(piece, index) for piece in pieces]
            case "thinking":
                events += [ThinkingDelta(piece, index) for piece in pieces]
                events += [ReplayDelta(each, index) for each in (draw(replays()),) if each is not None]
            case "cited":
                source = Citation(pieces[0], start=draw(st.none() | st.integers(0, 20)), raw={"at": index})
                events += [TextDelta(piece, index) for piece in pieces]
                events.insert(draw(st.integers(0, len(events))), CitationDelta((source,), index))
            case "server tool":
                replay = Replay("anthropic", {"id": index})
                events.append(ServerToolEvent("web_search_call", replay, "web_search", f"s{index}", pieces[0]))
            case "media":
                kind = draw(st.sampled_from(_MEDIA))
                data = [b64encode(piece.encode()).decode() for piece in pieces]
                events += [MediaDelta(kind("text/plain", each), index) for each in data]
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
