"""The rule about time: what was given is carried out, and what was played comes of it, then and no more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelLost,
    ModelNoted,
    ModelResponded,
    ModelStreamed,
    NoticeCame,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.testing.outside import (
    NOT_BEGUN,
    Answer,
    Plans,
    cancelled,
    model_answers,
    notice,
    person_answers,
    tool_answers,
)
from callboard.protocol.testing.story import EPSILON, Story
from callboard.protocol.testing.trace import Entry, Verb

#: What is compared of an event with what was played; a runtime may know more than a scenario says.
_SAID: Final[Mapping[type[Any], Callable[[Any], Any]]] = {
    ModelStreamed: attrgetter("events"),
    ModelNoted: attrgetter("kind", "text", "requests", "until_at"),
    ModelResponded: attrgetter(
        "response.parts", "response.finish_reason", "response.usage", "response.error", "cost", "requests", "checked"
    ),
    ModelFailed: attrgetter("error.kind", "error.context_tokens", "requests", "usage", "cost"),
    ToolCallStarted: attrgetter("tag"),
    ToolCallDeferred: attrgetter("timeout_seconds"),
    ToolCallCompleted: attrgetter("content"),
    ToolCallFailed: attrgetter("failure.tool", "failure.code", "failure.message"),
    ToolCallTimedOut: attrgetter("tag"),
    ToolCallCancelled: attrgetter("tag"),
    ApprovalGranted: attrgetter("arguments", "hold"),
    ApprovalDenied: attrgetter("reason"),
    ModelLost: attrgetter("with_process"),
    DeadlinePassed: attrgetter("tag"),
    CancelRequested: attrgetter("reason"),
    NoticeCame: attrgetter("text"),
}
#: What ends the work of each kind of command.
_STOPS: Final[Mapping[type[Any], type[Any]]] = {
    StopModel: CallModel,
    CancelTool: RunTool,
    WithdrawApproval: AskApproval,
}


#: What is lost with the holder of the calls.
_HELD: Final = (RunTool, AskApproval)

_Owner = tuple[type[Any], Tag]
"""The kind and tag of the command that something comes of."""


class _Due(Struct, eq=False):
    """Something that must come."""

    at: float
    """No sooner, and hardly later."""
    owner: _Owner
    make: Callable[[float], Event] | None = None
    """The event; None of a command that is to be carried out."""
    value: Command | None = None
    unstoppable: bool = False
    must_come: bool = True
    early_seconds: float = 0.0
    """So much sooner it may come: where a runtime says only that the code of a call begins, and not that it waits."""
    came_at: float | None = None
    void_at: float | None = None
    """It need not come any more: its sender was stopped, or has died."""

    @property
    def what(self) -> str:
        """Which event or command, for people."""
        kind = self.owner[0] if self.make is None else type(self.make(self.at))
        return f"{kind.__name__} {self.owner[1]}"


def in_time(story: Story) -> Iterator[str]:
    """I35: what was given is carried out at once, and what was played comes of it in its time, once, and nothing else.

    A call runs, a question is put and a model is asked when the session says so; each ends as tool, person or model
    does, and at that time. A timer fires when it is due. What was stopped, withdrawn or cleared says nothing more.
    """
    if story.start is not None and story.trace.in_world:  # other runtimes have times and words of their own
        watch = _Watch(story)
        for entry in story.trace.entries:
            yield from watch.see(entry)
        yield from watch.missing()


class _Watch:
    """What is due, followed from entry to entry."""

    def __init__(self, story: Story) -> None:
        scenario, tag = story.trace.scenario, story.start.tag if story.start is not None else story.trace.scenario.tag
        self._story = story
        self._options = story.start.options if story.start is not None else scenario.options
        self._plans = Plans(scenario)
        self._dues: dict[Tag, list[_Due]] = {}
        self._request = scenario.tag[:2]
        self._has_strays = bool(scenario.strays)
        self._stopped: set[_Owner] = set()
        self._lost_at = scenario.tools_lost_at
        if scenario.cancel_at is not None:
            self._expect_answers((CancelRequested, tag), [Answer(scenario.cancel_at, _leaves(tag), unstoppable=True)])
        for number, at in enumerate(scenario.notices_at):
            self._expect_answers((NoticeCame, tag), [Answer(at, notice(tag, number), unstoppable=True)])

    def see(self, entry: Entry) -> Iterable[str]:
        """One line of the trace."""
        verb, value = entry.verb, entry.value
        if verb is Verb.GAVE:
            if (given := _GIVEN.get(type(value))) is not None:
                given(self, entry.at, value)
        elif verb is Verb.RAN or verb is Verb.ASKED:
            return self._carried_out(entry.at, value)
        elif verb is Verb.APPLIED and isinstance(value, ToolsLost):
            self._lose_calls(entry.at)
        elif verb is Verb.RESUMED:
            self._void(entry.at, lambda due: not due.unstoppable)
        elif value is not None and type(value) in _SAID and value.tag[:2] == self._request:
            return self._came(entry.at, value)  # type: ignore[arg-type]
        return ()

    def missing(self) -> Iterator[str]:
        """What had not come when it was stopped, or at the end."""
        for due in chain.from_iterable(self._dues.values()):
            until = self._story.trace.ended_at if due.void_at is None else due.void_at
            is_missing = due.must_come and due.came_at is None and until > due.at
            if (
                is_missing
                and until > (latest := self._story.latest(self._due_at(due)))
                and not self._is_lost(due, latest)
            ):
                yield f"{due.what} was due at {due.at:g}, and had not come at {until:g}"

    def _due_at(self, due: _Due) -> float:
        """When it must come at the latest, for all that is not slow: its code begins when it has waited its time. What
        never begins need not come."""
        if not isinstance(due.value, RunTool):
            return due.at
        plan = self._plans.of(due.value)
        begins_at = due.at + plan.waits_seconds
        return begins_at if plan.does not in NOT_BEGUN and begins_at < due.value.deadline_at else math.inf

    def _is_lost(self, due: _Due, latest: float) -> bool:
        """Whoever held the calls died before, which a session hears only of a step that has calls open."""
        is_held = due.owner[0] in _HELD and not due.unstoppable and due.make is not None
        return is_held and any(at <= latest for at in self._lost_at)

    # What is due.

    def _expect(self, due: _Due) -> None:
        self._dues.setdefault(due.owner[1], []).append(due)

    def _expect_answers(
        self, owner: _Owner, answers: Iterable[Answer], *, must_come: bool = True, early_seconds: float = 0.0
    ) -> None:
        for answer in answers:
            due = _Due(answer.at, owner, answer.make, None, answer.unstoppable, must_come, early_seconds)
            self._expect(due)

    def _void(self, at: float, which: Callable[[_Due], bool], tag: Tag | None = None) -> None:
        for dues in self._dues.values() if tag is None else (self._dues.get(tag, []),):
            for due in dues:
                if due.came_at is None and due.void_at is None and which(due):
                    due.void_at = at

    def _lose_calls(self, at: float) -> None:
        """Whoever held the calls is gone. What waits for the journal still may be carried out, and need not."""
        self._void(at, lambda due: due.owner[0] in _HELD and due.make is not None and not due.unstoppable)
        for due in chain.from_iterable(self._dues.values()):
            due.must_come = due.must_come and (due.make is not None or due.owner[0] not in _HELD)

    # What was given.

    def _is_to_be_carried_out(self, at: float, command: Any) -> None:
        begins_at = max(at, command.not_before_at) if isinstance(command, CallModel) else at
        self._expect(_Due(begins_at, (type(command), command.tag), value=command))

    def _clears_timer(self, at: float, command: SetTimer | ClearTimer) -> None:
        self._void(at, lambda due: due.owner[0] is SetTimer, command.tag)

    def _sets_timer(self, at: float, command: SetTimer) -> None:
        tag = command.tag
        self._clears_timer(at, command)
        fires = Answer(max(command.at, at), lambda at: DeadlinePassed(tag, at))
        self._expect_answers((SetTimer, tag), [fires])

    def _stops(self, at: float, command: StopModel | CancelTool | WithdrawApproval) -> None:
        stopped, tag = _STOPS[type(command)], command.tag
        self._stopped.add((stopped, tag))
        self._void(at, lambda due: due.owner[0] is stopped and not due.unstoppable, tag)
        if isinstance(command, CancelTool):
            answer = replace(cancelled(tag, at), unstoppable=True)
            self._expect_answers((CancelTool, tag), [answer], must_come=False)

    def _ends(self, at: float, command: Finish) -> None:
        self._void(at, lambda due: due.make is None)

    # What came.

    def _carried_out(self, at: float, command: Any) -> Iterator[str]:
        waiting = (due for due in self._dues.get(command.tag, ()) if due.came_at is None)
        alike = [due for due in waiting if _is_it(due.value, command)]
        due = min(alike, key=lambda due: due.void_at is not None, default=None)
        waits = self._plans.of(command).waits_seconds if isinstance(command, RunTool) else 0.0
        if due is not None:
            due.came_at = at
            yield from self._wrong_time(due, min(at, max(due.at, at - waits)))
        owner, must_come = (type(command), command.tag), due is not None and due.must_come
        self._expect_answers(owner, self._answers(command, at), must_come=must_come, early_seconds=waits)
        if (
            due is not None and due.void_at is not None and owner in self._stopped
        ):  # a slow journal: that it is to be stopped was given before
            self._void(at, lambda due: due.owner == owner and not due.unstoppable, command.tag)

    def _answers(self, command: Any, at: float) -> Iterable[Answer]:
        if isinstance(command, CallModel):
            return model_answers(self._plans.next_turn(command), command, self._options, at)
        if isinstance(command, RunTool):
            return tool_answers(self._plans.of(command), command, at)
        return person_answers(self._plans.of(command), command, at)

    def _came(self, at: float, event: Event) -> Iterator[str]:
        said = _SAID[type(event)]
        alike = [
            due
            for due in self._dues.get(event.tag, ())
            if due.make is not None
            and due.came_at is None
            and type(made := due.make(at)) is type(event)
            and said(made) == said(event)
        ]
        if not alike:
            if not self._has_strays and not isinstance(event, ModelLost):
                yield f"{type(event).__name__} {event.tag} came at {at:g}, and was not played so"
            return
        # Of two that say the same, one may be stopped while the other is on its way: that one has come first.
        fits = [due for due in alike if self._fits(due, at)]
        due = min(fits or alike, key=lambda due: (due.void_at is not None, due.at, not due.unstoppable))
        # Where commands wait for the journal, it is not known which of several timers it was.
        is_unknown = isinstance(event, DeadlinePassed) and self._story.trace.lag_seconds > 0
        if fits or not (self._has_strays or is_unknown):
            due.came_at = at
            yield from self._wrong_time(due, at)

    def _fits(self, due: _Due, at: float) -> bool:
        until = due.at if due.void_at is None else due.void_at
        return due.at - due.early_seconds - EPSILON <= at <= self._story.latest(until)

    def _wrong_time(self, due: _Due, at: float) -> Iterator[str]:
        if at < due.at - due.early_seconds - EPSILON:
            yield f"{due.what} came at {at:g}, it was due at {due.at:g}"
        elif due.void_at is not None and at > self._story.latest(due.void_at):
            yield f"{due.what} came at {at:g}, and was stopped at {due.void_at:g}"
        elif due.void_at is None and at > (latest := self._story.latest(due.at)):
            yield f"{due.what} came at {at:g}, it was due at {due.at:g} ({latest:g} at the latest)"


_GIVEN: Final[Mapping[type[Any], Callable[[_Watch, float, Any], None]]] = {
    **dict.fromkeys((RunTool, CallModel, AskApproval), _Watch._is_to_be_carried_out),
    SetTimer: _Watch._sets_timer,
    ClearTimer: _Watch._clears_timer,
    **dict.fromkeys(_STOPS, _Watch._stops),
    Finish: _Watch._ends,
}


def _is_it(value: Command | None, command: Command) -> bool:
    return value is command or value == command


def _leaves(tag: Tag) -> Callable[[float], Event]:
    return lambda at: CancelRequested(tag, at, "the user left")
