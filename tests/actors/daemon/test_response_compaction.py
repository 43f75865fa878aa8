"""POST /v1/responses/compact before the official client: what comes back is the conversation, made short."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.running_daemon import RunningDaemon
from support.sdk_types import Lazy
from support.stateless_daemon import openai_client, stateless_daemon

from callboard.actors.daemon.response_records import ResponseRecords
from callboard.actors.daemon.sealed_summaries import SummarySeal, new_key

if TYPE_CHECKING:
    import openai
else:
    openai = Lazy("openai")

MODEL = "gpt-4o"
PICTURE = "data:image/png;base64,iVBORw0KGgo="
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALENDAR: Any = {"type": "function", "name": "calendar", "description": "", "parameters": CITY, "strict": False}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with stateless_daemon(tmp_path_factory.mktemp("daemon")) as found:
        yield found


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[openai.OpenAI]:
    with openai_client(daemon) as found:
        yield found


def said(role: str, content: object) -> Any:
    return {"type": "message", "role": role, "content": content}


def given_back(compacted: Any) -> list[Any]:
    return [item.to_dict(warnings=False) for item in compacted.output]


def recalled(client: openai.OpenAI, items: list[Any]) -> str:
    """What a model is shown before the question that follows on these items."""
    made = client.responses.create(model=MODEL, input=[*items, said("user", "recall")])
    return str(made.output_text)


CONVERSATION = [
    said("developer", "Be brief."),
    said("user", "The launch is on Tuesday."),
    said("assistant", "Noted, and support is told first."),
]


def test_a_conversation_goes_on_from_what_comes_back(client: openai.OpenAI) -> None:
    made = client.responses.compact(model=MODEL, input=CONVERSATION, instructions="Keep the dates.")
    assert (made.object, made.usage.total_tokens) == ("response.compaction", 18)
    assert [(item.type, getattr(item, "role", "")) for item in made.output] == [
        ("message", "developer"), ("message", "user"), ("compaction", ""),
    ]  # fmt: skip
    told = recalled(client, given_back(made))
    assert "The launch is on Tuesday.\n[Note, not written by the user" in told
    assert "[2] assistant: Noted, and support is told first." in told
    # What came before the compaction may be dropped: all of it is in the summary.
    assert "[1] user: The launch is on Tuesday." in recalled(client, given_back(made)[-1:])


def test_it_is_not_a_response_that_is_kept(client: openai.OpenAI) -> None:
    made = client.responses.compact(model=MODEL, input=CONVERSATION)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_what_was_compacted_is_compacted_again(client: openai.OpenAI) -> None:
    first = client.responses.compact(model=MODEL, input=CONVERSATION)
    later = [said("assistant", "Anything else?"), said("user", "Yes, a banner.")]
    second = client.responses.compact(model=MODEL, input=[*given_back(first), *later])
    assert [item.type for item in second.output] == ["message"] * 3 + ["compaction"]
    told = recalled(client, given_back(second)[-1:])
    assert "support is told first" in told
    assert "[1] assistant: Anything else?" in told
    assert "[2] user: Yes, a banner." in told


def test_responses_that_follow_each_other_are_compacted_by_the_last_one(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="one")
    asked: Any = 'call [["calendar", {"city": "Rome"}]]'
    second = client.responses.create(model=MODEL, input=asked, tools=[CALENDAR], previous_response_id=first.id)
    call: Any = second.output[-1]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "free"}
    made = client.responses.compact(model=MODEL, input=[result], previous_response_id=second.id)
    told = recalled(client, given_back(made)[-1:])
    for line in (
        "user: one",
        "assistant: You said: one",
        'calls calendar({"city":"Rome"})',
        "result of calendar: free",
    ):
        assert line in told.replace('": "', '":"')
    # A compacted conversation may be followed on, and then compacted by the response that did.
    third = client.responses.create(model=MODEL, input=[*given_back(made), said("user", "three")])
    again = client.responses.compact(model=MODEL, previous_response_id=third.id)
    told = recalled(client, given_back(again)[-1:])
    assert "result of calendar: free" in told
    assert "You said: three" in told


def test_pictures_stay_and_long_messages_do_not(client: openai.OpenAI) -> None:
    parts = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": PICTURE}]
    items: Any = [said("user", "first"), said("user", "word " * 40_000), said("user", parts)]
    made = client.responses.compact(model=MODEL, input=items)
    assert [item.type for item in made.output] == ["message", "compaction"]
    assert "look" in recalled(client, given_back(made))
    picture = given_back(made)[0]["content"][1]
    assert picture == {"type": "input_image", "image_url": PICTURE, "detail": "auto"}


def test_a_summary_that_was_changed_is_refused(client: openai.OpenAI) -> None:
    item = given_back(client.responses.compact(model=MODEL, input=CONVERSATION))[-1]
    sealed = item["encrypted_content"]
    opened = bytearray(base64.urlsafe_b64decode(sealed))
    opened[-1] ^= 1
    for wrong in (base64.urlsafe_b64encode(opened).decode(), sealed[:-8], "gAAAAABpM0Yj", "", "ü"):
        changed = {**item, "encrypted_content": wrong}
        for ask in (client.responses.create, client.responses.compact):
            with pytest.raises(openai.BadRequestError, match="was changed") as refused:
                ask(model=MODEL, input=[said("user", "x"), changed, said("user", "y")])
            assert refused.value.param == "input.1.encrypted_content"


def test_what_cannot_be_compacted_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing to compact"):
        client.responses.compact(model=MODEL)
    with pytest.raises(openai.BadRequestError, match="model: "):
        client.post("/responses/compact", body={"input": "x", "model": ""}, cast_to=object)
    with pytest.raises(openai.NotFoundError, match="'none' does not exist"):
        client.responses.compact(model="none", input="x")
    with pytest.raises(openai.NotFoundError, match="Previous response"):
        client.responses.compact(model=MODEL, previous_response_id="resp_none")
    call: Any = {"type": "function_call", "call_id": "c1", "name": "calendar", "arguments": "{}"}
    with pytest.raises(openai.BadRequestError, match="no result"):
        client.responses.compact(model=MODEL, input=[said("user", "x"), call])
    with pytest.raises(openai.InternalServerError, match="refused"):
        client.responses.compact(model=MODEL, input="say nothing")


def test_a_summary_is_read_back_after_a_restart(tmp_path: Path) -> None:
    with stateless_daemon(tmp_path) as daemon, openai_client(daemon) as client:
        made = given_back(client.responses.compact(model=MODEL, input=CONVERSATION))
    with stateless_daemon(tmp_path) as daemon, openai_client(daemon) as client:
        assert "support is told first" in recalled(client, made)


def test_each_tenant_has_a_key_of_its_own(tmp_path: Path) -> None:
    ann, bob = (ResponseRecords(tmp_path / f"{name}.responses.db") for name in ("ann", "bob"))
    sealed = ann.seal.close("what ann has said")
    ann.close()
    again = ResponseRecords(tmp_path / "ann.responses.db")
    assert again.seal.open(sealed) == "what ann has said"
    assert bob.seal.open(sealed) is None
    for each in (again, bob):
        each.close()


@given(st.text(), st.data())
def test_no_other_text_passes(text: str, data: st.DataObject) -> None:
    seal = SummarySeal(new_key())
    sealed = seal.close(text)
    assert seal.open(sealed) == text
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = sealed[:place] + data.draw(st.characters()) + sealed[place + 1 :]
    if changed != sealed:
        assert seal.open(changed) in (None, text)  # base64 has bits that say nothing


@given(st.text())
def test_what_was_never_sealed_is_no_summary(content: str) -> None:
    assert SummarySeal(new_key()).open(content) is None
