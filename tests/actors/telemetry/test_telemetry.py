"""What is logged, counted and traced: correlation on everything, content on nothing, and a fault here is nobody's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context, ContextVar
from itertools import zip_longest
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callboard.actors.calls.registry import ToolRestored, ToolWithdrawn
from callboard.actors.kernel import ActorSystem, Ref
from callboard.actors.requests.conversation import Question
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.telemetry.telemetry import (
    Metrics,
    OpenTelemetrySpans,
    ReadMetrics,
    RequestLost,
    Spans,
    Telemetry,
)
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
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Error, ModelRequest, ModelResponse, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.tools import FailureCode, ToolFailure
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

REQUEST = Tag(RequestId("r"), MessageId("m"))
STEP = REQUEST.at_step(1)
CALL = STEP._replace(call_id=CallId("c"))
SECRET = "the secret of what people wrote"

STARTED = Question(REQUEST, (), UserMessage.of(SECRET), RequestOptions("p/m"), 0.0, Context())
ASKED = CallModel(STEP, ModelRequest("p/m", (UserMessage.of(SECRET),)), 9.0)
RAN = RunTool(CALL, ToolName("look"), f'{{"x":"{SECRET}"}}', 9.0, "e")
FINISHED = Finish(REQUEST, Outcome.ANSWERED, SECRET, Usage(7, 3), 0.25, ())


class Stand:
    """Telemetry in a simulated system."""

    def __init__(self, system: ActorSystem, spans: Spans | None = None, log_content: bool = False) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.scheduler = system.scheduler
        self.ref: Ref = system.spawn(lambda: Telemetry(spans or Spans(), log_content), "telemetry")

    def tell(self, *messages: Any, at: Sequence[float] = ()) -> Metrics:
        """One after the other, at these times."""
        for message, when in zip_longest(messages, at, fillvalue=0.0):
            self.scheduler.run_until_idle(max(when, self.scheduler.now()))
            self.ref.tell(message)
        metrics = self.ref.ask(ReadMetrics(), 1.0)
        assert isinstance(metrics, Metrics)
        return metrics


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    caplog.set_level(logging.INFO, "callboard")
    return lambda: [record for record in caplog.records if record.name == "callboard"]


ENDS = [
    (ToolCallCompleted(CALL, 4.5, f'"{SECRET}"', output=SECRET), "ok", logging.INFO),
    (
        ToolCallFailed(CALL, 4.5, ToolFailure(ToolName("look"), FailureCode.CRASHED, SECRET)),
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
    metrics = Stand(simulated).tell(STARTED, RAN, event, at=(0.0, 2.0, 4.5))
    assert metrics.counters[f"tool.look.{ending}"] == 1
    assert metrics.seconds["tool.look"].total_seconds == 2.5
    (record,) = records()
    assert record.levelno == level
    assert record.getMessage() == f"tool.look {ending} after 2.500 s"
    assert (record.request_id, record.parent_id, record.step, record.call_id) == ("r", "m", 1, "c")  # type: ignore[attr-defined]


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
    metrics = Stand(simulated).tell(STARTED, ASKED, event, at=(0.0, 1.0, 3.0))
    assert metrics.counters[f"model.p/m.{ending}"] == 1
    assert metrics.seconds["model.p/m"].total_seconds == 2.0
    assert [record.levelno for record in records()] == [level]


def test_a_request_with_its_usage_and_what_it_left_open(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    metrics = Stand(simulated).tell(STARTED, ASKED, RAN, FINISHED, at=(0.0, 1.0, 2.0, 5.0))
    assert dict(metrics.counters) == {
        "request.answered": 1,
        "model.p/m.cancelled": 1,
        "tool.look.cancelled": 1,
        "tokens.input": 7,
        "tokens.output": 3,
    }
    assert metrics.cost == 0.25
    assert metrics.seconds["request"].total_seconds == 5.0
    assert SECRET not in "".join(record.getMessage() for record in records())


def test_a_lost_session_leaves_nothing_open(simulated: ActorSystem) -> None:
    stand = Stand(simulated)
    metrics = stand.tell(STARTED, RAN, RequestLost(REQUEST))
    assert (metrics.counters["request.lost"], metrics.counters["tool.look.cancelled"]) == (1, 1)
    assert stand.ref._cell.actor is not None
    assert not stand.ref._cell.actor._open  # type: ignore[attr-defined]


def test_what_was_told_before_a_stop_is_heard(simulated: ActorSystem) -> None:
    """Messages that wait when an actor stops are dead letters; the last requests were not counted."""
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    metrics = Metrics()
    ref = simulated.spawn(lambda: Telemetry(Spans(), metrics=metrics), "telemetry")
    for number in range(200):
        request = Tag(RequestId(f"r{number}"), MessageId("m"))
        ref.tell(Question(request, (), UserMessage.of("?"), RequestOptions("p/m"), 0.0, Context()))
        ref.tell(Finish(request, Outcome.ANSWERED, "", Usage(), 0.0, ()))
    ref.stop()
    simulated.scheduler.run_until_idle()
    assert metrics.counters["request.answered"] == 200
    assert not ref.is_alive()


def test_a_second_end_is_not_counted(simulated: ActorSystem) -> None:
    done = ToolCallCompleted(CALL, 4.5, '"x"')
    assert Stand(simulated).tell(STARTED, RAN, done, done).counters["tool.look.ok"] == 1


def test_withdrawals_are_counted(simulated: ActorSystem) -> None:
    look = ToolName("look")
    counters = Stand(simulated).tell(ToolWithdrawn(look, 1.0, look), ToolRestored(look, 2.0)).counters
    names = ("tools.withdrawn", "tool.look.withdrawn", "tools.restored", "tool.look.restored")
    assert [counters[name] for name in names] == [1, 1, 1, 1]


def test_content_is_logged_when_asked_for(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    Stand(simulated, log_content=True).tell(STARTED)
    assert SECRET in records()[0].getMessage()


# -- spans


@pytest.fixture
def exported() -> tuple[OpenTelemetrySpans, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    class Module:
        """opentelemetry.trace with a provider of our own: the real one is global, and set once."""

        get_tracer = staticmethod(provider.get_tracer)
        get_tracer_provider = staticmethod(lambda: provider)
        set_span_in_context = staticmethod(trace.set_span_in_context)
        ProxyTracerProvider = trace.ProxyTracerProvider
        StatusCode = trace.StatusCode

    return OpenTelemetrySpans(Module), exporter


def test_spans_begin_when_the_host_has_set_up_a_provider(
    exported: tuple[OpenTelemetrySpans, InMemorySpanExporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may do so after the runtime has started."""
    spans, exporter = exported
    with monkeypatch.context() as patch:
        patch.setattr(spans._trace, "get_tracer_provider", trace.ProxyTracerProvider)
        spans.begin(REQUEST, "too early")
    spans.begin(STEP, "traced")
    for tag in (STEP, REQUEST):
        spans.end(tag, "ok", ok=True)
    assert [span.name for span in exporter.get_finished_spans()] == ["traced"]


def test_spans_nest_and_carry_their_tags(
    simulated: ActorSystem, exported: tuple[OpenTelemetrySpans, InMemorySpanExporter]
) -> None:
    spans, exporter = exported
    failed = ToolCallFailed(CALL, 4.5, ToolFailure(ToolName("look"), FailureCode.CRASHED, SECRET))
    Stand(simulated, spans).tell(STARTED, ASKED, ModelResponded(STEP, 1.5, ModelResponse()), RAN, failed, FINISHED)
    finished: dict[str, Any] = {span.name: span for span in exporter.get_finished_spans()}
    assert set(finished) == {"request", "model.p/m", "tool.look"}
    request = finished["request"]
    for name in ("model.p/m", "tool.look"):
        assert finished[name].parent.span_id == request.context.span_id
        assert finished[name].context.trace_id == request.context.trace_id
    assert dict(finished["tool.look"].attributes) == {
        "callboard.request_id": "r",
        "callboard.parent_id": "m",
        "callboard.step": 1,
        "callboard.call_id": "c",
        "callboard.ending": "crashed",
    }
    assert finished["tool.look"].status.status_code is trace.StatusCode.ERROR
    assert finished["model.p/m"].status.is_unset
    assert request.start_time <= finished["tool.look"].start_time <= finished["tool.look"].end_time <= request.end_time
    assert SECRET not in "".join(span.to_json() for span in exporter.get_finished_spans())


COLOUR: ContextVar[str] = ContextVar("colour", default="none")


def test_spans_are_children_of_the_askers_own(
    simulated: ActorSystem, exported: tuple[OpenTelemetrySpans, InMemorySpanExporter]
) -> None:
    spans, exporter = exported
    host = TracerProvider().get_tracer("host").start_span("the host's own")
    asker = Context()
    asker.run(attach, trace.set_span_in_context(host))
    question = Question(REQUEST, (), UserMessage.of("?"), RequestOptions("p/m"), 0.0, asker)
    Stand(simulated, spans).tell(question, RAN, ToolCallCompleted(CALL, 0.0, "1"), FINISHED)
    finished: dict[str, Any] = {span.name: span for span in exporter.get_finished_spans()}
    assert finished["request"].parent.span_id == host.get_span_context().span_id
    assert {span.context.trace_id for span in finished.values()} == {host.get_span_context().trace_id}


def test_log_records_are_made_in_the_askers_context(simulated: ActorSystem) -> None:
    colours: list[tuple[str, str]] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: colours.append((record.request_id, COLOUR.get()))  # type: ignore[attr-defined,method-assign]
    logger = logging.getLogger("callboard")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    stand = Stand(simulated)
    try:
        for name in ("red", "green", "blue"):
            request, asker = Tag(RequestId(name), MessageId("m")), Context()
            asker.run(COLOUR.set, name)
            call = request.at_step(1)._replace(call_id=CallId("c"))
            # Nobody else may be in the way of a context that its owner has entered.
            asker.run(
                stand.tell,
                Question(request, (), UserMessage.of("?"), RequestOptions("p/m"), 0.0, asker),
                RunTool(call, ToolName("look"), "{}", 9.0, "e"),
                ToolCallCompleted(call, 0.0, "1"),
                Finish(request, Outcome.ANSWERED, "", Usage(), 0.0, ()),
            )
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert colours == [(name, name) for name in ("red", "green", "blue") for _ in range(2)]


def test_an_end_without_a_begin_is_no_span(exported: tuple[OpenTelemetrySpans, InMemorySpanExporter]) -> None:
    spans, exporter = exported
    spans.end(CALL, "ok", ok=True)
    assert not exporter.get_finished_spans()


def test_a_span_processor_that_raises_costs_a_count_and_nothing_else(simulated: ActorSystem) -> None:
    class Broken(Spans):
        def end(self, tag: Tag, ending: str, *, ok: bool) -> None:
            raise OSError("the collector is gone")

    stand = Stand(simulated, Broken())
    metrics = stand.tell(STARTED, RAN, ToolCallCompleted(CALL, 4.5, '"x"'), FINISHED)
    assert metrics.counters["tool.look.ok"] == 1
    assert metrics.counters["telemetry.failed"] == 2
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
    assert metrics.counters["tool.look.ok"] == metrics.counters["request.answered"] == 1
    assert metrics.counters["model.scripted/model.ok"] == 2
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
        assert runtime.metrics().counters["request.answered"] == 2


async def test_durations_are_never_negative_under_load() -> None:
    async with Runtime(Settings(model="scripted/model")) as runtime:
        await asyncio.gather(*(runtime.ask(f"question {n}") for n in range(300)))
        metrics = runtime.metrics()
    assert all(histogram.total_seconds >= 0 for histogram in metrics.seconds.values())
    assert metrics.seconds["request"].count == 300
