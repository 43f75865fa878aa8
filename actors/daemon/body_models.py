"""Bodies of requests as pydantic models: read strictly, with errors that name the field in the API's own terms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from callboard.actors.daemon.api_errors import ApiError, bad_field
from callboard.actors.tools.invoke import safe_text

M = TypeVar("M", bound=BaseModel)
Q = TypeVar("Q")
#: A model in the client's words; None: that of the settings (`callboard serve --model`).
ModelField = Annotated[str, Field(min_length=1)] | None
#: Of a body that is read at once: it takes about a millisecond.
SMALL_BYTES: Final = 128 * 1024
#: What all APIs take as the name of a tool (OpenAI, API reference: `tools[].function.name`; Anthropic allows 128).
ToolNameField = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
#: Of the value that was wrong, in the message about it.
_MAX_SHOWN_CHARS: Final = 60
#: Kinds of errors of pydantic's that are about the JSON itself.
_NOT_JSON: Final = "json_invalid"


class ApiBody(BaseModel):
    """The base of them: what the API does not know is ignored, as most servers do; a wrong type is refused."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False, defer_build=True)


class RunTools(ApiBody):
    """The field `callboard` of a body, for what the APIs have no word for."""

    tools: list[str] | None = None
    """Names of the daemon's own tools that may run here for this question; null: all, []: none."""


async def parsed(parse: Callable[[bytes], Q], body: bytes) -> Q:
    """What a parser makes of a body: a large one is read beside the event loop, which others wait for."""
    return parse(body) if len(body) <= SMALL_BYTES else await asyncio.to_thread(parse, body)


def read_body(kind: type[M], body: bytes) -> M:
    """The body as `kind`. Raises ApiError (400), with the field's path as `param`."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        # Each branch of a union says what it missed: the one that came farthest is the one that was meant.
        fault = max(error.errors(include_url=False, include_context=False), key=lambda each: len(each["loc"]))
        if fault["type"] == _NOT_JSON:
            raise ApiError(400, "invalid_json", f"the body is not JSON: {fault['msg']}") from None
        raise _wrong_field(body, fault["loc"], fault["type"], fault["msg"], fault["input"]) from None


def _wrong_field(body: bytes, place: tuple[int | str, ...], fault: str, message: str, given: object) -> ApiError:
    path = ".".join(_path_of(from_json(body), place, is_missing=fault == "missing"))
    said = message.removeprefix("Value error, ")
    if not path:
        return ApiError(400, "invalid_request", f"the body must be a JSON object of the API's: {said}")
    if fault == "missing":
        return bad_field(path, f"{path} is missing")
    shown = safe_text(repr, given, _MAX_SHOWN_CHARS + 1)
    shown = f", not {shown}" if len(shown) <= _MAX_SHOWN_CHARS else ""
    return bad_field(path, f"{path}: {said}{shown}")


def _path_of(document: object, place: tuple[int | str, ...], *, is_missing: bool) -> Iterator[str]:
    """The steps of pydantic's path that are in the document: it names the branches of unions too."""
    at = document
    for step in place:
        if (isinstance(at, dict) and step in at) or (isinstance(at, list) and isinstance(step, int) and step < len(at)):
            at = at[step]  # type: ignore[index]
            yield str(step)
    if is_missing and place:
        yield str(place[-1])
