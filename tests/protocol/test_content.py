"""Parts and messages, atoms, and what makes a history legal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    half_arguments,
    history_faults,
    object_fault,
    split_atoms,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallTimedOut
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import MAX_HALF_CHARS
from callboard.protocol.model import Error
from callboard.protocol.testing.strategies import histories

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


LOOK = ToolName("look")


def turn(*ids: str, arguments: str = "{}") -> AssistantMessage:
    return AssistantMessage(tuple(ToolCall(CallId(name), LOOK, arguments) for name in ids))


def result(name: str, content: str = "1", tool: str = "look") -> ToolMessage:
    return ToolMessage(CallId(name), ToolName(tool), content)


@given(histories())
def test_drawn_histories_are_legal_and_atoms_put_together_are_the_history(history: tuple[Message, ...]) -> None:
    assert history_faults(history) == []
    atoms = split_atoms(history)
    assert tuple(message for atom in atoms for message in atom) == history
    assert all(history_faults(atom) == [] for atom in atoms)


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ((result("a"),), "follows no turn"),
        ((turn("a"),), "'a' has no result directly after its turn"),
        ((turn("a"), UserMessage.of("?"), result("a")), "'a' has no result directly after its turn"),
        ((turn("a"), SystemMessage("note"), result("a")), "'a' has no result directly after its turn"),
        ((turn("a", "b"), result("b"), result("a")), "result 1 is of 'b'"),
        ((turn("a"), result("a", tool="other")), "result 1 is of 'a' (other)"),
        ((turn("a"), result("a"), result("a")), "follows no turn"),
        ((turn("a", "a"), result("a"), result("a")), "share an id"),
        ((turn(""), result("")), "has no id"),
        ((turn("a", arguments="{"), result("a")), "not a JSON object"),
        ((AssistantMessage(()),), "without any part"),
    ],
)
def test_what_makes_a_history_illegal(history: tuple[Message, ...], fault: str) -> None:
    assert fault in "; ".join(history_faults(history))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "nothing came"),
        ('{"x":1}', ""),
        ('{"x":"a\nb"}', ""),  # read all the same
        ('{"x":', "they end too early, after 5 characters"),
        ('{"x":"half a te', "they end too early, after 15 characters"),
        # In the words of Python's parser, which change from version to version.
        ('{"x":1}{"y":2}', """at character 8, '{', near '{"x":1}{"y":2}'"""),
        ('{"x":1} and so on', """at character 9, 'a', near '{"x":1} and so on'"""),
        ('{"x":1,}', """, near '{"x":1,}'"""),
        ('{"x":"a\\\n"}', "Invalid"),
        ("{'x':1}", "at character 2, "),
        ("[1]", "they are a list"),
        ('"x"', "they are a text"),
        ("true", "they are true or false"),
        ("7", "they are a number"),
        ('{"x":"\\ud83d"}', "\\ud83d is half of a character"),
        ('{"\\udc00":1}', "\\udc00 is half of a character"),
        ('{"x":"\\ud83d\\ude00"}', ""),
        ("[" * 100_000, "recursion"),
    ],
)
def test_what_keeps_arguments_from_being_an_object(text: str, fault: str) -> None:
    assert fault in object_fault(text)
    assert bool(object_fault(text)) == bool(fault)


def test_a_model_sees_its_own_half_arguments() -> None:
    assert half_arguments("") == half_arguments("{}") == "{}"
    for text in ('{"x":', "[1]", "x\ny", "\ud800"):
        once = half_arguments(text)
        assert json.loads(once) == {"incomplete_arguments": text.replace("\ud800", "?")}
        assert half_arguments(once) == once
    long = json.loads(half_arguments("x" * (MAX_HALF_CHARS + 7)))["incomplete_arguments"]
    assert long == "x" * MAX_HALF_CHARS + "... (7 characters more)"
