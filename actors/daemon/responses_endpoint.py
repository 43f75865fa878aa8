"""/v1/responses: ask (whole, streamed, in the background), read again, follow, cancel, delete, list the input."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import takewhile
from typing import Final

from starlette.responses import Response

from callboard.actors.daemon.api_errors import Api, ApiError, bad_field, goes_on_later, json_response
from callboard.actors.daemon.chat_completions import CHAT
from callboard.actors.daemon.client_answer import refusal_of
from callboard.actors.daemon.client_question import ClientQuestion, checked_messages
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.model_names import shown_name
from callboard.actors.daemon.response_compaction import CompactBody, compact
from callboard.actors.daemon.response_history import history_until, input_messages, record_of, request_id_of
from callboard.actors.daemon.response_objects import begun
from callboard.actors.daemon.response_records import ResponseRecord
from callboard.actors.daemon.response_runs import ResponseLeft, begin, final_of, sent_events, with_referred_items
from callboard.actors.daemon.responses_body import (
    ENCRYPTED_REASONING,
    ResponsesBody,
    format_in,
    hints_in,
    options_in,
    read_responses_body,
    tools_in,
)
from callboard.actors.daemon.responses_input import items_of
from callboard.actors.daemon.server_events import EventStream
from callboard.protocol.content import Message, SystemMessage

Fields = dict[str, object]
#: A cancelled request ends within moments; its tools have 5 s to end.
CANCEL_SECONDS: Final = 15.0
_MAX_ITEMS: Final = 100


async def create(call: HttpCall) -> Response:
    """Ask: answers with the object, with events, or at once where it goes on in the background."""
    read = read_responses_body(call.body)
    request_id = uuid.uuid4().hex
    headers = {"x-callboard-request-id": request_id, CHAT.id_header: request_id}
    try:
        return await _created(call, read, request_id, headers)
    except Exception as error:
        raise refusal_of(error, CHAT, headers) from error


async def _created(call: HttpCall, read: ResponsesBody, request_id: str, headers: dict[str, str]) -> Response:
    previous = read.previous_response_id
    before = await history_until(call.tenant, previous) if previous else ()
    items = await with_referred_items(call.tenant, items_of(read.input))
    question = _question(read, (*before, *await input_messages(call.tenant, items)))
    now = time.time()
    record = ResponseRecord(
        request_id,
        now,
        request_id_of(previous or ""),
        items,
        begun(read, shown_name(call.tenant, read.model), request_id, now),
        ENCRYPTED_REASONING in (read.include or ()),
        question.output is not None,
    )
    await begin(call, question, record)
    if read.stream:
        events = sent_events(call.tenant, record)
        source = events if read.background else _cancelled_when_left(call, request_id, events)
        return EventStream(source, headers)
    if read.background:
        return json_response(record.first, headers=headers)
    return json_response(await _whole(call, request_id), headers=headers)


def _question(read: ResponsesBody, messages: tuple[Message, ...]) -> ClientQuestion:
    """Instructions in front of everything are added to those of the body."""
    leading = tuple(takewhile(lambda each: isinstance(each, SystemMessage), messages))
    told = [read.instructions] if read.instructions is not None else []
    told += [each.text for each in leading if isinstance(each, SystemMessage)]
    return ClientQuestion(
        read.model,
        checked_messages(messages[len(leading) :], "input"),
        "\n\n".join(told) if told else None,
        tools_in(read),
        None if read.callboard is None or read.callboard.tools is None else tuple(read.callboard.tools),
        options_in(read),
        hints_in(read),
        format_in(read),
        bool(read.stream),
    )


async def _whole(call: HttpCall, request_id: str) -> Fields:
    """The object at its end; the request is cancelled where its client leaves. Raises ApiError where it failed."""
    task = call.tenant.responses.attending[request_id]
    gone = asyncio.ensure_future(_disconnected(call))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            call.tenant.runtime.cancel(request_id, "the client left")
            raise ApiError(499, "client_left", "the client left before the answer had come")
        found = task.result()
    except ResponseLeft:
        raise goes_on_later(request_id) from None
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    if found.error is not None:
        raise found.error
    return found.final


async def _disconnected(call: HttpCall) -> None:
    while (await call.request.receive())["type"] != "http.disconnect":
        pass


async def _cancelled_when_left(
    call: HttpCall, request_id: str, events: AsyncGenerator[bytes, None]
) -> AsyncIterator[bytes]:
    try:
        async for data in events:
            yield data
    finally:
        await events.aclose()
        call.tenant.runtime.cancel(request_id, "the client left")


async def retrieve(call: HttpCall) -> Response:
    """The response as it is now, or its events, also those to come."""
    record = await record_of(call.tenant, call.path("response_id"))
    query = call.request.query_params
    if query.get("stream") != "true":
        return json_response(await final_of(call.tenant, record))
    after = query.get("starting_after", "-1")
    if not after.removeprefix("-").isdecimal() or len(after) > 18:
        raise bad_field("starting_after", "starting_after must be the sequence_number of an event")
    return EventStream(sent_events(call.tenant, record, int(after)))


async def cancel(call: HttpCall) -> Response:
    """End a response in the background, and wait for that. One that has ended stays as it is."""
    record = await record_of(call.tenant, call.path("response_id"))
    if not record.first["background"]:
        raise ApiError(400, "not_in_background", "only responses in the background are cancelled")
    found = await final_of(call.tenant, record)
    task = call.tenant.responses.attending.get(record.request_id)
    if task is not None and call.tenant.runtime.cancel(record.request_id):
        await asyncio.wait((task,), timeout=CANCEL_SECONDS)
        found = task.result().final if task.done() else found
    return json_response(found)


async def delete(call: HttpCall) -> Response:
    """No longer served; one that runs is cancelled. The journal keeps its request."""
    record = await record_of(call.tenant, call.path("response_id"))
    call.tenant.runtime.cancel(record.request_id, "its response was deleted")
    await asyncio.to_thread(call.tenant.responses.remove, record.request_id)
    return json_response({"id": record.first["id"], "object": "response", "deleted": True})


async def input_items(call: HttpCall) -> Response:
    """The items of its own input, the last first."""
    record = await record_of(call.tenant, call.path("response_id"))
    query = call.request.query_params
    limit = query.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MAX_ITEMS:
        raise bad_field("limit", f"limit must be from 1 to {_MAX_ITEMS}")
    items = [_listed(item, record.request_id, place) for place, item in enumerate(record.items)]
    if query.get("order", "desc") != "asc":
        items.reverse()
    ids = [item["id"] for item in items]
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise bad_field("after", "after must be the id of an item of this input")
        items = items[ids.index(after) + 1 :]
    shown = items[: int(limit)]
    ends: Fields = (
        {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    )
    return json_response({"object": "list", "data": shown, **ends, "has_more": len(shown) < len(items)})


def _listed(item: Fields, request_id: str, place: int) -> Fields:
    """As a client reads it: with an id, and a text as a part."""
    found: Fields = {"id": f"in_{request_id}_{place}", "type": "message", **item}
    if found["type"] == "message" and isinstance(found.get("content"), str):
        kind = "output_text" if found.get("role") == "assistant" else "input_text"
        found["content"] = [
            {"type": kind, "text": found["content"], **({"annotations": []} if kind == "output_text" else {})}
        ]
    return found


_ONE: Final = "/v1/responses/{response_id}"
ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/v1/responses",
        create,
        api=Api.OPENAI,
        summary="Responses: ask, whole, streamed or in the background",
        body=ResponsesBody,
        is_stream=True,
    ),
    Endpoint(
        "POST",
        "/v1/responses/compact",
        compact,
        api=Api.OPENAI,
        summary="Responses: a conversation made short, to go on from",
        body=CompactBody,
    ),
    Endpoint(
        "GET", _ONE, retrieve, api=Api.OPENAI, summary="Responses: one as it is now, or its events", is_stream=True
    ),
    Endpoint("POST", f"{_ONE}/cancel", cancel, api=Api.OPENAI, summary="Responses: end one in the background"),
    Endpoint("DELETE", _ONE, delete, api=Api.OPENAI, summary="Responses: serve one no longer"),
    Endpoint("GET", f"{_ONE}/input_items", input_items, api=Api.OPENAI, summary="Responses: the input of one"),
)
