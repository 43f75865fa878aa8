"""How the asker of a simulated request answers the calls that it ended with: wrongly first, then rightly."""

from __future__ import annotations

from collections.abc import Iterator

from callboard.actors.requests.client_tools import CallAnswer, CallResults
from callboard.actors.requests.conversation import Conversation
from callboard.protocol.commands import OpenTurn
from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import RequestId
from callboard.protocol.testing.scenario import Scenario


def _answers(turn: OpenTurn) -> tuple[CallAnswer, ...]:
    """One for each call, the last one first."""
    return tuple(CallAnswer(call.call_id, _says(call.call_id)) for call in reversed(turn.outside))


def _says(call_id: str) -> str:
    return f"the asker's {call_id}"


def _wrong_answers(turn: OpenTurn) -> Iterator[tuple[str, tuple[CallAnswer, ...]]]:
    right = _answers(turn)
    yield "answers for some calls", right[1:]
    yield "an answer for an unknown call", (*right, CallAnswer("of another turn", "x"))
    yield "two answers for one call", (*right, right[0])


def taken_wrongly(conversation: Conversation) -> Iterator[str]:
    """Each wrong answer must be refused, and change nothing; each right one becomes the result of its call."""
    turn, before = conversation.open_turn, conversation.to_json()
    assert turn is not None
    for what, answers in _wrong_answers(turn):
        try:
            conversation.going_on(CallResults(answers))
        except UsageError:
            continue
        yield f"answers: {what} were taken"
    if conversation.to_json() != before:
        yield "answers: wrong ones have changed the conversation"
    given = {call.call_id for call in turn.outside}
    for each in conversation.going_on(CallResults(_answers(turn))):
        if isinstance(each, ToolMessage) and each.call_id in given and each.content != _says(each.call_id):
            yield f"answers: call {each.call_id} has the result {each.content!r}"


def next_request(asked: Scenario, conversation: Conversation) -> Scenario:
    """The one that brings the answers, to a conversation that was saved and read back meanwhile."""
    request_id = RequestId(f"{asked.request_id}-next")
    talk = Conversation.from_json(conversation.to_json())
    assert talk.open_turn is not None
    talk.close_turn(talk.going_on(CallResults(_answers(talk.open_turn))), request_id)
    return Scenario(
        history=talk.messages,
        user=UserMessage(()),
        tools=asked.tools,
        askers_tools=asked.askers_tools,
        request_id=request_id,
    )
