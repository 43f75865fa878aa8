"""The ids of a request on the log records of any host's own loggers."""

from __future__ import annotations

import asyncio
import logging
import logging.config
import pickle
import queue
import sys
import threading
from collections.abc import Iterator
from logging.handlers import QueueHandler, QueueListener

import pytest

from callboard import RequestLogFilter, Runtime, Settings, tool
from callboard.protocol.commands import AskApproval
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

linux = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")
FORMAT = "%(request_id)s|%(step)d|%(call_id)s|%(tool)s|%(metadata)s|%(message)s"
host = logging.getLogger("shop.orders")


class Lines(logging.Handler):
    """What a host's handler writes."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter(FORMAT))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def log() -> Iterator[Lines]:
    handler = Lines()
    handler.addFilter(RequestLogFilter())
    host.addHandler(handler)
    host.setLevel(logging.INFO)
    yield handler
    host.removeHandler(handler)
    host.setLevel(logging.NOTSET)


@tool(risk="read", isolation="task")
async def on_a_task() -> str:
    host.info("in a task")
    await asyncio.to_thread(host.info, "on a thread of the task")
    return "seen"


@tool(risk="read", isolation="thread")
def on_a_thread() -> str:
    host.info("on a thread")
    return "seen"


@tool(risk="read")
def in_a_process() -> str:
    """What it logs, with the ids of its call: it is in the log of the host as well, as what it prints is."""
    handler = Lines()
    handler.addFilter(RequestLogFilter())
    host.addHandler(handler)
    host.setLevel(logging.INFO)
    host.info("in a process")
    return handler.lines[0]


@tool(risk="write", isolation="thread")
def writes() -> str:
    return "written"


def script(*names: str) -> list[ScriptedTurn | str]:
    return [ScriptedTurn(calls=tuple(ScriptedCall(name) for name in names)), "done"]


def test_what_tools_and_approvers_log_has_the_ids_of_their_call(log: Lines) -> None:
    async def approve(question: AskApproval) -> bool:
        host.info("approving")
        return True

    settings = Settings(model="scripted/m", script=script("on_a_task", "on_a_thread", "writes"))
    with Runtime(settings, [on_a_task, on_a_thread, writes], approve=approve) as runtime:
        runtime.ask_sync("go", request_id="r1", metadata={"tenant": "acme"})
    assert sorted(log.lines) == [
        "r1|1|call_0|on_a_task|{'tenant': 'acme'}|in a task",
        "r1|1|call_0|on_a_task|{'tenant': 'acme'}|on a thread of the task",
        "r1|1|call_1|on_a_thread|{'tenant': 'acme'}|on a thread",
        "r1|1|call_2|writes|{'tenant': 'acme'}|approving",
    ]


def test_a_sync_approver_logs_with_ids_too(log: Lines) -> None:
    def approve(question: AskApproval) -> bool:
        host.info("approving")
        return True

    settings = Settings(model="scripted/m", script=script("writes"))
    with Runtime(settings, [writes], approve=approve) as runtime:
        runtime.ask_sync("go", request_id="r1")
    assert log.lines == ["r1|1|call_0|writes|{}|approving"]


def test_a_providers_own_code_logs_with_the_step(log: Lines) -> None:
    def choose(request: ModelRequest) -> str:
        host.info("asked")
        return "fine"

    with Runtime(Settings(model="scripted/m", script=choose)) as runtime:
        runtime.ask_sync("go", request_id="r1", metadata={"tenant": "acme"})
    assert log.lines == ["r1|1|||{'tenant': 'acme'}|asked"]


@linux
def test_a_process_tool_logs_with_the_ids_of_its_call() -> None:
    with Runtime(Settings(model="scripted/m", script=script("in_a_process")), [in_a_process]) as runtime:
        reply = runtime.ask_sync("go", request_id="r1", metadata={"tenant": "acme"})
    (result,) = [message.content for message in reply.messages if hasattr(message, "is_error")]
    assert result == "r1|1|call_0|in_a_process|{'tenant': 'acme'}|in a process"


def test_outside_of_a_request_the_ids_are_empty(log: Lines) -> None:
    host.info("starting")
    with Runtime(Settings(model="scripted/m")) as runtime:
        runtime.ask_sync("go")
        host.info("between")
    assert log.lines == ["|0|||{}|starting", "|0|||{}|between"]


def test_requests_side_by_side_do_not_see_each_others_ids(log: Lines) -> None:
    async def main() -> None:
        def choose(request: ModelRequest) -> ScriptedTurn | str:
            return script("on_a_task")[len(request.messages) > 1]

        async with Runtime(Settings(model="scripted/m", script=choose), [on_a_task]) as runtime:
            await asyncio.gather(*(runtime.ask("go", request_id=f"r{n}") for n in range(50)))

    asyncio.run(main())
    assert {line.partition("|")[0] for line in log.lines} == {f"r{n}" for n in range(50)}
    assert len(log.lines) == 100


def test_callboards_own_records_keep_their_ids_and_have_the_metadata() -> None:
    handler = Lines()
    handler.addFilter(RequestLogFilter())
    logger = logging.getLogger("callboard")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with Runtime(Settings(model="scripted/m", script=script("on_a_thread")), [on_a_thread]) as runtime:
            runtime.ask_sync("go", request_id="r1", metadata={"tenant": "acme"})
            runtime.metrics()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    heads = [line.rpartition("|")[0] for line in handler.lines if " after " in line]
    assert heads == [
        "r1|1|||{'tenant': 'acme'}",
        "r1|1|call_0|on_a_thread|{'tenant': 'acme'}",
        "r1|2|||{'tenant': 'acme'}",
        "r1|0|||{'tenant': 'acme'}",
    ]


def test_a_queue_handler_carries_them_to_the_thread_that_writes() -> None:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    near, far = QueueHandler(records), Lines()
    for handler in (near, far):
        handler.addFilter(RequestLogFilter())  # the second one finds them there
    host.addHandler(near)
    host.setLevel(logging.INFO)
    listener = QueueListener(records, far)
    listener.start()
    try:
        with Runtime(Settings(model="scripted/m", script=script("on_a_thread")), [on_a_thread]) as runtime:
            runtime.ask_sync("go", request_id="r1")
    finally:
        listener.stop()
        host.removeHandler(near)
        host.setLevel(logging.NOTSET)
    assert far.lines == ["r1|1|call_0|on_a_thread|{}|on a thread"]


def test_a_record_can_be_pickled_with_them() -> None:
    """As a SocketHandler does, or a queue of another process."""
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "said", (), None)
    assert RequestLogFilter().filter(record) is True
    assert pickle.loads(pickle.dumps(record.__dict__))["metadata"] == {}


def test_dict_config_knows_it_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"ids": {"()": "callboard.RequestLogFilter"}},
            "formatters": {"plain": {"format": FORMAT}},
            "handlers": {
                "out": {
                    "class": "logging.StreamHandler", "stream": "ext://sys.stdout", "filters": ["ids"],
                    "formatter": "plain",
                }
            },
            "loggers": {"shop.orders": {"handlers": ["out"], "level": "INFO"}},
        }
    )  # fmt: skip
    try:
        with Runtime(Settings(model="scripted/m", script=script("on_a_thread")), [on_a_thread]) as runtime:
            runtime.ask_sync("go", request_id="r1")
    finally:
        for handler in tuple(host.handlers):
            host.removeHandler(handler)
        host.setLevel(logging.NOTSET)
    assert capsys.readouterr().out == "r1|1|call_0|on_a_thread|{}|on a thread\n"


def test_a_name_restricts_it_as_every_filter() -> None:
    only = RequestLogFilter("shop")
    records = [logging.LogRecord(name, logging.INFO, "x.py", 1, "said", (), None) for name in ("shop.orders", "other")]
    assert [only.filter(record) for record in records] == [True, False]


def test_a_thread_that_a_tool_starts_itself_has_none(log: Lines) -> None:
    """It begins in an empty context, as every thread; `contextvars.copy_context().run` hands them on."""

    @tool(risk="read", isolation="thread", name="starts")
    def starts() -> str:
        thread = threading.Thread(target=host.info, args=("from its own thread",))
        thread.start()
        thread.join()
        return "done"

    with Runtime(Settings(model="scripted/m", script=script("starts")), [starts]) as runtime:
        runtime.ask_sync("go")
    assert log.lines == ["|0|||{}|from its own thread"]
