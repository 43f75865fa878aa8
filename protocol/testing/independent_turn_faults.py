"""Planted faults in what is made of a turn of the model: judged, tidied, asked again, recorded."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from callboard.protocol.commands import Command, Finish, Note, RecordStep
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    ServerTool,
    Text,
    Thinking,
    ToolCall,
    is_json_object,
)
from callboard.protocol.errors import ASK_AGAIN_KINDS, ErrorKind
from callboard.protocol.events import (
    Event,
    ModelFailed,
    ModelLost,
    ModelNoted,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
)
from callboard.protocol.ids import CallId
from callboard.protocol.model import Error, FinishReason, Restarted
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.independent_bases import (
    ChangedRecord,
    ChangedResponse,
    ChangedStart,
    Messages,
    asked_again,
    changed,
    ended_by,
    with_parts,
    without,
)
from callboard.protocol.testing.mutation import Mutation


class RunsHalfCalls(ChangedResponse):
    """A call with broken arguments runs without any: the tool acts on defaults that the model never meant."""

    def response(self, event: ModelResponded) -> ModelResponded:
        return with_parts(event, map(self._mend, event.response.parts))

    @staticmethod
    def _mend(part: AssistantPart) -> AssistantPart:
        if not isinstance(part, ToolCall) or is_json_object(part.arguments):
            return part
        return replace(part, arguments="{}", complete=True)


class RunsUnfinishedCalls(ChangedResponse):
    """A call that the provider never finished runs because its text parses: half a deletion list is obeyed."""

    def response(self, event: ModelResponded) -> ModelResponded:
        return with_parts(
            event,
            (
                replace(part, complete=True) if isinstance(part, ToolCall) and is_json_object(part.arguments) else part
                for part in event.response.parts
            ),
        )


class MergesCallsOfOneId(ChangedResponse):
    """Two calls of a turn with the same id become one: the second search is silently not made."""

    def response(self, event: ModelResponded) -> ModelResponded:
        taken: set[CallId] = set()
        parts: list[AssistantPart] = []
        for part in event.response.parts:
            if isinstance(part, ToolCall):
                if part.call_id in taken:
                    continue
                taken.add(part.call_id)
            parts.append(part)
        return with_parts(event, parts)


class DropsTextBesideCalls(ChangedRecord):
    """What the model said before its calls is not recorded: the reader's text is missing in the next conversation."""

    def record(self, step: RecordStep) -> Messages:
        return tuple(
            AssistantMessage(tuple(part for part in message.parts if not isinstance(part, Text)))
            if isinstance(message, AssistantMessage) and message.tool_calls
            else message
            for message in step.messages
        )


class DropsThinking(ChangedRecord):
    """Thinking is left out of the recorded turn: Anthropic refuses the next request of a thinking model."""

    def record(self, step: RecordStep) -> Messages:
        return tuple(
            self._without(message) if isinstance(message, AssistantMessage) else message for message in step.messages
        )

    @staticmethod
    def _without(message: AssistantMessage) -> AssistantMessage:
        kept = tuple(part for part in message.parts if not isinstance(part, Thinking))
        return AssistantMessage(kept) if kept else message


class DropsReplayData(ChangedRecord):
    """Signatures are left out of the recorded turn: Gemini refuses a call that comes back without its signature."""

    def record(self, step: RecordStep) -> Messages:
        return tuple(
            AssistantMessage(
                tuple(part if isinstance(part, ServerTool) else replace(part, replay=None) for part in message.parts)
            )
            if isinstance(message, AssistantMessage)
            else message
            for message in step.messages
        )


class RecordsRetriedTurns(Mutation):
    """A turn that is asked again is recorded all the same: the conversation keeps the half answer beside the whole."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if not (isinstance(event, ModelResponded) and event.response.text and asked_again(event, commands)):
            return commands
        return [RecordStep(event.tag, (AssistantMessage((Text(event.response.text),)),)), *commands]


class RetriesOnceTooOften(ChangedStart):
    """A step is asked again once more than allowed: one more model call is paid for."""

    def options(self, options: RequestOptions) -> RequestOptions:
        return replace(options, max_attempts=options.max_attempts + 1)


class NeverAsksAgain(ChangedStart):
    """A cut turn ends the request at once: an answer is lost that a second try would have given."""

    def options(self, options: RequestOptions) -> RequestOptions:
        return replace(options, max_attempts=1)


class NeverResetsRetries(Mutation):
    """Retries of all steps are added up: a long request fails at a small disturbance hours after the first."""

    def __init__(self) -> None:
        self._limit = 0
        self._again = 0

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, RequestStarted):
            self._limit = event.options.max_attempts - 1
        error = event.error if isinstance(event, ModelFailed) else None
        if isinstance(event, ModelResponded):
            error = event.response.error
        lost = isinstance(event, ModelLost) or (error is not None and error.kind in ASK_AGAIN_KINDS)
        if lost and self._again >= self._limit:
            return ModelFailed(event.tag, event.at, Error(ErrorKind.OTHER, "too many tries"))
        return event

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self._again += asked_again(event, commands)
        return commands


class CountsCallsNotRequests(Mutation):
    """A model call counts as one request, however many it took: retries of retries make twelve requests of four."""

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, ModelResponded | ModelFailed | ModelNoted):
            return replace(event, requests=1)
        return event


class ForgetsRequestsOfLostCalls(Mutation):
    """What a lost call had sent is forgotten: a holder that crashes after each retry sends without end."""

    def hears(self, event: Event) -> Event | None:
        return replace(event, requests=0) if isinstance(event, ModelNoted) else event


class ForgetsWaitsOfLostCalls(Mutation):
    """A wait is forgotten with the call that waited: after each restart the provider is asked before it allows it."""

    def hears(self, event: Event) -> Event | None:
        return replace(event, until_at=0.0) if isinstance(event, ModelNoted) else event


class CallsEveryEndAStop(Mutation):
    """An answer that was cut ends as one that was not: the caller's program takes half a file for the whole one."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, Finish, lambda finish: replace(finish, finish_reason=FinishReason.STOP))


class ToleratesOneMoreRepetition(ChangedStart):
    """The limit of repeated calls is off by one: the same call runs, and is paid for, once more than allowed."""

    def options(self, options: RequestOptions) -> RequestOptions:
        limit = options.repeated_call_limit
        return replace(options, repeated_call_limit=limit + 1 if limit else 0)


class DetectsNoLoops(ChangedStart):
    """Repeated calls are not noticed: a model in a loop costs money until the last step."""

    def options(self, options: RequestOptions) -> RequestOptions:
        return replace(options, repeated_call_limit=0)


class TakesFilteredTurns(ChangedResponse):
    """A turn stopped by the content filter counts as whole: its calls run and its beginning is the answer."""

    def response(self, event: ModelResponded) -> ModelResponded:
        stopped = event.response.finish_reason is FinishReason.CONTENT_FILTER
        return ended_by(event, FinishReason.STOP) if stopped else event


class HidesThatTheAnswerWasCut(ChangedResponse):
    """An answer cut at the token limit is reported without a reason: the reader takes it for complete."""

    def response(self, event: ModelResponded) -> ModelResponded:
        cut = event.response.finish_reason is FinishReason.LENGTH and not event.response.tool_calls
        return ended_by(event, FinishReason.STOP) if cut else event


class TakesCutCallsForWhole(ChangedResponse):
    """A turn cut in the middle of its calls is kept, not asked again: the rest of its calls is never made."""

    def response(self, event: ModelResponded) -> ModelResponded:
        cut = event.response.finish_reason in (FinishReason.LENGTH, FinishReason.ERROR) and event.response.tool_calls
        return ended_by(event, FinishReason.TOOL_CALLS) if cut else event


class TakesAPauseForTheEnd(ChangedResponse):
    """A paused turn is taken for the answer: the reader gets "I will look it up" and nothing more."""

    def response(self, event: ModelResponded) -> ModelResponded:
        paused = event.response.finish_reason is FinishReason.PAUSE
        return ended_by(event, FinishReason.STOP) if paused else event


class LosesPartialText(Mutation):
    """What was streamed of a turn that is cut short is not kept: text that the reader has seen vanishes."""

    def hears(self, event: Event) -> Event | None:
        return None if isinstance(event, ModelStreamed) and event.tag == self.session.step else event


class KeepsTextFromBeforeARestart(Mutation):
    """A restarted stream does not void what came before: the partial answer holds its beginning twice."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, ModelStreamed):
            return event
        return replace(event, events=tuple(delta for delta in event.events if not isinstance(delta, Restarted)))


class HidesTheToolFallback(Mutation):
    """Tools are given up without a note: the reader wonders why the model no longer looks anything up."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        error = event.error if isinstance(event, ModelFailed) else None
        if isinstance(event, ModelResponded):
            error = event.response.error
        unsupported = error is not None and error.kind is ErrorKind.TOOLS_UNSUPPORTED
        return without(commands, Note) if unsupported else commands


class AsksAgainAfterFinalErrors(Mutation):
    """A final error, a bad key say, is asked again like a cut stream: the user waits, and reads the wrong cause."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, ModelFailed) or event.error.kind is ErrorKind.TOOLS_UNSUPPORTED:
            return event
        return replace(event, error=replace(event.error, kind=ErrorKind.TRUNCATED))


TURN_FAULTS: tuple[type[Mutation], ...] = (
    RunsHalfCalls,
    RunsUnfinishedCalls,
    MergesCallsOfOneId,
    DropsTextBesideCalls,
    DropsThinking,
    DropsReplayData,
    RecordsRetriedTurns,
    RetriesOnceTooOften,
    NeverAsksAgain,
    NeverResetsRetries,
    CountsCallsNotRequests,
    ForgetsRequestsOfLostCalls,
    ForgetsWaitsOfLostCalls,
    CallsEveryEndAStop,
    ToleratesOneMoreRepetition,
    DetectsNoLoops,
    TakesFilteredTurns,
    HidesThatTheAnswerWasCut,
    TakesCutCallsForWhole,
    TakesAPauseForTheEnd,
    LosesPartialText,
    KeepsTextFromBeforeARestart,
    HidesTheToolFallback,
    AsksAgainAfterFinalErrors,
)
