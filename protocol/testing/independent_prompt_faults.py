"""Planted faults in what the model is shown and in what a request may spend."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from callboard.protocol.commands import Command, Finish, RecordStep
from callboard.protocol.content import (
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import Event, ModelFailed, ModelLost, ModelResponded, RequestStarted
from callboard.protocol.model import ModelRequest, ToolChoice, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.independent_bases import (
    ChangedFinish,
    ChangedPrompt,
    ChangedRecord,
    ChangedResponse,
    ChangedStart,
    Messages,
    asked_again,
    with_usage,
)
from callboard.protocol.testing.mutation import Mutation

# Budgets.


class AllowsOneMoreStep(ChangedStart):
    """max_steps is off by one: one more model call is made and paid for than was allowed."""

    def options(self, options: RequestOptions) -> RequestOptions:
        return replace(options, max_steps=options.max_steps + 1)


class CountsTokensTwice(ChangedResponse):
    """Each turn's tokens are counted twice: requests stop at half of their budget, and reports are double."""

    def response(self, event: ModelResponded) -> ModelResponded:
        usage = event.response.usage
        return with_usage(event, usage and usage + usage)


class CountsOnlyOutputTokens(ChangedResponse):
    """Input tokens are not counted: a long conversation spends many times its token budget."""

    def response(self, event: ModelResponded) -> ModelResponded:
        usage = event.response.usage
        return with_usage(event, usage and replace(usage, input_tokens=0))


class CountsNoCost(ChangedResponse):
    """The cost of turns is not added up: a cost budget never stops a request."""

    def response(self, event: ModelResponded) -> ModelResponded:
        return replace(event, cost=0.0)


class TakesAnUnknownCostForNothing(ChangedResponse):
    """A turn whose cost is not known counts as free: the report says $0 for a request that was billed."""

    def response(self, event: ModelResponded) -> ModelResponded:
        return replace(event, cost=0.0) if event.cost is None else event


class DoesNotChargeFailedTurns(ChangedResponse):
    """The cost of turns that ended in an error is not counted: the provider bills them, and the budget is passed."""

    def response(self, event: ModelResponded) -> ModelResponded:
        return replace(event, cost=0.0) if event.response.error is not None else event


class ReportsOnlyTheLastCost(ChangedFinish):
    """The end reports the last turn's cost as that of the whole request: the bill is higher than the reports."""

    def __init__(self) -> None:
        self._cost: float | None = 0.0

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if isinstance(event, ModelResponded):
            self._cost = event.cost
        return super().says(event, commands)

    def finish(self, finish: Finish) -> Finish:
        return replace(finish, cost=self._cost)


class HidesTheUsageOfRetries(ChangedFinish):
    """Tokens of turns that were asked again are missing in the report: the bill is higher than the reports."""

    def __init__(self) -> None:
        self._hidden = Usage()

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if isinstance(event, ModelResponded) and asked_again(event, commands):
            self._hidden += event.response.usage or Usage()
        return super().says(event, commands)

    def finish(self, finish: Finish) -> Finish:
        if finish.usage is None:
            return finish
        usage = replace(
            finish.usage,
            input_tokens=finish.usage.input_tokens - self._hidden.input_tokens,
            output_tokens=finish.usage.output_tokens - self._hidden.output_tokens,
        )
        return replace(finish, usage=usage)


class DoesNotCapAnswers(ChangedPrompt):
    """The answer's length is not limited to what is left: one long answer passes the budget."""

    def prompt(self, event: Event, request: ModelRequest) -> ModelRequest:
        return replace(request, sampling=self.started.options.sampling)


class IgnoresTheContextLimit(ChangedStart):
    """The history is not cut to the context: the provider refuses every long conversation."""

    def options(self, options: RequestOptions) -> RequestOptions:
        return replace(options, context_tokens=None)


BUDGET_FAULTS: tuple[type[Mutation], ...] = (
    AllowsOneMoreStep,
    CountsTokensTwice,
    CountsOnlyOutputTokens,
    CountsNoCost,
    TakesAnUnknownCostForNothing,
    DoesNotChargeFailedTurns,
    ReportsOnlyTheLastCost,
    HidesTheUsageOfRetries,
    DoesNotCapAnswers,
    IgnoresTheContextLimit,
)


# What the model is shown.


class ForgetsInstructions(ChangedPrompt):
    """The system prompt is sent with the first step only: after its first tool call the model leaves its role."""

    def shown(self, event: Event, messages: Messages) -> Messages:
        prompt = SystemMessage(self.started.options.system_prompt)
        return messages[1:] if self.steps and messages[0] == prompt else messages


class ForgetsTheProvidersOptions(ChangedPrompt):
    """What only one API has is asked for in the first step only: the answer of the last one is another than wanted."""

    def prompt(self, event: Event, request: ModelRequest) -> ModelRequest:
        return replace(request, provider_options=()) if self.steps else request


class RepeatsTheQuestionWhenAskingAgain(ChangedPrompt):
    """A lost model call is asked again with the question twice: the model answers it twice."""

    def shown(self, event: Event, messages: Messages) -> Messages:
        again = isinstance(event, ModelLost | ModelFailed)
        return (*messages, self.question) if again else messages


class ForgetsTheQuestion(ChangedPrompt):
    """From the second step on the question is missing: the model sees results and no task."""

    def shown(self, event: Event, messages: Messages) -> Messages:
        at = self.question_at(messages)
        return messages[:at] + messages[at + 1 :] if self.steps else messages


class PutsTheQuestionLast(ChangedPrompt):
    """From the second step on the question comes after the results: the model starts the task over each time."""

    def shown(self, event: Event, messages: Messages) -> Messages:
        at = self.question_at(messages)
        return (*messages[:at], *messages[at + 1 :], messages[at]) if self.steps else messages


class DropsOldResultsAlone(ChangedPrompt):
    """Results of earlier requests are dropped, their calls kept: providers refuse calls without results."""

    def shown(self, event: Event, messages: Messages) -> Messages:
        at = self.question_at(messages)
        old = tuple(message for message in messages[:at] if not isinstance(message, ToolMessage))
        return old + messages[at:]


class HidesTheLastStep(ChangedPrompt):
    """The finished step is not shown to the model: it makes the same calls once more."""

    def shown(self, event: Event, messages: Messages) -> Messages:
        return messages[: -len(self.steps[-1].messages)] if self.steps else messages


class ShowsTheLastStepTwice(ChangedPrompt):
    """The finished step is shown twice: providers refuse the repeated call ids, and the tokens are paid twice."""

    def shown(self, event: Event, messages: Messages) -> Messages:
        return messages + messages[-len(self.steps[-1].messages) :] if self.steps else messages


class PutsNotesBeforeResults(ChangedRecord):
    """A note comes between a turn and its results: providers refuse results that do not follow their turn."""

    def record(self, step: RecordStep) -> Messages:
        notes = tuple(message for message in step.messages if isinstance(message, SystemMessage))
        others = tuple(message for message in step.messages if not isinstance(message, SystemMessage))
        return others[:1] + notes + others[1:]


class KeepsOnlyTheLastExchange(ChangedStart):
    """Old history is cut although no limit asks for it: the model forgets what the user said two questions ago."""

    def start(self, event: RequestStarted) -> RequestStarted:
        asked = [index for index, message in enumerate(event.history) if isinstance(message, UserMessage)]
        if event.options.context_tokens is not None or not asked:
            return event
        return replace(event, history=event.history[asked[-1] :])


class OffersToolsOnlyOnce(ChangedPrompt):
    """Tools are offered with the first step only: work that needs two rounds of calls cannot be done."""

    def prompt(self, event: Event, request: ModelRequest) -> ModelRequest:
        if not self.steps:
            return request
        return replace(request, tools=(), tool_choice=ToolChoice(), parallel_tool_calls=None)


class OffersToolsAfterARefusal(ChangedPrompt):
    """Tools are offered again to a model that takes none: the second try fails as the first did."""

    def prompt(self, event: Event, request: ModelRequest) -> ModelRequest:
        return replace(request, tools=tuple(offer.definition for offer in self.started.tools))


class ForcesACallEachTime(ChangedPrompt):
    """A forced tool choice stays forced at each step: the model may never answer and calls until a limit."""

    def prompt(self, event: Event, request: ModelRequest) -> ModelRequest:
        return replace(request, tool_choice=self.started.options.tool_choice) if request.tools else request


class AsksTheSameWhenItWasTooLong(ChangedPrompt):
    """A prompt that was too long is sent again as it was: it is refused again, and the request fails."""

    def __init__(self) -> None:
        super().__init__()
        self._refused: Messages = ()

    def hears(self, event: Event) -> Event | None:
        self._was_too_long = isinstance(event, ModelFailed) and event.error.kind is ErrorKind.CONTEXT_LENGTH
        return event

    def shown(self, event: Event, messages: Messages) -> Messages:
        self._refused = self._refused if self._was_too_long else messages
        return self._refused


class ForgetsTheWindowThatWasNamed(Mutation):
    """The window that a model names is not kept to: each later step is refused as too long once more."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, ModelFailed) or event.error.context_tokens is None:
            return event
        return replace(event, error=replace(event.error, context_tokens=None))


class EndsWhenItWasTooLong(Mutation):
    """A prompt that was too long ends the request: the person gets no answer that a shorter prompt would have given."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, ModelFailed) or event.error.kind is not ErrorKind.CONTEXT_LENGTH:
            return event
        return replace(event, error=replace(event.error, kind=ErrorKind.OTHER))


class SpeaksOfToolsThatAreNotOffered(ChangedPrompt):
    """The instructions go on about tools to a model that takes none: it writes calls into its answer."""

    def shown(self, event: Event, messages: Messages) -> Messages:
        told = SystemMessage(self.started.options.tool_prompt)
        return (told, *messages) if told.text and any(offer.is_shown for offer in self.started.tools) else messages

    def prompt(self, event: Event, request: ModelRequest) -> ModelRequest:
        return request if request.tools else super().prompt(event, request)


class ShowsCallsToAModelWithoutTools(ChangedPrompt):
    """A model that takes no tools is shown old calls as calls: its server refuses the message."""

    def prompt(self, event: Event, request: ModelRequest) -> ModelRequest:
        return request if request.tools else super().prompt(event, request)

    def shown(self, event: Event, messages: Messages) -> Messages:
        at = self.question_at(messages)
        return messages[: at + 1] + tuple(message for step in self.steps for message in step.messages)


class BeginsWithToolsThatAreRefused(ChangedStart):
    """A model that is known to take no tools is offered them each time: every request begins with a refusal."""

    def options(self, options: RequestOptions) -> RequestOptions:
        return replace(options, takes_tools=True)


HISTORY_FAULTS: tuple[type[Mutation], ...] = (
    ForgetsInstructions,
    ForgetsTheProvidersOptions,
    RepeatsTheQuestionWhenAskingAgain,
    ForgetsTheQuestion,
    PutsTheQuestionLast,
    DropsOldResultsAlone,
    HidesTheLastStep,
    ShowsTheLastStepTwice,
    PutsNotesBeforeResults,
    KeepsOnlyTheLastExchange,
    OffersToolsOnlyOnce,
    OffersToolsAfterARefusal,
    ForcesACallEachTime,
    AsksTheSameWhenItWasTooLong,
    ForgetsTheWindowThatWasNamed,
    EndsWhenItWasTooLong,
    SpeaksOfToolsThatAreNotOffered,
    ShowsCallsToAModelWithoutTools,
    BeginsWithToolsThatAreRefused,
)
