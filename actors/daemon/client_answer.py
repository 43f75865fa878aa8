"""A client's question asked of its tenant's runtime, and the answer given back: whole, or as it comes.

A client that leaves ends its request: nothing is kept of it that someone could come back for.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypeForm

from callboard.actors.daemon.answer_pieces import AnswerStream, Piece, pieces_of
from callboard.actors.daemon.api_errors import NO_RETRY, Api, ApiError, error_of, goes_on_later, json_response
from callboard.actors.daemon.asked_question import asked_of
from callboard.actors.daemon.chat_answers import joined_text
from callboard.actors.daemon.client_question import AnswerFormat, ClientQuestion
from callboard.actors.daemon.endpoint import HttpCall
from callboard.actors.daemon.json_bytes import json_bytes
from callboard.actors.daemon.model_names import shown_name
from callboard.actors.daemon.recorded_turns import turn_of
from callboard.actors.daemon.server_events import EventStream
from callboard.actors.requests.json_schema import json_schema
from callboard.actors.requests.replies import STOPPING, SUSPENDED, ModelCallFailed, Reply, RequestEnded, Stream
from callboard.protocol.commands import CallOutside, Outcome
from callboard.protocol.content import Citation
from callboard.protocol.model import FinishReason, Usage

logger = logging.getLogger("callboard.daemon")

#: An error within this time is an HTTP status; one that comes later is an event of the stream. Most errors of providers
#: come within seconds, and clients and proxies wait longer than this for the first byte.
STATUS_SECONDS: Final = 10.0

Fields = dict[str, object]


class StreamWriter(Protocol):
    """Writes one streamed answer in the words of its API."""

    def begin(self) -> bytes: ...
    def write(self, piece: Piece) -> bytes: ...
    def end(self, reason: FinishReason, usage: Usage | None, about: Fields) -> bytes: ...
    def fail(self, error: ApiError) -> bytes: ...


class WholeAnswer(Struct, frozen=True):
    """What a whole answer is written from."""

    request_id: str
    model: str
    """In the client's words."""
    pieces: tuple[Piece, ...]
    reason: FinishReason
    usage: Usage | None
    citations: tuple[Citation, ...]
    about: Fields
    """What callboard says of the request."""


class StatelessApi(Struct, frozen=True):
    """One API, as far as answers differ."""

    api: Api
    stream: Callable[[str, str, ClientQuestion], StreamWriter]
    """Of the request's id, and what the answer calls its model."""
    whole: Callable[[WholeAnswer], Fields]
    heartbeat: bytes
    id_header: str
    """In which the API's own clients look for the id of the request."""
    overloaded_status: int | None = None
    """Of an answer where there is no room now, where the API has one of its own."""


async def answer(call: HttpCall, api: StatelessApi, question: ClientQuestion) -> Response:
    """Ask, and answer. Raises ApiError, always with the id of the request."""
    request_id = uuid.uuid4().hex
    headers = {"x-callboard-request-id": request_id, api.id_header: request_id}
    try:
        if question.is_streamed:
            return await _streamed(call, api, question, request_id, headers)
        return await _whole(call, api, question, request_id, headers)
    except Exception as error:
        raise refusal_of(error, api, headers) from error


# -- whole


async def _whole(
    call: HttpCall, api: StatelessApi, question: ClientQuestion, request_id: str, headers: Mapping[str, str]
) -> Response:
    asked = await asked_of(call, question, request_id)
    form = form_of(question.output)
    asking = asyncio.ensure_future(call.tenant.runtime.ask(asked.prompt, output=form, **asked.options))
    reply = await unless_gone(call.request, asking)
    turn = turn_of(reply, asked.conversation)
    if turn is not None:
        call.tenant.turns.keep(request_id, turn)
    turns = (*reply.messages, turn.turn) if turn is not None else reply.messages
    pieces = tuple(pieces_of(turns, request_id, reply.outside_calls, text_of(reply, question.output)))
    before = len(joined_text(pieces)) - len(reply.text)
    citations = tuple(each.moved_by(before) for each in reply.citations)
    model = shown_name(call.tenant, question.model)
    found = WholeAnswer(request_id, model, pieces, _reason(reply), reply.usage, citations, about_request(reply))
    return json_response(api.whole(found), headers=headers)


async def unless_gone(request: Request, asking: asyncio.Future[Reply[object]]) -> Reply[object]:
    """The reply; the request is cancelled where its client leaves."""
    gone = asyncio.ensure_future(_disconnected(request))
    gone.add_done_callback(lambda _: asking.cancel())
    try:
        return await asking
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not gone.done() or (task is not None and task.cancelling()):
            raise
        raise _left() from None
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


def _left() -> ApiError:
    return ApiError(499, "client_left", "the client left before the answer had come")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# -- streamed


async def _streamed(
    call: HttpCall, api: StatelessApi, question: ClientQuestion, request_id: str, headers: Mapping[str, str]
) -> Response:
    asked = await asked_of(call, question, request_id)
    form = form_of(question.output)
    stream = call.tenant.runtime.stream(asked.prompt, output=form, **asked.options)
    pieces = AnswerStream(request_id, holds_text=question.output is not None)
    told = _Told(api, api.stream(request_id, shown_name(call.tenant, question.model), question), pieces)

    def ended(reply: Reply[object]) -> str | None:
        turn = turn_of(reply, asked.conversation)
        if turn is not None:
            call.tenant.turns.keep(request_id, turn)
        return text_of(reply, question.output)

    source = told.events(stream, ended)
    first = asyncio.ensure_future(anext(source, b""))
    # A generator that was never started is closed without running: so the request is cancelled by its name besides.
    begun = _Begun(first, source, partial(call.tenant.runtime.cancel, request_id, "its client has left"))
    try:
        await _begun_or_gone(call.request, first)
        if first.done():
            first.result()
    except BaseException:
        await begun.aclose()
        raise
    told.is_open = True
    return EventStream(begun, headers, heartbeat=api.heartbeat)


async def _begun_or_gone(request: Request, first: asyncio.Future[bytes]) -> None:
    """Wait until there is something to send, at most STATUS_SECONDS. Raises ApiError where the client leaves before."""
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((first, gone), timeout=STATUS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not first.done():
            raise _left()
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


class _Begun(AsyncIterator[bytes]):
    """What `first` brings, and what follows it. Closed before its end, also before its start, it ends the request."""

    def __init__(
        self, first: asyncio.Future[bytes], rest: AsyncGenerator[bytes, None], cancel: Callable[[], object]
    ) -> None:
        self._first: asyncio.Future[bytes] | None = first
        self._rest, self._cancel = rest, cancel

    async def __anext__(self) -> bytes:
        if self._first is None:
            return await anext(self._rest)
        data = await self._first
        self._first = None
        return data

    async def aclose(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._rest.aclose()
        self._cancel()


class _Told:
    """One answer on its way into a stream."""

    def __init__(self, api: StatelessApi, writer: StreamWriter, pieces: AnswerStream) -> None:
        self._api, self._writer, self._pieces = api, writer, pieces
        self.is_open = False
        """Has the answer begun, so that an error is part of it?"""

    async def events(
        self, stream: Stream[object], ended: Callable[[Reply[object]], str | None]
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of the answer. Raises what ends the request before anything was sent."""
        begun = False
        try:
            async with aclosing(aiter(stream)) as items:
                async for item in items:
                    data = self._told(item, ended)
                    if data:
                        yield data if begun else self._writer.begin() + data
                        begun = self.is_open = True
        except Exception as error:
            if not self.is_open:
                raise
            failure = failure_of(error, self._api)
            if failure.status == 500:
                logger.exception("an answer failed")
            yield self._writer.fail(failure)

    def _told(self, item: object, ended: Callable[[Reply[object]], str | None]) -> bytes:
        if isinstance(item, Reply):
            last = self._pieces.end(item.outside_calls, ended(item))
            said = b"".join(map(self._writer.write, last))
            return said + self._writer.end(_reason(item), item.usage, about_request(item))
        found = self._pieces.call(item.call) if isinstance(item, CallOutside) else self._pieces.feed(item)
        return b"".join(map(self._writer.write, found))


# -- what is said of it


def form_of(output: AnswerFormat | None) -> TypeForm[object]:
    """What `output=` is for an answer of this form; str for any text. Raises UsageError for what is no schema."""
    return str if output is None else json_schema({"type": "object", **output.schema}, name=output.name or "answer")


def text_of(reply: Reply[object], form: AnswerFormat | None) -> str | None:
    """The text of an answer that has a form; None: what its turns say."""
    if form is None:
        return None
    return json_bytes(reply.output).decode() if reply.outcome is Outcome.ANSWERED else ""


def _reason(reply: Reply[object]) -> FinishReason:
    return FinishReason.TOOL_CALLS if reply.outside_calls else reply.finish_reason


def about_request(reply: Reply[object]) -> Fields:
    """What callboard says of a request in its answer: which model, what ran here, what should be known."""
    outside = {call.call_id for call in reply.outside_calls}
    calls = [
        {"name": call.name, "step": step.step, "seconds": round(call.seconds, 3), "failed": call.code}
        for step in reply.steps
        for call in step.calls
        if call.call_id not in outside
    ]
    return {
        "request_id": reply.request_id,
        "model": reply.model,
        "steps": len(reply.steps),
        "calls": calls,
        "notes": list(reply.notes),
        "cost": reply.cost,
    }


def refusal_of(error: Exception, api: StatelessApi, headers: Mapping[str, str]) -> ApiError:
    """What went wrong as an answer of its own, with these headers. A fault of ours is logged."""
    found = failure_of(error, api)
    if found.status == 500:
        logger.error("a question failed", exc_info=error)
    return ApiError(found.status, found.code, found.message, param=found.param, headers={**found.headers, **headers})


#: What a request that ended without an answer is to its client.
_ENDS: Final[Mapping[Outcome, tuple[int, str]]] = {
    Outcome.CANCELLED: (400, "request_cancelled"),
    Outcome.TIMED_OUT: (504, "request_timed_out"),
    Outcome.STEP_LIMIT: (400, "step_limit_reached"),
    Outcome.TOKEN_LIMIT: (400, "token_limit_reached"),
    Outcome.COST_LIMIT: (400, "cost_limit_reached"),
    Outcome.REPEATED_CALLS: (400, "repeated_calls"),
}


def failure_of(error: Exception, api: StatelessApi) -> ApiError:
    """What went wrong, for this API's clients."""
    if isinstance(error, RequestEnded):
        status, code = _ENDS.get(error.reply.outcome, (502, "no_answer"))
        if SUSPENDED in error.reply.reason:
            return goes_on_later(error.reply.request_id)
        if STOPPING in error.reply.reason:
            return ApiError(503, "stopping", "the server is stopping; ask again")
        return ApiError(status, code, str(error), headers=NO_RETRY)
    found = error_of(error)
    if found.code in ("overloaded", "provider_overloaded"):
        found.status = api.overloaded_status or found.status
    elif isinstance(error, ModelCallFailed) and found.status >= 500:
        found.headers = {**found.headers, **NO_RETRY}  # callboard has asked it again already
    return found
