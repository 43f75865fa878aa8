"""One call of a tool, where it runs: arguments in as JSON text, result out as text or as a failure.

A result that JSON writes as a string (a str, a date, a path) goes out as that string, without quotes and escapes, which
would cost the model 12% more tokens on code; everything else goes out as JSON.

Validators, properties and serialisers are code of the tool's author and run here too, never on the control loop.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec.structs import replace

from callboard.actors.tools.context import OpenResource, Report, ToolContext
from callboard.actors.tools.schema import RESOURCE_PARAMETER, Signature
from callboard.actors.tools.tracebacks import told_of
from callboard.protocol.content import byte_size, not_finite
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import ToolName
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.masking import LONGEST_KEY_BYTES, ForModel, mask
from callboard.protocol.tools import Deferred, FailureCode, ToolFailure

if TYPE_CHECKING:
    import asyncio
    import difflib

    import pydantic_core
    from pydantic import TypeAdapter
else:
    asyncio = lazy_module("asyncio")
    difflib = lazy_module("difflib")
    pydantic_core = lazy_module("pydantic_core")

#: Of an exception's text and of a wrong argument, what a model can use.
MAX_MESSAGE_CHARS: Final = 2_000
MAX_RECEIVED_CHARS: Final = 200
#: Wrong arguments told of in one failure.
MAX_FAULTS: Final = 5

#: For the model, where the place in which the tool runs does not allow what it tried.
_REFUSED_HINT: Final = "It will be refused again. Use another tool, or go on without it."
#: For the model, where the fault is in the tool and its body did not run.
_BROKEN_HINT: Final = "The tool itself is at fault. Use another tool, or go on without it."
#: For the model, where what the tool needs did not open.
_UNOPENED_HINT: Final = "The tool's code did not run. Send it again later, use another tool, or go on without it."
#: What libraries say of an object of asyncio's (a lock, a session, a pool) that belongs to another event loop.
_OTHER_LOOP: Final = re.compile(
    r"\b(to|in|on|by|with|within|from) (a |an |the )?(different|another|wrong|same|current) (event )?loop\b"
    r"|event loop is closed"
    r"|should be used inside a task|cancel scope in a different task|another operation is in progress"
    r"|non-thread-safe operation",
    re.IGNORECASE,
)
#: For who wrote the tool.
LOOP_ADVICE: Final = (
    "an asyncio object (a lock, a session, a pool) belongs to one event loop, and async tools run on one of "
    'callboard\'s own: @tool(isolation="caller") runs a tool on the loop that asks, @tool(resource=...) opens what it '
    "needs where it runs (docs/tools.md)"
)
#: Of an exception, those looked at that it came of.
_MAX_CAUSES: Final = 8
#: What a type may write for NaN and infinity, besides null: a word that is JSON only as a text.
_NAMES: Final = re.compile(rb"NaN|Infinity")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: What models call some arguments of our own tools, as other programs name theirs.
MEANT: Final[Mapping[str, frozenset[str]]] = {
    "queries": _words("hint hints query question questions q text texts search search_terms terms prompt"),
    "query": _words("queries pattern regexp search text q"),
    "path": _words("file filename file_name file_path filepath dir directory folder root target"),
    "paths": _words("files file_paths filenames path file"),
    "command": _words("cmd line shell script bash code"),
    "cwd": _words("dir directory folder workdir working_dir working_directory path"),
    "timeout_seconds": _words("timeout timeout_ms seconds max_seconds"),
    "max_seconds": _words("timeout timeout_ms seconds timeout_seconds"),
    "start_line": _words("start line from offset begin first_line line_start"),
    "end_line": _words("end to limit last_line line_end"),
    "name": _words("symbol identifier item query pattern"),
    "token_budget": _words("max_tokens tokens budget limit k"),
    "content": _words("text body contents file_text"),
    "patch": _words("diff input text content"),
}

Result = str | ToolFailure | Deferred
"""The result as the model reads it, why there is none, or that it comes from outside."""


Explain = Callable[[BaseException], str]
"""What the place where a tool runs has to do with an exception that it raised; "" where nothing."""


class Refused(Exception):
    """The arguments are not the tool's; nothing was run."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class ResourceFailed(Exception):
    """What the tool needs could not be opened, for the reason that is its `__cause__`."""

    def __init__(self, opened_by: str) -> None:
        super().__init__(f"its resource, by {opened_by}, could not be opened")


class Invoker:
    """A tool, ready to be called again and again."""

    __slots__ = (
        "_arguments", "_context_parameter", "_explain", "_function", "_known", "_name", "_optional", "_resource",
        "_result",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        signature: Signature,
        resource: Callable[[], object] | None = None,
        explain: Explain = lambda _: "",
    ) -> None:
        """`resource` opens what the function gets as its parameter of that name (tools/resources.py)."""
        self._explain = explain
        self._resource = resource
        self._name = ToolName(name)
        self._function = function
        self._arguments = signature.arguments.validator
        self._optional = signature.optional
        self._context_parameter = signature.context_parameter
        self._result = signature.result
        self._known = tuple([each.shown for each in signature.parameters])

    @property
    def needs_resource(self) -> bool:
        """Has the context of a call to have where that is kept?"""
        return self._resource is not None

    def touch(self) -> None:
        """Use what a call uses without running any of the tool's code: no JSON gets past the parser."""
        with contextlib.suppress(pydantic_core.ValidationError):
            self._arguments.validate_json("")

    def call(self, arguments: str, context: ToolContext, report: Report | None = None) -> Result:
        """Run a `def`. All that it raises, SystemExit too, becomes one failure. `report` hears its progress."""
        try:
            bound = self._bound(arguments, context, report)
            if self._resource is not None:
                bound[RESOURCE_PARAMETER] = _opener_in(context)(self._resource)
            return self._written(self._function(**bound))
        except BaseException as error:  # noqa: BLE001 - I10: one tool dying in any way is one failed result
            return self._failure_of(error)

    async def call_async(self, arguments: str, context: ToolContext, report: Report | None = None) -> Result:
        """Run an `async def`. A CancelledError is a failure like any other: who cancelled knows that he did. Ctrl-C is
        the program's, where this runs on a loop of its own."""
        try:
            bound = self._bound(arguments, context, report)
            if self._resource is not None:
                bound[RESOURCE_PARAMETER] = await _opener_in(context)(self._resource)
            value = self._function(**bound)
            return self._written(await value if isawaitable(value) else value)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and _is_ctrl_c():
                raise
            return _with_loop_advice(self._failure_of(error), error)

    def fault_of(self, arguments: str) -> ToolFailure | None:
        """What is wrong with these arguments, a JSON text; None when a call would take them."""
        try:
            self._validated(arguments)
        except pydantic_core.ValidationError as error:
            return invalid_arguments(self._name, error, self._known)
        except Exception as error:  # noqa: BLE001 - the types of the tool's author may raise anything
            return self._failure(FailureCode.INVALID_ARGUMENTS, text_of(error))
        return None

    def result_of(self, value: object) -> Result:
        """What a call comes to whose result came from outside, as if the tool had returned it."""
        try:
            return self._written(value)
        except BaseException as error:  # noqa: BLE001 - the types of the tool's author may raise anything
            return self._failure_of(error)

    def _bound(self, arguments: str, context: ToolContext, report: Report | None) -> dict[str, Any]:
        try:
            bound = self._validated(arguments)
        except pydantic_core.ValidationError as error:
            raise Refused(invalid_arguments(self._name, error, self._known)) from None
        if self._context_parameter:
            bound[self._context_parameter] = context if report is None else context.reporting(report)
        return bound

    def _validated(self, arguments: str) -> dict[str, Any]:
        """null where there is a default is that default, unless the type takes None."""
        found: dict[str, Any]
        try:
            found = self._arguments.validate_json(arguments)
        except pydantic_core.ValidationError as error:
            nulls = {
                each["loc"][0] for each in error.errors(include_url=False) if each["input"] is None and each["loc"]
            }
            nulls &= self._optional
            given = pydantic_core.from_json(arguments) if nulls else {}  # NaN and large numbers too, as pydantic does
            left = {name: value for name, value in given.items() if value is not None or name not in nulls}
            if len(left) == len(given):
                raise
            found = self._arguments.validate_json(pydantic_core.to_json(left, inf_nan_mode="constants"))
        return found

    def _written(self, value: object) -> Result:
        if type(value) is Deferred:
            return value
        if isawaitable(value):
            return self._not_awaited(value)
        # Each item is a byte at least. (isinstance(value, Sized) would look through all subclasses: 1 ms in a fork; and
        # hasattr finds the length of an Enum class at its members, which have none.)
        if length_hint(value) > MAX_RESULT_BYTES:
            return self._too_large(f"more than {MAX_RESULT_BYTES:,}")
        try:
            # A mapping in place of a model may have the names of either side.
            checked = self._result.validate_python(value, by_alias=True, by_name=True)
            written = self._result.dump_json(checked, by_alias=True)
            wrong = _no_json_number(self._result, checked, written)
        except pydantic_core.ValidationError as error:
            fault = _fault(error.errors()[0], "its result")
            return self._failure(FailureCode.INVALID_RESULT, f"the tool did not return what it declares: {fault}")
        except (pydantic_core.PydanticSerializationError, ValueError) as error:
            why = f"the tool's result ({type(value).__name__}) cannot be written as JSON: {safe_text(str, error)}"
            return with_traceback(self._failure(FailureCode.INVALID_RESULT, why), error)
        if wrong:
            why = f"the tool's result has {wrong}, which JSON has not; it must return None or a text in its place"
            return self._failure(FailureCode.INVALID_RESULT, why)
        shown = str(orjson.loads(written)) if written.startswith(b'"') else written.decode()
        if len(written) > MAX_RESULT_BYTES and (size := byte_size(shown)) > MAX_RESULT_BYTES:
            return self._too_large(f"{size:,}")
        return shown

    def _not_awaited(self, value: object) -> ToolFailure:
        if iscoroutine(value):
            value.close()
        why = (
            f"the tool returned a {type(value).__name__}, which no one awaits, so its body did not run: it must be an "
            "`async def`, or await it itself"
        )
        return ToolFailure(self._name, FailureCode.INVALID_RESULT, why, retry_hint=_BROKEN_HINT)

    def _too_large(self, size: str) -> ToolFailure:
        why = f"the result has {size} bytes; at most {MAX_RESULT_BYTES:,} can be sent"
        return self._failure(FailureCode.RESULT_TOO_LARGE, why)

    def _failure_of(self, error: BaseException) -> ToolFailure:
        if isinstance(error, Refused):
            return error.failure
        match error:
            case ToolError():
                failed = self._told(error)
            case SystemExit():
                failed = self._failure(FailureCode.CRASHED, f"the tool called sys.exit({safe_text(repr, error.code)})")
            case ResourceFailed():
                why = f"{error}: {text_of(error.__cause__)}"
                failed = ToolFailure(self._name, FailureCode.TOOL_ERROR, why, retry_hint=_UNOPENED_HINT)
            case MemoryError():
                failed = self._failure(FailureCode.CRASHED, "the tool ran out of memory (MemoryError)")
            case _:
                failed = self._failure(FailureCode.TOOL_ERROR, text_of(error))
        if why := self._explain(error):
            failed = replace(failed, message=f"{failed.message}; {shortened(why)}", retry_hint=_REFUSED_HINT)
        return with_traceback(failed, error)

    def _told(self, error: ToolError) -> ToolFailure:
        """What the tool itself says went wrong. A subclass of a user's may have left our fields out, or hold anything
        in them."""
        names = ("field", "expected", "received", "retry_hint")
        given = {name: safe_text(str, vars(error).get(name, "")) for name in names}
        code = FailureCode.INVALID_ARGUMENTS if given["field"] else FailureCode.TOOL_ERROR
        return ToolFailure(self._name, code, safe_text(str, error), **given)

    def _failure(self, code: FailureCode, message: str) -> ToolFailure:
        return ToolFailure(self._name, code, message)


def _opener_in(context: ToolContext) -> OpenResource:
    if context.open_resource is None:
        raise AssertionError("a worker has run a tool with a resource and keeps none")
    return context.open_resource


def _is_ctrl_c() -> bool:
    """Can a KeyboardInterrupt come from outside here? Within `asyncio.run`, that cancels the program's task instead."""
    on_main = threading.current_thread() is threading.main_thread()
    return on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _with_loop_advice(failed: Result, error: BaseException) -> Result:
    """The failure of an async tool on a loop of ours, with what to do where it used something of another event loop."""
    if not isinstance(failed, ToolFailure) or isinstance(error, ToolError | Refused) or not _is_of_other_loop(error):
        return failed
    if getattr(asyncio.get_running_loop(), "is_of_host", True):
        return failed
    return replace(failed, message=f"{failed.message}; {LOOP_ADVICE}")


def _is_of_other_loop(error: BaseException) -> bool:
    todo, seen = [error], 0
    while todo and seen < _MAX_CAUSES:
        each, seen = todo.pop(0), seen + 1
        if _OTHER_LOOP.search(safe_text(str, each)):
            return True
        todo += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
        todo += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return False


def invalid_arguments(tool: ToolName, error: pydantic_core.ValidationError, known: Sequence[str] = ()) -> ToolFailure:
    """What was wrong with the arguments, the first fault in detail. `known`: those that the tool takes."""
    faults = error.errors(include_url=False)
    for fault in faults:
        if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
            fault["msg"] = _no_such_argument(str(fault["loc"][0]), known)
    first = faults[0]
    more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
    return ToolFailure(
        tool,
        FailureCode.INVALID_ARGUMENTS,
        shortened("; ".join(_fault(fault) for fault in faults[:MAX_FAULTS]) + more),
        field=_path(first),
        expected=shortened(first["msg"]),
        received="nothing" if first["type"] == "missing" else safe_text(repr, first["input"], MAX_RECEIVED_CHARS),
    )


def _no_such_argument(name: str, known: Sequence[str]) -> str:
    """Which one may have been meant; else which there are."""
    meant = [each for each in known if name.lower() in MEANT.get(each, ())] or difflib.get_close_matches(name, known, 1)
    if meant:
        return f"there is no such argument; use {meant[0]}"
    return f"there is no such argument; it takes {', '.join(known)}" if known else "it takes no arguments"


def with_traceback(failed: ToolFailure, error: BaseException) -> ToolFailure:
    """The failure that this exception was, for the host: with where it was raised."""
    told = told_of(error)
    return replace(failed, traceback=told.traceback, frames=told.frames)


def shortened(text: str, limit: int = MAX_MESSAGE_CHARS) -> ForModel:
    """At most `limit` characters, with a word on what is missing, and all of them fit for UTF-8.

    Values that look like keys are masked: an exception quotes an address or a header that its tool never meant to show.
    """
    text = text.encode(errors="backslashreplace").decode()
    shown = mask(text[: limit + LONGEST_KEY_BYTES])[:limit]
    return ForModel(shown if len(text) <= limit else f"{shown}... ({len(text) - limit:,} characters more)")


def _fault(fault: pydantic_core.ErrorDetails, whole: str = "the arguments") -> str:
    return f"{_path(fault) or whole}: {shortened(fault['msg'])}"


def _path(fault: pydantic_core.ErrorDetails) -> str:
    return shortened(".".join(str(part) for part in fault["loc"]), MAX_RECEIVED_CHARS)


def _no_json_number(adapter: TypeAdapter[object], value: object, written: bytes) -> str:
    """The first NaN or infinity in a result and where it is, or "". Written as null, it would be lost."""
    if b"null" not in written:
        if _NAMES.search(written) is None:
            return ""
        with contextlib.suppress(orjson.JSONDecodeError):
            orjson.loads(written)
            return ""
    return not_finite(adapter.dump_python(value, by_alias=True))


def text_of(error: BaseException | None) -> str:
    """An exception in words: its class and its text, bounded, also where its own __str__ raises."""
    text = safe_text(str, error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def safe_text(write: Callable[[object], str], value: object, limit: int = MAX_MESSAGE_CHARS) -> str:
    """`str` or `repr` of any object of a user's, bounded."""
    try:
        return shortened(write(value), limit)
    except BaseException as error:  # noqa: BLE001 - a __repr__ or __str__ of the tool's own may raise anything
        return f"<{type(value).__name__}, whose text raises {type(error).__name__}>"
