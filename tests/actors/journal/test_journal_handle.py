"""What people do with a journal: conversations, search, usage, deletion, clean-up, export."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.journal_writes import begin, finished
from support.postgres_server import new_database
from support.shared_double import shared_double

from callboard import Connection, Conversation, McpServer, Runtime, RuntimeFailure, Settings, UsageError, tool
from callboard.actors.journal import exporting
from callboard.actors.journal.at_rest import journal_at
from callboard.actors.journal.journal_check import repair
from callboard.actors.journal.journal_handle import JournalHandle
from callboard.actors.journal.journal_records import NewMessage, RequestEnd, Write
from callboard.actors.journal.postgres_journal import PostgresJournal
from callboard.actors.journal.retention import _FRESH_SECONDS, CleanedUp, Kept
from callboard.actors.journal.sqlite_database import SqliteDatabase
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.journal.tables import EVENTS, MESSAGES, TABLES, USAGE
from callboard.actors.testing.wire_double import Api, Call, Turn
from callboard.protocol.commands import Finish, Outcome
from callboard.protocol.content import AssistantMessage, Text, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ModelFailed
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.model import Error, Usage
from callboard.protocol.reports import StepReport
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

LONG_AGO = 1_000_000.0
DAY = 86_400.0


@tool(effect="repeat")
async def weather(city: str) -> str:
    """The weather."""
    return f"rain in {city}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def settings(path: Path, *turns: ScriptedTurn, **more: object) -> Settings:
    return Settings.model_validate({"model": "scripted/x", "script": list(turns), "journal": path, **more})


@pytest.fixture
def filled(path: Path) -> Path:
    """Two conversations: umbrellas, of two questions, and the weather, with a call."""
    turns = [
        ScriptedTurn("The blue one.", usage=Usage(10, 5)),
        ScriptedTurn("I am."),
        ScriptedTurn(calls=[ScriptedCall("weather", {"city": "Oslo"})], usage=Usage(1, 1)),
        ScriptedTurn("Take boots.", usage=Usage(2, 2)),
    ]
    with Runtime(settings(path, *turns), [weather]) as runtime:
        conversation = Conversation()
        runtime.ask_sync("Which umbrella?", conversation=conversation, metadata={"user": "ada"})
        runtime.ask_sync("Are you sure?", conversation=conversation, metadata={"user": "ada"})
        runtime.ask_sync("How is Oslo?", metadata={"user": "bob"})
    return path


@pytest.fixture
def journal(filled: Path) -> JournalHandle:
    return JournalHandle.open(filled)


def rows(path: Path, table: str) -> int:
    with closing(SqliteDatabase(path, reads_only=True)) as database:
        ((count,),) = database.query(f"SELECT COUNT(*) FROM {table}")
    assert isinstance(count, int)
    return count


def written(path: Path, *batches: list[Write]) -> None:
    store = SqliteJournal(path)
    store.open()
    with closing(store):
        for batch in batches:
            assert [each for each in store.commit(batch) if each is not None] == []


def question(name: str, conversation: str, at: float, text: str = "hello") -> list[Write]:
    """A request that has ended, with its two messages."""
    own = [MessageId(f"{name}/user"), MessageId(f"{name}/1")]
    messages = (
        NewMessage(own[0], None, UserMessage.of(text)),
        NewMessage(own[1], own[0], AssistantMessage((Text("yes"),))),
    )
    step = StepReport(1, 1.0, True, "sim/model", Usage(3, 4), 0.5)
    tag = Tag(RequestId(name), own[0])
    end = Finish(tag, Outcome.ANSWERED, "yes", Usage(3, 4), 0.5, (step,))
    return [
        begin(name, at=at, conversation_id=conversation),
        Write(RequestId(name), 2, (), (), None, conversation, messages, None, RequestEnd(at, end)),
    ]


# -- conversations


def test_conversations_are_listed_with_the_newest_question_first(journal: JournalHandle) -> None:
    weather, umbrellas = journal.conversations()
    assert (weather.title, umbrellas.title) == ("How is Oslo?", "Which umbrella?")
    assert (umbrellas.messages, umbrellas.requests, weather.messages) == (4, 2, 4)
    assert umbrellas.begun_at <= umbrellas.last_at <= weather.last_at
    assert umbrellas.metadata == {"user": "ada"}
    assert umbrellas.open_request is None


def test_they_are_narrowed_by_words_metadata_and_time_and_come_in_pages(journal: JournalHandle) -> None:
    weather, umbrellas = journal.conversations()
    assert journal.conversations(text="blue") == [umbrellas]
    assert journal.conversations(text="blue Oslo") == []
    assert journal.conversations(metadata={"user": "bob"}) == [weather]
    assert journal.conversations(since=weather.last_at) == [weather]
    assert journal.conversations(until=weather.last_at) == [umbrellas]
    assert journal.conversations(1) == [weather]
    assert journal.conversations(1, after=weather) == [umbrellas]
    assert journal.conversations(1, after=umbrellas) == []


def test_pages_have_each_conversation_once_also_of_one_moment(path: Path) -> None:
    for number in range(7):
        written(path, question(f"r{number}", f"c{number}", LONG_AGO + number // 3))
    journal, found = JournalHandle.open(path), []
    page = journal.conversations(2)
    while page:
        found += page
        page = journal.conversations(2, after=page[-1])
    assert [each.id for each in found] == ["c6", "c3", "c4", "c5", "c0", "c1", "c2"]


def test_one_is_read_back_whole_and_a_question_goes_on_with_it(filled: Path) -> None:
    with Runtime(settings(filled, ScriptedTurn("Yes, blue."))) as runtime:
        (_, info) = runtime.journal.conversations()
        conversation = runtime.journal.conversation(info.id)
        assert conversation.id == info.id
        assert [type(each).__name__ for each in conversation.messages] == ["UserMessage", "AssistantMessage"] * 2
        before = rows(filled, MESSAGES.name)
        runtime.ask_sync("Blue?", conversation=conversation)
        assert rows(filled, MESSAGES.name) == before + 2
        assert runtime.journal.conversation(info.id) == conversation
        assert runtime.journal.conversations()[0].messages == 6


def test_a_fork_at_a_message_is_a_conversation_of_its_own(filled: Path) -> None:
    with Runtime(settings(filled, ScriptedTurn("Red."))) as runtime:
        (_, info) = runtime.journal.conversations()
        whole = runtime.journal.conversation(info.id)
        fork = runtime.journal.conversation(info.id, at=whole.ids[1])
        assert fork.messages == whole.messages[:2]
        assert fork.id != whole.id
        runtime.ask_sync("And mine?", conversation=fork)
        assert len(runtime.journal.conversation(fork.id).messages) == 4
        assert runtime.journal.conversation(info.id) == whole
        with pytest.raises(UsageError, match="no message of conversation"):
            runtime.journal.conversation(info.id, at="nowhere")


def test_what_two_processes_add_to_one_conversation_are_two_branches(filled: Path) -> None:
    """Neither is refused and nothing is lost: the later one is the conversation, the other can be forked."""
    with Runtime(settings(filled, ScriptedTurn("First."), ScriptedTurn("Second."))) as runtime:
        (_, info) = runtime.journal.conversations()
        one, other = runtime.journal.conversation(info.id), runtime.journal.conversation(info.id)
        runtime.ask_sync("One?", conversation=one)
        runtime.ask_sync("Other?", conversation=other)
        assert runtime.journal.conversation(info.id) == other
        assert runtime.journal.branches(info.id) == [other.ids[-1], one.ids[-1]]
        assert runtime.journal.conversation(info.id, at=one.ids[-1]).messages == one.messages


def test_one_whose_request_has_not_ended_can_only_be_forked(path: Path) -> None:
    written(path, question("r", "c", LONG_AGO), [begin("runs", conversation_id="c", parent=MessageId("r/1"))])
    journal = JournalHandle.open(path)
    assert journal.conversations()[0].open_request == "runs"
    with pytest.raises(UsageError, match="request 'runs' of conversation 'c' has not ended"):
        journal.conversation("c")
    assert len(journal.conversation("c", at="r/1").messages) == 2
    with pytest.raises(UsageError, match="has not ended"):
        journal.delete_conversation("c")
    assert rows(path, EVENTS.name) == 2


def test_an_unknown_one_is_refused(journal: JournalHandle) -> None:
    for refused in (
        lambda: journal.conversation("none"),
        lambda: journal.delete_conversation("none"),
        lambda: journal.request("none"),
    ):
        with pytest.raises(UsageError, match="the journal has no"):
            refused()


def test_a_damaged_one_is_named_and_looking_at_it_changes_nothing(filled: Path, journal: JournalHandle) -> None:
    _, info = journal.conversations()
    ids = journal.conversation(info.id).ids
    with closing(SqliteDatabase(filled)) as database:
        database.execute(f"UPDATE {MESSAGES.name} SET data = ? WHERE message_id = ?", (b"{}", ids[2]))
    before = filled.read_bytes()
    with pytest.raises(RuntimeFailure, match=f"conversation '{info.id}' is damaged: the checksum"):
        journal.conversation(info.id)
    assert journal.set_aside() == []
    assert filled.read_bytes() == before
    assert len(journal.conversation(info.id, at=ids[1]).messages) == 2
    assert "blue" in journal.search("blue")[0].snippet, "the sound ones are still found"


def test_a_history_that_no_provider_takes_is_set_aside_by_a_runtime(path: Path) -> None:
    alone = NewMessage(MessageId("m"), None, AssistantMessage((Text("nobody asked"),)))
    again = NewMessage(MessageId("n"), MessageId("gone"), UserMessage.of("hi"))
    for conversation, message in (("c", alone), ("d", again)):
        own = RequestId(conversation)
        end = RequestEnd(2.0, None, failure="x")
        write = Write(own, 2, (), (), None, conversation, (message,), None, end)
        written(path, [begin(conversation, conversation_id=conversation), write])
    with Runtime(settings(path)) as runtime:
        for _ in range(2):
            with pytest.raises(RuntimeFailure, match="is damaged and was set aside: message 'gone' is missing"):
                runtime.journal.conversation("d")
        assert [each.what for each in runtime.journal.set_aside()] == ["conversation d"]


# -- search


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("blue", 1),
        ("BLU", 1),
        ("lue", 0),
        ("the one", 1),
        ('"one blue"', 0),
        ('"blue one"', 1),
        ("umbrella blue", 0),
        ("rain", 1),
        ("oslo", 2),
    ],
)
def test_all_words_are_found_where_words_begin(journal: JournalHandle, text: str, found: int) -> None:
    assert len(journal.search(text)) == found


def test_a_snippet_is_around_the_word_and_masked(path: Path) -> None:
    key = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3rS5tU7vW9xY1z"
    text = f"{'before ' * 40} needle, with the key {key} {'behind ' * 40} straße 東京都庁"
    written(path, question("r", "c", LONG_AGO, text))
    journal = JournalHandle.open(path)
    (found,) = journal.search("NEEDLE")
    assert "needle" in found.snippet
    assert found.snippet.startswith("…")
    assert found.snippet.endswith("…")
    assert key not in found.snippet
    assert len(found.snippet) < 200
    assert journal.search(key) == [], "a key that is masked cannot be looked for"
    assert journal.search("STRASSE") == []
    assert len(journal.search("Straße")) == 1
    assert len(journal.search("京都")) == 1, "without spaces between words"
    assert key[:12] not in journal.conversations()[0].title


def test_an_empty_search_and_one_of_too_many_words_are_refused(journal: JournalHandle) -> None:
    with pytest.raises(UsageError, match="the search is empty"):
        journal.search('  "" ')
    with pytest.raises(UsageError, match="up to 16 words"):
        journal.search("a " * 17)
    with pytest.raises(UsageError, match="limit must be a whole number"):
        journal.search("a", 0)


# -- usage


def test_usage_is_added_up_by_day_and_model_and_what_is_unknown_is_said(journal: JournalHandle) -> None:
    report = journal.usage()
    (line,) = report.lines
    assert (line.model, line.requests, line.model_calls, line.tool_calls) == ("scripted/x", 3, 4, 1)
    assert line.usage is not None
    assert (line.usage.input_tokens, line.usage.output_tokens, line.unknown_usage) == (13, 8, 0)
    assert line.day == time.strftime("%Y-%m-%d", time.gmtime())
    (by_tool,) = journal.usage(["tool"]).lines
    assert (by_tool.tool, by_tool.tool_calls, by_tool.failed_tool_calls, by_tool.usage) == ("weather", 1, 0, None)
    assert {each.conversation for each in journal.usage("conversation").lines} == {
        each.id for each in journal.conversations()
    }
    assert journal.usage(until=LONG_AGO).lines == ()
    assert journal.usage(model="other/x").lines == ()
    with pytest.raises(UsageError, match="usage can be grouped by day, model, tool, conversation; not by 'week'"):
        journal.usage(["week"])


def test_usage_as_csv_and_json_says_what_is_not_known_as_nothing(path: Path) -> None:
    unknown = Write(RequestId("r"), 2, (), ends=RequestEnd(LONG_AGO, _finish(StepReport(1, 0.0))))
    written(path, [begin("r"), unknown])
    report = JournalHandle.open(path).usage()
    ((header, row),) = [list(csv.reader(io.StringIO(report.as_csv())))]
    told = dict(zip(header, row, strict=True))
    assert (told["cost"], told["input_tokens"], told["unknown_usage"], told["unknown_cost"]) == ("", "", "1", "1")
    assert json.loads(report.as_json())["total"]["usage"] is None


def _finish(*steps: StepReport) -> Finish:
    return Finish(Tag(RequestId("r"), MessageId("m")), Outcome.ANSWERED, "", None, None, steps)


def test_what_a_request_that_runs_has_used_counts(path: Path) -> None:
    running = begin("r")
    answer = finished("r", 2)
    tag = Tag(RequestId("r"), MessageId("m"), 2)
    cut = ModelFailed(tag, 3.0, Error(ErrorKind.TRUNCATED, "cut"), 1, "sim/model", Usage(1, 1), 0.25)
    written(path, [running, Write(RequestId("r"), 2, (*answer.events, cut))])
    report = JournalHandle.open(path).usage()
    assert report.running == 1
    assert report.total.usage == Usage(4, 5)
    assert report.total.cost == 0.75


# -- deletion


def test_a_deleted_conversation_is_in_no_file_any_more_and_its_numbers_stay(filled: Path) -> None:
    with Runtime(settings(filled, ScriptedTurn("I said nothing."))) as runtime:
        _, info = runtime.journal.conversations()
        before = runtime.journal.usage(["model"]).total
        assert runtime.journal.delete_conversation(info.id) == ""
        assert {b"umbrella", b"blue one", info.id.encode()} & found_in(
            filled, b"umbrella", b"blue one", info.id.encode()
        ) == set()
        assert found_in(filled, b"Take boots") == {b"Take boots"}, "the other one is there"
        assert runtime.journal.search("umbrella") == []
        assert runtime.journal.usage(["model"]).total == before
        assert rows(filled, USAGE.name) == 2
        with pytest.raises(UsageError, match="the journal has no conversation"):
            runtime.journal.conversation(info.id)


def test_a_deletion_names_the_copies_that_a_repair_has_made(filled: Path, journal: JournalHandle) -> None:
    *_, info = journal.conversations()
    with closing(SqliteDatabase(filled)) as database:
        sql = f"UPDATE {MESSAGES.name} SET data = ? WHERE instr(CAST(data AS TEXT), 'blue one')"
        assert database.execute(sql, (b"the blue one, torn",)) == 1
    (damaged,) = [line for line in repair(filled).repaired if "was damaged" in line]
    assert found_in(filled, b"the blue one, torn")
    copies = sorted(filled.parent.glob(f"{filled.name}.damaged-*"))
    assert str(copies[0]) in damaged
    named = ", ".join(map(str, copies))
    assert (
        journal.delete_conversation(info.id)
        == f"what was moved aside may hold it still, and is yours to delete: {named}"
    )
    for copy in copies:
        copy.unlink()
    assert found_in(filled, b"blue one", b"umbrella") == set()
    assert "damaged record 1" in journal.set_aside()[0].what, "the report of it stays"


def found_in(path: Path, *texts: bytes) -> set[bytes]:
    """Those that the bytes of the journal's files hold."""
    data = b"".join(each.read_bytes() for each in path.parent.iterdir() if each.name.startswith(path.name))
    return {text for text in texts if text in data}


def test_a_conversation_that_goes_on_after_its_deletion_is_whole_again(path: Path) -> None:
    with Runtime(settings(path, ScriptedTurn("One."), ScriptedTurn("Two."))) as runtime:
        conversation = Conversation()
        runtime.ask_sync("First?", conversation=conversation)
        runtime.journal.delete_conversation(conversation.id)
        runtime.ask_sync("Second?", conversation=conversation)
        assert runtime.journal.conversation(conversation.id) == conversation


def test_no_key_token_or_header_is_in_a_journal(path: Path) -> None:
    names = ("key", "of-connection", "header", "of-question", "of-server", "of-environment")
    secrets = {name: f"{name}-Zq8vL2xW9rT4" for name in names}
    server = McpServer(command="/bin/false", env={"TOKEN": secrets["of-environment"]}, timeout=5)
    other = McpServer(url="http://127.0.0.1:9/mcp", headers={"Authorization": f"Bearer {secrets['of-server']}"})
    with shared_double([Turn(calls=(Call("weather", {"city": "Oslo"}),)), Turn("Boots.")]) as double:
        given = Settings(
            model="openai/gpt-5",
            base_url=double.base_url(Api.RESPONSES),
            api_key=secrets["key"],
            headers={"x-one": secrets["header"]},
            connections={"groq": Connection(api_key=secrets["of-connection"])},
            mcp_servers={"files": server, "web": other},
            journal=path,
        )
        with Runtime(given, [weather]) as runtime:
            runtime.ask_sync("Go.", metadata={"user": "ada"}, extra_headers={"x-two": secrets["of-question"]})
            known = [b"ada", b"Boots.", *(each.encode() for each in secrets.values())]
            assert found_in(path, *known) == {b"ada", b"Boots."}
    assert found_in(path, *known) == {b"ada", b"Boots."}


# -- clean-up


def test_logs_go_first_then_old_conversations_and_open_requests_never(path: Path) -> None:
    now = time.time()
    written(path, question("old", "rests", now - 40 * DAY), question("late", "goes on", now - 40 * DAY))
    written(path, question("new", "goes on", now - DAY), [begin("open", at=now - 40 * DAY, conversation_id="open")])
    done = JournalHandle.open(path).clean_up(keep_days=30)
    assert (done.logs, done.conversations) == (2, 1)
    journal = JournalHandle.open(path)
    assert {each.id for each in journal.conversations()} == {"goes on", "open"}
    late = journal.request("late")
    assert late.records == ()
    assert late.end is not None
    assert late.damage == ""
    assert len(journal.request("open").records) == 1
    assert journal.usage(["model"]).total.requests == 3, "also the one that was deleted"
    assert len(journal.conversation("goes on", at="late/1").messages) == 2


def test_by_size_the_oldest_go_until_it_fits(path: Path) -> None:
    now = time.time()
    for number in range(60):
        written(path, question(f"r{number}", f"c{number}", now - 40 * DAY + number, "x" * 20_000))
    before = path.stat().st_size
    journal = JournalHandle.open(path)
    done = journal.clean_up(max_bytes=before // 2)
    left = journal.conversations(100)
    assert done.logs == 60
    assert 20 < len(left) < 30, "half of them, less a tenth"
    assert [each.id for each in left] == [f"c{number}" for number in reversed(range(60 - len(left), 60))]
    assert path.stat().st_size < before, "what is free was given back in steps"
    assert journal.vacuum() <= before // 2


def test_a_file_at_rest_is_opened_and_checked_once_for_all_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        written(path, question(f"r{number}", f"c{number}", time.time() - 40 * DAY))
    monkeypatch.setattr("callboard.actors.journal.retention.STEP_SECONDS", 0.0)
    opened: list[None] = []
    open_it = SqliteJournal.open
    monkeypatch.setattr(SqliteJournal, "open", lambda store: (opened.append(None), open_it(store))[1])
    done = JournalHandle.open(path).clean_up(keep_days=30)
    assert (done.logs, done.conversations) == (3, 3)
    assert len(opened) == 1


def test_what_ended_a_moment_ago_keeps_its_log(path: Path) -> None:
    written(path, question("r", "c", time.time() - _FRESH_SECONDS / 2))
    assert JournalHandle.open(path).clean_up(keep_days=0.0001).logs == 0


def test_each_step_is_short_and_a_conversation_that_goes_on_meanwhile_stays(path: Path) -> None:
    now = time.time()
    for number in range(3):
        written(path, question(f"r{number}", f"c{number}", now - 40 * DAY))
    steps = JournalHandle.open(path).clean_up_steps(Kept(30))
    assert next(steps).logs >= 1
    written(path, [begin("again", conversation_id="c2", parent=MessageId("r2/1"), at=now)])
    for _ in steps:
        pass
    assert {each.id for each in JournalHandle.open(path).conversations()} == {"c2"}


def test_a_runtime_keeps_within_its_settings_by_itself(path: Path) -> None:
    written(path, question("r", "c", time.time() - 40 * DAY))
    cleaned = threading.Event()
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: cleaned.set() if "deleted from the journal" in record.getMessage() else None  # type: ignore[method-assign]
    with logged_to(handler), Runtime(settings(path, journal_keep_days=30)) as runtime:
        assert cleaned.wait(30)
        assert runtime.journal.conversations() == []


@contextmanager
def logged_to(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("callboard")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


# -- export and import


def test_a_whole_journal_goes_out_and_in_again(journal: JournalHandle, tmp_path: Path) -> None:
    lines = list(journal.export())
    assert json.loads(lines[0]) == {"format": "callboard-journal", "version": 1}
    other = tmp_path / "other.sqlite"
    written(other)
    second = JournalHandle.open(other)
    done = second.import_lines(lines)
    assert done.left_out == 0
    assert done.rows == len(lines) - 1
    assert second.conversations() == journal.conversations()
    assert second.usage().lines == journal.usage().lines
    for each in journal.requests():
        assert second.request(each.request_id) == journal.request(each.request_id)
    assert second.import_lines(lines).rows == 0, "a second time adds nothing"
    assert list(second.export()) == lines


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: lines[1:], "this is no export of a journal"),
        (lambda lines: [], "there is nothing to import"),
        (lambda lines: [lines[0].replace("1", "2"), *lines[1:]], "this export has the version 2"),
        (lambda lines: [*lines, "{"], "is not JSON"),
        (lambda lines: [*lines, '{"table": "meta"}'], '"table" must be one of'),
        (lambda lines: [*lines, lines[1].replace('"digest"', '"other"').replace('"begun_at"', '"other"')], "a row of"),
    ],
)
def test_other_lines_are_refused_and_nothing_is_added(
    journal: JournalHandle, tmp_path: Path, change: Callable[[list[str]], list[str]], why: str
) -> None:
    written(tmp_path / "other.sqlite")
    second = JournalHandle.open(tmp_path / "other.sqlite")
    with pytest.raises(UsageError, match=why):
        second.import_lines(change(list(journal.export())))
    assert second.conversations() == []
    assert rows(tmp_path / "other.sqlite", MESSAGES.name) == 0


def test_requests_that_have_not_ended_are_left_out_of_an_import(path: Path, tmp_path: Path) -> None:
    written(path, question("r", "c", LONG_AGO), [begin("open", conversation_id="c")])
    written(tmp_path / "other.sqlite")
    second = JournalHandle.open(tmp_path / "other.sqlite")
    assert second.import_lines(JournalHandle.open(path).export()).left_out == 2
    assert [each.request_id for each in second.requests()] == ["r"]


def test_a_conversation_comes_in_under_its_own_id_or_a_new_one(journal: JournalHandle, tmp_path: Path) -> None:
    _, info = journal.conversations()
    whole = journal.conversation(info.id)
    written(tmp_path / "other.sqlite")
    other = JournalHandle.open(tmp_path / "other.sqlite")
    assert other.import_conversation(whole.to_json()) == info.id
    assert other.conversation(info.id) == whole
    assert other.import_conversation(whole.to_json()) == info.id, "it is there already"
    changed = whole.to_json().replace("umbrella", "parasol")
    new = other.import_conversation(changed)
    assert new != info.id
    assert other.conversation(info.id) == whole
    assert other.conversations()[0].title in ("Which parasol?", "Which umbrella?")
    with pytest.raises(UsageError):
        other.import_conversation('{"format": "other"}')


# -- PostgreSQL


@pytest.fixture
def server_url() -> Iterator[str]:
    with new_database() as url:
        yield url


def test_on_a_server_it_is_the_same_but_for_the_space_on_its_disk(journal: JournalHandle, server_url: str) -> None:
    second = JournalHandle(journal_at(server_url))
    store = PostgresJournal(server_url)
    store.open()
    store.close()
    lines = list(journal.export())
    assert second.import_lines(lines).rows == len(lines) - 1
    assert set(second.export()) == set(lines)
    weather, umbrellas = second.conversations()
    assert [weather, umbrellas] == journal.conversations()
    assert second.conversations(1, after=weather, metadata={"user": "ada"}) == [umbrellas]
    assert second.search("blue") == journal.search("blue")
    assert second.usage() == journal.usage()
    whole = second.conversation(umbrellas.id)
    assert whole == journal.conversation(umbrellas.id)
    assert second.import_conversation(whole.to_json()) == umbrellas.id
    assert "until its VACUUM" in second.delete_conversation(umbrellas.id)
    assert second.conversations() == [weather]
    assert second.usage().total == journal.usage().total
    assert second.clean_up(keep_days=1) == CleanedUp()
    with pytest.raises(UsageError, match="journal_max_bytes is for journals in a file"):
        second.clean_up(max_bytes=2**20)
    with pytest.raises(UsageError, match="VACUUM FULL"):
        second.vacuum()


# -- without a runtime, and beside one


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no journal"):
        JournalHandle.open(tmp_path / "none.sqlite")
    with pytest.raises(UsageError, match="name one of them"):
        JournalHandle.open(tmp_path / "j-{pid}.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE t (x)")
    with pytest.raises(UsageError, match="a database of another program"):
        JournalHandle.open(tmp_path / "other.sqlite").conversations()


def test_beside_a_process_that_writes_it_is_read_and_a_change_names_the_owner(filled: Path) -> None:
    program = (
        "import sys\n"
        "from callboard.actors.journal.sqlite_journal import SqliteJournal\n"
        "store = SqliteJournal(sys.argv[1]); store.open(); print('open', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(filled)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        journal = JournalHandle.open(filled)
        (info, _) = journal.conversations()
        with pytest.raises(UsageError, match=str(owner.pid)):
            journal.delete_conversation(info.id)
        owner.communicate()
    journal.delete_conversation(info.id)


def test_a_runtime_without_a_journal_says_so() -> None:
    with (
        Runtime(Settings(model="scripted/x")) as runtime,
        pytest.raises(UsageError, match="this runtime has no journal"),
    ):
        _ = runtime.journal


def test_all_tables_but_the_meta_data_are_exported() -> None:
    assert {table.name for table in TABLES} - {each.name for each in exporting._EXPORTED} == {"callboard_meta"}
