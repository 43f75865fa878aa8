"""What a tool is to a model and to the runtime, who may run it, and how its failure reads."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import field
from msgspec.structs import force_setattr, replace

from callboard.protocol.content import bad_number, object_fault
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import (
    DEFAULT_TOOL_TIMEOUT_SECONDS,
    DEFAULT_WAIT_SECONDS,
    ERROR_SNIPPET_CHARS,
    MAX_WAIT_SECONDS,
    TOOL_CONCURRENCY,
)
from callboard.protocol.values import Value


class ToolDefinition(Value, frozen=True):
    """What the model sees of a tool."""

    name: ToolName
    description: str
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of an object."""
    strict: bool = False
    deferred: bool = False
    """Not shown to the model from the beginning: it finds the tool by searching (tool_search.py)."""


class ToolSearch(Value, frozen=True):
    """Beside the tools of a model request: what there is to be found (tool_search.py). The tools are right without it:
    they hold our search tool, and what was found so far. It is for an API with a search of its own."""

    name: ToolName
    """Of our search tool."""
    deferred: tuple[ToolDefinition, ...]
    """All of them, also what was found by now; the same all through a request."""


class Isolation(StrEnum):
    """Where a call runs, and so what a deadline can do to it."""

    PROCESS = "process"
    """In a warm child process: killed at its deadline, with all its children."""
    TASK = "task"
    """As an asyncio task on a loop kept for tools: cancelled; a loop that will not end is abandoned and replaced."""
    THREAD = "thread"
    """On a thread, for code that needs the host's objects: it cannot be killed, only abandoned and counted."""
    CALLER = "caller"
    """As an asyncio task on the loop from which the question was asked, for code that needs what the host has there:
    cancelled; the call ends also where the task does not, which is counted."""


class Latency(StrEnum):
    """Pools are apart, so that a long tool never holds up a short one."""

    SHORT = "short"
    LONG = "long"


class Risk(StrEnum):
    """What a tool can do to the world; the policy decides by it who must approve."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"
    UNDECLARED = "undeclared"
    """Its author did not say: it may do anything."""


class Hold(StrEnum):
    """What the kernel keeps a call to beside what its tool declares, where it was found only to read."""

    NONE = ""
    READING = "reading"
    """It writes nothing but in a scratch folder of its own, and connects to nothing. What it reads was judged by name;
    another part of the call that a rule allows takes this hold from it."""
    READING_BELOW = "reading_below"
    """The same, and secret files are looked for once more where it reads. It was not judged word by word: it reads what
    it finds below folders, or what its files say. Where it cannot be held, it is asked about."""


class Effect(StrEnum):
    """How often a call may have its effect, also where the process dies in the middle of it."""

    REPEAT = "repeat"
    """Any number of times: a second run does no harm. A call whose outcome is not known is run again."""
    ONCE = "once"
    """At most once. A call whose outcome is not known is not run again, and the model reads so."""
    TRANSACTION = "transaction"
    """Exactly once: it is committed in the journal's own database, together with the outcome of the call."""


class Origin(StrEnum):
    """Who brought a tool to the runtime."""

    OWNER = "owner"
    """The program that made the runtime passed it, or it is one of callboard's own."""
    ELSEWHERE = "elsewhere"
    """It came with something that the owner named, such as an MCP server."""


class ToolContract(Value, frozen=True, omit_defaults=False):
    """What the runtime promises and demands of a tool."""

    risk: Risk = Risk.UNDECLARED
    timeout_seconds: float = DEFAULT_TOOL_TIMEOUT_SECONDS
    isolation: Isolation = Isolation.PROCESS
    concurrency: int = TOOL_CONCURRENCY["process"]
    """Calls of this tool that run at the same time; more wait in its bounded queue."""
    latency: Latency = Latency.SHORT
    effect: Effect = Effect.ONCE
    """What becomes of a call of which it is not known whether it ran."""
    needs_approval: bool = False
    asks_because: str = ""
    """Why each call is asked about, also where a rule or an answer for always would allow it: it is not the tool that
    was allowed. Set by what registers the tool, never by its author."""
    reuse: bool = False
    """May a child process serve further calls? Only with Isolation.PROCESS; else each call finds a fresh child."""
    paths: tuple[str, ...] | None = None
    """The files and folders that it may touch where its calls are confined, relative to the workspace or absolute;
    None: the workspace."""
    hosts: tuple[str, ...] | None = None
    """The hosts that it may connect to where its calls are confined; None: any."""
    is_bounded: bool = False
    """Does its own code refuse paths out of the workspace, and secret files? Then a call that only reads is judged by
    its path only where a rule of the owner is about paths."""
    is_trusted: bool = False
    """Are its results the owner's own words? Else they are untrusted text, which may try to steer the model."""
    can_be_held: bool = False
    """May the kernel keep a call that only runs a line which reads to reading (`Hold`)? Only where it runs in a
    confined process, and the tool itself needs neither to write nor to connect."""
    stages: bool = False
    """Do its calls change nothing themselves, but stage what is put to the owner then? Such a call is denied or run,
    and never asked about: the question is put with what it has staged."""
    origin: Origin = Origin.ELSEWHERE
    """Set by what registers the tool, never by its author."""
    searches_by: str = ""
    """Of a tool that only reads: its argument with the list of texts to search for, to which further words may be added
    (search_words.py); "" where it does not search. What it then gets besides is `RunTool.search_words`."""
    only_with: str = ""
    """The tool without which this one is of no use: a model is offered it only where that one is offered, too."""
    is_outside: bool = False
    """Is it run by the one who asks? Its calls end the request, and are answered with the next one (ClientTool)."""


class Deferred(Value, frozen=True):
    """What a tool returns whose result comes later, from outside: `Runtime.complete_call` or `Runtime.fail_call`.

    The tool's code has ended then, and its worker is free. Raises UsageError for a time that is not above 0 or over a
    week.
    """

    timeout_seconds: float = DEFAULT_WAIT_SECONDS
    """How long the call stays open, from when the tool returned. Then it has timed out, and the model reads so."""
    note: str = ""
    """What the reader of a stream may know, such as who was asked. The model does not see it."""

    def __post_init__(self) -> None:
        if fault := wait_fault("timeout_seconds", self.timeout_seconds):
            raise UsageError(f"Deferred: {fault}")
        if not isinstance(self.note, str):
            raise UsageError(f"Deferred: note must be a text, got {type(self.note).__name__}")


def wait_fault(name: str, seconds: object) -> str:
    """What is wrong with the length of a wait for someone outside; "" when nothing is."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= MAX_WAIT_SECONDS:
        return ""
    return f"{name} must be above 0 and at most {MAX_WAIT_SECONDS:g} (seconds, a week), got {seconds!r}"


class FailureCode(StrEnum):
    """Why a call has no result. An enum, because the model and people's code act on it."""

    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    INCOMPLETE_CALL = "incomplete_call"
    """The model's arguments were cut off or are not a JSON object: the call was not run (I12)."""
    TOOL_ERROR = "tool_error"
    """The tool raised an exception."""
    CRASHED = "crashed"
    """The tool took its worker down: sys.exit, os._exit, a signal, out of memory."""
    INVALID_RESULT = "invalid_result"
    """The result cannot be sent: not serialisable, or not of the declared type."""
    RESULT_TOO_LARGE = "result_too_large"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    OVERLOADED = "overloaded"
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It was started, and then what ran it was lost: whether it had its effect is not known."""
    REPEATED = "repeated"
    """The same call with the same arguments too many times in a row."""
    INTERNAL_ERROR = "internal_error"
    """A fault of callboard's own. The call it is about ends with it, and nothing else does."""


#: What a model can do after each failure, unless the failure itself knows better.
RETRY_HINTS: Final[Mapping[FailureCode, str]] = MappingProxyType(
    {
        FailureCode.UNKNOWN_TOOL: "Call one of the tools you were given.",
        FailureCode.INVALID_ARGUMENTS: "Correct the arguments by the tool's schema and call it again.",
        FailureCode.INCOMPLETE_CALL: (
            "Send the call again, with all its arguments; make them shorter if they were cut off."
        ),
        FailureCode.TOOL_ERROR: (
            "Change what the message complains of and call it again, use another tool, or go on without it."
        ),
        FailureCode.CRASHED: (
            "Do not send the same call again; change its arguments, use another tool, or go on without it."
        ),
        FailureCode.INVALID_RESULT: (
            "The call ran, but its result cannot be used. Do not send it again; use another tool, or go on without it."
        ),
        FailureCode.RESULT_TOO_LARGE: "Ask for less at a time: a narrower query, a range, a page.",
        FailureCode.TIMED_OUT: "It may have had an effect. Ask for less at a time, or go on without it.",
        FailureCode.CANCELLED: "It may have had an effect if it had begun. Send it again only if the user asks for it.",
        FailureCode.DENIED: "Do not send this call again; go on without it or say that you cannot.",
        FailureCode.WITHDRAWN: "Do not call this tool now; use another one, or go on without it.",
        FailureCode.OVERLOADED: "The call was not run. Send it again later, with fewer calls at a time.",
        FailureCode.OUTCOME_UNKNOWN: "Look at what it would have changed before you send it again.",
        FailureCode.REPEATED: (
            "Use the results you have, change the arguments, or answer. The next repetition ends the run."
        ),
        FailureCode.INTERNAL_ERROR: (
            "The fault is not in your call. It may have had an effect. Go on without it, or tell the user of the fault."
        ),
    }
)


#: The same of a call that ran and may have changed something: to be sent again, it must not be taken for one that did
#: nothing. Where a second run does no harm, or the failure took back what the call wrote, RETRY_HINTS holds.
HINTS_AFTER_EFFECT: Final[Mapping[FailureCode, str]] = MappingProxyType(
    {
        FailureCode.TOOL_ERROR: (
            "It may have had an effect before it failed. Look at what it would have changed before you send it again, "
            "changed by what the message complains of; or use another tool, or go on without it."
        ),
        FailureCode.CRASHED: (
            "It may have had an effect before it failed. Do not send it again before you have looked at what it would "
            "have changed; use another tool, or go on without it."
        ),
        FailureCode.RESULT_TOO_LARGE: (
            "The call ran and had its effect; only its result cannot be sent. Do not send it again: look at what it "
            "has changed by a tool that reads, or go on without the result."
        ),
        FailureCode.INVALID_RESULT: (
            "The call ran and had its effect, but its result cannot be used. Do not send it again: look at what it has "
            "changed by a tool that reads, or go on without the result."
        ),
        FailureCode.TIMED_OUT: (
            "It may have had an effect. Look at what it would have changed before you send it again, or go on without "
            "it."
        ),
    }
)


class ToolFailure(Value, frozen=True):
    """One failed call, as the model reads it."""

    tool: ToolName
    code: FailureCode
    message: str
    field: str = ""
    """The argument that was wrong, as a path ("days", "filter.0.name")."""
    expected: str = ""
    received: str = ""
    retry_hint: str = ""
    """What the model can do next; where it is left out, what its code allows (RETRY_HINTS)."""
    traceback: str = ""
    """For the host, never for the model: where the tool raised, with messages and source lines; at most 16 kB."""
    frames: str = ""
    """The same without messages and source lines: the exception's type and its frames, or how a process ended. It holds
    no content, so it is always logged."""

    def __post_init__(self) -> None:
        if not self.retry_hint.strip():
            force_setattr(self, "retry_hint", RETRY_HINTS[self.code])

    def to_wire(self) -> dict[str, object]:
        """The JSON object in the tool message."""
        told = {name: getattr(self, name) or None for name in ("field", "expected", "received")}
        wire = {"ok": False, "tool": self.tool, "code": self.code.value, **told}
        return {**wire, "message": self.message, "retry_hint": self.retry_hint}


def after_effect(failure: ToolFailure, contract: ToolContract | None) -> ToolFailure:
    """The failure of a call that ran, with the hint that fits what its tool may have done before it failed.

    A hint of the tool's own stays. None: nothing is known of the tool.
    """
    hint = HINTS_AFTER_EFFECT.get(failure.code)
    if hint is None or contract is None or failure.retry_hint != RETRY_HINTS[failure.code]:
        return failure
    harmless = contract.risk is Risk.READ or contract.effect is not Effect.ONCE
    return failure if harmless else replace(failure, retry_hint=hint)


def incomplete_call(name: ToolName, received: str) -> ToolFailure:
    """Half a call, or one with a number that is not JSON: it is never run (I12)."""
    code = FailureCode.INCOMPLETE_CALL
    fault = object_fault(received)
    told, hint = f"The arguments are not a JSON object: {fault}; the call was not run.", ""
    if not fault:
        told = "The turn was cut off, or it is not clear whose arguments these are; the call was not run."
    if wrong_number := bad_number(received):
        code = FailureCode.INVALID_ARGUMENTS
        told = f"The arguments contain {wrong_number}, which is not a finite number; the call was not run."
        hint = "Send the call again with a number in its place, or null where the tool allows it."
    return ToolFailure(name, code, told, "", "a JSON object", received[:ERROR_SNIPPET_CHARS], hint)


class Decision(StrEnum):
    """What happens when a model wants to run a tool."""

    ALLOW = "allow"
    ASK = "ask"
    """A person (or the owner's callback) decides, never the model."""
    DENY = "deny"
