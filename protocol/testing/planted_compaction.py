"""Planted faults in what is left out of a prompt, and in what takes its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from callboard.protocol.commands import CallModel, Command, Note, NoteKind, RecordCompaction, RecordStep
from callboard.protocol.compaction import Compacted, Compaction
from callboard.protocol.content import AssistantMessage, Message, Text, ToolMessage, UserMessage
from callboard.protocol.events import Event, ModelResponded, RequestStarted
from callboard.protocol.ids import Tag
from callboard.protocol.model import CallPurpose
from callboard.protocol.testing.mutation import Mutation
from callboard.protocol.testing.scenario import STANDARD_TOOLS

_TOOLS: Final = tuple(offer.definition for offer in STANDARD_TOOLS)
_CLEARED: Final = "was cleared to make room"
_FOR_ALL: Final = Compaction(clear_at=0.01)


def _is_summary(command: Command) -> bool:
    return isinstance(command, CallModel) and command.purpose is CallPurpose.SUMMARY


class _ChangedCall(Mutation):
    """Base: the model is asked otherwise."""

    def call(self, call: CallModel) -> CallModel:
        return call

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [self.call(command) if isinstance(command, CallModel) else command for command in commands]


class OffersToolsForASummary(_ChangedCall):
    """A summary is asked for with the tools."""

    def call(self, call: CallModel) -> CallModel:
        return replace(call, request=replace(call.request, tools=_TOOLS)) if _is_summary(call) else call


class GivesASummaryAllTheTime(_ChangedCall):
    """A summary may take as long as the request."""

    def call(self, call: CallModel) -> CallModel:
        return replace(call, deadline_at=call.deadline_at + 60.0) if _is_summary(call) else call


class _ChangedPromptOfATurn(_ChangedCall):
    """Base: a turn is asked for with other messages."""

    def shown(self, messages: tuple[Message, ...]) -> Iterable[Message]:
        return messages

    def call(self, call: CallModel) -> CallModel:
        shown = tuple(self.shown(call.request.messages))
        return call if _is_summary(call) else replace(call, request=replace(call.request, messages=shown))


class HidesTheSummary(_ChangedPromptOfATurn):
    """The summary is not shown."""

    def shown(self, messages: tuple[Message, ...]) -> Iterable[Message]:
        return [m for m in messages if not (isinstance(m, UserMessage) and m.text.startswith("[Note, "))]


class ClearsWithoutALine(_ChangedPromptOfATurn):
    """A cleared result does not say what it was."""

    def shown(self, messages: tuple[Message, ...]) -> Iterable[Message]:
        return [replace(m, content="") if isinstance(m, ToolMessage) and _CLEARED in m.content else m for m in messages]


class RecordsTheSummary(Mutation):
    """A summary is recorded as a turn of the model."""

    asked: Tag | None = None

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        was, self.asked = self.asked, next((c.tag for c in commands if _is_summary(c)), self.asked)
        if was is None or event.tag != was or not isinstance(event, ModelResponded) or not event.response.text:
            return commands
        return [RecordStep(was, (AssistantMessage((Text(event.response.text),)),)), *commands]


class _ChangedCompaction(Mutation):
    """Base: what was compacted is recorded otherwise."""

    change: Callable[[Compacted], Compacted]

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [self._recorded(c) if isinstance(c, RecordCompaction) else c for c in commands]

    def _recorded(self, record: RecordCompaction) -> RecordCompaction:
        return replace(record, compacted=type(self).change(record.compacted))


class CutsThroughAnExchange(_ChangedCompaction):
    """What is left out ends in the middle of an exchange."""

    @staticmethod
    def change(compacted: Compacted) -> Compacted:
        return replace(compacted, left_out=compacted.left_out - 1) if compacted.summary else compacted


class ForgetsTheOlderSummary(_ChangedCall):
    """A summary is made without the one before it, which it replaces."""

    def call(self, call: CallModel) -> CallModel:
        if not _is_summary(call):
            return call
        task, asked = call.request.messages
        assert isinstance(asked, UserMessage)
        later = UserMessage.of(asked.text.rpartition("</summary of what came before>")[2])
        return replace(call, request=replace(call.request, messages=(task, later)))


class HidesThatASummaryFailed(Mutation):
    """A summary that could not be made is not told."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [c for c in commands if not (isinstance(c, Note) and c.kind is NoteKind.SUMMARY_FAILED)]


class CompactsUnasked(Mutation):
    """A conversation is compacted though that is switched off."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, RequestStarted):
            return event
        return replace(event, options=replace(event.options, compaction=event.options.compaction or _FOR_ALL))


class ResumeForgetsCompaction(Mutation):
    """A resumed session forgets what it has compacted."""

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return [command for command in commands if not isinstance(command, RecordCompaction)]


class _OtherCompaction(Mutation):
    """Base: the session keeps to other shares than it was told."""

    shares: Mapping[str, Any] = {}

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, RequestStarted) or event.options.compaction is None:
            return event
        changed = dataclasses.replace(event.options.compaction, **self.shares)
        return replace(event, options=replace(event.options, compaction=changed))


class NeverSummarises(_OtherCompaction):
    """A summary that is due is not asked for."""

    shares: Mapping[str, Any] = {"summarise_at": None}


class ClearsLate(_OtherCompaction):
    """Old results stay longer than they are to."""

    shares: Mapping[str, Any] = {"clear_at": 0.95}


class KeepsTooMuchOfAResult(Mutation):
    """One result may fill the window."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, RequestStarted):
            return event
        return replace(event, options=replace(event.options, result_share=1.0))


class LeavesAMessageOutOfASummary(_ChangedCall):
    """A summary is made without the last of its messages, which is shown nowhere then."""

    def call(self, call: CallModel) -> CallModel:
        if not _is_summary(call):
            return call
        task, asked = call.request.messages
        assert isinstance(asked, UserMessage)
        said, _, ends = asked.text.rpartition("\n</conversation>")
        shorter = UserMessage.of(f"{said.rpartition('[')[0]}\n</conversation>{ends}")
        return replace(call, request=replace(call.request, messages=(task, shorter)))


class SearchesForNothing(_ChangedCall):
    """Words to search by are asked for without what is searched for."""

    def call(self, call: CallModel) -> CallModel:
        if call.purpose is not CallPurpose.SEARCH_WORDS:
            return call
        task, _ = call.request.messages
        return replace(call, request=replace(call.request, messages=(task, UserMessage.of("The user asked."))))


class HidesHowMuchWasCut(Mutation):
    """It is not said that a prompt was cut."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [c for c in commands if not (isinstance(c, Note) and c.kind is NoteKind.TRIMMED)]


#: With the rule that must notice each.
COMPACTION_FAULTS: Final[tuple[tuple[str, type[Mutation]], ...]] = (
    ("I28 compaction", OffersToolsForASummary),
    ("I23 model calls", GivesASummaryAllTheTime),
    ("I18 shown as recorded", HidesTheSummary),
    ("I18 shown as recorded", ClearsWithoutALine),
    ("I17 recorded truly", RecordsTheSummary),
    ("I28 compaction", CutsThroughAnExchange),
    ("I28 compaction", ForgetsTheOlderSummary),
    ("I28 compaction", HidesThatASummaryFailed),
    ("I28 compaction", CompactsUnasked),
    ("I26 resume", ResumeForgetsCompaction),
    ("I28 compaction", NeverSummarises),
    ("I28 compaction", ClearsLate),
    ("I18 shown as recorded", KeepsTooMuchOfAResult),
    ("I28 compaction", LeavesAMessageOutOfASummary),
    ("I32 search words", SearchesForNothing),
    ("I18 shown as recorded", HidesHowMuchWasCut),
)
