"""The shipped fake: a Provider that says what a script tells it to. For tests, demonstrations and simulations.

    provider = Scripted([
        ScriptedTurn(calls=(ScriptedCall("lookup", {"city": "Oslo"}),)),
        ScriptedTurn(text="It rains."),
    ])

The script is a list of turns, taken in order, or a function from the request to a turn. A turn is plain data with its
times: `Scripted.stream` plays it on asyncio, and a simulation takes `turn_for(request).batches()` and plays it itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import orjson

from callboard.protocol import model
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import STREAM_IDLE_TIMEOUT_SECONDS
from callboard.providers.http_errors import make_error


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call the fake model makes."""

    name: str
    arguments: Mapping[str, object] | str = "{}"
    """A str is sent as it is: half JSON is half JSON."""
    id: str = ""
    """"" is numbered: call_0, call_1 ..."""


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """What arrives in one socket read, and how long after the one before."""

    delay_seconds: float
    events: tuple[model.StreamEvent, ...]


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One model turn: thinking, text, calls, then its end. The first of `error`, `stall` and `cut` that is set ends it
    in that way; else it is Done."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    thinking: str = ""
    chunk_chars: int = 0
    """Text and arguments come in pieces of so many characters, a batch each, the calls' pieces interleaved; 0 sends
    each whole, and all in one batch."""
    first_delay_seconds: float = 0.0
    """Before anything comes."""
    delay_seconds: float = 0.0
    """Before each later batch."""
    error: model.Error | None = None
    stall: bool = False
    """Nothing more comes: after the idle timeout that is an Error(TIMEOUT), as the transport would tell it."""
    cut: bool = False
    """The connection ends: Error(TRUNCATED), the calls stay incomplete."""
    usage: model.Usage = model.Usage()
    finish_reason: model.FinishReason | None = None
    """None: TOOL_CALLS with calls, else STOP."""

    def batches(self, idle_timeout_seconds: float = STREAM_IDLE_TIMEOUT_SECONDS) -> tuple[TimedBatch, ...]:
        """The turn as its reader sees it. The last event of the last batch is the only Done or Error."""
        steps = self._prose_steps() + self._call_steps()
        end_delay = self.delay_seconds
        if self.error is not None:
            steps.append((self.error,))
        elif self.stall:
            end_delay = idle_timeout_seconds
            steps.append((make_error(ErrorKind.TIMEOUT, f"The script sent nothing for {idle_timeout_seconds:g} s."),))
        elif self.cut:
            steps.append((make_error(ErrorKind.TRUNCATED, "The stream ended before the turn did."),))
        else:
            steps.append(self._ending())
        if not self.chunk_chars and not self.stall:
            return (TimedBatch(self.first_delay_seconds, tuple(event for step in steps for event in step)),)
        delays = [self.first_delay_seconds] + [self.delay_seconds] * (len(steps) - 2) + [end_delay]
        return tuple(TimedBatch(delay, step) for delay, step in zip(delays[-len(steps) :], steps, strict=True))

    def _prose_steps(self) -> list[tuple[model.StreamEvent, ...]]:
        thoughts: list[tuple[model.StreamEvent, ...]] = [
            (model.ThinkingDelta(piece),) for piece in self._pieces(self.thinking)
        ]
        return thoughts + [(model.TextDelta(piece),) for piece in self._pieces(self.text)]

    def _call_steps(self) -> list[tuple[model.StreamEvent, ...]]:
        ids = [CallId(call.id or f"call_{number}") for number, call in enumerate(self.calls)]
        steps: list[tuple[model.StreamEvent, ...]] = []
        for call_id, call in zip(ids, self.calls, strict=True):
            steps.append((model.ToolCallStart(call_id, ToolName(call.name)),))
        pieces = [self._pieces(_argument_text(call)) for call in self.calls]
        for turn in range(max(map(len, pieces), default=0)):
            for call_id, own in zip(ids, pieces, strict=True):
                if turn < len(own):
                    steps.append((model.ToolCallDelta(call_id, own[turn]),))
        return steps

    def _ending(self) -> tuple[model.StreamEvent, ...]:
        reason = self.finish_reason or (model.FinishReason.TOOL_CALLS if self.calls else model.FinishReason.STOP)
        ids = [CallId(call.id or f"call_{number}") for number, call in enumerate(self.calls)]
        if reason in (model.FinishReason.LENGTH, model.FinishReason.CONTENT_FILTER):
            ids = ids[:-1]
        completes: list[model.StreamEvent] = [model.ToolCallComplete(call_id) for call_id in ids]
        return (*completes, model.Done(reason, reason.value, self.usage, model="scripted"))

    def _pieces(self, text: str) -> list[str]:
        size = self.chunk_chars or max(len(text), 1)
        return [text[start : start + size] for start in range(0, len(text), size)]


Script = Iterable[ScriptedTurn | str] | Callable[[model.ModelRequest], ScriptedTurn | str]
"""Turns in order, or a function from a request to its turn; a str is a turn of that text."""


def echo(request: model.ModelRequest) -> ScriptedTurn:
    """The default script: says the last user message again."""
    said = [message.text for message in request.messages if isinstance(message, UserMessage)]
    return ScriptedTurn(said[-1] if said else "There is no user message.")


class Scripted:
    """Plays a script. `requests` holds what it was asked, in order."""

    def __init__(
        self,
        script: Script = echo,
        *,
        name: str = "scripted",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        idle_timeout_seconds: float = STREAM_IDLE_TIMEOUT_SECONDS,
    ) -> None:
        self._name = name
        self._choose = script if callable(script) else None
        self._turns = iter(()) if callable(script) else iter(script)
        self._sleep = sleep
        self._idle_timeout_seconds = idle_timeout_seconds
        self.requests: list[model.ModelRequest] = []

    @property
    def name(self) -> str:
        return self._name

    def turn_for(self, request: model.ModelRequest) -> ScriptedTurn:
        """The turn that answers this request, which is recorded. Beyond the end of the script: an Error."""
        self.requests.append(request)
        turn = self._choose(request) if self._choose else next(self._turns, None)
        if turn is None:
            said = f"The script has no turn for request {len(self.requests)}; add one."
            return ScriptedTurn(error=make_error(ErrorKind.OTHER, said))
        return ScriptedTurn(turn) if isinstance(turn, str) else turn

    async def stream(self, request: model.ModelRequest, /) -> AsyncGenerator[list[model.StreamEvent], None]:
        """See `Provider.stream`."""
        for batch in self.turn_for(request).batches(self._idle_timeout_seconds):
            if batch.delay_seconds:
                await self._sleep(batch.delay_seconds)
            yield list(batch.events)

    async def aclose(self) -> None:
        """There is nothing to close."""


def _argument_text(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else orjson.dumps(dict(call.arguments)).decode()
