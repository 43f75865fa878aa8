"""Background answers: read on after the stream broke, asked for until they are whole, stopped where no one waits."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from support.background_server import asked, background_server

from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse, ResponseStorage, Restarted, TextDelta
from callboard.providers.adapter import Adapter, Timeouts
from callboard.providers.azure.azure_openai import AzureResponses
from callboard.providers.openai.background import ResponsesProvider
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.provider_registry import provider_for
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.transport import HttpProvider

STORED = ResponseStorage(background=True)
STREAMED = ModelRequest("gpt-5", (UserMessage.of("Hi"),), storage=STORED)
POLLED = ModelRequest("gpt-5", (UserMessage.of("Hi"),), storage=STORED, stream=False)
USAGE = {"input_tokens": 4, "output_tokens": 2, "total_tokens": 6}
ITEM = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hello, world"}]}
STOPPED = "POST /v1/responses/resp_1/cancel"
POSTED = "POST /v1/responses background=True store=True"
PATIENT = Timeouts(total_seconds=30)


def response(status: str, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "model": "gpt-5", "status": status, "output": [], **more}


DONE = response("completed", output=[ITEM], usage=USAGE)


def numbered(*events: dict[str, Any], start: int = 0) -> list[dict[str, Any]]:
    return [{**event, "sequence_number": start + number} for number, event in enumerate(events)]


def text(piece: str) -> dict[str, Any]:
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return {"type": "response.output_text.delta", "delta": piece, **place}


CREATED = {"type": "response.created", "response": response("queued")}
WHOLE = numbered(CREATED, text("Hello, "), text("world"), {"type": "response.completed", "response": DONE})


def answer(
    url: str, request: ModelRequest = STREAMED, timeouts: Timeouts = PATIENT
) -> tuple[ModelResponse, list[object]]:
    return asyncio.run(_answer(OpenAIResponses(base_url=url), request, timeouts))


async def _answer(adapter: Adapter, request: ModelRequest, timeouts: Timeouts) -> tuple[ModelResponse, list[object]]:
    provider = ResponsesProvider(adapter, timeouts=timeouts)
    provider.poll_seconds = (0.01,)
    builder, found = ResponseBuilder(), []
    try:
        async with aclosing(provider.stream(request)) as batches:
            async for events in batches:
                builder.feed(events)
                found += events
    finally:
        await provider.aclose()
    return builder.response(), found


def is_whole(turn: ModelResponse) -> bool:
    assert turn.usage is not None
    return (turn.text, turn.finish_reason, turn.response_id, turn.usage.total_tokens) == (
        "Hello, world",
        FinishReason.STOP,
        "resp_1",
        6,
    )


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
def test_quirk_56_a_stream_that_breaks_anywhere_is_read_on_behind_its_last_event(end: int) -> None:
    for how in ("cut", "end"):
        with background_server({"events": WHOLE[:end], "how": how}, {"events": WHOLE[end:]}) as url:
            turn, found = answer(url)
            assert is_whole(turn)
            assert "".join(event.text for event in found if isinstance(event, TextDelta)) == "Hello, world"
            after = f"stream=true&starting_after={end - 1}"
            assert asked(url) == [POSTED, f"GET /v1/responses/resp_1?include%5B%5D=reasoning.encrypted_content&{after}"]


def test_events_that_come_again_count_once() -> None:
    with background_server({"events": WHOLE[:2], "how": "cut"}, {"events": WHOLE}) as url:
        turn, found = answer(url)
        assert is_whole(turn)
        assert not any(isinstance(event, Restarted) for event in found)


def test_a_stream_that_is_cut_inside_an_event_is_read_on() -> None:
    cut = {"events": [*WHOLE[:2], {"type": "response.output_text.delta", "delta": "lost"}], "how": "cut"}
    # (An event without its number and place: what came of it is void when the response says otherwise.)
    with background_server(cut, {"events": WHOLE[2:]}) as url:
        turn, _ = answer(url)
        assert is_whole(turn)


def test_an_answer_that_was_not_streamed_is_asked_for_until_it_has_ended() -> None:
    steps = [{"body": response(status)} for status in ("queued", "in_progress", "in_progress")]
    with background_server(*steps, {"body": DONE}) as url:
        turn, _ = answer(url, POLLED)
        assert is_whole(turn)
        question = "GET /v1/responses/resp_1?include%5B%5D=reasoning.encrypted_content"
        assert asked(url) == [POSTED, question, question, question]


def test_a_server_that_does_not_stream_a_stored_answer_is_asked_for_all_of_it() -> None:
    refusal = {"status": 400, "body": {"error": {"message": "cannot be streamed", "type": "invalid_request_error"}}}
    with background_server({"events": WHOLE[:2], "how": "cut"}, refusal, {"body": DONE}) as url:
        turn, found = answer(url)
        assert is_whole(turn)
        assert [event.text for event in found if isinstance(event, TextDelta)] == ["Hello, ", "world"]


def test_a_server_that_is_overloaded_in_between_is_asked_again() -> None:
    busy = {"status": 503, "body": {"error": {"message": "busy"}}}
    with background_server({"body": response("queued")}, busy, busy, {"body": DONE}) as url:
        assert is_whole((answer(url, POLLED))[0])


@pytest.mark.parametrize("request_", [STREAMED, POLLED], ids=["streamed", "polled"])
def test_an_answer_that_the_server_does_not_know_any_more_is_an_error(request_: ModelRequest) -> None:
    gone = {"status": 404, "body": {"error": {"message": "Response with id 'resp_1' not found.", "code": "not_found"}}}
    with background_server({"body": response("queued")}, gone) as url:
        turn, _ = answer(url, request_)
        assert turn.error is not None
        assert (turn.error.kind, turn.error.status) == (ErrorKind.NOT_FOUND, 404)
        assert not any("cancel" in each for each in asked(url))


@pytest.mark.parametrize("request_", [STREAMED, POLLED], ids=["streamed", "polled"])
def test_an_answer_that_failed_is_not_asked_for_again(request_: ModelRequest) -> None:
    failed = response("failed", error={"code": "server_error", "message": "Oops"})
    ends = {"events": numbered({"type": "response.failed", "response": failed}, start=2)}
    reply = ends if request_.stream else {"body": failed}
    with background_server({"body": response("queued")}, reply) as url:
        turn, _ = answer(url, request_)
        assert turn.error is not None
        assert turn.error.kind is ErrorKind.SERVER
        assert len(asked(url)) == 2


def test_a_request_that_is_refused_is_not_followed() -> None:
    with background_server({"status": 400, "body": {"error": {"message": "no"}}}) as url:
        turn, _ = answer(url)
        assert turn.error is not None
        assert turn.error.kind is ErrorKind.INVALID_REQUEST
        assert asked(url) == [POSTED]


def test_an_answer_that_is_not_finished_in_time_is_stopped_at_the_server() -> None:
    with background_server({"body": response("queued")}, {"body": response("in_progress")}) as url:
        turn, _ = answer(url, POLLED, Timeouts(total_seconds=2.0))
        assert turn.error is not None
        assert (turn.error.kind, turn.error.message) == (
            ErrorKind.TIMEOUT,
            "The background answer was not finished after 2 s.",
        )
        found = asked(url)
        # The question before it is noted later, where the client left it before the server had read it.
        assert found.count(STOPPED) == 1
        assert STOPPED in found[-2:]


def test_a_server_that_hangs_is_bounded_by_the_calls_deadline() -> None:
    with background_server({"events": WHOLE[:2], "how": "hang"}) as url:
        turn, _ = answer(url, STREAMED, Timeouts(total_seconds=2.0))
        assert turn.error is not None
        assert (turn.error.kind, turn.text) == (ErrorKind.TIMEOUT, "Hello, ")
        assert asked(url)[-1] == STOPPED


@pytest.mark.parametrize("how", ["cancel", "leave"])
def test_a_caller_who_leaves_stops_the_answer_at_the_server(how: str) -> None:
    with background_server({"events": WHOLE[:2], "how": "hang"}) as url:
        asyncio.run(_leave(url, how))
        assert asked(url)[-1] == STOPPED


async def _leave(url: str, how: str) -> None:
    provider = ResponsesProvider(OpenAIResponses(base_url=url), timeouts=PATIENT)
    stream = provider.stream(STREAMED)
    assert await anext(stream)
    if how == "cancel":
        reading = asyncio.ensure_future(_rest(stream))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    await stream.aclose()
    await provider.aclose()


async def _rest(stream: Any) -> None:
    async for _ in stream:
        pass


def test_an_answer_that_has_ended_is_not_stopped() -> None:
    with background_server({"events": WHOLE}) as url:
        answer(url)
        assert asked(url) == [POSTED]


def test_at_azure_every_question_names_the_version_of_the_api() -> None:
    with background_server({"events": WHOLE[:2], "how": "cut"}, {"events": WHOLE[2:]}) as url:
        azure = AzureResponses(base_url=url.removesuffix("/v1"), api_key="k", api_version="2025-04-01-preview")
        assert is_whole(asyncio.run(_answer(azure, STREAMED, PATIENT))[0])
        version = "api-version=2025-04-01-preview"
        include = "include%5B%5D=reasoning.encrypted_content"
        assert asked(url) == [
            f"POST /openai/responses?{version} background=True store=True",
            f"GET /openai/responses/resp_1?{include}&stream=true&starting_after=1&{version}",
        ]


def test_the_registry_gives_responses_this_provider_and_others_the_plain_one() -> None:
    assert type(provider_for("openai/gpt-5", api_key="k")[0]) is ResponsesProvider
    assert type(provider_for("openai-chat/gpt-5", api_key="k")[0]) is HttpProvider


def test_an_api_that_keeps_no_answers_says_so() -> None:
    hi = (UserMessage.of("Hi"),)
    (note,) = OpenAIChat().encode(ModelRequest("m", hi, storage=ResponseStorage(background=True))).notes
    assert "keeps no answers" in note
    with pytest.raises(UsageError, match="keeps no answers"):
        OpenAIChat().encode(ModelRequest("m", hi, storage=ResponseStorage(previous_response_id="resp_1")))
