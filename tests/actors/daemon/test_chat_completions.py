"""Chat Completions of a daemon, asked by OpenAI's own client: sync, async, whole, streamed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from support.running_daemon import RunningDaemon, running_daemon

SUPPORT = Path(__file__).parents[2] / "support"
CONFIG = """
[daemon]
models = {"gpt-4o" = "scripted/model"}
"""
WEATHER = 'call [["weather", {"city": "Oslo"}]]'
SAID = "One moment.\n\nThe tools said: rain in Oslo"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    program = (sys.executable, str(SUPPORT / "answering_daemon.py"))
    with running_daemon(folder, "--tools", str(SUPPORT / "daemon_tools.py"), program=program, config=CONFIG) as found:
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
    "fail rate_limited": (openai.RateLimitError, 429, "rate_limit_exceeded"),
    "fail authentication": (openai.InternalServerError, 502, "provider_authentication"),
    "fail overloaded": (openai.InternalServerError, 503, "provider_overloaded"),
    "fail context_length": (openai.BadRequestError, 400, "context_length_exceeded"),
    "fail not_found": (openai.NotFoundError, 404, "model_not_found"),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_of_the_model_is_an_error_of_its_class(case: str, is_streamed: bool, client: openai.OpenAI) -> None:
    kind, status, code = FAILURES[case]
    with pytest.raises(kind) as caught:
        client.chat.completions.create(model="model", messages=asked(case), stream=is_streamed)
    assert isinstance(caught.value, openai.APIStatusError)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert caught.value.response.headers["x-callboard-request-id"] == caught.value.request_id


def test_an_answer_that_breaks_off_ends_with_an_error(client: openai.OpenAI) -> None:
    said = ""
    with pytest.raises(openai.APIError, match="broke off"):
        for chunk in client.chat.completions.create(model="model", messages=asked("break so far"), stream=True):
            said += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert said == "so far"


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


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_ends_its_request(is_streamed: bool, daemon: RunningDaemon) -> None:
    body = {"model": "model", "messages": asked("wait"), "stream": is_streamed}
    before = _ended(daemon, "cancelled")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{daemon.url}/v1/chat/completions", json=body, headers=daemon.headers, timeout=1)
    for _ in range(100):  # each look takes some milliseconds
        if _ended(daemon, "cancelled") > before:
            return
        httpx.get(f"{daemon.url}/healthz", timeout=10)
    raise AssertionError("the request runs on")


def _ended(daemon: RunningDaemon, outcome: str) -> float:
    lines = daemon.get("/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("callboard_requests_total") and f'"{outcome}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in counted)


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
