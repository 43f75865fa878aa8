"""A trace, read once: what the session was told, what it did each time, and what became of each call.

Independent of the session's own bookkeeping on purpose: the invariants are checked against this reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    Command,
    Finish,
    RecordStep,
    RunTool,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import AssistantMessage, Message, ToolCall, ToolMessage
from callboard.protocol.events import (
    ApprovalDenied,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.testing.trace import Trace, Verb

#: The events that end a call.
CALL_ENDINGS: Final = (ToolCallCompleted, ToolCallFailed, ToolCallTimedOut, ToolCallCancelled, ApprovalDenied)


@dataclass(frozen=True, slots=True)
class Reaction:
    """One event that the session took (None: it was resumed), and the commands it gave."""

    at: float
    event: Event | None
    commands: list[Command] = field(default_factory=list)

    def given(self, kind: type[Any]) -> list[Any]:
        return [command for command in self.commands if type(command) is kind]


@dataclass(slots=True)
class Story:
    """A trace by reactions; `start` is None when the request never began."""

    trace: Trace
    reactions: list[Reaction]
    start: RequestStarted | None

    @classmethod
    def of(cls, trace: Trace) -> Story:
        reactions: list[Reaction] = []
        start: RequestStarted | None = None
        for entry in trace.entries:
            value: Any = entry.value
            if entry.verb is Verb.GAVE:
                reactions[-1].commands.append(value)
            elif entry.verb is not Verb.REFUSED:
                reactions.append(Reaction(entry.at, value))
                start = value if isinstance(value, RequestStarted) else start
        return cls(trace, reactions, start)

    def events(self, *kinds: type[Any]) -> Iterator[Any]:
        """The events of these kinds that the session took."""
        return (reaction.event for reaction in self.reactions if isinstance(reaction.event, kinds))

    def given(self, kind: type[Any]) -> list[Any]:
        """All commands of a kind; those that a resumed session gives out anew are left out."""
        return [
            command for reaction in self.reactions if reaction.event is not None for command in reaction.given(kind)
        ]

    def finish(self) -> tuple[float, Finish] | None:
        """When and how the request ended."""
        for reaction in self.reactions:
            for command in reaction.given(Finish):
                return reaction.at, command
        return None

    def shown_and_kept(self) -> Iterator[tuple[str, tuple[Message, ...]]]:
        """Every history that somebody gets to see: each model call's, and the conversation after each step."""
        if self.start is None:
            return
        kept: tuple[Message, ...] = (*self.start.history, self.start.user)
        for reaction in self.reactions:
            if reaction.event is None:
                continue
            for command in reaction.commands:
                if isinstance(command, CallModel):
                    yield f"the messages of model call {command.tag.step}", command.request.messages
                elif isinstance(command, RecordStep):
                    kept += command.messages
                    yield f"the conversation after step {command.tag.step}", kept

    def asked(self) -> dict[Tag, ToolCall]:
        """Every call as it stands in the history, by its tag."""
        return {
            record.tag.for_call(call.call_id): call
            for record in self.given(RecordStep)
            for message in record.messages
            if isinstance(message, AssistantMessage)
            for call in message.tool_calls
        }

    def results(self) -> list[tuple[Tag, ToolMessage]]:
        """Every result that was recorded, by its call's tag."""
        return [
            (record.tag.for_call(message.call_id), message)
            for record in self.given(RecordStep)
            for message in record.messages
            if isinstance(message, ToolMessage)
        ]


class OpenWork:
    """Who holds what, by commands and answers alone: followed from reaction to reaction."""

    def __init__(self) -> None:
        self.model: Tag | None = None
        self.running: set[Tag] = set()
        self.waiting: set[Tag] = set()

    def hear(self, event: Event | None) -> None:
        """What an answer closes."""
        if event is None:
            return
        if isinstance(event, CALL_ENDINGS):
            self.running.discard(event.tag)
            self.waiting.discard(event.tag)
        elif isinstance(event, ToolsLost):
            self.running.clear()
            self.waiting.clear()
        elif event.tag == self.model and isinstance(event, ModelResponded | ModelFailed | ModelLost):
            self.model = None

    def see(self, command: Command) -> None:
        """What a command opens or closes."""
        if isinstance(command, RunTool):
            self.waiting.discard(command.tag)
            self.running.add(command.tag)
        elif isinstance(command, AskApproval):
            self.waiting.add(command.tag)
        elif isinstance(command, CancelTool):
            self.running.discard(command.tag)
        elif isinstance(command, CallModel):
            self.model = command.tag
        elif isinstance(command, WithdrawApproval):
            self.waiting.discard(command.tag)
        elif isinstance(command, StopModel):
            self.model = None

    @property
    def calls(self) -> set[Tag]:
        return self.running | self.waiting


def responses(story: Story) -> dict[int, ModelResponded]:
    """The model's answers, by step."""
    return {event.tag.step: event for event in story.events(ModelResponded)}
