"""An id by its first characters: the one that is meant, or none at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.journal_writes import begin
from support.postgres_server import new_database

from callboard.actors.journal.at_rest import journal_at
from callboard.actors.journal.journal_handle import JournalHandle
from callboard.actors.journal.postgres_journal import PostgresJournal
from callboard.actors.journal.saved_conversations import MIN_CHARS, AmbiguousId, shown_id, whole_id
from callboard.actors.journal.sqlite_journal import SqliteJournal

ALIKE = ("abcd" + "0" * 28, "abcde" + "1" * 27)
CONVERSATION = "c0ffee" + "2" * 26
#: Also ids that a program has chosen.
IDS = (*ALIKE, "abcd0", "order-12", "12345")
#: More than are read, all before it by their order.
CHOSEN, HIDDEN = [f"dead-{n}" for n in range(1_001)], "dead" + "4" * 28
#: Too short, of a chosen id, or of none.
LEFT = ("", "abc", "order-1", "order", "1234", "ABCDE", "abcd%", "____", "abcd\\", "äbcd", "\0abc")


@pytest.fixture(params=["sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalHandle]:
    store: SqliteJournal | PostgresJournal
    if request.param == "sqlite":
        with closing(store := SqliteJournal(place := tmp_path / "journal.db")):
            filled(store)
        yield JournalHandle.open(place)
        return
    with new_database() as url:
        with closing(store := PostgresJournal(url)):
            filled(store)
        yield JournalHandle(journal_at(url))


def filled(store: SqliteJournal | PostgresJournal) -> None:
    store.open()
    assert not any(store.commit([begin(each, conversation_id=CONVERSATION) for each in (*IDS, *CHOSEN, HIDDEN)]))


def test_a_journal_finds_the_one_that_begins_so(journal: JournalHandle) -> None:
    assert journal.whole_request_id("abcde") == ALIKE[1]
    assert journal.whole_conversation_id("c0ff") == CONVERSATION
    assert journal.whole_request_id("c0ff") == "c0ff"  # of another kind
    assert journal.whole_request_id("dead") == HIDDEN
    assert journal.whole_request_id("beef", also=["beef" + "3" * 28]) == "beef" + "3" * 28
    assert journal.whole_request_id("abcd0") == "abcd0"  # whole already, though another one begins so
    with pytest.raises(AmbiguousId, match=r"^2 requests begin with 'abcd' \(abcd0000…, abcde111…\): give more of the"):
        journal.whole_request_id("abcd")
    for part in LEFT:
        assert journal.whole_request_id(part) == part


@given(st.lists(st.uuids(version=4), min_size=1, max_size=8), st.integers(0, 32), st.text("abcdef0123", max_size=8))
def test_what_is_found_begins_so_and_is_the_only_one(made: list[uuid.UUID], length: int, chosen: str) -> None:
    ids, part = {chosen, *(each.hex for each in made)}, made[0].hex[:length]
    like = {each for each in ids if each.startswith(part)}
    if length < MIN_CHARS or part in ids:
        assert whole_id(part, lambda _: like, "request") == part
    elif len(like - {chosen}) == 1:
        assert whole_id(part, lambda _: like, "request") == made[0].hex
    else:
        with pytest.raises(AmbiguousId):
            whole_id(part, lambda _: like, "request")


def test_an_id_of_our_own_is_shown_in_eight_characters_and_a_chosen_one_whole() -> None:
    own = uuid.uuid4().hex
    assert shown_id(own) == own[:8]
    assert shown_id("order-2026-11-29") == "order-2026-11-29"
