"""Objects while they are written: never ahead of the text, whole at the end, at a cost that grows with the text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from callboard.actors.requests.outputs import output_type
from callboard.actors.requests.partial_outputs import PartialOutput, PartialReader
from callboard.protocol.content import UserMessage
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Done, FinishReason, Restarted, StreamEvent, TextDelta, ToolCallDelta, ToolCallStart
from callboard.protocol.options import RequestOptions
from callboard.protocol.output import OUTPUT_TOOL, OutputSpec

SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)
DONE = Done(FinishReason.STOP)


class Place(BaseModel):
    name: str
    people: int = 0


def reader(kind: Any = dict[str, object]) -> PartialReader:
    found = output_type(kind)
    assert found is not None
    return PartialReader(found)


def partials(items: Iterable[object]) -> list[object]:
    return [item.value for item in items if isinstance(item, PartialOutput)]


def pieces(text: str, size: int) -> list[StreamEvent]:
    return [TextDelta(text[at : at + size]) for at in range(0, len(text), size)]


def is_prefix(part: Any, whole: Any) -> bool:
    """Does `whole` begin with what is known of it?"""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and is_prefix(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) <= len(whole) and all(map(is_prefix, part, whole))
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    return part == whole or isinstance(whole, int | float)  # a number may go on


@given(OBJECTS, st.integers(1, 30))
def test_each_is_a_beginning_of_the_answer_and_the_last_is_all_of_it(value: Any, size: int) -> None:
    events = [*pieces(json.dumps(value, ensure_ascii=False), size), DONE]
    found = reader()
    seen = list(found.follow(events))
    assert [item for item in seen if not isinstance(item, PartialOutput)] == events
    shown = [*partials(seen), *partials(found.last(json.dumps(value)))]
    assert shown[-1] == value
    for part in shown:
        assert is_prefix(part, value)


def test_the_arguments_of_the_output_tool_are_followed_under_its_own_name_and_no_others() -> None:
    spec = OutputSpec({"type": "object"}, tool_name=ToolName("final_answer_2"))
    tag = Tag(RequestId("r"), MessageId("m"))
    start = RequestStarted(tag, 0.0, (), UserMessage.of("go"), RequestOptions("m", output=spec))
    other, own = CallId("a"), CallId("b")
    seen = reader(Place).follow(
        [
            start,
            TextDelta("I look."),
            ToolCallStart(other, OUTPUT_TOOL),
            ToolCallDelta(other, '{"name": "no"}'),
            ToolCallStart(own, spec.tool_name),
            ToolCallDelta(own, '{"name": "Os'),
            ToolCallDelta(other, '{"name": "no"}'),
            ToolCallDelta(own, 'lo", "people": 1'),
            ToolCallDelta(own, "0}"),
            DONE,
        ]
    )
    assert partials(seen) == [{"name": "Os"}, {"name": "Oslo", "people": 1}, {"name": "Oslo", "people": 10}]


def test_a_restart_and_a_new_turn_begin_from_nothing() -> None:
    seen = reader(Place).follow(
        [
            TextDelta('{"name": "A'),
            Restarted("again"),
            TextDelta('{"name": "B"}'),
            DONE,
            TextDelta('{"name": "C"}'),
            DONE,
        ]
    )
    assert partials(seen) == [{"name": "A"}, {"name": "B"}, {"name": "C"}]


def test_a_value_that_is_no_object_comes_without_the_field_around_it() -> None:
    seen = reader(list[int]).follow([*pieces('{"value": [1, 2, 3]}', 4), DONE])
    assert partials(seen)[-1] == [1, 2, 3]
    assert all(isinstance(value, list) for value in partials(seen))


@pytest.mark.parametrize("text", ['Here:\n```json\n{"name": "Oslo"}\n```', 'So {"name": "Oslo"} it is'])
def test_json_with_text_around_it_is_whole_at_the_end(text: str) -> None:
    found = reader(Place)
    shown = partials(found.follow([*pieces(text, 3), DONE]))
    assert all(is_prefix(part, {"name": "Oslo"}) for part in shown)
    assert [*shown, *partials(found.last(text))][-1] == {"name": "Oslo"}


def test_what_was_shown_is_not_shown_again_and_no_json_shows_nothing() -> None:
    found = reader(Place)
    assert partials(found.follow([TextDelta('{"name": "Oslo"}'), DONE])) == [{"name": "Oslo"}]
    assert partials(found.last('{"name": "Oslo"}')) == []
    assert partials(found.last("nothing")) == []
    assert partials(reader(Place).follow([TextDelta("nothing"), DONE])) == []


@pytest.mark.parametrize("size", [10_000, 100_000, 400_000])
def test_a_long_answer_in_small_pieces_is_read_a_few_times(size: int) -> None:
    """Each reading is of a text an eighth longer than the one before: about 20 readings for each power of ten."""
    text = json.dumps({"items": ["x" * 40] * (size // 44)})
    found = reader()
    shown = partials(found.follow([*pieces(text, 4), DONE]))
    assert 10 < len(shown) < 20 * len(str(size))
    assert sum(len(json.dumps(value)) for value in shown) < 12 * len(text)
