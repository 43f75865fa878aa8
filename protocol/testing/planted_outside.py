"""Faults planted in what becomes of calls of the asker's own tools (I31)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from callboard.protocol.commands import CallOutside, Command, Finish, OpenTurn, Outcome, RecordStep, RunTool
from callboard.protocol.content import AssistantMessage, ToolCall, ToolMessage, UserMessage
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelResponded,
    RequestStarted,
    ToolCallCompleted,
    ToolsLost,
)
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.testing.mutation import Mutation
from callboard.protocol.testing.planting import believing, changing, saying


class _KnowsTheAsker(Mutation):
    """Knows the asker's tools, and which calls wait for the others of their step."""

    tools: frozenset[ToolName] = frozenset()

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, RequestStarted):
            self.tools = frozenset(each.definition.name for each in event.tools if each.contract.is_outside)
        return event

    def waiting(self) -> Iterator[tuple[Tag, ToolCall]]:
        """The calls that are the asker's."""
        return ((tag, self.session.call_of(tag)) for tag, state in self.session.calls.items() if state == "outside")


def _run(tag: Tag, call: ToolCall, at: float) -> RunTool:
    return RunTool(tag, call.name, call.arguments, at + 1.0, f"{tag.step}/{tag.call_id}")


class RunsTheAskersCallsToo(_KnowsTheAsker):
    """A call is handed out, and run here beside it."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if not isinstance(event, ModelResponded):
            return commands
        return [*commands, *(_run(tag, call, event.at) for tag, call in self.waiting())]


class SendsTheAskersCallsAgain(_KnowsTheAsker):
    """When the holder of the others is lost, the asker's calls are sent here."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        again = [_run(tag, call, event.at) for tag, call in self.waiting()] if isinstance(event, ToolsLost) else []
        return [*commands, *again]


class HandsOutAtOnce(_KnowsTheAsker):
    """The request ends with calls for the asker while another call still runs."""

    is_over = False

    def hears(self, event: Event) -> Event | None:
        return None if self.is_over else super().hears(event)

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        waiting = dict(self.waiting())
        if not (isinstance(event, ModelResponded) and waiting):
            return commands
        self.is_over = True
        calls = [self.session.call_of(tag) for tag in self.session.calls]
        finish = Finish(event.tag._replace(step=0), Outcome.CALLS_OUTSIDE, "", None, None, ())
        finish = replace(finish, open_turn=OpenTurn(AssistantMessage(tuple(calls))))
        return [*commands, *(CallOutside(tag, call) for tag, call in waiting.items()), finish]


class HandsOutHalfCalls(_KnowsTheAsker):
    """A call whose arguments were cut off is handed out, with none."""

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, ModelResponded):
            parts = tuple(self._whole(part) if isinstance(part, ToolCall) else part for part in event.response.parts)
            return replace(event, response=replace(event.response, parts=parts))
        return super().hears(event)

    def _whole(self, call: ToolCall) -> ToolCall:
        is_half = call.name in self.tools and not call.complete
        return replace(call, arguments="{}", complete=True) if is_half else call


class TakesResultsForWaitingCalls(_KnowsTheAsker):
    """A result is taken for a call that was not handed out yet."""

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        if isinstance(event, ToolCallCompleted) and any(tag == event.tag for tag, _ in self.waiting()):
            return []
        raise error


class LeavesTheAskersCallsUnanswered(_KnowsTheAsker):
    """A step that ends with its request leaves the asker's calls without results."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if not isinstance(event, CancelRequested | DeadlinePassed):
            return commands
        return [self._without(command) if isinstance(command, RecordStep) else command for command in commands]

    def _without(self, record: RecordStep) -> RecordStep:
        kept = (each for each in record.messages if not (isinstance(each, ToolMessage) and each.name in self.tools))
        return replace(record, messages=tuple(kept))


def _in_turn(change: Callable[[list[CallOutside]], Sequence[Command]]) -> type[Mutation]:
    """Change all that is handed out at once."""

    def said(_: Event, commands: list[Command]) -> list[Command]:
        handed = [command for command in commands if isinstance(command, CallOutside)]
        return [*change(handed), *(command for command in commands if not isinstance(command, CallOutside))]

    return saying(said)


def _ending(change: Callable[[Finish, OpenTurn], Sequence[Command]]) -> type[Mutation]:
    """Change how a request ends that hands calls out."""

    def said(_: Event, commands: list[Command]) -> Iterator[Command]:
        for command in commands:
            if isinstance(command, Finish) and command.open_turn is not None:
                yield from change(command, command.open_turn)
            else:
                yield command

    return saying(lambda event, commands: list(said(event, commands)))


def _recorded_too(finish: Finish, opened: OpenTurn) -> Sequence[Command]:
    step = finish.tag.at_step(finish.steps[-1].step)
    return [RecordStep(step, (opened.message, *opened.results)), finish]


def _without_question(_: Event, commands: list[Command]) -> list[Command]:
    is_end = any(isinstance(command, CallOutside) for command in commands)
    return [command for command in commands if not (is_end and isinstance(command, RecordStep))]


def _with_an_empty_question(start: RequestStarted) -> RequestStarted:
    return start if start.user.parts else replace(start, user=UserMessage.of(""))


def _without_what_it_goes_on_from(start: RequestStarted) -> RequestStarted:
    if start.user.parts:
        return start
    question = max(at for at, message in enumerate(start.history) if isinstance(message, UserMessage))
    return replace(start, history=start.history[: question + 1])


#: With the rule that must notice each, and its name.
OUTSIDE_FAULTS: Final[tuple[tuple[str, str, type[Mutation]], ...]] = (
    ("I31 handed out", "a call is handed out twice", _in_turn(lambda calls: [*calls, *calls[:1]])),
    ("I31 handed out", "only the first call is handed out", _in_turn(lambda calls: calls[:1])),
    ("I31 handed out", "calls are handed out in another order", _in_turn(lambda calls: calls[::-1])),
    (
        "I31 handed out",
        "a call is handed out under the tag of another step",
        changing(CallOutside, lambda handed: replace(handed, tag=handed.tag._replace(step=handed.tag.step + 1))),
    ),
    ("I31 handed out", "a call is handed out, and run here too", RunsTheAskersCallsToo),
    (
        "I31 handed out",
        "the asker's calls are run here when the holder of the others is lost",
        SendsTheAskersCallsAgain,
    ),
    ("I31 handed out", "calls are handed out while another one still runs", HandsOutAtOnce),
    ("I31 handed out", "half a call is handed out", HandsOutHalfCalls),
    ("I31 handed out", "a request goes on after its calls were handed out", _ending(lambda finish, opened: [])),
    (
        "I31 handed out",
        "an open turn has lost the results of its other calls",
        _ending(lambda finish, opened: [replace(finish, open_turn=replace(opened, results=()))]),
    ),
    (
        "I31 handed out",
        "calls are handed out without their turn",
        _ending(lambda finish, opened: [replace(finish, open_turn=None)]),
    ),
    ("I31 handed out", "the question of a step that is handed out is not recorded", saying(_without_question)),
    ("I2 valid history", "a turn that waits for results is recorded", _ending(_recorded_too)),
    ("I2 valid history", "a cancelled step has no results of the asker's calls", LeavesTheAskersCallsUnanswered),
    ("I25 taken or refused", "a result is taken for a call that was not handed out", TakesResultsForWaitingCalls),
    ("I18 shown as recorded", "what goes on from results has an empty question", believing(_with_an_empty_question)),
    ("I18 shown as recorded", "what goes on from results forgets them", believing(_without_what_it_goes_on_from)),
)
