"""Chat Completions of a daemon, asked by OpenAI's own client: sync, async, whole, streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import httpx
import pytest
from pydantic import BaseModel
from support.conditions import wait_until
from support.running_daemon import RunningDaemon
from support.sdk_types import Lazy
from support.stateless_daemon import ended_requests, stateless_daemon

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam, ChatCompletionToolParam
else:
    openai = Lazy("openai")

WEATHER = 'call [["weather", {"city": "Oslo"}]]'
SAID = "One moment.\n\nThe tools said: rain in Oslo"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with stateless_daemon(tmp_path_factory.mktemp("daemon")) as found:
        yield found


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, max_retries=0, timeout=30) as found:
        yield found


def asked(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def test_a_whole_answer(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="model", messages=asked("hello"))
    answer = raw.parse()
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("You said: hello", "stop")
    assert answer.model == "model"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (11, 7, 18)
    assert raw.headers["x-callboard-request-id"] == answer.id.removeprefix("chatcmpl-")


def test_a_tool_of_the_daemon_runs_there(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="gpt-4o", messages=asked(WEATHER))
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == (SAID, "stop", None)
    assert answer.usage is not None
    assert answer.usage.total_tokens == 36
    assert answer.model_extra is not None
    about = answer.model_extra["callboard"]
    assert [(call["name"], call["failed"]) for call in about["calls"]] == [("weather", None)]


def test_no_tool_runs_where_the_client_says_so(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="model", messages=asked(WEATHER), extra_body={"callboard": {"tools": []}}
    )
    assert "unknown_tool" in (answer.choices[0].message.content or "")


def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="model", messages=asked(WEATHER), stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == SAID
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [36]
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_async_client(daemon: RunningDaemon) -> None:
    async def ask() -> tuple[str | None, str]:
        async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, max_retries=0) as client:
            whole = await client.chat.completions.create(model="model", messages=asked("hello"))
            stream = await client.chat.completions.create(model="model", messages=asked("hello"), stream=True)
            pieces = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
            return whole.choices[0].message.content, "".join(pieces)

    assert asyncio.run(ask()) == ("You said: hello", "You said: hello")


def test_thinking_is_shown_beside_the_answer(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(model="model", messages=asked("think hello")).choices[0].message
    assert message.model_extra is not None
    assert (message.model_extra["reasoning_content"], message.content) == ("Let me think.", "You said: hello")


def test_pictures_and_files_reach_the_model(client: openai.OpenAI) -> None:
    message: ChatCompletionMessageParam = {
        "role": "user",
        "content": [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        ],
    }
    answer = client.chat.completions.create(model="model", messages=[message])
    assert answer.choices[0].message.content == "I see: Image, Image, Document, Audio"


FAILURES = {
    "fail rate_limited": ("RateLimitError", 429, "rate_limit_exceeded"),
    "fail authentication": ("InternalServerError", 502, "provider_authentication"),
    "fail overloaded": ("InternalServerError", 503, "provider_overloaded"),
    "fail context_length": ("BadRequestError", 400, "context_length_exceeded"),
    "fail not_found": ("NotFoundError", 404, "model_not_found"),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_of_the_model_is_an_error_of_its_class(case: str, is_streamed: bool, client: openai.OpenAI) -> None:
    kind, status, code = FAILURES[case]
    with pytest.raises(getattr(openai, kind)) as caught:
        client.chat.completions.create(model="model", messages=asked(case), stream=is_streamed)
    assert isinstance(caught.value, openai.APIStatusError)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert caught.value.response.headers["x-callboard-request-id"] == caught.value.request_id


def test_an_answer_that_breaks_off_ends_with_an_error(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="model", messages=asked("break so far"), stream=True)
    with pytest.raises(openai.APIError, match="broke off"):
        list(stream)


def test_wrong_tokens_and_models_have_their_classes(daemon: RunningDaemon, client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(model="model", messages=asked("hello"))
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="openai/gpt-9", messages=asked("hello"))
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="model", messages=asked("hello"), n=3)
    assert refused.value.param == "n"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": "model", "messages": "\xff"}', b"null"])
def test_what_is_no_request_is_400_in_the_shape_of_the_api(data: bytes, daemon: RunningDaemon) -> None:
    answer = httpx.post(f"{daemon.url}/v1/chat/completions", content=data, headers=daemon.headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "Traceback" not in answer.text


#: What each endpoint needs besides a model.
WITHOUT_A_MODEL: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": asked("hello")},
    "/v1/messages": {"messages": asked("hello"), "max_tokens": 99},
    "/v1/messages/count_tokens": {"messages": asked("hello")},
    "/v1/responses": {"input": "hello"},
    "/v1/responses/compact": {"input": "hello"},
}


@pytest.mark.parametrize("more", [{}, {"model": None}, {"stream": True}], ids=["left-out", "null", "streamed"])
@pytest.mark.parametrize("path", WITHOUT_A_MODEL)
def test_a_body_without_a_model_means_that_of_the_settings(
    path: str, more: dict[str, object], daemon: RunningDaemon
) -> None:
    answer = daemon.post(path, {**WITHOUT_A_MODEL[path], **more})
    assert answer.status_code == 200, answer.text
    if not path.endswith(("count_tokens", "compact")):  # their answers name none
        assert '"model":"scripted/model"' in answer.text
    named = daemon.post(path, {**WITHOUT_A_MODEL[path], "model": ""})
    assert named.status_code == 400
    assert "model" in named.json()["error"]["message"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_ends_its_request(is_streamed: bool, daemon: RunningDaemon) -> None:
    body = {"model": "model", "messages": asked("wait"), "stream": is_streamed}
    before = ended_requests(daemon, "cancelled")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{daemon.url}/v1/chat/completions", json=body, headers=daemon.headers, timeout=2.0)
    wait_until(lambda: ended_requests(daemon, "cancelled") > before)


def test_a_client_that_leaves_in_the_middle_ends_its_request(client: openai.OpenAI, daemon: RunningDaemon) -> None:
    before = ended_requests(daemon, "cancelled")
    with client.chat.completions.create(model="model", messages=asked("slow hello"), stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.role == "assistant"
    wait_until(lambda: ended_requests(daemon, "cancelled") > before)


def test_models_are_listed_with_what_they_can(client: openai.OpenAI, daemon: RunningDaemon) -> None:
    assert [model.id for model in client.models.list()] == ["gpt-4o", "scripted/model"]
    model = client.models.retrieve("scripted/model")
    assert model.owned_by == "scripted"
    assert model.model_extra is not None
    assert model.model_extra["capabilities"]["tools"] == {"supported": True}
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing/here")
    missing = daemon.get("/v1/models/none").json()
    assert json.dumps(missing).count("model_not_found") == 1


def test_embeddings_are_not_there_where_no_model_is_set(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="any", input="hello")


# -- tools of the client, forms of an answer

CALENDAR: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "calendar",
        "description": "What is planned.",
        "parameters": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
    },
}
BOTH = 'call [["calendar", {"day": "1"}], ["weather", {"city": "Oslo"}], ["calendar", {"day": "2"}]]'
WENT_ON = "The tools said: busy on 1 and rain in Oslo and busy on 2"


def answered(history: list[ChatCompletionMessageParam], message: ChatCompletionMessage) -> None:
    """Add the turn and the results of its calls, in another order than the calls."""
    history.append(cast("ChatCompletionMessageParam", message.model_dump(exclude_none=True)))
    for call in reversed(message.tool_calls or []):
        assert call.type == "function"
        day = json.loads(call.function.arguments)["day"]
        history.append({"role": "tool", "tool_call_id": call.id, "content": f"busy on {day}"})


def test_calls_of_the_clients_tools_are_handed_out_and_the_turn_goes_on(client: openai.OpenAI) -> None:
    history = asked(BOTH)
    first = client.chat.completions.create(model="model", messages=history, tools=[CALENDAR]).choices[0]
    assert first.finish_reason == "tool_calls"
    assert [call.function.name for call in first.message.tool_calls or [] if call.type == "function"] == [
        "calendar"
    ] * 2
    answered(history, first.message)
    last = client.chat.completions.create(model="model", messages=history, tools=[CALENDAR]).choices[0]
    assert (last.message.content, last.finish_reason) == (WENT_ON, "stop")
    again = client.chat.completions.create(model="model", messages=history, tools=[CALENDAR]).choices[0]
    assert again.message.content == WENT_ON, "the same history may be sent a second time"


def test_a_stream_hands_them_out_too(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="model", messages=asked(BOTH), tools=[CALENDAR]) as stream:
        for _ in stream:
            pass
        found = stream.get_final_completion().choices[0]
    calls = [call.function for call in found.message.tool_calls or []]
    assert [json.loads(call.arguments) for call in calls] == [{"day": "1"}, {"day": "2"}]
    assert (found.message.content, found.finish_reason) == ("One moment.", "tool_calls")


def test_a_turn_is_found_after_a_restart(tmp_path: Path) -> None:
    history = asked(BOTH)
    with (
        stateless_daemon(tmp_path) as daemon,
        openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token) as client,
    ):
        first = client.chat.completions.create(model="model", messages=history, tools=[CALENDAR]).choices[0]
        answered(history, first.message)
        daemon.process.kill()
        daemon.process.wait(timeout=20)
    with (
        stateless_daemon(tmp_path) as daemon,
        openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token) as client,
    ):
        last = client.chat.completions.create(model="model", messages=history, tools=[CALENDAR]).choices[0]
    assert last.message.content == WENT_ON


def test_a_history_of_another_server_counts_as_it_is(client: openai.OpenAI) -> None:
    history = asked("hello")
    call = {"id": "call_elsewhere_0", "type": "function", "function": {"name": "calendar", "arguments": "{}"}}
    history.append(cast("ChatCompletionMessageParam", {"role": "assistant", "content": None, "tool_calls": [call]}))
    history.append({"role": "tool", "tool_call_id": "call_elsewhere_0", "content": "free"})
    answer = client.chat.completions.create(model="model", messages=history, tools=[CALENDAR])
    assert answer.choices[0].message.content == "The tools said: free"


def test_the_clients_tool_comes_before_the_daemons_of_the_same_name(client: openai.OpenAI) -> None:
    own: ChatCompletionToolParam = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object"}},
    }
    choice = client.chat.completions.create(model="model", messages=asked(WEATHER), tools=[own]).choices[0]
    assert choice.finish_reason == "tool_calls"


class Place(BaseModel):
    city: str
    degrees: float


def test_an_answer_has_the_form_that_was_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="model", messages=asked("hello"), response_format=Place)
    assert answer.choices[0].message.parsed == Place(city="Oslo", degrees=4.5)
    with client.chat.completions.stream(model="model", messages=asked("hello"), response_format=Place) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == Place(city="Oslo", degrees=4.5)


def test_an_answer_that_never_fits_is_an_error(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "minLength": 9}}, "required": ["city"]}
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model="model",
            messages=asked("hello"),
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        )
    assert caught.value.code == "no_answer"
    assert caught.value.response.headers["x-should-retry"] == "false"
