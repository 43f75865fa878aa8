"""What `ask` shows: the answer's text on stdout as it arrives, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from callboard.actors.reply import Reply
from callboard.protocol.commands import AskApproval, Note, RunTool
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.ids import Tag
from callboard.protocol.stream import Restarted, TextDelta

#: Arguments longer than this are cut on the screen.
SHOWN_ARGUMENTS_CHARS = 80


class Screen:
    """Shows the events of one request. `quiet` leaves stdout to the caller."""

    def __init__(self, aside: Console, *, quiet: bool) -> None:
        self._aside = aside
        self._quiet = quiet
        self._at_line_start = True
        self._running: dict[Tag, str] = {}

    def show(self, event: object) -> None:
        """Show one event, if it is of a kind that people want to see."""
        if shower := _SHOWERS.get(type(event)):
            shower(self, event)

    def print_line(self, text: str) -> None:
        """One line of result on stdout."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _text(self, event: TextDelta) -> None:
        if self._quiet or not event.text:
            return
        sys.stdout.write(event.text)
        sys.stdout.flush()
        self._at_line_start = event.text.endswith("\n")

    def _end_line(self) -> None:
        if not self._at_line_start:
            self.print_line("")
            self._at_line_start = True

    def _remark(self, text: str, style: str = "dim") -> None:
        self._end_line()
        self._aside.print(Text(text, style=style), soft_wrap=True)

    def _tool_runs(self, command: RunTool) -> None:
        shown = command.arguments
        if len(shown) > SHOWN_ARGUMENTS_CHARS:
            shown = shown[:SHOWN_ARGUMENTS_CHARS] + "..."
        self._running[command.tag] = command.name
        self._remark(f"> {command.name} {shown}")

    def _tool_completed(self, event: ToolCallCompleted) -> None:
        self._remark(f"< {self._running.pop(event.tag, 'tool')}: {len(event.content):,} characters")

    def _tool_failed(self, event: ToolCallFailed) -> None:
        self._running.pop(event.tag, None)
        self._remark(f"< {event.failure.tool}: {event.failure.code}: {event.failure.message}", "yellow")

    def _tool_timed_out(self, event: ToolCallTimedOut) -> None:
        self._remark(f"< {self._running.pop(event.tag, 'tool')}: ended at its deadline", "yellow")

    def _approval(self, question: AskApproval) -> None:
        self._remark(f"? {question.name} needs approval ({question.risk})", "yellow")

    def _note(self, note: Note) -> None:
        self._remark(note.text, "yellow")

    def _restarted(self, event: Restarted) -> None:
        self._remark(f"the answer begins again ({event.reason})", "yellow")

    def _reply(self, _: Reply) -> None:
        self._end_line()


_SHOWERS: Mapping[type, Callable[[Screen, Any], None]] = {
    TextDelta: Screen._text,
    RunTool: Screen._tool_runs,
    ToolCallCompleted: Screen._tool_completed,
    ToolCallFailed: Screen._tool_failed,
    ToolCallTimedOut: Screen._tool_timed_out,
    AskApproval: Screen._approval,
    Note: Screen._note,
    Restarted: Screen._restarted,
    Reply: Screen._reply,
}
