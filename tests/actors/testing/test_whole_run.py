"""A simulated run finds faults planted in the real actors: each of them breaks the rule that is named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.requests.conversation import Conversation
from callboard.actors.testing.simulated_run import attempt, token_of
from callboard.actors.workers import pool as pool_module
from callboard.actors.workers.call import Call
from callboard.actors.workers.pool import StartCall, ToolPool
from callboard.protocol.content import Message

record, start, start_call, outcome = (
    Conversation.record,
    ToolDispatcher._start,
    ToolPool._start_call,
    ToolPool._tell_outcome,
)


def record_twice(self: Conversation, messages: tuple[Message, ...]) -> None:
    record(self, messages)
    record(self, messages)


def leak_a_slot(self: ToolDispatcher, call: Any) -> None:
    start(self, call)
    call.entry.running += 1


def begin_again(self: ToolPool, message: StartCall) -> None:
    self._calls.pop(message.run.tag, None)
    start_call(self, message)


def swap_results(self: ToolPool, call: Call, result: Any, output: str) -> None:
    own = call.run.tag.request_id
    other = next((each.run.tag.request_id for each in self._calls.values() if each.run.tag.request_id != own), own)
    outcome(self, call, result.replace(own, other) if isinstance(result, str) else result, output)


def crash_on_a_full_pool(self: ToolPool, message: StartCall) -> None:
    if len(self._calls) == 3:
        raise ValueError("planted")
    start_call(self, message)


@pytest.mark.parametrize(
    ("owner", "name", "planted", "rule"),
    [
        (Conversation, "record", record_twice, "record"),
        (ToolDispatcher, "_start", leak_a_slot, "left open"),
        (ToolPool, "_start_call", begin_again, "run twice"),
        (ToolPool, "_tell_outcome", swap_results, "isolation"),
        (ToolPool, "_start_call", crash_on_a_full_pool, "crash"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, planted: Callable[..., Any], rule: str
) -> None:
    monkeypatch.setattr(owner, name, planted)
    monkeypatch.setitem(pool_module._HANDLERS, StartCall, ToolPool._start_call)  # type: ignore[arg-type]
    problems = chain.from_iterable(attempt(token_of(seed))[1] for seed in range(120))
    assert any(f"{rule}:" in problem for problem in problems)
