"""The LLM manager in virtual time: retries, fallbacks, limits, and what becomes of streams when somebody goes away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from support.probes import Probe, Probed

from callboard.actors.kernel import ActorSystem, Backoff, ChildSpec, DeadLetterReason, Ref, Supervisor, Timer
from callboard.actors.models.llm_manager import (
    OVERDUE_SECONDS,
    Attempt,
    AttemptEnded,
    Cost,
    Emit,
    End,
    LlmManager,
    Route,
    StartModel,
    TellAgain,
)
from callboard.actors.models.refusals import NO_SCHEMA_SECONDS, NO_TOOLS_SECONDS, Refusals
from callboard.actors.testing.chaos.crashing import Target, crashing
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.commands import CallModel, StopModel
from callboard.protocol.content import (
    Text,
    UserMessage,
)
from callboard.protocol.errors import KINDS_OF_ERRORS, ErrorKind, UsageError
from callboard.protocol.events import ModelFailed, ModelNoted, ModelResponded, ModelStreamed
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Error, ModelRequest, ModelResponse, Restarted, TextDelta, Usage
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Provider
from callboard.providers.http_errors import make_error
from callboard.providers.local.scripted import Scripted, ScriptedTurn, TimedBatch
from callboard.providers.rate_limit import RateLimiter
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.retry import RetryPolicy, Tries

TAG = Tag(RequestId("r"), MessageId("m"), 1)
DEADLINE = 100.0


class PlayedDriver:
    """Plays scripted providers on the virtual clock; `started` and `cancelled` count attempts."""

    def __init__(self, scheduler: SimulatedScheduler) -> None:
        self._scheduler = scheduler
        self.started: list[tuple[str, float]] = []
        self.sent: list[ModelRequest] = []
        self.askers: list[Context | None] = []
        self.last_tries: list[bool] = []
        self.cancelled = 0

    def start(self, provider: Provider, request: ModelRequest, emit: Emit, end: End, asker: Context | None) -> Attempt:
        assert isinstance(provider, Scripted)
        self.askers.append(asker)
        self.last_tries.append(request.is_last_try)
        self.started.append((f"{provider.name}/{request.model}", self._scheduler.now()))
        self.sent.append(request)
        return Played(self, self._scheduler, provider.turn_for(request).batches(), emit, end)


class Played:
    def __init__(
        self,
        driver: PlayedDriver,
        scheduler: SimulatedScheduler,
        batches: Iterable[TimedBatch],
        emit: Emit,
        end: End,
    ) -> None:
        self._driver, self._scheduler, self._emit, self._end = driver, scheduler, emit, end
        self._left = list(batches)
        self._builder = ResponseBuilder()
        self._timer: Timer | None = None
        self._next()

    def cancel(self) -> None:
        self._driver.cancelled += 1
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        batch = self._left.pop(0)
        self._timer = self._scheduler.call_at(self._scheduler.now() + batch.delay_seconds, partial(self._play, batch))

    def _play(self, batch: TimedBatch) -> None:
        events = list(batch.events)
        self._builder.feed(events)
        self._emit(events)
        if self._left:
            self._next()
        else:
            self._end(self._builder.response())


class Desk:
    """An LLM manager under a supervisor, one session, and the providers it may ask."""

    def __init__(
        self,
        system: ActorSystem,
        *providers: Scripted,
        limiter: RateLimiter | None = None,
        retry: RetryPolicy | None = None,
        cost: Cost = lambda *_: 0.5,
        refusals: Refusals | None = None,
    ) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.system, self.scheduler = system, system.scheduler
        self.driver = PlayedDriver(self.scheduler)
        self.session = Probed(system, "session")
        routes = [Route(provider, f"model-{at}", limiter) for at, provider in enumerate(providers)]

        self.routes: dict[str, list[Route] | BaseException] = {"scripted/model": routes}

        def routes_of(model: str) -> list[Route]:
            found = self.routes.get(model, UsageError(f"no such model: {model}"))
            if isinstance(found, BaseException):
                raise found
            return found

        def make() -> LlmManager:
            policy = retry or RetryPolicy(chance=lambda: 1.0)
            return LlmManager(routes_of, self._start, policy, cost, refusals=refusals)

        pause = Backoff(initial_seconds=1.0, jitter=0.0)
        self.root = system.spawn(lambda: Supervisor([ChildSpec("llm", make, backoff=pause)]), "root")
        self.scheduler.run_until_idle()

    def _start(self, *attempt: Any) -> Attempt:
        return self.driver.start(*attempt)

    @property
    def ref(self) -> Ref:
        return self.system.ref("root/llm")

    def ask(
        self,
        model: str = "scripted/model",
        tag: Tag = TAG,
        reply_to: Ref | None = None,
        not_before_at: float = 0.0,
        asker: Context | None = None,
        attempts: int = 4,
        tools: tuple[ToolDefinition, ...] = (),
        schema: dict[str, object] | None = None,
    ) -> None:
        request = ModelRequest(model, (UserMessage.of("x" * 400),), tools, response_schema=schema)
        call = CallModel(tag, request, DEADLINE, not_before_at, attempts, prompt_tokens=131)
        self.ref.tell_control(StartModel(call, reply_to or self.session.ref, asker))

    def kill(self) -> None:
        cell = self.ref._cell
        cell.executor.call_soon(cell.kill)

    def run(self, until_seconds: float | None = None) -> None:
        self.scheduler.run_until_idle(until_seconds)

    def told(self) -> list[str]:
        """What the session was told, in short: its text so far, restarts, the end. Notes are left out: `notes`."""
        said = []
        for message in self.session.heard:
            if isinstance(message, ModelStreamed):
                for event in message.events:
                    if isinstance(event, TextDelta):
                        said.append(event.text)
                    elif isinstance(event, Restarted):
                        said.append("<restarted>")
            elif not isinstance(message, ModelNoted):
                said.append(type(message).__name__)
        return said

    def notes(self) -> list[str]:
        return [f"{message.kind} {message.requests}: {message.text}" for message in self.session.of(ModelNoted)]


def failing(kind: ErrorKind, *, times: int = 1, retry_after: float | None = None, text: str = "") -> list[ScriptedTurn]:
    error = Error(kind, f"it was {kind}", make_error(kind, "").retryable, retry_after)
    return [ScriptedTurn(text, error=error, chunk_chars=4)] * times


def test_an_answer_comes_with_its_cost_and_in_order(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([ScriptedTurn("hello you", chunk_chars=3, delay_seconds=1.0)]))
    desk.ask()
    desk.run()
    assert desk.told() == ["hel", "lo ", "you", "ModelResponded"]
    (responded,) = desk.session.of(ModelResponded)
    assert (responded.cost, responded.response.text) == (0.5, "hello you")
    assert desk.driver.started == [("scripted/model-0", 0.0)]


def test_a_passing_failure_is_tried_again_with_growing_pauses(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([*failing(ErrorKind.SERVER, times=3), ScriptedTurn("at last")]))
    desk.ask()
    desk.run()
    assert desk.told()[-2:] == ["at last", "ModelResponded"]
    times = [at for _, at in desk.driver.started]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[0] > 0


def test_the_pause_is_at_least_what_the_provider_asks_for(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([*failing(ErrorKind.RATE_LIMITED, retry_after=20.0), ScriptedTurn("ok")]))
    desk.ask()
    desk.run()
    (_, first), (_, second) = desk.driver.started
    assert 20.0 <= second - first <= 22.0
    assert [note.until_at for note in desk.session.of(ModelNoted)] == [second], "a loss meanwhile cuts it not short"


def test_what_was_emitted_before_a_failure_is_taken_back_before_the_next_try(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([*failing(ErrorKind.CONNECTION, text="half an"), ScriptedTurn("whole")]))
    desk.ask()
    desk.run()
    assert desk.told() == ["half", " an", "<restarted>", "whole", "ModelResponded"]


@pytest.mark.parametrize("kind", [ErrorKind.AUTHENTICATION, ErrorKind.INVALID_REQUEST, ErrorKind.CONTEXT_LENGTH])
def test_what_trying_again_cannot_cure_fails_at_once(simulated: ActorSystem, kind: ErrorKind) -> None:
    desk = Desk(simulated, Scripted(failing(kind)), Scripted(["never asked"], name="fallback"))
    desk.ask()
    desk.run()
    (failed,) = desk.session.of(ModelFailed)
    assert failed.error.kind is kind
    assert len(desk.driver.started) == 1


@pytest.mark.parametrize("kind", [kind for kind in ErrorKind if not KINDS_OF_ERRORS[kind].is_retried])
def test_a_kind_that_is_not_tried_again_has_a_fallback_as_the_table_says(
    simulated: ActorSystem, kind: ErrorKind
) -> None:
    desk = Desk(simulated, Scripted(failing(kind)), Scripted(["from the fallback"], name="fallback"))
    desk.ask()
    desk.run()
    assert len(desk.driver.started) == 1 + KINDS_OF_ERRORS[kind].has_fallback
    assert bool(desk.session.of(ModelResponded)) is KINDS_OF_ERRORS[kind].has_fallback


def test_a_fallback_is_asked_when_the_first_stays_down(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted(failing(ErrorKind.OVERLOADED, times=4)), Scripted(["from the other"], name="other"))
    desk.ask()
    desk.run()
    assert [name for name, _ in desk.driver.started] == ["scripted/model-0"] * 3 + ["other/model-1"]
    assert desk.told()[-2:] == ["from the other", "ModelResponded"]
    assert [note.split(";")[0] for note in desk.notes()] == [
        "retry 1: scripted/model-0 failed (overloaded) after 1 of 4 requests",
        "retry 2: scripted/model-0 failed (overloaded) after 2 of 4 requests",
        "fallback 3: scripted/model-0 failed (overloaded) after 3 of 4 requests",
    ]
    assert desk.notes()[-1].endswith("; other/model-1 is asked now.")
    (responded,) = desk.session.of(ModelResponded)
    assert responded.requests == 4


@pytest.mark.parametrize(
    ("attempts", "asked"),
    [
        (1, ["scripted"]),
        (2, ["scripted", "second"]),
        (3, ["scripted", "second", "third"]),
        (4, ["scripted", "scripted", "second", "third"]),
        (6, ["scripted"] * 4 + ["second", "third"]),
    ],
)
def test_all_routes_share_the_requests_and_each_later_one_keeps_one(
    simulated: ActorSystem, attempts: int, asked: list[str]
) -> None:
    names = ("scripted", "second", "third")
    desk = Desk(simulated, *(Scripted(failing(ErrorKind.SERVER, times=9), name=name) for name in names))
    desk.ask(attempts=attempts)
    desk.run()
    assert [name.partition("/")[0] for name, _ in desk.driver.started] == asked
    (failed,) = desk.session.of(ModelFailed)
    assert failed.requests == attempts
    assert desk.driver.last_tries == [False] * (attempts - 1) + [True]


def test_what_a_route_did_not_need_is_left_for_the_next(simulated: ActorSystem) -> None:
    gone, busy = failing(ErrorKind.NOT_FOUND), failing(ErrorKind.SERVER, times=9)
    desk = Desk(simulated, Scripted(gone), Scripted(busy, name="other"))
    desk.ask()
    desk.run()
    assert [name for name, _ in desk.driver.started] == ["scripted/model-0"] + ["other/model-1"] * 3


def test_the_cost_is_of_the_model_that_answered(simulated: ActorSystem) -> None:
    prices = {"scripted/model-0": 7.0, "other/model-1": 0.25}
    down, other = Scripted(failing(ErrorKind.SERVER, times=9)), Scripted(["from the other"], name="other")
    desk = Desk(simulated, down, other, cost=lambda model, *_: prices[model])
    desk.ask()
    desk.run()
    (responded,) = desk.session.of(ModelResponded)
    assert responded.cost == 0.25


def test_an_error_that_was_put_right_is_tried_again_at_once(simulated: ActorSystem) -> None:
    stale = Error(ErrorKind.CONNECTION, "closed", retryable=True, at_once=True)
    desk = Desk(simulated, Scripted([ScriptedTurn(error=stale), ScriptedTurn("fine")]))
    desk.ask()
    desk.run()
    assert [at for _, at in desk.driver.started] == [0.0, 0.0]
    assert desk.told()[-2:] == ["fine", "ModelResponded"]


def test_a_failed_request_is_told_before_the_next_one_begins(simulated: ActorSystem) -> None:
    """Else a manager that is lost between them would have sent a request that nobody counts."""
    desk = Desk(simulated, Scripted([*failing(ErrorKind.SERVER), ScriptedTurn("never", first_delay_seconds=60.0)]))
    desk.ask()
    while len(desk.driver.started) < 2:
        assert desk.scheduler.step()
    desk.kill()
    desk.run()
    assert [note.requests for note in desk.session.of(ModelNoted)] == [1]


def test_a_wait_for_the_rate_limit_is_told_once(simulated: ActorSystem) -> None:
    limiter = RateLimiter(simulated.scheduler.now, requests_per_minute=2.0)
    desk = Desk(simulated, Scripted(["one", "two", "three"]), limiter=limiter)
    for step in (1, 2, 3):
        desk.ask(tag=TAG.at_step(step))
    desk.run()
    assert desk.notes() == ["rate_limit 0: scripted/model-0 waits 30.0 s for the rate limit of scripted."]
    assert [note.until_at for note in desk.session.of(ModelNoted)] == [30.0]


#: Where another model would fail for the same reason, or the user must be told of it.
NO_FALLBACK = {
    ErrorKind.AUTHENTICATION,
    ErrorKind.PERMISSION,
    ErrorKind.INVALID_REQUEST,
    ErrorKind.CONTEXT_LENGTH,
    ErrorKind.REQUEST_TOO_LARGE,
    ErrorKind.TOOLS_UNSUPPORTED,
    ErrorKind.SCHEMA_UNSUPPORTED,
    ErrorKind.CONTENT_FILTER,
    ErrorKind.MALFORMED,
    ErrorKind.MALFORMED_TOOL_CALL,
    ErrorKind.CANCELLED,
    ErrorKind.INTERNAL,
    ErrorKind.OTHER,
}


@pytest.mark.parametrize("kind", ErrorKind)
def test_at_which_errors_the_next_route_is_asked(simulated: ActorSystem, kind: ErrorKind) -> None:
    desk = Desk(simulated, Scripted(failing(kind, times=4)), Scripted(["from the other"], name="other"))
    desk.ask()
    desk.run()
    asked_the_other = desk.driver.started[-1][0] == "other/model-1"
    assert asked_the_other == (kind not in NO_FALLBACK)


LOOK = ToolDefinition(ToolName("look"), "looks")


def refusing(error: Error, *more: ScriptedTurn | str) -> Scripted:
    return Scripted([ScriptedTurn(error=error), *more])


def test_a_model_that_has_refused_tools_is_not_asked_with_them_for_an_hour(simulated: ActorSystem) -> None:
    refused = refusing(Error(ErrorKind.TOOLS_UNSUPPORTED, "no tools"), "without", "with again")
    desk = Desk(simulated, refused, refusals=Refusals())
    for step, tools in ((1, (LOOK,)), (2, (LOOK,)), (3, ())):
        desk.ask(tag=TAG.at_step(step), tools=tools)
        desk.run()
    first, second = desk.session.of(ModelFailed)
    assert (first.requests, second.requests) == (1, 0)
    assert (first.model, second.model) == ("scripted/model-0", "scripted/model-0")
    assert "scripted/model-0 takes no tools" in second.error.message
    assert len(desk.driver.started) == 2, "the one that offered none was sent"
    desk.scheduler.call_at(desk.scheduler.now() + NO_TOOLS_SECONDS, lambda: None)
    desk.run()
    desk.ask(tag=TAG.at_step(4), tools=(LOOK,))
    desk.run()
    assert len(desk.driver.started) == 3


def test_a_model_that_has_refused_a_schema_is_not_asked_with_one_for_an_hour(simulated: ActorSystem) -> None:
    refused = refusing(Error(ErrorKind.SCHEMA_UNSUPPORTED, "no response_format"), "without", "with again")
    desk = Desk(simulated, refused, refusals=Refusals())
    for step, schema in ((1, {"type": "object"}), (2, {"type": "object"}), (3, None)):
        desk.ask(tag=TAG.at_step(step), schema=schema)
        desk.run()
    first, second = desk.session.of(ModelFailed)
    assert (first.requests, second.requests) == (1, 0)
    assert "scripted/model-0 takes no schema of the answer" in second.error.message
    assert len(desk.driver.started) == 2, "the one without was sent"
    desk.scheduler.call_at(desk.scheduler.now() + NO_SCHEMA_SECONDS, lambda: None)
    desk.run()
    desk.ask(tag=TAG.at_step(4), schema={"type": "object"})
    desk.run()
    assert len(desk.driver.started) == 3


def test_a_refused_schema_does_not_take_another_one_from_the_model(simulated: ActorSystem) -> None:
    said = "Invalid schema for response_format 'answer': 'uri' is not a valid format."
    desk = Desk(simulated, refusing(Error(ErrorKind.SCHEMA_UNSUPPORTED, said), "one", "two"), refusals=Refusals())
    for step, schema in ((1, {"type": "object"}), (2, {"type": "object", "title": "x"}), (3, {"type": "object"})):
        desk.ask(tag=TAG.at_step(step), schema=schema)
        desk.run()
    first, second = desk.session.of(ModelFailed)
    assert (first.requests, second.requests) == (1, 0)
    assert [request.response_schema for request in desk.driver.sent[1:]] == [{"type": "object", "title": "x"}]


@pytest.mark.parametrize(
    ("said", "strict"),
    [
        ("Invalid schema for function 'b': In context=(), 'oneOf' is not permitted.", [True, False]),
        ("tools.1.custom: For 'array' type, property 'maxItems' is not supported", [True, False]),
        ("Schema is too complex for compilation. Try reducing the number of tools.", [False, False]),
        ("Too many strict tools (28). The maximum number of strict tools supported is 20.", [False, False]),
        ("The compiled grammar is too large, which would cause performance issues.", [False, False]),
    ],
)
def test_what_is_refused_as_strict_is_sent_once_more_without(
    simulated: ActorSystem, said: str, strict: list[bool]
) -> None:
    desk = Desk(simulated, refusing(Error(ErrorKind.SCHEMA_UNSUPPORTED, said, status=400), "one"), refusals=Refusals())
    tools = tuple(ToolDefinition(ToolName(name), "", {"type": "object"}, strict=True) for name in "ab")
    for step in (1, 2):
        desk.ask(tag=TAG.at_step(step), tools=tools)
        desk.run()
    assert [[tool.strict for tool in sent.tools] for sent in desk.driver.sent] == [[True, True], strict, strict]
    (noted,) = desk.session.of(ModelNoted)
    names = ", ".join(name for name, is_strict in zip("ab", strict, strict=True) if not is_strict)
    assert noted.text.endswith(f"its schema was refused: {names} without strict now.")
    assert noted.at == desk.session.of(ModelResponded)[0].at, "at once"


def test_the_answer_s_schema_goes_behind_the_tools_that_are_strict(simulated: ActorSystem) -> None:
    """Where the words tell nothing else, tools lose `strict` first; then the next way to ask for the answer is due."""
    said = Error(ErrorKind.SCHEMA_UNSUPPORTED, "Schema is too complex for compilation.", status=400)
    desk = Desk(simulated, refusing(said, ScriptedTurn(error=said)), refusals=Refusals())
    tools = (ToolDefinition(ToolName("a"), "", {"type": "object"}, strict=True),)
    desk.ask(tools=tools, schema={"type": "object"})
    desk.run()
    assert [sent.tools[0].strict for sent in desk.driver.sent] == [True, False]
    (failed,) = desk.session.of(ModelFailed)
    assert (failed.error.kind, failed.requests) == (ErrorKind.SCHEMA_UNSUPPORTED, 2)


def test_a_tool_that_is_refused_without_strict_is_a_bad_request_and_the_answer_s_schema_is_taken(
    simulated: ActorSystem,
) -> None:
    said = "invalid JSON schema for tool look, tools[0].function.parameters: m"
    refusals = Refusals()
    desk = Desk(simulated, refusing(Error(ErrorKind.SCHEMA_UNSUPPORTED, said, status=400)), refusals=refusals)
    desk.ask(tools=(LOOK,), schema={"type": "object"})
    desk.run()
    (failed,) = desk.session.of(ModelFailed)
    assert (failed.error.kind, failed.requests) == (ErrorKind.INVALID_REQUEST, 1)
    assert refusals.takes_schemas("scripted/model-0", desk.scheduler.now(), {"type": "object"})


def test_what_a_request_without_a_schema_is_refused_for_is_something_else(simulated: ActorSystem) -> None:
    refusals = Refusals()
    desk = Desk(simulated, refusing(Error(ErrorKind.SCHEMA_UNSUPPORTED, "no", status=400)), refusals=refusals)
    desk.ask()
    desk.run()
    (failed,) = desk.session.of(ModelFailed)
    assert failed.error.kind is ErrorKind.INVALID_REQUEST
    assert refusals.takes_schemas("scripted/model-0", desk.scheduler.now())


def test_a_fallback_that_takes_no_tools_is_remembered_and_not_sent_to(simulated: ActorSystem) -> None:
    refusals = Refusals()
    refusals.learn_no_tools("other/model-1", simulated.scheduler.now())
    broke = Scripted(failing(ErrorKind.BILLING))
    desk = Desk(simulated, broke, Scripted(["from the other"], name="other"), refusals=refusals)
    desk.ask(tools=(LOOK,))
    desk.run()
    (failed,) = desk.session.of(ModelFailed)
    assert (failed.error.kind, failed.model, failed.requests) == (ErrorKind.TOOLS_UNSUPPORTED, "other/model-1", 1)
    assert [name for name, _ in desk.driver.started] == ["scripted/model-0"]


def test_what_a_model_without_tools_refuses_is_something_else(simulated: ActorSystem) -> None:
    refusals = Refusals()
    refusals.learn_no_tools("scripted/model-0", simulated.scheduler.now())
    desk = Desk(simulated, refusing(Error(ErrorKind.TOOLS_UNSUPPORTED, "no", status=404)), refusals=refusals)
    desk.ask()
    desk.run()
    (failed,) = desk.session.of(ModelFailed)
    assert failed.error.kind is ErrorKind.NOT_FOUND
    assert refusals.takes_tools("scripted/model-0", desk.scheduler.now())


def test_the_window_that_a_model_names_is_remembered_of_it(simulated: ActorSystem) -> None:
    refusals = Refusals()
    error = Error(ErrorKind.CONTEXT_LENGTH, "too long", context_tokens=8_192)
    desk = Desk(simulated, refusing(error), refusals=refusals)
    desk.ask()
    desk.run()
    assert refusals.window("scripted/model-0", desk.scheduler.now()) == 8_192


def test_when_all_routes_fail_the_last_error_is_told(simulated: ActorSystem) -> None:
    desk = Desk(simulated, *(Scripted(failing(ErrorKind.SERVER, times=4), name=name) for name in ("a", "b")))
    desk.ask()
    desk.run()
    assert len(desk.driver.started) == 4
    (failed,) = desk.session.of(ModelFailed)
    assert (failed.error.kind, failed.requests) == (ErrorKind.SERVER, 4)
    assert desk.told()[-1] == "ModelFailed"


def test_no_retry_that_could_not_be_in_time(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted(failing(ErrorKind.RATE_LIMITED, retry_after=59.0, times=9)))
    desk.ask()
    desk.run()
    assert desk.scheduler.now() < DEADLINE
    assert len(desk.driver.started) == 2
    assert desk.told()[-1] == "ModelFailed"


def test_an_unknown_model_is_refused(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted(["never"]))
    desk.ask("scripted/other")
    desk.run()
    (failed,) = desk.session.of(ModelFailed)
    assert failed.error.kind is ErrorKind.INVALID_REQUEST
    assert "no such model" in failed.error.message


def test_a_rate_limit_makes_calls_wait_their_turn(simulated: ActorSystem) -> None:
    limiter = RateLimiter(simulated.scheduler.now, requests_per_minute=2.0)
    desk = Desk(simulated, Scripted(["one", "two", "three"]), limiter=limiter)
    for step in (1, 2, 3):
        desk.ask(tag=TAG.at_step(step))
    desk.run()
    assert [at for _, at in desk.driver.started] == [0.0, 0.0, pytest.approx(30.0)]
    assert len(desk.session.of(ModelResponded)) == 3


def test_a_rate_limit_beyond_the_deadline_fails_at_once(simulated: ActorSystem) -> None:
    limiter = RateLimiter(simulated.scheduler.now, requests_per_minute=0.1)
    desk = Desk(simulated, Scripted(["one", "two"]), limiter=limiter)
    desk.ask()
    desk.ask(tag=TAG.at_step(2))
    desk.run(0.0)
    (failed,) = desk.session.of(ModelFailed)
    assert failed.error.kind is ErrorKind.RATE_LIMITED
    assert failed.error.retry_after == pytest.approx(600.0)


def test_a_rate_limit_beyond_the_deadline_leads_to_the_next_route(simulated: ActorSystem) -> None:
    limiter = RateLimiter(simulated.scheduler.now, requests_per_minute=0.1)
    desk = Desk(simulated, Scripted(["one"]), Scripted(["elsewhere", "elsewhere"]))
    limited, free = desk.routes["scripted/model"]  # type: ignore[misc]
    desk.routes["scripted/model"] = [replace(limited, limiter=limiter), free]
    desk.ask()
    desk.ask(tag=TAG.at_step(2))
    desk.run(0.0)
    assert [name for name, _ in desk.driver.started] == ["scripted/model-0", "scripted/model-1"]
    assert len(desk.session.of(ModelResponded)) == 2
    assert desk.notes() == [
        "fallback 0: scripted/model-0 failed (rate_limited) after 0 of 4 requests; scripted/model-1 is asked now."
    ]


def test_the_last_request_allowed_goes_where_the_rate_limit_lets_it(simulated: ActorSystem) -> None:
    limiter = RateLimiter(simulated.scheduler.now, requests_per_minute=0.1)
    desk = Desk(simulated, Scripted(["one"]), Scripted(["elsewhere", "elsewhere"]))
    limited, free = desk.routes["scripted/model"]  # type: ignore[misc]
    desk.routes["scripted/model"] = [replace(limited, limiter=limiter), free]
    desk.ask()
    desk.ask(tag=TAG.at_step(2), attempts=1)
    desk.run(0.0)
    assert len(desk.session.of(ModelResponded)) == 2


@pytest.mark.parametrize(("lost", "cost"), [(0.25, 1.0), (None, None)], ids=["known", "unknown"])
def test_a_turn_that_was_cut_is_paid_for_with_the_one_after_it(
    simulated: ActorSystem, lost: float | None, cost: float | None
) -> None:
    """What never began to answer costs nothing."""
    prices = iter([lost, 0.75])
    turns = [*failing(ErrorKind.SERVER), *failing(ErrorKind.TRUNCATED, text="half an"), ScriptedTurn("an answer")]
    desk = Desk(simulated, Scripted(turns), cost=lambda *_: next(prices))
    desk.ask()
    desk.run()
    (responded,) = desk.session.of(ModelResponded)
    assert (responded.cost, responded.requests) == (cost, 3)


@pytest.mark.parametrize(("lost", "cost"), [(0.25, 1.0), (None, None)], ids=["known", "unknown"])
def test_a_call_that_fails_tells_what_its_cut_turns_have_cost(
    simulated: ActorSystem, lost: float | None, cost: float | None
) -> None:
    """A turn that was cut never says what it has used."""
    prices = iter([lost, 0.75])
    cut = failing(ErrorKind.TRUNCATED, text="half an")
    desk = Desk(simulated, Scripted([*cut, *failing(ErrorKind.SERVER), *cut]), cost=lambda *_: next(prices))
    desk.ask(attempts=3)
    desk.run()
    (failed,) = desk.session.of(ModelFailed)
    assert (failed.usage, failed.cost, failed.requests) == (None, cost, 3)


@pytest.mark.parametrize(
    "first",
    [
        ScriptedTurn("one", usage=Usage()),
        ScriptedTurn("one", usage=None),
        ScriptedTurn("cut off", error=Error(ErrorKind.OTHER, "broke off")),
    ],
    ids=["zero", "unknown", "cut"],
)
def test_an_answer_without_usage_has_taken_the_tokens_that_were_guessed(
    simulated: ActorSystem, first: ScriptedTurn
) -> None:
    limiter = RateLimiter(simulated.scheduler.now, tokens_per_minute=200.0)
    desk = Desk(simulated, Scripted([first, "two"]), limiter=limiter)
    desk.ask()  # 131 tokens
    desk.run()
    desk.ask(tag=TAG.at_step(2))
    desk.run()
    began, second = (at for _, at in desk.driver.started)
    assert second - began == pytest.approx((2 * 131 - 200) / 200 * 60)


def test_tokens_are_guessed_before_and_settled_after(simulated: ActorSystem) -> None:
    limiter = RateLimiter(simulated.scheduler.now, tokens_per_minute=1_000.0)
    used = ScriptedTurn("one", usage=Usage(600, 500))
    desk = Desk(simulated, Scripted([used, "two"]), limiter=limiter)
    desk.ask()
    desk.run()
    desk.ask(tag=TAG.at_step(2))
    desk.run()
    more = 131
    assert desk.driver.started[1][1] == pytest.approx((100 + more) * 0.06), "100 tokens in debt, and more to take"


def test_stopping_a_call_ends_its_stream_and_nothing_more_comes(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([ScriptedTurn("hello you", chunk_chars=3, delay_seconds=1.0)]))
    desk.ask()
    desk.run(1.5)
    heard = len(desk.session.heard)
    desk.ref.tell_control(StopModel(TAG))
    desk.ref.tell_control(StopModel(TAG))
    desk.run()
    assert desk.driver.cancelled == 1
    assert len(desk.session.heard) == heard


def test_stopping_a_call_that_waits_for_its_next_try(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([*failing(ErrorKind.SERVER, retry_after=30.0), "never"]))
    desk.ask()
    desk.run(5.0)
    desk.ref.tell_control(StopModel(TAG))
    desk.run()
    assert len(desk.driver.started) == 1
    assert desk.scheduler.now() < 30.0


def test_a_call_sent_twice_replaces_the_first(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([ScriptedTurn("one", first_delay_seconds=5.0), "two"]))
    desk.ask()
    desk.run(1.0)
    desk.ask()
    desk.run()
    assert desk.driver.cancelled == 1
    assert desk.told() == ["two", "ModelResponded"]


def test_the_end_of_an_attempt_given_up_is_a_dead_letter(simulated: ActorSystem) -> None:
    """A driver that ends its first attempt twice, the second time while another is running."""
    slow = ScriptedTurn("the real answer", first_delay_seconds=5.0)
    desk = Desk(simulated, Scripted([*failing(ErrorKind.SERVER), slow]))
    desk.ask()
    desk.run(2.0)
    assert len(desk.driver.started) == 2
    desk.ref.tell_control(AttemptEnded(TAG, 1, ModelResponse((Text("an old answer"),)), has_emitted=True))
    desk.run()
    (responded,) = desk.session.of(ModelResponded)
    assert responded.response.text == "the real answer"
    assert [letter.note for letter in simulated.dead_letters.list()] == ["the attempt was given up before"]


def test_a_crash_ends_all_streams_and_the_next_incarnation_serves(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([ScriptedTurn("one", first_delay_seconds=5.0)] * 2 + ["three"]))
    desk.ask()
    desk.ask(tag=TAG.at_step(2))
    desk.run(1.0)
    desk.kill()
    desk.run(2.0)
    assert desk.driver.cancelled == 2, "no stream goes on that nobody waits for"
    desk.ask(tag=TAG.at_step(3))
    desk.run()
    assert desk.told() == ["three", "ModelResponded"]


def test_a_session_whose_mailbox_is_full_costs_nobody_else(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted(["a"]))
    heard: list[Any] = []
    crowded = simulated.spawn(lambda: Probe(heard), "crowded", capacity=1)
    desk.run(0.0)
    crowded.tell("full")
    desk.ref.tell_control(TellAgain(crowded, (ModelResponded(TAG, 0.0, ModelResponse()),)))
    while not simulated.statistics().refused:
        assert desk.scheduler.step(), "the manager was never turned away"
        if heard == ["full"] and not simulated.statistics().refused:
            heard.clear()
            crowded.tell("full")
    desk.run()
    assert type(heard[-1]) is ModelResponded
    assert simulated.statistics().restarts == 0


def test_the_guess_is_the_sessions_count_by_what_the_provider_said_of_earlier_prompts(simulated: ActorSystem) -> None:
    taken: list[float] = []

    class Notes(RateLimiter):
        def acquire(self, tokens: float = 0.0) -> float:
            taken.append(tokens)
            return 0.0

    turns = [ScriptedTurn("fine", usage=Usage(counted, 1)) for counted in (3_000, 10**12, 3_000)]
    desk = Desk(simulated, Scripted(turns), limiter=Notes(lambda: 0.0, tokens_per_minute=1e9))
    for step in range(3):
        request = ModelRequest("scripted/model", (UserMessage.of("hi"),))
        asked = CallModel(TAG.at_step(step), request, DEADLINE, prompt_tokens=2_000)
        desk.ref.tell_control(StartModel(asked, desk.session.ref))
        desk.run()
    assert taken == [2_000, 3_000, 3_000], "and a count that cannot be true changes nothing"


# -- a failure costs the call that it is about


class Broken(RateLimiter):
    """A rate limiter with a fault."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__(lambda: 0.0, tokens_per_minute=1e9)
        self._method, self._error = method, error

    def acquire(self, tokens: float = 0.0) -> float:
        if self._method == "acquire":
            raise self._error
        return super().acquire(tokens)

    def settle(self, guessed_tokens: float, used_tokens: float) -> None:
        if self._method == "settle":
            raise self._error


class BrokenRetry(RetryPolicy):
    def tries(self, attempts: int, deadline_at: float, now: Callable[[], float]) -> Tries:
        raise Unspeakable


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def raising(error: BaseException) -> Any:
    def fail(*_: object) -> Any:
        raise error

    return fail


POISON: list[tuple[str, dict[str, Any], str]] = [
    ("cost", {"cost": raising(ValueError("no price"))}, "the cost function failed: ValueError: no price"),
    ("cost that exits", {"cost": raising(SystemExit(1))}, "the cost function failed: SystemExit"),
    ("limiter", {"limiter": Broken("acquire", OSError("gone"))}, "the rate limiter failed: OSError: gone"),
    (
        "settle",
        {"limiter": Broken("settle", Unspeakable())},
        "the rate limiter failed: Unspeakable: (its __str__ raised",
    ),
    ("retry", {"retry": BrokenRetry()}, "the retry policy failed: Unspeakable"),
]


@pytest.mark.parametrize(("part", "options", "said"), POISON, ids=[part for part, _, _ in POISON])
def test_a_part_that_fails_ends_the_call_with_its_name(
    simulated: ActorSystem, part: str, options: dict[str, Any], said: str
) -> None:
    turn = failing(ErrorKind.SERVER)[0] if part == "retry" else ScriptedTurn("fine")
    desk = Desk(simulated, Scripted([turn] * 3), **options)
    for step in (1, 2, 3):
        desk.ask(tag=TAG.at_step(step))
    desk.run()
    failures = desk.session.of(ModelFailed)
    assert sorted(failed.tag.step for failed in failures) == [1, 2, 3]
    for failed in failures:
        assert failed.error.kind is ErrorKind.INTERNAL
        assert said in failed.error.message
        assert failed.is_free is not part.startswith("cost"), "an answer came, and what it cost is not known"
    assert simulated.statistics().restarts == 0


@pytest.mark.parametrize("error", [ValueError("no route"), SystemExit(3)])
def test_routes_that_raise_and_a_driver_that_raises_end_their_call(
    simulated: ActorSystem, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(simulated, Scripted(["fine"]))
    desk.routes["scripted/broken"] = error
    desk.routes["scripted/nowhere"] = []
    for step, model in enumerate(("scripted/broken", "scripted/nowhere", "scripted/model"), start=1):
        desk.ask(model, TAG.at_step(step))
    desk.run()
    first, second = desk.session.of(ModelFailed)
    assert first.error.kind is second.error.kind is ErrorKind.INTERNAL
    assert "looking up the model scripted/broken failed" in first.error.message
    assert [responded.tag.step for responded in desk.session.of(ModelResponded)] == [3]
    monkeypatch.setattr(desk.driver, "start", raising(error))
    desk.ask()
    desk.run()
    assert "starting the provider failed" in desk.session.of(ModelFailed)[-1].error.message
    assert simulated.statistics().restarts == 0


POISON = Usage(6, 6)


def test_a_cost_is_that_of_the_route_that_answered(simulated: ActorSystem) -> None:
    """The fallback of a dear model is billed at its own price, and by the name that it gave itself."""
    asked: list[tuple[str, Usage, object, str]] = []

    def cost(name: str, usage: Usage, raw_usage: object, answered_by: str) -> float | None:
        asked.append((name, usage, raw_usage, answered_by))
        return None

    refused = make_error(ErrorKind.BILLING, "no money")
    desk = Desk(
        simulated,
        Scripted([ScriptedTurn(error=refused)]),
        Scripted([ScriptedTurn("cheap", usage=Usage(7, 3))]),
        cost=cost,
    )
    desk.ask()
    desk.run()
    assert [(name, usage, answered_by) for name, usage, _, answered_by in asked] == [
        ("scripted/model-1", Usage(7, 3), "scripted")
    ]
    [responded] = desk.session.of(ModelResponded)
    assert responded.cost is None, "what is not known stays unknown"


def test_a_poison_answer_ends_its_own_request_and_none_of_fifty_others(simulated: ActorSystem) -> None:
    """Three of them crashed the manager as often, and with it every other request."""

    def cost(_: str, usage: Usage, *__: object) -> float:
        if usage == POISON:
            raise ZeroDivisionError
        return 0.5

    def script(request: ModelRequest) -> ScriptedTurn:
        text = next(message.text for message in request.messages if isinstance(message, UserMessage))
        usage = POISON if text == "poison" else Usage()
        return ScriptedTurn(text, usage=usage, first_delay_seconds=1.0)

    desk = Desk(simulated, Scripted(script), cost=cost)
    for number in range(53):
        tag = Tag(RequestId(f"r{number}"), MessageId("m"), 1)
        text = "poison" if number % 20 == 0 else "fine"
        call = CallModel(tag, ModelRequest("scripted/model", (UserMessage.of(text),)), DEADLINE)
        desk.ref.tell_control(StartModel(call, desk.session.ref))
    desk.run()
    assert len(desk.session.of(ModelFailed)) == 3
    assert len(desk.session.of(ModelResponded)) == 50
    assert simulated.statistics().restarts == 0


def test_an_unknown_message_is_a_dead_letter(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted(["fine"]))
    desk.ref.tell_control("not a message of the manager")
    desk.ask()
    desk.run()
    assert desk.told() == ["fine", "ModelResponded"]
    assert simulated.dead_letters.counts() == {DeadLetterReason.REJECTED: 1}


def test_a_provider_that_never_answers_is_ended_at_the_calls_deadline(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([ScriptedTurn("late", first_delay_seconds=1e9)]))
    desk.ask()
    desk.run(DEADLINE - 0.1)
    assert desk.told() == []
    desk.run(DEADLINE + OVERDUE_SECONDS + 0.1)
    (failed,) = desk.session.of(ModelFailed)
    assert failed.error.kind is ErrorKind.TIMEOUT
    assert failed.is_free
    assert desk.driver.cancelled == 1


def test_what_an_answer_without_an_end_has_cost_is_not_known(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted([ScriptedTurn("half an", chunk_chars=4, delay_seconds=DEADLINE - 1.0)]))
    desk.ask()
    desk.run()
    (failed,) = desk.session.of(ModelFailed)
    assert (failed.error.kind, failed.usage, failed.cost) == (ErrorKind.TIMEOUT, None, None)


def test_each_of_many_calls_is_ended_soon_after_its_own_deadline(simulated: ActorSystem) -> None:
    """One timer looks at all of them; those that have ended in between do not count."""
    desk = Desk(simulated, Scripted([ScriptedTurn("late", first_delay_seconds=1e9)] * 30))
    deadlines = [50.0, 20.0, 80.0, 20.5, *(60.0 + number / 10 for number in range(10))]
    for step, deadline_at in enumerate(deadlines):
        call = CallModel(TAG.at_step(step), ModelRequest("scripted/model", ()), deadline_at)
        desk.ref.tell_control(StartModel(call, desk.session.ref))
    desk.run(0.0)
    desk.ref.tell_control(StopModel(TAG.at_step(1)))
    desk.run()
    late = {failed.tag.step: failed.at - deadlines[failed.tag.step] for failed in desk.session.of(ModelFailed)}
    assert set(late) == set(range(len(deadlines))) - {1}
    assert all(OVERDUE_SECONDS <= seconds <= 2 * OVERDUE_SECONDS for seconds in late.values())
    assert desk.driver.cancelled == len(deadlines)
    assert desk.scheduler.now() < 83.0, "no timer is left when no call is"


def test_a_call_that_may_not_begin_yet_waits(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted(["fine"]))
    desk.ask(not_before_at=7.0)
    desk.run()
    assert [at for _, at in desk.driver.started] == [pytest.approx(7.0)]
    assert desk.told() == ["fine", "ModelResponded"]


def test_a_restarted_manager_does_not_start_what_its_session_has_given_up(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted(["first", "second"]))
    for _ in range(2):  # after the first crash, an actor starts again at once
        desk.kill()
        desk.run(desk.scheduler.now())
    desk.ask(tag=TAG.at_step(1))
    desk.ref.tell_control(StopModel(TAG.at_step(1)))
    desk.ask(tag=TAG.at_step(2))
    desk.run()
    assert simulated.statistics().restarts == 2
    assert len(desk.driver.started) == 1
    assert [responded.tag.step for responded in desk.session.of(ModelResponded)] == [2]


def test_a_manager_that_crashed_before_the_end_of_its_backlog_starts_a_call_once(simulated: ActorSystem) -> None:
    """Each incarnation marks the end of its backlog in the mailbox, which the next one takes over. With two marks, a
    call that waits for its limit was begun twice, and its second start was its end: a failure of the retry policy."""
    limiter = RateLimiter(simulated.scheduler.now, requests_per_minute=2.0)
    while limiter.acquire(0.0) <= 0:
        pass  # used up: the next call has to wait
    slow = [ScriptedTurn(text, first_delay_seconds=60.0) for text in ("first", "second")]
    desk = Desk(simulated, Scripted(slow), limiter=limiter)
    for _ in range(2):  # after the first crash, an actor starts again at once
        desk.kill()
        desk.run(desk.scheduler.now())
    with crashing(Target(LlmManager, StartModel), times=1):
        desk.ask(tag=TAG.at_step(1))
        desk.ask(tag=TAG.at_step(2))
        desk.run()
    assert simulated.statistics().restarts == 3
    assert len(desk.driver.started) == 1
    assert desk.told() == ["first", "ModelResponded"]


def test_the_askers_context_goes_to_the_driver(simulated: ActorSystem) -> None:
    desk = Desk(simulated, Scripted(["fine"]))
    asker = Context()
    desk.ask(asker=asker)
    desk.run()
    assert desk.driver.askers == [asker]


@pytest.fixture
def cut_off(simulated: ActorSystem) -> Desk:
    """The first attempt has said "half" and failed. That this is void cannot be told for a while: the session starts
    again after a crash, which takes ten seconds, and its mailbox is full."""
    error = Error(ErrorKind.CONNECTION, "cut", retryable=True)
    first = ScriptedTurn("half", error=error, delay_seconds=0.1)
    desk = Desk(simulated, Scripted([first, ScriptedTurn("whole", delay_seconds=1.0)]))
    pause = Backoff(initial_seconds=10.0, maximum_seconds=10.0, jitter=0.0)
    spec = ChildSpec("session", lambda: Probe(desk.session.heard, _crash), backoff=pause, capacity=5)
    simulated.spawn(lambda: Supervisor([spec], chance=lambda: 0.0), "crowded")
    desk.run(0.0)
    session = simulated.ref("crowded/session")
    desk.ask(reply_to=session)
    while not any(error in message.events for message in desk.session.of(ModelStreamed)):
        assert desk.scheduler.step()
    for _ in range(2):  # after the first crash, an actor starts again at once
        session.tell("crash")
        desk.run(desk.scheduler.now())
    for _ in range(5):
        session.tell("in the way")
    return desk


def _crash(probe: Probe, message: Any) -> None:
    if message == "crash":
        raise RuntimeError("struck")


def test_no_attempt_begins_before_the_session_knows_that_the_last_one_is_void(
    simulated: ActorSystem, cut_off: Desk
) -> None:
    cut_off.run(9.0)
    assert simulated.statistics().refused > 1, "it was tried, and will be tried again"
    assert len(cut_off.driver.started) == 1
    cut_off.run()
    assert [what for what in cut_off.told() if what != "str"] == ["half", "<restarted>", "whole", "ModelResponded"]
    assert len(cut_off.driver.started) == 2
    assert cut_off.driver.started[1][1] >= 10.0
    assert simulated.statistics().restarts == 2, "of the session, none of the manager"


def test_a_call_is_stopped_also_while_its_restart_cannot_be_told(cut_off: Desk) -> None:
    cut_off.run(9.0)
    cut_off.ref.tell_control(StopModel(TAG))
    cut_off.run()
    assert [what for what in cut_off.told() if what != "str"] == ["half"]
    assert len(cut_off.driver.started) == 1
