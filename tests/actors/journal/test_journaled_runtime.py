"""A runtime with a journal on disk: what its requests do is in the file before anybody acts on it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.journal.sqlite_journal import SqliteReader
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import SUSPENDED, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.protocol.content import AssistantMessage, Text, ToolMessage, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.events import RequestStarted, ToolCallCompleted, ToolCallDeferred, ToolCallStarted
from callboard.protocol.ids import CallId, RequestId
from callboard.protocol.machine import Session
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import Deferred
from callboard.providers.local.scripted import Scripted, ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]


@tool(risk="read", isolation="task")
async def double(number: int) -> int:
    return 2 * number


def calls_then_answers(name: str = "double", calls: int = 2) -> Scripted:
    """Each request makes parallel calls, then answers."""

    def turn(request: ModelRequest) -> ScriptedTurn:
        if isinstance(request.messages[-1], ToolMessage):
            return ScriptedTurn(text="done")
        made = (ScriptedCall(name, {"number": number}, f"c{number}") for number in range(calls))
        return ScriptedTurn(calls=tuple(made))

    return Scripted(turn)


def settings(path: Path) -> Settings:
    return Settings(model="mine/model", context_tokens=32_000, journal=path)


def log_of(path: Path, request_id: str) -> RequestLog:
    """Read from the file, beside its writer."""
    with closing(SqliteReader(path)) as reader:
        found = reader.request(RequestId(request_id))
        assert found is not None
        return found


def test_all_that_a_request_did_is_in_the_file_and_gives_its_answer_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    conversation = Conversation()
    with Runtime(settings(path), [double], providers={"mine": calls_then_answers()}) as runtime:
        first = runtime.ask_sync("one", conversation=conversation)
        log = log_of(path, first.request_id)  # the answer is there when its asker has it
        assert log.end is not None
        assert log.end.finish is not None
        assert (log.end.finish.text, log.end.finish.steps) == (first.text, first.steps)
        assert log.end.notes == first.notes
        assert [message for _, message in log.messages] == list(first.messages)
        assert [own for own, _ in log.messages] == list(conversation.ids)
        second = runtime.ask_sync("two", conversation=conversation)
    later = log_of(path, second.request_id)
    (started,) = [record.event for record in later.records if isinstance(record.event, RequestStarted)]
    assert started.history == conversation.messages[: len(first.messages)]
    assert later.begins.parent == conversation.ids[len(first.messages) - 1]
    for each in (log, later):
        rebuilt = Session.replay(record.event for record in each.records)
        assert rebuilt.recorded == tuple(message for _, message in each.messages)[1:]


def test_messages_that_a_conversation_was_begun_with_are_not_the_requests_own(tmp_path: Path) -> None:
    given = (UserMessage.of("hello"), AssistantMessage((Text("hi"),)))
    settings = Settings(model="scripted/x", journal=tmp_path / "j.db", script=["done"])
    with Runtime(settings) as runtime:
        reply = runtime.ask_sync("?", conversation=Conversation(given), request_id="r1")
    assert len(reply.messages) == 2
    with Runtime(settings) as runtime:
        assert runtime.result_sync("r1") == reply


def test_many_requests_share_commits_and_each_ends(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"

    async def ask_all(runtime: Runtime) -> None:
        replies = await asyncio.gather(*(runtime.ask(f"question {number}") for number in range(30)))
        assert {reply.text for reply in replies} == {"done"}

    with Runtime(settings(path), [double], providers={"mine": calls_then_answers()}) as runtime:
        asyncio.run(ask_all(runtime))
        metrics = runtime.metrics()
        writes = metrics.count("callboard.journal.writes")
        commits = sum(metrics.histogram("callboard.journal.batch").counts)
        assert runtime.dead_letters() == ()
    assert writes >= 30 * 7
    assert commits < writes
    with closing(SqliteReader(path)) as reader:
        assert reader.open_requests() == ()


def test_a_stop_leaves_a_request_open_and_says_so_to_its_asker(tmp_path: Path, until: Until) -> None:
    path = tmp_path / "journal.db"
    begun, may_end = threading.Event(), threading.Event()

    @tool(risk="read", isolation="thread")
    def waits(number: int) -> int:
        begun.set()
        may_end.wait(30)
        return number

    said, handler, logger = [], logging.Handler(logging.INFO), logging.getLogger("callboard")
    handler.emit = lambda record: said.append((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    runtime = Runtime(settings(path), [waits], providers={"mine": calls_then_answers("waits", 1)}).start()
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            runtime.ask_sync("go", request_id="open")
        except RequestEnded as error:
            failed.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    assert begun.wait(30)
    assert any(isinstance(record.event, ToolCallStarted) for record in log_of(path, "open").records), (
        "its begin was durable before its code ran"
    )
    runtime.stop()
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    asker.join(30)
    may_end.set()
    assert [str(error) for error in failed] == [SUSPENDED]
    assert any(level == "INFO" and text.startswith("request suspended") for level, text in said), said
    assert log_of(path, "open").end is None
    with closing(SqliteReader(path)) as reader:
        assert reader.open_requests() == ("open",)


def test_a_result_from_outside_is_in_the_file_when_it_was_taken(tmp_path: Path, until: Until) -> None:
    path = tmp_path / "journal.db"

    @tool(risk="read", isolation="task")
    async def later(number: int) -> Deferred:
        return Deferred(timeout_seconds=60)

    with Runtime(settings(path), [later], providers={"mine": calls_then_answers("later", 1)}) as runtime:
        stream = runtime.stream_sync("go", request_id="r")
        seen = []
        for item in stream:
            seen.append(item)
            if isinstance(item, ToolCallDeferred):
                assert runtime.complete_call("r", item.tag.step, item.tag.call_id, "42")
                events = [record.event for record in log_of(path, "r").records]
                completed = [event for event in events if isinstance(event, ToolCallCompleted)]
                assert [(event.tag.call_id, event.content) for event in completed] == [(CallId("c0"), "42")]
        assert seen[-1].text == "done"  # type: ignore[union-attr]


def test_a_cancelled_request_has_ended_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    slow = Scripted([ScriptedTurn(text="never", first_delay_seconds=30.0)])
    with Runtime(settings(path), providers={"mine": slow}) as runtime:
        items = iter(runtime.stream_sync("go", request_id="r"))
        next(items)
        runtime.cancel("r", "enough")
        with pytest.raises(RequestEnded, match="enough"):
            list(items)
        end = log_of(path, "r").end
        assert end is not None
        assert end.finish is not None
        assert end.finish.reason == "enough"


def test_a_second_runtime_on_the_same_file_is_refused_and_the_file_is_free_after_a_stop(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    second = Runtime(settings(path), [double], providers={"mine": calls_then_answers()})
    with (
        Runtime(settings(path), [double], providers={"mine": calls_then_answers()}),
        pytest.raises(UsageError, match="is in use by"),
    ):
        second.start()
    with Runtime(settings(path), [double], providers={"mine": calls_then_answers()}) as runtime:
        assert runtime.ask_sync("one").text == "done"
