"""What a model reads that it can do after a failure: what may have changed something is not simply sent again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from callboard import AskApproval, Runtime, Settings, ToolError, tool
from callboard.actors.tools.decorator import Tool
from callboard.protocol.content import ToolMessage
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.tools import HINTS_AFTER_EFFECT, RETRY_HINTS, FailureCode
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn


async def allow(_: AskApproval) -> bool:
    return True


def raises() -> str:
    raise KeyError("row 7")


def refuses() -> str:
    raise ToolError("the account is closed")


def writes_much() -> str:
    return "x" * (MAX_RESULT_BYTES + 1)


def writes_nonsense() -> int:
    return "three"  # type: ignore[return-value]


def exits() -> str:
    raise SystemExit(3)


def crashes() -> str:
    os._exit(3)


async def raises_later() -> str:
    await asyncio.sleep(0)
    raise KeyError("row 7")


async def never_ends() -> str:
    await asyncio.Event().wait()
    return ""


FAILING: list[tuple[Callable[..., Any], FailureCode, dict[str, Any]]] = [
    (raises, FailureCode.TOOL_ERROR, {"isolation": "thread"}),
    (refuses, FailureCode.TOOL_ERROR, {"isolation": "thread"}),
    (writes_much, FailureCode.RESULT_TOO_LARGE, {"isolation": "thread"}),
    (writes_nonsense, FailureCode.INVALID_RESULT, {"isolation": "thread"}),
    (exits, FailureCode.CRASHED, {"isolation": "thread"}),
    (crashes, FailureCode.CRASHED, {"timeout": 120}),
    (raises_later, FailureCode.TOOL_ERROR, {}),
    (never_ends, FailureCode.TIMED_OUT, {"timeout": 0.05}),
]
#: Which contracts may be run twice, and so what is said.
HARMLESS: list[dict[str, Any]] = [{"risk": "read"}, {"risk": "write", "effect": "repeat"}]
HARMFUL: list[dict[str, Any]] = [{"risk": "write", "effect": "once"}, {"risk": "network"}, {}]


def made(function: Callable[..., Any], options: dict[str, Any], contract: dict[str, Any], at: int) -> Tool:
    found: Tool = tool(name=f"{function.__name__}_{at}", **options, **contract)(function)
    return found


@pytest.fixture(scope="module")
def cases() -> list[tuple[Tool, FailureCode, bool]]:
    return [
        (made(function, options, contract, at), code, contract in HARMFUL)
        for function, code, options in FAILING
        for at, contract in enumerate((*HARMLESS, *HARMFUL))
        if function is not crashes or at in (0, 4)  # a process each
    ]


async def test_the_hint_looks_at_the_effect_of_the_tool(cases: list[tuple[Tool, FailureCode, bool]]) -> None:
    settings = Settings(model="scripted/model", script=["x"], tool_failure_budget=None)
    async with Runtime(settings, tools=[each for each, _, _ in cases], approve=allow) as runtime:
        found = [(await runtime.call_tool(each.name, {})).failure for each, _, _ in cases]
    told = [(failure.code, failure.retry_hint) for failure in found if failure is not None]
    assert told == [(code, (HINTS_AFTER_EFFECT if harms else RETRY_HINTS)[code]) for _, code, harms in cases]


async def test_model_and_host_read_the_same(cases: list[tuple[Tool, FailureCode, bool]]) -> None:
    (paying,) = (each for each, _, _ in cases if each.name == "raises_2")
    script = [ScriptedTurn(calls=(ScriptedCall(paying.name, {}),)), "It failed."]
    async with Runtime(Settings(model="scripted/model", script=script), tools=[paying], approve=allow) as runtime:
        reply = await runtime.ask("Pay.")
    (read,) = (orjson.loads(each.content) for each in reply.messages if isinstance(each, ToolMessage))
    (failure,) = reply.failures
    assert read["retry_hint"] == failure.retry_hint == HINTS_AFTER_EFFECT[FailureCode.TOOL_ERROR]


async def test_what_the_tool_itself_advises_stays_and_wrong_arguments_may_be_corrected() -> None:
    @tool(risk="write", isolation="thread")
    def pay(amount: int) -> str:
        raise ToolError("the account is locked", retry_hint="Ask the user for another account.")

    async with Runtime(Settings(model="scripted/model", script=["x"]), tools=[pay], approve=allow) as runtime:
        advised = (await runtime.call_tool("pay", {"amount": 1})).failure
        wrong = (await runtime.call_tool("pay", {"amount": "much"})).failure
    assert advised is not None
    assert wrong is not None
    assert advised.retry_hint == "Ask the user for another account."
    assert wrong.retry_hint == RETRY_HINTS[FailureCode.INVALID_ARGUMENTS]


@pytest.mark.parametrize("hint", HINTS_AFTER_EFFECT.values())
def test_no_hint_after_an_effect_says_to_call_again(hint: str) -> None:
    assert "call it again" not in hint
    assert "look" in hint.lower(), "first it looks at what was changed"
