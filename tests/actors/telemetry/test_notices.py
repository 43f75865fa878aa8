"""What happens to calls besides running: counted, logged and in spans, by one table; content where asked for."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, get_args

import pytest
from support.telling import CALL, LOOK, REQUEST, STEP, TelemetryStand, asked
from support.tracing import SpansInMemory

from callboard.actors.calls.registry import ToolRestored, ToolWithdrawn
from callboard.actors.kernel import ActorSystem
from callboard.actors.telemetry.metrics import UNKNOWN, Metrics
from callboard.actors.telemetry.notices import (
    NOTICES,
    EmbedderFailed,
    InRequest,
    PeerLost,
    ToolPrinted,
    ToolStopped,
)
from callboard.actors.telemetry.telemetry import MAX_PRINTED_BYTES, MAX_PRINTED_LINES
from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CallOutside,
    Finish,
    Note,
    NoteKind,
    Outcome,
    ReportFailure,
    RunTool,
)
from callboard.protocol.content import ToolCall
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ApprovalDenied, ApprovalGranted, ModelFailed, ToolCallDeferred, ToolCallFailed
from callboard.protocol.ids import ToolName
from callboard.protocol.model import Error, ModelRequest, Usage
from callboard.protocol.tools import FailureCode, Risk, ToolFailure

SECRET = "what people wrote"
KEY = "sk-proj-" + "a1B2c3D4" * 6

STARTED = asked()
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

ASKS = AskApproval(CALL, LOOK, f'{{"x":"{SECRET}"}}', Risk.WRITE)

#: What has happened before, of a call whose name the message does not say.
BEFORE = {ApprovalGranted: [ASKS], ApprovalDenied: [ASKS], ToolCallDeferred: [RAN]}

#: One message of each kind that is about a request, what is counted by it and what is logged.
IN_REQUEST: Final[list[tuple[Any, str, str, dict[str, str]]]] = [
    (
        AskApproval(CALL, LOOK, f'{{"x":"{SECRET}"}}', Risk.WRITE),
        "callboard.approvals{tool=look, decision=asked} 1",
        "look needs approval, its risk is write",
        {"tool": "look", "risk": "write"},
    ),
    (
        ApprovalGranted(CALL, 1.0, "ann"),
        "callboard.approvals{tool=look, decision=granted} 1",
        "look was approved by ann",
        {"tool": "look", "by": "ann"},
    ),
    (
        ApprovalDenied(CALL, 1.0, "policy", SECRET, "rule 1: look"),
        "callboard.approvals{tool=look, decision=denied} 1",
        "look was not approved by policy",
        {"tool": "look", "by": "policy", "rule": "rule 1: look"},
    ),
    (
        ReportFailure(CALL, DENIED),
        "callboard.tool.calls{tool=look, outcome=denied} 1",
        "tool.look denied",
        {"tool": "look", "code": "denied"},
    ),
    (
        ToolCallDeferred(CALL, 1.0, 60.0, SECRET),
        "callboard.tool.deferred{tool=look} 1",
        "look waits up to 60 s for its result from outside",
        {"tool": "look", "timeout": "60"},
    ),
    (
        CallOutside(CALL, ToolCall(CALL.call_id, LOOK, f'{{"x":"{SECRET}"}}')),
        "callboard.tool.calls{tool=(asker's), outcome=handed_out} 1",
        "look is the asker's to run",
        {"tool": "look"},
    ),
    (
        Note(STEP, "p/m failed (server, status 500) after 1 of 4 requests", NoteKind.RETRY),
        "callboard.notes{kind=retry} 1",
        "retry: p/m failed (server, status 500) after 1 of 4 requests",
        {"kind": "retry", "told": "p/m failed (server, status 500) after 1 of 4 requests"},
    ),
    (
        Note(STEP, f"Step asked again: {SECRET}", NoteKind.ASKED_AGAIN),
        "callboard.notes{kind=asked_again} 1",
        "asked_again: ...",
        {"kind": "asked_again", "told": "..."},
    ),
    (
        ToolStopped(CALL, LOOK, 'CallEnded\n  File "w.py", line 3, in wait'),
        "callboard.tool.stopped{tool=look} 1",
        'tool.look was stopped in CallEnded\n  File "w.py", line 3, in wait',
        {"tool": "look", "frames": 'CallEnded\n  File "w.py", line 3, in wait'},
    ),
    (
        PeerLost(REQUEST, "root/dispatcher", "crashed"),
        "callboard.requests.peer_lost 1",
        "root/dispatcher was lost (crashed) while the request ran",
        {"actor": "root/dispatcher", "reason": "crashed"},
    ),
]


class Stage(TelemetryStand):
    """Telemetry with OpenTelemetry's spans in memory."""

    def __init__(self, system: ActorSystem, log_content: bool) -> None:
        self.spans = SpansInMemory()
        super().__init__(system, self.spans.tracing(log_content).begin, log_content=log_content)

    def span_events(self) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """By span."""
        return {
            span.name: [(event.name, dict(event.attributes or {})) for event in span.events]
            for span in self.spans.finished()
        }

    def exported(self) -> str:
        return self.spans.exported()


def lines(metrics: Metrics) -> set[str]:
    """What there is, without what is looked up when they are read."""
    return {line for line in str(metrics).splitlines() if "requests.open" not in line}


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
    counted: str,
    text: str,
    fields: dict[str, str],
) -> None:
    stage = Stage(simulated, log_content=False)
    before = stage.tell(STARTED, *BEFORE.get(type(message), []))
    after = stage.tell(message)
    assert counted in lines(after) - lines(before)
    record = records()[-1]
    rule = NOTICES[type(message)]
    assert (record.getMessage(), record.levelno) == (text, rule.level_of(fields))
    said = {name: getattr(record, name) for name in ("request_id", "step", "call_id", "event", *fields)}
    tag = message.tag
    assert said == {
        "request_id": "r", "step": tag.step, "call_id": tag.call_id, "event": rule.event, **fields,
    }  # fmt: skip
    stage.tell(FINISHED)
    (attributes,) = [event for events in stage.span_events().values() for name, event in events if name == rule.event]
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
        f"look was not approved by policy: {SECRET}",
        f"tool.look denied: not allowed: {SECRET}",
    ]


@pytest.mark.parametrize("code", [FailureCode.UNKNOWN_TOOL, FailureCode.REPEATED, FailureCode.CANCELLED])
def test_a_name_that_the_model_made_up_is_content(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], code: FailureCode
) -> None:
    """Also where the model repeats itself, or ends the run by that."""
    stage = Stage(simulated, log_content=False)
    for name in (SECRET, "another", "{tool}"):
        stage.tell(STARTED, ReportFailure(CALL, ToolFailure(ToolName(name), code, name)))
    metrics = stage.tell(FINISHED)
    assert metrics.counts("callboard.tool.calls") == {(UNKNOWN, code.value): 3}
    everything = stage.exported() + str(metrics) + "".join(str(vars(record)) for record in records())
    assert SECRET not in everything


def test_a_call_that_is_given_up_while_it_runs_ends_with_its_code(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    stage = Stage(simulated, log_content=False)
    late = ToolFailure(LOOK, FailureCode.TIMED_OUT, "the deadline passed.")
    metrics = stage.tell(STARTED, RAN, ReportFailure(CALL, late), FINISHED)
    assert metrics.counts("callboard.tool.calls") == {("look", "timed_out"): 1}
    assert records()[0].getMessage().startswith("tool.look timed_out after ")
    assert dict(stage.spans.named("execute_tool look").attributes or {})["callboard.ending"] == "timed_out"


def test_an_approval_is_a_span_and_its_wait_is_measured(simulated: ActorSystem) -> None:
    stage = Stage(simulated, log_content=False)
    metrics = stage.tell(STARTED, ASKS, ApprovalGranted(CALL, 4.5, "ann"), RAN, FINISHED, at=(0, 1.5, 5, 5, 6))
    assert metrics.histogram("callboard.approval.duration", tool="look").total == 3.0
    span = stage.spans.named("callboard.approval look")
    assert dict(span.attributes or {})["callboard.ending"] == "granted"
    assert (span.end_time or 0) - (span.start_time or 0) == 3_000_000_000
    assert span.status.is_unset
    assert stage.spans.tree() == {
        "invoke_agent": None, "callboard.approval look": "invoke_agent", "execute_tool look": "invoke_agent",
    }  # fmt: skip


@pytest.mark.parametrize("denied", [False, True])
def test_an_approval_that_nobody_gives_ends_with_its_request(simulated: ActorSystem, denied: bool) -> None:
    stage = Stage(simulated, log_content=False)
    late = [ReportFailure(CALL, ToolFailure(LOOK, FailureCode.CANCELLED, "too late"))] if denied else []
    metrics = stage.tell(STARTED, ASKS, *late, FINISHED)
    assert dict(stage.spans.named("callboard.approval look").attributes or {})["callboard.ending"] == "withdrawn"
    assert metrics.count("callboard.approval.duration") == 0


@pytest.mark.parametrize("log_content", [False, True])
def test_a_tool_that_raises_leaves_type_and_frames_and_the_rest_where_content_is_logged(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], log_content: bool
) -> None:
    stage = Stage(simulated, log_content)
    stage.tell(STARTED, RAN, ToolCallFailed(CALL, 1.0, RAISED), FINISHED)
    (record,) = [each for each in records() if each.levelno == logging.WARNING]
    text, exported = record.getMessage(), stage.exported()
    assert (record.work, record.ending) == ("tool.look", "tool_error")  # type: ignore[attr-defined]
    ((name, attributes),) = stage.span_events()["execute_tool look"]
    assert (name, attributes["exception.type"], attributes["callboard.code"]) == (
        "exception", "LookupError", "tool_error",
    )  # fmt: skip
    for said in (text, str(attributes["exception.stacktrace"])):
        assert 'File "w.py", line 3, in fetch' in said
        assert (SECRET in said) is log_content
        assert ("raise LookupError" in said) is log_content
    assert KEY not in text + exported


@pytest.mark.parametrize("log_content", [False, True])
def test_a_call_that_ends_without_an_exception_has_no_event_of_one(simulated: ActorSystem, log_content: bool) -> None:
    stage = Stage(simulated, log_content)
    stage.tell(STARTED, RAN, ReportFailure(CALL, ToolFailure(LOOK, FailureCode.CANCELLED, SECRET)), FINISHED)
    assert stage.span_events()["execute_tool look"] == []
    assert dict(stage.spans.named("execute_tool look").attributes or {})["error.type"] == "cancelled"


@pytest.mark.parametrize("log_content", [False, True])
def test_why_a_model_call_failed_is_content(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]], log_content: bool
) -> None:
    failed = ModelFailed(STEP, 1.0, Error(ErrorKind.AUTHENTICATION, SECRET))
    Stage(simulated, log_content).tell(STARTED, ASKED, failed)
    assert (SECRET in records()[-1].getMessage()) is log_content
    assert "model.p/m authentication after" in records()[-1].getMessage()


def test_what_happens_to_the_runtime_is_counted(simulated: ActorSystem) -> None:
    metrics = Stage(simulated, log_content=False).tell(
        ToolWithdrawn(LOOK, 1.0, LOOK), ToolRestored(LOOK, 2.0), EmbedderFailed("small")
    )
    assert lines(metrics) == {
        "callboard.tool.health{tool=look, change=withdrawn} 1",
        "callboard.tool.health{tool=look, change=restored} 1",
        "callboard.search.embedder_failed 1",
    }


def test_what_a_former_incarnation_has_not_heard_of_is_counted_and_logged_too(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    """Telemetry was started again while the request ran."""
    metrics = Stage(simulated, log_content=False).tell(ReportFailure(CALL, DENIED), FINISHED)
    assert metrics.counts("callboard.tool.calls") == {("look", "denied"): 1}
    assert metrics.counts("callboard.requests") == {("answered",): 1}
    assert records()[0].getMessage() == "tool.look denied"


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


# -- what tools print


def printed(text: str, total_bytes: int | None = None) -> ToolPrinted:
    return ToolPrinted(CALL, LOOK, text, len(text.encode()) if total_bytes is None else total_bytes, Context())


def lines_of(records: list[logging.LogRecord]) -> list[str]:
    return [record.getMessage() for record in records if record.name == "callboard.tools.output"]


def test_printed_lines_are_records_with_the_ids_of_their_call(
    simulated: ActorSystem, records: Callable[[], list[logging.LogRecord]]
) -> None:
    metrics = Stage(simulated, log_content=True).tell(printed("one\r\n\x1b[31mtwo\x1b[0m\n"))
    assert lines_of(records()) == ["look: one", r"look: \x1b[31mtwo\x1b[0m"]
    for record in records():
        ids = (record.request_id, record.step, record.call_id, record.tool)  # type: ignore[attr-defined]
        assert ids == ("r", 1, "c", "look")
    assert metrics.count("callboard.tool.printed", tool="look") == len("one\r\n\x1b[31mtwo\x1b[0m\n")


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
