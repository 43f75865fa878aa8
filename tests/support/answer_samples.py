"""Answers in pieces, for the writers of stateless APIs."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from callboard.actors.daemon.answer_pieces import CallPiece, Piece, TextPiece, ThinkingPiece
from callboard.actors.daemon.client_question import outside_call_id
from callboard.protocol.content import ToolCall
from callboard.protocol.ids import ToolName
from callboard.protocol.model import (
    FinishReason,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

ABOUT: dict[str, object] = {"request_id": "r1", "notes": []}
_WORDS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    """One legal answer: turns of thinking and text, and calls for the client at its end."""
    found: list[Piece] = []
    turns = draw(st.integers(1, 3))
    for turn in range(turns):
        for block, kind in enumerate(draw(st.lists(st.sampled_from(("text", "thinking")), max_size=3))):
            for text in draw(st.lists(_WORDS, min_size=1, max_size=3)):
                found.append(
                    TextPiece(text, turn, block) if kind == "text" else ThinkingPiece(text, turn=turn, block=block)
                )
    for number in range(draw(st.integers(0, 2))):
        call = ToolCall(outside_call_id("r1", number), ToolName(draw(st.sampled_from(("f", "g")))), '{"a":1}')
        found.append(CallPiece(call, turns - 1))
    return found


def reasons() -> st.SearchStrategy[FinishReason]:
    """Why a whole turn ended."""
    return st.sampled_from((FinishReason.STOP, FinishReason.TOOL_CALLS))


def usages() -> st.SearchStrategy[Usage]:
    """Of one request."""
    return st.builds(Usage, st.integers(1, 10_000), st.integers(0, 10_000))


def told(found: Iterable[object]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Text, thinking and calls (id, name, arguments) of pieces, or of events."""
    text = thinking = ""
    calls: dict[str, tuple[str, str]] = {}
    whole: set[str] = set()
    for each in found:
        match each:
            case TextPiece(text=said) | TextDelta(text=said):
                text += said
            case ThinkingPiece(text=said) | ThinkingDelta(text=said):
                thinking += said
            case CallPiece(call=call):
                calls[call.call_id] = call.name, call.arguments
                whole.add(call.call_id)
            case ToolCallStart(id=call_id, name=name):
                calls[call_id] = name, ""
            case ToolCallDelta(id=call_id, args_delta=more):
                calls[call_id] = calls[call_id][0], calls[call_id][1] + more
            case ToolCallComplete(id=call_id):
                whole.add(call_id)
    assert whole == set(calls)
    return text, thinking, [(call_id, *call) for call_id, call in calls.items()]
