"""Answers that do not say what they used, over a real HTTP server: estimated for budgets, never counted as nothing."""

from __future__ import annotations

from typing import Any

import pytest
from support.shared_double import shared_double

from callboard.actors.requests.replies import RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, Call, Turn, WireDouble
from callboard.actors.tools import tool
from callboard.protocol.commands import Outcome
from callboard.protocol.model import Usage

PROVIDERS = {
    Api.CHAT: "openai-compatible",
    Api.RESPONSES: "openai",
    Api.ANTHROPIC: "anthropic",
    Api.GEMINI: "gemini",
    Api.OPENROUTER: "openrouter",
}


@tool(isolation="thread")
def double(x: int) -> int:
    return 2 * x


def runtime_for(server: WireDouble, api: Api = Api.CHAT, **more: Any) -> Runtime:
    settings = Settings(
        model=f"{PROVIDERS[api]}/m",
        base_url=server.base_url(api),
        api_key="a-key-of-nobody",
        context_tokens=50_000,
        **more,
    )
    return Runtime(settings, tools=[double])


@pytest.mark.parametrize("api", PROVIDERS, ids=str)
def test_quirk_80_usage_that_never_comes_is_unknown(api: Api) -> None:
    with shared_double([Turn("fine", usage=None)]) as server, runtime_for(server, api) as runtime:
        reply = runtime.ask_sync("go")
        metrics = runtime.metrics()
    assert (reply.text, reply.usage) == ("fine", None)
    assert (metrics.count("callboard.requests.tokens_unknown"), metrics.count("gen_ai.client.token.usage")) == (1, 0)


def test_known_and_unknown_together_are_unknown() -> None:
    call = Call("double", {"x": 21}, "call_1")
    with shared_double([Turn(calls=(call,)), Turn("42", usage=None)]) as server, runtime_for(server) as runtime:
        assert runtime.ask_sync("go").usage is None
    with shared_double([Turn(calls=(call,)), Turn("42")]) as server, runtime_for(server) as runtime:
        usage = runtime.ask_sync("go").usage
    assert isinstance(usage, Usage)
    assert usage.total_tokens > 0


def test_a_token_budget_is_kept_by_estimates() -> None:
    call = Call("double", {"x": 21}, "call_1")
    endless = [Turn(calls=(Call("double", {"x": number}, f"call_{number}"),), usage=None) for number in range(20)]
    with shared_double([Turn(calls=(call,), usage=None), *endless]) as server:
        with runtime_for(server, token_budget=600) as runtime, pytest.raises(RequestEnded) as caught:
            runtime.ask_sync("go")
        assert 1 < len(server.requests()) < 10
    assert caught.value.reply.outcome is Outcome.TOKEN_LIMIT
    assert caught.value.reply.usage is None
