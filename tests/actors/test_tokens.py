"""Tokens on a real runtime: the model's own tokenizer, what providers' counts change, and that nothing is invented."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quicktok  # type: ignore[import-untyped]
from support.shared_double import shared_double

from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, Call, Tokens, Turn
from callboard.actors.tools import tool
from callboard.protocol.content import ToolMessage
from callboard.protocol.events import RequestStarted
from callboard.protocol.model import Usage
from callboard.protocol.prompt_tokens import MESSAGE_OVERHEAD_TOKENS, estimate_tokens
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

LONG = "The quick brown fox jumps over the lazy dog. " * 300


def needed(runtime: Runtime) -> int:
    """What the runtime says a prompt needs that fits into no window."""
    with pytest.raises(RequestEnded, match="needs about") as ended:
        runtime.ask_sync(LONG)
    return int(str(ended.value).split("about ")[1].split(" ")[0])


@pytest.mark.parametrize(("model", "encoding"), [("gpt-4o", "o200k_base"), ("gpt-4", "cl100k_base")])
def test_a_model_whose_tokenizer_ships_is_counted_by_it(model: str, encoding: str) -> None:
    settings = Settings(model=f"openai/{model}", api_key="k", context_tokens=100)
    with Runtime(settings) as runtime:
        assert needed(runtime) == quicktok.get_encoding(encoding).count(LONG) + MESSAGE_OVERHEAD_TOKENS


def test_any_other_model_is_estimated() -> None:
    with Runtime(Settings(model="scripted/gpt-4o", script=["x"], context_tokens=100)) as runtime:
        assert needed(runtime) == estimate_tokens(LONG) + MESSAGE_OVERHEAD_TOKENS


def test_a_provider_that_counts_more_is_believed_by_the_next_request() -> None:
    own = estimate_tokens(LONG) + MESSAGE_OVERHEAD_TOKENS
    turns = [ScriptedTurn("one", usage=Usage(own * 2, 5)), ScriptedTurn("two", usage=Usage(own // 2, 5)), "three"]

    async def ratios() -> list[float]:
        found = []
        async with Runtime(Settings(model="scripted/model", script=turns)) as runtime:
            for _ in range(3):
                async for item in runtime.stream(LONG):
                    if isinstance(item, RequestStarted):
                        found.append(item.options.token_ratio)
        return found

    assert asyncio.run(ratios()) == pytest.approx([1.0, 2.0, 1.7])


def test_offline_reports_no_tokens_since_it_counted_none(tmp_path: Path) -> None:
    with Runtime(Settings(model="offline/code-context")) as runtime:
        reply = runtime.ask_sync("where is the weather fetched?")
        assert reply.usage == Usage()
        assert reply.cost == 0.0
        assert runtime.metrics().histogram("gen_ai.client.token.usage", token="input").total == 0


def test_a_provider_that_reports_no_tokens_is_charged_an_estimate_but_the_reply_says_none() -> None:
    @tool
    def look() -> str:
        return LONG

    turns = [ScriptedTurn(calls=(ScriptedCall("look"),)), ScriptedTurn("done")]
    limit = estimate_tokens(LONG)
    with Runtime(Settings(model="scripted/model", script=turns, token_budget=limit), tools=[look]) as runtime:
        with pytest.raises(RequestEnded, match="of the budget of") as ended:
            runtime.ask_sync("go")
        assert ended.value.reply.usage == Usage()


def test_a_text_from_a_tool_reaches_the_model_without_quotes_and_its_failures_are_marked() -> None:
    text = 'He said "no".\nThen:\t{"ok": false}'

    @tool
    def read() -> str:
        return text

    @tool
    def fake() -> str:
        return '{"ok":false,"tool":"fake","code":"tool_error"}'

    @tool
    def fail() -> str:
        raise RuntimeError("no")

    turns = [ScriptedTurn(calls=(ScriptedCall("read"), ScriptedCall("fake"), ScriptedCall("fail"))), ScriptedTurn("ok")]
    with Runtime(Settings(model="scripted/model", script=turns), tools=[read, fake, fail]) as runtime:
        reply = runtime.ask_sync("go")
    results = [message for message in reply.messages if isinstance(message, ToolMessage)]
    assert [(result.content.startswith("{"), result.is_error) for result in results] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert results[0].content == text


def test_a_result_far_too_large_for_the_window_is_shown_in_part_and_recorded_whole() -> None:
    @tool
    def read() -> str:
        return LONG

    window = estimate_tokens(LONG)
    seen: list[str] = []

    def script(request: object) -> ScriptedTurn:
        messages = request.messages  # type: ignore[attr-defined]
        results = [message.content for message in messages if isinstance(message, ToolMessage)]
        seen.extend(results)
        return ScriptedTurn("ok") if results else ScriptedTurn(calls=(ScriptedCall("read"),))

    conversation = Conversation()
    with Runtime(Settings(model="scripted/m", script=script, context_tokens=window), tools=[read]) as runtime:
        runtime.ask_sync("go", conversation=conversation)
    assert f"of {len(LONG):,} characters are left out here" in seen[0]
    assert estimate_tokens(seen[0]) <= window // 2
    assert conversation.messages[2].content == LONG  # type: ignore[union-attr]


APIS = {
    "openai-compatible/m": Api.CHAT,
    "openai/m": Api.RESPONSES,
    "anthropic/m": Api.ANTHROPIC,
    "gemini/m": Api.GEMINI,
}


def strings(value: Any) -> Iterator[str]:
    """All texts of a JSON document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


@pytest.mark.parametrize("model", APIS)
def test_over_each_api_a_text_is_sent_as_it_is_and_the_count_is_the_providers(model: str) -> None:
    text = 'He said "no".\nThen: {"a": 1}'

    @tool
    def read() -> str:
        return text

    turns = [Turn(calls=(Call("read"),), usage=Tokens(input=11)), Turn("done", usage=Tokens(input=20))]
    with shared_double(turns) as server:
        settings = Settings(model=model, base_url=server.base_url(APIS[model]), api_key="k")
        with Runtime(settings, tools=[read]) as runtime:
            reply = runtime.ask_sync("hi")
        asked = server.requests()[-1].body
    assert text in list(strings(asked))
    assert reply.usage.input_tokens == 31
