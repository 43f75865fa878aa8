"""What a person can do about a model call that failed: a table by the kind of error."""

from __future__ import annotations

from collections.abc import Mapping

from callboard import ErrorKind, ModelCallFailed, Settings
from callboard.protocol.errors import KINDS_OF_ERRORS, ProviderError
from callboard.providers.provider_registry import split_model
from callboard.providers.provider_table import ROWS

_ADVICE: Mapping[ErrorKind, str] = {
    ErrorKind.AUTHENTICATION: "check the key in {variable}",
    ErrorKind.PERMISSION: "check what the key in {variable} may use",
    ErrorKind.BILLING: "check the credit of the account behind {variable}",
    ErrorKind.QUOTA_SPENT: "wait until it comes back, or choose another model with --model",
    ErrorKind.NOT_FOUND: "check the model's name ({model}) and the address (--base-url)",
    ErrorKind.INVALID_REQUEST: "check the model's name ({model})",
    ErrorKind.CONNECTION: "check the address (--base-url), the proxy where one is set, and that a server runs there",
    ErrorKind.TIMEOUT: "check the address (--base-url), or try again",
    ErrorKind.MALFORMED: "check that --base-url is the address of the API, with /v1 if it has one",
    ErrorKind.TRUNCATED: "try again",
    ErrorKind.RATE_LIMITED: "wait, or choose another model with --model",
    ErrorKind.OVERLOADED: "wait, or choose another model with --model",
    ErrorKind.SERVER: "try again later, or choose another model with --model",
    ErrorKind.CONTEXT_LENGTH: "another model is chosen with --model",
    ErrorKind.REQUEST_TOO_LARGE: "ask about less, or choose another model with --model",
    ErrorKind.TOOLS_UNSUPPORTED: "choose a model that takes tools with --model",
    ErrorKind.SCHEMA_UNSUPPORTED: "choose a model that takes a JSON Schema with --model",
    ErrorKind.UNSUPPORTED: "leave that out, or choose another model with --model",
    ErrorKind.CONTENT_FILTER: "ask in other words, or choose another model with --model",
    ErrorKind.MALFORMED_TOOL_CALL: "try again, or choose another model with --model",
    ErrorKind.CANCELLED: "ask again",
    ErrorKind.INTERNAL: "this is a fault in callboard: ask again, and report it",
    ErrorKind.OTHER: "run `callboard doctor` to see what is set up",
}


#: Of these the library's own advice stays: what is said here comes besides.
_SAID_BESIDES = (ErrorKind.CONTEXT_LENGTH, ErrorKind.TOOLS_UNSUPPORTED, ErrorKind.SCHEMA_UNSUPPORTED)


def advice(kind: ErrorKind, model: str) -> str:
    """What to do, in a few words. `model` is provider/model."""
    provider, _ = split_model(model)
    row = ROWS[provider]
    variable = " or ".join(filter(None, (row.key_variable, row.sign_in))) or "CALLBOARD_API_KEY"
    return _ADVICE[kind].format(variable=variable, model=model)


def advised(failure: ModelCallFailed, settings: Settings) -> ProviderError:
    """The failure with what to do about it, in one sentence."""
    told = str(failure).rstrip(".")
    if failure.kind not in _SAID_BESIDES:
        told = told.removesuffix(f"; {KINDS_OF_ERRORS[failure.kind].todo}")
    message = f"{settings.model} did not answer: {told}; {advice(failure.kind, settings.model)}"
    return ProviderError(failure.kind, message, status=failure.status, retry_after_seconds=failure.retry_after_seconds)
