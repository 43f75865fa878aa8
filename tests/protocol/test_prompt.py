"""What the next model call is given, and whether there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from callboard.protocol.budgets import Stop
from callboard.protocol.content import UserMessage
from callboard.protocol.model import ModelRequest
from callboard.protocol.options import RequestOptions
from callboard.protocol.prompt import PromptBuilder, message_tokens, tools_tokens
from callboard.protocol.testing.scenario import STANDARD_TOOLS

QUESTION = UserMessage.of("What is this?")


def length(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(("missing", "kind"), [(0, ModelRequest), (1, Stop)])
def test_tools_that_are_no_longer_offered_take_no_room(missing: int, kind: type) -> None:
    room = message_tokens(QUESTION, length) - missing
    options = replace(RequestOptions("m"), context_tokens=room)
    asking = PromptBuilder(options, (), QUESTION, STANDARD_TOOLS, length)
    assert isinstance(asking.next_request(again=False), Stop)
    asking.give_up_tools()
    assert isinstance(asking.next_request(again=False), kind)


def test_tools_that_are_offered_take_room() -> None:
    room = message_tokens(QUESTION, length) + tools_tokens([offer.definition for offer in STANDARD_TOOLS], length)
    for context_tokens, kind in ((room, ModelRequest), (room - 1, Stop)):
        options = replace(RequestOptions("m"), context_tokens=context_tokens)
        asking = PromptBuilder(options, (), QUESTION, STANDARD_TOOLS, length)
        assert isinstance(asking.next_request(again=False), kind)
