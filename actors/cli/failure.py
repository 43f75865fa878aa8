"""What a command failed with, for people and for programs: a sentence, a kind and an exit status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from callboard.actors.cli import FAILED, INTERRUPTED, USAGE
from callboard.actors.cli.arguments import WrongArguments
from callboard.protocol.errors import (
    CallboardError,
    ErrorKind,
    ProviderError,
    UsageError,
    missing_extra,
)
from callboard.protocol.masking import for_log

#: The kinds of failures that no provider has; those of providers are ErrorKind's.
USAGE_KIND, RUNTIME_KIND, SYSTEM_KIND, EXTRA_KIND = "usage", "runtime", "system", "missing_extra"
_FAULT_HINT = "this is a fault in callboard; for the traceback: python -X dev -m callboard.actors.cli ..."


class Failure(NamedTuple):
    """Why a command did not do what it was asked."""

    exit_status: int
    kind: str
    message: str
    status: int | None = None
    """The HTTP status, where a server answered with one."""
    usage: str = ""
    """Shown before the message."""

    def as_json(self) -> Mapping[str, object]:
        """The value of `error` in what --json prints."""
        return {"kind": self.kind, "message": self.message, "status": self.status}


def failure_of(error: BaseException) -> Failure:
    """The failure that an exception means. What looks like a key in its message is masked."""
    failure = _failure_of(error)
    return failure._replace(message=for_log(failure.message))


def _failure_of(error: BaseException) -> Failure:
    match error:
        case WrongArguments():
            return Failure(USAGE, USAGE_KIND, str(error), usage=error.usage)
        case UsageError():
            return Failure(USAGE, USAGE_KIND, str(error))
        case ProviderError():
            return Failure(FAILED, error.kind, str(error), error.status or None)
        case CallboardError():
            return Failure(FAILED, RUNTIME_KIND, str(error))
        case KeyboardInterrupt():
            return Failure(INTERRUPTED, "interrupted", "interrupted")
        case ModuleNotFoundError() if not (error.name or "").startswith("callboard"):
            return Failure(FAILED, EXTRA_KIND, missing_extra(f"this command ({error})", "cli"))
        case OSError():
            where = f": {error.filename}" if error.filename else ""
            return Failure(FAILED, SYSTEM_KIND, f"{error.strerror or error}{where}")
    message = f"internal error: {type(error).__name__}: {error}; {_FAULT_HINT}"
    return Failure(FAILED, ErrorKind.INTERNAL, message)
