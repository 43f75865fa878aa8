"""One request of a simulated run: what its session heard and gave, what was recorded, and whether that is in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from callboard.actors.kernel import Down, Ref
from callboard.actors.requests.replies import Answer, Seen
from callboard.actors.requests.request_session import SessionLike
from callboard.actors.testing.simulated_world import World
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import CallModel, Command, Finish
from callboard.protocol.content import Message, history_faults
from callboard.protocol.errors import CallboardError, ProtocolError, RuntimeFailure
from callboard.protocol.events import Event, ToolCallStarted
from callboard.protocol.ids import Tag
from callboard.protocol.machine import Session
from callboard.protocol.testing.invariants import violations
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.story import CALL_ENDINGS, Story
from callboard.protocol.testing.trace import Trace, Verb

#: Float sums of virtual times.
_EPSILON: Final = 0.01
#: Rules that ask how a request ended, or what was recorded in the end: not asked where the session was lost before.
_OF_A_WHOLE_REQUEST: Final = ("I5 ", "I10 ")


class SimulatedRequest:
    """One request of a run: its trace, its conversation and how it ended."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.trace = Trace(scenario)
        self.ref: Ref | None = None
        self.answer: Answer | None = None
        self.handling_from = 0
        """The number of entries before the message that the session handles, or handled last."""
        self.lost: Down | None = None
        """How its session ended, when it ended without a Finish."""
        self._session: Session | None = None
        """Of a request whose session was lost: its trace must not have it."""
        self._runs: set[Tag] = set()
        """The calls that a reader was told have begun, and not that they have ended."""
        self._stray_progress: list[ToolProgressed] = []

    @property
    def kept(self) -> tuple[Message, ...]:
        """The messages of its conversation."""
        return self.answer.conversation.messages if self.answer is not None else ()

    def see(self, seen: Seen) -> None:
        """The reader of its stream."""
        assert self.answer is not None
        self.answer(seen)
        if isinstance(seen, ToolCallStarted):
            self._runs.add(seen.tag)
        elif isinstance(seen, CALL_ENDINGS):
            self._runs.discard(seen.tag)
        elif isinstance(seen, ToolProgressed) and seen.tag not in self._runs:
            self._stray_progress.append(seen)

    def ended(self, down: Down) -> None:
        """Its session has ended."""
        assert self.answer is not None
        if self.answer.session_ended(down):
            self.lost = down

    def close(self, world: World) -> None:
        """Nothing more happens. The trace of a lost session ends where that did, with a message it had not handled."""
        trace = self.trace
        trace.jumps = tuple(world.jumps)
        trace.ended_at = world.scheduler.now()
        if self.lost is not None:
            self._session = trace.session
            trace.entries = trace.entries[: self.handling_from]
            trace.queued = trace.sent - trace.steps
            trace.session = None
            trace.ended_at = trace.entries[-1].at if trace.entries else 0.0

    def problems(self) -> Iterator[str]:
        """What is wrong with this request."""
        found = violations(self.trace)
        if self.lost is not None:  # whether for a reason that counts is asked below
            found = [violation for violation in found if not violation.invariant.startswith(_OF_A_WHOLE_REQUEST)]
        yield from map(str, found)
        yield from self._ended_once()
        yield from self._recorded_once()
        yield from self._late()
        yield from (f"progress: {each.tag} was shown at {each.at:g} and does not run" for each in self._stray_progress)

    def _ended_once(self) -> Iterator[str]:
        assert self.answer is not None
        if not self.answer.future.done:
            yield "end: it has not ended"
            return
        error = self._error_of(self.answer)
        if self.lost is None:
            return
        is_refused = isinstance(self.lost.error, OSError)
        if not isinstance(error, RuntimeFailure) or not (is_refused or isinstance(self.lost.error, RuntimeFailure)):
            yield f"end: its session was lost ({self.lost.reason.value}): {self.lost.error!r}"
        elif is_refused and "No space left on device" not in str(error):
            yield f"end: the store refused, and its caller is told {error}"

    def _error_of(self, answer: Answer) -> BaseException | None:
        try:
            answer.future.result()
        except CallboardError as error:
            return error
        return None

    def _recorded_once(self) -> Iterator[str]:
        """Whole steps, each once, in order; all of them, unless the session was lost."""
        kept, history = self.kept, self.scenario.history
        session = self.trace.session if self.lost is None else self._session
        recorded = (self.scenario.user, *session.recorded) if session is not None else ()
        if history_faults(kept):
            yield f"I2 valid history: the next request cannot go on from {kept!r:.200}"
        new = kept[len(history) :]
        whole = new in ((), recorded) if self.lost is None else new == recorded[: len(new)]
        if kept[: len(history)] != history or not whole:
            yield f"record: the conversation has {new!r:.200}, the session recorded {recorded!r:.200}"

    def _late(self) -> Iterator[str]:
        """I5 where the clock jumps: late by no more than the jump in which the deadline passed."""
        start = next((entry for entry in self.trace.entries if entry.verb is Verb.APPLIED), None)
        finish = next((entry for entry in self.trace.entries if isinstance(entry.value, Finish)), None)
        if start is None or finish is None:
            return
        latest = Story.of(self.trace).deadline_at(finish.at)
        for at, seconds in self.trace.jumps:
            if at <= latest + _EPSILON:
                latest = max(latest, at + seconds)
        if finish.at > latest + _EPSILON + self.scenario.latency_seconds:
            yield f"I5 bounded: finished at {finish.at:g}, with the clock's jumps {latest:g} was the latest"


class RecordedSession(SessionLike):
    """A session that writes down what goes in and what comes out."""

    def __init__(self, request: SimulatedRequest, world: World) -> None:
        self._request = request
        self._world = world
        self._session = request.trace.session = Session()

    @property
    def step(self) -> Tag:
        """The session's present step."""
        return self._session.step

    def apply(self, event: Event) -> tuple[Command, ...]:
        """Apply, and write down. Raises what the session raises."""
        request, trace = self._request, self._request.trace
        now, before = self._world.scheduler.now(), self._session.state
        trace.sent += 1
        request.handling_from = len(trace.entries)
        try:
            commands = self._session.apply(event)
        except ProtocolError as error:
            trace.add(now, Verb.REFUSED, event, str(error))
            raise
        trace.add(now, Verb.APPLIED, event, f"{before}: {type(event).__name__} -> {self._session.state}")
        for command in commands:
            trace.add(now, Verb.GAVE, command)
            if isinstance(command, CallModel):
                self._world.model_calls.setdefault(command.tag.request_id, []).append(command)
        return commands
