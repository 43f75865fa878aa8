"""What `ask` shows: the answer's text on stdout as it arrives, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from callboard import AskApproval, Reply, RunTool
from callboard.protocol.commands import Note
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.ids import Tag
from callboard.protocol.model import Restarted, TextDelta

#: Arguments longer than this are cut on the screen.
SHOWN_ARGUMENTS_CHARS: Final = 80
#: SGR codes (ECMA-48): faint and yellow.
DIM, YELLOW, PLAIN = "\x1b[2m", "\x1b[33m", "\x1b[0m"


class Screen:
    """Shows the events of one request. `quiet` leaves stdout to `print_line`."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._coloured = sys.stderr.isatty()
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

    def end_line(self) -> None:
        """End an unfinished line, so that the next output begins a line."""
        if not self._at_line_start:
            self.print_line("")
            self._at_line_start = True

    def remark(self, text: str, style: str = YELLOW) -> None:
        """One line on stderr; line breaks and control characters in the text are replaced by spaces."""
        self.end_line()
        shown = "".join(char if char.isprintable() else " " for char in text)
        sys.stderr.write(f"{style}{shown}{PLAIN}\n" if self._coloured else f"{shown}\n")
        sys.stderr.flush()

    def _text(self, event: TextDelta) -> None:
        if self._quiet or not event.text:
            return
        sys.stdout.write(event.text)
        sys.stdout.flush()
        self._at_line_start = event.text.endswith("\n")

    def _tool_runs(self, command: RunTool) -> None:
        shown = command.arguments
        if len(shown) > SHOWN_ARGUMENTS_CHARS:
            shown = shown[:SHOWN_ARGUMENTS_CHARS] + "..."
        self._running[command.tag] = command.name
        self.remark(f"> {command.name} {shown}", DIM)

    def _tool_completed(self, event: ToolCallCompleted) -> None:
        self.remark(f"< {self._ended(event.tag)}: {len(event.content):,} characters", DIM)

    def _tool_failed(self, event: ToolCallFailed) -> None:
        self._ended(event.tag)
        self.remark(f"< {event.failure.tool}: {event.failure.code}: {event.failure.message}")

    def _tool_timed_out(self, event: ToolCallTimedOut) -> None:
        self.remark(f"< {self._ended(event.tag)}: ended at its deadline")

    def _tool_cancelled(self, event: ToolCallCancelled) -> None:
        self.remark(f"< {self._ended(event.tag)}: cancelled")

    def _ended(self, tag: Tag) -> str:
        return self._running.pop(tag, "tool")

    def _approval(self, question: AskApproval) -> None:
        self.remark(f"? {question.name} needs approval ({question.risk})")

    def _note(self, note: Note) -> None:
        self.remark(note.text)

    def _restarted(self, event: Restarted) -> None:
        self.remark(f"the answer begins again ({event.reason})")

    def _reply(self, _: Reply) -> None:
        self.end_line()


_SHOWERS: Mapping[type, Callable[[Screen, Any], None]] = {
    TextDelta: Screen._text,
    RunTool: Screen._tool_runs,
    ToolCallCompleted: Screen._tool_completed,
    ToolCallFailed: Screen._tool_failed,
    ToolCallTimedOut: Screen._tool_timed_out,
    ToolCallCancelled: Screen._tool_cancelled,
    AskApproval: Screen._approval,
    Note: Screen._note,
    Restarted: Screen._restarted,
    Reply: Screen._reply,
}
