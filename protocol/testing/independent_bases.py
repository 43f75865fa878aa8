"""What the planted faults of the `independent_*_faults.py` files are made of: bases and small helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from callboard.protocol.commands import CallModel, Command, Finish, RecordStep
from callboard.protocol.content import (
    AssistantPart,
    Message,
    UserMessage,
)
from callboard.protocol.events import (
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallEnd,
    ToolCallStarted,
)
from callboard.protocol.ids import Tag
from callboard.protocol.model import FinishReason, ModelRequest, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.mutation import Mutation

C = TypeVar("C", bound=Command)

Messages = tuple[Message, ...]
ModelEvent = ModelStreamed | ModelResponded | ModelFailed | ModelLost
CallEvent = ToolCallStarted | ToolCallEnd
#: How much too late a late fault is: longer than the time of most tools.
LATE_SECONDS = 60.0


def changed(commands: Iterable[Command], kind: type[C], change: Callable[[C], Command]) -> list[Command]:
    """The commands, those of one kind as `change` makes them."""
    return [change(command) if isinstance(command, kind) else command for command in commands]


def without(commands: Iterable[Command], *kinds: type[Command]) -> list[Command]:
    """The commands, except those of these kinds."""
    return [command for command in commands if not isinstance(command, kinds)]


def of_kind(commands: Iterable[Command], kind: type[C]) -> list[C]:
    """The commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


class ChangedStart(Mutation):
    """Base: the request starts with other options, tools or history than were given."""

    def start(self, event: RequestStarted) -> RequestStarted:
        """What the session hears of the start."""
        return replace(event, options=self.options(event.options))

    def options(self, options: RequestOptions) -> RequestOptions:
        """What the session hears of the options."""
        return options

    def hears(self, event: Event) -> Event | None:
        return self.start(event) if isinstance(event, RequestStarted) else event


class ChangedResponse(Mutation):
    """Base: the session hears another turn than the model gave."""

    def response(self, event: ModelResponded) -> ModelResponded:
        """What the session hears of a turn."""
        return event

    def hears(self, event: Event) -> Event | None:
        return self.response(event) if isinstance(event, ModelResponded) else event


class ChangedRecord(Mutation):
    """Base: a finished step is recorded, and later shown to the model, with other messages."""

    def __init__(self) -> None:
        self._recorded: dict[Tag, tuple[Messages, Messages]] = {}

    def record(self, step: RecordStep) -> Messages:
        """The messages in place of those of the step."""
        return step.messages

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return self._rewritten(commands)

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return self._rewritten(commands)

    def _rewritten(self, commands: list[Command]) -> list[Command]:
        return changed(changed(commands, RecordStep, self._recording), CallModel, self._showing)

    def _recording(self, step: RecordStep) -> RecordStep:
        if step.tag not in self._recorded:
            self._recorded[step.tag] = (step.messages, self.record(step))
        return replace(step, messages=self._recorded[step.tag][1])

    def _showing(self, call: CallModel) -> CallModel:
        messages = call.request.messages
        for old, new in self._recorded.values():
            for start in range(len(messages) - len(old) + 1):
                if messages[start : start + len(old)] == old:
                    messages = messages[:start] + new + messages[start + len(old) :]
                    break
        return replace(call, request=replace(call.request, messages=messages))


class ChangedPrompt(Mutation):
    """Base: the model is asked something else than the session says."""

    started: RequestStarted

    def __init__(self) -> None:
        self.steps: list[RecordStep] = []

    def prompt(self, event: Event, request: ModelRequest) -> ModelRequest:
        """The model call in place of this one."""
        return replace(request, messages=self.shown(event, request.messages))

    def shown(self, event: Event, messages: Messages) -> Messages:
        """The messages in place of these."""
        return messages

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if isinstance(event, RequestStarted):
            self.started = event
        self.steps += of_kind(commands, RecordStep)
        return changed(commands, CallModel, lambda call: replace(call, request=self.prompt(event, call.request)))

    def question_at(self, messages: Messages) -> int:
        """Where the user's message is; it is always among them."""
        return max(index for index, message in enumerate(messages) if message == self.question)

    @property
    def question(self) -> UserMessage:
        """The user's message; of a request that goes on from results, the last one of its history."""
        known = (*self.started.history, *([self.started.user] if self.started.user.parts else []))
        return next(message for message in reversed(known) if isinstance(message, UserMessage))


class ChangedFinish(Mutation):
    """Base: the end of the request is reported otherwise."""

    def finish(self, finish: Finish) -> Finish:
        """The report in place of this one."""
        return finish

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, Finish, self.finish)

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return changed(commands, Finish, self.finish)


def with_parts(event: ModelResponded, parts: Iterable[AssistantPart]) -> ModelResponded:
    """The turn with these parts."""
    return replace(event, response=replace(event.response, parts=tuple(parts)))


def ended_by(event: ModelResponded, reason: FinishReason) -> ModelResponded:
    """The turn with this reason for its end."""
    return replace(event, response=replace(event.response, finish_reason=reason))


def with_usage(event: ModelResponded, usage: Usage | None) -> ModelResponded:
    """The turn with this usage."""
    return replace(event, response=replace(event.response, usage=usage))


def asked_again(event: Event, commands: Iterable[Command]) -> bool:
    """Whether the commands ask the model for the same step once more."""
    kinds = {type(command) for command in commands}
    return CallModel in kinds and RecordStep not in kinds and not isinstance(event, RequestStarted)
