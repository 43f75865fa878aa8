"""Faults planted in what becomes of answers whose form was asked for (I30)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from callboard.protocol.commands import (
    Command,
    RunTool,
)
from callboard.protocol.content import (
    AssistantMessage,
    Message,
)
from callboard.protocol.events import (
    Event,
    ModelResponded,
)
from callboard.protocol.output import OUTPUT_TOOL, Checked, OutputSpec
from callboard.protocol.testing.mutation import Mutation
from callboard.protocol.testing.planting import hearing, recording, with_options


def _believing_answers(change: Callable[[Checked], Checked]) -> type[Mutation]:
    def heard(event: Event) -> Event:
        if not isinstance(event, ModelResponded):
            return event
        return replace(event, checked=tuple(map(change, event.checked)))

    return hearing(heard)


def _with_form(change: Callable[[OutputSpec], OutputSpec]) -> type[Mutation]:
    return with_options(
        lambda options: options if options.output is None else replace(options, output=change(options.output))
    )


def _untold(messages: tuple[Message, ...]) -> Iterable[Message]:
    is_text = isinstance(messages[0], AssistantMessage) and not messages[0].tool_calls
    return messages[:1] if is_text else messages


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


#: With the rule that must notice each, and its name.
OUTPUT_FAULTS: Final[tuple[tuple[str, str, type[Mutation]], ...]] = (
    ("I30 answers fit", "what does not fit is taken for an answer", _believing_answers(lambda _: Checked())),
    (
        "I30 answers fit",
        "a check that fails itself is asked again",
        _believing_answers(lambda checked: replace(checked, is_broken=False)),
    ),
    (
        "I30 answers fit",
        "one try more than allowed",
        _with_form(lambda form: replace(form, max_tries=form.max_tries + 1)),
    ),
    (
        "I30 answers fit",
        "the first way to ask is left out",
        _with_form(lambda form: replace(form, modes=form.modes[1:] or form.modes)),
    ),
    ("I30 answers fit", "the model does not read what is wrong with its answer", recording(_untold)),
    ("I30 answers fit", "the output tool is run like any other", RunsTheOutputTool),
)
