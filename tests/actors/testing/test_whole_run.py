"""A simulated run finds faults planted in the real actors: each of them breaks the rule that is named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.actors.calls.ledger import Call, CallReports, Ledger, Outcome
from callboard.actors.requests.client_tools import CallResults, given_up
from callboard.actors.requests.conversation import Conversation
from callboard.actors.testing.simulated_run import attempt, token_of
from callboard.protocol.content import Message
from callboard.protocol.ids import RequestId

record, give, lose, end, submit = Conversation.record, Ledger.give, Ledger.lose, CallReports.end, Ledger.submit
going_on = Conversation.going_on


def record_twice(self: Conversation, messages: tuple[Message, ...], request_id: RequestId) -> None:
    record(self, messages, request_id)
    record(self, messages, request_id)


def leak_a_slot(self: Any, call: Any, worker: Any) -> bool:
    given = give(self, call, worker)
    call.lane.running += 1
    return given


def begin_again(self: Any, seat: Any) -> Any:
    for call in seat.calls:
        call.begun = False
    return lose(self, seat)


last: list[Call] = []


def swap_results(self: CallReports, call: Call, result: Outcome, printed: str = "") -> None:
    own = call.run.tag.request_id
    other = next((each.run.tag.request_id for each in reversed(last) if each.run.tag.request_id != own), own)
    last.append(call)
    end(self, call, result.replace(own, other) if isinstance(result, str) else result, printed)


def take_some_answers(self: Conversation, given: CallResults | None) -> tuple[Message, ...]:
    turn = self.open_turn
    assert turn is not None
    assert given is not None
    return going_on(self, CallResults([*given.answers, *given_up(turn).answers[len(given.answers) :]]))


def swap_answers(self: Conversation, given: CallResults | None) -> tuple[Message, ...]:
    answers = given.answers if given is not None else ()
    texts = [answer.content for answer in answers]
    return going_on(self, CallResults([replace(a, content=t) for a, t in zip(answers, texts[::-1], strict=True)]))


def crash_on_a_full_ledger(self: Any, run: Any, *more: Any) -> Any:
    if len(self.calls) == 3:
        raise SystemExit("planted")
    return submit(self, run, *more)


@pytest.mark.parametrize(
    ("owner", "name", "planted", "rule"),
    [
        (Conversation, "record", record_twice, "record"),
        (Ledger, "give", leak_a_slot, "left open"),
        (Ledger, "lose", begin_again, "run twice"),
        (CallReports, "end", swap_results, "isolation"),
        (Ledger, "submit", crash_on_a_full_ledger, "crash"),
        (Conversation, "going_on", take_some_answers, "answers"),
        (Conversation, "going_on", swap_answers, "answers"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, planted: Callable[..., Any], rule: str
) -> None:
    monkeypatch.setattr(owner, name, planted)
    problems = chain.from_iterable(attempt(token_of(seed))[1] for seed in range(600))
    assert any(f"{rule}:" in problem for problem in problems)
