"""What a model reads of a failed call, what it costs to tell it of the tools, and the words that are written down."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

import pytest

from callboard.protocol.commands import Outcome
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import ToolName
from callboard.protocol.model import FinishReason, ToolChoiceMode
from callboard.protocol.options import ToolFallback
from callboard.protocol.prompt import tools_tokens
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.tools import Decision, FailureCode, Isolation, Latency, Risk, ToolDefinition, ToolFailure

WRITTEN: tuple[type[StrEnum], ...] = (
    CallState, Decision, ErrorKind, FailureCode, FinishReason, Isolation, Latency, Outcome, RequestState, Risk,
    ToolChoiceMode, ToolFallback,
)  # fmt: skip
OTHER_WORDS = {FinishReason.PAUSE: "pause_turn", ErrorKind.INTERNAL: "internal_error"}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_word_that_is_written_down_is_its_name(kind: type[StrEnum]) -> None:
    """Journals, histories and settings of an older version are read by a newer one."""
    for member in kind:
        assert member.value == OTHER_WORDS.get(member, member.name.lower())


def test_what_a_model_reads_of_a_failure() -> None:
    tool, code = ToolName("look"), FailureCode.CRASHED
    bare = {"ok": False, "tool": "look", "code": "crashed", "message": "it died"}
    nothing = dict.fromkeys(("field", "expected", "received", "retry_hint"))
    assert ToolFailure(tool, code, "it died").to_wire() == bare | nothing
    told = ToolFailure(tool, code, "it died", "days", "an integer", "'x'", "send a number").to_wire()
    assert told == bare | {"field": "days", "expected": "an integer", "received": "'x'", "retry_hint": "send a number"}


def test_the_tokens_of_a_tool_are_those_of_its_name_description_and_schema() -> None:
    schema = {"type": "object"}
    plain = ToolDefinition(ToolName("look"), "Looks.", schema)
    assert tools_tokens([plain, plain], len) == 2 * (len("look") + len("Looks.") + len('{"type":"object"}'))
    read_only = ToolDefinition(ToolName("look"), "Looks.", {"type": "object", "properties": MappingProxyType({})})
    assert tools_tokens([read_only], len) > tools_tokens([plain], len)
