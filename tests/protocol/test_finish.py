"""What a request has cost, however it ends; and exact limits: of retries, of calls side by side, of history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from callboard.protocol.commands import CallModel, CancelTool, Command, Finish, Outcome, RecordStep, RunTool, SetTimer
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, ProtocolError
from callboard.protocol.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallStarted,
    ToolsLost,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS, COMMIT_SECONDS, MAX_CALLS_PER_STEP
from callboard.protocol.machine import Session
from callboard.protocol.model import Error, FinishReason, ModelResponse, TextDelta, Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.tools import Effect, ToolContract, ToolDefinition

REQUEST = Tag(RequestId("r"), MessageId("m"))
OPTIONS = RequestOptions("sim/model", timeout_seconds=1_800.0, max_attempts=2)


def offer(name: str, timeout_seconds: float = 30.0, *, effect: Effect = Effect.ONCE) -> ToolOffer:
    contract = ToolContract(timeout_seconds=timeout_seconds, effect=effect)
    return ToolOffer(ToolDefinition(ToolName(name), ""), contract)


def call(call_id: str, name: str = "look", arguments: str = "{}", complete: bool = True) -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(name), arguments, complete)


class Request:
    """A session, and the bill that the test keeps of it: each turn uses and costs something else."""

    def __init__(self, options: RequestOptions = OPTIONS, *tools: ToolOffer, history: tuple[Message, ...] = ()) -> None:
        self.session = Session()
        self.now = 0.0
        self.turns = 0
        self.cost = 0.0
        self.usage = Usage()
        self.last: tuple[Command, ...] = ()
        self.say(RequestStarted(REQUEST, 0.0, history, UserMessage.of("go"), options, tools or (offer("look"),)))

    @property
    def step(self) -> Tag:
        return self.session.step

    def say(self, event: Event) -> tuple[Command, ...]:
        self.last = self.session.apply(event)
        return self.last

    def turn(self, *parts: Any, reason: FinishReason = FinishReason.STOP, error: Error | None = None) -> None:
        """A turn that is paid for: the costs are powers of two, so that their sums are exact and all differ."""
        self.turns += 1
        cost, usage = 0.5**self.turns, Usage(10**self.turns, self.turns)
        self.cost += cost
        self.usage += usage
        response = ModelResponse(parts, reason, usage=usage, error=error)
        self.say(ModelResponded(self.step, self.now, response, cost))

    def tool_step(self, *calls: ToolCall) -> None:
        """A turn whose calls all come back; no two steps ask for the same."""
        calls = calls or (call("a", arguments=f'{{"n":{self.turns}}}'), call("b", arguments=f'{{"m":{self.turns}}}'))
        self.turn(*calls, reason=FinishReason.TOOL_CALLS)
        for each in calls:
            if self.session.state is RequestState.RUNNING_TOOLS:
                self.say(ToolCallCompleted(self.step._replace(call_id=each.call_id), self.now, "1"))

    def of(self, kind: type[Any]) -> Any:
        """The one command of this kind among the last."""
        [command] = [command for command in self.last if isinstance(command, kind)]
        return command

    @property
    def finish(self) -> Finish:
        found: Finish = self.of(Finish)
        return found

    def codes(self) -> list[str]:
        """The failure codes of the results that were recorded last; "" for a success."""
        results = [message for message in self.of(RecordStep).messages if isinstance(message, ToolMessage)]
        return [orjson.loads(result.content)["code"] if result.is_error else "" for result in results]


# -- what it has cost --------------------------------------------------------------------------------------------------


def answered(request: Request) -> None:
    request.turn(Text("done"))


def refused(request: Request) -> None:
    request.turn(reason=FinishReason.REFUSAL)


def answered_nothing_twice(request: Request) -> None:
    request.turn()
    request.turn()


def answered_with_an_error(request: Request) -> None:
    request.turn(Text("half"), error=Error(ErrorKind.OVERLOADED, "too busy"))


def cut_off_then_answered(request: Request) -> None:
    request.turn(Text("ha"), error=Error(ErrorKind.TRUNCATED, "cut off"))
    request.turn(Text("done"))


def failed(request: Request) -> None:
    request.say(ModelFailed(request.step, request.now, Error(ErrorKind.OVERLOADED, "too busy")))


def lost_then_answered(request: Request) -> None:
    request.say(ModelLost(request.step, request.now))
    request.turn(Text("done"))


def cancelled_while_the_model_speaks(request: Request) -> None:
    request.say(ModelStreamed(request.step, request.now, (TextDelta("so far"),)))
    request.say(CancelRequested(REQUEST, request.now))


def cancelled_while_tools_run(request: Request) -> None:
    request.turn(call("x"), call("y"), reason=FinishReason.TOOL_CALLS)
    request.say(CancelRequested(REQUEST, request.now))


def out_of_time_while_the_model_speaks(request: Request) -> None:
    request.say(DeadlinePassed(REQUEST, OPTIONS.timeout_seconds))


def out_of_time_while_tools_run(request: Request) -> None:
    request.turn(call("x"), call("y"), reason=FinishReason.TOOL_CALLS)
    request.say(DeadlinePassed(REQUEST, OPTIONS.timeout_seconds))


ENDS: list[tuple[Callable[[Request], None], Outcome]] = [
    (answered, Outcome.ANSWERED),
    (cut_off_then_answered, Outcome.ANSWERED),
    (lost_then_answered, Outcome.ANSWERED),
    (refused, Outcome.FAILED),
    (answered_nothing_twice, Outcome.FAILED),
    (answered_with_an_error, Outcome.FAILED),
    (failed, Outcome.FAILED),
    (cancelled_while_the_model_speaks, Outcome.CANCELLED),
    (cancelled_while_tools_run, Outcome.CANCELLED),
    (out_of_time_while_the_model_speaks, Outcome.TIMED_OUT),
    (out_of_time_while_tools_run, Outcome.TIMED_OUT),
]


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize(("end", "outcome"), ENDS)
def test_every_end_names_what_all_its_turns_have_cost(
    steps: int, end: Callable[[Request], None], outcome: Outcome
) -> None:
    request = Request()
    for _ in range(steps):
        request.tool_step()
    end(request)
    assert request.finish.outcome is outcome
    assert (request.finish.cost, request.finish.usage) == (request.cost, request.usage)
    assert (request.session.spent.cost, request.session.spent.usage) == (request.cost, request.usage)


@pytest.mark.parametrize(
    ("limit", "outcome", "turns"),
    [
        ({"max_steps": 3}, Outcome.STEP_LIMIT, 3),
        ({"token_budget": 1_200}, Outcome.TOKEN_LIMIT, 3),
        ({"cost_budget": 0.9, "input_price": 0.01, "output_price": 0.0}, Outcome.COST_LIMIT, 1),
        ({"cost_budget": 0.9, "input_price": 0.0, "output_price": 0.002}, Outcome.COST_LIMIT, 3),
    ],
)
def test_every_limit_names_what_all_turns_before_it_have_cost(
    limit: dict[str, Any], outcome: Outcome, turns: int
) -> None:
    request = Request(replace(OPTIONS, **limit))
    while request.session.state is not RequestState.FINISHED:
        request.tool_step()
    assert (request.finish.outcome, request.turns) == (outcome, turns)
    assert (request.finish.cost, request.finish.usage) == (request.cost, request.usage)


def test_a_run_that_repeats_itself_is_charged_for_each_repetition() -> None:
    request = Request(replace(OPTIONS, repeated_call_limit=2))
    for _ in range(4):
        request.tool_step(call("a"))
    assert (request.turns, request.finish.outcome) == (4, Outcome.REPEATED_CALLS)
    assert (request.finish.cost, request.finish.usage) == (request.cost, request.usage)


def test_a_limit_before_the_first_step_costs_nothing() -> None:
    finish = Request(replace(OPTIONS, token_budget=1)).finish
    assert (finish.outcome, finish.cost, finish.usage, len(finish.steps)) == (Outcome.TOKEN_LIMIT, 0.0, Usage(), 0)


def test_a_turn_that_comes_twice_or_too_late_is_charged_once() -> None:
    request = Request()
    first = request.step
    late = ModelResponded(first, 0.0, ModelResponse((Text("again"),), usage=Usage(7, 7)), 7.0)
    request.turn(call("a"), reason=FinishReason.TOOL_CALLS)
    with pytest.raises(ProtocolError):
        request.session.apply(late)
    request.say(ToolCallCompleted(first._replace(call_id=CallId("a")), 0.0, "1"))
    with pytest.raises(ProtocolError):
        request.session.apply(late)
    request.turn(Text("done"))
    assert (request.finish.cost, request.finish.usage) == (request.cost, request.usage)


# -- max_attempts=1: nothing is asked, or run, a second time -------------------------------------------------------

NO_RETRIES = replace(OPTIONS, max_attempts=1)


def lost(request: Request) -> None:
    request.say(ModelLost(request.step, 0.0))


def truncated(request: Request) -> None:
    request.say(ModelFailed(request.step, 0.0, Error(ErrorKind.TRUNCATED, "cut off")))


def malformed(request: Request) -> None:
    request.say(ModelFailed(request.step, 0.0, Error(ErrorKind.MALFORMED_TOOL_CALL, "no JSON")))


def empty(request: Request) -> None:
    request.turn()


def too_many_calls(request: Request) -> None:
    request.turn(*(call(f"c{n}") for n in range(MAX_CALLS_PER_STEP + 1)), reason=FinishReason.TOOL_CALLS)


UNUSABLE = [lost, truncated, malformed, empty, too_many_calls]


@pytest.mark.parametrize("unusable", UNUSABLE)
def test_without_retries_an_unusable_turn_ends_the_request(unusable: Callable[[Request], None]) -> None:
    request = Request(NO_RETRIES)
    unusable(request)
    assert (request.finish.outcome, len(request.finish.steps)) == (Outcome.FAILED, 1)


@pytest.mark.parametrize("unusable", UNUSABLE)
@pytest.mark.parametrize("retries", [1, 3])
def test_an_unusable_turn_is_asked_again_exactly_so_often(unusable: Callable[[Request], None], retries: int) -> None:
    request = Request(replace(OPTIONS, max_attempts=retries + 1))
    for _ in range(retries):
        unusable(request)
        assert isinstance(request.of(CallModel), CallModel)
    unusable(request)
    assert (request.finish.outcome, len(request.finish.steps)) == (Outcome.FAILED, retries + 1)


def test_without_retries_a_cut_turn_runs_its_whole_calls_and_the_model_is_told_of_the_rest() -> None:
    request = Request(NO_RETRIES)
    request.turn(call("a"), call("b", arguments='{"x', complete=False), reason=FinishReason.LENGTH)
    assert request.of(RunTool).tag.call_id == "a"
    request.say(ToolCallCompleted(request.step._replace(call_id=CallId("a")), 0.0, "1"))
    assert request.codes() == ["", "incomplete_call"]
    assert isinstance(request.of(RecordStep).messages[-1], SystemMessage)


def test_without_retries_a_call_that_had_begun_is_not_run_again_even_where_that_is_harmless() -> None:
    request = Request(NO_RETRIES, offer("again", effect=Effect.REPEAT))
    request.turn(call("begun", "again"), call("waits", "again"), reason=FinishReason.TOOL_CALLS)
    request.say(ToolCallStarted(request.step._replace(call_id=CallId("begun")), 0.0))
    request.say(ToolsLost(request.step, 1.0))
    assert request.of(RunTool).tag.call_id == "waits"
    request.say(ToolCallCompleted(request.step._replace(call_id=CallId("waits")), 2.0, "1"))
    assert request.codes() == ["outcome_unknown", ""]


def test_a_transaction_is_given_the_time_that_its_commit_may_take() -> None:
    request = Request(OPTIONS, offer("books", 10.0, effect=Effect.TRANSACTION))
    request.turn(call("begun", "books"), reason=FinishReason.TOOL_CALLS)
    assert request.of(RunTool).deadline_at == 10.0
    assert request.of(SetTimer) == SetTimer(request.step, 10.0 + CALL_BACKSTOP_SECONDS + COMMIT_SECONDS)


def test_a_transaction_that_is_not_run_again_is_told_as_what_had_no_effect() -> None:
    request = Request(NO_RETRIES, offer("books", effect=Effect.TRANSACTION))
    request.turn(call("begun", "books"), reason=FinishReason.TOOL_CALLS)
    request.say(ToolCallStarted(request.step._replace(call_id=CallId("begun")), 0.0))
    request.say(ToolsLost(request.step, 1.0))
    assert request.codes() == ["crashed"]
    (result,) = (each for each in request.of(RecordStep).messages if isinstance(each, ToolMessage))
    assert "nothing that it wrote was kept" in result.content


# -- each call has its own deadline ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("short", "long"), ("long", "short")])
def test_a_short_call_ends_at_its_deadline_and_the_long_one_beside_it_goes_on(order: tuple[str, str]) -> None:
    request = Request(OPTIONS, offer("short", 10.0), offer("long", 600.0))
    request.turn(*(call(name, name) for name in order), reason=FinishReason.TOOL_CALLS)
    due = {command.tag.call_id: command.deadline_at for command in request.last if isinstance(command, RunTool)}
    assert due == {"short": 10.0, "long": 600.0}
    assert request.of(SetTimer) == SetTimer(request.step, 10.0 + CALL_BACKSTOP_SECONDS)
    for name in order:
        request.say(ToolCallStarted(request.step._replace(call_id=CallId(name)), 0.0))

    request.say(DeadlinePassed(request.step, 10.0 + CALL_BACKSTOP_SECONDS))
    assert request.of(CancelTool).tag.call_id == "short"
    assert request.of(SetTimer) == SetTimer(request.step, 600.0 + CALL_BACKSTOP_SECONDS)
    assert {tag.call_id: state for tag, state in request.session.calls.items()} == {
        "short": CallState.TIMED_OUT,
        "long": CallState.RUNNING,
    }

    request.say(ToolCallCompleted(request.step._replace(call_id=CallId("long")), 599.0, '"found"'))
    results = [message for message in request.of(RecordStep).messages if isinstance(message, ToolMessage)]
    assert [(result.call_id, result.is_error) for result in results] == [(name, name == "short") for name in order]
    assert request.of(CallModel).tag.step == 2


# -- a history that begins with system messages ------------------------------------------------------------------------

RULES = (SystemMessage("Answer in French."), SystemMessage("The user is a cook."))
TALK: tuple[Message, ...] = tuple(
    message
    for n in range(20)
    for message in (UserMessage.of(f"question {n} " * 20), AssistantMessage((Text(f"answer {n} " * 20),)))
)


@pytest.mark.parametrize("prompt", ["Be brief.", ""])
def test_leading_system_messages_are_shown_after_the_system_prompt(prompt: str) -> None:
    request = Request(replace(OPTIONS, system_prompt=prompt), history=(*RULES, *TALK))
    head = (*([SystemMessage(prompt)] if prompt else []), *RULES)
    assert request.of(CallModel).request.messages == (*head, *TALK, UserMessage.of("go"))


@pytest.mark.parametrize("limit", [1_000, 1_500])
def test_leading_system_messages_outlive_every_cut(limit: int) -> None:
    request = Request(
        replace(OPTIONS, system_prompt="Be brief.", context_tokens=limit, max_steps=50), history=(*RULES, *TALK)
    )
    shown = request.of(CallModel).request.messages
    assert 4 < len(shown) < len(TALK), "some of the talk was cut, not all of it"
    for _ in range(40):
        assert shown[:3] == (SystemMessage("Be brief."), *RULES)
        assert UserMessage.of("go") in shown
        request.tool_step()
        shown = request.of(CallModel).request.messages
    assert not set(TALK) & set(shown), "in the end all of the talk had to go"


def test_leading_system_messages_that_do_not_fit_end_the_request_before_it_is_asked() -> None:
    rule = SystemMessage("Answer in French. " * 200)
    request = Request(replace(OPTIONS, context_tokens=300), history=(rule, *TALK))
    assert (request.finish.outcome, len(request.finish.steps)) == (Outcome.TOKEN_LIMIT, 0)
