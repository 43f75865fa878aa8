"""A response from its beginning to its end: begun, attended by a task of the daemon, and read along by its clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from callboard.actors.daemon.api_errors import ApiError, error_fields, goes_on_later
from callboard.actors.daemon.asked_question import asked_of
from callboard.actors.daemon.chat_completions import CHAT
from callboard.actors.daemon.client_answer import failure_of, form_of, text_of
from callboard.actors.daemon.client_question import AnswerFormat, ClientQuestion
from callboard.actors.daemon.endpoint import HttpCall
from callboard.actors.daemon.json_bytes import json_bytes
from callboard.actors.daemon.recorded_turns import turn_of
from callboard.actors.daemon.response_objects import ended, failed, running
from callboard.actors.daemon.response_records import AttendedResponse, ResponseRecord
from callboard.actors.daemon.responses_input import Items, referred_id, request_of_item
from callboard.actors.daemon.responses_stream import ResponseStream
from callboard.actors.daemon.server_events import server_event
from callboard.actors.daemon.tenants import Tenant
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import SUSPENDED, ModelCallFailed, Reply, RequestEnded
from callboard.protocol.commands import Outcome
from callboard.protocol.errors import OutcomeUnknown

logger = logging.getLogger("callboard.daemon")

Fields = dict[str, object]
#: The form of an answer whose form is known to the runtime.
_SOME_FORM = AnswerFormat({})


class ResponseLeft(Exception):
    """The response goes on without this process: the journal has its request."""


async def begin(call: HttpCall, question: ClientQuestion, record: ResponseRecord) -> None:
    """Ask, and attend. Raises what `start_request` raises; then nothing is kept, unless the request may have begun."""
    tenant = call.tenant
    asked = await asked_of(call, question, record.request_id)
    form = form_of(question.output) if question.output is not None else None
    is_stored = bool(record.first["store"])
    if is_stored:
        await asyncio.to_thread(tenant.responses.add, record)
    try:
        await tenant.runtime.start_request(asked.prompt, output=form, **asked.options)
    except BaseException as error:
        if is_stored and not isinstance(error, OutcomeUnknown):
            await asyncio.to_thread(tenant.responses.remove, record.request_id)
        raise
    attend(tenant, record, asked.conversation)


def attend(tenant: Tenant, record: ResponseRecord, conversation: Conversation | None) -> asyncio.Task[AttendedResponse]:
    """A task that waits for the end and keeps what came of it; it gives what came of it."""
    attending = tenant.responses.attending
    task = asyncio.create_task(_attend(tenant, record, conversation), name=f"response {record.request_id}")
    attending[record.request_id] = task

    def over(done: asyncio.Task[AttendedResponse]) -> None:
        attending.pop(record.request_id, None)
        if not done.cancelled() and (error := done.exception()) is not None and not isinstance(error, ResponseLeft):
            logger.error("a response could not be kept", exc_info=error)

    task.add_done_callback(over)
    return task


async def _attend(tenant: Tenant, record: ResponseRecord, conversation: Conversation | None) -> AttendedResponse:
    made = stream_of(record)
    final: Fields | None = None
    async with aclosing(events_of(tenant, record, made)) as events:
        async for event in events:
            found = event.get("response")
            final = found if isinstance(found, dict) else final
    reply = made.reply
    if reply is not None and conversation is not None and (turn := turn_of(reply, conversation)) is not None:
        tenant.turns.keep(record.request_id, turn)
    if reply is not None:
        tenant.responses.keep_reply(reply)
    assert final is not None
    if record.first["store"]:
        await asyncio.to_thread(tenant.responses.end, record.request_id, final)
    return AttendedResponse(final, made.error)


class RepliedStream(ResponseStream):
    """The events of a response, and the reply at its end."""

    reply: Reply[object] | None = None
    error: ApiError | None = None
    """Why there is no answer."""


def stream_of(record: ResponseRecord) -> RepliedStream:
    """The events of this response, from its beginning."""
    form = (lambda reply: text_of(reply, _SOME_FORM)) if record.has_form else None
    return RepliedStream(record.request_id, shows_encrypted=record.shows_encrypted, text_of=form)


async def events_of(tenant: Tenant, record: ResponseRecord, made: RepliedStream) -> AsyncGenerator[Fields, None]:
    """All events from the beginning to the end of the response. Raises ResponseLeft where the runtime stops before."""
    first = running(record.first)
    yield made.event("response.created", response=record.first)
    yield made.event("response.in_progress", response=first)
    try:
        async with aclosing(_followed(tenant, record.request_id)) as items:
            async for item in items:
                if isinstance(item, Reply):
                    made.reply = item
                for event in made.feed(item):
                    yield event
    except (RequestEnded, ModelCallFailed) as error:
        if SUSPENDED in error.reply.reason:
            raise ResponseLeft from None
        made.reply = error.reply
        made.error = failure_of(error, CHAT)
    except ApiError as error:
        made.error = error
    if made.reply is not None and (made.error is None or made.reply.outcome is Outcome.CANCELLED):
        last = ended(first, made.output, made.reply)
    else:
        found = made.error or ApiError(500, "internal_error", "the request ended without a reply")
        last = failed(first, made.output, found)
    # The API has no event of its own for a response that was cancelled.
    kind = "incomplete" if last["status"] == "cancelled" else last["status"]
    yield made.event(f"response.{kind}", response=last)


async def _followed(tenant: Tenant, request_id: str) -> AsyncGenerator[object, None]:
    async for followed in tenant.runtime.follow(request_id):
        yield followed.item


async def sent_events(tenant: Tenant, record: ResponseRecord, after: int = -1) -> AsyncGenerator[bytes, None]:
    """As bytes, from behind this sequence number on."""
    made = stream_of(record)
    try:
        async for event in events_of(tenant, record, made):
            number = event["sequence_number"]
            assert isinstance(number, int)
            if number > after:
                yield _sent(event)
    except Exception as error:
        is_left = isinstance(error, ResponseLeft)
        found = goes_on_later(record.request_id) if is_left else failure_of(error, CHAT)
        if found.status == 500:
            logger.exception("a response could not be streamed")
        # OpenAI has the fields in the event, Open Responses in an object in it.
        inner = error_fields(found)
        at_top = {name: inner[name] for name in ("code", "message", "param")}
        yield _sent(made.event("error", **at_top, error=inner))


def _sent(event: Fields) -> bytes:
    return server_event(json_bytes(event), name=str(event["type"]))


async def with_referred_items(tenant: Tenant, items: Items) -> list[Fields]:
    """The input, with the items that were given out in place of references to them. Raises ApiError (404)."""
    return [item if not (name := referred_id(item)) else await _given_out(tenant, name) for item in items]


async def _given_out(tenant: Tenant, item_id: str) -> Fields:
    record = await asyncio.to_thread(tenant.responses.find, request_of_item(item_id))
    output = (await final_of(tenant, record))["output"] if record is not None else None
    for item in output if isinstance(output, list) else ():
        if item["id"] == item_id:
            return {**item}
    said = f"Item with id '{item_id[:100]}' not found: send the item itself, or previous_response_id."
    raise ApiError(404, "item_not_found", said, param="input")


async def final_of(tenant: Tenant, record: ResponseRecord) -> Fields:
    """The response object as it is now. Raises ApiError."""
    if record.final is not None:
        return record.final
    task = tenant.responses.attending.get(record.request_id)
    if task is None:
        is_open = tenant.has_open(record.request_id)
        task = attend(tenant, record, None)  # it ran in an earlier process
        if not is_open:
            return (await asyncio.shield(task)).final
    return running(record.first)
