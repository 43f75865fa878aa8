"""Faults planted in what becomes of an answer of a certain form. planted.py lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from callboard.protocol.commands import Command, RecordStep, RunTool
from callboard.protocol.content import AssistantMessage
from callboard.protocol.events import Event, ModelResponded, RequestStarted
from callboard.protocol.output import OUTPUT_TOOL, Checked, OutputSpec
from callboard.protocol.testing.mutation import Mutation


class TakesWhatDoesNotFit(Mutation):
    """What does not fit is taken for an answer."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, ModelResponded):
            return event
        return replace(event, checked=tuple(Checked() for _ in event.checked))


class AsksAgainAfterABrokenCheck(Mutation):
    """A check that fails itself is asked again."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, ModelResponded):
            return event
        return replace(event, checked=tuple(replace(each, is_broken=False) for each in event.checked))


class AnotherForm(Mutation):
    """The session believes in another form than was asked for."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, RequestStarted) or event.options.output is None:
            return event
        return replace(event, options=replace(event.options, output=self.instead(event.options.output)))

    def instead(self, form: OutputSpec) -> OutputSpec:
        """The other form."""
        return form


class OneTryMore(AnotherForm):
    """One more answer may fail to fit than is allowed."""

    def instead(self, form: OutputSpec) -> OutputSpec:
        return replace(form, max_tries=form.max_tries + 1)


class AsksInTheSecondWay(AnotherForm):
    """The first way to ask is left out."""

    def instead(self, form: OutputSpec) -> OutputSpec:
        return replace(form, modes=form.modes[1:] or form.modes)


class DoesNotSayWhy(Mutation):
    """The model does not read what is wrong with its answer."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [self._without_notes(command) if isinstance(command, RecordStep) else command for command in commands]

    @staticmethod
    def _without_notes(record: RecordStep) -> RecordStep:
        first = record.messages[0]
        is_text = isinstance(first, AssistantMessage) and not first.tool_calls
        return replace(record, messages=record.messages[:1]) if is_text else record


class RunsTheOutputTool(Mutation):
    """The output tool is run like any other."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if not isinstance(event, ModelResponded):
            return commands
        calls = [call for call in event.response.tool_calls if call.name == OUTPUT_TOOL and call.complete]
        runs = [
            RunTool(event.tag._replace(call_id=call.call_id), call.name, call.arguments, event.at + 1, "effect")
            for call in calls[:1]
        ]
        return [*runs, *commands]


#: By the rule that must notice each.
OUTPUT_FAULTS: Final = tuple(
    ("I30 answers fit", mutation)
    for mutation in (
        TakesWhatDoesNotFit,
        AsksAgainAfterABrokenCheck,
        OneTryMore,
        AsksInTheSecondWay,
        DoesNotSayWhy,
        RunsTheOutputTool,
    )
)
