"""What `export` wrote makes a new journal, which is the same one: its open requests go on there."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.conditions import wait_until
from support.journal_writes import begin

from callboard.actors.journal.journal_handle import JournalHandle
from callboard.actors.journal.journal_records import NewMessage, RequestEnd, Write
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.actors.journal.tables import EVENTS
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.protocol.commands import Finish, Outcome
from callboard.protocol.content import AssistantMessage, Text, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.model import ModelRequest, Usage
from callboard.providers.local.scripted import ScriptedTurn

SLOW = ScriptedTurn("never", stall=True)


def left_open(path: Path) -> str:
    """A journal with an ended request and one that its runtime has left open; the id of the latter."""
    answers = ["first", SLOW]
    with Runtime(Settings(model="scripted/model", script=answers, journal=str(path))) as runtime:
        runtime.ask_sync("What is first?", metadata={"user": "ada"})
        request_id = runtime.start_request_sync("What is second?")
        wait_until(lambda: any(each.step == 1 for each in runtime.open_requests()))
    return request_id


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    path = tmp_path_factory.mktemp("old") / "old.sqlite"
    return left_open(path), list(JournalHandle.open(path).export())


def test_a_new_journal_is_the_old_one_and_its_open_requests_go_on(lines: tuple[str, list[str]], tmp_path: Path) -> None:
    request_id, exported = lines
    new = tmp_path / "new.sqlite"
    journal = JournalHandle.open(new, makes=True)
    done = journal.import_lines(exported)
    assert (done.rows, done.left_out, done.open_requests) == (len(exported) - 1, 0, 1)
    assert list(journal.export()) == exported
    assert journal.import_lines(exported).rows == 0, "it is no new one any more, and a second time adds nothing"

    with Runtime(Settings(model="scripted/model", script=["here"], journal=str(new))) as runtime:
        assert runtime.result_sync(request_id).text == "here"
        assert [each.open_request for each in runtime.journal.conversations()] == [None, None]


def test_a_journal_that_is_there_takes_what_has_ended(lines: tuple[str, list[str]], tmp_path: Path) -> None:
    there = tmp_path / "there.sqlite"
    with Runtime(Settings(model="scripted/model", script=["other"], journal=str(there))) as runtime:
        runtime.ask_sync("Another?")
    journal = JournalHandle.open(there, makes=True)
    done = journal.import_lines(lines[1])
    assert done.open_requests == 0
    assert done.left_out > 0
    assert {each.title for each in journal.conversations()} == {"Another?", "What is first?", ""}
    assert len(journal.requests()) == 2


def test_one_conversation_makes_a_journal_too(lines: tuple[str, list[str]], tmp_path: Path) -> None:
    whole = JournalHandle.open(tmp_path / "whole.sqlite", makes=True)
    whole.import_lines(lines[1])
    (info,) = [each for each in whole.conversations() if each.title == "What is first?"]
    one = JournalHandle.open(tmp_path / "one.sqlite", makes=True)
    assert one.import_conversation(whole.conversation(info.id).to_json()) == info.id
    assert one.conversation(info.id) == whole.conversation(info.id)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: [], "there is nothing to import"),
        (lambda lines: lines[1:], "this is no export of a journal"),
        (lambda lines: [lines[0].replace("1", "7"), *lines[1:]], "has the version 7; this callboard reads 1"),
        (lambda lines: [*lines[:-1], lines[-1][:20]], "is not JSON"),
        (lambda lines: [*lines, '{"table": "secrets"}'], '"table" must be one of'),
        (lambda lines: [*lines, "[]"], "is not an object"),
        (lambda lines: [each.replace('"place": ', '"place": 0.5') for each in lines], "must be of the type INTEGER"),
        (lambda lines: [each.replace('"text"', '"txet"') for each in lines], r"line \d+: "),
    ],
)
def test_what_is_refused_leaves_no_file(
    lines: tuple[str, list[str]], tmp_path: Path, change: Callable[[list[str]], list[str]], why: str
) -> None:
    journal = JournalHandle.open(tmp_path / "new.sqlite", makes=True)
    with pytest.raises(UsageError, match=why):
        journal.import_lines(change(lines[1]))
    assert list(tmp_path.iterdir()) == []
    assert journal.import_lines(lines[1]).open_requests == 1, "and the right lines make it"


@pytest.mark.parametrize("place", ["a folder", "another file", "another database"])
def test_what_is_no_journal_is_refused_and_stays(lines: tuple[str, list[str]], tmp_path: Path, place: str) -> None:
    path = tmp_path / "there"
    if place == "a folder":
        path.mkdir()
    elif place == "another file":
        path.write_text("a letter\n" * 100)
    else:
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE birds (name TEXT)")
            other.commit()
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(UsageError):
        JournalHandle.open(path, makes=True).import_lines(lines[1])
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_an_open_request_of_a_damaged_journal_is_not_gone_on_with(tmp_path: Path) -> None:
    """An event that is missing may be the end of a call, which would be run a second time."""
    path = tmp_path / "old.sqlite"
    request_id = left_open(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            f"UPDATE {EVENTS.name} SET crc = crc + 1 WHERE request_id = ? AND number = "
            f"(SELECT MAX(number) FROM {EVENTS.name} WHERE request_id = ?)",
            (request_id, request_id),
        )
        database.commit()
    new = tmp_path / "new.sqlite"
    JournalHandle.open(new, makes=True).import_lines(JournalHandle.open(path).export())
    asked: list[ModelRequest] = []

    def never(request: ModelRequest) -> str:
        asked.append(request)
        return "again"

    with Runtime(Settings(model="scripted/model", script=never, journal=str(new))) as runtime:
        assert "the journal that was exported is damaged" in runtime.journal.request(request_id).damage
        assert asked == []


def _request(name: str, conversation: str, *, has_ended: bool, text: str) -> list[Write]:
    own = [MessageId(f"{name}/user"), MessageId(f"{name}/1")]
    begun = begin(name, at=1_000.0, conversation_id=conversation)
    if not has_ended:
        return [begun]
    messages = (
        NewMessage(own[0], None, UserMessage.of(text)),
        NewMessage(own[1], own[0], AssistantMessage((Text(text),))),
    )
    end = Finish(Tag(RequestId(name), own[0]), Outcome.ANSWERED, text, Usage(1, 2), 0.5, ())
    return [begun, Write(RequestId(name), 2, (), (), None, conversation, messages, None, RequestEnd(1_001.0, end))]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "ü\x00"]), st.booleans(), st.text(max_size=20)), max_size=6))
def test_any_journal_goes_out_and_in_unchanged(requests: list[tuple[str, bool, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old.sqlite"), Path(folder, "new.sqlite")
        store = SqliteJournal(old)
        store.open()
        with closing(store):
            for number, (conversation, has_ended, text) in enumerate(requests):
                request = _request(f"r{number}", conversation + str(number), has_ended=has_ended, text=text)
                assert [each for each in store.commit(request) if each is not None] == []
        exported = list(JournalHandle.open(old).export())
        journal = JournalHandle.open(new, makes=True)
        done = journal.import_lines([json.dumps(json.loads(line)) for line in exported])
        assert list(journal.export()) == exported
        assert done.open_requests == sum(not has_ended for _, has_ended, _ in requests)
