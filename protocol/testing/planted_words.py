"""Planted faults in the further words that a model is asked for before the first search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from callboard.protocol.commands import CallModel, Command, Note, NoteKind, RunTool
from callboard.protocol.events import Event, ModelFailed, ModelLost, RequestStarted
from callboard.protocol.model import CallPurpose
from callboard.protocol.testing.mutation import Mutation
from callboard.protocol.testing.scenario import STANDARD_TOOLS


def _asks_for_words(command: Command) -> bool:
    return isinstance(command, CallModel) and command.purpose is CallPurpose.SEARCH_WORDS


class _Changed(Mutation):
    """Base: some commands are others."""

    def command(self, command: Command) -> Command:
        return command

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return list(map(self.command, commands))


class AsksForWordsUnasked(Mutation):
    """Further words are asked for though that is switched off."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, RequestStarted):
            return event
        contracts = ((each, replace(each.contract, searches_by="queries")) for each in event.tools)
        tools = tuple(replace(each, contract=contract) for each, contract in contracts)
        return replace(event, options=replace(event.options, expand_search=True), tools=tools)


class NeverAsksForWords(Mutation):
    """No further words are asked for."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, RequestStarted):
            return event
        return replace(event, options=replace(event.options, expand_search=False))


class ForgetsTheWords(_Changed):
    """The search is not given the words."""

    def command(self, command: Command) -> Command:
        return replace(command, search_words=()) if isinstance(command, RunTool) else command


class GivesWordsToAll(_Changed):
    """Each call is given words."""

    def command(self, command: Command) -> Command:
        return replace(command, search_words=("find it",)) if isinstance(command, RunTool) else command


class OffersToolsForWords(_Changed):
    """Further words are asked for with the tools."""

    def command(self, command: Command) -> Command:
        if not isinstance(command, CallModel) or not _asks_for_words(command):
            return command
        tools = tuple(offer.definition for offer in STANDARD_TOOLS)
        return replace(command, request=replace(command.request, tools=tools))


class AsksForWordsAgainAndAgain(_Changed):
    """Further words may be asked for as often as a step."""

    def command(self, command: Command) -> Command:
        return replace(command, attempts=4) if isinstance(command, CallModel) and _asks_for_words(command) else command


class GivesWordsAllTheTime(_Changed):
    """Further words may take as long as a summary."""

    def command(self, command: Command) -> Command:
        if not isinstance(command, CallModel) or not _asks_for_words(command):
            return command
        return replace(command, deadline_at=command.deadline_at + 105.0)


class HidesThatThereAreNoWords(_Changed):
    """That there are no further words is not told."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [c for c in commands if not (isinstance(c, Note) and c.kind is NoteKind.WORDS_FAILED)]


class DropsTheCallsThatWaitForWords(Mutation):
    """Calls whose words could not be had are forgotten."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        has_failed = isinstance(event, ModelFailed | ModelLost)
        return [c for c in commands if not (has_failed and isinstance(c, RunTool))]


class NumbersCallsByTheWords(_Changed):
    """The calls of a turn have the number of the model call for words."""

    latest: int = 0

    def command(self, command: Command) -> Command:
        if isinstance(command, CallModel):
            self.latest = command.tag.step
        return replace(command, tag=command.tag._replace(step=self.latest)) if isinstance(command, RunTool) else command


#: With the rule that must notice each.
WORDS_FAULTS: Final[tuple[tuple[str, type[Mutation]], ...]] = (
    ("I32 search words", AsksForWordsUnasked),
    ("I32 search words", NeverAsksForWords),
    ("I32 search words", ForgetsTheWords),
    ("I32 search words", GivesWordsToAll),
    ("I32 search words", OffersToolsForWords),
    ("I32 search words", AsksForWordsAgainAndAgain),
    ("I32 search words", HidesThatThereAreNoWords),
    ("I23 model calls", GivesWordsAllTheTime),
    ("I24 goes on", DropsTheCallsThatWaitForWords),
    ("I13 leave to run", NumbersCallsByTheWords),
)
