"""A history for a model that takes no tools, and what a session shows such a model."""

from __future__ import annotations

from hypothesis import given

from callboard.protocol.calls_as_text import calls_as_text
from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
    split_atoms,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.testing.strategies import histories
from callboard.protocol.testing.told_calls import in_words

CALL = ToolCall(CallId("a"), ToolName("look"), '{"x":1}', replay=Replay("gemini", {"signature": "s"}))
RESULT = ToolMessage(CallId("a"), ToolName("look"), "seen")


def test_a_call_is_a_sentence_and_a_result_a_message_of_the_user() -> None:
    turn = AssistantMessage((Thinking("hm", Replay("anthropic", {})), Text("I look.", Replay("gemini", {})), CALL))
    told = calls_as_text((UserMessage.of("go"), turn, RESULT, SystemMessage("a note")))
    assert told == (
        UserMessage.of("go"),
        AssistantMessage((Text("I look."), Text('\n[Called look with {"x":1}]'))),
        UserMessage.of("[look returned]\nseen"),
        SystemMessage("a note"),
    )


def test_pictures_of_a_result_stay() -> None:
    picture = Image("image/png", "AAAA")
    told = calls_as_text((ToolMessage(CallId("a"), ToolName("shot"), "done", media=(picture,)),))
    assert told == (UserMessage((Text("[shot returned]\ndone"), picture)),)


def test_a_turn_without_calls_stays_as_it_is() -> None:
    turn = AssistantMessage((Thinking("hm", Replay("anthropic", {})), Text("Yes.")))
    assert calls_as_text((turn,)) == (turn,)


@given(histories())
def test_no_call_or_result_is_left_and_nothing_else_is_changed(history: tuple[Message, ...]) -> None:
    told = calls_as_text(history)
    assert not history_faults(told)
    assert all(not isinstance(message, ToolMessage) for message in told)
    assert all(not message.tool_calls for message in told if isinstance(message, AssistantMessage))
    kept = [message for message in history if isinstance(message, UserMessage | SystemMessage)]
    assert [message for message in told if message in kept] == kept
    assert told == in_words(history), "as the rules read it"
    assert told == tuple(message for atom in split_atoms(history) for message in calls_as_text(atom))
