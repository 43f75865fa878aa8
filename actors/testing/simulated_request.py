"""One request of a simulated run: what its session heard and gave, what was recorded, and whether that is in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from callboard.actors.journal.journal import CRASHED, MAX_TRIES
from callboard.actors.kernel import Down, ExitReason, MailboxFull, Ref
from callboard.actors.requests.replies import STOPPING, Answer, Seen, Unwritten
from callboard.actors.requests.session_messages import BEGINS_WORK, ReplayedSession
from callboard.actors.requests.write_ahead import LOST, WriteAhead
from callboard.actors.testing.faults import JournalFaults
from callboard.actors.testing.simulated_world import World
from callboard.actors.testing.told_truly import (
    PlayedReader,
    happened,
    heard_wrongly,
    progress_wrongly,
    read_wrongly,
    replied_wrongly,
    shown_wrongly,
    timers_wrongly,
)
from callboard.actors.testing.written_ahead import Applied
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import CallModel, Command, Finish, Outcome
from callboard.protocol.content import Message, ToolCall, history_faults
from callboard.protocol.errors import CallboardError, ProtocolError, RuntimeFailure
from callboard.protocol.events import Event, ModelNoted, ToolCallStarted
from callboard.protocol.ids import Tag
from callboard.protocol.machine import Session
from callboard.protocol.model import CallPurpose
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.testing.invariants import INVARIANTS, violations
from callboard.protocol.testing.outside import beginning, foreign_event, is_beginning
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.story import CALL_ENDINGS, Story
from callboard.protocol.testing.trace import Entry, Trace, Verb

#: In why a session was lost whose journal did not answer. Here each commit ends in time, whatever comes of it.
LATE: Final = "the journal did not write for"
#: What a jump of the clock makes due at once is written one after the other: the end of a wait, of its step, of the
#: request.
WRITES_AFTER_A_JUMP: Final = 3
#: Float sums of virtual times.
_EPSILON: Final = 0.01
#: The rules on one request. When calls begin and questions are put is for those on all actors together: dispatcher,
#: pools and persons serve several requests.
_RULES: Final = tuple(name for name in INVARIANTS if not name.startswith("I35 "))
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
        self.ahead: WriteAhead | None = None
        """Of its session, where there is a journal."""
        self._has_run = True
        """Its session of the last process has done something."""
        self._kept: tuple[Message, ...] = ()
        """The messages of its conversation, where only the journal has them."""
        self._session: Session | None = None
        """Of a request whose session was lost: its trace must not have it."""
        self._runs: set[Tag] = set()
        """The calls that a reader was told have begun, and not that they have ended."""
        self._stray_progress: list[ToolProgressed] = []
        self.world: World | None = None
        """The one it is played in."""
        self.outlived = False
        """Its process has died since it ended: what telemetry had not read yet was lost with it."""
        self.why_stopped = ""
        """Why the tree of its last process has ended by itself: it was stopped then, or had ended."""
        self.reads_along = False
        self.reader: PlayedReader | None = None
        """Of its stream, where somebody reads along."""
        self._shown: list[Seen] = []
        """By the process of now."""
        self._begun_at = 0.0
        self._since = 0
        """Entries of the trace before that."""
        self._told: list[Event | Command] = []
        """What that has applied and given."""

    def answered_by(self, answer: Answer, *, reads_along: bool) -> None:
        """A process begins with it, or goes on."""
        self.answer, self.reads_along = answer, reads_along
        self.reader = PlayedReader(answer) if reads_along else None
        self._shown.clear()
        self._since = len(self.trace.entries)
        self._begun_at = self.world.scheduler.now() if self.world is not None else 0.0

    @property
    def kept(self) -> tuple[Message, ...]:
        """The messages of its conversation."""
        return self.answer.conversation.messages if self.answer is not None else self._kept

    def tell(self, event: Event) -> None:
        """Something happens to it: its session, if there is one, hears of it."""
        if self.ref is not None:
            self.ref.tell_control(event)

    def hears_of_another(self, number: int) -> None:
        """Something is said of another request, with the tags of what its session has open; but a new session takes the
        first one that begins."""
        plan, session, world = self.scenario, self.trace.session, self.world
        is_new = session is None or session.state is RequestState.NEW
        if self.ref is None or world is None or (is_new and is_beginning(number)):
            return
        step, calls = session.step if session is not None else plan.tag, list(world.plans[plan.request_id].of_call)
        with suppress(MailboxFull):
            self.ref.tell(foreign_event(number, beginning(plan), step, calls, world.scheduler.now()))

    @property
    def finish(self) -> Finish | None:
        """How it ended; None where its session was lost before."""
        return next((each.value for each in self.trace.entries if isinstance(each.value, Finish)), None)

    def see(self, seen: Seen) -> None:
        """The reader of its stream."""
        assert self.answer is not None
        if self.world is not None and self.world.ahead is not None:
            self.world.ahead.acts("shown", seen, self.world.scheduler.now())
        (self.reader or self.answer)(seen)
        self._shown.append(seen)
        if isinstance(seen, ToolCallStarted):
            self._runs.add(seen.tag)
        elif isinstance(seen, CALL_ENDINGS):
            self._runs.discard(seen.tag)
        elif isinstance(seen, ToolProgressed) and seen.tag not in self._runs:
            self._stray_progress.append(seen)

    def ended(self, down: Down) -> None:
        """Its session has ended, maybe before it ran."""
        assert self.answer is not None
        if self.ahead is not None and down.reason is ExitReason.KILLED and not (self.world and self.world.why_ended):
            self.ahead.give_up(LOST)
        if self.answer.session_ended(down, self.world.why_ended if self.world is not None else ""):
            self.lost = down

    @property
    def is_over(self) -> bool:
        """Its asker has heard what came of it."""
        return self.answer is not None and self.answer.future.done

    def open_now(self) -> Iterator[str]:
        """What it has open, as run_reach.py counts it."""
        session = self.trace.session
        if self.is_over or session is None or session.state is RequestState.NEW:
            return
        applied = self.world.ahead.applied.get(self.scenario.request_id) if self.world and self.world.ahead else None
        if applied is not None and applied.acted < applied.events:
            yield "an unwritten event"
        if session.state is RequestState.FINISHED:
            yield "nothing but its end"
        elif session.state is RequestState.CALLING_MODEL:
            given = (each.value for each in reversed(self.trace.entries) if isinstance(each.value, CallModel))
            call = next(given, None)  # what a process before this one has given may not be in the trace
            yield "a summary" if call is not None and call.purpose is CallPurpose.SUMMARY else "a model call"
        for state in session.calls.values():
            if (what := _OPEN_CALLS.get(state)) is not None:
                yield what

    def process_dies(self, applied: Applied, durable: int) -> None:
        """What was applied and is not durable did not happen."""
        trace = self.trace
        entries = applied.entries_of(durable)
        gone = [entry for entry in trace.entries[entries:] if entry.verb is not Verb.GAVE]
        del trace.entries[entries:]
        for entry in gone:
            if entry.verb in (Verb.APPLIED, Verb.REFUSED):
                entry = replace(entry, verb=Verb.LOST, note="the process died before it was written")
            trace.entries.append(entry)
        applied.process_dies(durable)
        self._runs.clear()
        self.lost = self.answer = None

    def ended_before(self, session: Session, kept: tuple[Message, ...]) -> None:
        """The journal has its end, and these messages; its asker died with its process."""
        self.trace.session, self._kept = session, kept

    def close(self, world: World) -> None:
        """Nothing more happens. The trace of a lost session ends where that did, with a message it had not handled."""
        trace = self.trace
        trace.jumps = tuple(world.jumps)
        if not self.outlived:
            self.why_stopped = world.why_ended
        self._told = happened(trace.entries[self._since :])
        if self.why_stopped and world.ahead is not None:
            self._told = self._told_while_it_stopped(world.heard.get(self.scenario.request_id, []))
        self._has_run = self.lost is None or len(trace.entries) > self._since
        if world.jumps:
            trace.lag_seconds *= WRITES_AFTER_A_JUMP
        trace.ended_at = world.scheduler.now()
        if self.lost is not None:
            self._session = trace.session
            trace.entries = _without_open_end(trace.entries[: self._handled(world)])
            trace.queued = trace.sent - trace.steps - sum(entry.verb is Verb.LOST for entry in trace.entries)
            trace.session = None
            trace.ended_at = trace.entries[-1].at if trace.entries else 0.0

    def _told_while_it_stopped(self, heard: list[object]) -> list[Event | Command]:
        """Who stops begins no work, and neither shows it nor tells telemetry: what it is given for is durable only
        then. A request that had not begun ends so."""
        unbegun = Finish(self.scenario.tag, Outcome.CANCELLED, "", None, None, (), STOPPING)
        if not self._told and self._shown == [unbegun]:
            return [unbegun]
        begun = [each.value for each in self.trace.entries if each.verb in (Verb.RAN, Verb.ASKED)]
        known = [*begun, *self._shown, *heard]
        return [each for each in self._told if not isinstance(each, BEGINS_WORK) or each in known]

    def _handled(self, world: World) -> int:
        """How many entries of the trace its session had done with when it was lost."""
        applied = world.ahead.applied.get(self.scenario.request_id) if world.ahead is not None else None
        return self.handling_from if applied is None else applied.entries_of(applied.acted)

    def problems(self) -> Iterator[str]:
        """What is wrong with this request."""
        found = violations(self.trace, _RULES)
        if self.lost is not None:  # whether for a reason that counts is asked below
            found = [violation for violation in found if not violation.invariant.startswith(_OF_A_WHOLE_REQUEST)]
        yield from map(str, found)
        yield from self._ended_once()
        yield from self._recorded_once()
        yield from self._late()
        yield from self._told_wrongly()
        yield from (f"progress: {each.tag} was shown at {each.at:g} and does not run" for each in self._stray_progress)

    def _told_wrongly(self) -> Iterator[str]:
        """What it has shown, and said in the end."""
        told, finish, answer = self._told, self.finish, self.answer
        if answer is None or not answer.future.done:
            return
        is_whole = self.lost is None
        plan, has_journal = self.scenario, self.world is None or self.world.ahead is not None
        if self.reads_along and not has_journal:  # what a call says while the journal is behind may be left out
            yield from progress_wrongly(self._shown)
        if not (has_journal or plan.strays) and is_whole:
            first = plan.tag, self._begun_at + plan.options.timeout_seconds
            yield from timers_wrongly(self.trace.entries, first, self.trace.jumps)
        yield from shown_wrongly(told, self._shown, reads_along=self.reads_along, is_whole=is_whole)
        if self.world is not None and not self.outlived:
            heard = self.world.heard.get(self.scenario.request_id, ())
            has_run = self._has_run and bool(heard or not self.why_stopped)  # else telemetry stopped before it read
            yield from heard_wrongly(told, heard, is_whole=is_whole and not self.why_stopped, has_run=has_run)
        if finish is None or not is_whole:
            return
        end = self._error_of(answer) or answer.future.result()
        if self.why_stopped and finish.reason.startswith(STOPPING):
            finish = replace(finish, reason=f"{finish.reason}: {self.why_stopped}")  # its asker has to know
        yield from replied_wrongly(happened(self.trace.entries), finish, answer.conversation.of_request, end)
        if self.reader is not None:
            yield from read_wrongly(told, self._shown, self.reader)

    def _ended_once(self) -> Iterator[str]:
        if self.answer is None:
            if self.finish is None:
                yield "end: the journal has its end, and not why"
            return
        if not self.answer.future.done:
            yield "end: it has not ended"
            return
        error = self._error_of(self.answer)
        if self.lost is None:
            return
        is_unwritten = isinstance(self.lost.error, Unwritten)
        if is_unwritten and (LATE in str(self.lost.error) or not self._may_be_unwritten()):
            yield f"end: the journal can be written, and its session was lost: {self.lost.error}"
        is_refused = isinstance(self.lost.error, OSError)
        has_lost_sessions = self.world is not None and self.world.has_lost_sessions
        if self.lost.reason is ExitReason.KILLED and (has_lost_sessions or self.why_stopped):
            reasons = ("session was lost", self.why_stopped or "session was lost")
            if not isinstance(error, RuntimeFailure) or not any(why in str(error) for why in reasons):
                yield f"end: its session was killed, and its caller is told {error}"
        elif not isinstance(error, RuntimeFailure) or not (is_refused or self._may_be_lost(self.lost.error)):
            yield f"end: its session was lost ({self.lost.reason.value}): {self.lost.error!r}"
        elif is_refused and _NO_ROOM not in str(error):
            yield f"end: the store refused, and its caller is told {error}"

    def _may_be_lost(self, error: BaseException | None) -> bool:
        """It could not be written, its store had no room, or too many of those that it works with were lost."""
        if not isinstance(error, RuntimeFailure):
            return False
        has_crashes = self.world is not None and bool(self.world.happened)
        told = str(error)
        return (
            isinstance(error, Unwritten)
            or (told.startswith(_RECORDING) and _NO_ROOM in told)
            or (has_crashes and any(why in told for why in _LOST_PEERS))
        )

    def _may_be_unwritten(self) -> bool:
        faults = self.world.faults.journal if self.world is not None else None
        if faults is None:
            return False
        crashes = len(faults.crashes_before) + len(faults.crashes_after)
        is_given_up = crashes >= MAX_TRIES and CRASHED in str(self.lost and self.lost.error)
        return is_given_up or bool(faults.full or faults.read_only or faults.sync_fails)

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
        question = (self.scenario.user,) if self.scenario.user.parts else ()
        recorded = (*question, *session.recorded) if session is not None else ()
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
        journal = self.world.faults.journal if self.world is not None else None
        # What was not durable yet when the process died happens once more, and waits once more.
        lag = max(self.trace.lag_seconds, _write_seconds(journal) if journal is not None else 0.0)
        for at, seconds in self.trace.jumps:
            if at <= latest + _EPSILON + lag:
                latest = max(latest, at + seconds)
        if finish.at > latest + _EPSILON + self.scenario.latency_seconds + lag:
            yield f"I5 bounded: finished at {finish.at:g}, with the clock's jumps {latest:g} was the latest"


def _write_seconds(journal: JournalFaults) -> float:
    """How long something may wait for this journal that is lost with its process before it was written."""
    closed = (*journal.full, *journal.read_only, *journal.sync_fails)
    return 2 * journal.commit_seconds + max((until - since for since, until in closed), default=0.0)


def _without_open_end(entries: list[Entry]) -> list[Entry]:
    """Without resumptions that nothing was done with, or nothing that was written: their sessions were lost at once."""
    ends = (Verb.RESUMED, Verb.GAVE, Verb.LOST)
    last = max((number for number, entry in enumerate(entries, 1) if entry.verb not in ends), default=0)
    first = next((n for n in range(last, len(entries)) if entries[n].verb is Verb.RESUMED), len(entries))
    return [*entries[:first], *(entry for entry in entries[first:] if entry.verb is Verb.LOST)]


#: A store that refuses what a session records.
_RECORDING: Final = ("internal_error: carrying out RecordStep", "internal_error: carrying out RecordCompaction")
_NO_ROOM: Final = "No space left on device"
_LOST_PEERS: Final = ("dispatchers were lost before one said which tools there are", "has stopped permanently")
_OPEN_CALLS: Final = {
    CallState.RUNNING: "a running call",
    CallState.DEFERRED: "a deferred call",
    CallState.AWAITING_APPROVAL: "a question",
}


def _moment_of(value: Event | Command) -> str:
    """As `faults.MOMENTS` name it."""
    is_summary = isinstance(value, CallModel) and value.purpose is CallPurpose.SUMMARY
    return "AsksForSummary" if is_summary else type(value).__name__


class RecordedSession(ReplayedSession):
    """A session that writes down what goes in and what comes out."""

    def __init__(self, request: SimulatedRequest, world: World, session: Session | None = None) -> None:
        """`session`: one that was rebuilt from its journal."""
        self._request = request
        self._world = world
        self._session = request.trace.session = session or Session()
        self._journaled: tuple[Event, ...] = ()

    @property
    def state(self) -> RequestState:
        """Where the request is."""
        return self._session.state

    @property
    def has_recorded(self) -> bool:
        """Its question is in the conversation."""
        return self._session.has_recorded

    @property
    def recorded(self) -> tuple[Message, ...]:
        """What it has added to the conversation."""
        return self._session.recorded

    def resume_commands(self) -> tuple[Command, ...]:
        """What a session that was rebuilt begins with, written down."""
        trace, given = self._request.trace, self._session.resume_commands()
        now = self._world.scheduler.now()
        trace.add(now, Verb.RESUMED, None)
        for command in given:
            trace.add(now, Verb.GAVE, command)
        if self._world.ahead is not None:
            self._world.ahead.applied[self._request.scenario.request_id].add(0, [])
        return given

    def loss_event(self, at: float) -> Event | None:
        """As the session's own."""
        return self._session.loss_event(at)

    def asks_again_at(self, at: float) -> float:
        """As the session's own."""
        return self._session.asks_again_at(at)

    @property
    def step(self) -> Tag:
        """The session's present step."""
        return self._session.step

    @property
    def calls(self) -> dict[Tag, CallState]:
        """The calls of its present step."""
        return self._session.calls

    def call_of(self, tag: Tag) -> ToolCall:
        """One of them."""
        return self._session.call_of(tag)

    def to_journal(self, event: Event) -> tuple[Event, ...]:
        """What the session would have written."""
        self._journaled = self._session.to_journal(event)
        return self._journaled

    def apply(self, event: Event) -> tuple[Command, ...]:
        """Apply, and write down. Raises what the session raises."""
        request, trace = self._request, self._request.trace
        now, before = self._world.scheduler.now(), self._session.state
        trace.sent += 1
        request.handling_from = len(trace.entries)
        self._world.tells(event)
        try:
            commands = self._session.apply(event)
        except ProtocolError as error:
            trace.add(now, Verb.REFUSED, event, str(error))
            raise
        trace.add(now, Verb.APPLIED, event, f"{before}: {type(event).__name__} -> {self._session.state}")
        self._world.sessions.applies(event, commands)
        for command in commands:
            trace.add(now, Verb.GAVE, command)
            if isinstance(command, CallModel):
                self._world.model_calls.setdefault(command.tag.request_id, []).append(command)
        for value in (event, *commands):
            self._world.passes(_moment_of(value))
        if isinstance(event, ModelNoted):
            self._world.reach("model note", event.kind)
        if self._world.ahead is not None:
            self._world.ahead.applied[request.scenario.request_id].add(len(self._journaled), [event, *commands])
        return commands
