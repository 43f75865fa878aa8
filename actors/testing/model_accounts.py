"""What is due of the calls that an LLM manager is given: a plain account of each, from its StartModel to its end.

An account is a generator: it yields when it next does something, and writes into the book what should happen then. The
times, kinds and numbers are exact; of texts for people only the names in them are looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.models.llm_manager import FULL_PAUSE_SECONDS, OVERDUE_SECONDS, Route, StartModel, provider_name
from callboard.protocol.commands import NoteKind
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind, UsageError
from callboard.protocol.events import ModelFailed, ModelNoted, ModelResponded, ModelStreamed
from callboard.protocol.limits import (
    MAX_FRAMING_TOKENS,
    MAX_RETRY_AFTER_SECONDS,
    MIN_RATIO_TOKENS,
    TOKEN_RATIO_BOUNDS,
)
from callboard.protocol.model import Error, ModelRequest, ModelResponse, Restarted, StreamEvent, TextDelta, Usage
from callboard.protocol.provider_options import ExtraFields

#: Half of what is drawn of a pause is chance, which is a half in these plays.
FIRST_PAUSE_SECONDS: Final = 0.375
#: What a model said of itself is believed for so long: that it takes no tools, or no schema.
BELIEVED_SECONDS: Final = 3_600.0
#: A refusal of a schema in these words is one of all schemas.
OF_THE_MODEL: Final = "This model does not support structured outputs"
#: The window that it named.
WINDOW_SECONDS: Final = 300.0
#: The share of the newest measurement in a ratio of tokens.
NEWEST_SHARE: Final = 0.2
#: Of these another model is asked; a bad request would be one there, too.
OTHERS_DO_BETTER: Final = RETRYABLE_KINDS - {ErrorKind.MALFORMED_TOOL_CALL} | {
    *(ErrorKind.BILLING, ErrorKind.QUOTA_SPENT, ErrorKind.NOT_FOUND, ErrorKind.UNSUPPORTED)
}
T = TypeVar("T")
Steps = Generator[float, None, T]
"""Yields when it goes on."""
_NEVER: Final = float("inf")


class Piece(NamedTuple):
    """Part of an answer, so long after what came before it."""

    after_seconds: float
    events: tuple[StreamEvent, ...]


class Planned(Struct, frozen=True):
    """What one request to a model comes to."""

    pieces: tuple[Piece, ...] = ()
    after_seconds: float = 0.0
    response: ModelResponse | None = None
    """None: nothing more comes."""
    cannot_start: bool = False
    """The provider's code fails at once."""


class Gate(Struct, eq=False):
    """The limits of a credential, which let requests through at some times; a RateLimiter in the manager's eyes."""

    name: str
    closed: tuple[tuple[float, float], ...]
    counts_tokens: bool
    now: Callable[[], float]
    settled: list[tuple[float, float, float]] = field(default_factory=list)

    def wait_at(self, now: float) -> float:
        """Until it lets one through; a little longer, since times are sums of floats."""
        return next((until - now + 1e-3 for since, until in self.closed if since <= now < until), 0.0)

    def acquire(self, tokens: float = 0.0) -> float:
        """As a RateLimiter."""
        self.settled += [] if self.wait_at(self.now()) else [(self.now(), tokens, -1.0)]
        return self.wait_at(self.now())

    def settle(self, guessed_tokens: float, used_tokens: float) -> None:
        """Likewise."""
        self.settled.append((self.now(), guessed_tokens, used_tokens))


class Happened(NamedTuple):
    """Something that is due, or was seen."""

    at: float
    what: str
    """"asked", "cancelled" or "told"."""
    call: int
    detail: Any
    names: tuple[str, ...] = ()
    """That the text of a note has in it."""

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.what}: {self.detail!r:.400}"


class World(Struct, eq=False):
    """What the accounts share."""

    planned: Callable[[int, int], Planned]
    """By the number of the call and of its request."""
    routes: Callable[[str], Sequence[Route]]
    renewed: Callable[[Route], Route]
    cost: Callable[[str, Usage | None], float | None]
    """Raises for a model of which it is broken."""
    full: Callable[[int, float], bool]
    """Has the session of this call no room at this time?"""
    crashes: list[float] = field(default_factory=list)
    book: list[Happened] = field(default_factory=list)
    no_tools: dict[str, float] = field(default_factory=dict)
    no_schemas: dict[tuple[str, str], float] = field(default_factory=dict)
    """By model and the schema's text; "" for any."""
    windows: dict[str, tuple[int, float]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    settled: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)

    def learns(self, name: str, request: ModelRequest, error: Error, now: float) -> ErrorKind | None:
        """What an error says of a model is kept. How the error is meant: by its status, where the request had no such
        part; None as it is."""
        match error.kind:
            case ErrorKind.CONTEXT_LENGTH if error.context_tokens is not None:
                self.windows[name] = error.context_tokens, now + WINDOW_SECONDS
            case ErrorKind.TOOLS_UNSUPPORTED if request.tools:
                self.no_tools[name] = now + BELIEVED_SECONDS
            case ErrorKind.TOOLS_UNSUPPORTED:
                self.no_tools.pop(name, None)
                return ErrorKind.INVALID_REQUEST
            case ErrorKind.SCHEMA_UNSUPPORTED if request.response_schema is not None:
                of = "" if error.message == OF_THE_MODEL else str(request.response_schema)
                self.no_schemas[name, of] = now + BELIEVED_SECONDS
            case ErrorKind.SCHEMA_UNSUPPORTED:
                return ErrorKind.INVALID_REQUEST
        return None

    def takes(self, name: str, schema: str, now: float) -> bool:
        """Has the model not refused this schema within the hour, nor any?"""
        return all(self.no_schemas.get((name, of), now) <= now for of in ("", schema))

    def counts(self, name: str, input_tokens: int, own_count: int) -> None:
        """The provider's count beside ours, of a prompt that is large enough to tell something."""
        lowest, highest = TOKEN_RATIO_BOUNDS
        may_be_true = lowest * own_count <= input_tokens <= highest * own_count + MAX_FRAMING_TOKENS
        if own_count < MIN_RATIO_TOKENS or not may_be_true:
            return
        ratio = min(input_tokens / own_count, highest)
        known = self.ratios.get(name, ratio)
        self.ratios[name] = known + NEWEST_SHARE * (ratio - known)


class UnknownModel(UsageError):
    """There is no model of that name."""


class Account(Struct, eq=False):
    """One call. `over_at`: when its manager said that its time is over, which may be a little later than it is."""

    world: World
    number: int
    asked: StartModel
    begun_at: float
    stopped_at: float = _NEVER
    over_at: float | None = None
    now: float = 0.0
    sent: int = 0
    name: str = ""
    """Of the model that is asked now."""
    guessed_tokens: float = 0.0
    runs: bool = False
    """A request is on its way."""
    first_event_at: float | None = None
    """Of the request that runs, or ran last."""
    usage: Usage | None = Usage()
    cost: float | None = 0.0
    unread: str = ""
    has_heard: bool = False
    """Its session has heard pieces, and not that they are void."""

    def due(self) -> Iterator[float]:
        """Runs to its end, is stopped, or its time is over. Yields when it does something."""
        latest = self.asked.call.deadline_at + 2 * OVERDUE_SECONDS
        is_over, over_at = self.over_at is not None, latest if self.over_at is None else self.over_at
        for at in self._runs():
            self.now = at
            if self.stopped_at <= min(self.now, over_at):
                self.now = self.stopped_at
                yield self.now
                return self._cancel()
            if self.now > over_at or (is_over and self.now >= over_at):
                self.now = over_at
                yield self.now
                if self.runs and self.first_event_at is not None:
                    self.usage = self.cost = None
                self._cancel()
                return self._ends(Error(ErrorKind.TIMEOUT, "", retryable=True))
            yield self.now
        return None

    def _cancel(self) -> None:
        if self.runs:
            self._notes("cancelled", self.sent)

    def _notes(self, what: str, detail: Any, *names: str) -> None:
        self.world.book.append(Happened(self.now, what, self.number, detail, names))

    def _tells(self, event: ModelStreamed | ModelResponded | ModelFailed) -> None:
        """In line with what was streamed: as soon as there is room."""
        at = self.now
        while self.world.full(self.number, at):
            at += FULL_PAUSE_SECONDS
        if any(self.now < crash <= at for crash in self.world.crashes):
            return  # its session hears that the manager is lost
        self.world.book.append(Happened(at, "told", self.number, event))

    def _noted(self, kind: NoteKind, wait: float, *names: str) -> None:
        until = self.now + wait if wait > 0 else 0.0
        self._notes("told", ModelNoted(self.asked.call.tag, self.now, kind, "", self.sent, until), *names)

    def _ends(self, error: Error) -> None:
        call = self.asked.call
        if self.unread and call.is_turn:
            self._tells(ModelStreamed(call.tag, self.now, (TextDelta(self.unread),)))
        self._tells(ModelFailed(call.tag, self.now, error, self.sent, self.name, self.usage, self.cost))

    # -- the way of a call

    def _runs(self) -> Steps[None]:
        call = self.asked.call
        yield self.begun_at
        try:
            routes = self._routes(call.request.model)
        except UnknownModel:
            return self._ends(Error(ErrorKind.INVALID_REQUEST, ""))
        except RuntimeError:
            return self._ends(Error(ErrorKind.INTERNAL, ""))
        self.name = routes[0].name
        if call.not_before_at > self.now:
            yield call.not_before_at
        for place, route in enumerate(routes):
            self.name = route.name
            error = yield from self._asks(route, max(1, call.attempts - self.sent - (len(routes) - 1 - place)))
            if error is None:
                return None
            if error.kind not in OTHERS_DO_BETTER or place + 1 == len(routes) or self.sent >= call.attempts:
                return self._ends(error)
            self._noted(NoteKind.FALLBACK, 0.0, route.name, routes[place + 1].name)
        return None

    def _routes(self, model: str) -> Sequence[Route]:
        brought = self.asked.routes
        names = [route.name for route in brought]
        if model in names:
            return [self.world.renewed(route) for route in brought[names.index(model) :]]
        return self.world.routes(model)

    def _asks(self, route: Route, may_send: int) -> Steps[Error | None]:
        """One model, until it gives no more: its last error, or None where it has answered."""
        for tries in count(1):
            if (refused := (yield from self._is_let_through(route))) is not None:
                return refused
            self.sent += 1
            plan, self.first_event_at = self.world.planned(self.number, self.sent), None
            if plan.cannot_start:
                self._ends(Error(ErrorKind.INTERNAL, ""))
                return None
            error = yield from self._hears(route, plan)
            pause = None if error is None else self._pause(error, tries, may_send)
            if pause is None:
                return error
            self._noted(NoteKind.RETRY, pause, route.name)
            yield self.now + pause
        raise AssertionError("counting ends")

    def _is_let_through(self, route: Route) -> Steps[Error | None]:
        """A request may be sent now, or why there is none."""
        while self.has_heard and self.world.full(self.number, self.now):
            yield self.now + FULL_PAUSE_SECONDS
        if self.has_heard:
            void = Restarted(f"attempt {self.sent + 1}")
            self._notes("told", ModelStreamed(self.asked.call.tag, self.now, (void,)))
        self.has_heard = has_noted = False
        while (refused := self._refused(route.name)) is None and (wait := self._waits(route)) > 0:
            if self.now + wait >= self.asked.call.deadline_at:
                return Error(ErrorKind.RATE_LIMITED, "", retryable=True, retry_after=wait)
            if not has_noted:
                self._noted(NoteKind.RATE_LIMIT, wait, route.name)
            has_noted = True
            yield self.now + wait
        return refused

    def _hears(self, route: Route, plan: Planned) -> Steps[Error | None]:
        """One request: its error, or None where the call is over."""
        self._notes("asked", (provider_name(route.provider), self._request(route)))
        self.runs = True
        for piece in plan.pieces:
            yield self.now + piece.after_seconds
            if self.first_event_at is None:
                self.first_event_at = self.now
            if not self.asked.is_read_along:
                continue
            while self.world.full(self.number, self.now):
                yield self.now + FULL_PAUSE_SECONDS
            self._notes("told", ModelStreamed(self.asked.call.tag, self.now, piece.events))
            self.has_heard = self.has_heard or not isinstance(piece.events[0], Error)
        yield self.now + plan.after_seconds if plan.response is not None else _NEVER
        assert plan.response is not None
        self.runs = False
        return self._takes(route, plan.response)

    def _refused(self, name: str) -> Error | None:
        request, world = self.asked.call.request, self.world
        if request.tools and world.no_tools.get(name, self.now) > self.now:
            return Error(ErrorKind.TOOLS_UNSUPPORTED, "")
        if request.response_schema is not None and not world.takes(name, str(request.response_schema), self.now):
            return Error(ErrorKind.SCHEMA_UNSUPPORTED, "")
        return None

    def _waits(self, route: Route) -> float:
        """For the limits of its credential; 0.0 where it is let through."""
        gate: Any = route.limiter
        if gate is None:
            return 0.0
        if gate.counts_tokens:
            self.guessed_tokens = self.asked.call.prompt_tokens * max(self.world.ratios.get(route.name, 1.0), 1.0)
        wait = float(gate.wait_at(self.now))
        if not wait:
            self.world.settled.setdefault(gate.name, []).append((self.now, self.guessed_tokens, -1.0))
        return wait

    def _request(self, route: Route) -> ModelRequest:
        call, provider = self.asked.call, route.name.partition("/")[0]
        options = tuple(
            replace(each, provider="") if isinstance(each, ExtraFields) and each.provider == provider else each
            for each in call.request.provider_options
        )
        is_last = self.sent == call.attempts
        return replace(call.request, model=route.model, is_last_try=is_last, provider_options=options)

    def _takes(self, route: Route, response: ModelResponse) -> Error | None:
        """What it came to. The error, if another request may follow."""
        call, world, error = self.asked.call, self.world, response.error
        used = response.usage or Usage()
        if route.limiter is not None:
            is_unknown = not used.total_tokens and (error is None or bool(response.parts))
            gate: Any = route.limiter
            took = self.guessed_tokens if is_unknown else used.total_tokens
            world.settled.setdefault(gate.name, []).append((self.now, self.guessed_tokens, took))
        if error is not None:
            self.unread = "" if self.asked.is_read_along else response.text
        else:
            world.counts(route.name, used.input_tokens, call.prompt_tokens)
        if error is None or response.parts or used.total_tokens:
            try:
                cost = world.cost(route.name, response.usage)
            except RuntimeError:
                self._adds(response.usage, None)
                self._ends(Error(ErrorKind.INTERNAL, ""))
                return None
            self._adds(response.usage, cost)
        if error is None:
            done = ModelResponded(call.tag, self.now, response, self.cost, self.sent, route.name, self.first_event_at)
            self._tells(done)
            return None
        kind = world.learns(route.name, call.request, error, self.now)
        return error if kind is None else replace(error, kind=kind)

    def _adds(self, usage: Usage | None, cost: float | None) -> None:
        self.usage = None if self.usage is None or usage is None else self.usage + usage
        self.cost = None if self.cost is None or cost is None else self.cost + cost

    def _pause(self, error: Error, tries: int, may_send: int) -> float | None:
        """Until the next request to this model; None: there is none."""
        asked_for = error.retry_after or 0.0
        if not error.retryable or tries >= may_send or asked_for > MAX_RETRY_AFTER_SECONDS:
            return None
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1), MAX_RETRY_AFTER_SECONDS)
        pause = max(pause, asked_for + 0.5 * max(min(asked_for, 2.0), asked_for * 0.1))
        pause = 0.0 if error.at_once else pause
        return pause if self.now + pause < self.asked.call.deadline_at else None


def settle_accounts(accounts: Sequence[Account]) -> None:
    """Let all of them run side by side, the earliest first: what one learns of a model holds for the others."""
    order = count()
    running = [(account.begun_at, next(order), account.due()) for account in accounts]
    heapq.heapify(running)
    while running:
        _, number, account = heapq.heappop(running)
        if (at := next(account, None)) is not None:
            heapq.heappush(running, (at, number, account))
