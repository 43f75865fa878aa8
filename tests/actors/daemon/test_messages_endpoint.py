"""The Messages API of a daemon, asked by Anthropic's own client: sync, async, whole, streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from support.conditions import wait_until
from support.running_daemon import RunningDaemon
from support.sdk_types import Lazy
from support.stateless_daemon import ended_requests, stateless_daemon

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import (
        Message,
        MessageParam,
        ToolParam,
        ToolResultBlockParam,
    )
else:
    anthropic = Lazy("anthropic")

WEATHER = 'call [["weather", {"city": "Oslo"}]]'
BOTH = 'call [["calendar", {"day": "1"}], ["weather", {"city": "Oslo"}], ["calendar", {"day": "2"}]]'
CALENDAR: ToolParam = {
    "name": "calendar",
    "input_schema": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with stateless_daemon(tmp_path_factory.mktemp("daemon")) as found:
        yield found


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=daemon.url, api_key=daemon.token, max_retries=0, timeout=30) as found:
        yield found


def asked(text: str) -> list[MessageParam]:
    return [{"role": "user", "content": text}]


def texts(message: Message) -> list[str]:
    return [block.text for block in message.content if isinstance(block, anthropic.types.TextBlock)]


def test_a_whole_answer(client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.create(model="model", max_tokens=99, messages=asked("think hello"))
    message = raw.parse()
    thinking, text = message.content
    assert isinstance(thinking, anthropic.types.ThinkingBlock)
    assert (thinking.thinking, texts(message)) == ("Let me think.", ["You said: hello"])
    assert text.type == "text"
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", "model")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (9, 2, 7)
    assert raw.headers["x-callboard-request-id"] == message.id.removeprefix("msg_")
    assert raw.headers["request-id"] == message.id.removeprefix("msg_")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_tool_runner_of_the_client_goes_on_without_a_thread(is_streamed: bool, client: anthropic.Anthropic) -> None:
    """It asks first for a conversation that the server holds."""

    @anthropic.beta_tool
    def calendar(day: str) -> str:
        """What is on."""
        return f"busy on {day}"

    told: Any = {"model": "model", "max_tokens": 99, "messages": asked(BOTH), "tools": [calendar]}
    if is_streamed:
        last = [stream.get_final_message() for stream in client.beta.messages.tool_runner(**told, stream=True)][-1]
    else:
        last = client.beta.messages.tool_runner(**told).until_done()
    said = last.content[-1]
    assert said.type == "text"
    assert said.text == "The tools said: busy on 1 and rain in Oslo and busy on 2"


def test_a_thread_is_refused_in_words_that_the_client_knows(client: anthropic.Anthropic) -> None:
    more: Any = {"thread": {"type": "continue", "previous_message_id": "msg_1"}}
    with pytest.raises(anthropic.BadRequestError, match="send all messages") as caught:
        client.messages.create(model="model", max_tokens=99, messages=asked("hello"), extra_body=more)
    assert caught.value.response.json()["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_a_tool_of_the_daemon_runs_there(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="gpt-4o", max_tokens=99, messages=asked(WEATHER))
    assert texts(message) == ["One moment.", "The tools said: rain in Oslo"]
    assert message.stop_reason == "end_turn"


def test_a_stream_says_what_a_whole_answer_says(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="model", max_tokens=99, messages=asked(WEATHER))
    with client.messages.stream(model="model", max_tokens=99, messages=asked(WEATHER)) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert texts(cast("Message", message)) == texts(whole)
    assert message.usage.output_tokens == whole.usage.output_tokens == 14
    assert message.usage.input_tokens == whole.usage.input_tokens
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3


def test_the_async_client(daemon: RunningDaemon) -> None:
    async def ask() -> tuple[list[str], str]:
        async with anthropic.AsyncAnthropic(base_url=daemon.url, api_key=daemon.token, max_retries=0) as client:
            whole = await client.messages.create(model="model", max_tokens=99, messages=asked("hello"))
            async with client.messages.stream(model="model", max_tokens=99, messages=asked("hello")) as stream:
                return texts(whole), "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == (["You said: hello"], "You said: hello")


def answered(history: list[MessageParam], message: Message) -> None:
    """Add the turn and the results of its calls, in another order than the calls."""
    history.append({"role": "assistant", "content": message.content})
    calls = [block for block in message.content if isinstance(block, anthropic.types.ToolUseBlock)]
    results: list[ToolResultBlockParam] = [
        {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": f"busy on {json.loads(json.dumps(call.input))['day']}",
        }
        for call in reversed(calls)
    ]
    history.append({"role": "user", "content": results})


def test_calls_of_the_clients_tools_are_handed_out_and_the_turn_goes_on(client: anthropic.Anthropic) -> None:
    history = asked(BOTH)
    message = client.messages.create(model="model", max_tokens=99, messages=history, tools=[CALENDAR])
    assert message.stop_reason == "tool_use"
    assert [block.name for block in message.content if isinstance(block, anthropic.types.ToolUseBlock)] == [
        "calendar",
        "calendar",
    ]
    answered(history, message)
    last = client.messages.create(model="model", max_tokens=99, messages=history, tools=[CALENDAR])
    assert texts(last) == ["The tools said: busy on 1 and rain in Oslo and busy on 2"]


def test_a_stream_hands_them_out_too(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="model", max_tokens=99, messages=asked(BOTH), tools=[CALENDAR]) as stream:
        for _ in stream:
            pass
        message = stream.get_final_message()
    assert [block.input for block in message.content if block.type == "tool_use"] == [{"day": "1"}, {"day": "2"}]
    assert message.stop_reason == "tool_use"


def test_pictures_and_documents_reach_the_model(client: anthropic.Anthropic) -> None:
    history: list[MessageParam] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
            ],
        }
    ]
    message = client.messages.create(model="model", max_tokens=99, messages=history)
    assert texts(message) == ["I see: Image, Image, Document"]


def test_an_answer_has_the_form_that_was_asked_for(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    message = client.messages.create(
        model="model",
        max_tokens=99,
        messages=asked("hello"),
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert [json.loads(text) for text in texts(message)] == [{"city": "Oslo"}]


FAILURES = {
    "fail rate_limited": ("RateLimitError", 429, "rate_limit_error"),
    "fail authentication": ("InternalServerError", 502, "api_error"),
    "fail overloaded": ("InternalServerError", 529, "overloaded_error"),
    "fail context_length": ("BadRequestError", 400, "invalid_request_error"),
    "fail not_found": ("NotFoundError", 404, "not_found_error"),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_of_the_model_is_an_error_of_its_class(
    case: str, is_streamed: bool, client: anthropic.Anthropic
) -> None:
    kind, status, word = FAILURES[case]
    with pytest.raises(getattr(anthropic, kind)) as caught:
        client.messages.create(model="model", max_tokens=99, messages=asked(case), stream=is_streamed)
    assert isinstance(caught.value, anthropic.APIStatusError)
    assert caught.value.status_code == status
    assert caught.value.response.json()["error"]["type"] == word
    assert caught.value.request_id == caught.value.response.headers["x-callboard-request-id"]


def test_an_answer_that_breaks_off_ends_with_an_error(client: anthropic.Anthropic) -> None:
    stream = client.messages.create(model="model", max_tokens=99, messages=asked("break so far"), stream=True)
    with pytest.raises(anthropic.APIStatusError, match="broke off"):
        list(stream)


def test_wrong_tokens_and_models_have_their_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(model="model", max_tokens=9, messages=asked("hello"))
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-9", max_tokens=9, messages=asked("hello"))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": "model", "messages": "\xff"}', b"null"])
def test_what_is_no_request_is_400_in_the_shape_of_the_api(data: bytes, daemon: RunningDaemon) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = httpx.post(daemon.url + path, content=data, headers={"x-api-key": daemon.token})
        assert answer.status_code == 400
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_ends_its_request(is_streamed: bool, daemon: RunningDaemon) -> None:
    body = {"model": "model", "max_tokens": 9, "messages": asked("wait"), "stream": is_streamed}
    before = ended_requests(daemon, "cancelled")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{daemon.url}/v1/messages", json=body, headers=daemon.headers, timeout=2.0)
    wait_until(lambda: ended_requests(daemon, "cancelled") > before)


def test_tokens_are_counted_with_the_tools_that_are_offered(client: anthropic.Anthropic) -> None:
    bare = client.messages.count_tokens(model="model", messages=asked("hello")).input_tokens
    more = client.messages.count_tokens(model="model", messages=asked("hello"), tools=[CALENDAR], system="Be brief.")
    alone = client.messages.count_tokens(
        model="model", messages=asked("hello"), extra_body={"callboard": {"tools": []}}
    ).input_tokens
    assert 0 < alone < bare < more.input_tokens
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="claude-9", messages=asked("hello"))


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["gpt-4o", "scripted/model"]
    assert client.models.retrieve("gpt-4o").display_name == "gpt-4o"
