"""All errors of callboard, by whose fault they are.

    CallboardError
    |- UsageError        the caller of callboard: bad input, settings, an unknown name. Nothing was changed.
    |  '- ProtocolError  an event that is illegal in the state it came in
    |- ProviderError     the model API; `kind` says what happened, `retryable` whether trying again can help
    |- ToolError         a tool; raised by tools themselves to tell the model what went wrong
    '- RuntimeFailure    callboard itself: a deadline passed, an actor was lost, a queue was full
       '- OutcomeUnknown no refusal: what was asked for may have been done, or be done later

`retryable` is a fact of the class or the kind, never of the wording of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")


class CallboardError(Exception):
    """Base of all errors that callboard raises on purpose."""

    retryable: bool = False


class UsageError(CallboardError):
    """The caller's fault. The message says what was wrong and what to do; nothing was changed."""


class ProtocolError(UsageError):
    """An event that is illegal in this state. The state is as it was before."""

    def __init__(self, state: str, event: object, reason: str = "") -> None:
        self.state = state
        self.event = type(event).__name__
        super().__init__(f"{self.event} is illegal in state {state}" + (f": {reason}" if reason else ""))


class ErrorKind(StrEnum):
    """What went wrong with a provider."""

    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    BILLING = "billing"
    """No credit, or an account that may not pay: waiting does not help."""
    QUOTA_SPENT = "quota_spent"
    """The allowance of a day, a month or a plan is used up: it comes back by itself, later than we wait."""
    NOT_FOUND = "not_found"
    INVALID_REQUEST = "invalid_request"
    CONTEXT_LENGTH = "context_length"
    REQUEST_TOO_LARGE = "request_too_large"
    TOOLS_UNSUPPORTED = "tools_unsupported"
    """The model or its route takes no tools (404 "No endpoints found that support tool use" and its kin)."""
    SCHEMA_UNSUPPORTED = "schema_unsupported"
    """The model takes no JSON Schema of the answer, or not this one."""
    UNSUPPORTED = "unsupported"
    """The model or its server cannot do something else that was asked for: pictures, sound, thinking, this endpoint."""
    CONTENT_FILTER = "content_filter"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    SERVER = "server"
    TIMEOUT = "timeout"
    """No byte for the idle time, or the whole stream took too long."""
    CONNECTION = "connection"
    TRUNCATED = "truncated"
    """The stream ended without its terminal event."""
    MALFORMED = "malformed"
    """Not the bytes that the API promises: HTML, half JSON, an endless line."""
    MALFORMED_TOOL_CALL = "malformed_tool_call"
    CANCELLED = "cancelled"
    INTERNAL = "internal_error"
    """A fault of callboard's own. The request it is about ends with it, and nothing else does."""
    OTHER = "other"


class KindOfError(NamedTuple):
    """What follows from the kind of an error, for everything that decides by it: the retry policy, the choice of a
    fallback, the words that a user reads, the table of docs/providers.md."""

    means: str
    todo: str = ""
    """What the user can do, where that is not plain; said in the error's message."""
    is_retried: bool = False
    """Can asking the same model again help?"""
    is_waited: bool = False
    """Is the wait that the server's words name kept? A header's always is."""
    has_fallback: bool = False
    """Can another model do better? A bad request or a wrong key would fail there for its own reasons, unseen."""


_K: Final = ErrorKind
KINDS_OF_ERRORS: Final[Mapping[ErrorKind, KindOfError]] = MappingProxyType(
    {
        _K.AUTHENTICATION: KindOfError(
            "the key is missing, wrong or has expired",
            "check the provider's key: `api_key`, `connections`, or its variable",
        ),
        _K.PERMISSION: KindOfError("the key may not use this", "check what the key may use at this provider"),
        _K.BILLING: KindOfError(
            "no credit, or no way to pay",
            "add credit to the key's account, or name a model of another one in `fallback_models`",
            has_fallback=True,
        ),
        _K.QUOTA_SPENT: KindOfError(
            "the allowance of a day, a month or a plan is used up",
            "wait until it comes back, or name another model in `fallback_models`",
            has_fallback=True,
        ),
        _K.NOT_FOUND: KindOfError(
            "no such model or address, or one that was retired",
            "check the model's name and the `base_url`",
            has_fallback=True,
        ),
        _K.INVALID_REQUEST: KindOfError("the server refuses the request as it is"),
        _K.CONTEXT_LENGTH: KindOfError(
            "the prompt is longer than the model's window; it is cut, and asked once more",
            "ask for less at once, begin a new conversation, or use a model with a larger context",
        ),
        _K.REQUEST_TOO_LARGE: KindOfError(
            "the request has more bytes than the server takes", "send less at once: smaller files and pictures"
        ),
        _K.TOOLS_UNSUPPORTED: KindOfError(
            "the model takes no tools; it is asked once more without",
            'use a model that takes tools, or tool_fallback "retry_without_tools" with max_attempts of 2 or more',
        ),
        _K.SCHEMA_UNSUPPORTED: KindOfError(
            "the model takes no such JSON Schema; it is asked in another way",
            "leave the output's mode open, or choose another one: tool, prompt",
        ),
        _K.UNSUPPORTED: KindOfError(
            "the model or its server cannot do it: pictures, sound, thinking, this API",
            "leave that out, or use a model that can do it",
            has_fallback=True,
        ),
        _K.CONTENT_FILTER: KindOfError("the provider's filter took the prompt", "ask in other words"),
        _K.RATE_LIMITED: KindOfError(
            "too many requests or tokens a minute", is_retried=True, is_waited=True, has_fallback=True
        ),
        _K.OVERLOADED: KindOfError("the server has no room now", is_retried=True, is_waited=True, has_fallback=True),
        _K.SERVER: KindOfError("a fault of the server", is_retried=True, is_waited=True, has_fallback=True),
        _K.TIMEOUT: KindOfError(
            "no byte for 90 s, or more than 600 s in all", is_retried=True, is_waited=True, has_fallback=True
        ),
        _K.CONNECTION: KindOfError("refused, reset, broken off", is_retried=True, has_fallback=True),
        _K.TRUNCATED: KindOfError("the answer ended early", is_retried=True, has_fallback=True),
        # The numbers are of protocol.limits, which a program that only imports callboard does not load.
        _K.MALFORMED: KindOfError("HTML, broken JSON, an endless line, more than 128 calls in a turn or 8 MiB"),
        _K.MALFORMED_TOOL_CALL: KindOfError("the model wrote a call that the server could not read", is_retried=True),
        _K.CANCELLED: KindOfError("the response was cancelled at the server"),
        _K.INTERNAL: KindOfError("a fault of callboard; the request ends, nothing else does"),
        _K.OTHER: KindOfError("an error that nothing more is known of"),
    }
)
RETRYABLE_KINDS: Final = frozenset(kind for kind, facts in KINDS_OF_ERRORS.items() if facts.is_retried)
#: A model that failed so has its fallback asked.
FALLBACK_KINDS: Final = frozenset(kind for kind, facts in KINDS_OF_ERRORS.items() if facts.has_fallback)
#: A model call that failed so can be asked again as it is, where its holder has left some of the step's requests.
ASK_AGAIN_KINDS = frozenset({ErrorKind.TRUNCATED, ErrorKind.MALFORMED_TOOL_CALL})


class ProviderError(CallboardError):
    """The model API refused, failed or broke off."""

    def __init__(
        self, kind: ErrorKind, message: str, *, status: int = 0, retry_after_seconds: float | None = None
    ) -> None:
        self.kind = kind
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.retryable = kind in RETRYABLE_KINDS
        super().__init__(message)


class ToolError(CallboardError):
    """Raise it in a tool to tell the model what went wrong; its text is shown to the model as it is.

    With `field`, the path of an argument ("path", "edits.0.file"), the call counts as one with invalid arguments.
    `expected` and `received` say what was wrong with it, `retry_hint` what the model can do now, where that is more
    than to correct the argument.
    """

    def __init__(
        self, message: str = "", *, field: str = "", expected: str = "", received: str = "", retry_hint: str = ""
    ) -> None:
        super().__init__(message)
        self.field = field
        self.expected = expected
        self.received = received
        self.retry_hint = retry_hint


class RuntimeFailure(CallboardError):
    """callboard could not finish: the request's deadline, limits, a lost actor, a full queue."""


class OutcomeUnknown(RuntimeFailure):
    """No refusal: what was asked for may have been done, or be done later. Other RuntimeFailures say that it was not.

    Asking again with the same id (`request_id`, or that of the call) does nothing twice.
    """

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id
        """Of a request that may have begun; "" where it is about something else."""


def with_advice(kind: ErrorKind, message: str) -> str:
    """An error's message, and what can be done about it where that is not plain."""
    todo = KINDS_OF_ERRORS[kind].todo
    return f"{message.rstrip('.')}; {todo}" if todo else message


def said(error: BaseException) -> str:
    """What an error says, with its type where it is not one of ours; also where its `__str__` fails."""
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - of a class of a user
        text = f"(its __str__ raised {type(broken).__name__})"
    return text if isinstance(error, CallboardError) else f"{type(error).__name__}: {text}"


def missing_extra(what: str, extra: str) -> str:
    """The sentence for a package that is not installed. callboard is installed from a clone, and so are its extras."""
    return f"{what} needs the extra {extra!r}; in the clone of callboard, type: pip install -e '.[{extra}]'"


def explained(
    explain: Callable[[Callable[..., object], tuple[object, ...], Mapping[str, object]], UsageError],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: where the function is called with arguments that it does not take, the UsageError that `explain`
    makes of function and arguments takes the place of Python's TypeError."""

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        made: Any = call

        @wraps(call)
        def checked(*args: P.args, **options: P.kwargs) -> R:
            try:
                return call(*args, **options)
            except TypeError as error:
                if not _is_about_arguments(error):
                    raise
            raise explain(call, args, options)

        @wraps(call)
        async def checked_async(*args: P.args, **options: P.kwargs) -> object:
            try:
                answer = made(*args, **options)
            except TypeError as error:
                if not _is_about_arguments(error):
                    raise
                answer = None
            if answer is None:
                raise explain(call, args, options)
            return await answer

        is_async = made.__code__.co_flags & _CO_COROUTINE
        found: Callable[P, R] = checked_async if is_async else checked  # type: ignore[assignment]
        return found

    return decorate


#: inspect.CO_COROUTINE, without loading inspect.
_CO_COROUTINE: Final = 0x80


def _is_about_arguments(error: TypeError) -> bool:
    """It comes of the call itself: no line of the function has run."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None
