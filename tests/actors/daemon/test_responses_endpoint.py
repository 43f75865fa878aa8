"""/v1/responses before the official client, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.running_daemon import RunningDaemon
from support.sdk_types import Lazy
from support.stateless_daemon import openai_client, stateless_daemon

if TYPE_CHECKING:
    import openai
else:
    openai = Lazy("openai")

MODEL = "gpt-4o"
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


def test_an_answer_is_found_again_with_its_input_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="hello", metadata={"who": "me"})
    assert (made.status, made.output_text, made.metadata) == ("completed", "You said: hello", {"who": "me"})
    assert made.usage is not None
    assert made.usage.total_tokens == 18
    assert client.responses.retrieve(made.id).output_text == "You said: hello"
    (item,) = client.responses.input_items.list(made.id).data
    assert item.to_dict()["content"] == [{"type": "input_text", "text": "hello"}]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(made.id)


def test_an_answer_comes_in_events_whose_numbers_follow_each_other(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="think hello") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output_text == "You said: hello"
    again = list(client.responses.retrieve(final.id, stream=True, starting_after=1))
    assert [event.sequence_number for event in again] == list(range(2, len(again) + 2))
    assert again[-1].type == "response.completed"


@pytest.mark.parametrize("is_stored", [True, False])
def test_tools_of_both_kinds_in_one_turn(client: openai.OpenAI, is_stored: bool) -> None:
    asked: Any = f"call {json.dumps([['weather', {'city': 'Oslo'}], ['calendar', {'city': 'Rome'}]])}"
    first = client.responses.create(model=MODEL, input=asked, tools=[CALENDAR], store=is_stored)
    assert [item.type for item in first.output] == ["reasoning", "message", "mcp_call", "function_call"]
    mine = first.output[-1]
    assert mine.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": mine.call_id, "output": "free"}
    if is_stored:
        more: Any = {"previous_response_id": first.id, "input": [result]}
    else:
        more = {"input": [{"role": "user", "content": asked}, *(each.to_dict() for each in first.output), result]}
    second = client.responses.create(model=MODEL, tools=[CALENDAR], **more)
    assert second.output_text == "The tools said: rain in Oslo and free"


def test_items_are_sent_back_by_their_ids(client: openai.OpenAI) -> None:
    asked: Any = f"call {json.dumps([['weather', {'city': 'Oslo'}], ['calendar', {'city': 'Rome'}]])}"
    first = client.responses.create(model=MODEL, input=asked, tools=[CALENDAR])
    mine = first.output[-1]
    assert mine.type == "function_call"
    said: Any = [{"role": "user", "content": asked}]
    named: Any = [{"type": "item_reference", "id": each.id} for each in first.output]
    result: Any = {"type": "function_call_output", "call_id": mine.call_id, "output": "free"}
    for own in (named, [{"id": each.id} for each in first.output], [*named[:-1], mine.to_dict()]):
        second = client.responses.create(model=MODEL, input=[*said, *own, result], tools=[CALENDAR])
        assert second.output_text == "The tools said: rain in Oslo and free"
    third = client.responses.create(model=MODEL, input=[*said, *named, result, {"role": "user", "content": "recall"}])
    assert "rain in Oslo\nfree" in third.output_text
    known = first.id.removeprefix("resp_")
    for unknown in ("msg_none_0", f"msg_{known}_77", f"rs_{known}_1", "x"):
        with pytest.raises(openai.NotFoundError, match=f"'{unknown}' not found"):
            client.responses.create(model=MODEL, input=[*said, {"type": "item_reference", "id": unknown}])
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input=[*said, *named, result], tools=[CALENDAR])


def test_numbers_beyond_64_bits_are_handed_back(client: openai.OpenAI) -> None:
    """orjson does not write them: such a schema was answered with 500."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**70}}}
    tools: Any = [{**CALENDAR, "parameters": schema}]
    items: Any = [{"role": "user", "content": "hello", "further": 2**70}]
    made = client.responses.create(model=MODEL, input=items, tools=tools)
    for found in (made, client.responses.retrieve(made.id)):
        assert found.to_dict()["tools"][0]["parameters"] == schema  # type: ignore[index]
    assert list(client.responses.create(model=MODEL, input=items, tools=tools, stream=True))[-1].type.endswith(
        "completed"
    )


def test_two_responses_follow_on_one(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="one")
    for word in ("two", "three"):
        made = client.responses.create(model=MODEL, input=word, previous_response_id=first.id)
        assert made.output_text == f"You said: {word}"


def test_an_answer_has_the_form_that_was_asked_for(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "place", "schema": CITY, "strict": True}}
    made = client.responses.create(model=MODEL, input="where?", text=form)
    assert json.loads(made.output_text) == {"city": "Oslo"}


def test_errors_are_as_the_api_has_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="Previous response"):
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_none")
    with pytest.raises(openai.BadRequestError, match=r"input\.0\.type"):
        client.responses.create(model=MODEL, input=[{"type": "unknown"}])  # type: ignore[list-item,misc]
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model=MODEL, input="fail rate_limited")
    with pytest.raises(openai.NotFoundError, match="model"):
        client.responses.create(model="none", input="x")


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="wait", background=True)
    assert made.status == "queued"
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"


def test_a_response_in_the_background_outlives_a_killed_daemon(tmp_path: Path) -> None:
    with stateless_daemon(tmp_path) as daemon:
        client = openai_client(daemon)
        done = client.responses.create(model=MODEL, input="before")
        waits = client.responses.create(model=MODEL, input="soon", background=True)
        runs = client.responses.create(model=MODEL, input="wait", background=True)
        daemon.process.kill()
        daemon.process.wait(timeout=20)
    with stateless_daemon(tmp_path) as daemon:
        client = openai_client(daemon)
        events = list(client.responses.retrieve(waits.id, stream=True))  # until it has ended
        assert events[-1].type == "response.completed"
        assert client.responses.retrieve(waits.id).output_text == "You said: soon"
        assert client.responses.retrieve(runs.id).status == "in_progress"
        assert client.responses.cancel(runs.id).status == "cancelled"
        after = client.responses.create(model=MODEL, input="after", previous_response_id=done.id)
        assert after.output_text == "You said: after"
