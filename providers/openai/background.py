"""Background answers of the Responses API: the server works on without a connection, and is asked until the answer is
whole.

`HttpProvider` sends one request for a model call; here it is followed by others that ask for the same answer, never for
another one: a stream that broke off is read on behind its last event (GET ...?stream=true&starting_after=N), an answer
that was not streamed is asked for again (GET) until it has ended. All of it takes no longer than
`Timeouts.total_seconds`. A caller who leaves, and a deadline that passes, stop the work at the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Final
from urllib.parse import quote, urlencode

from msgspec.structs import replace

from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.protocol.model import Error, ModelRequest, StreamEvent
from callboard.providers.adapter import Adapter, Decoder, Timeouts, WireRequest
from callboard.providers.http_errors import make_error
from callboard.providers.json_values import load_object
from callboard.providers.openai.responses_answers import PENDING, FollowedResponse
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.transport import HttpProvider

logger = logging.getLogger(__name__)

#: Between two questions about the same answer; the last one again and again. OpenAI's guide asks every 2 s.
POLL_SECONDS: Final = (0.5, 1.0, 2.0, 4.0)
#: For the server to confirm that it has stopped.
STOP_SECONDS: Final = 2.0
#: The connection failed, not the answer.
_BROKEN: Final = frozenset({ErrorKind.CONNECTION, ErrorKind.TRUNCATED, ErrorKind.TIMEOUT})
#: What a server says that does not stream a stored answer: then it is asked for the whole of it.
_NOT_STREAMED: Final = frozenset({ErrorKind.INVALID_REQUEST, ErrorKind.NOT_FOUND, ErrorKind.UNSUPPORTED})


class ResponsesProvider(HttpProvider):
    """A model behind the Responses API; all but background answers is as in `HttpProvider`."""

    poll_seconds: Sequence[float] = POLL_SECONDS
    """How long to wait before each further question about an answer."""

    @cached_property
    def _stopping(self) -> set[asyncio.Task[None]]:
        return set()

    def stream(
        self, request: ModelRequest, /, adapter: Adapter | None = None, timeouts: Timeouts | None = None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """See `Provider.stream`."""
        adapter = adapter or self.adapter
        if request.storage is None or not request.storage.background:
            return super().stream(request, adapter, timeouts)
        if not isinstance(adapter, OpenAIResponses):
            raise UsageError(f"{self.name} has no background answers")
        return self._follow(request, _BackgroundCall(adapter), timeouts or self._timeouts)

    async def aclose(self) -> None:
        """See `Provider.aclose`."""
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=STOP_SECONDS)
        await super().aclose()

    async def _follow(
        self, request: ModelRequest, call: _BackgroundCall, timeouts: Timeouts
    ) -> AsyncGenerator[list[StreamEvent], None]:
        clock = asyncio.get_running_loop().time
        ends_at, pauses = clock() + timeouts.total_seconds, 0
        try:
            while True:
                error = None
                left = replace(timeouts, total_seconds=max(ends_at - clock(), 0.0))
                async with aclosing(super().stream(request, call, left)) as batches:
                    async for events in batches:
                        last = events[-1]
                        error = last if isinstance(last, Error) and call.goes_on_after(last) else None
                        if told := events[:-1] if error else events:
                            pauses = 0
                            yield told
                if error is None:
                    return
                pause = self._pause_before_next(error, pauses)
                if clock() + pause >= ends_at:
                    yield [_too_late(timeouts, error)]
                    return
                await asyncio.sleep(pause)
                pauses += 1
        finally:
            if call.is_working:
                await self._stop(call.response_id)

    def _pause_before_next(self, error: Error, pauses: int) -> float:
        if error.at_once:
            return 0.0
        return max(self.poll_seconds[min(pauses, len(self.poll_seconds) - 1)], error.retry_after or 0.0)

    async def _stop(self, response_id: str) -> None:
        """Tell the server to stop; in a task of its own, which goes on if the caller is cancelled again."""
        task = asyncio.get_running_loop().create_task(self._tell_to_stop(response_id))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        await asyncio.wait({task}, timeout=STOP_SECONDS)

    async def _tell_to_stop(self, response_id: str) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.inquire(f"{{api}}/responses/{quote(response_id, safe='')}/cancel", b"{}")
        except (ProviderError, TimeoutError) as error:
            logger.debug("%s could not be told to stop a background answer: %s", self.name, error)


def _too_late(timeouts: Timeouts, error: Error) -> Error:
    message = f"The background answer was not finished after {timeouts.total_seconds:g} s."
    return replace(make_error(ErrorKind.TIMEOUT, message), notes=error.notes)


class _BackgroundCall:
    """One background answer as an adapter: first the request, then the questions about it; one decoder reads all."""

    def __init__(self, adapter: OpenAIResponses) -> None:
        self.name = adapter.name
        self._adapter = adapter
        self._answer: FollowedResponse | None = None
        self._is_streamed = True
        self._is_gone = False
        self._asked: WireRequest | None = None

    @property
    def response_id(self) -> str:
        """The server's id of the answer; "" until it is known."""
        return self._answer.response_id if self._answer is not None else ""

    @property
    def is_working(self) -> bool:
        """May the server still work on it?"""
        return bool(self.response_id) and not self._is_gone and self._answer is not None and not self._answer.concluded

    def goes_on_after(self, error: Error) -> bool:
        """Did the connection end, or the question fail, and not the answer?"""
        if not self.is_working:
            return False
        if error.kind in _NOT_STREAMED and self._is_streamed and error.status:
            self._is_streamed = False
            return True
        self._is_gone = error.kind is ErrorKind.NOT_FOUND
        return error.code in PENDING or error.kind in _BROKEN or error.retryable

    def encode(self, request: ModelRequest, /) -> WireRequest:
        """See `Adapter.encode`."""
        if self._asked is None or self._answer is None or not self.response_id:
            self._asked = self._adapter.encode(request)
            self._is_streamed = request.stream
            return self._asked
        query = [("include[]", each) for each in _included(self._asked.body)]
        if self._is_streamed:
            query.append(("stream", "true"))
            if self._answer.sequence >= 0:
                query.append(("starting_after", str(self._answer.sequence)))
        path = f"{{api}}/responses/{quote(self.response_id, safe='')}"
        question = self._adapter.question(f"{path}?{urlencode(query)}" if query else path)
        return replace(question, notes=self._asked.notes)

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        """See `Adapter.decoder`."""
        if status >= 400:
            return self._adapter.decoder(status, headers, streaming)
        if self._answer is None:
            self._answer = self._adapter.followed(status, headers)
        else:
            self._answer.reopen(status, headers)
        return self._answer


def _included(body: bytes) -> list[str]:
    """What the request asks for beside the answer: later questions must ask for it too."""
    include = (load_object(body) or {}).get("include")
    return [str(each) for each in include] if isinstance(include, list) else []
