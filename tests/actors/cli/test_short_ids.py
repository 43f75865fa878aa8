"""Ids by their first characters, wherever an id is typed: the one that begins so is meant, or it is said which do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from callboard import Conversation, Runtime, Settings, UsageError
from callboard.actors.cli.arguments import whole_id
from callboard.providers.local.scripted import ScriptedTurn


@pytest.fixture
def conversation(here: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of the one conversation; CALLBOARD_JOURNAL names its file."""
    monkeypatch.setenv("CALLBOARD_JOURNAL", "journal.sqlite")
    said = Conversation()
    turns = [ScriptedTurn("The blue one."), ScriptedTurn("I am.")]
    with Runtime(Settings(model="scripted/x", script=turns, journal="journal.sqlite")) as runtime:
        for question in ("Which umbrella?", "Are you sure?"):
            runtime.ask_sync(question, conversation=said)
    return said.id


def a_copy(here: Any, conversation: str, own: str) -> None:
    Path("copy.json").write_text(here("journal", "export", conversation).out.replace(conversation, own))
    assert here("journal", "import", "copy.json").out == f"{own}\n"


def test_what_lists_show_is_taken_by_each_command(here: Any, conversation: str) -> None:
    (request, _) = (each["request_id"] for each in json.loads(here("journal", "requests", "--json").out))
    for own, listed in ((conversation, "list"), (request, "requests")):
        assert f"\n{own[:8]}  " in here("journal", listed).out
    begun = conversation[:8]
    assert here("journal", "show", begun).out == here("journal", "show", conversation).out
    assert f"request_id: {request}\n" in here("journal", "show", request[:4]).out
    assert here("journal", "export", begun).out == here("journal", "export", conversation).out
    usage = ("journal", "usage", "--json", "--conversation")
    assert json.loads(here(*usage, begun[:4]).out)["total"]["requests"] == 2
    assert "it ended: answered" in here("journal", "replay", request[:8]).out
    message = here("journal", "search", "blue").out.split()[1]
    assert message.partition("/")[0] == message[:8]
    assert "I am." not in here("journal", "show", begun, "--at", message).out
    asked = here("ask", "Why?", "--conversation", begun, "--json", "--journal", "journal.sqlite")
    assert json.loads(asked.out)["conversation"] == conversation
    assert here("journal", "delete", begun).out == f"deleted {conversation}\n"
    assert here("journal", "list").out == "no conversations\n"


def test_several_that_begin_so_are_named_and_none_is_deleted(here: Any, conversation: str) -> None:
    begun = conversation[:6]
    other = begun + ("0" if conversation[6] != "0" else "1") + conversation[7:]
    a_copy(here, conversation, other)
    for words in (("show",), ("export",), ("delete",), ("delete", conversation), ("usage", "--conversation")):
        ran = here("journal", *words, begun)
        assert ran.status == 2
        assert f"2 conversations begin with '{begun}' (" in ran.sentence
        assert all(f"{each[:10]}…" in ran.sentence for each in (conversation, other))
    assert "2 conversations begin" in here("ask", "Why?", "--conversation", begun, "--workspace", ".").sentence
    assert len(json.loads(here("journal", "list", "--json").out)) == 2
    assert here("journal", "delete", other[:7]).out == f"deleted {other}\n"


def test_a_request_and_a_conversation_that_begin_so(here: Any, conversation: str) -> None:
    (request, _) = (each["request_id"] for each in json.loads(here("journal", "requests", "--json").out))
    own = request[:6] + ("0" if request[6] != "0" else "1") + request[7:]
    a_copy(here, conversation, own)
    assert "a request and a conversation begin with" in here("journal", "show", request[:6]).sentence
    assert f"request_id: {request}\n" in here("journal", "show", request[:7]).out


@pytest.mark.parametrize("given", ["abc", "0123456789", "order-1", "f" * 32, ""])
def test_one_that_is_unknown_is_named(here: Any, conversation: str, given: str) -> None:
    assert f"the journal has no conversation {given!r}" in here("journal", "show", given).sentence
    refused = here("journal", "delete", given).sentence
    assert f"the journal has no conversation {given!r}" in refused
    assert ("4 characters of an id are needed" in refused) == (given == "abc")


def test_a_conversation_in_a_chat(callboard: Any, conversation: str) -> None:
    """In a pipe: `/open` by the first characters, with its title and last exchange, and `/fork` of it."""
    process = callboard.start("chat", "--journal", "journal.sqlite", stdin=subprocess.PIPE)
    lines = f"/conversations\n/open {conversation[:5]}\n/fork\n/open {conversation[:3]}\n"
    out, err = process.communicate(lines.encode(), timeout=50)
    listed, opened, forked = out.decode().partition("conversation: ")[0], *out.decode().split("conversation: ")[1:]
    assert f"{conversation[:8]}  Which umbrella?" in listed
    assert opened == f"{conversation[:8]}: Which umbrella?\n> Are you sure?\nI am.\n"
    assert forked.endswith(", a copy\n")
    assert f"no conversation '{conversation[:3]}'" in err.decode()


@pytest.mark.parametrize(
    ("given", "found"),
    [("12ab", "12ab34cd"), ("12ab34cd", "12ab34cd"), ("9", "9"), ("9999", "9999"), ("77aa", "77aa")],
)
def test_an_edit_or_a_token(given: str, found: str) -> None:
    assert whole_id(given, ["12ab34cd", "77aa0000", "77aa", "55bb0001", "55bb0002"], "edit") == found


@pytest.mark.parametrize("given", ["", "1", "12a"])
def test_too_little_of_an_edit_or_a_token(given: str) -> None:
    with pytest.raises(UsageError, match=f"'{given}' is too short: 4 characters of the id of a token are needed"):
        whole_id(given, ["12ab34cd", "77aa0000"], "token")


def test_several_edits_that_begin_so() -> None:
    with pytest.raises(UsageError, match="2 edits begin with '55bb' \\(55bb0001, 55bb0002\\): give more of the id"):
        whole_id("55bb", ["12ab34cd", "55bb0001", "55bb0002"], "edit")
