"""`callboard journal`: what people type, over the journal of two questions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from support.postgres_server import new_database

from callboard import Conversation, Runtime, Settings
from callboard.actors.journal.postgres_journal import PostgresJournal
from callboard.actors.journal.sqlite_journal import SqliteJournal
from callboard.providers.local.scripted import ScriptedTurn


@pytest.fixture
def filled(here: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of its one conversation; CALLBOARD_JOURNAL names the file."""
    monkeypatch.setenv("CALLBOARD_JOURNAL", "journal.sqlite")
    turns = [ScriptedTurn("The \x1b[2K blue one."), ScriptedTurn("I am.")]
    conversation = Conversation()
    with Runtime(Settings(model="scripted/x", script=turns, journal="journal.sqlite")) as runtime:
        for question in ("Which umbrella?", "Are you sure?"):
            runtime.ask_sync(question, conversation=conversation, metadata={"user": "ada"})
    return conversation.id


def test_conversations_are_listed_shown_and_searched(here: Any, filled: str) -> None:
    listed = here("journal", "list").out
    assert f"\n{filled[:8]}  " in listed
    assert filled not in listed
    assert "Which umbrella?" in listed
    (info,) = json.loads(here("journal", "list", "--json", "--metadata", "user=ada").out)
    assert (info["id"], info["messages"]) == (filled, 4)
    assert here("journal", "list", "--metadata", "user=bob").out == "no conversations\n"
    assert here("journal", "list", "--since", "2100-01-01").out == "no conversations\n"
    shown = here("journal", "show", filled).out
    assert "user: Which umbrella?" in shown
    assert "assistant: I am." in shown
    assert "\x1b" not in shown
    assert "blue one." in here("journal", "search", "blue").out
    assert here("journal", "search", "green").out == "nothing found\n"
    (request, _) = json.loads(here("journal", "requests", "--json").out)
    assert "ModelResponded" in here("journal", "show", request["request_id"]).out
    assert json.loads(here("journal", "show", request["request_id"], "--json").out)["outcome"] == "answered"


def test_usage_is_a_table_json_or_csv(here: Any, filled: str) -> None:
    table = here("journal", "usage").out
    assert "scripted/x" in table
    assert "total" in table
    assert json.loads(here("journal", "usage", "--json", "--by", "model").out)["total"]["requests"] == 2
    header, row = csv.reader(io.StringIO(here("journal", "usage", "--csv", "--by", "conversation").out))
    assert dict(zip(header, row, strict=True))["conversation"] == filled


def test_a_conversation_and_a_whole_journal_go_out_and_in(
    here: Any, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("one.json").write_text(here("journal", "export", filled).out)
    Path("all.jsonl").write_text(here("journal", "export").out)
    for name in ("one", "all"):
        store = SqliteJournal(f"{name}.sqlite")
        store.open()
        store.close()
    assert here("journal", "import", "one.json", "--journal", "one.sqlite").out == f"{filled}\n"
    assert here("journal", "import", "all.jsonl", "--journal", "all.sqlite").out.endswith(" rows added\n")
    for name in ("one", "all"):
        assert here("journal", "export", filled, "--journal", f"{name}.sqlite").out == Path("one.json").read_text()
    assert here("journal", "export", "--journal", "all.sqlite").out == Path("all.jsonl").read_text()


def test_it_is_verified_compacted_and_deleted(here: Any, filled: str) -> None:
    verified = here("journal", "verify")
    assert (verified.status, "fault" in verified.out) == (0, False)
    assert json.loads(here("journal", "verify", "--json").out)["is_sound"] is True
    assert here("journal", "repair").status == 0
    done = here("journal", "compact", "--keep-days", "30").out
    assert done.startswith("the logs of 0 requests and 0 conversations were deleted; ")
    assert here("journal", "delete", filled).out == f"deleted {filled}\n"
    assert here("journal", "list").out == "no conversations\n"
    assert not any(b"umbrella" in each.read_bytes() for each in Path().glob("journal.sqlite*"))
    assert "scripted/x" in here("journal", "usage").out, "its numbers are left"


def test_damage_is_named_and_the_status_says_so(here: Any, filled: str) -> None:
    file = Path("journal.sqlite")
    data = file.read_bytes()
    assert b"umbrella" in data
    file.write_bytes(data.replace(b"umbrella", b"umbrellb"))
    verified = here("journal", "verify")
    assert verified.status == 1
    assert "checksum" in verified.out
    assert "callboard journal repair" in verified.sentence
    assert "is damaged: the checksum" in here("journal", "show", filled).sentence


def test_what_was_exported_makes_a_new_journal(here: Any, filled: str) -> None:
    exported = here("journal", "export").out
    Path("all.jsonl").write_text(exported)
    assert here("journal", "import", "all.jsonl", "--journal", "new.sqlite").out.endswith(" rows added\n")
    assert here("journal", "export", "--journal", "new.sqlite").out == exported
    Path("cut.jsonl").write_text(exported[:-40])
    assert "is not JSON" in here("journal", "import", "cut.jsonl", "--journal", "cut.sqlite").sentence
    assert not Path("cut.sqlite").exists()


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["list", "--journal", "none.sqlite"], "there is no journal"),
        (["show", "none"], "the journal has no conversation 'none'"),
        (["delete", "none"], "the journal has no conversation 'none'"),
        (["list", "--since", "yesterday"], "is no time; write 2026-11-23"),
        (["list", "--limit", "0"], "is below 1"),
        (["list", "--metadata", "user"], "--metadata must be NAME=VALUE"),
        (["search", ""], "the search is empty"),
        (["import", "none.json"], "none.json cannot be read"),
        (["import", "binary"], "binary is not UTF-8"),
        (["compact", "--keep-days", "0"], "is not a number of days above 0"),
        (["verify", "--journal", "postgresql://h/d"], "is for journals in a file"),
    ],
)
def test_what_is_typed_wrongly_is_one_sentence(here: Any, filled: str, typed: list[str], why: str) -> None:
    Path("binary").write_bytes(b"\xff\xfe")
    ran = here("journal", *typed)
    assert ran.status == 2
    assert why in ran.sentence


def test_without_a_journal_it_says_how_to_name_one(here: Any) -> None:
    assert "name the journal: --journal PATH" in here("journal", "list").sentence


def test_a_question_goes_on_with_the_conversation_asked_last_or_one_by_its_id(here: Any) -> None:
    kept = ("--journal", "journal.sqlite", "--json")
    assert "there is no conversation in the journal yet" in here("ask", "What?", "--continue", *kept[:2]).sentence
    first = json.loads(here("ask", "What is an umbrella?", *kept).out)["conversation"]
    assert json.loads(here("ask", "Really?", "--continue", *kept).out)["conversation"] == first
    assert json.loads(here("ask", "Sure?", "--conversation", first, *kept).out)["conversation"] == first
    assert json.loads(here("ask", "Another one?", *kept).out)["conversation"] != first
    counts = [(each["id"] == first, each["requests"]) for each in json.loads(here("journal", "list", *kept).out)]
    assert counts == [(False, 1), (True, 3)]
    assert "name the journal" in here("ask", "What?", "--continue").sentence
    assert "the journal has no conversation 'x'" in here("ask", "What?", "--conversation", "x", *kept[:2]).sentence


def test_compact_leaves_the_space_on_a_server_to_the_server(here: Any) -> None:
    with new_database() as url:
        store = PostgresJournal(url)
        store.open()
        store.close()
        assert "PostgreSQL's autovacuum" in here("journal", "compact", "--journal", url, "--keep-days", "1").out
