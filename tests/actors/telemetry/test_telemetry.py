"""What is logged, counted and traced: correlation on everything, content on nothing, and a fault here is nobody's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

import pytest
from support.telling import CALL, LOOK, REQUEST, STEP, TelemetryStand, asked
from support.tracing import SpansInMemory

from callboard.actors.calls.registry import ToolRestored, ToolWithdrawn
from callboard.actors.kernel import ActorSystem
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.telemetry.conventions import finish_attributes
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.telemetry.telemetry import Observed, RequestLost, Telemetry
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.actors.tools import tool
from callboard.protocol.commands import CallModel, Finish, Outcome, RunTool
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import (
    ModelFailed,
    ModelLost,
    ModelResponded,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallTimedOut,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.model import Error, FinishReason, ModelRequest, ModelResponse, Usage
from callboard.protocol.reports import StepReport
from callboard.protocol.tools import FailureCode, ToolFailure
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

SECRET = "the secret of what people wrote"

STARTED = asked(SECRET)
ASKED = CallModel(STEP, ModelRequest("p/m", (UserMessage.of(SECRET),)), 9.0)
RAN = RunTool(CALL, LOOK, f'{{"x":"{SECRET}"}}', 9.0, "e")
STEPS = (StepReport(1, 1.0, True, "p/m", Usage(7, 3), 0.25),)
FINISHED = Finish(REQUEST, Outcome.ANSWERED, SECRET, Usage(7, 3), 0.25, STEPS)


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    caplog.set_level(logging.INFO, "callboard")
    return lambda: [record for record in caplog.records if record.name == "callboard"]


ENDS = [
    (ToolCallCompleted(CALL, 4.5, f'"{SECRET}"', output=SECRET), "ok", logging.INFO),
    (
        ToolCallFailed(CALL, 4.5, ToolFailure(LOOK, FailureCode.CRASHED, SECRET)),
        "crashed",
        logging.WARNING,
    ),
    (ToolCallTimedOut(CALL, 4.5, output=SECRET), "timed_out", logging.WARNING),
    (ToolCallCancelled(CALL, 4.5), "cancelled", logging.WARNING),
]


@pytest.mark.parametrize(("event", "ending", "level"), ENDS, ids=lambda value: str(value) if type(value) is str else "")
def test_each_end_of_a_call(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], event: Any, ending: str, level: int
) -> None:
    metrics = TelemetryStand(simulated).tell(STARTED, RAN, event, at=(0.0, 2.0, 4.5))
    assert metrics.count("callboard.tool.calls", tool="look", outcome=ending) == 1
    assert metrics.histogram("gen_ai.execute_tool.duration", tool="look").total == 2.5
    (record,) = records()
    assert record.levelno == level
    assert record.getMessage() == f"tool.look {ending} after 2.500 s"
    assert (record.request_id, record.parent_id, record.step, record.call_id) == ("r", "m", 1, "c")  # type: ignore[attr-defined]
    assert record.tool == "look"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("event", "ending", "level"),
    [
        (ModelResponded(STEP, 3.0, ModelResponse()), "ok", logging.INFO),
        (ModelFailed(STEP, 3.0, Error(ErrorKind.TIMEOUT, SECRET)), "timeout", logging.WARNING),
        (ModelLost(STEP, 3.0), "lost", logging.WARNING),
    ],
)
def test_each_end_of_a_model_call(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], event: Any, ending: str, level: int
) -> None:
    metrics = TelemetryStand(simulated).tell(STARTED, ASKED, event, at=(0.0, 1.0, 3.0))
    assert metrics.count("callboard.model.calls", model="p/m", outcome=ending) == 1
    assert metrics.histogram("gen_ai.client.operation.duration", model="p/m").total == 2.0
    assert [record.levelno for record in records()] == [level]


def test_a_request_with_its_usage_and_what_it_left_open(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    metrics = TelemetryStand(simulated).tell(STARTED, ASKED, RAN, FINISHED, at=(0.0, 1.0, 2.0, 5.0))
    assert metrics.counts("callboard.requests") == {("answered",): 1}
    assert metrics.counts("callboard.model.calls") == {("p/m", "cancelled"): 1}
    assert metrics.counts("callboard.tool.calls") == {("look", "cancelled"): 1}
    tokens = {labels: each.total for labels, each in metrics.histograms("gen_ai.client.token.usage").items()}
    assert tokens == {("p/m", "input"): 7, ("p/m", "output"): 3}
    assert metrics.cost == 0.25
    assert metrics.histogram("gen_ai.invoke_agent.duration").total == 5.0
    assert metrics.count("callboard.requests.open") == 0
    assert SECRET not in "".join(record.getMessage() for record in records())


def test_a_lost_session_leaves_nothing_open(simulated: ActorSystem) -> None:
    stand = TelemetryStand(simulated)
    assert stand.tell(STARTED, RAN).count("callboard.requests.open") == 1
    metrics = stand.tell(RequestLost(STARTED))
    assert metrics.counts("callboard.requests") == {("lost",): 1}
    assert metrics.counts("callboard.tool.calls") == {("look", "cancelled"): 1}
    assert metrics.count("callboard.requests.open") == 0


def test_a_request_whose_session_was_lost_at_once_is_counted(simulated: ActorSystem) -> None:
    assert TelemetryStand(simulated).tell(RequestLost(STARTED)).counts("callboard.requests") == {("lost",): 1}


def test_what_was_told_before_a_stop_is_heard(simulated: ActorSystem) -> None:
    """Messages that wait when an actor stops are dead letters; the last requests were not counted."""
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    metrics = Metrics()
    ref = simulated.spawn(lambda: Telemetry(counted=metrics), "telemetry")
    for number in range(200):
        request = Tag(RequestId(f"r{number}"), MessageId("m"))
        finish = Finish(request, Outcome.ANSWERED, "", Usage(), 0.0, ())
        ref.tell(Observed(asked(tag=request), Context(), None, (), 0.0, (asked(tag=request), finish)))
    ref.stop()
    simulated.scheduler.run_until_idle()
    assert metrics.count("callboard.requests", outcome="answered") == 200
    assert not ref.is_alive()


def test_a_request_that_hands_its_calls_out_went_well(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    finish = Finish(REQUEST, Outcome.CALLS_OUTSIDE, "", Usage(), 0.0, (), finish_reason=FinishReason.TOOL_CALLS)
    metrics = TelemetryStand(simulated).tell(STARTED, finish)
    assert metrics.counts("callboard.requests") == {("calls_outside",): 1}
    assert metrics.histogram("gen_ai.invoke_agent.duration", error="").count == 1
    assert [record.levelno for record in records()] == [logging.INFO]
    assert finish_attributes(finish)["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert "error.type" not in finish_attributes(finish)


def test_a_second_end_is_not_counted(simulated: ActorSystem) -> None:
    done = ToolCallCompleted(CALL, 4.5, '"x"')
    metrics = TelemetryStand(simulated).tell(STARTED, RAN, done, done)
    assert metrics.counts("callboard.tool.calls") == {("look", "ok"): 1}


def test_withdrawals_are_counted(simulated: ActorSystem) -> None:
    metrics = TelemetryStand(simulated).tell(ToolWithdrawn(LOOK, 1.0, LOOK), ToolRestored(LOOK, 2.0))
    assert metrics.counts("callboard.tool.health") == {("look", "withdrawn"): 1, ("look", "restored"): 1}


def test_the_first_piece_of_an_answer_is_timed_and_the_model_that_gave_it_counted(simulated: ActorSystem) -> None:
    """A fallback answered."""
    answered = ModelResponded(STEP, 3.0, ModelResponse(), model="q/n", first_event_at=1.25)
    metrics = TelemetryStand(simulated).tell(STARTED, ASKED, answered, at=(0.0, 1.0, 3.0))
    assert metrics.histogram("gen_ai.client.operation.time_to_first_chunk", model="q/n").total == 0.25
    assert metrics.counts("callboard.model.calls") == {("q/n", "ok"): 1}


def test_each_model_has_its_own_tokens_and_cost(simulated: ActorSystem) -> None:
    steps = (*STEPS, StepReport(2, 1.0, True, "q/n", Usage(70, 30), 0.5), StepReport(3, 1.0, True, "q/n"))
    metrics = TelemetryStand(simulated).tell(STARTED, Finish(REQUEST, Outcome.ANSWERED, "", None, None, steps))
    assert metrics.counts("callboard.cost") == {("p/m",): 0.25, ("q/n",): 0.5}
    assert metrics.histogram("gen_ai.client.token.usage", model="q/n", token="input").total == 70
    assert metrics.count("callboard.requests.tokens_unknown") == metrics.count("callboard.requests.cost_unknown") == 1


def test_content_is_logged_when_asked_for(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    TelemetryStand(simulated, log_content=True).tell(STARTED)
    assert SECRET in records()[0].getMessage()


# -- spans


COLOUR: ContextVar[str] = ContextVar("colour", default="none")


def test_log_records_are_made_in_the_askers_context(simulated: ActorSystem) -> None:
    colours: list[tuple[str, str]] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: colours.append((record.request_id, COLOUR.get()))  # type: ignore[attr-defined,method-assign]
    logger = logging.getLogger("callboard")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    stand = TelemetryStand(simulated)
    try:
        for name in ("red", "green", "blue"):
            request, asker = Tag(RequestId(name), MessageId("m")), Context()
            asker.run(COLOUR.set, name)
            call = request.at_step(1)._replace(call_id=CallId("c"))
            # Nobody else may be in the way of a context that its owner has entered.
            asker.run(
                stand.tell,
                asked(tag=request, asker=asker),
                RunTool(call, LOOK, "{}", 9.0, "e"),
                ToolCallCompleted(call, 0.0, "1"),
                Finish(request, Outcome.ANSWERED, "", Usage(), 0.0, ()),
            )
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert colours == [(name, name) for name in ("red", "green", "blue") for _ in range(2)]


def test_a_span_processor_that_raises_costs_a_count_and_nothing_else(simulated: ActorSystem) -> None:
    spans = SpansInMemory()

    def broken(question: Any, now: float) -> Any:
        begun = spans.tracing().begin(question, now)
        assert begun is not None
        begun.end = fails  # type: ignore[method-assign]
        return begun

    def fails(*_: object, **__: object) -> None:
        raise OSError("the collector is gone")

    metrics = TelemetryStand(simulated, broken).tell(STARTED, RAN, ToolCallCompleted(CALL, 4.5, '"x"'), FINISHED)
    assert metrics.count("callboard.tool.calls", outcome="ok") == 1
    assert metrics.count("callboard.telemetry.failed") == 2
    assert simulated.statistics().restarts == 0


# -- in a real runtime


@tool(isolation="thread")
def look(x: str) -> str:
    return x


class Handler(logging.Handler):
    def __init__(self, fails: bool) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []
        self._fails = fails

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if self._fails:
            raise OSError("the disk is full")


@pytest.mark.parametrize("fails", [False, True])
def test_every_record_of_a_request_is_correlated_and_a_broken_handler_costs_no_request(fails: bool) -> None:
    script = [ScriptedTurn(calls=(ScriptedCall("look", {"x": SECRET}),)), ScriptedTurn(SECRET)]
    handler, logger = Handler(fails), logging.getLogger("callboard")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with Runtime(Settings(model="scripted/model", script=script), tools=[look]) as runtime:
            reply = runtime.ask_sync(SECRET)
            metrics = runtime.metrics()
            assert runtime.statistics().restarts == 0
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert reply.text == SECRET
    assert (
        metrics.count("callboard.tool.calls", tool="look", outcome="ok")
        == metrics.count("callboard.requests", outcome="answered")
        == 1
    )
    assert metrics.count("callboard.model.calls", model="scripted/model", outcome="ok") == 2
    said = [record for record in handler.records if record.name == "callboard"]
    assert {record.request_id for record in said} == {reply.request_id}  # type: ignore[attr-defined]
    assert all(hasattr(record, name) for record in said for name in ("parent_id", "step", "call_id"))
    assert SECRET not in "".join(record.getMessage() for record in handler.records)


def test_what_was_counted_outlives_a_crash_of_telemetry(until: Callable[[Callable[[], bool]], None]) -> None:
    with Runtime(Settings(model="scripted/model")) as runtime:
        runtime.ask_sync("one")
        assert runtime._running is not None
        cell = runtime._running.system.ref("root/telemetry")._cell
        cell.executor.call_soon(cell.kill)
        until(lambda: runtime.statistics().restarts == 1)
        runtime.ask_sync("two")
        assert runtime.metrics().count("callboard.requests", outcome="answered") == 2


async def test_durations_are_never_negative_under_load() -> None:
    async with Runtime(Settings(model="scripted/model")) as runtime:
        await asyncio.gather(*(runtime.ask(f"question {n}") for n in range(300)))
        metrics = runtime.metrics()
    durations = ("gen_ai.invoke_agent.duration", "gen_ai.client.operation.duration")
    assert all(metrics.histogram(name).total >= 0 for name in durations)
    assert metrics.count("gen_ai.invoke_agent.duration") == 300
