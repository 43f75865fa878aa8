"""A request whose journal ends behind any of its writes goes on: it ends, its history is legal, and a call that may run
once runs at most once. What was durable before the end counts (I1 to I4, I8)."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from callboard import (
    Approval,
    AskApproval,
    CallAnswer,
    CallResults,
    ClientTool,
    Conversation,
    Deferred,
    Outcome,
    Runtime,
    Settings,
    tool,
)
from callboard.actors.journal.journal_records import Change, EffectWrite, Write
from callboard.actors.journal.journal_store import ChangeRefused
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.tools import ToolContext
from callboard.protocol.content import AssistantMessage, Text, ToolCall, ToolMessage, UserMessage, history_faults
from callboard.protocol.events import ToolCallCompleted, ToolCallDeferred, ToolCallStarted
from callboard.protocol.ids import Tag
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

ran: Counter[str] = Counter()


@tool(isolation="thread", risk="read", effect="once")
def pay() -> str:
    """Pay."""
    ran["pay"] += 1
    return "paid"


@tool(isolation="thread", risk="read", effect="repeat")
def look() -> str:
    """Look."""
    ran["look"] += 1
    return "seen"


@tool(isolation="thread", risk="execute")
def launch() -> str:
    """Launch it."""
    ran["launch"] += 1
    return "launched"


@tool(isolation="thread", risk="read")
def ask_office(context: ToolContext) -> str | Deferred:
    """Ask the office."""
    ran["ask_office"] += 1
    deferred.append(context.tag)
    return Deferred(3600.0)


@tool(isolation="thread", risk="write", effect="transaction")
def book(context: ToolContext) -> str:
    """Book it."""
    ran["book"] += 1
    context.transaction.execute("INSERT INTO booked (what) VALUES (?)", ("it",))
    return "booked"


TOOLS = [pay, look, launch, ask_office, book]
deferred: list[Tag] = []
FIRST = {"a": "pay", "b": "look", "e": "book"}
THEN = {"c": "launch", "d": "ask_office"}
NAMES = FIRST | THEN


def script(request: ModelRequest) -> ScriptedTurn:
    """Two steps with calls, then the answer; by what the model has read, since it may be asked again."""
    read = sum(isinstance(message, ToolMessage) for message in request.messages)
    if read == 0:
        return ScriptedTurn("first", tuple(ScriptedCall(name, id=own) for own, name in FIRST.items()))
    if read == len(FIRST):
        return ScriptedTurn("then", tuple(ScriptedCall(name, id=own) for own, name in THEN.items()))
    return ScriptedTurn("done")


def settings_of(journal: Path) -> Settings:
    return Settings(model="scripted/x", journal=journal, script=script, trust="careful", durability="process")


def approves(_: AskApproval) -> Approval:
    return Approval.ONCE


def finished(runtime: Runtime) -> None:
    """Give the deferred call its result as soon as it can have one, until the request has ended."""
    while runtime.open_requests():
        for tag in deferred:
            runtime.complete_call(tag.request_id, tag.step, tag.call_id, "told")


def with_table(path: Path) -> Path:
    """A new journal whose database has a table of the tool's."""
    store = SqliteJournal(path, durability="process")
    store.open()
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE booked (what TEXT)")
        connection.commit()
    return path


def booked(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM booked")
    return int(count)


@pytest.fixture(scope="module")
def writes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Change, ...]:
    """Of one request that nothing has disturbed, one for each event; and the outcome of the transaction."""
    kept: list[Change] = []

    class Keeping(SqliteJournal):
        def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
            kept.extend(batch)
            return super().commit(batch)

    path = with_table(tmp_path_factory.mktemp("whole") / "j.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("callboard.actors.journal.sqlite_journal.SqliteJournal", Keeping)
        with Runtime(settings_of(path), TOOLS, approve=approves) as runtime:
            stream = runtime.stream_sync("?", request_id="r1")
            for seen in stream:
                if isinstance(seen, ToolCallDeferred):
                    runtime.complete_call("r1", seen.tag.step, seen.tag.call_id, "told")
    assert isinstance(kept[-1], Write)
    assert kept[-1].ends is not None
    assert sum(isinstance(change, EffectWrite) for change in kept) == 1
    return tuple(kept)


def test_the_request_goes_on_from_every_cut(writes: tuple[Change, ...], tmp_path: Path) -> None:
    assert len(writes) >= 10
    for cut in range(1, len(writes) + 1):
        goes_on_from(writes[:cut], tmp_path / f"{cut}.db")


def goes_on_from(durable: tuple[Change, ...], path: Path) -> None:
    store = SqliteJournal(with_table(path), durability="process")
    store.open()
    assert not any(store.commit(durable))
    store.close()
    events = [event for write in durable if isinstance(write, Write) for event in write.events]
    ran.clear()
    deferred[:] = [event.tag for event in events if isinstance(event, ToolCallDeferred)]
    with Runtime(settings_of(path), TOOLS, approve=approves) as runtime:
        finished(runtime)
        reply = runtime.result_sync("r1")
    with Runtime(settings_of(path), TOOLS, approve=approves) as runtime:
        assert runtime.result_sync("r1") == reply, "what was answered stays so"
    assert booked(path) == 1, "exactly once"
    assert reply.outcome is Outcome.ANSWERED
    assert reply.text == "done"
    assert not history_faults(reply.messages)
    turns = [message for message in reply.messages if isinstance(message, AssistantMessage)]
    calls = [part.call_id for turn in turns for part in turn.parts if isinstance(part, ToolCall)]
    results = [message for message in reply.messages if isinstance(message, ToolMessage)]
    assert calls == [result.call_id for result in results] == list(NAMES), "one result a call, in order"
    began = {NAMES[event.tag.call_id] for event in events if isinstance(event, ToolCallStarted)}
    ended = {event.tag.call_id: event for event in events if isinstance(event, ToolCallCompleted)}
    for result in results:
        name = NAMES[result.call_id]
        if (event := ended.get(result.call_id)) is not None:
            assert result.content == event.content, "an outcome that was durable counts"
            assert ran[name] == 0
        elif name == "book":
            committed = any(isinstance(change, EffectWrite) for change in durable)
            assert ran[name] == (0 if committed else 1)
            assert result.content == "booked"
        elif name == "look":
            assert ran[name] == 1
            assert result.content == "seen"
        else:
            assert ran[name] == (0 if name in began else 1), "at most once, and surely if it had not begun"


# -- a request that ends with calls of its asker's tools, and the one that brings their results

MINE = ClientTool("mine", "What the asker runs.")
BOTH = {"f": "mine", "g": "pay"}


def hands_out(request: ModelRequest) -> ScriptedTurn:
    """A step with a call outside and one of ours, then the answer."""
    if any(isinstance(message, ToolMessage) for message in request.messages):
        return ScriptedTurn("done")
    return ScriptedTurn("both", tuple(ScriptedCall(name, id=own) for own, name in BOTH.items()))


def outside_settings(journal: Path) -> Settings:
    return Settings(model="scripted/x", journal=journal, script=hands_out, trust="careful", durability="process")


@pytest.fixture(scope="module")
def outside_writes(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Change, ...], str]:
    """Of a request that hands a call out and of the next one, and their conversation's id."""
    kept: list[Change] = []

    class Keeping(SqliteJournal):
        def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
            kept.extend(batch)
            return super().commit(batch)

    talk = Conversation([UserMessage.of("hello"), AssistantMessage((Text("hi"),))])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("callboard.actors.journal.sqlite_journal.SqliteJournal", Keeping)
        with Runtime(outside_settings(tmp_path_factory.mktemp("outside") / "j.db"), TOOLS, approve=approves) as runtime:
            runtime.ask_sync("?", tools=["*", MINE], conversation=talk, request_id="r1")
            runtime.ask_sync(RESULTS, tools=["*", MINE], conversation=talk, request_id="r2")
    return tuple(kept), talk.id


RESULTS = CallResults((CallAnswer("f", "what it came to"),))


def test_a_turn_that_waits_for_its_asker_goes_on_from_every_cut(
    outside_writes: tuple[tuple[Change, ...], str], tmp_path: Path
) -> None:
    writes, conversation_id = outside_writes
    assert len(writes) >= 6
    for cut in range(1, len(writes) + 1):
        hands_out_from(writes[:cut], conversation_id, tmp_path / f"{cut}.db")


def hands_out_from(durable: tuple[Change, ...], conversation_id: str, path: Path) -> None:
    store = SqliteJournal(path, durability="process")
    store.open()
    assert not any(store.commit(durable))
    store.close()
    written = [write for write in durable if isinstance(write, Write)]
    began = any(isinstance(event, ToolCallStarted) for write in written for event in write.events)
    is_asked = any(write.request_id == "r2" for write in written)
    ran.clear()
    with Runtime(outside_settings(path), TOOLS, approve=approves) as runtime:
        finished(runtime)
        handed = runtime.result_sync("r1")
        assert (handed.outcome, [call.call_id for call in handed.outside_calls]) == (Outcome.CALLS_OUTSIDE, ["f"])
        assert ran["pay"] == (0 if began else 1), "at most once, and surely if it had not begun"
        talk = runtime.journal.conversation(conversation_id)
        if not is_asked:
            assert talk.open_turn is not None
            runtime.ask_sync(RESULTS, tools=["*", MINE], conversation=talk, request_id="r2")
        assert runtime.result_sync("r2").text == "done"
        assert runtime.result_sync("r1") == handed, "what was handed out stays so"
    with Runtime(outside_settings(path), TOOLS, approve=approves) as runtime:
        whole = runtime.journal.conversation(conversation_id)
    assert whole.open_turn is None
    assert not history_faults(whole.messages)
    results = [message for message in whole.messages if isinstance(message, ToolMessage)]
    assert [result.call_id for result in results] == list(BOTH), "one result a call, in order"
    assert results[0].content == "what it came to"
