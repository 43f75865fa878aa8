"""A runtime that starts with a journal goes on with what was open there: after stop() here, after SIGKILL where a
process has to end (tests/actors/journal/test_killed.py)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from callboard import Deferred, RequestEnded, Runtime, RuntimeFailure, Settings, UsageError, tool
from callboard.actors.builtins.asking_user import UserQuestion
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.recovery import MAX_TAKINGS_UP
from callboard.actors.requests.open_requests import OpenState
from callboard.actors.tools import ToolContext
from callboard.protocol.commands import AskApproval
from callboard.protocol.content import ToolMessage, history_faults
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.model import ModelRequest
from callboard.protocol.states import CallState
from callboard.providers.local.scripted import Script, Scripted, ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]


def results(request: ModelRequest) -> list[str]:
    """The results of the calls that the model has read."""
    return [message.content for message in request.messages if isinstance(message, ToolMessage)]


def calling(name: str, arguments: Mapping[str, object] | str = "{}") -> Script:
    """A model that calls the tool once, and then says what it read."""

    def script(request: ModelRequest) -> ScriptedTurn:
        read = results(request)
        return ScriptedTurn(f"read {read[-1]}") if read else ScriptedTurn(calls=(ScriptedCall(name, arguments),))

    return script


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@dataclass
class Asked:
    """A question that is asked on a thread of its own, since it will not be answered there."""

    runtime: Runtime
    thread: threading.Thread
    ended: list[Exception]


@contextmanager
def asked(runtime: Runtime, request_id: str = "r1", **options: Any) -> Iterator[Asked]:
    """The runtime, with an open question; it is stopped behind, and the question's end is kept."""
    ended: list[Exception] = []

    def ask() -> None:
        try:
            runtime.ask_sync("what is it?", request_id=request_id, **options)
        except Exception as error:  # noqa: BLE001 - what it ends with is looked at
            ended.append(error)

    with runtime:
        thread = threading.Thread(target=ask)
        thread.start()
        yield Asked(runtime, thread, ended)
    thread.join(10)
    assert not thread.is_alive()


def is_in(runtime: Runtime, state: OpenState, count: int = 1) -> Callable[[], bool]:
    return lambda: [each.state for each in runtime.open_requests()] == [state] * count


class Deferring:
    """A tool whose result comes from outside."""

    def __init__(self) -> None:
        self.tags: list[Tag] = []

        @tool(isolation="thread", risk="read")
        def ask_office(context: ToolContext) -> int | Deferred:
            """Ask the office."""
            self.tags.append(context.tag)
            return Deferred(3600.0)

        self.tool = ask_office


def test_a_deferred_call_gets_its_result_in_the_next_runtime(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool])) as first:
        until(is_in(first.runtime, OpenState.WAITING))
        (before,) = first.runtime.open_requests()
        assert before.calls[0].state is CallState.DEFERRED
        assert before.waits_for == "the result of ask_office (call_0)"
        assert not before.was_taken_up
    (end,) = first.ended
    assert isinstance(end, RequestEnded)
    assert "the runtime is stopping; the request is kept in the journal" in str(end)

    (tag,) = office.tags
    with Runtime(settings, [office.tool]) as second:
        until(is_in(second, OpenState.WAITING))
        (after,) = second.open_requests()
        assert after.begun_at == pytest.approx(before.begun_at, abs=1.0)
        assert after == replace(before, was_taken_up=True, begun_at=after.begun_at)
        with pytest.raises(UsageError, match="the call is still open"):
            second.complete_call(*ids_of(tag), result="no number")
        assert second.complete_call(*ids_of(tag), result=7)
        assert not second.complete_call(*ids_of(tag), result=8), "one result a call"
        reply = second.result_sync("r1")
        assert reply.text == "read 7"
        assert not history_faults(reply.messages)
        assert second.open_requests() == ()
    assert len(office.tags) == 1, "its code was not run again"
    with Runtime(settings, [office.tool]) as third:
        assert third.open_requests() == ()
        assert third.result_sync("r1") == reply, "from the journal, as it was"


def test_a_result_may_come_at_once_after_the_start(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool])) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    with Runtime(settings, [office.tool]) as second:
        assert second.complete_call(*ids_of(office.tags[0]), result=7)
        assert second.result_sync("r1").text == "read 7"


def ids_of(tag: Tag) -> tuple[str, int, str]:
    return tag.request_id, tag.step, tag.call_id


@tool(isolation="thread", risk="execute")
def launch() -> str:
    """Launch it."""
    return "launched"


def test_an_approval_is_asked_again_and_one_that_was_given_is_not(journal: Path, until: Until) -> None:
    def twice(request: ModelRequest) -> ScriptedTurn:
        read = results(request)
        return ScriptedTurn(f"read {len(read)}") if len(read) == 2 else ScriptedTurn(calls=(ScriptedCall("launch"),))

    settings = Settings(model="scripted/x", journal=journal, script=twice, trust="careful")
    questions: list[AskApproval] = []
    never = threading.Event()

    def first_only(question: AskApproval) -> bool:
        questions.append(question)
        if len(questions) > 1:
            never.wait(20)
        return True

    try:
        with asked(Runtime(settings, [launch], approve=first_only)) as first:
            until(lambda: len(questions) == 2 and is_in(first.runtime, OpenState.WAITING)())
            assert first.runtime.open_requests()[0].waits_for == "the approval of launch (call_0)"
        again: list[AskApproval] = []
        with Runtime(settings, [launch], approve=lambda question: bool(again.append(question)) or True) as second:
            assert second.result_sync("r1").text == "read 2"
        assert [question.tag for question in again] == [questions[1].tag], "only the one that was open"
    finally:
        never.set()


def test_without_the_approver_it_had_a_request_ends_and_says_so(journal: Path, until: Until) -> None:
    settings = Settings(model="scripted/x", journal=journal, script=calling("launch"), trust="careful")
    never = threading.Event()
    try:
        with asked(Runtime(settings, [launch], approve=lambda _: never.wait(20))) as first:
            until(is_in(first.runtime, OpenState.WAITING))
        with Runtime(settings, [launch]) as second, pytest.raises(RuntimeFailure, match=r"no approver.*approve="):
            second.result_sync("r1")
    finally:
        never.set()


def test_the_users_question_is_put_again(journal: Path, until: Until) -> None:
    script = calling("ask_user", {"question": "Which one?", "choices": ["a", "b"]})
    settings = Settings(model="scripted/x", journal=journal, script=script)
    never = threading.Event()
    put: list[UserQuestion] = []

    def no_answer(question: UserQuestion) -> str | None:
        put.append(question)
        never.wait(20)
        return None

    def answers(question: UserQuestion) -> str:
        put.append(question)
        return "b"

    try:
        with asked(Runtime(settings, ask_user=no_answer)) as first:
            until(is_in(first.runtime, OpenState.WAITING))
        with Runtime(settings, ask_user=answers) as second:
            assert '"answer":"b"' in second.result_sync("r1").text
    finally:
        never.set()
    assert put[0] == put[1]
    assert put[1].choices == ("a", "b")


class Answer(BaseModel):
    value: int


def test_a_typed_answer_is_the_object_again(journal: Path, until: Until) -> None:
    office = Deferring()

    def script(request: ModelRequest) -> ScriptedTurn:
        read = results(request)
        return ScriptedTurn(f'{{"value": {read[-1]}}}') if read else ScriptedTurn(calls=(ScriptedCall("ask_office"),))

    settings = Settings(model="scripted/x", journal=journal, script=script)
    with asked(Runtime(settings, [office.tool]), output=Answer) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    with Runtime(settings, [office.tool], outputs=[Answer]) as second:
        assert second.complete_call(*ids_of(office.tags[0]), result=7)
        assert second.result_sync("r1").output == Answer(value=7)
    with Runtime(settings, [office.tool], outputs=[Answer]) as third:
        assert third.result_sync("r1").output == Answer(value=7)
    with Runtime(settings, [office.tool]) as fourth, pytest.raises(UsageError, match=r"Runtime\(outputs=\[Answer\]\)"):
        fourth.result_sync("r1")


def changed_answer() -> type[BaseModel]:
    class Answer(BaseModel):
        value: int
        unit: str

    return Answer


@tool(name="ask_office", isolation="thread", risk="read")
def other_parameters(floor: int) -> int:
    """Ask the office."""
    return floor


@tool(name="ask_office", isolation="thread", risk="read", effect="repeat")
def other_effect() -> int:
    """Ask the office."""
    return 0


@pytest.mark.parametrize(
    ("tools", "outputs", "fault"),
    [
        ([], [Answer], "it needs the tool 'ask_office' and this runtime has none"),
        ([other_parameters], [Answer], "'ask_office' has changed since the request began: its description or its"),
        ([other_effect], [Answer], "its effect (once, now repeat)"),
        (None, [], "this runtime does not know that type: start it with Runtime(outputs=[Answer])"),
        (None, [changed_answer()], "the type of its answer, Answer, has changed"),
    ],
)
def test_what_is_missing_or_has_changed_ends_the_request_and_is_named(
    journal: Path, until: Until, tools: list[Any] | None, outputs: list[object], fault: str
) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool]), output=Answer) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    given = [office.tool] if tools is None else tools
    for _ in range(2):  # it has ended for good
        with Runtime(settings, given, outputs=outputs) as later, pytest.raises(RuntimeFailure) as raised:
            later.result_sync("r1")
        assert fault in str(raised.value)
        assert later.settings.journal == journal


def test_a_tool_that_only_the_question_had_is_named(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    for request_id in ("r1", "r2"):
        with asked(Runtime(settings), request_id, tools=[office.tool]) as first:
            until(lambda: any(each.state is OpenState.WAITING for each in first.runtime.open_requests()))
        if request_id == "r1":
            with Runtime(settings) as later, pytest.raises(RuntimeFailure, match="which only its question had"):
                later.result_sync("r1")
    with Runtime(settings, [office.tool]) as later:  # given to the runtime, it is found
        assert later.complete_call(*ids_of(office.tags[1]), result=9)
        assert later.result_sync("r2").text == "read 9"


def test_a_request_with_headers_of_its_own_ends_and_names_them(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    headers = {"x-team": "of-team-7Hq", "x-trial": "of-trial-7Hq"}
    with asked(Runtime(settings, [office.tool]), extra_headers=headers) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    with Runtime(settings, [office.tool]) as later, pytest.raises(RuntimeFailure) as ended:
        later.result_sync("r1")
    assert "its question had extra_headers (x-team, x-trial), which are not written to the journal" in str(ended.value)
    assert b"7Hq" not in journal.read_bytes()


def test_a_model_that_cannot_be_asked_leaves_a_request_open_for_a_start_that_can(journal: Path, until: Until) -> None:
    """As where its key is missing: a fault of the start and not of the request."""
    office = Deferring()
    settings = Settings(model="mine/x", journal=journal)
    providers = {"mine": Scripted(calling("ask_office"), name="mine")}
    with asked(Runtime(settings, [office.tool], providers=providers)) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    without = Settings(model="scripted/x", journal=journal, script=["unused"])
    for _ in range(MAX_TAKINGS_UP + 1):
        with Runtime(without, [office.tool]) as other:
            (left,) = other.open_requests()
            assert left.state is OpenState.LEFT_OPEN
            assert "'mine'" in left.waits_for
            with pytest.raises(UsageError, match="has not ended, and does not run here"):
                other.result_sync("r1")
    with Runtime(settings, [office.tool], providers=providers) as later:
        assert later.complete_call(*ids_of(office.tags[0]), result=1)
        assert later.result_sync("r1").text == "read 1"


def test_on_crash_fail_ends_what_was_open(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool])) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    failing = settings.model_copy(update={"on_crash": "fail"})
    with Runtime(failing, [office.tool]) as later:
        assert later.open_requests() == ()
        with pytest.raises(RuntimeFailure, match="on_crash"):
            later.result_sync("r1")


def test_a_request_that_gets_nowhere_ends(journal: Path, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that ends before the request has a new event, as if its replay ended the process."""
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool])) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    with monkeypatch.context() as patched:

        def ends(*_: object) -> None:
            raise MemoryError("as if the process had ended")

        patched.setattr("callboard.actors.taking_up.rebuilt", ends)
        for _ in range(MAX_TAKINGS_UP):
            with pytest.raises(MemoryError):
                Runtime(settings, [office.tool]).start()
    in_vain = f"taken up {MAX_TAKINGS_UP} times and nothing"
    with Runtime(settings, [office.tool]) as later, pytest.raises(RuntimeFailure, match=in_vain):
        later.result_sync("r1")


def test_a_damaged_record_ends_its_request_alone(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    for number, request_id in enumerate(("r1", "r2"), 1):
        with asked(Runtime(settings, [office.tool]), request_id) as first:
            until(is_in(first.runtime, OpenState.WAITING, number))
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE callboard_events SET data = X'00' WHERE request_id = 'r1' AND number = 2")
        connection.commit()
    with Runtime(settings, [office.tool]) as later:
        assert [each.request_id for each in later.open_requests()] == ["r2"]
        with pytest.raises(
            RuntimeFailure, match=r"its record in the journal is damaged: 1 of its records are lost.*event 2"
        ):
            later.result_sync("r1")
        record, *apart = sorted(later.journal.set_aside(), key=lambda each: each.what)
        assert record.what.startswith("damaged record 1, of callboard_events: ('r1', 2")
        assert {each.request_id for each in apart} == {"r1"}
        assert any("event 2" in each.why for each in apart)
        assert later.complete_call(*ids_of(office.tags[-1]), result=2)
        assert later.result_sync("r2").text == "read 2"


def test_a_request_whose_beginning_is_lost_ends_once(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool])) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("DELETE FROM callboard_requests")
        connection.commit()
    for _ in range(2):
        with Runtime(settings, [office.tool]) as later:
            assert later.open_requests() == ()
            with pytest.raises(RuntimeFailure, match="is damaged: its beginning is missing"):
                later.result_sync("r1")
            assert [each.request_id for each in later.journal.set_aside()] == ["r1"]
    with closing(sqlite3.connect(journal)) as connection:
        assert connection.execute("SELECT * FROM callboard_open").fetchall() == []


def test_a_direct_call_goes_on(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=["unused"])
    ended: list[Exception] = []

    def call() -> None:
        try:
            asyncio.run(runtime.call_tool("ask_office", request_id="c1"))
        except Exception as error:  # noqa: BLE001 - what it ends with is looked at
            ended.append(error)

    with Runtime(settings, [office.tool]) as runtime:
        thread = threading.Thread(target=call)
        thread.start()
        until(is_in(runtime, OpenState.WAITING))
    thread.join(10)
    assert isinstance(ended[0], RequestEnded)
    with Runtime(settings, [office.tool]) as later:
        assert later.complete_call(*ids_of(office.tags[0]), result=5)
        reply = later.result_sync("c1")
        assert [message.content for message in reply.messages if isinstance(message, ToolMessage)] == ["5"]


def test_unknown_ids_and_requests_without_a_journal(journal: Path) -> None:
    with Runtime(Settings(model="scripted/x", script=["a"])) as without:
        without.ask_sync("?", request_id="r1")
        with pytest.raises(UsageError, match="journal="):
            without.result_sync("r1")
    with Runtime(Settings(model="scripted/x", script=["a"], journal=journal)) as runtime:
        with pytest.raises(UsageError, match="neither this runtime nor its journal has a request with the id 'r9'"):
            runtime.result_sync("r9")
        runtime.ask_sync("?", request_id="r1")
        with pytest.raises(UsageError, match="the journal has a request with the id 'r1' already"):
            runtime.ask_sync("?", request_id="r1")


def test_a_request_that_ended_otherwise_raises_what_ask_raised(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool])) as first:
        until(is_in(first.runtime, OpenState.WAITING))
        first.runtime.cancel("r1", "not needed")
        first.thread.join(10)
        (then,) = first.ended
    with Runtime(settings, [office.tool]) as later, pytest.raises(RequestEnded) as raised:
        later.result_sync("r1")
    assert isinstance(then, RequestEnded)
    assert raised.value.reply == then.reply
    assert str(raised.value) == str(then) == "not needed"


async def test_result_waits_for_a_request_that_runs(journal: Path, until: Until) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    async with Runtime(settings, [office.tool]) as runtime:
        asking = asyncio.ensure_future(runtime.ask("?", request_id="r1"))
        await asyncio.to_thread(until, is_in(runtime, OpenState.WAITING))
        given_up = asyncio.ensure_future(runtime.result("r1"))
        await asyncio.sleep(0)
        given_up.cancel()
        waiting = asyncio.ensure_future(runtime.result("r1"))
        await asyncio.to_thread(runtime.complete_call, *ids_of(office.tags[0]), 3)
        assert await waiting == await asking, "cancelling a wait does not cancel the request"


def set_wall_clock(monkeypatch: pytest.MonkeyPatch, ahead_seconds: float) -> None:
    """Of the runtimes that are made from now on."""
    defaults = Outbox.__init__.__kwdefaults__
    assert "wall_clock" in (defaults or {})
    monkeypatch.setitem(defaults or {}, "wall_clock", lambda: time.time() + ahead_seconds)


def test_a_wait_that_was_over_before_the_start_ends_there(
    journal: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool])) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    set_wall_clock(monkeypatch, 3_601.0)
    with Runtime(settings, [office.tool]) as later:
        text = later.result_sync("r1").text
    assert '"timed_out"' in text
    assert "its result was to come from outside, and did not come in its time" in text


def test_a_clock_that_was_set_back_breaks_nothing(journal: Path, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    office = Deferring()
    settings = Settings(model="scripted/x", journal=journal, script=calling("ask_office"))
    with asked(Runtime(settings, [office.tool])) as first:
        until(is_in(first.runtime, OpenState.WAITING))
    set_wall_clock(monkeypatch, -86_400.0)
    with Runtime(settings, [office.tool]) as later:
        until(is_in(later, OpenState.WAITING))
        running = later._live()
        found = running.requests[RequestId("r1")].rebuilt
        assert found is not None
        assert found.taken_up.started.at <= running.system.now(), "what has happened is not in the future"
        assert later.complete_call(*ids_of(office.tags[0]), result=7)
        reply = later.result_sync("r1")
        assert reply.text == "read 7"
        assert all(step.seconds >= 0 for step in reply.steps)
