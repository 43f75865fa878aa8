"""LlmManager: makes the model calls of all sessions.

It owns the provider clients, the rate limits, the retries and the open streams. The bytes of a stream do not pass
through its mailbox: a driver reads them and tells the session directly, one message a socket read; the manager hears
only how an attempt ended, and decides whether there is another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from callboard.actors.kernel import Actor, MailboxFull, Ref, Rejected, Timer
from callboard.actors.models.model_stream import FULL_PAUSE_SECONDS, Attempt, StreamDriver
from callboard.protocol.commands import CallModel, StopModel
from callboard.protocol.content import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.events import ModelFailed, ModelResponded, ModelStreamed
from callboard.protocol.ids import Tag
from callboard.protocol.model import Error, ModelRequest, ModelResponse, Restarted, StreamEvent, TextDelta
from callboard.providers.adapter import Provider
from callboard.providers.rate_limit import RateLimiter
from callboard.providers.retry import RetryPolicy

#: Close enough for a limit a minute; the difference is settled when the answer tells what was used.
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Route:
    """One model to ask: the provider that speaks to it and the provider's name for it."""

    provider: Provider
    model: str
    limiter: RateLimiter | None = None
    """The limits of its credential, shared by all requests; None is no limit."""


Routes = Callable[[str], Sequence[Route]]
"""From "provider/model" to the routes to try in turn: the model itself, then its fallbacks."""
Cost = Callable[[str, ModelResponse], float]
"""From "provider/model" and an answer to US dollars."""


@dataclass(frozen=True, slots=True)
class StartModel:
    """Make this model call; its events go to `reply_to`."""

    call: CallModel
    reply_to: Ref
    is_read_along: bool = True
    """If not, there are no ModelStreamed but one: the text of a turn that has failed."""


@dataclass(frozen=True, slots=True)
class _AttemptEnded:
    tag: Tag
    attempt: int
    response: ModelResponse


@dataclass(frozen=True, slots=True)
class _TryAgain:
    tag: Tag


@dataclass(frozen=True, slots=True)
class _TellAgain:
    reply_to: Ref
    event: ModelStreamed | ModelResponded | ModelFailed


@dataclass(slots=True)
class _OpenCall:
    call: CallModel
    reply_to: Ref
    routes: Sequence[Route]
    is_read_along: bool
    route: int = 0
    attempt: int = 0
    """Attempts started, over all routes: an end that carries another number is of an attempt given up."""
    tries: int = 0
    """Attempts on the current route."""
    emitted: bool = False
    unread: str = ""
    """The text of the last attempt, where nobody read along."""
    guessed_tokens: float = 0.0
    """Taken from the limiter for the running attempt; corrected when its usage is known."""
    running: Attempt | None = None
    timer: Timer | None = None

    def release(self) -> None:
        """Ends whatever works for this call."""
        if self.running is not None:
            self.running.cancel()
        if self.timer is not None:
            self.timer.cancel()


class LlmManager(Actor):
    """See the module."""

    def __init__(self, routes: Routes, driver: StreamDriver, retry: RetryPolicy, cost: Cost) -> None:
        self._routes = routes
        self._driver = driver
        self._retry = retry
        self._cost = cost
        self._open: dict[Tag, _OpenCall] = {}

    def on_receive(self, message: Any) -> Any:
        handler = _HANDLERS.get(type(message))
        if handler is None:
            raise UsageError(f"the LLM manager does not understand {type(message).__name__}")
        return handler(self, message)

    def on_start(self) -> None:
        # However this incarnation ends, its streams end with it: `on_stop` is not called for a crash or a kill.
        self.system.watch(self.ref, lambda _: self._release_all())

    def _release_all(self) -> None:
        for call in self._open.values():
            call.release()

    def _start(self, message: StartModel) -> None:
        tag = message.call.tag
        try:
            routes = self._routes(message.call.request.model)
        except UsageError as error:
            message.reply_to.tell_control(ModelFailed(tag, self.now(), Error(ErrorKind.INVALID_REQUEST, str(error))))
            return
        if replaced := self._open.pop(tag, None):
            replaced.release()
        call = self._open[tag] = _OpenCall(message.call, message.reply_to, routes, message.is_read_along)
        self._attempt(call)

    def _attempt(self, call: _OpenCall) -> None:
        """Start an attempt, when the credential's limits let it."""
        if call.emitted and not self._told_restart(call):
            call.timer = self.tell_after(FULL_PAUSE_SECONDS, _TryAgain(call.call.tag))
            return
        limiter = call.routes[call.route].limiter
        if limiter is not None and limiter.counts_tokens:
            call.guessed_tokens = sum(map(text_length, call.call.request.messages)) / CHARS_PER_TOKEN
        wait = limiter.acquire(call.guessed_tokens) if limiter is not None else 0.0
        if wait <= 0:
            self._start_attempt(call)
        elif self.now() + wait < call.call.deadline_at:
            call.timer = self.tell_after(wait, _TryAgain(call.call.tag))
        else:
            message = f"the rate limit of {call.routes[call.route].provider.name} allows no call before the deadline"
            self._fail(call, Error(ErrorKind.RATE_LIMITED, message, retry_after=wait))

    def _told_restart(self, call: _OpenCall) -> bool:
        """What the attempt before has emitted is void; in line behind it, so not on the control lane."""
        restarted = Restarted(f"attempt {call.attempt + 1}")
        try:
            call.reply_to.tell(ModelStreamed(call.call.tag, self.now(), (restarted,)))
        except MailboxFull:
            return False
        call.emitted = False
        return True

    def _start_attempt(self, call: _OpenCall) -> None:
        call.timer = None
        call.attempt += 1
        call.tries += 1
        tag, reply_to, number = call.call.tag, call.reply_to, call.attempt
        # Taken now: the attempt may outlive this incarnation by a moment.
        myself, now = self.ref, self.system.scheduler.now

        def emit(events: list[StreamEvent]) -> None:
            # An attempt of which only its failure is known leaves nothing behind to be taken back.
            call.emitted = call.emitted or not isinstance(events[0], Error)
            reply_to.tell(ModelStreamed(tag, now(), tuple(events)))

        def end(response: ModelResponse) -> None:
            myself.tell_control(_AttemptEnded(tag, number, response))

        route = call.routes[call.route]
        request = _named(call.call.request, route.model)
        call.running = self._driver.start(route.provider, request, emit if call.is_read_along else _unread, end)

    def _ended(self, message: _AttemptEnded) -> None:
        call = self._open.get(message.tag)
        if call is None or call.attempt != message.attempt:
            raise Rejected("the attempt was given up before")
        call.running = None
        limiter = call.routes[call.route].limiter
        if limiter is not None:
            limiter.settle(call.guessed_tokens, message.response.usage.total_tokens)
        if message.response.error is None:
            del self._open[message.tag]
            cost = self._cost(call.call.request.model, message.response)
            self._tell(call.reply_to, ModelResponded(message.tag, self.now(), message.response, cost))
        else:
            call.unread = "" if call.is_read_along else message.response.text
            self._attempt_failed(call, message.response.error)

    def _attempt_failed(self, call: _OpenCall, error: Error) -> None:
        """Again, elsewhere, or not at all."""
        delay = self._retry.delay_seconds(call.tries, error)
        if delay is not None and self.now() + delay < call.call.deadline_at:
            call.timer = self.tell_after(delay, _TryAgain(call.call.tag))
        elif error.kind in _WORTH_A_FALLBACK and call.route + 1 < len(call.routes):
            call.route += 1
            call.tries = 0
            self._attempt(call)
        else:
            self._fail(call, error)

    def _fail(self, call: _OpenCall, error: Error) -> None:
        tag, now = call.call.tag, self.now()
        del self._open[tag]
        if call.unread:
            self._tell(call.reply_to, ModelStreamed(tag, now, (TextDelta(call.unread),)))
        self._tell(call.reply_to, ModelFailed(tag, now, error))

    def _tell(self, reply_to: Ref, event: ModelStreamed | ModelResponded | ModelFailed) -> None:
        """In line behind the deltas. A session whose mailbox is full must not cost all the others this actor."""
        try:
            reply_to.tell(event)
        except MailboxFull:
            self.tell_after(FULL_PAUSE_SECONDS, _TellAgain(reply_to, event))

    def _tell_again(self, message: _TellAgain) -> None:
        self._tell(message.reply_to, message.event)

    def _try_again(self, message: _TryAgain) -> None:
        if call := self._open.get(message.tag):
            self._attempt(call)

    def _stop_model(self, command: StopModel) -> None:
        if call := self._open.pop(command.tag, None):
            call.release()


#: Another model can do better at these; a bad request or a wrong key would fail there for its own reasons, unseen.
_WORTH_A_FALLBACK = frozenset(
    {
        ErrorKind.RATE_LIMITED,
        ErrorKind.OVERLOADED,
        ErrorKind.SERVER,
        ErrorKind.TIMEOUT,
        ErrorKind.CONNECTION,
        ErrorKind.TRUNCATED,
        ErrorKind.BILLING,
        ErrorKind.NOT_FOUND,
    }
)

_HANDLERS: Mapping[type, Callable[[LlmManager, Any], None]] = {
    StartModel: LlmManager._start,
    StopModel: LlmManager._stop_model,
    _AttemptEnded: LlmManager._ended,
    _TryAgain: LlmManager._try_again,
    _TellAgain: LlmManager._tell_again,
}


def _unread(_events: list[StreamEvent]) -> None:
    """The response builder has them."""


def text_length(message: Message) -> int:
    """Characters of a message that count towards its tokens."""
    match message:
        case SystemMessage(text):
            return len(text)
        case ToolMessage(content=content):
            return len(content)
        case UserMessage(parts) | AssistantMessage(parts):
            return sum(len(getattr(part, "text", "")) + len(getattr(part, "arguments", "")) for part in parts)


def _named(request: ModelRequest, model: str) -> ModelRequest:
    """The request, under the route's own name of the model."""
    return dataclasses.replace(request, model=model)
