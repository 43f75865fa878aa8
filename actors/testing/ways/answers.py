"""What a model may say that no model should: answers of a provider, and of a server over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Final

from msgspec import Struct

from callboard.actors.testing.ways.case import Case, Group, Level, known
from callboard.actors.testing.ways.die import FatalTextError, OwnBase, UnprintableError
from callboard.actors.testing.ways.healthy import HEALTHY
from callboard.actors.testing.wire_double.script import Call, Fault, FaultKind, RawAnswer, Tokens, Turn
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    Done,
    Error,
    FinishReason,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from callboard.providers.local.scripted import ScriptedTurn, TimedBatch

Events = tuple[Any, ...]
"""Of one batch. Not only StreamEvents: that is the point."""

#: Of a request in these cases: some of them are ended by nothing else.
DEADLINE_SECONDS: Final = 8.0
BLOCK_SECONDS: Final = 0.3
HUGE_CHARS: Final = 5_000_000
DEPTH: Final = 100_000
#: A stream of 10 kB a batch that is not bounded by its reader has sent 150 MB then.
ENOUGH: Final = 15_000
_TOOL: Final = HEALTHY[0].name


class Poisoned(ScriptedTurn, frozen=True):
    """A turn that plays whatever it is given, and may raise while it is played."""

    play: Callable[[], Iterable[TimedBatch]] = tuple

    def batches(self, idle_timeout_seconds: float = 0.0) -> Any:
        """The batches, one after the other."""
        return self.play()


class Poison(Struct, frozen=True):
    """A row of the table: what the model's first answer is."""

    name: str
    what: str
    play: Callable[[], Iterable[TimedBatch]]
    expected: str
    seconds: float = 0.1


def says(*batches: Events) -> Callable[[], Iterable[TimedBatch]]:
    """These batches, one after the other."""
    return lambda: [TimedBatch(0.0, events) for events in batches]


def raises(error: Callable[[], BaseException], after: Events = ()) -> Callable[[], Iterable[TimedBatch]]:
    """Some events, then an exception."""

    def play() -> Iterator[TimedBatch]:
        if after:
            yield TimedBatch(0.0, after)
        raise error()

    return play


def endless(event: object, seconds: float = 0.0) -> Callable[[], Iterable[TimedBatch]]:
    """The same again and again; no machine is filled by it, since it breaks off after `ENOUGH` batches."""
    return lambda: repeat(TimedBatch(seconds, (event,)), ENOUGH)  # type: ignore[arg-type]


def blocks() -> Iterator[TimedBatch]:
    """Code of a provider that sleeps on the runtime's loop."""
    time.sleep(BLOCK_SECONDS)
    yield TimedBatch(0.0, (TextDelta("late"), STOP))


STOP: Final = Done(FinishReason.STOP)
CALLS: Final = Done(FinishReason.TOOL_CALLS)
TEXT: Final = TextDelta("so")


def call(arguments: str, name: str = _TOOL, call_id: str = "c", *, whole: bool = True) -> Events:
    """A tool call as a model makes it."""
    found = CallId(call_id)
    end = (ToolCallComplete(found),) if whole else ()
    return (ToolCallStart(found, ToolName(name)), ToolCallDelta(found, arguments), *end)


def _error(**values: Any) -> Error:
    return Error(values.pop("kind", ErrorKind.RATE_LIMITED), values.pop("message", "no"), **values)


def _usage(**values: Any) -> Callable[[], Iterable[TimedBatch]]:
    return says((TEXT, Done(FinishReason.STOP, usage=Usage(**values))))


_NAN: Final = float("nan")
#: For what has no end: its reader must have stopped it before it breaks off.
_STOPPED: Final = "malformed internal_error other RequestEnded timeout"
#: For what is no answer at all: named as broken, or as our own fault in taking it.
_BROKEN: Final = "malformed internal_error other truncated"
_ODD: Final = f"ok {_BROKEN} RequestEnded"

POISONS: Final = (
    Poison("usage-nan", "its usage is NaN", _usage(input_tokens=_NAN, output_tokens=_NAN), _ODD),
    Poison("usage-infinite", "its usage is infinite", _usage(output_tokens=float("inf")), _ODD),
    Poison("usage-negative", "its usage is negative", _usage(input_tokens=-5), _ODD),
    Poison("usage-huge", "its usage is 10^30 tokens", _usage(input_tokens=10**30), _ODD),
    Poison("usage-none", "its usage is None", says((TEXT, Done(FinishReason.STOP, usage=None))), _ODD),
    Poison("usage-text", "its usage is text", _usage(input_tokens="many"), _ODD),
    Poison("text-none", "its text is None", says((TextDelta(None), STOP)), _ODD),  # type: ignore[arg-type]
    Poison("text-bytes", "its text is bytes", says((TextDelta(b"so"), STOP)), _ODD),  # type: ignore[arg-type]
    Poison("text-surrogate", "its text is half a surrogate pair", says((TextDelta("\ud800"), STOP)), _ODD),
    Poison("text-huge", "5 MB of text", says((TextDelta("x" * HUGE_CHARS), STOP)), _ODD),
    Poison("no-event", "an object in place of an event", says((object(), STOP)), _BROKEN),
    Poison("none-event", "None in place of an event", says((None, STOP)), _BROKEN),
    Poison("empty-batch", "an empty batch", says((), (TEXT, STOP)), "ok"),
    Poison("nothing", "no event at all", says(), "truncated"),
    Poison("no-end", "no end", says((TEXT,)), "truncated"),
    Poison("two-ends", "two ends", says((TEXT, STOP), (STOP,)), _ODD),
    Poison("after-end", "text after the end", says((TEXT, STOP), (TEXT,)), _ODD),
    Poison("reason-unknown", "a finish reason that is no member", says((TEXT, Done("odd"))), _ODD),  # type: ignore[arg-type]
    Poison("thinking-only", "only thinking", says((ThinkingDelta("hm"), STOP)), _ODD),
    Poison("call-nan", "a call with NaN", says((*call('{"x": NaN}'), CALLS)), "ok"),
    Poison("call-half", "a call that is cut off", says((*call('{"x": 1', whole=False), CALLS)), "ok"),
    Poison("call-deep", "arguments 100,000 deep", says((*call('{"x": ' + "[" * DEPTH), CALLS)), _ODD),
    Poison(
        "call-huge",
        "5 MB of arguments",
        says((*call('{"x": "' + "9" * HUGE_CHARS + '"}'), CALLS)),
        _ODD,
    ),
    Poison("call-unknown", "a tool that is not there", says((*call("{}", "no_such_tool"), CALLS)), "ok"),
    Poison("call-nameless", "a call without a name", says((*call("{}", ""), CALLS)), _ODD),
    Poison("call-odd-name", "a name with NUL and line feeds", says((*call("{}", "a\0\nb"), CALLS)), _ODD),
    Poison("call-no-id", "a call without an id", says((*call('{"x": 1}', call_id=""), CALLS)), _ODD),
    Poison("call-same-ids", "two calls with one id", says((*call('{"x": 1}'), *call('{"x": 2}'), CALLS)), _ODD),
    Poison(
        "call-many",
        "100 calls in one turn",
        says((*(e for n in range(100) for e in call('{"x": 1}', call_id=f"c{n}")), CALLS)),
        "ok",
        seconds=1.0,
    ),
    Poison(
        "call-delta-alone",
        "arguments of a call that was not begun",
        says((ToolCallDelta(CallId("z"), "{}"), CALLS)),
        _ODD,
    ),
    Poison(
        "call-end-alone", "the end of a call that was not begun", says((ToolCallComplete(CallId("z")), CALLS)), _ODD
    ),
    Poison("calls-and-stop", "calls, and STOP as the reason", says((*call('{"x": 1}'), STOP)), _ODD),
    Poison("no-calls", "TOOL_CALLS as the reason, and no call", says((TEXT, CALLS)), _ODD),
    Poison("raises", "raises ValueError", raises(lambda: ValueError("provider")), _BROKEN),
    Poison("raises-late", "raises ValueError after some text", raises(lambda: ValueError("late"), (TEXT,)), _BROKEN),
    Poison("raises-base", "raises a BaseException", raises(lambda: OwnBase("x")), _BROKEN),
    Poison("raises-exit", "calls sys.exit", raises(lambda: SystemExit(3)), _BROKEN),
    Poison("raises-interrupt", "raises KeyboardInterrupt", raises(lambda: KeyboardInterrupt()), _BROKEN),
    Poison(
        "raises-cancelled", "raises CancelledError", raises(lambda: asyncio.CancelledError()), f"{_BROKEN} cancelled"
    ),
    Poison("raises-generator-exit", "raises GeneratorExit", raises(lambda: GeneratorExit()), _BROKEN),
    Poison("raises-unprintable", "raises an exception without a text", raises(UnprintableError), _BROKEN),
    Poison("raises-fatal-text", "raises an exception whose text exits", raises(FatalTextError), _BROKEN),
    Poison("raises-group", "raises an ExceptionGroup", raises(lambda: ExceptionGroup("g", [ValueError("a")])), _BROKEN),
    Poison("raises-memory", "raises MemoryError", raises(lambda: MemoryError()), _BROKEN),
    Poison("retry-after", "asks to wait 10^9 s", says((_error(retryable=True, retry_after=1e9),)), "rate_limited"),
    Poison("retry-nan", "asks to wait NaN s", says((_error(retryable=True, retry_after=_NAN),)), "rate_limited"),
    Poison("retry-negative", "asks to wait -5 s", says((_error(retryable=True, retry_after=-5.0),)), "rate_limited"),
    Poison(
        "error-huge",
        "an error with 5 MB of text",
        says((_error(kind=ErrorKind.OTHER, message="x" * HUGE_CHARS),)),
        "other",
    ),
    Poison("blocking", f"blocks the loop for {BLOCK_SECONDS} s", blocks, "ok"),
    Poison(
        "endless-text",
        "text without an end, as fast as it can",
        endless(TextDelta("x" * 10_000)),
        _STOPPED,
    ),
    Poison("endless-slow", "text without an end, slowly", endless(TEXT, 0.05), _STOPPED),
    Poison("endless-thinking", "thinking without an end", endless(ThinkingDelta("x" * 10_000)), _STOPPED),
    Poison(
        "endless-nothing",
        "empty batches without an end",
        lambda: repeat(TimedBatch(0.001, ()), ENOUGH),
        _STOPPED,
    ),
    Poison(
        "endless-calls",
        "a call whose arguments do not end",
        endless(ToolCallDelta(CallId("c"), "x" * 10_000)),
        _STOPPED,
    ),
    Poison("never", "says nothing", lambda: [TimedBatch(1e9, (TEXT, STOP))], "RequestEnded timeout"),
)

# -- over HTTP


class WireFault(Struct, frozen=True):
    """A row of the table: what the server answers, each time it is asked."""

    name: str
    what: str
    answer: Turn | RawAnswer
    expected: str


_SAYS: Final = "Some words that come in pieces."
_CALL: Final = (Call(_TOOL, {"x": 1}),)


def _cut(kind: FaultKind, after: int | None = None, *, calls: bool = False) -> Turn:
    return Turn("" if calls else _SAYS, _CALL if calls else (), fault=Fault(kind, after))


_LOST: Final = "connection truncated timeout malformed"

WIRE_FAULTS: Final = (
    WireFault("reset", "resets the connection", _cut(FaultKind.RESET), _LOST),
    WireFault("close", "closes the connection before its answer", _cut(FaultKind.CLOSE), _LOST),
    WireFault("deaf", "takes the question and says nothing", _cut(FaultKind.DEAF), _LOST),
    WireFault("cut-first", "breaks off before the first word", _cut(FaultKind.CUT, 0), _LOST),
    WireFault("cut-later", "breaks off after three pieces", _cut(FaultKind.CUT, 3), _LOST),
    WireFault("cut-last", "breaks off before its end", _cut(FaultKind.CUT), _LOST),
    WireFault("cut-call", "breaks off in the middle of a call", _cut(FaultKind.CUT, 2, calls=True), _LOST),
    WireFault("stall-first", "falls silent before the first word", _cut(FaultKind.STALL, 0), _LOST),
    WireFault("stall-later", "falls silent after three pieces", _cut(FaultKind.STALL, 3), _LOST),
    WireFault("stall-call", "falls silent in the middle of a call", _cut(FaultKind.STALL, 2, calls=True), _LOST),
    WireFault("garbage", "sends an event that is neither JSON nor UTF-8", _cut(FaultKind.GARBAGE, 2), _LOST),
    WireFault(
        "error-inside", "sends an error in the stream", _cut(FaultKind.STREAM_ERROR, 2), "server overloaded other"
    ),
    WireFault(
        "half-call", "ends a call halfway", _cut(FaultKind.HALF_CALL, calls=True), "ok RequestEnded malformed_tool_call"
    ),
    WireFault("hangup", "closes after its answer", _cut(FaultKind.HANGUP), "ok"),
    WireFault("html", "sends a web page", _cut(FaultKind.HTML), "malformed"),
    WireFault("status-500", "says 500", Turn(fault=Fault(FaultKind.STATUS, status=500)), "server"),
    WireFault("status-529", "says 529", Turn(fault=Fault(FaultKind.STATUS, status=529)), "overloaded server"),
    WireFault("status-401", "says 401", Turn(fault=Fault(FaultKind.STATUS, status=401)), "authentication"),
    WireFault(
        "retry-after",
        "says 429 and to come back in 10^9 s",
        Turn(fault=Fault(FaultKind.STATUS, status=429, retry_after=1e9)),
        "rate_limited",
    ),
    WireFault(
        "retry-text",
        "says 429 with a Retry-After that is no number",
        RawAnswer({"error": {"message": "slow down"}}, 429, {"retry-after": "soon, maybe"}),
        "rate_limited",
    ),
    WireFault("endless", "sends text without an end", _cut(FaultKind.ENDLESS), f"{_BROKEN} RequestEnded timeout"),
    WireFault(
        "endless-error",
        "says 500, with a body that does not end",
        RawAnswer("x" * 65_536, 500, fault=Fault(FaultKind.ENDLESS)),
        "server malformed",
    ),
    WireFault(
        "endless-line",
        "sends one line that does not end",
        RawAnswer("x" * 65_536, 200, {"content-type": "text/event-stream"}, Fault(FaultKind.ENDLESS)),
        "malformed truncated",
    ),
    WireFault(
        "body-nothing",
        "says 200 and sends nothing",
        RawAnswer("", 200, {"content-type": "text/event-stream"}),
        "truncated malformed",
    ),
    WireFault("body-list", "sends JSON that is a list", RawAnswer([1, 2], 200), "malformed truncated"),
    WireFault(
        "usage-huge", "counts 10^18 tokens", Turn(_SAYS, usage=Tokens(10**18, 10**18)), "ok RequestEnded malformed"
    ),
    WireFault(
        "error-html",
        "says 502 with a web page of 1 MB",
        RawAnswer("<html>" + "x" * 1_000_000, 502),
        "server overloaded",
    ),
)

PROVIDER: Final = tuple(
    Case(
        f"{Group.PROVIDER}/{row.name}",
        Group.PROVIDER,
        Level.PROVIDER,
        row.what,
        known(row.expected),
        row,
        seconds=row.seconds,
    )
    for row in POISONS
)
WIRE: Final = tuple(
    Case(f"{Group.WIRE}/{row.name}", Group.WIRE, Level.PROVIDER, row.what, known(row.expected), row)
    for row in WIRE_FAULTS
)
