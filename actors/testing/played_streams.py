"""The reader of a provider's stream, on a loop in virtual time, beside what the stream says and does."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Iterator
from contextvars import Context, ContextVar
from typing import Any, Final

from msgspec import Struct, field

from callboard.actors.kernel import MailboxFull
from callboard.actors.models.llm_manager import CLOSE_STREAM_SECONDS, FULL_PAUSE_SECONDS, TURN_EVENTS, start_on
from callboard.actors.testing.simulated_loop import SimulatedLoop
from callboard.actors.testing.simulation import SimulatedScheduler, fifo
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.limits import MAX_ANSWER_BYTES
from callboard.protocol.model import Done, Error, FinishReason, ModelRequest, ModelResponse, TextDelta, Usage

#: Sums of virtual times, in seconds.
EPSILON: Final = 1e-6
_HANGS: Final = 1_000.0
#: Of somebody else on the loop, at most.
_TURNS: Final = 50
_LONG: Final = TextDelta("x" * (MAX_ANSWER_BYTES + 1))
_CUT: Final = ErrorKind.TRUNCATED
_ASKER: Final = ContextVar("asker", default=0)


class _Deed(Struct, frozen=True):
    """One thing that a stream does, so long after what it did before."""

    after_seconds: float
    events: tuple[Any, ...] = ()
    raises: type[BaseException] | None = None
    is_no_list: bool = False

    @property
    def is_last(self) -> bool:
        """Does it say that the turn is over?"""
        return bool(self.events) and isinstance(self.events[-1], Done | Error)


class _Plan(Struct, frozen=True):
    """A stream: what it does in turn, then it ends; and what comes from outside."""

    deeds: tuple[_Deed, ...]
    swallows_cancel: bool
    closes_in_seconds: float
    fails_to_close: bool
    cancelled_at: float
    full_until: float
    """From 1.0 s on the session has no room until then."""


class _Due(Struct):
    """What is to come of it."""

    heard: list[tuple[float, tuple[Any, ...]]] = field(default_factory=list)
    at: float = 0.0
    error: ErrorKind | None = None
    text: str = ""
    usage: Usage | None = None
    closed_at: float = 0.0
    is_cancelled: bool = False
    """Before it came to an end."""


class _Stage(Struct, eq=False):
    """One reading."""

    plan: _Plan
    loop: SimulatedLoop
    number: int
    heard: list[tuple[float, tuple[Any, ...]]] = field(default_factory=list)
    ended: list[tuple[float, ModelResponse]] = field(default_factory=list)
    closed_at: float | None = None
    reading: AsyncGenerator[list[Any], None] | None = None
    """The stream itself."""
    asked_in: int = 0
    failed: BaseException | None = None
    """What escaped from its task."""
    turns: int = 0
    """Of somebody else on the loop."""
    name: str = "played"

    def stream(self, _request: ModelRequest) -> AsyncGenerator[list[Any], None]:
        """As a provider."""
        self.reading = self._says()
        return self.reading

    async def _says(self) -> AsyncGenerator[list[Any], None]:
        self.asked_in = _ASKER.get()
        _ASKER.set(-1)
        try:
            for deed in self.plan.deeds:
                try:
                    if deed.after_seconds >= 0:
                        await asyncio.sleep(deed.after_seconds)
                except asyncio.CancelledError:
                    if not self.plan.swallows_cancel:
                        raise
                if deed.raises is not None:
                    raise deed.raises("told to")
                batch: Any = tuple(deed.events) if self.number % 5 == 0 else list(deed.events)
                yield "no list" if deed.is_no_list else batch  # type: ignore[misc]
        finally:
            self.closed_at = self.loop.time()
            if self.plan.closes_in_seconds:
                await asyncio.sleep(self.plan.closes_in_seconds)
            if self.plan.fails_to_close:
                raise OSError("told to")

    async def aclose(self) -> None:
        """As a provider."""

    def emit(self, events: list[Any]) -> None:
        """As the manager's."""
        if 1.0 <= self.loop.time() < self.plan.full_until:
            raise MailboxFull("no room")
        self.heard.append((self.loop.time(), tuple(events)))

    def end(self, response: ModelResponse) -> None:
        """As the manager's."""
        self.ended.append((self.loop.time(), response))

    async def take_turns(self) -> None:
        """Somebody else."""
        while not self.ended and self.loop.time() < self.plan.cancelled_at:
            self.turns += 1
            await asyncio.sleep(0 if self.turns < _TURNS else _HANGS)

    async def play(self) -> float:
        """Read it. When its task was over."""
        asker = Context()
        asker.run(_ASKER.set, self.number)
        request = ModelRequest("played", (UserMessage.of("go"),))
        attempt: Any = start_on(self.loop)(self, request, self.emit, self.end, asker)
        other = self.loop.create_task(self.take_turns())
        await asyncio.wait([attempt.task], timeout=self.plan.cancelled_at)
        attempt.cancel()
        await asyncio.wait([attempt.task], timeout=2 * _HANGS)
        other.cancel()
        await asyncio.wait([other])
        if asker.run(_ASKER.get) != self.number:
            self.asked_in = -1
        if not attempt.task.done():
            return _HANGS * 9
        self.failed = None if attempt.task.cancelled() else attempt.task.exception()
        over_at, closed_at = self.loop.time(), self.closed_at
        if self.reading is not None:
            with contextlib.suppress(OSError):
                await self.reading.aclose()  # a reader that is broken leaves it open
        self.closed_at = closed_at
        return over_at


def _planned(seed: int) -> _Plan:
    rng = random.Random(f"stream {seed}")
    pauses, sizes = (0.0, 0.1, 0.7), (0, 1, 1, 3)
    number = rng.choice((0, 1, 3, 6))
    if rng.random() < 0.1:  # all of it is there already
        pauses, sizes, number = (-1.0,) * 3, (30,) * 4, 40
    deeds = [
        _Deed(rng.choice(pauses), tuple(TextDelta(f"{n}.{m} ") for m in range(rng.choice(sizes))))
        for n in range(number)
    ]
    kinds = (UsageError, ValueError, SystemExit, asyncio.CancelledError)
    lasts: tuple[tuple[_Deed, ...], ...] = (
        (_Deed(0.1, raises=rng.choice(kinds)),),
        (_Deed(0.1, is_no_list=True),),
        (_Deed(0.1, (_LONG,)),) if rng.random() < 0.1 else (),
        (_Deed(_HANGS),),
        (),
        (_Deed(0.1, (Error(ErrorKind.SERVER, "told to", retryable=True),)),),
        *(((_Deed(0.1, (TextDelta("end"), Done(FinishReason.STOP, usage=Usage(3, 4)))),),) * 4),
    )
    late = (_Deed(0.2, (TextDelta("too late"),)),) * rng.choice((0, 0, 2))
    return _Plan(
        (*deeds, *rng.choice(lasts), *late), rng.random() < 0.2, rng.choice((0.0, 0.0, 0.5, _HANGS)),
        rng.random() < 0.1, rng.choice((_HANGS / 2, _HANGS / 2, rng.uniform(0.01, 3.0))), rng.choice((0.0, 0.0, 1.35)),
    )  # fmt: skip


def _due(plan: _Plan) -> _Due:
    due, now = _Due(), 0.0
    for place, deed in enumerate(plan.deeds):
        now += max(deed.after_seconds, 0.0)
        if now >= plan.cancelled_at:
            break
        due.at = due.closed_at = now
        if deed.raises is not None:
            return _own_end(plan, due, ErrorKind.INVALID_REQUEST if deed.raises is UsageError else ErrorKind.INTERNAL)
        if deed.is_no_list or deed.events == (_LONG,):
            due.error, due.text = ErrorKind.INTERNAL if deed.is_no_list else ErrorKind.MALFORMED, ""
            return due
        while deed.events and 1.0 <= now < plan.full_until:
            now += FULL_PAUSE_SECONDS
        if now >= plan.cancelled_at:
            break
        due.heard += [(now, deed.events)] if deed.events else []
        due.text += "".join(each.text for each in deed.events if isinstance(each, TextDelta))
        if deed.is_last:
            last, due.at = deed.events[-1], now
            due.error, due.usage = (last.kind, None) if isinstance(last, Error) else (None, last.usage)
            # A whole answer may come to its end, so that its connection is used again.
            goes_on = due.error is None and place + 1 < len(plan.deeds)
            due.closed_at = now + (plan.deeds[place + 1].after_seconds if goes_on else 0.0)
            return due
    else:
        due.at = due.closed_at = now
        return _own_end(plan, due, _CUT)
    due.at, due.closed_at, due.is_cancelled = plan.cancelled_at, plan.cancelled_at, True
    return due


def _own_end(plan: _Plan, due: _Due, error: ErrorKind) -> _Due:
    """A stream that ends by itself is heard of when it has let go of all that it holds."""
    due.at += plan.closes_in_seconds
    due.is_cancelled = due.at >= plan.cancelled_at
    fails = plan.fails_to_close
    due.error, due.text = ErrorKind.INTERNAL if fails else error, "" if fails or error is not _CUT else due.text
    return due


def _differ(stage: _Stage, over_at: float) -> Iterator[str]:
    plan, due = stage.plan, _due(stage.plan)
    if stage.heard != due.heard and not _near(stage.heard, due.heard):
        yield f"heard is {stage.heard!r:.300}, due is {due.heard!r:.300}"
    if len(stage.ended) != (not due.is_cancelled):
        yield f"its end is told {len(stage.ended)} times, and it was to be cancelled before: {due.is_cancelled}"
    for at, response in stage.ended:
        told = response.error.kind if response.error is not None else None, response.text, response.usage
        wanted = due.error, due.text, due.usage
        if told != wanted or abs(at - due.at) > EPSILON:
            yield f"its end at {at:g} is {told!r:.200}, due at {due.at:g} is {wanted!r:.200}"
    closed_at = min(due.closed_at, max(due.at, plan.cancelled_at))
    if stage.closed_at is None or abs(stage.closed_at - closed_at) > EPSILON:
        yield f"it is closed at {stage.closed_at}, due is {closed_at:g}"
    latest = min(max(due.at, due.closed_at), max(due.closed_at, plan.cancelled_at)) + CLOSE_STREAM_SECONDS
    if over_at > latest + EPSILON:
        yield f"its task is over at {over_at:g}, and was to be by {latest:g}"
    if stage.failed is not None:
        yield f"its task ends with {stage.failed!r}"
    if stage.asked_in != stage.number:
        yield "it does not run in a copy of the asker's context"
    read = sum(1 + len(events) for _, events in stage.heard)
    if stage.turns < min(read // (TURN_EVENTS + 50), _TURNS):
        yield f"others of its loop had {stage.turns} turns while {read} events were read"


def _near(heard: list[tuple[float, tuple[Any, ...]]], due: list[tuple[float, tuple[Any, ...]]]) -> bool:
    pairs = list(zip(heard, due, strict=False))
    return len(heard) == len(due) and all(one[1] == two[1] and abs(one[0] - two[0]) < EPSILON for one, two in pairs)


def play(seed: int) -> list[str]:
    """What is not as promised."""
    plan, loop = _planned(seed), SimulatedLoop(SimulatedScheduler(fifo))
    stage = _Stage(plan, loop, seed)
    over_at = loop.outcome(stage.play())
    loop.close()
    if isinstance(over_at, Exception):
        return [f"a stream, {over_at!r}"]
    return [f"a stream, {told}" for told in _differ(stage, over_at)][:1]
