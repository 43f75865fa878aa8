"""`callboard ask`: bring the index up to date, ask, and print the answer as it comes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterable, Coroutine
from typing import Final

from msgspec import Struct

from callboard import (
    AskOptions,
    Conversation,
    ModelCallFailed,
    Reply,
    RequestEnded,
    Runtime,
    Settings,
    TextDelta,
    ToolCallCompleted,
    UsageError,
)
from callboard.actors.cli.advice import advised
from callboard.actors.cli.approval_prompt import TerminalApprover, approver_for
from callboard.actors.cli.arguments import place_of
from callboard.actors.cli.attachments import attached
from callboard.actors.cli.indexing import IndexProgress
from callboard.actors.cli.model_choice import with_model
from callboard.actors.cli.question import question_of
from callboard.actors.cli.screen import Screen
from callboard.actors.cli.sources import Sources
from callboard.actors.cli.terminal import print_json
from callboard.actors.cli.workspace_setup import WorkspaceSetup, set_up
from callboard.actors.index import IndexWriteError
from callboard.actors.requests.asking import Prompt
from callboard.protocol.commands import Note
from callboard.protocol.events import RequestStarted
from callboard.protocol.model import Restarted

#: What --json prints of a Reply.
SHOWN: Final = ("text", "request_id", "outcome", "finish_reason", "usage", "cost", "notes")
#: All that it prints, in this order; `error` comes last, where there was one.
FIELDS: Final = (
    "text", "request_id", "outcome", "finish_reason", "model", "steps", "usage", "cost", "notes", "sources",
)  # fmt: skip


def run(options: argparse.Namespace, known: dict[str, object]) -> Coroutine[object, object, None]:
    """Text goes to stdout; tool calls, notes and progress to stderr. With --json, `known` is what there is so far.

    Reads standard input here: while a loop runs, Ctrl-C would not end the reading.
    """
    question: Prompt = [question_of(options.question, options.input), *attached(options.image, options.file)]
    said: AskOptions = {} if options.instructions is None else {"instructions": options.instructions}
    wanted = Wanted(options.conversation, options.goes_on)
    return _ask(question, said, wanted, set_up(options, may_ask=True), _Report(known) if options.json else None)


class Wanted(Struct, frozen=True):
    """Which conversation of the journal is gone on with; without either, a new one."""

    conversation_id: str | None
    latest: bool

    def of(self, runtime: Runtime) -> Conversation:
        """Raises UsageError where there is no journal, or none such in it."""
        own = self.conversation_id
        if own is None and not self.latest:
            return Conversation()
        place_of(runtime.settings)
        if own is None:
            found = runtime.journal.conversations(1)
            if not found:
                raise UsageError("there is no conversation in the journal yet; leave out --continue")
            own = found[0].id
        return runtime.journal.conversation(runtime.journal.whole_conversation_id(own))


async def _ask(
    question: Prompt, said: AskOptions, wanted: Wanted, given: WorkspaceSetup, report: _Report | None
) -> None:
    settings = await with_model(given.settings)
    screen = Screen(quiet=report is not None)
    if given.note:
        screen.remark(given.note)
    approver = approver_for(screen)
    ask_user = approver.answer if isinstance(approver, TerminalApprover) else None
    async with Runtime(settings, given.tools, approve=approver, ask_user=ask_user) as runtime:
        said["conversation"] = conversation = await asyncio.to_thread(wanted.of, runtime)
        if note := await refreshed(runtime):
            screen.remark(note)
        if report is not None:
            report.begin(settings)
            if settings.journal is not None:
                report.known["conversation"] = conversation.id
        try:
            await _show(runtime.stream(question, **said), screen, report)
        except asyncio.CancelledError:
            screen.show_rest()
            raise
        except (ModelCallFailed, RequestEnded) as failure:
            screen.end_line()
            if report is not None:
                report.see(failure.reply)
            raise (advised(failure, settings) if isinstance(failure, ModelCallFailed) else failure) from None
        finally:
            if note := runtime.index_note():
                screen.remark(note)
                if report is not None:
                    report.add_note(note)
        if report is not None:
            print_json(report.known)


async def _show(stream: AsyncIterable[object], screen: Screen, report: _Report | None) -> None:
    with screen.answering():
        async for event in stream:
            screen.show(event)
            if report is not None:
                report.see(event)


async def refreshed(runtime: Runtime) -> str:
    """Bring the index up to date. What is to be said about that: a full disk is no reason not to answer."""
    try:
        with IndexProgress() as progress:
            return (await runtime.refresh_index(progress)).note
    except IndexWriteError as error:
        return str(error)


class _Report:
    """What --json prints, kept up to date with the events, so that it is there when the request is interrupted."""

    def __init__(self, known: dict[str, object]) -> None:
        self.known = known
        self._text = ""
        self._notes: list[str] = []

    def begin(self, settings: Settings) -> None:
        self._sources = Sources(*settings.workspaces)
        self.known |= {**dict.fromkeys(FIELDS), "text": "", "model": settings.model, "notes": [], "sources": []}

    def see(self, event: object) -> None:
        self._sources.see(event)
        match event:
            case ToolCallCompleted():
                self.known["sources"] = self._sources.all()
            case RequestStarted():
                self.known["request_id"] = event.tag.request_id
            case TextDelta():
                self._text += event.text
                self.known["text"] = self._text
            case Restarted():
                self.known["text"] = self._text = ""
            case Note():
                self.add_note(event.text)
            case Reply():
                self._notes = list(event.notes)
                self.known |= {name: getattr(event, name) for name in SHOWN} | {"steps": len(event.steps)}
                self.known["sources"] = self._sources.all(event.text)

    def add_note(self, text: str) -> None:
        self._notes.append(text)
        self.known["notes"] = self._notes
