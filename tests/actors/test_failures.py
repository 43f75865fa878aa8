"""What a user finds when something fails: in the log, in the metrics, in the stream and on the failure itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from callboard import Runtime, Settings, tool
from callboard.actors.requests.replies import RequestEnded
from callboard.actors.tools import Tool
from callboard.protocol.commands import ReportFailure
from callboard.protocol.events import ToolCallFailed, ToolCallStarted
from callboard.protocol.policy import Policy
from callboard.protocol.tools import FailureCode
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

linux = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")
SECRET = "the word kumquat"
KEY = "sk-proj-" + "a1B2c3D4" * 6


@tool(risk="read")
def raises(x: str = "") -> str:
    raise LookupError(f"{SECRET} {x}")


@tool(risk="read")
def prints(x: str = "") -> str:
    sys.stdout.write(f"first {SECRET}\n")
    os.write(2, b"second, from C \xff\n")
    subprocess.run(["sh", "-c", "echo third, of a grandchild"], check=True)
    return "done"


@tool(risk="read")
def shouts(megabytes: int) -> str:
    line = b"x" * 99 + b"\n"
    for _ in range(megabytes * 10):
        os.write(1, line * 1_000)
    os.write(1, b"the end\n")
    return "done"


@tool(risk="write", isolation="thread")
def writes(x: str = "") -> str:
    return "written"


@tool(risk="read", isolation="thread")
def looks(x: str = "") -> str:
    return "seen"


@tool(risk="read", isolation="thread")
def fails() -> str:
    raise LookupError(SECRET)


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self, logger: str = "callboard") -> list[str]:
        return [record.getMessage() for record in self.records if record.name == logger]


@pytest.fixture
def log() -> Iterator[Records]:
    handler, logger = Records(), logging.getLogger("callboard")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def calls(*named: tuple[str, dict[str, object]]) -> ScriptedTurn:
    return ScriptedTurn(calls=tuple(ScriptedCall(name, arguments) for name, arguments in named))


def runtime(*turns: ScriptedTurn, **changes: object) -> Runtime:
    settings = Settings(model="scripted/m", script=[*turns, ScriptedTurn("done")], **changes)  # type: ignore[arg-type]
    return Runtime(settings, tools=[raises, prints, shouts, writes, looks, fails])


@linux
@pytest.mark.parametrize("log_content", [False, True])
def test_a_tool_that_raises_in_a_process_leaves_its_traceback(log: Records, log_content: bool) -> None:
    async def ask() -> list[object]:
        async with runtime(calls(("raises", {"x": KEY})), log_content=log_content) as running:
            return [event async for event in running.stream("go")]

    (failed,) = [event.failure for event in asyncio.run(ask()) if isinstance(event, ToolCallFailed)]
    assert f'raise LookupError(f"{{SECRET}} {{x}}")\nLookupError: {SECRET}' in failed.traceback
    (text,) = [text for text in log.texts() if text.startswith("tool.raises tool_error after ")]
    assert "LookupError" in text
    assert f'File "{__file__}", line ' in text
    assert ("raise LookupError" in text) is (SECRET in text) is log_content
    assert KEY not in "".join(log.texts())


@linux
def test_what_a_process_tool_prints_is_in_the_log_with_its_ids_and_nowhere_else(
    log: Records, capfd: pytest.CaptureFixture[str], until: Callable[[Callable[[], bool]], None]
) -> None:
    with runtime(calls(("prints", {})), log_content=True) as running:
        reply = running.ask_sync("go")
        until(lambda: len(log.texts("callboard.tools.output")) == 3)
        assert running.metrics().count("callboard.tool.printed", tool="prints") > 40
    lines = log.texts("callboard.tools.output")
    assert sorted(lines) == sorted(
        [
            f"prints: first {SECRET}",
            "prints: second, from C \N{REPLACEMENT CHARACTER}",
            "prints: third, of a grandchild",
        ]
    )
    (record, *_) = [record for record in log.records if record.name == "callboard.tools.output"]
    ids = (record.request_id, record.step, record.tool)  # type: ignore[attr-defined]
    assert ids == (reply.request_id, 1, "prints")
    assert record.call_id  # type: ignore[attr-defined]
    assert capfd.readouterr() == ("", "")


@linux
def test_what_a_tool_prints_stays_out_of_the_log_without_log_content(
    log: Records, until: Callable[[Callable[[], bool]], None]
) -> None:
    with runtime(calls(("prints", {}))) as running:
        running.ask_sync("go")
        until(lambda: bool(log.texts("callboard.tools.output")))
    (line,) = log.texts("callboard.tools.output")
    assert line.endswith(" bytes were printed")
    assert SECRET not in "".join(map(str, (vars(record) for record in log.records)))


@linux
def test_a_tool_that_prints_a_lot_is_not_held_up_and_its_end_is_logged(
    log: Records, until: Callable[[Callable[[], bool]], None]
) -> None:
    """100 MB at 6 MB/s, as it was once, took longer than this deadline."""

    @tool(risk="read", timeout=15)
    def floods() -> str:
        return str(shouts.function(100))

    settings = Settings(model="scripted/m", script=[calls(("floods", {})), ScriptedTurn("done")], log_content=True)
    with Runtime(settings, tools=[floods]) as running:
        running.ask_sync("go")
        until(lambda: bool(log.texts("callboard.tools.output")))
        metrics = running.metrics()
    assert metrics.count("callboard.tool.calls", tool="floods", outcome="ok") == 1
    assert metrics.count("callboard.tool.printed", tool="floods") == 100_000_000 + len("the end\n")
    lines = log.texts("callboard.tools.output")
    assert lines[-1] == "floods: the end"
    assert "bytes before this were dropped" in lines[0]


def test_what_is_refused_is_in_the_stream_the_log_and_the_metrics(log: Records) -> None:
    """Unknown, denied by the policy, denied by a person, repeated."""

    async def ask() -> tuple[list[ReportFailure], dict[str, int]]:
        same = calls(("looks", {"x": "again"}))
        turns = (calls(("nowhere", {}), ("writes", {}), ("raises", {})), same, same, same, same)
        policy = Policy({"read": "allow", "write": "ask"})  # type: ignore[dict-item]
        async with runtime(*turns, policy=policy) as running:
            events = [event async for event in running.stream("go")]
            return [e for e in events if isinstance(e, ReportFailure)], running.metrics()

    reported, metrics = asyncio.run(ask())
    codes = {(each.failure.tool, each.failure.code) for each in reported}
    assert {("nowhere", FailureCode.UNKNOWN_TOOL), ("writes", FailureCode.DENIED)} <= codes
    assert ("looks", FailureCode.REPEATED) in codes
    assert metrics.count("callboard.tool.calls", tool="(unknown)", outcome="unknown_tool") == 1
    assert (
        metrics.count("callboard.tool.calls", tool="writes", outcome="denied")
        == metrics.count("callboard.approvals", decision="denied")
        == metrics.count("callboard.approvals", decision="asked")
        == 1
    )
    assert metrics.count("callboard.tool.calls", tool="looks", outcome="repeated") == 1
    texts = log.texts()
    assert "tool.(unknown) unknown_tool" in texts
    assert "tool.writes denied" in texts
    assert "writes needs approval, its risk is write" in texts


@tool(risk="read", timeout=4.0)
def hangs(seconds: float | None = None) -> None:
    def deeper() -> None:
        select.select([], [], [], seconds)

    deeper()


@tool(risk="read", timeout=4.0)
async def waits_long(seconds: float = 600.0) -> None:
    await asyncio.sleep(seconds)


@linux
@pytest.mark.parametrize(("hanging", "frames"), [(hangs, ("in hangs", "in deeper")), (waits_long, ("in waits_long",))])
def test_a_tool_that_runs_into_its_deadline_says_where_it_was(
    log: Records, until: Callable[[Callable[[], bool]], None], hanging: Tool, frames: tuple[str, ...]
) -> None:
    ready = calls((hanging.name, {"seconds": 0.0}))  # what must start first has started then
    settings = Settings(model="scripted/m", script=[ready, calls((hanging.name, {})), ScriptedTurn("done")])
    with Runtime(settings, tools=[hanging]) as running:
        running.ask_sync("go")
        until(lambda: any("was stopped in" in text for text in log.texts()))
        metrics = running.metrics()
    (text,) = [text for text in log.texts() if "was stopped in" in text]
    assert all(frame in text for frame in frames)
    assert f'File "{__file__}"' in text
    assert "child.py" not in text, "that is a frame of ours"
    assert (
        metrics.count("callboard.tool.calls", tool=hanging.name, outcome="timed_out"),
        metrics.count("callboard.tool.stopped", tool=hanging.name),
    ) == (1, 1)


def test_a_reply_has_the_failures_of_its_calls_also_without_a_reader() -> None:
    with runtime(calls(("nowhere", {}), ("looks", {"y": 1}), ("looks", {})), calls(("fails", {}))) as running:
        reply = running.ask_sync("go")
    found = [(failure.tool, failure.code) for failure in reply.failures]
    assert sorted(found[:2]) == [("looks", FailureCode.INVALID_ARGUMENTS), ("nowhere", FailureCode.UNKNOWN_TOOL)]
    assert found[2:] == [("fails", FailureCode.TOOL_ERROR)]
    assert f'File "{__file__}"' in reply.failures[2].traceback


def test_an_approval_that_is_given_is_logged_and_counted(log: Records) -> None:
    settings = Settings(model="scripted/m", script=[calls(("writes", {})), ScriptedTurn("done")])
    with Runtime(settings, tools=[writes], approve=lambda _: True) as running:
        running.ask_sync("go")
        metrics = running.metrics()
    assert (
        metrics.count("callboard.approvals", decision="granted"),
        metrics.count("callboard.tool.calls", tool="writes", outcome="ok"),
        metrics.count("callboard.approvals", decision="denied"),
    ) == (1, 1, 0)
    assert "writes was approved by approver" in log.texts()


def test_a_request_whose_peer_is_lost_says_so_and_restarts_are_counted(
    log: Records, until: Callable[[Callable[[], bool]], None]
) -> None:
    settings = Settings(model="scripted/m", script=[calls(("looks", {})), ScriptedTurn("done")])
    holding = False

    @tool(risk="read", isolation="thread", name="looks")
    def holds() -> str:
        nonlocal holding
        holding = True
        until(lambda: running.statistics().restarts > 0)
        return "seen"

    with Runtime(settings, tools=[holds]) as running:

        async def ask() -> None:
            asked = asyncio.create_task(running.ask("go"))
            await asyncio.to_thread(until, lambda: holding)
            assert running._running is not None
            cell = running._running.system.ref("root/dispatcher")._cell
            cell.executor.call_soon(cell.kill)
            await asked

        asyncio.run(ask())
        metrics = running.metrics()
    assert metrics.count("callboard.requests.peer_lost") == 1
    assert metrics.count("callboard.actor.restarts") == 1
    assert any(text.startswith("root/dispatcher was lost (killed)") for text in log.texts())
    assert any("root/dispatcher (killed) is started again" in text for text in log.texts("callboard.kernel"))


def test_a_cancelled_request_reports_what_it_gave_up(until: Callable[[Callable[[], bool]], None]) -> None:
    begun = False

    @tool(risk="read", isolation="thread", name="looks")
    def waits() -> str:
        nonlocal begun
        begun = True
        until(lambda: ended)
        return "seen"

    ended = False
    settings = Settings(model="scripted/m", script=[calls(("looks", {})), ScriptedTurn("done")])
    with Runtime(settings, tools=[waits]) as running:

        async def ask() -> list[object]:
            seen: list[object] = []
            with contextlib.suppress(RequestEnded):
                async for event in running.stream("go", request_id="r"):
                    seen.append(event)
                    if isinstance(event, ToolCallStarted):
                        await asyncio.to_thread(until, lambda: begun)
                        assert running.cancel("r")
            return seen

        try:
            seen = asyncio.run(ask())
            metrics = running.metrics()
        finally:
            ended = True
    (reported,) = [event for event in seen if isinstance(event, ReportFailure)]
    assert reported.failure.code is FailureCode.CANCELLED
    assert metrics.count("callboard.tool.calls", tool="looks", outcome="cancelled") == 1
