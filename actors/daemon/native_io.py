"""What the native API reads and writes: bodies and queries as pydantic models, answers likewise, waits on threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import Response

from callboard.actors.daemon.api_errors import ApiError, not_found
from callboard.actors.daemon.endpoint import HttpCall
from callboard.actors.journal.saved_conversations import MIN_CHARS, AmbiguousId, whole_id
from callboard.actors.runtime import Runtime
from callboard.protocol.errors import UsageError, said

#: What waits for a journal or an actor waits at most this long; each has a shorter deadline of its own.
ANSWER_SECONDS: Final = 60.0

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class NativeBody(BaseModel):
    """The JSON object of a request: fields it does not have are errors, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


class NativeQuery(BaseModel):
    """What follows the "?" of a URL: fields it does not have are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class NativeAnswer(BaseModel):
    """A JSON object that is answered. All its fields are always there."""

    model_config = ConfigDict(frozen=True, defer_build=True)


def body_as(call: HttpCall, kind: type[M]) -> M:
    """The body. Raises ApiError, which names the first field that is wrong."""
    try:
        return kind.model_validate_json(call.body or b"{}")
    except ValidationError as error:
        raise _wrong(error, "the body") from None


def query_as(call: HttpCall, kind: type[M]) -> M:
    """The query. Raises ApiError, likewise; also for a field that comes twice."""
    given = call.request.query_params.multi_items()
    names = [name for name, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ApiError(400, "invalid_request", f"{twice!r:.100} is there more than once", param=twice[:100])
    try:
        return kind.model_validate_strings(dict(given))
    except ValidationError as error:
        raise _wrong(error, "the query") from None


def _wrong(error: ValidationError, where: str) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field, message = ".".join(map(str, first["loc"]))[:100], first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return ApiError(400, "invalid_json", f"{where} is not JSON: {message.partition(': ')[2] or message}")
    if first["type"] == "extra_forbidden":
        message = "there is no such field"
    return ApiError(400, "invalid_request", f"{field or where}: {message}", param=field)


def answered(model: BaseModel, status: int = 200) -> Response:
    """The model as JSON."""
    try:
        data = model.model_dump_json().encode()
    except ValueError:  # half of a surrogate pair, as in the name of a file that is not UTF-8
        data = json.dumps(model.model_dump()).encode()
    return Response(data, status, media_type="application/json")


async def waited(do: Callable[[], T]) -> T:
    """Run what blocks on a thread, with a deadline."""
    async with asyncio.timeout(ANSWER_SECONDS):
        return await asyncio.to_thread(do)


def path_step(call: HttpCall) -> int:
    """The step of the path. Raises ApiError for more than a request can have."""
    step = int(call.path("step"))
    if step >= 2**31:
        raise not_found("there is no such step")
    return step


async def known_request(call: HttpCall, least: int = MIN_CHARS) -> str:
    """The request of the path, by its id or by the first characters of it, at least so many. Raises ApiError where this
    tenant has no such request, running or recorded, and where several begin so."""
    given, runtime = call.path("request_id"), call.tenant.runtime
    found = await waited(lambda: given if is_known(runtime, given) else _request_like(runtime, given, least))
    if found is None:
        short = f": {least} characters of an id are needed" if len(given) < least else ""
        raise not_found(f"there is no such request{short}")
    return found


def is_known(runtime: Runtime, request_id: str) -> bool:
    """Is there a request of this id, running or recorded? It waits for the journal."""
    if runtime.open_request(request_id) is not None:
        return True
    if runtime.settings.journal is None:
        return False
    try:
        runtime.journal.request(request_id)
    except UsageError:
        return False
    return True


def _request_like(runtime: Runtime, given: str, least: int) -> str | None:
    is_open = [each.request_id for each in runtime.open_requests()]
    with one_of_them():
        if runtime.settings.journal is None:
            found = whole_id(given, lambda _: is_open, "request", least)
        else:
            found = runtime.journal.whole_request_id(given, is_open, least)
    return None if found == given else found


@contextlib.contextmanager
def one_of_them(param: str = "") -> Iterator[None]:
    """Several ids that begin so are an ApiError. `param`: the field of the body that has the beginning."""
    try:
        yield
    except AmbiguousId as error:
        raise ApiError(409, "ambiguous_id", said(error), param=param) from None
