"""One call of a tool, where it runs: arguments in as JSON text, result out as JSON text or as a failure.

Validators, properties and serialisers are code of the tool's author and run here too, never on the control loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError

from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.schema import Signature
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.tools import FailureCode, ToolFailure

#: Of an exception's text and of a wrong argument, what a model can use.
MAX_MESSAGE_CHARS: Final = 2_000
MAX_RECEIVED_CHARS: Final = 200
#: Wrong arguments told of in one failure.
MAX_FAULTS: Final = 5

Result = str | ToolFailure
"""The result's JSON text, or why there is none."""


class Refused(Exception):
    """The arguments are not the tool's; nothing was run."""

    def __init__(self, failure: ToolFailure) -> None:
        self.failure = failure
        super().__init__(failure.message)


class Invoker:
    """A tool, ready to be called again and again."""

    __slots__ = ("_arguments", "_context_parameter", "_function", "_name", "_result")

    def __init__(self, name: str, function: Callable[..., Any], signature: Signature) -> None:
        self._name = ToolName(name)
        self._function = function
        self._arguments = signature.arguments.validator
        self._context_parameter = signature.context_parameter
        self._result = signature.result

    def touch(self) -> None:
        """Use what a call uses without running any of the tool's code: no JSON gets past the parser."""
        with contextlib.suppress(ValidationError):
            self._arguments.validate_json("")

    def call(self, arguments: str, context: ToolContext) -> Result:
        """Run a `def`. Whatever it raises, SystemExit and its kin too, is one failure."""
        try:
            return self._written(self._function(**self._bound(arguments, context)))
        except BaseException as error:  # noqa: BLE001 - I10: one tool dying in any way is one failed result
            return self._failure_of(error)

    async def call_async(self, arguments: str, context: ToolContext) -> Result:
        """Run an `async def`. A CancelledError is a failure like any other: who cancelled knows that he did."""
        try:
            return self._written(await self._function(**self._bound(arguments, context)))
        except BaseException as error:  # noqa: BLE001 - as above
            return self._failure_of(error)

    def lost(self) -> ToolFailure:
        """The result of a call that was given up: whatever ran it does not answer."""
        return self._failure(FailureCode.CRASHED, "the tool did not end when it was asked to, and was abandoned")

    def _bound(self, arguments: str, context: ToolContext) -> dict[str, Any]:
        try:
            bound: dict[str, Any] = self._arguments.validate_json(arguments)
        except ValidationError as error:
            raise Refused(invalid_arguments(self._name, error)) from None
        if self._context_parameter:
            bound[self._context_parameter] = context
        return bound

    def _written(self, value: Any) -> Result:
        try:
            written = self._result.dump_json(self._result.validate_python(value))
        except ValidationError as error:
            fault = _fault(error.errors()[0], "its result")
            return self._failure(FailureCode.INVALID_RESULT, f"the tool did not return what it declares: {fault}")
        except (PydanticSerializationError, ValueError) as error:
            return self._failure(
                FailureCode.INVALID_RESULT,
                f"the tool's result ({type(value).__name__}) cannot be written as JSON: {shortened(str(error))}",
            )
        if len(written) > MAX_RESULT_BYTES:
            return self._failure(
                FailureCode.RESULT_TOO_LARGE,
                f"the result has {len(written):,} bytes; at most {MAX_RESULT_BYTES:,} can be sent",
                retry_hint="ask for less: a narrower query, a range, a page",
            )
        return written.decode()

    def _failure_of(self, error: BaseException) -> ToolFailure:
        match error:
            case Refused():
                return error.failure
            case ToolError():
                return self._failure(FailureCode.TOOL_ERROR, shortened(str(error)))
            case SystemExit():
                return self._failure(FailureCode.CRASHED, f"the tool called sys.exit({error.code!r})")
            case MemoryError():
                return self._failure(FailureCode.CRASHED, "the tool ran out of memory (MemoryError)")
            case _:
                return self._failure(FailureCode.TOOL_ERROR, shortened(text_of(error)))

    def _failure(self, code: FailureCode, message: str, retry_hint: str = "") -> ToolFailure:
        return ToolFailure(self._name, code, message, retry_hint=retry_hint)


def invalid_arguments(tool: ToolName, error: ValidationError) -> ToolFailure:
    """What was wrong with the arguments, the first fault in detail."""
    faults = error.errors(include_url=False)
    first = faults[0]
    more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
    return ToolFailure(
        tool,
        FailureCode.INVALID_ARGUMENTS,
        "; ".join(_fault(fault) for fault in faults[:MAX_FAULTS]) + more,
        field=_path(first),
        expected=first["msg"],
        received=_received(first),
        retry_hint="correct the arguments by the tool's schema and call it again",
    )


def shortened(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """At most `limit` characters, with a word on what is missing, and all of them fit for UTF-8."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text) - limit:,} characters more)"


def _fault(fault: ErrorDetails, whole: str = "the arguments") -> str:
    return f"{_path(fault) or whole}: {fault['msg']}"


def _path(fault: ErrorDetails) -> str:
    return ".".join(str(part) for part in fault["loc"])


def _received(fault: ErrorDetails) -> str:
    if fault["type"] == "missing":
        return "nothing"
    return shortened(_safe(repr, fault["input"]), MAX_RECEIVED_CHARS)


def text_of(error: BaseException | None) -> str:
    """An exception in words: its class and its text, also where its own __str__ raises."""
    text = _safe(str, error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _safe(write: Callable[[Any], str], value: Any) -> str:
    try:
        return write(value)
    except Exception as error:  # noqa: BLE001 - a __repr__ or __str__ of the tool's own
        return f"<{type(value).__name__}, whose text raises {type(error).__name__}>"
