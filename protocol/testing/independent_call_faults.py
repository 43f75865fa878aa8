"""Planted faults in the calls of a step: approvals, deadlines, effect ids, results, losses."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec.structs import replace

from callboard.protocol.commands import (
    AskApproval,
    CancelTool,
    Command,
    RecordStep,
    RunTool,
)
from callboard.protocol.content import ToolMessage
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    DeadlinePassed,
    Event,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.limits import MAX_CALL_SENDS
from callboard.protocol.states import TERMINAL_CALL_STATES, CallState
from callboard.protocol.testing.independent_bases import (
    LATE_SECONDS,
    ChangedRecord,
    ChangedStart,
    Messages,
    changed,
    of_kind,
    without,
)
from callboard.protocol.testing.mutation import Mutation
from callboard.protocol.tools import Decision, Effect


class RunsWithoutAsking(Mutation):
    """A call that needs approval runs at once: files are changed without a person's consent."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        answer: list[Command] = without(commands, AskApproval)
        for ask in of_kind(commands, AskApproval):
            answer += self.session.apply(ApprovalGranted(ask.tag, event.at))
        return answer


class RunsForbiddenTools(ChangedStart):
    """A tool that the owner denied runs: the policy has no effect."""

    def start(self, event: RequestStarted) -> RequestStarted:
        allowed = (
            replace(offer, decision=Decision.ALLOW) if offer.decision is Decision.DENY else offer
            for offer in event.tools
        )
        return replace(event, tools=tuple(allowed))


class AsksTwice(Mutation):
    """Each question is put twice: people approve the same call two times and stop reading."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [again for command in commands for again in [command] * (2 if isinstance(command, AskApproval) else 1)]


class GrantsAllWaitingCalls(Mutation):
    """One approval covers all waiting calls of the step: a person allows one file and all are written."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        answer = list(commands)
        if isinstance(event, ApprovalGranted):
            for tag, state in self.session.calls.items():
                if state is CallState.AWAITING_APPROVAL:
                    answer += self.session.apply(ApprovalGranted(tag, event.at, event.by))
        return answer


class GrantsTheFirstWaitingCall(Mutation):
    """An approval is used for the first waiting call, not for its own: another call runs than the one allowed."""

    def hears(self, event: Event) -> Event | None:
        waiting = [tag for tag, state in self.session.calls.items() if state is CallState.AWAITING_APPROVAL]
        return replace(event, tag=waiting[0]) if isinstance(event, ApprovalGranted) and event.tag in waiting else event


class RunsDeniedCallsAfterALoss(Mutation):
    """When workers are lost, calls that a person denied are sent with the others: what was forbidden is done."""

    def __init__(self) -> None:
        self._asked: dict[Tag, AskApproval] = {}
        self._denied: list[AskApproval] = []

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self._asked |= {ask.tag: ask for ask in of_kind(commands, AskApproval)}
        if isinstance(event, ApprovalDenied):
            self._denied.append(self._asked[event.tag])
        if not isinstance(event, ToolsLost):
            return commands
        runs = [self._run(ask, event.at) for ask in self._denied if ask.tag.step == event.tag.step]
        return [*runs, *commands]

    @staticmethod
    def _run(ask: AskApproval, at: float) -> RunTool:
        effect_id = f"{ask.tag.request_id}/{ask.tag.step}/{ask.tag.call_id}"
        return RunTool(ask.tag, ask.name, ask.arguments, at + LATE_SECONDS, effect_id)


class LosesTheReasonOfADenial(Mutation):
    """The reason that a person gave for a denial is not passed on: the model tries the same thing in another way."""

    def hears(self, event: Event) -> Event | None:
        return replace(event, reason="") if isinstance(event, ApprovalDenied) else event


class GivesAllCallsTheFirstDeadline(Mutation):
    """All calls of a turn get the deadline of the first: a build is killed after the seconds meant for a look-up."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        runs = of_kind(commands, RunTool)
        return changed(commands, RunTool, lambda run: replace(run, deadline_at=runs[0].deadline_at))


class DoublesTheTimeOfResentCalls(Mutation):
    """A call that is sent again gets twice its time: a tool that hangs runs past what its author declared."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if not isinstance(event, ToolsLost):
            return commands
        return changed(
            commands, RunTool, lambda run: replace(run, deadline_at=run.deadline_at + run.deadline_at - event.at)
        )


class CountsTheWaitForApproval(Mutation):
    """A call's time runs while a person decides: approved after a coffee, it times out at once."""

    def __init__(self) -> None:
        self._asked_at: dict[Tag, float] = {}

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        for ask in of_kind(commands, AskApproval):
            self._asked_at.setdefault(ask.tag, event.at)
        if not isinstance(event, ApprovalGranted):
            return commands
        waited = event.at - self._asked_at[event.tag]
        return changed(commands, RunTool, lambda run: replace(run, deadline_at=run.deadline_at - waited))


class ChangesTheEffectIdOfResentCalls(Mutation):
    """A call that is sent again has a new effect id: a payment is not recognised and made twice."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if not isinstance(event, ToolsLost):
            return commands
        return changed(commands, RunTool, lambda run: replace(run, effect_id=f"{run.effect_id}/again"))


class SharesEffectIdsInAStep(Mutation):
    """Calls of one step share an effect id: the second of two payments is taken for the first and never made."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, RunTool, lambda run: replace(run, effect_id=f"{run.tag.request_id}/{run.tag.step}"))


class LeavesTheStepOutOfEffectIds(Mutation):
    """Effect ids lack the step: where call ids repeat, the next step's call is taken for one that has been made."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, RunTool, lambda run: replace(run, effect_id=f"{run.tag.request_id}/{run.tag.call_id}"))


class MixesUpArguments(Mutation):
    """Calls of one tool in a turn all get the last one's arguments: one file is read twice, the other never."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        arguments = {run.name: run.arguments for run in of_kind(commands, RunTool)}
        return changed(commands, RunTool, lambda run: replace(run, arguments=arguments[run.name]))


class RecordsResultsAsTheyCome(ChangedRecord):
    """Results are recorded as they come, not as they were asked: providers refuse the history or pair them wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self._ended: list[Tag] = []

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if isinstance(event, ToolCallEnd | ApprovalDenied):
            self._ended.append(event.tag)
        return super().says(event, commands)

    def record(self, step: RecordStep) -> Messages:
        results = [message for message in step.messages if isinstance(message, ToolMessage)]
        notes = step.messages[1 + len(results) :]
        tags = {message.call_id: step.tag._replace(call_id=message.call_id) for message in results}
        order = {tag.call_id: self._ended.index(tag) for tag in tags.values() if tag in self._ended}
        return (*step.messages[:1], *sorted(results, key=lambda message: order.get(message.call_id, -1)), *notes)


class SwapsResults(ChangedRecord):
    """The first two results of a step are swapped: the model gives Rome the weather of Oslo."""

    def record(self, step: RecordStep) -> Messages:
        turn, *rest = step.messages
        if len(rest) < 2 or not (isinstance(rest[0], ToolMessage) and isinstance(rest[1], ToolMessage)):
            return step.messages
        first = replace(rest[0], content=rest[1].content, is_error=rest[1].is_error)
        second = replace(rest[1], content=rest[0].content, is_error=rest[0].is_error)
        return (turn, first, second, *rest[2:])


class LosesTheLastResult(ChangedRecord):
    """The last result of a step is not recorded: each later request of the conversation is refused by its provider."""

    def record(self, step: RecordStep) -> Messages:
        results = [index for index, message in enumerate(step.messages) if isinstance(message, ToolMessage)]
        if not results:
            return step.messages
        return step.messages[: results[-1]] + step.messages[results[-1] + 1 :]


class RecordsAResultTwice(ChangedRecord):
    """The first result of a step is recorded twice: the provider refuses a result that no call asked for."""

    def record(self, step: RecordStep) -> Messages:
        if len(step.messages) == 1:
            return step.messages
        return step.messages[:2] + step.messages[1:]


class HidesErrors(ChangedRecord):
    """Failed calls are recorded without their error flag: the model takes the failure for the tool's output."""

    def record(self, step: RecordStep) -> Messages:
        return tuple(
            replace(message, is_error=False) if isinstance(message, ToolMessage) else message
            for message in step.messages
        )


class BlamesTheFirstTool(ChangedRecord):
    """Each failure names the first tool of its turn: the model gives up a tool that works."""

    def record(self, step: RecordStep) -> Messages:
        named = next((message.name for message in step.messages if isinstance(message, ToolMessage)), "")
        return tuple(
            replace(message, content=json.dumps(json.loads(message.content) | {"tool": named}))
            if isinstance(message, ToolMessage) and message.is_error and message.name != named
            else message
            for message in step.messages
        )


class TakesFailuresForResults(Mutation):
    """A failed call counts as one that returned nothing: the model reports success for work that was not done."""

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, ToolCallFailed):
            return ToolCallCompleted(event.tag, event.at, "null", event.output)
        return event


class TellsTimeoutsAsCancels(Mutation):
    """A call that timed out reads as cancelled: the model does not learn that it may have had an effect."""

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, ToolCallTimedOut):
            return ToolCallCancelled(event.tag, event.at, event.output)
        return event


class IgnoresStarts(Mutation):
    """The start of a call is not noted: after a loss an order that was already placed is placed again."""

    def hears(self, event: Event) -> Event | None:
        started = isinstance(event, ToolCallStarted) and self.session.calls.get(event.tag) is CallState.SENT
        return None if started else event


class RerunsNothing(ChangedStart):
    """Harmless calls are not run again after a loss: a look-up fails whenever a worker dies."""

    def start(self, event: RequestStarted) -> RequestStarted:
        offers = (replace(offer, contract=replace(offer.contract, effect=Effect.ONCE)) for offer in event.tools)
        return replace(event, tools=tuple(offers))


class SendsNothingAgain(Mutation):
    """Calls that had not begun are not sent again after a loss: each waits for its deadline with no worker at all."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return without(commands, RunTool) if isinstance(event, ToolsLost) else commands


class AsksNothingAgain(Mutation):
    """Open questions are not put again after a loss: the person never sees them and the request hangs."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return without(commands, AskApproval) if isinstance(event, ToolsLost) else commands


class SendsWithoutALimit(Mutation):
    """A call that brings its dispatcher down is sent again without a limit: it brings the whole service down."""

    def __init__(self) -> None:
        self._sent: dict[Tag, list[tuple[float, RunTool]]] = {}
        self._again: list[Command] = []

    def hears(self, event: Event) -> Event | None:
        self._again = []
        if not isinstance(event, ToolsLost) or event.tag != self.session.step:
            return event
        open_calls = {tag: at for tag, at in self.session.calls.items() if at not in TERMINAL_CALL_STATES}
        if set(open_calls.values()) == {CallState.SENT} and any(
            len(self._sent[tag]) >= MAX_CALL_SENDS for tag in open_calls
        ):
            self._again = [self._later(event.at, *self._sent[tag][-1]) for tag in open_calls]
        return None if self._again else event

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        commands = commands + self._again
        for run in of_kind(commands, RunTool):
            self._sent.setdefault(run.tag, []).append((event.at, run))
        return commands

    @staticmethod
    def _later(at: float, sent_at: float, run: RunTool) -> RunTool:
        return replace(run, deadline_at=at + run.deadline_at - sent_at)


class CancelsTheWrongCall(Mutation):
    """When one call times out another call of its step is stopped: good work is killed, the hanging tool goes on."""

    def __init__(self) -> None:
        self._sent: list[Tag] = []

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self._sent += [run.tag for run in of_kind(commands, RunTool)]
        if not isinstance(event, DeadlinePassed) or not event.tag.step:
            return commands
        return changed(commands, CancelTool, self._misdirected)

    def _misdirected(self, cancel: CancelTool) -> CancelTool:
        others = [tag for tag in self._sent if tag.step == cancel.tag.step and tag != cancel.tag]
        return replace(cancel, tag=others[-1]) if others else cancel


class LeavesTimedOutCallsRunning(Mutation):
    """A call that timed out is not stopped: its process goes on writing after the model was told that it ended."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return without(commands, CancelTool) if isinstance(event, DeadlinePassed) else commands


CALL_FAULTS: tuple[type[Mutation], ...] = (
    RunsWithoutAsking,
    RunsForbiddenTools,
    AsksTwice,
    GrantsAllWaitingCalls,
    GrantsTheFirstWaitingCall,
    RunsDeniedCallsAfterALoss,
    LosesTheReasonOfADenial,
    GivesAllCallsTheFirstDeadline,
    DoublesTheTimeOfResentCalls,
    CountsTheWaitForApproval,
    ChangesTheEffectIdOfResentCalls,
    SharesEffectIdsInAStep,
    LeavesTheStepOutOfEffectIds,
    MixesUpArguments,
    RecordsResultsAsTheyCome,
    SwapsResults,
    LosesTheLastResult,
    RecordsAResultTwice,
    HidesErrors,
    BlamesTheFirstTool,
    TakesFailuresForResults,
    TellsTimeoutsAsCancels,
    IgnoresStarts,
    RerunsNothing,
    SendsNothingAgain,
    AsksNothingAgain,
    SendsWithoutALimit,
    CancelsTheWrongCall,
    LeavesTimedOutCallsRunning,
)
