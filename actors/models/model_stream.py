"""Runs one model call: reads its stream, hands each batch on as it comes, and says once how it ended.

A stream is read on the runtime's own loop, but not by an actor: its deltas go straight to the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from callboard.actors.kernel import MailboxFull
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import Error, ModelRequest, ModelResponse, StreamEvent
from callboard.providers.adapter import Provider
from callboard.providers.response_builder import ResponseBuilder

#: A session whose mailbox is full is tried again after this long: at 2 us a message it has emptied some thousands.
FULL_PAUSE_SECONDS = 0.01

Emit = Callable[[list[StreamEvent]], None]
"""Takes one batch of events. Raises MailboxFull where there is no room for it now."""

End = Callable[[ModelResponse], None]
"""Told once, with the whole turn or the error that cut it off."""


class Attempt(Protocol):
    """One running model call."""

    def cancel(self) -> object: ...


class StreamDriver(Protocol):
    """Runs one attempt: calls `emit` for each batch of events, then `end` exactly once (never after `cancel`)."""

    def start(self, provider: Provider, request: ModelRequest, emit: Emit, end: End) -> Attempt: ...


class AsyncioDriver:
    """Runs attempts as tasks of the runtime's own loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def start(self, provider: Provider, request: ModelRequest, emit: Emit, end: End) -> Attempt:
        return self._loop.create_task(read_stream(provider, request, emit, end))


async def read_stream(provider: Provider, request: ModelRequest, emit: Emit, end: End) -> None:
    """Whatever the provider raises is an error of the turn, and `end` is told; a cancelled task tells nobody."""
    builder = ResponseBuilder()
    try:
        stream = provider.stream(request)
        try:
            async for events in stream:
                builder.feed(events)
                try:
                    emit(events)
                except MailboxFull:
                    await _when_there_is_room(emit, events)
        finally:
            # Left early, it closes its connection now and not when the garbage collector finds it.
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()
        response = builder.response()
    except UsageError as error:
        response = _failed(ErrorKind.INVALID_REQUEST, str(error))
    except BaseException as error:  # of a provider written by a user: its fault must not cost a hanging request
        task = asyncio.current_task()
        if isinstance(error, GeneratorExit) or (task is not None and task.cancelling()):
            raise
        response = _failed(ErrorKind.OTHER, f"the provider {provider.name} failed: {type(error).__name__}: {error}")
    end(response)


async def _when_there_is_room(emit: Emit, events: list[StreamEvent]) -> None:
    """A session that is behind holds up its own stream. Its deadline bounds the wait: it ends the attempt."""
    while True:
        await asyncio.sleep(FULL_PAUSE_SECONDS)
        try:
            return emit(events)
        except MailboxFull:
            continue


def _failed(kind: ErrorKind, message: str) -> ModelResponse:
    return ModelResponse(error=Error(kind, message))
