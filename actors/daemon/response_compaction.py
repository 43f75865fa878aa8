"""POST /v1/responses/compact: a conversation made short, as items that a client sends in place of it.

What comes back: the instructions, the latest messages of the user word for word, and an item `compaction` with a
summary of everything. The summary is asked for as callboard does for its own conversations (protocol/compaction.py), by
a request of the tenant's runtime.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from pydantic import Field
from starlette.responses import Response

from callboard.actors.daemon.api_errors import NO_RETRY, ApiError, bad_field, json_response
from callboard.actors.daemon.asked_question import asked_of, with_own_turns
from callboard.actors.daemon.body_models import ApiBody, ModelField, parsed, read_body
from callboard.actors.daemon.chat_completions import CHAT
from callboard.actors.daemon.client_answer import refusal_of, unless_gone
from callboard.actors.daemon.client_question import ClientQuestion, ordered_messages
from callboard.actors.daemon.endpoint import HttpCall
from callboard.actors.daemon.model_names import model_of, window_of
from callboard.actors.daemon.response_history import ResponseTurn, input_messages, messages_in, turns_until
from callboard.actors.daemon.response_objects import response_id, usage_fields
from callboard.actors.daemon.response_runs import with_referred_items
from callboard.actors.daemon.responses_input import Items, items_of, messages_of
from callboard.actors.requests.asking import AskOptions
from callboard.actors.requests.replies import Reply
from callboard.protocol.budgets import answer_room
from callboard.protocol.compaction import (
    MAX_SUMMARY_TOKENS,
    Compaction,
    fitted,
    summary_request,
    transcript,
)
from callboard.protocol.content import Message, SystemMessage, UserMessage
from callboard.protocol.model import FinishReason, ModelRequest, PromptCache, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.prompt_tokens import estimate_tokens, message_tokens
from callboard.protocol.provider_options import OpenAIOptions

Fields = dict[str, object]
#: Of the user's messages, what stays word for word: some 15,000 words, and no more than a summary leaves room for.
MAX_KEPT_TOKENS: Final = 20_000
#: For a model whose window is not known: the conversation is shortened to what most models take.
USUAL_WINDOW_TOKENS: Final = 128_000
#: Roles of messages that stay whatever their length: they are instructions.
_INSTRUCTING: Final = ("system", "developer")
_SHARES: Final = Compaction()


class CompactBody(ApiBody):
    """What is read of a request."""

    model: ModelField = None
    input: str | list[dict[str, object]] | None = None
    """Items, as of POST /v1/responses."""
    previous_response_id: str | None = Field(default=None, min_length=1)
    instructions: str | None = None
    """What the summary should keep, besides."""
    prompt_cache_key: str | None = Field(default=None, max_length=64)


async def compact(call: HttpCall) -> Response:
    """Answers with the compacted conversation. Raises ApiError."""
    read = await parsed(_read, call.body)
    request_id = uuid.uuid4().hex
    headers = {"x-callboard-request-id": request_id, CHAT.id_header: request_id}
    try:
        return json_response(await _compacted(call, read, request_id), headers=headers)
    except Exception as error:
        raise refusal_of(error, CHAT, headers) from error


def _read(body: bytes) -> CompactBody:
    read = read_body(CompactBody, body)
    if not read.input and read.previous_response_id is None:
        raise bad_field("input", "there is nothing to compact: send input, previous_response_id, or both")
    return read


async def _compacted(call: HttpCall, read: CompactBody, request_id: str) -> Fields:
    model = model_of(call.daemon, call.tenant, read.model)
    past = await _past_of(call, read)
    sizes = _sizes_of(model, window_of(call.tenant.runtime.settings, model))
    asked = await asyncio.to_thread(_summary_request, model, past, sizes, read.instructions or "")
    reply = await _asked(call, read, asked, request_id)
    summary = fitted(_summary_in(reply), sizes.summary, estimate_tokens)
    kept = await asyncio.to_thread(_kept, past.items, sizes.kept)
    sealed = {"type": "compaction", "encrypted_content": call.tenant.responses.seal.close(summary)}
    return {
        "id": response_id(request_id),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*_numbered(kept, request_id), {"id": f"cmp_{request_id}", **sealed}],
        "usage": usage_fields(reply.usage or Usage(0, 0)),
    }


# -- what was said


class _Past(Struct, frozen=True):
    """The conversation that is to be made short."""

    items: Items
    """All that clients have sent of it."""
    summary: str
    """Of what an earlier compaction has left out."""
    messages: tuple[Message, ...]
    """All that came after that."""


async def _past_of(call: HttpCall, read: CompactBody) -> _Past:
    """Raises ApiError for items that are wrong, and for a history that no provider takes."""
    tenant, previous = call.tenant, read.previous_response_id
    own = ResponseTurn(await with_referred_items(tenant, items_of(read.input or [])))
    await input_messages(tenant, own.items)  # what is wrong is named by its place in the whole input
    turns = [*(await turns_until(tenant, previous) if previous else ()), own]
    items = [item for turn in turns for item in turn.items]
    summary, turns = "", list(turns)
    for place in range(len(turns) - 1, -1, -1):
        found = [at for at, item in enumerate(turns[place].items) if item.get("type") == "compaction"]
        if found:
            before = turns[place]
            summary = tenant.responses.seal.open(str(before.items[found[-1]].get("encrypted_content"))) or ""
            turns = [ResponseTurn(before.items[found[-1] + 1 :], before.answer), *turns[place + 1 :]]
            break
    said = [message for turn in turns for message in await messages_in(tenant, turn)]
    return _Past(items, summary, await with_own_turns(tenant, ordered_messages(said, "input")))


# -- the summary


class _Sizes(Struct, frozen=True):
    """Tokens of what a compaction asks for and gives."""

    prompt: int
    answer: int
    """With room to think, which some models take from it."""
    summary: int
    kept: int


def _sizes_of(model: str, window: int | None) -> _Sizes:
    window = window or USUAL_WINDOW_TOKENS
    room = window - answer_room(RequestOptions(model, context_tokens=window))
    summary = max(min(int(room * _SHARES.summary), MAX_SUMMARY_TOKENS), 1)
    answer = max(window - room, summary)
    return _Sizes(window - answer, answer, summary, min(int(room * _SHARES.keep), MAX_KEPT_TOKENS))


def _summary_request(model: str, past: _Past, sizes: _Sizes, further: str) -> ModelRequest:
    """What asks for the summary, its prompt made to fit the model's window."""

    def asking(lines: Sequence[str]) -> ModelRequest:
        return summary_request(model, lines, sizes.summary, sizes.answer, past.summary)

    empty = sum(message_tokens(message, estimate_tokens) for message in asking(()).messages)
    limit = max(sizes.prompt - empty - estimate_tokens(further), 0)
    messages = [message for message in past.messages if not isinstance(message, SystemMessage)]
    return asking(transcript(messages, 1, limit, estimate_tokens))


async def _asked(call: HttpCall, read: CompactBody, wanted: ModelRequest, request_id: str) -> Reply[object]:
    task, asked = wanted.messages
    assert isinstance(task, SystemMessage)
    assert isinstance(asked, UserMessage)
    further = f"\n\nWho asked for the summary adds:\n{read.instructions}" if read.instructions else ""
    options = AskOptions(sampling=wanted.sampling, prompt_cache=PromptCache.OFF, server_tools=())
    hints: Mapping[str, AskOptions] = {}
    if read.prompt_cache_key:
        hints = {"openai": AskOptions(provider_options=OpenAIOptions(prompt_cache_key=read.prompt_cache_key))}
    question = ClientQuestion(read.model, (asked,), task.text + further, runs_here=(), options=options, only_for=hints)
    found = await asked_of(call, question, request_id)
    return await unless_gone(
        call.request, asyncio.ensure_future(call.tenant.runtime.ask(found.prompt, **found.options))
    )


def _summary_in(reply: Reply[object]) -> str:
    """Raises ApiError where the model did not write it."""
    text = reply.text.strip()
    if not text or reply.finish_reason in (FinishReason.REFUSAL, FinishReason.CONTENT_FILTER):
        said = f"the model wrote no summary (it stopped with {reply.finish_reason}); try another model"
        raise ApiError(502, "no_summary", said, headers=NO_RETRY)
    return text


# -- what stays word for word


def _kept(items: Items, tokens: int) -> Items:
    """The instructions, and the latest messages of the user that fit."""
    kept: list[Fields] = []
    for item in reversed(items):
        if item.get("type", "message") != "message":
            continue
        if item["role"] == "user" and tokens >= 0:
            tokens -= sum(message_tokens(message, estimate_tokens) for message in messages_of([item]))
            kept += [item] if tokens >= 0 else []
        elif item["role"] in _INSTRUCTING:
            kept.append(item)
    return kept[::-1]


def _numbered(items: Items, request_id: str) -> Iterator[Fields]:
    """Messages as an output has them."""
    for place, item in enumerate(items):
        content = item["content"]
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        assert isinstance(parts, list)
        yield {
            "id": f"msg_{request_id}_{place}",
            "type": "message",
            "status": "completed",
            "role": item["role"],
            "content": [{"detail": "auto", **part} if part["type"] == "input_image" else part for part in parts],
        }
