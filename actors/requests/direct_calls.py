"""One call of a tool without a model: what may be said with it, and what comes of it (`Runtime.call_tool`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final, TypedDict, cast

import orjson
from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.requests.asking import AskOptions
from callboard.actors.requests.replies import Answer, Reply, RequestEnded, Seen
from callboard.actors.requests.tool_selection import ALL
from callboard.actors.tools.invoke import safe_text
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.content import ToolCall, ToolMessage, json_text
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, RequestId, ToolName
from callboard.protocol.options import RequestOptions
from callboard.protocol.tools import FailureCode, ToolFailure

#: Of the one call of the request: a request's calls are told apart by it.
CALL_ID: Final = CallId("call")
#: Objects in each other that orjson reads; more is no arguments of any tool.
_MAX_DEPTH_SAID: Final = "254"


class CallOptions(TypedDict, total=False):
    """What may be said with one call besides its tool and arguments."""

    timeout: float
    """Seconds from now to the end of the request, without those in which it only waits for an approval or a deferred
    result. The tool's own deadline holds within it."""
    approval_timeout: float
    """Seconds for which the call waits for its approval; then it is denied."""
    metadata: Mapping[str, str]
    """Goes into log records and spans."""
    request_id: str
    """Names the request, so that it can be cancelled; "" makes one up."""


class CallResult(Struct, frozen=True):
    """What a call of a tool came to."""

    name: ToolName
    request_id: RequestId
    content: str
    """As a model reads it: the result (a text as it is, anything else as JSON), or the failure as JSON."""
    failure: ToolFailure | None = None
    """Why there is no result; None where there is one."""

    @property
    def ok(self) -> bool:
        """Has it a result?"""
        return self.failure is None

    @property
    def data(self) -> object:
        """The content read as JSON; the content itself where it is none."""
        try:
            found: object = orjson.loads(self.content)
        except orjson.JSONDecodeError:
            return self.content
        return found


def tool_call(name: str, arguments: Mapping[str, object] | None) -> ToolCall:
    """The call. Raises UsageError for what no model could send either."""
    if not isinstance(name, str) or not name:
        said = getattr(name, "__name__", None) or getattr(name, "name", None)
        hint = f'; write "{said}"' if isinstance(said, str) else ""
        raise UsageError(f"call_tool needs the name of a tool, not {safe_text(repr, name, 100)}{hint}")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise UsageError(f"{name}: arguments must be a mapping of names to values, not {type(arguments).__name__}")
    given = dict(arguments or {})
    try:
        orjson.dumps(given)
    except TypeError as error:
        raise UsageError(
            f"{name}: the arguments cannot be written as JSON ({error}, at most {_MAX_DEPTH_SAID} levels deep)"
        ) from None
    return ToolCall(CALL_ID, ToolName(name), json_text(given))


def said_with(call: ToolCall, options: CallOptions) -> AskOptions:
    """The options as those of a question. Raises UsageError for one that there is not."""
    for name in options:
        if name not in CallOptions.__annotations__:
            known = ", ".join(CallOptions.__annotations__)
            raise UsageError(
                f"call_tool({call.name!r}): there is no option {name!r}; there are {known}, on_progress; what the tool "
                f'takes goes into arguments: {{"{name}": ...}}'
            )
    given: AskOptions = {"tools": (ALL,)}
    given.update(cast(AskOptions, options))
    return given


def direct_options(options: RequestOptions) -> RequestOptions:
    """Those that matter without a model: no budget ends the request before its call."""
    return RequestOptions(
        options.model,
        timeout_seconds=options.timeout_seconds,
        approval_timeout_seconds=options.approval_timeout_seconds,
    )


def result_of(name: ToolName, reply: Reply[object], ended: RequestEnded | None = None) -> CallResult:
    """What the call of this request came to. Raises `ended`, with which the request did, where it has no result."""
    last = next((message for message in reply.messages if isinstance(message, ToolMessage)), None)
    if last is None:
        raise ended if ended is not None else AssertionError(f"{name}: the request ended without its call's result")
    result = CallResult(name, reply.request_id, last.content)
    return replace(result, failure=_failure(last, reply)) if last.is_error else result


def _failure(message: ToolMessage, reply: Reply[object]) -> ToolFailure:
    """With its traceback where the reply has it, else as the model reads it."""
    if reply.failures:
        return reply.failures[-1]
    wire = orjson.loads(message.content)
    told = {field: wire[field] or "" for field in ("message", "field", "expected", "received", "retry_hint")}
    return ToolFailure(message.name, FailureCode(wire["code"]), **told)


class ProgressListener:
    """Hears a request's session for one who wants the progress of its call; runs on the loop thread."""

    def __init__(
        self, answer: Answer[str], tell: Callable[[ToolProgressed], object], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._answer = answer
        self._tell = tell
        self._loop = loop

    def __call__(self, seen: Seen) -> None:
        self._answer(seen)
        if isinstance(seen, ToolProgressed):
            with contextlib.suppress(RuntimeError):  # the listener's loop is closed: it waits for nothing any more
                self._loop.call_soon_threadsafe(self._tell, seen)
