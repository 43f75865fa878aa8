"""A conversation: ids, forks, and its way through a text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from callboard.actors.requests.conversation import Conversation
from callboard.protocol import codec
from callboard.protocol.codec import SavedConversation, encode_conversation
from callboard.protocol.commands import OpenTurn
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Citation,
    Document,
    Image,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    Video,
    history_faults,
    split_atoms,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, RequestId, ToolName
from callboard.protocol.testing.strategies import histories, json_values, texts

LOOK = ToolName("look")
CALL = ToolCall(
    CallId("c"), LOOK, '{"x":1}', replay=Replay("gemini", {"signature": "s", "$": "not ours", "n": [1, None]})
)
#: Every part and every medium.
EVERYTHING: tuple[Message, ...] = (
    SystemMessage("Answer in English."),
    UserMessage(
        (
            Text("see ünïcödé ✓"),
            Image("image/png", "AAAA", name="a cat"),
            Document(text="a file", name="f.txt", citations=True),
            Audio(url="https://example.org/a.wav"),
            Video(file_id="file-1"),
        )
    ),
    AssistantMessage(
        (
            Thinking("hm", Replay("anthropic", {"signature": "abc"})),
            Text("so", citations=(Citation("https://example.org", start=0, end=2, raw={"$": "theirs"}),)),
            ServerTool("web_search_call", Replay("openai-responses", {"id": 1.5}), "web_search", text="cats"),
            CALL,
        )
    ),
    ToolMessage(CallId("c"), LOOK, "found", media=(Image("image/png", "BBBB"),)),
    AssistantMessage((Text("Here."), Image("image/png", "CCCC"))),
)


def asked(conversation: Conversation, request_id: str, *answer: Message) -> None:
    """One request that is answered in one step."""
    conversation.take(RequestId(request_id))
    conversation.record((UserMessage.of("?"), *answer), RequestId(request_id))
    conversation.release()


def compact(conversation: Conversation, compacted: Compacted) -> None:
    """One request that has done this to the messages before it."""
    conversation.take(RequestId("compacts"))
    conversation.record(compacted, RequestId("compacts"))
    conversation.release()


def talk() -> Conversation:
    conversation = Conversation(EVERYTHING[:2])
    asked(conversation, "r1", AssistantMessage((CALL,)), ToolMessage(CALL.call_id, LOOK, "1"))
    asked(conversation, "r2", AssistantMessage((Text("fine"),)))
    return conversation


# Ids.


def test_each_message_has_an_id_of_its_request() -> None:
    conversation = talk()
    assert conversation.ids == ("given/1", "given/2", "r1/user", "r1/1", "r1/2", "r2/user", "r2/1")
    conversation.take(RequestId("r3"))
    conversation.record(
        (UserMessage.of("?"), AssistantMessage((CALL,)), ToolMessage(CALL.call_id, LOOK, "1")), RequestId("r3")
    )
    conversation.record((AssistantMessage((Text("done"),)),), RequestId("r3"))
    conversation.release()
    assert conversation.ids[7:] == ("r3/user", "r3/1", "r3/2", "r3/3")


@pytest.mark.parametrize("name", ["r1", "given"])
def test_ids_are_unique_where_a_request_id_comes_twice(name: str) -> None:
    conversation = talk()
    for _ in range(3):
        asked(conversation, name, AssistantMessage((Text("again"),)))
    assert len(set(conversation.ids)) == len(conversation.ids) == 13
    assert conversation.ids[-2:] == (f"{name}~4/user", f"{name}~4/1")


def test_ids_are_unique_where_the_first_messages_of_a_request_were_taken_out_of_the_text() -> None:
    whole = json.loads(talk().to_json())
    del whole["messages"][:-1]
    whole["messages"][0] |= {"id": "r2/2", "parent": None}
    conversation = Conversation.from_json(json.dumps(whole))
    asked(conversation, "r2", AssistantMessage((Text("and"),)), AssistantMessage((Text("so on"),)))
    assert conversation.ids == ("r2/2", "r2~2/user", "r2~2/1", "r2~2/2")
    assert Conversation.from_json(conversation.to_json()) == conversation


# Forks.


def test_a_fork_goes_on_from_its_message_and_neither_changes_the_other() -> None:
    conversation = talk()
    fork = conversation.fork("r1/2")
    assert fork.messages == conversation.messages[:5]
    assert fork.ids == conversation.ids[:5]
    asked(fork, "r9", AssistantMessage((Text("another way"),)))
    asked(conversation, "r3", AssistantMessage((Text("this way"),)))
    assert (fork.ids[5:], conversation.ids[5:]) == (
        ("r9/user", "r9/1"),
        ("r2/user", "r2/1", "r3/user", "r3/1"),
    )


def test_a_fork_between_a_call_and_its_result_says_where_one_can_fork() -> None:
    with pytest.raises(UsageError, match=r"'r1/1' is between a call and its result.*fork at 'r1/user' or 'r1/2'"):
        talk().fork("r1/1")


def test_a_fork_of_a_message_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no message of this conversation has the id 'r7/1'; `.ids` lists them"):
        talk().fork("r7/1")


def test_a_conversation_can_be_forked_while_a_request_runs() -> None:
    conversation = talk()
    conversation.take(RequestId("r3"))
    fork = conversation.fork("r2/1")
    fork.take(RequestId("r4"))
    assert fork == conversation


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("r2/1", Compacted(5, "so far", 5, 5, 0)),
        ("r1/2", Compacted(5, "so far", 5, 5, 0)),
        ("r1/user", Compacted(cleared=3)),
    ],
)
def test_a_summary_goes_with_a_fork_that_has_its_messages(end: str, expected: Compacted) -> None:
    conversation = talk()
    compact(conversation, Compacted(5, "so far", 5, 5))
    assert conversation.fork(end).compacted == expected


def test_a_summary_goes_with_a_fork_also_where_more_was_cut_or_tried_since() -> None:
    conversation = talk()
    compact(conversation, Compacted(7, "so far", 3, 7, 7))
    assert conversation.fork("r1/2").compacted == Compacted(3, "so far", 3, 5, 5)
    assert conversation.fork("r2/1").compacted == conversation.compacted
    assert conversation.fork("given/2").compacted == Compacted(cleared=2)


class Compacting(Conversation):
    """Goes on with a request each time that its messages are looked at: as its session may, on another thread."""

    def __init__(self) -> None:
        self.goes_on = False
        super().__init__()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("_messages", "_compacted") and super().__getattribute__("goes_on"):
            self.goes_on = False
            self.record((UserMessage.of("?"), AssistantMessage((Text("fine"),))), RequestId("late"))
            self.record(Compacted(len(self.messages), "all", len(self.messages)), RequestId("late"))
            self.goes_on = True
        return found


def test_what_is_written_while_a_request_goes_on_can_be_read() -> None:
    conversation = Compacting()
    asked(conversation, "r1", AssistantMessage((Text("fine"),)))
    conversation.goes_on = True
    text, fork = conversation.to_json(), conversation.fork("r1/1")
    assert len(Conversation.from_json(text).messages) >= 2
    assert fork.compacted == Compacted()


# As a text.


@settings(deadline=None)
@given(histories(6), st.data())
def test_what_is_read_back_is_equal(history: tuple[Message, ...], data: st.DataObject) -> None:
    conversation = Conversation(history)
    ends = [0]
    for atom in split_atoms(history):
        ends.append(ends[-1] + len(atom))
    left_out = data.draw(st.sampled_from(ends))
    summarised = data.draw(st.sampled_from([end for end in ends if end <= left_out]))
    compact(conversation, Compacted(left_out, "so far" if summarised else "", summarised, ends[-1], left_out))
    text = conversation.to_json()
    again = Conversation.from_json(text)
    assert again == conversation
    assert again.to_json() == text
    assert again.ids == conversation.ids


def test_every_part_comes_back_with_the_providers_own_data() -> None:
    conversation = Conversation(EVERYTHING)
    again = Conversation.from_json(conversation.to_json())
    assert again.messages == EVERYTHING
    assert again == conversation
    assert again != talk()
    assert again != EVERYTHING


def test_a_person_can_read_it() -> None:
    whole = json.loads(talk().to_json())
    assert (whole["format"], whole["version"], whole["compacted"]) == ("callboard conversation", 1, None)
    assert whole["messages"][2] == {
        "id": "r1/user",
        "parent": "given/2",
        "$": "UserMessage",
        "parts": [{"$": "Text", "text": "?"}],
    }
    assert "\n  " in talk().to_json()


def test_what_was_compacted_is_told_by_ids() -> None:
    conversation = talk()
    compact(conversation, Compacted(5, "so far", 3, 5))
    assert json.loads(conversation.to_json())["compacted"] == {
        "summary": "so far",
        "left_out_to": "r1/2",
        "summarised_to": "r1/user",
        "cleared_to": "r1/2",
        "tried_at": None,
    }


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(talk().to_json()), **changes})


def row(place: int, **changes: Any) -> str:
    whole = json.loads(talk().to_json())
    whole["messages"][place] |= changes
    return json.dumps(whole)


def waits(turn: AssistantMessage, *results: ToolMessage) -> str:
    """A conversation of no messages whose last request has ended with this turn."""
    saved = SavedConversation((), (), open_turn=OpenTurn(turn, results))
    return encode_conversation(saved)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


CALLS_ONE = AssistantMessage((ToolCall(CallId("c1"), ToolName("look"), "{}"),))

BAD: dict[str, tuple[str, str]] = {
    "empty": ("", "this is not the JSON of a conversation"),
    "cut": (talk().to_json()[:-40], "this is not the JSON of a conversation"),
    "another-file": ("[1]", '"format" must be "callboard conversation"'),
    "later": (changed(version=2), r"has the version 2; this callboard reads 1"),
    "more": (changed(extra=1), "there is no 'extra' in a conversation"),
    "no-list": (changed(messages={}), '"messages" must be a list'),
    "no-object": (changed(messages=[1]), r"messages\[0\] is not an object"),
    "no-id": (row(3, id=""), r'messages\[3\]: "id" must be a text of its own'),
    "same-id": (row(3, id="r1/user"), r'messages\[3\]: "id" must be a text of its own'),
    "other-parent": (row(3, parent="given/1"), r'messages\[3\]: "parent" must be the id of the message before it'),
    "no-class": (row(3, **{"$": "Nothing"}), r"messages\[3\]: unknown class 'Nothing'"),
    "no-message": (row(3, **{"$": "Text", "text": "x", "parts": []}), r"messages\[3\]"),
    "wrong-type": (row(2, parts=[{"$": "Text", "text": 5}]), r"messages\[2\].parts\[0\].text"),
    "misspelt": (row(4, is_eror=True), r"messages\[4\]: ToolMessage has no 'is_eror'"),
    "misspelt-part": (
        row(2, parts=[{"$": "Text", "text": "x", "citation": []}]),
        r"messages\[2\].parts\[0\]: Text has no 'citation'",
    ),
    "deep-data": (
        row(6, parts=[{"$": "Thinking", "text": "", "replay": {"$": "Replay", "origin": "x", "data": nested(301)}}]),
        r"messages\[6\].parts\[0\].replay.data: nested too deeply",
    ),
    "no-result": (changed(messages=json.loads(talk().to_json())["messages"][:4]), "no provider would accept this"),
    "unknown-id": (changed(compacted={"left_out_to": "r7/1"}), "compacted.left_out_to: no message has the id 'r7/1'"),
    "unknown-field": (changed(compacted={"x": 1}), "compacted: expected an object with summary"),
    "no-text": (changed(compacted={"summary": 1}), "compacted.summary must be a text"),
    "no-place": (
        changed(compacted={"summary": "x", "summarised_to": "r1/1", "left_out_to": "r1/1"}),
        "compacted: what is left out ends between a call and its result",
    ),
    "no-turn": (changed(open_turn={"$": "Text", "text": "x"}), "open_turn is a Text, not an OpenTurn"),
    "no-call-waits": (waits(AssistantMessage((Text("x"),))), "open_turn: none of its calls waits for a result"),
    "another-calls-result": (
        waits(CALLS_ONE, ToolMessage(CallId("c9"), ToolName("look"), "x")),
        "open_turn: its results must be of its calls",
    ),
    "a-call-twice": (waits(AssistantMessage(CALLS_ONE.parts * 2)), "open_turn: .*two calls of one turn share an id"),
    "no-arguments": (
        waits(AssistantMessage((ToolCall(CallId("c1"), ToolName("look"), "{"),))),
        "open_turn: .*the arguments of 'c1' are not a JSON object",
    ),
    "deep": ('{"a":' * 5_000 + "1" + "}" * 5_000, "this is not the JSON of a conversation"),
}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (UserMessage((Text(3),)), r"messages\[1\].parts\[0\].text: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (UserMessage("a"), r"messages\[1\].parts: Expected `array`, got `str`"),  # type: ignore[arg-type]
        (UserMessage((Image(b"", "AAAA"),)), r"parts\[0\].media_type: Expected `str`, got `bytes`"),  # type: ignore[arg-type]
        (SystemMessage(None), r"messages\[1\].text: Expected `str`, got `null`"),  # type: ignore[arg-type]
        (AssistantMessage((ToolCall(CallId("c"), ToolName("t"), {}),)), "arguments: Expected `str`, got `object`"),  # type: ignore[arg-type]
        (ToolMessage(CallId("c"), ToolName("t"), "x", is_error="no"), "is_error: Expected `bool`, got `str`"),  # type: ignore[arg-type]
        ({"role": "user"}, "message 1 of the conversation is a dict, not a Message"),
    ],
    ids=repr,
)
def test_a_message_of_a_wrong_type_is_refused_with_its_place(message: Any, told: str) -> None:
    conversation = Conversation([SystemMessage("a"), message])
    with pytest.raises(UsageError, match=told):
        conversation.take(RequestId("r"))
    with pytest.raises(UsageError, match=told):
        conversation.take(RequestId("again"))


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_conversation_is_refused_with_place_and_fault(name: str) -> None:
    text, told = BAD[name]
    with pytest.raises(UsageError, match=told) as caught:
        Conversation.from_json(text)
    assert "\n" not in str(caught.value)


def test_data_that_is_just_not_too_deep_can_be_read_and_written_again() -> None:
    data = nested(codec.MAX_OPAQUE_DEPTH - 1)
    conversation = Conversation([AssistantMessage((Thinking("", Replay("x", data)),))])
    text = conversation.to_json()
    assert Conversation.from_json(text).to_json() == text


def test_a_text_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_CONVERSATION_CHARS", 10)
    with pytest.raises(UsageError, match="a conversation has up to 10 characters, this text 11"):
        Conversation.from_json("x" * 11)


LONG = "x" * 10_000


@pytest.mark.parametrize(
    "text",
    [
        row(3, id=LONG, parent=LONG),
        changed(messages=[{"$": "UserMessage", "id": at, "parent": None, "parts": []} for at in (LONG, "b")]),
        changed(
            messages=[
                {"$": "ToolMessage", "id": "a", "parent": None, "call_id": LONG, "name": LONG, "content": ""},
                {
                    "$": "AssistantMessage", "id": "b", "parent": "a",
                    "parts": [{"$": "ToolCall", "call_id": LONG, "name": LONG, "arguments": LONG}],
                },
                {"$": "ToolMessage", "id": "c", "parent": "b", "call_id": "c", "name": LONG, "content": ""},
            ]
        ),
    ],
    ids=["parent", "id-before", "call-id"],
)  # fmt: skip
def test_what_is_said_of_a_fault_is_short(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Conversation.from_json(text)
    assert len(str(caught.value)) < 1_000


def test_bytes_are_no_text() -> None:
    data: Any = b"{}"
    with pytest.raises(UsageError, match="read from a str, not bytes"):
        Conversation.from_json(data)


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_any_text_gives_a_legal_conversation_or_one_clear_error(data: st.DataObject) -> None:
    """Arbitrary texts, and the JSON of a conversation with one value in it replaced."""
    text = data.draw(texts(60) | st.text(max_size=60))
    if data.draw(st.booleans()):
        whole = json.loads(Conversation(EVERYTHING).to_json())
        place: Any = whole
        while isinstance(place, dict | list) and place:
            key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
            if data.draw(st.booleans()) or not isinstance(place[key], dict | list):
                place[key] = data.draw(json_values())
                break
            place = place[key]
        text = json.dumps(whole)
    try:
        read = Conversation.from_json(text)
    except UsageError:
        return
    assert history_faults(read.messages) == []
    assert Conversation.from_json(read.to_json()) == read


@settings(deadline=None, max_examples=examples(200))
@given(st.integers(0, 10_000), texts(3))
def test_a_text_that_was_cut_or_edited_is_read_or_refused(at: int, put: str) -> None:
    whole = Conversation(EVERYTHING).to_json()
    place = at % len(whole)
    for text in (whole[:place], whole[:place] + put + whole[place + 1 :]):
        try:
            Conversation.from_json(text)
        except UsageError:
            continue


SECOND_PROCESS = """
import sys
from pathlib import Path
from callboard import Conversation, Runtime, Settings
from callboard.providers.local.scripted import ScriptedTurn

conversation = Conversation.from_json(Path(sys.argv[1]).read_text())
settings = Settings(model="scripted/m", script=lambda request: ScriptedTurn(f"{len(request.messages)} messages"))
with Runtime(settings) as runtime:
    print(runtime.ask_sync("and now?", conversation=conversation).text)
Path(sys.argv[1]).write_text(conversation.to_json())
"""


def test_a_conversation_survives_its_process(tmp_path: Path) -> None:
    kept = tmp_path / "c.json"
    kept.write_text(talk().to_json())
    for expected in ("8 messages", "10 messages"):
        command = [sys.executable, "-c", SECOND_PROCESS, str(kept)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.strip() == expected
    again = Conversation.from_json(kept.read_text())
    assert again.messages[:7] == talk().messages
    assert len(again.ids) == len(set(again.ids)) == 11


def test_a_conversation_says_nothing_of_what_was_said_in_a_log() -> None:
    assert repr(talk()) == "<Conversation of 7 messages>"
