"""The native API: requests. Start one, list them, see where one is, follow it, cancel it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response

from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.api_errors import Api, ApiError, error_body, error_of, json_response
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.model_names import unknown_model
from callboard.actors.daemon.native_answers import (
    ReplyShown,
    RequestDetail,
    RequestShown,
    RequestsShown,
    StackShown,
    StacksShown,
    Started,
    WasDone,
)
from callboard.actors.daemon.native_bodies import CancelRequest, FollowQuery, RequestsQuery, StartRequest
from callboard.actors.daemon.native_io import answered, body_as, is_known, known_request, one_of_them, query_as, waited
from callboard.actors.daemon.server_events import EventStream, server_event
from callboard.actors.daemon.stream_json import event_data, event_name
from callboard.actors.journal.journal_handle import RequestInfo
from callboard.actors.journal.saved_conversations import SHOWN_CHARS
from callboard.actors.requests.asking import AskOptions
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import ModelCallFailed, RequestEnded
from callboard.actors.requests.request_feed import Followed
from callboard.actors.runtime import Runtime
from callboard.protocol.errors import CallboardError, OutcomeUnknown, RuntimeFailure, UsageError, said
from callboard.protocol.masking import for_log
from callboard.protocol.policy import Mode
from callboard.protocol.states import CallState

#: Fields of StartRequest that are options of a question under the same name.
_OPTIONS: Final = (
    "instructions", "tools", "request_id", "timeout", "mode", "max_steps", "token_budget", "cost_budget", "metadata",
)  # fmt: skip


async def start(call: HttpCall) -> Response:
    """Begin a request, which no one has to read."""
    body = body_as(call, StartRequest)
    runtime = call.tenant.runtime
    options: AskOptions = {}
    for name in _OPTIONS:
        if (value := getattr(body, name)) is not None:
            options[name] = value
    _check_mode(body.mode, runtime)
    if body.model is None and not runtime.settings.model:
        raise unknown_model("")
    if body.model is not None:
        options["model"] = call.daemon.settings.models.get(body.model, body.model)
    asked_again = body.request_id is not None and await waited(lambda: is_known(runtime, body.request_id or ""))
    if body.conversation is not None and not asked_again:
        options["conversation"] = await waited(lambda: conversation_of(runtime, body.conversation or ""))
    try:
        started = Started(request_id=await runtime.start_request(body.prompt, **options), state="started", message="")
    except OutcomeUnknown as unknown:
        if not unknown.request_id:
            raise
        started = Started(request_id=unknown.request_id, state="unknown", message=for_log(said(unknown)))
    return answered(started, 202)


def _check_mode(mode: Mode | None, runtime: Runtime) -> None:
    """A client may ask for less than the daemon's owner allows, never for more. Raises ApiError."""
    most = Mode(runtime.settings.policy.mode)
    if mode is not None and not mode.is_within(most):
        told = f"this daemon is in mode {most}; a question can only have that, or a stricter one"
        raise ApiError(403, "mode_not_allowed", told, param="mode")


def conversation_of(runtime: Runtime, conversation_id: str) -> Conversation:
    """The conversation of this id, or whose id begins so, to be gone on with. Raises ApiError where there is none."""
    try:
        with one_of_them("conversation"):  # fewer characters could be found by chance, and go on with another's
            return runtime.journal.conversation(runtime.journal.whole_conversation_id(conversation_id, SHOWN_CHARS))
    except UsageError as error:
        if "has not ended" in str(error):
            raise ApiError(409, "conversation_is_busy", said(error), param="conversation") from None
        raise ApiError(404, "not_found", said(error), param="conversation") from None


async def list_requests(call: HttpCall) -> Response:
    """Those that have not ended, and the latest that have."""
    query, runtime = query_as(call, RequestsQuery), call.tenant.runtime

    def read() -> RequestsShown:
        found = sorted(runtime.open_requests(), key=lambda each: each.begun_at)
        recorded = [] if runtime.settings.journal is None else runtime.journal.requests(query.limit)
        recent = [RequestShown.of_ended(each) for each in recorded if each.ended_at is not None]
        return RequestsShown(open=[RequestShown.of_open(each) for each in found], recent=recent)

    return answered(await waited(read))


async def read_request(call: HttpCall) -> Response:
    """Where it is; once it has ended, what came of it."""
    request_id, runtime = await known_request(call), call.tenant.runtime
    found = await waited(lambda: runtime.open_request(request_id))
    if found is not None:
        return answered(RequestDetail(request=RequestShown.of_open(found), reply=None, error=""))
    reply, error = None, ""
    try:
        reply = ReplyShown.of(await runtime.result(request_id))
    except (RequestEnded, ModelCallFailed) as ended:
        reply, error = ReplyShown.of(ended.reply), for_log(said(ended))
    except CallboardError as failure:
        error = for_log(said(failure))
    return answered(RequestDetail(request=await waited(lambda: _ended(runtime, request_id)), reply=reply, error=error))


def _ended(runtime: Runtime, request_id: str) -> RequestShown:
    log = runtime.journal.request(request_id)
    ended_at = log.end.ended_at if log.end is not None else None
    finish = log.end.finish if log.end is not None else None
    begins = log.begins
    info = RequestInfo(
        log.request_id,
        begins.conversation_id,
        begins.begun_at,
        begins.model,
        ended_at,
        finish.outcome.value if finish is not None else "",
        begins.metadata,
    )
    return RequestShown.of_ended(info)


async def follow(call: HttpCall) -> Response:
    """Everything of it as server-sent events: from its begin, or behind the event that the client has seen last."""
    query = query_as(call, FollowQuery)
    request_id = await known_request(call)
    after = call.request.headers.get("last-event-id", query.after)
    if len(after) > FollowQuery.model_fields["after"].metadata[0].max_length or not after.isprintable():
        raise ApiError(400, "invalid_request", "that is no id of an event", param="after")
    return EventStream(_events(call.tenant.runtime.follow(request_id, after)))


async def _events(following: AsyncIterator[Followed]) -> AsyncIterator[bytes]:
    """What goes wrong on the way is the last event, `error`: the client may come back behind the last id it has."""
    try:
        async for followed in following:
            yield server_event(event_data(followed.item), name=event_name(followed.item), event_id=followed.id)
    except (RequestEnded, ModelCallFailed) as ended:
        yield server_event(event_data(ended.reply), name="reply")
    except CallboardError as error:
        body = error_body(Api.NATIVE, error_of(error))
        yield server_event(bytes(json_response({"type": "error", **body}).body), name="error")


async def cancel(call: HttpCall) -> Response:
    """End it, with its model stream, its tools and its approvals. Again: nothing."""
    body = body_as(call, CancelRequest)
    request_id = await known_request(call, SHOWN_CHARS)  # fewer could be found by chance, and end another one
    reason = body.reason or "cancelled by a client"
    return answered(WasDone(done=call.tenant.runtime.cancel(request_id, reason)))


async def stacks(call: HttpCall) -> Response:
    """Where the code of each of its running calls is."""
    request_id, runtime = await known_request(call), call.tenant.runtime

    def read() -> StacksShown:
        found = runtime.open_request(request_id)
        if found is None:
            return StacksShown(calls=[])
        return StacksShown(
            calls=[
                _stack(runtime, request_id, found.step, each.call_id, each.name)
                for each in found.calls
                if each.state is CallState.RUNNING
            ][:MAX_STACKS]
        )

    return answered(await waited(read))


#: Of one answer: each may take its 2 s.
MAX_STACKS: Final = 16


def _stack(runtime: Runtime, request_id: str, step: int, call_id: str, name: str) -> StackShown:
    stack = error = ""
    try:
        stack = for_log(runtime.stack_of(request_id, step, call_id))
    except (UsageError, RuntimeFailure) as failure:
        error = for_log(said(failure))
    return StackShown(call_id=call_id, name=name, step=step, stack=stack, error=error)


_ONE: Final = "/api/requests/{request_id}"
ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/requests",
        start,
        summary="Start a request",
        body=StartRequest,
        answer=Started,
        status=202,
    ),
    Endpoint(
        "GET", "/api/requests", list_requests, summary="Open and recent requests", query=RequestsQuery,
        answer=RequestsShown,
    ),
    Endpoint("GET", _ONE, read_request, summary="Where a request is, and its reply", answer=RequestDetail),
    Endpoint(
        "GET", f"{_ONE}/events", follow, summary="Follow a request; go on with Last-Event-ID", query=FollowQuery,
        is_stream=True,
    ),
    Endpoint(
        "POST", f"{_ONE}/cancel", cancel, summary="Cancel a request", body=CancelRequest, answer=WasDone,
        may_be_large=False,
    ),
    Endpoint(
        "GET", f"{_ONE}/stack", stacks, scope=Scope.ADMIN, summary="Live stacks of its running tools",
        answer=StacksShown,
    ),
)  # fmt: skip
