"""What happens to calls besides running: counted, logged and in spans, by one table; content where asked for."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, get_args

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callboard.actors.calls.registry import ToolRestored, ToolWithdrawn
from callboard.actors.kernel import ActorSystem
from callboard.actors.requests.conversation import Question
from callboard.actors.telemetry.notices import (
    NOTICES,
    UNKNOWN,
    EmbedderFailed,
    InRequest,
    PeerLost,
    ToolPrinted,
    ToolStopped,
)
from callboard.actors.telemetry.telemetry import (
    MAX_PRINTED_BYTES,
    MAX_PRINTED_LINES,
    Metrics,
    OpenTelemetrySpans,
    ReadMetrics,
    Spans,
    Telemetry,
)
from callboard.protocol.commands import AskApproval, CallModel, Finish, Note, NoteKind, Outcome, ReportFailure, RunTool
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ApprovalDenied, ApprovalGranted, ModelFailed, ToolCallDeferred, ToolCallFailed
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Error, ModelRequest, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.tools import FailureCode, Risk, ToolFailure

REQUEST = Tag(RequestId("r"), MessageId("m"))
STEP = REQUEST.at_step(1)
CALL = STEP._replace(call_id=CallId("c"))
LOOK = ToolName("look")
SECRET = "what people wrote"
KEY = "sk-proj-" + "a1B2c3D4" * 6

STARTED = Question(REQUEST, (), UserMessage.of("?"), RequestOptions("p/m"), 0.0, Context())
ASKED = CallModel(STEP, ModelRequest("p/m", ()), 9.0)
RAN = RunTool(CALL, LOOK, "{}", 9.0, "e")
FINISHED = Finish(REQUEST, Outcome.ANSWERED, SECRET, Usage(), 0.0, ())
RAISED = ToolFailure(
    LOOK,
    FailureCode.TOOL_ERROR,
    f"LookupError: {SECRET} {KEY}",
    traceback=f'Traceback:\n  File "w.py", line 3, in fetch\n    raise LookupError(...)\nLookupError: {SECRET}\n',
    frames='LookupError\n  File "w.py", line 3, in fetch',
)
DENIED = ToolFailure(LOOK, FailureCode.DENIED, f"not allowed: {SECRET}")

#: One message of each kind that is about a request, what is counted by it and what is logged.
IN_REQUEST: Final[list[tuple[Any, set[str], str, dict[str, str]]]] = [
    (
        AskApproval(CALL, LOOK, f'{{"x":"{SECRET}"}}', Risk.WRITE),
        {"approvals.asked", "tool.look.approval_asked"},
        "look needs approval, its risk is write",
        {"tool": "look", "risk": "write"},
    ),
    (ApprovalGranted(CALL, 1.0, "ann"), {"approvals.granted"}, "the call was approved by ann", {"by": "ann"}),
    (
        ApprovalDenied(CALL, 1.0, "policy", SECRET),
        {"approvals.denied"},
        "the call was not approved by policy",
        {"by": "policy"},
    ),
    (
        ToolCallDeferred(CALL, 1.0, 60.0, SECRET),
        {"calls.deferred"},
        "the call waits up to 60 s for its result from outside",
        {"timeout": "60"},
    ),
    (ReportFailure(CALL, DENIED), {"tool.look.denied"}, "tool.look denied", {"tool": "look", "code": "denied"}),
    (
        Note(STEP, "p/m failed (server, status 500) after 1 of 4 requests", NoteKind.RETRY),
        {"note.retry"},
        "retry: p/m failed (server, status 500) after 1 of 4 requests",
        {"kind": "retry", "told": "p/m failed (server, status 500) after 1 of 4 requests"},
    ),
    (
        Note(STEP, f"Step asked again: {SECRET}", NoteKind.ASKED_AGAIN),
        {"note.asked_again"},
        "asked_again: ...",
        {"kind": "asked_again", "told": "..."},
    ),
    (
        ToolStopped(CALL, LOOK, 'CallEnded\n  File "w.py", line 3, in wait'),
        {"tool.look.stopped"},
        'tool.look was stopped in CallEnded\n  File "w.py", line 3, in wait',
        {"tool": "look", "frames": 'CallEnded\n  File "w.py", line 3, in wait'},
    ),
    (
        PeerLost(REQUEST, "root/dispatcher", "crashed"),
        {"requests.peer_lost"},
        "root/dispatcher was lost (crashed) while the request ran",
        {"actor": "root/dispatcher", "reason": "crashed"},
    ),
]


class Stage:
    """Telemetry in a simulated system, with OpenTelemetry's spans in memory."""

    def __init__(self, system: ActorSystem, log_content: bool) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))

        class Module:
            get_tracer = staticmethod(provider.get_tracer)
            get_tracer_provider = staticmethod(lambda: provider)
            set_span_in_context = staticmethod(trace.set_span_in_context)
            ProxyTracerProvider = trace.ProxyTracerProvider
            StatusCode = trace.StatusCode

        self._ref: Any = system.spawn(lambda: Telemetry(OpenTelemetrySpans(Module), log_content), "telemetry")

    def tell(self, *messages: Any) -> Metrics:
        for message in messages:
            self._ref.tell(message)
        metrics = self._ref.ask(ReadMetrics(), 1.0)
        assert isinstance(metrics, Metrics)
        return metrics

    def span_events(self) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """By span."""
        return {
            span.name: [(event.name, dict(event.attributes or {})) for event in span.events]
            for span in self.exporter.get_finished_spans()
        }

    def exported(self) -> str:
        return "".join(span.to_json() for span in self.exporter.get_finished_spans())


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    caplog.set_level(logging.INFO, "callboard")
    return lambda: [record for record in caplog.records if record.name in ("callboard", "callboard.tools.output")]


def test_the_cases_are_all_there_are() -> None:
    assert {type(message) for message, *_ in IN_REQUEST} == set(get_args(InRequest))


@pytest.mark.parametrize(("message", "counted", "text", "fields"), IN_REQUEST, ids=lambda v: type(v).__name__)
def test_each_is_counted_logged_with_its_ids_and_an_event_of_the_span(
    simulated: ActorSystem,
    records: Callable[[], list[logging.LogRecord]],
    message: Any,
    counted: set[str],
    text: str,
    fields: dict[str, str],
) -> None:
    stage = Stage(simulated, log_content=False)
    before = stage.tell(STARTED).counters
    after = stage.tell(message).counters
    assert set(after - before) == counted
    (record,) = records()
    rule = NOTICES[type(message)]
    assert (record.getMessage(), record.levelno) == (text, rule.level_of(fields))
    said = {name: getattr(record, name) for name in ("request_id", "step", "call_id", "event", *fields)}
    tag = message.tag
    assert said == {
        "request_id": "r", "step": tag.step, "call_id": tag.call_id, "event": rule.event, **fields,
    }  # fmt: skip
    stage.tell(FINISHED)
    ((name, attributes),) = stage.span_events()["request"]
    assert name == rule.event
    assert {f"callboard.{field}": value for field, value in fields.items()}.items() <= attributes.items()
    assert attributes["callboard.call_id"] == tag.call_id
    assert SECRET not in stage.exported() + "".join(each.getMessage() for each in records())


def test_content_is_logged_when_asked_for(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    stage = Stage(simulated, log_content=True)
    stage.tell(STARTED, IN_REQUEST[0][0], IN_REQUEST[2][0], ReportFailure(CALL, DENIED))
    assert [record.getMessage() for record in records()[1:]] == [
        f'look needs approval, its risk is write: {{"x":"{SECRET}"}}',
        f"the call was not approved by policy: {SECRET}",
        f"tool.look denied: not allowed: {SECRET}",
    ]


def test_a_name_that_the_model_made_up_is_content(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    stage = Stage(simulated, log_content=False)
    for name in (SECRET, "another", "{tool}"):
        stage.tell(STARTED, ReportFailure(CALL, ToolFailure(ToolName(name), FailureCode.UNKNOWN_TOOL, name)))
    counters = stage.tell(FINISHED).counters
    assert counters[f"tool.{UNKNOWN}.unknown_tool"] == 3
    everything = stage.exported() + str(counters) + "".join(str(vars(record)) for record in records())
    assert SECRET not in everything


def test_a_call_that_is_given_up_while_it_runs_ends_with_its_code(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    stage = Stage(simulated, log_content=False)
    late = ToolFailure(LOOK, FailureCode.TIMED_OUT, "the deadline passed.")
    counters = stage.tell(STARTED, RAN, ReportFailure(CALL, late), FINISHED).counters
    assert (counters["tool.look.timed_out"], counters["tool.look.cancelled"]) == (1, 0)
    assert records()[0].getMessage().startswith("tool.look timed_out after ")
    (span,) = [each for each in stage.exporter.get_finished_spans() if each.name == "tool.look"]
    assert dict(span.attributes or {})["callboard.ending"] == "timed_out"


@pytest.mark.parametrize("log_content", [False, True])
def test_a_tool_that_raises_leaves_type_and_frames_and_the_rest_where_content_is_logged(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], log_content: bool
) -> None:
    stage = Stage(simulated, log_content)
    stage.tell(STARTED, RAN, ToolCallFailed(CALL, 1.0, RAISED), FINISHED)
    (record,) = [each for each in records() if each.levelno == logging.WARNING]
    text, exported = record.getMessage(), stage.exported()
    assert (record.work, record.ending) == ("tool.look", "tool_error")  # type: ignore[attr-defined]
    ((name, attributes),) = stage.span_events()["tool.look"]
    assert (name, attributes["exception.type"], attributes["callboard.code"]) == (
        "exception", "LookupError", "tool_error",
    )  # fmt: skip
    for said in (text, str(attributes["exception.stacktrace"])):
        assert 'File "w.py", line 3, in fetch' in said
        assert (SECRET in said) is log_content
        assert ("raise LookupError" in said) is log_content
    assert KEY not in text + exported


@pytest.mark.parametrize("log_content", [False, True])
def test_why_a_model_call_failed_is_content(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], log_content: bool
) -> None:
    failed = ModelFailed(STEP, 1.0, Error(ErrorKind.AUTHENTICATION, SECRET))
    Stage(simulated, log_content).tell(STARTED, ASKED, failed)
    assert (SECRET in records()[-1].getMessage()) is log_content
    assert "model.p/m authentication after" in records()[-1].getMessage()


def test_what_happens_to_the_runtime_is_counted(simulated: ActorSystem) -> None:
    stage = Stage(simulated, log_content=False)
    counters = stage.tell(ToolWithdrawn(LOOK, 1.0), ToolRestored(LOOK, 2.0), EmbedderFailed("small")).counters
    assert dict(counters) == {
        "tools.withdrawn": 1, "tool.look.withdrawn": 1, "tools.restored": 1, "tool.look.restored": 1,
        "search.embedder_failed": 1,
    }  # fmt: skip


def test_what_a_former_incarnation_has_not_heard_of_is_counted_and_logged_too(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    """Telemetry was started again while the request ran."""
    assert Stage(simulated, log_content=False).tell(ReportFailure(CALL, DENIED)).counters["tool.look.denied"] == 1
    assert [record.getMessage() for record in records()] == ["tool.look denied"]


@pytest.mark.parametrize("text", ["y" * 3_989 + " " + KEY, "y" * 1_000_000, f"{KEY} " * 10_000])
def test_content_is_bounded_and_a_cut_leaves_no_piece_of_a_key(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], text: str
) -> None:
    failed = ToolFailure(LOOK, FailureCode.DENIED, text)
    Stage(simulated, log_content=True).tell(STARTED, ReportFailure(CALL, failed))
    said = records()[-1].getMessage()
    assert len(said) < 4_200
    assert "characters more)" in said
    assert "sk-proj" not in said


def test_spans_that_do_nothing_take_notices_too() -> None:
    assert Spans().note(CALL, "approval.asked", {}) is None  # type: ignore[func-returns-value]


# -- what tools print


def printed(text: str, total_bytes: int | None = None) -> ToolPrinted:
    return ToolPrinted(CALL, LOOK, text, len(text.encode()) if total_bytes is None else total_bytes, Context())


def lines_of(records: list[logging.LogRecord]) -> list[str]:
    return [record.getMessage() for record in records if record.name == "callboard.tools.output"]


def test_printed_lines_are_records_with_the_ids_of_their_call(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    counters = Stage(simulated, log_content=True).tell(printed("one\r\n\x1b[31mtwo\x1b[0m\n")).counters
    assert lines_of(records()) == ["look: one", r"look: \x1b[31mtwo\x1b[0m"]
    for record in records():
        ids = (record.request_id, record.step, record.call_id, record.tool)  # type: ignore[attr-defined]
        assert ids == ("r", 1, "c", "look")
    assert counters["tool.look.printed_bytes"] == len("one\r\n\x1b[31mtwo\x1b[0m\n")


def test_without_content_only_how_much_was_printed_is_logged(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    Stage(simulated, log_content=False).tell(printed(SECRET, 1_234))
    assert lines_of(records()) == ["look: 1,234 bytes were printed"]


def test_a_key_that_is_printed_is_masked(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    Stage(simulated, log_content=True).tell(printed(f"the key is {KEY}\n"))
    (line,) = lines_of(records())
    assert line.startswith("look: the key is ")
    assert KEY not in line


@pytest.mark.parametrize(
    "text",
    ["".join(f"line {n}\n" for n in range(5_000)), "".join(f"{n:>900}\n" for n in range(60)), "x" * 60_000],
    ids=["many lines", "long lines", "one line"],
)
def test_what_is_printed_is_bounded_and_says_once_what_was_dropped(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], text: str
) -> None:
    total = len(text) + 1_000_000
    Stage(simulated, log_content=True).tell(printed(text, total))
    lines = lines_of(records())
    assert len(lines) <= MAX_PRINTED_LINES + 1
    told = re.fullmatch(r"look: \.\.\. and ([\d,]+) bytes before this were dropped", lines[0])
    assert told is not None, lines[0]
    shown = "".join(line.removeprefix("look: ") + "\n" for line in lines[1:])
    assert len(shown) <= MAX_PRINTED_BYTES + 1
    assert int(told[1].replace(",", "")) + len(shown) - total in (0, 1)
    assert text.endswith(shown) or text == shown.rstrip("\n")[-1] * len(text)
    assert not any("dropped" in line for line in lines[1:])
