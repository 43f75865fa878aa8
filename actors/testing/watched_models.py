"""Model calls in a simulated run, followed from outside: as many requests as are due, each in its time, and what is
told of them in the end. An attempt goes on as long as somebody waits for it, and no longer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.kernel.cell import State
from callboard.actors.kernel.system import ActorSystem
from callboard.actors.models.llm_manager import FULL_PAUSE_SECONDS, OVERDUE_SECONDS, AttemptEnded, StartModel
from callboard.actors.testing.faults import ModelFaults, RequestFate
from callboard.protocol.commands import CallModel, NoteKind, StopModel
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.events import Event, ModelFailed, ModelNoted, ModelResponded, ModelStreamed
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.limits import MAX_RETRY_AFTER_SECONDS
from callboard.protocol.model import Error, ModelRequest, ModelResponse, Restarted, StreamEvent, TextDelta, Usage
from callboard.providers.local.scripted import Scripted

#: A session whose mailbox is full is told again within this time.
FULL_SECONDS: Final = 1.0
#: Float sums of virtual times, in seconds.
EPSILON: Final = 1e-6
#: The pause behind the first failure, where chance is a half as in each simulated run; it doubles with each.
FIRST_PAUSE_SECONDS: Final = 0.375
#: Asked of a model that has said so before, these are not sent at all.
_UNASKED: Final = (ErrorKind.TOOLS_UNSUPPORTED, ErrorKind.SCHEMA_UNSUPPORTED)
#: Of these another model is asked; a bad request would be one there, too.
_OTHERS_DO_BETTER: Final = RETRYABLE_KINDS - {ErrorKind.MALFORMED_TOOL_CALL} | {
    *(ErrorKind.BILLING, ErrorKind.QUOTA_SPENT, ErrorKind.NOT_FOUND, ErrorKind.UNSUPPORTED)
}
#: What the manager says itself, of a call that it could not make.
_ITS_OWN: Final = (ErrorKind.INTERNAL, ErrorKind.INVALID_REQUEST)

CostOf = Callable[[Tag, Usage | None], float | None]
"""US dollars for what an attempt used, by the prices of its request."""


class RoutedProvider(Scripted):
    """That of one route to a model: of the model itself (0), or of a fallback."""

    def __init__(self, route: int) -> None:
        super().__init__(())
        self.route = route


class WatchedAttempt(Struct, eq=False):
    """One request to the model."""

    at: float
    request: ModelRequest
    first_event_at: float | None = None
    ended_at: float | None = None
    read_at: float | None = None
    """When its manager heard of the end: by this time it decides."""
    pause: float | None = None
    """From then until the next request to the same model; None: there is none."""
    response: ModelResponse | None = None
    is_cancelled: bool = False
    is_overtaken: bool = False
    """A piece of it came behind its end, as things of one moment may."""

    @property
    def runs(self) -> bool:
        """Has it neither ended nor been cancelled?"""
        return self.ended_at is None and not self.is_cancelled

    @property
    def error(self) -> Error | None:
        """What it ended with."""
        return self.response.error if self.response is not None else None


class _Call(Struct, eq=False):
    asked: StartModel
    read_at: float
    attempts: list[WatchedAttempt] = field(default_factory=list)
    is_stopped: bool = False
    told: Event | None = None
    route: int = 0
    """Which of the models is asked now, from 0 on."""
    sent_before: int = 0
    """Requests sent to those before it."""
    pieces: deque[tuple[WatchedAttempt, tuple[StreamEvent, ...]]] = field(default_factory=deque)
    """What was streamed, and its session has not heard yet."""
    heard_of: WatchedAttempt | None = None
    """Its session has heard pieces of this one, and not that they are void."""
    heard_text: str = ""
    """Of an answer that failed, where nobody read along."""
    late_since: float = float("inf")
    """When its time was first seen to be over."""
    untold_pauses: dict[int, float] = field(default_factory=dict)
    """Its session has still to hear that it is asked again, in so many seconds behind so many requests."""
    untold_routes: list[int] = field(default_factory=list)
    """Its session has still to hear that another model is asked, after so many requests."""

    @property
    def tries(self) -> int:
        """Requests sent to the model that is asked now."""
        return len(self.attempts) - self.sent_before

    def may_send(self, routes: int) -> int:
        """To the model that is asked now, at most: each later one keeps one request, as far as there are so many."""
        return max(1, self.call.attempts - self.sent_before - (routes - 1 - self.route))

    def goes_elsewhere(self) -> None:
        """The next model is asked."""
        self.route, self.sent_before = self.route + 1, sum(not each.runs for each in self.attempts)
        self.untold_routes.append(self.sent_before)

    @property
    def call(self) -> CallModel:
        return self.asked.call


class WatchedModels:
    """Of one process. `problems`: what was wrong, one sentence each, with the request's id in front."""

    def __init__(self, system: ActorSystem, faults: ModelFaults, problems: list[str], cost_of: CostOf) -> None:
        self._system = system
        self._routes = faults.routes
        self._has_limits = faults.requests_per_minute is not None or RequestFate.RATE_LIMITED in faults.fates
        """The first model may have to wait for its limits, for how long is not asked here."""
        self.problems = problems
        self._cost_of = cost_of
        self._calls: dict[Tag, _Call] = {}
        """Those that the manager of now has read."""
        self._running: list[tuple[Tag, WatchedAttempt]] = []

    def _wrong(self, tag: Tag, rule: str, told: str) -> None:
        call = f"the model call of step {tag.step}"
        self.problems.append(f"{tag.request_id} {rule}: {call}, at {self._system.now():g}: {told}")

    # -- what the manager reads and does

    def manager_starts(self) -> None:
        """The one before is gone, with its calls: their sessions ask again."""
        self._calls.clear()

    def read(self, message: object) -> None:
        """The manager takes this message."""
        if isinstance(message, StartModel):
            self._calls[message.call.tag] = _Call(message, self._system.now())
        elif isinstance(message, StopModel) and message.tag in self._calls:
            self._calls[message.tag].is_stopped = True
        elif isinstance(message, AttemptEnded) and message.tag in self._calls:
            self._hears_of_end(self._calls[message.tag], message.attempt)

    def _hears_of_end(self, call: _Call, number: int) -> None:
        """The manager decides what follows: later than the provider has said its last, where the clock has jumped."""
        if call.is_stopped or number != len(call.attempts):
            return  # it was given up before
        last = call.attempts[-1]
        last.read_at, last.pause = self._system.now(), self._pause_from_now(call)
        if last.pause is not None:
            call.untold_pauses[number] = last.pause
        elif self._goes_elsewhere(call):
            call.goes_elsewhere()

    def open_of(self, request_id: RequestId) -> Tag | None:
        """The step whose model call the manager has open for a request."""
        found = (tag for tag in reversed(self._calls) if tag.request_id == request_id)
        return next((tag for tag in found if not self._calls[tag].is_stopped), None)

    def begins(self, tag: Tag, request: ModelRequest, route: int) -> WatchedAttempt:
        """A request is sent for this call, by this one of the routes to its model."""
        now = self._system.now()
        attempt = WatchedAttempt(now, request)
        self._running.append((tag, attempt))
        call = self._calls.get(tag)
        if call is None or call.is_stopped or call.told is not None:
            self._wrong(tag, "asked in vain", "a request is sent, and nobody waits for the answer")
            return attempt
        if now < (due := self._due_at(call)) - EPSILON:
            self._wrong(tag, "pause", f"a request is sent before {due:g}")
        call.attempts.append(attempt)
        if route == 1 and call.route == 0 and self._has_limits:
            call.goes_elsewhere()  # since its limit lets no request through before the deadline
        if route != call.route:
            self._wrong(tag, "requests", f"its model {route} is asked, due is {call.route}")
        if call.tries > call.may_send(self._routes):
            told = f"{call.tries} requests are sent to its model {call.route}, {call.may_send(self._routes)} may be"
            self._wrong(tag, "requests", told)
        number, asked = len(call.attempts), call.call
        if number > asked.attempts:
            self._wrong(tag, "requests", f"request {number} is sent, {asked.attempts} may be")
        name = asked.request.model.partition("/")[2]
        expected = replace(asked.request, model=name, is_last_try=number == asked.attempts)
        if request != expected:
            self._wrong(tag, "requests", f"request {number} is {request!r:.300}, asked was {expected!r:.300}")
        return attempt

    def streams(self, tag: Tag, attempt: WatchedAttempt, events: tuple[StreamEvent, ...]) -> None:
        """The provider has said this, and there was room for it."""
        call = self._calls.get(tag)
        if call is not None and call.asked.is_read_along and not attempt.is_cancelled:
            call.pieces.append((attempt, events))
            attempt.is_overtaken |= attempt.ended_at is not None

    def ends(self, attempt: WatchedAttempt, response: ModelResponse) -> None:
        """The provider has said its last."""
        if attempt.ended_at is None:
            attempt.ended_at, attempt.response = self._system.now(), response

    # -- what the session is told

    def tells(self, event: Event) -> None:
        """Its session hears of a model call."""
        if not isinstance(event, ModelResponded | ModelFailed | ModelNoted | ModelStreamed):
            return
        call = self._calls.get(event.tag)
        if call is None or call.is_stopped:
            return  # of a call that was given up, with its manager or by its session
        if isinstance(event, ModelStreamed):
            self._streamed(call, event)
        elif isinstance(event, ModelNoted):
            self._noted(call, event)
        elif call.told is None:
            why = self._answered(call, event) if isinstance(event, ModelResponded) else self._failed(call, event)
            why = why or self._left_unsaid(call, event)
            if why:
                self._wrong(event.tag, "told", f"its session hears {_shown(event)}: {why}")
            call.told = event

    def _streamed(self, call: _Call, event: ModelStreamed) -> None:
        """Each piece comes once, in its order; those of another request behind the word that the others are void."""
        first = event.events[0]
        if isinstance(first, Restarted) and first.reason.startswith("attempt "):
            if call.heard_of is None:
                self._wrong(event.tag, "streamed", "its session hears of a new start, and there was nothing before it")
            call.heard_of = None
        elif not call.asked.is_read_along:
            call.heard_text += "".join(each.text for each in event.events if isinstance(each, TextDelta))
        elif call.told is None:
            attempt, due = call.pieces.popleft() if call.pieces else (None, None)
            if due != event.events:
                self._wrong(event.tag, "streamed", f"its session hears {event.events!r:.200}, due was {due!r:.200}")
            elif call.heard_of not in (None, attempt):
                self._wrong(event.tag, "streamed", "its session takes pieces of two requests for one answer")
            call.heard_of = attempt

    def _left_unsaid(self, call: _Call, event: ModelResponded | ModelFailed) -> str:
        """What should have been streamed before the end, and was not."""
        if call.pieces and not call.pieces[0][0].is_overtaken:
            return f"it has not heard {call.pieces[0][1]!r:.200} before"
        if isinstance(event, ModelResponded) or call.asked.is_read_along or not call.call.is_turn:
            return ""
        failed = [each.response.text for each in call.attempts if each.response is not None and each.response.error]
        said = failed[-1] if failed else ""
        return (
            "" if call.heard_text == said else f"it has heard {call.heard_text!r:.80} of it, and it said {said!r:.80}"
        )

    def _noted(self, call: _Call, event: ModelNoted) -> None:
        """Heard in its time or later: where the clock has jumped over the pause, the next request is sent already."""
        if event.kind is NoteKind.FALLBACK:
            if not call.untold_routes and self._has_limits and call.route == 0:
                call.goes_elsewhere()  # as in `begins`, which is still to come
            if event.requests not in call.untold_routes:
                self._wrong(event.tag, "told", f"another model is asked, after {event.requests} requests: {event.text}")
            call.untold_routes = [requests for requests in call.untold_routes if requests > event.requests]
            return
        if event.kind is not NoteKind.RETRY:
            return
        pause = call.untold_pauses.pop(event.requests, None)
        if pause is None or abs(event.until_at - event.at - pause) > EPSILON:
            told = f"of {event.requests} requests, {len(call.attempts)} were sent; until {event.until_at:g}"
            self._wrong(event.tag, "told", f"{told}, where the pause is {pause} from {event.at:g}")

    def _answered(self, call: _Call, event: ModelResponded) -> str:
        last = call.attempts[-1] if call.attempts else None
        if last is None or last.response is None:
            return "no request has been answered"
        told = (event.requests, event.model, event.first_event_at)
        true = (len(call.attempts), self._model(call, event.model), last.first_event_at)
        if event.response != last.response:
            return f"the provider said {last.response!r:.300}"
        if told != true:
            return f"requests, model and first event are {told}, and were {true}"
        return self._wrong_cost(call, event)

    def _model(self, call: _Call, told: str) -> str:
        """The name of the one that is asked now, or may be, where limits are at work."""
        first = call.call.request.model
        if self._has_limits and told.partition("/")[2] == first.partition("/")[2]:
            return told
        return first if call.route == 0 else f"sim{call.route + 1}/{first.partition('/')[2]}"

    def _wrong_cost(self, call: _Call, event: ModelResponded | ModelFailed) -> str:
        """Of all attempts that have used something, or may have. Of an answer, the usage is its own."""
        used = [each for attempt in call.attempts for each in _used(attempt)]
        costs = [None if each is None else self._cost_of(call.call.tag, each) for each in used]
        cost = None if None in costs else sum(each or 0.0 for each in costs)
        is_same = event.cost == cost if None in (event.cost, cost) else abs((event.cost or 0.0) - (cost or 0.0)) < 1e-9
        if not is_same:
            return f"the cost is {event.cost}, and was {cost}"
        usage = None if None in used else sum((each for each in used if each is not None), Usage())
        wrong = isinstance(event, ModelFailed) and event.usage != usage
        return f"its usage is {event.usage}, and was {usage}" if wrong else ""  # type: ignore[union-attr]

    def _failed(self, call: _Call, event: ModelFailed) -> str:
        wrong = self._wrong_failure(call, event)
        last = call.attempts[-1] if call.attempts else None
        # What the provider says in the moment in which time is over, as after a jump of the clock, may not be heard.
        is_over = event.error.kind is ErrorKind.TIMEOUT and last is not None
        if is_over and last is not None and event.at in (last.first_event_at, last.ended_at):
            return wrong
        return wrong or self._wrong_cost(call, event)

    def _wrong_failure(self, call: _Call, event: ModelFailed) -> str:
        if event.requests != len(call.attempts):
            return f"{len(call.attempts)} requests were sent"
        error, last = event.error, call.attempts[-1] if call.attempts else None
        if last is None and error.kind in _UNASKED:
            return ""
        if last is not None and last.error == error:
            goes_on = last.pause is not None or (not call.tries and not self._has_limits)
            return "it is to be asked again" if goes_on else ""
        if error.kind is ErrorKind.TIMEOUT and event.at >= call.call.deadline_at + OVERDUE_SECONDS - EPSILON:
            return ""
        if error.kind is ErrorKind.RATE_LIMITED and self._has_limits:
            return ""
        known = last is not None and last.error is not None and last.error.kind in _UNASKED
        return "" if known or error.kind in _ITS_OWN else f"the provider said {last.error if last else None}"

    # -- when the clock is about to move

    def at_rest(self) -> None:
        """Nothing is left to do at this time: what should have been asked, told or stopped?"""
        self._running = [(tag, each) for tag, each in self._running if each.runs]
        if not (self._calls or self._running) or not self._is_up():
            return
        now = self._system.now()
        for tag, attempt in self._running:
            call = self._calls.get(tag)
            if call is None or call.is_stopped or call.told is not None or attempt is not call.attempts[-1]:
                self._wrong(tag, "stopped", "the model goes on, and nobody waits for it")
                attempt.is_cancelled = True
        for tag, call in tuple(self._calls.items()):
            if call.is_stopped or call.told is not None:
                del self._calls[tag]
            elif not call.asked.reply_to.is_alive():
                self._wrong(tag, "stopped", "its session has ended, and it was not stopped")
                del self._calls[tag]
            else:
                self._look_at(tag, call, now)

    def _look_at(self, tag: Tag, call: _Call, now: float) -> None:
        late = now > call.call.deadline_at + 2 * OVERDUE_SECONDS + EPSILON
        call.late_since = min(call.late_since, now) if late else float("inf")
        if late and now > call.late_since + FULL_SECONDS:
            self._wrong(tag, "overdue", f"it had until {call.call.deadline_at:g}, and its session waits for its end")
        elif (call.attempts and call.attempts[-1].runs) or (self._has_limits and call.route == 0):
            return
        elif now > (due := self._due_at(call)) + FULL_PAUSE_SECONDS + EPSILON:
            self._wrong(tag, "goes on", f"it is neither asked nor answered since {due:g}")

    def _due_at(self, call: _Call) -> float:
        """When it is asked next, or its end is told."""
        if not call.attempts:
            return max(call.read_at, call.call.not_before_at)
        last = call.attempts[-1]
        return self._system.now() if last.read_at is None else last.read_at + (last.pause or 0.0)

    def _goes_elsewhere(self, call: _Call) -> bool:
        """Does the model that is asked now give no more, and another may do better?"""
        last = call.attempts[-1].error
        if last is None or len(call.attempts) >= call.call.attempts:
            return False
        return last.kind in _OTHERS_DO_BETTER and call.route + 1 < self._routes

    def _pause_from_now(self, call: _Call) -> float | None:
        """Until the next request to the same model; None: there is none."""
        error, sent = call.attempts[-1].error, call.tries
        if error is None:
            return None
        asked_for = error.retry_after or 0.0
        if not error.retryable or sent >= call.may_send(self._routes) or asked_for > MAX_RETRY_AFTER_SECONDS:
            return None
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (sent - 1), MAX_RETRY_AFTER_SECONDS * 0.75)
        pause = max(pause, asked_for + 0.5 * max(min(asked_for, 2.0), asked_for * 0.1))
        pause = 0.0 if error.at_once else pause
        return pause if self._system.now() + pause < call.call.deadline_at else None

    def opened(self, request_id: RequestId) -> set[Tag] | None:
        """The model call of a request that the manager has; None while there is no manager."""
        if not self._is_up():
            return None
        own = ((tag, call) for tag, call in self._calls.items() if tag.request_id == request_id)
        return {tag for tag, call in own if not call.is_stopped and call.told is None}

    def _is_up(self) -> bool:
        cell = self._system._cells.get("root/llm_manager")
        return cell is not None and cell.state is State.RUNNING


def _used(attempt: WatchedAttempt) -> Iterator[Usage | None]:
    """None where it was cut, or has answered, and did not say. None at all, of an error before any answer."""
    response = attempt.response
    if response is None:
        if attempt.first_event_at is not None:
            yield None
    elif response.error is None or response.parts or response.usage not in (None, Usage()):
        yield response.usage


def _shown(event: ModelResponded | ModelFailed) -> str:
    return f"{type(event).__name__} {event.error if isinstance(event, ModelFailed) else event.response!r:.200}"
