"""Anthropic through the whole runtime: how long its prompts are kept, paused turns, and notes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, RawAnswer, WireDouble
from callboard.protocol.commands import Outcome
from callboard.protocol.model import PromptCache, Sampling

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "grass"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def whole(*content: dict[str, Any], reason: str = "end_turn", **more: Any) -> RawAnswer:
    usage = {"input_tokens": 9, "output_tokens": 3}
    document = {"type": "message", "id": "msg_1", "model": "claude-x", "content": content, "stop_reason": reason}
    return RawAnswer(json.dumps({**document, "usage": usage, **more}), headers={"content-type": "application/json"})


def settings_for(server: WireDouble, **more: Any) -> Settings:
    address = server.base_url(Api.ANTHROPIC)
    return Settings(model="anthropic/claude-x", base_url=address, api_key="a-key", context_tokens=8_000, **more)


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("cache", "control"),
    [("off", None), ("5m", {"type": "ephemeral"}), ("1h", {"type": "ephemeral", "ttl": "1h"})],
)
async def test_the_setting_says_how_long_prompts_are_kept(cache: str, control: dict[str, str] | None) -> None:
    with shared_double([whole(said("Hi"))]) as server:
        async with Runtime(settings_for(server, prompt_cache=PromptCache(cache))) as runtime:
            await runtime.ask("go")
        (asked,) = server.requests()
        assert asked.body["messages"][-1]["content"][-1].get("cache_control") == control


async def test_a_paused_turn_is_sent_back_as_it_is_and_goes_on() -> None:
    answers = [whole(SEARCH, reason="pause_turn"), whole(FOUND, said("Green."))]
    with shared_double(answers) as server:
        async with Runtime(settings_for(server)) as runtime:
            reply = await runtime.ask("What colour is grass?")
        _, resumed = server.requests()
    assert (reply.outcome, reply.text) == (Outcome.ANSWERED, "Green.")
    assert resumed.body["messages"][-1] == {"role": "assistant", "content": [SEARCH]}


async def test_what_the_request_lost_and_what_the_answer_says_are_both_noted() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Not this."}
    with shared_double([whole(said("No."), reason="refusal", stop_details=details)]) as server:
        async with Runtime(settings_for(server, sampling=Sampling(seed=1))) as runtime:
            reply = await runtime.ask("go")
    assert any("seed" in note for note in reply.notes)
    assert any("refusal: cyber: Not this." in note for note in reply.notes)
