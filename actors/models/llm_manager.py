"""LlmManager: makes the model calls of all sessions.

It owns the rate limits, the retries and the open streams. The bytes of a stream do not pass through its mailbox: a task
reads them and tells the session directly, one message a socket read; the manager hears how an attempt ended, and asks
the retry policy whether there is another. Each attempt is one request; a call takes no more of them, over all routes,
than it came with (`CallModel.attempts`). The session counts them too, since its count outlives this actor: it hears of
a failed attempt before the next one begins. What a user's own code (routes, limits, retries, prices, providers) raises
ends the call that it was used for, as an error that names it, and the manager goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from typing import Final, Protocol, TypeVarTuple

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.kernel import Actor, MailboxFull, Ref, Rejected, Timer, handles, logger_of
from callboard.actors.models.refusals import Refusals, is_of_the_model, names_a_tool, refused_as_strict
from callboard.actors.models.token_ratios import TokenRatios
from callboard.protocol.commands import CallModel, NoteKind, StopModel
from callboard.protocol.errors import FALLBACK_KINDS, RETRYABLE_KINDS, ErrorKind, UsageError, said
from callboard.protocol.events import ModelFailed, ModelNoted, ModelResponded, ModelStreamed
from callboard.protocol.ids import Tag
from callboard.protocol.limits import MAX_ANSWER_BYTES, MAX_RESPONSE_BYTES
from callboard.protocol.model import (
    CallPurpose,
    Done,
    Error,
    ModelRequest,
    ModelResponse,
    Restarted,
    StreamEvent,
    TextDelta,
    Usage,
)
from callboard.protocol.provider_options import ExtraFields, ProviderOptions
from callboard.providers.adapter import Provider
from callboard.providers.http_errors import by_status
from callboard.providers.rate_limit import RateLimiter
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.retry import RetryPolicy, Tries

logger = logger_of("callboard")
Ts = TypeVarTuple("Ts")

#: A session whose mailbox is full is tried again after this long: at 2 us a message it has emptied some thousands.
FULL_PAUSE_SECONDS: Final = 0.01
#: Behind the deadline of a model call, which may be that of its request: then the session is the one to say so.
#: The deadlines are looked at no more often than that, so that a call may be twice as late.
OVERDUE_SECONDS: Final = 1.0
#: For a provider to close its stream after the answer is whole, or the call was stopped; then it is left alone.
CLOSE_STREAM_SECONDS: Final = 5.0
#: Of one stream, 5 us each, before the others of its loop have their turn. Not a time: uvloop's clock stands still
#: while a stream goes on reading.
TURN_EVENTS: Final = 256

ModelEvent = ModelStreamed | ModelNoted | ModelResponded | ModelFailed
"""What a session hears of its model call."""
Routes = Callable[[str], Sequence["Route"]]
"""From "provider/model" to the routes to try in turn: the model itself, then its fallbacks."""
Renewed = Callable[["Route"], "Route"]
"""A route that a question has brought along, as the settings have it now."""
Cost = Callable[[str, Usage | None, Mapping[str, object], str], float | None]
"""US dollars for one call, None where that is not known: of the name of the route that answered, the tokens used, the
provider's own account of them, and the model that answered in the provider's words."""
Emit = Callable[[list[StreamEvent]], None]
"""Takes one batch of events. Raises MailboxFull where there is no room for it now."""
End = Callable[[ModelResponse], None]
"""Told once, with the whole turn or the error that cut it off."""


class Route(Struct, frozen=True):
    """One model to ask: the provider that speaks to it and the provider's name for it."""

    provider: Provider
    model: str
    limiter: RateLimiter | None = None
    """The limits of its credential, shared by all requests; None: unlimited."""
    listed_as: str = ""
    """"provider/model" in the words of the settings; "" where the provider's own name says it."""

    @property
    def name(self) -> str:
        """ "provider/model", by which its price and window are looked up."""
        return self.listed_as or f"{provider_name(self.provider)}/{self.model}"


class Attempt(Protocol):
    """One running attempt at a model call, a task for example."""

    def cancel(self) -> object: ...


StartAttempt = Callable[[Provider, ModelRequest, Emit, End, Context | None], Attempt]
"""Starts one attempt: `emit` is called for each batch of events, then `end` exactly once (never after `cancel`). The
provider runs in a copy of the asker's context."""


# -- messages


class StartModel(Struct, frozen=True):
    """Make this model call; its events go to `reply_to`."""

    call: CallModel
    reply_to: Ref[ModelEvent]
    asker: Context | None = None
    """The asker's context; the provider runs in a copy of it."""
    is_read_along: bool = True
    """If not, there are no ModelStreamed but one: the text of a turn that has failed."""
    routes: Sequence[Route] = ()
    """Of its request, the one asked first in front; (): those that the manager knows by the name of the model."""


class AttemptEnded(Struct, frozen=True):
    """An attempt's stream has ended."""

    tag: Tag
    attempt: int
    response: ModelResponse
    has_emitted: bool
    """Has the session heard anything of it but its failure?"""
    first_event_at: float | None = None


class TryAgain(Struct, frozen=True):
    """The pause before an attempt is over."""

    tag: Tag


class TellAgain(Struct, frozen=True):
    """The session's mailbox was full: it hears these in their order."""

    reply_to: Ref[ModelEvent]
    events: tuple[ModelEvent, ...]


class CallsOverdue(Struct, frozen=True):
    """The deadline of a model call may have passed."""


class BacklogRead(Struct, frozen=True, eq=False):
    """What waited when an incarnation started has been read. A former one may have left its own in the mailbox."""


LlmMessage = StartModel | StopModel | AttemptEnded | TryAgain | TellAgain | CallsOverdue | BacklogRead


# -- the manager


class _OpenCall(Struct, eq=False):
    """One model call, from StartModel to its end."""

    asked: StartModel
    tag: Tag
    overdue_at: float
    routes: Sequence[Route] = ()
    route: int = 0
    tries: Tries | None = None
    """On the current route."""
    attempt: int = 0
    """Attempts started, over all routes: an end that carries another number is of an attempt given up."""
    has_noted_wait: bool = False
    """For the rate limit, before the attempt that comes next."""
    has_emitted: bool = False
    usage: Usage | None = Usage()
    """Of attempts that had begun to answer; None once that of one is not known."""
    cost: float | None = 0.0
    """US dollars for these; None once that for one is not known."""
    unread: str = ""
    """The text of the last attempt, where no reader followed it."""
    guessed_tokens: float = 0.0
    """Taken from the limiter for the running attempt; corrected when its usage is known."""
    doing: str = ""
    """What works for it now, to name it when it fails."""
    then: str = ""
    """What the next try does otherwise than the last one."""
    running: Attempt | None = None
    reports: _AttemptReports | None = None
    """Those of the running attempt."""
    timer: Timer | None = None

    def release(self) -> None:
        """End what works for this call."""
        if self.running is not None:
            self.running.cancel()
        if self.timer is not None:
            self.timer.cancel()


class _AttemptReports(Struct, eq=False):
    """What one attempt tells the session, and its end the manager. It may outlive the manager's incarnation by a
    moment, so it holds no more of it than its address."""

    asked: StartModel
    number: int
    manager: Ref[AttemptEnded]
    now: Callable[[], float]
    has_emitted: bool = False
    first_event_at: float | None = None

    def emit(self, events: list[StreamEvent]) -> None:
        """See `Emit`. Without a reader, the response builder alone has them."""
        if self.first_event_at is None:
            self.first_event_at = self.now()
        if self.asked.is_read_along:
            self.asked.reply_to.tell(ModelStreamed(self.asked.call.tag, self.now(), tuple(events)))
            # An attempt of which only its failure is known leaves nothing behind to be taken back.
            self.has_emitted = self.has_emitted or not isinstance(events[0], Error)

    def end(self, response: ModelResponse) -> None:
        """See `End`."""
        tag, has_emitted = self.asked.call.tag, self.has_emitted
        self.manager.tell_control(AttemptEnded(tag, self.number, response, has_emitted, self.first_event_at))


def _as_it_is(route: Route) -> Route:
    return route


class LlmManager(Actor[LlmMessage]):
    """See the module."""

    def __init__(
        self,
        routes: Routes,
        start: StartAttempt,
        retry: RetryPolicy,
        cost: Cost,
        ratios: TokenRatios | None = None,
        refusals: Refusals | None = None,
        renewed: Renewed = _as_it_is,
    ) -> None:
        """`renewed`: a route of a question as it is now."""
        self._renewed = renewed
        self._ratios = ratios or TokenRatios()
        self._refusals = refusals or Refusals()
        self._routes = routes
        self._start_provider = start
        self._retry = retry
        self._cost = cost
        self._open: dict[Tag, _OpenCall] = {}
        self._look: Timer | None = None
        """At the deadlines of the open calls: one timer for all, for most calls end before it."""
        self._look_at = 0.0
        self._end_of_backlog = BacklogRead()
        self._has_read_backlog = False

    def on_start(self) -> None:
        self.at_end(self._release_all)
        # On the user lane, so that it comes after all that was sent before: of a call that its session has given up
        # while no manager ran, the StopModel too.
        self.ref.tell(self._end_of_backlog)

    def _release_all(self) -> None:
        for call in self._open.values():
            call.release()

    # -- messages

    @handles(StartModel)
    def _start(self, message: StartModel) -> None:
        asked = message.call
        self._drop(asked.tag)
        call = self._open[asked.tag] = _OpenCall(message, asked.tag, asked.deadline_at + OVERDUE_SECONDS)
        if self._has_read_backlog:
            self._work(call, self._begin)

    @handles(BacklogRead)
    def _backlog_read(self, message: BacklogRead) -> None:
        if message is not self._end_of_backlog:
            return
        self._has_read_backlog = True
        for call in tuple(self._open.values()):
            self._work(call, self._begin)

    @handles(StopModel)
    def _stop_model(self, command: StopModel) -> None:
        self._drop(command.tag)

    @handles(TryAgain)
    def _try_again(self, message: TryAgain) -> None:
        if call := self._open.get(message.tag):
            self._work(call, self._attempt)

    @handles(CallsOverdue)
    def _end_overdue(self, message: CallsOverdue) -> None:
        self._look, now = None, self.now()
        for call in tuple(self._open.values()):
            if call.overdue_at <= now:
                name = provider_name(call.routes[call.route].provider) if call.routes else "the model"
                why = f"{name} had not finished its answer by the deadline of the model call"
                if call.reports is not None and call.reports.first_event_at is not None:
                    call.usage = call.cost = None  # the running attempt has begun to answer, and will not say
                self._fail(call, ErrorKind.TIMEOUT, why)
        if self._open:
            self._look_not_after(max(min(call.overdue_at for call in self._open.values()), now + OVERDUE_SECONDS))

    def _look_not_after(self, at: float) -> None:
        if self._look is None or at < self._look_at:
            self._stop_looking()
            self._look, self._look_at = self.tell_at(at, CallsOverdue()), at

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self._look = None

    @handles(AttemptEnded)
    def _ended(self, message: AttemptEnded) -> None:
        call = self._open.get(message.tag)
        if call is None or call.attempt != message.attempt:
            raise Rejected("the attempt was given up before")
        call.running = call.reports = None
        call.has_emitted = message.has_emitted
        self._work(call, self._take, message)

    @handles(TellAgain)
    def _tell_again(self, message: TellAgain) -> None:
        self._tell(message.reply_to, *message.events)

    # -- one call

    def _work(self, call: _OpenCall, work: Callable[[_OpenCall, *Ts], None], *arguments: *Ts) -> None:
        """A failure of what works for a call ends that call, and nothing else."""
        try:
            work(call, *arguments)
        except UsageError as error:
            self._fail(call, ErrorKind.INVALID_REQUEST, said(error))
        except BaseException as error:
            self._fail(call, ErrorKind.INTERNAL, f"{call.doing} failed: {said(error)}")
            logger.warning("%s failed", call.doing, exc_info=error, extra=call.tag.shown())

    def _begin(self, call: _OpenCall) -> None:
        asked = call.asked.call
        call.doing = f"looking up the model {asked.request.model}"
        brought = tuple(map(self._renewed, _from(asked.request.model, call.asked.routes)))
        call.routes = brought or self._routes(asked.request.model)
        self._look_not_after(call.overdue_at)
        self._take_route(call)
        if asked.not_before_at > self.now():
            call.timer = self.tell_at(asked.not_before_at, TryAgain(call.tag))
        else:
            self._attempt(call)

    def _take_route(self, call: _OpenCall) -> None:
        """Each later route keeps one attempt, as far as there are so many: the first ones come before the last."""
        call.doing = "the retry policy"
        call.has_noted_wait = False
        later_routes = len(call.routes) - 1 - call.route
        asked = call.asked.call
        attempts = max(1, asked.attempts - call.attempt - later_routes)
        call.tries = self._retry.tries(attempts, asked.deadline_at, self.now)

    def _attempt(self, call: _OpenCall) -> None:
        """Start an attempt, when the credential's limits let it."""
        if call.has_emitted and not self._told_restart(call):
            call.timer = self.tell_after(FULL_PAUSE_SECONDS, TryAgain(call.tag))
            return
        route, wait = call.routes[call.route], 0.0
        if refused := self._refused_before(call.asked.call.request, route.name):
            self._end(call, refused)
            return
        if limiter := route.limiter:
            call.doing = "the rate limiter"
            if limiter.counts_tokens:
                ratio = self._ratios.ratio(route.name)
                call.guessed_tokens = call.asked.call.prompt_tokens * ratio
            wait = limiter.acquire(call.guessed_tokens)
        if wait <= 0:
            self._start_attempt(call, route)
        elif self.now() + wait < call.asked.call.deadline_at:
            if not call.has_noted_wait:
                call.has_noted_wait = True
                told = f"{route.name} waits {wait:.1f} s for the rate limit of {provider_name(route.provider)}."
                self._note(call, NoteKind.RATE_LIMIT, told, wait)
            call.timer = self.tell_after(wait, TryAgain(call.tag))
        else:
            why = f"the rate limit of {provider_name(route.provider)} allows no call before the deadline"
            self._elsewhere(call, Error(ErrorKind.RATE_LIMITED, why, retryable=True, retry_after=wait))

    def _refused_before(self, request: ModelRequest, name: str) -> Error | None:
        """What the model is known not to take; it is not asked."""
        if request.tools and not self._refusals.takes_tools(name, self.now()):
            return Error(ErrorKind.TOOLS_UNSUPPORTED, f"{name} takes no tools, as it has said before")
        schema = request.response_schema
        if schema is not None and not self._refusals.takes_schemas(name, self.now(), schema):
            told = f"{name} takes no schema of the answer, or not such a one, as it has said before"
            return Error(ErrorKind.SCHEMA_UNSUPPORTED, told)
        return None

    def _told_restart(self, call: _OpenCall) -> bool:
        """What the attempt before has emitted is void; in line behind it, so not on the control lane."""
        restarted = Restarted(f"attempt {call.attempt + 1}")
        try:
            call.asked.reply_to.tell(ModelStreamed(call.tag, self.now(), (restarted,)))
        except MailboxFull:
            return False
        call.has_emitted = False
        return True

    def _start_attempt(self, call: _OpenCall, route: Route) -> None:
        assert call.tries is not None
        call.doing = "the retry policy"
        call.tries.begin()
        call.timer = None
        call.has_noted_wait = False
        call.attempt += 1
        call.doing = "starting the provider"
        asked, number = call.asked, call.attempt
        reports = _AttemptReports(asked, number, self.ref, self.system.scheduler.now)
        is_last_try = number == asked.call.attempts
        request, now = asked.call.request, self.now()
        tools = self._refusals.as_taken(route.name, request.tools, now)
        search = self._refusals.search_as_taken(route.name, request.tool_search, now)
        request = replace(request, model=route.model, tools=tools, tool_search=search, is_last_try=is_last_try)
        if request.provider_options:
            request = replace(request, provider_options=tuple(_for_route(route, request.provider_options)))
        call.reports = reports
        call.running = self._start_provider(route.provider, request, reports.emit, reports.end, asked.asker)

    def _take(self, call: _OpenCall, ended: AttemptEnded) -> None:
        """What an attempt came to."""
        response = ended.response
        route, used = call.routes[call.route], response.usage or Usage()
        if limiter := route.limiter:
            call.doing = "the rate limiter"
            # Of an error before the answer nothing was used; what an answer took that was cut off is not known.
            is_unknown = not used.total_tokens and (response.error is None or bool(response.parts))
            limiter.settle(call.guessed_tokens, call.guessed_tokens if is_unknown else used.total_tokens)
        if response.error is not None:
            call.unread = "" if call.asked.is_read_along else response.text
            if response.parts or used.total_tokens:
                self._charge(call, response)
            self._attempt_failed(call, response.error)
            return
        self._ratios.learn(route.name, used.input_tokens, call.asked.call.prompt_tokens)
        self._charge(call, response)
        self._drop(call.tag)
        requests, first_at = call.attempt, ended.first_event_at
        done = ModelResponded(call.tag, self.now(), response, call.cost, requests, route.name, first_at)
        self._tell(call.asked.reply_to, done)

    def _charge(self, call: _OpenCall, response: ModelResponse) -> None:
        """Add what this attempt took to that of those before it. Its cost is not known until its function has said."""
        call.doing = "the cost function"
        usage, before, call.cost = response.usage, call.cost, None
        call.usage = None if call.usage is None or usage is None else call.usage + usage
        cost = self._cost(call.routes[call.route].name, usage, response.raw_usage, response.model)
        call.cost = None if cost is None or before is None else cost + before

    def _learned(self, call: _OpenCall, error: Error) -> Error:
        """What the error says of the model is remembered. The error as it is meant."""
        name, now = call.routes[call.route].name, self.now()
        if call.asked.call.request.tool_search is not None and self._refusals.learn_no_search(name, error, now):
            return replace(error, retryable=True, at_once=True)
        if error.kind is ErrorKind.CONTEXT_LENGTH and error.context_tokens is not None:
            self._refusals.learn_window(name, error.context_tokens, now)
        elif error.kind is ErrorKind.TOOLS_UNSUPPORTED and call.asked.call.request.tools:
            self._refusals.learn_no_tools(name, now)
        elif error.kind is ErrorKind.TOOLS_UNSUPPORTED:
            self._refusals.forget_no_tools(name)
            return by_status(error)
        elif error.kind is ErrorKind.SCHEMA_UNSUPPORTED:
            return self._refused_schema(call, error, name, now)
        return error

    def _refused_schema(self, call: _OpenCall, error: Error, name: str, now: float) -> Error:
        """Of strict tools: they are sent once more at once, without `strict`. Of the answer: it is not sent again."""
        request, refusals = call.asked.call.request, self._refusals
        schema, sent = request.response_schema, refusals.as_taken(name, request.tools, now)
        if blamed := refused_as_strict(error.message, sent, has_answer_schema=schema is not None):
            refusals.learn_not_strict(name, blamed, now)
            call.then = f"its schema was refused: {', '.join(tool.name for tool in blamed)} without strict now."
            return replace(error, retryable=True, at_once=True)
        if schema is None or names_a_tool(error.message):
            return by_status(error)
        refusals.learn_no_schema(name, now, None if is_of_the_model(error.message) else schema)
        return error

    def _attempt_failed(self, call: _OpenCall, error: Error) -> None:
        """Again, elsewhere, or not at all."""
        assert call.tries is not None
        error = self._learned(call, error)
        call.doing = "the retry policy"
        pause, then, call.then = call.tries.failed(error), call.then, ""
        if pause is None:
            self._elsewhere(call, error)
        else:
            then = then or f"it is asked again in {pause:.3g} s."
            self._note(call, NoteKind.RETRY, f"{_told_failure(call, error)}; {then}", pause)
            call.timer = self.tell_after(pause, TryAgain(call.tag))

    def _elsewhere(self, call: _OpenCall, error: Error) -> None:
        """This route has no more to give: the next one, where it can do better, or the end."""
        if error.kind in FALLBACK_KINDS and self._has_next_route(call):
            told = _told_failure(call, error)
            call.route += 1
            self._take_route(call)
            self._note(call, NoteKind.FALLBACK, f"{told}; {call.routes[call.route].name} is asked now.")
            self._attempt(call)
        else:
            self._end(call, error)

    @staticmethod
    def _has_next_route(call: _OpenCall) -> bool:
        return call.route + 1 < len(call.routes) and call.attempt < call.asked.call.attempts

    def _note(self, call: _OpenCall, kind: NoteKind, text: str, wait: float = 0.0) -> None:
        """On the control lane: it comes before the end of this incarnation does, and needs no room."""
        now = self.now()
        noted = ModelNoted(call.tag, now, kind, text, call.attempt, now + wait if wait > 0 else 0.0)
        call.asked.reply_to.tell_control(noted)

    def _fail(self, call: _OpenCall, kind: ErrorKind, why: str) -> None:
        self._end(call, Error(kind, why, kind in RETRYABLE_KINDS))

    def _end(self, call: _OpenCall, error: Error) -> None:
        self._drop(call.tag)
        model = call.routes[call.route].name if call.routes else ""
        failed = ModelFailed(call.tag, self.now(), error, call.attempt, model, call.usage, call.cost)
        if call.unread and call.asked.call.purpose is CallPurpose.TURN:
            unread = ModelStreamed(call.tag, self.now(), (TextDelta(call.unread),))
            self._tell(call.asked.reply_to, unread, failed)
        else:
            self._tell(call.asked.reply_to, failed)

    def _drop(self, tag: Tag) -> None:
        if call := self._open.pop(tag, None):
            call.release()
            if not self._open:
                self._stop_looking()

    def _tell(self, reply_to: Ref[ModelEvent], *events: ModelEvent) -> None:
        """In line behind the deltas. A session whose mailbox is full must not cost all the others this actor."""
        for place, event in enumerate(events):
            try:
                reply_to.tell(event)
            except MailboxFull:
                self.tell_after(FULL_PAUSE_SECONDS, TellAgain(reply_to, events[place:]))
                return


def _from(model: str, routes: Sequence[Route]) -> Sequence[Route]:
    """The route of this model and those behind it: a fallback is named once it has refused tools. () where it is none
    of them: another model is asked for a summary."""
    if not routes or routes[0].name == model:
        return routes
    return routes[next((place for place, route in enumerate(routes) if route.name == model), len(routes)) :]


def _for_route(route: Route, options: Iterable[ProviderOptions]) -> Iterator[ProviderOptions]:
    """The options, extra fields for this route's provider as such for any adapter: one may serve several providers."""
    provider = route.name.partition("/")[0]
    for each in options:
        if isinstance(each, ExtraFields) and each.provider == provider:
            each = replace(each, provider="")
        yield each


def _told_failure(call: _OpenCall, error: Error) -> str:
    status = f", status {error.status}" if error.status else ""
    used = f"after {call.attempt} of {call.asked.call.attempts} requests"
    return f"{call.routes[call.route].name} failed ({error.kind}{status}) {used}"


_BATCH: Final = (list, tuple)
_LAST: Final = (Done, Error)


# -- one attempt: a task of the runtime's loop, which only tells


class _Reading(Struct, frozen=True, eq=False):
    """A task that reads an answer."""

    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None]

    def cancel(self) -> None:
        """A provider that takes too long to close its stream then is not waited for."""
        if self.task.cancel():
            self.loop.call_later(CLOSE_STREAM_SECONDS, self.task.cancel)


def start_on(loop: asyncio.AbstractEventLoop) -> StartAttempt:
    """Runs attempts as tasks of this loop."""

    def start(provider: Provider, request: ModelRequest, emit: Emit, end: End, asker: Context | None) -> Attempt:
        context = Context() if asker is None else asker.copy()
        reading = read_stream(provider, request, emit, end)
        # The name is what the watchdog calls a provider that blocks the loop.
        name = f"the provider {provider_name(provider)}"
        return _Reading(loop, loop.create_task(reading, name=name, context=context))

    return start


def provider_name(provider: Provider) -> str:
    """Its name, also where asking for it fails."""
    try:
        return str(provider.name)
    except Exception:  # noqa: BLE001 - a provider written by a user
        return type(provider).__name__


async def read_stream(provider: Provider, request: ModelRequest, emit: Emit, end: End) -> None:
    """Read one answer. What the provider raises is an error of the turn; `end` is called once, but not after a cancel.

    It is called as soon as the turn is whole: what a provider does after that, or does not do, holds nothing up.
    """
    stream: AsyncIterator[list[StreamEvent]] | None = None
    is_whole = False
    try:
        try:
            stream = provider.stream(request)
            response = await _turn(stream, emit)
            is_whole = response.error is None
        except UsageError as error:
            response = _failed(ErrorKind.INVALID_REQUEST, said(error))
        except BaseException as error:  # of a provider written by a user: its fault must not cost a hanging request
            if is_cancelled():
                if isinstance(error, GeneratorExit):
                    raise
                raise asyncio.CancelledError from error
            response = _failed(ErrorKind.INTERNAL, f"the provider {provider_name(provider)} failed: {said(error)}")
        end(response)
    finally:
        if isinstance(stream, AsyncGenerator):
            await _close(stream, provider, is_whole)


async def _turn(stream: AsyncIterator[list[StreamEvent]], emit: Emit) -> ModelResponse:
    builder, task = ResponseBuilder(), asyncio.current_task()
    taken = 0
    async for events in stream:
        if task is not None and task.cancelling():  # the provider has swallowed it
            raise asyncio.CancelledError
        if not isinstance(events, _BATCH):
            raise TypeError(f"it yielded a {type(events).__name__}, not a list of stream events")
        taken += 1 + len(events)
        if taken > TURN_EVENTS:
            # A stream that always has more to read would never let the loop go; its neighbours have their turn.
            await asyncio.sleep(0)
            taken = 0
        if not events:
            continue
        builder.feed(events)
        if builder.text_bytes > MAX_ANSWER_BYTES or builder.media_bytes > MAX_RESPONSE_BYTES:
            return _failed(ErrorKind.MALFORMED, f"the answer is longer than {MAX_ANSWER_BYTES / 1024**2:g} MiB")
        while True:
            try:
                emit(events)
                break
            except MailboxFull:
                # A session that is behind holds up its own stream. Its deadline bounds the wait: it ends the attempt.
                await asyncio.sleep(FULL_PAUSE_SECONDS)
        if isinstance(events[-1], _LAST):
            break
    return builder.response()


async def _close(stream: AsyncGenerator[list[StreamEvent]], provider: Provider, is_whole: bool) -> None:
    """A stream that has said all may come to its end, so that its connection can be used again; others are closed."""
    try:
        task = asyncio.current_task()
        assert task is not None
        late = asyncio.get_running_loop().call_later(CLOSE_STREAM_SECONDS, task.cancel)
        try:
            if is_whole:
                await anext(stream, None)
            await stream.aclose()
        finally:
            late.cancel()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - of a provider written by a user
        logger.debug("the provider %s could not close its stream: %s", provider_name(provider), said(error))


def is_cancelled() -> bool:
    """Has the task that runs now been cancelled from outside? A provider may raise CancelledError itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # closed where no loop runs: the runtime has ended
        return True
    return task is not None and task.cancelling() > 0


def _failed(kind: ErrorKind, message: str) -> ModelResponse:
    return ModelResponse(error=Error(kind, message))
