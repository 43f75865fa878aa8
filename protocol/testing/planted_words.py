"""Planted faults: in the words that a model is asked for before the first search, and in the search for tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from callboard.protocol.commands import CallModel, Command, Note, NoteKind, RunTool
from callboard.protocol.events import Event, ModelFailed, ModelLost, RequestStarted
from callboard.protocol.ids import ToolName
from callboard.protocol.model import CallPurpose
from callboard.protocol.testing.mutation import Mutation
from callboard.protocol.testing.planting import believing, changing, saying, with_options
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.tools import ToolDefinition


def _unasked(start: RequestStarted) -> RequestStarted:
    contracts = ((each, replace(each.contract, searches_by="queries")) for each in start.tools)
    tools = tuple(replace(each, contract=contract) for each, contract in contracts)
    return replace(start, options=replace(start.options, expand_search=True), tools=tools)


def _asking(change: Callable[[CallModel], CallModel]) -> type[Mutation]:
    """Change each model call for words."""
    return changing(CallModel, lambda call: change(call) if call.purpose is CallPurpose.SEARCH_WORDS else call)


def _with_tools(call: CallModel) -> CallModel:
    tools = tuple(offer.definition for offer in STANDARD_TOOLS)
    return replace(call, request=replace(call.request, tools=tools))


def _without_the_note(_: Event, said: list[Command]) -> Sequence[Command]:
    return [each for each in said if not (isinstance(each, Note) and each.kind is NoteKind.WORDS_FAILED)]


def _without_the_calls(event: Event, said: list[Command]) -> Sequence[Command]:
    has_failed = isinstance(event, ModelFailed | ModelLost)
    return [each for each in said if not (has_failed and isinstance(each, RunTool))]


class _NumbersCallsByTheWords(Mutation):
    """The calls of a turn have the number of the latest model call."""

    latest: int = 0

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return list(map(self._renumbered, commands))

    def _renumbered(self, command: Command) -> Command:
        if isinstance(command, CallModel):
            self.latest = command.tag.step
        return replace(command, tag=command.tag._replace(step=self.latest)) if isinstance(command, RunTool) else command


#: With the rule that must notice each.
WORDS_FAULTS: Final[tuple[tuple[str, str, type[Mutation]], ...]] = (
    ("I32 search words", "Further words are asked for though that is switched off", believing(_unasked)),
    (
        "I32 search words",
        "No further words are asked for",
        with_options(lambda options: replace(options, expand_search=False)),
    ),
    (
        "I32 search words",
        "The search is not given the words",
        changing(RunTool, lambda call: replace(call, search_words=())),
    ),
    (
        "I32 search words",
        "Each call is given words",
        changing(RunTool, lambda call: replace(call, search_words=("find it",))),
    ),
    ("I32 search words", "Further words are asked for with the tools", _asking(_with_tools)),
    (
        "I32 search words",
        "Further words may be asked for as often as a step",
        _asking(lambda call: replace(call, attempts=4)),
    ),
    ("I32 search words", "That there are no further words is not told", saying(_without_the_note)),
    (
        "I23 model calls",
        "Further words may take as long as a summary",
        _asking(lambda call: replace(call, deadline_at=call.deadline_at + 105.0)),
    ),
    ("I24 goes on", "Calls whose words could not be had are forgotten", saying(_without_the_calls)),
    (
        "I13 leave to run",
        "The calls of a turn have the number of the model call for words",
        _NumbersCallsByTheWords,
    ),
)


# The search for tools (tool_search.py).


def _offering(change: Callable[[list[ToolDefinition], frozenset[ToolName]], list[ToolDefinition]]) -> type[Mutation]:
    """Change the tools of each model call; the second is which of them were to be found."""

    def changed(call: CallModel) -> CallModel:
        found = call.request.tool_search
        if found is None:
            return call
        tools = change(list(call.request.tools), frozenset(tool.name for tool in found.deferred))
        return replace(call, request=replace(call.request, tools=tuple(tools)))

    return changing(CallModel, changed)


SEARCH_FAULTS: Final[tuple[tuple[str, str, type[Mutation]], ...]] = (
    (
        "I18 shown as recorded",
        "A tool that was found stands before the others",
        _offering(lambda tools, found: sorted(tools, key=lambda tool: tool.name not in found)),
    ),
    (
        "I18 shown as recorded",
        "A tool that was found is not offered",
        _offering(lambda tools, found: [tool for tool in tools if tool.name not in found]),
    ),
    (
        "I18 shown as recorded",
        "No tool is beyond a budget",
        with_options(lambda options: replace(options, tools_budget_tokens=None)),
    ),
)
