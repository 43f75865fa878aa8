"""The tool that reads what a prompt no longer shows."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.read_earlier import FOUND_CHARS, MAX_FOUND, MAX_RESULT_CHARS, read, read_tool
from callboard.actors.tools import ToolContext
from callboard.protocol.commands import RunTool
from callboard.protocol.compaction import READ_TOOL
from callboard.protocol.content import AssistantMessage, Message, Text, ToolCall, ToolMessage, UserMessage
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import Isolation, Origin, Risk

LOOK = ToolName("look")
MESSAGES: tuple[Message, ...] = (
    UserMessage.of("What is the weather in Oslo?"),
    AssistantMessage((ToolCall(CallId("c"), LOOK, '{"city":"Oslo"}'),)),
    ToolMessage(CallId("c"), LOOK, "rain " * 5_000),
    AssistantMessage((Text("It rains in Oslo."),)),
)


def test_one_message_is_read_by_its_number() -> None:
    assert read(MESSAGES, 4, 0, "", 0) == "[4] assistant: It rains in Oslo."
    assert read(MESSAGES, 1, 2, "", 0) == (
        '[1] user: What is the weather in Oslo?\n\n[2] assistant: calls look({"city":"Oslo"})'
    )
    assert read(MESSAGES, 4, 9, "", 0) == "[4] assistant: It rains in Oslo."


def test_a_long_message_is_read_page_by_page() -> None:
    whole, offset = "", 0
    while True:
        page = read(MESSAGES, 3, 0, "", offset)
        text, _, more = page.partition("\n[")
        whole += text
        offset += MAX_RESULT_CHARS
        if not more:
            break
        assert f"go on with offset={offset}" in more
    assert whole == "[3] result of look: " + "rain " * 5_000
    assert read(MESSAGES, 3, 0, "", 10**6) == "There is nothing behind this offset."


def test_messages_are_found_by_words() -> None:
    assert read(MESSAGES, 0, 0, "oslo WEATHER", 0) == "[1] user: What is the weather in Oslo?"
    found = read(MESSAGES, 0, 0, "rain", 0).split("\n\n")
    assert [each[:3] for each in found] == ["[4]", "[3]"], "the latest first"
    assert len(found[1]) <= FOUND_CHARS + 60
    assert read(MESSAGES, 0, 0, "snow", 0) == "No message has all of these words; try fewer, or others."
    assert read(MESSAGES, 1, 4, "assistant weather", 0).startswith("There is nothing to read in these")
    many = read([UserMessage.of("the same")] * 50, 0, 0, "same", 0)
    assert many.endswith(f"[{50 - MAX_FOUND} older messages have them too.]")


@pytest.mark.parametrize(
    ("first", "last", "words", "told"),
    [
        (0, 0, " ", "give first, a number from 1 to 4, or words"),
        (5, 0, "", "there is no message 5; the conversation has 4 so far"),
        (3, 2, "", "first must be 1 or more, and last not before it; got 3 and 2"),
        (-1, 0, "", "first must be 1 or more"),
    ],
)
def test_what_names_no_message_is_an_error_the_model_can_use(first: int, last: int, words: str, told: str) -> None:
    with pytest.raises(ToolError, match=told):
        read(MESSAGES, first, last, words, 0)


def test_a_call_reads_the_conversation_of_its_own_request() -> None:
    conversations = {RequestId("a"): Conversation(MESSAGES), RequestId("b"): Conversation()}
    tool = read_tool(conversations.get)
    assert (tool.name, tool.contract.risk, tool.contract.isolation) == (READ_TOOL, Risk.READ, Isolation.TASK)
    assert (tool.origin, tool.contract.effect) == (Origin.OWNER, "repeat")
    tag = Tag(RequestId("a"), MessageId("a/user"), 1, CallId("c"))

    def called(tag: Tag) -> str:
        context = ToolContext(RunTool(tag, READ_TOOL, "{}", 0.0, "e"))
        answer = tool.function(context, first=1)
        assert asyncio.iscoroutine(answer)
        text = asyncio.run(answer)
        assert isinstance(text, str)
        return text

    assert called(tag) == "[1] user: What is the weather in Oslo?"
    with pytest.raises(ToolError, match="there is no message 1"):
        called(tag._replace(request_id=RequestId("b")))
    with pytest.raises(ToolError, match="no conversation any more"):
        called(tag._replace(request_id=RequestId("gone")))
    assert replace(tool.contract, origin=Origin.OWNER) == tool.contract
