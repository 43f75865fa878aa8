"""Planted faults in what a session takes, refuses, cancels and times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from callboard.protocol.commands import (
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    RecordStep,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import (
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    Event,
    RequestStarted,
    ToolCallCompleted,
    ToolCallEnd,
    ToolCallStarted,
)
from callboard.protocol.ids import Tag
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.testing.independent_bases import (
    LATE_SECONDS,
    CallEvent,
    ChangedFinish,
    ChangedRecord,
    Messages,
    ModelEvent,
    asked_again,
    changed,
    of_kind,
    without,
)
from callboard.protocol.testing.mutation import Mutation


class TakesLateModelAnswers(Mutation):
    """An answer to a model call that was given up is taken for the open one: an outdated reply ends the request."""

    def hears(self, event: Event) -> Event | None:
        step = self.session.step
        late = isinstance(event, ModelEvent) and event.tag.request == step.request and event.tag.step < step.step
        return replace(event, tag=step) if late else event


class TakesResultsOfEarlierSteps(Mutation):
    """Calls are told apart by their id alone: a late result of an earlier step answers a call of this one."""

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, CallEvent) and event.tag.request == self.session.tag:
            for tag in self.session.calls:
                if tag.call_id == event.tag.call_id:
                    return replace(event, tag=tag)
        return event


class TakesEventsOfOtherRequests(Mutation):
    """The request of an event is not checked: one person's answer ends up in another person's conversation."""

    def hears(self, event: Event) -> Event | None:
        own = self.session.tag
        if isinstance(event, RequestStarted) or event.tag.request == own:
            return event
        return replace(event, tag=Tag(own.request_id, own.parent_id, event.tag.step, event.tag.call_id))


class SwallowsSecondResults(Mutation):
    """A second result of a call is dropped without a refusal: the dead letter that would show the cause is missing."""

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        if isinstance(event, ToolCallEnd):
            return ()
        raise error


class LetsTheLastResultWin(ChangedRecord):
    """A second result of a call replaces the first: the model answers from a result that came after the deadline."""

    def __init__(self) -> None:
        super().__init__()
        self._later: dict[Tag, str] = {}

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        if isinstance(event, ToolCallCompleted) and event.tag in self.session.calls:
            self._later[event.tag] = event.content
            return ()
        raise error

    def record(self, step: RecordStep) -> Messages:
        return tuple(
            replace(message, content=self._later[step.tag._replace(call_id=message.call_id)], is_error=False)
            if isinstance(message, ToolMessage) and step.tag._replace(call_id=message.call_id) in self._later
            else message
            for message in step.messages
        )


class TakesResultsWithoutApproval(Mutation):
    """A call that still waits for a person may run and return: the person's answer no longer matters."""

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        waiting = self.session.calls.get(event.tag) is CallState.AWAITING_APPROVAL
        if not (waiting and isinstance(event, ToolCallStarted | ToolCallCompleted)):
            raise error
        granted = self.session.apply(ApprovalGranted(event.tag, event.at))
        return [*without(granted, RunTool), *self.session.apply(event)]


class FinishesTwice(ChangedFinish):
    """A cancel after the end reports the end once more: the caller's bookkeeping counts the request twice."""

    def __init__(self) -> None:
        self._finish: list[Finish] = []

    def finish(self, finish: Finish) -> Finish:
        self._finish = [finish]
        return finish

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        if isinstance(event, CancelRequested) and event.tag.request == self.session.tag and self._finish:
            return self._finish
        raise error


class IgnoresACancelOfTheModel(Mutation):
    """A cancel during a model call does nothing: the user pressed stop and goes on paying."""

    def hears(self, event: Event) -> Event | None:
        asking = self.session.state is RequestState.CALLING_MODEL
        return None if isinstance(event, CancelRequested) and asking else event


class StopsThePreviousStream(Mutation):
    """A cancel stops the stream of the step before: the open one runs on and is paid for."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, StopModel, lambda stop: StopModel(stop.tag.at_step(stop.tag.step - 1)))


class CancelsOnlyTheFirstCall(Mutation):
    """A cancel stops the first open call only: the other tools go on changing things after the user pressed stop."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if not isinstance(event, CancelRequested):
            return commands
        first = of_kind(commands, CancelTool)[:1]
        return [*first, *without(commands, CancelTool)]


class LeavesQuestionsOpen(Mutation):
    """Questions of an ended request are not withdrawn: people are asked to approve calls that can never run."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return without(commands, WithdrawApproval)


class RecordsNoCancelledStep(Mutation):
    """A step with calls is not recorded when it is cancelled: the next request repeats what its tools already did."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if not isinstance(event, CancelRequested):
            return commands
        return [command for command in commands if not (isinstance(command, RecordStep) and len(command.messages) > 1)]


class IgnoresTheDeadlineDuringCalls(Mutation):
    """The request's deadline does nothing while tools run: the request takes as long as its tools do."""

    def hears(self, event: Event) -> Event | None:
        busy = self.session.state is RequestState.RUNNING_TOOLS
        return None if busy and isinstance(event, DeadlinePassed) and event.tag == self.session.tag else event


class TrustsEarlyTimers(Mutation):
    """A timer that fires before its time ends the request: it is timed out with time left."""

    def __init__(self) -> None:
        self._due = 0.0

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, DeadlinePassed) and event.tag == self.session.tag:
            return replace(event, at=max(event.at, self._due))
        return event

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self._due = max([self._due, *(timer.at for timer in of_kind(commands, SetTimer) if not timer.tag.step)])
        return commands


class SetsNoRequestTimerAfterAnEarlyOne(Mutation):
    """The request's timer fired early and is not set again: the request has no deadline any more."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        early = isinstance(event, DeadlinePassed) and event.tag == self.session.tag
        return without(commands, SetTimer) if early else commands


class WatchesOnlyTheFirstDeadline(Mutation):
    """After one call of a step timed out no timer is set for the others: a second hanging tool blocks the request."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        call_expired = isinstance(event, DeadlinePassed) and event.tag != self.session.tag
        return without(commands, SetTimer) if call_expired else commands


class SetsNoTimerForApprovedCalls(Mutation):
    """A call that a person approved is not watched: if its worker hangs, the request waits for its own deadline."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return without(commands, SetTimer) if isinstance(event, ApprovalGranted) else commands


class SetsTheRequestTimerLate(Mutation):
    """The request's timer is set a minute late: the caller gets the answer, or the error, after its time limit."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, SetTimer, lambda timer: timer if timer.tag.step else self._late(timer))

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, SetTimer, self._late)

    @staticmethod
    def _late(timer: SetTimer) -> SetTimer:
        return replace(timer, at=timer.at + LATE_SECONDS)


class SetsTheCallTimerLate(Mutation):
    """The timer of a step's calls is set a minute late: a hanging tool holds the request up a minute longer."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(
            commands, SetTimer, lambda timer: replace(timer, at=timer.at + (LATE_SECONDS if timer.tag.step else 0.0))
        )


class LeavesTheRequestTimer(Mutation):
    """The request's timer is not cleared at its end: finished requests stay in memory for half an hour."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [command for command in commands if not isinstance(command, ClearTimer) or command.tag.step]


class GivesModelCallsNoDeadline(Mutation):
    """A model call has no deadline: a provider that streams without end is paid without end."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, CallModel, lambda call: replace(call, deadline_at=math.inf))


class GivesModelCallsARelativeDeadline(Mutation):
    """A model call's deadline is given as the time left, not as a time: it has passed before the call is made."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, CallModel, lambda call: replace(call, deadline_at=call.deadline_at - event.at))


class ReusesStepNumbers(Mutation):
    """A step asked again keeps its number: the late answer of the lost call is taken for that of the new one."""

    def __init__(self) -> None:
        self._shown: dict[int, int] = {}

    def hears(self, event: Event) -> Event | None:
        real = [step for step, shown in self._shown.items() if shown == event.tag.step]
        return replace(event, tag=event.tag._replace(step=real[-1])) if real else event

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        step = self.session.step.step
        if asked_again(event, commands):
            self._shown[step] = self._shown.get(step - 1, step - 1)
        return [replace(command, tag=self._out(command.tag)) for command in commands]

    def journals(self, event: Event, lines: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(replace(line, tag=self._out(line.tag)) for line in lines)

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return [replace(command, tag=self._out(command.tag)) for command in commands]

    def loses(self, loss: Event | None) -> Event | None:
        return replace(loss, tag=self._out(loss.tag)) if loss is not None else None

    def _out(self, tag: Tag) -> Tag:
        return tag._replace(step=self._shown.get(tag.step, tag.step))


SESSION_FAULTS: tuple[type[Mutation], ...] = (
    TakesLateModelAnswers,
    TakesResultsOfEarlierSteps,
    TakesEventsOfOtherRequests,
    SwallowsSecondResults,
    LetsTheLastResultWin,
    TakesResultsWithoutApproval,
    FinishesTwice,
    IgnoresACancelOfTheModel,
    StopsThePreviousStream,
    CancelsOnlyTheFirstCall,
    LeavesQuestionsOpen,
    RecordsNoCancelledStep,
    IgnoresTheDeadlineDuringCalls,
    TrustsEarlyTimers,
    SetsNoRequestTimerAfterAnEarlyOne,
    WatchesOnlyTheFirstDeadline,
    SetsNoTimerForApprovedCalls,
    SetsTheRequestTimerLate,
    SetsTheCallTimerLate,
    LeavesTheRequestTimer,
    GivesModelCallsNoDeadline,
    GivesModelCallsARelativeDeadline,
    ReusesStepNumbers,
)
