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
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Final

import orjson
from msgspec import Struct

from callboard.protocol import model
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import STREAM_IDLE_TIMEOUT_SECONDS
from callboard.providers.http_errors import make_error

#: Requests that it keeps. Each holds its whole prompt, and a demonstration may be asked for months.
MAX_REQUESTS: Final = 1_000


class ScriptedCall(Struct, frozen=True):
    """A tool call the fake model makes."""

    name: str
    arguments: Mapping[str, object] | str = "{}"
    """A str is sent as it is: half JSON is half JSON."""
    id: str = ""
    """"" is numbered: call_0, call_1 ..."""

    def argument_text(self) -> str:
        """The arguments as the model writes them."""
        return self.arguments if isinstance(self.arguments, str) else orjson.dumps(dict(self.arguments)).decode()


class TimedBatch(Struct, frozen=True):
    """What arrives in one socket read, and how long after the one before."""

    delay_seconds: float
    events: tuple[model.StreamEvent, ...]


class ScriptedTurn(Struct, frozen=True):
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
        end_delay = self.delay_seconds
        if self.error is not None:
            end: list[model.StreamEvent] = [self.error]
        elif self.stall:
            end_delay = idle_timeout_seconds
            end = [make_error(ErrorKind.TIMEOUT, f"The script sent nothing for {idle_timeout_seconds:g} s.")]
        elif self.cut:
            end = [make_error(ErrorKind.TRUNCATED, "The stream ended before the turn did.")]
        else:
            end = self._ending()
        steps = [(event,) for event in self._events()] + [tuple(end)]
        if not self.chunk_chars and not self.stall:
            return (TimedBatch(self.first_delay_seconds, tuple(event for step in steps for event in step)),)
        delays = [self.first_delay_seconds] + [self.delay_seconds] * (len(steps) - 2) + [end_delay]
        return tuple(TimedBatch(delay, step) for delay, step in zip(delays[-len(steps) :], steps, strict=True))

    def _events(self) -> Iterator[model.StreamEvent]:
        """All events but those of the end."""
        yield from (model.ThinkingDelta(piece) for piece in self._pieces(self.thinking))
        yield from (model.TextDelta(piece) for piece in self._pieces(self.text))
        for call_id, call in zip(self._ids(), self.calls, strict=True):
            yield model.ToolCallStart(call_id, ToolName(call.name))
        pieces = [self._pieces(call.argument_text()) for call in self.calls]
        for turn in zip_longest(*pieces):
            for call_id, piece in zip(self._ids(), turn, strict=True):
                if piece is not None:
                    yield model.ToolCallDelta(call_id, piece)

    def _ending(self) -> list[model.StreamEvent]:
        reason = self.finish_reason or (model.FinishReason.TOOL_CALLS if self.calls else model.FinishReason.STOP)
        cut = reason in (model.FinishReason.LENGTH, model.FinishReason.CONTENT_FILTER)
        whole = self._ids()[:-1] if cut else self._ids()
        done = model.Done(reason, reason.value, self.usage, model="scripted")
        return [*(model.ToolCallComplete(call_id) for call_id in whole), done]

    def _ids(self) -> list[CallId]:
        return [CallId(call.id or f"call_{number}") for number, call in enumerate(self.calls)]

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
    """Plays a script. `requests` holds what it was asked, in order: the newest MAX_REQUESTS."""

    def __init__(
        self,
        script: Script = echo,
        *,
        name: str = "scripted",
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        idle_timeout_seconds: float = STREAM_IDLE_TIMEOUT_SECONDS,
    ) -> None:
        self.name = name
        self._choose = script if callable(script) else None
        self._turns = iter(()) if callable(script) else iter(script)
        self._sleep = sleep
        self._idle_timeout_seconds = idle_timeout_seconds
        self.requests: list[model.ModelRequest] = []
        self._asked = 0

    def turn_for(self, request: model.ModelRequest) -> ScriptedTurn:
        """The turn that answers this request, which is recorded. Beyond the end of the script: an Error."""
        self._asked += 1
        self.requests.append(request)
        del self.requests[:-MAX_REQUESTS]
        turn = self._choose(request) if self._choose else next(self._turns, None)
        if turn is None:
            said = f"The script has no turn for request {self._asked}; add one."
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
