"""The messages of a response and of those before it: what a response that follows on it goes on from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.client_question import outside_call_id
from callboard.actors.daemon.response_objects import PREFIX
from callboard.actors.daemon.response_records import ResponseRecord
from callboard.actors.daemon.responses_input import Items, messages_of, requests_of
from callboard.actors.daemon.tenants import Tenant
from callboard.actors.requests.replies import ModelCallFailed, Reply, RequestEnded
from callboard.protocol.commands import Outcome
from callboard.protocol.content import AssistantMessage, Message, UserMessage
from callboard.protocol.errors import UsageError

#: Responses that follow each other, at most: each is read from the journal.
MAX_CHAIN: Final = 1_000


def request_id_of(response_id: str) -> str:
    """The request of a response; "" for an id that is none of ours."""
    return response_id.removeprefix(PREFIX) if response_id.startswith(PREFIX) else ""


async def record_of(tenant: Tenant, response_id: str) -> ResponseRecord:
    """The response. Raises ApiError (404)."""
    found = await asyncio.to_thread(tenant.responses.find, request_id_of(response_id))
    if found is None:
        raise ApiError(404, "response_not_found", f"Response with id '{response_id[:100]}' not found.")
    return found


async def input_messages(tenant: Tenant, items: Items) -> tuple[Message, ...]:
    """The messages of an input. Raises ApiError."""
    known = set()
    for request_id in requests_of(items):
        if await tenant.turns.find(tenant.runtime, request_id) is not None:
            known.add(request_id)
    return tuple(messages_of(items, known, tenant.responses.seal.open))


class ResponseTurn(Struct, frozen=True):
    """One response of several that follow each other."""

    items: Items
    """Its own input."""
    answer: tuple[Message, ...] = ()
    """What its request added."""


async def history_until(tenant: Tenant, response_id: str) -> tuple[Message, ...]:
    """All messages up to this response's answer. Raises ApiError as `turns_until`."""
    turns = await turns_until(tenant, response_id)
    return tuple([message for turn in turns for message in await messages_in(tenant, turn)])


async def messages_in(tenant: Tenant, turn: ResponseTurn) -> tuple[Message, ...]:
    """Of its input and its answer. Raises ApiError."""
    return (*await input_messages(tenant, turn.items), *turn.answer)


async def turns_until(tenant: Tenant, response_id: str) -> Sequence[ResponseTurn]:
    """This response and all before it, the first of them first. Raises ApiError (404 for an unknown one, 400 for one
    that has no answer)."""
    chain: list[ResponseTurn] = []
    request_id = request_id_of(response_id)
    while request_id or not chain:
        record = await asyncio.to_thread(tenant.responses.find, request_id)
        if record is None:
            said = f"Previous response with id '{response_id[:100]}' not found."
            raise ApiError(404, "previous_response_not_found", said, param="previous_response_id")
        if len(chain) >= MAX_CHAIN:
            raise _not_possible(f"more than {MAX_CHAIN} responses follow each other; send the messages as input")
        chain.append(ResponseTurn(record.items, _answered(await _reply_of(tenant, request_id))))
        request_id = record.previous
        if not request_id:
            break
    return chain[::-1]


async def _reply_of(tenant: Tenant, request_id: str) -> Reply[object]:
    known = tenant.responses.reply(request_id)
    if known is not None:
        return known
    if tenant.has_open(request_id):
        raise _not_possible("the previous response has not ended; wait for its end, or cancel it")
    try:
        reply = await tenant.runtime.result(request_id)
    except (RequestEnded, ModelCallFailed) as error:
        reply = error.reply
    except UsageError:
        raise _not_possible("what the previous response answered is no longer kept; send it as input") from None
    tenant.responses.keep_reply(reply)
    return reply


def _answered(reply: Reply[object]) -> tuple[Message, ...]:
    """What the request added, with its calls under the ids that the client knows them by."""
    if reply.outcome is Outcome.CALLS_OUTSIDE:
        calls = enumerate(reply.outside_calls)
        known = (replace(call, call_id=outside_call_id(reply.request_id, n), replay=None) for n, call in calls)
        return (AssistantMessage(tuple(known)),)
    if reply.outcome is not Outcome.ANSWERED:
        raise _not_possible(f"the previous response has no answer: {reply.reason or reply.outcome}")
    return tuple(message for message in reply.messages if not isinstance(message, UserMessage))


def _not_possible(why: str) -> ApiError:
    return ApiError(400, "invalid_previous_response", why, param="previous_response_id")
